//! Directories: types, pages, positions, listings that change while they are read, and large ones.

use crate::common::*;
use crate::need_mount;
use crate::tools::*;
use rustix::fs::{FileType, RawDir};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

/// An entry as getdents(2) gives it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Listed {
    name: Vec<u8>,
    next: u64,
    ino: u64,
}

/// Lists from where the descriptor stands, with a buffer of this size.
fn list(dir: &File, buffer: usize) -> Vec<(Listed, FileType)> {
    let mut buffer = vec![MaybeUninit::uninit(); buffer];
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut all = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_bytes().to_vec();
        all.push((Listed { name, next: entry.next_entry_cookie(), ino: entry.ino() }, entry.file_type()));
    }
    all
}

fn names(entries: &[(Listed, FileType)]) -> Vec<&[u8]> {
    entries.iter().map(|(e, _)| &e.name[..]).filter(|n| *n != b"." && *n != b"..").collect()
}

#[test]
fn bug_114_every_entry_has_its_type() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        std::fs::create_dir_all(world.src("d/dir")).unwrap();
        world.put("d/file", 10, 1);
        symlink("file", world.src("d/link")).unwrap();
        shell(
            "mkfifo \"$1/fifo\" && mknod \"$1/char\" c 1 3 && mknod \"$1/block\" b 7 0",
            &[&world.src("d")],
        );
        let _socket = std::os::unix::net::UnixListener::bind(world.src("d/socket")).unwrap();
        let wanted: BTreeMap<&[u8], FileType> = [
            (&b"."[..], FileType::Directory),
            (b"..", FileType::Directory),
            (b"dir", FileType::Directory),
            (b"file", FileType::RegularFile),
            (b"link", FileType::Symlink),
            (b"fifo", FileType::Fifo),
            (b"char", FileType::CharacterDevice),
            (b"block", FileType::BlockDevice),
            (b"socket", FileType::Socket),
        ]
        .into();
        for _ in 0..3 {
            let listed = list(&File::open(world.mnt("d")).unwrap(), 4096);
            let seen: BTreeMap<_, _> = listed.iter().map(|(e, kind)| (&e.name[..], *kind)).collect();
            assert_eq!(seen, wanted);
            assert_eq!(listed.len(), wanted.len());
            for (entry, _) in &listed {
                let path = world.mnt("d").join(OsStr::from_bytes(&entry.name));
                let ino = std::os::unix::fs::MetadataExt::ino(&std::fs::symlink_metadata(path).unwrap());
                assert_eq!(entry.ino, ino, "{entry:?}");
            }
        }
        let found = shell("find \"$1\" -mindepth 1 -type d -printf '%f '", &[&world.mnt("d")]);
        assert_eq!(found, b"dir ");
    });
}

#[test]
fn bug_115_every_name_comes_once_whatever_the_buffer() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for count in [0, 1, 2, 31, 32, 33, 100, 1000, 5000] {
            let dir = world.src(count.to_string());
            std::fs::create_dir(&dir).unwrap();
            let mut wanted = BTreeSet::new();
            for n in 0..count {
                let name = format!("{n}-{}", "x".repeat(1 + n * 37 % 245));
                File::create(dir.join(&name)).unwrap();
                wanted.insert(name.into_bytes());
            }
            let opened = File::open(world.mnt(count.to_string())).unwrap();
            let mut last = Vec::new();
            for buffer in [512, 4096, 32768, 1 << 20] {
                rustix::fs::seek(&opened, rustix::fs::SeekFrom::Start(0)).unwrap();
                let listed = list(&opened, buffer);
                assert_eq!(listed.len(), count + 2, "{count} {buffer}");
                assert_eq!(names(&listed).into_iter().map(<[u8]>::to_vec).collect::<BTreeSet<_>>(), wanted);
                last = listed;
            }
            // Back to any place, and the same tail follows.
            let mut dice = Dice::new(count as u64 + 1);
            for _ in 0..10 {
                let at = dice.below(last.len());
                rustix::fs::seek(&opened, rustix::fs::SeekFrom::Start(last[at].0.next)).unwrap();
                assert!(list(&opened, 4096)[..] == last[at + 1..], "{count} from {at}");
            }
        }
    });
}

