//! Names that are replaced faster than they can be opened.
//!
//! A writer that publishes by rename may give a name to another file between the kernel's look-up and its open. The
//! kernel is then sent back to look again, which it does once; a name that is replaced all the time would be ESTALE. So
//! a name for which that happened counts as contested for a moment, and while it does, its look-up holds the file that
//! it saw for the open that follows. Not done for every look-up: a held file keeps its space in the source although it
//! was deleted.

use super::watch::{Watch, WatchGuard};
use crate::backing::Pin;
use crate::types::NodeId;
use crate::types::sync::Mutex;
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

/// The names and the files held.
pub struct Contested {
    names: Mutex<LruCache<Name, Instant>>,
    pins: Arc<Mutex<Pins>>,
}

type Pins = LruCache<NodeId, Held>;

/// A file that is held, for as many opens as there were look-ups: readers that look a name up at the same time get one
/// node, and each of them is going to open it.
struct Held {
    pin: Pin,
    since: Instant,
    opens: u32,
    /// Lets it go if nobody comes.
    _end: WatchGuard,
}

impl Default for Contested {
    fn default() -> Self {
        let pins = Arc::new(Mutex::new(LruCache::new(NAMES_MAX)));
        Self { names: Mutex::new(LruCache::new(NAMES_MAX)), pins }
    }
}

impl Contested {
    /// An open of this name in this directory met another file than its look-up.
    pub fn add(&self, dir: NodeId, name: &[u8]) {
        self.names.lock().put((dir, name.into()), Instant::now());
    }

    /// Whether that happened a moment ago.
    pub fn is(&self, dir: NodeId, name: &OsStr) -> bool {
        let mut names = self.names.lock();
        if names.is_empty() {
            return false;
        }
        while names.peek_lru().is_some_and(|(_, since)| since.elapsed() > MOMENT * 3) {
            names.pop_lru();
        }
        names.peek(&(dir, Box::from(name.as_bytes()))).is_some_and(|since| since.elapsed() < MOMENT)
    }

    /// Holds the file that a look-up saw for the open of its node, for a moment: nothing may follow, no look-up either.
    pub fn hold(&self, node: NodeId, pin: Pin, watch: &Arc<Watch>) {
        let since = Instant::now();
        let weak = Arc::downgrade(&self.pins);
        let end = watch.after(MOMENT, move || {
            let Some(pins) = weak.upgrade() else { return };
            // Not the one that a later look-up saw.
            let left = {
                let mut pins = pins.lock();
                let is_it = pins.peek(&node).is_some_and(|held| held.since == since);
                is_it.then(|| pins.pop(&node)).flatten()
            };
            drop(left);
        });
        let mut pins = self.pins.lock();
        let others = pins.peek(&node).map_or(0, |held| held.opens);
        let before = pins.put(node, Held { pin, since, opens: others + 1, _end: end });
        drop(pins);
        drop(before);
    }

    /// The file that is held for a node.
    pub fn take(&self, node: NodeId) -> Option<Pin> {
        let mut pins = self.pins.lock();
        let held = pins.peek_mut(&node)?;
        held.opens -= 1;
        let fresh = held.since.elapsed() < MOMENT;
        let pin = held.pin.clone();
        if held.opens == 0 || !fresh {
            pins.pop(&node);
        }
        fresh.then_some(pin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::{LocalSource, Source};
    use std::path::Path;

    /// Goal: readers that look a contested name up at the same time all open the file they saw, however soon it is
    /// replaced, and none is held after that.
    #[test]
    fn a_file_is_held_for_as_many_opens_as_look_ups() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("f"), "x").unwrap();
        let source = LocalSource::new(tmp.path(), None).unwrap();
        let (contested, watch) = (Contested::default(), Watch::new(MOMENT, MOMENT));
        for _ in 0..2 {
            contested.hold(7, source.look(Path::new("f")).unwrap().1.unwrap(), &watch);
        }
        assert!(contested.take(7).is_some() && contested.take(7).is_some());
        assert!(contested.take(7).is_none() && contested.take(8).is_none());
        assert_eq!(contested.pins.lock().len(), 0);
    }

    /// Goal: a file that nobody opens, in a mount that nobody looks at any more, is not held for ever: it would keep its
    /// space in the source after it was deleted, and the source's file system busy.
    #[test]
    fn a_file_that_nobody_comes_for_is_let_go() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("f"), "x").unwrap();
        let source = LocalSource::new(tmp.path(), None).unwrap();
        let (contested, watch) = (Contested::default(), Watch::new(MOMENT, MOMENT));
        contested.hold(7, source.look(Path::new("f")).unwrap().1.unwrap(), &watch);
        assert_eq!((contested.pins.lock().len(), watch.len()), (1, 0), "it is held, and no request waits");
        let deadline = Instant::now() + MOMENT * 20;
        while !contested.pins.lock().is_empty() {
            assert!(Instant::now() < deadline, "it is held still");
            std::thread::sleep(MOMENT / 20);
        }
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
