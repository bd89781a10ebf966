//! When the scrub looks at what, and how fast: a plan that is told the time and what happened.
//!
//! What was just written comes first, then the pass: every data file in the order of its number, which is the order of
//! writing and stays the same over restarts. A pass is due at a fixed interval after the last one ended; where it had come
//! to outlives a clean stop ([`ScrubPlan::note`]), because a cache that takes longer to read than a job to run would
//! otherwise never be read to its end.

use crate::types::FileId;
use std::collections::{HashSet, VecDeque};
use std::time::Duration;

/// How long to rest after `bytes` that took `took`, so that `bytes_per_s` is kept. While others want the SSD it goes at a
/// quarter of that: never stopped, or a job that never rests would never be looked after.
pub fn rest(bytes: u64, took: Duration, bytes_per_s: u64, busy: bool) -> Duration {
    let share = if busy { 4 } else { 1 };
    let nanos = u128::from(bytes) * 1_000_000_000 * share / u128::from(bytes_per_s.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).saturating_sub(took)
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Look at this file.
    Look(FileId),
    /// Say which files with numbers in this range come first: [`ScrubPlan::selected`].
    Select(std::ops::Range<u64>),
    /// Say up to which number files are named now: [`ScrubPlan::begin_pass`].
    Begin,
    /// Nothing for so many seconds; none: until something is written.
    Wait(Option<u64>),
}

/// What is to be looked at, and when.
#[derive(Debug, Default)]
pub struct ScrubPlan {
    /// Between the end of a pass and the begin of the next, seconds; `None`: there are no passes.
    interval_s: Option<u64>,
    /// When a pass ended last, in seconds since 1970.
    last_pass_s: Option<u64>,
    /// Numbers that this pass has still to look at.
    pass: Option<std::ops::Range<u64>>,
    batch: VecDeque<(u64, FileId)>,
    fresh: VecDeque<FileId>,
    /// The same, to find them.
    queued: HashSet<FileId>,
    /// What was given last: being looked at.
    current: Option<FileId>,
}

impl ScrubPlan {
    /// A plan for a cache of which nothing is known: a pass is due at once.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// A plan for a cache that is empty at `now_s`: there is nothing to look at before an interval has gone by.
    pub fn empty(now_s: u64) -> Self {
        Self { last_pass_s: Some(now_s), ..Self::default() }
    }

    /// How often there is a pass.
    pub fn set_interval(&mut self, interval: Option<Duration>) {
        self.interval_s = interval.map(|i| i.as_secs().max(1));
    }

    /// This file was written, and nobody has looked at what the SSD made of it.
    pub fn written(&mut self, id: FileId) {
        if self.queued.insert(id) {
            self.fresh.push_back(id);
        }
    }

    /// What to do at `now_s`. A file that was given counts as looked at when this is asked again.
    pub fn next(&mut self, now_s: u64) -> Next {
        let next = self.choose(now_s);
        self.current = if let Next::Look(id) = next { Some(id) } else { None };
        next
    }

    fn choose(&mut self, now_s: u64) -> Next {
        if let Some(id) = self.fresh.pop_front() {
            self.queued.remove(&id);
            return Next::Look(id);
        }
        if let Some(pass) = &mut self.pass {
            if let Some((number, id)) = self.batch.pop_front() {
                pass.start = number + 1;
                return Next::Look(id);
            }
            return Next::Select(pass.clone());
        }
        let Some(interval_s) = self.interval_s else { return Next::Wait(None) };
        // A clock that was set back must not put it off for ever.
        let due_s = self.last_pass_s.filter(|last| *last <= now_s).map_or(0, |last| last + interval_s);
        match due_s.saturating_sub(now_s) {
            0 => Next::Begin,
            left => Next::Wait(Some(left)),
        }
    }

    /// A pass begins over the files with numbers below `end`.
    pub fn begin_pass(&mut self, end: u64) {
        self.pass = Some(0..end);
    }

    /// The first files of the range that was asked for, in order. None are left: the pass has ended, which it tells.
    pub fn selected(&mut self, files: Vec<(u64, FileId)>, now_s: u64) -> bool {
        let ended = files.is_empty();
        self.batch = files.into();
        if ended {
            self.pass = None;
            self.last_pass_s = Some(now_s);
        }
        ended
    }

    /// When a pass ended last, in seconds since 1970.
    pub fn last_pass_s(&self) -> Option<u64> {
        self.last_pass_s
    }

    /// Files that were written and not looked at.
    pub fn waiting(&self) -> usize {
        self.fresh.len()
    }

    /// What the next start should know:
    ///
    /// ```text
    ///   0   8   end of the last pass, seconds since 1970; 0: never
    ///   8   8   first number that the pass has still to look at; all ones: no pass
    ///  16   8   number at which it ends
    ///  24 16*N  files to look at first: written and not looked at, or not to the end
    ///  ..   8   first 8 bytes of blake3 over everything before
    /// ```
    pub fn note(&self) -> Vec<u8> {
        let pass = self.pass.clone().unwrap_or(NO_PASS);
        let mut out = Vec::with_capacity(48 + self.fresh.len() * 16);
        for field in [self.last_pass_s.unwrap_or(0), pass.start, pass.end] {
            out.extend(field.to_le_bytes());
        }
        self.current.iter().chain(&self.fresh).for_each(|id| out.extend(id.to_bytes()));
        out.extend(check(&out));
        out
    }

