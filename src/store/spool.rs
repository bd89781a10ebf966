//! Paths that wait to be fetched, in a file without a name on the SSD: millions of them would not fit into memory.
//!
//! Written at one end and read at the other, each path once. It is made of parts, and a part that was read is gone; what
//! it takes on the disk is reserved by the caller. It lives no longer than the daemon.
//!
//! ```text
//! length of the path, 2 bytes, little-endian | the path | the next one ...
//! ```

use super::{CacheDir, Reservation};
use crate::types::{Error, Result};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// Paths, written and not read yet.
#[derive(Default)]
pub struct Spool {
    parts: VecDeque<Part>,
    buffer: Vec<u8>,
    at: usize,
}

/// What was added at once.
struct Part {
    fd: Arc<OwnedFd>,
    bytes: u64,
    read: u64,
    _room: Reservation,
}

/// The paths as they are written.
pub fn encode<'a>(paths: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for path in paths {
        // No path is longer than 4095 bytes: who takes them in has looked.
        bytes.extend_from_slice(&(path.len() as u16).to_le_bytes());
        bytes.extend_from_slice(path);
    }
    bytes
}

impl Spool {
    /// Writes encoded paths to a new file, which is not part of any spool yet; `room` is what it takes.
    pub fn write(dir: &CacheDir, bytes: &[u8], room: Reservation) -> Result<SpoolPart> {
        let (number, fd) = dir.create()?;
        dir.remove(number)?;
        dir.io()
            .write_all(&fd, bytes, 0)
            .map_err(|e| Error::os("write", "an order of access", e.raw_os_error()))?;
        Ok(SpoolPart(Part { fd: Arc::new(fd), bytes: bytes.len() as u64, read: 0, _room: room }))
    }

    /// Adds what was written.
    pub fn add(&mut self, part: SpoolPart) {
        self.parts.push_back(part.0);
    }

    /// The next path, if it was read from the disk already.
    pub fn take_next(&mut self) -> Option<Vec<u8>> {
        let rest = &self.buffer[self.at..];
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_le_bytes(*len));
        let path = rest.get(..len)?.to_vec();
        self.at += 2 + len;
        Some(path)
    }

    /// What is to be read from the disk now; `None` at the end.
    pub fn want(&mut self) -> Option<Chunk> {
        while self.parts.front().is_some_and(|part| part.read == part.bytes) {
            self.parts.pop_front();
        }
        let part = self.parts.front_mut()?;
        let len = READ_BYTES.min((part.bytes - part.read) as usize);
        let chunk = Chunk { fd: part.fd.clone(), offset: part.read, len };
        part.read += len as u64;
        Some(chunk)
    }

    /// What was read.
    pub fn give(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(bytes);
    }
}

/// Written, and not yet part of a spool.
pub struct SpoolPart(Part);

/// A piece of a spool that is to be read.
pub struct Chunk {
    fd: Arc<OwnedFd>,
    offset: u64,
    len: usize,
}

impl Chunk {
    /// Reads it.
    pub fn read(&self, dir: &CacheDir) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.len];
        dir.io()
            .read_exact(&*self.fd, &mut bytes, self.offset)
            .map_err(|e| Error::os("read", "an order of access", e.raw_os_error()))?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Budget;

    #[test]
    fn what_goes_in_comes_out_in_order_and_its_room_comes_back() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(tmp.path(), tmp.path()).unwrap();
        let budget = Budget::new(10 << 20, 10);
        let paths: Vec<Vec<u8>> =
            (0..20_000).map(|n| format!("train/{n}\n\u{e4}.jpg").into_bytes()).collect();
        let mut spool = Spool::default();
        for part in paths.chunks(7000) {
            let bytes = encode(part.iter().map(Vec::as_slice));
            let room = budget.reserve(bytes.len() as u64, 1).unwrap();
            spool.add(Spool::write(&dir, &bytes, room).unwrap());
        }
        let mut seen = Vec::new();
        loop {
            if let Some(path) = spool.take_next() {
                seen.push(path);
            } else if let Some(chunk) = spool.want() {
                let bytes = chunk.read(&dir).unwrap();
                spool.give(&bytes);
            } else {
                break;
            }
        }
        assert_eq!(seen, paths);
        assert_eq!(budget.usage().bytes, 0);
    }
}
