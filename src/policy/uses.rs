//! Opens of a file close together are one use of it.
//!
//! Clients open a file two to four times in a row for one sample: to look at its header, to guess its format, to read
//! it. A policy that counted each would take every file for a hot one.

use crate::types::FileId;

/// A use ends when so many other files were used...
const USES_MAX: u32 = 64;
/// ...or after this time, whichever is first. A data loader comes back sooner, an epoch later; and what is opened all the
/// time is used again and again.
const USE_MS_MAX: u64 = 5000;
/// Files are remembered in so many places...
const PLACES: usize = 256;
/// ...with so many in each: 16 KiB in all, and the chance that one is forgotten too soon is 1 in 2,000.
const FILES_IN_PLACE: usize = 4;

/// The files that were used last.
pub struct RecentUses {
    places: Box<[[Slot; FILES_IN_PLACE]; PLACES]>,
    uses: u32,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    fingerprint: u32,
    use_number: u32,
    began_ms: u64,
}

impl Default for RecentUses {
    fn default() -> Self {
        Self { places: Box::new([[Slot::default(); FILES_IN_PLACE]; PLACES]), uses: USES_MAX }
    }
}

impl RecentUses {
    /// Notes an open. Says whether it belongs to a use that has begun before.
    pub fn is_again(&mut self, id: FileId, now_ms: u64) -> bool {
        let fingerprint = id.fingerprint();
        let place = &mut self.places[fingerprint as usize % PLACES];
        let known = place.iter().position(|slot| slot.fingerprint == fingerprint);
        let age = |slot: &Slot| self.uses.wrapping_sub(slot.use_number);
        let oldest = (0..FILES_IN_PLACE).max_by_key(|&at| age(&place[at])).unwrap_or(0);
        let slot = &mut place[known.unwrap_or(oldest)];
        let again = known.is_some()
            && self.uses.wrapping_sub(slot.use_number) < USES_MAX
            && now_ms.saturating_sub(slot.began_ms) < USE_MS_MAX;
        if !again {
            self.uses = self.uses.wrapping_add(1);
            *slot = Slot { fingerprint, use_number: self.uses, began_ms: now_ms };
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(low: u64) -> FileId {
        FileId { high: 7, low }
    }

    #[test]
    fn a_sample_that_is_opened_four_times_by_eight_workers_is_one_use() {
        let mut uses = RecentUses::default();
        let mut count = 0;
        // Each worker opens its file four times, all workers in turn.
        for round in 0..100 {
            for open in 0..4 {
                for worker in 0..8 {
                    let again = uses.is_again(id(round * 8 + worker), round * 40 + open * 10);
                    count += u32::from(!again);
                }
            }
        }
        assert_eq!(count, 800);
    }

    #[test]
    fn the_next_epoch_is_another_use() {
        let mut uses = RecentUses::default();
        for _ in 0..3 {
            assert!((0..200).all(|n| !uses.is_again(id(n), 0)), "by number");
        }
        assert!(!uses.is_again(id(1), 1_000_000));
        assert!(!uses.is_again(id(1), 1_005_000), "by time");
        assert!(uses.is_again(id(1), 1_009_999));
    }

    #[test]
    fn what_is_opened_all_the_time_is_used_again_and_again() {
        let mut uses = RecentUses::default();
        let count = (0..1000).filter(|n| !uses.is_again(id(1), *n) | uses.is_again(id(1000 + n), *n)).count();
        assert!((14..=18).contains(&count), "{count}");
    }
}
