//! Damage to the cache on the disk: flipped bits in data, index and headers, found or without effect; what the scrub looks
//! at and when; and what becomes of a cache directory that is taken away.

use crate::common::*;
use crate::figures::{Figure, scale, seed};
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use warmfs::cache::scrub;
use warmfs::store::Place;

const FAST: NonZeroU64 = NonZeroU64::new(1 << 40).unwrap();

/// Flips a bit as a worn disk does: no page remembers what it should be, and the file's times do not tell.
fn rot(path: &Path, bit: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], bit / 8).unwrap();
    file.set_modified(modified).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// A source of small files and of files with a tail chunk, all cached.
struct Damaged {
    world: World,
    files: Vec<(String, Vec<u8>)>,
}

const FILES: u64 = 40;

impl Damaged {
    fn new(options: Options, round: u64) -> Self {
        let world = World::with(options);
        let size = |n: u64| if n.is_multiple_of(8) { MIB + 1 + n * 3001 } else { 1 + n * 997 };
        let put = |n: u64| {
            let name = format!("d{}/f{n}", n % 3);
            let bytes = world.put(&name, size(n), round * FILES + n);
            (name, bytes)
        };
        let files: Vec<_> = (0..FILES).map(put).collect();
        let it = Self { world, files };
        it.read_all("cold");
        wait_until("all are whole", || it.world.cache().all_files().iter().all(|f| f.is_complete()));
        it.world.cache().flush();
        it
    }

    fn read_all(&self, when: &str) {
        for (name, bytes) in &self.files {
            assert!(self.world.get(name) == *bytes, "{name} is wrong {when}");
        }
    }

    /// Where the data files are.
    fn places(&self) -> Vec<PathBuf> {
        let path = |f: std::sync::Arc<warmfs::store::CacheFile>| match f.place() {
            Place::Ssd { number } => self.world.cache().dir().data_path(*number),
            Place::Ram(_) => panic!("in RAM"),
        };
        let mut places: Vec<_> = self.world.cache().all_files().into_iter().map(path).collect();
        places.sort();
        assert_eq!(places.len() as u64, FILES);
        places
    }
}

/// Flips that were made, by structure.
#[derive(Default)]
struct Fired {
    data: u64,
    tail: u64,
    index: u64,
    header: u64,
}

impl Fired {
    fn all(&self) -> u64 {
        self.data + self.tail + self.index + self.header
    }

    /// One bit in each file; in those with a tail, half of the time there.
    fn rot_all(&mut self, places: &[PathBuf], dice: &mut Dice) {
        for path in places {
            let bits = path.metadata().unwrap().len() * 8;
            let in_tail = bits > MIB * 8 && dice.below(2) == 0;
            let first = if in_tail { MIB * 8 } else { 0 };
            rot(path, first + dice.below(bits - first));
            *(if in_tail { &mut self.tail } else { &mut self.data }) += 1;
        }
    }
}

/// How flipped bits in data are met.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Met {
    /// After an unclean stop, by the first open.
    OpenAfterCrash,
    /// By reads that go through us, the cache running on.
    Read,
    /// The same after a clean stop.
    ReadAfterStop,
    /// By the operator's `verify`, while it runs.
    Verify,
    /// By one pass of the scrub, while it runs.
    Pass,
    /// By one pass after a clean stop.
    PassAfterStop,
}

const MET: [Met; 6] =
    [Met::OpenAfterCrash, Met::Read, Met::ReadAfterStop, Met::Verify, Met::Pass, Met::PassAfterStop];

