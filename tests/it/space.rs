//! The budget: what the cache takes stays within it at every moment, what is in use is never taken away, and what
//! finds no room is served all the same.

use crate::common::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use warmfs::backing::faulty::Faults;
use warmfs::store::{CacheFile, Place};

/// Goal: the bytes are right while files are evicted and filled all the time under random readers.
#[test]
fn bug_027_random_reads_over_a_cache_of_half_the_data() {
    for engine in ENGINES {
        for passthrough in [true, false] {
            let world = World::with(Options {
                engine,
                passthrough,
                bytes_max: 10 * MIB,
                small_file_bytes_max: MIB,
                ram_window_bytes: MIB,
                ..Options::default()
            });
            // Half of them small, half of them chunk by chunk.
            let files: Vec<_> = (0..20)
                .map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 500_000 + (n % 2) * 2 * MIB, n)))
                .collect();
            std::thread::scope(|scope| {
                for n in 0..16 {
                    let (world, files) = (&world, &files);
                    scope.spawn(move || random_reads(world, files, Dice(n), 60));
                }
            });
            assert!(world.stats().evictions.get() > 0);
        }
    }
}

fn random_reads(world: &World, files: &[(String, Vec<u8>)], mut dice: Dice, opens: u32) {
    for _ in 0..opens {
        let (name, bytes) = &files[dice.below(files.len() as u64) as usize];
        let file = world.open(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        for _ in 0..10 {
            let at = dice.below(bytes.len() as u64) as usize;
            let len = 1 + dice.below(300 << 10) as usize;
            let got = file.read_at(at as u64, len).unwrap_or_else(|e| panic!("{name} at {at}: {e}"));
            assert!(got == bytes[at..(at + len).min(bytes.len())], "{name} at {at}");
        }
    }
}

/// Goal: the budget holds at every moment, by our own count and by the disk's. Method: a tmpfs of the cache's own,
/// whose figures are exact at each moment, looked at all the time while 32 readers fill and evict.
#[test]
fn bug_043_the_budget_holds_at_every_moment() {
    for small_file_bytes_max in [8 * MIB, MIB] {
        let budget = 24 * MIB;
        let mut world = World::stopped(Options {
            bytes_max: budget,
            small_file_bytes_max,
            ram_window_bytes: 4 * MIB,
            ..Options::default()
        });
        let disk = Tmpfs::new(&world.dir().join("disk"), "size=64m");
        if let Some(disk) = &disk {
            world.options.cache_dir = Some(disk.path().join("cache"));
        }
        world.start();
        let files: Vec<_> = (0..30)
            .map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 300_000 + n * 130_001, n)))
            .collect();
        let done = AtomicBool::new(false);
        let highest = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(&world, disk.as_ref(), &done));
            let readers: Vec<_> = (0..32)
                .map(|n| {
                    let (world, files) = (&world, &files);
                    scope.spawn(move || random_reads(world, files, Dice(n), 12))
                })
                .collect();
            let ended: Vec<_> = readers.into_iter().map(|r| r.join()).collect();
            done.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
            watcher.join().unwrap()
        });
        assert!(highest.0 <= budget, "by our count: {} of {budget}", highest.0);
        assert!(highest.1 <= budget, "by the disk's: {} of {budget}", highest.1);
        assert!(highest.0 > budget / 2 && world.stats().evictions.get() > 0, "it was full");
    }
}

/// The most that was seen in use: by the cache's count, and on the disk.
fn watch(world: &World, disk: Option<&Tmpfs>, done: &AtomicBool) -> (u64, u64) {
    let mut highest = (0, 0);
    while !done.load(Ordering::Relaxed) {
        highest.0 = highest.0.max(world.cache().usage().bytes);
        highest.1 = highest.1.max(disk.map_or(0, Tmpfs::used));
        std::thread::sleep(Duration::from_micros(500));
    }
    highest
}

/// Goal: of two limits the stricter one binds, each way round.
#[test]
fn bug_044_the_stricter_limit_binds() {
    let mut world = World::stopped(Options { bytes_max: 64 * MIB, ..Options::default() });
    let Some(disk) = Tmpfs::new(&world.dir().join("disk"), "size=24m") else { return };
    world.options.cache_dir = Some(disk.path().join("cache"));
    let free_floor_bytes = 14 * MIB;
    for (bytes_max, free_floor_bytes, most) in [(64 * MIB, free_floor_bytes, 10 * MIB), (6 * MIB, 0, 6 * MIB)]
    {
        world.options.bytes_max = bytes_max;
        world.options.free_floor_bytes = free_floor_bytes;
        world.start();
        for n in 0..40 {
            let bytes = world.put(&format!("f{n}"), 700_000, n);
            assert!(world.get(&format!("f{n}")) == bytes);
            assert!(disk.used() <= most, "{} of {most}", disk.used());
        }
        assert!(world.cache().file_count() > 2);
        world.stop();
    }
}

