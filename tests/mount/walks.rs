//! Walks over a slow source: the first is asked ahead, one look is not, and the first after a restart needs nothing of the
//! source. What is asked is counted by the source itself.

use crate::common::*;
use crate::figures;
use crate::need_mount;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A world whose source is behind a file system that takes its time and counts.
struct Slow {
    world: World,
    slow: PathBuf,
}

impl Slow {
    fn new(dirs: usize, files: usize) -> Self {
        Self::patient(dirs, files, Duration::from_secs(300))
    }

    fn patient(dirs: usize, files: usize, patience: Duration) -> Self {
        let world = World::patient(&[], patience);
        let slow = world.dir().join("slow");
        std::fs::create_dir(&slow).unwrap();
        for d in 0..dirs {
            for f in 0..files {
                world.put(&name(d, f), size(f), f as u64);
            }
        }
        Self { world, slow }
    }

    fn source(&self, latency: &str) {
        let mut command = warmfs();
        command.arg("faultfs").arg(self.world.src("")).arg(&self.slow).args(["--latency", latency]);
        command.arg("--counts").arg(self.world.dir().join("counts"));
        assert!(command.status().unwrap().success());
    }

    fn mount(&self, flags: &[&str]) {
        let mut command = warmfs();
        command.arg("mount").arg(&self.slow).arg(self.world.mnt(""));
        let output = command.arg("--cache-dir").arg(self.world.cache()).args(flags).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }

    /// What the source was asked so far, when it is asked no more; closing files costs it nothing.
    fn counts(&self) -> serde_json::Value {
        let read = || -> serde_json::Value {
            let bytes = std::fs::read(self.world.dir().join("counts")).unwrap();
            serde_json::from_slice(&bytes).unwrap()
        };
        let mut last = read();
        // It is written 20 ms after a change, and a request ahead of others takes a few of the source's latencies.
        wait_until("the source is asked no more", || {
            std::thread::sleep(Duration::from_millis(150));
            let before = std::mem::replace(&mut last, read());
            before == last
        });
        last["release"] = 0.into();
        last
    }

    fn read_all(&self, dirs: usize, files: usize) {
        for d in 0..dirs {
            for f in 0..files {
                assert_eq!(self.world.get(&name(d, f)), pattern(f as u64, size(f)), "{}", name(d, f));
            }
        }
    }
}

fn name(dir: usize, file: usize) -> String {
    format!("d{dir:04}/f{file:04}")
}

fn size(file: usize) -> usize {
    if file.is_multiple_of(2) { 500 } else { 3000 }
}

/// `find DIR -size +2`: how many files are larger than a kilobyte, and how long it took to find them.
fn find(dir: &Path) -> (usize, Duration) {
    let started = Instant::now();
    let found = Command::new("find").arg(dir).args(["-type", "f", "-size", "+2"]).output().unwrap();
    assert!(found.status.success(), "{}", text(&found));
    (found.stdout.iter().filter(|b| **b == b'\n').count(), started.elapsed())
}

/// Goal: the first walk over a slow source takes a quarter of the time at most that it takes without warmfs. Method: the same
/// command over both; of the bare source a part of the tree, whose time is taken as that share of the whole.
#[test]
fn a_first_walk_is_four_times_as_fast_as_the_source() {
    need_mount!();
    let dirs = figures::scale(60, 1000, 1000) as usize;
    let files = figures::scale(50, 100, 100) as usize;
    let share = figures::scale(10, 50, 20) as usize;
    let slow = Slow::patient(dirs, files, Duration::from_secs(1200));
    slow.source("2ms");
    let mut bare = Duration::ZERO;
    for d in (0..dirs).step_by(share) {
        bare += find(&slow.slow.join(format!("d{d:04}"))).1;
    }
    let bare = bare * (dirs as u32) / (dirs.div_ceil(share) as u32);
    // Longer than the walk: no answer is to be asked for twice.
    slow.mount(&["--ttl", "10m"]);
    let (found, took) = find(&slow.world.mnt(""));
    assert_eq!(found, dirs * files / 2);
    let ratio = bare.as_secs_f64() / took.as_secs_f64();
    println!("{} files in {dirs} directories: {took:?}, the bare source {bare:?}", dirs * files);
    assert!(ratio >= 4.0, "{took:?}, the bare source {bare:?}: {ratio:.1}");
    let stats = slow.world.stats();
    assert!(stats["names_ahead"].as_u64() > Some((dirs * files / 2) as u64), "{stats}");
    assert_eq!(stats["names_ahead_queue"], 0);
    // All of it is known now.
    let before = slow.counts();
    drop_names();
    assert_eq!(find(&slow.world.mnt("")).0, dirs * files / 2);
    assert_eq!(slow.counts(), before, "the second walk asks for nothing");
    slow.world.umount();
}

