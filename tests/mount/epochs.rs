//! Training on the real mount: shuffled epochs over more than the cache holds, by each policy.

use crate::common::*;
use crate::{need_mount, need_quiet};
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use warmfs::types::FileId;

const FILES: u32 = 4000;
const READERS: usize = 2;

/// Sizes that are as mixed as those of real samples.
fn size(n: u32) -> usize {
    2048 + (FileId { high: 3, low: u64::from(n) }.fingerprint() % 14_336) as usize
}

fn name(n: u32) -> String {
    format!("train/class{}/{n}.jpg", n % 50)
}

/// The order of an epoch.
fn shuffled(epoch: u64) -> Vec<u32> {
    let mut files: Vec<u32> = (0..FILES).collect();
    files.sort_by_key(|&n| FileId { high: epoch + 1, low: u64::from(n) }.fingerprint());
    files
}

/// What one epoch did.
#[derive(Debug)]
struct Epoch {
    hit_ratio: f64,
    byte_hit_ratio: f64,
    written_bytes: u64,
    read_bytes: u64,
}

/// Reads every file once, by several readers, each of which compares what it gets.
fn read_epoch(world: &World, epoch: u64) -> Epoch {
    let names = ["opens", "hits", "backing_bytes_read", "ssd_bytes_written"];
    let figures = || -> HashMap<_, _> { names.into_iter().map(|name| (name, world.stat(name))).collect() };
    let before = figures();
    let order = shuffled(epoch);
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let order = &order;
            scope.spawn(move || {
                for &n in order.iter().skip(reader).step_by(READERS) {
                    let bytes = std::fs::read(world.mnt(name(n))).unwrap();
                    assert_eq!(bytes, pattern(n.into(), size(n)), "{}", name(n));
                }
            });
        }
    });
    let after = figures();
    let grown = |name: &str| after[name] - before[name];
    let read_bytes: u64 = (0..FILES).map(|n| size(n) as u64).sum();
    assert_eq!(grown("opens"), u64::from(FILES));
    Epoch {
        hit_ratio: grown("hits") as f64 / grown("opens") as f64,
        byte_hit_ratio: 1.0 - grown("backing_bytes_read") as f64 / read_bytes as f64,
        written_bytes: grown("ssd_bytes_written"),
        read_bytes,
    }
}

/// Bytes on the disk below the cache directory.
fn disk_bytes(world: &World) -> u64 {
    let files = walkdir::WalkDir::new(world.cache()).into_iter().flatten();
    let on_disk = |e: walkdir::DirEntry| {
        use std::os::unix::fs::MetadataExt;
        // Removed while we look.
        e.metadata().map_or(0, |meta| if meta.is_file() { meta.blocks() * 512 } else { 0 })
    };
    files.map(on_disk).sum()
}

/// Five epochs with a cache that holds half of the files' blocks.
fn train(policy: &str) -> Vec<Epoch> {
    let blocks: u64 = (0..FILES).map(|n| size(n).next_multiple_of(4096) as u64).sum();
    // What the index takes beside the files, and is kept free for it, is a budget's, too.
    let index_bytes = 5 << 18;
    let capacity = blocks / 2 + index_bytes;
    let flags = [
        "--cache-size",
        &capacity.to_string(),
        "--evict-policy",
        policy,
        "--no-prefetch",
        "-o",
        "cache.ram_window=256KiB",
    ];
    let world = World::new(&flags);
    for n in 0..FILES {
        world.put(&name(n), size(n), n.into());
    }
    world.mount();
    let over = AtomicBool::new(false);
    let most = AtomicU64::new(0);
    let epochs = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let bytes = world.stat("cache_used_bytes");
                most.fetch_max(bytes, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        });
        let epochs = (0..5).map(|epoch| {
            let epoch = read_epoch(&world, epoch);
            // By the disk only now: files that come and go while we walk would count twice.
            most.fetch_max(disk_bytes(&world), Ordering::Relaxed);
            epoch
        });
        let epochs: Vec<Epoch> = epochs.collect();
        over.store(true, Ordering::Relaxed);
        epochs
    });
    let most = most.into_inner();
    assert!(most <= capacity && most > capacity / 2, "{most} of {capacity} bytes");
    println!("{policy}: {epochs:#.3?}, {most} of {capacity} bytes at the most");
    let advised =
        advise(&world, &[world.mnt("").to_str().unwrap(), "--cache-size", &(blocks / 2).to_string()]);
    // At the turn of an epoch a file may come again so soon that it is one use.
    let uses = advised["uses"].as_u64().unwrap();
    assert!((19_900..=20_000).contains(&uses) && advised["files"] == 4000, "{advised}");
    let said = advised["sizes"][0][format!("{policy}_hit_ratio")].as_f64().unwrap();
    let was = mean(&epochs, |e| e.hit_ratio);
    assert!((said - was).abs() < 0.03, "{said} was said and {was} was measured: {advised}");
    world.umount();
    epochs
}

