//! Names and attributes that outlive the mount: written into the index now and then and at a clean stop, read when
//! a directory is first used.
//!
//! What was written is worth what it was worth in memory: each answer carries how old it was when it was written, and the time
//! since is added to that, so that the TTL goes on over the restart. If a clock went back meanwhile nothing is believed;
//! neither is what was written of another source, or what is damaged. Nothing is read at the start but which directories
//! there are, so that a start takes no longer with a million files; a kill costs what was not written yet, which is asked for
//! again.

use super::Fs;
use super::dir::Listing;
use super::node::Node;
use crate::cache::names::NamesBatch;
use crate::store::names::{DirKey, KeptListing, Stamp, dir_key};
use crate::sys::clock;
use crate::types::sync::atomic::{AtomicBool, Ordering};
use crate::types::sync::{Condvar, Mutex, thread};
use crate::types::{FileKind, Identity};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often what is new is written.
const INTERVAL: Duration = Duration::from_secs(5);
/// Bytes that are written at once; now and then no more than that.
const BATCH_BYTES: usize = 8 << 20;
/// A stop takes no longer for the names.
const STOP_TIME_MAX: Duration = Duration::from_secs(3);
/// Entries of a directory that is kept, at most: a listing is written and read in one piece, in about 300 bytes an entry.
const LISTING_ENTRIES_MAX: usize = 1 << 17;
/// Directories that are kept, at most: the table of contents is written whole each time.
const DIRS_MAX: usize = 1 << 17;

/// What is kept, and what of it was not read yet.
pub struct Kept {
    /// Nothing is kept of a source without one.
    stamp: Option<Stamp>,
    bytes_max: u64,
    /// Whether there is something to read: a warm open looks at no more than this.
    has_unread: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Bytes of each directory's listing in the index.
    dirs: HashMap<DirKey, u32>,
    bytes: u64,
    /// Those of an earlier mount that nobody has asked for yet.
    unread: HashSet<DirKey>,
    /// How often everything was forgotten.
    forgotten: u64,
    stopped: bool,
}

impl State {
    fn insert(&mut self, dir: DirKey, bytes: u32) {
        let old = self.dirs.insert(dir, bytes).unwrap_or(0);
        self.bytes = self.bytes + u64::from(bytes) - u64::from(old);
    }

    fn remove(&mut self, dir: &DirKey) {
        self.bytes -= u64::from(self.dirs.remove(dir).unwrap_or(0));
        self.unread.remove(dir);
    }

    /// Makes room for `dir` by dropping what nobody has asked for since the start. `false` if that is not enough.
    fn make_room(&mut self, dir: &DirKey, bytes: u64, bytes_max: u64, gone: &mut Vec<DirKey>) -> bool {
        let old = self.dirs.get(dir).map_or(0, |bytes| u64::from(*bytes));
        let is_full = |s: &Self| {
            s.bytes - old + bytes > bytes_max || (s.dirs.len() >= DIRS_MAX && !s.dirs.contains_key(dir))
        };
        while is_full(self) {
            let Some(unread) = self.unread.iter().find(|unread| *unread != dir).copied() else {
                return false;
            };
            self.remove(&unread);
            gone.push(unread);
        }
        true
    }
}

impl Kept {
    /// What the index has of the source with this stamp; none: nothing is kept.
    pub fn new(stamp: Option<Stamp>, dirs: Vec<(DirKey, u32)>, bytes_max: u64) -> Self {
        let mut state = State { unread: dirs.iter().map(|(dir, _)| *dir).collect(), ..State::default() };
        dirs.into_iter().for_each(|(dir, bytes)| state.insert(dir, bytes));
        Self {
            stamp,
            bytes_max,
            has_unread: AtomicBool::new(!state.unread.is_empty()),
            state: Mutex::new(state),
            wake: Condvar::new(),
        }
    }

    /// Directories that are kept, and those of them that nobody has asked for since the start.
    pub fn gauges(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.dirs.len(), state.unread.len())
    }

    fn is_unread(&self, dir: &DirKey) -> bool {
        self.has_unread.load(Ordering::Relaxed) && self.state.lock().unread.contains(dir)
    }

    fn was_read(&self, dir: &DirKey) {
        let mut state = self.state.lock();
        state.unread.remove(dir);
        self.has_unread.store(!state.unread.is_empty(), Ordering::Relaxed);
    }

    /// Nothing that was kept up to now is used any more.
    pub fn forget(&self) {
        let mut state = self.state.lock();
        *state = State { forgotten: state.forgotten + 1, stopped: state.stopped, ..State::default() };
        self.has_unread.store(false, Ordering::Relaxed);
    }

    /// Ends the thread that writes.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Waits for the next time to write. `false`: the end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        self.wake.wait_while_for(&mut state, |s| !s.stopped, INTERVAL);
        !state.stopped
    }
}

