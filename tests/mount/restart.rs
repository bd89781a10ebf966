//! What survives an end: a clean one keeps everything, a crash keeps what was written down, and nothing that was damaged
//! meanwhile is ever believed.

use crate::common::*;
use crate::need_mount;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const FILES: usize = 80;
const LARGE: usize = (9 << 20) + 12345;

fn name(n: usize) -> String {
    format!("d{}/f{n}", n % 7)
}

/// Small files and a large one, all warm.
fn warm_world(flags: &[&str]) -> (World, Vec<Vec<u8>>, Vec<u8>) {
    let world = World::new(flags);
    let small: Vec<_> = (0..FILES).map(|n| world.put(&name(n), 1000 + n * 371, n as u64)).collect();
    let large = world.put("large", LARGE, 777);
    world.mount();
    read_all(&world, &small, &large);
    wait_until("the large file is whole", || world.xattr("large", "state") == "warm");
    (world, small, large)
}

fn read_all(world: &World, small: &[Vec<u8>], large: &[u8]) {
    for (n, bytes) in small.iter().enumerate() {
        assert!(world.get(&name(n)) == *bytes, "{} is wrong", name(n));
    }
    assert!(world.get("large") == large, "the large file is wrong");
}

/// Files below a cache directory that `wanted` picks.
fn cache_files(cache: &Path, wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![cache.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else if wanted(&entry.path()) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn data_files(world: &World) -> Vec<PathBuf> {
    cache_files(&world.cache(), |path| path.components().any(|c| c.as_os_str() == "data"))
}

fn index(world: &World) -> PathBuf {
    let mut found = cache_files(&world.cache(), |path| path.ends_with("index.redb"));
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

/// Waits until what was filled up to now is written down, which happens once a second.
fn wait_until_written_down(world: &World) {
    let since = SystemTime::now();
    let (path, mut last) = (index(world), None);
    // The end of the writing shows as nothing more being written.
    wait_until("the index is written", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = path.metadata().unwrap().modified().unwrap();
        now > since && last.replace(now) == Some(now)
    });
}

/// Makes sure that there is something to write down, then waits for it.
fn settle(world: &World) {
    world.put("last", 100, 1);
    world.get("last");
    wait_until_written_down(world);
}

fn a_clean_stop_keeps_everything(flags: &[&str]) {
    let (world, small, large) = warm_world(flags);
    for _ in 0..2 {
        world.umount();
        drop_caches();
        world.mount();
        assert_eq!(world.xattr("large", "state"), "warm");
        read_all(&world, &small, &large);
        assert_eq!(world.stat("backing_bytes_read"), 0);
        assert_eq!(world.stat("misses"), 0);
        let native = world.stat("passthrough_opens");
        assert_eq!(native > 0, flags.is_empty(), "{native} native opens");
    }
    assert!(!world.log().contains("not clean"), "{}", world.log());
}

#[test]
fn bug_039_a_clean_stop_keeps_everything() {
    need_mount!();
    a_clean_stop_keeps_everything(&[]);
}

#[test]
fn bug_039_a_clean_stop_keeps_everything_without_passthrough() {
    need_mount!();
    a_clean_stop_keeps_everything(&["--no-passthrough"]);
}

fn a_crash_keeps_what_was_written_down(flags: &[&str]) {
    let (world, small, large) = warm_world(flags);
    settle(&world);
    world.kill();
    drop_caches();
    world.mount();
    read_all(&world, &small, &large);
    let misses = world.stat("misses") as usize;
    assert!(misses * 20 <= FILES, "{misses} of {FILES} were lost");
    assert!(world.stat("backing_bytes_read") as usize <= large.len() / 20, "{}", world.stats());
    assert_eq!(world.stat("checksum_failures"), 0);
    // It was looked at once; from now on it is served as ever.
    let before = world.stat("passthrough_opens");
    world.get("large");
    assert_eq!(world.stat("passthrough_opens") > before, flags.is_empty());
}

#[test]
fn bug_039_a_crash_keeps_what_was_written_down() {
    need_mount!();
    a_crash_keeps_what_was_written_down(&[]);
}

#[test]
fn bug_039_a_crash_keeps_what_was_written_down_without_passthrough() {
    need_mount!();
    a_crash_keeps_what_was_written_down(&["--no-passthrough"]);
}

/// The source of `world` behind a slow file system, at `slow` in its directory.
fn slow_source(world: &World, bandwidth: &str) -> PathBuf {
    let slow = world.dir().join("slow");
    std::fs::create_dir(&slow).unwrap();
    let output = warmfs()
        .arg("faultfs")
        .args([world.src(""), slow.clone()])
        .args(["--bandwidth", bandwidth, "--ttl", "60s"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    slow
}

#[test]
fn bug_028_a_crash_in_the_middle_of_a_fill_leaves_nothing_wrong() {
    need_mount!();
    let world = World::new(&[]);
    // Of both kinds: filled whole in open, and chunk by chunk.
    let sizes = [3 << 20, (6 << 20) + 77];
    let files: Vec<_> = (0..10).map(|n| world.put(&format!("f{n}"), sizes[n % 2], n as u64)).collect();
    let slow = slow_source(&world, "120MB");
    let mount = || {
        let output = warmfs()
            .arg("mount")
            .args([&slow, &world.mnt("")])
            .args([OsStr::new("--cache-dir"), world.cache().as_os_str()])
            .args(["-o", "source.identity=inode"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
    };
    for (round, bytes) in files.iter().enumerate() {
        mount();
        let path = world.mnt(format!("f{round}"));
        let reader = std::thread::spawn(move || std::fs::read(path));
        // Once it has begun; then at another moment in each round.
        wait_until("the fill began", || world.stat("lookups") > 0);
        std::thread::sleep(Duration::from_millis(5 * round as u64));
        // The source's daemon has the world's directory on its command line, but not the cache's.
        world.kill();
        if let Ok(read) = reader.join().unwrap() {
            assert!(read == *bytes, "round {round}: a wrong read before the crash");
        }
        mount();
        assert!(world.get(&format!("f{round}")) == *bytes, "round {round}: wrong after the crash");
        world.kill();
    }
    mount();
    for (n, bytes) in files.iter().enumerate() {
        assert!(world.get(&format!("f{n}")) == *bytes, "f{n} is wrong in the end");
    }
    assert_eq!(world.stat("checksum_failures"), 0, "only whole chunks were believed");
}

fn half_warm(end: fn(&World)) {
    let world = World::new(&[]);
    let size = 24 << 20;
    let bytes = world.put("big", size, 5);
    world.mount();
    let file = File::open(world.mnt("big")).unwrap();
    let mut block = vec![0; 4096];
    // Fewer than make it look like a reader that wants everything.
    for chunk in [22, 3, 17, 9, 12, 0] {
        let at = (chunk << 20) + 70_000;
        file.read_exact_at(&mut block, at as u64).unwrap();
        assert_eq!(block, bytes[at..at + block.len()]);
    }
    drop(file);
    assert_eq!(world.xattr("big", "state"), "partial");
    settle(&world);
    let cached = world.xattr("big", "cached_bytes");
    let kept: u64 = cached.parse().unwrap();
    assert!((6 << 20..16 << 20).contains(&kept), "{kept}");
    end(&world);
    drop_caches();
    world.mount();
    assert_eq!(world.xattr("big", "state"), "partial");
    assert_eq!(world.xattr("big", "cached_bytes"), cached);
    assert!(world.get("big") == bytes);
    let read = world.stat("backing_bytes_read");
    assert!(read <= size as u64 - kept, "{read} bytes from the source, {kept} of {size} were there");
    wait_until("it is whole", || world.xattr("big", "state") == "warm");
    drop_caches();
    assert!(world.get("big") == bytes);
    assert_eq!(world.stat("backing_bytes_read"), size as u64 - kept);
    assert_eq!(world.stat("checksum_failures"), 0);
}

#[test]
fn bug_040_a_half_warm_file_goes_on_after_a_crash() {
    need_mount!();
    half_warm(World::kill);
}

#[test]
fn bug_040_a_half_warm_file_goes_on_after_a_clean_stop() {
    need_mount!();
    half_warm(World::umount);
}

#[test]
fn bug_040_without_its_index_the_cache_starts_empty_and_right() {
    need_mount!();
    let (world, small, large) = warm_world(&[]);
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("removed", |path| std::fs::remove_file(path).unwrap()),
        ("emptied", |path| std::fs::write(path, "").unwrap()),
        ("rubbish", |path| std::fs::write(path, pattern(3, 70_000)).unwrap()),
        ("cut short", |path| {
            let half = path.metadata().unwrap().len() / 2;
            File::options().write(true).open(path).unwrap().set_len(half).unwrap();
        }),
        ("first page zeroed", |path| {
            File::options().write(true).open(path).unwrap().write_all_at(&[0; 4096], 0).unwrap();
        }),
    ];
    for (what, damage) in damages {
        world.umount();
        damage(&index(&world));
        world.mount();
        assert_eq!(world.stat("cached_files"), 0, "{what}");
        assert_eq!(data_files(&world).len(), 0, "{what}: data that nobody knows takes no space");
        read_all(&world, &small, &large);
        assert_eq!(world.stat("misses") as usize / FILES, 1, "{what}");
        wait_until("the large file is whole", || world.xattr("large", "state") == "warm");
    }
    let warnings = world.log().matches("cannot be read").count();
    assert!((3..=4).contains(&warnings), "one warning each: {}", world.log());
}

fn flip_a_bit(path: &Path, seed: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let at = pattern(seed, 8).iter().fold(0u64, |sum, b| sum.wrapping_mul(257) + u64::from(*b)) % size;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << (seed % 8))], at).unwrap();
}

fn a_flipped_bit_after_a_crash_is_noticed_and_healed(flags: &[&str]) {
    // Without the scrub, which would find the one that nobody reads, too.
    let (world, small, large) = warm_world(&[flags, &["-o", "scrub.rate=0"]].concat());
    settle(&world);
    world.kill();
    let damaged = data_files(&world);
    assert_eq!(damaged.len(), FILES + 2);
    damaged.iter().zip(1..).for_each(|(path, seed)| flip_a_bit(path, seed));
    drop_caches();
    world.mount();
    read_all(&world, &small, &large);
    // All but the one that only made the index be written.
    assert_eq!(world.stat("checksum_failures"), FILES as u64 + 1);
    let before = world.stat("backing_bytes_read");
    drop_caches();
    read_all(&world, &small, &large);
    assert_eq!(world.stat("backing_bytes_read"), before, "healed for good");
    assert_eq!(world.stat("checksum_failures"), FILES as u64 + 1);
}

#[test]
fn bug_029_a_flipped_bit_after_a_crash_is_noticed_and_healed() {
    need_mount!();
    a_flipped_bit_after_a_crash_is_noticed_and_healed(&[]);
}

#[test]
fn bug_029_a_flipped_bit_after_a_crash_is_noticed_and_healed_without_passthrough() {
    need_mount!();
    a_flipped_bit_after_a_crash_is_noticed_and_healed(&["--no-passthrough"]);
}

#[test]
fn bug_029_doubt_outlives_a_clean_stop() {
    need_mount!();
    // Without the scrub, which would look at everything before anybody asks.
    let (world, small, large) = warm_world(&["-o", "scrub.rate=0"]);
    settle(&world);
    world.kill();
    data_files(&world).iter().zip(1..).for_each(|(path, seed)| flip_a_bit(path, seed));
    // Nobody reads anything before the next stop, which is a clean one.
    world.mount();
    world.umount();
    drop_caches();
    world.mount();
    read_all(&world, &small, &large);
    assert_eq!(world.stat("checksum_failures"), FILES as u64 + 1);
    world.get("last");
    world.umount();
    world.mount();
    read_all(&world, &small, &large);
    assert_eq!(world.stat("backing_bytes_read"), 0, "now that all was looked at, it is trusted");
}

#[test]
fn bug_029_verify_finds_a_flipped_bit_after_a_clean_stop() {
    need_mount!();
    let (world, small, large) = warm_world(&[]);
    world.umount();
    let damaged = data_files(&world);
    for path in [&damaged[3], &damaged[FILES / 2], &damaged[FILES]] {
        flip_a_bit(path, 9);
    }
    let verify = || warmfs().arg("verify").arg("--cache-dir").arg(world.cache()).output().unwrap();
    let output = verify();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("3 damaged"), "{}", text(&output));
    let output = verify();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    world.mount();
    read_all(&world, &small, &large);
    assert_eq!(world.stat("checksum_failures"), 0);
    assert!(world.stat("misses") >= 2, "{}", world.stats());
    let output = warmfs().arg("verify").arg(world.mnt("")).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
}

#[test]
fn bug_029_a_handle_that_is_open_does_not_read_what_verify_found_damaged() {
    need_mount!();
    let (world, small, large) = warm_world(&["--no-passthrough"]);
    drop_caches();
    let held = [name(5), "large".into()].map(|name| File::open(world.mnt(name)).unwrap());
    for name in [name(5), "large".into()] {
        flip_a_bit(Path::new(&world.xattr(&name, "cache_path")), 3);
    }
    let output = warmfs().arg("verify").arg(world.mnt("")).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    for (file, bytes) in held.iter().zip([&small[5], &large]) {
        let mut read = vec![0; bytes.len()];
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == *bytes);
    }
    drop(held);
    read_all(&world, &small, &large);
    assert_eq!(world.stat("checksum_failures"), 2);
}

