//! What survives a stop, a crash, and the loss of the index; and that nothing unfinished is ever believed.

use crate::common::*;
use std::path::Path;
use std::time::{Duration, Instant};
use warmfs::backing::faulty::{Call, Faults};
use warmfs::store::{CacheDir, Change, Index, Record};
use warmfs::types::{FileId, FileVersion, Timestamp};

/// Goal: a fill that a crash cut off is never taken for the file. Method: crashes at random moments of slow fills, of
/// files that are filled whole and of files that are filled in pieces.
#[test]
fn bug_028_a_fill_cut_off_by_a_crash_is_never_believed() {
    for small_file_bytes_max in [16 * MIB, MIB] {
        let mut world = World::with(Options { small_file_bytes_max, ..Options::default() });
        let mut dice = Dice(4);
        for round in 0..12 {
            let bytes = world.put("f", 5 * MIB + dice.below(MIB), round);
            world.faults().set(Faults { delay: Duration::from_millis(2), ..Faults::default() });
            let reader = {
                let fs = world.fs().clone();
                std::thread::spawn(move || drop(open(&fs, "f").and_then(|f| f.read_all())))
            };
            std::thread::sleep(Duration::from_millis(dice.below(40)));
            world.cache().flush();
            world.crash();
            reader.join().unwrap();
            world.start();
            assert!(world.get("f") == bytes, "round {round}");
        }
    }
}

/// Goal: what was cached before a crash is cached after it, whole files and single chunks, and is not fetched again.
#[test]
fn bug_040_a_crash_keeps_what_the_index_knows() {
    let mut world = World::with(Options { small_file_bytes_max: MIB, ..Options::default() });
    let bytes = world.put("big", 40 * MIB, 1);
    let small = world.put("small", 30_000, 2);
    assert!(world.get("small") == small);
    let mut dice = Dice(8);
    for _ in 0..6 {
        let at = dice.below(40 * MIB - 10) as usize;
        assert!(world.open("big").unwrap().read_at(at as u64, 10).unwrap() == bytes[at..at + 10]);
    }
    world.cache().flush();
    let cached: u64 = world.cache().all_files().iter().map(|f| f.cached_bytes()).sum();
    assert!(cached < 10 * MIB);
    world.crash_and_start();
    assert!(world.get("big") == bytes && world.get("small") == small);
    let total = (bytes.len() + small.len()) as u64;
    wait_until("the background fill has ended", || world.cache().all_files().iter().all(|f| f.is_complete()));
    assert_eq!(world.faults().bytes_read(), total - cached);
    // Lost, the map is not guessed: all is fetched again.
    world.stop();
    std::fs::remove_file(index_path(&world)).unwrap();
    world.start();
    assert_eq!(world.cache().file_count(), 0);
    assert_eq!(world.data_files().len(), 0, "what no index knows is removed");
    assert!(world.get("big") == bytes && world.get("small") == small);
    // Damaged as well.
    world.stop();
    std::fs::write(index_path(&world), vec![3; 50_000]).unwrap();
    world.start();
    assert!(world.get("big") == bytes && world.get("small") == small);
}

fn index_path(world: &World) -> std::path::PathBuf {
    let dirs = std::fs::read_dir(world.cache_dir()).unwrap().flatten();
    dirs.map(|d| d.path().join("index.redb")).find(|f| f.exists()).unwrap()
}

/// Goal: a clean stop keeps everything, the order of eviction too, and the next start asks the source for no byte.
#[test]
fn a_clean_restart_is_warm_at_once() {
    for engine in ENGINES {
        let mut world = World::with(Options { engine, bytes_max: 10 * MIB, ..Options::default() });
        let files: Vec<_> =
            (0..4).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 1_900_000, n))).collect();
        files.iter().for_each(|(name, _)| drop(world.get(name)));
        world.get("f0");
        world.restart();
        files.iter().rev().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
        assert_eq!(world.stats().backing_bytes_read.get(), 0);
        world.restart();
        world.put("new", 3_500_000, 9);
        world.get("new");
        let cached = |name: &[u8]| world.cache().all_files().iter().any(|f| f.path() == name);
        assert!(!cached(b"f3") && cached(b"f0") && cached(b"new"), "the oldest went");
    }
}

