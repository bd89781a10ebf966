//! Names that are replaced faster than they can be opened.
//!
//! A writer that publishes by rename may give a name to another file between the kernel's look-up and its open. The
//! kernel is then sent back to look again, which it does once; a name that is replaced all the time would be ESTALE. So
//! a name for which that happened counts as contested for a moment, and while it does, its look-up holds the file that
//! it saw for the open that follows. Not done for every look-up: a held file keeps its space in the source although it
//! was deleted.

use crate::backing::Pin;
use crate::types::NodeId;
use crate::types::sync::Mutex;
use lru::LruCache;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
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
    pins: Mutex<LruCache<NodeId, Held>>,
}

/// A file that is held, for as many opens as there were look-ups: readers that look a name up at the same time get one
/// node, and each of them is going to open it.
struct Held {
    pin: Pin,
    since: Instant,
    opens: u32,
}

impl Default for Contested {
    fn default() -> Self {
        Self { names: Mutex::new(LruCache::new(NAMES_MAX)), pins: Mutex::new(LruCache::new(NAMES_MAX)) }
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
        // A name is remembered for longer than it is contested, and longer than any file is held for it: the look-ups
        // that follow let all of them go.
        while names.peek_lru().is_some_and(|(_, since)| since.elapsed() > MOMENT * 3) {
            names.pop_lru();
        }
        let contested =
            names.peek(&(dir, Box::from(name.as_bytes()))).is_some_and(|since| since.elapsed() < MOMENT);
        drop(names);
        self.let_go();
        contested
    }

    /// Files that nobody came for in time.
    fn let_go(&self) {
        let mut pins = self.pins.lock();
        while pins.peek_lru().is_some_and(|(_, held)| held.since.elapsed() > MOMENT) {
            pins.pop_lru();
        }
    }

    /// Holds the file that a look-up saw for the open of its node.
    pub fn hold(&self, node: NodeId, pin: Pin) {
        let mut pins = self.pins.lock();
        let others = pins.peek(&node).map_or(0, |held| held.opens);
        pins.put(node, Held { pin, since: Instant::now(), opens: others + 1 });
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
        let contested = Contested::default();
        for _ in 0..2 {
            contested.hold(7, source.look(Path::new("f")).unwrap().1.unwrap());
        }
        assert!(contested.take(7).is_some() && contested.take(7).is_some());
        assert!(contested.take(7).is_none() && contested.take(8).is_none());
        assert_eq!(contested.pins.lock().len(), 0);
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
