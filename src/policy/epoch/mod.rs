//! The default policy: under shuffled epochs it keeps what it has, which nothing without prefetch can beat, and it changes
//! what it keeps only for a reason.
//!
//! A file that is missed takes the place of another only if
//!
//! 1. the other is of a data set that nobody uses any more; or
//! 2. it is of a data set that is used less than two thirds as densely, per byte; or
//! 3. the other was not used for longer than files of this mount ever rest; or
//! 4. it is used clearly more often than the other, by more than the one use by which epochs differ.
//!
//! Otherwise it is refused: served from RAM and never written to the SSD. Within a data set the other is drawn at
//! random and never the one that was used longest ago, which under epochs is the one that comes next.
//!
//! One case wants the opposite: jobs that follow each other through the same files, where what was just missed comes
//! again soon. `reuse` sees that, and part of the cache becomes a window by recency.
//!
//! All sizes are bytes. Every decision takes a bounded number of steps but for the data sets, of which there are at most
//! [`GROUPS_MAX`](super::groups::GROUPS_MAX).

mod activity;
mod history;
mod members;
mod reuse;

use super::{Access, Eviction, Subject};
use crate::types::{FileId, GroupId};
use activity::{Activities, request_share};
use history::{History, Seen};
use members::Members;
use reuse::ReuseTimes;

/// The other data set must be used less densely than this share of ours. Two jobs at about one speed leave each other
/// alone.
const DENSITY_RATIO: f64 = 2.0 / 3.0;
/// Our density is not known before our data set was in use for so many uses, as a share of the cache's files.
const DENSITY_AFTER: f64 = 0.25;
/// Members that are drawn to find one to go.
const SAMPLE: usize = 5;
/// Draws before all that were drawn are taken to be in use.
const DRAWS_MAX: usize = 32;
/// A file is dead when it was not used for so many times the longest usual time.
const DEAD_TIMES: f64 = 1.3;
/// Uses by which a file must be ahead of the one whose place it takes.
const FREQ_MARGIN: u8 = 2;

/// See the head of this file.
pub struct Epoch {
    capacity_bytes: u64,
    /// What was cached when there was no room last: the capacity that others leave us.
    full_bytes: Option<u64>,
    members: Members,
    history: History,
    activities: Activities,
    reuse: ReuseTimes,
    window_share: f64,
    tick: u32,
    next_look: u32,
    /// The p99 of the reuse times, once enough were seen.
    usual_uses_max: Option<f64>,
    last_used: Option<FileId>,
    random: u64,
}

impl Default for Epoch {
    fn default() -> Self {
        Self::with_files_max(history::FILES_MAX)
    }
}

impl Epoch {
    /// An empty cache.
    pub fn new() -> Self {
        Self::default()
    }

