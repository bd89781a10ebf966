//! A range of a file for a reader, fetching what is missing.
//!
//! Used where the kernel does not read by itself: files that are partly cached, and every file where passthrough
//! cannot be had. What is in the page cache of the SSD's file system is answered at once on the caller's thread; all
//! else goes to a pool, and a reader that waits for another's fetch holds no thread while it waits.
//!
//! Each chunk is hashed at its first read since the file was opened, so that what comes this way is what was written, or
//! comes from the source. It is not hashed again while the file stays open: the kernel keeps what it was given.

use super::engine::{Copy, CopyError};
use super::fill::{FillError, Want, path_of};
use super::flight::{Lead, Waiter};
use super::pool::Pool;
use super::space::Room;
use super::{Cache, abandoned, subject};
use crate::backing::{Look, SourceFile};
use crate::policy::StreamTracker;
use crate::policy::detect::Detector;
use crate::policy::detect::strides::StrideTracker;
use crate::store::Ahead;
use crate::store::file::Need;
use crate::store::{CacheFile, Chunk, FileUse, Place, Reservation, disk_bytes};
use crate::sys::clock::file_time;
use crate::types::sync::Mutex;
use crate::types::{
    Attr, ByteRange, ChunkIndex, ChunkRange, Error, FileVersion, Result, chunk_range, escape_bytes,
};
use rustix::io::Errno;
use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Gets the bytes, or the errno for the reader.
pub type ReadDone = Box<dyn FnOnce(Result<&[u8]>) + Send>;

/// What the open handles of a node read from. One version of one file, for as long as any of them is open.
pub enum Serving {
    /// A complete copy.
    Kept(Kept),
    /// A copy that is still being made, or that must be verified chunk by chunk.
    Partial(Partial),
    /// The source itself.
    Source(Opened),
}

/// A complete copy, and what of it was looked at.
pub struct Kept {
    file: FileUse,
    seen: Seen,
}

impl Kept {
    /// Which content.
    pub fn version(&self) -> FileVersion {
        self.file.version()
    }
}

/// Which chunks were found to be right since the file was opened.
struct Seen(Box<[AtomicU64]>);

