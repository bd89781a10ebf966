//! How each data set is used: how densely, and whether still.

use crate::types::GroupId;
use std::collections::HashMap;

/// Nobody has used a data set for so long that its job has moved on: so many times its own longest pause...
const DEAD_GAPS: f64 = 2.5;
/// ...and as many events as this share of the cache's files, or of its own, whichever is more...
const DEAD_SHARE: f64 = 0.02;
const DEAD_EVENTS_MIN: f64 = 50.0;
/// ...and this long: a checkpoint is no end.
const DEAD_MS_MIN: u64 = 3000;
/// A pause longer than this many times all files that are known is not one that the data set is known by: it has begun
/// anew.
const GAP_FILES_MAX: f64 = 2.0;
/// What a request to the source costs besides its bytes, in bytes: 2 ms at 64 MB/s. A small file is worth more per byte.
const REQUEST_BYTES: f64 = 128.0 * 1024.0;

/// One data set.
struct Activity {
    files: u64,
    uses: f64,
    bytes: f64,
    since_tick: u64,
    last_event: u64,
    last_ms: u64,
    gap_events_max: u64,
}

/// All data sets, and the two clocks: uses, and events, which are uses and files that are brought unused.
#[derive(Default)]
pub struct Activities {
    groups: HashMap<GroupId, Activity>,
    tick: u64,
    events: u64,
    now_ms: u64,
}

impl Activities {
    fn group(&mut self, id: GroupId) -> &mut Activity {
        let (since_tick, last_event, last_ms) = (self.tick, self.events, self.now_ms);
        self.groups.entry(id).or_insert_with(|| Activity {
            files: 0,
            uses: 0.0,
            bytes: 0.0,
            since_tick,
            last_event,
            last_ms,
            gap_events_max: 0,
        })
    }

    /// A use of a file of `bytes`.
    pub fn used(&mut self, id: GroupId, bytes: u64, now_ms: u64) {
        self.tick += 1;
        self.now_ms = self.now_ms.max(now_ms);
        self.touch(id);
        let tick = self.tick;
        let group = self.group(id);
        group.uses += 1.0;
        group.bytes += bytes as f64;
        // The last eight passes or so count; what was before fades.
        if group.uses > 16.0 * group.files as f64 + 1000.0 {
            group.uses /= 2.0;
            group.bytes /= 2.0;
            group.since_tick = tick - (tick - group.since_tick) / 2;
        }
    }

    /// A file is brought that nobody has used: somebody wants the data set all the same.
    pub fn touch(&mut self, id: GroupId) {
        self.events += 1;
        let (events, now_ms, tick) = (self.events, self.now_ms, self.tick);
        let gap_max = GAP_FILES_MAX * self.files().max(1) as f64;
        let group = self.group(id);
        let gap = events - group.last_event;
        if gap as f64 > gap_max {
            *group = Activity { uses: 0.0, bytes: 0.0, since_tick: tick, gap_events_max: 0, ..*group };
        } else {
            group.gap_events_max = group.gap_events_max.max(gap);
        }
        (group.last_event, group.last_ms) = (events, now_ms);
    }

    /// The data set has so many files more.
    pub fn found_files(&mut self, id: GroupId, count: u64) {
        self.group(id).files += count;
    }

    /// Whether its job has moved on, as far as a cache of so many files can tell.
    pub fn is_dead(&self, id: GroupId, cache_files: f64) -> bool {
        let Some(group) = self.groups.get(&id) else { return true };
        let idle = (self.events - group.last_event) as f64;
        idle > DEAD_GAPS * group.gap_events_max as f64
            && idle > DEAD_SHARE * cache_files + DEAD_EVENTS_MIN
            && idle > DEAD_SHARE * group.files as f64
            && self.now_ms.saturating_sub(group.last_ms) >= DEAD_MS_MIN
    }

    /// What a byte of the data set is worth in the cache: how often it is used, each time sparing a request and itself.
    pub fn worth(&self, id: GroupId) -> f64 {
        let Some(group) = self.groups.get(&id) else { return 0.0 };
        let rate = group.uses / group.files.max(1) as f64 / (self.tick - group.since_tick + 1) as f64;
        rate * request_share(group.mean_bytes())
    }