    /// The plan of a note; `None` if it is not one that [`ScrubPlan::note`] wrote.
    pub fn from_note(bytes: &[u8]) -> Option<Self> {
        let (body, found) = bytes.split_last_chunk::<8>()?;
        let (head, ids) = body.split_first_chunk::<24>()?;
        let (ids, rest) = ids.as_chunks::<16>();
        if check(body) != *found || !rest.is_empty() {
            return None;
        }
        let [last, start, end] = [0, 1, 2].map(|i| u64::from_le_bytes(head.as_chunks::<8>().0[i]));
        let mut plan = Self { last_pass_s: (last > 0).then_some(last), ..Self::default() };
        plan.pass = (start != NO_PASS.start).then_some(start..end);
        ids.iter().for_each(|id| plan.written(FileId::from_bytes(*id)));
        Some(plan)
    }
}

const NO_PASS: std::ops::Range<u64> = u64::MAX..u64::MAX;

fn check(body: &[u8]) -> [u8; 8] {
    let mut check = [0; 8];
    check.copy_from_slice(&blake3::hash(body).as_bytes()[..8]);
    check
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u64) -> FileId {
        FileId { high: 0, low: n }
    }

    #[test]
    fn the_rate_is_kept_and_a_busy_ssd_gets_a_quarter_of_it() {
        let (mib, second) = (1 << 20, Duration::from_secs(1));
        assert_eq!(rest(mib, Duration::ZERO, mib, false), second);
        assert_eq!(rest(mib, second / 4, mib, false), second * 3 / 4);
        assert_eq!(rest(mib, second * 2, mib, false), Duration::ZERO);
        assert_eq!(rest(mib, Duration::ZERO, mib, true), second * 4);
        assert_eq!(rest(0, Duration::ZERO, mib, true), Duration::ZERO);
        assert!(rest(u64::MAX, Duration::ZERO, 0, true) > second * 1000);
    }

    /// Plays the plan over files with the numbers 10, 20, … and tells in which order they were looked at.
    fn play(plan: &mut ScrubPlan, now_s: u64, count: u64) -> Vec<u64> {
        let mut looked = Vec::new();
        loop {
            match plan.next(now_s) {
                Next::Look(id) => looked.push(id.low),
                Next::Begin => plan.begin_pass(count * 10 + 1),
                Next::Select(range) => {
                    let files = (1..=count).map(|n| (n * 10, id(n))).filter(|(n, _)| range.contains(n));
                    plan.selected(files.take(2).collect(), now_s);
                }
                Next::Wait(_) => return looked,
            }
        }
    }

    #[test]
    fn a_pass_looks_at_every_file_once_and_then_rests_for_the_interval() {
        let mut plan = ScrubPlan::unknown();
        assert_eq!(plan.next(1000), Next::Wait(None), "without an interval there are no passes");
        plan.set_interval(Some(Duration::from_secs(60)));
        assert_eq!(play(&mut plan, 1000, 5), [1, 2, 3, 4, 5]);
        assert_eq!(plan.last_pass_s(), Some(1000));
        assert_eq!(plan.next(1001), Next::Wait(Some(59)));
        assert!(play(&mut plan, 1059, 5).is_empty());
        assert_eq!(play(&mut plan, 1060, 5), [1, 2, 3, 4, 5]);
        assert_eq!(plan.next(10), Next::Begin, "a clock that was set back does not put it off");
    }

    #[test]
    fn what_was_written_comes_first_and_once() {
        let mut plan = ScrubPlan::unknown();
        plan.set_interval(Some(Duration::from_secs(60)));
        plan.begin_pass(100);
        assert_eq!(plan.next(1), Next::Select(0..100));
        plan.selected(vec![(10, id(1)), (20, id(2))], 1);
        assert_eq!(plan.next(1), Next::Look(id(1)));
        (0..2).for_each(|_| plan.written(id(9)));
        assert_eq!(plan.waiting(), 1);
        assert_eq!(plan.next(1), Next::Look(id(9)));
        assert_eq!(plan.next(1), Next::Look(id(2)));
        plan.written(id(9));
        assert_eq!(plan.next(1), Next::Look(id(9)), "written again");
    }

    #[test]
    fn an_empty_cache_is_not_looked_at_for_an_interval() {
        let mut plan = ScrubPlan::empty(1000);
        plan.set_interval(Some(Duration::from_secs(60)));
        assert_eq!(plan.next(1000), Next::Wait(Some(60)));
    }

    #[test]
    fn a_pass_goes_on_after_a_restart_where_it_had_come_to() {
        let mut plan = ScrubPlan::unknown();
        plan.begin_pass(51);
        plan.selected(vec![(10, id(1)), (20, id(2))], 5);
        assert_eq!(plan.next(5), Next::Look(id(1)));
        plan.written(id(77));
        let mut again = ScrubPlan::from_note(&plan.note()).unwrap();
        again.set_interval(Some(Duration::from_secs(60)));
        assert_eq!(play(&mut again, 7, 5), [1, 77, 2, 3, 4, 5], "1 was not looked at to its end");
    }

    #[test]
    fn a_note_with_any_flipped_bit_is_no_note() {
        let mut plan = ScrubPlan::empty(1000);
        plan.begin_pass(51);
        (0..3).for_each(|n| plan.written(id(n)));
        let note = plan.note();
        assert!(ScrubPlan::from_note(&note).is_some());
        for bit in 0..note.len() * 8 {
            let mut bytes = note.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(ScrubPlan::from_note(&bytes).is_none(), "bit {bit}");
        }
        (0..note.len()).for_each(|len| assert!(ScrubPlan::from_note(&note[..len]).is_none()));
    }
}
