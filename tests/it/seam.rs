//! Faults at every call: a life of a cache (start, fills, changes, eviction, a clean stop, a crash) is run once to count the
//! calls that it makes to the kernel, then again for each of these calls, which goes wrong in one way after the other.
//!
//! Of the SSD: no reader ever sees an error or a wrong byte; at worst a start is refused, in words. Of the source: the reader
//! gets that very errno or the right bytes, and the right bytes as soon as the fault is gone.

use crate::common::*;
use crate::faulty_io::*;
use crate::figures::{self, Figure};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use warmfs::sys::io::{Io, Op};
use warmfs::types::Error;

/// Where the fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ssd,
    Source,
}

/// What went on in one life.
#[derive(Default)]
struct Seen {
    /// Answers that were errors, all of them allowed.
    errors: u64,
    /// Starts that were refused.
    refused: u64,
}

/// One life of a cache, with somebody between it and the kernel.
struct Life {
    world: World,
    between: Arc<FaultyIo>,
    side: Side,
    /// What the fault answers.
    errno: Option<Errno>,
    truth: BTreeMap<&'static str, Vec<u8>>,
    seen: Seen,
}

const SMALL: u64 = 40_000;

impl Life {
    fn new(side: Side, engine: Engine, plan: Option<Plan>, room: u64) -> Self {
        let (between, io) = FaultyIo::new();
        let shm = Path::new("/dev/shm");
        let options = Options {
            bytes_max: room,
            ram_window_bytes: MIB / 2,
            small_file_bytes_max: 100_000,
            engine,
            source_threads: 8,
            base_dir: shm.is_dir().then(|| shm.to_path_buf()),
            ssd: if side == Side::Ssd { io.clone() } else { Io::default() },
            source: if side == Side::Source { io } else { Io::default() },
            ..Options::default()
        };
        let errno = match plan.map(|p| p.fault) {
            Some(Fault::Errno(errno)) => Some(errno),
            _ => None,
        };
        let mut life = Self {
            world: World::stopped(options),
            between,
            side,
            errno,
            truth: BTreeMap::new(),
            seen: Seen::default(),
        };
        life.put("f-a", SMALL, 1);
        life.put("d/f-b", SMALL, 2);
        life.put("f-empty", 0, 3);
        life.put("f-large", 2 * MIB + 5000, 4);
        std::os::unix::fs::symlink("f-a", life.world.src("link")).unwrap();
        life.between.plan(plan);
        life
    }

    fn put(&mut self, name: &'static str, size: u64, seed: u64) {
        let bytes = self.world.put(name, size, seed);
        self.truth.insert(name, bytes);
    }

    /// Everything that a cache does; each part is followed by reads of all there is.
    fn live(mut self) -> Seen {
        self.start();
        self.read_all();
        self.read_pieces();
        self.look_around();
        self.replace("f-a", 10);
        self.world.evict("d/f-b");
        self.read_all();
        self.world.cache().flush();
        self.world.cache().verify(&[Path::new("")], &mut |_| true);
        self.world.stop();
        self.start();
        self.read_all();
        self.replace("f-large", 11);
        self.read_all();
        self.world.cache().flush();
        self.world.crash();
        self.start();
        self.read_all();
        self.world.cache().flush();
        self.without_directory();
        self.world.stop();
        self.seen
    }

    /// A start may be refused while something is wrong; then what is wrong is put right.
    fn start(&mut self) {
        for _ in 0..2 {
            self.wait_for_lock();
            match self.world.try_start() {
                Ok(()) => return,
                Err(e) => {
                    assert!(self.between.fired() > 0, "refused for nothing: {e}");
                    self.seen.refused += 1;
                    self.between.heal();
                }
            }
        }
        panic!("no start");
    }

    /// A thread of the one that crashed may hold the lock for a moment; how often one tries must not change what is counted.
    fn wait_for_lock(&self) {
        use rustix::fs::{FlockOperation, flock};
        let Ok(lock) = std::fs::File::open(self.world.cache_dir().join("LOCK")) else { return };
        wait_until("the lock is free", || flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok());
    }

    fn read_all(&mut self) {
        let names: Vec<_> = self.truth.keys().copied().collect();
        names
            .iter()
            .for_each(|name| self.check(name, |life| life.world.read(name).map(|b| b == life.truth[name])));
    }

    /// What is right is `Ok(true)`. An error must be the source's own, and gone when the fault is.
    fn check(&mut self, what: &str, ask: impl Fn(&Self) -> Result<bool, Error>) {
        match ask(self) {
            Ok(right) => return assert!(right, "{what}: wrong"),
            Err(e) => {
                assert_eq!(self.side, Side::Source, "{what}: {e}");
                let expected = self.errno.map(Errno::raw_os_error);
                assert!(expected.is_some() && e.errno() == expected, "{what}: {e}, not {expected:?}");
                self.seen.errors += 1;
            }
        }
        // A fault that lasts is taken away; one that happened once is gone.
        self.between.heal();
        match ask(self) {
            Ok(right) => assert!(right, "{what}: wrong afterwards"),
            Err(e) => panic!("{what}: the fault is gone and still {e}"),
        }
    }