/// Goal: a cache that is full of small files on a disk that others fill serves right bytes, never holes.
#[test]
fn bug_026_bug_055_a_disk_that_others_have_filled() {
    let mut world = World::stopped(Options { bytes_max: 1 << 40, ..Options::default() });
    let Some(disk) = Tmpfs::new(&world.dir().join("disk"), "size=16m") else { return };
    world.options.cache_dir = Some(disk.path().join("cache"));
    world.start();
    let mut dice = Dice(1);
    let mut files = Vec::new();
    for n in 0..600 {
        let name = format!("f{n}");
        let bytes = world.put(&name, 300 + dice.below(20_000), n);
        if n == 100 {
            fill_up(&disk.path().join("foreign"));
        }
        assert!(world.get(&name) == bytes, "{name}");
        files.push((name, bytes));
    }
    let large = world.put("large", 6 * MIB, 1000);
    assert!(world.get("large") == large);
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name}"));
    std::fs::remove_file(disk.path().join("foreign")).unwrap();
    wait_until("it caches again", || {
        files.iter().skip(500).for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name}"));
        world.cache().file_count() > 150
    });
}

fn fill_up(path: &std::path::Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).unwrap();
    while file.write_all(&[1; 4096]).is_ok() {}
}

/// Goal: a start with a smaller budget comes down to it before it serves.
#[test]
fn bug_046_a_smaller_budget_is_kept_from_the_start() {
    let mut world = World::new();
    let mut dice = Dice(9);
    for n in 0..60 {
        world.put(&format!("f{n}"), 1 + dice.below(MIB), n);
        world.get(&format!("f{n}"));
    }
    world.stop();
    world.options.bytes_max = 8 * MIB;
    world.start();
    assert!(world.cache().usage().bytes <= 8 * MIB && world.cache().file_count() > 3);
    let on_disk: u64 = world.data_files().iter().map(|f| du(f)).sum();
    assert_eq!(on_disk + world.cache().dir().overhead_bytes(), world.cache().usage().bytes);
}

/// Goal: the last commit of a stop may have to make room for the index; what goes for that is not spoken of by the index
/// that the next start trusts.
#[test]
fn a_stop_that_makes_room_leaves_no_record_of_what_went() {
    let options = Options { bytes_max: 20 * MIB, ram_window_bytes: 0, ..Options::default() };
    // The last commit makes room if it has much to write, of long names, and none before it has left some: else once more
    // with another cache.
    let stopped_full = || {
        let mut world = World::with(options.clone());
        for n in 0..2600 {
            let name = format!("{n:0200}");
            world.put(&name, 7000, n);
            world.get(&name);
        }
        let stats = world.stats().clone();
        // What goes for the names is told by the commit that follows, in any case.
        world.fs().keep_names();
        let before = stats.evictions.get();
        world.stop();
        (stats.evictions.get() > before).then_some(world)
    };
    let world = (0..10).find_map(|_| stopped_full());
    let mut world = world.expect("room was made at one of ten stops: nothing is shown otherwise");
    world.start();
    let dir = world.cache().dir();
    let has_data = |file: &CacheFile| match file.place() {
        Place::Ssd { number } => dir.data_path(*number).exists(),
        Place::Ram(_) => true,
    };
    let missing = world.cache().all_files().iter().filter(|file| !has_data(file)).count();
    assert_eq!(missing, 0, "of {} records", world.cache().file_count());
}

/// Goal: whoever goes through all files (`verify`, an eviction by path, the scrub) does not keep the space of those that are
/// evicted meanwhile, for which others would go, and others, until nothing is left.
#[test]
fn a_look_at_all_files_costs_none_of_them() {
    let world = World::with(Options { bytes_max: 20 * MIB, ram_window_bytes: 0, ..Options::default() });
    let get = |n: u64| {
        let name = format!("f{n}");
        let bytes = world.put(&name, 100_000, n);
        assert!(world.get(&name) == bytes);
    };
    (0..300).for_each(get);
    let (full, evicted) = (world.cache().file_count(), world.stats().evictions.get());
    let all = world.cache().all_files();
    (300..400).for_each(get);
    assert!(world.cache().file_count() + 10 > full, "{} of {full} files", world.cache().file_count());
    assert!(world.stats().evictions.get() < evicted + 120);
    assert!(world.cache().usage().bytes <= 20 * MIB);
    drop(all);
}

