//! Warm-ups without a kernel: queues of any length, and who makes room for whom.

use crate::common::*;
use std::path::PathBuf;
use warmfs::cache::warm::spool::Spool;
use warmfs::cache::warm::{Lists, Plan};
use warmfs::types::ErrorKind;

fn plan(paths: &[&str]) -> Plan {
    Plan { paths: paths.iter().map(PathBuf::from).collect(), ..Plan::default() }
}

/// Goal: a queue gives back what was put in, in order, whether it lies in memory or in its file, takes its room from the
/// budget and gives it back.
#[test]
fn a_queue_of_any_length_keeps_its_order_and_its_room() {
    let world = World::new();
    let cache = world.cache();
    let before = cache.usage().bytes;
    let record = |n: u32| format!("{n:0>width$}", width = 1 + n as usize % 90).into_bytes();
    let mut spool = Spool::default();
    let (mut put, mut taken) = (0..60_000u32, 0..60_000u32);
    for step in 0.. {
        // More in than out, then more out than in.
        for n in put.by_ref().take(7) {
            spool.push(cache, &record(n)).unwrap();
        }
        let out = if step < 6000 { 3 } else { 11 };
        for n in taken.by_ref().take(out) {
            assert_eq!(spool.pop(cache).unwrap(), Some(record(n)), "{n}");
        }
        if taken.is_empty() {
            break;
        }
    }
    assert!(spool.is_empty() && spool.pop(cache).unwrap().is_none());
    assert!(cache.usage().bytes > before + (256 << 10), "it was long enough to lie in a file");
    drop(spool);
    wait_until("its room is free", || cache.usage().bytes == before);
}

/// Goal: a list that the cache has no room for is an error and leaves nothing.
#[test]
fn a_list_without_room_is_refused() {
    let world = World::with(Options { bytes_max: MIB, evict: false, ..Options::default() });
    let (cache, lists) = (world.cache(), Lists::default());
    let names: Vec<PathBuf> = (0..40_000).map(|n| format!("a name of some length {n}").into()).collect();
    let before = cache.usage().bytes;
    let error = lists.add(cache, None, names.iter().map(|n| n.as_path())).unwrap_err();
    assert!(error.kind() == ErrorKind::NoSpace && error.to_string().contains("so many names"), "{error}");
    wait_until("its room is free", || cache.usage().bytes == before);
    let list = lists.add(cache, None, names[..10].iter().map(|n| n.as_path())).unwrap();
    assert_eq!(lists.add(cache, Some(list), names[..5].iter().map(|n| n.as_path())).unwrap(), list);
    assert_eq!(lists.remove(list).map(|spool| spool.len()).unwrap(), 15);
    assert_eq!(lists.remove(list).err().map(|e| e.kind()), Some(ErrorKind::Invalid), "it was taken");
    // Lists that nobody comes for are bounded.
    let begin = || lists.add(cache, None, names[..1].iter().map(|n| n.as_path()));
    let begun = (0..100).filter(|_| begin().is_ok()).count();
    assert_eq!((begun, begin().err().map(|e| e.kind())), (8, Some(ErrorKind::Busy)));
}

/// Goal: what is warm already stays when more is warmed than fits, wherever it stands among the names; what is not of this
/// warm-up makes room.
#[test]
fn what_is_warm_already_is_not_pushed_out_for_what_is_not() {
    for small_file_bytes_max in [4 * MIB, 64 << 10] {
        let world = World::with(Options { bytes_max: 11 * MIB, small_file_bytes_max, ..Options::default() });
        (0..5).for_each(|n| drop(world.put(&format!("old/f{n}"), 1_000_000, n)));
        (0..20).for_each(|n| drop(world.put(&format!("d/f{n:02}"), 1_000_000, n)));
        let warm = |paths: &[&str]| {
            let (report, stopped) = world.cache().warm(plan(paths), &mut |_| true).unwrap();
            assert!(!stopped);
            report
        };
        assert!(warm(&["old", "d/f17", "d/f18", "d/f19"]).is_all_warm());
        let report = warm(&["d"]);
        assert!((9..=11).contains(&report.files_warm), "{report:?}");
        assert_eq!((report.files_found, report.files_evicted), (3, 0), "{report:?}");
        assert_eq!(report.files_without_room, 20 - report.files_warm);
        for name in ["d/f17", "d/f18", "d/f19"] {
            let before = world.faults().bytes_read();
            world.read(name).unwrap();
            assert_eq!(world.faults().bytes_read(), before, "{name} is still warm");
        }
        assert_eq!(warm(&["old"]).files_warm, 5, "and now it is the other's turn");
    }
}

/// Goal: many large files that do not all fit become whole one after the other, rather than all in part.
#[test]
fn at_the_edge_some_large_files_become_whole() {
    let world = World::with(Options { bytes_max: 32 * MIB, small_file_bytes_max: MIB, ..Options::default() });
    (0..8).for_each(|n| drop(world.put(&format!("d/f{n}"), 10 * MIB, n)));
    let (report, _) = world.cache().warm(plan(&["d"]), &mut |_| true).unwrap();
    assert!((2..=3).contains(&report.files_warm), "{report:?}");
    assert_eq!(report.files_warm + report.files_without_room, 8);
    assert_eq!(report.bytes_done, report.files_warm * 10 * MIB, "{report:?}");
}

/// Goal: two warm-ups of the same files at a time both tell the truth, and each byte is fetched once.
#[test]
fn two_warm_ups_of_the_same_files_fetch_each_once() {
    let world = World::with(Options { small_file_bytes_max: MIB, ..Options::default() });
    (0..60).for_each(|n| drop(world.put(&format!("d/f{n}"), if n % 10 == 0 { 3 * MIB } else { 50_000 }, n)));
    let reports: Vec<_> = std::thread::scope(|scope| {
        let run = || world.cache().warm(plan(&["d"]), &mut |_| true).unwrap().0;
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for report in &reports {
        assert!(report.is_all_warm() && report.files_evicted == 0, "{report:?}");
        assert_eq!((report.files_total, report.bytes_done), (60, report.bytes_total));
    }
    assert_eq!(world.stats().backing_bytes_read.get(), reports[0].bytes_total);
}

/// Goal: a file that was read while there was no room for it lies in RAM; once there is room, a warm-up puts it on the SSD.
#[test]
fn what_lies_in_ram_is_put_on_the_ssd_once_there_is_room() {
    let options =
        Options { bytes_max: 4 * MIB, ram_window_bytes: 8 * MIB, evict: false, ..Options::default() };
    let world = World::with(options);
    (0..3).for_each(|n| drop(world.put(&format!("d/f{n}"), MIB, n)));
    world.put("g", 2 * MIB, 9);
    let warm = |paths: &[&str]| world.cache().warm(plan(paths), &mut |_| true).unwrap().0;
    assert!(warm(&["d"]).is_all_warm());
    world.read("g").unwrap();
    assert!(world.cache().ram_bytes() >= 2 * MIB);
    let full = warm(&["g"]);
    assert_eq!((full.files_warm, full.files_without_room), (0, 1), "{full:?}");
    assert!(full.failed[0].contains("the eviction policy makes none"), "{full:?}");
    for n in 0..2 {
        world.evict(&format!("d/f{n}"));
    }
    assert!(warm(&["g"]).is_all_warm());
}
