//! The fill engine: moves chunks from the source to the SSD and hashes them on the way.
//!
//! It knows nothing of flights, budgets or the index. It is given a source, a target and chunks, and says of each chunk
//! when its bytes are written, with their hash; what that means is the caller's business. Two engines do the same:
//! [`PreadEngine`] with plain calls, and [`UringEngine`] with several chunks in flight, where the kernel allows it.
//! Tests run one body over both.
//!
//! ```text
//!            read               hash              write             done
//!   source ────────▶ buffer ──────────▶ buffer ────────▶ SSD ──────────▶ caller
//!              ▲  │                        ▲ │
//!              └──┘ short: the rest        └─┘ short: the rest
//! ```
//!
//! **Memory.** A chunk in flight holds one buffer of [`CHUNK_BYTES`] (1 MiB). A copy by ring holds at most `depth` of
//! them, any other copy one; at most [`RINGS_MAX`] copies run by ring at a time. So the bound is
//! `RINGS_MAX * depth * 1 MiB` (32 MiB by default) plus 1 MiB for each further thread that copies. Buffers are pages
//! touched as they are used, and at rest at most [`BUFFERS_IDLE_MAX`] of them (8 MiB) are kept.
//!
//! **Threads.** A copy runs in the caller's thread and returns when nothing of it is in flight, with an error or
//! without. (One exception: a kernel that breaks a ring and also refuses to wait for it; then the bytes that may still
//! arrive are those that this engine writes as well, and the ring's buffers are given up.)

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::backing::SourceFile;
use crate::sys::io::Io;
use crate::sys::uring::{self, Buffer, Completion, Full, Request, Ring};
use crate::types::{CHUNK_BYTES, ChunkIndex, ChunkRange, Error, ErrorKind, chunk_count, chunk_range};

/// How many copies run by ring at once; a further one uses plain calls rather than wait. More would only queue at the
/// same two devices.
pub const RINGS_MAX: usize = 8;

/// Chunks in flight in one copy by default. From a fast local disk depths 4, 8 and 16 measured no faster than plain
/// calls; a depth should pay where every read of the source waits, which was not measured. So the smallest: 4 MiB.
pub const DEPTH_DEFAULT: usize = 4;

/// Buffers kept for the next copies: enough for two by ring at the default depth.
pub const BUFFERS_IDLE_MAX: usize = 8;

/// How often in a row, without a byte moving, EAGAIN is asked again; with [`again_pause`] about 0.3 s in all.
const AGAIN_RETRIES: u32 = 12;

/// How often in a row EINTR is asked again. Plain calls are made again below ([`Io`]), ten thousand times; this is for a
/// ring's.
const INTERRUPTED_RETRIES: u32 = 100;

/// What to copy.
pub struct Copy<'a> {
    /// Where from.
    pub source: &'a dyn SourceFile,
    /// Where to, at the same offsets: a file of the cache, open for writing.
    pub target: &'a Arc<OwnedFd>,
    /// The calls to write it by.
    pub io: &'a Io,
    /// Which chunks; those beyond the end of the file are left out.
    pub chunks: ChunkRange,
    /// Size of the file in bytes; the last chunk ends there.
    pub size: u64,
}

impl Copy<'_> {
    /// The chunks that exist.
    fn chunks(&self) -> ChunkRange {
        let end = self.chunks.end.min(chunk_count(self.size));
        ChunkRange { start: self.chunks.start.min(end), end }
    }
}

/// Whose fault it was that a copy failed. The source's goes to the reader; the SSD's becomes a bypass.
#[derive(Clone, Debug)]
pub enum CopyError {
    /// The source answered with an error.
    Source(Error),
    /// The SSD did, or there was no memory to copy with.
    Ssd(Error),
    /// The source ended before the size of the file: it has changed.
    Truncated,
}

impl CopyError {
    fn source(chunk: ChunkIndex, errno: i32) -> Self {
        Self::Source(Error::os("read", format!("chunk {chunk} of the source"), errno))
    }

    fn ssd(chunk: ChunkIndex, errno: i32) -> Self {
        Self::Ssd(Error::os("write", format!("chunk {chunk} to the SSD"), errno))
    }

    fn memory(error: &std::io::Error) -> Self {
        Self::Ssd(Error::io("allocate", "a copy buffer", error))
    }
}

/// Told of each chunk once its bytes are written, in any order: number, blake3 of its bytes, the bytes. `false` stops
/// the copy.
pub type Done<'a> = dyn FnMut(ChunkIndex, blake3::Hash, &[u8]) -> bool + 'a;

/// A way to copy chunks.
pub trait FillEngine: Send + Sync {
    /// `io_uring` or `pread`.
    fn name(&self) -> &'static str;

