//! Damage to the cache of a real mount: what the kernel reads by itself is only as right as what it was given. Files that
//! were tampered with are not given to it, what the disk has lost is found by `verify` and by the scrub even where the page
//! cache hides it, and a cache directory that goes away takes nothing with it but warmth.

use crate::common::*;
use crate::figures::{Figure, scale};
use crate::need_mount;
use crate::space::Disk;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Does something to a data file; to exchange it, there is another.
type Tamper = fn(&Path, &Path);

const TAMPERS: [(&str, Tamper); 11] = [
    ("cut short", |f, _| set_len(f, f.metadata().unwrap().len() / 2)),
    ("emptied", |f, _| set_len(f, 0)),
    ("extended", |f, _| set_len(f, f.metadata().unwrap().len() + 4096)),
    ("overwritten", |f, _| File::options().write(true).open(f).unwrap().write_all_at(b"mine", 7).unwrap()),
    ("exchanged", |f, other| {
        let aside = f.with_extension("aside");
        for (from, to) in [(f, aside.as_path()), (other, f), (&aside, other)] {
            std::fs::rename(from, to).unwrap();
        }
    }),
    ("removed", |f, _| std::fs::remove_file(f).unwrap()),
    ("mode 000", |f, _| {
        std::fs::set_permissions(f, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    }),
    ("pipe", |f, _| make_node(f, rustix::fs::FileType::Fifo)),
    ("directory", |f, _| {
        std::fs::remove_file(f).unwrap();
        std::fs::create_dir(f).unwrap();
    }),
    ("link", |f, _| {
        std::fs::remove_file(f).unwrap();
        std::os::unix::fs::symlink("/dev/zero", f).unwrap();
    }),
    ("device", |f, _| make_node(f, rustix::fs::FileType::CharacterDevice)),
];

fn set_len(path: &Path, len: u64) {
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// A pipe, or /dev/zero.
fn make_node(path: &Path, kind: rustix::fs::FileType) {
    std::fs::remove_file(path).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, rustix::fs::makedev(1, 5)).unwrap();
}

/// Goal: a data file that was tampered with, while the mount is up and nobody has it open or while it is down, is fetched
/// again: every read is right and none hangs, the damage is counted, and then all is cached again. Method: each kind on
/// files of its own, exchanged ones being of one size; the files were open before, so that the kernel has them registered.
#[test]
fn bug_030_tampered_data_files_are_fetched_again_whether_mounted_or_not() {
    need_mount!();
    let each = scale(5, 50, 50) as usize;
    let (mut reads, mut tampered) = (0, [0; TAMPERS.len()]);
    for (flags, mounted) in
        [(&[][..], true), (&[], false), (&["--no-passthrough"], true), (&["--no-passthrough"], false)]
    {
        let world = World::mounted(&[flags, &["-o", "scrub.rate=0"]].concat());
        // Two of each: what is exchanged is exchanged with the second. One in three has a second chunk.
        let size = |n: usize| if n.is_multiple_of(6) { (1 << 20) + 5000 } else { 40_000 };
        let count = TAMPERS.len() * each * 2;
        let files: Vec<_> = (0..count)
            .map(|n| (format!("f{n}"), world.put(&format!("f{n}"), size(n / 2 * 2), n as u64)))
            .collect();
        let check =
            || files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name} {flags:?}"));
        check();
        check();
        let places: Vec<_> =
            files.iter().map(|(name, _)| PathBuf::from(world.xattr(name, "cache_path"))).collect();
        if !mounted {
            world.umount();
        }
        for (n, pair) in places.chunks(2).enumerate() {
            let kind = n % TAMPERS.len();
            TAMPERS[kind].1(&pair[0], &pair[1]);
            tampered[kind] += 1;
        }
        if mounted {
            // Pages that the kernel keeps would hide from the reads what is below.
            drop_caches();
        } else {
            world.mount();
        }
        let before = world.stat("backing_bytes_read");
        check();
        check();
        reads += 2 * count as u64;
        let errors = world.stat("cache_errors") + world.stat("checksum_failures");
        assert!(errors as usize >= 8 * each, "{errors} were noticed");
        assert!(world.stat("backing_bytes_read") > before, "fetched again");
        let before = world.stat("backing_bytes_read");
        check();
        assert_eq!(world.stat("backing_bytes_read"), before, "healed for good");
        world.umount();
    }
    let figure = Figure::new("R11", "reads over tampered data files", reads, 0);
    TAMPERS
        .iter()
        .zip(tampered)
        .fold(figure, |figure, ((kind, _), count)| figure.fired(kind, count))
        .note("files that a reader has open in passthrough while they are changed in place are left out: the kernel reads them")
        .report();
}