/// Goal: a stop in the middle of fills leaves nothing on the disk that nobody counts.
#[test]
fn bug_028_a_stop_in_the_middle_of_a_fill_leaves_no_orphan() {
    for small_file_bytes_max in [16 * MIB, MIB] {
        let mut world = World::with(Options { small_file_bytes_max, ..Options::default() });
        for round in 0..6 {
            let name = format!("f{round}");
            let bytes = world.put(&name, 4 * MIB, round);
            world.faults().set(Faults { delay: Duration::from_millis(3), ..Faults::default() });
            let reader = {
                let (fs, name) = (world.fs().clone(), name.clone());
                std::thread::spawn(move || drop(open(&fs, &name).and_then(|f| f.read_all())))
            };
            std::thread::sleep(Duration::from_millis(3 * round));
            world.stop();
            reader.join().unwrap();
            world.start();
            let known: u64 = world.cache().all_files().iter().map(|f| f.reserved_bytes()).sum();
            let there: u64 = world.data_files().iter().map(|f| du(f)).sum();
            assert_eq!(there, known, "round {round}");
            assert!(world.get(&name) == bytes);
        }
    }
}

/// Goal: a crash in the middle of a large file leaves chunks on the disk that the index does not know: they are counted.
#[test]
fn bug_043_what_a_crash_left_on_the_disk_is_counted() {
    let mut world = World::with(Options { small_file_bytes_max: 0, ..Options::default() });
    let bytes = world.put("f", 6 * MIB, 1);
    let file = world.open("f").unwrap();
    file.read_at(0, 10).unwrap();
    world.cache().flush();
    file.read_at(2 * MIB, 10).unwrap();
    drop(file);
    world.crash_and_start();
    let counted = || world.cache().all_files()[0].reserved_bytes();
    assert_eq!(counted(), du(&world.data_files()[0]));
    assert!(world.get("f") == bytes);
    wait_until("it is complete", || world.cache().all_files()[0].is_complete());
    assert_eq!(counted(), du(&world.data_files()[0]));
}

/// Goal: a file whose copy was evicted, or gave way to a newer version, is not taken for cached after a crash that came
/// before the index was told: it would be called warm and take up room without being there.
#[test]
fn a_crash_before_the_index_learns_of_a_removal_leaves_no_entry() {
    let mut world = World::new();
    for name in ["evicted", "replaced", "kept"] {
        let bytes = world.put(name, 50_000, 1);
        assert!(world.get(name) == bytes);
    }
    world.cache().flush();
    let evicted = world.cache().all_files().into_iter().find(|f| f.path() == b"evicted").unwrap().id();
    assert!(world.cache().evict(evicted));
    let newer = world.put("replaced", 60_000, 2);
    assert!(world.get("replaced") == newer);
    world.crash_and_start();
    assert_eq!(world.data_files().len(), 1);
    let names: Vec<_> = world.cache().all_files().iter().map(|f| f.path().to_vec()).collect();
    assert_eq!(names, [b"kept"], "the others are not there");
    let counted: u64 = world.cache().all_files().iter().map(|f| f.reserved_bytes()).sum();
    assert_eq!(counted, du(&world.data_files()[0]));
    // The index forgets them, too.
    world.cache().flush();
    world.crash_and_start();
    assert_eq!(world.cache().file_count(), 1);
}

/// Goal: a start over many files is quick, also when all must be verified before they are believed.
#[test]
fn bug_058_a_start_over_20_000_files_takes_no_time() {
    let mut world = World::stopped(Options { files_max: 100_000, ..Options::default() });
    if std::path::Path::new("/dev/shm").is_dir() {
        let name = format!("/dev/shm/warmfs-it-{}", std::process::id());
        world.options.cache_dir = Some(name.into());
    }
    std::fs::create_dir_all(world.cache_dir()).unwrap();
    make_entries(&world, 20_000);
    let start = Instant::now();
    world.start();
    let took = start.elapsed();
    assert_eq!(world.cache().file_count(), 20_000);
    let bytes = world.put("f", 5000, 1);
    assert!(world.get("f") == bytes);
    world.stop();
    std::fs::remove_dir_all(world.cache_dir()).unwrap();
    assert!(took < Duration::from_secs(2), "{took:?}");
}

