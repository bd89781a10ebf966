//! Reads data files from the SSD and not from memory, for whoever wants to know what the SSD has kept.
//!
//! A page that is in the page cache hides what the disk has in its place, and a file that was just filled is there
//! whole. So the reads are direct (O_DIRECT): they write out what is dirty in the range, then take the bytes from the
//! device, and neither use nor fill nor drop the pages that a job may be reading. To drop the pages first would look at
//! the same bytes and cost the job its memory; to read through them would look at nothing.
//!
//! Where a file system refuses direct reads (some FUSE and network ones), the pages of the range are dropped before the
//! read and after it; those that somebody has mapped or that are dirty stay, and hide the disk. tmpfs has no disk. What the
//! device answers from its own RAM cannot be told from what its cells hold.

use crate::store::CacheDir;
use crate::sys::io::Io;
use crate::types::{ByteRange, CHUNK_BYTES, Result};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// What every block device takes as the alignment of a direct read.
const ALIGN: usize = 4096;

/// A data file, open on a descriptor of its own.
pub(super) struct DiskFile {
    io: Io,
    fd: OwnedFd,
    direct: bool,
}

impl DiskFile {
    /// Opens data file `number`, which must have `size` bytes.
    pub(super) fn open(dir: &CacheDir, number: u64, size: u64) -> Result<Self> {
        let fd = dir.open_data(number, size, false)?;
        let direct = dir.io().set_direct(&fd, true).is_ok();
        Ok(Self { io: dir.io().clone(), fd, direct })
    }
}

/// Memory for one chunk, aligned as direct reads want it.
pub(super) struct DiskReader {
    buffer: Vec<u8>,
    start: usize,
}

impl DiskReader {
    pub(super) fn new() -> Self {
        let buffer = vec![0; CHUNK_BYTES as usize + ALIGN];
        let start = buffer.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { buffer, start }
    }

    /// Hashes a chunk's bytes as the SSD has them. A file that ends before the chunk does is EIO.
    pub(super) fn hash(
        &mut self,
        file: &mut DiskFile,
        range: ByteRange,
    ) -> std::result::Result<[u8; 32], Errno> {
        let len = range.len() as usize;
        if file.direct {
            match self.fill(file, range) {
                // Refused by what is below, though the file system took the flag.
                Err(Errno::INVAL) => {
                    file.io.set_direct(&file.fd, false)?;
                    file.direct = false;
                }
                done => {
                    done?;
                    return Ok(*blake3::hash(self.bytes(len)).as_bytes());
                }
            }
        }
        let pages = (range.start, range.len().next_multiple_of(ALIGN as u64));
        let _ = file.io.drop_pages(&file.fd, pages.0, pages.1);
        let done = self.fill(file, range);
        let _ = file.io.drop_pages(&file.fd, pages.0, pages.1);
        done?;
        Ok(*blake3::hash(self.bytes(len)).as_bytes())
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self.buffer[self.start..self.start + len]
    }

    fn fill(&mut self, file: &DiskFile, range: ByteRange) -> std::result::Result<(), Errno> {
        let len = range.len() as usize;
        // A direct read asks for whole blocks; the last one ends with the file.
        let end = self.start + len.next_multiple_of(ALIGN);
        let buffer = &mut self.buffer[self.start..end];
        let mut done = 0;
        while done < len {
            match file.io.read(&file.fd, &mut buffer[done..], range.start + done as u64)? {
                0 => return Err(Errno::IO),
                n => done += n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use std::path::Path;

    /// Also in both ways, for a disk's file system may refuse the direct one.
    #[test]
    fn what_is_hashed_is_what_was_written_up_to_the_odd_end() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let (number, fd) = dir.create().unwrap();
        let size = 2 * CHUNK_BYTES + 12_345;
        let bytes: Vec<u8> = (0..size).map(|i| (i * 7 + i / 251) as u8).collect();
        std::fs::File::from(fd).write_all_at(&bytes, 0).unwrap();
        let mut reader = DiskReader::new();
        for direct in [true, false] {
            let mut file = DiskFile::open(&dir, number, size).unwrap();
            if !direct {
                file.io.set_direct(&file.fd, false).unwrap();
                file.direct = false;
            }
            for chunk in 0..3 {
                let range = crate::types::chunk_range(chunk, size);
                let wanted = blake3::hash(&bytes[range.start as usize..range.end as usize]);
                assert_eq!(reader.hash(&mut file, range), Ok(*wanted.as_bytes()), "{direct} {chunk}");
            }
            let beyond = ByteRange { start: 2 * CHUNK_BYTES, end: 3 * CHUNK_BYTES };
            assert_eq!(reader.hash(&mut file, beyond), Err(Errno::IO));
        }
    }
}
