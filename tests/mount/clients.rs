//! What programs do to files beside reading them: maps, locks, signals, splicing, executing, opening by descriptor, and
//! the figures that warmfs shows as a file.

use crate::common::*;
use crate::figures::{Figure, scale};
use crate::need_mount;
use crate::tools::*;
use rustix::fs::{Advice, FlockOperation, Mode, OFlags};
use rustix::io::ReadWriteFlags;
use std::fs::File;
use std::io::{IoSliceMut, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A small and a large file, each seen cold and warm.
fn cold_and_warm(mode: &[&'static str], test: impl Fn(&World, &str, &[u8])) {
    let world = World::mounted(mode);
    for (name, size) in [("small", 300_001), ("large", (6 << 20) + 1)] {
        let bytes = world.put(name, size, 1);
        for state in ["cold", "warm"] {
            eprintln!("{name} {state}");
            test(&world, name, &bytes);
            verb("warm", &world.mnt(name));
        }
        evict(&world.mnt(name));
    }
}

#[test]
fn bug_080_copies_inside_the_kernel_are_whole() {
    need_mount!();
    both(|mode| {
        cold_and_warm(mode, |world, name, bytes| {
            let (from, to) = (world.mnt(name), world.dir().join("to"));
            for how in ["cp --reflink=auto", "cp --sparse=always", "cp -a", "dd status=none bs=64k", "cat"] {
                evict(&from);
                let script = match how.split(' ').next() {
                    Some("dd") => format!("{how} if=\"$1\" of=\"$2\""),
                    Some("cat") => "cat \"$1\" > \"$2\"".into(),
                    _ => format!("{how} \"$1\" \"$2\""),
                };
                shell(&script, &[&from, &to]);
                assert!(std::fs::read(&to).unwrap() == bytes, "{how}");
                std::fs::remove_file(&to).unwrap();
            }
            python(
                "import os, sys, errno\n\
                 def fresh():\n  return open(sys.argv[1], 'rb'), open(sys.argv[2], 'w+b')\n\
                 def check(o, n, how):\n  o.seek(0)\n  want = open(sys.argv[3], 'rb').read()\n  \
                   assert n == len(want) and o.read() == want, (how, n)\n\
                 i, o = fresh()\nn = 0\n\
                 try:\n  while True:\n    k = os.copy_file_range(i.fileno(), o.fileno(), 1 << 20)\n    n += k\n    \
                   if not k: break\n  check(o, n, 'copy_file_range')\n\
                 except OSError as e:\n  assert e.errno in (errno.EXDEV, errno.EOPNOTSUPP), e\n\
                 i, o = fresh()\nn = 0\n\
                 while (k := os.sendfile(o.fileno(), i.fileno(), n, 1 << 20)): n += k\n\
                 check(o, n, 'sendfile')\n\
                 i, o = fresh()\nn = 0\nr, w = os.pipe()\n\
                 while (k := os.splice(i.fileno(), w, 65536, offset_src=n)):\n  n += k\n  \
                   left = k\n  while left: left -= os.splice(r, o.fileno(), left)\n\
                 check(o, n, 'splice')\n",
                &[&from, &to, &world.src(name)],
            );
        });
    });
}

#[test]
fn bug_082_many_faults_in_maps_come_to_an_end_with_two_workers() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["-o", "mount.workers=2", "-o", "source.threads=4"]));
        let bytes: Vec<_> = (0..3).map(|n| world.put(&n.to_string(), 16 << 20, n)).collect();
        std::thread::scope(|scope| {
            for t in 0..16usize {
                let (world, bytes) = (&world, &bytes);
                scope.spawn(move || {
                    let n = t % 3;
                    let file = File::open(world.mnt(n.to_string())).unwrap();
                    let flags = if t % 2 == 0 { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
                    let (map, mut dice) = (Map::new(&file, flags).unwrap(), Dice::new(t as u64 + 1));
                    for _ in 0..300 {
                        let at = dice.below(map.len() - 8);
                        assert_eq!(map[at..at + 8], bytes[n][at..at + 8]);
                    }
                });
            }
        });
        assert_eq!(world.stat("source_waiting"), 0);
    });
}

