//! Each kind of change of a source file, thousands of times, each followed by a read after the TTL.

use crate::common::{World, pattern};
use crate::figures::{self, Figure, scale};
use crate::need_mount;
use crate::tools::{Dice, both, replace, with};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// How a file changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    InPlace,
    Renamed,
    SameSize,
    SameSizeAndMtime,
    Shrunk,
    Grown,
    TypeChanged,
    InodeReused,
    ByAnotherName,
}

const CHANGES: [Change; 9] = [
    Change::InPlace,
    Change::Renamed,
    Change::SameSize,
    Change::SameSizeAndMtime,
    Change::Shrunk,
    Change::Grown,
    Change::TypeChanged,
    Change::InodeReused,
    Change::ByAnotherName,
];

impl Change {
    /// Changes the file and gives its new content; `None` is a directory. Says whether it was that kind of change
    /// indeed: an inode number is not always used again.
    fn make(self, path: &Path, old: &[u8], version: u64) -> (Option<Vec<u8>>, bool) {
        let open = || File::options().write(true).open(path).unwrap();
        let same_size = pattern(version, old.len());
        let mut happened = true;
        let new = match self {
            Self::InPlace => {
                let new = pattern(version, 10 + (version as usize * 37) % 30_000);
                std::fs::write(path, &new).unwrap();
                new
            }
            Self::Renamed => {
                let new = pattern(version, old.len());
                replace(path, &new);
                new
            }
            Self::SameSize => {
                open().write_all_at(&same_size, 0).unwrap();
                same_size
            }
            Self::SameSizeAndMtime => {
                let before = std::fs::metadata(path).unwrap();
                open().write_all_at(&same_size, 0).unwrap();
                let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
                let mtime = Timespec { tv_sec: before.mtime(), tv_nsec: before.mtime_nsec() as _ };
                let times = Timestamps { last_access: omit, last_modification: mtime };
                rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
                same_size
            }
            Self::Shrunk => {
                open().set_len(old.len() as u64 / 2).unwrap();
                old[..old.len() / 2].to_vec()
            }
            Self::Grown => {
                let more = pattern(version, 3000);
                open().write_all_at(&more, old.len() as u64).unwrap();
                [old, &more].concat()
            }
            Self::TypeChanged => {
                std::fs::remove_file(path).unwrap();
                std::fs::create_dir(path).unwrap();
                return (None, true);
            }
            Self::InodeReused => {
                let ino = std::fs::metadata(path).unwrap().ino();
                std::fs::remove_file(path).unwrap();
                std::fs::write(path, &same_size).unwrap();
                happened = std::fs::metadata(path).unwrap().ino() == ino;
                same_size
            }
            Self::ByAnotherName => {
                let other = path.with_extension("link");
                std::fs::hard_link(path, &other).unwrap();
                std::fs::write(&other, &same_size).unwrap();
                std::fs::remove_file(&other).unwrap();
                same_size
            }
        };
        (Some(new), happened)
    }
}

/// What the changes came to.
#[derive(Default)]
struct Seen {
    n: u64,
    stale: u64,
    mixed: u64,
    fired: BTreeMap<String, u64>,
}

/// Changes a file `count` times, and reads it before and after each.
fn change_and_read(world: &World, count: u64, wait: Duration, dice: &mut Dice, seen: &mut Seen) {
    for i in 0..count {
        let change = CHANGES[(i % 9) as usize];
        let size = [100, 4096, 9000, 40_000, 1_500_000][dice.below(20).saturating_sub(15)];
        seen.n += 1;
        let old = world.put("f", size, 2 * seen.n);
        std::thread::sleep(wait);
        assert!(world.get("f") == old, "before {change:?}");
        let (new, happened) = change.make(&world.src("f"), &old, 2 * seen.n + 1);
        std::thread::sleep(wait);
        *seen.fired.entry(format!("{change:?}")).or_insert(0) += u64::from(happened);
        let Some(new) = new else {
            seen.stale += u64::from(!world.mnt("f").is_dir());
            std::fs::remove_dir(world.src("f")).unwrap();
            std::thread::sleep(wait);
            continue;
        };
        match std::fs::read(world.mnt("f")) {
            Ok(bytes) if bytes == new => {}
            Ok(bytes) if bytes == old => seen.stale += 1,
            read => {
                eprintln!("{change:?}: {:?}", read.map(|bytes| bytes.len()));
                seen.mixed += 1;
            }
        }
    }
}

/// Changes in one mount.
const BATCH: u64 = 126;

/// Goal: after the TTL a read gives the newest content, whatever the change was: nothing stale, nothing mixed. Method: each
/// kind of change in turn on files that are filled at once and in pieces, read before and after; files known by inode and
/// by path; a TTL of 0 and, for one change in ten, a short one (the kernel counts in ticks of its clock and rounds up: one
/// of 20 ms is over after less than 35).
#[test]
fn every_change_is_seen_after_the_ttl() {
    need_mount!();
    let seed = figures::seed();
    let (mut dice, mut seen) = (Dice::new(seed), Seen::default());
    both(|mode| {
        for identity in ["source.identity=inode", "source.identity=path"] {
            let flags = with(mode, &["-o", "cache.small_file_max=16KiB", "-o", identity]);
            for _ in 0..scale(1, 20, 20) {
                let world = World::mounted(&with(&flags, &["--ttl", "0"]));
                change_and_read(&world, BATCH, Duration::ZERO, &mut dice, &mut seen);
                let world = World::mounted(&with(&flags, &["--ttl", "20ms"]));
                change_and_read(&world, BATCH / 9, Duration::from_millis(35), &mut dice, &mut seen);
            }
        }
    });
    let Seen { n, stale, mixed, fired } = seen;
    let what = "changes of the source, each read after the TTL: stale or mixed";
    let mut figure = Figure::new("R16", what, n, stale + mixed);
    for (kind, count) in &fired {
        figure = figure.fired(kind, *count);
    }
    figure.seed(seed).report();
    assert_eq!((stale, mixed), (0, 0), "stale and mixed of {n}");
}
