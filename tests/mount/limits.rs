//! Limits that hold: the budget under many writers, a disk that is full in every way a disk can be full, memory while a
//! million files are walked through and read.

use crate::common::*;
use crate::figures::{Figure, scale, seed};
use crate::space::{Disk, check_all, cpu_ticks, make_entries, put_many, vm_hwm_bytes};
use crate::tools::Map;
use crate::{need_mount, need_quiet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the samplers saw: how many looks, and the most of anything.
#[derive(Default)]
struct Seen {
    looks: u64,
    disk_bytes: u64,
    counted_bytes: u64,
    inodes: u64,
}

/// Looks about each millisecond until `done`; gives how often.
fn each_millisecond(done: &AtomicBool, mut look: impl FnMut()) -> u64 {
    let (mut looks, mut next) = (0, Instant::now());
    while !done.load(Ordering::Relaxed) {
        look();
        looks += 1;
        next = (next + Duration::from_millis(1)).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    looks
}

/// Looks at what the disk has in use beyond `before`, and at the daemon's own count.
fn sample(world: &World, disk: &Disk, before: (u64, u64), done: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    std::thread::scope(|scope| {
        let count = scope.spawn(|| {
            let mut most = 0;
            let looks = each_millisecond(done, || {
                let stats: serde_json::Value = serde_json::from_str(&world.xattr("", "stats")).unwrap();
                most = most.max(stats["cache_used_bytes"].as_u64().unwrap());
            });
            (looks, most)
        });
        seen.looks = each_millisecond(done, || {
            let (bytes, inodes) = disk.used();
            seen.disk_bytes = seen.disk_bytes.max(bytes.saturating_sub(before.0));
            seen.inodes = seen.inodes.max(inodes.saturating_sub(before.1));
        });
        let (looks, most) = count.join().unwrap();
        seen.looks += looks;
        seen.counted_bytes = most;
    });
    seen
}

/// A number from a seed, each call another.
fn dice(state: &mut u64, below: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

/// Goal: what the cache takes never exceeds its budget, neither by its own count nor by that of the disk, index and log
/// and directories included, while 64 threads fill and evict; nor does the number of its files. Method: a file system of
/// the cache's own, looked at about each millisecond.
#[test]
fn the_budget_holds_under_64_writers() {
    need_mount!();
    let seed = seed();
    let seconds = scale(4, 60, 600);
    let (budget, files_max) = (40 << 20, 150);
    let flags = [
        "--cache-size=40MiB",
        "--evict-policy=lru",
        "--ttl=1h",
        "-o",
        "cache.max_files=150,cache.ram_window=4MiB",
    ];
    let (mut all, mut opens, mut evicted) = (Seen::default(), 0, 0);
    for on_ext4 in [false, true] {
        let world = World::new(&flags);
        let disk = match on_ext4 {
            true => Disk::ext4(&world, 160, &["-E", "lazy_itable_init=0,lazy_journal_init=0"]),
            false => Disk::tmpfs(&world, "size=160m,mode=700"),
        };
        let before = disk.used();
        let small = put_many(&world, 300, |n| 100 + (n as usize * 7919) % 500_000);
        let large: Vec<_> = (0..12)
            .map(|n| {
                (
                    format!("large{n}"),
                    world.put(&format!("large{n}"), (4 << 20) + n as usize * 700_001, 500 + n),
                )
            })
            .collect();
        world.mount();
        let (done, count) = (AtomicBool::new(false), AtomicU64::new(0));
        let seen = std::thread::scope(|scope| {
            let sampler = scope.spawn(|| sample(&world, &disk, before, &done));
            let writers: Vec<_> = (0..64u64)
                .map(|t| {
                    let (world, small, large, count, done) = (&world, &small, &large, &count, &done);
                    let mut state = seed.wrapping_add(t * 77);
                    scope.spawn(move || {
                        while !done.load(Ordering::Relaxed) {
                            let of = if dice(&mut state, 6) == 0 { large } else { small };
                            let (name, bytes) = &of[dice(&mut state, of.len() as u64) as usize];
                            assert!(world.get(name) == *bytes, "{name}");
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_secs(seconds));
            done.store(true, Ordering::Relaxed);
            let ended: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
            assert!(ended.iter().all(Result::is_ok));
            sampler.join().unwrap()
        });
        evicted += world.stat("evictions");
        opens += count.into_inner();
        assert!(seen.counted_bytes <= budget, "by its count: {} of {budget}", seen.counted_bytes);
        assert!(seen.disk_bytes <= budget, "by the disk's: {} of {budget}, ext4: {on_ext4}", seen.disk_bytes);
        // Beside the files: FORMAT, LOCK, SOURCE, the socket, the log, the index, and directories of 1024 files each.
        let beside = 12 + 2 * (world.stat("fills") / 1024 + 2);
        assert!(seen.inodes <= files_max + beside, "{} files of {files_max} and {beside}", seen.inodes);
        assert!(seen.disk_bytes > budget / 2, "it was full: {}", seen.disk_bytes);
        all.looks += seen.looks;
        all.disk_bytes = all.disk_bytes.max(seen.disk_bytes);
        all.counted_bytes = all.counted_bytes.max(seen.counted_bytes);
        world.umount();
    }
    assert!(evicted > 0);
    Figure::new("R12", "budget, 64 writers", all.looks, 0)
        .seed(seed)
        .fired("evictions", evicted)
        .more("files read meanwhile", opens as f64, "1")
        .less("most in use of 40 MiB, by the disk", all.disk_bytes as f64 / f64::from(1 << 20), "MiB")
        .less("most in use of 40 MiB, by the count", all.counted_bytes as f64 / f64::from(1 << 20), "MiB")
        .report();
}

/// Goal: what was removed and is still mapped takes space on the disk, so it counts until the mapping ends; nobody is
/// refused meanwhile. Method: a mapping outlives the handle it was made with, so that the file is evicted under it.
#[test]
fn what_is_mapped_counts_after_its_eviction() {
    need_mount!();
    let budget = 16 << 20;
    let world = World::new(&[
        "--cache-size=16MiB",
        "--evict-policy=lru",
        "--ttl=1h",
        "-o",
        "cache.small_file_max=8MiB",
    ]);
    let disk = Disk::tmpfs(&world, "size=64m,mode=700");
    let before = disk.used();
    let bytes = world.put("mapped", 7 << 20, 1);
    let others = put_many(&world, 30, |n| 1_000_000 + n as usize * 1000);
    world.mount();
    assert!(world.get("mapped") == bytes);
    let map = Map::shared(&std::fs::File::open(world.mnt("mapped")).unwrap());
    assert!(map[..4096] == bytes[..4096]);
    for round in 0..2 {
        check_all(&world, &others);
        let (used, _) = disk.used();
        assert!(used - before.0 <= budget, "round {round}: {} of {budget}", used - before.0);
        assert!(world.stat("cache_used_bytes") <= budget);
    }
    assert_eq!(world.xattr("mapped", "state"), "cold", "it was evicted");
    assert!(world.stat("cache_used_bytes") > 7 << 20);
    assert!(map[..] == bytes[..]);
    let fewer = world.stat("cached_files");
    drop(map);
    // What is mapped is looked at ten times a second.
    wait_until("its space is used again", || {
        check_all(&world, &others);
        world.stat("cached_files") > fewer
    });
    world.umount();
}

/// Others who fill the disk to its last block or inode, hold it full for a moment and let go, again and again.
struct Filler {
    dir: PathBuf,
    refused: AtomicU64,
    done: AtomicBool,
}

impl Filler {
    fn run(&self) {
        while !self.done.load(Ordering::Relaxed) {
            self.fill();
            std::thread::sleep(Duration::from_millis(150));
            let _ = std::fs::remove_dir_all(&self.dir);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Few files of many bytes, then many of none.
    fn fill(&self) {
        let _ = std::fs::create_dir(&self.dir);
        if let Ok(mut file) = std::fs::File::create(self.dir.join("bytes")) {
            let mut piece = 1 << 20;
            while piece >= 512 && !self.done.load(Ordering::Relaxed) {
                match file.write(&vec![1; piece]) {
                    Ok(n) if n > 0 => {}
                    _ => piece /= 2,
                }
            }
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        for n in 0..3000 {
            if std::fs::File::create(self.dir.join(n.to_string())).is_err() {
                self.refused.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
    }
}

/// A disk that gets full, and how.
enum Full {
    Tmpfs(&'static str),
    Ext4(&'static [&'static str]),
    /// A btrfs whose quota group for the cache is 16 MiB: the only kind of quota that binds root too.
    Quota,
}

const FULL: [(&str, Full); 5] = [
    ("tmpfs of 16 MiB", Full::Tmpfs("size=16m,mode=700")),
    ("ext4 with 20 % kept for root", Full::Ext4(&["-m", "20"])),
    ("quota", Full::Quota),
    ("ext4 of 600 inodes", Full::Ext4(&["-N", "600"])),
    ("tmpfs of 400 inodes", Full::Tmpfs("size=64m,nr_inodes=400,mode=700")),
];

/// Goal: a disk that others fill to the last block or inode, and a quota, cost no reader an error or a wrong byte in any
/// number of reads; afterwards the daemon rests, and caches again when there is room.
#[test]
fn a_full_disk_of_every_kind() {
    need_quiet!();
    let (seed, reads_each) = (seed(), scale(2_000, 20_000, 100_000));
    for (kind, full) in FULL {
        let world = World::new(&["--cache-size", "1GiB", "--ttl", "1h", "-o", "cache.ram_window=1MiB"]);
        let (disk, foreign) = match full {
            Full::Tmpfs(options) => (Disk::tmpfs(&world, options), world.cache().join("foreign")),
            Full::Ext4(options) => (Disk::ext4(&world, 32, options), world.cache().join("foreign")),
            Full::Quota => match Disk::btrfs_with_quota(&world, 16 << 20) {
                Some(disk) => (disk, world.cache().join("foreign")),
                None => {
                    eprintln!("left out: no mkfs.btrfs, or no quota groups");
                    continue;
                }
            },
        };
        // More than the disk holds, in bytes and in number.
        let files = put_many(&world, 900, |n| 200 + (n as usize * 7919) % 120_000);
        let large = vec![("large".to_string(), world.put("large", 9 << 20, 5000))];
        world.mount();
        let filler = Filler { dir: foreign, refused: AtomicU64::new(0), done: AtomicBool::new(false) };
        let errors = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| filler.run());
            let readers: Vec<_> = (0..8u64)
                .map(|t| {
                    let (world, files, large, errors) = (&world, &files, &large, &errors);
                    let mut state = seed.wrapping_add(t * 991);
                    scope.spawn(move || {
                        for n in 0..reads_each / 8 {
                            let of = if n % 50 == 7 { large } else { files };
                            let (name, bytes) = &of[dice(&mut state, of.len() as u64) as usize];
                            match std::fs::read(world.mnt(name)) {
                                Ok(got) => assert!(got == *bytes, "{kind}: {name}"),
                                Err(e) => {
                                    eprintln!("{kind}: {name}: {e}");
                                    errors.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        }
                    })
                })
                .collect();
            let ended: Vec<_> = readers.into_iter().map(|r| r.join()).collect();
            filler.done.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        let errors = errors.into_inner();
        assert_eq!(errors, 0, "{kind}");
        let stats = world.stats();
        let count = |name: &str| stats[name].as_u64().unwrap();
        let refused = count("cache_refusals") + count("cache_errors") + count("evictions");
        assert!(refused > 0 && filler.refused.load(Ordering::Relaxed) > 0, "{kind}: it was full: {stats}");
        std::fs::remove_dir_all(&filler.dir).unwrap_or(());
        let log = world.log();
        assert!(log.len() < 40_000, "{kind}: {} bytes of log", log.len());
        let written = world.stat("ssd_bytes_written");
        wait_until("it caches again", || {
            check_all(&world, &files[..200]);
            std::thread::sleep(Duration::from_millis(100));
            world.stat("ssd_bytes_written") > written
        });
        std::thread::sleep(Duration::from_millis(2500));
        let ticks = cpu_ticks(world.pid());
        std::thread::sleep(Duration::from_millis(1000));
        let ticks = cpu_ticks(world.pid()) - ticks;
        assert!(ticks <= 5, "{kind}: {ticks} ticks of CPU in a second at rest");
        world.umount();
        drop(disk);
        Figure::new("R12", &format!("reads with a full disk: {kind}"), reads_each, errors)
            .seed(seed)
            .fired("refusals to others", filler.refused.into_inner())
            .fired("refusals, faults and evictions of ours", refused)
            .more("of these, faults (ENOSPC, EDQUOT)", count("cache_errors") as f64, "1")
            .less("CPU at rest", ticks as f64, "%")
            .report();
    }
}

/// A memory control group with a limit, removed at the end.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// None where this machine does not let us make one.
    fn new(bytes: u64) -> Option<Self> {
        let name = format!("warmfs-test-{}", std::process::id());
        let (old, new) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let (root, limit) = match old.join("memory.limit_in_bytes").exists() {
            true => (old, "memory.limit_in_bytes"),
            false => (new, "memory.max"),
        };
        let group = Self(root.join(name));
        std::fs::create_dir(&group.0).ok()?;
        std::fs::write(group.0.join(limit), bytes.to_string()).ok()?;
        Some(group)
    }

    /// A shell that runs `script` in the group.
    fn shell(&self, script: &str) -> Command {
        let mut command = program("sh");
        command.arg("-c").arg(format!("echo $$ > {}/cgroup.procs && {script}", self.0.display()));
        command.stdin(Stdio::null());
        command
    }

    fn figure(&self, old: &str, new: &str) -> u64 {
        let read = |name| std::fs::read_to_string(self.0.join(name)).ok();
        read(old).or_else(|| read(new)).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn highest(&self) -> u64 {
        self.figure("memory.max_usage_in_bytes", "memory.peak")
    }

    fn oom_kills(&self) -> u64 {
        let text = ["memory.oom_control", "memory.events"].map(|n| std::fs::read_to_string(self.0.join(n)));
        let lines = text.into_iter().flatten().collect::<String>();
        lines.lines().filter_map(|l| l.strip_prefix("oom_kill ")).filter_map(|n| n.parse::<u64>().ok()).sum()
    }

    /// How often the limit was met.
    fn met(&self) -> u64 {
        self.figure("memory.failcnt", "memory.none")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn anon_bytes(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("RssAnon"));
    line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The most anonymous memory of the daemon until `done`.
fn highest_anon(pid: i32, done: &AtomicBool) -> u64 {
    let mut highest = 0;
    while !done.load(Ordering::Relaxed) {
        highest = highest.max(anon_bytes(pid));
        std::thread::sleep(Duration::from_millis(10));
    }
    highest
}

/// Goal: a walk over a million files and reads of more data than there is memory stay within 256 MiB that the daemon and
/// its readers share; nobody is killed for memory. Method: a control group, in which the kernel's caches count as well.
#[test]
fn memory_is_bounded_by_256_mib() {
    need_mount!();
    let count = scale(20_000, 1_000_000, 1_000_000);
    let world = World::patient(&["--ttl", "1h"], Duration::from_secs(900));
    let Some(group) = MemoryGroup::new(256 << 20) else {
        eprintln!("skipped: no memory control group can be made here");
        return;
    };
    let _source = Tmpfs::over(&world.src(""));
    for n in 0..count {
        if n % 1000 == 0 {
            std::fs::create_dir_all(world.src(format!("tree/{}", n / 1000))).unwrap();
        }
        std::fs::write(world.src(format!("tree/{}/file{n}", n / 1000)), b"").unwrap();
    }
    let data: Vec<_> = (0..40u64)
        .map(|n| {
            let size = if n % 2 == 0 { 3 << 20 } else { 15 << 20 };
            (format!("data{n}"), world.put(&format!("data{n}"), size, n).len())
        })
        .collect();
    let binary = env!("CARGO_BIN_EXE_warmfs");
    let (src, mnt, cache) = (world.src(""), world.mnt(""), world.cache());
    let script = format!(
        "exec {binary} mount {} {} --cache-dir {} --ttl 1h",
        src.display(),
        mnt.display(),
        cache.display()
    );
    let output = group.shell(&script).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let pid = world.pid();
    let before = anon_bytes(pid);
    let done = AtomicBool::new(false);
    let (highest, after_walk) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| highest_anon(pid, &done));
        let walk = format!("exec find {} -type f -printf '%s\\n' | wc -l", mnt.display());
        let output = group.shell(&walk).output().unwrap();
        let found: u64 = String::from_utf8_lossy(&output.stdout).trim().parse().unwrap();
        assert_eq!(found, count + data.len() as u64, "{}", text(&output));
        let after_walk = anon_bytes(pid);
        for round in 0..2 {
            let script = format!("cd {} && ls data* | xargs -P 8 -n 1 sha256sum", mnt.display());
            let output = group.shell(&script).output().unwrap();
            assert!(output.status.success(), "round {round}: {}", text(&output));
            assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), data.len());
        }
        done.store(true, Ordering::Relaxed);
        (watcher.join().unwrap(), after_walk)
    });
    assert_eq!(world.pid(), pid, "it lives");
    assert_eq!(group.oom_kills(), 0);
    let per_inode = after_walk.saturating_sub(before) as f64 / count as f64;
    let (met, most) = (group.met(), group.highest());
    println!(
        "{per_inode} bytes a file, {highest} anonymous at most, {most} in the group at most, limit met {met} times"
    );
    assert!(highest < 200 << 20, "{highest}");
    world.umount();
    let data_bytes: usize = data.iter().map(|(_, size)| size).sum();
    Figure::new(
        "R22",
        "walk and read in a memory group of 256 MiB",
        count + 2 * data.len() as u64,
        group.oom_kills(),
    )
    .fired("limit met", met)
    .less("memory of the daemon per file walked", per_inode, "B")
    .less("anonymous memory of the daemon, most", highest as f64 / f64::from(1 << 20), "MiB")
    .less("the whole group, most", most as f64 / f64::from(1 << 20), "MiB")
    .note(&format!("{} MB of data read twice", data_bytes / 1_000_000))
    .report();
}

/// Goal: what a start costs in memory for each file that is cached, for a cache of a million files.
#[test]
fn memory_of_a_start_over_many_entries() {
    need_mount!();
    let count = scale(20_000, 1_000_000, 1_000_000);
    let memory = |count: u64| {
        let world = World::patient(&[], Duration::from_secs(900));
        let _disk = Disk::tmpfs(&world, "size=8g,mode=700");
        make_entries(&world, count);
        let start = Instant::now();
        world.mount();
        let ready = start.elapsed();
        assert_eq!(world.stat("cached_files"), count);
        let figures = (anon_bytes(world.pid()), vm_hwm_bytes(world.pid()), ready);
        world.umount();
        figures
    };
    let (none, many) = (memory(0), memory(count));
    let per_entry =
        |of: fn(&(u64, u64, Duration)) -> u64| of(&many).saturating_sub(of(&none)) as f64 / count as f64;
    let (rest, peak) = (per_entry(|f| f.0), per_entry(|f| f.1));
    assert!(rest < 1000.0 && peak < 1500.0, "{rest} and {peak} bytes a file");
    Figure::new("R22", "a start over many cached files", count, 0)
        .less("memory per cached file, after the start", rest, "B")
        .less("memory per cached file, most during it", peak, "B")
        .less("ready after", many.2.as_secs_f64(), "s")
        .report();
}

/// A file system in memory for a source with many files.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn over(dir: &Path) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=6g,mode=755", "warmfs-test"]).arg(dir);
        assert!(mount.status().unwrap().success());
        Self(dir.to_path_buf())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