fn data_files_that_were_tampered_with_are_fetched_again(end: fn(&World)) {
    let (world, small, large) = warm_world(&[]);
    settle(&world);
    end(&world);
    for (n, path) in data_files(&world).iter().enumerate() {
        let size = path.metadata().unwrap().len();
        let remove = || std::fs::remove_file(path).unwrap();
        match n % 7 {
            0 => File::options().write(true).open(path).unwrap().set_len(size / 2).unwrap(),
            1 => File::options().write(true).open(path).unwrap().set_len(size + 4096).unwrap(),
            2 => remove(),
            3 => {
                remove();
                std::fs::create_dir(path).unwrap();
            }
            4 => {
                remove();
                let mode = rustix::fs::Mode::from_raw_mode(0o600);
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            }
            5 => {
                remove();
                std::os::unix::fs::symlink("/dev/zero", path).unwrap();
            }
            _ => {}
        }
    }
    drop_caches();
    world.mount();
    for _ in 0..2 {
        read_all(&world, &small, &large);
    }
    assert!(world.stat("cache_errors") > 0 || world.stat("misses") > 0, "{}", world.stats());
    assert!(world.stat("hits") as usize >= FILES, "{}", world.stats());
    world.umount();
}

#[test]
fn bug_030_data_files_that_were_tampered_with_are_fetched_again_after_a_crash() {
    need_mount!();
    data_files_that_were_tampered_with_are_fetched_again(World::kill);
}

