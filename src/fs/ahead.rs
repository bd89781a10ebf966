//! What a walk over the tree is going to ask for next, asked ahead of it: attributes of entries and listings of directories.
//!
//! A walker (`find`, `ls -lR`, the scan at the start of a job) asks for one thing at a time, and each costs a slow source's
//! whole latency. Here the same questions are put by many threads at once. Which ones, [`AheadTracker`] decides for each
//! directory; this file looks at the requests, keeps the questions in a bounded queue and puts them.
//!
//! What it promises: nothing is asked ahead of a source that is quick, or silent; the threads that requests wait for are
//! never all taken, and between two short turns waiting requests come first; what was learnt carries the time when it was
//! asked for, and takes the place of nothing newer, so that the TTL means what it means without this.

use super::Fs;
use super::dir::{Listing, Row};
use super::node::Node;
use crate::backing::{Look, SourceDir};
use crate::policy::AheadTracker;
use crate::sys::clock::file_time;
use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicU64, Ordering};
use crate::types::{Attr, FileKind, Result};
use std::collections::VecDeque;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Entries of one directory whose attributes are asked for ahead, at most.
const ENTRIES_AHEAD_MAX: u32 = 1024;
/// Directories that are listed ahead, at most.
const DIRS_AHEAD_MAX: u32 = 64;
/// What a walk expects of a directory, at most, because it went through the one before: enough to begin at once.
const EXPECTED_MAX: u32 = 32;
/// Attributes that wait to be asked for, of all directories together; beyond, no more are read ahead for now.
const QUEUE_ENTRIES_MAX: usize = 1 << 15;
/// Questions in the queue: each is a directory or some of its entries.
const QUEUE_MAX: usize = 1024;
/// Attributes that a thread asks for in one turn, after which waiting requests have their turn.
const TURN_ENTRIES: u32 = 4;
/// With a shorter TTL most of what is read ahead would be old before it is used.
const TTL_MIN: Duration = Duration::from_secs(1);

/// How long the source takes for one answer, as a moving average.
#[derive(Default)]
pub struct Pace(AtomicU64);

/// Below this a source answers from memory or from a local disk's cache, and reading ahead would cost more than it saves.
const SLOW_US: u64 = 400;
/// One answer counts as this much at most: a single hiccup makes no source slow.
const SAMPLE_US_MAX: u64 = 2400;
/// The weight of the newest answer is one in this many.
const SAMPLES: u64 = 8;

impl Pace {
    /// One answer took so long.
    pub fn note(&self, took: Duration) {
        let sample = (took.as_micros() as u64).min(SAMPLE_US_MAX);
        let mean = self.0.load(Ordering::Relaxed);
        // An answer that gets lost between the two is no loss.
        self.0.store(mean - mean / SAMPLES + sample / SAMPLES, Ordering::Relaxed);
    }

    /// Whether asking ahead is worth it.
    pub fn is_slow(&self) -> bool {
        self.0.load(Ordering::Relaxed) > SLOW_US
    }
}

/// Who goes through a directory.
#[derive(Default)]
pub struct Walk {
    entries: AheadTracker,
    dirs: AheadTracker,
    /// Attributes of entries that are no directories were asked for.
    files_wanted: bool,
    /// The subdirectory that was opened last: the next will be gone through as it was.
    last_dir: Weak<Listing>,
}

impl Walk {
    /// As the directory before was gone through, so this one will be.
    fn expect(&mut self, before: &Self) {
        let as_before = |t: &AheadTracker| AheadTracker::expecting(t.used_in_order().min(EXPECTED_MAX));
        *self = Self {
            entries: if before.files_wanted { as_before(&before.entries) } else { AheadTracker::default() },
            dirs: as_before(&before.dirs),
            files_wanted: before.files_wanted,
            last_dir: before.last_dir.clone(),
        };
    }
}

/// Something to ask the source.
enum Question {
    /// The listing of a subdirectory, and the attributes of its entries.
    List { parent: Arc<Node>, listing: Arc<Listing>, index: u32, entries: bool },
    /// Attributes of entries.
    Stat { node: Arc<Node>, listing: Arc<Listing>, range: Range<u32> },
    /// The same, of a directory that is open.
    StatIn(Arc<OpenDir>, Range<u32>),
}

/// A directory that several threads ask.
struct OpenDir {
    dir: Box<dyn SourceDir>,
    listing: Arc<Listing>,
}

impl Question {
    fn entries(&self) -> usize {
        match self {
            Self::List { .. } => 0,
            Self::Stat { range, .. } | Self::StatIn(_, range) => range.len(),
        }
    }
}