fn flip_data(met: Met, round: u64, fired: &mut Fired, dice: &mut Dice) {
    let passthrough = !matches!(met, Met::Read | Met::ReadAfterStop);
    // Large files by chunks in one half, whole in the other.
    let small_file_bytes_max = if round.is_multiple_of(2) { 4 * MIB } else { MIB };
    let options = Options { passthrough, small_file_bytes_max, ..Options::default() };
    let mut it = Damaged::new(options, round);
    let places = it.places();
    match met {
        Met::OpenAfterCrash => it.world.crash(),
        Met::ReadAfterStop | Met::PassAfterStop => it.world.stop(),
        Met::Read | Met::Verify | Met::Pass => {}
    }
    fired.rot_all(&places, dice);
    if !matches!(met, Met::Read | Met::Verify | Met::Pass) {
        it.world.start();
    }
    let stats = it.world.stats().clone();
    match met {
        Met::Verify => {
            let report = it.world.cache().verify(&[Path::new("")], &mut |_| true);
            assert_eq!(report.damaged.len() as u64, FILES, "{met:?}");
        }
        Met::Pass | Met::PassAfterStop => {
            let interval = Some(Duration::from_secs(1));
            it.world.cache().start_scrub(scrub::Settings { bytes_per_s: FAST, interval });
            wait_until("a pass has ended", || stats.scrub_passes.get() == 1);
        }
        _ => {}
    }
    let found_by_itself = matches!(met, Met::Verify | Met::Pass | Met::PassAfterStop);
    if found_by_itself {
        assert_eq!(stats.checksum_failures.get(), FILES, "{met:?}");
        assert_eq!(it.world.cache().file_count(), 0, "dropped, all of them");
    }
    let (fills, source) = (stats.fills.get(), stats.backing_bytes_read.get());
    it.read_all("after the flips");
    assert_eq!(stats.checksum_failures.get(), FILES, "{met:?}: each was counted once");
    let all: u64 = it.files.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    if found_by_itself {
        wait_until("all are whole again", || stats.fills.get() - fills == FILES);
        assert_eq!(stats.backing_bytes_read.get() - source, all, "{met:?}: refilled, and once");
    }
    // A copy that was found damaged by a reader is whole again after the next read at the latest.
    it.read_all("a second time");
    wait_until("all are whole again", || {
        it.world.cache().file_count() == FILES && it.world.cache().all_files().iter().all(|f| f.is_complete())
    });
    let source = stats.backing_bytes_read.get();
    it.read_all("a third time");
    assert_eq!(stats.backing_bytes_read.get(), source, "{met:?}: healed for good");
}

fn index_of(world: &World) -> PathBuf {
    world.cache().dir().index_path()
}

/// One flip in the index, while it is in use, after a clean stop or after a crash; then a start, and everything is read.
fn flip_index(it: &mut Damaged, round: u64, dice: &mut Dice) {
    let path = index_of(&it.world);
    let flip = |dice: &mut Dice| rot(&path, dice.below(path.metadata().unwrap().len() * 8));
    match round % 3 {
        0 => {
            flip(dice);
            // Something to write, over what was damaged.
            let name = format!("new{round}");
            let bytes = it.world.put(&name, 3000, round);
            assert!(it.world.get(&name) == bytes);
            it.world.cache().flush();
            it.read_all("with a damaged index in use");
            if dice.below(2) == 0 { it.world.stop() } else { it.world.crash() }
        }
        1 => {
            it.world.stop();
            flip(dice);
        }
        _ => {
            it.world.crash();
            flip(dice);
        }
    }
    it.world.start();
    it.read_all("after a flip in the index");
    let there = it.world.data_files().len() as u64;
    assert_eq!(there, it.world.cache().file_count(), "no data file that nobody counts");
}

/// One flip in a header; then a start, and everything is read from what is cached.
fn flip_header(it: &mut Damaged, round: u64, dice: &mut Dice) {
    let source_dir = index_of(&it.world).parent().unwrap().to_path_buf();
    let header = match round % 3 {
        0 => it.world.cache_dir().join("FORMAT"),
        1 => it.world.cache_dir().join("LOCK"),
        _ => source_dir.join("SOURCE"),
    };
    let running = dice.below(2) == 0;
    if !running {
        it.world.stop();
    }
    rot(&header, dice.below(header.metadata().unwrap().len() * 8));
    if running {
        it.world.stop();
    }
    it.world.start();
    it.read_all("after a flip in a header");
    assert_eq!(it.world.stats().backing_bytes_read.get(), 0, "nothing was lost for that");
}