    /// Copies the chunks and calls `done` for each once its bytes are written. When `done` returns `false` the copy
    /// stops early, which is not an error. Bytes of chunks that `done` was not called for may or may not be written.
    ///
    /// # Errors
    /// [`CopyError`] at the first failure; chunks that `done` was called for are good all the same.
    fn copy(&self, job: &Copy<'_>, done: &mut Done<'_>) -> Result<(), CopyError>;
}

/// Which engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where it works.
    #[default]
    Auto,
    /// io_uring; where it does not work, plain calls all the same: a cache that does not start serves nobody.
    Uring,
    /// Plain calls.
    Pread,
}

/// The engine for `setting`, with `depth` chunks in flight per copy, and why io_uring was refused, if it was.
pub fn choose(setting: EngineChoice, depth: usize) -> (Arc<dyn FillEngine>, Option<String>) {
    if setting == EngineChoice::Pread {
        return (Arc::new(PreadEngine::new()), None);
    }
    match uring::probe() {
        Ok(()) => (Arc::new(UringEngine::new(depth)), None),
        Err(error) => (Arc::new(PreadEngine::new()), Some(error.to_string())),
    }
}

/// Copy buffers between two uses. Taking one never waits: who copies is bounded by the threads there are, and a source
/// that hangs must not hold up the others.
#[derive(Default)]
struct BufferPool {
    idle: Mutex<Vec<Buffer>>,
}

impl BufferPool {
    fn take(&self) -> Result<Buffer, CopyError> {
        let idle = self.idle.lock().pop();
        idle.map_or_else(|| Buffer::new(CHUNK_BYTES as usize), Ok).map_err(|error| CopyError::memory(&error))
    }

    fn give_back(&self, buffer: Buffer) {
        let mut idle = self.idle.lock();
        if idle.len() < BUFFERS_IDLE_MAX {
            idle.push(buffer);
        }
    }
}

/// How much patience is left with a call that says "not now". Starts anew whenever a byte moves.
#[derive(Clone, Copy, Default)]
struct Patience {
    again: u32,
    interrupted: u32,
}

impl Patience {
    /// Whether to ask again after `errno`; pauses where asking at once would be a spin.
    fn asks_again(&mut self, errno: i32) -> bool {
        match Errno::from_raw_os_error(errno) {
            Errno::INTR => {
                self.interrupted += 1;
                self.interrupted <= INTERRUPTED_RETRIES
            }
            Errno::AGAIN => {
                self.again += 1;
                if self.again > AGAIN_RETRIES {
                    return false;
                }
                std::thread::sleep(again_pause(self.again));
                true
            }
            _ => false,
        }
    }
}

/// 1, 2, 4, ... 32, 32, ... ms.
fn again_pause(attempt: u32) -> Duration {
    Duration::from_millis(1 << attempt.saturating_sub(1).min(5))
}

/// Copies chunk after chunk by read and write calls, with one buffer.
#[derive(Default)]
pub struct PreadEngine {
    buffers: Arc<BufferPool>,
}

impl PreadEngine {
    /// An engine; it holds nothing until it copies.
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies `chunks`, which exist.
    fn copy_chunks(
        &self,
        job: &Copy<'_>,
        chunks: impl Iterator<Item = ChunkIndex>,
        done: &mut Done<'_>,
    ) -> Result<(), CopyError> {
        let mut buffer = self.buffers.take()?;
        let result = copy_with(job, chunks, &mut buffer, done);
        self.buffers.give_back(buffer);
        result
    }
}

impl FillEngine for PreadEngine {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn copy(&self, job: &Copy<'_>, done: &mut Done<'_>) -> Result<(), CopyError> {
        let chunks = job.chunks();
        if chunks.is_empty() {
            return Ok(());
        }
        self.copy_chunks(job, chunks.start..chunks.end, done)
    }
}

fn copy_with(
    job: &Copy<'_>,
    chunks: impl Iterator<Item = ChunkIndex>,
    buffer: &mut [u8],
    done: &mut Done<'_>,
) -> Result<(), CopyError> {
    for chunk in chunks {
        let range = chunk_range(chunk, job.size);
        let bytes = &mut buffer[..range.len() as usize];
        read_all(job.source, chunk, bytes, range.start)?;
        let hash = blake3::hash(bytes);
        write_all(job, chunk, bytes, range.start)?;
        if !done(chunk, hash, bytes) {
            return Ok(());
        }
    }
    Ok(())
}

/// Fills `bytes` from the source at `offset`.
fn read_all(
    source: &dyn SourceFile,
    chunk: ChunkIndex,
    bytes: &mut [u8],
    offset: u64,
) -> Result<(), CopyError> {
    let mut moved = 0;
    let mut patience = Patience::default();
    while moved < bytes.len() {
        match source.read_at(&mut bytes[moved..], offset + moved as u64) {
            Ok(0) => return Err(CopyError::Truncated),
            Ok(n) if n > bytes.len() - moved => {
                // Believing it would hash, and keep, bytes that were never read.
                let subject = format!("chunk {chunk} of the source: more bytes than were asked for");
                return Err(CopyError::Source(Error::new(ErrorKind::Io, "read", subject)));
            }
            Ok(n) => {
                moved += n;
                patience = Patience::default();
            }
            Err(error) if error.errno().is_some_and(|errno| patience.asks_again(errno)) => {}
            Err(error) => return Err(CopyError::Source(error)),
        }
    }
    Ok(())
}

