//! What the source said of files when they were fetched ahead, so that the look-up that comes before their open need not
//! ask it again: without this a file that is here would still cost its reader one answer of a slow source.
//!
//! Each answer carries when it was asked for, so that the TTL means what it means without this; it serves one look-up.

use crate::types::Attr;
use crate::types::sync::Mutex;
use lru::LruCache;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Answers that are kept, of about 300 bytes each: what is read within a short TTL is among them.
const ANSWERS_MAX: usize = 16_384;

/// Answers by path.
pub(super) struct Seen(Mutex<LruCache<PathBuf, (Attr, Instant)>>);

impl Default for Seen {
    fn default() -> Self {
        Self(Mutex::new(LruCache::unbounded()))
    }
}

impl Seen {
    /// The source said so when it was asked at this moment.
    pub(super) fn note(&self, path: &Path, attr: Attr, asked: Instant) {
        let mut answers = self.0.lock();
        answers.put(path.to_path_buf(), (attr, asked));
        if answers.len() > ANSWERS_MAX {
            answers.pop_lru();
        }
    }

    /// What it said, once.
    pub(super) fn take(&self, path: &Path) -> Option<(Attr, Instant)> {
        self.0.lock().pop(path)
    }

    /// Nothing of it is to be believed any more.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }
}
