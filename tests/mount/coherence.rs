//! The source changes: while a file is cached, while it is open, while it is mapped. Every open sees one whole version,
//! the newest as of the TTL, and what is open keeps the version it opened.

use crate::common::*;
use crate::need_mount;
use crate::tools::*;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, ResolveFlags, Timestamps};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn set_mtime(path: &Path, secs: i64, nanos: i64) {
    let time = rustix::fs::Timespec { tv_sec: secs, tv_nsec: nanos as _ };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
}

#[test]
fn bug_003_times_are_told_to_the_nanosecond() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        for (seed, nanos) in [(1, 100_000_000), (2, 900_000_001)] {
            let bytes = world.put("f", 5000, seed);
            set_mtime(&world.src("f"), 1_700_000_000, nanos);
            let seen = std::fs::metadata(world.mnt("f")).unwrap();
            assert_eq!((seen.mtime(), seen.mtime_nsec()), (1_700_000_000, nanos));
            assert_eq!(world.get("f"), bytes);
        }
    });
}

#[test]
fn bug_008_a_file_rewritten_longer_after_a_stat_is_read_whole() {
    need_mount!();
    both(|mode| {
        for ttl in ["60s", "0"] {
            for sizes in [(10, 100), (100, 10), (10, 5 << 20), (5 << 20, 6 << 20), (6 << 20, 10)] {
                let world = World::mounted(&with(mode, &["--ttl", ttl]));
                world.put("f", sizes.0, 1);
                std::fs::metadata(world.mnt("f")).unwrap();
                let new = world.put("f", sizes.1, 2);
                assert!(world.get("f") == new, "{ttl} {sizes:?}");
                assert_eq!(std::fs::metadata(world.mnt("f")).unwrap().len(), sizes.1 as u64);
            }
        }
    });
}

#[test]
fn bug_009_a_deleted_file_is_gone_for_new_opens_and_whole_for_old_ones() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let missing = |name: &str| File::open(world.mnt(name)).unwrap_err().kind() == ErrorKind::NotFound;
        world.put("stated", 10, 1);
        std::fs::metadata(world.mnt("stated")).unwrap();
        let warm = world.put("warm", 10_000, 2);
        assert_eq!(world.get("warm"), warm);
        let held = File::open(world.mnt("warm")).unwrap();
        let large = world.put("large", 6 << 20, 3);
        let held_large = File::open(world.mnt("large")).unwrap();
        for name in ["stated", "warm", "large"] {
            std::fs::remove_file(world.src(name)).unwrap();
        }
        assert!(missing("stated") && missing("warm") && missing("large"));
        let mut read = vec![0; warm.len()];
        held.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, warm);
        assert_eq!(held.metadata().unwrap().len(), warm.len() as u64);
        // Never read before; the daemon has it open, so that it is there.
        let mut read = Vec::new();
        (&held_large).read_to_end(&mut read).unwrap();
        assert!(read == large);
    });
}

#[test]
fn bug_009_a_file_deleted_within_the_ttl_is_missing_and_not_an_io_error() {
    need_mount!();
    let world = World::mounted(&[]);
    world.put("f", 10, 1);
    std::fs::metadata(world.mnt("f")).unwrap();
    std::fs::remove_file(world.src("f")).unwrap();
    assert_eq!(File::open(world.mnt("f")).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn bug_013_mode_and_owner_follow_and_access_with_them() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        std::fs::set_permissions(world.dir(), PermissionsExt::from_mode(0o755)).unwrap();
        world.put("f", 10, 1);
        world.get("f");
        let as_other = "import os, sys\nos.setgid(1234)\nos.setuid(1234)\ntry:\n  open(sys.argv[1], 'rb').read()\n\
            except PermissionError:\n  sys.exit(0 if sys.argv[2] == 'no' else 1)\n\
            sys.exit(0 if sys.argv[2] == 'yes' else 1)";
        python(as_other, &[&world.mnt("f"), Path::new("yes")]);
        std::fs::set_permissions(world.src("f"), PermissionsExt::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(world.src("f"), Some(77), Some(78)).unwrap();
        let seen = std::fs::metadata(world.mnt("f")).unwrap();
        assert_eq!((seen.mode() & 0o7777, seen.uid(), seen.gid()), (0o600, 77, 78));
        python(as_other, &[&world.mnt("f"), Path::new("no")]);
        std::os::unix::fs::chown(world.src("f"), Some(1234), None).unwrap();
        python(as_other, &[&world.mnt("f"), Path::new("yes")]);
    });
}