/// The queue and the turns that are taken.
pub struct ReadAhead {
    turns_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Question>,
    /// Attributes in it.
    entries: usize,
    /// Turns that wait in the pool or run.
    turns: usize,
}

/// Where in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    First,
    Last,
}

impl ReadAhead {
    /// Nothing to ask; a quarter of the `threads` that wait for the source is left to requests.
    pub fn new(threads: usize) -> Self {
        Self { turns_max: threads - threads.div_ceil(4), state: Mutex::default() }
    }

    /// Questions that wait and turns that are taken.
    pub fn gauges(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.queue.len(), state.turns)
    }

    fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.entries < QUEUE_ENTRIES_MAX && state.queue.len() < QUEUE_MAX
    }

    /// Puts questions into the queue and gives how many more turns it takes; those are counted as taken.
    fn add(&self, questions: Vec<Question>, order: Order) -> usize {
        let mut state = self.state.lock();
        let mut turns = 0;
        let mut questions: VecDeque<_> = questions.into();
        while state.queue.len() < QUEUE_MAX {
            // Those that go to the front go there in their order, too.
            let next = if order == Order::First { questions.pop_back() } else { questions.pop_front() };
            let Some(question) = next else { break };
            turns += question.entries().div_ceil(TURN_ENTRIES as usize).max(1);
            state.entries += question.entries();
            match order {
                Order::First => state.queue.push_front(question),
                Order::Last => state.queue.push_back(question),
            }
        }
        let more = turns.min(self.turns_max - state.turns);
        state.turns += more;
        more
    }

    /// What one turn asks: a question, or a part of one.
    fn take(&self) -> Option<Question> {
        let mut state = self.state.lock();
        let question = match state.queue.front_mut()? {
            Question::StatIn(dir, range) if range.len() > TURN_ENTRIES as usize => {
                let part = range.start..range.start + TURN_ENTRIES;
                range.start = part.end;
                Question::StatIn(dir.clone(), part)
            }
            _ => state.queue.pop_front()?,
        };
        state.entries -= question.entries();
        Some(question)
    }

    fn clear(&self) {
        let mut state = self.state.lock();
        let dropped = std::mem::take(&mut state.queue);
        state.entries = 0;
        drop(state);
        // Open directories of a silent source among them.
        drop(dropped);
    }
}

/// A turn is taken until this is dropped.
struct Turn(Arc<Fs>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.ahead.state.lock().turns -= 1;
    }
}

impl Fs {
    /// Whether to look at who asks for what.
    fn reads_ahead(&self) -> bool {
        self.settings.read_ahead
            && self.ahead.turns_max > 0
            && self.pace.is_slow()
            && self.settings.ttl.is_none_or(|ttl| ttl >= TTL_MIN)
    }

    /// A name was looked up.
    pub(super) fn read_ahead_of_lookup(self: &Arc<Self>, parent: &Arc<Node>, name: &OsStr) {
        if self.reads_ahead()
            && let Some(listing) = self.listing_of(parent)
            && let Some(index) = listing.index(name.as_bytes())
        {
            self.read_ahead_of_entry(parent, &listing, index as u32);
        }
    }

    /// The attributes of an entry were used.
    pub(super) fn read_ahead_of_entry(
        self: &Arc<Self>,
        node: &Arc<Node>,
        listing: &Arc<Listing>,
        index: u32,
    ) {
        if !self.reads_ahead() {
            return;
        }
        let room = if self.ahead.has_room() { ENTRIES_AHEAD_MAX } else { 0 };
        let is_file = listing.entry(index).is_some_and(|(row, ..)| row.kind != FileKind::Directory);
        let range = {
            let mut walk = listing.walk();
            let range = walk.entries.used(index, listing.len() as u32, room);
            walk.files_wanted |= is_file && !range.is_empty();
            range
        };
        self.ask_ahead(stat(node, listing, range), Order::First);
    }

