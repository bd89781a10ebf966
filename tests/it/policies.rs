//! The policies on the ways in which training reads, beside those that everybody knows, on fixed seeds.
//!
//! The workloads are those of the study that the design rests on: epochs in one and in changing orders, jobs that share
//! files, validation sets, moves to another data set, skew.

use crate::rivals::RIVALS;
use warmfs::policy::sample::Sample;
use warmfs::policy::simulate::{self, Figures, Trace};
use warmfs::policy::uses::RecentUses;
use warmfs::policy::{Epoch, Eviction, Lru, NeverEvict, Subject};
use warmfs::types::{FileId, GroupId};

/// A generator of its own, so that a trace is the same in ten years.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }
    fn shuffle(&mut self, items: &mut [u32]) {
        (1..items.len()).rev().for_each(|i| items.swap(i, self.below(i as u64 + 1) as usize));
    }
}

/// So many epochs over `count` files from `first` on, each in an order of its own.
fn epochs(first: u32, count: u32, times: usize, seed: u64) -> Vec<u32> {
    let mut random = Random(seed * 7919 + 1);
    let mut files: Vec<u32> = (first..first + count).collect();
    let mut all = Vec::new();
    for _ in 0..times {
        random.shuffle(&mut files);
        all.extend(&files);
    }
    all
}

fn trace(files: u32, opens: Vec<u32>, group: impl Fn(u32) -> u16, bytes: impl Fn(u32) -> u64) -> Trace {
    let file =
        |n| Subject { id: FileId { high: 0, low: u64::from(n) }, group: GroupId(group(n)), bytes: bytes(n) };
    Trace { files: (0..files).map(file).collect(), opens, ..Trace::default() }
}

/// Files of one size.
fn even(files: u32, opens: Vec<u32>, group: impl Fn(u32) -> u16) -> Trace {
    trace(files, opens, group, |_| FILE_BYTES)
}

const FILE_BYTES: u64 = 100 << 10;
const N: u32 = 6000;

struct Workload {
    name: &'static str,
    trace: Trace,
    /// The first open that counts: before it the cache is cold.
    from: usize,
    shares: &'static [f64],
}

fn workload(name: &'static str, trace: Trace, from: usize, shares: &'static [f64]) -> Workload {
    Workload { name, trace, from, shares }
}

fn workloads() -> Vec<Workload> {
    const MOST: &[f64] = &[0.1, 0.25, 0.5, 0.75];
    const SKEW: &[f64] = &[0.1, 0.25, 0.5];
    let n = N as usize;
    let one = |_| 0;
    let by_set = |x| (x / N) as u16;
    let (a, b) = (epochs(0, N, 6, 3), epochs(0, N, 6, 4));
    let in_turn = |a: &[u32], b: &[u32]| a.iter().zip(b).flat_map(|(&a, &b)| [a, b]).collect::<Vec<_>>();
    let lag = n * 3 / 100;
    let mut follows: Vec<u32> = a[..lag].to_vec();
    follows.extend(in_turn(&a[lag..], &a[..a.len() - lag]));
    follows.extend(&a[a.len() - lag..]);
    let half_ahead = in_turn(&a[..a.len() - n / 2], &a[n / 2..]);
    let (val_four, val_once) = (with_validation(4), with_validation(1));
    let moves = |times| [epochs(0, N, 4, 8), epochs(N, N, times, 9)].concat();
    let (fast, slow) = (epochs(0, N, 9, 8), epochs(N, N, 3, 9));
    let three_to_one = fast.chunks(3).zip(&slow).flat_map(|(a, &b)| [a[0], a[1], a[2], b]).collect();
    let half = |opens: &Vec<u32>| opens.len() / 2;
    let (v4, v1) = (half(&val_four), half(&val_once));
    let is_val = |x| u16::from(x >= N);
    vec![
        workload("A shuffled epochs", even(N, epochs(0, N, 6, 1), one), 2 * n, &[0.1, 0.25, 0.5, 0.75, 0.9]),
        workload("B the same order", even(N, (0..6).flat_map(|_| 0..N).collect(), one), 2 * n, MOST),
        workload("C1 two jobs, two orders", even(N, in_turn(&a, &b), one), 4 * n, MOST),
        workload("C2 two jobs, 3 % apart", even(N, follows, one), 4 * n, MOST),
        workload("C3 two jobs, half an epoch apart", even(N, half_ahead, one), 4 * n, MOST),
        workload("D1 validation four times an epoch", even(N + 300, val_four, is_val), v4, MOST),
        workload("D2 validation once an epoch", even(N + 300, val_once, is_val), v1, MOST),
        workload("E another data set", even(2 * N, moves(5), by_set), 5 * n, MOST),
        workload("E2 the same in one directory", even(2 * N, moves(6), one), 5 * n, MOST),
        workload(
            "F1 two data sets",
            even(2 * N, in_turn(&epochs(0, N, 6, 8), &epochs(N, N, 6, 9)), by_set),
            4 * n,
            MOST,
        ),
        workload("F2 two data sets, 3 to 1", even(2 * N, three_to_one, by_set), 0, MOST),
        workload("G Zipf 0.7", even(N, zipf(0.7), one), 2 * n, SKEW),
        workload("G Zipf 1.0", even(N, zipf(1.0), one), 2 * n, SKEW),
        workload("H with replacement", even(N, uniform(), one), 2 * n, SKEW),
    ]
}