/// Opens, reads, stats and lists by the C library, which retries nothing, under a timer of 1 ms.
const SIGNALS: &str = "
import ctypes, os, signal, sys, errno
c = ctypes.CDLL(None, use_errno=True)
c.opendir.restype = c.readdir.restype = ctypes.c_void_p
c.readdir.argtypes = c.closedir.argtypes = [ctypes.c_void_p]
hits = 0
def tick(*_):
    global hits
    hits += 1
signal.signal(signal.SIGALRM, tick)
restart = sys.argv[2] == 'restart'
signal.siginterrupt(signal.SIGALRM, not restart)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def ok(n, what):
    if n < 0:
        raise OSError(ctypes.get_errno(), what + ': ' + os.strerror(ctypes.get_errno()))
    return n
buffer = ctypes.create_string_buffer(9000)
top = sys.argv[1].encode()
for n in range(int(sys.argv[3])):
    path = b'%s/%d' % (top, n)
    fd = ok(c.open(path, os.O_RDONLY), 'open')
    while True:
        got = c.read(fd, buffer, 9000)
        if got < 0 and ctypes.get_errno() == errno.EINTR and not restart:
            continue
        ok(got, 'read')
        break
    assert got == 5000, got
    ok(c.close(fd), 'close')
    ok(c.access(path, os.R_OK), 'access')
    ok(c.getxattr(path, b'user.warmfs.state', buffer, 9000), 'getxattr')
    ctypes.set_errno(0)
    d = c.opendir(top)
    ok(0 if d else -1, 'opendir')
    entries = 0
    while c.readdir(d):
        entries += 1
    ok(-1 if ctypes.get_errno() else 0, 'readdir')
    assert entries == int(sys.argv[3]) + 2, entries
    c.closedir(d)
signal.setitimer(signal.ITIMER_REAL, 0)
assert hits > 20, hits
print(hits)
";

#[test]
fn bug_098_bug_099_signals_interrupt_nothing() {
    need_mount!();
    both(|mode| {
        for restart in ["restart", "not"] {
            let count = scale(15, 100, 400);
            let world = Slow::new();
            (0..count).for_each(|n| drop(world.put(&format!("d/{n}"), 5000, n)));
            world.mount(&["--latency", "3ms", "--ttl", "10s"], &with(mode, &["--ttl", "0"]));
            let said = python(SIGNALS, &[&world.mnt("d"), Path::new(restart), Path::new(&count.to_string())]);
            // What was begun was not thrown away and done again.
            assert_eq!(world.count("read_bytes"), count * 5000);
            // Each opened, read, closed, asked for access and an attribute; and the listing.
            Figure::new(
                "R23",
                "calls on cold files under a timer of 1 ms: interrupted, failed",
                count * 6,
                0,
            )
            .fired("signals", said.trim().parse().unwrap())
            .note("with SA_RESTART and without; without it a read may be EINTR and is done again")
            .report();
        }
    });
}

const LOCKS: &str = "
import fcntl, os, signal, struct, sys, time
path, counter = sys.argv[1], sys.argv[2]
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
def worker():
    f = open(path, 'rb')
    for _ in range(20):
        fcntl.flock(f, fcntl.LOCK_EX)
        n = int(open(counter).read())
        time.sleep(0.0002)
        open(counter, 'w').write(str(n + 1))
        fcntl.flock(f, fcntl.LOCK_UN)
        fcntl.lockf(f, fcntl.LOCK_SH)
        fcntl.lockf(f, fcntl.LOCK_UN)
        lock = struct.pack('hhqqi4x', fcntl.F_RDLCK, 0, 0, 0, 0)
        fcntl.fcntl(f, 38, lock)  # F_OFD_SETLKW
        fcntl.fcntl(f, 38, struct.pack('hhqqi4x', fcntl.F_UNLCK, 0, 0, 0, 0))
open(counter, 'w').write('0')
pids = []
for _ in range(6):
    pid = os.fork()
    if pid == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            worker()
        except BaseException as e:
            print(e, file=sys.stderr)
            os._exit(1)
        os._exit(0)
    pids.append(pid)
signal.setitimer(signal.ITIMER_REAL, 0)
assert all(os.waitpid(p, 0)[1] == 0 for p in pids)
assert open(counter).read() == str(6 * 20), open(counter).read()
r, w = os.pipe()
holder = os.fork()
if holder == 0:
    f = open(path, 'rb')
    fcntl.flock(f, fcntl.LOCK_EX)
    os.write(w, b'x')
    signal.pause()
