//! Tells of each use of a file as it happens, to whoever writes a trace of it.
//!
//! A reader never waits for the writer: what is told and not yet taken is bounded, and what has no room is counted as
//! lost. While nobody records, a use costs one look at a number.

use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Recordings at the same time.
pub const RECORDINGS_MAX: usize = 4;
/// Bytes of uses that wait to be taken, per recording: seconds of reading at full speed.
const WAITING_BYTES_MAX: usize = 8 << 20;
/// What a use takes besides its path.
const USE_BYTES: usize = 32;

/// One use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Use {
    /// The file, below the root.
    pub path: Box<[u8]>,
    /// Its length, bytes.
    pub size: u64,
}

/// All recordings.
#[derive(Default)]
pub struct Recorder {
    count: AtomicUsize,
    tapes: Mutex<Vec<Arc<Tape>>>,
}

#[derive(Default)]
struct Tape(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    uses: Vec<Use>,
    bytes: usize,
    lost: u64,
}

/// One recording; it ends when this is dropped.
pub struct Recording<'a> {
    recorder: &'a Recorder,
    tape: Arc<Tape>,
}

impl Recorder {
    /// Begins to record. `None`: there are [`RECORDINGS_MAX`] already.
    pub fn begin(&self) -> Option<Recording<'_>> {
        let mut tapes = self.tapes.lock();
        if tapes.len() >= RECORDINGS_MAX {
            return None;
        }
        let tape = Arc::new(Tape::default());
        tapes.push(tape.clone());
        self.count.store(tapes.len(), Ordering::Release);
        Some(Recording { recorder: self, tape })
    }

    /// A file was used.
    pub(super) fn used(&self, path: &[u8], size: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        for tape in self.tapes.lock().iter() {
            let mut waiting = tape.0.lock();
            let bytes = path.len() + USE_BYTES;
            if waiting.bytes + bytes > WAITING_BYTES_MAX {
                waiting.lost += 1;
            } else {
                waiting.bytes += bytes;
                waiting.uses.push(Use { path: path.into(), size });
            }
        }
    }
}

impl Recording<'_> {
    /// What was used since the last time, and how many uses found no room since the beginning.
    pub fn take(&self) -> (Vec<Use>, u64) {
        let mut waiting = self.tape.0.lock();
        waiting.bytes = 0;
        (std::mem::take(&mut waiting.uses), waiting.lost)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        let mut tapes = self.recorder.tapes.lock();
        tapes.retain(|tape| !Arc::ptr_eq(tape, &self.tape));
        self.recorder.count.store(tapes.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_recording_hears_of_all_since_it_began_and_what_is_too_much_is_counted() {
        let recorder = Recorder::default();
        recorder.used(b"before", 1);
        let first = recorder.begin().unwrap();
        recorder.used(b"a", 1);
        let second = recorder.begin().unwrap();
        recorder.used(b"b", 2);
        assert_eq!((first.take().0.len(), second.take().0.len()), (2, 1));
        drop(first);
        let long = [b'x'; 4000];
        (0..3000).for_each(|_| recorder.used(&long, 1));
        let (uses, lost) = second.take();
        assert!(lost > 0 && uses.len() as u64 + lost == 3000);
        let more: Vec<_> = (0..RECORDINGS_MAX - 1).map(|_| recorder.begin().unwrap()).collect();
        assert!(recorder.begin().is_none());
        drop(more);
        assert!(recorder.begin().is_some());
    }
}