    fn read_pieces(&mut self) {
        for at in [2 * MIB, 10, MIB] {
            self.check("a piece", |life| {
                let file = life.world.open("f-large")?;
                let bytes = file.read_at(at, 5000)?;
                Ok(bytes == life.truth["f-large"][at as usize..at as usize + 5000])
            });
        }
        wait_until("no fill goes on in the background", || self.world.cache().background_fills() == 0);
    }

    fn look_around(&mut self) {
        let names = ["d", "f-a", "f-empty", "f-large", "link"].map(String::from);
        self.check("the names", |life| Ok(life.world.list("")? == names));
        self.check("a link", |life| {
            let seen = life.world.lookup("link")?;
            Ok(wait(|reply| life.world.fs().read_link(seen.node, reply))? == b"f-a")
        });
        self.check("attributes", |life| {
            let seen = life.world.lookup("f-a")?;
            let (attr, _) = wait(|reply| life.world.fs().getattr(seen.node, reply))?;
            Ok(attr.size == SMALL)
        });
        self.check("figures", |life| Ok(wait(|reply| life.world.fs().figures(reply))?.blocks > 0));
    }

    /// Another file takes the name.
    fn replace(&mut self, name: &'static str, seed: u64) {
        let aside = self.world.src("aside");
        let bytes = pattern(seed, self.truth[name].len() + 1);
        std::fs::write(&aside, &bytes).unwrap();
        std::fs::rename(aside, self.world.src(name)).unwrap();
        self.truth.insert(name, bytes);
    }

    /// Somebody removes the cache directory while it is used.
    fn without_directory(&mut self) {
        std::fs::remove_dir_all(self.world.cache_dir()).unwrap();
        self.replace("f-a", 12);
        self.read_all();
    }
}

/// A cache with room for all, one with hardly any, so that files go to RAM.
const ROOMS: [u64; 2] = [64 * MIB, 200_000];

/// What a call can do. A flipped bit is a fault of the SSD only: what the source says is the truth.
fn faults(side: Side, op: Op) -> Vec<Fault> {
    let errnos = [Errno::IO, Errno::NOSPC, Errno::ROFS, Errno::MFILE, Errno::NOMEM, Errno::INTR];
    let mut all: Vec<_> = errnos.into_iter().map(Fault::Errno).collect();
    if matches!(op, Op::Read | Op::ReadCached | Op::ReadAgain | Op::RingRead | Op::Write | Op::RingWrite) {
        all.push(Fault::Short);
    }
    if side == Side::Ssd && matches!(op, Op::Read | Op::ReadCached) {
        all.push(Fault::Flip);
    }
    all.push(Fault::Delay(Duration::from_millis(20)));
    all
}

/// One call to go wrong in one way.
#[derive(Clone, Copy, Debug)]
struct Trial {
    side: Side,
    engine: Engine,
    room: u64,
    plan: Plan,
}

/// The calls that every life makes, counted in lives in which nothing goes wrong. How often the scrub looks, say, depends on
/// how busy the machine is: what comes in one life and not in the next is not promised to come when it is to fail.
fn calls(side: Side, engine: Engine, room: u64) -> BTreeMap<Site, u64> {
    let one = || {
        let life = Life::new(side, engine, None, room);
        let between = life.between.clone();
        let seen = life.live();
        assert_eq!((seen.errors, seen.refused), (0, 0));
        between.counts()
    };
    let mut least = one();
    for other in [one(), one()] {
        least.retain(|site, _| other.contains_key(site));
        for (site, count) in &mut least {
            *count = (*count).min(other[site]);
        }
    }
    least
}

/// A slow disk and signals are no faults that last; lives would only take long.
fn can_last(fault: Fault) -> bool {
    !matches!(fault, Fault::Delay(_) | Fault::Errno(Errno::INTR))
}

/// Every way in which every call can go wrong, or two ways a call, which are all ways over all calls.
fn trials(side: Side, engine: Engine, room: u64, all: bool) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (site, count) in calls(side, engine, room) {
        for nth in 0..count {
            let plan = |lasting| move |fault| Plan { site, nth, lasting, fault };
            let once = faults(side, site.0).into_iter().map(plan(false));
            let lasting = faults(side, site.0).into_iter().filter(|f| can_last(*f)).map(plan(true));
            let ways: Vec<_> = once.chain(lasting).map(|plan| Trial { side, engine, room, plan }).collect();
            if all {
                trials.extend(ways);
            } else {
                let turn = 5 * trials.len();
                trials.push(ways[turn % ways.len()]);
                trials.push(ways[(turn + ways.len() / 2) % ways.len()]);
            }
        }
    }
    trials
}