/// A listing that is being written: if that fails it is to be written later.
struct Writing {
    listing: Arc<Listing>,
    unsaved: u8,
    key: DirKey,
    bytes: Vec<u8>,
}

impl Fs {
    /// Whether a directory's listing must be read from the index before its names are looked at.
    pub(super) fn is_unread(&self, dir: &Node) -> bool {
        if !self.kept.has_unread.load(Ordering::Relaxed) || dir.kind != FileKind::Directory {
            return false;
        }
        let identity = dir.lock().attr.identity;
        identity.dev == self.source.root_device() && self.kept.is_unread(&dir_key(&identity))
    }

    /// Reads it, on a thread that may wait for the SSD, and goes on with `then`.
    pub(super) fn after_reading(
        self: &Arc<Self>,
        dir: Arc<Node>,
        then: impl FnOnce(&Arc<Self>, Arc<Node>) + Send + 'static,
    ) {
        let (fs, client) = (self.clone(), super::watch::client());
        self.local.submit(Box::new(move || {
            fs.read_kept(&dir);
            super::watch::set_client(client);
            then(&fs, dir);
            super::watch::set_client(0);
        }));
    }

    fn read_kept(&self, dir: &Node) {
        let identity = dir.lock().attr.identity;
        let key = dir_key(&identity);
        let cleared = self.listings.lock().cleared();
        // Who is late finds it read already.
        if !self.kept.is_unread(&key) {
            return;
        }
        if self.listing_of(dir).is_none()
            && let Some(listing) =
                self.cache.names(&key).and_then(|bytes| self.restore(&identity, &key, &bytes))
        {
            let listing = Arc::new(listing);
            if self.listings.lock().put_unasked(identity, &listing, cleared) {
                self.stats.names_restored.inc();
                dir.lock().listing.get_or_insert(listing);
            }
        }
        self.kept.was_read(&key);
    }

    /// The listing in these bytes, if they can be believed.
    fn restore(&self, dir: &Identity, key: &DirKey, bytes: &[u8]) -> Option<Listing> {
        let kept = KeptListing::decode(key, bytes, dir.dev).or_else(|| {
            self.stats.cache_errors.inc();
            tracing::warn!("a listing that was kept is damaged, and is asked for again");
            None
        })?;
        if Some(kept.stamp) != self.kept.stamp {
            return None;
        }
        let since_ms = clock::moment().since_ms(&kept.written)?;
        let now_ms = self.now_ms();
        let at = |age_ms: u64| now_ms.saturating_sub(since_ms.saturating_add(age_ms));
        if kept.no_acl {
            self.unlisted.insert(dir, kept.times.1);
        }
        for (attr, _) in kept.entries.iter().filter(|e| e.no_acl).filter_map(|e| e.attr.as_ref()) {
            self.unlisted.insert(&attr.identity, attr.ctime);
        }
        Some(Listing::restored(&kept, dir.dev, &at))
    }

    /// Starts the thread that writes what is new now and then. It ends with [`Fs::stop`].
    pub fn start_keeping(self: &Arc<Self>) {
        if self.kept.stamp.is_none() {
            return;
        }
        let fs = Arc::downgrade(self);
        if thread::Builder::new().name("warmfs-names".into()).spawn(move || keep_writing(&fs)).is_err() {
            tracing::warn!("no thread for the names: they are written at a clean stop only");
        }
    }

    /// Writes all that is not written yet, or is known to be younger than it was; at a clean stop.
    pub fn keep_names(&self) {
        let deadline = Instant::now() + STOP_TIME_MAX;
        let mut left = self.unsaved(true);
        while !left.is_empty() && Instant::now() < deadline {
            if !self.keep_some(&mut left) {
                break;
            }
        }
    }

