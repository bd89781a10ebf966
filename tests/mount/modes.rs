//! How a file is opened and what it costs: one I/O mode per node, passthrough with all its corners, descriptors, many at
//! once. The kernel turns every mistake here into EIO for the reader.

use crate::common::*;
use crate::figures::{Figure, scale};
use crate::need_mount;
use crate::tools::*;
use rustix::process::{Resource, Rlimit};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PASSTHROUGH: &[&str] = &[];

/// The mode that warm files are served in.
fn warm_mode(mode: &[&str]) -> &'static str {
    if mode.is_empty() { "passthrough" } else { "cached" }
}

fn open_direct(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_DIRECT).open(path)
}

/// Reads all of a file with O_DIRECT.
fn read_direct(path: &Path, piece: usize) -> std::io::Result<Vec<u8>> {
    let file = open_direct(path)?;
    let mut buffer = Aligned::new(piece);
    let mut all = Vec::new();
    loop {
        match file.read_at(buffer.as_mut(), all.len() as u64)? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buffer.as_mut()[..n]),
        }
    }
}

#[test]
fn bug_066_any_number_of_opens_share_one_backing() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        let bytes = world.put("a", 50_000, 1);
        std::fs::hard_link(world.src("a"), world.src("b")).unwrap();
        assert_eq!(world.get("a"), bytes);
        std::thread::scope(|scope| {
            for t in 0..64 {
                let (world, bytes) = (&world, &bytes);
                scope.spawn(move || {
                    for n in 0..60 {
                        let name = if (t + n) % 2 == 0 { "a" } else { "b" };
                        let read = match (t + n) % 5 {
                            0 => read_direct(&world.mnt(name), 65536).unwrap(),
                            _ => world.get(name),
                        };
                        assert!(read == *bytes);
                    }
                });
            }
        });
        assert_eq!(world.stat("bypass_opens"), 0);
        assert_eq!(world.stat("backing_bytes_read"), bytes.len() as u64);
    });
}

#[test]
fn bug_067_what_is_completed_while_open_keeps_its_mode_and_changes_it_at_the_last_close() {
    need_mount!();
    both(|mode| {
        for mapped in [false, true] {
            let world = World::mounted(mode);
            let bytes = world.put("large", 9 << 20, 1);
            let held = File::open(world.mnt("large")).unwrap();
            let map = mapped.then(|| Map::shared(&held));
            assert_eq!(world.xattr("large", "mode"), "cached");
            verb("warm", &world.mnt("large"));
            assert_eq!(world.xattr("large", "state"), "warm");
            assert!(
                world.get("large") == bytes && read_direct(&world.mnt("large"), 1 << 20).unwrap() == bytes
            );
            assert!(*Map::shared(&File::open(world.mnt("large")).unwrap()) == *bytes);
            assert_eq!(world.xattr("large", "mode"), "cached");
            if let Some(map) = &map {
                assert!(**map == *bytes);
            }
            // A map outlives its descriptor, and the mode with it.
            drop(held);
            assert!(world.get("large") == bytes);
            drop(map);
            wait_until("it is closed", || world.xattr("large", "mode") == "none");
            let again = File::open(world.mnt("large")).unwrap();
            assert_eq!(world.xattr("large", "mode"), warm_mode(mode));
            assert!(*Map::shared(&again) == *bytes);
        }
    });
}

#[test]
fn bug_067_what_is_evicted_while_open_stays_as_it_is() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for (name, size) in [("small", 50_000), ("large", 9 << 20)] {
            let bytes = world.put(name, size, 1);
            verb("warm", &world.mnt(name));
            let held = File::open(world.mnt(name)).unwrap();
            let map = Map::shared(&held);
            assert_eq!(world.xattr(name, "mode"), warm_mode(mode));
            evict(&world.mnt(name));
            assert!(world.get(name) == bytes && *map == *bytes);
            let second = File::open(world.mnt(name)).unwrap();
            assert!(*Map::shared(&second) == *bytes);
            drop((held, map, second));
            wait_until("it is closed", || world.xattr(name, "mode") == "none");
            evict(&world.mnt(name));
            assert_eq!(world.xattr(name, "state"), "cold");
            assert!(world.get(name) == bytes);
        }
    });
}

#[test]
fn a_large_file_is_handed_to_the_kernel_once_it_is_complete_and_closed() {
    need_mount!();
    let world = World::mounted(PASSTHROUGH);
    let bytes = world.put("large", 20 << 20, 1);
    assert!(world.get("large") == bytes);
    wait_until("it is complete", || world.xattr("large", "state") == "warm");
    wait_until("it is closed", || world.xattr("large", "mode") == "none");
    let reads = world.stat("reads");
    let mut held = File::open(world.mnt("large")).unwrap();
    assert_eq!(world.xattr("large", "mode"), "passthrough");
    let mut read = Vec::new();
    held.read_to_end(&mut read).unwrap();
    assert!(read == bytes);
    assert_eq!(world.stat("reads"), reads, "the kernel reads by itself");
}

