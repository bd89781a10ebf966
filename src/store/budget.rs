//! Space, taken before it is used and given back by dropping.
//!
//! The promise: the bytes and files that are reserved never exceed the budget, not for a moment, because a fill
//! reserves first and writes afterwards, and because a removed file's reservation lives until the last handle on it is
//! gone (the disk frees an unlinked file no earlier). Nobody adds or subtracts by hand: a [`Reservation`] does.
//!
//! That last handle may be the kernel's: a mapping outlives the handle it was made with, and a reader that has just closed
//! its file holds it for another moment. Such space is on its way out ([`Reservation::leave`]) and counts until it is gone.

use crate::sys::lease;
use crate::types::sync::Mutex;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Why a reservation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// More bytes than the budget has left.
    Bytes,
    /// More files than the budget has left.
    Files,
    /// The file system itself is nearly full; others use it too.
    FreeSpace,
}

/// The space of one cache.
pub struct Budget {
    state: Mutex<State>,
    leaving: Mutex<Vec<Leaving>>,
}

/// A removed file that the kernel may still hold, by our own descriptor of it.
struct Leaving {
    fd: Arc<OwnedFd>,
    bytes: u64,
    files: u64,
    since: Instant,
    looked: Instant,
}

/// Removed files that are waited for, each with a descriptor of ours: no more is removed to make room while there are so
/// many. A job that maps its files and keeps them can make them.
const LEAVING_MAX: usize = 4096;
/// Who has closed a file lets go of it within this; what is held longer is mapped, perhaps for hours.
const LET_GO: Duration = Duration::from_millis(10);
/// Time between two looks meanwhile.
const LOOK: Duration = Duration::from_micros(200);
/// The longest time between two looks at one that is mapped: there may be thousands.
const LOOK_AT_MAPPED: Duration = Duration::from_millis(100);
/// Until then one is looked at again after this part of the time that it was held: who closes a file while others have
/// the CPU lets go of it a little later than [`LET_GO`], and every look that comes too late costs other files their place.
const LOOK_AGAIN_AFTER: u32 = 8;

#[derive(Debug)]
struct State {
    bytes: u64,
    files: u64,
    bytes_max: u64,
    files_max: u64,
    /// What the index and the log take: counted, because `du` counts it.
    overhead_bytes: u64,
    /// What they may grow by before the next look at them.
    overhead_slack_bytes: u64,
    /// Bytes that the file system still has above the floor that is left to others, as of the last look, less what
    /// was reserved since then.
    free_bytes: u64,
}

/// Figures of a budget at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes reserved, overhead included.
    pub bytes: u64,
    /// Files reserved.
    pub files: u64,
    /// Capacity, bytes.
    pub bytes_max: u64,
}

/// One commit of the index writes at least so many new pages before it can use the old ones again.
const OVERHEAD_SLACK_MIN: u64 = 256 << 10;

impl State {
    fn taken(&self) -> u64 {
        self.bytes + self.overhead_bytes + self.overhead_slack_bytes
    }

    fn set_overhead(&mut self, bytes: u64) {
        self.overhead_bytes = bytes;
        self.overhead_slack_bytes = (bytes / 8).max(OVERHEAD_SLACK_MIN).min(self.bytes_max / 32);
    }
}

impl Budget {
    /// A budget of `bytes_max` bytes and `files_max` files. Free space is unlimited until [`Budget::set_free`].
    pub fn new(bytes_max: u64, files_max: u64) -> Arc<Self> {
        let state = State {
            bytes: 0,
            files: 0,
            bytes_max,
            files_max,
            overhead_bytes: 0,
            overhead_slack_bytes: 0,
            free_bytes: u64::MAX,
        };
        Arc::new(Self { state: Mutex::new(state), leaving: Mutex::default() })
    }

    /// Takes `bytes` and `files`, or says what is short.
    pub fn reserve(self: &Arc<Self>, bytes: u64, files: u64) -> Result<Reservation, Refusal> {
        let mut s = self.state.lock();
        if s.files + files > s.files_max {
            return Err(Refusal::Files);
        }
        if s.taken() + bytes > s.bytes_max {
            return Err(Refusal::Bytes);
        }
        if bytes > s.free_bytes {
            return Err(Refusal::FreeSpace);
        }
        s.free_bytes -= if s.free_bytes == u64::MAX { 0 } else { bytes };
        s.bytes += bytes;
        s.files += files;
        Ok(Reservation { budget: self.clone(), bytes, files })
    }

