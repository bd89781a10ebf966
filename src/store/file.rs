//! One version of one file in the cache: where its bytes are and what is known of each chunk.
//!
//! A chunk is present only after its bytes and its checksum were written, and trusted only if this process wrote it,
//! verified it, or found it after a clean stop. The kernel may read a file by itself only when every chunk is present
//! and trusted, since after that nobody looks but the scrub.
//!
//! What "trusted" promises, exactly: the checksum was taken of the bytes that were handed to the SSD, or compared with
//! bytes that were read back. A file that was just written is served before it is read back; the scrub reads it back
//! from the SSD, past the page cache, after the next commit of the index, and remembers over a clean stop what it has
//! not come to yet (`cache::scrub`). After an unclean stop nothing is trusted, and verification comes before the first
//! open that the kernel serves by itself.
//!
//! Who uses a file holds a [`FileUse`]; a file is removed to make room only when there is none. What a removed file
//! took is given back when nobody has it open any more, because the disk frees it no earlier.

use super::{Ahead, CacheDir, Record, Reservation, disk_bytes};
use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::types::{
    ChunkIndex, ChunkRange, FileId, FileVersion, GroupId, KernelRef, Result, chunk_count, chunk_range,
};
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// Where the bytes are.
pub enum Place {
    /// A data file of the cache directory.
    Ssd {
        /// Its number, which is its name.
        number: u64,
    },
    /// A file in memory, for what found no room on the SSD.
    Ram(Arc<OwnedFd>),
}

/// What is known of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Not here.
    Missing,
    /// Here.
    Present {
        /// blake3 of its bytes.
        hash: [u8; 32],
        /// Whether the bytes on the disk are known to be those.
        trusted: bool,
    },
}

/// What a reader needs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// These chunks are missing.
    Fetch(ChunkRange),
    /// This chunk is present but was not looked at since an unclean stop.
    Verify(ChunkIndex),
}

/// One version of one file.
pub struct CacheFile {
    id: FileId,
    version: FileVersion,
    path: Box<[u8]>,
    place: Place,
    // Before `reservation`: the kernel's reference goes first, then the space is given back.
    kernel: Mutex<Option<KernelRef>>,
    state: Mutex<State>,
    reservation: Mutex<Reservation>,
    users: AtomicU32,
    hits: AtomicU32,
    group: AtomicU32,
    unsettled: AtomicBool,
    /// Told without the lock: whether there is something in `ahead`.
    is_ahead: AtomicBool,
    ahead: Mutex<Option<Ahead>>,
    /// The number of a warm-up, twice; odd once it is warm by it. 0: none.
    warmed_by: AtomicU64,
}

struct State {
    chunks: Box<[Chunk]>,
    missing: u32,
    untrusted: u32,
    fd: Weak<OwnedFd>,
    /// Set when the file loses its name: who has it open reads on, and whether the kernel holds it can be seen.
    kept: Option<Arc<OwnedFd>>,
}

impl State {
    fn set(&mut self, index: ChunkIndex, chunk: Chunk) {
        let old = std::mem::replace(&mut self.chunks[index as usize], chunk);
        let count = |c: Chunk| match c {
            Chunk::Missing => (1, 0),
            Chunk::Present { trusted: false, .. } => (0, 1),
            Chunk::Present { trusted: true, .. } => (0, 0),
        };
        self.missing = self.missing - count(old).0 + count(chunk).0;
        self.untrusted = self.untrusted - count(old).1 + count(chunk).1;
    }
}

/// `users` of a file that was chosen for removal: nobody may begin to use it.
const DEAD: u32 = u32::MAX;

