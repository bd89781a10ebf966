//! A recorded trace through a policy: what it would have hit with a cache of a given size, without a disk.
//!
//! The cache is driven as the real one is: room is asked for until there is enough, and what the policy refuses is not
//! kept. RAM is left out, so that what comes out is what the SSD gives.

use super::uses::RecentUses;
use super::{Access, Eviction, Subject};
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
}

impl Trace {
    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Each open that begins a use of its file.
    fn uses(&self) -> impl Iterator<Item = (usize, usize, bool)> {
        let mut recent = RecentUses::default();
        self.opens.iter().enumerate().map(move |(at, &file)| {
            let file = file as usize;
            (at, file, recent.is_again(self.files[file].id, at as u64 * STEP_MS))
        })
    }
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
    let mut figures = Figures::default();
    let places: HashMap<_, _> = trace.files.iter().enumerate().map(|(at, file)| (file.id, at)).collect();
    let mut cached = vec![false; trace.files.len()];
    let mut free_bytes = capacity_bytes;
    for (at, place, again) in trace.uses() {
        let file = &trace.files[place];
        let hit = cached[place];
        each(at, hit);
        if !again {
            figures.count(file.bytes, hit);
        }
        policy.accessed(file, Access { cached: hit, again, now_ms: at as u64 * STEP_MS });
        // What was refused a moment ago is served from RAM.
        if hit || again || file.bytes > capacity_bytes {
            continue;
        }
        while free_bytes < file.bytes {
            let Some(victim) = policy.victim(Some(file), &mut |_| false) else { break };
            policy.removed(victim);
            let place = places[&victim];
            cached[place] = false;
            free_bytes += trace.files[place].bytes;
        }
        if free_bytes >= file.bytes {
            free_bytes -= file.bytes;
            cached[place] = true;
            figures.written_bytes += file.bytes;
            policy.inserted(file);
        }
    }
    figures
}

/// The same with the future known: what is used farthest ahead goes, or is not kept at all. With files of one size no
/// policy hits more; with mixed sizes it is a good guide.
pub fn replay_belady(trace: &Trace, capacity_bytes: u64, each: &mut dyn FnMut(usize, bool)) -> Figures {
    const NEVER: usize = usize::MAX;
    let uses: Vec<(usize, usize)> =
        trace.uses().filter(|&(_, _, again)| !again).map(|(at, file, _)| (at, file)).collect();
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
        Trace { files: sizes.iter().enumerate().map(file).collect(), opens: opens.to_vec() }
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