    /// Takes what a restart found on the disk, whether it fits or not: it is there already. The caller evicts.
    pub fn adopt(self: &Arc<Self>, bytes: u64, files: u64) -> Reservation {
        let mut s = self.state.lock();
        s.bytes += bytes;
        s.files += files;
        Reservation { budget: self.clone(), bytes, files }
    }

    /// Whether more is taken than allowed, as after a restart with a smaller budget.
    pub fn is_over(&self) -> bool {
        let s = self.state.lock();
        s.taken() > s.bytes_max || s.files > s.files_max
    }

    /// What the index and the directories take now. They grow on their own account until they are looked at again, so
    /// that some room is left to them.
    pub fn set_overhead(&self, bytes: u64) {
        self.state.lock().set_overhead(bytes);
    }

    /// What is kept free for the overhead to grow by.
    pub fn overhead_slack_bytes(&self) -> u64 {
        self.state.lock().overhead_slack_bytes
    }

    /// The same, after what `room` was taken for has become part of it.
    pub fn set_overhead_in_place_of(&self, bytes: u64, mut room: Reservation) {
        let mut s = self.state.lock();
        s.bytes -= std::mem::take(&mut room.bytes);
        s.set_overhead(bytes);
        drop(s);
    }

    /// What the file system has left above the floor, seen just now.
    pub fn set_free(&self, bytes: u64) {
        self.state.lock().free_bytes = bytes;
    }

    /// Gives back what is gone of what is on its way out. Says whether there was any.
    fn reap(&self) -> bool {
        let gone = {
            let mut leaving = self.leaving.lock();
            let (mut held, gone): (Vec<Leaving>, Vec<_>) =
                std::mem::take(&mut *leaving).into_iter().partition(|l| !l.is_due() || l.is_held());
            held.iter_mut().filter(|l| l.is_due()).for_each(|l| l.looked = Instant::now());
            *leaving = held;
            gone
        };
        let any = !gone.is_empty();
        for Leaving { fd, bytes, files, .. } in gone {
            // First from the disk, then from the count.
            drop(fd);
            self.release(bytes, files);
        }
        any
    }

    /// Whether so much is on its way out that no more should be sent after it.
    pub fn is_leaving_full(&self) -> bool {
        self.leaving.lock().len() >= LEAVING_MAX
    }

    /// Waits a moment for what is on its way out. Says whether it is worth to try again before more is removed.
    pub fn wait_for_leaving(&self) -> bool {
        if self.reap() {
            return true;
        }
        let soon = self.leaving.lock().iter().any(|l| l.since.elapsed() < LET_GO);
        if soon {
            std::thread::sleep(LOOK);
        }
        soon
    }

    /// Figures now.
    pub fn usage(&self) -> Usage {
        self.reap();
        let s = self.state.lock();
        Usage { bytes: s.bytes + s.overhead_bytes, files: s.files, bytes_max: s.bytes_max }
    }

    fn release(&self, bytes: u64, files: u64) {
        let mut s = self.state.lock();
        debug_assert!(s.bytes >= bytes && s.files >= files, "more given back than taken");
        s.bytes -= bytes;
        s.files -= files;
        if s.free_bytes != u64::MAX {
            s.free_bytes += bytes;
        }
    }
}

/// Space that is taken until this is dropped.
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
    files: u64,
}

impl Reservation {
    /// Bytes taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes over another reservation of the same budget.
    pub fn absorb(&mut self, mut other: Reservation) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget));
        self.bytes += std::mem::take(&mut other.bytes);
        self.files += std::mem::take(&mut other.files);
    }

    /// The file that the space is for has lost its name, and `fd` is the last that we have of it: given back when nobody
    /// else holds it either.
    pub fn leave(mut self, fd: Arc<OwnedFd>) {
        let bytes = std::mem::take(&mut self.bytes);
        let files = std::mem::take(&mut self.files);
        let now = Instant::now();
        let leaving = Leaving { fd, bytes, files, since: now, looked: now };
        let budget = self.budget.clone();
        if leaving.is_held() {
            budget.leaving.lock().push(leaving);
        } else {
            drop(leaving);
            budget.release(bytes, files);
        }
    }

    /// Takes all of it out, leaving nothing.
    pub fn take(&mut self) -> Self {
        let (bytes, files) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.files));
        Self { budget: self.budget.clone(), bytes, files }
    }

    /// Gives a part back.
    pub fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.release(bytes, 0);
    }
}