impl CacheFile {
    /// A file whose chunks are as given.
    pub fn new(
        id: FileId,
        version: FileVersion,
        path: &[u8],
        place: Place,
        chunks: Vec<Chunk>,
        reservation: Reservation,
    ) -> Arc<Self> {
        debug_assert_eq!(chunks.len() as u32, chunk_count(version.size));
        let missing = chunks.iter().filter(|c| **c == Chunk::Missing).count() as u32;
        let untrusted =
            chunks.iter().filter(|c| matches!(c, Chunk::Present { trusted: false, .. })).count() as u32;
        Arc::new(Self {
            id,
            version,
            path: path.into(),
            place,
            kernel: Mutex::new(None),
            state: Mutex::new(State {
                chunks: chunks.into(),
                missing,
                untrusted,
                fd: Weak::new(),
                kept: None,
            }),
            reservation: Mutex::new(reservation),
            users: AtomicU32::new(0),
            hits: AtomicU32::new(0),
            group: AtomicU32::new(0),
            unsettled: AtomicBool::new(false),
            is_ahead: AtomicBool::new(false),
            ahead: Mutex::new(None),
            warmed_by: AtomicU64::new(0),
        })
    }

    /// The file that `record` speaks of.
    pub fn from_record(id: FileId, record: &Record, trusted: bool, reservation: Reservation) -> Arc<Self> {
        let chunk = |hash: &Option<[u8; 32]>| match hash {
            Some(hash) => Chunk::Present { hash: *hash, trusted },
            None => Chunk::Missing,
        };
        let chunks = record.chunks.iter().map(chunk).collect();
        Self::new(id, record.version, &record.path, Place::Ssd { number: record.number }, chunks, reservation)
    }

    /// The record to write; `None` for a file in memory and for one that is not to be kept.
    pub fn record(&self) -> Option<Record> {
        let Place::Ssd { number } = self.place else { return None };
        if self.is_unsettled() {
            return None;
        }
        let hash = |chunk: &Chunk| match chunk {
            Chunk::Present { hash, .. } => Some(*hash),
            Chunk::Missing => None,
        };
        let chunks = self.state.lock().chunks.iter().map(hash).collect();
        Some(Record { number, version: self.version, path: self.path.to_vec(), chunks })
    }

    /// Its key.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// It was read so soon after the source's file changed that a later change may have the same version: it is good for
    /// who is reading it, and for nobody who comes later.
    pub fn set_unsettled(&self) {
        self.unsettled.store(true, Ordering::Release);
    }