/// Goal: who looks at one thing sets off no walk. Method: single looks of every kind, and what the source was asked.
#[test]
fn one_look_asks_for_no_more_than_it_needs() {
    need_mount!();
    let slow = Slow::new(40, 20);
    slow.source("3ms");
    slow.mount(&[]);
    let run = |command: &str| {
        let ran = Command::new("sh").args(["-c", command]).current_dir(slow.world.mnt("")).output().unwrap();
        assert!(ran.status.success(), "{}", text(&ran));
        String::from_utf8_lossy(&ran.stdout).lines().count()
    };
    assert_eq!(run("ls d0007"), 20);
    assert_eq!(run("cat d0011/f0003 > /dev/null; stat -c %s d0012/f0002 d0013/f0004; ls d0020 d0021"), 45);
    let counts = slow.counts();
    assert_eq!(slow.world.stat("names_ahead"), 0, "{counts}");
    assert!(counts["opendir"].as_u64() <= Some(9) && counts["lookup"].as_u64() <= Some(60), "{counts}");
    // Attributes of a whole directory: those are asked ahead, and nothing of any other.
    assert_eq!(run("ls -l d0030"), 21);
    let counts = slow.counts();
    assert!(counts["opendir"].as_u64() <= Some(16) && slow.world.stat("names_ahead") <= 20, "{counts}");
    // A walk over the first directories that then breaks off.
    run("find d0000 d0001 d0002 d0003 d0004 d0005 -size +2 > /dev/null");
    let listed = slow.world.stat("listings");
    assert!(listed <= 4 + 6 + 1 + 12, "{listed} listings: at most twice as much ahead as was used");
    slow.world.umount();
}

#[test]
fn reading_ahead_can_be_turned_off() {
    need_mount!();
    let slow = Slow::new(6, 10);
    slow.source("2ms");
    let config = slow.world.dir().join("config");
    std::fs::write(&config, "[metadata]\nread_ahead = false\n").unwrap();
    slow.mount(&["--config", config.to_str().unwrap()]);
    assert_eq!(find(&slow.world.mnt("")).0, 30);
    assert_eq!(slow.world.stat("names_ahead"), 0);
    slow.world.umount();
}

/// Goal: a second job on a tree that an earlier mount knew starts without a word to the source, whoever runs it. Method:
/// walk and read, stop, start, and again, under another user too; the source counts.
#[test]
fn after_a_restart_a_walk_and_all_cached_files_need_nothing_of_the_source() {
    need_mount!();
    for ttl in ["1h", "forever"] {
        let slow = Slow::new(12, 10);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(slow.world.dir(), open).unwrap();
        slow.source("1ms");
        slow.mount(&["--ttl", ttl]);
        let other = |script: &str| {
            let mut command = program("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-c", script]);
            let output = command.current_dir(slow.world.mnt("")).output().unwrap();
            assert!(output.status.success(), "{}", text(&output));
            output.stdout
        };
        let look = "ls -lR . && cat d*/f* && ls no-such-name 2>/dev/null; true";
        let seen = other(look);
        slow.read_all(12, 10);
        for _ in 0..2 {
            slow.world.umount();
            drop_caches();
            slow.mount(&["--ttl", ttl]);
            let before = slow.counts();
            assert_eq!(other(look), seen);
            assert_eq!(find(&slow.world.mnt("")).0, 60);
            slow.read_all(12, 10);
            assert_eq!(slow.counts(), before, "nothing is asked");
            assert_eq!(slow.world.stat("names_restored"), 13);
            assert_eq!(slow.world.stat("misses"), 0);
        }
        slow.world.umount();
    }
}