/// Goal: a flipped bit anywhere in the cache is found or has no effect: no wrong read, no panic, no refused start. Method:
/// single random flips on the disk, with the page cache dropped and the file's times put back, in every data file, in the
/// index and in each header; running and stopped, cleanly and not; met by reads, by opens, by `verify` and by one pass of
/// the scrub. Where the kernel reads by itself after a clean stop, `verify` or the pass comes first: nobody looks otherwise.
#[test]
fn bug_029_bit_flips_are_found_or_harmless() {
    let seed = seed();
    let mut dice = Dice(seed);
    let wanted = scale(500, 10_000, 10_000);
    let mut fired = Fired::default();
    // Four in five in data; the index and the headers need a start each.
    for round in 0.. {
        if fired.data + fired.tail >= wanted * 4 / 5 && round >= MET.len() as u64 {
            break;
        }
        flip_data(MET[(round % 6) as usize], round, &mut fired, &mut dice);
    }
    let mut it = Damaged::new(Options::default(), 0);
    while fired.index < wanted * 3 / 20 {
        flip_index(&mut it, fired.index, &mut dice);
        fired.index += 1;
    }
    it.world.restart();
    it.read_all("whole again");
    it.world.restart();
    while fired.header < wanted / 20 {
        flip_header(&mut it, fired.header, &mut dice);
        fired.header += 1;
    }
    Figure::new("R10", "random single-bit flips in the cache", fired.all(), 0)
        .seed(seed)
        .fired("data", fired.data)
        .fired("tail chunk", fired.tail)
        .fired("index", fired.index)
        .fired("header", fired.header)
        .note("passthrough after a clean stop: found by verify or by one scrub pass, not by the read")
        .report();
}

fn start_scrub(world: &World, bytes_per_s: u64, interval: Option<Duration>) {
    let bytes_per_s = NonZeroU64::new(bytes_per_s).unwrap();
    world.cache().start_scrub(scrub::Settings { bytes_per_s, interval });
}

fn settled(world: &World) {
    wait_until("nothing waits to be read back", || world.cache().scrub().waiting() == 0);
}

/// Goal: what was filled is read back from the SSD, once, and what the SSD made of it is found without anybody reading it.
#[test]
fn what_was_written_is_read_back_from_the_ssd() {
    let world = World::new();
    start_scrub(&world, 1 << 40, None);
    let files: Vec<_> = (0..20).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 40_000, n))).collect();
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
    // Before the commit, so before anybody looked.
    let data = world.data_files();
    data.iter().take(7).for_each(|path| rot(path, 12_345));
    world.cache().flush();
    wait_until("all were read back", || world.stats().scrub_bytes.get() == 13 * 40_000);
    settled(&world);
    assert_eq!(world.stats().checksum_failures.get(), 7);
    assert_eq!(world.cache().file_count(), 13);
    files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
    world.cache().flush();
    wait_until("the new ones were read back", || world.stats().scrub_bytes.get() == 20 * 40_000);
    // That nothing follows can only be waited for.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(world.stats().scrub_bytes.get(), 20 * 40_000, "once");
    assert_eq!(world.stats().scrub_passes.get(), 0, "no interval, no pass");
}

/// Goal: what was not read back before a clean stop is read back after the next start, and no more than that; after a
/// crash everything is.
#[test]
fn what_was_not_read_back_is_remembered_over_a_stop() {
    let mut world = World::new();
    let size = 50_000;
    // A second for the first file, so that most have to wait.
    start_scrub(&world, size, None);
    for n in 0..10 {
        world.put(&format!("f{n}"), size, n);
        world.get(&format!("f{n}"));
    }
    world.cache().flush();
    wait_until("one is looked at", || world.stats().scrub_bytes.get() > 0);
    let seen = world.stats().scrub_bytes.get() / size;
    assert!(seen < 9, "{seen} of 10 were read back within an instant: the rate is not kept");
    world.stop();
    rot(&world.data_files()[9], 99);
    world.start();
    start_scrub(&world, 1 << 40, Some(Duration::from_secs(86_400)));
    settled(&world);
    wait_until("what was left is read back", || world.stats().checksum_failures.get() == 1);
    let now = world.stats().scrub_bytes.get() / size;
    assert!(
        (9 - seen..=10 - seen).contains(&now),
        "{now} after {seen}: only what was left, and what was under way"
    );
    assert_eq!(world.stats().scrub_passes.get(), 0);
    world.cache().flush();
    world.crash_and_start();
    start_scrub(&world, 1 << 40, Some(Duration::from_secs(86_400)));
    wait_until("a pass begins at once after a crash", || world.stats().scrub_passes.get() == 1);
    assert_eq!(world.stats().scrub_bytes.get(), 9 * size);
}