    /// Whether it is so.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::Acquire)
    }

    /// It was fetched before anybody asked for it.
    pub fn set_ahead(&self, ahead: Ahead) {
        *self.ahead.lock() = Some(ahead);
        self.is_ahead.store(true, Ordering::Release);
    }

    /// More of it was fetched, while nobody asked for it. Says whether that is still so.
    pub fn grow_ahead(&self, bytes: u64) -> bool {
        let mut ahead = self.ahead.lock();
        if let Some(ahead) = &mut *ahead {
            ahead.grow(bytes);
        }
        ahead.is_some()
    }

    /// Whether nobody has asked for it yet.
    pub fn is_ahead(&self) -> bool {
        self.is_ahead.load(Ordering::Acquire)
    }

    /// Somebody did. Says whether this is the first.
    pub fn end_ahead(&self) -> bool {
        if !self.is_ahead() || !self.is_ahead.swap(false, Ordering::AcqRel) {
            return false;
        }
        let ahead = self.ahead.lock().take();
        ahead.map(Ahead::used).is_some()
    }

    /// The warm-up that has last made it warm (`true`), or is about to.
    pub fn warmed_by(&self) -> Option<(NonZeroU32, bool)> {
        warm_mark(self.warmed_by.load(Ordering::Acquire))
    }

    /// A warm-up has made it warm (`done`), or is about to. Gives what was noted before.
    pub fn set_warmed_by(&self, job: NonZeroU32, done: bool) -> Option<(NonZeroU32, bool)> {
        let mark = u64::from(job.get()) << 1 | u64::from(done);
        warm_mark(self.warmed_by.swap(mark, Ordering::AcqRel))
    }

    /// Its content.
    pub fn version(&self) -> FileVersion {
        self.version
    }

    /// The data set that it was found to belong to; the mount's before that.
    pub fn group(&self) -> GroupId {
        GroupId(self.group.load(Ordering::Relaxed) as u16)
    }

    /// It belongs to this data set.
    pub fn set_group(&self, group: GroupId) {
        self.group.store(group.0.into(), Ordering::Relaxed);
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.version.size
    }

    /// Path below the source's root under which it was filled.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Where its bytes are.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Whether every chunk is present.
    pub fn is_complete(&self) -> bool {
        self.state.lock().missing == 0
    }

    /// Whether the kernel may read it by itself.
    pub fn is_servable(&self) -> bool {
        let s = self.state.lock();
        s.missing == 0 && s.untrusted == 0
    }

    /// Whether there is a chunk that nobody has looked at since an unclean stop.
    pub fn is_doubtful(&self) -> bool {
        self.state.lock().untrusted > 0
    }

    /// Bytes present.
    pub fn cached_bytes(&self) -> u64 {
        let s = self.state.lock();
        if s.missing == 0 {
            return self.version.size;
        }
        let present = |(i, chunk): (usize, &Chunk)| match chunk {
            Chunk::Missing => 0,
            Chunk::Present { .. } => chunk_range(i as ChunkIndex, self.version.size).len(),
        };
        s.chunks.iter().enumerate().map(present).sum()
    }

    /// What must happen before `range` can be read; `None` if nothing.
    pub fn need(&self, range: ChunkRange) -> Option<Need> {
        let s = self.state.lock();
        if s.missing == 0 && s.untrusted == 0 {
            return None;
        }
        let is_missing = |i: ChunkIndex| s.chunks[i as usize] == Chunk::Missing;
        (range.start..range.end).find_map(|i| match s.chunks[i as usize] {
            Chunk::Missing => {
                let end = (i..range.end).find(|&j| !is_missing(j)).unwrap_or(range.end);
                Some(Need::Fetch(ChunkRange { start: i, end }))
            }
            Chunk::Present { trusted: false, .. } => Some(Need::Verify(i)),
            Chunk::Present { .. } => None,
        })
    }

    /// All chunks of the file.
    pub fn all(&self) -> ChunkRange {
        ChunkRange { start: 0, end: chunk_count(self.version.size) }
    }

    /// What is known of a chunk.
    pub fn chunk(&self, index: ChunkIndex) -> Chunk {
        self.state.lock().chunks[index as usize]
    }

    /// The chunk's bytes and checksum are written: from now on it is present and trusted.
    pub fn set_present(&self, index: ChunkIndex, hash: [u8; 32]) {
        self.state.lock().set(index, Chunk::Present { hash, trusted: true });
    }

    /// The bytes of a present chunk are not to be believed any more; they stay where they are, for somebody may have the
    /// file open.
    pub fn distrust(&self, index: ChunkIndex) {
        let mut s = self.state.lock();
        if let Chunk::Present { hash, .. } = s.chunks[index as usize] {
            s.set(index, Chunk::Present { hash, trusted: false });
        }
    }

    /// The bytes on the disk were found to be those of `hash`; trusts them, if that is still what the chunk should be.
    pub fn trust(&self, index: ChunkIndex, hash: [u8; 32]) {
        let mut s = self.state.lock();
        if s.chunks[index as usize] == (Chunk::Present { hash, trusted: false }) {
            s.chunks[index as usize] = Chunk::Present { hash, trusted: true };
            s.untrusted -= 1;
        }
    }

    /// The chunk's bytes are not what was written. They still lie on the disk, so their space stays taken.
    pub fn set_missing(&self, index: ChunkIndex) {
        self.state.lock().set(index, Chunk::Missing);
    }

    /// Adds the space of chunks that were written. A chunk that was written before has its space already: a file never
    /// takes more than all of its chunks.
    pub fn add_space(&self, reservation: Reservation) {
        let mut taken = self.reservation.lock();
        taken.absorb(reservation);
        let more = taken.bytes().saturating_sub(disk_bytes(self.version.size));
        taken.shrink(more);
    }

    /// What it takes on the disk, bytes.
    pub fn reserved_bytes(&self) -> u64 {
        self.reservation.lock().bytes()
    }

    /// Its data file, open. Shared by all who hold it at the same time.
    pub fn open(&self, dir: &CacheDir) -> Result<Arc<OwnedFd>> {
        let number = match &self.place {
            Place::Ram(fd) => return Ok(fd.clone()),
            Place::Ssd { number } => *number,
        };
        let write = {
            let s = self.state.lock();
            if let Some(fd) = s.fd.upgrade() {
                return Ok(fd);
            }
            s.missing > 0 || s.untrusted > 0
        };
        // Not under the lock: the disk may be slow. Two may open at once; the later one is kept.
        let fd = Arc::new(dir.open_data(number, self.version.size, write)?);
        self.state.lock().fd = Arc::downgrade(&fd);
        Ok(fd)
    }

    /// Opens the data file for as long as anybody refers to the file: it is about to lose its name.
    pub fn keep_open(&self, dir: &CacheDir) -> Result<()> {
        let fd = self.open(dir)?;
        self.state.lock().kept = Some(fd);
        Ok(())
    }

    /// The kernel's registration, if one is kept.
    pub fn kernel_ref(&self) -> Option<KernelRef> {
        self.kernel.lock().clone()
    }

    /// Keeps `kernel` as the registration unless there is one already, and gives the one that is kept: the kernel allows
    /// one for all handles of a node.
    pub fn kernel_ref_or(&self, kernel: KernelRef) -> KernelRef {
        self.kernel.lock().get_or_insert(kernel).clone()
    }

    /// Keeps or drops the kernel's registration. Returns the one that was kept, to be dropped by the caller.
    pub fn set_kernel_ref(&self, kernel: Option<KernelRef>) -> Option<KernelRef> {
        std::mem::replace(&mut *self.kernel.lock(), kernel)
    }

    /// Counts an open that found it, and says how many there were.
    pub fn hits(&self) -> u32 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Counts an open that found it.
    pub fn count_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether somebody uses it.
    pub fn is_in_use(&self) -> bool {
        !matches!(self.users.load(Ordering::Acquire), 0 | DEAD)
    }

    /// Claims the file for removal: true if nobody uses it, and from then on nobody can.
    pub fn retire(&self) -> bool {
        self.users.compare_exchange(0, DEAD, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether it was claimed for removal.
    pub fn is_retired(&self) -> bool {
        self.users.load(Ordering::Acquire) == DEAD
    }

    /// It has lost its name, and nobody uses it or will: what it takes counts until nobody has it open, whoever still
    /// knows of it. Who goes through all files knows of many for long.
    pub fn leave(&self) {
        let kept = self.state.lock().kept.take();
        if let Some(fd) = kept {
            let room = self.reservation.lock().take();
            room.leave(fd);
        }
    }

    /// Begins to use it; `None` if it was claimed for removal.
    pub fn use_it(self: &Arc<Self>) -> Option<FileUse> {
        let next = |n: u32| (n != DEAD).then(|| n + 1);
        self.users.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok()?;
        Some(FileUse(self.clone()))
    }
}

fn warm_mark(mark: u64) -> Option<(NonZeroU32, bool)> {
    NonZeroU32::new((mark >> 1) as u32).map(|job| (job, mark & 1 == 1))
}

impl Drop for CacheFile {
    fn drop(&mut self) {
        // The kernel's reference before the space.
        drop(self.kernel.get_mut().take());
        self.leave();
    }
}

/// Somebody uses the file: it is not removed to make room while this lives.
pub struct FileUse(Arc<CacheFile>);

impl std::ops::Deref for FileUse {
    type Target = Arc<CacheFile>;

    fn deref(&self) -> &Arc<CacheFile> {
        &self.0
    }
}

impl Clone for FileUse {
    fn clone(&self) -> Self {
        self.0.users.fetch_add(1, Ordering::AcqRel);
        Self(self.0.clone())
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Budget;
    use crate::types::{CHUNK_BYTES, Timestamp};

    fn file(chunks: Vec<Chunk>) -> Arc<CacheFile> {
        let time = Timestamp::default();
        let size = chunks.len() as u64 * CHUNK_BYTES;
        let version = FileVersion { size, mtime: time, ctime: time, ino: 1 };
        let reservation = Budget::new(u64::MAX / 2, 100).reserve(size, 1).unwrap();
        CacheFile::new(
            FileId { high: 0, low: 1 },
            version,
            b"f",
            Place::Ssd { number: 1 },
            chunks,
            reservation,
        )
    }

    const HERE: Chunk = Chunk::Present { hash: [1; 32], trusted: true };
    const DOUBTFUL: Chunk = Chunk::Present { hash: [1; 32], trusted: false };

    #[test]
    fn servable_means_all_present_and_all_trusted() {
        let f = file(vec![HERE, DOUBTFUL, Chunk::Missing]);
        assert!(!f.is_complete() && !f.is_servable());
        assert_eq!(f.cached_bytes(), 2 * CHUNK_BYTES);
        f.set_present(2, [2; 32]);
        assert!(f.is_complete() && !f.is_servable());
        f.set_present(1, [1; 32]);
        assert!(f.is_servable());
        f.set_missing(0);
        assert!(!f.is_complete());
    }

    #[test]
    fn bug_051_a_chunk_that_is_written_again_is_counted_once() {
        let budget = Budget::new(10 * CHUNK_BYTES, 9);
        let time = Timestamp::default();
        let version = FileVersion { size: 2 * CHUNK_BYTES, mtime: time, ctime: time, ino: 1 };
        let place = Place::Ssd { number: 1 };
        let all = budget.reserve(2 * CHUNK_BYTES, 1).unwrap();
        let f = CacheFile::new(FileId { high: 0, low: 1 }, version, b"f", place, vec![HERE, HERE], all);
        f.set_missing(0);
        assert_eq!(budget.usage().bytes, 2 * CHUNK_BYTES, "the disk has not given it back");
        f.add_space(budget.reserve(CHUNK_BYTES, 0).unwrap());
        f.set_present(0, [1; 32]);
        assert_eq!((f.reserved_bytes(), budget.usage().bytes), (2 * CHUNK_BYTES, 2 * CHUNK_BYTES));
    }

    #[test]
    fn needs_come_in_order_and_stop_at_what_is_here() {
        let f = file(vec![HERE, Chunk::Missing, Chunk::Missing, HERE, DOUBTFUL, Chunk::Missing]);
        assert_eq!(f.need(f.all()), Some(Need::Fetch(ChunkRange { start: 1, end: 3 })));
        assert_eq!(f.need(ChunkRange { start: 3, end: 6 }), Some(Need::Verify(4)));
        assert_eq!(f.need(ChunkRange { start: 3, end: 4 }), None);
        assert_eq!(
            f.need(ChunkRange { start: 5, end: 6 }),
            Some(Need::Fetch(ChunkRange { start: 5, end: 6 }))
        );
    }

    #[test]
    fn a_file_in_use_cannot_be_retired_and_a_retired_one_cannot_be_used() {
        let f = file(vec![HERE]);
        let use1 = f.use_it().unwrap();
        let use2 = use1.clone();
        assert!(!f.retire());
        drop(use1);
        assert!(f.is_in_use() && !f.retire());
        drop(use2);
        assert!(f.retire() && f.use_it().is_none() && !f.is_in_use());
    }

    #[test]
    fn a_record_of_it_makes_the_same_file_again() {
        let f = file(vec![HERE, Chunk::Missing]);
        let record = f.record().unwrap();
        let again = CacheFile::from_record(f.id(), &record, false, Budget::new(1 << 40, 9).adopt(1, 1));
        assert_eq!(again.record().unwrap(), record);
        assert_eq!(again.need(again.all()), Some(Need::Verify(0)));
    }
}