/// Eight epochs over N files; so many times in each, evenly, 300 more are read.
fn with_validation(times: usize) -> Vec<u32> {
    let part = |part: &[u32]| [part.to_vec(), (N..N + 300).collect()].concat();
    epochs(0, N, 8, 5).chunks(N as usize / times).flat_map(part).collect()
}

fn zipf(exponent: f64) -> Vec<u32> {
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=N)
        .map(|k| {
            sum += f64::from(k).powf(-exponent);
            sum
        })
        .collect();
    let mut random = Random(2);
    let mut draw = || {
        let at = random.unit() * sum;
        sums.partition_point(|&s| s < at) as u32
    };
    (0..6 * N).map(|_| draw()).collect()
}

fn uniform() -> Vec<u32> {
    let mut random = Random(6);
    (0..6 * N).map(|_| random.below(N.into()) as u32).collect()
}

/// Capacity as a share of what is in use at a time.
fn capacity(w: &Workload, share: f64) -> u64 {
    let sets = if w.name.starts_with('E') { 2 } else { 1 };
    (share * (w.trace.files.len() / sets) as f64) as u64 * FILE_BYTES
}

fn ratio(hits: &[bool]) -> f64 {
    hits.iter().filter(|hit| **hit).count() as f64 / hits.len() as f64
}

fn hits_of(trace: &Trace, policy: &mut dyn Eviction, capacity: u64) -> (Vec<bool>, Figures) {
    let mut hits = vec![false; trace.opens.len()];
    let figures = simulate::replay(trace, policy, capacity, &mut |at, hit| hits[at] = hit);
    (hits, figures)
}