/// Goal: a pass that a stop cut off goes on where it was, so that a cache that is never up for long is still read whole.
#[test]
fn a_pass_goes_on_after_a_restart() {
    let mut world = World::new();
    let (count, size) = (12, 20_000);
    for n in 0..count {
        world.put(&format!("f{n}"), size, n);
        world.get(&format!("f{n}"));
    }
    world.cache().flush();
    world.restart();
    let mut seen = 0;
    let mut starts = 0;
    loop {
        start_scrub(&world, size * 20, Some(Duration::from_secs(86_400)));
        // It is stopped in the middle, at two files or so each time.
        std::thread::sleep(Duration::from_millis(120));
        seen += world.stats().scrub_bytes.get() / size;
        starts += 1;
        if world.stats().scrub_passes.get() == 1 {
            break;
        }
        assert!(starts < 100, "{seen} of {count} in {starts} starts");
        world.restart();
    }
    // At each stop one may be under way, which is looked at again.
    assert!(starts > 2 && (count..count + starts).contains(&seen), "{seen} of {count} in {starts} starts");
}

/// Goal: the scrub is in nobody's way: what it looks at can be evicted, its rate holds, and it ends with the cache.
#[test]
fn a_slow_scrub_is_in_nobodys_way() {
    let mut world = World::new();
    start_scrub(&world, 1, None);
    let bytes = world.put("f", 3 * MIB, 1);
    assert!(world.get("f") == bytes);
    world.cache().flush();
    wait_until("it has begun", || world.stats().scrub_bytes.get() > 0);
    assert!(world.evict("f"));
    assert!(world.get("f") == bytes);
    assert_eq!(world.stats().scrub_bytes.get(), MIB, "a chunk, and then a long rest");
    let begun = std::time::Instant::now();
    world.stop();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    world.start();
    assert!(world.get("f") == bytes && world.stats().backing_bytes_read.get() == 0);
}

/// Goal: an index that could not be written once is written when it can be: the data base below answers nothing any more
/// after a failed write. Method: a disk that is full for a while.
#[test]
fn an_index_that_failed_is_opened_anew() {
    let mut world = World::stopped(Options { bytes_max: 1 << 30, ..Options::default() });
    let Some(disk) = Tmpfs::new(&world.dir().join("disk"), "size=24m,mode=700") else { return };
    world.options.cache_dir = Some(disk.path().join("cache"));
    world.start();
    let files: Vec<_> = (0..40).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 5_000, n))).collect();
    let read_all = |world: &World| files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
    read_all(&world);
    world.cache().flush();
    let foreign = File::create(disk.path().join("foreign")).unwrap();
    let mut at = 0;
    while let Ok(n) = foreign.write_at(&[1; 4096], at) {
        at += n as u64;
    }
    // Something to write down that takes no room itself; each write of it takes new pages of the index.
    let mut tries = 0;
    while world.stats().cache_errors.get() == 0 {
        assert!(world.evict(&files[tries % 20].0) || tries >= 20);
        world.get(&files[tries % 20].0);
        world.cache().flush();
        tries += 1;
        assert!(tries < 500, "no write of the index failed on a full disk");
    }
    read_all(&world);
    drop(foreign);
    std::fs::remove_file(disk.path().join("foreign")).unwrap();
    // The SSD rests for a while after faults in a row.
    wait_until("all are cached again", || {
        read_all(&world);
        world.cache().file_count() == 40
    });
    world.cache().flush();
    world.crash_and_start();
    read_all(&world);
    assert_eq!(world.stats().backing_bytes_read.get(), 0, "nothing was forgotten");
    world.stop();
}