impl Seen {
    fn none_of(file: &CacheFile) -> Self {
        Self((0..file.all().end.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    fn mark(&self, index: ChunkIndex) {
        if let Some(word) = self.0.get(index as usize / 64) {
            word.fetch_or(1 << (index % 64), Ordering::Relaxed);
        }
    }

    fn first_unseen(&self, chunks: ChunkRange) -> Option<ChunkIndex> {
        let is_unseen = |i: &ChunkIndex| {
            let word = self.0.get(*i as usize / 64).map(|word| word.load(Ordering::Relaxed));
            word.is_some_and(|word| word & (1 << (i % 64)) == 0)
        };
        (chunks.start..chunks.end).find(is_unseen)
    }
}

/// An open file of the source and what it looked like when its version was chosen: when it was looked up, or when it was
/// opened.
#[derive(Clone)]
pub struct Opened {
    /// The file.
    pub source: Arc<dyn SourceFile>,
    /// Its attributes at that moment.
    pub attr: Attr,
}

impl Opened {
    /// A look at its content that begins now.
    pub(super) fn look(&self) -> Look {
        Look { began: file_time(), writers: self.source.is_open_for_writing() }
    }
}

/// A copy in the making.
pub struct Partial {
    pub(super) file: FileUse,
    seen: Seen,
    source: Mutex<Option<Opened>>,
    tracker: Mutex<StreamTracker>,
    strides: Mutex<StrideTracker>,
    /// Chunks that were fetched before they were read; what is left when the file is closed was fetched in vain.
    ahead: Mutex<Vec<(ChunkIndex, Ahead)>>,
}

impl Partial {
    /// Which content.
    pub fn version(&self) -> FileVersion {
        self.file.version()
    }

    /// A chunk is about to be fetched before it is read.
    pub(super) fn add_ahead(&self, index: ChunkIndex, ahead: Ahead) {
        self.ahead.lock().push((index, ahead));
    }

    /// These chunks are read.
    fn end_ahead(&self, chunks: ChunkRange) {
        let mut ahead = self.ahead.lock();
        let read = ahead.extract_if(.., |(index, _)| (chunks.start..chunks.end).contains(index));
        read.for_each(|(_, ahead)| ahead.used());
    }
}

impl Serving {
    /// A copy in the making; its source is opened when it is first needed, unless it is already.
    pub fn partial(file: FileUse, source: Option<Opened>) -> Self {
        let seen = Seen::none_of(&file);
        Self::Partial(Partial {
            file,
            seen,
            source: Mutex::new(source),
            tracker: Mutex::default(),
            strides: Mutex::default(),
            ahead: Mutex::default(),
        })
    }

    /// A complete copy that is read through us.
    pub fn kept(file: FileUse) -> Self {
        let seen = Seen::none_of(&file);
        Self::Kept(Kept { file, seen })
    }

    /// A complete copy that the kernel reads by itself.
    pub fn handed_over(file: FileUse) -> Self {
        Self::Kept(Kept { file, seen: Seen(Box::default()) })
    }

    /// The cached file, if there is one.
    pub fn file(&self) -> Option<&FileUse> {
        match self {
            Self::Kept(kept) => Some(&kept.file),
            Self::Partial(partial) => Some(&partial.file),
            Self::Source(_) => None,
        }
    }

    /// The first of these chunks that nobody has looked at since the file was opened. What is in RAM needs no look.
    fn first_unseen(&self, chunks: ChunkRange) -> Option<ChunkIndex> {
        let (file, seen) = match self {
            Self::Kept(kept) => (&kept.file, &kept.seen),
            Self::Partial(partial) => (&partial.file, &partial.seen),
            Self::Source(_) => return None,
        };
        match file.place() {
            Place::Ssd { .. } => seen.first_unseen(chunks),
            Place::Ram(_) => None,
        }
    }

    fn mark_seen(&self, index: ChunkIndex) {
        match self {
            Self::Kept(kept) => kept.seen.mark(index),
            Self::Partial(partial) => partial.seen.mark(index),
            Self::Source(_) => {}
        }
    }

    /// What must happen before these bytes can be read: the source is needed, or only something to be verified, or
    /// nothing.
    pub fn need(&self, offset: u64, len: u32) -> Option<Need> {
        let chunks = ByteRange::clamped(offset, u64::from(len), self.size()).chunks();
        match (self, self.file().map(|file| (file, file.need(chunks)))) {
            (_, Some((_, None))) => None,
            (Self::Partial(_), Some((file, Some(Need::Verify(_)))))
                if !(chunks.start..chunks.end).any(|i| file.chunk(i) == Chunk::Missing) =>
            {
                Some(Need::Verify(chunks.start))
            }
            // Of a complete copy in which damage was found, too, the source is read.
            _ => Some(Need::Fetch(chunks)),
        }
    }

    /// Whether a file of the source may be open, to be closed with this.
    pub fn has_source_open(&self) -> bool {
        match self {
            Self::Kept(_) => false,
            Self::Partial(partial) => partial.source.lock().is_some(),
            Self::Source(_) => true,
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Kept(kept) => kept.file.size(),
            Self::Partial(partial) => partial.file.size(),
            Self::Source(opened) => opened.attr.size,
        }
    }
}

thread_local! {
    /// One read's bytes. The kernel asks for 1 MiB at most; a thread that never read has none.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads into this thread's buffer and hands the bytes on.
fn with_buffer<T>(len: usize, read: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        read(&mut buffer[..len])
    })
}

/// What becomes of an error that another met whose fetch one waited for. The first may be older than the request, and of a
/// fault that is over; a second one is not.
#[derive(Clone, Copy)]
enum ErrorsOfOthers {
    ToBeTriedAgain,
    Final,
}

/// What one look at the missing chunks led to.
enum Step {
    /// Nothing is missing any more.
    Ready,
    /// Something was done; look again.
    Again,
    /// Another fetches it; the waiter will be called.
    Waiting,
    /// It cannot be had from the cache: read the source instead.
    Bypass,
    /// The source failed.
    Failed(Error),
}

impl Cache {
    /// Reads `len` bytes at `offset`, fewer only at the end of the file, and calls `then` with them, perhaps on another
    /// thread.
    pub fn read(
        self: &Arc<Self>,
        serving: &Arc<Serving>,
        offset: u64,
        len: u32,
        pool: &Pool,
        then: ReadDone,
    ) {
        let range = ByteRange::clamped(offset, u64::from(len), serving.size());
        if range.is_empty() {
            return then(Ok(&[]));
        }
        self.watch_stream(serving, range);
        let Some(then) = self.read_now(serving, range, then) else { return };
        let (cache, serving, again) = (self.clone(), serving.clone(), pool.clone());
        pool.submit(Box::new(move || cache.read_slow(serving, range, again, then)));
    }

    /// Answers from the page cache, if everything is there; otherwise gives `then` back.
    fn read_now(&self, serving: &Serving, range: ByteRange, then: ReadDone) -> Option<ReadDone> {
        let Some(file) = serving.file() else { return Some(then) };
        if file.need(range.chunks()).is_some() {
            return Some(then);
        }
        // One chunk that is new is read whole, to look at it first; more of them are for a thread that may wait.
        let (chunks, unseen) = (range.chunks(), serving.first_unseen(range.chunks()));
        if unseen.is_some() && chunks.len() > 1 {
            return Some(then);
        }
        let whole = unseen.map_or(range, |index| chunk_range(index, file.size()));
        let Ok(fd) = self.open_data(file) else { return Some(then) };
        with_buffer(whole.len() as usize, |buffer| {
            match self.dir.io().read_cached(&*fd, buffer, whole.start, unseen.is_none()) {
                Ok(n) if n as u64 == whole.len() => {}
                _ => return Some(then),
            }
            if let Some(index) = unseen {
                if !is_hash_of(file.chunk(index), buffer) {
                    return Some(then);
                }
                serving.mark_seen(index);
            }
            self.count_read(serving, true);
            let start = (range.start - whole.start) as usize;
            then(Ok(&buffer[start..start + range.len() as usize]));
            None
        })
    }

    /// Looks at chunks that are new. `false`: one is damaged, and whoever wants it must turn to the source.
    fn look_first(&self, serving: &Serving, file: &FileUse, chunks: ChunkRange) -> bool {
        while let Some(index) = serving.first_unseen(chunks) {
            if !matches!(self.verify_chunk(file, index), Ok(true)) {
                // One that is complete may be open elsewhere: it is fetched anew as another file.
                if let Serving::Kept(_) = serving {
                    self.drop_file(file);
                }
                return false;
            }
            serving.mark_seen(index);
        }
        true
    }

    fn read_slow(self: Arc<Self>, serving: Arc<Serving>, range: ByteRange, pool: Pool, then: ReadDone) {
        if let Serving::Partial(partial) = &*serving
            && let Some(need) = partial.file.need(range.chunks())
        {
            self.count_read(&serving, !matches!(need, Need::Fetch(_)));
            let (cache, again) = (self.clone(), serving.clone());
            let ready: Waiter<Result<bool>> = Box::new(move |ready| match ready {
                Ok(true) => cache.read_file(&again, range, then),
                Ok(false) => cache.read_source(&again, range, then),
                Err(e) => then(Err(e)),
            });
            return self.ensure(serving, range.chunks(), pool, ErrorsOfOthers::ToBeTriedAgain, ready);
        }
        self.count_read(&serving, !matches!(*serving, Serving::Source(_)));
        match &*serving {
            Serving::Source(_) => self.read_source(&serving, range, then),
            // Damage was found since it was opened.
            Serving::Kept(kept) if kept.file.need(range.chunks()).is_some() => {
                self.read_source(&serving, range, then)
            }
            _ => self.read_file(&serving, range, then),
        }
    }

    /// Reads of a complete file are not counted as hits: its open was.
    fn count_read(&self, serving: &Serving, hit: bool) {
        match (serving, hit) {
            (Serving::Partial(_), true) => self.stats.hits.inc(),
            (Serving::Partial(_), false) => self.stats.misses.inc(),
            _ => {}
        }
    }

    /// From the data file, which has everything; from the source if the SSD fails.
    fn read_file(&self, serving: &Serving, range: ByteRange, then: ReadDone) {
        let Some(file) = serving.file() else { return self.read_source(serving, range, then) };
        let chunks = range.chunks();
        // Found damaged since it was opened.
        if file.need(chunks).is_some() {
            return self.read_source(serving, range, then);
        }
        let Ok(fd) = self.open_data(file) else { return self.read_source(serving, range, then) };
        // Chunks that are new are read whole and looked at. In one read: the bytes that are told are those that were looked at.
        let is_new = serving.first_unseen(chunks).is_some();
        let whole = if is_new { chunks.bytes(file.size()) } else { range };
        let mut then = Some(then);
        let read = with_buffer(whole.len() as usize, |buffer| {
            let io = self.dir.io();
            match is_new {
                true => io.read_exact(&*fd, buffer, whole.start)?,
                false => io.read_again(&*fd, buffer, whole.start)?,
            }
            if !is_new || are_right(serving, file, chunks, buffer) {
                let start = (range.start - whole.start) as usize;
                let then = then.take().expect("not taken before");
                then(Ok(&buffer[start..start + range.len() as usize]));
            }
            Ok(())
        });
        let Some(then) = then else { return };
        match read {
            // A look of its own tells whether it is the disk's and counts it.
            Ok(()) => _ = self.look_first(serving, file, chunks),
            Err::<(), Errno>(errno) => {
                self.ssd_failed(&Error::os("read", escape_bytes(file.path()), errno.raw_os_error()));
                self.drop_file(file);
            }
        }
        self.read_source(serving, range, then);
    }

    /// From the source, if it still is what was opened.
    fn read_source(&self, serving: &Serving, range: ByteRange, then: ReadDone) {
        with_buffer(range.len() as usize, |buffer| self.read_source_into(serving, range, buffer, then));
    }

    fn read_source_into(&self, serving: &Serving, range: ByteRange, buffer: &mut [u8], then: ReadDone) {
        match self.read_source_bytes(serving, range, buffer) {
            Ok(()) => then(Ok(buffer)),
            Err(e) => then(Err(e)),
        }
    }

    fn read_source_bytes(&self, serving: &Serving, range: ByteRange, buffer: &mut [u8]) -> Result<()> {
        let opened = self.opened(serving)?;
        let mut done = 0;
        while done < buffer.len() {
            let n = opened.source.read_at(&mut buffer[done..], range.start + done as u64);
            match n.inspect_err(|_| self.stats.backing_errors.inc())? {
                0 => return Err(stale("read")),
                n => done += n,
            }
        }
        self.stats.backing_bytes_read.add(buffer.len() as u64);
        self.check_unchanged(&opened)
    }

    /// The source's file behind what is served.
    fn opened(&self, serving: &Serving) -> Result<Opened> {
        match serving {
            Serving::Source(opened) => Ok(opened.clone()),
            Serving::Kept(kept) => self.open_source_of(&kept.file),
            Serving::Partial(partial) => {
                if let Some(opened) = partial.source.lock().clone() {
                    return Ok(opened);
                }
                // Not under the lock: the source may be slow. Two may open at once; the later one is kept.
                let opened = self.open_source_of(&partial.file)?;
                *partial.source.lock() = Some(opened.clone());
                Ok(opened)
            }
        }
    }

    fn open_source_of(&self, file: &CacheFile) -> Result<Opened> {
        let want = Want {
            id: file.id(),
            version: file.version(),
            path: path_of(file).to_path_buf(),
            pin: None,
            ahead: None,
            warm_job: None,
        };
        match self.open_version(&want) {
            Ok(opened) => Ok(opened),
            Err(FillError::Changed(_)) => Err(stale("open")),
            Err(FillError::Failed(e)) if e.kind() == crate::types::ErrorKind::NotFound => Err(stale("open")),
            Err(FillError::Failed(e)) => Err(e),
        }
    }

    /// What was read from an open file is of its version only if the file is still that version.
    fn check_unchanged(&self, opened: &Opened) -> Result<()> {
        let now = opened.source.attr()?;
        if self.is_unchanged(opened, &now) { Ok(()) } else { Err(stale("read")) }
    }

    /// Whether the bytes of an open file are those of the version that it was opened as.
    pub(super) fn is_unchanged(&self, opened: &Opened, now: &Attr) -> bool {
        only_lost_a_name(&opened.attr, now) || self.source.version(now) == self.source.version(&opened.attr)
    }

    /// Makes `chunks` present and trusted, then calls `then` with whether they can be read from the data file (`false`:
    /// read the source). May wait for the source; while another fetches, holds no thread and goes on from `pool`.
    fn ensure(
        self: &Arc<Self>,
        serving: Arc<Serving>,
        chunks: ChunkRange,
        pool: Pool,
        errors: ErrorsOfOthers,
        then: Waiter<Result<bool>>,
    ) {
        let mut then = Some(then);
        loop {
            let waiter = || -> Waiter<Result<()>> {
                let (cache, serving, pool) = (self.clone(), serving.clone(), pool.clone());
                let then = then.take().expect("this step waits or goes on, not both");
                Box::new(move |landed| {
                    let again = pool.clone();
                    pool.submit(Box::new(move || match (landed, errors) {
                        (Ok(()), _) => cache.ensure(serving, chunks, again, errors, then),
                        (Err(_), ErrorsOfOthers::ToBeTriedAgain) => {
                            cache.ensure(serving, chunks, again, ErrorsOfOthers::Final, then);
                        }
                        (Err(e), ErrorsOfOthers::Final) => then(Err(e)),
                    }));
                })
            };
            let reader = self.prefetch.reader();
            let step = self.step(&serving, chunks, Room::Made, waiter);
            drop(reader);
            let end = match step {
                Step::Again => continue,
                Step::Waiting => return,
                Step::Ready => Ok(true),
                Step::Bypass => Ok(false),
                Step::Failed(e) => Err(e),
            };
            let then = then.take().expect("taken only by a step that waits");
            return then(end);
        }
    }

    /// The same for a thread that may block: fills in the background and `warm`.
    pub(super) fn ensure_blocking(&self, serving: &Serving, chunks: ChunkRange, room: Room) -> Result<bool> {
        loop {
            let (tx, rx) = std::sync::mpsc::sync_channel(1);
            let waiter = || -> Waiter<Result<()>> { Box::new(move |landed| drop(tx.send(landed))) };
            match self.step(serving, chunks, room, waiter) {
                Step::Again => continue,
                Step::Ready => return Ok(true),
                Step::Bypass => return Ok(false),
                Step::Failed(e) => return Err(e),
                Step::Waiting => rx.recv().unwrap_or_else(|_| Err(abandoned()))?,
            }
        }
    }

    fn step(
        &self,
        serving: &Serving,
        chunks: ChunkRange,
        room: Room,
        waiter: impl FnOnce() -> Waiter<Result<()>>,
    ) -> Step {
        let Serving::Partial(partial) = serving else { return Step::Ready };
        match partial.file.need(chunks) {
            None => Step::Ready,
            Some(Need::Verify(index)) => match self.verify_chunk(&partial.file, index) {
                Ok(true) => {
                    partial.seen.mark(index);
                    Step::Again
                }
                Ok(false) => {
                    // To be fetched anew, into the same place: a doubtful file is read by nobody but us.
                    partial.file.set_missing(index);
                    self.journal.changed(partial.file.id());
                    Step::Again
                }
                Err(_) => Step::Bypass,
            },
            Some(Need::Fetch(extent)) => {
                let number = flight_key(&partial.file);
                let Some(first) = self.chunks.join((number, extent.start), waiter) else {
                    return Step::Waiting;
                };
                let mut leads = vec![first];
                for index in extent.start + 1..extent.end {
                    let Some(lead) = self.chunks.try_lead((number, index)) else { break };
                    leads.push(lead);
                }
                self.fetch(serving, extent.start, leads, room)
            }
        }
    }

    /// Fetches the chunks that `leads` stand for, from `start` on.
    fn fetch(
        &self,
        serving: &Serving,
        start: ChunkIndex,
        leads: Vec<Lead<(u64, ChunkIndex), Result<()>>>,
        room: Room,
    ) -> Step {
        let extent = ChunkRange { start, end: start + leads.len() as u32 };
        let step = match self.copy_extent(serving, extent, room) {
            Ok(true) => Step::Again,
            Ok(false) => Step::Bypass,
            Err(e) => Step::Failed(e),
        };
        let landed = match &step {
            Step::Failed(e) => Err(e.clone()),
            // After a bypass the next one tries for itself, and will bypass as well.
            _ => Ok(()),
        };
        super::flight::finish_all(leads, &landed);
        step
    }

    /// Copies chunks and marks them present. `false`: the SSD has no room or is at fault.
    fn copy_extent(&self, serving: &Serving, extent: ChunkRange, room: Room) -> Result<bool> {
        let Serving::Partial(partial) = serving else { return Ok(true) };
        let file = &partial.file;
        // Some may have landed between the look and the lead, and what is here is being read: it is not written again.
        let Some(Need::Fetch(extent)) = file.need(extent) else { return Ok(true) };
        if self.ssd.is_resting() {
            return Ok(false);
        }
        let opened = self.opened(serving)?;
        let bytes = (extent.start..extent.end).map(|i| disk_bytes(chunk_range(i, file.size()).len())).sum();
        let warm_job = file.warmed_by().map(|(job, _)| job);
        let subject = subject(file);
        let Some(room) = self.find_room(room, (&subject, path_of(file)), bytes, 0, warm_job) else {
            if room == Room::Made {
                self.stats.cache_refusals.inc();
            }
            return Ok(false);
        };
        let Ok(target) = self.open_data(file) else { return Ok(false) };
        let look = opened.look();
        let mut written = Vec::with_capacity(extent.len() as usize);
        let io = self.dir.io();
        let job = Copy { source: &*opened.source, target: &target, io, chunks: extent, size: file.size() };
        let copied = self.engine.copy(&job, &mut |index, hash, _| {
            written.push((index, hash));
            true
        });
        let good = self.judge_extent(copied, &opened);
        if !matches!(good, Ok(true)) {
            self.take_back(file, &target, extent, room);
            return good;
        }
        self.ssd.worked();
        if self.source.is_racy(&opened.attr, &look) {
            file.set_unsettled();
        }
        file.add_space(room);
        let bytes = extent.bytes(file.size()).len();
        self.stats.backing_bytes_read.add(bytes);
        self.stats.ssd_bytes_written.add(bytes);
        for (index, hash) in written {
            file.set_present(index, *hash.as_bytes());
            partial.seen.mark(index);
        }
        if file.is_complete() {
            self.stats.fills.inc();
            if let Place::Ssd { number } = file.place()
                && let Err(e) = self.dir.stamp(&target, *number, file.size())
            {
                // It will not be recognised, and fetched again, when it is opened next.
                self.ssd_failed(&e);
            }
        }
        self.journal.changed(file.id());
        Ok(true)
    }

    /// Gives back the space of chunks that came to nothing. Nobody reads them: they are missing, and this flight's.
    fn take_back(&self, file: &CacheFile, target: &OwnedFd, extent: ChunkRange, room: Reservation) {
        let bytes = extent.bytes(file.size());
        // To the end of the last block: of one that is not punched whole nothing is given back.
        if self.dir.io().punch(target, bytes.start, disk_bytes(bytes.len())).is_err() {
            // What may have been written stays on the disk, so it stays counted.
            file.add_space(room);
        }
    }

    /// Whether what was copied can be kept.
    fn judge_extent(&self, copied: std::result::Result<(), CopyError>, opened: &Opened) -> Result<bool> {
        match copied {
            Ok(()) => self.check_unchanged(opened).map(|()| true),
            Err(CopyError::Truncated) => Err(stale("read")),
            Err(CopyError::Source(e)) => {
                self.stats.backing_errors.inc();
                Err(e)
            }
            Err(CopyError::Ssd(e)) => {
                self.ssd_failed(&e);
                Ok(false)
            }
        }
    }

    /// Hashes a present chunk and compares. A chunk that is not what was written becomes missing.
    pub(super) fn verify_chunk(&self, file: &Arc<CacheFile>, index: ChunkIndex) -> Result<bool> {
        let Chunk::Present { hash, .. } = file.chunk(index) else { return Ok(false) };
        let fd = self.open_data(file)?;
        let range = chunk_range(index, file.size());
        let found = with_buffer(range.len() as usize, |buffer| {
            self.dir.io().read_exact(&*fd, buffer, range.start).map(|()| *blake3::hash(buffer).as_bytes())
        });
        if found == Ok(hash) {
            file.set_present(index, hash);
            return Ok(true);
        }
        file.set_missing(index);
        self.journal.changed(file.id());
        self.stats.checksum_failures.inc();
        let path = escape_bytes(file.path());
        self.ssd.say(&format_args!("cached copy of {path} is damaged in chunk {index}, dropped"));
        Ok(false)
    }

    /// Verifies what is present and doubtful of a range; what is damaged is missing afterwards.
    pub fn verify_range(&self, serving: &Serving, offset: u64, len: u32) {
        let Some(file) = serving.file() else { return };
        let chunks = ByteRange::clamped(offset, u64::from(len), serving.size()).chunks();
        for index in chunks.start..chunks.end {
            let doubtful = matches!(file.chunk(index), Chunk::Present { trusted: false, .. });
            // A fault of the SSD: the read will meet it, and go round it.
            if doubtful && self.verify_chunk(file, index).is_err() {
                return;
            }
        }
    }

    /// Lets the trackers see the read, fills the whole file in the background once it is wanted, and fetches what is expected
    /// next.
    fn watch_stream(self: &Arc<Self>, serving: &Arc<Serving>, range: ByteRange) {
        let Serving::Partial(partial) = &**serving else { return };
        let chunks = range.chunks();
        let missing = match partial.file.need(chunks) {
            Some(Need::Fetch(extent)) => extent.len(),
            _ => 0,
        };
        let wants_all = partial.tracker.lock().note(chunks, missing, partial.file.all().end);
        if wants_all && !partial.file.is_complete() {
            self.fill_in_background(serving);
        }
        if wants_all {
            self.guess_shards(partial.file.path(), partial.file.size());
        }
        partial.end_ahead(chunks);
        let places = partial.strides.lock().note(range, partial.file.size());
        if !places.is_empty() {
            let chunks = places.iter().flat_map(|place| place.chunks().start..place.chunks().end);
            self.guess_chunks(serving, Detector::Strides, chunks.collect());
        }
    }
}

/// Whether these are the bytes of `chunks`; they are marked as seen.
fn are_right(serving: &Serving, file: &CacheFile, chunks: ChunkRange, bytes: &[u8]) -> bool {
    let base = chunks.bytes(file.size()).start;
    (chunks.start..chunks.end).all(|index| {
        let range = chunk_range(index, file.size());
        let (start, end) = ((range.start - base) as usize, (range.end - base) as usize);
        let right = is_hash_of(file.chunk(index), &bytes[start..end]);
        if right {
            serving.mark_seen(index);
        }
        right
    })
}

fn is_hash_of(chunk: Chunk, bytes: &[u8]) -> bool {
    matches!(chunk, Chunk::Present { hash, .. } if hash == *blake3::hash(bytes).as_bytes())
}

/// Flights of chunks are per data file: another version is another file.
fn flight_key(file: &CacheFile) -> u64 {
    match file.place() {
        Place::Ssd { number } => *number,
        Place::Ram(_) => u64::MAX,
    }
}

/// The version that was opened is gone from the source and not complete here.
fn stale(op: &'static str) -> Error {
    Error::os(op, "the version that was opened", Errno::STALE.raw_os_error())
}

/// Whether no more has become of an open file than that a name of it went (rename over it, unlink): it has its bytes still,
/// and its reader holds them. Losing a name changes the ctime, so an overwriting before that, with size and mtime set back,
/// cannot be told apart. A file system takes the name first and sets the ctime then (`ext4_rename` in `fs/ext4/namei.c`): who
/// looked between the two was told of a file without a name that its ctime was still the old one. (Of a source that says 0 names of every file,
/// a change of the ctime alone is not noticed here.)
fn only_lost_a_name(was: &Attr, now: &Attr) -> bool {
    let same_bytes = now.size == was.size && now.mtime == was.mtime;
    same_bytes && (now.nlink < was.nlink || now.nlink == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Timestamp;

    /// Goal: a file that is replaced while it is looked at is read to its end, whichever moment of the replacement the look
    /// met; one that is written to is not taken for that.
    #[test]
    fn a_name_may_go_at_any_moment_and_bytes_may_not_change() {
        let at = |secs| Timestamp { secs, ..Timestamp::ZERO };
        let attr = |nlink, ctime| Attr { nlink, size: 9, mtime: at(1), ctime: at(ctime), ..Attr::UNKNOWN };
        for (was, now, only) in [
            (attr(1, 1), attr(0, 2), true),
            (attr(2, 1), attr(1, 2), true),
            // Looked at after the name went and before the ctime was set.
            (attr(0, 1), attr(0, 2), true),
            // Its rights or its bytes: the version tells.
            (attr(1, 1), attr(1, 2), false),
            (attr(1, 1), attr(2, 2), false),
            (attr(1, 1), Attr { size: 8, ..attr(0, 2) }, false),
            (attr(0, 1), Attr { mtime: at(2), ..attr(0, 2) }, false),
        ] {
            assert_eq!(only_lost_a_name(&was, &now), only, "{was:?} {now:?}");
        }
    }
}