#[test]
fn bug_030_data_files_that_were_tampered_with_are_fetched_again_after_a_clean_stop() {
    need_mount!();
    data_files_that_were_tampered_with_are_fetched_again(World::umount);
}

fn a_source_that_changed_meanwhile_is_believed(end: fn(&World)) {
    let (world, mut small, large) = warm_world(&["--ttl=forever"]);
    settle(&world);
    end(&world);
    // Same size and another content; another size; replaced by rename; renamed; gone.
    small[0] = world.put(&name(0), small[0].len(), 5000);
    small[1] = world.put(&name(1), 12_345, 5001);
    let new = world.put("new", small[2].len(), 5002);
    std::fs::rename(world.src("new"), world.src(name(2))).unwrap();
    small[2] = new;
    let moved = small[3].clone();
    std::fs::rename(world.src(name(3)), world.src("moved")).unwrap();
    small[3] = world.put(&name(3), 7, 5003);
    std::fs::remove_file(world.src("last")).unwrap();
    world.mount();
    read_all(&world, &small, &large);
    assert!(world.get("moved") == moved);
    assert!(!world.mnt("last").exists());
    let read = world.stat("backing_bytes_read") as usize;
    assert!((12_345..60_000).contains(&read), "{read}: only what changed is fetched");
}

#[test]
fn a_source_that_changed_meanwhile_is_believed_after_a_crash() {
    need_mount!();
    a_source_that_changed_meanwhile_is_believed(World::kill);
}

#[test]
fn a_source_that_changed_meanwhile_is_believed_after_a_clean_stop() {
    need_mount!();
    a_source_that_changed_meanwhile_is_believed(World::umount);
}