    /// A directory was opened, to be listed.
    pub(super) fn read_ahead_of_open(self: &Arc<Self>, node: &Arc<Node>, listing: &Arc<Listing>) {
        if !self.reads_ahead() {
            return;
        }
        let place = node.lock().place.clone();
        let Some((parent, name)) = place else { return };
        let Some(around) = self.listing_of(&parent) else { return };
        let Some(index) = around.index(&name) else { return };
        let Ok(rank) = around.dirs().binary_search(&(index as u32)) else { return };
        let room = if self.ahead.has_room() { DIRS_AHEAD_MAX } else { 0 };
        let (siblings, before) = {
            let mut walk = around.walk();
            let siblings = walk.dirs.used(rank as u32, around.dirs().len() as u32, room);
            let before = std::mem::replace(&mut walk.last_dir, Arc::downgrade(listing)).upgrade();
            (siblings, before)
        };
        let before = before.filter(|before| !Arc::ptr_eq(before, listing));
        let files = before.as_ref().is_some_and(|before| before.walk().files_wanted);
        if let Some(before) = before {
            self.expect_as_before(node, listing, &before);
        }
        let list = |rank: u32| Question::List {
            parent: parent.clone(),
            listing: around.clone(),
            index: around.dirs()[rank as usize],
            entries: files,
        };
        self.ask_ahead(siblings.map(list).collect(), Order::Last);
    }

    /// The directory before was gone through in some way: so this one will be, and it can begin at once.
    fn expect_as_before(self: &Arc<Self>, node: &Arc<Node>, listing: &Arc<Listing>, before: &Arc<Listing>) {
        // Never two of these locks at a time.
        let mut expected = Walk::default();
        expected.expect(&before.walk());
        let (entries, dirs) = {
            let mut walk = listing.walk();
            *walk = expected;
            let entries = walk.entries.begin(listing.len() as u32, ENTRIES_AHEAD_MAX);
            (entries, walk.dirs.begin(listing.dirs().len() as u32, DIRS_AHEAD_MAX))
        };
        let files = listing.walk().last_dir.upgrade().is_some_and(|dir| dir.walk().files_wanted);
        let list = |rank: u32| Question::List {
            parent: node.clone(),
            listing: listing.clone(),
            index: listing.dirs()[rank as usize],
            entries: files,
        };
        self.ask_ahead(dirs.map(list).collect(), Order::First);
        self.ask_ahead(stat(node, listing, entries), Order::First);
    }

    fn ask_ahead(self: &Arc<Self>, questions: Vec<Question>, order: Order) {
        if questions.is_empty() {
            return;
        }
        for _ in 0..self.ahead.add(questions, order) {
            self.take_turn(Turn(self.clone()));
        }
    }

    /// At the end of the pool's queue: requests that wait come first.
    fn take_turn(self: &Arc<Self>, turn: Turn) {
        self.pool.submit(Box::new(move || {
            let fs = turn.0.clone();
            if fs.watch.is_silent() {
                return fs.ahead.clear();
            }
            let Some(question) = fs.ahead.take() else { return };
            fs.ask(question);
            fs.take_turn(turn);
        }));
    }

    /// Asks. An error is nobody's: who asks for the same will be told.
    fn ask(self: &Arc<Self>, question: Question) {
        match question {
            Question::List { parent, listing, index, entries } => {
                let listed = self.list_ahead(&parent, &listing, index, entries);
                drop(listed.inspect_err(|e| tracing::debug!("not listed ahead: {e}")));
            }
            Question::Stat { node, listing, range } => {
                if !self.knows_all(&listing, range.clone())
                    && let Ok(dir) = self.source.open_dir(&node.path())
                {
                    self.stat_ahead_in(dir, listing, range, Order::First);
                }
            }
            Question::StatIn(open, range) => range.for_each(|index| self.stat_ahead(&open, index)),
        }
    }

    fn stat_ahead_in(
        self: &Arc<Self>,
        dir: Box<dyn SourceDir>,
        listing: Arc<Listing>,
        range: Range<u32>,
        order: Order,
    ) {
        if !range.is_empty() && self.ahead.has_room() {
            let open = Arc::new(OpenDir { dir, listing });
            self.ask_ahead(vec![Question::StatIn(open, range)], order);
        }
    }

    /// Whether an entry is known well enough: who asks next will not have to wait.
    fn is_known(&self, checked_ms: Option<u64>) -> bool {
        checked_ms.is_some_and(|checked_ms| self.is_fresh(checked_ms))
    }

    fn knows_all(&self, listing: &Listing, mut range: Range<u32>) -> bool {
        range.all(|index| listing.entry(index).is_some_and(|(.., asked_ms)| self.is_known(asked_ms)))
    }

    fn stat_ahead(&self, open: &OpenDir, index: u32) {
        let Some((_, name, checked_ms)) = open.listing.entry(index) else { return };
        if self.is_known(checked_ms) {
            return;
        }
        let checked_ms = self.now_ms();
        if let Ok(attr) = open.dir.stat(name.as_bytes()) {
            self.stats.names_ahead.inc();
            open.listing.remember(name.as_bytes(), &attr, checked_ms);
        }
    }