os.read(r, 1)
f = open(path, 'rb')
try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sys.exit('locked twice')
except BlockingIOError:
    pass
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
";

#[test]
fn bug_100_locks_exclude_and_end_with_their_holder() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        world.put("f", 1000, 1);
        python(LOCKS, &[&world.mnt("f"), &world.dir().join("counter")]);
    });
}

#[test]
fn bug_103_a_reader_may_lock() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        world.put("x.h5", 5 << 20, 1);
        let open = || File::open(world.mnt("x.h5")).unwrap();
        let files = [open(), open(), open(), open()];
        for file in &files {
            rustix::fs::flock(file, FlockOperation::NonBlockingLockShared).unwrap();
        }
        let refused = rustix::fs::flock(open(), FlockOperation::NonBlockingLockExclusive).unwrap_err();
        assert_eq!(refused, rustix::io::Errno::WOULDBLOCK);
    });
}

#[test]
fn bug_135_every_kind_of_map_works() {
    need_mount!();
    both(|mode| {
        cold_and_warm(mode, |world, name, bytes| {
            let kinds = [
                (libc::PROT_READ, libc::MAP_SHARED),
                (libc::PROT_READ, libc::MAP_PRIVATE),
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE),
                (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE),
                (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE),
                (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_POPULATE),
            ];
            let file = File::open(world.mnt(name)).unwrap();
            let maps = kinds.map(|(prot, flags)| Map::with(&file, prot, flags).unwrap());
            drop(file);
            for (map, kind) in maps.iter().zip(kinds) {
                assert!(**map == *bytes, "{kind:?}");
            }
        });
    });
}

#[test]
fn maps_survive_a_fork_and_private_ones_may_be_written() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for (name, size) in [("small", 300_000), ("large", 6 << 20)] {
            world.put(name, size, 1);
            python(
                "import mmap, os, sys\n\
                 f = open(sys.argv[1], 'rb')\nwant = open(sys.argv[2], 'rb').read()\n\
                 s = mmap.mmap(f.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ)\n\
                 p = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)\n\
                 p[0:4] = b'mine'\nf.close()\n\
                 pids = []\n\
                 for _ in range(4):\n  pid = os.fork()\n  if pid == 0:\n    \
                   os._exit(0 if s[:] == want and p[:] == b'mine' + want[4:] else 1)\n  pids.append(pid)\n\
                 assert all(os.waitpid(p, 0)[1] == 0 for p in pids)\n\
                 s.madvise(mmap.MADV_WILLNEED)\ns.madvise(mmap.MADV_DONTNEED)\nassert s[:] == want\n",
                &[&world.mnt(name), &world.src(name)],
            );
        }
    });
}

#[test]
fn bug_138_the_figures_are_a_file_to_every_reader() {
    need_mount!();
    let world = World::mounted(&[]);
    world.put("f", 1000, 1);
    world.get("f");
    let (stats, to) = (world.mnt(".warmfs/stats.json"), world.dir().join("to"));
    let size = std::fs::metadata(&stats).unwrap().len();
    let check = |how: &str, bytes: &[u8]| {
        assert_eq!(bytes.len() as u64, size, "{how}");
        let figures: serde_json::Value =
            serde_json::from_slice(bytes).unwrap_or_else(|e| panic!("{how}: {e}"));
        assert_eq!(figures["cached_files"], 1, "{how}");
    };
    check("read", &std::fs::read(&stats).unwrap());
    check("cat", &shell("cat \"$1\"", &[&stats]));
    check("dd", &shell("dd status=none bs=100 if=\"$1\"", &[&stats]));
    check("tail", &shell("tail -c +1 \"$1\"", &[&stats]));
    shell("cp \"$1\" \"$2\"", &[&stats, &to]);
    check("cp", &std::fs::read(&to).unwrap());
    python(
        "import os, sys\ni, o = open(sys.argv[1], 'rb'), open(sys.argv[2], 'wb')\nn = 0\n\
         while (k := os.sendfile(o.fileno(), i.fileno(), n, 1 << 20)): n += k\n",
        &[&stats, &to],
    );
    check("sendfile", &std::fs::read(&to).unwrap());
    // Two reads of one copy see one moment.
    let mut file = File::open(&stats).unwrap();
    let mut first = [0; 10];
    file.read_exact(&mut first).unwrap();
    file.rewind().unwrap();
    let mut all = Vec::new();
    file.read_to_end(&mut all).unwrap();
    check("rewound", &all);
}

