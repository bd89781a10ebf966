//! `warmfs warm` as a user has it: lists and globs, limits, the background, ^C, and that "warm" is true.

use crate::common::*;
use crate::faulty_source::Faulty;
use crate::need_mount;
use crate::tools::Slow;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs `warmfs warm` with these words and then these paths.
fn warm(words: &[&str], paths: &[&Path]) -> Output {
    command(words, paths).output().unwrap()
}

fn command(words: &[&str], paths: &[&Path]) -> Command {
    let mut command = warmfs();
    command.arg("warm").args(words).args(paths);
    command
}

/// What `--json` says, and the exit code.
fn report(output: &Output) -> (Value, i32) {
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(output)));
    (value, output.status.code().unwrap_or_else(|| panic!("{}", text(output))))
}

fn warm_json(words: &[&str], paths: &[&Path]) -> (Value, i32) {
    report(&warm(&[&["--json"], words].concat(), paths))
}

fn figure(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// Warm files of all, as `status` finds them one by one.
fn status(path: &Path) -> (u64, u64) {
    let output = run(&[OsStr::new("status"), OsStr::new("--json"), path.as_os_str()]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    (figure(&rows[0], "warm"), figure(&rows[0], "files"))
}

fn interrupt(child: &std::process::Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Goal: a list with everything wrong in it warms what it rightly names, and tells the rest by kind, count and name.
#[test]
fn a_list_with_rubbish_warms_what_it_names() {
    need_mount!();
    let world = World::new(&[]);
    let names = ["a", "d/b", "d/c", "odd \\ name", "new\nline"];
    names.iter().enumerate().for_each(|(n, name)| drop(world.put(name, 10_000 + n, n as u64)));
    world.put("left out", 10, 9);
    world.mount();
    let list = world.dir().join("list");
    let mut bytes = format!("a\n\n./d//b\n{}\nodd \\ name\n", world.mnt("d/c").display()).into_bytes();
    bytes.extend_from_slice(b"none\n../src/a\n/etc/passwd\na\0b\nd/\xff\xfe\n");
    bytes.extend_from_slice(&[&[b'x'; 100_000], &b"\n"[..]].concat());
    bytes.extend_from_slice(b"left o");
    std::fs::write(&list, &bytes).unwrap();
    let (said, code) = warm_json(&["--from", list.to_str().unwrap()], &[&world.mnt("")]);
    assert_eq!(code, 1, "{said}");
    assert_eq!((figure(&said, "files_warm"), figure(&said, "files_total")), (4, 4), "{said}");
    assert_eq!((figure(&said, "lines_outside"), figure(&said, "lines_no_path")), (2, 2), "{said}");
    assert_eq!((figure(&said, "paths_unknown"), &said["all_warm"]), (3, &Value::Bool(false)), "{said}");
    assert_eq!(world.stat("backing_bytes_read"), 10_000 + 10_001 + 10_002 + 10_003);
    let shown = text(&warm(&["--from", list.to_str().unwrap()], &[&world.mnt("")]));
    for words in
        ["none: no such file", "/etc/passwd lies outside", "d/\\xff\\xfe: no such", "2 of the names no path"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // Ended by NUL, by standard input, relative to a directory.
    let mut child = command(&["--json", "--from", "-", "-0"], &[&world.mnt("d")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&[b"b\0", world.mnt("new\nline").as_os_str().as_encoded_bytes()].concat())
        .unwrap();
    let (said, code) = report(&child.wait_with_output().unwrap());
    assert_eq!((code, figure(&said, "files_warm"), figure(&said, "files_found")), (0, 2, 1), "{said}");
    assert_eq!(status(&world.mnt("")), (5, 6));
    for (words, path) in [(["--from", "/none"], world.mnt("")), (["--from", "-"], world.mnt("a"))] {
        assert_refused(&warm(&words, &[&path]), &[]);
    }
}

/// Goal: a list longer than a request, and than what is kept in memory, is warmed whole.
#[test]
fn a_long_list_is_warmed_whole() {
    need_mount!();
    let world = World::new(&[]);
    (0..3).for_each(|n| {
        drop(world.put(&format!("a rather long name of a file, to fill the list faster {n}"), 100, n))
    });
    world.mount();
    let lines: Vec<u8> = (0..60_000)
        .flat_map(|n| {
            format!("a rather long name of a file, to fill the list faster {}\n", n % 4).into_bytes()
        })
        .collect();
    let list = world.dir().join("list");
    std::fs::write(&list, &lines).unwrap();
    let (said, code) = warm_json(&["--from", list.to_str().unwrap()], &[&world.mnt("")]);
    let figures = ["files_total", "files_warm", "paths_unknown"].map(|name| figure(&said, name));
    assert_eq!((code, figures), (1, [45_000, 45_000, 15_000]), "{said}");
    assert_eq!((world.stat("backing_bytes_read"), status(&world.mnt(""))), (300, (3, 3)));
    assert_eq!(said["failed"].as_array().map(Vec::len), Some(100));
}

#[test]
fn globs_name_files_and_trees() {
    need_mount!();
    let world = World::new(&[]);
    for name in
        ["train/a.jpg", "train/b.jpg", "train/.c.jpg", "train/d.txt", "val/x/e.jpg", "val/f.txt", "[a]*"]
    {
        world.put(name, 1000, 1);
    }
    world.mount();
    let counts = |words: &[&str], pattern: &str| {
        let (said, code) = warm_json(words, &[&world.mnt(pattern)]);
        (figure(&said, "files_total"), figure(&said, "files_warm"), code)
    };
    assert_eq!(counts(&["--check"], "train/*.jpg"), (2, 0, 1));
    assert_eq!(counts(&[], "train/*.jpg"), (2, 2, 0));
    assert_eq!(status(&world.mnt("")), (2, 7));
    assert_eq!(counts(&[], "**/*.jpg"), (3, 3, 0));
    assert_eq!(counts(&[], "v*"), (2, 2, 0), "a directory is a tree");
    assert_eq!(counts(&[], "[a]*"), (1, 1, 0), "what bears the name is meant");
    let output = warm(&[], &[&world.mnt("train/*.png"), &world.mnt("train/*.txt")]);
    assert!(
        output.status.code() == Some(1) && text(&output).contains("train/*.png: no such"),
        "{}",
        text(&output)
    );
    assert_refused(&warm(&[], &[&world.mnt("train/[a*")]), &["[a*"]);
    assert_refused(&warm(&[], &[&world.mnt("none/*")]), &["none", "no such file"]);
    assert_eq!(status(&world.mnt("")), (6, 7), "all but the hidden one");
}

/// Goal: a check says what is not warm, and does nothing but look.
#[test]
fn a_check_fetches_and_changes_nothing() {
    need_mount!();
    let world = World::new(&[]);
    (0..10).for_each(|n| drop(world.put(&format!("f{n}"), 20_000, n)));
    world.put("large", 6 << 20, 3);
    world.mount();
    world.get("f3");
    use std::os::unix::fs::FileExt;
    std::fs::File::open(world.mnt("large")).unwrap().read_at(&mut [0; 10], 5 << 20).unwrap();
    let before = world.stat("backing_bytes_read");
    let (said, code) = warm_json(&["--check"], &[&world.mnt("")]);
    assert_eq!((code, figure(&said, "files_warm"), figure(&said, "files_cold")), (1, 1, 10), "{said}");
    assert_eq!((figure(&said, "bytes_warm"), figure(&said, "bytes_total")), (20_000, 200_000 + (6 << 20)));
    let shown = warm(&["--check"], &[&world.mnt("")]);
    assert_eq!(shown.status.code(), Some(1));
    for words in ["f1: not cached", "large: cached in part", "1 of 11 files warm", "10 files not warm"] {
        assert!(text(&shown).contains(words), "{words}: {}", text(&shown));
    }
    assert!(!text(&shown).contains("f3:"), "{}", text(&shown));
    assert_eq!(world.stat("backing_bytes_read"), before, "a check reads no data");
    assert_eq!((world.stat("cached_files"), status(&world.mnt(""))), (2, (1, 11)));
    assert_eq!(warm(&[], &[&world.mnt("")]).status.code(), Some(0));
    let (said, code) = warm_json(&["--check"], &[&world.mnt("")]);
    assert_eq!(
        (code, &said["all_warm"], status(&world.mnt(""))),
        (0, &Value::Bool(true), (11, 11)),
        "{said}"
    );
    // A changed file is not warm any more, whatever is cached of it.
    world.put("f3", 20_001, 33);
    let (said, code) = warm_json(&["--check"], &[&world.mnt("")]);
    assert_eq!((code, figure(&said, "files_cold")), (1, 1), "{said}");
}

/// Goal: after a kill -9 of the daemon in the middle, the same command fetches the rest and nothing twice.
#[test]
fn a_warm_up_goes_on_after_the_daemon_was_killed() {
    need_mount!();
    let world = World::new(&[]);
    let size = |n: usize| 30_000 + n;
    (0..40).for_each(|n| drop(world.put(&format!("d{}/f{n}", n % 4), size(n), n as u64)));
    world.put("large", 9 << 20, 7);
    world.mount();
    let child = command(&["--rate", "400k"], &[&world.mnt("")]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("some of it is warm", || world.stat("cached_files") >= 12);
    // The index hears of it once a second.
    std::thread::sleep(Duration::from_millis(2100));
    world.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "the client says that the daemon is gone: {}", text(&output));
    world.mount();
    let (said, _) = warm_json(&["--check"], &[&world.mnt("")]);
    let found = figure(&said, "files_warm");
    assert!((12..41).contains(&found), "{said}");
    assert_eq!(world.stat("backing_bytes_read"), 0);
    let cached: u64 = world.stat("cache_used_bytes");
    let (said, code) = warm_json(&[], &[&world.mnt("")]);
    assert_eq!((code, figure(&said, "files_found"), status(&world.mnt(""))), (0, found, (41, 41)), "{said}");
    let all = (0..40).map(size).sum::<usize>() as u64 + (9 << 20);
    let read = world.stat("backing_bytes_read");
    assert_eq!(read, figure(&said, "bytes_fetched"));
    assert!(read < all && read + cached >= all, "{read} fetched of {all}, {cached} were there");
    assert_eq!(figure(&said, "bytes_done"), all);
}

/// Goal: ^C ends the daemon's work, not only the client, and says how far it came; the same command fetches each byte that is
/// missing, once.
#[test]
fn an_interrupt_stops_the_work_and_the_same_command_goes_on() {
    need_mount!();
    let world = Slow::new();
    (0..120).for_each(|n| drop(world.put(&format!("f{n}"), 50_000, n)));
    world.mount(&["--latency", "10ms"], &[]);
    let mut child = command(&["--json", "--jobs", "2"], &[&world.mnt("")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it is under way", || world.stat("cached_files") >= 5);
    interrupt(&child);
    let begun = Instant::now();
    child.wait().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let output = child.wait_with_output().unwrap();
    let (said, code) = report(&output);
    assert_eq!((code, &said["interrupted"]), (130, &Value::Bool(true)), "{}", text(&output));
    assert!(text(&output).contains("the same command goes on"), "{}", text(&output));
    wait_until("the daemon has heard of it", || world.stat("warm_jobs") == 0);
    std::thread::sleep(Duration::from_millis(300));
    let read = world.stat("backing_bytes_read");
    assert!(read < 120 * 50_000 / 2, "{read}: it was stopped");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(world.stat("backing_bytes_read"), read, "nothing is fetched any more");
    let (said, code) = warm_json(&["--jobs", "16"], &[&world.mnt("")]);
    assert_eq!((code, figure(&said, "bytes_fetched")), (0, 120 * 50_000 - read), "{said}");
    assert_eq!((world.stat("backing_bytes_read"), status(&world.mnt(""))), (120 * 50_000, (120, 120)));
}

/// Goal: a source that is silent holds up neither ^C nor the next warm-up.
#[test]
fn an_interrupt_does_not_wait_for_a_silent_source() {
    need_mount!();
    let faulty = Faulty::new(&[]);
    (0..10).for_each(|n| drop(faulty.put(&format!("f{n}"), 5000, n)));
    faulty.world.mount();
    faulty.rules("op=read hang");
    let child = command(&[], &[&faulty.world.mnt("")]).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("all is looked at", || faulty.world.stats()["warming"][0]["files_total"] == 10);
    interrupt(&child);
    let begun = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.status.signal()), (Some(130), None), "{}", text(&output));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    wait_until("the daemon has heard of it", || faulty.world.stat("warm_jobs") == 0);
    faulty.rules("");
    assert_eq!(warm(&[], &[&faulty.world.mnt("")]).status.code(), Some(0));
}

/// Goal: the rate is kept within a tenth, by small files and large ones, however many are fetched at a time.
#[test]
fn a_rate_is_kept_within_a_tenth() {
    need_mount!();
    let world = World::new(&[]);
    (0..200).for_each(|n| drop(world.put(&format!("small/f{n}"), 50_000, n)));
    world.put("large", 10_000_000, 1);
    world.mount();
    let measure = |name: &str, jobs: &str| {
        run(&[OsStr::new("evict"), world.mnt("").as_os_str()]);
        let begun = Instant::now();
        let (said, code) = warm_json(&["--rate", "5MB", "--jobs", jobs], &[&world.mnt(name)]);
        assert_eq!((code, figure(&said, "bytes_fetched")), (0, 10_000_000), "{said}");
        let rate = 1e7 / begun.elapsed().as_secs_f64();
        assert!(rate <= 5.5e6, "{name}, {jobs} at a time: {rate} is too fast");
        rate
    };
    for (name, jobs) in [("small", "1"), ("small", "8"), ("large", "8")] {
        // A machine that is busy with something else may be slower once.
        let best = (0..3).map(|_| measure(name, jobs)).find(|rate| *rate >= 4.5e6);
        assert!(best.is_some(), "{name}, {jobs} at a time: too slow three times");
    }
    for rate in ["0", "fast", "-1"] {
        assert_eq!(warm(&[&format!("--rate={rate}")], &[&world.mnt("")]).status.code(), Some(2), "{rate}");
    }
}

/// Goal: in the background it returns at once, is shown, is bounded and can be stopped; a list goes with it.
#[test]
fn warm_ups_in_the_background_are_shown_bounded_and_stopped() {
    need_mount!();
    let world = World::new(&[]);
    (0..60).for_each(|n| drop(world.put(&format!("d/f{n}"), 50_000, n)));
    world.put("other", 1000, 1);
    world.mount();
    let slowly = ["--background", "--rate", "100k"];
    let begun = Instant::now();
    let (said, code) = warm_json(&slowly, &[&world.mnt("d")]);
    assert_eq!((code, &said["jobs"]), (0, &serde_json::json!([1])), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    wait_until("it is under way", || figure(&world.stats()["warming"][0], "files_warm") > 1);
    let stats = world.stats();
    let job = &stats["warming"][0];
    assert_eq!(
        (&job["state"], &job["what"], figure(&stats, "warm_jobs")),
        (&"running".into(), &"d".into(), 1)
    );
    assert_eq!((figure(job, "files_total"), figure(job, "bytes_total")), (60, 3_000_000));
    assert!(job["seconds_left"].as_u64().is_some_and(|s| (1..60).contains(&s)), "{job}");
    let shown = text(&run(&[OsStr::new("status"), world.mnt("").as_os_str()]));
    assert!(shown.contains("warm-up 1 of d, running") && shown.contains("of 60 files"), "{shown}");
    // Three more, one of them from a list; a fifth is too many.
    let list = world.dir().join("list");
    std::fs::write(&list, "d\nother\n").unwrap();
    let listed = ["--background", "--rate", "100k", "--from", list.to_str().unwrap()];
    assert_eq!(warm(&listed, &[&world.mnt("")]).status.code(), Some(0));
    (0..2).for_each(|_| assert_eq!(warm(&slowly, &[&world.mnt("d")]).status.code(), Some(0)));
    let refused = warm(&slowly, &[&world.mnt("d")]);
    assert!(refused.status.code() == Some(1) && text(&refused).contains("--stop"), "{}", text(&refused));
    let stopped = text(&warm(&["--stop"], &[&world.mnt("")]));
    assert!(stopped.contains("4 warm-ups stopped"), "{stopped}");
    wait_until("they have ended", || world.stat("warm_jobs") == 0);
    std::thread::sleep(Duration::from_millis(300));
    let read = world.stat("backing_bytes_read");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((world.stat("backing_bytes_read"), read < 3_000_000), (read, true));
    assert_eq!(world.stats()["warming"][0]["state"], "stopped");
    // One that ends by itself.
    assert_eq!(warm(&["--background"], &[&world.mnt("")]).status.code(), Some(0));
    wait_until("it is done", || {
        world.stats()["warming"].as_array().unwrap().iter().any(|job| job["state"] == "done")
    });
    assert_eq!(status(&world.mnt("")), (61, 61));
}

/// Goal: a warm-up of more than fits keeps what it has filled, says how much fits, and what it calls warm is warm. What was
/// there of before makes room.
#[test]
fn a_warm_up_of_more_than_fits_evicts_nothing_of_its_own() {
    need_mount!();
    let world = World::new(&["--cache-size", "24MB", "--evict-policy", "lru"]);
    (0..10).for_each(|n| drop(world.put(&format!("old/f{n}"), 1_000_000, n)));
    (0..40).for_each(|n| drop(world.put(&format!("small/f{n}"), 1_000_000, n)));
    (0..8).for_each(|n| drop(world.put(&format!("large/f{n}"), 6_000_000, n)));
    world.mount();
    assert_eq!(warm(&[], &[&world.mnt("old")]).status.code(), Some(0));
    for (tree, all, most) in [("small", 40, 23), ("large", 8, 3)] {
        let before = world.stat("cached_files");
        let (evicted, read) = (world.stat("evictions"), world.stat("backing_bytes_read"));
        let (said, code) = warm_json(&[], &[&world.mnt(tree)]);
        let kept = figure(&said, "files_warm");
        assert_eq!((code, figure(&said, "files_total")), (1, all), "{said}");
        assert_eq!(
            (kept + figure(&said, "files_without_room"), figure(&said, "files_evicted")),
            (all, 0),
            "{said}"
        );
        assert!(kept <= most && kept + 2 >= most, "{tree}: {kept} of {most} fit: {said}");
        assert_eq!(status(&world.mnt(tree)), (kept, all), "{tree}: what it calls warm is warm");
        assert!(world.stat("evictions") - evicted <= before, "none of its own: {said}");
        let size = figure(&said, "bytes_total") / all;
        assert!(world.stat("backing_bytes_read") - read <= (kept + 1) * size, "{tree}: it stops: {said}");
    }
    let shown = text(&warm(&[], &[&world.mnt("small")]));
    assert!(shown.contains("found no room") && shown.contains("of 40.0 MB fit"), "{shown}");
    // All of it again finds the same, and throws nothing out for it.
    let (first, evicted) = (status(&world.mnt("small")).0, world.stat("evictions"));
    assert_eq!(warm(&[], &[&world.mnt("small")]).status.code(), Some(1));
    assert_eq!((status(&world.mnt("small")).0, world.stat("evictions")), (first, evicted));
}

/// Goal: what cannot be kept is named, each kind as what it is, and is never called warm.
#[test]
fn what_cannot_be_warm_is_named_and_not_claimed() {
    need_mount!();
    let faulty = Faulty::new(&["--cache-size", "8MB"]);
    faulty.put("good", 10_000, 1);
    faulty.put("huge", 9_000_000, 2);
    faulty.put("broken", 10_000, 3);
    faulty.put("restless", 10_000, 4);
    std::os::unix::fs::symlink("good", faulty.real("link")).unwrap();
    faulty.world.mount();
    faulty.rules("op=read path=broken* errno=EIO");
    let done = AtomicBool::new(false);
    let world = &faulty.world;
    let (said, code) = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::File::options().append(true).open(faulty.real("restless")).unwrap();
            while !done.load(Ordering::Relaxed) {
                (&file).write_all(b"more").unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let said = warm_json(&[], &[&world.mnt("")]);
        done.store(true, Ordering::Relaxed);
        said
    });
    assert_eq!((code, figure(&said, "files_total"), figure(&said, "files_warm")), (1, 4, 1), "{said}");
    for (name, what) in
        [("huge", "files_too_large"), ("broken", "files_failed"), ("restless", "files_changing")]
    {
        assert_eq!(figure(&said, what), 1, "{what}: {said}");
        assert!(said["failed"].to_string().contains(name), "{name}: {said}");
    }
    assert_eq!(status(&world.mnt("")), (1, 4));
    let shown = text(&run(&[OsStr::new("status"), world.mnt("").as_os_str()]));
    assert!(shown.contains("huge: larger than the cache") && shown.contains("broken: cold"), "{shown}");
    // A link is not a file; what a tree holds of them is not counted, what is named is told.
    let (said, code) = warm_json(&["--check"], &[&world.mnt("link")]);
    assert_eq!((code, figure(&said, "paths_unknown")), (1, 1), "{said}");
}