#[test]
fn what_the_kernel_reads_by_itself_outlives_the_daemon() {
    need_mount!();
    let world = World::mounted(PASSTHROUGH);
    let bytes = world.put("f", 300_000, 1);
    world.get("f");
    let mut held = File::open(world.mnt("f")).unwrap();
    let map = Map::shared(&held);
    world.kill();
    let mut read = Vec::new();
    held.read_to_end(&mut read).unwrap();
    assert!(read == bytes && *map == *bytes);
}

#[test]
fn bug_068_all_files_at_once_while_they_are_evicted() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        let bytes: Vec<_> =
            (0..200).map(|n| world.put(&format!("d/{n}"), 3000 + n * 100, n as u64)).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let evictor = scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    evict(&world.mnt("d"));
                }
            });
            let readers: Vec<_> = (0..16)
                .map(|_| {
                    scope.spawn(|| {
                        for round in 0..3 {
                            for (n, bytes) in bytes.iter().enumerate() {
                                assert!(world.get(&format!("d/{n}")) == *bytes, "{round} {n}");
                            }
                        }
                    })
                })
                .collect();
            let results: Vec<_> = readers.into_iter().map(|r| r.join().is_ok()).collect();
            done.store(true, Ordering::Release);
            evictor.join().unwrap();
            assert!(results.into_iter().all(|ok| ok));
        });
    });
}

#[test]
fn bug_069_direct_reads_are_right_cold_and_warm_and_beside_others() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for (name, size) in [("small", 1_000_123), ("large", (9 << 20) + 123)] {
            let bytes = world.put(name, size, 1);
            for piece in [4096, 1 << 20] {
                assert!(read_direct(&world.mnt(name), piece).unwrap() == bytes, "{name} {piece} cold");
                assert!(read_direct(&world.mnt(name), piece).unwrap() == bytes, "{name} {piece} warm");
                let beside = File::open(world.mnt(name)).unwrap();
                let map = Map::shared(&beside);
                assert!(read_direct(&world.mnt(name), piece).unwrap() == bytes, "{name} {piece} beside");
                assert!(*map == *bytes);
                drop((beside, map));
                evict(&world.mnt(name));
            }
            verb("warm", &world.mnt(name));
            // Not aligned: right, or what every other file system says.
            match read_direct(&world.mnt(name), 1000) {
                Ok(read) => assert!(read == bytes),
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc::EINVAL)),
            }
        }
    });
}

#[test]
fn bug_070_a_cache_on_overlayfs_falls_back_with_one_warning() {
    need_mount!();
    let world = World::new(PASSTHROUGH);
    for name in ["layers", "lower"] {
        std::fs::create_dir(world.dir().join(name)).unwrap();
    }
    let cache = Mounted::overlay(&world.cache(), &world.dir().join("lower"), &world.dir().join("layers"));
    world.mount();
    for n in 0..20 {
        let name = n.to_string();
        let bytes = world.put(&name, 10_000, n);
        assert_eq!(world.get(&name), bytes);
        let held = File::open(world.mnt(&name)).unwrap();
        assert_eq!(world.xattr(&name, "mode"), "cached");
        assert_eq!(*Map::shared(&held), bytes);
    }
    let large = world.put("large", 6 << 20, 1);
    assert!(world.get("large") == large && world.get("large") == large);
    let log = world.log();
    assert_eq!(log.lines().filter(|l| l.contains("WARN")).count(), 1, "{log}");
    assert!(log.contains("warm files are served by warmfs itself"), "{log}");
    world.umount();
    drop(cache);
}

#[test]
fn bug_070_an_overlay_over_the_mount_works() {
    need_mount!();
    let world = World::mounted(PASSTHROUGH);
    let bytes = world.put("d/f", 10_000, 1);
    let large = world.put("d/large", 6 << 20, 2);
    std::fs::create_dir(world.dir().join("layers")).unwrap();
    let merged = world.dir().join("merged");
    let overlay = Mounted::overlay(&merged, &world.mnt(""), &world.dir().join("layers"));
    for _ in 0..2 {
        assert_eq!(std::fs::read(merged.join("d/f")).unwrap(), bytes);
        assert!(std::fs::read(merged.join("d/large")).unwrap() == large);
        assert!(*Map::shared(&File::open(merged.join("d/f")).unwrap()) == *bytes);
    }
    std::fs::write(merged.join("d/f"), "new").unwrap();
    assert_eq!(std::fs::read(merged.join("d/f")).unwrap(), b"new");
    assert_eq!(world.get("d/f"), bytes);
    drop(overlay);
}