#[test]
fn bug_016_a_name_made_anew_after_its_directory_was_renamed_is_the_new_file() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let old = world.put("d/x", 1000, 1);
        assert_eq!(world.get("d/x"), old);
        std::fs::rename(world.src("d"), world.src("e")).unwrap();
        std::fs::remove_dir_all(world.src("e")).unwrap();
        let new = world.put("d/x", 1000, 2);
        assert_eq!(world.get("d/x"), new);
    });
}

#[test]
fn bug_017_a_renamed_directory_is_followed() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let bytes = world.put("d/sub/f", 10_000, 1);
        let other = world.put("d/sub/cold", 10_000, 2);
        let held = File::open(world.mnt("d/sub/f")).unwrap();
        let inside = File::open(world.mnt("d/sub")).unwrap();
        std::fs::rename(world.src("d"), world.src("e")).unwrap();
        let mut read = vec![0; bytes.len()];
        held.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, bytes);
        assert_eq!(world.get("e/sub/f"), bytes);
        assert_eq!(world.get("e/sub/cold"), other);
        assert!(!world.mnt("d").exists());
        // Looked up from where one stands: right, or one of the two errors that say that it moved.
        match rustix::fs::openat(&inside, "f", OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => {
                let mut read = Vec::new();
                File::from(fd).read_to_end(&mut read).unwrap();
                assert_eq!(read, bytes);
            }
            Err(e) => assert!(matches!(e.raw_os_error(), libc::ESTALE | libc::ENOENT), "{e}"),
        }
    });
}

#[test]
fn bug_018_a_tree_of_replaced_files_is_read_anew() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        for round in 0..2 {
            for n in 0..150 {
                std::fs::create_dir_all(world.src("d")).unwrap();
                replace(&world.src(format!("d/{n}")), &versioned(round * 1000 + n, 2000 + n as usize));
            }
            for n in 0..150 {
                assert_eq!(whole_version(&world.get(&format!("d/{n}"))), Some(round * 1000 + n));
            }
        }
    });
}

#[test]
fn bug_019_evict_makes_the_next_open_see_the_change_at_once() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "forever"]));
        for (name, size) in [("d/small", 3000), ("d/large", 5 << 20)] {
            let old = world.put(name, size, 1);
            assert!(world.get(name) == old);
            let new = world.put(name, size, 2);
            assert!(world.get(name) == old, "forever is for ever");
            verb("evict", &world.mnt(name));
            assert!(world.get(name) == new, "{name}");
            let newer = world.put(name, size + 100, 3);
            verb("evict", &world.mnt(""));
            assert!(world.get(name) == newer, "{name}");
            assert_eq!(std::fs::metadata(world.mnt(name)).unwrap().len(), size as u64 + 100);
        }
    });
}

/// How a source file changes.
#[derive(Clone, Copy, Debug)]
enum Change {
    Replaced,
    Truncated,
    Grown,
    Deleted,
    SameSizeAndTime,
}

const CHANGES: [Change; 5] =
    [Change::Replaced, Change::Truncated, Change::Grown, Change::Deleted, Change::SameSizeAndTime];

