//! Looks at everything that is cached, slowly and in the background, because nobody does when the kernel reads by itself.
//!
//! One thread of the lowest priority reads a chunk, compares its checksum and rests, as [`crate::policy::scrub`] says. It
//! looks at the SSD and not at the page cache ([`super::disk`]), never at the source, and is in nobody's way: what it looks
//! at can be evicted. With nothing due it waits without a timer shorter than the next pass.
//!
//! What it promises: a file that was completed is read back from the SSD after the commit of the index that speaks of it,
//! at the configured rate; what the rate did not let it come to is remembered over a clean stop. Every other cached byte is
//! looked at once in each pass; after an unclean stop a pass begins at once. What is damaged is counted
//! (`checksum_failures`), said in the log, and dropped, the kernel's registration too: the next open fetches it anew. A
//! handle that is open in passthrough reads on from what it opened.

use super::Cache;
use super::disk::{DiskFile, DiskReader};
use crate::policy::scrub::{Next, ScrubPlan, rest};
use crate::store::{CacheFile, Chunk, Place};
use crate::types::{ChunkIndex, FileId, Result, chunk_range, escape_bytes};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How the scrub is to behave.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes to read in a second, at most.
    pub bytes_per_s: NonZeroU64,
    /// Between the end of a pass and the begin of the next; `None`: only what was just written is read back.
    pub interval: Option<Duration>,
}

/// Files of a pass that are chosen at a time: a list of all would take 24 bytes each for days.
const BATCH: usize = 16_384;

/// What a look at a chunk, or at a file, found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// What was written.
    Good,
    /// Something else, or nothing: it was dropped.
    Damaged,
    /// It is not cached any more.
    Gone,
}

/// The scrub of a cache; off until it is started.
pub struct Scrub {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    plan: ScrubPlan,
    started: bool,
    stopped: bool,
}

impl Scrub {
    /// With what the last stop left; without that a pass is due, unless the cache is `empty`.
    pub(super) fn new(note: Option<Vec<u8>>, empty: bool) -> Self {
        let plan = match note.and_then(|note| ScrubPlan::from_note(&note)) {
            Some(plan) => plan,
            None if empty => ScrubPlan::empty(now_s()),
            None => ScrubPlan::unknown(),
        };
        let state = Mutex::new(State { plan, started: false, stopped: false });
        Self { shared: Arc::new(Shared { state, wake: Condvar::new() }) }
    }

    /// These files are complete and the index speaks of them.
    pub(super) fn written(&self, ids: impl Iterator<Item = FileId>) {
        let mut state = self.shared.state.lock();
        if !state.started {
            return;
        }
        let before = state.plan.waiting();
        ids.for_each(|id| state.plan.written(id));
        if before == 0 && state.plan.waiting() > 0 {
            self.shared.wake.notify_all();
        }
    }

    /// Ends the thread and gives what the next start should know; nothing if there was no scrub.
    pub(super) fn stop(&self) -> Option<Vec<u8>> {
        let mut state = self.shared.state.lock();
        state.stopped = true;
        self.shared.wake.notify_all();
        state.started.then(|| state.plan.note())
    }

    /// When a pass ended last, in seconds since 1970.
    pub fn last_pass_s(&self) -> Option<u64> {
        self.shared.state.lock().plan.last_pass_s()
    }

    /// Files that were written and not read back yet.
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().plan.waiting()
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn run(&self, cache: &Weak<Cache>, settings: Settings) {
        // Of this thread alone, on Linux. Without the right to it goes on as any other.
        let _ = rustix::process::setpriority_process(None, 19);
        while let Some(next) = self.next() {
            match next {
                Next::Look(id) => self.look(cache, id, settings.bytes_per_s.get()),
                Next::Begin => {
                    let Some(cache) = cache.upgrade() else { return };
                    self.state.lock().plan.begin_pass(cache.dir.next_number());
                }
                Next::Select(range) => {
                    let Some(cache) = cache.upgrade() else { return };
                    let files = cache.files_numbered(range, BATCH);
                    if self.state.lock().plan.selected(files, now_s()) {
                        cache.stats.scrub_passes.inc();
                    }
                }
                Next::Wait(_) => {}
            }
        }
    }

    /// Waits until there is something to do; `None`: the end.
    fn next(&self) -> Option<Next> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            match state.plan.next(now_s()) {
                Next::Wait(Some(s)) => drop(self.wake.wait_for(&mut state, Duration::from_secs(s))),
                Next::Wait(None) => self.wake.wait(&mut state),
                next => return Some(next),
            }
        }
    }

    /// Looks at a file, chunk by chunk. The cache is held only during each: it may end in between.
    fn look(&self, weak: &Weak<Cache>, id: FileId, bytes_per_s: u64) {
        let Some(file) = weak.upgrade().and_then(|cache| cache.peek(id)) else { return };
        // Kept for one file only: at rest the scrub holds nothing.
        let mut reader = DiskReader::new();
        let mut disk = None;
        let mut index = 0;
        while index < file.all().end.max(1) {
            let Some(cache) = weak.upgrade() else { return };
            let begun = Instant::now();
            if cache.look_at_chunk(&file, &mut disk, index, &mut reader) != Found::Good {
                return;
            }
            let bytes = chunk_range(index, file.size()).len();
            cache.stats.scrub_bytes.add(bytes);
            let pause = rest(bytes, begun.elapsed(), bytes_per_s, cache.is_busy());
            drop(cache);
            index += 1;
            if !self.pause(pause) {
                return;
            }
        }
    }

    /// Rests; `false` if it is to end.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let deadline = Instant::now() + time;
        while !state.stopped && !self.wake.wait_until(&mut state, deadline).timed_out() {}
        !state.stopped
    }
}

