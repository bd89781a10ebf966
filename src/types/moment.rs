//! A point in time that another start of the program, or of the machine, can be compared with.

/// When something was written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// By the wall clock, milliseconds since 1970.
    pub wall_ms: u64,
    /// Milliseconds since the machine was started, asleep or awake.
    pub boot_ms: u64,
    /// Which start of the machine; 0 if that is not known.
    pub boot: u128,
}

impl Moment {
    /// How long after `earlier` this is, milliseconds. `None` if a clock went back meanwhile, which makes everything that was
    /// written down before it doubtful. While the machine runs on, a wall clock that was set back shortens no time.
    pub fn since_ms(&self, earlier: &Self) -> Option<u64> {
        let wall_ms = self.wall_ms.checked_sub(earlier.wall_ms)?;
        if self.boot == 0 || self.boot != earlier.boot {
            return Some(wall_ms);
        }
        Some(wall_ms.max(self.boot_ms.checked_sub(earlier.boot_ms)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_time_counts_and_a_clock_that_went_back_gives_none() {
        let at = |wall_ms, boot_ms, boot| Moment { wall_ms, boot_ms, boot };
        let then = at(1_000_000, 5000, 7);
        for (now, since) in [
            (at(1_000_010, 5010, 7), Some(10)),
            // Set back by less than what has passed, and set forward.
            (at(1_000_010, 9000, 7), Some(4000)),
            (at(1_009_000, 5010, 7), Some(9000)),
            (at(999_999, 6000, 7), None),
            (at(1_000_010, 4999, 7), None),
            // Another start of the machine.
            (at(1_000_010, 10, 8), Some(10)),
            (at(999_999, 10, 8), None),
        ] {
            assert_eq!(now.since_ms(&then), since, "{now:?}");
        }
        assert_eq!(
            at(1_000_010, 1, 0).since_ms(&at(1_000_000, 5, 0)),
            Some(10),
            "starts that nobody can tell apart"
        );
    }
}
