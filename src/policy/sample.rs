//! What is remembered of all uses, so that somebody can ask later what another cache size would have given.
//!
//! A spatial sample: a file is in it by a hash of its id, and then with all its uses. A cache that is smaller by the rate
//! of the sample sees in the sample what a whole one sees in everything, whatever the policy; so a question is answered
//! by replaying the sample, and until then a use costs a hash and, if its file is in the sample, a push.
//!
//! Bounded: `FILES_MAX` files and `USES_MAX` uses. When there are more, half of the files leave it; when few are
//! left, the older half of the uses does, and what is said is about the rest.

use super::simulate::{self, Trace};
use super::{Epoch, Eviction, Lru, Subject};
use crate::types::GroupId;
use std::collections::{HashMap, VecDeque};

/// Files in the sample: of even use 4,000 know a hit ratio to about 0.01.
const FILES_MAX: usize = 16_384;
/// Uses in the sample, 8 bytes each.
const USES_MAX: usize = 512 << 10;
/// With fewer files the sample says little: then uses go and not files.
const FILES_MIN: usize = 2048;

/// The sample, and totals of what it is taken of.
#[derive(Clone, Default)]
pub struct Sample {
    files: HashMap<u32, Subject>,
    uses: VecDeque<(u32, u32)>,
    shift: u32,
    /// All uses and their bytes, sampled or not, in the time that the sample covers.
    total_uses: f64,
    total_bytes: f64,
    is_part: bool,
    seen: Distinct,
}

/// How many different files there were: one bit for each place that a fingerprint falls on, 512 KiB, right to 0.1 % for up
/// to 20 million.
#[derive(Clone)]
struct Distinct {
    bits: Box<[u64]>,
    set: u32,
}

impl Default for Distinct {
    fn default() -> Self {
        Self { bits: vec![0; (Self::BITS / 64) as usize].into(), set: 0 }
    }
}

impl Distinct {
    const BITS: u32 = 1 << 22;

    fn note(&mut self, print: u32) {
        let place = print >> 10;
        let (word, bit) = (&mut self.bits[(place / 64) as usize], 1 << (place % 64));
        self.set += u32::from(*word & bit == 0);
        *word |= bit;
    }

    fn count(&self) -> f64 {
        let unset = f64::from(Self::BITS - self.set).max(1.0);
        f64::from(Self::BITS) * (f64::from(Self::BITS) / unset).ln()
    }
}

/// What the sample says.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// Uses that the sample stands for.
    pub uses: u64,
    /// Files that were used, as far as the sample can tell.
    pub files: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Files in the sample.
    pub sampled_files: u64,
    /// The sample does not reach back to the first use: the answer is for a cache that was warm before.
    pub is_part: bool,
    /// Of each cache size what it would have given.
    pub points: Vec<AdvicePoint>,
}

/// One cache size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdvicePoint {
    /// The size, bytes.
    pub cache_bytes: u64,
    /// Hit ratio by `lru`, of uses and of bytes.
    pub lru: (f64, f64),
    /// The same by `epoch`.
    pub epoch: (f64, f64),
}

impl Sample {
    /// Notes a use.
    pub fn used(&mut self, file: &Subject, now_ms: u64) {
        self.total_uses += 1.0;
        self.total_bytes += file.bytes as f64;
        let print = file.id.fingerprint();
        self.seen.note(print);
        if !self.is_sampled(print) {
            return;
        }
        self.files.insert(print, *file);
        self.uses.push_back((print, now_ms as u32));
        while self.files.len() > FILES_MAX || (self.uses.len() > USES_MAX && self.files.len() > FILES_MIN) {
            self.shrink_rate();
        }
        if self.uses.len() > USES_MAX {
            self.forget_older_half();
        }
    }

    fn is_sampled(&self, print: u32) -> bool {
        // Not the bits by which others thin out.
        print.reverse_bits() & ((1 << self.shift) - 1) == 0
    }

    fn shrink_rate(&mut self) {
        self.shift += 1;
        let mut files = std::mem::take(&mut self.files);
        files.retain(|&print, _| self.is_sampled(print));
        self.uses.retain(|(print, _)| files.contains_key(print));
        self.files = files;
    }

    fn forget_older_half(&mut self) {
        let before = self.uses.len();
        self.uses.drain(..before / 2);
        let share = self.uses.len() as f64 / before as f64;
        (self.total_uses, self.total_bytes) = (self.total_uses * share, self.total_bytes * share);
        let left: std::collections::HashSet<u32> = self.uses.iter().map(|&(print, _)| print).collect();
        self.files.retain(|print, _| left.contains(print));
        self.is_part = true;
    }

