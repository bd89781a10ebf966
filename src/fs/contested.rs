//! Names that are replaced faster than they can be opened.
//!
//! A writer that publishes by rename may give a name to another file between the kernel's look-up and its open. The
//! kernel is then sent back to look again, which it does once; a name that is replaced all the time would be ESTALE. So
//! a name for which that happened counts as contested for a moment, and while it does, its look-up holds the file that
//! it saw for the open that follows, and the node stays at that version until then: that open succeeds whatever becomes of
//! the name. Not done for every look-up: a held file keeps its space in the source although it was deleted.

use super::node::{Node, NodeState};
use super::watch::{Watch, WatchGuard};
use crate::backing::Pin;
use crate::types::NodeId;
use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicUsize, Ordering};
use lru::LruCache;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names, and files held, at most. More writers than this do not fight readers for one name at the same time.
const NAMES_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not zero");

/// The kernel's second look-up follows the first open at once.
const MOMENT: Duration = Duration::from_secs(1);

/// A directory and a name in it.
type Name = (NodeId, Box<[u8]>);

/// The names, and how many files are held.
pub struct Contested {
    names: Mutex<LruCache<Name, Instant>>,
    /// How many there are, told without the lock: nearly always none.
    names_len: AtomicUsize,
    holds: Arc<AtomicUsize>,
}

/// A file that is held for the opens of its node: for a moment after the last look-up that led to it, or until the kernel
/// forgets the node. How many opens follow one look-up nobody knows, the kernel's threads share its answer.
pub struct Hold {
    pin: Pin,
    since: Instant,
    /// The moment is over.
    is_old: bool,
    /// Opens that began and have not ended.
    opening: u32,
    _permit: Permit,
    /// Lets it go if nobody comes.
    _end: WatchGuard,
}

/// One of the files that may be held.
struct Permit(Arc<AtomicUsize>);