impl Cache {
    /// Starts the scrub. It ends with the cache.
    pub fn start_scrub(self: &Arc<Self>, settings: Settings) {
        {
            let mut state = self.scrub.shared.state.lock();
            state.started = true;
            state.plan.set_interval(settings.interval);
        }
        let (shared, cache) = (self.scrub.shared.clone(), Arc::downgrade(self));
        let thread = std::thread::Builder::new().name("warmfs-scrub".into());
        if let Err(e) = thread.spawn(move || shared.run(&cache, settings)) {
            tracing::warn!("no thread for the scrub, so that only `warmfs verify` finds damage: {e}");
        }
    }

    /// The scrub, for its figures.
    pub fn scrub(&self) -> &Scrub {
        &self.scrub
    }

    /// Whether anything is being fetched.
    fn is_busy(&self) -> bool {
        !(self.fills.is_empty() && self.chunks.is_empty())
    }

    /// The first `count` files of these numbers, in order.
    fn files_numbered(&self, range: std::ops::Range<u64>, count: usize) -> Vec<(u64, FileId)> {
        let number = |file: Arc<CacheFile>| match file.place() {
            Place::Ssd { number } => Some((*number, file.id())),
            Place::Ram(_) => None,
        };
        let mut files: Vec<_> =
            self.all_files().into_iter().filter_map(number).filter(|(n, _)| range.contains(n)).collect();
        files.sort_unstable_by_key(|(number, _)| *number);
        files.truncate(count);
        files
    }

    /// Compares a chunk with what the SSD has of it, if it is present. `disk` is the file, opened at the first chunk. A
    /// file that is damaged is dropped; one without chunks must be there all the same.
    pub(super) fn look_at_chunk(
        &self,
        file: &Arc<CacheFile>,
        disk: &mut Option<DiskFile>,
        index: ChunkIndex,
        reader: &mut DiskReader,
    ) -> Found {
        // Not in use by that: an operator may evict it meanwhile. What is open of it can be read to its end.
        if !self.is_current(file) {
            return Found::Gone;
        }
        let hash = match (index < file.all().end).then(|| file.chunk(index)) {
            Some(Chunk::Missing) => return Found::Good,
            Some(Chunk::Present { hash, .. }) => Some(hash),
            None => None,
        };
        match self.compare(file, disk, index, hash, reader) {
            // Written anew meanwhile: what was read is of no time.
            Ok(false) if hash.is_some_and(|hash| !is_still(file, index, hash)) => Found::Good,
            Ok(true) => Found::Good,
            Ok(false) => {
                self.stats.checksum_failures.inc();
                let path = escape_bytes(file.path());
                self.ssd.say(&format_args!("cached copy of {path} is damaged in chunk {index}, dropped"));
                // Before it goes: handles that read it through us turn to the source.
                file.distrust(index);
                self.drop_file(file);
                Found::Damaged
            }
            // Taken out of the cache meanwhile; or we are short of something, which says nothing about the file.
            Err(e) if !self.is_current(file) || is_want(&e) => Found::Gone,
            Err(e) => {
                self.stats.cache_errors.inc();
                self.ssd.say(&format_args!("cached copy dropped: {e}"));
                self.drop_file(file);
                Found::Damaged
            }
        }
    }

    fn compare(
        &self,
        file: &Arc<CacheFile>,
        disk: &mut Option<DiskFile>,
        index: ChunkIndex,
        hash: Option<[u8; 32]>,
        reader: &mut DiskReader,
    ) -> Result<bool> {
        let Place::Ssd { number } = file.place() else { return Ok(true) };
        let opened = match disk {
            Some(opened) => opened,
            None => disk.insert(DiskFile::open(&self.dir, *number, file.size())?),
        };
        let Some(hash) = hash else { return Ok(true) };
        let found = reader.hash(opened, chunk_range(index, file.size()));
        if found == Ok(hash) {
            file.trust(index, hash);
        }
        Ok(found == Ok(hash))
    }

    fn is_current(&self, file: &Arc<CacheFile>) -> bool {
        self.files.get(file.id()).is_some_and(|f| Arc::ptr_eq(&f, file))
    }
}

/// The note of a cache that was looked at just now, all of it.
pub(super) fn note_of_pass() -> Vec<u8> {
    ScrubPlan::empty(now_s()).note()
}

fn is_still(file: &CacheFile, index: ChunkIndex, hash: [u8; 32]) -> bool {
    matches!(file.chunk(index), Chunk::Present { hash: now, .. } if now == hash)
}

/// Whether the error is about this process or machine and not about the file.
fn is_want(error: &crate::types::Error) -> bool {
    let want = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::INTR];
    error.errno().is_some_and(|errno| want.iter().any(|w| w.raw_os_error() == errno))
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs())
}
