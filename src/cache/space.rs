//! Room for a fill: a reservation, by evicting what the policy names until there is enough or nothing more to evict.

use super::Cache;
use crate::store::budget::Refusal;
use crate::store::{CacheFile, Reservation};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The file system is asked for its free space at most this often; in between, what we reserve is subtracted.
const FREE_INTERVAL: Duration = Duration::from_millis(500);

impl Cache {
    /// Takes `bytes` and `files` from the budget, evicting as the policy says. `None` if there is no room to be had.
    pub(super) fn make_room(&self, bytes: u64, files: u64) -> Option<Reservation> {
        if bytes > self.settings.bytes_max {
            return None;
        }
        self.look_at_free_space(false);
        loop {
            let refusal = match self.budget.reserve(bytes, files) {
                Ok(reservation) => return Some(reservation),
                Err(refusal) => refusal,
            };
            if !self.policy.lock().makes_room() || !self.evict_one() {
                return None;
            }
            if refusal == Refusal::FreeSpace {
                self.look_at_free_space(true);
            }
        }
    }

    /// Evicts until the budget holds, as after a restart with a smaller one.
    pub(super) fn shrink_to_budget(&self) {
        while self.budget.is_over() && self.evict_one() {}
    }

    fn evict_one(&self) -> bool {
        let Some(file) = self.choose_victim() else { return false };
        self.stats.evictions.inc();
        self.discard(&file);
        true
    }

    /// Takes the victim out of the map; nobody can begin to use it any more.
    fn choose_victim(&self) -> Option<Arc<CacheFile>> {
        let mut policy = self.policy.lock();
        let mut chosen = None;
        let id = policy.victim(&mut |id| match self.files.get(id) {
            // Known to the policy and gone from the map: being dropped by another thread right now.
            None => false,
            Some(file) if file.retire() => {
                chosen = Some(file);
                false
            }
            Some(_) => true,
        })?;
        policy.removed(id);
        match chosen {
            Some(file) => self.files.remove_exactly(&file).then_some(file),
            None => {
                drop(policy);
                self.choose_victim()
            }
        }
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