/// Writes `bytes` to the target at `offset`.
fn write_all(job: &Copy<'_>, chunk: ChunkIndex, bytes: &[u8], offset: u64) -> Result<(), CopyError> {
    let mut moved = 0;
    let mut patience = Patience::default();
    while moved < bytes.len() {
        match job.io.write(job.target, &bytes[moved..], offset + moved as u64) {
            Ok(0) => return Err(CopyError::ssd(chunk, Errno::IO.raw_os_error())),
            Ok(n) => {
                moved += n;
                patience = Patience::default();
            }
            Err(errno) if patience.asks_again(errno.raw_os_error()) => {}
            Err(errno) => return Err(CopyError::ssd(chunk, errno.raw_os_error())),
        }
    }
    Ok(())
}

/// Copies with several chunks in flight by io_uring.
///
/// Plain calls are used instead for a source without a descriptor, for a single chunk (read, hash and write follow
/// each other anyway, and the ring only adds its detours), when all rings are busy, and when the kernel refuses a ring
/// that it allowed before.
pub struct UringEngine {
    depth: usize,
    rings_max: usize,
    rings: Mutex<Rings>,
    submissions: AtomicU64,
    plain: PreadEngine,
}

/// The rings there are.
#[derive(Default)]
struct Rings {
    idle: Vec<Ring>,
    /// Idle and lent ones together.
    count: usize,
}

impl UringEngine {
    /// An engine with `depth` chunks in flight per copy (at least 1). Rings are made when they are first needed.
    pub fn new(depth: usize) -> Self {
        Self::with_rings(depth, RINGS_MAX)
    }

    /// The same with another bound than [`RINGS_MAX`] on copies by ring at a time.
    pub fn with_rings(depth: usize, rings_max: usize) -> Self {
        Self {
            depth: depth.max(1),
            rings_max,
            rings: Mutex::new(Rings::default()),
            submissions: AtomicU64::new(0),
            plain: PreadEngine::new(),
        }
    }

    /// How many operations were given to io_uring so far.
    pub fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }

    /// A ring for one copy; `None` when all are lent or the kernel gives none.
    fn lend(&self) -> Option<Lease<'_>> {
        {
            let mut rings = self.rings.lock();
            if let Some(ring) = rings.idle.pop() {
                return Some(Lease { engine: self, ring: Some(ring) });
            }
            if rings.count >= self.rings_max {
                return None;
            }
            rings.count += 1;
        }
        let mut lease = Lease { engine: self, ring: None };
        match Ring::new(self.depth) {
            Ok(ring) => {
                lease.ring = Some(ring);
                Some(lease)
            }
            Err(error) => {
                tracing::debug!(%error, "no ring for this copy: plain calls");
                None
            }
        }
    }

    /// Copies by ring; what the ring could not finish because it broke is finished by plain calls.
    fn copy_by(
        &self,
        ring: &mut Ring,
        source: (&Io, &Arc<OwnedFd>),
        job: &Copy<'_>,
        done: &mut Done<'_>,
    ) -> Result<(), CopyError> {
        let before = ring.submitted();
        let mut pipeline = Pipeline {
            job,
            source,
            buffers: &self.plain.buffers,
            depth: self.depth.min(ring.depth()),
            chunks: job.chunks(),
            tasks: Vec::new(),
        };
        let result = pipeline.run(ring, done);
        self.submissions.fetch_add(ring.submitted() - before, Ordering::Relaxed);
        match result {
            Ok(()) | Err(Halt::Stopped) => Ok(()),
            Err(Halt::Failed(error)) => Err(error),
            Err(Halt::Ring(error)) => {
                tracing::warn!(%error, "io_uring broke off: this copy goes on by plain calls");
                self.plain.copy_chunks(job, pipeline.unfinished(), done)
            }
        }
    }
}

impl FillEngine for UringEngine {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn copy(&self, job: &Copy<'_>, done: &mut Done<'_>) -> Result<(), CopyError> {
        if job.chunks().len() <= 1 {
            return self.plain.copy(job, done);
        }
        let (Some(source), Some(mut lease)) = (job.source.direct(), self.lend()) else {
            return self.plain.copy(job, done);
        };
        match lease.ring.as_mut() {
            Some(ring) => self.copy_by(ring, source, job, done),
            None => self.plain.copy(job, done),
        }
    }
}

