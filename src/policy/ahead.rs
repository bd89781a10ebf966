//! How far to read ahead of somebody who goes through the items of a directory: its entries, whose attributes are asked for
//! one by one, or its subdirectories, which are opened one after the other.
//!
//! Apart from what is read and how, so that it can be tested as what it is: a sequence of positions in, ranges out. It
//! promises to be timid: nothing before the fourth item in order, and never more than twice as much ahead as was used, so
//! that a look at one item costs nothing and a walk that breaks off has wasted little. Who asks for a directory's items in
//! no order, as `find` does in a large one and a shuffled epoch does, is believed after a sixteenth of them.

use std::ops::Range;

/// Items in order after which the next are read ahead.
const START: u32 = 4;
/// A gap of this many items is no jump: types are mixed, and some items are of no interest.
const SLACK: u32 = 8;
/// Of a directory asked for in no order: one item in this many must have been used, and [`SCATTERED_MIN`] at least.
const SCATTERED_SHARE: u32 = 16;
const SCATTERED_MIN: u32 = 32;

/// One walk over the items of one directory.
#[derive(Debug, Default)]
pub struct AheadTracker {
    /// Items used in order, or as if.
    used: u32,
    last: Option<u32>,
    /// Items before this were told to be read ahead.
    end: u32,
    /// Items used in no order.
    scattered: u32,
}

impl AheadTracker {
    /// A walk that is expected, as `used` items of a sibling were used.
    pub fn expecting(used: u32) -> Self {
        Self { used, ..Self::default() }
    }

    /// Items used in order so far.
    pub fn used_in_order(&self) -> u32 {
        self.used
    }

    /// What to read ahead before the first item is used.
    pub fn begin(&mut self, len: u32, ahead_max: u32) -> Range<u32> {
        match self.last {
            None => self.window(0, len, ahead_max),
            Some(_) => 0..0,
        }
    }

    /// Item `at` of `len` was used. Gives the items to read ahead now, `ahead_max` beyond it at most; with 0 nothing is
    /// given, and the same items later.
    pub fn used(&mut self, at: u32, len: u32, ahead_max: u32) -> Range<u32> {
        let Some(last) = self.last.replace(at) else {
            self.used = self.used.max(1);
            return self.window(at.saturating_add(1), len, ahead_max);
        };
        if at == last {
            return 0..0;
        }
        let enough = SCATTERED_MIN.max(len / SCATTERED_SHARE);
        let in_order = at > last && at <= self.end.max(last).saturating_add(SLACK);
        if in_order && self.scattered < enough {
            // What was passed over was known already, most of it because it was read ahead.
            self.used = self.used.saturating_add(at - last);
            return self.window(at + 1, len, ahead_max);
        }
        self.scattered = self.scattered.saturating_add(1);
        if self.scattered < enough {
            (self.used, self.end) = (1, at.saturating_add(1));
            return 0..0;
        }
        self.sweep(enough, len, ahead_max)
    }

    fn window(&mut self, next: u32, len: u32, ahead_max: u32) -> Range<u32> {
        if self.used < START {
            return 0..0;
        }
        let window = self.used.saturating_mul(2).min(ahead_max);
        // Half of it may be used up before there is more: many at a time go in parallel.
        if self.end.saturating_sub(next) > window / 2 {
            return 0..0;
        }
        self.give(self.end.max(next), next.saturating_add(window).min(len))
    }

    /// Items used in no order, and so many of them that all will be: in strides over everything.
    fn sweep(&mut self, enough: u32, len: u32, ahead_max: u32) -> Range<u32> {
        if self.scattered == enough {
            self.end = 0;
        } else if self.end >= len {
            // All was given; who comes now comes anew.
            *self = Self { last: self.last, ..Self::default() };
            return 0..0;
        }
        // A stride for every few that were used: what is read is in proportion to what is asked for.
        if !(self.scattered - enough).is_multiple_of(SLACK) {
            return 0..0;
        }
        self.give(self.end, self.end.saturating_add(ahead_max).min(len))
    }

