//! A source that fails and one that hangs, through two kernels' worth of FUSE: warmfs over `warmfs faultfs`.

use crate::common::*;
use crate::need_mount;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The world's source is a faulty mirror of `real`.
pub struct Faulty {
    pub world: World,
}

impl Faulty {
    pub fn new(flags: &[&str]) -> Self {
        let world = World::new(flags);
        std::fs::create_dir(world.dir().join("real")).unwrap();
        let faulty = Self { world };
        faulty.rules("");
        let output = warmfs()
            .arg("faultfs")
            .args([faulty.real(""), faulty.world.src("")])
            .arg("--rules")
            .arg(faulty.world.dir().join("rules"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        faulty
    }

    pub fn real(&self, name: &str) -> PathBuf {
        self.world.dir().join("real").join(name)
    }

    pub fn put(&self, name: &str, size: usize, seed: u64) -> Vec<u8> {
        let bytes = pattern(seed, size);
        std::fs::create_dir_all(self.real(name).parent().unwrap()).unwrap();
        std::fs::write(self.real(name), &bytes).unwrap();
        bytes
    }

    /// Puts rules in force. They are looked at every 5 ms.
    pub fn rules(&self, text: &str) {
        let (rules, new) = (self.world.dir().join("rules"), self.world.dir().join("rules.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, rules).unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        // What hangs must go on, or nothing can be ended.
        self.rules("");
    }
}

const ERRNOS: [(&str, i32); 4] = [("EIO", 5), ("ESTALE", 116), ("EACCES", 13), ("ETIMEDOUT", 110)];

/// Goal: an error of the source has its own errno at the mount, is never "no such file", and is gone when it is gone.
#[test]
fn bug_152_bug_091_errors_of_the_source_come_through_and_pass() {
    need_mount!();
    for more in [&[][..], &["-o", "source.identity=inode"], &["--no-passthrough"]] {
        let faulty = Faulty::new(&[&["--ttl", "0"], more].concat());
        faulty.put("kept", 1000, 77);
        faulty.world.mount();
        for (name, errno) in ERRNOS {
            for op in ["lookup", "getattr", "open", "read", "opendir,readdir"] {
                one_fault(&faulty, op, name, errno);
            }
        }
        assert_eq!(faulty.world.get("kept"), pattern(77, 1000));
        faulty.world.umount();
    }
}

fn one_fault(faulty: &Faulty, op: &str, name: &str, errno: i32) {
    let world = &faulty.world;
    let dir = format!("{op}-{name}");
    let small = faulty.put(&format!("{dir}/small"), 9000, 1);
    let large = faulty.put(&format!("{dir}/large"), 5 << 20, 2);
    faulty.rules(&format!("op={op} path={dir}* errno={name}"));
    let is_dir = op.starts_with("opendir");
    for file in ["small", "large"] {
        let met = match is_dir {
            true => {
                std::fs::read_dir(world.mnt(&dir)).and_then(Iterator::collect::<Result<Vec<_>, _>>).map(drop)
            }
            false => std::fs::read(world.mnt(format!("{dir}/{file}"))).map(drop),
        };
        assert_eq!(met.err().and_then(|e| e.raw_os_error()), Some(errno), "{op} {name} {file}");
    }
    faulty.rules("");
    let start = Instant::now();
    assert!(world.get(&format!("{dir}/small")) == small && world.get(&format!("{dir}/large")) == large);
    assert_eq!(std::fs::read_dir(world.mnt(&dir)).unwrap().count(), 2, "{op} {name}");
    assert!(start.elapsed() < Duration::from_secs(2), "{op} {name}: {:?}", start.elapsed());
}

/// Goal: one error in the middle of things leaves nothing locked.
#[test]
fn bug_091_after_single_errors_everything_works() {
    need_mount!();
    let faulty = Faulty::new(&["--ttl", "0"]);
    faulty.world.mount();
    for (n, errno) in ["EIO", "ENOSPC", "ENOMEM", "EACCES", "EMFILE"].into_iter().enumerate() {
        for op in ["lookup", "getattr", "open", "read", "opendir", "readdir", "readlink", "statfs"] {
            let name = format!("{n}{op}/f");
            let bytes = faulty.put(&name, 100_000, n as u64);
            faulty.rules(&format!("op={op} errno={errno} count=1"));
            let start = Instant::now();
            let _ = std::fs::read(faulty.world.mnt(&name));
            let _ = std::fs::read_dir(faulty.world.mnt(format!("{n}{op}"))).map(Iterator::count);
            let _ = rustix::fs::statvfs(faulty.world.mnt(""));
            faulty.rules("");
            assert!(faulty.world.get(&name) == bytes, "{op} {errno}");
            assert!(start.elapsed() < Duration::from_secs(1), "{op} {errno}: {:?}", start.elapsed());
        }
    }
    faulty.world.umount();
}

/// Goal: a source that hangs takes nothing away that is known: cached files open at once, known directories list. What
/// is not known is ETIMEDOUT in time, the daemon ends when it is told to, and when the source is back all is as before.
#[test]
fn a_source_that_hangs_is_survived() {
    need_mount!();
    for more in [&[][..], &["-o", "source.identity=inode"], &["--no-passthrough"]] {
        let flags = ["--ttl", "0", "-o", "source.timeout=2s", "-o", "source.threads=8"];
        let faulty = Faulty::new(&[&flags, more].concat());
        let world = &faulty.world;
        let files: Vec<_> =
            (0..30).map(|n| (format!("d/f{n}"), faulty.put(&format!("d/f{n}"), 60_000, n))).collect();
        faulty.put("d/new", 1000, 99);
        world.mount();
        files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
        assert_eq!(std::fs::read_dir(world.mnt("d")).unwrap().count(), 31);
        assert_eq!(std::fs::read_dir(world.mnt("")).unwrap().count(), 1);
        files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
        // What the kernel has forgotten is not known to us either: kept, as other tests may drop its caches.
        let _known: Vec<_> =
            files.iter().map(|(name, _)| name.as_str()).chain(["d"]).map(|n| pin(world, n)).collect();
        faulty.rules("op=* hang");
        std::thread::scope(|scope| {
            // More who wait than there are threads for the source.
            for n in 0..12 {
                let path = world.mnt(format!("d/new/{n}"));
                scope.spawn(move || drop(std::fs::metadata(path)));
            }
            std::thread::sleep(Duration::from_millis(1300));
            quick_opens(world, &files);
            let start = Instant::now();
            assert_eq!(std::fs::read_dir(world.mnt("d")).unwrap().count(), 31);
            assert!(start.elapsed() < Duration::from_millis(500), "a listing: {:?}", start.elapsed());
            let start = Instant::now();
            let error = std::fs::read(world.mnt("d/new")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(110), "{error}");
            assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        });
        faulty.rules("");
        assert_eq!(world.get("d/new"), pattern(99, 1000));
        faulty.rules("op=* hang");
        let waiting = world.mnt("d/f1");
        let waiter = std::thread::spawn(move || drop(std::fs::read(waiting)));
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        let pid = rustix::process::Pid::from_raw(world.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        wait_until("it has ended", || daemons(&world.cache()).is_empty());
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        waiter.join().unwrap();
        assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(world.mnt("").to_str().unwrap()));
    }
}

/// Goal: a listing waits for nobody who asks for one of its names: neither the first time nor, of a source that is silent,
/// from memory. (An entry that is told with a node is linked by the kernel, which waits for a look-up of it that is under
/// way.)
#[test]
fn a_listing_waits_for_no_look_up_of_what_is_not_known() {
    need_mount!();
    let faulty = Faulty::new(&["--ttl", "0", "-o", "source.timeout=4s", "-o", "source.threads=8"]);
    let world = &faulty.world;
    let names = ["a", "new", "z"];
    names.iter().for_each(|name| drop(faulty.put(&format!("d/{name}"), 10, 1)));
    world.mount();
    let _d = pin(world, "d");
    // Too slow to be asked for the attributes of what is listed.
    faulty.rules("op=lookup,getattr path=d/* delay=20ms");
    let listed = || {
        let start = Instant::now();
        let mut found: Vec<_> =
            std::fs::read_dir(world.mnt("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
        found.sort();
        assert_eq!(found, names);
        start.elapsed()
    };
    for _ in 0..3 {
        listed();
    }
    drop_caches();
    faulty.rules("op=* path=d/z hang");
    std::thread::scope(|scope| {
        scope.spawn(|| drop(std::fs::metadata(world.mnt("d/z"))));
        // Until the look-up is under way: who waits in the kernel shows nowhere.
        std::thread::sleep(Duration::from_millis(100));
        let took = listed();
        assert!(took < Duration::from_millis(500), "a listing: {took:?}");
        drop_caches();
        faulty.rules("op=* hang");
        scope.spawn(|| drop(std::fs::metadata(world.mnt("d/new"))));
        // Until the source counts as silent, after a second.
        std::thread::sleep(Duration::from_millis(1300));
        let took = listed();
        assert!(took < Duration::from_millis(500), "a listing from memory: {took:?}");
        faulty.rules("");
    });
    assert_eq!(std::fs::metadata(world.mnt("d/new")).unwrap().len(), 10);
    world.umount();
}

/// Keeps the kernel's memory of a name, without opening the file.
pub fn pin(world: &World, name: &str) -> std::os::fd::OwnedFd {
    rustix::fs::open(world.mnt(name), rustix::fs::OFlags::PATH, rustix::fs::Mode::empty()).unwrap()
}

fn quick_opens(world: &World, files: &[(String, Vec<u8>)]) {
    let mut times = Vec::new();
    for (name, bytes) in files.iter().cycle().take(300) {
        let start = Instant::now();
        assert!(world.get(name) == *bytes, "{name}");
        times.push(start.elapsed());
    }
    times.sort();
    let p99 = times[times.len() * 99 / 100];
    assert!(p99 < Duration::from_millis(50), "p99 {p99:?}");
}

/// Goal: a listing has every name however slow the source is with attributes, and when it refuses them.
#[test]
fn a_listing_of_a_slow_source_has_every_name() {
    need_mount!();
    for rule in ["op=lookup,getattr path=*/f* delay=3ms", "op=lookup,getattr path=*/f* errno=EIO"] {
        let faulty = Faulty::new(&[]);
        (0..60).for_each(|n| drop(faulty.put(&format!("d/f{n}"), 10, n)));
        faulty.world.mount();
        faulty.rules(rule);
        for _ in 0..2 {
            let mut names: Vec<_> = std::fs::read_dir(faulty.world.mnt("d"))
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), 60, "{rule}");
        }
        faulty.rules("");
        assert_eq!(faulty.world.get("d/f3"), pattern(3, 10));
        let entry = std::fs::read_dir(faulty.world.mnt("d")).unwrap().next().unwrap().unwrap();
        assert_eq!(entry.metadata().unwrap().len(), 10);
        faulty.world.umount();
    }
}

/// Goal: after kill -9 in the middle of fills the next mount takes the dead one's place, and every byte is right.
#[test]
fn bug_028_kill_9_in_the_middle_of_a_fill() {
    need_mount!();
    let faulty = Faulty::new(&["--ttl", "0", "-o", "cache.small_file_max=1MiB"]);
    let world = &faulty.world;
    for round in 0..6u64 {
        let small = faulty.put("small", 900_000, round);
        let large = faulty.put("large", 6 << 20, round + 100);
        faulty.rules("op=read delay=4ms");
        world.mount();
        let readers: Vec<_> = ["small", "large"]
            .map(|name| world.mnt(name))
            .map(|path| std::thread::spawn(move || drop(std::fs::read(path))))
            .into();
        std::thread::sleep(Duration::from_millis(7 * round));
        world.kill();
        readers.into_iter().for_each(|r| r.join().unwrap());
        faulty.rules("");
        world.mount();
        assert!(world.get("small") == small && world.get("large") == large, "round {round}");
        world.umount();
    }
}
