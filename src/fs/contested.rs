//! Names that are replaced faster than they can be opened.
//!
//! A writer that publishes by rename may give a name to another file between the kernel's look-up and its open. The
//! kernel is then sent back to look again, which it does once; a name that is replaced all the time would be ESTALE. So
//! a name for which that happened counts as contested for a moment, and while it does, its look-up holds the file that
//! it saw for the open that follows. Not done for every look-up: a held file keeps its space in the source although it
//! was deleted.

use crate::backing::Pin;
use crate::types::NodeId;
use lru::LruCache;
use parking_lot::Mutex;
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
    pins: Mutex<LruCache<NodeId, (Pin, Instant)>>,
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
        let key = (dir, Box::from(name.as_bytes()));
        let contested = names.get(&key).is_some_and(|since| since.elapsed() < MOMENT);
        if !contested {
            names.pop(&key);
        }
        contested
    }

    /// Holds the file that a look-up saw for the open of its node; files that nobody came for are let go.
    pub fn hold(&self, node: NodeId, pin: Pin) {
        let mut pins = self.pins.lock();
        while pins.peek_lru().is_some_and(|(_, (_, since))| since.elapsed() > MOMENT) {
            pins.pop_lru();
        }
        pins.put(node, (pin, Instant::now()));
    }

    /// The file that is held for a node.
    pub fn take(&self, node: NodeId) -> Option<Pin> {
        let (pin, since) = self.pins.lock().pop(&node)?;
        (since.elapsed() < MOMENT).then_some(pin)
    }
}