fn advise(world: &World, args: &[&str]) -> serde_json::Value {
    let output = warmfs().arg("advise").args(args).arg("--json").current_dir(world.dir()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn mean(epochs: &[Epoch], of: impl Fn(&Epoch) -> f64) -> f64 {
    epochs.iter().map(of).sum::<f64>() / epochs.len() as f64
}

/// Goal: with a cache of half the data the default hits half of the opens and of the bytes from the second epoch on, and
/// writes next to nothing after the first; LRU in the same run hits 15 % and writes all the time.
#[test]
fn shuffled_epochs_hit_what_fits() {
    need_quiet!();
    let epochs = train("epoch");
    let steady = &epochs[2..];
    let (by_files, by_bytes) = (mean(steady, |e| e.hit_ratio), mean(steady, |e| e.byte_hit_ratio));
    assert!(by_files >= 0.49 && by_bytes >= 0.49, "{by_files} of the files, {by_bytes} of the bytes");
    let written: u64 = epochs[1..].iter().map(|e| e.written_bytes).sum();
    let read: u64 = epochs[1..].iter().map(|e| e.read_bytes).sum();
    assert!(written * 50 < read, "{written} bytes written for {read} read");
    let lru = train("lru");
    let by_lru = mean(&lru[2..], |e| e.hit_ratio);
    assert!((0.10..0.25).contains(&by_lru), "{by_lru} by lru");
}

/// Goal: a recorded trace is replayed as it is, with bytes or without, from a file or a pipe; rubbish is refused with the
/// number of its line.
#[test]
fn advice_of_a_trace() {
    let world = World::new(&[]);
    let trace = world.dir().join("trace");
    let lines = |line: fn(u32) -> String| (0..4).flat_map(shuffled).map(line).collect::<String>();
    std::fs::write(&trace, lines(|n| format!("{}\n", name(n)))).unwrap();
    let told = advise(&world, &["--trace", "trace", "--cache-size", "2000,1000"]);
    assert_eq!((told["opens"].as_u64(), told["bytes_are_files"].as_bool()), (Some(16_000), Some(true)));
    let ratio = |told: &serde_json::Value, size: usize, policy: &str| {
        told["sizes"][size][policy]["hit_ratio"].as_f64().unwrap()
    };
    // Of four epochs the first is cold.
    for (size, share) in [(0, 0.25), (1, 0.5)] {
        for policy in ["epoch", "none", "best"] {
            let got = ratio(&told, size, policy);
            assert!((got - share * 0.75).abs() < 0.005, "{policy} {share}: {got}");
        }
    }
    assert!(ratio(&told, 1, "lru") < 0.15);
    std::fs::write(&trace, lines(|n| format!("{}\t{}\n", size(n), name(n)))).unwrap();
    let told = advise(&world, &["--trace", "trace"]);
    let bytes: u64 = (0..FILES).map(|n| size(n) as u64).sum();
    assert_eq!((told["bytes"].as_u64(), told["sizes"].as_array().unwrap().len()), (Some(bytes), 7));
    let table = warmfs().args(["advise", "--trace"]).arg(&trace).output().unwrap();
    assert!(String::from_utf8_lossy(&table.stdout).contains("best possible"), "{}", text(&table));
}

/// Goal: what makes no sense is refused with what would.
#[test]
fn advice_that_cannot_be_given() {
    let world = World::new(&[]);
    for (bytes, words) in [
        (&b"a\nb\x00c\n"[..], &["line 2", "NUL"][..]),
        (b"12\ta\nx\tb\n", &["line 2", "`x` is no number of bytes"]),
        (b"a\nb\n1\tc\n", &["line 3", "not on others"]),
        (b"", &["the trace is empty"]),
        (&[b'x'; 100_000], &["line 1", "longer than"]),
    ] {
        let trace = world.dir().join("trace");
        std::fs::write(&trace, bytes).unwrap();
        assert_refused(&warmfs().args(["advise", "--trace"]).arg(&trace).output().unwrap(), words);
    }
    let missing = world.dir().join("none");
    assert_refused(
        &warmfs().args(["advise", "--trace"]).arg(missing).output().unwrap(),
        &["none", "No such file"],
    );
    for (size, words) in [("0", "200GB"), ("much", "much"), ("-1", "-1")] {
        let flag = format!("--cache-size={size}");
        let output = warmfs().args(["advise", "--trace", "/dev/null", &flag]).output().unwrap();
        assert_refused(&output, &["--cache-size", words]);
    }
    let elsewhere = warmfs().arg("advise").arg(world.dir()).output().unwrap();
    assert_refused(&elsewhere, &["not on a warmfs mount"]);
}

/// Two epochs of two data sets of 80 files of 4 KiB each.
fn two_data_sets(world: &World) {
    for epoch in 0..2 {
        for (set, seed) in [("train", 1), ("val", 2)] {
            let mut files: Vec<u64> = (0..80).collect();
            files.sort_by_key(|&n| FileId { high: epoch * 2 + seed, low: n }.fingerprint());
            for n in files {
                assert_eq!(world.get(&format!("{set}/{n}.jpg")), pattern(n, 4096));
            }
        }
    }
}

/// Goal: the figures tell of each epoch of each data set how many files were read, from where, and how long readers waited
/// for the source: in the JSON, in the attribute, in `.warmfs/stats.json` and as a table.
#[test]
fn the_figures_tell_of_the_epochs_of_each_data_set() {
    need_mount!();
    let world = World::new(&["--no-prefetch"]);
    let real = world.dir().join("real");
    for (set, n) in ["train", "val"].into_iter().flat_map(|set| (0..80).map(move |n| (set, n))) {
        let path = real.join(format!("{set}/{n}.jpg"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, pattern(n, 4096)).unwrap();
    }
    // Each open asks the source more than once, so that a reader waits for 2 ms at the least.
    let slow =
        warmfs().arg("faultfs").arg(&real).arg(world.src("")).args(["--latency", "2ms"]).output().unwrap();
    assert!(slow.status.success(), "{}", text(&slow));
    world.mount();
    two_data_sets(&world);
    let stats = world.stats();
    let rows = stats["epochs"].as_array().unwrap();
    let figures = ["epoch", "files", "hits", "misses", "bytes", "ssd_bytes", "ram_bytes", "source_bytes"];
    let told = |set: &str| -> Vec<Vec<u64>> {
        let own = rows.iter().filter(|row| row["data_set"] == set);
        own.map(|row| figures.map(|name| row[name].as_u64().unwrap()).to_vec()).collect()
    };
    let bytes = 80 * 4096;
    for set in ["train", "val"] {
        let second = vec![2, 80, 80, 0, bytes, bytes, 0, 0];
        let first = vec![1, 80, 0, 80, bytes, 0, 0, bytes];
        assert_eq!(told(set), [second, first], "{set}: {rows:#?}");
    }
    assert_eq!(rows[0]["data_set"], "val", "the one that was read last comes first");
    for row in rows {
        let (seconds, waited) = (row["seconds"].as_f64().unwrap(), row["source_wait_s"].as_f64().unwrap());
        match row["epoch"].as_u64() {
            // One thread reads: it can have waited no longer than all took, and the open that began it.
            Some(1) => assert!(waited >= 0.16 && waited < seconds + 1.0, "{row}"),
            _ => assert!(waited == 0.0 && seconds > 0.0, "{row}"),
        }
    }
    let file = std::fs::read_to_string(world.mnt(".warmfs/stats.json")).unwrap();
    for text in [world.xattr("", "stats"), file] {
        let said: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&said["epochs"], said["epochs_left_out"].as_u64()), (&stats["epochs"], Some(0)));
    }
    let table = run(&[std::ffi::OsStr::new("stats"), world.mnt("").as_os_str()]);
    let table = String::from_utf8(table.stdout).unwrap();
    let line = table.lines().find(|line| line.starts_with("train ")).unwrap_or_else(|| panic!("{table}"));
    assert!(line.contains("2      80 of 80  80    0"), "{table}");
    world.umount();
}

/// Goal: `stats --watch` tells where in its epoch a data set is while it is read.
#[test]
fn watching_the_figures_shows_the_epoch_live() {
    need_mount!();
    let world = World::mounted(&["--no-prefetch"]);
    (0..40).for_each(|n| _ = world.put(&format!("train/{n}.jpg"), 4096, n));
    let mut watch = warmfs();
    watch.arg("stats").arg("--watch").arg(world.mnt("")).stdout(std::process::Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("epochs"));
    (0..40).for_each(|n| _ = world.get(&format!("train/{n}.jpg")));
    let told = lines.take(5).map(Result::unwrap).find(|line| line.contains("train 1: "));
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(told.is_some_and(|line| line.contains(" files, waited ")));
    world.umount();
}

/// Goal: however many data sets there are, all are in the JSON, and the attribute and the file have as many as they hold.
#[test]
fn many_data_sets_are_left_out_where_they_do_not_fit() {
    need_mount!();
    let world = World::mounted(&["--no-prefetch"]);
    // A name of many bytes for each, so that few fill the attribute.
    let name = |n: u32| format!("{}{n}/train", "x".repeat(200));
    for n in 0..150 {
        world.put(&format!("{}/1.jpg", name(n)), 4096, n.into());
        world.get(&format!("{}/1.jpg", name(n)));
    }
    assert_eq!(world.stats()["epochs"].as_array().unwrap().len(), 150);
    for (text, most) in [
        (world.xattr("", "stats"), 65_536),
        (std::fs::read_to_string(world.mnt(".warmfs/stats.json")).unwrap(), 16_384),
    ] {
        let said: serde_json::Value = serde_json::from_str(&text).unwrap();
        let told = said["epochs"].as_array().unwrap();
        assert!(text.len() <= most && told.len() >= 10 && told[0]["data_set"] == name(149), "{told:?}");
        assert_eq!(told.len() as u64 + said["epochs_left_out"].as_u64().unwrap(), 150);
    }
    world.umount();
}
