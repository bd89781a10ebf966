//! What detectors expect ([`crate::policy::detect`]) is fetched here: whole files after an open or after one that was read,
//! chunks of a file that is open after a read.
//!
//! On few threads of its own, each guess behind the readers, with a tally for each detector: one whose guesses come to
//! nothing is not listened to. A guess that finds too many before it is dropped; it would come too late.

use super::{Cache, Large};
use crate::cache::Serving;
use crate::cache::space::Room;
use crate::policy::detect::shards::is_shard;
use crate::policy::detect::{Detector, ends, is_worth};
use crate::store::{Chunk, disk_bytes};
use crate::types::sync::atomic::Ordering;
use crate::types::{ChunkIndex, ChunkRange, chunk_range};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

/// Guesses that may wait or be fetched at the same time.
const GUESSES_MAX: usize = 32;

impl Cache {
    /// The file at `path`, which was not here, or only because it was fetched ahead, is read whole: fetches the next shards.
    pub(in crate::cache) fn guess_shards(&self, path: &[u8], size: u64) {
        if !is_shard(size) {
            return;
        }
        self.guess_files(Detector::Shards, || self.policy.lock().shards_after(path));
    }

    /// Such a file was opened: fetches what is read together with it.
    pub(in crate::cache) fn guess_siblings(&self, path: &[u8]) {
        self.guess_files(Detector::Siblings, || self.policy.lock().siblings_of(path));
    }

    fn guess_files(&self, detector: Detector, expected: impl FnOnce() -> Vec<Vec<u8>>) {
        let Some(cache) = self.prefetch.cache.get().and_then(Weak::upgrade) else { return };
        // Of a large sibling perhaps a few bytes are wanted; a shard is expected to be read whole as those before it were.
        let large = if detector == Detector::Shards { Large::Fetched } else { Large::Left };
        for path in expected() {
            if !self.may_guess(detector) {
                continue;
            }
            let (cache, path) = (cache.clone(), PathBuf::from(OsStr::from_bytes(&path)));
            self.prefetch.guesses.submit(Box::new(move || {
                let tally = cache.prefetch.detector(detector);
                // No room: then it is left to its readers.
                let _ = cache.fetch_if_absent(&path, &tally, large, |_| true);
            }));
        }
    }

    /// A large file was opened: fetches the ends of those that are read from there.
    pub fn guess_ends(&self, serving: &Arc<Serving>) {
        let Some(file) = serving.file() else { return };
        let chunks = ends::of(file.path(), file.size());
        self.guess_chunks(serving, Detector::Ends, chunks);
    }

    /// Fetches chunks of an open file that nobody has asked for yet.
    pub(in crate::cache) fn guess_chunks(
        &self,
        serving: &Arc<Serving>,
        detector: Detector,
        mut chunks: Vec<ChunkIndex>,
    ) {
        let Some(cache) = self.prefetch.cache.get().and_then(Weak::upgrade) else { return };
        let Some(file) = serving.file() else { return };
        chunks.dedup();
        chunks.retain(|&index| file.chunk(index) == Chunk::Missing);
        if chunks.is_empty() || !self.may_guess(detector) {
            return;
        }
        // At once each: what is asked for first must not wait for the others.
        for index in chunks {
            let (cache, serving) = (cache.clone(), serving.clone());
            self.prefetch.guesses.submit(Box::new(move || cache.fetch_chunk(&serving, detector, index)));
        }
    }

    fn fetch_chunk(&self, serving: &Serving, detector: Detector, index: ChunkIndex) {
        let _fetching = self.prefetch.way.fetch();
        let Serving::Partial(partial) = serving else { return };
        let Some(file) = serving.file().filter(|file| file.chunk(index) == Chunk::Missing) else { return };
        let bytes = chunk_range(index, file.size()).len();
        if !self.may_write() || self.room_to_spare(disk_bytes(bytes), 0).is_none() {
            return;
        }
        // Before it is fetched: who reads it meanwhile waits for it, and has used it.
        partial.add_ahead(index, self.prefetch.detector(detector).fetched(bytes));
        let chunk = ChunkRange { start: index, end: index + 1 };
        // An error is for those to hear who ask for it.
        let _ = self.ensure_blocking(serving, chunk, Room::Spare);
    }

    fn may_guess(&self, detector: Detector) -> bool {
        let tally = self.prefetch.detector(detector);
        let (used, wasted) = tally.used_and_wasted();
        let turn = self.prefetch.turns.fetch_add(1, Ordering::Relaxed);
        self.prefetch.guesses.jobs() < GUESSES_MAX && is_worth(used, wasted, tally.unused_files(), turn)
    }
}
