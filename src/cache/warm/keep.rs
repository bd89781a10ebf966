//! One file is made warm: fetched into the SSD, whole, as the version that the source has now.
//!
//! The room for all of it is taken before its first byte is fetched: of many large files at the edge of the cache some
//! become whole, rather than none. Files of warm-ups that run do not make room for it.

use super::jobs::Job;
use super::pace::Pace;
use super::report::Reason;
use crate::cache::fill::{FillError, Served, Want};
use crate::cache::read::Serving;
use crate::cache::space::Room;
use crate::cache::{Cache, abandoned};
use crate::store::{CacheFile, Chunk, Place, disk_bytes};
use crate::types::sync::Mutex;
use crate::types::{Attr, ChunkRange, Error, ErrorKind, chunk_range};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How often a file is tried that changes under the eyes.
const TRIES: u32 = 4;
/// Longer than a tick of a file's clock: what changed within one is not to be believed yet.
const SETTLE: Duration = Duration::from_millis(30);
/// The longest sleep: a stop is heard of as soon.
const NAP: Duration = Duration::from_millis(50);
/// Chunks fetched at a time: what the engine keeps in flight; with a limit of the rate one, so that it goes evenly.
const STEP_CHUNKS: u32 = 8;

/// What became of a file.
pub enum Kept {
    /// It is warm.
    Warm {
        /// For the first time in this warm-up: a name may be given twice.
        first: bool,
    },
    /// It is not.
    Not(Reason),
    /// Others must make room for it, and that is not to be before it is known whom to spare.
    Later,
    /// The warm-up was stopped on the way.
    Stopped,
}

/// Progress of a file: bytes dealt with, and those of them that were fetched.
pub type Tell<'a> = &'a mut dyn FnMut(u64, u64);

/// What keeps the files of one warm-up.
pub struct Keeper {
    job: Arc<Job>,
    pace: Option<Mutex<Pace>>,
}

impl Keeper {
    /// One that fetches at most so many bytes a second.
    pub fn new(job: Arc<Job>, bytes_per_s: Option<NonZeroU64>) -> Self {
        Self { job, pace: bytes_per_s.map(|rate| Mutex::new(Pace::new(rate))) }
    }

    /// The bytes are about to be fetched: until when they last.
    fn book(&self, bytes: u64) -> Duration {
        self.pace
            .as_ref()
            .map_or(Duration::ZERO, |pace| pace.lock().book(self.job.started().elapsed(), bytes))
    }

    /// Sleeps, unless the warm-up is stopped.
    fn sleep_until(&self, due: Duration) {
        while !self.job.is_stopped() {
            let left = due.saturating_sub(self.job.started().elapsed());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    fn step_chunks(&self) -> u32 {
        if self.pace.is_some() { 1 } else { STEP_CHUNKS }
    }
}

/// Why one look was not enough.
enum Again {
    Changed(Attr),
    Unsettled,
    /// There was room, and it is not there all the same.
    NotWritten,
    Failed(Error),
}

impl From<FillError> for Again {
    fn from(error: FillError) -> Self {
        match error {
            FillError::Changed(attr) => Self::Changed(attr),
            FillError::Failed(e) => e.into(),
        }
    }
}

impl From<Error> for Again {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Stale => Self::Unsettled,
            _ => Self::Failed(error),
        }
    }
}

impl Cache {
    /// Makes a file warm.
    pub(super) fn keep(&self, path: &Path, keeper: &Keeper, tell: Tell<'_>) -> Kept {
        let failed = |e: Error| match e.kind() {
            ErrorKind::NotFound => Kept::Not(Reason::Unknown),
            _ => Kept::Not(Reason::Failed(e.to_string())),
        };
        let (mut seen, mut reason) = (None, Reason::Changing);
        for _ in 0..TRIES {
            let attr = match seen.take().map_or_else(|| self.source.stat(path), Ok) {
                Ok(attr) => attr,
                Err(e) => return failed(e),
            };
            match self.keep_version(path, &attr, keeper, tell) {
                Ok(kept) => return kept,
                Err(Again::Changed(now)) => seen = Some(now),
                Err(Again::Unsettled) => std::thread::sleep(SETTLE),
                Err(Again::NotWritten) => {
                    reason = Reason::Failed(
                        "not written: the cache's disk is at fault, see the daemon's log".into(),
                    );
                }
                Err(Again::Failed(e)) => return failed(e),
            }
            if keeper.job.is_stopped() {
                return Kept::Stopped;
            }
        }
        Kept::Not(reason)
    }

