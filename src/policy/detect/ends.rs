//! Archives whose directory is at their end: whoever opens one reads the last bytes first, and the first ones next.

use crate::types::{CHUNK_BYTES, ChunkIndex, chunk_count, chunk_range};

/// npz is zip.
const EXTENSIONS: [&[u8]; 3] = [b"npz", b"zip", b"parquet"];

/// A directory is seldom longer; where the last chunk has fewer bytes the one before is wanted, too.
const TAIL_BYTES_MIN: u64 = 64 << 10;

/// The chunks that whoever opens this file will read, or none if it is not known.
pub fn of(path: &[u8], size: u64) -> Vec<ChunkIndex> {
    let ext = path.rsplit(|&b| b == b'.').next().unwrap_or_default();
    if size <= CHUNK_BYTES || !EXTENSIONS.iter().any(|known| known.eq_ignore_ascii_case(ext)) {
        return Vec::new();
    }
    let last = chunk_count(size) - 1;
    let is_short = chunk_range(last, size).len() < TAIL_BYTES_MIN;
    let mut chunks = vec![last, last.saturating_sub(u32::from(is_short)), 0];
    chunks.dedup();
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_first_and_as_much_of_it_as_a_directory_takes() {
        let mib = CHUNK_BYTES;
        assert_eq!(of(b"a/b.npz", 10 * mib), [9, 0]);
        assert_eq!(of(b"x.PARQUET", 10 * mib + 100), [10, 9, 0]);
        assert_eq!(of(b"x.zip", mib + 1), [1, 0]);
        for (name, size) in [(&b"x.tar"[..], 10 * mib), (b"zip", mib), (b"x.zip", mib), (b"x.npz", 0)] {
            assert!(of(name, size).is_empty());
        }
    }
}