/// Goal: a file used a moment ago stays, whatever the access times on the disk say, and so does one that is open.
#[test]
fn bug_047_bug_063_the_hot_file_and_the_held_one_stay() {
    for passthrough in [true, false] {
        let world = World::with(Options { bytes_max: 8 * MIB, passthrough, ..Options::default() });
        let hot = world.put("hot", 500_000, 1);
        let held = world.put("held", 500_000, 2);
        let handle = world.open("held").unwrap();
        assert!(world.get("hot") == hot && handle.read_all().unwrap() == held);
        for file in world.data_files() {
            // As old as can be: nobody may go by this. The other time is the stamp by which the file is recognised.
            let times = rustix::fs::Timestamps {
                last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
                last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            };
            rustix::fs::utimensat(rustix::fs::CWD, file, &times, rustix::fs::AtFlags::empty()).unwrap();
        }
        for n in 0..80 {
            world.put(&format!("cold{n}"), 1_000_000, n);
            world.get(&format!("cold{n}"));
            let before = world.faults().bytes_read();
            assert!(world.get("hot") == hot);
            assert_eq!(world.faults().bytes_read(), before, "the hot file was fetched once");
        }
        std::fs::remove_file(world.src("held")).unwrap();
        assert!(handle.read_all().unwrap() == held);
    }
}

/// Goal: whatever was opened, evicted, replaced and dropped, the count is what lies on the disk.
#[test]
fn bug_051_the_count_is_what_lies_on_the_disk() {
    let world = World::with(Options { bytes_max: 16 * MIB, small_file_bytes_max: MIB, ..Options::default() });
    (0..24).for_each(|n| drop(world.put(&format!("f{n}"), 10_000 + n * 120_000, n)));
    std::thread::scope(|scope| {
        for t in 0..8 {
            let world = &world;
            scope.spawn(move || churn(world, Dice(t)));
        }
    });
    let mut seen = (Vec::new(), Vec::new());
    let ended = soon(|| {
        let mut on_disk: Vec<_> = world.data_files().iter().map(|f| (f.clone(), du(f))).collect();
        world.cache().flush();
        let place = |f: &CacheFile| match f.place() {
            Place::Ssd { number } => world.cache().dir().data_path(*number),
            Place::Ram(_) => PathBuf::from("RAM"),
        };
        let mut reserved: Vec<_> =
            world.cache().all_files().iter().map(|f| (place(f), f.reserved_bytes())).collect();
        on_disk.sort();
        reserved.sort();
        seen = (on_disk, reserved);
        seen.0 == seen.1
    });
    assert!(ended, "on the disk, and counted: {seen:#?}");
    world.cache().all_files().iter().for_each(|f| _ = world.cache().evict(f.id()));
    assert_eq!(world.cache().file_count(), 0);
    assert_eq!(world.cache().usage().files, 0);
    assert_eq!(world.data_files().len(), 0);
}

fn churn(world: &World, mut dice: Dice) {
    for i in 0..150 {
        let n = dice.below(24);
        let name = format!("f{n}");
        match dice.below(8) {
            0 => drop(world.evict(&name)),
            1 => {
                let _ = std::fs::write(world.src("t").with_extension(dice.0.to_string()), pattern(i, 50_000));
                let _ = std::fs::rename(world.src("t").with_extension(dice.0.to_string()), world.src(&name));
            }
            2 => {
                if let Ok(file) = std::fs::File::options().write(true).open(world.src(&name)) {
                    let _ = file.set_len(10_000 + dice.below(3 * MIB));
                }
            }
            3 => {
                world.faults().set(Faults {
                    errno: Some((warmfs::backing::faulty::Call::Read, 5)),
                    errno_count: Some(1),
                    ..Faults::default()
                });
            }
            _ => drop(world.open(&name).and_then(|f| f.read_at(dice.below(2 * MIB), 400_000))),
        }
    }
}

/// Goal: files are budgeted like bytes.
#[test]
fn bug_053_the_number_of_files_is_bounded_too() {
    let world = World::with(Options { files_max: 50, ..Options::default() });
    for n in 0..300 {
        let bytes = world.put(&format!("f{n}"), 100, n);
        assert!(world.get(&format!("f{n}")) == bytes);
        assert!(world.cache().usage().files <= 50 && world.data_files().len() <= 50);
    }
    assert_eq!(world.cache().file_count(), 50);
}