/// The best of five times for listing all of a directory.
fn time_to_list(dir: &Path, entries: usize) -> Duration {
    let once = || {
        let since = Instant::now();
        assert_eq!(list(&File::open(dir).unwrap(), 32768).len(), entries + 2);
        since.elapsed()
    };
    (0..5).map(|_| once()).min().unwrap()
}

#[test]
fn bug_116_a_hundred_thousand_entries_are_listed_right_and_in_time() {
    need_mount!();
    let world = World::new(&[]);
    let source = Mounted::tmpfs(&world.src(""));
    for (dir, count) in [("few", 10_000), ("many", 100_000)] {
        std::fs::create_dir(world.src(dir)).unwrap();
        for n in 0..count {
            File::create(world.src(dir).join(format!("file-{n:06}"))).unwrap();
        }
    }
    for mode in [&[][..], &["--ttl", "0"]] {
        assert!(world.try_mount(mode).status.success());
        let few = time_to_list(&world.mnt("few"), 10_000);
        let many = time_to_list(&world.mnt("many"), 100_000);
        // Ten times as many; were each page to walk from the start, it would be a hundred times as long. The rest is what
        // the processor's caches make of it.
        assert!(many < few * 10 * 4, "{few:?} for 10,000, {many:?} for 100,000");
        assert!(many < Duration::from_secs(1), "{many:?}");
        let listed = list(&File::open(world.mnt("many")).unwrap(), 32768);
        let seen: BTreeSet<_> = names(&listed).into_iter().collect();
        assert_eq!(seen.len(), 100_000);
        assert!(seen.first() == Some(&&b"file-000000"[..]) && seen.last() == Some(&&b"file-099999"[..]));
        assert!(world.mnt("many/file-050000").exists() && !world.mnt("many/file-100000").exists());
        world.umount();
    }
    drop(source);
}

#[test]
fn bug_117_what_was_there_all_the_time_is_listed_once() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        std::fs::create_dir(world.src("d")).unwrap();
        for n in 0..4000 {
            let name = if n % 2 == 0 { format!("stays-{n}") } else { format!("goes-{n}") };
            File::create(world.src("d").join(name)).unwrap();
        }
        let dir = File::open(world.mnt("d")).unwrap();
        let mut buffer = vec![MaybeUninit::uninit(); 512];
        let mut raw = RawDir::new(&dir, &mut buffer);
        let (mut seen, mut made) = (BTreeMap::<Vec<u8>, u32>::new(), 0);
        while let Some(entry) = raw.next() {
            let name = entry.unwrap().file_name().to_bytes().to_vec();
            if name.starts_with(b"goes") {
                // Another may list it, too, and is not to be disturbed either.
                let _ = std::fs::remove_file(world.src("d").join(OsStr::from_bytes(&name)));
                File::create(world.src("d").join(format!("new-{made}"))).unwrap();
                made += 1;
            }
            if made % 500 == 499 {
                std::fs::read_dir(world.mnt("d")).unwrap().for_each(drop);
            }
            *seen.entry(name).or_default() += 1;
        }
        assert!(seen.values().all(|n| *n == 1), "a name came twice");
        assert_eq!(seen.keys().filter(|n| n.starts_with(b"stays")).count(), 2000);
        let now = list(&File::open(world.mnt("d")).unwrap(), 4096);
        assert_eq!(names(&now).len(), std::fs::read_dir(world.src("d")).unwrap().count());
    });
}

