//! A recorded trace through a policy: what it would have hit with a cache of a given size, without a disk.
//!
//! The cache is driven as the real one is: room is asked for until there is enough, and what the policy refuses is not
//! kept. RAM is left out, so that what comes out is what the SSD gives.

use super::uses::RecentUses;
use super::{Access, Epoch, Eviction, Lru, NeverEvict, Subject, Tier};
use crate::types::FileId;
use std::collections::{BTreeSet, HashMap};

/// Time between two opens of a trace, which tells none: 100 a second.
const STEP_MS: u64 = 10;

/// Which file was opened when.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The files.
    pub files: Vec<Subject>,
    /// Opens in their order: places in `files`.
    pub opens: Vec<u32>,
    /// When each of them was, milliseconds, where that is known: each is a use of its own then.
    pub uses_ms: Option<Vec<u32>>,
    /// The trace is a part of a longer one: it is played twice, and counted the second time, when the cache is warm.
    pub is_part: bool,
}

impl Trace {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Each open, and whether it begins a use of its file.
    fn uses(&self) -> impl Iterator<Item = Open> {
        let mut recent = RecentUses::default();
        let one = move |(at, &file): (usize, &u32)| {
            let file = file as usize;
            match &self.uses_ms {
                Some(times) => Open { at, file, again: false, now_ms: times[at].into() },
                None => {
                    let now_ms = at as u64 * STEP_MS;
                    Open { at, file, again: recent.is_again(self.files[file].id, now_ms), now_ms }
                }
            }
        };
        self.opens.iter().enumerate().map(one)
    }
}

struct Open {
    at: usize,
    file: usize,
    again: bool,
    now_ms: u64,
}

/// What came of a replay. Uses are counted, not opens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Uses.
    pub uses: u64,
    /// Uses of a file that was cached.
    pub hits: u64,
    /// Bytes of the files used.
    pub bytes: u64,
    /// Bytes of those that were cached.
    pub hit_bytes: u64,
    /// Bytes written to the cache.
    pub written_bytes: u64,
}

impl Figures {
    /// Hits of all uses; 0 if there were none.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.uses.max(1) as f64
    }

    /// Bytes hit of all bytes used.
    pub fn byte_hit_ratio(&self) -> f64 {
        self.hit_bytes as f64 / self.bytes.max(1) as f64
    }

    fn count(&mut self, bytes: u64, hit: bool) {
        self.uses += 1;
        self.bytes += bytes;
        if hit {
            self.hits += 1;
            self.hit_bytes += bytes;
        }
    }
}

/// Replays `trace` through `policy` with a cache of so many bytes. `each` is told of every open, by its number, whether
/// the file was cached.
pub fn replay(
    trace: &Trace,
    policy: &mut dyn Eviction,
    capacity_bytes: u64,
    each: &mut dyn FnMut(usize, bool),
) -> Figures {
    policy.set_capacity(capacity_bytes);
    let mut cache = Cache::new(trace, capacity_bytes);
    if trace.is_part {
        cache.play(policy, &mut |_, _| {});
    }
    cache.play(policy, each)
}

/// What a cache holds in a replay.
struct Cache<'a> {
    trace: &'a Trace,
    places: HashMap<FileId, usize>,
    cached: Vec<bool>,
    capacity_bytes: u64,
    free_bytes: u64,
}

impl<'a> Cache<'a> {
    fn new(trace: &'a Trace, capacity_bytes: u64) -> Self {
        let places = trace.files.iter().enumerate().map(|(at, file)| (file.id, at)).collect();
        let cached = vec![false; trace.files.len()];
        Self { trace, places, cached, capacity_bytes, free_bytes: capacity_bytes }
    }

    fn play(&mut self, policy: &mut dyn Eviction, each: &mut dyn FnMut(usize, bool)) -> Figures {
        let mut figures = Figures::default();
        for open in self.trace.uses() {
            let file = &self.trace.files[open.file];
            let hit = self.cached[open.file];
            each(open.at, hit);
            if !open.again {
                figures.count(file.bytes, hit);
            }
            let from = if hit { Tier::Ssd } else { Tier::Source };
            let access = Access { from, again: open.again, now_ms: open.now_ms };
            policy.accessed(file, access);
            // What was refused a moment ago is served from RAM.
            if !hit && !open.again && self.admit(policy, file) {
                self.cached[open.file] = true;
                figures.written_bytes += file.bytes;
            }
        }
        figures
    }

    fn admit(&mut self, policy: &mut dyn Eviction, file: &Subject) -> bool {
        if file.bytes > self.capacity_bytes {
            return false;
        }
        while self.free_bytes < file.bytes {
            let Some(victim) = policy.victim(Some(file), &mut |_| false) else { return false };
            policy.removed(victim);
            let place = self.places[&victim];
            self.cached[place] = false;
            self.free_bytes += self.trace.files[place].bytes;
        }
        self.free_bytes -= file.bytes;
        policy.inserted(file);
        true
    }
}
/// Cache sizes worth looking at for data of so many bytes.
pub fn usual_sizes(bytes: u64) -> Vec<u64> {
    let share = |percent: u64| (u128::from(bytes) * u128::from(percent) / 100) as u64;
    let mut sizes: Vec<u64> =
        [5, 10, 25, 50, 75, 90, 100].into_iter().map(share).filter(|&b| b > 0).collect();
    sizes.dedup();
    sizes
}