impl Leaving {
    fn is_due(&self) -> bool {
        let held = self.since.elapsed();
        held < LET_GO || self.looked.elapsed() >= LOOK_AT_MAPPED.min(held / LOOK_AGAIN_AFTER)
    }

    fn is_held(&self) -> bool {
        Arc::strong_count(&self.fd) > 1 || !lease::is_only_opener(self.fd.as_fd())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.release(self.bytes, self.files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_stricter_limit_binds() {
        let budget = Budget::new(100, 2);
        let a = budget.reserve(60, 1).unwrap();
        assert_eq!(budget.reserve(60, 1).err(), Some(Refusal::Bytes));
        let _b = budget.reserve(1, 1).unwrap();
        assert_eq!(budget.reserve(1, 1).err(), Some(Refusal::Files));
        drop(a);
        budget.set_free(10);
        assert_eq!(budget.reserve(11, 0).err(), Some(Refusal::FreeSpace));
    }

    /// Goal: what is reserved for the index and then written counts once, at every moment.
    #[test]
    fn room_for_overhead_becomes_overhead() {
        let budget = Budget::new(1000, 10);
        let room = budget.reserve(300, 0).unwrap();
        let files = budget.reserve(400, 1).unwrap();
        budget.set_overhead_in_place_of(310, room);
        assert_eq!(budget.usage().bytes, 710);
        drop(files);
        assert_eq!(budget.usage().bytes, 310);
    }

    #[test]
    fn overhead_counts() {
        let budget = Budget::new(100, 10);
        budget.set_overhead(50);
        assert_eq!(budget.reserve(51, 1).err(), Some(Refusal::Bytes));
        assert_eq!(budget.reserve(50, 1).err(), Some(Refusal::Bytes), "it may grow");
        assert_eq!(budget.usage().bytes, 50, "what is there now");
    }

    /// Goal: space of a removed file counts for as long as anybody has it open or mapped.
    #[test]
    fn what_others_hold_of_a_removed_file_counts_until_they_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let budget = Budget::new(100, 10);
        let open = || Arc::new(OwnedFd::from(std::fs::File::open(&path).unwrap()));
        let (ours, others) = (open(), open());
        budget.reserve(60, 1).unwrap().leave(ours);
        assert_eq!((budget.usage().bytes, budget.usage().files), (60, 1));
        while budget.wait_for_leaving() {}
        assert_eq!(budget.reserve(60, 1).err(), Some(Refusal::Bytes));
        drop(others);
        wait_for(|| budget.usage().bytes == 0);
        assert_eq!(budget.usage().files, 0);
    }

    /// Goal: a job that keeps thousands of removed files mapped takes so many descriptors of ours and no more.
    #[test]
    fn what_is_on_its_way_out_is_bounded() {
        let budget = Budget::new(100, 1 << 20);
        let fd = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        for n in 0..LEAVING_MAX {
            assert!(!budget.is_leaving_full(), "{n}");
            budget.reserve(0, 1).unwrap().leave(fd.clone());
        }
        assert!(budget.is_leaving_full() && budget.usage().files == LEAVING_MAX as u64);
    }

    /// Another test that starts a program has a copy of everything for a moment.
    fn wait_for(done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn adopted_space_may_be_too_much_and_then_nothing_is_reserved() {
        let budget = Budget::new(100, 10);
        let adopted = budget.adopt(150, 1);
        assert!(budget.is_over());
        assert!(budget.reserve(1, 0).is_err());
        drop(adopted);
        assert!(!budget.is_over());
    }

    proptest! {
        // BUG-051: whatever is taken, grown and given back, the total is the sum of what is held.
        #[test]
        fn bug_051_the_total_is_always_the_sum(ops in prop::collection::vec((0u8..4, 0u64..50), 0..200)) {
            let budget = Budget::new(200, 10);
            let mut held: Vec<Reservation> = Vec::new();
            for (op, n) in ops {
                match op {
                    0 | 1 => held.extend(budget.reserve(n, 1).ok()),
                    2 => { if let Some(r) = held.last_mut() { r.shrink(n) } }
                    _ => { if !held.is_empty() { held.swap_remove(n as usize % held.len()); } }
                }
                let usage = budget.usage();
                prop_assert_eq!(usage.bytes, held.iter().map(Reservation::bytes).sum::<u64>());
                prop_assert!(usage.bytes <= 200 && usage.files <= 10);
            }
            held.clear();
            prop_assert_eq!(budget.usage().bytes, 0);
        }
    }
}