/// Goal: the TTL goes on over the restart, and `evict` ends it. Method: the source changes while nothing is mounted.
#[test]
fn what_changed_during_a_stop_is_seen_when_the_ttl_asks_or_at_an_evict() {
    need_mount!();
    let slow = Slow::new(2, 4);
    slow.source("0");
    let change = |round: u64| {
        slow.world.put("d0000/f0000", 700, round);
        slow.world.put(&format!("d0000/new-{round}"), 10, round);
        std::fs::remove_file(slow.world.src(name(1, round as usize))).unwrap();
    };
    let is_new = |round: u64| {
        let world = &slow.world;
        let listed = std::fs::read_dir(world.mnt("d0000")).unwrap().flatten();
        let seen = [
            world.get("d0000/f0000") == pattern(round, 700),
            listed.into_iter().any(|e| e.file_name().to_string_lossy() == format!("new-{round}")),
            !world.mnt(name(1, round as usize)).exists(),
        ];
        assert!(seen.iter().all(|new| *new == seen[0]), "all of it or nothing: {seen:?}");
        seen[0]
    };
    slow.mount(&["--ttl", "1h"]);
    slow.read_all(2, 4);
    find(&slow.world.mnt(""));
    slow.world.umount();
    change(1);
    slow.mount(&["--ttl", "1h"]);
    assert!(!is_new(1), "the time is not over");
    let evicted = run(&["evict".as_ref(), slow.world.mnt("").as_os_str()]);
    assert!(evicted.status.success(), "{}", text(&evicted));
    assert!(is_new(1), "an evict ends it");
    slow.world.umount();
    change(2);
    // It is the reader's TTL that counts, not the writer's; what is kept is older than this.
    std::thread::sleep(Duration::from_millis(1100));
    slow.mount(&["--ttl", "1s"]);
    assert!(is_new(2), "the time is over");
    slow.world.umount();
    slow.mount(&["--ttl", "forever"]);
    assert!(is_new(2), "what was learnt last is what is kept");
    slow.world.umount();
}

/// Goal: a kill costs nothing but what was not written yet, which is asked for again. Method: one at once, and one after
/// something was written.
#[test]
fn after_a_kill_names_are_asked_for_again_or_taken_from_what_was_written() {
    need_mount!();
    let slow = Slow::new(5, 6);
    slow.source("1ms");
    slow.mount(&["--ttl", "1h"]);
    find(&slow.world.mnt(""));
    slow.world.kill();
    slow.mount(&["--ttl", "1h"]);
    assert_eq!(find(&slow.world.mnt("")).0, 15);
    slow.read_all(5, 6);
    wait_until("what is known is written", || slow.world.stat("names_kept_dirs") == 6);
    slow.world.kill();
    slow.mount(&["--ttl", "1h"]);
    assert_eq!(find(&slow.world.mnt("")).0, 15);
    assert!(slow.world.stat("names_restored") > 0, "{}", slow.world.stats());
    slow.read_all(5, 6);
    slow.world.umount();
}

/// Goal: names of one source are not shown of another at the same path. Method: a source that numbers its inodes as it goes is
/// mounted anew, over another tree.
#[test]
fn names_of_another_source_at_the_same_path_are_not_used() {
    need_mount!();
    let slow = Slow::new(3, 4);
    slow.source("0");
    slow.mount(&["--ttl", "forever"]);
    find(&slow.world.mnt(""));
    slow.world.umount();
    warmfs::sys::mount::unmount(&slow.slow, false).unwrap();
    std::fs::rename(slow.world.src("d0000"), slow.world.src("other")).unwrap();
    slow.source("0");
    slow.mount(&["--ttl", "forever"]);
    assert!(slow.world.mnt("other").exists() && !slow.world.mnt("d0000").exists());
    assert_eq!(slow.world.stat("names_restored"), 0);
    slow.world.umount();
}