/// A cache of one size by each policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Its size, bytes.
    pub cache_bytes: u64,
    /// By [`Lru`].
    pub lru: Figures,
    /// By [`NeverEvict`].
    pub none: Figures,
    /// By [`Epoch`].
    pub epoch: Figures,
    /// By [`replay_belady`].
    pub best: Figures,
}

/// The trace with a cache of each of these sizes.
pub fn curve(trace: &Trace, sizes: &[u64]) -> Vec<Point> {
    let each = &mut |_, _| {};
    let mut point = |&cache_bytes: &u64| Point {
        cache_bytes,
        lru: replay(trace, &mut Lru::new(), cache_bytes, each),
        none: replay(trace, &mut NeverEvict, cache_bytes, each),
        epoch: replay(trace, &mut Epoch::new(), cache_bytes, each),
        best: replay_belady(trace, cache_bytes, each),
    };
    sizes.iter().map(&mut point).collect()
}

/// The same with the future known: what is used farthest ahead goes, or is not kept at all. With files of one size no
/// policy hits more; with mixed sizes it is a good guide.
pub fn replay_belady(trace: &Trace, capacity_bytes: u64, each: &mut dyn FnMut(usize, bool)) -> Figures {
    const NEVER: usize = usize::MAX;
    let uses = trace.uses().filter(|open| !open.again).map(|open| (open.at, open.file));
    let uses: Vec<(usize, usize)> = uses.collect();
    let mut next = vec![NEVER; uses.len()];
    let mut soonest = vec![NEVER; trace.files.len()];
    for (number, &(_, file)) in uses.iter().enumerate().rev() {
        next[number] = std::mem::replace(&mut soonest[file], number);
    }
    let mut figures = Figures::default();
    let mut next_of = vec![None; trace.files.len()];
    // By next use, the farthest last.
    let mut cached = BTreeSet::new();
    let mut free_bytes = capacity_bytes;
    for (number, &(at, file)) in uses.iter().enumerate() {
        let bytes = trace.files[file].bytes;
        let hit = next_of[file].take().map(|next| cached.remove(&(next, file))).is_some();
        each(at, hit);
        figures.count(bytes, hit);
        if !hit {
            while free_bytes < bytes
                && let Some(&(farthest, victim)) = cached.last()
                && farthest > next[number]
            {
                cached.remove(&(farthest, victim));
                next_of[victim] = None;
                free_bytes += trace.files[victim].bytes;
            }
            if free_bytes < bytes || next[number] == NEVER {
                continue;
            }
            free_bytes -= bytes;
            figures.written_bytes += bytes;
        }
        next_of[file] = Some(next[number]);
        cached.insert((next[number], file));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Lru, NeverEvict};
    use crate::types::{FileId, GroupId};

    fn trace(sizes: &[u64], opens: &[u32]) -> Trace {
        let file = |(n, &bytes)| Subject { id: FileId { high: 0, low: n as u64 }, group: GroupId(0), bytes };
        let files = sizes.iter().enumerate().map(file).collect();
        Trace { files, opens: opens.to_vec(), ..Trace::default() }
    }

    /// So many passes over 100 files, far enough apart that each is a use of its own.
    fn passes(count: usize) -> Vec<u32> {
        (0..count).flat_map(|_| 0..100).collect()
    }

    #[test]
    fn known_answers() {
        let trace = trace(&[10; 100], &passes(5));
        let replayed = |policy: &mut dyn Eviction| replay(&trace, policy, 500, &mut |_, _| {});
        let none = replayed(&mut NeverEvict);
        assert_eq!((none.uses, none.hits, none.written_bytes), (500, 200, 500));
        assert_eq!(replayed(&mut Lru::new()).hits, 0);
        let best = replay_belady(&trace, 500, &mut |_, _| {});
        assert_eq!((best.hits, best.hit_ratio()), (200, 0.4));
    }

    #[test]
    fn opens_close_together_are_one_use() {
        let twice: Vec<u32> = passes(3).into_iter().flat_map(|n| [n, n]).collect();
        let (once, twice) = (trace(&[10; 100], &passes(3)), trace(&[10; 100], &twice));
        for bytes in [300, 1000] {
            let figures = [&once, &twice].map(|t| replay(t, &mut NeverEvict, bytes, &mut |_, _| {}));
            assert_eq!(figures[0], figures[1]);
        }
    }

    #[test]
    fn the_capacity_holds_with_mixed_sizes_and_a_file_that_is_larger_than_all() {
        let sizes: Vec<u64> = (0..100).map(|n| if n == 7 { 5000 } else { 1 + n * 13 % 97 }).collect();
        let trace = trace(&sizes, &passes(4));
        let mut held = 0;
        let figures = replay(&trace, &mut Lru::new(), 1000, &mut |_, hit| held += u64::from(hit));
        assert_eq!(figures.hits, held);
        let best = replay_belady(&trace, 1000, &mut |_, _| {});
        assert!(best.hits >= figures.hits && best.hit_bytes <= 3000);
    }
}