impl Change {
    /// Changes the file, and gives its new content.
    fn make(self, path: &Path, old: &[u8]) -> Option<Vec<u8>> {
        let file = || File::options().write(true).open(path).unwrap();
        match self {
            Self::Replaced => {
                let new = pattern(99, old.len() + 1);
                replace(path, &new);
                Some(new)
            }
            Self::Truncated => {
                file().set_len(old.len() as u64 / 2).unwrap();
                Some(old[..old.len() / 2].to_vec())
            }
            Self::Grown => {
                let more = pattern(98, 70_000);
                file().write_all_at(&more, old.len() as u64).unwrap();
                Some([old, &more].concat())
            }
            Self::Deleted => {
                std::fs::remove_file(path).unwrap();
                None
            }
            Self::SameSizeAndTime => {
                let before = std::fs::metadata(path).unwrap();
                let new = pattern(97, old.len());
                file().write_all_at(&new, 0).unwrap();
                set_mtime(path, before.mtime(), before.mtime_nsec());
                Some(new)
            }
        }
    }
}

struct Held {
    name: String,
    change: Change,
    old: Vec<u8>,
    new: Option<Vec<u8>>,
    file: File,
    map: Map,
}

#[test]
fn whatever_becomes_of_a_file_opens_see_whole_versions_and_handles_keep_theirs() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "1s"]));
        let mut held = Vec::new();
        for (i, change) in CHANGES.into_iter().enumerate() {
            for size in [70_000, 5 << 20] {
                let name = format!("{change:?}-{size}");
                let old = world.put(&name, size, i as u64);
                assert!(world.get(&name) == old);
                let file = File::open(world.mnt(&name)).unwrap();
                // What was read while somebody had it open for writing (a child of another test, before its exec) is not
                // kept for the next open: then it is this handle that fetches it.
                let mut read = vec![0; size];
                file.read_exact_at(&mut read, 0).unwrap();
                assert!(read == old);
                let map = Map::shared(&file);
                held.push(Held { name, change, old, new: None, file, map });
            }
        }
        for h in &mut held {
            h.new = h.change.make(&world.src(&h.name), &h.old);
        }
        let changed = Instant::now();
        for h in &held {
            wait_until("the new version is seen", || match std::fs::read(world.mnt(&h.name)) {
                Ok(bytes) if Some(&bytes) == h.new.as_ref() => true,
                Ok(bytes) => {
                    assert!(bytes == h.old, "{}: neither the old version nor the new one", h.name);
                    false
                }
                Err(e) => {
                    assert!(e.kind() == ErrorKind::NotFound && h.new.is_none(), "{}: {e}", h.name);
                    true
                }
            });
        }
        let took = changed.elapsed();
        assert!(took < Duration::from_secs(4), "seen only after {took:?}");
        // Maps and all: what the handles keep must not live in the page cache alone.
        drop_caches();
        for h in &held {
            let mut read = vec![0; h.old.len() + 1];
            let mut done = 0;
            while let n @ 1.. = h.file.read_at(&mut read[done..], done as u64).unwrap() {
                done += n;
            }
            assert!(read[..done] == *h.old, "{}: the handle has lost its version", h.name);
            assert!(*h.map == *h.old, "{}: the map has lost its version", h.name);
            assert_eq!(h.file.metadata().unwrap().len(), h.old.len() as u64, "{}", h.name);
        }
    });
}

#[test]
fn a_version_that_was_fetched_in_part_and_is_gone_is_stale_and_never_mixed() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0", "-o", "mount.read_ahead=0"]));
        for change in CHANGES {
            let name = format!("{change:?}");
            let old = world.put(&name, 16 << 20, 1);
            let file = File::open(world.mnt(&name)).unwrap();
            let mut piece = vec![0; 4096];
            file.read_exact_at(&mut piece, 3 << 20).unwrap();
            assert!(piece == old[3 << 20..][..4096]);
            let new = change.make(&world.src(&name), &old);
            let (mut right, mut stale) = (0, 0);
            for at in (0..16 << 20).step_by(1 << 20) {
                match file.read_exact_at(&mut piece, at) {
                    Ok(()) => {
                        assert!(piece == old[at as usize..][..4096], "{name} {at}: not what was opened");
                        right += 1;
                    }
                    Err(e) => {
                        assert_eq!(e.raw_os_error(), Some(libc::ESTALE), "{name} {at}");
                        stale += 1;
                    }
                }
            }
            assert!(right >= 1, "{name}: what was fetched is there");
            // What lost its name only is still whole; what was overwritten is not.
            let lost_its_name = matches!(change, Change::Replaced | Change::Deleted);
            assert_eq!(stale == 0, lost_its_name, "{name}: {right} right, {stale} stale");
            if let Some(new) = new {
                assert!(world.get(&name) == new, "{name}");
            }
        }
    });
}

