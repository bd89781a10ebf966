//! Faults that other caching file systems had in public and that belong to no other file here: loads that deadlocked,
//! settings that broke, mounts over mounts, descriptors that went from one user to another.

use crate::common::*;
use crate::figures;
use crate::need_mount;
use crate::tools::*;
use rustix::process::Uid;
use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a load runs: a few seconds here, what fits a world's watchdog in the long tiers.
fn load_time() -> Duration {
    Duration::from_secs(figures::scale(3, 60, 100))
}

/// The longest that any step of a load took; a stall is more than five seconds (and more than that on a busy machine).
struct Stall(AtomicU64);

impl Stall {
    fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        self.0.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        result
    }

    fn none_longer_than(&self, seconds: u64) {
        let worst = self.0.load(Ordering::Relaxed);
        assert!(worst < seconds * 1000, "{worst} ms");
    }
}

/// Goal: a file that grows while it is read does not cost a fetch of all of it at each growth. Method: 24 MiB, appended to
/// every 100 ms, the first part read all the time with a TTL of 1 s; bytes of the source are counted.
#[test]
fn bug_020_appends_to_a_large_file_cost_one_fetch_a_ttl_at_most() {
    need_mount!();
    const SIZE: usize = 24 << 20;
    let world = World::mounted(&["--ttl=1s"]);
    let mut bytes = world.put("f", SIZE, 1);
    assert!(world.get("f") == bytes);
    let before = world.stat("backing_bytes_read");
    let begun = Instant::now();
    let appends = 25;
    for i in 0..appends {
        let more = pattern(i, 4096);
        std::io::Write::write_all(&mut File::options().append(true).open(world.src("f")).unwrap(), &more)
            .unwrap();
        bytes.extend(more);
        let mut head = vec![0; 4 << 20];
        File::open(world.mnt("f")).unwrap().read_exact_at(&mut head, 0).unwrap();
        assert!(head == bytes[..4 << 20]);
        // Between two lines of a writer of logs.
        std::thread::sleep(Duration::from_millis(100));
    }
    let ttls = begun.elapsed().as_secs() + 2;
    let read = world.stat("backing_bytes_read") - before;
    assert!(read <= ttls * (SIZE as u64 + (1 << 20)), "{read} bytes in {ttls} TTLs");
    std::thread::sleep(Duration::from_millis(1100));
    assert!(world.get("f") == bytes, "and the last version in the end");
}

/// Goal: no read fails or is wrong while the whole tree is filled beside it. Method: `warm` with many jobs while eight
/// readers read random ranges of the same files, cold each round.
#[test]
fn bug_031_reads_during_a_warm_up_of_everything() {
    need_mount!();
    let sizes = [900, 5_000, 40_000, 200_000, 2 << 20];
    both(|mode| {
        let world = World::mounted(mode);
        let files: Vec<_> =
            (0..120).map(|i| world.put(&format!("d{}/{i}", i % 7), sizes[i % 5], i as u64)).collect();
        for round in 0..figures::scale(4, 50, 50) {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for t in 0..8 {
                    let (world, files, done) = (&world, &files, &done);
                    scope.spawn(move || {
                        let mut dice = Dice::new(round * 8 + t + 1);
                        while !done.load(Ordering::Relaxed) {
                            let i = dice.below(files.len());
                            let at = dice.below(files[i].len());
                            let mut got = vec![0; (files[i].len() - at).min(50_000)];
                            let file = File::open(world.mnt(format!("d{}/{i}", i % 7))).unwrap();
                            file.read_exact_at(&mut got, at as u64).unwrap();
                            assert!(got == files[i][at..at + got.len()], "{i} at {at}");
                        }
                    });
                }
                let output =
                    run(&["warm".as_ref(), "--jobs".as_ref(), "32".as_ref(), world.mnt("").as_os_str()]);
                done.store(true, Ordering::Relaxed);
                assert!(output.status.success(), "{}", text(&output));
            });
            assert_eq!(world.stat("cached_files"), 120);
            evict(&world.mnt(""));
        }
        assert_eq!((world.stat("cache_errors"), world.stat("backing_errors")), (0, 0));
    });
}