    /// Listings that are to be written, those used last first.
    fn unsaved(&self, at_stop: bool) -> Vec<(Identity, Arc<Listing>)> {
        let dev = self.source.root_device();
        let mut unsaved = self.listings.lock().all();
        unsaved.retain(|(dir, listing)| {
            dir.dev == dev && listing.len() <= LISTING_ENTRIES_MAX && listing.is_unsaved(at_stop)
        });
        unsaved.reverse();
        unsaved
    }

    /// Writes a batch of those that are `left`, from the end. `false` if it could not be written, or nothing more can.
    fn keep_some(&self, left: &mut Vec<(Identity, Arc<Listing>)>) -> bool {
        let Some(stamp) = self.kept.stamp else { return false };
        let forgotten = self.kept.state.lock().forgotten;
        let (written, now_ms) = (clock::moment(), self.now_ms());
        let (mut writing, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES
            && let Some((dir, listing)) = left.pop()
        {
            let unsaved = listing.take_unsaved();
            let has_no_acl = |object: &Identity, ctime| self.unlisted.contains(object, ctime);
            let kept = listing.to_keep(&dir, &stamp, written, now_ms, &has_no_acl);
            let key = dir_key(&dir);
            let encoded = kept.encode(&key);
            bytes += encoded.len();
            writing.push(Writing { listing, unsaved, key, bytes: encoded });
        }
        let (mut put, mut refused) = (Vec::new(), false);
        let kept = self.cache.keep_names(&stamp, || {
            let batch = self.batch(&mut writing, forgotten);
            put = batch
                .as_ref()
                .map(|batch| batch.put.iter().map(|(dir, _)| *dir).collect())
                .unwrap_or_default();
            refused = batch.is_none();
            batch
        });
        if kept.is_err() {
            // What is on the disk is as it was, or as it should have become: neither is wrong.
            writing.iter().for_each(|w| w.listing.set_unsaved(w.unsaved));
            return false;
        }
        !refused && put.len() == writing.len()
    }

    /// What to write, and notes it as written. None if everything was forgotten meanwhile.
    fn batch(&self, writing: &mut [Writing], forgotten: u64) -> Option<NamesBatch> {
        let mut state = self.kept.state.lock();
        if state.forgotten != forgotten {
            return None;
        }
        let mut batch = NamesBatch::default();
        for Writing { key, bytes, .. } in writing {
            let len = bytes.len() as u64;
            if state.make_room(key, len, self.kept.bytes_max, &mut batch.gone) {
                state.insert(*key, len as u32);
                batch.put.push((*key, std::mem::take(bytes)));
            }
        }
        batch.all = state.dirs.iter().map(|(dir, bytes)| (*dir, *bytes)).collect();
        Some(batch)
    }
}

fn keep_writing(fs: &Weak<Fs>) {
    loop {
        let Some(kept) = fs.upgrade().map(|fs| fs.kept.clone()) else { return };
        if !kept.wait() {
            return;
        }
        let Some(fs) = fs.upgrade() else { return };
        let mut left = fs.unsaved(false);
        if !left.is_empty() {
            fs.keep_some(&mut left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Moment;

    fn key(n: u8) -> DirKey {
        [n; 20]
    }

    #[test]
    fn room_is_made_by_what_nobody_asked_for_and_by_nothing_else() {
        let kept = Kept::new(Some([1; 16]), vec![(key(1), 40), (key(2), 40)], 100);
        kept.was_read(&key(1));
        let mut state = kept.state.lock();
        let mut gone = Vec::new();
        assert!(state.make_room(&key(1), 60, 100, &mut gone) && gone.is_empty(), "it takes its own place");
        assert!(state.make_room(&key(3), 50, 100, &mut gone));
        assert_eq!((gone.as_slice(), state.bytes), (&[key(2)][..], 40));
        state.insert(key(3), 50);
        assert!(!state.make_room(&key(4), 20, 100, &mut gone), "what is in use stays");
    }

    #[test]
    fn what_was_forgotten_is_not_read() {
        let kept = Kept::new(Some([1; 16]), vec![(key(1), 40)], 100);
        assert!(kept.is_unread(&key(1)) && !kept.is_unread(&key(2)));
        kept.forget();
        assert!(!kept.is_unread(&key(1)));
        assert_eq!(kept.gauges(), (0, 0));
    }

    #[test]
    fn a_moment_of_another_clock_gives_no_age() {
        let now = clock::moment();
        let ahead = Moment { wall_ms: now.wall_ms + 60_000, ..now };
        assert_eq!(now.since_ms(&ahead), None);
    }
}