#[test]
fn forever_never_asks_again_and_a_missing_name_is_remembered() {
    need_mount!();
    undisturbed(|| {
        both(|mode| {
            let world = Slow::new();
            for n in 0..20 {
                world.put(&format!("d/{n}"), 1000, n);
            }
            world.mount(&[], &with(mode, &["--ttl", "forever"]));
            let walk = || {
                for n in 0..20 {
                    assert_eq!(world.get(&format!("d/{n}")), pattern(n, 1000));
                    assert!(std::fs::metadata(world.mnt(format!("d/missing{n}"))).is_err());
                }
                assert_eq!(std::fs::read_dir(world.mnt("d")).unwrap().count(), 20);
                assert!(!world.mnt("missing").exists());
            };
            walk();
            // Names, listing and attributes are known by now, but the listing came last.
            walk();
            let (before, lookups) = (world.counts(), world.stat("lookups"));
            for _ in 0..3 {
                walk();
            }
            assert_eq!(world.counts(), before, "the source was asked again");
            assert_eq!(world.stat("lookups"), lookups, "the kernel asked again");
        });
    });
}

#[test]
fn names_come_and_go_within_the_ttl() {
    need_mount!();
    let world = World::mounted(&["--ttl", "1s"]);
    world.put("d/old", 10, 1);
    assert!(!world.mnt("d/new").exists());
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(world.mnt("d")).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["old"]);
    world.put("d/new", 10, 2);
    std::fs::remove_file(world.src("d/old")).unwrap();
    let since = Instant::now();
    wait_until("the names have followed", || {
        world.mnt("d/new").exists() && !world.mnt("d/old").exists() && names() == ["new"]
    });
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}

#[test]
fn bug_088_looking_up_and_forgetting_at_once_keeps_the_table_right() {
    need_mount!();
    let world = World::mounted(&["--ttl", "0"]);
    for n in 0..200 {
        world.put(&format!("d{}/{n}", n % 20), 100, n);
    }
    let until = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < until {
                    assert_eq!(shell("find \"$1\" -type f -size -2 | wc -l", &[&world.mnt("")]), b"200\n");
                }
            });
        }
        scope.spawn(|| {
            while Instant::now() < until {
                drop_names();
                std::thread::sleep(Duration::from_millis(50));
            }
        });
    });
    world.pid();
    wait_until("all nodes are forgotten", || {
        drop_names();
        world.stat("nodes") <= 5
    });
}

#[test]
fn bug_090_directories_made_and_removed_while_they_are_walked() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let until = Instant::now() + Duration::from_millis(700);
        let fine = |e: &std::io::Error| {
            let errno = e.raw_os_error();
            assert!(
                matches!(errno, Some(libc::ENOENT | libc::ENOTDIR | libc::ESTALE)),
                "not an error of a file that went: {e}"
            );
        };
        let walk = |dir: &Path| {
            for entry in std::fs::read_dir(dir).inspect_err(fine).into_iter().flatten() {
                let Ok(entry) = entry.inspect_err(fine) else { continue };
                let Ok(attr) = entry.metadata().inspect_err(fine) else { continue };
                if attr.is_dir() {
                    continue;
                }
                if let Ok(bytes) = std::fs::read(entry.path()).inspect_err(fine) {
                    assert!(bytes.is_empty() || whole_version(&bytes).is_some(), "torn");
                }
            }
        };
        std::thread::scope(|scope| {
            for n in 0..3 {
                let (world, walk) = (&world, &walk);
                scope.spawn(move || {
                    let dir = world.src(format!("d{n}"));
                    while Instant::now() < until {
                        std::fs::create_dir_all(dir.join("sub")).unwrap();
                        for f in 0..5 {
                            replace(&dir.join(f.to_string()), &versioned(f, 500));
                        }
                        std::fs::remove_dir_all(&dir).unwrap();
                    }
                });
                scope.spawn(move || {
                    while Instant::now() < until {
                        for n in 0..3 {
                            walk(&world.mnt(format!("d{n}")));
                        }
                    }
                });
            }
        });
        world.pid();
    });
}

