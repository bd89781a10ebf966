//! Pure decisions: whom to evict and whom to admit, what a stream of reads looks like, where an epoch ends, and what the
//! scrub looks at when. No clock, no descriptor, no lock; the same events give the same answers, so that a recorded
//! trace is a test.
//!
//! | file | its part |
//! |---|---|
//! | [`detect`] | what a few opens or reads say of the next: shards, siblings, ends, strides |
//! | [`desk`] | what one mount knows: every event enters here once |
//! | [`groups`] | which data set a path belongs to |
//! | [`uses`] | opens of a file close together are one use of it |
//! | [`epochs`] | where in its epoch a data set is |
//! | [`orders`] | coming orders of access that jobs have told of |
//! | [`rings`] | when a data set is fetched ahead of its readers, and how far |
//! | [`lanes`] | how many files are fetched at the same time beside readers |
//! | [`ahead`] | how far to read ahead of a walk |
//! | [`epoch`] | the default: a static set under epochs, hot files admitted, what is over makes room |
//! | `lru` | `lru` and `none` |
//! | `stream` | does this stream of reads want the whole file |
//! | [`simulate`] | a recorded trace through a policy, and the best that any could have done |
//! | [`trace`] | such a trace as text |
//! | [`sample`] | what is remembered of all uses, to answer for other cache sizes |
//! | [`scrub`] | what is looked at next |
//!
//! `POLICY.md` beside this file says in plain words what each policy does and what was measured.
#![forbid(unsafe_code)]

pub mod ahead;
pub mod desk;
pub mod detect;
pub mod epoch;
pub mod epochs;
pub mod groups;
pub mod lanes;
mod lru;
pub mod orders;
pub mod rings;
pub mod sample;
pub mod scrub;
pub mod simulate;
mod stream;
pub mod trace;
pub mod uses;

pub use ahead::AheadTracker;
pub use desk::Desk;
pub use epoch::Epoch;
pub use lru::{Lru, NeverEvict};
pub use stream::StreamTracker;

use crate::types::{FileId, GroupId};

/// A file, as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its key.
    pub id: FileId,
    /// The data set that it belongs to.
    pub group: GroupId,
    /// What it takes in the cache when it is there whole, bytes.
    pub bytes: u64,
}

/// Where the bytes of a file are when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// All of them on the SSD.
    Ssd,
    /// All of them in the RAM window.
    Ram,
    /// Some of them only in the source.
    Source,
}

/// One open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where the file was.
    pub from: Tier,
    /// The same file was opened a moment before: both are one use of it.
    pub again: bool,
    /// Milliseconds since some moment in the past.
    pub now_ms: u64,
}

/// Decides which cached file goes for which other.
pub trait Eviction: Send {
    /// `file` was opened, be it cached or not. For one that is not cached this comes before [`Eviction::victim`].
    fn accessed(&mut self, file: &Subject, access: Access);

    /// `file` is now cached.
    fn inserted(&mut self, file: &Subject);

    /// `id` is not cached any more.
    fn removed(&mut self, id: FileId);

    /// The file that goes so that there is room for `candidate`; `in_use` files are passed over. `None`: the candidate is
    /// not worth it, and is to be served without being kept. Without a candidate the cache must become smaller. Asked
    /// again until there is room; the answer stays known to the policy until [`Eviction::removed`] says that it is gone.
    fn victim(
        &mut self,
        candidate: Option<&Subject>,
        in_use: &mut dyn FnMut(FileId) -> bool,
    ) -> Option<FileId>;

    /// What the cache may take, bytes. Before the first event, and when it changes.
    fn set_capacity(&mut self, bytes: u64);

    /// What was taken for two data sets is one: the files of `from` belong to `into`.
    fn regrouped(&mut self, from: GroupId, into: GroupId);

    /// All files, the next to go first: written at a clean stop, so that a restart goes on in the same order.
    fn order(&self) -> Vec<FileId>;
}