#[test]
fn a_descriptor_for_the_path_only_can_be_opened_later() {
    need_mount!();
    both(|mode| {
        cold_and_warm(mode, |world, name, bytes| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let path = rustix::fs::open(world.mnt(name), flags, Mode::empty()).unwrap();
            let again = format!("/proc/self/fd/{}", path.as_raw_fd());
            assert!(std::fs::read(&again).unwrap() == bytes);
            let file = File::open(&again).unwrap();
            let third = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            let mut end = [0; 10];
            third.read_exact_at(&mut end, bytes.len() as u64 - 10).unwrap();
            assert_eq!(end, bytes[bytes.len() - 10..]);
        });
    });
}

#[test]
fn a_program_runs_from_the_mount() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        std::fs::copy("/bin/echo", world.src("echo")).unwrap();
        std::fs::write(world.src("script"), "#!/bin/sh\necho from a script\n").unwrap();
        std::fs::set_permissions(world.src("script"), PermissionsExt::from_mode(0o755)).unwrap();
        for _ in 0..2 {
            let output = Command::new(world.mnt("echo")).arg("hello").output().unwrap();
            assert_eq!(output.stdout, b"hello\n");
            assert_eq!(Command::new(world.mnt("script")).output().unwrap().stdout, b"from a script\n");
        }
    });
}

#[test]
fn nothing_can_be_written() {
    need_mount!();
    let world = World::mounted(&[]);
    world.put("f", 10, 1);
    let ends = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    let erofs = Some(libc::EROFS);
    assert_eq!(ends(std::fs::write(world.mnt("f"), "x")), erofs);
    assert_eq!(ends(std::fs::write(world.mnt("new"), "x")), erofs);
    assert_eq!(ends(File::options().append(true).open(world.mnt("f")).map(drop)), erofs);
    assert_eq!(ends(std::fs::create_dir(world.mnt("new"))), erofs);
    assert_eq!(ends(std::fs::remove_file(world.mnt("f"))), erofs);
    assert_eq!(ends(std::fs::rename(world.mnt("f"), world.mnt("g"))), erofs);
    assert_eq!(ends(std::fs::set_permissions(world.mnt("f"), PermissionsExt::from_mode(0o600))), erofs);
    assert_eq!(ends(std::os::unix::fs::symlink("f", world.mnt("l"))), erofs);
    assert_eq!(world.get("f").len(), 10);
}

#[test]
fn reads_that_must_not_wait_are_right_or_say_so() {
    need_mount!();
    both(|mode| {
        cold_and_warm(mode, |world, name, bytes| {
            let file = File::open(world.mnt(name)).unwrap();
            let (mut dice, mut buffer) = (Dice::new(7), vec![0; 10_000]);
            for _ in 0..100 {
                let at = dice.below(bytes.len() - buffer.len());
                let parts = &mut [IoSliceMut::new(&mut buffer)];
                match rustix::io::preadv2(&file, parts, at as u64, ReadWriteFlags::NOWAIT) {
                    Ok(n) => assert!(n > 0 && buffer[..n] == bytes[at..][..n]),
                    Err(e) => assert!(matches!(e.raw_os_error(), libc::EAGAIN | libc::EOPNOTSUPP), "{e}"),
                }
            }
        });
    });
}

#[test]
fn advice_on_a_warm_file_is_quick_and_harmless() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        let bytes = world.put("large", 32 << 20, 1);
        verb("warm", &world.mnt("large"));
        let file = File::open(world.mnt("large")).unwrap();
        let since = Instant::now();
        let all = std::num::NonZeroU64::new(bytes.len() as u64);
        for advice in [Advice::WillNeed, Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::Normal]
        {
            rustix::fs::fadvise(&file, 0, all, advice).unwrap();
        }
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        assert!(*Map::shared(&file) == *bytes && world.get("large") == bytes);
        rustix::fs::fadvise(&file, 0, all, Advice::DontNeed).unwrap();
        assert!(world.get("large") == bytes);
        assert_eq!(world.stat("cache_errors") + world.stat("backing_errors"), 0);
    });
}