    fn keep_version(&self, path: &Path, attr: &Attr, keeper: &Keeper, tell: Tell<'_>) -> Result<Kept, Again> {
        if disk_bytes(attr.size) > self.settings.bytes_max {
            return Ok(Kept::Not(Reason::TooLarge));
        }
        let want = Want {
            id: self.source.file_id(path, attr),
            version: self.source.version(attr),
            path: path.to_path_buf(),
            pin: None,
            ahead: None,
            warm_job: Some(keeper.job.id()),
        };
        match self.get(want.id, &want.version) {
            // Another has filled it since it was looked at.
            Some(file) if matches!(file.place(), Place::Ssd { .. }) && file.is_complete() => {
                tell(attr.size, 0);
                return Ok(Kept::Warm { first: self.warms.claim(&file, &keeper.job, true) });
            }
            // Once there was no room for it. Who reads it goes on.
            Some(file) if matches!(file.place(), Place::Ram(_)) => {
                self.ram.remove(want.id);
            }
            _ => {}
        }
        match self.is_small(attr.size) {
            true => self.keep_small(&want, keeper, tell),
            false => self.keep_large(&want, keeper, tell),
        }
    }

    fn keep_small(&self, want: &Want, keeper: &Keeper, tell: Tell<'_>) -> Result<Kept, Again> {
        let (evicts, due) = (keeper.job.may_evict(), keeper.book(want.version.size));
        let served = self.fill_blocking(want)?;
        match served {
            Served::File(file) if matches!(file.place(), Place::Ssd { .. }) => {
                tell(want.version.size, want.version.size);
                let kept = self.finish(&file, keeper)?;
                keeper.sleep_until(due);
                Ok(kept)
            }
            _ => self.not_kept(keeper, evicts, (disk_bytes(want.version.size), 1)),
        }
    }

    fn keep_large(&self, want: &Want, keeper: &Keeper, tell: Tell<'_>) -> Result<Kept, Again> {
        let evicts = keeper.job.may_evict();
        let serving = self.begin_blocking(want)?;
        let Some(file) = serving.file() else { return self.not_kept(keeper, evicts, (0, 1)) };
        self.warms.claim(file, &keeper.job, false);
        let missing = |chunks: ChunkRange| missing_bytes(file, chunks);
        let all = missing(file.all()).1;
        let Some(mut room) = self.make_room(None, all, 0, Some(keeper.job.id())) else {
            return self.not_kept(keeper, evicts, (all, 0));
        };
        let step_chunks = keeper.step_chunks();
        for start in (0..file.all().end).step_by(step_chunks as usize) {
            if keeper.job.is_stopped() {
                return Ok(Kept::Stopped);
            }
            let step = ChunkRange { start, end: (start + step_chunks).min(file.all().end) };
            let (bytes, on_disk) = missing(step);
            // What was held for it, to be taken in a moment by who fetches it.
            room.shrink(on_disk);
            let due = keeper.book(bytes);
            if !self.ensure_blocking(&serving, step, Room::Made)? {
                return self.not_kept(keeper, evicts, (on_disk, 0));
            }
            tell(step.bytes(file.size()).len(), bytes);
            keeper.sleep_until(due);
        }
        self.finish(file, keeper)
    }

    /// All of it was fetched. It is in use until here, so that nobody can have pushed it out before it is spared.
    fn finish(&self, file: &Arc<CacheFile>, keeper: &Keeper) -> Result<Kept, Again> {
        if file.is_unsettled() || !file.is_complete() {
            return Err(Again::Unsettled);
        }
        Ok(Kept::Warm { first: self.warms.claim(file, &keeper.job, true) })
    }

    /// Why nothing could be kept that takes so many bytes and files. `evicted`: others made room where they could.
    fn not_kept(&self, keeper: &Keeper, evicted: bool, (bytes, files): (u64, u64)) -> Result<Kept, Again> {
        Ok(Kept::Not(if self.ssd.is_resting() {
            Reason::Failed("the cache's disk is at fault: see its log".into())
        } else if self.dir.is_closed() {
            Reason::Failed("the daemon is stopping".into())
        } else if !evicted {
            return Ok(Kept::Later);
        } else if self.make_room(None, bytes, files, Some(keeper.job.id())).is_some() {
            return Err(Again::NotWritten);
        } else if self.policy.lock().victim(None, &mut |_| false).is_some() {
            Reason::NoRoom
        } else {
            Reason::Refused
        }))
    }

    /// [`Cache::fill`] for a thread that may block.
    pub fn fill_blocking(&self, want: &Want) -> Result<Served, FillError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.fill(want.clone(), Box::new(move |result| drop(tx.send(result))));
        rx.recv().unwrap_or_else(|_| Err(FillError::Failed(abandoned())))
    }

    /// [`Cache::begin_partial`] for a thread that may block.
    fn begin_blocking(&self, want: &Want) -> Result<Arc<Serving>, FillError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.begin_partial(want, Box::new(move |result| drop(tx.send(result))));
        rx.recv().unwrap_or_else(|_| Err(FillError::Failed(abandoned())))
    }
}

/// What is missing of these chunks: bytes, and what they will take on the disk.
fn missing_bytes(file: &CacheFile, chunks: ChunkRange) -> (u64, u64) {
    let missing = (chunks.start..chunks.end).filter(|i| file.chunk(*i) == Chunk::Missing);
    let lengths = missing.map(|i| chunk_range(i, file.size()).len());
    lengths.fold((0, 0), |(bytes, on_disk), len| (bytes + len, on_disk + disk_bytes(len)))
}