/// Takes the cache directory, or part of it, away.
type TakeAway = fn(&Path);

/// Goal: a cache directory that is removed under a running daemon costs no reader anything and is made anew, and what is
/// cached from then on is there after a restart. Method: readers read all the time; each part of it is taken away.
#[test]
fn bug_025_a_cache_directory_that_is_taken_away_is_made_anew() {
    let takes: [(&str, TakeAway); 5] = [
        ("all", remove),
        ("what is in it", |cache| {
            std::fs::read_dir(cache).unwrap().flatten().for_each(|e| remove(&e.path()))
        }),
        ("the index", |cache| std::fs::remove_file(source_dir(cache).join("index.redb")).unwrap()),
        ("the data", |cache| remove(&source_dir(cache).join("data"))),
        ("moved", |cache| {
            std::fs::rename(cache, cache.with_extension("away")).unwrap();
            std::fs::create_dir(cache).unwrap();
        }),
    ];
    for (passthrough, (what, take)) in [true, false].into_iter().flat_map(|p| takes.map(|t| (p, t))) {
        let mut world = World::with(Options { passthrough, ..Options::default() });
        let files: Vec<_> =
            (0..30).map(|n| (format!("f{n}"), world.put(&format!("f{n}"), 30_000, n))).collect();
        files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
        world.cache().flush();
        let held = world.open("f7").unwrap();
        let (end, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for reader in 0..3 {
                let (fs, files, end, reads) = (world.fs(), &files, &end, &reads);
                scope.spawn(move || {
                    let mut dice = Dice(reader);
                    while !end.load(Ordering::Relaxed) {
                        let (name, bytes) = &files[dice.below(30) as usize];
                        let read = open(fs, name).and_then(|f| f.read_all());
                        assert!(
                            read.unwrap_or_else(|e| panic!("{what} {name}: {e}")) == *bytes,
                            "{what} {name}"
                        );
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _ends = EndsReaders(&end);
            wait_until("they read", || reads.load(Ordering::Relaxed) > 100);
            take(&world.cache_dir());
            let then = reads.load(Ordering::Relaxed);
            wait_until("they read on", || reads.load(Ordering::Relaxed) > then + 300);
            world.cache().mend();
        });
        assert!(held.read_all().unwrap() == files[7].1, "what is open stays readable");
        drop(held);
        // The SSD rests for a while after faults in a row.
        wait_until("all are cached again", || {
            files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
            world.cache().file_count() == 30
        });
        assert!(what == "moved" || world.stats().cache_errors.get() > 0, "{what}: counted");
        if what == "moved" {
            // It goes on where it was moved to: what is at its old place is not ours.
            assert_eq!(std::fs::read_dir(world.cache_dir()).unwrap().count(), 0);
            world.stop();
            std::fs::remove_dir(world.cache_dir()).unwrap();
            std::fs::rename(world.cache_dir().with_extension("away"), world.cache_dir()).unwrap();
            world.start();
        } else {
            world.restart();
        }
        files.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes));
        assert_eq!(world.stats().backing_bytes_read.get(), 0, "{what}: warm after a restart");
        assert_eq!(world.data_files().len(), 30, "{what}");
    }
}

/// Removes everything, though it is filled meanwhile.
fn remove(path: &Path) {
    if !path.is_dir() {
        return std::fs::remove_file(path).unwrap();
    }
    let done = (0..100).any(|_| std::fs::remove_dir_all(path).is_ok());
    assert!(done, "{} cannot be removed", path.display());
}

/// Readers end with the scope, also when the test fails in it.
struct EndsReaders<'a>(&'a AtomicBool);

impl Drop for EndsReaders<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn source_dir(cache: &Path) -> PathBuf {
    let dirs = std::fs::read_dir(cache).unwrap().flatten();
    dirs.map(|d| d.path()).find(|d| d.join("data").is_dir()).unwrap()
}
