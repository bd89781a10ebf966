//! Detectors: what a few opens or reads say of those that come next.
//!
//! | file | sees | guesses |
//! |---|---|---|
//! | [`shards`] | two shards read in their order | the next one, then the next two |
//! | [`siblings`] | files of one stem that are opened together | the other file of the next pair |
//! | [`ends`] | a large archive that is opened | its head, and the directory at its end |
//! | [`strides`] | reads at the same distance inside a large file | the next few |
//!
//! A detector is allowed to be wrong; a wrong guess costs a request to the source. [`is_worth`] says whether one is right
//! often enough to go on. The first two see only files were not here, or only because they were fetched
//! ahead, so that a warm file costs nothing. What is fetched for a guess, and when, is `cache::prefetch`'s.

pub mod ends;
pub mod shards;
pub mod siblings;
pub mod strides;

/// Who has guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detector {
    /// [`shards`]
    Shards,
    /// [`siblings`]
    Siblings,
    /// [`ends`]
    Ends,
    /// [`strides`]
    Strides,
}

/// How many detectors there are.
pub const DETECTORS: usize = 4;

/// Guesses that may be open or wrong before any has come true.
const CREDIT: u64 = 16;

/// Of this many guesses one is tried even by a detector that was wrong too often: the job may be another by now.
const RETRY_EVERY: u64 = 32;

/// Whether a detector may guess once more, for the `turn`th time, of whose guesses so many came true, came to nothing and
/// are still open.
pub fn is_worth(used: u64, wasted: u64, unused: u64, turn: u64) -> bool {
    // In the long run ten must come true for one that does not; with many open, some must have.
    wasted * 10 + unused * 4 <= used + CREDIT * 4 || (unused < CREDIT && turn.is_multiple_of(RETRY_EVERY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detector_has_credit_and_then_must_be_right() {
        assert!(is_worth(0, 0, 0, 1) && is_worth(0, 0, 15, 1) && !is_worth(0, 0, 17, 1));
        assert!(!is_worth(0, 7, 0, 1), "seven wrong of seven");
        assert!(is_worth(0, 7, 0, 32) && !is_worth(0, 7, 16, 32), "tried now and then");
        assert!(is_worth(1000, 90, 20, 1) && !is_worth(1000, 110, 0, 1));
    }
}
