//! Keeps one worker awake while files are being opened.
//!
//! A warm open costs one round trip to us, and most of that is waking a thread that sleeps on another core (40 us of 50
//! on our machines). While opens come in quick succession one worker therefore asks for the next request again and
//! again instead of sleeping: its descriptor of /dev/fuse is made non-blocking, and the FUSE library's loop asks again on
//! EAGAIN. When the opens stop it sleeps again within milliseconds. A core is spent only while a job opens thousands of
//! files a second, and only where one is to spare: clients that keep every core busy find the worker awake anyway, and
//! would only lose time to it.

use crate::stats::Stats;
use parking_lot::{Condvar, Mutex};
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Opens in one [`WINDOW`] that are worth a core: 2,000 a second.
const OPENS_MIN: u64 = 10;
/// Opens in one [`WINDOW`] and core at which the clients keep every core busy: 15,000 a second. Measured on two cores: one
/// client opens 22,000 files a second with a worker awake, 14,000 without; four open 42,000 without and 38,000 with.
const OPENS_MAX_PER_CORE: u64 = 75;
/// How often is looked while the worker is awake, and the time in which opens are counted.
const WINDOW: Duration = Duration::from_millis(5);

/// Watches the opens and keeps the worker awake or lets it sleep.
pub struct Spin {
    fuse: Arc<OwnedFd>,
    stats: Arc<Stats>,
    started: Instant,
    opens_max: u64,
    /// The window that is being counted, and the number of opens at its start.
    window: AtomicU64,
    opens_before: AtomicU64,
    awake: Mutex<bool>,
    changed: Condvar,
}

impl Spin {
    /// For the worker that reads `fuse`. `None` where a core cannot be spared.
    pub fn new(fuse: Arc<OwnedFd>, stats: Arc<Stats>) -> Option<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        if cores < 2 {
            return None;
        }
        let spin = Arc::new(Self {
            fuse,
            stats,
            started: Instant::now(),
            opens_max: OPENS_MAX_PER_CORE * cores,
            window: AtomicU64::new(0),
            opens_before: AtomicU64::new(0),
            awake: Mutex::new(false),
            changed: Condvar::new(),
        });
        let weak = Arc::downgrade(&spin);
        let thread = std::thread::Builder::new().name("warmfs-spin".into());
        thread.spawn(move || watch(&weak)).ok()?;
        Some(spin)
    }

    /// A file is being opened. Costs a clock and two loads, and a lock once per window at most.
    pub fn note_open(&self) {
        let window = (self.started.elapsed().as_micros() / WINDOW.as_micros()) as u64;
        if self.window.swap(window, Ordering::Relaxed) == window {
            return;
        }
        let opens = self.stats.opens.get();
        let since = opens - self.opens_before.swap(opens, Ordering::Relaxed);
        if (OPENS_MIN..self.opens_max).contains(&since) {
            let mut awake = self.awake.lock();
            if !*awake {
                *awake = self.set_nonblocking(true);
                self.changed.notify_one();
            }
        }
    }

    fn set_nonblocking(&self, on: bool) -> bool {
        let flags = if on { OFlags::RDWR | OFlags::NONBLOCK } else { OFlags::RDWR };
        rustix::fs::fcntl_setfl(&*self.fuse, flags).is_ok()
    }
}

/// Lets the worker sleep again when the opens have stopped. Sleeps itself as long as the worker does.
fn watch(spin: &Weak<Spin>) {
    let mut opens = 0;
    loop {
        let Some(spin) = spin.upgrade() else { return };
        let mut awake = spin.awake.lock();
        if !*awake {
            // Not for ever: the session may have ended.
            spin.changed.wait_for(&mut awake, Duration::from_secs(3600));
            opens = spin.stats.opens.get();
            continue;
        }
        spin.changed.wait_for(&mut awake, WINDOW);
        let now = spin.stats.opens.get();
        if !(OPENS_MIN / 2..spin.opens_max).contains(&(now - opens)) {
            *awake = false;
            spin.set_nonblocking(false);
        }
        opens = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_awake(fuse: &OwnedFd) -> bool {
        rustix::fs::fcntl_getfl(fuse).unwrap().contains(OFlags::NONBLOCK)
    }

    fn wait_until(what: &str, done: impl Fn() -> bool) {
        let since = Instant::now();
        while !done() {
            assert!(since.elapsed() < Duration::from_secs(5), "waited in vain until {what}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    #[test]
    fn the_worker_is_awake_while_opens_come_and_sleeps_soon_after() {
        let (fuse, _other) = rustix::pipe::pipe().unwrap();
        let (fuse, stats) = (Arc::new(fuse), Arc::new(Stats::default()));
        let Some(spin) = Spin::new(fuse.clone(), stats.clone()) else { return };
        spin.note_open();
        assert!(!is_awake(&fuse), "one open is no reason");
        wait_until("it is awake", || {
            (0..4).for_each(|_| stats.opens.inc());
            spin.note_open();
            is_awake(&fuse)
        });
        wait_until("it sleeps", || !is_awake(&fuse));
    }
}
