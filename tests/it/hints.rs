//! Known orders in the simulator: the mount's own decisions over traces on fixed seeds, with a source that is fast enough.

use warmfs::policy::desk::Desk;
use warmfs::policy::orders::{Name, Turn};
use warmfs::policy::{Epoch, Subject, Tier};
use warmfs::types::{FileId, GroupId};

const N: u64 = 6000;
/// Files that may lie here unread, as the mount bounds them by bytes.
const AHEAD: usize = 200;

/// `0..N` in an order of its own.
fn epoch(seed: u64) -> Vec<u64> {
    let mut files: Vec<u64> = (0..N).collect();
    files.sort_by_key(|&n| FileId { high: seed, low: n }.fingerprint());
    files
}

fn path(n: u64) -> Vec<u8> {
    format!("train/{n}.jpg").into_bytes()
}

fn names(order: &[u64]) -> Vec<Name> {
    order.iter().map(|&n| Name::of(&path(n))).collect()
}

fn subject(n: u64) -> Subject {
    Subject { id: FileId { high: 0, low: n }, group: GroupId(0), bytes: 1 }
}

/// A cache of whole files, all of one size, by the desk of a mount.
struct Sim {
    desk: Desk,
    cached: Vec<bool>,
    free: usize,
    now_ms: u64,
    fetched: u64,
}

impl Sim {
    fn new(capacity: usize) -> Self {
        let desk = Desk::new(Box::new(Epoch::new()), capacity as u64);
        Self { desk, cached: vec![false; N as usize], free: capacity, now_ms: 0, fetched: 0 }
    }

    /// The order of `job`, from its epochs.
    fn hint(&mut self, job: &str, order: &[u64]) -> u64 {
        let serial = self.desk.orders_mut().append(job, &names(order)).unwrap().0;
        for n in (0..N).filter(|&n| self.cached[n as usize]) {
            self.desk.cached_at(subject(n).id, &path(n));
        }
        serial
    }

    /// Whether it was a hit.
    fn read(&mut self, n: u64) -> bool {
        self.now_ms += 10;
        let hit = self.cached[n as usize];
        let from = if hit { Tier::Ssd } else { Tier::Source };
        self.desk.opened(&subject(n), &path(n), from, self.now_ms);
        if !hit {
            self.keep(n, |desk| desk.victim_for(&subject(n), &path(n), &mut |_| false));
        }
        hit
    }

    fn prefetch(&mut self, n: u64) -> bool {
        let there = self.cached[n as usize];
        there || self.keep(n, |desk| desk.victim_ahead(&path(n), &mut |_| false))
    }

    fn keep(&mut self, n: u64, victim: impl FnOnce(&mut Desk) -> Option<FileId>) -> bool {
        if self.free == 0 {
            let Some(victim) = victim(&mut self.desk) else { return false };
            self.desk.removed(victim);
            self.cached[victim.low as usize] = false;
            self.free += 1;
        }
        self.free -= 1;
        self.fetched += 1;
        self.cached[n as usize] = true;
        self.desk.inserted(&subject(n));
        self.desk.cached_at(subject(n).id, &path(n));
        true
    }
}

/// The share of hits from the third epoch on of a job that told `told` of each epoch and read `read`, with two files
/// fetched per read.
fn one_job(
    capacity: usize,
    told: impl Fn(u64) -> Option<Vec<u64>>,
    read: impl Fn(u64) -> Vec<u64>,
) -> (f64, u64) {
    let mut sim = Sim::new(capacity);
    let (mut hits, mut reads) = (0, 0);
    for number in 0..6 {
        let order = told(number).unwrap_or_default();
        sim.desk.orders_mut().clear("a");
        let serial = if order.is_empty() { 0 } else { sim.hint("a", &order) };
        let mut next = 0;
        for (at, n) in read(number).into_iter().enumerate() {
            let hit = sim.read(n);
            if number >= 2 {
                reads += 1;
                hits += u64::from(hit);
            }
            for _ in 0..2 {
                while next < order.len() && sim.desk.orders().turn("a", serial, next as u32) == Turn::Skip {
                    next += 1;
                }
                let goes = next < order.len().min(at + AHEAD)
                    && sim.desk.orders().turn("a", serial, next as u32) == Turn::Go;
                if goes && sim.prefetch(order[next]) {
                    next += 1;
                }
            }
        }
    }
    (hits as f64 / reads as f64, sim.fetched)
}

/// Goal: with the order of each epoch known when it begins, nearly all is here before it is read, and no more is fetched than
/// without: what a cache of a quarter does not hold.
#[test]
fn a_known_order_hits_nearly_always() {
    let capacity = N as usize / 4;
    let (ratio, fetched) = one_job(capacity, |e| Some(epoch(e)), epoch);
    let share = fetched as f64 / (6.0 * N as f64);
    println!("known order, c = 0.25: hit ratio {ratio:.4}, {share:.3} fetched per read");
    assert!(ratio >= 0.97 && share < 0.82);
}

/// Goal: two jobs in two orders, both known an epoch ahead, share one cache as well as can be, without prefetch.
#[test]
fn two_known_orders_share_a_cache() {
    let mut sim = Sim::new(N as usize / 4);
    let orders = |job: u64, e: u64| epoch(100 + 50 * job + e);
    for job in 0..2 {
        sim.hint(&job.to_string(), &orders(job, 0));
    }
    let (mut hits, mut reads) = (0u32, 0u32);
    for e in 0..6 {
        for job in 0..2 {
            sim.hint(&job.to_string(), &orders(job, e + 1));
        }
        for (a, b) in orders(0, e).into_iter().zip(orders(1, e)) {
            for n in [a, b] {
                let hit = sim.read(n);
                if e >= 2 {
                    reads += 1;
                    hits += u32::from(hit);
                }
            }
        }
    }
    let ratio = f64::from(hits) / f64::from(reads);
    println!("two known orders, c = 0.25: hit ratio {ratio:.4} (none known: 0.25)");
    assert!(ratio >= 0.48);
    assert!(sim.desk.orders().figures().iter().all(|(_, order)| !order.dropped));
}

/// Goal: an order of other epochs, and one that was published an epoch too early, cost 5 % of the hits at most.
#[test]
fn a_wrong_order_costs_little() {
    for share in [4, 2] {
        let capacity = N as usize / share;
        let (none, _) = one_job(capacity, |_| None, epoch);
        let (wrong, _) = one_job(capacity, |e| Some(epoch(1000 + e)), epoch);
        let (stale, _) = one_job(capacity, |_| Some(epoch(0)), |e| epoch(e + 1));
        println!("c = 1/{share}: none {none:.4}, wrong {wrong:.4}, stale {stale:.4}");
        assert!(wrong >= 0.95 * none && stale >= 0.95 * none);
    }
}
