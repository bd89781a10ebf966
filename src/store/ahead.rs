//! What was fetched before anybody asked for it, and whether somebody did in the end.
//!
//! Each such file holds an [`Ahead`]: to be taken when the file is opened, and otherwise gone with the file. So what lies
//! about unused is always told right, which decides how much more is fetched.

use crate::stats::Stats;
use crate::types::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// What was fetched ahead for one purpose.
#[derive(Debug)]
pub struct Tally {
    stats: Arc<Stats>,
    unused_bytes: AtomicU64,
    unused_files: AtomicU64,
    used_files: AtomicU64,
    wasted_files: AtomicU64,
    place_bytes_max: u64,
}

impl Tally {
    /// Nothing yet. Bytes are counted in `stats`, too.
    pub fn new(stats: Arc<Stats>) -> Arc<Self> {
        Self::in_place_of_others(stats, 0)
    }

    /// The same, and while fewer than so many bytes lie unused its files may take the places of others.
    pub fn in_place_of_others(stats: Arc<Stats>, place_bytes_max: u64) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let (used_files, wasted_files) = (zero(), zero());
        Arc::new(Self {
            stats,
            unused_bytes: zero(),
            unused_files: zero(),
            used_files,
            wasted_files,
            place_bytes_max,
        })
    }

    /// Whether a file may take the place of another now.
    pub fn may_take_places(&self) -> bool {
        self.unused_bytes() < self.place_bytes_max
    }

    /// Bytes that are here and were not asked for yet.
    pub fn unused_bytes(&self) -> u64 {
        self.unused_bytes.load(Ordering::Acquire)
    }

    /// Files that are here and were not asked for yet.
    pub fn unused_files(&self) -> u64 {
        self.unused_files.load(Ordering::Relaxed)
    }

    /// Files that somebody asked for in the end, and files that had to go before anybody did.
    pub fn used_and_wasted(&self) -> (u64, u64) {
        (self.used_files.load(Ordering::Relaxed), self.wasted_files.load(Ordering::Relaxed))
    }

    /// A file of `bytes` was fetched.
    pub fn fetched(self: &Arc<Self>, bytes: u64) -> Ahead {
        self.unused_files.fetch_add(1, Ordering::Relaxed);
        let mut ahead = Ahead { tally: self.clone(), bytes: 0, used: false };
        ahead.grow(bytes);
        ahead
    }
}

/// A file, or a part of one, that nobody has asked for yet.
#[derive(Debug)]
pub struct Ahead {
    tally: Arc<Tally>,
    bytes: u64,
    used: bool,
}

impl Ahead {
    /// More of it was fetched.
    pub fn grow(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.tally.unused_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.tally.stats.prefetched_bytes.add(bytes);
    }

    /// Somebody did.
    pub fn used(mut self) {
        self.used = true;
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.tally.unused_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        let stats = &self.tally.stats;
        let (files, bytes) = match self.used {
            true => (&self.tally.used_files, &stats.prefetch_used_bytes),
            false => (&self.tally.wasted_files, &stats.prefetch_wasted_bytes),
        };
        self.tally.unused_files.fetch_sub(1, Ordering::Relaxed);
        files.fetch_add(1, Ordering::Relaxed);
        bytes.add(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fetched_is_used_or_wasted_in_the_end() {
        let stats = Arc::new(Stats::default());
        let tally = Tally::new(stats.clone());
        let (mut a, b) = (tally.fetched(4), tally.fetched(7));
        a.grow(6);
        assert_eq!(tally.unused_files(), 2);
        assert_eq!((tally.unused_bytes(), stats.prefetched_bytes.get()), (17, 17));
        a.used();
        drop(b);
        assert_eq!((tally.unused_files(), tally.unused_bytes(), tally.used_and_wasted()), (0, 0, (1, 1)));
        assert_eq!((stats.prefetch_used_bytes.get(), stats.prefetch_wasted_bytes.get()), (10, 7));
    }
}