/// Where the first block of `path` is on its file system's device, bytes.
fn on_device(path: &Path) -> u64 {
    let output = Command::new("filefrag").args(["-v", "-b1024"]).arg(path).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    let first =
        shown.lines().find(|line| line.trim_start().starts_with("0:")).unwrap_or_else(|| panic!("{shown}"));
    let physical = first.split(':').nth(2).unwrap().split("..").next().unwrap();
    physical.trim().parse::<u64>().unwrap() * 1024
}

/// Files on a disk whose blocks were damaged under the file system, so that the page cache still has the right ones.
fn damaged_below_the_page_cache(flags: &[&str]) -> (World, Disk, Vec<(String, Vec<u8>)>) {
    let world = World::new(flags);
    let disk = Disk::ext4(&world, 64, &[]);
    world.mount();
    let files: Vec<_> = (0..8).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 100_000, n))).collect();
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
    wait_until("all were read back", || {
        flags.contains(&"scrub.rate=0") || world.stat("scrub_bytes") == 800_000
    });
    rustix::fs::sync();
    let image = File::options().read(true).write(true).open(world.dir().join("disk.img")).unwrap();
    for (name, bytes) in &files[..5] {
        let path = PathBuf::from(world.xattr(name, "cache_path"));
        let at = on_device(&path);
        let mut block = [0; 512];
        image.read_exact_at(&mut block, at).unwrap();
        assert!(block == bytes[..512], "not where it is");
        image.write_all_at(&[block[100] ^ 4], at + 100).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), *bytes, "the page cache has what was there before");
    }
    image.sync_all().unwrap();
    (world, disk, files)
}

/// Goal: what the disk has lost is found though the page cache still has it: a look through the page cache finds nothing.
#[test]
fn verify_looks_at_the_disk_and_not_at_the_page_cache() {
    need_mount!();
    let (world, _disk, files) = damaged_below_the_page_cache(&["-o", "scrub.rate=0"]);
    let output = run(&["verify".as_ref(), world.mnt("").as_os_str()]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert_eq!(world.stat("checksum_failures"), 5);
    let before = world.stat("misses");
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
    assert_eq!(world.stat("misses"), before + 5, "what is damaged is fetched again, and nothing else");
    world.umount();
}

/// Goal: the same for the scrub, which by then has read everything back once and finds it in its next pass; it says so in
/// the log and counts it, and does not evict what it read from the page cache.
#[test]
fn the_scrub_looks_at_the_disk_and_not_at_the_page_cache() {
    need_mount!();
    let (world, _disk, files) = damaged_below_the_page_cache(&["-o", "scrub.interval=3s"]);
    wait_until("it finds them", || world.stat("checksum_failures") == 5);
    wait_until("it ends its pass", || world.stat("scrub_passes") > 0);
    assert!(world.log().contains("is damaged in chunk 0, dropped"), "{}", world.log());
    assert!(world.stats()["scrub_last_pass_s"].as_u64().is_some());
    let before = world.stat("misses");
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
    assert_eq!(world.stat("misses"), before + 5, "what is damaged is fetched again, and nothing else");
    world.umount();
}

/// Goal: at rest, between two passes, the scrub takes no time and reads nothing.
#[test]
fn the_scrub_at_rest_costs_nothing() {
    need_mount!();
    let world = World::mounted(&[]);
    (0..50).for_each(|n| drop(world.put(&format!("f{n}"), 30_000, n)));
    (0..50).for_each(|n| drop(world.get(&format!("f{n}"))));
    wait_until("all were read back", || world.stat("scrub_bytes") == 50 * 30_000);
    assert_eq!(world.stat("scrub_waiting_files"), 0);
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", world.pid())).unwrap();
        let fields: Vec<u64> =
            stat.rsplit_once(')').unwrap().1.split_whitespace().map(|f| f.parse().unwrap_or(0)).collect();
        fields[11] + fields[12]
    };
    let read = || {
        let io = std::fs::read_to_string(format!("/proc/{}/io", world.pid())).unwrap();
        io.lines().find(|line| line.starts_with("read_bytes")).unwrap().to_string()
    };
    let before = (ticks(), read());
    std::thread::sleep(Duration::from_secs(3));
    let after = (ticks(), read());
    assert!(after.0 - before.0 <= 1 && after.1 == before.1, "{before:?} {after:?}");
    world.umount();
}

/// Takes the cache away from under a mount.
type TakeAway = fn(&World);

fn shell(world: &World, script: &str) {
    // Again: what readers fill meanwhile is in the way.
    let done = (0..50).any(|_| {
        Command::new("sh").args(["-c", script]).env("CACHE", world.cache()).output().unwrap().status.success()
    });
    assert!(done, "{script}");
}

