//! How fast a warm-up goes: the limit that it keeps and the figure that it shows. Pure; the caller has the clock.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

/// What was not fetched in this time may be made up for: threads wake a little late, and without it each time would be
/// lost to the rate.
const CREDIT: Duration = Duration::from_millis(50);

/// A limit in bytes a second that several threads keep together.
pub struct Pace {
    bytes_per_s: NonZeroU64,
    /// Up to here the time is spoken for.
    booked: Duration,
}

impl Pace {
    /// Nothing is booked yet.
    pub fn new(bytes_per_s: NonZeroU64) -> Self {
        Self { bytes_per_s, booked: Duration::ZERO }
    }

    /// Books `bytes` that are about to be fetched at `now`, and says until when they last: before that nothing more is to
    /// be fetched by the same thread. Both since the same moment.
    pub fn book(&mut self, now: Duration, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s.get());
        let cost = Duration::from_nanos(nanos.try_into().unwrap_or(u64::MAX));
        self.booked = self.booked.max(now.saturating_sub(CREDIT)).saturating_add(cost);
        self.booked
    }
}

/// The rate is that of so long.
const WINDOW: Duration = Duration::from_secs(10);
/// Time between two samples.
const SAMPLE: Duration = Duration::from_millis(250);

/// Measures how fast it goes now.
pub struct Meter {
    samples: VecDeque<(Duration, u64)>,
}

impl Default for Meter {
    /// Nothing was done at the time zero.
    fn default() -> Self {
        Self { samples: VecDeque::from([(Duration::ZERO, 0)]) }
    }
}

impl Meter {
    /// `bytes` were done in all at `now`; gives the bytes a second over the last ten seconds.
    pub fn rate(&mut self, now: Duration, bytes: u64) -> u64 {
        while self.samples.len() > 1 && self.samples[1].0 + WINDOW <= now {
            self.samples.pop_front();
        }
        let (since, before) = self.samples[0];
        if self.samples.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= SAMPLE) {
            self.samples.push_back((now, bytes));
        }
        let took = now.saturating_sub(since).as_secs_f64();
        if took > 0.0 { (bytes.saturating_sub(before) as f64 / took) as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(bytes_per_s: u64) -> Pace {
        Pace::new(NonZeroU64::new(bytes_per_s).unwrap())
    }

    /// Steps of `bytes` that take `took` each by themselves, until `end`; gives the bytes a second.
    fn run(pace: &mut Pace, bytes: u64, took: Duration, late: Duration, end: Duration) -> u64 {
        let (mut now, mut done) = (Duration::ZERO, 0);
        while now < end {
            let due = pace.book(now, bytes);
            done += bytes;
            now += took;
            if now < due {
                now = due + late;
            }
        }
        (done as f64 / now.as_secs_f64()) as u64
    }

    #[test]
    fn a_rate_is_kept_within_a_few_percent() {
        let (ms, end) = (Duration::from_millis, Duration::from_secs(10));
        for bytes in [10_000, 1_000_000, 8 << 20] {
            for late in [Duration::ZERO, Duration::from_micros(300)] {
                let got = run(&mut pace(100_000_000), bytes, Duration::from_micros(50), late, end);
                assert!((97_000_000..=103_000_000).contains(&got), "{bytes} {late:?}: {got}");
            }
        }
        let slow = run(&mut pace(100_000_000), 1_000_000, ms(20), Duration::ZERO, end);
        assert!((49_000_000..=51_000_000).contains(&slow), "a source that is slower is not held up: {slow}");
    }

    #[test]
    fn a_pause_is_not_made_up_for() {
        let mut pace = pace(1000);
        assert_eq!(pace.book(Duration::ZERO, 1000), Duration::from_secs(1));
        assert_eq!(pace.book(Duration::from_secs(60), 1000), Duration::from_secs(61) - CREDIT);
    }

    #[test]
    fn no_figure_overflows() {
        let mut pace = pace(1);
        pace.book(Duration::ZERO, u64::MAX);
        assert!(pace.book(Duration::MAX, u64::MAX) > Duration::from_secs(1));
        assert_eq!(Meter::default().rate(Duration::ZERO, 7), 0);
    }

    #[test]
    fn the_meter_shows_the_last_ten_seconds() {
        let mut meter = Meter::default();
        for ms in 0..100 {
            let now = Duration::from_millis(ms * 200);
            // A megabyte a second, and after ten seconds two.
            let done = ms * 200_000 + ms.saturating_sub(50) * 200_000;
            let rate = meter.rate(now, done);
            match ms {
                40 => assert_eq!(rate, 1_000_000),
                99 => assert!((1_900_000..=2_000_000).contains(&rate), "{rate}"),
                _ => {}
            }
        }
        assert!(meter.samples.len() < 50);
    }
}
