//! When a data set is fetched ahead of its readers, and how far.
//!
//! In an epoch every file that was not read yet will be: whichever of them is fetched is a right guess, so they are
//! fetched in the order in which the source gives them most easily. What is here and unread is called the ring. A *scout*
//! goes through the data set's directory and fetches; here is decided when one is sent, when it waits and when it is called
//! back:
//!
//! - one is sent when files are missed and the data set is known to be read in epochs;
//! - in a first epoch nobody knows whether it will be one. Some tens of files that were each read once are taken for its
//!   beginning, and then only a few times as much is fetched ahead as was read: a job that stops there has cost little;
//! - what had to go unread, more often than not, was a wrong guess: the data set is left alone for some epochs.
//!
//! Pure; the scout itself is in `cache::prefetch`.

use super::epochs::{EpochFigures, Epochs};
use crate::types::GroupId;
use std::collections::HashMap;

/// A first epoch is believed after so many files.
const FIRST_FILES_MIN: u64 = 48;
/// In a first epoch so many times what was read may lie here unread.
const FIRST_AHEAD_TIMES: u64 = 4;
/// In an epoch that is known to be one, so many misses show that there is something to fetch.
const MISSES_MIN: u64 = 4;
/// A data set that nobody has read for so long is left alone.
const IDLE_MS: u64 = 10_000;
/// Epochs that are left out after a wrong guess.
const PAUSE_EPOCHS: u32 = 2;
/// Files that must have been fetched before the guess is judged.
const JUDGE_MIN: u64 = 64;

/// What a scout does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Fetches one more.
    Go,
    /// Enough lies here unread.
    Wait,
    /// Comes back: nobody reads, or another epoch has begun.
    End,
}

/// What a scout tells when it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The epoch in which it was sent.
    pub number: u32,
    /// It has seen all of the data set: there is nothing more to fetch in this epoch.
    pub saw_all: bool,
    /// Files that it fetched and that were read.
    pub used: u64,
    /// Files that it fetched and that had to go unread.
    pub wasted: u64,
}

#[derive(Default)]
struct Ring {
    is_out: bool,
    /// No scout is sent before this epoch.
    not_before: u32,
}

/// The scouts of all data sets.
#[derive(Default)]
pub struct Rings {
    groups: HashMap<GroupId, Ring>,
}

impl Rings {
    /// A file of `group` was used. Whether a scout is to be sent now; it counts as sent then.
    pub fn note(&mut self, group: GroupId, epochs: &Epochs) -> bool {
        let Some(now) = epochs.now(group) else { return false };
        if !is_wanted(now, epochs.is_recognised(group)) {
            return false;
        }
        let ring = self.groups.entry(group).or_default();
        if ring.is_out || now.number < ring.not_before {
            return false;
        }
        ring.is_out = true;
        true
    }

    /// The scout of `group` is back.
    pub fn back(&mut self, group: GroupId, outcome: Outcome) {
        let Some(ring) = self.groups.get_mut(&group) else { return };
        ring.is_out = false;
        let Outcome { number, saw_all, used, wasted } = outcome;
        if wasted > used && used + wasted >= JUDGE_MIN {
            ring.not_before = number + 1 + PAUSE_EPOCHS;
        } else if saw_all {
            ring.not_before = number + 1;
        }
    }

    /// A data set that is part of another now.
    pub fn forget(&mut self, group: GroupId) {
        self.groups.remove(&group);
    }
}

fn is_wanted(now: &EpochFigures, recognised: bool) -> bool {
    if recognised {
        return now.misses >= MISSES_MIN;
    }
    let first = now.number == 1 && now.files_read >= FIRST_FILES_MIN;
    first && now.rereads * 10 <= now.files_read && now.misses * 2 >= now.files_read
}

