//! Room for a fill: a reservation, by evicting what the policy names until there is enough or nothing more to evict.

use super::Cache;
use super::warm::jobs::is_spared;
use crate::store::Reservation;
use crate::store::budget::Refusal;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// The file system is asked for its free space at most this often; in between, what we reserve is subtracted.
const FREE_INTERVAL: Duration = Duration::from_millis(500);

impl Cache {
    /// Takes `bytes` and `files` from the budget, evicting as the policy says; for a warm-up nothing that warm-ups are at.
    /// `None` if there is no room to be had.
    pub(super) fn make_room(
        &self,
        bytes: u64,
        files: u64,
        warm_job: Option<NonZeroU32>,
    ) -> Option<Reservation> {
        if bytes > self.settings.bytes_max {
            return None;
        }
        self.look_at_free_space(false);
        loop {
            let refusal = match self.budget.reserve(bytes, files) {
                Ok(reservation) => return Some(reservation),
                Err(refusal) => refusal,
            };
            // What was removed a moment ago is as good as what would be removed next.
            if self.budget.wait_for_leaving() {
                continue;
            }
            if !self.policy.lock().makes_room() || self.budget.is_leaving_full() || !self.evict_one(warm_job)
            {
                return None;
            }
            if refusal == Refusal::FreeSpace {
                self.look_at_free_space(true);
            }
        }
    }

    /// Evicts until the budget holds, as after a restart with a smaller one.
    pub(super) fn shrink_to_budget(&self) {
        while self.budget.is_over() && self.evict_one(None) {}
    }

    /// Evicts what the policy names. `false` if it names nothing.
    fn evict_one(&self, warm_job: Option<NonZeroU32>) -> bool {
        let Some(spared) = self.warms.spared_by(warm_job) else { return false };
        let (file, chosen) = {
            let mut policy = self.policy.lock();
            let mut chosen = None;
            let id = policy.victim(&mut |id| match self.files.get(id) {
                Some(file) if is_spared(&file, &spared) => true,
                Some(file) if file.retire() => {
                    chosen = Some(file);
                    false
                }
                Some(_) => true,
                None => false,
            });
            let Some(id) = id else { return false };
            policy.removed(id);
            // Under the policy's lock, as every change of both.
            let listed = chosen.as_ref().is_some_and(|file| self.files.remove_exactly(file));
            self.journal.removed(id);
            (chosen, listed)
        };
        if let (Some(file), true) = (file, chosen) {
            self.stats.evictions.inc();
            self.discard(&file);
        }
        true
    }

    fn look_at_free_space(&self, now: bool) {
        {
            let mut seen = self.free_seen.lock();
            if !now && seen.is_some_and(|t| t.elapsed() < FREE_INTERVAL) {
                return;
            }
            *seen = Some(Instant::now());
        }
        if let Ok(free) = self.dir.free() {
            let mut bytes = free.free_bytes.saturating_sub(self.settings.free_floor_bytes);
            if free.free_files.is_some_and(|n| n < FREE_FILES_FLOOR) {
                bytes = 0;
            }
            self.budget.set_free(bytes);
        }
    }
}

/// Inodes of the cache's file system that are left to others.
const FREE_FILES_FLOOR: u64 = 64;
