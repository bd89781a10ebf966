//! After how many uses a file comes again, and what a window of recently missed files would gain by that.
//!
//! Under epochs a file comes again after an epoch, and a window gains nothing. Two jobs that read the same files in the
//! same order, one a little behind the other, make every file come again soon: then most of the cache is best a window.

/// Buckets per doubling: a reuse time is known to 12 %.
const PER_DOUBLING: f64 = 6.0;
/// Reuse times up to 2^26 uses.
const BUCKETS: usize = 6 * 26;

/// Shares of the cache that the window may take.
const SHARES: [f64; 10] = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.95];

/// A histogram on a logarithmic scale that forgets slowly.
pub struct ReuseTimes {
    buckets: [f64; BUCKETS],
    /// Of uses that the set did not have: what a window would have to bring. Hot files are in the set, and come again soon.
    outside: [f64; BUCKETS],
    uses: f64,
    set_hits: f64,
    set_byte_uses: f64,
}

/// What the cache is like when the window is chosen.
pub struct Cache {
    /// What it holds, bytes.
    pub bytes: u64,
    /// What the data sets hold that are in use, bytes.
    pub live_bytes: u64,
    /// Mean size of a file that is used, bytes.
    pub mean_bytes: f64,
    /// The share of the window now.
    pub share: f64,
}

impl Default for ReuseTimes {
    fn default() -> Self {
        Self {
            buckets: [0.0; BUCKETS],
            outside: [0.0; BUCKETS],
            uses: 0.0,
            set_hits: 0.0,
            set_byte_uses: 0.0,
        }
    }
}

impl ReuseTimes {
    /// Notes a use: so many uses after the last one of the file, if there was one; whether the set had it, which holds so
    /// many bytes.
    pub fn note(&mut self, since: Option<u32>, in_set: bool, set_bytes: u64) {
        if let Some(since) = since {
            let bucket = (PER_DOUBLING * f64::from(since.max(1)).log2()) as usize;
            let bucket = bucket.min(BUCKETS - 1);
            self.buckets[bucket] += 1.0;
            self.outside[bucket] += f64::from(u8::from(!in_set));
        }
        self.uses += 1.0;
        self.set_hits += f64::from(u8::from(in_set));
        self.set_byte_uses += set_bytes as f64;
    }

    /// What was seen before counts for less from now on.
    pub fn fade(&mut self) {
        self.buckets.iter_mut().chain(&mut self.outside).for_each(|bucket| *bucket *= 0.9);
        for sum in [&mut self.uses, &mut self.set_hits, &mut self.set_byte_uses] {
            *sum *= 0.9;
        }
    }

    /// Uses of files that were used before.
    pub fn reuses(&self) -> f64 {
        self.buckets.iter().sum()
    }

    /// 99 of 100 files that come again do so within this many uses.
    pub fn p99(&self) -> f64 {
        let wanted = 0.99 * self.reuses();
        let mut sum = 0.0;
        let bucket = self.buckets.iter().position(|bucket| {
            sum += bucket;
            sum >= wanted
        });
        ((bucket.unwrap_or(BUCKETS) + 1) as f64 / PER_DOUBLING).exp2()
    }

    /// Of the uses that the set did not have, the share that come within `uses` after the last use of their file.
    fn within(&self, uses: f64) -> f64 {
        let at = PER_DOUBLING * uses.max(1.0).log2();
        let whole = (at as usize).min(BUCKETS - 1);
        let below: f64 = self.outside[..whole].iter().sum();
        (below + (at - whole as f64).min(1.0) * self.outside[whole]) / (self.uses - self.set_hits).max(1.0)
    }

    /// The hit ratio that a window of this share would give: what the set still gives, and of the rest what comes again
    /// before the window has let go of it.
    fn gain(&self, cache: &Cache, share: f64) -> f64 {
        let window = share * cache.bytes as f64;
        let set = cache.bytes as f64 - window;
        let by_size = (set / cache.live_bytes.max(1) as f64).min(0.999);
        let by_measure = match self.set_byte_uses > 0.0 {
            true => (self.set_hits / self.set_byte_uses * set).min(1.0),
            false => 0.0,
        };
        let set_gives = by_size.max(by_measure);
        let stays = window / cache.mean_bytes.max(1.0) / (1.0 - by_size);
        match share > 0.0 {
            true => set_gives + (1.0 - set_gives) * self.within(stays),
            false => set_gives,
        }
    }

    /// The best share for the window; the one that it has unless another is clearly better, because every file that the
    /// window takes in is written to the SSD.
    pub fn best_share(&self, cache: &Cache) -> f64 {
        let now = self.gain(cache, cache.share);
        let gains = SHARES.map(|share| (share, self.gain(cache, share)));
        let best = gains.into_iter().fold((cache.share, now), |a, b| if b.1 > a.1 { b } else { a });
        if best.1 > now * 1.05 + 0.005 { best.0 } else { cache.share }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(share: f64) -> Cache {
        Cache { bytes: 1000 * 100, live_bytes: 4000 * 100, mean_bytes: 100.0, share }
    }

    #[test]
    fn epochs_want_no_window_and_a_job_that_follows_another_does() {
        let mut epochs = ReuseTimes::default();
        for n in 0..20_000 {
            epochs.note(Some(2000 + n % 4000), n % 4 == 0, 100_000);
        }
        assert_eq!(epochs.best_share(&cache(0.0)), 0.0);
        let mut follows = ReuseTimes::default();
        for n in 0..20_000 {
            follows.note(Some(if n % 2 == 0 { 100 } else { 7900 }), n % 4 == 0, 100_000);
        }
        let share = follows.best_share(&cache(0.0));
        assert!((0.05..=0.35).contains(&share), "{share}");
        assert_eq!(follows.best_share(&cache(share)), share, "and stays");
    }

    #[test]
    fn the_longest_of_the_usual_times() {
        let mut times = ReuseTimes::default();
        (0..1000).for_each(|n| times.note(Some(if n < 5 { 1 << 20 } else { 1000 }), false, 0));
        assert!((1000.0..1300.0).contains(&times.p99()), "{}", times.p99());
        times.fade();
        assert!((times.reuses() - 900.0).abs() < 1.0);
    }
}
