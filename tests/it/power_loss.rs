//! Power cuts: a life of a cache is recorded change by change, and from the record every disk is built that a cut could have
//! left, at every moment, with what was not synced lost, torn or reordered. Every one of them must open, and serve no
//! wrong byte.

use crate::common::*;
use crate::disk::{Disk, Event, Fate, Recorder, epochs};
use crate::figures::{self, Figure};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use warmfs::sys::io::Io;

const SMALL: u64 = 9_000;
const LARGE: u64 = MIB + 3_000;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "empty", "large"];

fn size_of(name: &str) -> u64 {
    match name {
        "empty" => 0,
        "large" => LARGE,
        _ => SMALL + u64::from(name.as_bytes()[0]),
    }
}

/// One life: fills, pieces, new versions, eviction, commits, clean stops and others, in an order that the dice give.
struct Life<'a> {
    world: &'a mut World,
    truth: BTreeMap<&'static str, Vec<u8>>,
    seed: u64,
}

impl Life<'_> {
    fn put(&mut self, name: &'static str) {
        self.seed += 1;
        let bytes = pattern(self.seed, size_of(name) as usize);
        let aside = self.world.src("aside");
        std::fs::write(&aside, &bytes).unwrap();
        std::fs::rename(aside, self.world.src(name)).unwrap();
        self.truth.insert(name, bytes);
    }

    fn step(&mut self, dice: &mut Dice) {
        let name = NAMES[dice.below(NAMES.len() as u64) as usize];
        match dice.below(12) {
            0..=3 => drop(self.world.get(name)),
            4 => drop(self.world.open("large").unwrap().read_at(dice.below(LARGE), 100).unwrap()),
            5 => drop(self.world.get("large")),
            6..=7 => self.world.cache().flush(),
            8 => self.put(name),
            9 => drop(self.world.evict(name).then_some(())),
            10 => self.world.restart(),
            _ => self.world.crash_and_start(),
        }
    }
}

/// Lives, and says what the source holds at the end.
fn live(world: &mut World, dice: &mut Dice) -> BTreeMap<&'static str, Vec<u8>> {
    let mut life = Life { world, truth: BTreeMap::new(), seed: 0 };
    NAMES.iter().for_each(|name| life.put(name));
    life.world.start();
    for name in NAMES {
        life.world.get(name);
        (0..3).for_each(|_| life.step(dice));
        life.world.cache().flush();
    }
    life.world.crash();
    life.truth
}

/// The ways in which the pending changes may fare: all or none are lost, or one or two, or all but one; one is torn; and
/// some at random.
fn fates(pending: usize, dice: &mut Dice) -> Vec<Vec<Fate>> {
    let all = |fate| vec![fate; pending];
    let mut fates = vec![all(Fate::Kept), all(Fate::Lost)];
    for i in 0..pending {
        let but = |usual, one| {
            let mut fates = all(usual);
            fates[i] = one;
            fates
        };
        fates.push(but(Fate::Kept, Fate::Lost));
        fates.push(but(Fate::Lost, Fate::Kept));
        // The first half of a page, the second, and any of the sectors.
        for sectors in [0x0f0f_0f0f_0f0f_0f0f, 0xf0f0_f0f0_f0f0_f0f0, dice.below(1 << 31) * 0x1_0000_0001] {
            fates.push(but(Fate::Kept, Fate::Torn(sectors)));
        }
    }
    // Any two of them lost, which is also any one that overtook another.
    for (i, j) in (0..pending).flat_map(|i| (0..i).map(move |j| (i, j))) {
        let mut fates_of_two = all(Fate::Kept);
        (fates_of_two[i], fates_of_two[j]) = (Fate::Lost, Fate::Lost);
        fates.push(fates_of_two);
    }
    for _ in 0..4 {
        let any =
            [Fate::Kept, Fate::Lost, Fate::Torn(0x0f0f_0f0f_0f0f_0f0f), Fate::Torn(dice.below(1 << 31))];
        fates.push((0..pending).map(|_| any[dice.below(4) as usize]).collect());
    }
    fates
}

/// What came of the disks of one life.
#[derive(Default)]
struct Sum {
    disks: u64,
    fates: u64,
    syncs: u64,
    /// Changes that were lost or torn.
    lost: u64,
    /// Files that were still cached afterwards.
    kept: u64,
}

/// Goal: every disk that a power cut can leave opens, and serves no wrong byte.
#[test]
fn every_disk_that_a_power_cut_can_leave_opens_and_serves_no_wrong_byte() {
    let seed = figures::seed();
    let mut dice = Dice(seed);
    let mut sum = Sum::default();
    let lives = figures::scale(2, 40, 100);
    (0..lives).for_each(|_| one_life(&mut dice, &mut sum));
    let Sum { disks, fates, syncs, lost, kept } = sum;
    println!("{lives} lives, {syncs} syncs: {disks} different disks of {fates} power cuts");
    Figure::new("R9", "power cuts: disks opened and read", disks, 0)
        .seed(seed)
        .fired("changes lost or torn", lost)
        .fired("files still cached afterwards", kept)
        .fired("syncs", syncs)
        .report();
}

fn one_life(dice: &mut Dice, sum: &mut Sum) {
    let shm = Path::new("/dev/shm");
    let base_dir = shm.is_dir().then(|| shm.to_path_buf());
    let options = Options { small_file_bytes_max: 100_000, base_dir, ..Options::default() };
    let mut world = World::stopped(options);
    let (recorder, io) = Recorder::new(&world.cache_dir());
    world.options.ssd = io;
    let truth = live(&mut world, dice);
    world.options.ssd = Io::default();
    let events = recorder.events();
    sum.syncs += events.iter().filter(|e| !matches!(e, Event::Change(_))).count() as u64;
    let mut seen = HashSet::new();
    for epoch in epochs(&events) {
        for len in 1..=epoch.events.len() {
            for fates in fates(epoch.pending(len), dice) {
                sum.fates += 1;
                let disk = epoch.disk(len, |i| fates[i]);
                if seen.insert(disk.fingerprint()) {
                    sum.disks += 1;
                    sum.lost += fates.iter().filter(|f| **f != Fate::Kept).count() as u64;
                    sum.kept += check(&mut world, &disk, &truth);
                }
            }
        }
    }
}

/// Opens a disk, reads everything, and says how many files were cached.
fn check(world: &mut World, disk: &Disk, truth: &BTreeMap<&'static str, Vec<u8>>) -> u64 {
    let cache = world.dir().join("cut");
    std::fs::create_dir(&cache).unwrap();
    rustix::fs::chmod(&cache, rustix::fs::Mode::RWXU).unwrap();
    disk.write_to(&cache);
    world.options.cache_dir = Some(cache.clone());
    world.start();
    let kept = world.cache().all_files().iter().filter(|f| f.is_complete()).count() as u64;
    // What is trusted after a clean stop is read by the kernel itself.
    for time in ["first", "after a clean stop"] {
        truth.iter().for_each(|(name, bytes)| assert!(world.get(name) == *bytes, "{name}, {time}"));
        world.restart();
    }
    world.stop();
    std::fs::remove_dir_all(cache).unwrap();
    world.options.cache_dir = None;
    kept
}
