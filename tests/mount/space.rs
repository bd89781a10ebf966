//! The cache on small, full and odd disks: no reader ever sees it, and the disk's other users keep their share.

use crate::common::*;
use crate::need_mount;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use warmfs::store::{CacheDir, Change, Index, Record};
use warmfs::types::{FileId, FileVersion, Timestamp};

/// A file system of its own where the world has its cache; goes before the world does.
pub struct Disk(PathBuf);

impl Disk {
    pub fn tmpfs(world: &World, options: &str) -> Self {
        Self::mount(world, &["-t", "tmpfs", "-o", options, "warmfs-test"])
    }

    pub fn ext4(world: &World, size_mib: u64, options: &[&str]) -> Self {
        let image = world.dir().join("disk.img");
        std::fs::File::create(&image).unwrap().set_len(size_mib << 20).unwrap();
        let made = Command::new("mkfs.ext4").arg("-qF").args(options).arg(&image).status().unwrap();
        assert!(made.success());
        Self::mount(world, &["-o", "loop", image.to_str().unwrap()])
    }

    fn mount(world: &World, args: &[&str]) -> Self {
        let at = world.cache();
        std::fs::create_dir(&at).unwrap();
        assert!(Command::new("mount").args(args).arg(&at).status().unwrap().success());
        Self(at)
    }

    fn figures(&self) -> rustix::fs::StatVfs {
        rustix::fs::statvfs(&self.0).unwrap()
    }

    /// One whose quota group for everything on it is `bytes`. None where there is no such thing.
    pub fn btrfs_with_quota(world: &World, bytes: u64) -> Option<Self> {
        let image = world.dir().join("disk.img");
        std::fs::File::create(&image).unwrap().set_len(160 << 20).unwrap();
        let made = Command::new("mkfs.btrfs").arg("-q").arg(&image).status();
        if !made.is_ok_and(|status| status.success()) {
            return None;
        }
        let disk = Self::mount(world, &["-o", "loop", image.to_str().unwrap()]);
        let run =
            |args: &[&str]| Command::new("btrfs").args(args).arg(&disk.0).status().is_ok_and(|s| s.success());
        let limited = run(&["quota", "enable"]) && run(&["qgroup", "limit", &bytes.to_string()]);
        limited.then_some(disk)
    }

    /// Bytes and inodes in use.
    pub fn used(&self) -> (u64, u64) {
        let f = self.figures();
        ((f.f_blocks - f.f_bfree) * f.f_frsize, f.f_files - f.f_ffree)
    }

    fn fill_up(&self) -> PathBuf {
        use std::io::Write;
        let path = self.0.join("foreign");
        let mut file = std::fs::File::create(&path).unwrap();
        while file.write_all(&[1; 65536]).is_ok() {}
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

pub fn put_many(world: &World, count: u64, size: impl Fn(u64) -> usize) -> Vec<(String, Vec<u8>)> {
    (0..count).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), size(n), n))).collect()
}

pub fn check_all(world: &World, files: &[(String, Vec<u8>)]) {
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name}"));
}

/// Goal: a cache that is told to be larger than its disk, which others fill meanwhile, costs no reader anything, says
/// so a few times and not for every file, and caches again when there is room.
#[test]
fn bug_026_bug_049_bug_055_a_full_disk_is_not_the_readers_business() {
    need_mount!();
    // What is fetched ahead would fill the disk before others do.
    for more in [&[][..], &["--no-passthrough"]] {
        let world = World::new(&[&["--cache-size", "1GiB", "--no-prefetch"], more].concat());
        let disk = Disk::tmpfs(&world, "size=32m,mode=700");
        world.mount();
        let files = put_many(&world, 300, |n| 300 + (n as usize * 7919) % 400_000);
        let large = world.put("large", 12 << 20, 999);
        check_all(&world, &files[..100]);
        let foreign = disk.fill_up();
        check_all(&world, &files);
        assert!(world.get("large") == large);
        let log = world.log();
        assert!(log.len() < 20_000, "{log}");
        std::fs::remove_file(foreign).unwrap();
        let (before, mut n) = (world.stat("ssd_bytes_written"), 1000);
        wait_until("it caches again", || {
            n += 1;
            let (name, size) = (format!("new{n}"), 50_000);
            world.put(&name, size, n);
            assert!(world.get(&name) == pattern(n, size));
            std::thread::sleep(Duration::from_millis(50));
            world.stat("ssd_bytes_written") > before
        });
        world.umount();
    }
}

