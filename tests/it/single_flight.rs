//! Many readers, one fetch: who comes while a file is on its way waits for it, and nobody waits for ever.

use crate::common::*;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use warmfs::backing::faulty::{Call, Faults};

fn read_by_many(world: &World, readers: u64, names: &[(&str, &[u8])]) {
    let barrier = Barrier::new(readers as usize);
    std::thread::scope(|scope| {
        for n in 0..readers {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                for i in 0..names.len() {
                    let (name, bytes) = names[(n as usize + i) % names.len()];
                    assert!(world.get(name) == bytes, "{name}");
                }
            });
        }
    });
}

/// Goal: 64 cold readers cost the source one. Both ways of filling, both engines, with passthrough and without.
#[test]
fn bug_037_64_cold_readers_read_the_source_once() {
    for engine in ENGINES {
        for (passthrough, small_file_bytes_max) in [(true, 4 * MIB), (false, 4 * MIB), (true, 0)] {
            let world =
                World::with(Options { engine, passthrough, small_file_bytes_max, ..Options::default() });
            let one = world.put("one", 2 * MIB + 77, 1);
            let two = world.put("two", 3 * MIB, 2);
            let tiny = world.put("tiny", 5, 3);
            if engine == Engine::Pread {
                world.faults().set(Faults { delay: Duration::from_millis(1), ..Faults::default() });
            }
            read_by_many(&world, 64, &[("one", &one), ("two", &two), ("tiny", &tiny)]);
            let size = (one.len() + two.len() + tiny.len()) as u64;
            let fetched = world.stats().backing_bytes_read.get();
            assert!(fetched <= size + size / 20, "{engine:?} {passthrough}: {fetched} of {size}");
            if engine == Engine::Pread {
                assert!(world.faults().bytes_read() <= size + size / 20);
            }
        }
    }
}

/// Goal: a fetch that fails fails for those who waited, and the next one tries anew.
#[test]
fn bug_037_a_fetch_that_fails_leaves_nobody_waiting() {
    for small_file_bytes_max in [4 * MIB, 0] {
        let world = World::with(Options { small_file_bytes_max, ..Options::default() });
        let bytes = world.put("f", 2 * MIB, 1);
        world.faults().set(Faults {
            errno: Some((Call::Read, 5)),
            delay: Duration::from_millis(20),
            ..Faults::default()
        });
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| assert_eq!(world.read("f").unwrap_err().errno(), Some(5)));
            }
        });
        assert!(start.elapsed() < Duration::from_secs(5));
        world.heal();
        assert!(world.get("f") == bytes);
    }
}

/// Goal: a lead that dies in the middle of a fill is a failed fetch, not a hang. Method: the source's thread panics.
#[test]
fn bug_037_a_lead_that_dies_leaves_nobody_waiting() {
    use warmfs::cache::flight::FlightTable;
    let flights: FlightTable<u32, i32> = FlightTable::new(|| -1);
    let lead = flights.try_lead(1).unwrap();
    let (tx, rx) = std::sync::mpsc::channel();
    for _ in 0..63 {
        let tx = tx.clone();
        assert!(flights.join(1, || Box::new(move |n| tx.send(n).unwrap())).is_none());
    }
    let died = std::thread::spawn(move || {
        let _lead = lead;
        panic!("on purpose");
    });
    assert!(died.join().is_err());
    assert_eq!((0..63).map(|_| rx.recv_timeout(Duration::from_secs(5)).unwrap()).sum::<i32>(), -63);
}

/// Goal: who waits for a fill holds no thread: with one thread for the source, readers of other files still come
/// through once the first has landed, and all of them are served.
#[test]
fn waiters_hold_no_thread() {
    let world = World::with(Options { source_threads: 2, small_file_bytes_max: 0, ..Options::default() });
    let a = world.put("a", 3 * MIB, 1);
    let b = world.put("b", 3 * MIB, 2);
    world.faults().set(Faults { delay: Duration::from_millis(2), ..Faults::default() });
    read_by_many(&world, 24, &[("a", &a), ("b", &b)]);
}