/// Goal: registrations are given up for others, and none is ever used for another file.
#[test]
fn bug_072_few_registrations_and_many_files() {
    let world = World::with(Options { backing_ids_max: 8, ..Options::default() });
    let files: Vec<_> = (0..200).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 3000, n))).collect();
    std::thread::scope(|scope| {
        for n in 0..16 {
            let (world, files) = (&world, &files);
            scope.spawn(move || {
                let mut dice = Dice(n);
                for _ in 0..300 {
                    let (name, bytes) = &files[dice.below(200) as usize];
                    let file = world.open(name).unwrap();
                    assert!(file.is_passthrough());
                    assert!(file.read_at(0, 8).unwrap() == bytes[..8], "{name}");
                }
            });
        }
    });
    let registered = world.cache().all_files().iter().filter(|f| f.kernel_ref().is_some()).count();
    assert!(registered <= 8, "{registered}");
}

/// Goal: a disk that does not count its inodes (btrfs says 0 of 0) is a disk without that limit.
#[test]
fn bug_052_a_disk_without_inode_figures_caches() {
    let mut world = World::stopped(Options::default());
    let Some(disk) = Tmpfs::new(&world.dir().join("disk"), "size=32m,nr_inodes=0") else { return };
    world.options.cache_dir = Some(disk.path().join("cache"));
    world.start();
    assert_eq!(world.cache().dir().free().unwrap().free_files, None);
    let bytes = world.put("f", 5000, 1);
    assert!(world.get("f") == bytes && world.get("f") == bytes);
    assert_eq!((world.cache().file_count(), world.stats().hits.get()), (1, 1));
}

/// Goal: a fetch that fails half-way leaves nothing uncounted on the disk. Method: the source is cut while four chunks
/// are asked for, of which two are still there.
#[test]
fn bug_051_a_fetch_that_fails_half_way_gives_its_space_back() {
    for engine in ENGINES {
        let world = World::with(Options { engine, small_file_bytes_max: 0, ..Options::default() });
        let bytes = world.put("f", 6 * MIB, 1);
        let file = world.open("f").unwrap();
        assert!(file.read_at(0, 1000).unwrap() == bytes[..1000]);
        std::fs::File::options().write(true).open(world.src("f")).unwrap().set_len(3 * MIB).unwrap();
        assert_eq!(file.read_at(MIB, 4 * MIB as usize).unwrap_err().errno(), Some(116));
        assert!(file.read_at(0, 1000).unwrap() == bytes[..1000], "what is here is still good");
        let cached = &world.cache().all_files()[0];
        assert_eq!(cached.reserved_bytes(), du(&world.data_files()[0]));
    }
}

/// Goal: nor does one that fails when all of it is written, at the end of a file that ends within a block. Method: the
/// source is written to after the file was opened.
#[test]
fn bug_051_the_last_block_of_a_fetch_that_fails_is_given_back_too() {
    for engine in ENGINES {
        let world = World::with(Options { engine, small_file_bytes_max: 0, ..Options::default() });
        let bytes = world.put("f", 3 * MIB + 5000, 1);
        let file = world.open("f").unwrap();
        assert!(file.read_at(0, 1000).unwrap() == bytes[..1000]);
        // The clock of the file system has steps.
        std::thread::sleep(Duration::from_millis(20));
        let source = std::fs::File::options().write(true).open(world.src("f")).unwrap();
        std::os::unix::fs::FileExt::write_at(&source, b"x", 2 * MIB).unwrap();
        assert_eq!(file.read_at(3 * MIB, 5000).unwrap_err().errno(), Some(116));
        let cached = &world.cache().all_files()[0];
        assert_eq!(cached.reserved_bytes(), du(&world.data_files()[0]));
    }
}

/// Goal: a name that is replaced between look-up and open, and again after the second look-up, is opened as the second
/// look-up saw it, by all who looked, also where nothing can be kept of it; it is read whole from the source.
#[test]
fn a_name_that_is_fought_for_is_opened_without_room_too() {
    for small_file_bytes_max in [MIB, 0] {
        let world = World::with(Options {
            bytes_max: 4096,
            files_max: 0,
            ram_window_bytes: 0,
            small_file_bytes_max,
            ttl: Some(Duration::ZERO),
            ..Options::default()
        });
        let replace = |version| {
            let bytes = pattern(version, 30_000);
            std::fs::write(world.dir().join("aside"), &bytes).unwrap();
            std::fs::rename(world.dir().join("aside"), world.src("f")).unwrap();
            bytes
        };
        replace(1);
        let seen = world.lookup("f").unwrap();
        let second = replace(2);
        assert_eq!(open_seen(seen).err().and_then(|e| e.errno()), Some(116), "the kernel looks again");
        let seen = [world.lookup("f").unwrap(), world.lookup("f").unwrap()];
        let third = replace(3);
        for seen in seen {
            // Closed before the next opens: each needs the file for itself.
            assert!(open_seen(seen).unwrap().read_all().unwrap() == second);
        }
        assert!(world.stats().bypass_opens.get() >= 2, "it was kept");
        assert!(world.get("f") == third);
    }
}
