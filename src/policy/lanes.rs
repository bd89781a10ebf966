//! How many files may be fetched ahead at the same time while readers wait for the source.
//!
//! What a slow source makes one wait for is either each answer, and then more at a time bring more and disturb nobody, or
//! the disk and the wire, and then whoever asks stands in line behind all of them. Which of the two shows in the time that
//! one fetch takes: it stays the same when more go on, or it grows with them. So there are few at first, more as long as a
//! fetch takes hardly longer than it did beside few, and fewer again when it does; now and then what it takes beside few
//! is measured anew, because the source, or what is read from it, may be another by then. (TCP Vegas, Brakmo and
//! Peterson 1995, finds its window in this way.)

/// Beside readers that wait, at first and at least.
pub const LANES_MIN: usize = 4;
/// Beside readers that wait, at most.
pub const LANES_MAX: usize = 12;
/// A source that brings a file sooner than this keeps nobody waiting: then there is one at a time, because all that many
/// would take is the CPU.
const QUICK_US: u64 = 1000;
/// Fetches between two steps.
const STEP_FETCHES: u32 = 8;
/// Steps between two looks at how long a fetch takes beside few.
const PROBE_STEPS: u32 = 64;
/// More are tried while a fetch takes at most this times as long, in quarters.
const GROW_QUARTERS: u64 = 6;
/// Fewer go on when it takes more than this times as long, in quarters.
const SHRINK_QUARTERS: u64 = 8;

/// The number, and what it follows from.
#[derive(Debug)]
pub struct Lanes {
    now: usize,
    /// Time of a fetch beside few, us; 0: not known yet.
    base_us: u64,
    sum_us: u64,
    fetches: u32,
    steps: u32,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { now: LANES_MIN, base_us: 0, sum_us: 0, fetches: 0, steps: 0 }
    }
}

impl Lanes {
    /// Fetches that may go on at the same time.
    pub fn now(&self) -> usize {
        self.now
    }

    /// One that brought its file took so long.
    pub fn note(&mut self, took_us: u64) {
        self.sum_us += took_us;
        self.fetches += 1;
        if self.fetches < STEP_FETCHES {
            return;
        }
        let mean_us = self.sum_us / u64::from(self.fetches);
        (self.sum_us, self.fetches) = (0, 0);
        self.steps += 1;
        if self.steps >= PROBE_STEPS {
            *self = Self::default();
        } else if mean_us < QUICK_US {
            self.now = 1;
        } else if self.base_us == 0 {
            self.base_us = mean_us;
            self.now = LANES_MIN + 1;
        } else if mean_us * 4 <= self.base_us * GROW_QUARTERS {
            self.now = (self.now + 1).min(LANES_MAX);
        } else if mean_us * 4 > self.base_us * SHRINK_QUARTERS {
            self.now = (self.now - 1).max(LANES_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean number over some hundred fetches of a source, after it has settled.
    fn settled(lanes: &mut Lanes, took_us: impl Fn(usize) -> u64) -> usize {
        let mut sum = 0;
        for n in 0..800 {
            lanes.note(took_us(lanes.now()));
            sum += if n < 300 { 0 } else { lanes.now() };
        }
        sum / 500
    }

    /// Goal: a source that only takes its time for each answer is asked more at once.
    #[test]
    fn latency_brings_more() {
        assert!(settled(&mut Lanes::default(), |_| 7000) >= LANES_MAX - 3);
    }

    /// Goal: at a disk, where each waits for all others, there are as few as ever.
    #[test]
    fn a_disk_keeps_them_few() {
        assert!(settled(&mut Lanes::default(), |lanes| 8000 * lanes as u64) <= LANES_MIN + 2);
        // A wire that is full from eight on.
        let wire = |lanes: usize| 5000 * lanes.max(8) as u64 / 8;
        assert!((7..=LANES_MAX).contains(&settled(&mut Lanes::default(), wire)));
    }

    /// Goal: what was learnt of one data set does not stay for the next.
    #[test]
    fn another_source_is_found_out() {
        let mut lanes = Lanes::default();
        assert_eq!(settled(&mut lanes, |_| 500), 1, "a quick one");
        // Now it is slow by itself, and takes more at once all the same.
        assert!(settled(&mut lanes, |_| 20_000) >= LANES_MAX - 4);
        assert!(settled(&mut lanes, |lanes| 8000 * lanes as u64) <= LANES_MIN + 2);
    }
}
