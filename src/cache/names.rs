//! What the source said of names, kept in the index beyond the end of a mount: who keeps it is the room above, what it takes
//! of the disk is looked after here.
//!
//! Promise: what is kept counts as the cache's overhead before it is written, and a fault of the SSD is a counter and one
//! thing less that is known.

use super::Cache;
use crate::store::BLOCK_BYTES;
use crate::store::names::{DirKey, Stamp};
use crate::types::Result;

/// Of the cache's capacity names take one byte in this many, at most; the bytes of files are what it is for.
const CAPACITY_SHARE: u64 = 16;

/// Bytes of names that are kept, however large the cache: a million entries with attributes.
const BYTES_MAX: u64 = 160 << 20;

/// Listings to keep and to drop, and all that is there afterwards.
#[derive(Default)]
pub struct NamesBatch {
    /// The bytes of directories.
    pub put: Vec<(DirKey, Vec<u8>)>,
    /// Directories to drop.
    pub gone: Vec<DirKey>,
    /// What is there afterwards, and how many bytes each takes.
    pub all: Vec<(DirKey, u32)>,
}

impl Cache {
    /// Bytes of names that may be kept.
    pub fn names_bytes_max(&self) -> u64 {
        (self.budget.usage().bytes_max / CAPACITY_SHARE).min(BYTES_MAX)
    }

    /// Which directories' listings are kept of this source, and how many bytes each takes.
    pub fn names_kept(&self, stamp: &Stamp) -> Vec<(DirKey, u32)> {
        let kept = self.journal.with_index(|index| index.names_kept(stamp));
        kept.inspect_err(|e| self.ssd_failed(e)).unwrap_or_default()
    }

    /// The bytes kept of a directory.
    pub fn names(&self, dir: &DirKey) -> Option<Vec<u8>> {
        self.journal.with_index(|index| index.names(dir)).inspect_err(|e| self.ssd_failed(e)).ok()?
    }

    /// Keeps names. `batch` says which, when nothing else is written any more; none: nothing is.
    pub fn keep_names(&self, stamp: &Stamp, batch: impl FnOnce() -> Option<NamesBatch>) -> Result<()> {
        let written = self.journal.with_index(|index| {
            let Some(batch) = batch() else { return Ok(()) };
            let entries = batch.put.len() + batch.gone.len() + 1;
            // Each lies in pages of its own, of which there are a power of two.
            let bytes: u64 = batch.put.iter().map(|(_, bytes)| 2 * bytes.len() as u64).sum();
            let put = batch.put.iter().map(|(dir, bytes)| (dir, bytes.as_slice()));
            self.grow_index(0, bytes + entries as u64 * BLOCK_BYTES, || {
                index.keep_names(stamp, put, batch.gone.iter(), batch.all.into_iter())
            })
        });
        written.inspect_err(|e| self.ssd_failed(e))
    }

    /// Drops all that is kept of names.
    pub fn forget_names(&self) {
        let dropped = self.journal.with_index(|index| index.forget_names());
        drop(dropped.inspect_err(|e| self.ssd_failed(e)));
    }
}