/// Goal: no combination of settings leads to a panic, an error or wrong bytes. Method: every pair of two settings that
/// change a path through the code, cold, half warm and warm, read and mapped.
#[test]
fn bug_032_every_pair_of_settings_serves() {
    need_mount!();
    let settings = [
        "mount.passthrough=false",
        "mount.io_engine=pread",
        "cache.evict_policy=none",
        "cache.small_file_max=0",
        "cache.ram_window=0",
        "cache.size=1MiB",
        "mount.read_ahead=0",
        "mount.workers=3",
        "source.identity=path",
        "metadata.ttl=0",
        "mount.backing_ids_max=1",
        "source.threads=1",
    ];
    for one in 0..settings.len() {
        for other in one + 1..settings.len() {
            let world = World::mounted(&["-o", settings[one], "-o", settings[other]]);
            let files = [
                world.put("small", 70_000, 1),
                world.put("large", (5 << 20) + 7, 2),
                world.put("empty", 0, 3),
            ];
            let mut half = vec![0; 1000];
            File::open(world.mnt("large")).unwrap().read_exact_at(&mut half, 3 << 20).unwrap();
            for _ in ["half warm", "warm"] {
                for (name, bytes) in ["small", "large", "empty"].iter().zip(&files) {
                    let what = format!("{name} with {} and {}", settings[one], settings[other]);
                    assert!(world.get(name) == *bytes, "{what}");
                    if !bytes.is_empty() {
                        assert!(
                            *Map::shared(&File::open(world.mnt(name)).unwrap()) == **bytes,
                            "{what}, mapped"
                        );
                    }
                }
            }
            assert!(!world.log().contains("panicked"), "{}", world.log());
            world.umount();
        }
    }
}

/// Goal: what others put on the disk does not empty the cache while there is room. Method: a disk of 64 MiB, 85 % full of
/// foreign data after the cache was filled; everything is still a hit.
#[test]
fn bug_048_foreign_data_on_the_disk_does_not_empty_the_cache() {
    need_mount!();
    let world = World::new(&["--cache-size=4MiB", "-o", "cache.min_free=1MiB"]);
    let disk = world.dir().join("cache");
    std::fs::create_dir(&disk).unwrap();
    shell("mount -t tmpfs -o size=64m,mode=700 t \"$1\"", &[&disk]);
    let files: Vec<_> = (0..20).map(|i| world.put(&format!("{i}"), 100_000, i)).collect();
    world.mount();
    let read_all = || (0..20).for_each(|i| assert!(world.get(&format!("{i}")) == files[i]));
    read_all();
    std::fs::write(disk.join("foreign"), vec![1; 54 << 20]).unwrap();
    // The cache looks at the disk now and then; it has seen it by then.
    std::thread::sleep(Duration::from_secs(2));
    let before = (world.stat("backing_bytes_read"), world.stat("evictions"));
    read_all();
    assert_eq!((world.stat("backing_bytes_read"), world.stat("evictions")), before);
    assert_eq!(world.stat("cached_files"), 20);
    world.umount();
}

/// Goal: settings at their least leave no handle open. Method: all of them at zero or one, thousands of opens, a tenth
/// of which meet a file that has just gone; descriptors are counted.
#[test]
fn bug_078_least_settings_leak_no_descriptor() {
    need_mount!();
    both(|mode| {
        let least =
            ["cache.ram_window=0", "mount.read_ahead=0", "mount.backing_ids_max=1", "cache.max_files=1"];
        let flags: Vec<_> = least.iter().flat_map(|s| ["-o", s]).collect();
        let world = World::mounted(&[mode, &flags, &["--ttl=0s"]].concat());
        for i in 0..200 {
            world.put(&format!("{i}"), 2000, i);
        }
        let read = |i: u64| std::fs::read(world.mnt(format!("{}", i % 200)));
        (0..200).for_each(|i| drop(read(i)));
        let before = fd_count(world.pid());
        let mut failed = 0;
        let opens = figures::scale(1000, 5000, 5000);
        for i in 0..opens {
            let path = world.src(format!("{}", i % 200));
            if i % 10 == 0 {
                std::fs::rename(&path, world.src("away")).unwrap();
            }
            failed += u64::from(read(i).is_err());
            if i % 10 == 0 {
                std::fs::rename(world.src("away"), &path).unwrap();
            }
        }
        assert_eq!(failed, opens / 10);
        wait_until("descriptors are as before", || fd_count(world.pid()) <= before + 8);
    });
}