#[test]
fn bug_119_a_directory_that_is_removed_while_listed_ends_cleanly() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        for n in 0..300 {
            world.put(&format!("d/{n}"), 1, n);
        }
        let dir = File::open(world.mnt("d")).unwrap();
        let mut buffer = vec![MaybeUninit::uninit(); 512];
        let mut raw = RawDir::new(&dir, &mut buffer);
        raw.next().unwrap().unwrap();
        std::fs::remove_dir_all(world.src("d")).unwrap();
        while let Some(entry) = raw.next() {
            entry.unwrap();
        }
        assert!(dir.metadata().unwrap().is_dir());
        let flags = rustix::fs::OFlags::RDONLY;
        let inside = rustix::fs::openat(&dir, "5", flags, rustix::fs::Mode::empty()).unwrap_err();
        assert!(matches!(inside.raw_os_error(), libc::ENOENT | libc::ESTALE), "{inside}");
        assert_eq!(std::fs::read_dir(world.mnt("d")).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn bug_092_whoever_walks_everything_comes_to_an_end() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for n in 0..60 {
            world.put(&format!("d{}/{n}", n % 5), 3000, n);
        }
        // What warmfs itself provides is there for who asks, and for nobody else.
        assert!(world.mnt(".warmfs/stats.json").exists());
        let (mnt, copy) = (world.mnt(""), world.dir().join("copy"));
        shell("cp -r \"$1\" \"$2\" && diff -r \"$1\" \"$2\" && rm -r \"$2\"", &[&mnt, &copy]);
        shell("! grep -r cache_used_bytes \"$1\"", &[&mnt]);
        shell("tar -cf - -C \"$1\" . | tar -tf - | wc -l | grep -qx 66", &[&mnt]);
        shell("find \"$1\" -type f -exec cat {} + | wc -c | grep -qx 180000", &[&mnt]);
        shell("! ls -a \"$1\" | grep warmfs", &[&mnt]);
        if Path::new("/usr/bin/rsync").exists() {
            shell("rsync -aH \"$1/\" \"$2\" && diff -r \"$1\" \"$2\"", &[&mnt, &copy]);
        }
        python(
            "import os, sys\nn = 0\nfor d, _, files in os.walk(sys.argv[1]):\n  for f in files:\n    \
            n += len(open(os.path.join(d, f), 'rb').read())\nassert n == 180000, n",
            &[&mnt],
        );
    });
}

#[test]
fn bug_092_a_users_own_file_of_that_name_is_not_hidden() {
    need_mount!();
    let world = World::mounted(&["--ttl", "0"]);
    let own = world.put(".warmfs/stats.json", 100, 1);
    let deep = world.put("d/.warmfs", 50, 2);
    assert_eq!(world.get(".warmfs/stats.json"), own);
    assert_eq!(world.get("d/.warmfs"), deep);
    assert_eq!(shell("ls -A \"$1\"", &[&world.mnt("")]), b".warmfs\nd\n");
    assert!(!world.mnt("d/none/.warmfs").exists());
    std::fs::remove_dir_all(world.src(".warmfs")).unwrap();
    assert_ne!(world.get(".warmfs/stats.json"), own);
}

#[test]
fn a_walk_knows_the_attributes_without_asking_one_by_one() {
    need_mount!();
    undisturbed(|| {
        let world = World::mounted(&[]);
        for n in 0..1000 {
            world.put(&format!("d/{n}"), n, n as u64);
        }
        let before = world.stat("lookups");
        for entry in std::fs::read_dir(world.mnt("d")).unwrap() {
            let entry = entry.unwrap();
            let size: u64 = entry.file_name().to_str().unwrap().parse().unwrap();
            assert_eq!(entry.metadata().unwrap().len(), size);
        }
        let asked = world.stat("lookups") - before;
        assert!(asked < 500, "{asked} look-ups for 1,000 entries");
    });
}

#[test]
fn a_slow_source_is_listed_whole_and_with_numbers() {
    need_mount!();
    both(|mode| {
        let world = Slow::new();
        for n in 0..300 {
            world.put(&format!("d/{n}"), 1, n);
        }
        world.mount(&["--latency", "3ms"], mode);
        let since = Instant::now();
        assert_eq!(std::fs::read_dir(world.mnt("d")).unwrap().count(), 300);
        assert_eq!(shell("ls \"$1\" | wc -l", &[&world.mnt("d")]), b"300\n");
        assert!(since.elapsed() < Duration::from_millis(300), "{:?}", since.elapsed());
        let listed = list(&File::open(world.mnt("d")).unwrap(), 32768);
        assert_eq!(listed.len(), 302);
        assert!(listed.iter().all(|(e, _)| e.ino != 0), "an entry of number 0 is none to old libraries");
    });
}
