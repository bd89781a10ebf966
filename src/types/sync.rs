//! The locks, atomics and threads of the concurrent core, under one name, so that the very same code also runs where
//! another chooses who goes next.
//!
//! Normally these are `parking_lot`'s locks and the standard library's atomics and threads. A build with the feature
//! `schedules` (`scripts/schedules`) puts shuttle's in their place, which run one thread at a time and switch at each use of
//! them, by a schedule that a seed gives again. Promise: what is named here behaves as parking_lot does, no poisoning
//! included. Who holds one of these locks must not hold one of another kind across it: the explorer cannot see that one.

#[cfg(not(feature = "schedules"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};
#[cfg(not(feature = "schedules"))]
pub use std::{sync::atomic, thread};

#[cfg(feature = "schedules")]
pub use explored::{Condvar, Mutex, MutexGuard, WaitTimeoutResult};
#[cfg(feature = "schedules")]
pub use shuttle::{sync::atomic, thread};

/// shuttle's locks in the shape of parking_lot's.
#[cfg(feature = "schedules")]
mod explored {
    use shuttle::rand::Rng;
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;
    use std::time::Duration;

    /// As `parking_lot::Mutex`.
    #[derive(Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    /// As `parking_lot::MutexGuard`.
    pub struct MutexGuard<'a, T> {
        lock: &'a Mutex<T>,
        /// `None` only while a condition is waited for.
        held: Option<shuttle::sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        /// Waits for it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            MutexGuard { lock: self, held: Some(held) }
        }

        /// What is in it; nobody else can have it.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl<T> MutexGuard<'_, T> {
        /// Does `work` without the lock.
        pub fn unlocked<R>(guard: &mut Self, work: impl FnOnce() -> R) -> R {
            drop(guard.held.take());
            let result = work();
            guard.held = guard.lock.lock().held.take();
            result
        }
    }

    const HELD: &str = "given up only inside a wait";

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.held.as_deref().expect(HELD)
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.held.as_deref_mut().expect(HELD)
        }
    }

    /// As `parking_lot::WaitTimeoutResult`.
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        /// Whether the time was up.
        pub fn timed_out(&self) -> bool {
            self.0
        }
    }

    /// As `parking_lot::Condvar`. There is no clock: whether the time is up before a notification is a choice of the
    /// schedule.
    #[derive(Default)]
    pub struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        /// Nobody waits.
        pub fn new() -> Self {
            Self::default()
        }

        /// Wakes one.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Waits for a notification.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.held.take().expect(HELD);
            guard.held = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
        }

        /// The same, or until the time is up.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) -> WaitTimeoutResult {
            let time_is_up = shuttle::rand::thread_rng().gen_bool(0.5);
            if time_is_up {
                drop(guard.held.take());
                shuttle::thread::yield_now();
                guard.held = guard.lock.lock().held.take();
            } else {
                self.wait(guard);
            }
            WaitTimeoutResult(time_is_up)
        }

        /// Waits while `condition` holds, or until the time is up.
        pub fn wait_while_for<T>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            mut condition: impl FnMut(&mut T) -> bool,
            time: Duration,
        ) -> WaitTimeoutResult {
            while condition(&mut **guard) {
                if self.wait_for(guard, time).timed_out() {
                    return WaitTimeoutResult(true);
                }
            }
            WaitTimeoutResult(false)
        }
    }
}
