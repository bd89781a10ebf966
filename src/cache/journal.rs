//! Writes what changed into the index: in batches, from one thread, and only after the data is on the disk.
//!
//! A commit of its own for every file would make a cold epoch wait for the disk's flushes; once a second costs a crash
//! at most a second of fills, which are then fetched again. The order is the promise: data first (`syncfs`), index
//! after.
//!
//! An index whose file was removed is opened anew and given everything that is cached ([`super::mend`]).

use super::Cache;
use crate::stats::Stats;
use crate::store::{BLOCK_BYTES, CacheDir, CacheFile, Change, Index};
use crate::types::sync::{Condvar, Mutex, thread};
use crate::types::{FileId, Result};
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two commits while something changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Time to the next try after a commit that failed: a disk that is full or read-only stays so for a while.
const AFTER_FAULT: Duration = Duration::from_secs(5);

/// Time between two looks at the directory while nothing changes.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The way into the index.
pub struct Journal {
    shared: Arc<Shared>,
}

struct Shared {
    index: Mutex<Slot>,
    dir: Arc<CacheDir>,
    stats: Arc<Stats>,
    state: Mutex<State>,
    wake: Condvar,
}

/// The index, and which file it is.
struct Slot {
    index: Index,
    inode: Option<(u64, u64)>,
}

#[derive(Default)]
struct State {
    changed: HashSet<FileId>,
    stopped: bool,
}