/// tmpfs gives a directory from which a file was deleted the file's time, which may be the one it had: what was listed a
/// moment after a change is listed again.
#[test]
fn a_name_deleted_in_the_tick_of_a_listing_is_not_listed_again() {
    need_mount!();
    let world = World::new(&["--ttl", "0"]);
    let _memory = Mounted::tmpfs(&world.src(""));
    world.mount();
    let names = |dir: std::path::PathBuf| {
        let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let mut same_times = 0;
    for round in 0..300 {
        let (kept, gone) = (world.src(format!("kept{}", round % 3)), world.src("gone"));
        std::fs::write(&gone, "x").unwrap();
        std::fs::write(&kept, "x").unwrap();
        assert_eq!(names(world.mnt("")), names(world.src("")));
        let before = std::fs::metadata(world.src("")).unwrap();
        std::fs::remove_file(&gone).unwrap();
        let after = std::fs::metadata(world.src("")).unwrap();
        same_times += u32::from((before.mtime(), before.mtime_nsec()) == (after.mtime(), after.mtime_nsec()));
        assert_eq!(names(world.mnt("")), names(world.src("")), "round {round}");
        std::fs::remove_file(&kept).unwrap();
    }
    eprintln!("{same_times} of 300 deletions left the directory's time as it was");
}

#[test]
fn a_handle_lives_on_when_a_link_takes_the_place_of_its_directory() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let bytes = world.put("d/f", 70_000, 1);
        let held = File::open(world.mnt("d/f")).unwrap();
        std::fs::remove_dir_all(world.src("d")).unwrap();
        std::os::unix::fs::symlink("nowhere", world.src("d")).unwrap();
        assert_eq!(held.metadata().unwrap().len(), 70_000);
        let mut read = vec![0; bytes.len()];
        held.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, bytes);
        assert_eq!(File::open(world.mnt("d/f")).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

/// Who is told where a copy lies opens it by its name: a copy that only a handle keeps has none.
#[test]
fn a_copy_that_was_dropped_while_it_is_open_has_no_cache_path() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let bytes = world.put("f", 5000, 1);
        let _held = File::open(world.mnt("f")).unwrap();
        let place = std::path::PathBuf::from(world.xattr("f", "cache_path"));
        assert_eq!(std::fs::read(&place).unwrap(), bytes);
        // Damaged on the disk, found by `verify`, dropped: the handle keeps what it has.
        std::fs::write(&place, pattern(2, 5000)).unwrap();
        let output = run(&[std::ffi::OsStr::new("verify"), world.mnt("f").as_os_str()]);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
        assert!(!place.exists());
        let gone = rustix::fs::lgetxattr(world.mnt("f"), "user.warmfs.cache_path", &mut [0; 4096]);
        assert_eq!(gone, Err(rustix::io::Errno::NODATA));
    });
}

