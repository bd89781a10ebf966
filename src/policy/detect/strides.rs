//! Reads at the same distance from each other inside a large file: one column of a matrix, every tenth record.

use crate::types::{ByteRange, CHUNK_BYTES};

/// After so many equal distances the next places are guessed.
const RUN_MIN: u32 = 3;
/// So many places are fetched ahead.
const DEPTH: u32 = 4;
/// The kernel asks by pages of 4 KiB, so that each end of a distance may be off by one.
const TOLERANCE_BYTES: u64 = 8192;

/// Watches the reads of one file.
#[derive(Debug, Default)]
pub struct StrideTracker {
    /// What is read now without a gap.
    now: Option<ByteRange>,
    stride: i64,
    run: u32,
    /// Places beyond this one that were guessed.
    ahead: u32,
}

impl StrideTracker {
    /// Notes a read in a file of `size` bytes. Gives the places that are expected next and were not guessed yet.
    pub fn note(&mut self, range: ByteRange, size: u64) -> Vec<ByteRange> {
        let Some(now) = &mut self.now else {
            self.now = Some(range);
            return Vec::new();
        };
        if (now.start..=now.end).contains(&range.start) {
            now.end = now.end.max(range.end);
            return Vec::new();
        }
        let (len, stride) = (now.len(), range.start as i64 - now.start as i64);
        *now = range;
        if stride.abs_diff(self.stride) > TOLERANCE_BYTES {
            (self.stride, self.run, self.ahead) = (stride, 1, 0);
            return Vec::new();
        }
        self.run += 1;
        self.ahead = self.ahead.saturating_sub(1);
        // Closer together it is a stream, chunk for chunk.
        if self.run < RUN_MIN || stride.unsigned_abs() < CHUNK_BYTES {
            return Vec::new();
        }
        let places = self.ahead + 1..=DEPTH;
        self.ahead = DEPTH;
        let place = |k: u32| {
            let start = range.start.checked_add_signed(self.stride.checked_mul(i64::from(k))?)?;
            Some(ByteRange { start, end: start.saturating_add(len.max(range.len())).min(size) })
        };
        places.filter_map(place).filter(|place| !place.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = CHUNK_BYTES;

    fn read(tracker: &mut StrideTracker, start: u64) -> Vec<u64> {
        let range = ByteRange { start, end: start + 4096 };
        tracker.note(range, 100 * MIB).into_iter().map(|place| place.start / MIB).collect()
    }

    #[test]
    fn equal_distances_announce_the_next_four_places_once() {
        let mut tracker = StrideTracker::default();
        let told: Vec<_> = (0..6).map(|n| read(&mut tracker, n * 3 * MIB)).collect();
        assert_eq!(told, [vec![], vec![], vec![], vec![12, 15, 18, 21], vec![24], vec![27]]);
        let mut back = StrideTracker::default();
        let told: Vec<_> = (0..4).map(|n| read(&mut back, (90 - n * 30) * MIB)).collect();
        assert_eq!(told[3], [0u64; 0], "before the start there is nothing");
    }

    #[test]
    fn a_place_that_is_read_in_pieces_is_one_place() {
        let mut tracker = StrideTracker::default();
        let mut told = Vec::new();
        for n in 0..4 {
            let start = n * 5 * MIB + n % 2 * 4096;
            told = read(&mut tracker, start);
            assert!(read(&mut tracker, start + 4096).is_empty() && read(&mut tracker, start).is_empty());
        }
        assert_eq!(told, [20, 25, 30, 35]);
    }

    #[test]
    fn a_stream_and_a_database_announce_nothing() {
        let mut tracker = StrideTracker::default();
        assert!((0..500).all(|n| read(&mut tracker, n * 4096).is_empty()));
        assert!((0..500).all(|n| read(&mut tracker, n * 8192).is_empty()));
        let mut tracker = StrideTracker::default();
        assert!((0..500).all(|n: u64| read(&mut tracker, n * n * 7919 % 25_000 * 4096).is_empty()));
    }
}
