//! Writes what changed into the index: in batches, from one thread, and only after the data is on the disk.
//!
//! A commit of its own for every file would make a cold epoch wait for the disk's flushes; once a second costs a crash
//! at most a second of fills, which are then fetched again. The order is the promise: data first (`syncfs`), index
//! after.

use super::{Cache, FileMap};
use crate::stats::Stats;
use crate::store::{CacheDir, Change, Index};
use crate::types::FileId;
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Time between two commits while something changes.
const INTERVAL: Duration = Duration::from_secs(1);

/// The way into the index.
pub struct Journal {
    shared: Arc<Shared>,
}

struct Shared {
    index: Mutex<Index>,
    dir: Arc<CacheDir>,
    stats: Arc<Stats>,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    changed: HashSet<FileId>,
    stopped: bool,
}

impl Journal {
    pub(super) fn new(index: Index, dir: Arc<CacheDir>, stats: Arc<Stats>) -> Self {
        let shared =
            Shared { index: Mutex::new(index), dir, stats, state: Mutex::default(), wake: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Starts the thread that commits. It ends with the cache.
    pub(super) fn start(&self, cache: &Arc<Cache>) {
        let (shared, cache) = (self.shared.clone(), Arc::downgrade(cache));
        let started =
            std::thread::Builder::new().name("warmfs-index".into()).spawn(move || shared.run(&cache)).is_ok();
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
    pub(super) fn flush(&self, files: &FileMap) {
        self.shared.commit(files);
    }

    /// Commits, and notes that this stop was clean. What nobody has looked at since an unclean stop stays in doubt.
    pub(super) fn stop(&self, files: &FileMap, order: &[FileId]) {
        self.shared.state.lock().stopped = true;
        self.shared.wake.notify_all();
        let trusted = !files.all().iter().any(|file| file.is_doubtful());
        if self.shared.commit(files)
            && let Err(e) = self.shared.index.lock().close(order, trusted)
        {
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
        loop {
            {
                let mut state = self.state.lock();
                while state.changed.is_empty() && !state.stopped {
                    self.wake.wait(&mut state);
                }
                if state.stopped {
                    return;
                }
                // Something changed: let more of it come together.
                self.wake.wait_while_for(&mut state, |s| !s.stopped, INTERVAL);
                if state.stopped {
                    return;
                }
            }
            let Some(cache) = cache.upgrade() else { return };
            self.commit(&cache.files);
            cache.budget.set_overhead(self.dir.overhead_bytes());
            cache.shrink_to_budget();
        }
    }

    /// Writes all changes up to now. `false` if they could not be written; they stay to be tried again.
    fn commit(&self, files: &FileMap) -> bool {
        // The index lock first: two commits of the same change must not pass each other.
        let mut index = self.index.lock();
        let ids = std::mem::take(&mut self.state.lock().changed);
        if ids.is_empty() {
            return true;
        }
        let change = |id: &FileId| match files.get(*id).and_then(|file| file.record()) {
            Some(record) => (*id, Change::Put(record)),
            None => (*id, Change::Remove),
        };
        let changes: Vec<_> = ids.iter().map(change).collect();
        let written =
            self.dir.sync().and_then(|()| index.commit(changes.iter().map(|(id, change)| (*id, change))));
        if let Err(e) = &written {
            self.stats.cache_errors.inc();
            tracing::debug!("index not written: {e}");
            self.state.lock().changed.extend(ids);
        }
        written.is_ok()
    }
}
