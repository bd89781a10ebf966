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
            let copied_bytes = copied_bytes(&batch, self.dir.overhead_bytes());
            let put = batch.put.iter().map(|(dir, bytes)| (dir, bytes.as_slice()));
            self.grow_index(0, copied_bytes, || {
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

/// What the index writes for a batch, at most and about, before what it replaces is free: a large listing lies in pages of
/// its own, of which there are a power of two; small ones share pages, half full after they were split, and each has one
/// copied, of which there are not more than all. Branches above them change, too.
fn copied_bytes(batch: &NamesBatch, index_bytes: u64) -> u64 {
    let entries = (batch.put.len() + batch.gone.len()) as u64;
    let lens = || batch.put.iter().map(|(_, bytes)| bytes.len() as u64 + ENTRY_BYTES);
    let large: u64 = lens().filter(|len| is_alone(*len)).map(u64::next_power_of_two).sum();
    let small: u64 = lens().filter(|len| !is_alone(*len)).map(|len| 2 * len).sum();
    let shared = lens().filter(|len| !is_alone(*len)).count() as u64 * BLOCK_BYTES;
    large + shared.min(index_bytes + small) + (entries / 16 + 32) * BLOCK_BYTES
}

/// Key and lengths of an entry, and the head of its page.
const ENTRY_BYTES: u64 = 64;

/// Whether an entry has a page of its own: two of them are too much for one.
fn is_alone(entry_bytes: u64) -> bool {
    entry_bytes > BLOCK_BYTES / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Index;
    use crate::sys::io::Io;

    /// Goal: the index never grows by more than there is made room for, nor is there made room for much more: cached files
    /// go for it. Method: listings of all sizes, kept, kept again and dropped, beside what the file has become.
    #[test]
    fn room_is_made_for_what_the_index_grows_by() {
        for (dirs, bytes) in [(1, 1 << 20), (1, 3 << 20), (50, 4200), (50, 7300), (300, 1500), (2000, 150)] {
            let tmp = tempfile::tempdir().unwrap();
            let path = tmp.path().join("index");
            let mut index = Index::open(&Io::default(), &path).unwrap().index;
            let on_disk = || std::os::unix::fs::MetadataExt::blocks(&path.metadata().unwrap()) * 512;
            let mut room = 0;
            let first = on_disk();
            for round in 0..5u8 {
                let key = |n: u32| std::array::from_fn(|i| if i < 4 { n.to_be_bytes()[i] } else { 0 });
                let batch = NamesBatch {
                    put: (0..dirs).map(|n| (key(n), vec![round; bytes])).collect(),
                    gone: (0..dirs / 3).map(|n| key(dirs + n)).collect(),
                    all: (0..dirs).map(|n| (key(n), bytes as u32)).collect(),
                };
                let (before, copied) = (on_disk(), copied_bytes(&batch, on_disk()));
                let put = batch.put.iter().map(|(dir, bytes)| (dir, bytes.as_slice()));
                index.keep_names(&[1; 16], put, batch.gone.iter(), batch.all.clone().into_iter()).unwrap();
                let grown = on_disk() - before;
                assert!(grown <= copied, "{dirs} of {bytes} bytes, round {round}: {grown} of {copied}");
                room = copied.max(room);
            }
            let grown = on_disk() - first;
            println!("{dirs} of {bytes} bytes: the index grew by {grown}, room for one writing is {room}");
            // That is what is there and what takes its place; small ones may have copied any page.
            assert!(room <= 3 * grown, "{dirs} of {bytes} bytes: {room} for {grown}");
        }
    }
}
