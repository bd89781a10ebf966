//! Does this stream of reads want the whole file?
//!
//! A large file is fetched chunk by chunk as it is read. A reader that goes through it in order, or maps it and faults
//! all over it, will want everything, and a fill in the background at the source's full speed serves it better. A
//! database that looks up a few pages must not cause that.

use crate::types::{ChunkIndex, ChunkRange};

/// Chunks in a row that make a stream sequential: 8 MiB, more than any reader's header and index at the start.
const SEQUENTIAL_CHUNKS: u32 = 8;
/// Share of a file's chunks that makes random access "all over": one in eight.
const SPREAD_SHARE: u32 = 8;
/// Fewer distinct chunks than this are never "all over", however small the file.
const SPREAD_CHUNKS_MIN: u32 = 8;

/// Watches the reads of one file, by all its readers.
#[derive(Debug, Default)]
pub struct StreamTracker {
    next: ChunkIndex,
    run: u32,
    missed: u32,
    wants_all: bool,
}

impl StreamTracker {
    /// Notes a read of `chunks`, of which `missing` had to be fetched, in a file of `total` chunks. Returns `true`
    /// once: when the file is first seen to be wanted whole.
    pub fn note(&mut self, chunks: ChunkRange, missing: u32, total: u32) -> bool {
        if chunks.is_empty() || self.wants_all {
            return false;
        }
        if chunks.start == self.next || chunks.start + 1 == self.next {
            self.run += chunks.end.saturating_sub(self.next);
        } else {
            self.run = chunks.len();
        }
        self.next = chunks.end;
        self.missed += missing;
        let spread = self.missed >= SPREAD_CHUNKS_MIN && self.missed >= total / SPREAD_SHARE;
        self.wants_all = self.run >= SEQUENTIAL_CHUNKS.min(total) || spread;
        self.wants_all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(n: u32) -> ChunkRange {
        ChunkRange { start: n, end: n + 1 }
    }

    #[test]
    fn reading_in_order_is_seen_once() {
        let mut t = StreamTracker::default();
        let seen: Vec<u32> = (0..20).filter(|&n| t.note(one(n), 1, 100)).collect();
        assert_eq!(seen, [7]);
    }

    #[test]
    fn small_reads_inside_a_chunk_do_not_count_twice() {
        let mut t = StreamTracker::default();
        for _ in 0..100 {
            assert!(!t.note(one(0), 0, 100));
        }
    }

    #[test]
    fn a_few_random_pages_of_a_database_do_not_fetch_it() {
        let mut t = StreamTracker::default();
        for n in [0, 999, 5, 700, 123, 44, 860] {
            assert!(!t.note(one(n), 1, 1000));
        }
    }

    #[test]
    fn faults_all_over_do() {
        let mut t = StreamTracker::default();
        let seen = (0..64).map(|n| (n * 37) % 64).filter(|&n| t.note(one(n), 1, 64)).count();
        assert_eq!(seen, 1);
    }

    #[test]
    fn tail_then_head_is_not_a_stream() {
        let mut t = StreamTracker::default();
        assert!(!t.note(one(99), 1, 100));
        assert!(!t.note(one(0), 1, 100));
    }
}
