//! A source that is dead for a minute, a daemon that is told to stop meanwhile, and a daemon that dies: what is cached
//! stays readable, nobody is held who does not wait for the source, and what waits can be killed.

use crate::common::*;
use crate::faulty_source::{Faulty, pin};
use crate::figures::{Figure, scale};
use crate::need_mount;
use crate::tools::Map;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

type Files = Vec<(String, Vec<u8>)>;

/// Small files, filled whole when they are opened, and some that are filled chunk by chunk.
fn put_files(faulty: &Faulty, small: u64, large: u64) -> Files {
    let small = (0..small).map(|n| (format!("d/f{n}"), 20_000 + n as usize * 977));
    let large = (0..large).map(|n| (format!("d/large{n}"), (5 << 20) + n as usize * 12_345));
    let put = |(n, (name, size)): (usize, (String, usize))| {
        let bytes = faulty.put(&name, size, n as u64);
        (name, bytes)
    };
    small.chain(large).enumerate().map(put).collect()
}

/// Reads all until each has a complete copy.
fn warm_up(world: &World, files: &Files) {
    for (name, bytes) in files {
        assert!(world.get(name) == *bytes, "{name}");
        wait_until("it is warm", || world.xattr(name, "state") == "warm");
    }
    assert!(std::fs::read_dir(world.mnt("d")).unwrap().count() >= files.len());
    assert!(std::fs::read_dir(world.mnt("")).unwrap().count() >= 1);
}

/// How long each open and first read of a cached file takes, by four threads, until `done`.
fn open_times(world: &World, files: &Files, done: &AtomicBool) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..4usize)
            .map(|t| {
                scope.spawn(move || {
                    let (mut times, mut n) = (Vec::new(), t * 7);
                    while !done.load(Ordering::Relaxed) {
                        let (name, bytes) = &files[n % files.len()];
                        n += 13;
                        let at = (n * 4099) % (bytes.len() - 512);
                        let (mut got, start) = ([0; 512], Instant::now());
                        let file = std::fs::File::open(world.mnt(name)).unwrap();
                        file.read_exact_at(&mut got, at as u64).unwrap();
                        times.push(start.elapsed());
                        assert!(got == bytes[at..at + 512], "{name} at {at}");
                        std::thread::sleep(Duration::from_micros(500));
                    }
                    times
                })
            })
            .collect();
        readers.into_iter().flat_map(|r| r.join().unwrap()).collect()
    })
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() * 99 / 100]
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e5).round() / 100.0
}

/// A process that reads a file whole.
fn reader_of(world: &World, name: &str) -> Child {
    Command::new("cat").arg(world.mnt(name)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// How long a process takes to die of SIGKILL; at most 20 s.
fn time_to_die(child: &mut Child) -> Duration {
    let start = Instant::now();
    child.kill().unwrap();
    while child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("{} died after {:?}", child.id(), start.elapsed());
    start.elapsed()
}

fn threads_and_fds(pid: i32) -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("task"), count("fd"))
}