fn make_entries(world: &World, count: u64) {
    let dir = CacheDir::open(&world.cache_dir(), &world.src("")).unwrap();
    let mut loaded = Index::open(dir.io(), &dir.index_path()).unwrap();
    let time = Timestamp { secs: 1, nanos: 0 };
    let changes: Vec<_> = (0..count)
        .map(|n| {
            let (number, fd) = dir.create().unwrap();
            rustix::io::write(&fd, b"0123456789").unwrap();
            let hash = *blake3::hash(b"0123456789").as_bytes();
            let version = FileVersion { size: 10, mtime: time, ctime: time, ino: 1_000_000 + n };
            let path = format!("directory/file{n}").into_bytes();
            let id = FileId { high: 0, low: 1_000_000 + n };
            (id, Change::Put(Record { number, version, path, chunks: vec![Some(hash)] }))
        })
        .collect();
    loaded.index.commit(changes.iter().map(|(id, change)| (*id, change))).unwrap();
}

/// Goal: a second daemon on the same cache is refused, and the first one is not harmed.
#[test]
fn two_daemons_on_one_cache_are_refused() {
    let world = World::new();
    let bytes = world.put("f", 100, 1);
    let mut other = World::stopped(Options { cache_dir: Some(world.cache_dir()), ..Options::default() });
    let error = other.try_start().unwrap_err();
    assert!(error.to_string().contains("in use by another warmfs"), "{error}");
    assert!(world.get("f") == bytes);
}

/// Goal: a cached file whose source is out of reach is served after a crash too; verifying needs no source.
#[test]
fn after_a_crash_cached_files_need_no_byte_of_the_source() {
    for small_file_bytes_max in [4 * MIB, 0] {
        let mut world = World::with(Options { small_file_bytes_max, ..Options::default() });
        let bytes = world.put("f", 3 * MIB, 1);
        assert!(world.get("f") == bytes);
        wait_until("it is complete", || world.cache().all_files()[0].is_complete());
        world.cache().flush();
        world.crash_and_start();
        world.fail(Call::Read, 5);
        assert!(world.get("f") == bytes);
        assert_eq!(world.faults().bytes_read(), 0);
    }
}

/// Goal: what was dropped just before a crash, so that the index still speaks of it, is neither damage nor takes room.
#[test]
fn what_was_dropped_just_before_a_crash_is_no_damage() {
    let mut world = World::with(Options { ttl: Some(Duration::ZERO), ..Options::default() });
    world.put("f", 30_000, 1);
    world.get("f");
    world.put("kept", 10_000, 2);
    world.get("kept");
    world.cache().flush();
    let new = world.put("f", 20_000, 3);
    assert_eq!(world.get("f"), new);
    world.crash_and_start();
    assert_eq!(world.cache().file_count(), 1, "the one that is there");
    assert_eq!(world.cache().usage().files, 1);
    let report = world.cache().verify(&[std::path::Path::new("")], &mut |_| true);
    assert_eq!((report.files, report.damaged), (1, Vec::new()));
    assert_eq!(world.get("f"), new);
}

/// Goal: a file that was filled after a crash is not taken after the next one for another that was evicted before the
/// first: the index speaks of that one until its next commit, so its number must not be given out again.
#[test]
fn a_second_crash_takes_no_file_for_one_that_went_before_the_first() {
    let mut world = World::new();
    for (name, seed) in [("kept", 1), ("evicted", 2)] {
        let bytes = world.put(name, 50_000, seed);
        assert!(world.get(name) == bytes);
    }
    world.cache().flush();
    let evicted = world.cache().all_files().into_iter().find(|f| f.path() == b"evicted").unwrap().id();
    assert!(world.cache().evict(evicted));
    world.crash_and_start();
    let bytes = world.put("new", 60_000, 3);
    assert!(world.get("new") == bytes);
    world.crash_and_start();
    let report = world.cache().verify(&[Path::new("")], &mut |_| true);
    assert!(report.damaged.is_empty(), "{:?}", report.damaged);
    assert_eq!(world.stats().cache_errors.get() + world.stats().checksum_failures.get(), 0);
    let names: Vec<_> = world.cache().all_files().iter().map(|f| f.path().to_vec()).collect();
    assert_eq!(names, [b"kept"]);
}
