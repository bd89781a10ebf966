//! The bandwidth of the source: one line that all reads share, byte for byte.
//!
//! A clock rather than a bucket of tokens: the line is taken until some instant, and a piece is sent from then on, or
//! from when it is ready. So the rate holds exactly while the line is busy, there is nothing to refill, and idle time
//! buys no burst. Long reads are cut into pieces, each of which queues anew, so that parallel reads get equal shares.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How late a thread may be woken without the line being thought idle for it.
const LATENESS: Duration = Duration::from_millis(5);

/// What an idle line gives in advance: the time that a reader takes to come back with its next request.
const TURNAROUND: Duration = Duration::from_micros(200);

/// A piece takes this much of a second, 2 ms.
const PIECES_PER_SECOND: u64 = 500;

/// The shared line.
pub(super) struct Bucket {
    bytes_per_second: u64,
    taken_until: Mutex<Instant>,
}

impl Bucket {
    /// A line of that many bytes per second, at least one.
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), taken_until: Mutex::new(Instant::now()) }
    }

    /// Sends `bytes` that were ready at `ready`; returns when the last one is through. `wait` sleeps until an instant
    /// and says whether to go on; when not, this returns `false` at once.
    pub(super) fn send(&self, bytes: u64, mut ready: Instant, wait: impl Fn(Instant) -> bool) -> bool {
        let piece = (self.bytes_per_second / PIECES_PER_SECOND).max(4096);
        let mut left = bytes;
        while left > 0 {
            let now = left.min(piece);
            ready = self.book(now, ready);
            if !wait(ready) {
                return false;
            }
            left -= now;
        }
        true
    }

    /// Takes the line for so many bytes; returns when they are through.
    fn book(&self, bytes: u64, ready: Instant) -> Instant {
        let now = Instant::now();
        let earliest = ready.max(now.checked_sub(LATENESS).unwrap_or(now));
        let earliest = earliest.checked_sub(TURNAROUND).unwrap_or(earliest);
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let duration = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut taken_until = self.taken_until.lock();
        *taken_until = earliest.max(*taken_until) + duration;
        *taken_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn sleep_until(instant: Instant) -> bool {
        std::thread::sleep(instant.saturating_duration_since(Instant::now()));
        true
    }

    #[test]
    fn the_rate_holds_in_parallel_and_is_shared() {
        let line = Bucket::new(10_000_000);
        let sent: [AtomicU64; 4] = Default::default();
        let start = Instant::now();
        std::thread::scope(|s| {
            for (i, sent) in sent.iter().enumerate() {
                // Readers of different appetite: the greedy ones must not get more.
                let size = 8192 << (2 * i);
                let line = &line;
                s.spawn(move || {
                    while start.elapsed() < Duration::from_millis(500) {
                        line.send(size, Instant::now(), sleep_until);
                        sent.fetch_add(size, Ordering::Relaxed);
                    }
                });
            }
        });
        let seconds = start.elapsed().as_secs_f64();
        let sent: Vec<f64> = sent.iter().map(|n| n.load(Ordering::Relaxed) as f64).collect();
        let rate = sent.iter().sum::<f64>() / seconds;
        // Never faster; slower only as a busy machine makes it.
        assert!((0.5..1.02).contains(&(rate / 10e6)), "{rate} B/s, {sent:?}");
        // Pieces are 20 kB, so that readers of 32 kB and more have the same share within a request of theirs.
        assert!(sent[3] < 1.6 * sent[2], "{sent:?}");
    }

    #[test]
    fn idle_time_buys_no_burst() {
        let line = Bucket::new(1_000_000);
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        assert!(line.send(50_000, start, sleep_until));
        assert!(start.elapsed() >= Duration::from_millis(49), "{:?}", start.elapsed());
    }

    #[test]
    fn it_ends_when_told_to() {
        let line = Bucket::new(1);
        assert!(!line.send(1_000_000, Instant::now(), |_| false));
        assert!(line.send(0, Instant::now(), |_| false));
    }
}
