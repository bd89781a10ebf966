//! The concurrent core under schedules that a seed chooses: who goes next is decided at every lock, atomic, notification
//! and time-out, so that a race is a matter of patience and not of luck. `scripts/schedules` builds and runs this; an
//! ordinary build has none of it. The code under test is the library itself, over [`warmfs::types::sync`].
//!
//! What this cannot see: shuttle's atomics are sequentially consistent whatever ordering they are asked for, and the
//! kernel's side is played by the tests.
// Helpers may fail a test as tests may.
#![allow(clippy::unwrap_used)]

mod budget;
#[path = "../figures.rs"]
mod figures;
mod files;
mod flights;
mod nodes;
mod pool;
mod watch;
mod whole;

use figures::Figure;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

/// How many schedules a scenario gets in the tiers `check`, `nightly` and `release`.
pub struct Amount(u64, u64, u64);

/// A scenario of microseconds.
pub const SMALL: Amount = Amount(10_000, 100_000, 200_000);
/// One with a cache directory on the disk: milliseconds.
pub const WHOLE: Amount = Amount(600, 20_000, 50_000);

/// Runs `scenario` under schedules: half of them random, half by PCT with three changes of priority, which finds what
/// needs a long stay in a wrong place. A scenario that fails, or in which somebody waits for ever, fails the test.
pub fn explore(what: &str, amount: &Amount, scenario: fn()) {
    let seed = figures::seed();
    let total = figures::scale(amount.0, amount.1, amount.2) as usize;
    let outcome = std::panic::catch_unwind(|| {
        let random = run(RandomScheduler::new_from_seed(seed, total / 2), scenario);
        random + run(PctScheduler::new_from_seed(seed, 3, total / 2), scenario)
    });
    let done = *outcome.as_ref().unwrap_or(&total) as u64;
    Figure::new("R7", what, done, u64::from(outcome.is_err())).seed(seed).report();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn run(scheduler: impl Scheduler + 'static, scenario: fn()) -> usize {
    let mut config = Config::new();
    // The index's commits need more than the 32 KiB of the default.
    config.stack_size = 1 << 20;
    // The seed is enough to run it again.
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(scenario)
}

/// Goal: the explorer itself finds a lost update, or nothing here means anything.
#[test]
#[should_panic(expected = "lost update")]
fn a_lost_update_is_found() {
    run(RandomScheduler::new_from_seed(1, 1000), || {
        use shuttle::sync::atomic::{AtomicU32, Ordering};
        let n = std::sync::Arc::new(AtomicU32::new(0));
        let again = n.clone();
        let add = move || again.store(again.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
        let other = shuttle::thread::spawn(add.clone());
        add();
        other.join().unwrap();
        assert_eq!(n.load(Ordering::SeqCst), 2, "lost update");
    });
}