#[test]
fn bug_071_opening_and_closing_leaves_no_descriptor_behind() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for n in 0..300 {
            world.put(&format!("d/{n}"), 2000, n);
        }
        world.get("d/0");
        let (pid, mut most) = (world.pid(), 0);
        let before = fd_count(pid);
        for n in 0..1500 {
            world.get("d/0");
            if n % 100 == 0 {
                most = most.max(fd_count(pid));
            }
        }
        for n in 0..300 {
            world.get(&format!("d/{n}"));
            if n % 20 == 0 {
                most = most.max(fd_count(pid));
            }
        }
        assert!(most < before + 50, "{before} before, {most} at the most");
        wait_until("descriptors are closed", || fd_count(pid) <= before + 5);
    });
}

#[test]
fn bug_074_direct_and_buffered_readers_of_one_file_do_not_meet() {
    need_mount!();
    both(|mode| {
        for in_memory in [false, true] {
            let world = World::new(mode);
            let _cache = in_memory.then(|| Mounted::tmpfs(&world.cache()));
            world.mount();
            for name in ["small", "large"] {
                let bytes = world.put(name, if name == "small" { 2 << 20 } else { 9 << 20 }, 1);
                std::thread::scope(|scope| {
                    for t in 0..4 {
                        let (world, bytes) = (&world, &bytes);
                        scope.spawn(move || {
                            let path = world.mnt(name);
                            let direct = t % 2 == 0;
                            let file =
                                if direct { open_direct(&path).unwrap() } else { File::open(&path).unwrap() };
                            let (mut dice, mut buffer) = (Dice::new(t + 1), Aligned::new(65536));
                            for _ in 0..100 {
                                let (at, len) = match direct {
                                    true => {
                                        (dice.below(bytes.len() / 4096 - 16) * 4096, 4096 << dice.below(5))
                                    }
                                    false => (dice.below(bytes.len() - 65536), 1 + dice.below(65535)),
                                };
                                let piece = &mut buffer.as_mut()[..len];
                                file.read_exact_at(piece, at as u64).unwrap();
                                assert!(*piece == bytes[at..][..len], "{name} {direct} {at} {len}");
                            }
                        });
                    }
                });
            }
            world.umount();
        }
    });
}

#[test]
fn bug_077_releases_do_not_pile_up_until_descriptors_run_out() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for n in 0..64 {
            world.put(&format!("d/{n}"), 4096, n);
        }
        let pid = rustix::process::Pid::from_raw(world.pid());
        let limit = Rlimit { current: Some(256), maximum: Some(256) };
        rustix::process::prlimit(pid, Resource::Nofile, limit).unwrap();
        let until = Instant::now() + Duration::from_millis(600);
        std::thread::scope(|scope| {
            for t in 0..64 {
                let world = &world;
                scope.spawn(move || {
                    let mut dice = Dice::new(t + 1);
                    while Instant::now() < until {
                        assert_eq!(world.get(&format!("d/{}", dice.below(64))).len(), 4096);
                    }
                });
            }
        });
        assert!(fd_count(world.pid()) < 200);
        assert_eq!(world.stat("cache_errors") + world.stat("backing_errors"), 0);
    });
}

/// Lets this process have as many open files as the test needs.
fn raise_nofile(wanted: u64) {
    let now = rustix::process::getrlimit(Resource::Nofile);
    let most = now.maximum.map_or(wanted, |m| m.max(wanted));
    let raised = Rlimit { current: Some(now.current.map_or(wanted, |c| c.max(wanted))), maximum: Some(most) };
    rustix::process::setrlimit(Resource::Nofile, raised).unwrap();
}

#[test]
fn five_thousand_handles_cost_the_daemon_no_descriptors() {
    need_mount!();
    raise_nofile(16_384);
    both(|mode| {
        let world = World::mounted(mode);
        let bytes = world.put("one", 9000, 1);
        for n in 0..300 {
            world.put(&format!("d/{n}"), 500, n);
        }
        world.get("one");
        let before = fd_count(world.pid());
        let open = |name: &str| File::open(world.mnt(name)).unwrap();
        let mut held: Vec<_> = (0..5000).map(|_| open("one")).collect();
        held.extend((0..300).map(|n| open(&format!("d/{n}"))));
        let maps: Vec<_> = held.iter().step_by(10).map(Map::shared).collect();
        let during = fd_count(world.pid());
        assert!(during < before + 50, "{before} before, {during} with all open");
        let mut read = vec![0; bytes.len()];
        for file in held.iter().take(5000).step_by(100) {
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read == bytes);
        }
        for (i, map) in maps.iter().enumerate().filter(|(i, _)| i * 10 >= 5000) {
            assert!(**map == *pattern(i as u64 * 10 - 5000, 500));
        }
        evict(&world.mnt(""));
        assert!(world.get("one") == bytes);
        drop((held, maps));
        wait_until("all is closed", || world.xattr("one", "mode") == "none");
        evict(&world.mnt(""));
        assert_eq!(world.stat("cached_files"), 0);
        wait_until("descriptors are closed", || fd_count(world.pid()) <= before + 5);
    });
}

