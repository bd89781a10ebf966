//! The bytes of the index: what is written about a cached file. Drawn here, and read nowhere else.
//!
//! ```text
//! record, little-endian
//!   0   8   number of the data file (its name on the disk)
//!   8   8   size
//!  16  12   mtime: seconds (8), nanoseconds (4)
//!  28  12   ctime: seconds (8), nanoseconds (4)
//!  40   8   inode of the version, 0 where the source's numbers are not stable
//!  48   4   P, length of the path
//!  52   4   C, number of chunks
//!  56   P   path relative to the source's root (where it was last seen; for people, never for identity)
//!   .. (C+7)/8   presence bitmap, chunk 0 in bit 0 of byte 0
//!   .. 32*K      blake3 of each present chunk, in order, K = bits set
//!   ..  8        first 8 bytes of blake3 over the file's id and everything before
//! ```
//!
//! The last field makes a record believe nobody: the data base checks its own pages only after an unclean stop, and a
//! flipped bit in a version, a checksum or the key would otherwise name wrong bytes as right ones. Fixed fields come first so
//! that a version is compared without reading the rest.

use crate::types::{FileId, FileVersion, Timestamp, chunk_count};

/// Version of the directory's format and of this record. A directory with another is refused.
pub const FORMAT_VERSION: u32 = 1;

const FIXED_BYTES: usize = 56;
const CHECK_BYTES: usize = 8;
const HASH_BYTES: usize = 32;

/// What the index knows of one cached file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Name of the data file, as a number.
    pub number: u64,
    /// Which content.
    pub version: FileVersion,
    /// Path where it was last seen, bytes.
    pub path: Vec<u8>,
    /// For each chunk its checksum, if it is present.
    pub chunks: Vec<Option<[u8; HASH_BYTES]>>,
}

impl Record {
    /// Whether every chunk is present.
    pub fn is_complete(&self) -> bool {
        self.chunks.iter().all(Option::is_some)
    }

    /// How many bytes it takes, about.
    pub fn encoded_bytes(&self) -> u64 {
        (FIXED_BYTES + self.path.len() + self.chunks.len() * 33 + CHECK_BYTES) as u64
    }

    /// The record's bytes, to be kept under the key `id`.
    pub fn encode(&self, id: FileId) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_bytes() as usize);
        out.extend(self.number.to_le_bytes());
        out.extend(self.version.size.to_le_bytes());
        for time in [self.version.mtime, self.version.ctime] {
            out.extend(time.secs.to_le_bytes());
            out.extend(time.nanos.to_le_bytes());
        }
        out.extend(self.version.ino.to_le_bytes());
        out.extend((self.path.len() as u32).to_le_bytes());
        out.extend((self.chunks.len() as u32).to_le_bytes());
        out.extend(&self.path);
        let mut bitmap = vec![0u8; self.chunks.len().div_ceil(8)];
        for (i, _) in self.chunks.iter().enumerate().filter(|(_, c)| c.is_some()) {
            bitmap[i / 8] |= 1 << (i % 8);
        }
        out.extend(bitmap);
        for hash in self.chunks.iter().flatten() {
            out.extend(hash);
        }
        out.extend(check(id, &out));
        out
    }

    /// Reads the record found under `id`; `None` for anything that [`Record::encode`] did not write for it.
    pub fn decode(id: FileId, bytes: &[u8]) -> Option<Self> {
        let (body, found) = bytes.split_at_checked(bytes.len().checked_sub(CHECK_BYTES)?)?;
        if check(id, body) != *found {
            return None;
        }
        let mut r = Reader(body);
        let number = r.u64()?;
        let size = r.u64()?;
        let mtime = Timestamp { secs: r.u64()? as i64, nanos: r.u32()? };
        let ctime = Timestamp { secs: r.u64()? as i64, nanos: r.u32()? };
        let ino = r.u64()?;
        let path_len = r.u32()? as usize;
        let count = r.u32()?;
        if count != chunk_count(size) {
            return None;
        }
        let path = r.take(path_len)?.to_vec();
        let bitmap = r.take((count as usize).div_ceil(8))?;
        // Bits beyond the last chunk were never set.
        if count % 8 != 0 && bitmap.last().is_some_and(|last| last >> (count % 8) != 0) {
            return None;
        }
        let mut chunks = Vec::with_capacity(count as usize);
        for i in 0..count as usize {
            let present = bitmap[i / 8] & (1 << (i % 8)) != 0;
            chunks.push(if present { Some(r.take(HASH_BYTES)?.try_into().ok()?) } else { None });
        }
        let version = FileVersion { size, mtime, ctime, ino };
        r.0.is_empty().then_some(Self { number, version, path, chunks })
    }
}

fn check(id: FileId, body: &[u8]) -> [u8; CHECK_BYTES] {
    let hash = blake3::Hasher::new().update(&id.to_bytes()).update(body).finalize();
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hash.as_bytes()[..CHECK_BYTES]);
    check
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::CHUNK_BYTES;
    use proptest::prelude::*;

    const ID: FileId = FileId { high: 0, low: 9 };

    fn record(size: u64, path: Vec<u8>, present: &dyn Fn(usize) -> bool) -> Record {
        let time = Timestamp { secs: -5, nanos: 999_999_999 };
        let chunks = (0..chunk_count(size) as usize).map(|i| present(i).then_some([i as u8; 32])).collect();
        Record { number: 7, version: FileVersion { size, mtime: time, ctime: time, ino: 3 }, path, chunks }
    }

    #[test]
    fn empty_file_has_no_chunks_and_is_complete() {
        let r = record(0, b"x".to_vec(), &|_| true);
        assert!(r.is_complete());
        assert_eq!(Record::decode(ID, &r.encode(ID)), Some(r));
    }

    /// Goal: bytes that were never written are no record, even under a right checksum. Method: a bit of the bitmap
    /// beyond the last chunk.
    #[test]
    fn a_bitmap_that_speaks_of_chunks_beyond_the_end_is_refused() {
        let mut bytes = record(3 * CHUNK_BYTES, b"x".to_vec(), &|i| i != 1).encode(ID);
        bytes.truncate(bytes.len() - CHECK_BYTES);
        let bitmap = &mut bytes[FIXED_BYTES + 1];
        assert_eq!(*bitmap, 0b101);
        *bitmap |= 0b1000;
        let check = check(ID, &bytes);
        bytes.extend(check);
        assert_eq!(Record::decode(ID, &bytes), None);
    }

    proptest! {
        #[test]
        fn records_round_trip(size in 0u64..40 * CHUNK_BYTES, path: Vec<u8>, mask: u64) {
            let r = record(size, path, &|i| mask & (1 << (i % 64)) != 0);
            prop_assert_eq!(Record::decode(ID, &r.encode(ID)), Some(r));
        }

        #[test]
        fn any_flipped_bit_is_noticed(size in 0u64..9 * CHUNK_BYTES, path: Vec<u8>, at: prop::sample::Index) {
            let mut bytes = record(size, path, &|i| i % 3 != 0).encode(ID);
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::decode(ID, &bytes), None);
        }

        #[test]
        fn a_record_under_another_key_is_refused(low: u64) {
            let bytes = record(5, vec![], &|_| true).encode(ID);
            prop_assume!(low != ID.low);
            prop_assert_eq!(Record::decode(FileId { high: 0, low }, &bytes), None);
        }

        #[test]
        fn rubbish_is_refused_without_a_panic(bytes: Vec<u8>) {
            prop_assert_eq!(Record::decode(ID, &bytes), None);
        }
    }
}
