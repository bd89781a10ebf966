//! Names that are replaced as fast as a writer can, and read meanwhile.

use crate::common::{World, wait_until};
use crate::figures::{self, Figure, scale};
use crate::need_mount;
use crate::tools::{Dice, both, replace, versioned, whole_version, with};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Readers at the same time.
const READERS: usize = 4;

/// A name in the source and how large what it means may be.
struct Name {
    name: &'static str,
    size_max: usize,
}

/// Read whole by the kernel, read in pieces through us, and both with a change of the way in between.
const NAMES: [Name; 3] = [
    Name { name: "small", size_max: 15_000 },
    Name { name: "pieces", size_max: 120_000 },
    Name { name: "large", size_max: 3_000_000 },
];

/// What the readers met.
#[derive(Default)]
struct Met {
    reads: AtomicU64,
    errors: AtomicU64,
    torn: AtomicU64,
    backwards: AtomicU64,
    /// Reads of a version that was not the last one that was read.
    news: AtomicU64,
}

fn read_on(world: &World, name: &str, met: &Met, done: &AtomicBool) {
    let (mut last, mut reads) = (0, 0);
    while !done.load(Ordering::Acquire) || reads == 0 {
        reads += 1;
        met.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = match std::fs::read(world.mnt(name)) {
            Ok(bytes) => bytes,
            Err(e) => {
                eprintln!("{name}: {e}");
                met.errors.fetch_add(1, Ordering::Relaxed);
                continue;
            }
        };
        let Some(version) = whole_version(&bytes) else {
            met.torn.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        met.backwards.fetch_add(u64::from(version < last), Ordering::Relaxed);
        met.news.fetch_add(u64::from(version > last), Ordering::Relaxed);
        last = version;
    }
}

/// Replaces the name `count` times while four read it; everything else is counted in `met`.
fn race(world: &World, name: &Name, count: u64, dice: &mut Dice, met: &Met) {
    let path = world.src(name.name);
    replace(&path, &versioned(0, 100));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| read_on(world, name.name, met, &done));
        }
        for version in 1..=count {
            replace(&path, &versioned(version, 16 + dice.below(name.size_max)));
        }
        done.store(true, Ordering::Release);
    });
    wait_until("the newest version is seen", || whole_version(&world.get(name.name)) == Some(count));
}

/// A cache that keeps what it has.
const FULL: [&str; 6] = ["--cache-size", "1MiB", "--evict-policy", "none", "-o", "cache.ram_window=0"];

/// Leaves no room for anything.
fn fill_up(world: &World) {
    for (n, size) in [16_000; 80].into_iter().chain([4096; 8]).enumerate() {
        let filler = format!("filler{n}");
        let bytes = world.put(&filler, size, n as u64);
        assert!(world.get(&filler) == bytes);
    }
    assert!(world.stat("cache_refusals") > 0, "there is room");
}

/// Goal: a writer that publishes by rename is never seen in between, however often it does it: each open and read gives
/// one whole version and no error, and no reader goes back to an older one. Method: four readers against a writer that
/// does nothing else, on a file that is filled at once and on files that are filled in pieces; with a cache, and with
/// room neither on the SSD nor in RAM, where every read is served from the source.
#[test]
fn names_replaced_without_pause_are_read_whole_and_without_error() {
    need_mount!();
    let seed = figures::seed();
    let mut dice = Dice::new(seed);
    let (met, mut replaced, mut from_source) = (Met::default(), 0, 0);
    // Eight kinds of mount with three names each, the large one half as often.
    let each = scale(2_000, 20_000, 20_000) / 20;
    both(|mode| {
        for ttl in [["--ttl", "0"], ["--ttl", "1s"]] {
            for full in [false, true] {
                let room = if full { &FULL[..] } else { &[] };
                let flags = [&with(mode, &ttl)[..], room, &["-o", "cache.small_file_max=16KiB"]].concat();
                let world = World::mounted(&flags);
                if full {
                    fill_up(&world);
                }
                for name in &NAMES {
                    let count = if name.size_max > 1_000_000 { each / 2 } else { each };
                    race(&world, name, count, &mut dice, &met);
                    replaced += count;
                }
                from_source += world.stat("bypass_opens");
            }
        }
    });
    let [reads, errors, torn, backwards, news] =
        [&met.reads, &met.errors, &met.torn, &met.backwards, &met.news].map(|n| n.load(Ordering::Relaxed));
    Figure::new(
        "R17",
        "rename-replacements against four readers: errors, torn or older reads",
        replaced,
        errors + torn + backwards,
    )
    .seed(seed)
    .fired("reads", reads)
    .fired("reads of a newer version", news)
    .fired("opens served from the source itself", from_source)
    .report();
    assert!(news * 20 > replaced, "the readers hardly met the writer: {news} of {replaced}");
    assert!(from_source > 0, "everything had room");
    assert_eq!((errors, torn, backwards), (0, 0, 0), "of {reads} reads");
}