/// What the scout does that was sent in epoch `number`, while `unused_bytes` lie here unread.
pub fn turn(
    now: Option<&EpochFigures>,
    recognised: bool,
    number: u32,
    unused_bytes: u64,
    now_ms: u64,
) -> Turn {
    let Some(now) = now else { return Turn::End };
    if now.number != number || now_ms.saturating_sub(now.last_ms) > IDLE_MS {
        return Turn::End;
    }
    match recognised || unused_bytes < FIRST_AHEAD_TIMES * now.bytes() {
        true => Turn::Go,
        false => Turn::Wait,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Access, Subject, Tier};
    use crate::types::FileId;

    const GROUP: GroupId = GroupId(3);

    fn read(epochs: &mut Epochs, files: impl Iterator<Item = u64>, cached: bool) {
        for n in files {
            let id = FileId { high: 0, low: n };
            let from = if cached { Tier::Ssd } else { Tier::Source };
            let access = Access { from, again: false, now_ms: n };
            epochs.note(&Subject { id, group: GROUP, bytes: 100 }, access);
        }
    }

    #[test]
    fn a_first_epoch_is_believed_after_some_files_that_were_missed() {
        let (mut epochs, mut rings) = (Epochs::default(), Rings::default());
        read(&mut epochs, 0..FIRST_FILES_MIN - 1, false);
        assert!(!rings.note(GROUP, &epochs));
        read(&mut epochs, 1000..1001, false);
        assert!(rings.note(GROUP, &epochs) && !rings.note(GROUP, &epochs), "one at a time");
        rings.back(GROUP, Outcome { number: 1, saw_all: true, used: 0, wasted: 0 });
        assert!(!rings.note(GROUP, &epochs), "it has seen everything");
    }

    #[test]
    fn what_is_cached_already_or_read_again_and_again_is_left_alone() {
        let (mut epochs, mut rings) = (Epochs::default(), Rings::default());
        read(&mut epochs, 0..500, true);
        assert!(!rings.note(GROUP, &epochs));
        let mut epochs = Epochs::default();
        for _ in 0..20 {
            read(&mut epochs, 0..10, false);
        }
        assert!(!rings.note(GROUP, &epochs));
    }

    #[test]
    fn an_epoch_that_is_known_needs_a_few_misses() {
        let (mut epochs, mut rings) = (Epochs::default(), Rings::default());
        read(&mut epochs, 0..200, true);
        read(&mut epochs, (0..200).rev(), true);
        assert!(epochs.is_recognised(GROUP) && !rings.note(GROUP, &epochs));
        read(&mut epochs, 0..100, false);
        read(&mut epochs, 100..200, true);
        assert!(rings.note(GROUP, &epochs));
    }

    #[test]
    fn a_wrong_guess_is_not_made_again_soon() {
        let (mut epochs, mut rings) = (Epochs::default(), Rings::default());
        read(&mut epochs, 0..100, false);
        assert!(rings.note(GROUP, &epochs));
        rings.back(GROUP, Outcome { number: 1, saw_all: false, used: 10, wasted: 90 });
        assert!(!rings.note(GROUP, &epochs));
        rings.groups.clear();
        assert!(rings.note(GROUP, &epochs));
        rings.back(GROUP, Outcome { number: 1, saw_all: false, used: 90, wasted: 10 });
        assert!(rings.note(GROUP, &epochs), "the same epoch goes on");
    }

    #[test]
    fn the_scout_waits_in_a_first_epoch_and_ends_with_its_readers() {
        let mut epochs = Epochs::default();
        read(&mut epochs, 0..100, false);
        let now = epochs.now(GROUP);
        let ahead = FIRST_AHEAD_TIMES * 100 * 100;
        assert_eq!(turn(now, false, 1, ahead - 1, 99), Turn::Go);
        assert_eq!(turn(now, false, 1, ahead, 99), Turn::Wait);
        assert_eq!(turn(now, true, 1, ahead, 99), Turn::Go);
        assert_eq!(turn(now, true, 2, 0, 99), Turn::End);
        assert_eq!(turn(now, true, 1, 0, 99 + IDLE_MS + 1), Turn::End);
        assert_eq!(turn(None, true, 1, 0, 0), Turn::End);
    }
}
