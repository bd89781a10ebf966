//! Ranges of bytes and of chunks, and the arithmetic between them. Half-open always; offsets are bytes.

/// The unit of presence and of checksums. 1 MiB is what one FUSE read can carry at most (256 pages), deep enough for
/// a disk to stream and small enough that a random reader of a large file does not fetch what it will not use.
pub const CHUNK_BYTES: u64 = 1 << 20;

/// Number of a chunk in its file, from 0.
pub type ChunkIndex = u32;

/// Bytes `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

/// Chunks `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    /// First chunk.
    pub start: ChunkIndex,
    /// One past the last chunk.
    pub end: ChunkIndex,
}

impl ByteRange {
    /// `offset..offset + len`, cut off at `size`; empty where it lies beyond.
    pub fn clamped(offset: u64, len: u64, size: u64) -> Self {
        let start = offset.min(size);
        Self { start, end: offset.saturating_add(len).min(size) }
    }

    /// Length in bytes.
    pub fn len(self) -> u64 {
        self.end - self.start
    }

    /// Whether it holds no byte.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// The chunks that hold these bytes.
    pub fn chunks(self) -> ChunkRange {
        if self.is_empty() {
            return ChunkRange { start: 0, end: 0 };
        }
        ChunkRange {
            start: (self.start / CHUNK_BYTES) as ChunkIndex,
            end: (self.end.div_ceil(CHUNK_BYTES)) as ChunkIndex,
        }
    }
}

impl ChunkRange {
    /// Number of chunks.
    pub fn len(self) -> u32 {
        self.end - self.start
    }

    /// Whether it holds no chunk.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// The bytes of these chunks in a file of `size` bytes.
    pub fn bytes(self, size: u64) -> ByteRange {
        let start = (u64::from(self.start) * CHUNK_BYTES).min(size);
        ByteRange { start, end: (u64::from(self.end) * CHUNK_BYTES).min(size) }
    }
}

/// How many chunks a file of `size` bytes has; an empty file has none.
pub fn chunk_count(size: u64) -> ChunkIndex {
    size.div_ceil(CHUNK_BYTES) as ChunkIndex
}

/// The bytes of one chunk in a file of `size` bytes.
pub fn chunk_range(index: ChunkIndex, size: u64) -> ByteRange {
    ChunkRange { start: index, end: index + 1 }.bytes(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_at_the_edges() {
        assert_eq!(chunk_count(0), 0);
        assert_eq!(chunk_count(1), 1);
        assert_eq!(chunk_count(CHUNK_BYTES), 1);
        assert_eq!(chunk_count(CHUNK_BYTES + 1), 2);
    }

    #[test]
    fn last_chunk_is_short() {
        let size = CHUNK_BYTES + 5;
        assert_eq!(chunk_range(1, size), ByteRange { start: CHUNK_BYTES, end: size });
        assert_eq!(chunk_range(0, size).len(), CHUNK_BYTES);
    }

    #[test]
    fn clamped_never_passes_the_end_and_never_overflows() {
        assert!(ByteRange::clamped(10, 5, 10).is_empty());
        assert_eq!(ByteRange::clamped(8, 5, 10), ByteRange { start: 8, end: 10 });
        assert!(ByteRange::clamped(u64::MAX, u64::MAX, 10).is_empty());
    }

    #[test]
    fn chunks_of_a_range_straddling_a_border() {
        let r = ByteRange { start: CHUNK_BYTES - 1, end: CHUNK_BYTES + 1 };
        assert_eq!(r.chunks(), ChunkRange { start: 0, end: 2 });
        assert!(ByteRange { start: 5, end: 5 }.chunks().is_empty());
    }

    #[test]
    fn ranges_beyond_four_gib_keep_their_bits() {
        let size = (5u64 << 30) + 123;
        let last = chunk_count(size) - 1;
        assert_eq!(chunk_range(last, size).end, size);
        assert!(chunk_range(last, size).start > u64::from(u32::MAX));
    }
}
