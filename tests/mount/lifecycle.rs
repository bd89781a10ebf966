//! The life of a mount: how it begins, every way in which it ends, and that what follows an end is a clean start.

use crate::common::*;
use crate::figures::{Figure, scale};
use crate::need_mount;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an end may take.
const END_WITHIN: Duration = Duration::from_secs(5);

fn mount_with<S: AsRef<OsStr>>(args: &[S]) {
    let output = warmfs().arg("mount").args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

fn system(program: &str, args: &[&OsStr]) -> std::process::Output {
    Command::new(program).args(args).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn mount_returns_when_it_serves_and_says_nothing() {
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("a", 1000, 1);
    let output = world.try_mount(&[]);
    assert_eq!(world.get("a"), bytes);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{}", text(&output));
    world.umount();
    assert!(mounts_below(world.dir()).is_empty());
    assert!(!world.mnt("a").exists());
}

#[test]
fn in_place_over_the_source_itself() {
    need_mount!();
    let world = World::new(&[]);
    let small = world.put("d/small", 10_000, 1);
    let large = world.put("large", 6 << 20, 2);
    for more in [None, Some(world.src(""))] {
        let mut args = vec![world.src("").into_os_string()];
        args.extend(more.map(PathBuf::into_os_string));
        mount_with(&[args, vec!["--cache-dir".into(), world.cache().into()]].concat());
        assert_eq!(mounts_below(&world.src("")).len(), 1);
        for _ in 0..2 {
            assert_eq!(std::fs::read(world.src("d/small")).unwrap(), small);
            assert_eq!(std::fs::read(world.src("large")).unwrap(), large);
            drop_caches();
        }
        assert_eq!(std::fs::write(world.src("new"), "x").unwrap_err().raw_os_error(), Some(30));
        let output = run(&[OsStr::new("umount"), world.src("").as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
        assert!(mounts_below(world.dir()).is_empty());
        assert_eq!(std::fs::read(world.src("d/small")).unwrap(), small);
        std::fs::write(world.src("new"), "x").unwrap();
        std::fs::remove_file(world.src("new")).unwrap();
        wait_until("the daemon is gone", || daemons(&world.cache()).is_empty());
    }
}

#[test]
fn bug_153_any_bytes_in_the_names_of_source_and_mountpoint() {
    need_mount!();
    let world = World::new(&[]);
    let names: [&[u8]; 8] = [
        b"a b",
        b"a,b",
        b"a\\b",
        b"a\nb",
        b"caf\xe9\xff",
        b"x,allow_other,fd=9",
        b"\\040",
        "\u{fc}\u{1f600}".as_bytes(),
    ];
    for name in names {
        let dir = |end: &[u8]| world.dir().join(OsString::from_vec([name, end].concat()));
        let (source, mountpoint) = (dir(b".src"), dir(b".mnt"));
        for path in [&source, &mountpoint] {
            std::fs::create_dir(path).unwrap();
        }
        let file = OsStr::from_bytes(name);
        std::fs::write(source.join(file), name).unwrap();
        let cache = world.cache();
        mount_with(&[
            source.as_os_str(),
            mountpoint.as_os_str(),
            OsStr::new("--cache-dir"),
            cache.as_os_str(),
        ]);
        let shown = mounts_below(&mountpoint);
        assert_eq!(shown.len(), 1, "{mountpoint:?}");
        assert_eq!(shown[0].source.as_bytes(), [b"warmfs:", source.as_os_str().as_bytes()].concat());
        assert_eq!(std::fs::read(mountpoint.join(file)).unwrap(), name);
        let output = run(&[OsStr::new("stats"), mountpoint.join(file).as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
        let output = run(&[OsStr::new("umount"), mountpoint.as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
        assert!(mounts_below(world.dir()).is_empty(), "{mountpoint:?}");
        wait_until("the daemon is gone", || daemons(&cache).is_empty());
    }
}

/// A way to end a mount.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Verb,
    Term,
    Int,
    Umount8,
    Umount8Lazy,
}

impl Way {
    fn go(self, world: &World) -> bool {
        let mnt = world.mnt("");
        match self {
            Self::Verb => run(&[OsStr::new("umount"), mnt.as_os_str()]).status.success(),
            Self::Term => {
                world.signal(Signal::TERM);
                true
            }
            Self::Int => {
                world.signal(Signal::INT);
                true
            }
            Self::Umount8 => system("umount", &[mnt.as_os_str()]).status.success(),
            Self::Umount8Lazy => system("umount", &[OsStr::new("-l"), mnt.as_os_str()]).status.success(),
        }
    }
}

/// Threads that read all the time; they end with the first error or when they are told.
struct Readers {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    fn start(world: &World, count: usize) -> Self {
        let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let reader = |n: usize| {
            let (stop, reads) = (stop.clone(), reads.clone());
            let path = world.mnt(if n.is_multiple_of(4) { "large".into() } else { format!("f{}", n % 40) });
            move || {
                let mut buffer = vec![0; 64 << 10];
                let mut at = n as u64 * 4096;
                while !stop.load(Ordering::Relaxed) {
                    let Ok(file) = File::open(&path) else { break };
                    if file.read_at(&mut buffer, at % (5 << 20)).is_err() {
                        break;
                    }
                    at += 1 << 16;
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let threads = (0..count).map(|n| std::thread::spawn(reader(n))).collect();
        let readers = Self { stop, reads, threads };
        wait_until("the readers read", || readers.reads.load(Ordering::Relaxed) > 2 * count as u64);
        readers
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn fill_source(world: &World) -> Vec<Vec<u8>> {
    let files = (0..40).map(|n| world.put(&format!("f{n}"), 20_000 + n * 100, n as u64)).collect();
    world.put("large", 5 << 20, 99);
    files
}

/// Waits until daemon and mount are gone, and looks at what they left.
fn assert_gone(world: &World, since: Instant, what: &str) -> Duration {
    let gone = || daemons(&world.cache()).is_empty() && mounts_below(world.dir()).is_empty();
    wait_until(&format!("{what}: daemon and mount are gone"), gone);
    let took = since.elapsed();
    assert!(took < END_WITHIN, "{what}: took {took:?}");
    let log = world.log();
    assert!(log.trim_end().ends_with("stopping"), "{what}: the log ends with\n{log}");
    assert!(!log.contains("not clean"), "{what}: {log}");
    took
}

fn ends_idle_and_in_use(way: Way, flags: &[&str]) {
    let rounds = scale(1, 4, 12);
    let slowest = (0..rounds).map(|_| ends_three_times(way, flags)).max().unwrap_or_default();
    Figure::new("R24", "ends of a mount, each followed by a clean start: late, unclean, something left", rounds * 3, 0)
        .less("slowest", slowest.as_secs_f64(), "s")
        .note("by umount, SIGTERM, SIGINT, umount(8) and lazily; idle, with open files and a directory in use, under 100 readers")
        .report();
}

/// Returns how long the slowest of them took.
fn ends_three_times(way: Way, flags: &[&str]) -> Duration {
    let world = World::new(flags);
    let files = fill_source(&world);
    let mut slowest = Duration::ZERO;
    for case in ["idle", "in use", "100 readers"] {
        world.mount();
        assert_eq!(world.get("f3"), files[3], "{way:?} {case}");
        let mut open = Vec::new();
        let mut inside: Option<Child> = None;
        let mut readers = None;
        match case {
            "in use" => {
                open = vec![File::open(world.mnt("f3")).unwrap(), File::open(world.mnt("large")).unwrap()];
                open[1].read_at(&mut [0; 100], 1 << 20).unwrap();
                let mut command = Command::new("sleep");
                inside = Some(command.arg("60").current_dir(world.mnt("")).spawn().unwrap());
            }
            "100 readers" => readers = Some(Readers::start(&world, 100)),
            _ => {}
        }
        let busy = case != "idle";
        let begin = Instant::now();
        let done = way.go(&world);
        if way == Way::Umount8 && busy {
            // The kernel's rule for every file system: busy, and it goes on serving. Readers may just leave a gap.
            assert!(!done || case == "100 readers", "{case}");
            if !done {
                assert_eq!(world.get("f4"), files[4]);
            }
        } else {
            assert!(done, "{way:?} {case}");
        }
        if way == Way::Umount8Lazy {
            // It leaves the tree at once; whoever has it open may read on, and it ends with the last of them.
            assert!(mounts_below(world.dir()).is_empty(), "{case}");
            for file in &open {
                assert!(file.read_at(&mut [0; 100], 5000).unwrap() == 100, "{case}");
            }
        }
        let ends_by_itself = !matches!(way, Way::Umount8 | Way::Umount8Lazy);
        if ends_by_itself {
            slowest = slowest.max(assert_gone(&world, begin, &format!("{way:?}, {case}")));
        }
        drop(open);
        if let Some(mut child) = inside {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        if let Some(readers) = readers {
            readers.stop();
        }
        if !ends_by_itself {
            let begin = Instant::now();
            if way == Way::Umount8 && !mounts_below(world.dir()).is_empty() {
                assert!(way.go(&world), "{case}");
            }
            slowest = slowest.max(assert_gone(&world, begin, &format!("{way:?}, after {case}")));
        }
    }
    world.mount();
    for (n, bytes) in files.iter().enumerate() {
        assert_eq!(&world.get(&format!("f{n}")), bytes);
    }
    world.umount();
    slowest
}

#[test]
fn bug_094_umount_verb_ends_it() {
    need_mount!();
    ends_idle_and_in_use(Way::Verb, &[]);
}

#[test]
fn bug_094_umount_verb_ends_it_without_passthrough() {
    need_mount!();
    ends_idle_and_in_use(Way::Verb, &["--no-passthrough"]);
}

#[test]
fn bug_094_sigterm_ends_it() {
    need_mount!();
    ends_idle_and_in_use(Way::Term, &[]);
}

#[test]
fn bug_094_sigint_ends_it_without_passthrough() {
    need_mount!();
    ends_idle_and_in_use(Way::Int, &["--no-passthrough"]);
}

#[test]
fn bug_094_umount8_ends_it() {
    need_mount!();
    ends_idle_and_in_use(Way::Umount8, &[]);
}

#[test]
fn bug_094_lazy_umount8_ends_it() {
    need_mount!();
    ends_idle_and_in_use(Way::Umount8Lazy, &[]);
}

#[test]
fn bug_094_sigterm_during_a_slow_fill() {
    need_mount!();
    let world = World::new(&[]);
    world.put("big", 30 << 20, 1);
    world.put("small", 3 << 20, 2);
    let slow = world.dir().join("slow");
    std::fs::create_dir(&slow).unwrap();
    let args: [&OsStr; 4] = [
        OsStr::new("faultfs"),
        &world.src("").into_os_string(),
        slow.as_os_str(),
        OsStr::new("--bandwidth=1MB"),
    ];
    let output = run(&args);
    assert!(output.status.success(), "{}", text(&output));
    mount_with(&[
        slow.as_os_str(),
        world.mnt("").as_os_str(),
        OsStr::new("--cache-dir"),
        world.cache().as_os_str(),
    ]);
    let readers: Vec<_> = ["big", "small"]
        .map(|name| {
            let path = world.mnt(name);
            std::thread::spawn(move || std::fs::read(path).is_err())
        })
        .into();
    wait_until("fills began", || world.stat("lookups") >= 2);
    let begin = Instant::now();
    world.signal(Signal::TERM);
    let gone = || daemons(&world.cache()).is_empty() && mounts_below(&world.mnt("")).is_empty();
    wait_until("daemon and mount are gone", gone);
    assert!(begin.elapsed() < END_WITHIN, "took {:?}", begin.elapsed());
    for reader in readers {
        assert!(reader.join().unwrap(), "no reader may take a half-filled file for whole");
    }
}

#[test]
fn bug_095_a_dead_mount_is_replaced() {
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("a", 5000, 1);
    for round in 0..20 {
        let output = world.try_mount(&[]);
        assert!(output.status.success(), "round {round}: {}", text(&output));
        assert_eq!(mounts_below(world.dir()).len(), 1, "round {round}");
        assert_eq!(world.get("a"), bytes, "round {round}");
        world.kill();
        assert!(std::fs::read(world.mnt("a")).is_err());
    }
    // `umount` takes a dead one away too.
    world.umount();
    assert!(mounts_below(world.dir()).is_empty());
}

#[test]
fn bug_095_a_dead_mount_in_place_is_replaced() {
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("a", 5000, 1);
    for round in 0..3 {
        mount_with(&[world.src("").as_os_str(), OsStr::new("--cache-dir"), world.cache().as_os_str()]);
        assert_eq!(mounts_below(world.dir()).len(), 1, "round {round}");
        assert_eq!(std::fs::read(world.src("a")).unwrap(), bytes);
        world.kill();
        assert!(std::fs::read(world.src("a")).is_err());
    }
    let output = run(&[OsStr::new("umount"), world.src("").as_os_str()]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(std::fs::read(world.src("a")).unwrap(), bytes);
}

#[test]
fn bug_095_a_dead_mount_that_somebody_is_still_in_is_replaced() {
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("a", 5000, 1);
    for in_the_way in [0, 1] {
        world.mount();
        let mut inside = Command::new("sleep").arg("60").current_dir(world.mnt("")).spawn().unwrap();
        let held = File::open(world.mnt("a")).unwrap();
        world.kill();
        // By the name that a user types, too.
        let mountpoint = [world.mnt(""), world.dir().join("src/../mnt")][in_the_way].clone();
        let flags = [OsStr::new("--cache-dir"), &world.cache().into_os_string()].map(OsStr::to_os_string);
        mount_with(&[vec![world.src("").into_os_string(), mountpoint.into()], flags.to_vec()].concat());
        assert_eq!(mounts_below(world.dir()).len(), 1);
        assert_eq!(world.get("a"), bytes);
        inside.kill().unwrap();
        inside.wait().unwrap();
        drop(held);
        world.umount();
    }
}

#[test]
fn bug_096_kill_9_under_load_leaves_nothing_half_done() {
    need_mount!();
    let world = World::new(&[]);
    let files = fill_source(&world);
    for round in 0..6u64 {
        world.mount();
        let readers = Readers::start(&world, 8);
        std::thread::sleep(Duration::from_millis(round * 13));
        world.kill();
        readers.stop();
    }
    world.mount();
    assert_eq!(mounts_below(world.dir()).len(), 1);
    // Data files that no index entry speaks of were removed by the start.
    assert_eq!(data_files(&world.cache()).len() as u64, world.stat("cached_files"));
    for (n, bytes) in files.iter().enumerate() {
        assert_eq!(&world.get(&format!("f{n}")), bytes);
    }
    world.umount();
    assert!(daemons(world.dir()).is_empty());
}

/// Every file below a `data` directory of a cache.
fn data_files(cache: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![cache.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if entry.path().components().any(|c| c.as_os_str() == "data") {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn in_the_foreground_it_stays_logs_to_the_terminal_and_ends_with_0() {
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("a", 5000, 1);
    for way in [Way::Verb, Way::Term, Way::Int, Way::Umount8] {
        let mut command = warmfs();
        command.arg("mount").arg(world.src("")).arg(world.mnt(""));
        command.arg("--cache-dir").arg(world.cache()).arg("--foreground");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("serving at") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "{way:?}: ended: {said}");
        }
        assert_eq!(world.get("a"), bytes);
        assert!(child.try_wait().unwrap().is_none(), "it stays");
        let held = (way == Way::Term).then(|| File::open(world.mnt("a")).unwrap());
        assert!(way.go(&world), "{way:?}");
        stderr.read_to_string(&mut said).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{way:?}: {said}");
        assert!(mounts_below(world.dir()).is_empty());
        assert!(said.contains("stopping") && !said.contains("ERROR"), "{said}");
        let mut stdout = String::new();
        child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        assert_eq!(stdout, "");
        drop(held);
    }
    assert_eq!(world.log(), "", "the log went to the terminal");
}

#[test]
fn an_open_passthrough_file_outlives_the_daemon() {
    need_mount!();
    let world = World::mounted(&[]);
    let bytes = world.put("a", 3 << 20, 1);
    assert_eq!(world.get("a"), bytes);
    let mut held = File::open(world.mnt("a")).unwrap();
    assert_eq!(world.xattr("a", "mode"), "passthrough");
    world.kill();
    drop_caches();
    let mut read = Vec::new();
    held.read_to_end(&mut read).unwrap();
    assert!(read == bytes);
}

#[test]
fn mounts_live_side_by_side() {
    need_mount!();
    let world = World::new(&[]);
    let make = |name: &str| {
        let path = world.dir().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    };
    let (other, second, third) = (make("other"), make("m2"), make("m3"));
    let bytes = world.put("a", 70_000, 1);
    std::fs::write(other.join("a"), "other").unwrap();
    world.mount();
    let caches = ["c2", "c3"].map(|name| world.dir().join(name));
    for (source, mountpoint, cache) in [(&world.src(""), &second, &caches[0]), (&other, &third, &caches[1])] {
        mount_with(&[
            source.as_os_str(),
            mountpoint.as_os_str(),
            OsStr::new("--cache-dir"),
            cache.as_os_str(),
        ]);
    }
    for _ in 0..2 {
        assert_eq!(world.get("a"), bytes);
        assert_eq!(std::fs::read(second.join("a")).unwrap(), bytes);
        assert_eq!(std::fs::read(third.join("a")).unwrap(), b"other");
    }
    world.umount();
    assert_eq!(std::fs::read(second.join("a")).unwrap(), bytes, "the end of one is not the end of all");
    for mountpoint in [&second, &third] {
        let output = run(&[OsStr::new("umount"), mountpoint.as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
    }
    assert!(mounts_below(world.dir()).is_empty());
    wait_until("all daemons are gone", || daemons(world.dir()).is_empty());
}

#[test]
fn bug_087_a_cache_directory_has_one_daemon() {
    need_mount!();
    let world = World::mounted(&[]);
    let bytes = world.put("a", 5000, 1);
    let other = world.dir().join("other");
    std::fs::create_dir(&other).unwrap();
    let pid = world.pid();
    let (cache, flag) = (world.cache(), OsStr::new("--cache-dir"));
    let second =
        || warmfs().arg("mount").args([other.as_os_str(), flag, cache.as_os_str()]).output().unwrap();
    assert_refused(&second(), &["in use", &format!("pid {pid})"), "--cache-dir"]);
    assert_eq!(mounts_below(world.dir()).len(), 1);
    assert_eq!(world.pid(), pid);
    assert_eq!(world.get("a"), bytes);
    assert!(!world.log().contains("in use"), "a refusal is told to whoever asked:\n{}", world.log());
    world.kill();
    let output = second();
    assert!(output.status.success(), "the lock of a dead daemon is in the way: {}", text(&output));
}

#[test]
fn a_live_mount_is_not_mounted_over() {
    need_mount!();
    let world = World::mounted(&[]);
    let bytes = world.put("a", 5000, 1);
    let other = world.dir().join("other-cache");
    let output = world.try_mount(&["--cache-dir", other.to_str().unwrap()]);
    // Given twice, the flag is a usage error; so by hand:
    assert_eq!(output.status.code(), Some(2));
    let output = warmfs()
        .arg("mount")
        .args([world.src(""), world.mnt("")])
        .args([OsStr::new("--cache-dir"), other.as_os_str()])
        .output()
        .unwrap();
    assert_refused(&output, &["mnt", "warmfs mount already", "warmfs umount"]);
    assert!(!other.exists());
    assert_eq!(mounts_below(world.dir()).len(), 1);
    assert_eq!(world.get("a"), bytes);
}

#[test]
fn options_as_in_fstab() {
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("a", 5000, 1);
    let options = format!(
        "ro,nofail,noauto,_netdev,x-systemd.automount,comment=warm,cache.dir={},cache.size=64MiB,ttl=5s",
        world.cache().display()
    );
    let (src, mnt) = (world.src(""), world.mnt(""));
    // mount(8) calls its helpers as `mount.warmfs SOURCE MOUNTPOINT -o OPTIONS`.
    mount_with(&[src.as_os_str(), mnt.as_os_str(), OsStr::new("-o"), OsStr::new(&options)]);
    assert_eq!(world.get("a"), bytes);
    assert_eq!(world.stat("cache_capacity_bytes"), 64 << 20);
    let output = run(&[OsStr::new("umount"), mnt.as_os_str()]);
    assert!(output.status.success(), "{}", text(&output));
    // The last of the same options wins, as with mount(8), and a flag wins over both.
    let sizes = ["-o", "size=32MiB,cache.size=48MiB", "--cache-dir"].map(OsStr::new);
    for (more, size) in [(None, 48), (Some("--cache-size=16MiB"), 16)] {
        wait_until("the daemon is gone", || daemons(world.dir()).is_empty());
        let mut args = vec![src.as_os_str(), mnt.as_os_str()];
        let cache = world.cache();
        args.extend(sizes);
        args.push(cache.as_os_str());
        args.extend(more.map(OsStr::new));
        mount_with(&args);
        assert_eq!(world.stat("cache_capacity_bytes"), size << 20);
        world.umount();
    }
}

#[test]
fn the_log_is_there_private_and_has_no_line_per_request() {
    need_mount!();
    let world = World::mounted(&[]);
    fill_source(&world);
    for _ in 0..10 {
        for n in 0..40 {
            world.get(&format!("f{n}"));
            assert!(std::fs::metadata(world.mnt(format!("missing{n}"))).is_err());
        }
        std::fs::read_dir(world.mnt("")).unwrap().count();
    }
    assert!(world.stat("opens") >= 400);
    let log = world.log();
    assert!(log.contains("serving"), "{log}");
    assert!(log.lines().count() < 10, "{log}");
    let path = world.cache().join("log/warmfs.log");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

/// Everything below a directory: name, kind, mode, size, and both times that a write would change.
fn snapshot(dir: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(next) = dirs.pop() {
        let mut names: Vec<_> = std::fs::read_dir(&next).unwrap().map(|e| e.unwrap().path()).collect();
        names.push(next.clone());
        for path in names {
            let m = path.symlink_metadata().unwrap();
            let times = (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
            found.push(format!("{path:?} {:o} {} {} {times:?}", m.mode(), m.size(), m.nlink()));
            if m.is_dir() && path != next {
                dirs.push(path);
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_kind_of_write_is_erofs_and_the_source_is_untouched() {
    use rustix::fs as rfs;
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("d/f", 5000, 1);
    std::os::unix::fs::symlink("f", world.src("d/l")).unwrap();
    let before = snapshot(&world.src(""));
    world.mount();
    let (f, d, new) = (world.mnt("d/f"), world.mnt("d"), world.mnt("d/new"));
    let mode = rfs::Mode::from_raw_mode(0o644);
    let open = |flags| rfs::open(&f, flags, mode).map(drop);
    let times = rfs::Timestamps {
        last_access: rfs::Timespec { tv_sec: 1, tv_nsec: 0 },
        last_modification: rfs::Timespec { tv_sec: 1, tv_nsec: 0 },
    };
    let none = rfs::AtFlags::empty();
    let results = [
        ("create", rfs::open(&new, rfs::OFlags::CREATE | rfs::OFlags::WRONLY, mode).map(drop)),
        ("O_RDWR", open(rfs::OFlags::RDWR)),
        ("O_WRONLY", open(rfs::OFlags::WRONLY)),
        ("O_TRUNC", open(rfs::OFlags::WRONLY | rfs::OFlags::TRUNC)),
        ("O_APPEND", open(rfs::OFlags::WRONLY | rfs::OFlags::APPEND)),
        ("O_TMPFILE", rfs::open(&d, rfs::OFlags::TMPFILE | rfs::OFlags::RDWR, mode).map(drop)),
        ("unlink", rfs::unlink(&f)),
        ("rmdir", rfs::rmdir(&d)),
        ("mkdir", rfs::mkdir(&new, mode)),
        ("rename", rfs::rename(&f, &new)),
        ("chmod", rfs::chmod(&f, mode)),
        ("chown", rfs::chown(&f, Some(rfs::Uid::from_raw(1)), None)),
        ("utimes", rfs::utimensat(rfs::CWD, &f, &times, none)),
        ("setxattr", rfs::setxattr(&f, "user.x", b"y", rfs::XattrFlags::empty())),
        ("removexattr", rfs::removexattr(&f, "user.x")),
        ("symlink", rfs::symlink("f", &new)),
        ("link", rfs::link(&f, &new)),
        ("mknod", rfs::mknodat(rfs::CWD, &new, rfs::FileType::Fifo, mode, 0)),
    ];
    for (what, result) in results {
        assert_eq!(result, Err(rustix::io::Errno::ROFS), "{what}");
    }
    let truncated = Command::new("truncate").args(["-s", "0"]).arg(&f).output().unwrap();
    assert!(text(&truncated).contains("Read-only file system"), "{}", text(&truncated));
    let held = File::open(&f).unwrap();
    assert!(held.set_len(0).is_err() && held.set_permissions(PermissionsExt::from_mode(0o600)).is_err());
    assert_eq!(world.get("d/f"), bytes);
    drop(held);
    world.umount();
    assert_eq!(snapshot(&world.src("")), before);
}

/// Fields of `/proc/PID/stat` after the command's name.
fn proc_stat(pid: i32) -> Vec<u64> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = line.rsplit_once(')').unwrap();
    fields.split_whitespace().skip(1).map(|f| f.parse().unwrap_or(0)).collect()
}

#[test]
fn bug_060_a_daemon_at_rest_uses_no_cpu_and_little_memory() {
    need_mount!();
    let world = World::mounted(&[]);
    let pid = world.pid();
    let rss_kib = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let limit_mib = if cfg!(debug_assertions) { 80 } else { 60 };
    assert!(rss_kib() < limit_mib << 10, "{} KiB with an empty tree", rss_kib());
    for n in 0..200 {
        world.put(&format!("f{n}"), 1000, n);
        world.get(&format!("f{n}"));
    }
    // What was filled is written down within two seconds; then there is nothing to do.
    std::thread::sleep(Duration::from_millis(1500));
    // Clock ticks of 10 ms in user and system mode.
    let ticks = || proc_stat(pid)[10..12].iter().sum::<u64>();
    let before = ticks();
    std::thread::sleep(Duration::from_secs(3));
    let used = ticks() - before;
    assert!(used <= 1, "{used} ticks in 3 s");
}