impl Permit {
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |held| (held < NAMES_MAX.get()).then_some(held + 1);
        count.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(count.clone()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// An open of a node whose file is held: until this is dropped the node stays at the version of the file.
pub struct Held {
    node: Arc<Node>,
    pin: Pin,
}

impl Held {
    /// The file that is held for an open of this node, if one is.
    pub fn take(node: &Arc<Node>) -> Option<Self> {
        let mut state = node.lock();
        let hold = state.hold.as_mut()?;
        hold.opening += 1;
        Some(Self { node: node.clone(), pin: hold.pin.clone() })
    }

    /// The file.
    pub fn pin(&self) -> &Pin {
        &self.pin
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let over = {
            let mut state = self.node.lock();
            if let Some(hold) = state.hold.as_mut() {
                hold.opening -= 1;
            }
            over(&mut state)
        };
        drop(over);
    }
}

/// The hold, if nobody needs it any more: to be dropped without the node's lock.
fn over(state: &mut NodeState) -> Option<Box<Hold>> {
    state.hold.take_if(|hold| hold.opening == 0 && hold.is_old)
}

impl Default for Contested {
    fn default() -> Self {
        Self {
            names: Mutex::new(LruCache::new(NAMES_MAX)),
            names_len: AtomicUsize::new(0),
            holds: Arc::default(),
        }
    }
}

impl Contested {
    /// An open of this name in this directory met another file than its look-up.
    pub fn add(&self, dir: NodeId, name: &[u8]) {
        let mut names = self.names.lock();
        names.put((dir, name.into()), Instant::now());
        self.names_len.store(names.len(), Ordering::Release);
    }

    /// Whether that happened a moment ago.
    pub fn is(&self, dir: NodeId, name: &OsStr) -> bool {
        if self.names_len.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut names = self.names.lock();
        while names.peek_lru().is_some_and(|(_, since)| since.elapsed() > MOMENT * 3) {
            names.pop_lru();
        }
        self.names_len.store(names.len(), Ordering::Release);
        names.peek(&(dir, Box::from(name.as_bytes()))).is_some_and(|since| since.elapsed() < MOMENT)
    }

    /// Holds the file that a look-up saw for the open of its node, for a moment: nothing may follow, no look-up either.
    /// `false` if the node is of another version by now, as `is_version` says of its attributes. Beyond the limit nothing is
    /// held.
    pub fn hold(
        &self,
        node: &Arc<Node>,
        pin: Pin,
        is_version: impl Fn(&NodeState) -> bool,
        watch: &Arc<Watch>,
    ) -> bool {
        let since = Instant::now();
        let weak = Arc::downgrade(node);
        let end = watch.after(MOMENT, move || {
            if let Some(node) = weak.upgrade() {
                let left = expire(&mut node.lock(), since);
                drop(left);
            }
        });
        let mut state = node.lock();
        if state.retired || !is_version(&state) {
            return false;
        }
        if let Some(hold) = state.hold.as_mut() {
            hold.is_old = false;
            hold.since = since;
            let before = std::mem::replace(&mut hold._end, end);
            drop(state);
            drop(before);
            return true;
        }
        if let Some(permit) = Permit::take(&self.holds) {
            let hold = Hold { pin, since, is_old: false, opening: 0, _permit: permit, _end: end };
            state.hold = Some(Box::new(hold));
        }
        true
    }
}

/// The moment is over, unless there was a later look-up.
fn expire(state: &mut NodeState, since: Instant) -> Option<Box<Hold>> {
    if let Some(hold) = state.hold.as_mut()
        && hold.since == since
    {
        hold.is_old = true;
    }
    over(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::{LocalSource, Source};
    use crate::fs::node::NodeTable;
    use std::path::Path;

    /// A source with one file, the table that knows it, and the means to hold it.
    struct Stage {
        tmp: tempfile::TempDir,
        source: LocalSource,
        nodes: NodeTable,
        contested: Contested,
        watch: Arc<Watch>,
    }

    impl Stage {
        fn new() -> Self {
            let tmp = tempfile::tempdir().unwrap();
            let source = LocalSource::new(tmp.path(), None).unwrap();
            let root = source.stat(Path::new("")).unwrap();
            let stage = Self {
                nodes: NodeTable::new(root, root.identity.dev, 0),
                contested: Contested::default(),
                watch: Watch::new(MOMENT, MOMENT),
                source,
                tmp,
            };
            stage.write("x");
            stage
        }

        fn write(&self, content: &str) {
            std::fs::write(self.tmp.path().join("f"), content).unwrap();
        }

        /// What a look-up does while the name is contested.
        fn look(&self) -> (Arc<Node>, bool) {
            let (attr, pin) = self.source.look(Path::new("f")).unwrap();
            let root = self.nodes.root().clone();
            let node = self.nodes.enter(&root, b"f", &attr, 0, &|a, b| a.size != b.size);
            let is_version = |state: &NodeState| state.attr.size == attr.size;
            let held = self.contested.hold(&node, pin.unwrap(), is_version, &self.watch);
            (node, held)
        }

        fn holds(&self) -> usize {
            self.contested.holds.load(Ordering::Acquire)
        }
    }

    /// Goal: readers that look a contested name up at the same time all open the file they saw, however soon it is
    /// replaced and however few of the look-ups came to us; and none is held once the kernel has forgotten it.
    #[test]
    fn a_file_is_held_for_all_who_open_it_until_it_is_forgotten() {
        let stage = Stage::new();
        let (node, held) = stage.look();
        assert!(held && Arc::ptr_eq(&node, &stage.look().0));
        let opens: Vec<_> = (0..4).filter_map(|_| Held::take(&node)).collect();
        assert_eq!((opens.len(), stage.holds()), (4, 1));
        drop(opens);
        assert!(Held::take(&node).is_some(), "and one more");
        stage.nodes.forget(node.id, 2);
        drop(node);
        assert_eq!(stage.holds(), 0);
    }

    /// Goal: the node that a reader is going to open stays at the version that its look-up told, so that its open
    /// succeeds although others look the name up meanwhile and see a newer one, which is another node.
    #[test]
    fn a_node_whose_file_is_held_keeps_its_version() {
        let stage = Stage::new();
        let (old, _) = stage.look();
        stage.write("longer");
        let (new, held) = stage.look();
        assert!(held && new.id != old.id);
        assert_eq!((old.lock().attr.size, new.lock().attr.size), (1, 6));
        assert!(old.lock().retired, "the next look-up leads to the newer");
        let opening = Held::take(&old).unwrap();
        assert_eq!(opening.pin().attr.size, 1);
    }

    /// Goal: a file that nobody opens, in a mount that nobody looks at any more, is not held for ever: it would keep its
    /// space in the source after it was deleted, and the source's file system busy.
    #[test]
    fn a_file_that_nobody_comes_for_is_let_go() {
        let stage = Stage::new();
        let (node, _) = stage.look();
        assert_eq!((stage.holds(), stage.watch.len()), (1, 0), "it is held, and no request waits");
        let deadline = Instant::now() + MOMENT * 20;
        while stage.holds() > 0 {
            assert!(Instant::now() < deadline, "it is held still");
            std::thread::sleep(MOMENT / 20);
        }
        assert!(Held::take(&node).is_none());
    }

    /// Goal: many contested names do not hold the source's files without limit.
    #[test]
    fn no_more_files_are_held_than_allowed() {
        let stage = Stage::new();
        let permits: Vec<_> = std::iter::from_fn(|| Permit::take(&stage.contested.holds)).collect();
        assert_eq!(permits.len(), NAMES_MAX.get());
        let (node, told) = stage.look();
        assert!(told && Held::take(&node).is_none());
        drop(permits);
        assert_eq!(stage.holds(), 0);
    }

    #[test]
    fn a_name_is_contested_for_a_moment() {
        let contested = Contested::default();
        let is = |name: &str| contested.is(1, OsStr::new(name));
        assert!(!is("f"));
        contested.add(1, b"f");
        assert!(is("f") && !is("g") && !contested.is(2, OsStr::new("f")));
    }
}