    fn give(&mut self, from: u32, to: u32) -> Range<u32> {
        if to <= from {
            return 0..0;
        }
        self.end = to;
        from..to
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: u32 = 100;

    fn walk(tracker: &mut AheadTracker, items: impl Iterator<Item = u32>, len: u32) -> Vec<Range<u32>> {
        items.map(|at| tracker.used(at, len, MAX)).filter(|range| !range.is_empty()).collect()
    }

    #[test]
    fn one_look_and_a_few_in_no_order_read_nothing_ahead() {
        let mut tracker = AheadTracker::default();
        assert!(walk(&mut tracker, [500].into_iter(), 1000).is_empty());
        assert!(walk(&mut tracker, [3, 900, 77, 500, 20, 640].into_iter(), 1000).is_empty());
    }

    #[test]
    fn a_walk_is_read_ahead_once_and_whole_from_its_fourth_item_on() {
        let mut tracker = AheadTracker::default();
        let ranges = walk(&mut tracker, 0..1000, 1000);
        assert_eq!(ranges[0], 4..12);
        assert!(ranges.windows(2).all(|w| w[0].end == w[1].start), "{ranges:?}");
        assert_eq!(ranges.last().map(|range| range.end), Some(1000));
    }

    #[test]
    fn items_passed_over_because_they_were_known_do_not_end_a_walk() {
        let mut tracker = AheadTracker::default();
        walk(&mut tracker, 0..20, 1000);
        let end = tracker.end;
        assert!(!tracker.used(end + 2, 1000, MAX).is_empty());
    }

    #[test]
    fn without_room_the_same_items_come_later() {
        let mut tracker = AheadTracker::default();
        for at in 0..10 {
            assert!(tracker.used(at, 1000, 0).is_empty());
        }
        assert_eq!(tracker.used(10, 1000, MAX), 11..33);
    }

    #[test]
    fn an_expected_walk_begins_before_its_first_item() {
        assert_eq!(AheadTracker::expecting(5).begin(1000, MAX), 0..10);
        assert!(AheadTracker::expecting(3).begin(1000, MAX).is_empty());
        assert!(AheadTracker::default().begin(1000, MAX).is_empty());
    }

    #[test]
    fn who_asks_in_no_order_is_believed_after_a_sixteenth() {
        let mut tracker = AheadTracker::default();
        // A multiplier that is prime to 4000 visits each item once.
        let items = (0..4000u32).map(|i| i * 1777 % 4000);
        let mut first = None;
        let mut covered = 0;
        for (i, at) in items.enumerate() {
            let range = tracker.used(at, 4000, MAX);
            if !range.is_empty() {
                first.get_or_insert(i);
                assert_eq!(range.start, covered, "one stride after the other");
                covered = range.end;
            }
            if covered == 4000 {
                break;
            }
        }
        assert!((250..300).contains(&first.unwrap()), "{first:?}");
        assert_eq!(covered, 4000);
    }

    proptest! {
        #[test]
        fn never_beyond_the_end_and_never_the_same_twice(at in prop::collection::vec(0u32..300, 0..600)) {
            let mut tracker = AheadTracker::default();
            for at in at {
                let range = tracker.used(at, 300, MAX);
                prop_assert!(range.end <= 300 && range.len() <= MAX as usize);
            }
        }

        /// A walk over `n` items and no further has read at most twice as many in vain.
        #[test]
        fn a_walk_that_breaks_off_has_wasted_little(n in 0u32..5000) {
            let mut tracker = AheadTracker::default();
            let end = (0..n).map(|at| tracker.used(at, 1_000_000, 1 << 20).end).max().unwrap_or(0);
            prop_assert!(end.saturating_sub(n) <= 2 * n);
        }
    }
}
