//! Pure decisions: whom to evict, what a stream of reads looks like, how far to read ahead of a walk, and what the scrub looks
//! at when. No clock, no descriptor, no lock; the same events give the same answers, so that a recorded trace is a test.
#![forbid(unsafe_code)]

pub mod ahead;
mod lru;
pub mod scrub;
mod stream;

pub use ahead::AheadTracker;
pub use lru::{Lru, NeverEvict};
pub use stream::StreamTracker;

use crate::types::FileId;

/// Decides which cached file goes when room is needed.
pub trait Eviction: Send {
    /// Whether a file that is not cached may push others out. `false` is the policy of keeping what one has.
    fn makes_room(&self) -> bool;

    /// `id` is now cached.
    fn inserted(&mut self, id: FileId);

    /// `id` was opened.
    fn accessed(&mut self, id: FileId);

    /// `id` is not cached any more.
    fn removed(&mut self, id: FileId);

    /// The file to evict next, if any; `in_use` files are passed over. The answer stays known to the policy until
    /// [`Eviction::removed`] says that it is gone.
    fn victim(&mut self, in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId>;

    /// All files, the next to go first: written at a clean stop, so that a restart goes on in the same order.
    fn order(&self) -> Vec<FileId>;
}