/// What an operator asks while the source hangs; gives how many questions and the longest time.
fn ask_all(world: &World, files: &Files) -> (u64, Duration) {
    let longest = std::cell::Cell::new(Duration::ZERO);
    let timed = |what: &str, ask: &dyn Fn()| {
        let start = Instant::now();
        ask();
        let took = start.elapsed();
        longest.set(longest.get().max(took));
        assert!(took < Duration::from_secs(5), "{what}: {took:?}");
    };
    timed("ls", &|| assert!(std::fs::read_dir(world.mnt("d")).unwrap().count() >= files.len()));
    timed("ls of the root", &|| assert!(std::fs::read_dir(world.mnt("")).unwrap().count() >= 1));
    timed("xattr", &|| assert_eq!(world.xattr(&files[0].0, "state"), "warm"));
    timed("stats", &|| assert!(world.stat("cached_files") >= files.len() as u64));
    timed("status", &|| {
        let output = run(&["status".as_ref(), world.mnt(&files[1].0).as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
    });
    timed("status of a tree", &|| {
        let output = run(&["status".as_ref(), world.mnt("d").as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
    });
    (6, longest.get())
}

/// Goal: a source that hangs for a minute takes nothing away that is cached or known, whatever the TTL; who waits for
/// it dies of SIGKILL at once; when it is back everything is, and nothing is left over. Method: four threads open and
/// read cached files all the time, an operator asks, and readers of what is not cached are killed one after the other.
#[test]
fn a_source_that_is_dead_for_a_minute() {
    need_mount!();
    let seconds = scale(5, 60, 60);
    let (mut opens, mut all, mut all_before, mut hung) = (0, Vec::new(), Vec::new(), 0);
    let (mut questions, mut longest, mut killed, mut slowest_death) = (0, Duration::ZERO, 0, Duration::ZERO);
    for more in [&[][..], &["--no-passthrough"]] {
        let faulty = Faulty::new(&[&["--ttl", "1s"], more].concat());
        let world = &faulty.world;
        let files = put_files(&faulty, 60, 3);
        let cold: Files = (0..40)
            .map(|n| (format!("c/cold{n}"), faulty.put(&format!("c/cold{n}"), 30_000, 1000 + n)))
            .collect();
        world.mount();
        warm_up(world, &files);
        std::fs::read_dir(world.mnt("c")).unwrap().for_each(|e| _ = e.unwrap().metadata());
        // What the kernel has forgotten is not known to us either: kept, as other tests may drop its caches.
        let _known: Vec<_> =
            files.iter().map(|(name, _)| name.as_str()).chain(["d", "c"]).map(|n| pin(world, n)).collect();
        let done = AtomicBool::new(false);
        let normal = std::thread::scope(|scope| {
            let opens = scope.spawn(|| open_times(world, &files, &done));
            std::thread::sleep(Duration::from_secs(1));
            done.store(true, Ordering::Relaxed);
            opens.join().unwrap()
        });
        let before = threads_and_fds(world.pid());
        faulty.rules("op=* hang");
        let (done, start) = (AtomicBool::new(false), Instant::now());
        let times = std::thread::scope(|scope| {
            let opens = scope.spawn(|| open_times(world, &files, &done));
            let mut waiting: Vec<Child> =
                cold.iter().take(8).map(|(name, _)| reader_of(world, name)).collect();
            let mut next = 8;
            while start.elapsed() < Duration::from_secs(seconds) {
                std::thread::sleep(Duration::from_millis(700));
                let (n, time) = ask_all(world, &files);
                (questions, longest) = (questions + n, longest.max(time));
                let mut child = waiting.remove(0);
                if child.try_wait().unwrap().is_none() {
                    killed += 1;
                    slowest_death = slowest_death.max(time_to_die(&mut child));
                }
                waiting.push(reader_of(world, &cold[next % cold.len()].0));
                next += 1;
            }
            done.store(true, Ordering::Relaxed);
            for mut child in waiting {
                killed += 1;
                slowest_death = slowest_death.max(time_to_die(&mut child));
            }
            opens.join().unwrap()
        });
        hung += start.elapsed().as_secs();
        assert!(world.stat("stale_answers") > 0, "it was silent: {}", world.stats());
        faulty.rules("");
        let back = Instant::now();
        cold.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name}"));
        assert!(back.elapsed() < Duration::from_secs(5), "when it is back: {:?}", back.elapsed());
        wait_until("nothing waits any more", || world.stat("source_waiting") == 0);
        // Threads that waited end when they had nothing to do for a while.
        wait_until("threads and descriptors are as before", || {
            let now = threads_and_fds(world.pid());
            now.0 <= before.0 + 4 && now.1 <= before.1 + 48
        });
        opens += times.len() as u64;
        let (before, dead) = (p99(normal.clone()), p99(times.clone()));
        assert!(dead < Duration::from_millis(10).max(before * 4), "p99 {dead:?}, before {before:?}");
        all_before.extend(normal);
        all.extend(times);
        world.umount();
    }
    assert!(killed > 5 && slowest_death < Duration::from_secs(1), "{killed} killed, {slowest_death:?}");
    let first = *all.iter().max().unwrap();
    Figure::new("R15", "cached files opened while the source hangs", opens, 0)
        .fired("seconds of silence", hung)
        .less("open and read p99", millis(p99(all)), "ms")
        .less("the same before the hang", millis(p99(all_before)), "ms")
        .less("longest", millis(first), "ms")
        .report();
    Figure::new("R15", "questions while the source hangs: ls, xattr, stats, status", questions, 0)
        .less("longest", millis(longest), "ms")
        .report();
    Figure::new("R15", "readers that wait for a hung source and are killed", killed, 0)
        .less("time to die, longest", millis(slowest_death), "ms")
        .report();
}

/// Goal: a daemon that is told to stop while its source hangs ends the mount and lets go of the cache, whoever is stuck
/// in the source, and answers those who wait; the next one takes over at once.
#[test]
fn a_stop_while_the_source_hangs_frees_the_cache() {
    need_mount!();
    let mut slowest = Duration::ZERO;
    let cycles = scale(4, 40, 40);
    let mut stuck = 0;
    for cycle in 0..cycles {
        let flags: &[&str] =
            if cycle % 4 < 2 { &["--ttl", "0"] } else { &["--ttl", "0", "--no-passthrough"] };
        let faulty = Faulty::new(flags);
        let world = &faulty.world;
        let files = put_files(&faulty, 10, 1);
        let part = faulty.put("d/part", 30 << 20, 77);
        (0..8).for_each(|n| drop(faulty.put(&format!("d/cold{n}"), 50_000, 100 + n)));
        world.mount();
        warm_up(world, &files);
        // One handle that the kernel serves, and one whose source is open.
        let held = std::fs::File::open(world.mnt(&files[0].0)).unwrap();
        let begun = std::fs::File::open(world.mnt("d/part")).unwrap();
        let mut some = [0; 1000];
        begun.read_exact_at(&mut some, 9 << 20).unwrap();
        assert!(some == part[9 << 20..][..1000]);
        faulty.rules("op=open,read hang");
        let mut waiting: Vec<Child> = (0..8).map(|n| reader_of(world, &format!("d/cold{n}"))).collect();
        std::thread::sleep(Duration::from_millis(200));
        stuck += world.stat("source_waiting");
        let pid = world.pid();
        let start = Instant::now();
        if cycle % 2 == 0 {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
            wait_until("the daemon has stopped", || daemons(&world.cache()).is_empty());
        } else {
            let output = run(&["umount".as_ref(), world.mnt("").as_os_str()]);
            assert!(output.status.success(), "{}", text(&output));
        }
        slowest = slowest.max(start.elapsed());
        assert!(mounts_below(&world.mnt("")).is_empty());
        for child in &mut waiting {
            wait_until("those who waited have their answer", || child.try_wait().unwrap().is_some());
        }
        // A handle that is left is answered too, with an error or with the bytes.
        let start = Instant::now();
        let _ = begun.read_at(&mut some, 20 << 20);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        drop((held, begun));
        let start = Instant::now();
        world.mount();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name}"));
        assert_eq!(world.stat("misses"), 0, "what was cached is still believed");
        faulty.rules("");
        assert!(world.get("d/part") == part);
        world.umount();
    }
    assert!(stuck > 0 && slowest < Duration::from_secs(10), "{slowest:?}");
    Figure::new("R15", "stops while the source hangs", cycles, 0)
        .fired("requests stuck in the source", stuck)
        .less("slowest", slowest.as_secs_f64(), "s")
        .report();
}

/// Goal: what must be verified after a crash needs the disk and not the source: it is served while the source hangs with
/// every thread that may wait for it.
#[test]
fn doubtful_files_are_verified_while_the_source_hangs() {
    need_mount!();
    for more in [&[][..], &["--no-passthrough"]] {
        let faulty = Faulty::new(&[&["--ttl", "1h", "-o", "source.threads=4"], more].concat());
        let world = &faulty.world;
        let files = put_files(&faulty, 20, 2);
        (0..12).for_each(|n| drop(faulty.put(&format!("c/cold{n}"), 50_000, 100 + n)));
        world.mount();
        warm_up(world, &files);
        // The index is written once a second.
        std::thread::sleep(Duration::from_millis(2500));
        world.kill();
        world.mount();
        // Names only: nothing is opened yet.
        let _known: Vec<_> = files.iter().map(|(name, _)| pin(world, name)).collect();
        let _cold: Vec<_> = (0..12).map(|n| pin(world, &format!("c/cold{n}"))).collect();
        faulty.rules("op=open,read hang");
        let mut waiting: Vec<Child> = (0..12).map(|n| reader_of(world, &format!("c/cold{n}"))).collect();
        wait_until("all threads for the source are taken", || world.stat("source_waiting") >= 12);
        let start = Instant::now();
        files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name}"));
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        assert_eq!(world.stat("backing_bytes_read"), 0);
        faulty.rules("");
        waiting.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
        world.umount();
        Figure::new("R15", "doubtful files verified while the source hangs", files.len() as u64, 0)
            .fired("threads stuck in the source", 4)
            .less("all of them", took.as_secs_f64(), "s")
            .report();
    }
}

/// Goal: who reads a cached file by passthrough, through a descriptor or a mapping, does not notice that the daemon was
/// killed.
#[test]
fn a_passthrough_reader_survives_the_daemons_death() {
    need_mount!();
    let cycles = scale(3, 30, 30);
    let mut held_by_kernel = 0;
    for seed in 0..cycles {
        let world = World::mounted(&[]);
        let size = (24 << 20) + 4321;
        let bytes = world.put("f", size, seed);
        assert!(world.get("f") == bytes);
        wait_until("it is warm", || world.xattr("f", "state") == "warm");
        let file = std::fs::File::open(world.mnt("f")).unwrap();
        held_by_kernel += u64::from(world.xattr("f", "mode") == "passthrough");
        let map = Map::shared(&file);
        assert!(map[..4096] == bytes[..4096]);
        let mut got = vec![0; size];
        file.read_exact_at(&mut got[..size / 2], 0).unwrap();
        world.kill();
        // Not from the pages that the kernel has of it.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_exact_at(&mut got[size / 2..], (size / 2) as u64).unwrap();
        assert!(got == bytes, "by descriptor");
        assert!(map[..] == bytes[..], "by mapping");
        drop((file, map));
        world.mount();
        assert!(world.get("f") == bytes);
        world.umount();
    }
    assert_eq!(held_by_kernel, cycles, "by passthrough");
    Figure::new("R15", "passthrough readers across kill -9, descriptor and mapping", 2 * cycles, 0)
        .fired("daemon killed", cycles)
        .report();
}

/// Goal: a source that hangs and comes back again and again leaves no thread and no descriptor behind.
#[test]
fn hanging_again_and_again_leaks_nothing() {
    need_mount!();
    let cycles = scale(8, 100, 300);
    let faulty = Faulty::new(&["--ttl", "0", "-o", "source.hang_after=100ms", "-o", "source.timeout=300ms"]);
    let world = &faulty.world;
    let files = put_files(&faulty, 20, 1);
    for (cycle, n) in (0..cycles).flat_map(|cycle| (0..6).map(move |n| (cycle, n))) {
        faulty.put(&format!("c/{cycle}-{n}"), 40_000, cycle * 10 + n);
    }
    world.mount();
    warm_up(world, &files);
    let _known: Vec<_> = files.iter().map(|(name, _)| pin(world, name)).collect();
    let mut first = None;
    for cycle in 0..cycles {
        let cold: Vec<_> = (0..6).map(|n| (format!("c/{cycle}-{n}"), cycle * 10 + n)).collect();
        faulty.rules("op=* hang");
        let mut waiting: Vec<Child> = cold.iter().map(|(name, _)| reader_of(world, name)).collect();
        std::thread::sleep(Duration::from_millis(150));
        assert!(world.get(&files[3].0) == files[3].1);
        let died = time_to_die(&mut waiting[0]);
        assert!(died < Duration::from_secs(1), "{died:?}");
        std::thread::sleep(Duration::from_millis(300));
        faulty.rules("");
        waiting.iter_mut().for_each(|child| drop(child.wait()));
        for (name, seed) in &cold {
            // With a patience this short the first tries after it is back may still be too late.
            wait_until("it is read", || {
                std::fs::read(world.mnt(name)).is_ok_and(|b| b == pattern(*seed, 40_000))
            });
        }
        wait_until("nothing waits", || world.stat("source_waiting") == 0);
        let (threads, fds) = threads_and_fds(world.pid());
        // Every cold file that was filled stays registered, up to a bound: a descriptor in the kernel, not in the table.
        let (threads_first, fds_first) = *first.get_or_insert((threads, fds));
        assert!(
            threads <= threads_first + 16 && fds <= fds_first + 16,
            "{cycle}: {threads} {fds}, {first:?}"
        );
    }
    assert!(world.stat("backing_timeouts") > 0 && world.stat("stale_answers") > 0, "{}", world.stats());
    let timeouts = world.stat("backing_timeouts");
    world.umount();
    Figure::new("R15", "hang and come back", cycles, 0).fired("timeouts", timeouts).report();
}