/// Goal: a disk with few inodes is full by their number, and some are left to others.
#[test]
fn bug_053_few_inodes() {
    need_mount!();
    let world = World::new(&["--evict-policy=lru"]);
    let disk = Disk::ext4(&world, 48, &["-N", "1000"]);
    world.mount();
    let files = put_many(&world, 1500, |n| 50 + n as usize % 100);
    check_all(&world, &files);
    let figures = disk.figures();
    assert!(figures.f_favail >= 100, "{} inodes are left", figures.f_favail);
    assert!(world.stat("cached_files") > 300 && world.stat("evictions") > 0);
    check_all(&world, &files[1400..]);
    world.umount();
}

/// Goal: what is kept for root is not ours, however free it looks; and a cache that has come to its end rests.
#[test]
fn bug_045_bug_054_blocks_kept_for_root() {
    need_mount!();
    let world = World::new(&["--cache-size=1GiB", "--evict-policy=lru"]);
    let disk = Disk::ext4(&world, 48, &["-m", "20"]);
    world.mount();
    let files = put_many(&world, 1200, |n| 4000 + (n as usize * 7919) % 90_000);
    for _ in 0..2 {
        check_all(&world, &files);
        let figures = disk.figures();
        assert!(
            figures.f_bfree * 100 >= figures.f_blocks * 20,
            "{} of {}",
            figures.f_bfree,
            figures.f_blocks
        );
    }
    assert!(world.stat("evictions") > 0 && world.stat("cache_errors") == 0);
    let before = cpu_ticks(world.pid());
    std::thread::sleep(Duration::from_millis(1500));
    assert!(cpu_ticks(world.pid()) - before <= 5, "idle afterwards");
    world.umount();
}

pub fn cpu_ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Goal: a daemon that finds 20,000 cached files, after a stop that was not clean, is there within two seconds and
/// takes a bounded number of bytes for each.
#[test]
fn bug_058_bug_059_a_start_over_many_files() {
    need_mount!();
    let rss = |count: u64| {
        let world = World::new(&[]);
        let _disk = Disk::tmpfs(&world, "size=256m,mode=700");
        make_entries(&world, count);
        let start = Instant::now();
        world.mount();
        assert!(start.elapsed() < Duration::from_secs(2), "{count} files: {:?}", start.elapsed());
        let bytes = world.put("f", 5000, 1);
        assert!(world.get("f") == bytes);
        assert_eq!(world.stat("cached_files"), count + 1);
        let high_water = vm_hwm_bytes(world.pid());
        world.umount();
        high_water
    };
    let (none, many) = (rss(0), rss(20_000));
    let per_file = many.saturating_sub(none) / 20_000;
    println!("{per_file} bytes of memory per cached file, at the most during the start");
    assert!(per_file < 1500, "{per_file} bytes per file");
}

pub fn make_entries(world: &World, count: u64) {
    let dir = CacheDir::open(&world.cache(), &world.src("").canonicalize().unwrap()).unwrap();
    let mut loaded = Index::open(dir.io(), &dir.index_path()).unwrap();
    let time = Timestamp { secs: 1, nanos: 0 };
    let mut changes = Vec::new();
    for n in 0..count {
        let (number, fd) = dir.create().unwrap();
        rustix::io::write(&fd, b"0123456789").unwrap();
        let chunks = vec![Some(*blake3::hash(b"0123456789").as_bytes())];
        let version = FileVersion { size: 10, mtime: time, ctime: time, ino: 1_000_000 + n };
        let path = format!("directory/file{n}").into_bytes();
        let id = FileId { high: 0, low: 1_000_000 + n };
        changes.push((id, Change::Put(Record { number, version, path, chunks })));
    }
    loaded.index.commit(changes.iter().map(|(id, change)| (*id, change))).unwrap();
}

pub fn vm_hwm_bytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status")).unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