/// One cell of the table: the share of hits by each policy.
fn cell(w: &Workload, share: f64) -> (f64, Vec<(&'static str, f64)>) {
    let capacity = capacity(w, share);
    let ours = |policy: &mut dyn Eviction| ratio(&hits_of(&w.trace, policy, capacity).0[w.from..]);
    let epoch = ours(&mut Epoch::new());
    let mut others = vec![("lru", ours(&mut Lru::new())), ("none", ours(&mut NeverEvict))];
    for (name, rival) in RIVALS {
        others.push((name, ratio(&rival(&w.trace.opens, (capacity / FILE_BYTES) as usize)[w.from..])));
    }
    (epoch, others)
}

/// Goal: on each of these workloads the default is near the best of all policies that do not know the future.
#[test]
fn epoch_is_near_the_best_online_policy_everywhere() {
    let workloads = workloads();
    let cells: Vec<(&Workload, f64)> =
        workloads.iter().flat_map(|w| w.shares.iter().map(move |&s| (w, s))).collect();
    let halves = cells.split_at(cells.len() / 2);
    let play = |cells: &[(&Workload, f64)]| cells.iter().map(|(w, s)| cell(w, *s)).collect::<Vec<_>>();
    let played = std::thread::scope(|scope| {
        let first = scope.spawn(|| play(halves.0));
        let second = play(halves.1);
        [first.join().unwrap(), second].concat()
    });
    let mut shares = Vec::new();
    for ((w, share), (epoch, others)) in cells.iter().zip(played) {
        let best = others.iter().fold(("epoch", epoch), |a, b| if b.1 > a.1 { *b } else { a });
        let of_best = epoch / best.1;
        println!(
            "{:36} c={share:<4} epoch {epoch:.3}  best {:.3} {:9} {of_best:.3}  {others:.3?}",
            w.name, best.1, best.0
        );
        shares.push((of_best, w.name, share));
    }
    let mean = shares.iter().map(|s| s.0).sum::<f64>() / shares.len() as f64;
    let worst = shares.iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
    println!("mean {mean:.3} of the best, worst {worst:?}");
    assert!(mean >= 0.95 && worst.0 >= 0.80);
}

fn part_ratio(
    trace: &Trace,
    hits: &[bool],
    range: std::ops::Range<usize>,
    of: impl Fn(&Subject) -> u64,
) -> f64 {
    let weight = |at: usize| of(&trace.files[trace.opens[at] as usize]);
    let hit: u64 = range.clone().filter(|&at| hits[at]).map(weight).sum();
    hit as f64 / range.map(weight).sum::<u64>() as f64
}

/// Goal: shuffled epochs hit exactly the share of the data set that fits, which is the best that can be had, by files and
/// by bytes, whatever the sizes; and nothing is written once the cache is full.
#[test]
fn shuffled_epochs_hit_what_fits() {
    let n = 20_000;
    let size = |x: u32| match x % 10 {
        0 => 2_000_000,
        1..5 => 4096 * (1 + u64::from(x) % 7),
        _ => 110_000 + u64::from(x) * 4096 % 90_000,
    };
    for bytes in [(|_| FILE_BYTES) as fn(u32) -> u64, size] {
        let trace = trace(n, epochs(0, n, 6, 1), |_| 0, bytes);
        for share in [0.1, 0.25, 0.5, 0.75, 0.9] {
            let capacity = (trace.bytes() as f64 * share) as u64;
            let (hits, figures) = hits_of(&trace, &mut Epoch::new(), capacity);
            let steady = 2 * n as usize..trace.opens.len();
            let by_files = part_ratio(&trace, &hits, steady.clone(), |_| 1);
            let by_bytes = part_ratio(&trace, &hits, steady, |file| file.bytes);
            assert!((by_bytes - share).abs() < 0.01, "{share}: {by_bytes} of the bytes");
            // Which sizes came first is chance.
            assert!(by_files > share - 0.02, "{share}: {by_files} of the files");
            let more = figures.written_bytes as f64 / capacity as f64 - 1.0;
            assert!(more < 0.005, "{share}: {more} of the cache written after it was full");
        }
    }
}

/// Goal: a job that moves on to another data set has all of the cache from its second epoch on.
#[test]
fn another_data_set_has_the_cache_from_its_second_epoch_on() {
    let n = N as usize;
    let opens = [epochs(0, N, 4, 8), epochs(N, N, 4, 9), epochs(0, N, 4, 10)].concat();
    let trace = even(2 * N, opens, |x| (x / N) as u16);
    for share in [0.1, 0.25, 0.5, 0.75, 0.9] {
        let capacity = (f64::from(N) * share) as u64 * FILE_BYTES;
        let hits = hits_of(&trace, &mut Epoch::new(), capacity).0;
        for epoch in [5, 6, 7, 9, 10, 11] {
            let ratio = ratio(&hits[epoch * n..(epoch + 1) * n]);
            assert!(ratio >= 0.95 * share, "c={share}, epoch {epoch}: {ratio}");
        }
    }
}

/// Goal: clients that open each sample three times, eight workers at a time, are seen as what they are.
#[test]
fn a_sample_that_is_opened_three_times_is_one_use() {
    let opens: Vec<u32> = epochs(0, N, 5, 3).chunks(8).flat_map(|c| [c, c, c].concat()).collect();
    let trace = even(N, opens, |_| 0);
    let figures = simulate::replay(&trace, &mut Epoch::new(), u64::from(N) / 2 * FILE_BYTES, &mut |_, _| {});
    let wrong = figures.uses.abs_diff(5 * u64::from(N));
    assert!(wrong < 100, "{wrong} of 90,000 opens were taken for what they are not");
    assert!((figures.hit_ratio() - 0.4).abs() < 0.005, "0, then four times a half: {}", figures.hit_ratio());
}

/// Goal: with ten times more files than it can remember the policy takes no more memory and decides as well.
#[test]
fn memory_is_bounded_and_what_is_forgotten_costs_nothing() {
    let opens = [epochs(0, N, 4, 8), epochs(N, N, 4, 9)].concat();
    let trace = even(2 * N, opens, |x| (x / N) as u16);
    let mut policy = Epoch::with_files_max(N as usize / 5);
    let (hits, _) = hits_of(&trace, &mut policy, u64::from(N) / 2 * FILE_BYTES);
    assert!(policy.files_remembered() <= N as usize / 5);
    let n = N as usize;
    assert!((ratio(&hits[n..2 * n]) - 0.5).abs() < 0.01);
    assert!((ratio(&hits[5 * n..]) - 0.5).abs() < 0.03, "{}", ratio(&hits[5 * n..]));
}

/// Goal: what is in use is never named, by no policy, and what is named is cached.
#[test]
fn files_in_use_are_no_victims() {
    let policies: [Box<dyn Eviction>; 2] = [Box::new(Epoch::new()), Box::new(Lru::new())];
    for mut policy in policies {
        let trace = even(200, vec![], |_| 0);
        policy.set_capacity(100 * FILE_BYTES);
        trace.files[..100].iter().for_each(|file| policy.inserted(file));
        let in_use = |id: FileId| id.low % 10 != 7;
        let mut gone = Vec::new();
        while let Some(id) = policy.victim(None, &mut |id| in_use(id)) {
            assert!(!in_use(id) && id.low < 100 && !gone.contains(&id));
            policy.removed(id);
            gone.push(id);
        }
        assert_eq!(gone.len(), 10, "all that are free");
    }
}

/// Goal: what is said of other cache sizes, by a sample of the files, is within 0.03 of a replay of everything.
#[test]
fn advice_is_what_a_full_replay_says() {
    let n = 20_000;
    let mixed = |x: u32| 20_000 + u64::from(x) * 7919 % 180_000;
    let with_val = [epochs(0, n, 5, 5), vec![]].concat();
    let with_val: Vec<u32> = with_val
        .chunks(n as usize / 4)
        .flat_map(|part| [part.to_vec(), (n..n + 2000).collect()].concat())
        .collect();
    let mut random = Random(11);
    let skewed = (0..6 * n).map(|_| (random.unit().powi(3) * f64::from(n)) as u32).collect();
    for (name, trace) in [
        ("epochs", trace(n, epochs(0, n, 6, 1), |_| 0, mixed)),
        ("validation", trace(n + 2000, with_val, |x| u16::from(x >= n), mixed)),
        ("skew", trace(n, skewed, |_| 0, mixed)),
    ] {
        let (mut sample, mut recent) = (Sample::default(), RecentUses::default());
        for (&place, at) in trace.opens.iter().zip(0..) {
            let file = &trace.files[place as usize];
            if !recent.is_again(file.id, at * 10) {
                sample.used(file, at * 10);
            }
        }
        assert!(sample.len().0 < trace.files.len() * 2 / 3, "a sample is a part");
        let sizes = [0.1, 0.25, 0.5, 0.75, 0.9].map(|share| (trace.bytes() as f64 * share) as u64);
        for point in sample.advise(&sizes).points {
            let lru = simulate::replay(&trace, &mut Lru::new(), point.cache_bytes, &mut |_, _| {});
            let epoch = simulate::replay(&trace, &mut Epoch::new(), point.cache_bytes, &mut |_, _| {});
            for (policy, said, full) in [("lru", point.lru, lru), ("epoch", point.epoch, epoch)] {
                let (uses, bytes) = (said.0 - full.hit_ratio(), said.1 - full.byte_hit_ratio());
                println!(
                    "{name} {policy} {}: {said:.3?}, off by {uses:.3} and {bytes:.3}",
                    point.cache_bytes
                );
                assert!(uses.abs() <= 0.03 && bytes.abs() <= 0.03, "{name} {policy} {point:?} {full:?}");
            }
        }
    }
}

fn cpu_ns(of: impl FnOnce()) -> u64 {
    let now = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
    };
    let start = now();
    of();
    now() - start
}

/// Goal: what an open costs here is little beside the 30 us that it takes at best, and the sample for advice less than
/// 1 % of that. By the processor's time, in a build that is not optimised as the real one is.
#[test]
fn an_open_costs_little() {
    use warmfs::policy::{Desk, Tier};
    let n = 100_000;
    let trace = even(n, epochs(0, n, 4, 1), |_| 0);
    let opens = trace.opens.len() as u64;
    let mut sample = Sample::default();
    let ns =
        cpu_ns(|| trace.opens.iter().zip(0..).for_each(|(&at, n)| sample.used(&trace.files[at as usize], n)));
    println!("{} ns for the sample", ns / opens);
    assert!(ns / opens < 300, "{} ns", ns / opens);
    let mut desk = Desk::new(Box::new(Epoch::new()), trace.bytes() / 2);
    trace.files[..n as usize / 2].iter().for_each(|file| desk.inserted(file));
    let ns = cpu_ns(|| {
        for (&at, n) in trace.opens.iter().zip(0..) {
            desk.opened(&trace.files[at as usize], b"d/f", Tier::Ssd, n);
        }
    });
    println!("{} ns for an open", ns / opens);
    assert!(ns / opens < 3000, "{} ns", ns / opens);
}