/// Goal: telling the kernel to forget never waits for a reader that waits for the daemon. Method: readers fault on maps of
/// cold files, while the files are rewritten or removed in the source a hundred times a second and the operator evicts,
/// which invalidates.
#[test]
fn bug_081_invalidation_under_faulting_maps_does_not_deadlock() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl=0s"]));
        let size = |i: usize| if i.is_multiple_of(4) { 5 << 20 } else { 100_000 };
        for i in 0..32 {
            std::fs::write(world.src(format!("{i}")), versioned(1, size(i))).unwrap();
        }
        let (stall, seen, changes) = (Stall(AtomicU64::new(0)), AtomicU64::new(0), AtomicU64::new(0));
        let end = Instant::now() + load_time();
        std::thread::scope(|scope| {
            for t in 0..16 {
                let (world, stall, seen) = (&world, &stall, &seen);
                scope.spawn(move || {
                    let mut dice = Dice::new(t + 1);
                    while Instant::now() < end {
                        let i = dice.below(32);
                        // Gone, or replaced between look-up and open: an error of the name, not of the bytes.
                        let Ok(file) = File::open(world.mnt(format!("{i}"))) else { continue };
                        let Ok(map) = Map::new(&file, libc::MAP_SHARED) else { continue };
                        if map.len() == size(i) && !i.is_multiple_of(4) {
                            assert!(stall.time(|| whole_version(&map)).is_some(), "file {i}");
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            scope.spawn(|| {
                let mut dice = Dice::new(99);
                for version in 2.. {
                    if Instant::now() > end {
                        break;
                    }
                    let i = dice.below(32);
                    match dice.below(12) {
                        0..3 => drop(std::fs::remove_file(world.src(format!("{i}")))),
                        3 => evict(&world.mnt("")),
                        _ => replace(&world.src(format!("{i}")), &versioned(version, size(i))),
                    }
                    changes.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
            scope.spawn(|| {
                while Instant::now() < end {
                    drop(stall.time(|| std::fs::read_dir(world.mnt("")).map(Iterator::count)));
                }
            });
        });
        stall.none_longer_than(20);
        assert!(
            seen.load(Ordering::Relaxed) > 20 && changes.load(Ordering::Relaxed) > 10,
            "{seen:?} {changes:?}"
        );
        figures::Figure::new(
            "R19",
            "maps faulted in while files change and are evicted: stalls, torn content",
            seen.into_inner(),
            0,
        )
        .fired("changes", changes.into_inner())
        .less("longest step", stall.0.into_inner() as f64, "ms")
        .report();
    });
}

/// Goal: eviction, opens, listings and inspection take their locks in one order. Method: a cache of 8 MiB under ten readers
/// of 40 MiB, with `ls -lR`, an operator who evicts and one who asks for attributes beside them.
#[test]
fn bug_083_eviction_listing_and_inspection_do_not_deadlock() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--cache-size=8MiB", "--evict-policy=lru"]));
        let files: Vec<_> =
            (0..80).map(|i| world.put(&format!("d{}/{i}", i % 4), 500_000, i as u64)).collect();
        let name = |i: usize| format!("d{}/{i}", i % 4);
        let stall = Stall(AtomicU64::new(0));
        let end = Instant::now() + load_time();
        std::thread::scope(|scope| {
            for t in 0..10 {
                let (world, files, stall) = (&world, &files, &stall);
                scope.spawn(move || {
                    let mut dice = Dice::new(t + 1);
                    while Instant::now() < end {
                        let i = dice.below(80);
                        assert!(stall.time(|| world.get(&name(i))) == files[i], "{i}");
                    }
                });
            }
            scope.spawn(|| {
                while Instant::now() < end {
                    stall.time(|| shell("ls -lR \"$1\" >/dev/null", &[&world.mnt("")]));
                }
            });
            scope.spawn(|| {
                let mut dice = Dice::new(77);
                while Instant::now() < end {
                    stall.time(|| evict(&world.mnt(name(dice.below(80)))));
                }
            });
            scope.spawn(|| {
                let mut dice = Dice::new(78);
                while Instant::now() < end {
                    let i = dice.below(80);
                    stall.time(|| world.xattr(&name(i), "state"));
                    stall.time(|| world.xattr("", "stats"));
                }
            });
        });
        stall.none_longer_than(20);
        assert!(world.stat("evictions") > 20, "{}", world.stat("evictions"));
    });
}

/// Goal: a mount that is later laid over the source's path leads nowhere in a circle. Method: the mount itself is bound
/// over the source, then an overlay of it; both are read while the daemon must go on to see the old source.
#[test]
fn bug_086_a_mount_over_the_source_is_no_loop() {
    need_mount!();
    let world = World::mounted(&["--ttl=0s"]);
    let bytes = world.put("f", 50_000, 1);
    let late = world.put("late", 60_000, 2);
    assert_eq!(world.get("f"), bytes);
    shell("mount --bind \"$1\" \"$2\"", &[&world.mnt(""), &world.src("")]);
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    assert!(
        read(world.src("f")) == bytes && read(world.mnt("late")) == late && read(world.src("late")) == late
    );
    shell("umount \"$1\"", &[&world.src("")]);
    let overlay = Mounted::overlay(&world.src(""), &world.mnt(""), &{
        let dir = world.dir().join("layers");
        std::fs::create_dir(&dir).unwrap();
        dir
    });
    assert!(read(world.src("f")) == bytes && read(world.mnt("f")) == bytes);
    std::fs::write(world.src("only in the overlay"), "x").unwrap();
    assert!(!world.mnt("only in the overlay").exists(), "the daemon has the source that it opened");
    drop(overlay);
    assert_eq!(world.get("f"), bytes);
}

/// Goal: a job that scans all files and then trains on them does not stand still after the scan. Method: images with labels
/// on a slow source, scanned by eight threads (stat, open, head), a label cache that cannot be written, then two epochs;
/// the second reads nothing from the source.
#[test]
fn bug_093_a_scan_and_two_epochs_over_a_slow_source() {
    need_mount!();
    let slow = Slow::new();
    let files: Vec<_> = (0..160)
        .map(|i| {
            slow.put(&format!("labels/{i}.txt"), 60, i);
            slow.put(&format!("images/{i}.jpg"), 30_000, i)
        })
        .collect();
    slow.mount(&["--latency", "5ms"], &[]);
    let eight = |work: &(dyn Fn(usize) + Sync)| {
        std::thread::scope(|scope| {
            for t in 0..8 {
                scope.spawn(move || (t..160).step_by(8).for_each(work));
            }
        });
    };
    eight(&|i| {
        assert_eq!(std::fs::metadata(slow.mnt(format!("images/{i}.jpg"))).unwrap().len(), 30_000);
        let mut head = [0; 16];
        File::open(slow.mnt(format!("images/{i}.jpg"))).unwrap().read_exact_at(&mut head, 0).unwrap();
        assert_eq!(slow.get(&format!("labels/{i}.txt")).len(), 60);
    });
    let refused = std::fs::write(slow.mnt("labels.cache"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let epoch = || eight(&|i| assert!(slow.get(&format!("images/{i}.jpg")) == files[i]));
    epoch();
    let before = slow.stat("backing_bytes_read");
    epoch();
    assert_eq!(slow.stat("backing_bytes_read"), before);
}

/// Goal: a descriptor that root opened serves the user whom it is passed to. Method: opened by root, then used by a thread
/// that has become another user: status, reads, a map; and opened anew by `/proc/self/fd`, which takes that user's rights.
#[test]
fn bug_150_a_descriptor_passed_to_another_user_works() {
    need_mount!();
    both(|mode| {
        let world = World::new(mode);
        std::fs::set_permissions(world.dir(), PermissionsExt::from_mode(0o755)).unwrap();
        let bytes = world.put("f", 50_000, 1);
        std::fs::set_permissions(world.src("f"), PermissionsExt::from_mode(0o600)).unwrap();
        world.mount();
        let file = File::open(world.mnt("f")).unwrap();
        let user = std::thread::spawn(move || {
            let nobody = Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let mut got = vec![0; 50_000];
            file.read_exact_at(&mut got, 0).unwrap();
            let again = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
            (file.metadata().unwrap().len(), got, Map::shared(&file).to_vec(), again.map(drop))
        });
        let (len, read, mapped, again) = user.join().unwrap();
        assert!(len == 50_000 && read == bytes && mapped == bytes);
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EACCES));
    });
}

fn anonymous_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Goal: memory follows what the kernel knows, and does not grow from walk to walk. Method: a walk over many files, then
/// the kernel is made to forget; three rounds. The bound per file is wide because the allocator keeps pages of its own.
#[test]
fn bug_159_memory_per_file_is_bounded_and_does_not_grow() {
    need_mount!();
    let files = figures::scale(20_000, 200_000, 1_000_000);
    let world = World::new(&[]);
    for i in 0..files {
        let dir = world.src(format!("d{}", i / 1000));
        if i % 1000 == 0 {
            std::fs::create_dir(&dir).unwrap();
        }
        File::create(dir.join(format!("a file with a usual name {i:08}"))).unwrap();
    }
    world.mount();
    let start = anonymous_kib(world.pid());
    let mut grown = Vec::new();
    for _ in 0..3 {
        shell("find \"$1\" -size +1000 | wc -l", &[&world.mnt("")]);
        grown.push(anonymous_kib(world.pid()).saturating_sub(start));
        drop_names();
    }
    let per_file = grown[0] * 1024 / files;
    println!("{per_file} bytes a file, {grown:?} KiB after each walk");
    assert!(per_file < 1000, "{per_file} bytes a file");
    assert!(grown[2] < grown[0] + grown[0] / 2 + 8192, "{grown:?} KiB after each walk");
}

/// Goal: a job that writes a decoded copy beside each image fails to, cleanly, and its reads go on. Method: the write is
/// tried for each file between reads; nothing of it is seen anywhere.
#[test]
fn bug_165_copies_that_cannot_be_written_beside_the_images_do_no_harm() {
    need_mount!();
    both(|mode| {
        let world = World::new(mode);
        let files: Vec<_> = (0..50).map(|i| world.put(&format!("{i}.jpg"), 50_000, i)).collect();
        world.mount();
        for _ in 0..2 {
            for (i, bytes) in files.iter().enumerate() {
                let refused = std::fs::write(world.mnt(format!("{i}.npy")), vec![0; 1 << 20]).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
                assert!(world.get(&format!("{i}.jpg")) == *bytes);
            }
        }
        assert_eq!(std::fs::read_dir(world.mnt("")).unwrap().count(), 50);
        assert_eq!((world.stat("cached_files"), world.stat("evictions")), (50, 0));
    });
}

/// Goal: thousands of handles at once are served and given back. Method: 5,000 handles, mapped, on 1,000 files; all are
/// read, everything is evicted beneath them, all are read again; then they are closed.
#[test]
fn bug_166_five_thousand_handles_at_once() {
    need_mount!();
    warmfs::sys::facts::raise_nofile();
    both(|mode| {
        let world = World::new(mode);
        let files: Vec<_> = (0..1000).map(|i| world.put(&format!("{i}"), 3000, i)).collect();
        world.mount();
        let before = fd_count(world.pid());
        let maps: Vec<_> = (0..5000)
            .map(|i| {
                let file = File::open(world.mnt(format!("{}", i % 1000))).unwrap();
                (Map::shared(&file), file)
            })
            .collect();
        let read_all =
            || maps.iter().enumerate().for_each(|(i, (map, _))| assert!(**map == *files[i % 1000]));
        read_all();
        let held = fd_count(world.pid());
        assert!(held < before + 3500, "{before}, then {held}");
        evict(&world.mnt(""));
        read_all();
        drop(maps);
        evict(&world.mnt(""));
        wait_until("descriptors are given back", || fd_count(world.pid()) <= before + 20);
    });
}