/// Readers of all files that never stop, around `change`. Gives the number of reads; none may fail or be wrong.
fn read_around(world: &World, files: &[(String, Vec<u8>)], change: impl FnOnce()) -> u64 {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let (end, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (end, reads) = (&end, &reads);
            scope.spawn(move || {
                let mut n = reader * 17;
                while !end.load(Ordering::Relaxed) {
                    n = (n + 1) % files.len();
                    assert!(world.get(&files[n].0) == files[n].1, "{}", files[n].0);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _ends = Ends(&end);
        wait_until("they read", || reads.load(Ordering::Relaxed) > 50);
        change();
        let then = reads.load(Ordering::Relaxed);
        wait_until("they read on", || reads.load(Ordering::Relaxed) > then + 300);
    });
    reads.load(Ordering::Relaxed)
}

fn put_and_read(world: &World) -> Vec<(String, Vec<u8>)> {
    let files: Vec<_> = (0..40)
        .map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 20_000 + n as usize * 1000, n)))
        .collect();
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
    files
}

/// Goal: a cache directory that is removed, emptied or exchanged under a mount costs no reader anything; soon after it is
/// there again, with its control socket, and what is cached then is kept over a restart.
#[test]
fn bug_025_a_mount_whose_cache_is_taken_away_goes_on_and_recovers() {
    need_mount!();
    let takes: [(&str, TakeAway); 3] = [
        ("removed", |world| shell(world, "rm -rf \"$CACHE\"")),
        ("emptied", |world| shell(world, "rm -rf \"$CACHE\"/*")),
        ("exchanged", |world| shell(world, "mv \"$CACHE\" \"$CACHE.away\" && mkdir -m 700 \"$CACHE\"")),
    ];
    let (mut reads, mut recovered) = (0, 0);
    for (flags, (what, take)) in
        [&[][..], &["--no-passthrough"]].into_iter().flat_map(|f| takes.map(|t| (f, t)))
    {
        let world = World::mounted(&[flags, &["-o", "cache.ram_window=0"]].concat());
        let files = put_and_read(&world);
        let held = File::open(world.mnt("f3")).unwrap();
        reads += read_around(&world, &files, || take(&world));
        let mut read = vec![0; files[3].1.len()];
        held.read_exact_at(&mut read, 0).unwrap();
        assert!(read == files[3].1, "what is open stays readable");
        drop(held);
        // Looked for every few seconds; then `stats` is answered.
        let socket = world.cache().join("control.sock");
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while !socket.exists() {
            assert!(
                std::time::Instant::now() < deadline,
                "{what}: the control socket is not back\n{}",
                world.log()
            );
            files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
            // Between two looks.
            std::thread::sleep(Duration::from_millis(100));
        }
        wait_until("all are cached again", || {
            files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
            world.stat("cached_files") == 40
        });
        if what != "exchanged" {
            assert!(world.stat("cache_errors") > 0, "{what}: counted");
            assert!(world.log().contains("made anew"), "{what}: {}", world.log());
        }
        world.umount();
        if what == "exchanged" {
            shell(&world, "rm -rf \"$CACHE\" && mv \"$CACHE.away\" \"$CACHE\"");
        }
        world.mount();
        files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
        assert_eq!(world.stat("backing_bytes_read"), 0, "{what}: warm after a restart");
        recovered += 1;
        world.umount();
    }
    Figure::new("R11", "reads while the cache directory is taken away", reads, 0)
        .fired("removed, emptied or exchanged, and recovered", recovered)
        .report();
}

/// Goal: a cache that cannot be written any more costs no reader anything. Method: a file system that has given itself up
/// (ext4 after `remount,abort`: every write fails, what is in it can be read), and a directory that was made immutable
/// and of mode 500, which is undone.
#[test]
fn a_cache_that_becomes_read_only_is_not_the_readers_business() {
    need_mount!();
    let mut reads = 0;
    for flags in [&[][..], &["--no-passthrough"]] {
        let world = World::new(flags);
        let _disk = Disk::ext4(&world, 64, &[]);
        world.mount();
        let mut files = put_and_read(&world);
        let new = |n: u64| (format!("new{n}"), world.put(&format!("new{n}"), 30_000, 100 + n));
        shell(&world, "chattr +i \"$CACHE\"/*/data && chmod 500 \"$CACHE\"");
        files.extend((0..20).map(new));
        reads += read_around(&world, &files, || {
            shell(&world, "chattr -i \"$CACHE\"/*/data && chmod 700 \"$CACHE\"");
        });
        reads += read_around(&world, &files, || shell(&world, "mount -o remount,abort \"$CACHE\""));
        assert!(File::create(world.cache().join("x")).is_err(), "it was not read-only");
        files.extend((20..60).map(new));
        reads += read_around(&world, &files, || {});
        assert!(world.stat("cache_errors") > 0, "{}", world.stats());
        world.umount();
    }
    Figure::new("R11", "reads while the cache is read-only", reads, 0)
        .fired("file systems given up", 2)
        .report();
}