impl Journal {
    pub(super) fn new(index: Index, dir: Arc<CacheDir>, stats: Arc<Stats>) -> Self {
        let index = Mutex::new(Slot { index, inode: dir.index_inode() });
        let shared = Shared { index, dir, stats, state: Mutex::default(), wake: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Starts the thread that commits. It ends with the cache.
    pub(super) fn start(&self, cache: &Arc<Cache>) {
        let (shared, cache) = (self.shared.clone(), Arc::downgrade(cache));
        let started =
            thread::Builder::new().name("warmfs-index".into()).spawn(move || shared.run(&cache)).is_ok();
        if !started {
            tracing::warn!("no thread for the index: what is cached now is forgotten at the next stop");
        }
    }

    /// `id` was filled, in part or whole.
    pub(super) fn changed(&self, id: FileId) {
        self.shared.note(id);
    }

    /// `id` is not cached any more.
    pub(super) fn removed(&self, id: FileId) {
        self.shared.note(id);
    }

    /// Commits now.
    pub(super) fn flush(&self, cache: &Cache) {
        self.shared.commit(cache);
    }

    /// Uses the index, when nobody else does.
    pub(super) fn with_index<T>(&self, work: impl FnOnce(&mut Index) -> Result<T>) -> Result<T> {
        work(&mut self.shared.index.lock().index)
    }

    /// Whether the index still has its name in the directory.
    pub(super) fn has_its_name(&self) -> bool {
        self.shared.index.lock().inode == self.shared.dir.index_inode()
    }

    /// Writes the index anew, with everything that is cached.
    pub(super) fn renew(&self, cache: &Cache) -> Result<()> {
        self.shared.open_anew(&cache.files.all())?;
        self.shared.commit(cache);
        Ok(())
    }

    /// Commits, and notes that this stop was clean. What nobody has looked at since an unclean stop stays in doubt, and what
    /// was not read back since it was written is remembered.
    pub(super) fn stop(&self, cache: &Cache, order: &[FileId]) {
        self.shared.state.lock().stopped = true;
        self.shared.wake.notify_all();
        // Those that are not complete are in doubt after every start.
        let trusted = !cache.files.all().iter().any(|file| file.is_complete() && file.is_doubtful());
        // A commit may make room for the index, and what goes for that is for the next one to tell.
        while !self.shared.state.lock().changed.is_empty() {
            if !self.shared.commit(cache) {
                return;
            }
        }
        let note = cache.scrub.stop();
        let index = &mut self.shared.index.lock().index;
        let noted = note.map_or(Ok(()), |note| index.set_scrub_note(&note));
        if let Err(e) = noted.and_then(|()| index.close(order, trusted)) {
            tracing::warn!("the index could not be closed, the next start will verify what it opens: {e}");
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.state.lock().stopped = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn note(&self, id: FileId) {
        let mut state = self.state.lock();
        let was_empty = state.changed.is_empty();
        state.changed.insert(id);
        drop(state);
        if was_empty {
            self.wake.notify_one();
        }
    }

    fn run(&self, cache: &Weak<Cache>) {
        let mut settle = INTERVAL;
        while let Some(is_due) = self.wait(settle) {
            let Some(cache) = cache.upgrade() else { return };
            cache.mend();
            if is_due {
                settle = if self.commit(&cache) { INTERVAL } else { AFTER_FAULT };
            }
        }
    }

    /// Waits until something changed and `settle` more, so that more of it comes together; or, `false`, until it is time
    /// for a look. `None`: the end.
    fn wait(&self, settle: Duration) -> Option<bool> {
        let mut state = self.state.lock();
        if state.changed.is_empty() && !state.stopped {
            self.wake.wait_while_for(&mut state, |s| s.changed.is_empty() && !s.stopped, LOOK_INTERVAL);
        }
        let is_due = !state.changed.is_empty();
        if is_due {
            self.wake.wait_while_for(&mut state, |s| !s.stopped, settle);
        }
        (!state.stopped).then_some(is_due)
    }

    /// Writes all changes up to now. `false` if they could not be written; they stay to be tried again.
    fn commit(&self, cache: &Cache) -> bool {
        // The index lock first: two commits of the same change must not pass each other.
        let mut slot = self.index.lock();
        let ids = std::mem::take(&mut self.state.lock().changed);
        if ids.is_empty() {
            return true;
        }
        let change = |id: &FileId| match cache.files.get(*id).and_then(|file| file.record()) {
            Some(record) => (*id, Change::Put(record)),
            None => (*id, Change::Remove),
        };
        let changes: Vec<_> = ids.iter().map(change).collect();
        let new_bytes = new_bytes(&changes);
        // A page for each, at most.
        let copied_bytes = self.dir.overhead_bytes().min(changes.len() as u64 * BLOCK_BYTES);
        let written = self.dir.sync().and_then(|()| {
            let changes = changes.iter().map(|(id, change)| (*id, change));
            cache.grow_index(new_bytes, copied_bytes, || slot.index.commit(changes))
        });
        if let Err(e) = written {
            self.stats.cache_errors.inc();
            tracing::debug!("index not written: {e}");
            self.state.lock().changed.extend(ids);
            return false;
        }
        // Only what is complete: a file that is still being filled would be read back at every commit.
        let is_complete = |c: &&(FileId, Change)| matches!(&c.1, Change::Put(record) if record.is_complete());
        cache.scrub.written(changes.iter().filter(is_complete).map(|(id, _)| *id));
        true
    }

    /// Opens the index anew under its name, and notes that all it should say is to be written.
    fn open_anew(&self, files: &[Arc<CacheFile>]) -> Result<()> {
        let mut slot = self.index.lock();
        let loaded = Index::open(self.dir.io(), &self.dir.index_path())?;
        *slot = Slot { index: loaded.index, inode: self.dir.index_inode() };
        let mut state = self.state.lock();
        state.changed.extend(files.iter().map(|file| file.id()));
        state.changed.extend(loaded.records.iter().map(|(id, _)| *id));
        Ok(())
    }
}

/// What changes bring to the index, about: its pages are half full after they were split, and are copied once more by the
/// next commit. One that goes leaves room for one that comes.
fn new_bytes(changes: &[(FileId, Change)]) -> u64 {
    let bytes: u64 = changes.iter().map(|(_, change)| change.bytes()).sum();
    let come = changes.iter().filter(|(_, change)| change.bytes() > 0).count() as u64;
    let go = changes.len() as u64 - come;
    4 * bytes * come.saturating_sub(go) / come.max(1)
}
