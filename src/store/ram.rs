//! A window of RAM for files that found no room on the SSD, so that they too are read by the kernel itself and are
//! fetched once for all who ask at the same time. Bounded by a budget of its own; what nobody uses makes room first.

use super::{Budget, CacheFile, Reservation, disk_bytes};
use crate::sys::io::Io;
use crate::types::sync::Mutex;
use crate::types::{Error, FileId, FileVersion, Result};
use lru::LruCache;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Files in memory.
pub struct RamWindow {
    budget: Arc<Budget>,
    files: Mutex<LruCache<FileId, Arc<CacheFile>>>,
}

/// More descriptors than this are not spent on the window, however small its files.
const FILES_MAX: u64 = 4096;

impl RamWindow {
    /// A window of at most `bytes_max`; 0 is none.
    pub fn new(bytes_max: u64) -> Self {
        Self { budget: Budget::new(bytes_max, FILES_MAX), files: Mutex::new(LruCache::unbounded()) }
    }

    /// The file, if this version of it is here.
    pub fn get(&self, id: FileId, version: &FileVersion) -> Option<Arc<CacheFile>> {
        let mut files = self.files.lock();
        let file = files.get(&id)?;
        if file.version() == *version && !file.is_unsettled() {
            return Some(file.clone());
        }
        files.pop(&id);
        None
    }

    /// Space for a file of `size` bytes; `None` if what is in use leaves none.
    pub fn reserve(&self, size: u64) -> Option<Reservation> {
        let bytes = disk_bytes(size);
        if bytes > self.budget.usage().bytes_max {
            return None;
        }
        loop {
            if let Ok(reservation) = self.budget.reserve(bytes, 1) {
                return Some(reservation);
            }
            let victim = self.pop_unused()?;
            drop(victim);
        }
    }

    fn pop_unused(&self) -> Option<Arc<CacheFile>> {
        let mut files = self.files.lock();
        for _ in 0..files.len() {
            let (id, file) = files.pop_lru()?;
            if file.retire() {
                return Some(file);
            }
            files.put(id, file);
        }
        None
    }

    /// Adds a file that was filled.
    pub fn insert(&self, file: Arc<CacheFile>) {
        self.files.lock().put(file.id(), file);
    }

    /// Forgets a file; who uses it keeps it.
    pub fn remove(&self, id: FileId) -> bool {
        self.files.lock().pop(&id).is_some()
    }

    /// All files in the window.
    pub fn all(&self) -> Vec<Arc<CacheFile>> {
        self.files.lock().iter().map(|(_, file)| file.clone()).collect()
    }

    /// Bytes in the window.
    pub fn bytes(&self) -> u64 {
        self.budget.usage().bytes
    }

    /// A new file in memory.
    pub fn create(io: &Io) -> Result<OwnedFd> {
        io.memory("warmfs").map_err(|e| Error::os("memfd_create", "ram window", e.raw_os_error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;
    use crate::types::Timestamp;

    fn add(window: &RamWindow, n: u64, size: u64) -> Option<Arc<CacheFile>> {
        let reservation = window.reserve(size)?;
        let time = Timestamp::default();
        let version = FileVersion { size, mtime: time, ctime: time, ino: n };
        let place = Place::Ram(Arc::new(RamWindow::create(&Io::default()).unwrap()));
        let chunks = vec![super::super::Chunk::Missing; crate::types::chunk_count(size) as usize];
        let file = CacheFile::new(FileId { high: 0, low: n }, version, b"", place, chunks, reservation);
        window.insert(file.clone());
        Some(file)
    }

    #[test]
    fn never_more_than_its_size_and_never_what_is_in_use() {
        let window = RamWindow::new(3 * 4096);
        let a = add(&window, 1, 4096).unwrap().use_it().unwrap();
        for n in 2..50 {
            add(&window, n, 4096).unwrap();
            assert!(window.bytes() <= 3 * 4096);
        }
        assert!(window.get(a.id(), &a.version()).is_some(), "in use, so still there");
        assert!(add(&window, 99, 3 * 4096).is_none(), "the one in use is in the way");
        drop(a);
        assert!(add(&window, 99, 3 * 4096).is_some());
    }

    #[test]
    fn no_window_takes_nothing() {
        assert!(RamWindow::new(0).reserve(1).is_none());
    }
}
