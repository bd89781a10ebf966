//! Room for a fill: a reservation, by evicting what the policy names until there is enough, or until it finds that the
//! file is not worth it.

use super::Cache;
use super::warm::jobs::is_spared;
use crate::policy::Subject;
use crate::store::budget::Refusal;
use crate::store::{Reservation, disk_bytes};
use crate::types::CHUNK_BYTES;
use crate::types::sync::atomic::Ordering;
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The file system is asked for its free space at most this often; in between, what we reserve is subtracted.
const FREE_INTERVAL: Duration = Duration::from_millis(500);

/// Where the room for a file, or for a part of one, comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// From what is free, and from what the policy gives up for it.
    Made,
    /// From what is free: nobody has asked for it.
    Spare,
    /// From cached files that are used later, as an order tells.
    OfLaterFiles,
}

/// For whom something is evicted.
#[derive(Clone, Copy)]
enum For<'a> {
    /// A file that somebody asks for, and its path.
    File(&'a Subject, &'a Path),
    /// One that an order tells of.
    Ahead(&'a Path),
    /// The budget: the cache must become smaller.
    Budget,
}

impl Cache {
    /// Room for the file at this path, which a warm-up wants or a reader, from where it may come.
    pub(super) fn find_room(
        &self,
        room: Room,
        (file, path): (&Subject, &Path),
        bytes: u64,
        files: u64,
        warm_job: Option<NonZeroU32>,
    ) -> Option<Reservation> {
        match room {
            // What an operator wants needs no reason.
            Room::Made => self.make_room(warm_job.is_none().then_some((file, path)), bytes, files, warm_job),
            Room::Spare => self.room_to_spare(bytes, files),
            Room::OfLaterFiles => self.make_room_ahead(path, bytes, files),
        }
    }

    /// Takes `bytes` and `files` from the budget for `candidate`, evicting as the policy says. Without a candidate, for
    /// what an operator wants, the least of all goes; for a warm-up nothing that warm-ups are at. `None` if there is no
    /// room to be had.
    pub(super) fn make_room(
        &self,
        candidate: Option<(&Subject, &Path)>,
        bytes: u64,
        files: u64,
        warm_job: Option<NonZeroU32>,
    ) -> Option<Reservation> {
        let whom = candidate.map_or(For::Budget, |(file, path)| For::File(file, path));
        self.make_room_for(whom, bytes, files, warm_job)
    }

    /// The same for a file that an order tells of: only files go that are used later.
    pub(super) fn make_room_ahead(&self, path: &Path, bytes: u64, files: u64) -> Option<Reservation> {
        self.make_room_for(For::Ahead(path), bytes, files, None)
    }

    fn make_room_for(
        &self,
        whom: For<'_>,
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
            if self.budget.is_leaving_full() || !self.evict_one(whom, warm_job) {
                return None;
            }
            if refusal == Refusal::FreeSpace {
                self.look_at_free_space(true);
            }
        }
    }

    /// Writes to the index, which grows by that: there is room before, and it counts after. `new_bytes` come to stay;
    /// `copied_bytes` are pages that take the place of others, which are free after that: the index has room for as many as it
    /// ever had to copy. What that takes beyond what is always kept free for it is made free for the moment.
    pub(super) fn grow_index<T>(&self, new_bytes: u64, copied_bytes: u64, write: impl FnOnce() -> T) -> T {
        let had = self.index_copied_max.fetch_max(copied_bytes, Ordering::Relaxed);
        let more = new_bytes + copied_bytes.saturating_sub(had);
        let beyond = more.saturating_sub(self.budget.overhead_slack_bytes());
        let room = (beyond > 0).then(|| self.make_room(None, beyond, 0, None)).flatten();
        let written = write();
        let overhead = self.dir.overhead_bytes();
        match room {
            Some(room) => self.budget.set_overhead_in_place_of(overhead, room),
            None => self.budget.set_overhead(overhead),
        }
        self.shrink_to_budget();
        written
    }

    /// Takes `bytes` and `files` from the budget if they are there: nothing is evicted for what nobody has asked for.
    pub(super) fn room_to_spare(&self, bytes: u64, files: u64) -> Option<Reservation> {
        self.look_at_free_space(false);
        self.budget.reserve(bytes, files).ok()
    }

    /// Whether there is room for the start of a large file, or the policy would make some: one that it refuses is not
    /// begun.
    pub(super) fn admits(&self, candidate: &Subject, path: &Path) -> bool {
        let start = disk_bytes(candidate.bytes.min(CHUNK_BYTES));
        self.look_at_free_space(false);
        self.budget.reserve(start, 1).is_ok()
            || self.policy.lock().victim_for(candidate, path.as_os_str().as_bytes(), &mut |_| false).is_some()
    }

    /// Evicts until the budget holds, as after a restart with a smaller one.
    pub(super) fn shrink_to_budget(&self) {
        while self.budget.is_over() && self.evict_one(For::Budget, None) {}
    }

    /// Evicts what the policy names for this one. `false` if it names nothing.
    fn evict_one(&self, whom: For<'_>, warm_job: Option<NonZeroU32>) -> bool {
        let Some(spared) = self.warms.spared_by(warm_job) else { return false };
        let (file, chosen) = {
            let mut policy = self.policy.lock();
            let mut chosen = None;
            let mut in_use = |id| match self.files.get(id) {
                Some(file) if is_spared(&file, &spared) => true,
                Some(file) if file.retire() => {
                    chosen = Some(file);
                    false
                }
                Some(_) => true,
                None => false,
            };
            let id = match whom {
                For::File(file, path) => policy.victim_for(file, path.as_os_str().as_bytes(), &mut in_use),
                For::Ahead(path) => policy.victim_ahead(path.as_os_str().as_bytes(), &mut in_use),
                For::Budget => policy.victim(None, &mut in_use),
            };
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
