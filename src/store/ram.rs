//! A window of RAM for files that found no room on the SSD, so that they too are read by the kernel itself and are
//! fetched once for all who ask at the same time; and for files that are fetched before anybody asks. Bounded by a budget
//! of its own. What somebody has used makes room first: under epochs it is not asked for again for long. What was fetched
//! ahead is there to be used, but never takes all of the window.

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
    files: Mutex<Files>,
}

struct Files {
    used: LruCache<FileId, Arc<CacheFile>>,
    ahead: LruCache<FileId, Arc<CacheFile>>,
    ahead_bytes: u64,
}

/// The share of the window that files may take which nobody has asked for yet: the rest is for those that somebody has.
const AHEAD_SHARE: (u64, u64) = (3, 4);

/// More descriptors than this are not spent on the window, however small its files.
const FILES_MAX: u64 = 4096;

impl RamWindow {
    /// A window of at most `bytes_max`; 0 is none.
    pub fn new(bytes_max: u64) -> Self {
        let files = Files { used: LruCache::unbounded(), ahead: LruCache::unbounded(), ahead_bytes: 0 };
        Self { budget: Budget::new(bytes_max, FILES_MAX), files: Mutex::new(files) }
    }

    /// The file, if this version of it is here.
    pub fn get(&self, id: FileId, version: &FileVersion) -> Option<Arc<CacheFile>> {
        let mut files = self.files.lock();
        let file = files.get(id)?.clone();
        if file.version() == *version && !file.is_unsettled() {
            return Some(file);
        }
        files.pop(id);
        None
    }

    /// Somebody has asked for a file that was fetched ahead.
    pub fn used(&self, id: FileId) {
        let mut files = self.files.lock();
        if let Some(file) = files.pop_ahead(id) {
            files.used.put(id, file);
        }
    }

    /// Space for a file of `size` bytes that nobody has asked for; `None` if others like it take their share already.
    pub fn reserve_ahead(&self, size: u64) -> Option<Reservation> {
        let bytes = disk_bytes(size);
        let limit = self.budget.usage().bytes_max / AHEAD_SHARE.1 * AHEAD_SHARE.0;
        loop {
            let victim = {
                let mut files = self.files.lock();
                if files.ahead_bytes + bytes > limit {
                    return None;
                }
                if let Ok(reservation) = self.budget.reserve(bytes, 1) {
                    return Some(reservation);
                }
                pop_unused(&mut files.used)?
            };
            drop(victim);
        }
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
            let victim = self.files.lock().victim()?;
            drop(victim);
        }
    }

    /// Adds a file that was filled.
    pub fn insert(&self, file: Arc<CacheFile>) {
        let old = self.files.lock().insert(file);
        drop(old);
    }

    /// Forgets a file; who uses it keeps it.
    pub fn remove(&self, id: FileId) -> bool {
        let old = self.files.lock().pop(id);
        old.is_some()
    }

    /// All files in the window.
    pub fn all(&self) -> Vec<Arc<CacheFile>> {
        let files = self.files.lock();
        files.used.iter().chain(files.ahead.iter()).map(|(_, file)| file.clone()).collect()
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

impl Files {
    fn get(&mut self, id: FileId) -> Option<&Arc<CacheFile>> {
        match self.used.get(&id) {
            Some(file) => Some(file),
            None => self.ahead.peek(&id),
        }
    }

    fn insert(&mut self, file: Arc<CacheFile>) -> Option<Arc<CacheFile>> {
        let old = self.pop(file.id());
        match file.is_ahead() {
            true => {
                self.ahead_bytes += disk_bytes(file.size());
                self.ahead.put(file.id(), file);
            }
            false => _ = self.used.put(file.id(), file),
        }
        old
    }

    fn pop(&mut self, id: FileId) -> Option<Arc<CacheFile>> {
        self.used.pop(&id).or_else(|| self.pop_ahead(id))
    }

    fn pop_ahead(&mut self, id: FileId) -> Option<Arc<CacheFile>> {
        let file = self.ahead.pop(&id)?;
        self.ahead_bytes -= disk_bytes(file.size());
        Some(file)
    }

    /// What goes so that a file that somebody asks for has room.
    fn victim(&mut self) -> Option<Arc<CacheFile>> {
        if let Some(file) = pop_unused(&mut self.used) {
            return Some(file);
        }
        let file = pop_unused(&mut self.ahead)?;
        self.ahead_bytes -= disk_bytes(file.size());
        Some(file)
    }
}

/// The file that was used longest ago of those that nobody has open.
fn pop_unused(files: &mut LruCache<FileId, Arc<CacheFile>>) -> Option<Arc<CacheFile>> {
    for _ in 0..files.len() {
        let (id, file) = files.pop_lru()?;
        if file.retire() {
            return Some(file);
        }
        files.put(id, file);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Place;
    use crate::types::Timestamp;

    fn add(window: &RamWindow, n: u64, size: u64) -> Option<Arc<CacheFile>> {
        let file = file(window.reserve(size)?, n, size);
        window.insert(file.clone());
        Some(file)
    }

    fn file(reservation: Reservation, n: u64, size: u64) -> Arc<CacheFile> {
        let time = Timestamp::default();
        let version = FileVersion { size, mtime: time, ctime: time, ino: n };
        let place = Place::Ram(Arc::new(RamWindow::create(&Io::default()).unwrap()));
        let chunks = vec![super::super::Chunk::Missing; crate::types::chunk_count(size) as usize];
        CacheFile::new(FileId { high: 0, low: n }, version, b"", place, chunks, reservation)
    }

    /// Goal: what is fetched ahead leaves room for what is asked for, is not pushed out by more of its kind, and what was
    /// used goes before it.
    #[test]
    fn what_is_fetched_ahead_has_its_share() {
        let window = RamWindow::new(8 * 4096);
        let tally = crate::store::Tally::new(Arc::default());
        let mut fetched = 0;
        let ahead = |n: u64| {
            let file = file(window.reserve_ahead(4096)?, n, 4096);
            file.set_ahead(tally.fetched(4096));
            window.insert(file.clone());
            Some(file)
        };
        while ahead(fetched).is_some() {
            fetched += 1;
        }
        assert_eq!(fetched, 6);
        for n in 100..110 {
            add(&window, n, 4096).unwrap();
        }
        assert_eq!(tally.unused_bytes(), 6 * 4096, "those that somebody has used went");
        let id = FileId { high: 0, low: 3 };
        let used = window.files.lock().get(id).cloned().unwrap();
        assert!(used.end_ahead() && !used.end_ahead());
        window.used(id);
        drop(used);
        assert!(ahead(200).is_some() && ahead(201).is_none(), "one was used");
        assert!(window.bytes() <= 8 * 4096);
        // Those who ask come first, if it must be.
        let held: Vec<_> = (300..306).map(|n| add(&window, n, 4096).unwrap().use_it().unwrap()).collect();
        assert_eq!(held.len(), 6);
        assert!(tally.used_and_wasted().1 > 0);
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