    fn list_ahead(
        self: &Arc<Self>,
        parent: &Node,
        around: &Arc<Listing>,
        index: u32,
        entries: bool,
    ) -> Result<()> {
        let Some((row, name, asked_ms)) = around.entry(index) else { return Ok(()) };
        if self.is_known(asked_ms) && self.knows_listing(around, row, name, entries) {
            return Ok(());
        }
        let cleared = self.listings.lock().cleared();
        let (checked_ms, look) = (self.now_ms(), Look::without_writers(file_time()));
        let dir = self.source.open_dir(&parent.path().join(Path::new(name)))?;
        let attr = dir.attr()?;
        // Another has its place, or something is mounted on it.
        if attr.identity.ino != row.ino {
            return Ok(());
        }
        let kept = self.kept_listing(row, &attr);
        if kept.as_ref().is_none_or(|kept| !self.is_fresh(kept.checked_ms())) {
            self.stats.names_ahead.inc();
        }
        let (listing, same) = self.read_listing(&*dir, &attr, kept, checked_ms, &look)?;
        if !same && !self.keep_ahead(row, &attr, &listing, cleared) {
            return Ok(());
        }
        around.remember(name.as_bytes(), &attr, checked_ms);
        if entries {
            self.stat_ahead_in(dir, listing.clone(), 0..listing.len() as u32, Order::Last);
        }
        Ok(())
    }

    /// Whether the listing of a subdirectory is known well enough, and its entries if they are wanted.
    fn knows_listing(&self, around: &Listing, row: &Row, name: &OsStr, entries: bool) -> bool {
        let Some((attr, _)) = around.recall(name.as_bytes()) else { return false };
        self.kept_listing(row, &attr).is_some_and(|kept| {
            self.is_fresh(kept.checked_ms()) && (!entries || self.knows_all(&kept, 0..kept.len() as u32))
        })
    }

    /// The listing that is kept of an entry with these attributes.
    fn kept_listing(&self, row: &Row, attr: &Attr) -> Option<Arc<Listing>> {
        let node = self.nodes.get(self.nodes.listed_id(row.ino));
        match node.filter(|node| node.lock().attr.identity == attr.identity) {
            Some(node) => self.listing_of(&node),
            None => self.listings.lock().get(&attr.identity),
        }
    }

    /// Keeps a listing that nobody waits for.
    fn keep_ahead(&self, row: &Row, attr: &Attr, listing: &Arc<Listing>, cleared: u64) -> bool {
        if !self.listings.lock().put_unasked(attr.identity, listing, cleared) {
            return false;
        }
        if let Some(node) = self.nodes.get(self.nodes.listed_id(row.ino)) {
            let mut state = node.lock();
            if state.attr.identity == attr.identity {
                state.listing = Some(listing.clone());
            }
        }
        true
    }
}

fn stat(node: &Arc<Node>, listing: &Arc<Listing>, range: Range<u32>) -> Vec<Question> {
    let question = |range| Question::Stat { node: node.clone(), listing: listing.clone(), range };
    Some(range).filter(|range| !range.is_empty()).map(question).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_hiccup_makes_no_source_slow_and_a_slow_one_is_known_at_once() {
        let pace = Pace::default();
        (0..100).for_each(|_| pace.note(Duration::from_micros(50)));
        pace.note(Duration::from_secs(1));
        assert!(!pace.is_slow());
        pace.note(Duration::from_millis(2));
        pace.note(Duration::from_millis(2));
        assert!(pace.is_slow());
        (0..30).for_each(|_| pace.note(Duration::from_micros(50)));
        assert!(!pace.is_slow());
    }

    #[test]
    fn the_queue_is_bounded_and_turns_leave_threads_to_requests() {
        let ahead = ReadAhead::new(8);
        let listing = Arc::new(Listing::new(&[], &Attr::UNKNOWN, false, 0));
        let root = super::super::node::NodeTable::new(Attr::UNKNOWN, 1, 0).root().clone();
        let question = |n| Question::Stat { node: root.clone(), listing: listing.clone(), range: 0..n };
        let turns = ahead.add((0..2 * QUEUE_MAX).map(|_| question(100)).collect(), Order::Last);
        assert_eq!((turns, ahead.gauges()), (6, (QUEUE_MAX, 6)));
        assert!(!ahead.has_room());
        while ahead.take().is_some() {}
        assert!(ahead.has_room() && ahead.state.lock().entries == 0);
        assert_eq!(ReadAhead::new(1).add(vec![question(1)], Order::Last), 0, "one thread is for requests");
    }
}