    /// With memory for so many files, for tests of what happens beyond.
    pub fn with_files_max(files_max: usize) -> Self {
        Self {
            capacity_bytes: u64::MAX,
            full_bytes: None,
            members: Members::default(),
            history: History::with_files_max(files_max),
            activities: Activities::default(),
            reuse: ReuseTimes::default(),
            window_share: 0.0,
            tick: 0,
            next_look: 0,
            usual_uses_max: None,
            last_used: None,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Files of which something is remembered.
    pub fn files_remembered(&self) -> usize {
        self.history.len().0
    }

    /// The share of the cache that is a window by recency; 0 under epochs.
    pub fn window_share(&self) -> f64 {
        self.window_share
    }

    fn cache_bytes(&self) -> u64 {
        self.full_bytes.unwrap_or(self.capacity_bytes).min(self.capacity_bytes)
    }

    fn cache_files(&self) -> f64 {
        self.cache_bytes() as f64 / self.activities.mean_bytes()
    }

    fn window_target(&self) -> u64 {
        (self.window_share * self.cache_bytes() as f64) as u64
    }

    /// Every half cache of uses: what is usual, and how large the window should be.
    fn look_around(&mut self) {
        let cache_files = self.cache_files();
        self.next_look = self.tick.wrapping_add(((cache_files / 2.0) as u32).clamp(64, 1 << 24));
        if self.reuse.reuses() > cache_files / 4.0 {
            self.usual_uses_max = Some(self.reuse.p99());
        }
        if self.full_bytes.is_some() {
            let cache = reuse::Cache {
                bytes: self.cache_bytes(),
                live_bytes: self.activities.live_bytes(cache_files),
                mean_bytes: self.activities.mean_bytes(),
                share: self.window_share,
            };
            self.window_share = self.reuse.best_share(&cache);
            self.shrink_window();
        }
        self.reuse.fade();
    }

    /// What the window has no room for any more stays.
    fn shrink_window(&mut self) {
        let target = self.window_target();
        while self.members.window_bytes() > target {
            let Some(oldest) = self.members.oldest_of_window() else { break };
            self.members.keep(oldest.id);
        }
    }

    fn draw(&mut self) -> u64 {
        // xorshift64*: good enough to choose by, and the same every time.
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// The data set that can spare its files most easily, and whether it is dead.
    fn weakest(&self) -> Option<(GroupId, bool)> {
        let cache_files = self.cache_files();
        let keys = self.members.groups().map(|id| {
            let dead = self.activities.is_dead(id, cache_files);
            (!dead, self.activities.worth(id), id)
        });
        let weakest = keys.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        weakest.map(|(alive, _, id)| (id, !alive))
    }

    /// A member of `group` that nobody uses.
    fn any_member(&mut self, group: GroupId, in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        (0..DRAWS_MAX).find_map(|_| {
            let draw = self.draw();
            self.members.member(group, draw).filter(|&id| !in_use(id))
        })
    }

    /// Whose place in the set `candidate` deserves.
    fn place_for(&mut self, candidate: &Subject, in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        let (weakest, dead) = self.weakest()?;
        if weakest != candidate.group && (dead || self.is_denser(candidate.group, weakest)) {
            return self.any_member(weakest, in_use);
        }
        let group = match self.members.member(candidate.group, 0) {
            Some(_) => candidate.group,
            None => weakest,
        };
        self.lesser_member(candidate, group, in_use)
    }

    fn is_denser(&self, ours: GroupId, theirs: GroupId) -> bool {
        let known = self.activities.uses_since(ours) as f64 > DENSITY_AFTER * self.cache_files();
        known && self.activities.worth(theirs) < DENSITY_RATIO * self.activities.worth(ours)
    }

    /// Of a few members one that is dead, or that is used less often than the candidate.
    fn lesser_member(
        &mut self,
        candidate: &Subject,
        group: GroupId,
        in_use: &mut dyn FnMut(FileId) -> bool,
    ) -> Option<FileId> {
        let mut sample = [None; SAMPLE];
        for drawn in &mut sample {
            let draw = self.draw();
            *drawn = self.members.member(group, draw).filter(|&id| id != candidate.id);
        }
        let idle = |id: FileId| self.history.get(id).map_or(0, |heat| self.tick.wrapping_sub(heat.last));
        let oldest = sample.iter().flatten().copied().max_by_key(|&id| idle(id))?;
        let is_dead = |usual: f64| f64::from(idle(oldest)) > DEAD_TIMES * usual;
        if self.usual_uses_max.is_some_and(is_dead) && !in_use(oldest) {
            return Some(oldest);
        }
        // The use that asks is counted already.
        let ours = self.history.freq(candidate.id).saturating_sub(1);
        let coldest = sample.iter().flatten().copied().min_by_key(|&id| self.history.freq(id))?;
        let theirs = self.history.freq(coldest);
        // Per byte: a large file must be used so much more often.
        let share = |bytes: u64| request_share(bytes as f64);
        let scale = share(candidate.bytes) / share(self.members.bytes_of(coldest));
        let wins = f64::from(ours) * scale.min(1.0) >= f64::from(theirs + FREQ_MARGIN.max(theirs / 4));
        (wins && !in_use(coldest)).then_some(coldest)
    }

    /// Room in the window: its oldest goes, or stays in the place of another.
    fn place_in_window(&mut self, in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        for _ in 0..DRAWS_MAX {
            let oldest = self.members.oldest_of_window()?;
            if let Some(other) = self.place_for(&oldest, in_use) {
                self.members.keep(oldest.id);
                return Some(other);
            }
            if !in_use(oldest.id) {
                return Some(oldest.id);
            }
            self.members.touch(oldest.id);
        }
        None
    }

    /// The cache must become smaller, or the window larger: the least of the set, and of the window what there is.
    fn least(&mut self, in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        if let Some((weakest, _)) = self.weakest()
            && let Some(id) = self.any_member(weakest, in_use)
        {
            return Some(id);
        }
        self.members.all().find(|&id| !in_use(id))
    }
}

impl Eviction for Epoch {
    fn accessed(&mut self, file: &Subject, access: Access) {
        let in_set = self.members.touch(file.id);
        if access.again {
            return;
        }
        self.tick = self.tick.wrapping_add(1);
        self.last_used = Some(file.id);
        let seen = self.history.used(file.id, file.group, self.tick);
        if let Seen::First(count) = seen {
            self.activities.found_files(file.group, count);
        }
        self.activities.used(file.group, file.bytes, access.now_ms);
        let since = match seen {
            Seen::After(since) => Some(since),
            Seen::First(_) | Seen::NotKept => None,
        };
        if seen != Seen::NotKept {
            self.reuse.note(since, in_set, self.members.set_bytes());
        }
        if self.tick.wrapping_sub(self.next_look) < u32::MAX / 2 {
            self.look_around();
        }
    }

    fn inserted(&mut self, file: &Subject) {
        if let Some(count) = self.history.found(file.id, file.group, self.tick) {
            self.activities.found_files(file.group, count);
        }
        if self.last_used != Some(file.id) {
            self.activities.touch(file.group);
        }
        let set_max = self.cache_bytes() - self.window_target();
        let to_window = self.window_share > 0.0 && self.members.set_bytes() + file.bytes > set_max;
        self.members.insert(file, to_window);
    }

    fn removed(&mut self, id: FileId) {
        self.members.remove(id);
    }

    fn victim(
        &mut self,
        candidate: Option<&Subject>,
        in_use: &mut dyn FnMut(FileId) -> bool,
    ) -> Option<FileId> {
        let Some(candidate) = candidate else { return self.least(in_use) };
        self.full_bytes = Some(self.members.set_bytes() + self.members.window_bytes());
        if self.last_used != Some(candidate.id) {
            self.activities.touch(candidate.group);
        }
        match self.window_target() {
            0 => self.place_for(candidate, in_use),
            target if self.members.window_bytes() < target => self.least(in_use),
            _ => self.place_in_window(in_use),
        }
    }

    fn set_capacity(&mut self, bytes: u64) {
        self.capacity_bytes = bytes;
        self.full_bytes = None;
    }

    fn regrouped(&mut self, from: GroupId, into: GroupId) {
        self.members.regrouped(from, into);
        self.history.regrouped(from, into);
        self.activities.regrouped(from, into);
    }

    fn order(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.members.all().collect();
        files.sort_by_cached_key(|&id| {
            let idle = self.history.get(id).map_or(0, |heat| self.tick.wrapping_sub(heat.last));
            std::cmp::Reverse(idle)
        });
        files
    }
}
