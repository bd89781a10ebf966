//! When a version cannot tell two contents apart: times advance in steps, and of two changes within one step the second
//! leaves no trace. So what is read of something that changed a moment ago may be of before a change that will never be
//! seen. It is good for the open that it was read for, and not for the next (the rule by which git treats its index).

use crate::types::Timestamp;

/// More than a tick of any kernel's clock (10 ms at most) for times that are told in fractions of a second.
const TICK_NANOS: i128 = 20_000_000;

/// More than the step of file systems and protocols that tell whole seconds (1 s, 2 s on FAT).
const SECONDS_NANOS: i128 = 2_500_000_000;

/// Whether something that tells to have changed at `changed`, and was looked at from `began` on, may since have changed
/// without telling another time. A time ahead of our clock by less than a step counts as now: clocks differ a little.
pub fn may_change_unseen(changed: Timestamp, began: Timestamp) -> bool {
    let step = if changed.nanos == 0 { SECONDS_NANOS } else { TICK_NANOS };
    (nanos(began) - nanos(changed)).abs() < step
}

/// Longer than a page may be written to by a mapping without another time of the file: the kernel cleans pages after 30 s
/// (`vm.dirty_expire_centisecs`), and then the next write gives one.
const WRITERS_NANOS: i128 = 60_000_000_000;

/// What is known of a look at some content before its first byte is read.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// When it began, by the clock that gives files their times ([`crate::sys::clock::file_time`]).
    pub began: Timestamp,
    /// Whether somebody had it open for writing then; `None` where that is not known. A write sets the time first and the
    /// bytes after, so that with a writer in the middle of it the time is newer than what is read.
    pub writers: Option<bool>,
}

impl Look {
    /// A look at what nobody writes to, such as a directory.
    pub fn without_writers(began: Timestamp) -> Self {
        Self { began, writers: Some(false) }
    }

    /// Whether what is seen may be of before a change that will never be seen. `exact`: every change of what was looked at
    /// gets a time of its own.
    pub fn is_racy(&self, mtime: Timestamp, ctime: Timestamp, exact: bool) -> bool {
        let in_one_step = may_change_unseen(mtime, self.began) || may_change_unseen(ctime, self.began);
        match self.writers {
            Some(false) => in_one_step && !exact,
            Some(true) => in_one_step || (nanos(self.began) - nanos(ctime)).abs() < WRITERS_NANOS,
            None => in_one_step,
        }
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }

    #[test]
    fn with_a_writer_nothing_young_is_settled_and_without_one_exact_times_tell_all() {
        let look = |writers| Look { began: at(1000, 5), writers };
        let (now, young, old) = (at(1000, 4), at(970, 5), at(900, 5));
        for (writers, changed, exact, racy) in [
            (Some(false), now, true, false),
            (Some(false), now, false, true),
            (Some(false), young, false, false),
            (Some(true), young, true, true),
            (Some(true), old, true, false),
            (None, now, true, true),
            (None, young, true, false),
        ] {
            assert_eq!(look(writers).is_racy(old, changed, exact), racy, "{writers:?} {changed:?} {exact}");
        }
    }

    #[test]
    fn what_changed_within_a_step_of_the_look_is_not_settled() {
        for (changed, began, unseen) in [
            // Fine times: a tick, either side of a second too.
            (at(100, 5), at(100, 5), true),
            (at(100, 5), at(100, 19_000_000), true),
            (at(100, 5), at(100, 21_000_000), false),
            (at(99, 990_000_000), at(100, 1_000_000), true),
            (at(99, 990_000_000), at(100, 11_000_000), false),
            (at(100, 19_000_000), at(100, 0), true),
            (at(101, 5), at(100, 5), false),
            // Whole seconds.
            (at(100, 0), at(102, 400_000_000), true),
            (at(100, 0), at(102, 600_000_000), false),
            // Long ago, before 1970, and far in the future: somebody has set them.
            (at(0, 0), at(1_800_000_000, 1), false),
            (at(-5, 1), at(1_800_000_000, 1), false),
            (at(4_000_000_000, 0), at(1_800_000_000, 1), false),
        ] {
            assert_eq!(may_change_unseen(changed, began), unseen, "{changed:?} {began:?}");
        }
    }
}