#[test]
fn sixteen_threads_open_map_evict_and_replace_without_an_error() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let size =
            |v: u64| if v.is_multiple_of(7) { (4 << 20) + 4096 } else { 3000 + (v as usize * 131) % 50_000 };
        let put = |n: u64, v: u64| replace(&world.src(n.to_string()), &versioned(v, size(v)));
        (0..24).for_each(|n| put(n, n));
        let until = Instant::now() + Duration::from_millis(scale(900, 20_000, 100_000));
        let (reads, stale) = (AtomicU64::new(0), AtomicU64::new(0));
        let (replaced, evicted) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let (world, put, reads, stale) = (&world, &put, &reads, &stale);
            let (replaced, evicted) = (&replaced, &evicted);
            scope.spawn(move || {
                // Each file in its turn: two replacements during one open are another test's.
                for version in 100.. {
                    if Instant::now() > until {
                        break;
                    }
                    put(version % 24, version);
                    replaced.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            scope.spawn(move || {
                while Instant::now() < until {
                    evict(&world.mnt(""));
                    evicted.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            for t in 0..14 {
                scope.spawn(move || {
                    let mut dice = Dice::new(t + 1);
                    while Instant::now() < until {
                        let path = world.mnt(dice.below(24).to_string());
                        let file = match File::open(&path) {
                            Ok(file) => file,
                            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => {
                                stale.fetch_add(1, Ordering::Relaxed);
                                continue;
                            }
                            Err(e) => panic!("{e}"),
                        };
                        let whole = match t % 3 {
                            0 => whole_version(&Map::shared(&file)),
                            1 => {
                                let mut bytes = Vec::new();
                                (&file).read_to_end(&mut bytes).unwrap();
                                whole_version(&bytes)
                            }
                            _ => whole_version(&Map::new(&file, libc::MAP_PRIVATE).unwrap()),
                        };
                        assert!(whole.is_some(), "torn");
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let (reads, stale) = (reads.load(Ordering::Relaxed), stale.load(Ordering::Relaxed));
        let handed_over = world.stat("passthrough_opens");
        let what = match mode.is_empty() {
            true => "opens read or mapped by 14 threads, with passthrough: errors, torn content",
            false => "opens read or mapped by 14 threads, without passthrough: errors, torn content",
        };
        let mut figure = Figure::new("R18", what, reads + stale, stale)
            .fired("replacements", replaced.into_inner())
            .fired("evictions of everything", evicted.into_inner());
        if mode.is_empty() {
            figure = figure.fired("opens by passthrough", handed_over);
        }
        figure.report();
        assert!(reads > 100, "{reads}");
        assert_eq!(stale, 0, "of {reads}");
    });
}

#[test]
fn bug_160_reading_again_reaches_only_the_page_cache() {
    need_mount!();
    undisturbed(|| {
        both(|mode| {
            let world = World::mounted(mode);
            for n in 0..200 {
                world.put(&format!("d/{n}"), 20_000 + n * 100, n as u64);
            }
            let large = world.put("large", 8 << 20, 1);
            let pass = || {
                (0..200).for_each(|n| assert_eq!(world.get(&format!("d/{n}")).len(), 20_000 + n * 100));
                assert!(world.get("large") == large);
            };
            pass();
            wait_until("large is complete", || world.xattr("large", "state") == "warm");
            pass();
            let (reads, bytes) = (world.stat("reads"), world.stat("backing_bytes_read"));
            pass();
            assert_eq!(world.stat("reads"), reads);
            assert_eq!(world.stat("backing_bytes_read"), bytes);
        });
    });
}

#[test]
fn bug_133_a_warm_open_is_one_request_and_nothing_more() {
    need_mount!();
    undisturbed(|| {
        both(|mode| {
            let world = World::mounted(mode);
            world.put("d/f", 10_000, 1);
            world.get("d/f");
            let (opens, lookups, reads) = (world.stat("opens"), world.stat("lookups"), world.stat("reads"));
            for _ in 0..1000 {
                assert_eq!(world.get("d/f").len(), 10_000);
            }
            assert_eq!(world.stat("opens"), opens + 1000);
            // The way to the figures is looked up as well.
            assert!(world.stat("lookups") <= lookups + 5, "{} -> {}", lookups, world.stat("lookups"));
            assert_eq!(world.stat("reads"), reads);
            let hits = world.xattr("d/f", "hits").parse::<u64>().unwrap();
            assert!(hits >= 1000, "{hits}");
        });
    });
}