/// A ring on loan. It goes back when it is idle; one with something in flight (it broke, or `done` panicked) is
/// dropped, which waits, and makes room for a new one.
struct Lease<'a> {
    engine: &'a UringEngine,
    ring: Option<Ring>,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        match self.ring.take() {
            Some(ring) if ring.in_flight() == 0 => self.engine.rings.lock().idle.push(ring),
            other => {
                // Outside the lock, for it may wait.
                drop(other);
                self.engine.rings.lock().count -= 1;
            }
        }
    }
}

/// Why a pipeline ended before its last chunk.
enum Halt {
    /// `done` said so.
    Stopped,
    /// The source or the SSD failed.
    Failed(CopyError),
    /// The ring itself failed; nothing is known of the chunks in flight.
    Ring(std::io::Error),
}

/// One chunk under way.
#[derive(Clone, Copy)]
struct Task {
    chunk: ChunkIndex,
    /// Bytes of the chunk.
    len: usize,
    /// Bytes read, or written, so far.
    moved: usize,
    /// `None` while it is read, known while it is written.
    hash: Option<blake3::Hash>,
    patience: Patience,
    finished: bool,
}

impl Task {
    fn new(chunk: ChunkIndex, size: u64) -> Self {
        let len = chunk_range(chunk, size).len() as usize;
        Self { chunk, len, moved: 0, hash: None, patience: Patience::default(), finished: false }
    }

    /// Where in the file it goes on.
    fn offset(&self) -> u64 {
        u64::from(self.chunk) * CHUNK_BYTES + self.moved as u64
    }

    /// Takes note of what the kernel said.
    fn note(&mut self, result: Result<usize, i32>) -> Result<(), CopyError> {
        match (result, self.hash) {
            (Ok(0), None) => Err(CopyError::Truncated),
            (Ok(0), Some(_)) => Err(CopyError::ssd(self.chunk, Errno::IO.raw_os_error())),
            (Ok(moved), _) => {
                self.moved += moved;
                self.patience = Patience::default();
                Ok(())
            }
            (Err(errno), _) if self.patience.asks_again(errno) => Ok(()),
            (Err(errno), None) => Err(CopyError::source(self.chunk, errno)),
            (Err(errno), Some(_)) => Err(CopyError::ssd(self.chunk, errno)),
        }
    }

    /// The next operation: what is left to read, or to write.
    fn request(&self, source: &Arc<OwnedFd>, target: &Arc<OwnedFd>, buffer: Buffer, tag: usize) -> Request {
        let range = self.moved..self.len;
        match self.hash {
            None => Request::read(source, buffer, range, self.offset(), tag as u64),
            Some(_) => Request::write(target, buffer, range, self.offset(), tag as u64),
        }
    }
}

/// One copy by ring. Each task has one operation in flight, and one buffer, which travels with it.
struct Pipeline<'a> {
    job: &'a Copy<'a>,
    source: (&'a Io, &'a Arc<OwnedFd>),
    buffers: &'a BufferPool,
    depth: usize,
    /// Chunks not yet started.
    chunks: ChunkRange,
    /// At most `depth`; the place is the tag of the task's operations.
    tasks: Vec<Task>,
}