    /// What was taken for two data sets is one.
    pub fn regrouped(&mut self, from: GroupId, into: GroupId) {
        self.files.values_mut().filter(|file| file.group == from).for_each(|file| file.group = into);
    }

    /// Answers for these sizes. It takes a moment: take a copy and let go of what guards the sample.
    pub fn advise(&self, sizes: &[u64]) -> Advice {
        let trace = self.trace();
        // By the files that there are and not by the hash, whose share is chance.
        let rate = match self.shift == 0 || self.is_part {
            true => f64::from(self.shift).exp2().recip(),
            false => self.files.len().max(1) as f64 / self.seen.count().max(1.0),
        };
        // Misses and not hits are what the sample stands for: which of the hottest files are in it is chance, but they hit
        // whatever the size.
        let ratios = |policy: &mut dyn Eviction, cache_bytes: u64| {
            let scaled = (cache_bytes as f64 * rate) as u64;
            let figures = simulate::replay(&trace, policy, scaled, &mut |_, _| {});
            let hits = |missed: u64, total: f64| match total > 0.0 {
                true => (1.0 - missed as f64 / rate / total).clamp(0.0, 1.0),
                false => 0.0,
            };
            let (missed, missed_bytes) = (figures.uses - figures.hits, figures.bytes - figures.hit_bytes);
            (hits(missed, self.total_uses), hits(missed_bytes, self.total_bytes))
        };
        let point = |&cache_bytes: &u64| AdvicePoint {
            cache_bytes,
            lru: ratios(&mut Lru::new(), cache_bytes),
            epoch: ratios(&mut Epoch::new(), cache_bytes),
        };
        Advice {
            uses: self.total_uses as u64,
            files: (self.files.len() as f64 / rate) as u64,
            bytes: (trace.bytes() as f64 / rate) as u64,
            sampled_files: self.files.len() as u64,
            is_part: self.is_part,
            points: sizes.iter().map(point).collect(),
        }
    }

    /// The uses in the sample as a trace of their own.
    fn trace(&self) -> Trace {
        let mut prints: Vec<u32> = self.files.keys().copied().collect();
        prints.sort_unstable();
        let places: HashMap<u32, u32> =
            prints.iter().zip(0..).map(|(&print, place)| (print, place)).collect();
        Trace {
            files: prints.iter().map(|print| self.files[print]).collect(),
            opens: self.uses.iter().map(|(print, _)| places[print]).collect(),
            uses_ms: Some(self.uses.iter().map(|&(_, ms)| ms).collect()),
            is_part: self.is_part,
        }
    }

    /// Files and uses in the sample.
    pub fn len(&self) -> (usize, usize) {
        (self.files.len(), self.uses.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FileId;

    fn file(n: u64) -> Subject {
        Subject { id: FileId { high: 0, low: n }, group: GroupId(0), bytes: 1000 }
    }

    #[test]
    fn memory_is_bounded_and_totals_stay_right() {
        let mut sample = Sample::default();
        for epoch in 0..20 {
            for n in 0..50_000 {
                sample.used(&file(n), epoch * 50_000 + n);
                let (files, uses) = sample.len();
                assert!(files <= FILES_MAX && uses <= USES_MAX);
            }
        }
        let advice = sample.advise(&[10_000_000, 25_000_000]);
        assert!((48_000..52_000).contains(&advice.files), "{advice:?}");
        assert!((48_000_000..52_000_000).contains(&advice.bytes), "{advice:?}");
        assert!((advice.points[1].epoch.0 - 0.475).abs() < 0.02, "{advice:?}");
    }

    #[test]
    fn few_files_that_are_read_for_ever_are_told_of_as_they_are_now() {
        let mut sample = Sample::default();
        for n in 0..1_000_000 {
            sample.used(&file(n % 1000), n);
        }
        let advice = sample.advise(&[500_000]);
        assert!(advice.is_part && advice.files == 1000, "{advice:?}");
        assert!((advice.points[0].epoch.0 - 0.5).abs() < 0.01 && advice.points[0].lru.0 < 0.01, "{advice:?}");
    }

    #[test]
    fn nothing_was_used_and_nothing_is_said() {
        let advice = Sample::default().advise(&[1000]);
        assert_eq!((advice.uses, advice.files, advice.points[0].epoch.0), (0, 0, 0.0));
    }
}