/// What came of many trials.
#[derive(Default)]
struct Sum {
    errors: u64,
    refused: u64,
    /// Trials whose call did not come, as a change in the order of threads can bring.
    missed: Vec<Trial>,
    /// What went wrong.
    bad: Vec<String>,
}

/// Runs trials on all cores.
fn run(trials: &[Trial], sum: &Mutex<Sum>) {
    let next = AtomicU64::new(0);
    let work = || {
        while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let life = Life::new(trial.side, trial.engine, Some(trial.plan), trial.room);
            let between = life.between.clone();
            let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| life.live()));
            let mut sum = sum.lock();
            match lived {
                Ok(seen) => {
                    sum.errors += seen.errors;
                    sum.refused += seen.refused;
                    if between.fired() == 0 {
                        sum.missed.push(*trial);
                    }
                }
                Err(panic) => {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    sum.bad.push(format!("{trial:?}: {text}"));
                }
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| (0..cores).for_each(|_| drop(scope.spawn(work))));
}

/// Every call in turn, and how many there are.
fn all_calls(side: Side, row: &str) {
    let start = Instant::now();
    let all = figures::scale(0, 1, 1) == 1;
    let engines = if all { &ENGINES[..] } else { &ENGINES[1..] };
    let worlds = ROOMS.iter().flat_map(|room| engines.iter().map(|engine| (*engine, *room)));
    let trials: Vec<_> = worlds.flat_map(|(engine, room)| trials(side, engine, room, all)).collect();
    let calls = |trials: &[Trial]| {
        let call = |t: &Trial| (t.engine == Engine::Uring, t.room, t.plan.site, t.plan.nth);
        trials.iter().map(call).collect::<BTreeSet<_>>()
    };
    let sum = Mutex::new(Sum::default());
    run(&trials, &sum);
    for _ in 0..5 {
        let missed = std::mem::take(&mut sum.lock().missed);
        run(&missed, &sum);
    }
    let sum = sum.into_inner();
    let (total, uncovered) = (calls(&trials).len(), calls(&sum.missed));
    let covered = total - uncovered.len();
    println!(
        "{side:?}: {covered} of {total} calls covered, {} trials in {:?}",
        trials.len(),
        start.elapsed()
    );
    Figure::new(row, &format!("faults at every call, {side:?}"), trials.len() as u64, sum.bad.len() as u64)
        .fired("calls covered", covered as u64)
        .fired("starts refused", sum.refused)
        .more("calls covered", covered as f64 / total as f64, "share")
        .note(&format!(
            "{covered} of {total} calls covered; {} errors of the source seen by readers",
            sum.errors
        ))
        .report();
    assert!(sum.bad.is_empty(), "{} bad:\n{}", sum.bad.len(), sum.bad[..sum.bad.len().min(10)].join("\n"));
    assert!(uncovered.is_empty(), "not covered: {uncovered:?}");
}

/// Goal: whatever call about a file of the SSD goes wrong, readers get the right bytes.
#[test]
fn faults_at_every_call_to_the_ssd_are_not_the_readers_business() {
    all_calls(Side::Ssd, "R13");
}

/// Goal: whatever call about the source goes wrong, readers get its errno or the right bytes, and never a wrong "no such
/// file"; as soon as the fault is gone all is right.
#[test]
fn faults_at_every_call_to_the_source_keep_their_errno_and_pass() {
    all_calls(Side::Source, "R14");
}

/// Goal: ESTALE of a network file system, whose file was replaced between two of our calls, is an answer to nobody who asks
/// for a path. Method: each call to the source says so once, in turn.
#[test]
fn a_file_that_is_replaced_between_two_calls_is_looked_up_anew() {
    for op in [Op::Stat, Op::ReadLink, Op::Acl] {
        for nth in 0..6 {
            let (between, io) = FaultyIo::new();
            let world = World::with(Options { source: io, ..Options::default() });
            let bytes = world.put("f-a", SMALL, 1);
            std::os::unix::fs::symlink("f-a", world.src("link")).unwrap();
            let subject = if op == Op::Stat { Subject::Data } else { Subject::Rest };
            between.plan(Some(Plan {
                site: (op, subject),
                nth,
                lasting: false,
                fault: Fault::Errno(Errno::STALE),
            }));
            for _ in 0..2 {
                assert!(world.lookup("f-a").is_ok(), "{op:?} {nth}");
                let link = world.lookup("link").unwrap();
                assert_eq!(wait(|reply| world.fs().read_link(link.node, reply)).unwrap(), b"f-a");
                assert!(
                    wait(|reply| world.fs().get_xattr(link.node, b"system.posix_acl_access", reply)).is_err()
                );
            }
            assert!(op == Op::Acl || nth > 1 || between.fired() > 0, "{op:?} {nth}");
            between.heal();
            assert!(world.get("f-a") == bytes);
        }
    }
}
