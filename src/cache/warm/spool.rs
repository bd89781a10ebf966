//! A queue of names that may be ten million long: the ends are in memory, what is between them in a file without a name on
//! the cache's disk. It takes its space from the budget, and a daemon that dies leaves nothing.

use crate::cache::Cache;
use crate::store::Reservation;
use crate::types::{Error, ErrorKind, Result};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// What is written and read at a time, bytes.
const BLOCK_BYTES: usize = 256 << 10;

/// First in, first out. Not shared: whoever owns it does its I/O.
#[derive(Default)]
pub struct Spool {
    /// The file and its room, given back in this order.
    file: Option<(OwnedFd, Reservation)>,
    /// Where the blocks are that wait in the file.
    blocks: VecDeque<(u64, usize)>,
    /// Where the next one goes.
    end: u64,
    head: Vec<u8>,
    /// How much of `head` was taken.
    taken: usize,
    tail: Vec<u8>,
    len: u64,
}

impl Spool {
    /// Records in it.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a record.
    pub fn push(&mut self, cache: &Cache, record: &[u8]) -> Result<()> {
        self.tail.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.tail.extend_from_slice(record);
        self.len += 1;
        if self.tail.len() >= BLOCK_BYTES { self.spill(cache) } else { Ok(()) }
    }

    /// Takes the oldest record.
    pub fn pop(&mut self, cache: &Cache) -> Result<Option<Vec<u8>>> {
        if self.taken == self.head.len() {
            self.next_block(cache)?;
        }
        let Some((length, rest)) = self.head[self.taken..].split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        let record = rest[..length].to_vec();
        self.taken += 4 + length;
        self.len -= 1;
        Ok(Some(record))
    }

    fn next_block(&mut self, cache: &Cache) -> Result<()> {
        self.taken = 0;
        let Some((at, len)) = self.blocks.pop_front() else {
            self.head.clear();
            std::mem::swap(&mut self.head, &mut self.tail);
            return Ok(());
        };
        let (file, _) = self.file.as_ref().expect("there are blocks only in a file");
        self.head.resize(len, 0);
        let read = cache.dir().io().read_exact(file, &mut self.head, at);
        read.map_err(|e| Error::os("read", "a list of names", e.raw_os_error()))?;
        if self.blocks.is_empty() {
            // All of it was read: the file is used from its start again.
            self.end = 0;
        }
        Ok(())
    }

    fn spill(&mut self, cache: &Cache) -> Result<()> {
        let len = self.tail.len();
        let room = self.end + len as u64;
        if self.file.is_none() {
            let (number, fd) = cache.dir().create()?;
            cache.dir().remove(number)?;
            self.file = Some((fd, take(cache, 0)?));
        }
        let (file, reserved) = self.file.as_mut().expect("made just now");
        if room > reserved.bytes() {
            reserved.absorb(take(cache, room - reserved.bytes())?);
        }
        let written = cache.dir().io().write_all(&*file, &self.tail, self.end);
        written.map_err(|e| Error::os("write", "a list of names", e.raw_os_error()))?;
        self.blocks.push_back((self.end, len));
        self.end += len as u64;
        self.tail.clear();
        Ok(())
    }
}

fn take(cache: &Cache, bytes: u64) -> Result<Reservation> {
    let none = || Error::new(ErrorKind::NoSpace, "", "no room in the cache for a list of so many names");
    cache.make_room(None, bytes, 0, None).ok_or_else(none)
}
