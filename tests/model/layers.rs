//! More than one mount over one source: beside each other, and one over the other.

use crate::common::{World, pattern, text, wait_until, warmfs};
use crate::figures::{self, Figure, scale};
use crate::need_mount;
use crate::tools::{Dice, both, replace, versioned, whole_version, with};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Another mount in a world's directory: of its source, or of its mount.
struct Second {
    at: PathBuf,
}

impl Second {
    fn mount(world: &World, source: &Path, flags: &[&str]) -> Self {
        let at = world.dir().join("second");
        std::fs::create_dir(&at).unwrap();
        let mut command = warmfs();
        command.arg("mount").arg(source).arg(&at).arg("--cache-dir").arg(world.dir().join("second-cache"));
        let output = command.args(flags).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        Self { at }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = warmfs::sys::mount::unmount_force(&self.at);
    }
}

/// Changes one of a few files in some way, and gives its new content; `None` if it is gone.
fn change(world: &World, name: &str, version: u64, dice: &mut Dice) -> Option<Vec<u8>> {
    let path = world.src(name);
    let size_max = [3000, 60_000, 1_200_000][dice.below(12).saturating_sub(9)];
    let new = versioned(version, 16 + dice.below(size_max));
    match dice.below(4) {
        0 => std::fs::write(&path, &new).unwrap(),
        1 if path.exists() => {
            std::fs::remove_file(&path).unwrap();
            return None;
        }
        _ => replace(&path, &new),
    }
    Some(new)
}

/// How often something was read, and how often not as it should be.
fn compare(at: &Path, expected: &[(String, Option<Vec<u8>>)]) -> (u64, u64) {
    let mut wrong = 0;
    for (name, expected) in expected {
        let read = std::fs::read(at.join(name));
        let right = match (&read, expected) {
            (Ok(bytes), Some(expected)) => bytes == expected,
            (Err(e), None) => e.kind() == std::io::ErrorKind::NotFound,
            _ => false,
        };
        if !right {
            let version = read.as_ref().ok().and_then(|bytes| whole_version(bytes));
            eprintln!("{name} at {at:?}: {:?}, version {version:?}", read.map(|bytes| bytes.len()));
            wrong += 1;
        }
    }
    (expected.len() as u64, wrong)
}

/// Rounds of one pair of mounts.
const ROUNDS: u64 = 100;

/// Changes files round by round; after each both mounts must show all of them as they are.
fn rounds(world: &World, second: &Path, count: u64, dice: &mut Dice) -> (u64, u64) {
    let names: Vec<String> = (0..6).map(|n| format!("f{n}")).collect();
    let mut now: Vec<(String, Option<Vec<u8>>)> = names.iter().map(|name| (name.clone(), None)).collect();
    let (mut reads, mut wrong) = (0, 0);
    for round in 0..count {
        for _ in 0..=dice.below(3) {
            let which = dice.below(names.len());
            now[which].1 = change(world, &names[which], round + 1, dice);
        }
        for at in [&*world.mnt(""), second] {
            let (n, bad) = compare(at, &now);
            (reads, wrong) = (reads + n, wrong + bad);
        }
    }
    (reads, wrong)
}

const FLAGS: [&str; 4] = ["--ttl", "0", "-o", "cache.small_file_max=16KiB"];

/// Goal: two mounts of one source, each with a cache of its own, both show each change. Method: rounds of changes, after
/// each of which every file is read through both; one of them known by inode, the other by path.
#[test]
fn two_mounts_of_one_source_are_both_right() {
    two_are_right("reads through two mounts of one changing source: wrong", |world, mode| {
        let by_path = [&with(mode, &FLAGS)[..], &["-o", "source.identity=path"]].concat();
        Second::mount(world, &world.src(""), &by_path)
    });
}

/// Goal: a mount whose source is another mount is right too. Method: the same rounds, the second mount being over the
/// first; its source is a FUSE file system, so its files are known by path.
#[test]
fn a_mount_of_a_mount_is_right() {
    two_are_right("reads through a mount of a mount of a changing source: wrong", |world, mode| {
        Second::mount(world, &world.mnt(""), &with(mode, &FLAGS))
    });
}

/// A mount and a second one beside or above it, the source changing below: all reads through both.
fn two_are_right(what: &str, second: impl Fn(&World, &[&'static str]) -> Second) {
    need_mount!();
    let seed = figures::seed();
    let mut dice = Dice::new(seed);
    let (mut reads, mut wrong) = (0, 0);
    both(|mode| {
        for _ in 0..scale(1, 10, 20) {
            let world = World::mounted(&with(mode, &FLAGS));
            let second = second(&world, mode);
            let (n, bad) = rounds(&world, &second.at, ROUNDS, &mut dice);
            (reads, wrong) = (reads + n, wrong + bad);
        }
    });
    Figure::new("R16", what, reads, wrong).seed(seed).fired("reads", reads).report();
    assert_eq!(wrong, 0, "of {reads} reads");
}

/// Goal: the rule for times that cannot tell two contents apart costs nothing once a file has not changed for a moment.
/// Method: files known by path, read at once after they were made and again: the first of these re-reads fetches, for
/// what was read too soon is not kept; the ones after it find everything in the cache.
#[test]
fn what_was_read_too_soon_is_fetched_once_more_and_then_kept() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0", "-o", "source.identity=path"]));
        for n in 0..20 {
            let bytes = world.put(&format!("{n}"), 5000, n);
            assert!(world.get(&format!("{n}")) == bytes);
        }
        // Longer than the step of the clock, after which what is read is kept.
        std::thread::sleep(Duration::from_millis(100));
        let read = || {
            let before = world.stat("backing_bytes_read");
            (0..20).for_each(|n| assert!(world.get(&format!("{n}")) == pattern(n, 5000)));
            world.stat("backing_bytes_read") - before
        };
        let again = read();
        assert!(again > 0, "all of them were kept although they had changed a moment before");
        assert_eq!(read(), 0);
        // Neither is it known to the index, nor left on the disk.
        world.put("late", 5000, 99);
        world.get("late");
        world.umount();
        wait_until("only what the index knows is left", || data_files(&world.cache()) == 20);
        world.mount();
        assert_eq!(read(), 0, "the others are still there");
    });
}

fn data_files(cache: &Path) -> usize {
    let files =
        walkdir::WalkDir::new(cache).into_iter().flatten().filter(|entry| entry.file_type().is_file());
    files.filter(|entry| entry.path().components().any(|part| part.as_os_str() == "data")).count()
}