#[test]
fn bug_110_a_new_file_under_a_reused_inode_number_is_not_the_old_one() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        for round in 0..20 {
            let old = world.put("f1", 3000, round);
            set_mtime(&world.src("f1"), 1_600_000_000, 0);
            assert_eq!(world.get("f1"), old);
            let held = File::open(world.mnt("f1")).unwrap();
            let ino = std::fs::metadata(world.src("f1")).unwrap().ino();
            std::fs::remove_file(world.src("f1")).unwrap();
            let new = world.put("f2", 3000, 1000 + round);
            set_mtime(&world.src("f2"), 1_600_000_000, 0);
            assert_eq!(world.get("f2"), new, "inode {ino}");
            let mut read = vec![0; 3000];
            match held.read_exact_at(&mut read, 0) {
                Ok(()) => assert_eq!(read, old),
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ESTALE)),
            }
            std::fs::remove_file(world.src("f2")).unwrap();
        }
    });
}

#[test]
fn bug_120_what_was_replaced_while_open_can_still_be_asked() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        for d in ["d1", "d2"] {
            std::fs::create_dir(world.src(d)).unwrap();
        }
        world.put("f1", 100, 1);
        world.put("f2", 200, 2);
        let dir = File::open(world.mnt("d2")).unwrap();
        let file = File::open(world.mnt("f2")).unwrap();
        std::fs::rename(world.src("d1"), world.src("d2")).unwrap();
        std::fs::rename(world.src("f1"), world.src("f2")).unwrap();
        for _ in 0..2 {
            assert!(dir.metadata().unwrap().is_dir());
            assert_eq!(file.metadata().unwrap().len(), 200);
            assert_eq!(std::fs::metadata(world.mnt("f2")).unwrap().len(), 100);
        }
    });
}

#[test]
fn bug_139_no_reader_sees_an_empty_file_that_is_not() {
    need_mount!();
    both(|mode| {
        let world = World::new(mode);
        for n in 0..100 {
            world.put(&format!("d/{n}"), 700, n);
        }
        for ttl in ["0", "1s"] {
            assert!(world.try_mount(&["--ttl", ttl]).status.success());
            std::thread::scope(|scope| {
                for t in 0..16 {
                    let world = &world;
                    scope.spawn(move || {
                        if t % 4 == 0 {
                            shell("ls -l \"$1\" > /dev/null", &[&world.mnt("d")]);
                        }
                        for n in 0..100 {
                            assert_eq!(world.get(&format!("d/{n}")).len(), 700);
                        }
                    });
                }
            });
            world.umount();
        }
    });
}

#[test]
fn bug_149_a_link_swapped_in_leads_nowhere() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let outside = world.dir().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("f"), "SECRET OF THE OUTSIDE").unwrap();
        world.put("d/g", 10, 1);
        std::fs::write(world.src("d/f"), "inside").unwrap();
        std::os::unix::fs::symlink(&outside, world.src("link")).unwrap();
        assert_eq!(std::fs::read_link(world.mnt("link")).unwrap(), outside);
        let until = Instant::now() + Duration::from_millis(700);
        let root: OwnedFd = File::open(world.mnt("")).unwrap().into();
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let swap = || {
                    rustix::fs::renameat_with(
                        CWD,
                        world.src("d"),
                        CWD,
                        world.src("link"),
                        RenameFlags::EXCHANGE,
                    )
                };
                while Instant::now() < until {
                    swap().unwrap();
                }
            });
            for _ in 0..3 {
                scope.spawn(|| {
                    // The reader follows no link by itself, so what it reads came from the daemon.
                    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
                    while Instant::now() < until {
                        let opened = rustix::fs::openat2(
                            root.as_fd(),
                            "d/f",
                            OFlags::RDONLY | OFlags::CLOEXEC,
                            Mode::empty(),
                            resolve,
                        );
                        if let Ok(fd) = opened {
                            let mut text = String::new();
                            if File::from(fd).read_to_string(&mut text).is_ok() {
                                assert_eq!(text, "inside");
                                inside.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        assert!(inside.load(Ordering::Relaxed) > 0, "nothing was read at all");
        let found = shell("grep -rl 'SECRET OF' \"$1\" || true", &[&world.cache()]);
        assert_eq!(String::from_utf8_lossy(&found), "");
    });
}
