//! The budget: never exceeded, not for a moment, and nothing of it lost.

use crate::{SMALL, explore};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;
use std::sync::Arc;
use warmfs::store::Budget;

const BYTES: u64 = 10;
const FILES: u64 = 2;

/// Goal: three threads that take, join, shrink and give back, and one that looks on: what they hold, counted by
/// themselves, and what the budget says stay within it, and in the end all is back. Their own count is raised after
/// taking and lowered before giving back, so that it is never more than the truth.
fn never_exceeded_and_all_given_back() {
    let budget = Budget::new(BYTES, FILES);
    let held = Arc::new(AtomicU64::new(0));
    let takers = (0..3u64).map(|n| {
        let (budget, held) = (budget.clone(), held.clone());
        thread::spawn(move || {
            let Ok(mut mine) = budget.reserve(4, 1) else { return };
            assert!(held.fetch_add(4, SeqCst) + 4 <= BYTES, "more is held than there is");
            if n == 0
                && let Ok(more) = budget.reserve(3, 0)
            {
                assert!(held.fetch_add(3, SeqCst) + 3 <= BYTES, "more is held than there is");
                mine.absorb(more);
            }
            if n == 1 {
                held.fetch_sub(2, SeqCst);
                mine.shrink(2);
            }
            held.fetch_sub(mine.bytes(), SeqCst);
        })
    });
    let takers: Vec<_> = takers.collect();
    for _ in 0..3 {
        let usage = budget.usage();
        assert!(usage.bytes <= BYTES && usage.files <= FILES, "{usage:?}");
        assert!(!budget.is_over());
    }
    takers.into_iter().for_each(|t| t.join().unwrap());
    let usage = budget.usage();
    assert_eq!((usage.bytes, usage.files), (0, 0));
}

#[test]
fn the_budget_is_never_exceeded() {
    explore("schedules: budget", &SMALL, never_exceeded_and_all_given_back);
}