/// Goal: a file that finds no room in the cache is fetched once for all who ask together, and held in bounded RAM.
#[test]
fn a_file_without_room_is_fetched_once_into_bounded_ram() {
    let window = 8 * MIB;
    let world = World::with(Options {
        bytes_max: 2 * MIB,
        ram_window_bytes: window,
        small_file_bytes_max: 16 * MIB,
        ..Options::default()
    });
    let big = world.put("big", 5 * MIB, 1);
    world.faults().set(Faults { delay: Duration::from_millis(2), ..Faults::default() });
    read_by_many(&world, 32, &[("big", &big)]);
    assert!(world.faults().bytes_read() <= big.len() as u64 * 21 / 20, "{}", world.faults().bytes_read());
    assert!(world.open("big").unwrap().is_passthrough(), "from RAM, but by the kernel");
    for n in 0..6 {
        let name = format!("other{n}");
        let bytes = world.put(&name, 3 * MIB, n);
        assert!(world.get(&name) == bytes);
        assert!(world.cache().ram_bytes() <= window);
    }
    // Larger than the window too: straight from the source.
    let huge = world.put("huge", 9 * MIB, 9);
    assert!(world.get("huge") == huge);
    assert!(world.cache().ram_bytes() <= window);
}

/// Goal: a policy that evicts nothing serves what does not fit all the same.
#[test]
fn with_policy_none_a_full_cache_still_serves() {
    let world = World::with(Options {
        bytes_max: 5 * MIB,
        evict: false,
        ram_window_bytes: 2 * MIB,
        ..Options::default()
    });
    let files: Vec<_> = (0..12).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), MIB, n))).collect();
    for round in 0..2 {
        for (name, bytes) in &files {
            assert!(world.get(name) == *bytes, "{name} in round {round}");
            assert!(world.cache().ram_bytes() <= 2 * MIB);
        }
    }
    assert_eq!(world.stats().evictions.get(), 0);
    assert!(world.stats().cache_refusals.get() > 0 && world.cache().file_count() >= 2);
    let before = world.faults().bytes_read();
    assert!(world.get("f0") == files[0].1);
    assert_eq!(world.faults().bytes_read(), before, "what came first stays");
}

/// Goal: while files are replaced, cut and removed all the time, each open that succeeds gives one whole version, and
/// never an older one after a newer one. Method: the first bytes of a version say which it is.
#[test]
fn bug_033_every_open_gives_one_whole_version_and_none_twice_back() {
    use std::sync::atomic::{AtomicU64, Ordering};
    for (passthrough, identity, small_file_bytes_max) in [
        (true, None, 4 * MIB),
        (false, None, 4 * MIB),
        (false, None, 0),
        (true, Some(warmfs::backing::IdentityRule::Path), 4 * MIB),
        (false, Some(warmfs::backing::IdentityRule::Path), 0),
    ] {
        let world = World::with(Options {
            passthrough,
            identity,
            small_file_bytes_max,
            bytes_max: 12 * MIB,
            ram_window_bytes: 2 * MIB,
            ..Options::default()
        });
        let newest = AtomicU64::new(0);
        let replace = |n: u64| {
            let size = 8 + (n * 7_919_777) % (3 * MIB);
            let mut bytes = pattern(n, size as usize);
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            std::fs::write(world.src("next"), &bytes).unwrap();
            std::fs::rename(world.src("next"), world.src("f")).unwrap();
            newest.store(n, Ordering::SeqCst);
        };
        replace(1);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            let before = newest.load(Ordering::SeqCst);
                            match world.read("f") {
                                Ok(got) => assert!(whole_version(&got) >= before, "an older version"),
                                Err(e) => assert_eq!(e.errno(), Some(116), "{e}"),
                            }
                        }
                    })
                })
                .collect();
            for n in 2..50 {
                std::thread::sleep(Duration::from_millis(n % 9));
                replace(n);
                if n % 7 == 0 {
                    world.evict("f");
                }
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|r| r.join().unwrap());
        });
    }
}

/// The version that these bytes are, all of them.
fn whole_version(bytes: &[u8]) -> u64 {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(bytes.len() as u64, 8 + (n * 7_919_777) % (3 * MIB), "version {n} whole");
    assert!(bytes[8..] == pattern(n, bytes.len())[8..], "version {n} and no other");
    n
}