impl Pipeline<'_> {
    /// Runs to the end, or to the first failure and then until nothing is in flight.
    fn run(&mut self, ring: &mut Ring, done: &mut Done<'_>) -> Result<(), Halt> {
        let result = self.advance_all(ring, done);
        if !matches!(result, Ok(()) | Err(Halt::Ring(_))) {
            ring.cancel_all();
            // Should the ring break now, the lease drops it; the outcome of the copy is known already.
            while let Ok(Some(completion)) = ring.wait() {
                self.buffers.give_back(completion.buffer);
            }
        }
        result
    }

    fn advance_all(&mut self, ring: &mut Ring, done: &mut Done<'_>) -> Result<(), Halt> {
        while self.tasks.len() < self.depth && !self.chunks.is_empty() {
            let buffer = self.buffers.take().map_err(Halt::Failed)?;
            let tag = self.tasks.len();
            let task = self.next_task();
            self.tasks.push(task);
            self.submit(ring, tag, buffer)?;
        }
        while let Some(completion) = ring.wait().map_err(Halt::Ring)? {
            self.advance(ring, completion, done)?;
        }
        Ok(())
    }

    /// Takes one task one step on: the rest, the write, or the next chunk with the same buffer.
    fn advance(&mut self, ring: &mut Ring, completion: Completion, done: &mut Done<'_>) -> Result<(), Halt> {
        let Completion { tag, mut buffer, result } = completion;
        let tag = tag as usize;
        let task = &mut self.tasks[tag];
        let (offset, range) = (task.offset(), task.moved..task.len);
        let result = match task.hash {
            None => self.source.0.ring_read(self.source.1, &mut buffer[range], offset, result),
            Some(_) => self.job.io.ring_write(self.job.target, &buffer[range], offset, result),
        };
        task.note(result).map_err(Halt::Failed)?;
        if task.moved < task.len {
            return self.submit(ring, tag, buffer);
        }
        let Some(hash) = task.hash else {
            task.hash = Some(blake3::hash(&buffer[..task.len]));
            task.moved = 0;
            return self.submit(ring, tag, buffer);
        };
        task.finished = true;
        if !done(task.chunk, hash, &buffer[..task.len]) {
            return Err(Halt::Stopped);
        }
        if self.chunks.is_empty() {
            self.buffers.give_back(buffer);
            return Ok(());
        }
        self.tasks[tag] = self.next_task();
        self.submit(ring, tag, buffer)
    }

    /// A task for the next chunk, of which there is one.
    fn next_task(&mut self) -> Task {
        let chunk = self.chunks.start;
        self.chunks.start += 1;
        Task::new(chunk, self.job.size)
    }

    fn submit(&self, ring: &mut Ring, tag: usize, buffer: Buffer) -> Result<(), Halt> {
        let request = self.tasks[tag].request(self.source.1, self.job.target, buffer, tag);
        // One operation per task and no more tasks than slots: a full ring has lost count, and is not used further.
        ring.submit(request).map_err(|Full(_)| Halt::Ring(Errno::BUSY.into()))
    }

    /// The chunks that `done` was not called for.
    fn unfinished(&self) -> impl Iterator<Item = ChunkIndex> {
        let under_way = self.tasks.iter().filter(|task| !task.finished).map(|task| task.chunk);
        under_way.chain(self.chunks.start..self.chunks.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::io::PLAIN;
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicUsize;
    use std::time::Instant;

    const M: u64 = CHUNK_BYTES;

    /// A source with a descriptor.
    struct Direct(Arc<OwnedFd>);

    impl SourceFile for Direct {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> crate::types::Result<usize> {
            rustix::io::pread(&*self.0, buf, offset).map_err(|e| Error::os("read", "test", e.raw_os_error()))
        }

        fn attr(&self) -> crate::types::Result<crate::types::Attr> {
            unreachable!("an engine does not ask for attributes")
        }

        fn direct(&self) -> Option<(&Io, &Arc<OwnedFd>)> {
            Some((&PLAIN, &self.0))
        }
    }

    /// What a faulty source does at its n-th read.
    type Fault = fn(n: usize, asked: usize) -> Result<usize, i32>;

    /// A source without a descriptor, with faults: a fault allows a number of bytes or answers with an errno.
    struct Faulty {
        bytes: Vec<u8>,
        reads: AtomicUsize,
        fault: Fault,
    }

    impl SourceFile for Faulty {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> crate::types::Result<usize> {
            let n = self.reads.fetch_add(1, Ordering::Relaxed);
            let allowed = (self.fault)(n, buf.len()).map_err(|e| Error::os("read", "faulty", e))?;
            let rest = &self.bytes[(offset as usize).min(self.bytes.len())..];
            let len = allowed.min(rest.len()).min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        }

        fn attr(&self) -> crate::types::Result<crate::types::Attr> {
            unreachable!("an engine does not ask for attributes")
        }

        fn direct(&self) -> Option<(&Io, &Arc<OwnedFd>)> {
            None
        }
    }

    /// Bytes that differ between chunks and at each place.
    fn pattern(len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        blake3::Hasher::new().update(b"pattern").finalize_xof().fill(&mut bytes);
        bytes
    }

    fn source_of(bytes: &[u8]) -> Direct {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        Direct(Arc::new(file.into()))
    }

    fn faulty(bytes: Vec<u8>, fault: Fault) -> Faulty {
        Faulty { bytes, reads: AtomicUsize::new(0), fault }
    }

    fn new_target() -> (File, Arc<OwnedFd>) {
        let file = tempfile::tempfile().unwrap();
        let fd = Arc::new(file.try_clone().unwrap().into());
        (file, fd)
    }

    fn dev_full() -> Arc<OwnedFd> {
        Arc::new(File::options().write(true).open("/dev/full").unwrap().into())
    }

    fn all(size: u64) -> ChunkRange {
        ChunkRange { start: 0, end: chunk_count(size) }
    }

    fn for_both(body: impl Fn(&dyn FillEngine)) {
        for engine in [&PreadEngine::new() as &dyn FillEngine, &UringEngine::new(4), &UringEngine::new(1)] {
            body(engine);
        }
    }

    /// Copies and checks everything that an engine promises of a copy that succeeds.
    fn check_copy(engine: &dyn FillEngine, source: &dyn SourceFile, truth: &[u8], chunks: ChunkRange) {
        let size = truth.len() as u64;
        let (file, target) = new_target();
        let mut seen = BTreeMap::new();
        let mut done = |chunk: ChunkIndex, hash: blake3::Hash, bytes: &[u8]| {
            let range = chunk_range(chunk, size);
            let expected = &truth[range.start as usize..range.end as usize];
            assert!(bytes == expected, "{}: bytes of chunk {chunk}", engine.name());
            assert_eq!(hash, blake3::hash(expected));
            let mut there = vec![0; expected.len()];
            file.read_exact_at(&mut there, range.start).unwrap();
            assert!(there == expected, "{}: chunk {chunk} is written before done", engine.name());
            assert!(seen.insert(chunk, ()).is_none(), "{}: chunk {chunk} twice", engine.name());
            true
        };
        engine.copy(&Copy { source, target: &target, io: &PLAIN, chunks, size }, &mut done).unwrap();
        let expected = chunks.start..chunks.end.min(chunk_count(size));
        assert!(seen.into_keys().eq(expected), "{} of {size}: each chunk once", engine.name());
        assert_eq!(Arc::strong_count(&target), 1, "nothing is in flight any more");
        assert!(file.metadata().unwrap().len() <= size);
    }

    #[test]
    fn every_size_arrives_whole_and_hashed() {
        for_both(|engine| {
            for size in [0, 1, 4095, 4096, 4097, M - 1, M, M + 1, 5 * M + 123] {
                let bytes = pattern(size);
                check_copy(engine, &source_of(&bytes), &bytes, all(size));
            }
        });
    }

    #[test]
    fn a_range_of_chunks_is_copied_and_nothing_else() {
        let bytes = pattern(9 * M + 7);
        let source = source_of(&bytes);
        for_both(|engine| {
            for (start, end) in [(0, 0), (0, 1), (3, 4), (2, 7), (8, 10), (9, 10), (0, 10), (5, 99), (10, 99)]
            {
                check_copy(engine, &source, &bytes, ChunkRange { start, end });
            }
        });
    }

    #[test]
    fn chunks_outside_the_range_stay_holes() {
        let bytes = pattern(4 * M);
        let source = source_of(&bytes);
        for_both(|engine| {
            let (file, target) = new_target();
            let chunks = ChunkRange { start: 1, end: 3 };
            let job = Copy { source: &source, target: &target, io: &PLAIN, chunks, size: 4 * M };
            engine.copy(&job, &mut |_, _, _| true).unwrap();
            let mut there = vec![0; 3 * M as usize];
            file.read_exact_at(&mut there, 0).unwrap();
            assert!(there[..M as usize].iter().all(|&b| b == 0));
            assert!(there[M as usize..] == bytes[M as usize..3 * M as usize]);
            assert_eq!(file.metadata().unwrap().len(), 3 * M);
        });
    }

    #[test]
    fn bug_107_short_reads_and_eagain_are_asked_again() {
        let bytes = pattern(3 * M + 5);
        for_both(|engine| {
            let short = faulty(bytes.clone(), |n, asked| Ok(1 + n * 7919 % asked.max(2).saturating_sub(1)));
            check_copy(engine, &short, &bytes, all(3 * M + 5));
            let again = faulty(bytes.clone(), |n, asked| match n % 3 {
                0 => Err(Errno::AGAIN.raw_os_error()),
                1 => Err(Errno::INTR.raw_os_error()),
                _ => Ok(asked / 2 + 1),
            });
            check_copy(engine, &again, &bytes, all(3 * M + 5));
        });
    }

    /// Goal: the ring's own path handles short reads too, and EAGAIN. Method: a pipe is a descriptor that gives at
    /// most what is in it, and ignores offsets; at depth 1 the order is the file's.
    #[test]
    fn bug_107_short_reads_by_ring_are_asked_again() {
        for flags in [rustix::pipe::PipeFlags::CLOEXEC, rustix::pipe::PipeFlags::NONBLOCK] {
            let bytes = pattern(2 * M + 77);
            let (reader, writer) = rustix::pipe::pipe_with(flags).unwrap();
            let mut written = bytes.clone();
            let feeder = std::thread::spawn(move || {
                while !written.is_empty() {
                    match rustix::io::write(&writer, &written[..written.len().min(10_000)]) {
                        Ok(n) => drop(written.drain(..n)),
                        Err(errno) => assert_eq!(errno, Errno::AGAIN),
                    }
                    std::thread::sleep(Duration::from_micros(20));
                }
            });
            let engine = UringEngine::new(1);
            check_copy(&engine, &Direct(Arc::new(reader)), &bytes, all(2 * M + 77));
            assert!(engine.submissions() > 20, "{} operations", engine.submissions());
            feeder.join().unwrap();
        }
    }

    #[test]
    fn a_source_that_says_eagain_for_ever_is_an_error_in_the_end() {
        for_both(|engine| {
            let source = faulty(pattern(M), |_, _| Err(Errno::AGAIN.raw_os_error()));
            let (_file, target) = new_target();
            let job = Copy { source: &source, target: &target, io: &PLAIN, chunks: all(M), size: M };
            let start = Instant::now();
            let result = engine.copy(&job, &mut |_, _, _| true);
            assert!(matches!(&result, Err(CopyError::Source(e)) if e.errno() == Some(11)), "{result:?}");
            assert!(start.elapsed() < Duration::from_secs(5));
        });
    }

    #[test]
    fn an_error_of_the_source_keeps_its_errno_and_earlier_chunks_are_good() {
        for_both(|engine| {
            let source = faulty(pattern(4 * M), |n, asked| match n {
                2 => Err(Errno::IO.raw_os_error()),
                _ => Ok(asked),
            });
            let (_file, target) = new_target();
            let mut seen = Vec::new();
            let job = Copy { source: &source, target: &target, io: &PLAIN, chunks: all(4 * M), size: 4 * M };
            let result = engine.copy(&job, &mut |chunk, _, _| {
                seen.push(chunk);
                true
            });
            assert!(matches!(&result, Err(CopyError::Source(e)) if e.errno() == Some(5)), "{result:?}");
            assert_eq!(seen, [0, 1]);
        });
    }

    #[test]
    fn an_error_of_a_descriptor_keeps_its_errno() {
        let directory = Direct(Arc::new(File::open("/").unwrap().into()));
        for_both(|engine| {
            let (_file, target) = new_target();
            let job =
                Copy { source: &directory, target: &target, io: &PLAIN, chunks: all(4 * M), size: 4 * M };
            let result = engine.copy(&job, &mut |_, _, _| true);
            let is_directory = Some(Errno::ISDIR.raw_os_error());
            assert!(matches!(&result, Err(CopyError::Source(e)) if e.errno() == is_directory), "{result:?}");
            assert_eq!((Arc::strong_count(&target), Arc::strong_count(&directory.0)), (1, 1));
        });
    }

    #[test]
    fn a_source_that_lies_about_a_length_is_not_believed() {
        struct Liar;
        impl SourceFile for Liar {
            fn read_at(&self, buf: &mut [u8], _offset: u64) -> crate::types::Result<usize> {
                Ok(buf.len() + 1)
            }
            fn attr(&self) -> crate::types::Result<crate::types::Attr> {
                unreachable!("an engine does not ask for attributes")
            }

            fn direct(&self) -> Option<(&Io, &Arc<OwnedFd>)> {
                None
            }
        }
        for_both(|engine| {
            let (_file, target) = new_target();
            let job = Copy { source: &Liar, target: &target, io: &PLAIN, chunks: all(M), size: M };
            let result = engine.copy(&job, &mut |_, _, _| panic!("no chunk"));
            assert!(matches!(result, Err(CopyError::Source(_))), "{result:?}");
        });
    }

    #[test]
    fn a_source_shorter_than_its_size_is_truncated() {
        for_both(|engine| {
            for there in [0, 1, M, 2 * M + 5] {
                let bytes = pattern(there);
                let sources: [&dyn SourceFile; 2] =
                    [&source_of(&bytes), &faulty(bytes.clone(), |_, asked| Ok(asked))];
                for source in sources {
                    let (_file, target) = new_target();
                    let size = there.max(M) + 2 * M;
                    let job = Copy { source, target: &target, io: &PLAIN, chunks: all(size), size };
                    let result = engine.copy(&job, &mut |chunk, hash, bytes| {
                        assert!(chunk_range(chunk, size).end <= there);
                        assert_eq!(hash, blake3::hash(bytes));
                        true
                    });
                    assert!(matches!(result, Err(CopyError::Truncated)), "{there}: {result:?}");
                    assert_eq!(Arc::strong_count(&target), 1);
                }
            }
        });
    }

    #[test]
    fn a_full_ssd_is_the_ssds_error() {
        for_both(|engine| {
            for size in [100, 5 * M] {
                let source = source_of(&pattern(size));
                let target = dev_full();
                let job = Copy { source: &source, target: &target, io: &PLAIN, chunks: all(size), size };
                let result = engine.copy(&job, &mut |_, _, _| panic!("nothing can have been written"));
                let no_space = |e: &Error| e.kind() == ErrorKind::NoSpace && e.errno() == Some(28);
                assert!(matches!(&result, Err(CopyError::Ssd(e)) if no_space(e)), "{result:?}");
                assert_eq!((Arc::strong_count(&target), Arc::strong_count(&source.0)), (1, 1));
            }
        });
    }

    #[test]
    fn done_can_stop_a_copy() {
        let size = 20 * M;
        let source = source_of(&pattern(size));
        for_both(|engine| {
            let (_file, target) = new_target();
            let mut calls = 0;
            let job = Copy { source: &source, target: &target, io: &PLAIN, chunks: all(size), size };
            let result = engine.copy(&job, &mut |_, _, _| {
                calls += 1;
                calls < 2
            });
            assert!(result.is_ok());
            assert_eq!(calls, 2);
            assert_eq!((Arc::strong_count(&target), Arc::strong_count(&source.0)), (1, 1));
        });
    }

    /// Goal: a panic of the caller's closure frees nothing under the kernel and does not cost a ring.
    #[test]
    fn a_panic_in_done_leaves_the_engine_usable() {
        let bytes = pattern(6 * M);
        let source = source_of(&bytes);
        let engine = UringEngine::with_rings(4, 1);
        for _ in 0..2 {
            let (_file, target) = new_target();
            let job = Copy { source: &source, target: &target, io: &PLAIN, chunks: all(6 * M), size: 6 * M };
            let panics = std::panic::AssertUnwindSafe(|| engine.copy(&job, &mut |_, _, _| panic!("test")));
            assert!(std::panic::catch_unwind(panics).is_err());
            assert_eq!(Arc::strong_count(&target), 1);
        }
        let before = engine.submissions();
        check_copy(&engine, &source, &bytes, all(6 * M));
        assert_eq!(engine.submissions() - before, 12, "by ring");
    }

    #[test]
    fn eight_threads_copy_at_once() {
        let bytes = pattern(7 * M + 99);
        let source = source_of(&bytes);
        // Two rings for eight threads: the others take the plain way rather than wait.
        let uring = UringEngine::with_rings(4, 2);
        for engine in [&PreadEngine::new() as &dyn FillEngine, &uring] {
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| check_copy(engine, &source, &bytes, all(7 * M + 99)));
                }
            });
        }
        assert!(uring.submissions() > 0);
        let rings = uring.rings.lock();
        assert!(rings.count <= 2);
        assert_eq!(rings.idle.len(), rings.count, "all were given back");
        assert!(uring.plain.buffers.idle.lock().len() <= BUFFERS_IDLE_MAX);
    }

    #[test]
    fn many_chunks_go_by_ring_and_one_does_not() {
        let bytes = pattern(5 * M + 1);
        let engine = UringEngine::new(4);
        check_copy(&engine, &source_of(&bytes), &bytes, all(5 * M + 1));
        assert!(engine.submissions() >= 12, "a read and a write of six chunks");
        let before = engine.submissions();
        check_copy(&engine, &source_of(&bytes[..100]), &bytes[..100], all(100));
        check_copy(&engine, &faulty(bytes.clone(), |_, asked| Ok(asked)), &bytes, all(5 * M + 1));
        assert_eq!(engine.submissions(), before);
    }

    #[test]
    fn choose_does_as_it_is_told() {
        let name = |setting| {
            let (engine, refused) = choose(setting, DEPTH_DEFAULT);
            assert_eq!(refused, None);
            engine.name()
        };
        assert_eq!(name(EngineChoice::Pread), "pread");
        assert_eq!(name(EngineChoice::Uring), "io_uring");
        assert_eq!(name(EngineChoice::Auto), "io_uring");
    }

    /// Goal: a container's seccomp filter costs speed and nothing else. The second half refuses io_uring only after
    /// the engine was chosen.
    #[test]
    fn bug_105_without_io_uring_the_plain_engine_does_the_same() {
        let refused = std::thread::spawn(|| {
            let bytes = pattern(3 * M + 1);
            let late = UringEngine::new(4);
            uring::refuse_in_this_thread(uring::Call::Setup, 1);
            for setting in [EngineChoice::Auto, EngineChoice::Uring] {
                let (engine, reason) = choose(setting, 4);
                assert_eq!(engine.name(), "pread");
                assert!(reason.unwrap().contains("seccomp"));
                check_copy(&*engine, &source_of(&bytes), &bytes, all(3 * M + 1));
            }
            check_copy(&late, &source_of(&bytes), &bytes, all(3 * M + 1));
            assert_eq!((late.submissions(), late.rings.lock().count), (0, 0));
        });
        refused.join().unwrap();
    }

    /// Goal: a ring that breaks in the middle loses no chunk and does none twice. Method: io_uring_enter is refused
    /// from inside `done`, after two chunks.
    #[test]
    fn a_ring_that_breaks_is_finished_by_plain_calls() {
        let refused = std::thread::spawn(|| {
            let size = 9 * M;
            let bytes = pattern(size);
            let source = source_of(&bytes);
            let (file, target) = new_target();
            let mut seen = Vec::new();
            let engine = UringEngine::new(4);
            let job = Copy { source: &source, target: &target, io: &PLAIN, chunks: all(size), size };
            let result = engine.copy(&job, &mut |chunk, hash, bytes| {
                assert_eq!(hash, blake3::hash(bytes));
                seen.push(chunk);
                if seen.len() == 2 {
                    uring::refuse_in_this_thread(uring::Call::Enter, 1);
                }
                true
            });
            assert!(result.is_ok(), "{result:?}");
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..9));
            let mut there = vec![0; size as usize];
            file.read_exact_at(&mut there, 0).unwrap();
            assert!(there == bytes);
            assert!(engine.submissions() < 18, "not all by ring");
            assert_eq!(engine.rings.lock().count, 0, "the broken ring is gone");
        });
        refused.join().unwrap();
    }
}