    /// For how many uses of the mount the data set has been in use.
    pub fn uses_since(&self, id: GroupId) -> u64 {
        self.groups.get(&id).map_or(0, |group| self.tick - group.since_tick)
    }

    /// Bytes of the data sets that are in use.
    pub fn live_bytes(&self, cache_files: f64) -> u64 {
        let live = self.groups.iter().filter(|(id, _)| !self.is_dead(**id, cache_files));
        live.map(|(_, group)| (group.files as f64 * group.mean_bytes()) as u64).sum()
    }

    /// Mean size of a use, bytes; at least 1.
    pub fn mean_bytes(&self) -> f64 {
        let sum = |of: fn(&Activity) -> f64| self.groups.values().map(of).sum::<f64>();
        (sum(|g| g.bytes) / sum(|g| g.uses).max(1.0)).max(1.0)
    }

    fn files(&self) -> u64 {
        self.groups.values().map(|group| group.files).sum()
    }

    /// What was taken for two data sets is one.
    pub fn regrouped(&mut self, from: GroupId, into: GroupId) {
        let Some(old) = self.groups.remove(&from) else { return };
        let group = self.group(into);
        group.files += old.files;
        group.uses += old.uses;
        group.bytes += old.bytes;
        group.since_tick = group.since_tick.min(old.since_tick);
        group.last_event = group.last_event.max(old.last_event);
        group.last_ms = group.last_ms.max(old.last_ms);
    }
}

impl Activity {
    fn mean_bytes(&self) -> f64 {
        (self.bytes / self.uses.max(1.0)).max(1.0)
    }
}

/// How many times its own cost per byte a file of this size spares.
pub fn request_share(bytes: f64) -> f64 {
    (REQUEST_BYTES + bytes) / bytes.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRAIN: GroupId = GroupId(1);
    const VAL: GroupId = GroupId(2);

    fn read(all: &mut Activities, id: GroupId, count: u64, bytes: u64) {
        for _ in 0..count {
            let now_ms = all.now_ms + 10;
            all.used(id, bytes, now_ms);
        }
    }

    #[test]
    fn a_validation_set_between_two_epochs_is_alive_and_one_that_nobody_reads_is_not() {
        let mut all = Activities::default();
        all.found_files(TRAIN, 5000);
        all.found_files(VAL, 300);
        for _ in 0..3 {
            read(&mut all, TRAIN, 5000, 1000);
            read(&mut all, VAL, 300, 1000);
        }
        read(&mut all, TRAIN, 4900, 1000);
        assert!(!all.is_dead(VAL, 1000.0) && !all.is_dead(TRAIN, 1000.0));
        read(&mut all, TRAIN, 9000, 1000);
        assert!(all.is_dead(VAL, 1000.0));
        let mut quick = Activities::default();
        quick.found_files(VAL, 300);
        quick.used(VAL, 1, 0);
        (0..1000).for_each(|n| quick.used(TRAIN, 1, n));
        assert!(!quick.is_dead(VAL, 1000.0), "a pause of a second says nothing");
    }

    #[test]
    fn worth_is_by_use_and_by_byte() {
        let mut all = Activities::default();
        all.found_files(TRAIN, 1000);
        all.found_files(VAL, 1000);
        for _ in 0..1000 {
            read(&mut all, TRAIN, 3, 1 << 20);
            read(&mut all, VAL, 1, 1 << 20);
        }
        let ratio = all.worth(TRAIN) / all.worth(VAL);
        assert!((2.9..3.1).contains(&ratio), "{ratio}");
        let mut sizes = Activities::default();
        sizes.found_files(TRAIN, 1000);
        sizes.found_files(VAL, 1000);
        for _ in 0..1000 {
            read(&mut sizes, TRAIN, 1, 4 << 20);
            read(&mut sizes, VAL, 1, 16 << 10);
        }
        assert!(sizes.worth(VAL) > 5.0 * sizes.worth(TRAIN), "a small file spares a request too");
    }
}
