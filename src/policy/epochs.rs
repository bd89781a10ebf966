//! Where in its epoch each data set is: what was read of it in this one, and what is still to come.
//!
//! Nobody tells us when an epoch ends. A job that reads every file once before it reads any again has begun a new one
//! when files that were read come again and hardly any are left that were not. One file that comes again proves nothing
//! (an index, a file of class names), so that it takes most of the last few uses. Two jobs on the same files, or samples
//! drawn with replacement, look like epochs at no time: [`Epochs::is_recognised`] tells.
//!
//! Apart from the policies because it serves others too: the figures per epoch and the prefetch of what is unread.
//! Bounded: [`FILES_MAX`] files, of which each takes 16 bytes or less; the data set that was used longest ago is
//! forgotten first, and one that is too large for it is not recognised.

use super::{Access, Subject, Tier};
use crate::types::{FileId, GroupId};
use std::collections::{HashMap, VecDeque};

/// Files whose place in their epoch is known, of all data sets together.
pub const FILES_MAX: usize = 4 << 20;
/// Uses of a data set that are looked at together: most of them must be of files that come again...
const LOOK: usize = 16;
/// ...or all of so many, whatever is unread then: it is gone, or its job is.
const RUN_MAX: usize = 64;
/// Of the files that are known so many percent must have been read when an epoch ends.
const READ_PERCENT: u64 = 95;
/// So many files make an epoch that somebody can act on.
const FILES_MIN: u64 = 16;
/// Ended epochs that are kept for each data set.
const FINISHED_MAX: usize = 16;

/// What is known of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// It was not read in this epoch nor in the one before.
    Unknown,
    /// It was read in the epoch before and will come.
    Unread,
    /// It was read in this epoch and will not come again in it.
    Read,
}

/// One epoch of one data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpochFigures {
    /// The first is 1.
    pub number: u32,
    /// Files that were read in this epoch or in the one before.
    pub files_known: u64,
    /// Files that were read in this epoch.
    pub files_read: u64,
    /// Uses of files that had been read in this epoch before.
    pub rereads: u64,
    /// Uses that needed no byte of the source.
    pub hits: u64,
    /// Uses that did.
    pub misses: u64,
    /// Bytes of the files that were used from the SSD, as [`Subject::bytes`].
    pub ssd_bytes: u64,
    /// Bytes of those that were used from the RAM window.
    pub ram_bytes: u64,
    /// Bytes of those for which the source was needed.
    pub source_bytes: u64,
    /// How long readers waited for the source, all of them together, microseconds.
    pub source_wait_us: u64,
    /// When the first file was used, milliseconds as in [`Access::now_ms`].
    pub began_ms: u64,
    /// When the last was.
    pub last_ms: u64,
}

#[derive(Clone, Copy)]
struct Mark {
    group: GroupId,
    /// Low half of the number of the epoch in which it was read last.
    epoch: u16,
}

/// A use that may turn out to be of the next epoch.
#[derive(Clone, Copy)]
struct Use {
    fingerprint: u32,
    reread: bool,
    from: Tier,
    bytes: u64,
    at_ms: u64,
    /// What was waited since, until the next use.
    source_wait_us: u64,
}

#[derive(Default)]
struct Tracked {
    now: EpochFigures,
    finished: VecDeque<EpochFigures>,
    run: VecDeque<Use>,
    too_large: bool,
}

/// The epochs of all data sets of a mount.
#[derive(Default)]
pub struct Epochs {
    files: HashMap<u32, Mark>,
    groups: HashMap<GroupId, Tracked>,
    files_max: Option<usize>,
}

impl Epochs {
    /// With room for fewer files, for tests of what happens then.
    pub fn with_files_max(files_max: usize) -> Self {
        Self { files_max: Some(files_max), ..Self::default() }
    }

    /// Notes an open. Says whether a new epoch of its data set has begun with it.
    pub fn note(&mut self, file: &Subject, access: Access) -> bool {
        if access.again {
            return false;
        }
        let fingerprint = file.id.fingerprint();
        let state = self.state(file.group, file.id);
        if state == FileState::Unknown && !self.make_room(file.group, fingerprint) {
            self.groups.entry(file.group).or_default().too_large = true;
            return false;
        }
        let group = self.groups.entry(file.group).or_default();
        group.now.number = group.now.number.max(1);
        group.now.files_known += u64::from(state == FileState::Unknown);
        let reread = state == FileState::Read;
        let (bytes, at_ms) = (file.bytes, access.now_ms);
        let one = Use { fingerprint, reread, from: access.from, bytes, at_ms, source_wait_us: 0 };
        group.now.add(&one);
        group.run.push_back(one);
        if group.run.len() > RUN_MAX {
            group.run.pop_front();
        }
        let mark = Mark { group: file.group, epoch: group.now.number as u16 };
        self.files.insert(fingerprint, mark);
        group.has_ended() && self.begin(file.group)
    }

    /// A reader has waited so long for the source, for a file of `group` whose open was noted before.
    pub fn waited(&mut self, group: GroupId, us: u64) {
        let Some(group) = self.groups.get_mut(&group) else { return };
        group.now.source_wait_us += us;
        // It moves with its use if that turns out to be of the next epoch.
        if let Some(last) = group.run.back_mut() {
            last.source_wait_us += us;
        }
    }

    /// The epoch of `group` has ended a few uses ago: those that began the next one are counted there.
    fn begin(&mut self, id: GroupId) -> bool {
        let Some(group) = self.groups.get_mut(&id) else { return false };
        let run: Vec<Use> = group.run.drain(..).filter(|one| one.reread).collect();
        let mut ended = group.now;
        run.iter().for_each(|one| ended.take_back(one));
        let number = ended.number.wrapping_add(1);
        group.now = EpochFigures { number, files_known: ended.files_read, ..EpochFigures::default() };
        for one in &run {
            let mark = Mark { group: id, epoch: number as u16 };
            // Twice in the run: once read and once again.
            let again = self.files.insert(one.fingerprint, mark).is_some_and(|old| old.epoch == mark.epoch);
            group.now.add(&Use { reread: again, ..*one });
        }
        if group.finished.len() >= FINISHED_MAX {
            group.finished.pop_front();
        }
        group.finished.push_back(ended);
        true
    }

    /// Room for one more file. `false` if this data set takes it all.
    fn make_room(&mut self, group: GroupId, fingerprint: u32) -> bool {
        let max = self.files_max.unwrap_or(FILES_MAX);
        if self.files.len() < max || self.files.contains_key(&fingerprint) {
            return true;
        }
        let others = self.groups.iter().filter(|(id, _)| **id != group);
        let Some((&oldest, _)) = others.min_by_key(|(id, tracked)| (tracked.now.last_ms, **id)) else {
            return false;
        };
        self.groups.remove(&oldest);
        self.files.retain(|_, mark| mark.group != oldest);
        self.files.len() < max
    }

    /// Where in its epoch a file is.
    pub fn state(&self, group: GroupId, id: FileId) -> FileState {
        let Some(tracked) = self.groups.get(&group) else { return FileState::Unknown };
        match self.files.get(&id.fingerprint()) {
            Some(mark) if mark.group == group => match (tracked.now.number as u16).wrapping_sub(mark.epoch) {
                0 => FileState::Read,
                1 => FileState::Unread,
                _ => FileState::Unknown,
            },
            _ => FileState::Unknown,
        }
    }

    /// Whether the data set is read in epochs: one has ended in which hardly any file came twice.
    pub fn is_recognised(&self, group: GroupId) -> bool {
        let Some(tracked) = self.groups.get(&group) else { return false };
        let is_epoch = |e: &EpochFigures| e.files_read >= FILES_MIN && e.rereads * 10 <= e.files_read;
        !tracked.too_large && tracked.finished.back().is_some_and(is_epoch)
    }

    /// The epoch that a data set is in.
    pub fn now(&self, group: GroupId) -> Option<&EpochFigures> {
        self.groups.get(&group).map(|tracked| &tracked.now)
    }

    /// The epochs of a data set that have ended, the oldest first; the last few.
    pub fn finished(&self, group: GroupId) -> impl Iterator<Item = &EpochFigures> {
        self.groups.get(&group).into_iter().flat_map(|tracked| &tracked.finished)
    }

    /// The data sets that were read, in no order.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    /// Files that are known, of all data sets together.
    pub fn files_tracked(&self) -> usize {
        self.files.len()
    }

    /// What was taken for two data sets is one. The epochs of `from` that have ended are forgotten: none was of the whole.
    pub fn regrouped(&mut self, from: GroupId, into: GroupId) {
        let Some(old) = self.groups.remove(&from) else { return };
        let group = self.groups.entry(into).or_default();
        group.now.number = group.now.number.max(1);
        group.now.absorb(&old.now);
        group.too_large |= old.too_large;
        let (number, was) = (group.now.number as u16, old.now.number as u16);
        for mark in self.files.values_mut().filter(|mark| mark.group == from) {
            *mark = Mark { group: into, epoch: number.wrapping_sub(was.wrapping_sub(mark.epoch)) };
        }
    }
}

impl Tracked {
    fn has_ended(&self) -> bool {
        let (read, known) = (self.now.files_read, self.now.files_known);
        // In a small data set the next epoch is over before many uses were seen.
        let wanted = LOOK.min((known / 4) as usize).max(2);
        let rereads = self.run.iter().rev().take(wanted).filter(|one| one.reread).count();
        let most = self.run.len() >= wanted && rereads * 4 >= wanted * 3;
        if !most || !self.run.back().is_some_and(|one| one.reread) {
            return false;
        }
        let all = self.run.len() == RUN_MAX && self.run.iter().all(|one| one.reread);
        read * 100 >= known * READ_PERCENT || all
    }
}

impl EpochFigures {
    fn add(&mut self, one: &Use) {
        if self.hits + self.misses == 0 {
            self.began_ms = one.at_ms;
        }
        self.last_ms = one.at_ms;
        let (uses, bytes) = self.columns(one.from);
        *uses += 1;
        *bytes += one.bytes;
        self.source_wait_us += one.source_wait_us;
        *if one.reread { &mut self.rereads } else { &mut self.files_read } += 1;
    }

    fn take_back(&mut self, one: &Use) {
        let (uses, bytes) = self.columns(one.from);
        *uses -= 1;
        *bytes -= one.bytes;
        self.source_wait_us -= one.source_wait_us;
        self.rereads -= 1;
        self.last_ms = self.last_ms.min(one.at_ms);
    }

    /// Bytes of all files that were used.
    pub fn bytes(&self) -> u64 {
        self.ssd_bytes + self.ram_bytes + self.source_bytes
    }

    fn columns(&mut self, from: Tier) -> (&mut u64, &mut u64) {
        match from {
            Tier::Ssd => (&mut self.hits, &mut self.ssd_bytes),
            Tier::Ram => (&mut self.hits, &mut self.ram_bytes),
            Tier::Source => (&mut self.misses, &mut self.source_bytes),
        }
    }

    fn absorb(&mut self, other: &Self) {
        let is_first = self.hits + self.misses == 0;
        self.began_ms = if is_first { other.began_ms } else { self.began_ms.min(other.began_ms) };
        self.last_ms = self.last_ms.max(other.last_ms);
        self.files_known += other.files_known;
        self.files_read += other.files_read;
        self.rereads += other.rereads;
        self.hits += other.hits;
        self.misses += other.misses;
        self.ssd_bytes += other.ssd_bytes;
        self.ram_bytes += other.ram_bytes;
        self.source_bytes += other.source_bytes;
        self.source_wait_us += other.source_wait_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: GroupId = GroupId(3);

    fn file(n: u64) -> Subject {
        Subject { id: FileId { high: 0, low: n }, group: SET, bytes: 100 }
    }

    fn read(epochs: &mut Epochs, files: impl IntoIterator<Item = u64>) {
        for n in files {
            let now_ms = epochs.now(SET).map_or(0, |now| now.last_ms) + 10;
            let from = if n % 2 == 0 { Tier::Ssd } else { Tier::Source };
            epochs.note(&file(n), Access { from, again: false, now_ms });
        }
    }

    /// A permutation of 0..count, another one for each seed.
    fn shuffled(count: u64, seed: u64) -> Vec<u64> {
        let mut files: Vec<u64> = (0..count).collect();
        files.sort_by_key(|n| FileId { high: seed, low: *n }.fingerprint());
        files
    }

    #[test]
    fn each_pass_is_an_epoch_and_its_figures_are_exact() {
        let mut epochs = Epochs::default();
        for seed in 0..5 {
            read(&mut epochs, shuffled(1000, seed));
        }
        // The first uses of the next epoch are what shows that one has ended.
        assert_eq!(epochs.now(SET).unwrap().number, 5);
        for (n, ended) in epochs.finished(SET).enumerate() {
            assert_eq!(ended.number as usize, n + 1);
            assert_eq!((ended.files_read, ended.rereads, ended.hits, ended.misses), (1000, 0, 500, 500));
            assert_eq!((ended.ssd_bytes, ended.source_bytes), (50_000, 50_000));
        }
        assert!(epochs.is_recognised(SET));
        assert_eq!(epochs.finished(SET).count(), 4);
    }

    #[test]
    fn bytes_by_tier_and_waits_are_of_the_epoch_that_they_belong_to() {
        let mut epochs = Epochs::default();
        let first = [Tier::Source; 100];
        let second = [[Tier::Ssd; 60].as_slice(), &[Tier::Ram; 30], &[Tier::Source; 10]].concat();
        for (epoch, tiers) in [first.as_slice(), &second].into_iter().enumerate() {
            for (n, &from) in tiers.iter().enumerate() {
                let now_ms = (epoch * 100 + n) as u64;
                epochs.note(&file(n as u64), Access { from, again: false, now_ms });
                epochs.waited(SET, 1 + epoch as u64);
            }
        }
        epochs.waited(GroupId(77), 5);
        let tiers = |e: &EpochFigures| (e.ssd_bytes, e.ram_bytes, e.source_bytes, e.source_wait_us);
        let ended: Vec<_> = epochs.finished(SET).map(tiers).collect();
        assert_eq!(ended, [(0, 0, 10_000, 100)]);
        assert_eq!(epochs.now(SET).map(tiers), Some((6000, 3000, 1000, 200)));
        assert!(epochs.now(GroupId(77)).is_none(), "nobody was seen to open it");
    }

    #[test]
    fn what_is_unread_is_known_from_the_start_of_the_epoch_on() {
        let mut epochs = Epochs::default();
        read(&mut epochs, 0..1000);
        assert!(!epochs.is_recognised(SET), "the first epoch is one only when it has ended");
        let second = shuffled(1000, 1);
        read(&mut epochs, second[..300].iter().copied());
        let state = |n: u64| epochs.state(SET, file(n).id);
        assert!(second[..300].iter().all(|&n| state(n) == FileState::Read));
        assert!(second[300..].iter().all(|&n| state(n) == FileState::Unread));
        assert_eq!(state(5000), FileState::Unknown);
        let now = epochs.now(SET).unwrap();
        assert_eq!((now.number, now.files_known, now.files_read), (2, 1000, 300));
    }

    #[test]
    fn an_index_that_is_read_all_the_time_ends_nothing() {
        let mut epochs = Epochs::default();
        for seed in 0..3 {
            for n in shuffled(1000, seed) {
                read(&mut epochs, [n]);
                if n % 10 == 0 {
                    read(&mut epochs, [77_777]);
                }
            }
        }
        assert_eq!(epochs.now(SET).unwrap().number, 3);
        assert!(epochs.is_recognised(SET));
    }

    #[test]
    fn samples_with_replacement_and_two_jobs_are_no_epochs() {
        let mut epochs = Epochs::default();
        read(&mut epochs, (0..20_000).map(|n| u64::from(FileId { high: 9, low: n }.fingerprint()) % 1000));
        assert!(!epochs.is_recognised(SET));
        let mut epochs = Epochs::default();
        for seed in 0..4 {
            let (a, b) = (shuffled(1000, seed), shuffled(1000, seed + 100));
            read(&mut epochs, a.into_iter().zip(b).flat_map(|(a, b)| [a, b]));
        }
        assert!(!epochs.is_recognised(SET));
    }

    #[test]
    fn a_job_that_moves_to_other_files_of_the_directory_is_recognised_again() {
        let mut epochs = Epochs::default();
        for seed in 0..3 {
            read(&mut epochs, shuffled(1000, seed));
        }
        for seed in 0..4 {
            read(&mut epochs, shuffled(1000, seed).into_iter().map(|n| n + 5000));
        }
        assert!(epochs.is_recognised(SET));
        let now = epochs.now(SET).unwrap();
        assert_eq!((now.files_known, epochs.state(SET, file(1).id)), (1000, FileState::Unknown));
    }

    #[test]
    fn small_data_sets_have_epochs_too() {
        let mut epochs = Epochs::default();
        for seed in 0..10 {
            read(&mut epochs, shuffled(20, seed));
        }
        assert_eq!(epochs.now(SET).unwrap().number, 10);
        assert!(epochs.is_recognised(SET));
    }

    #[test]
    fn two_groups_that_are_one_go_on_together() {
        let mut epochs = Epochs::default();
        let other = GroupId(4);
        read(&mut epochs, 0..100);
        for n in 100..200 {
            let file = Subject { group: other, ..file(n) };
            epochs.note(&file, Access { from: Tier::Source, again: false, now_ms: 1 });
        }
        epochs.regrouped(other, SET);
        read(&mut epochs, shuffled(200, 7));
        let ended: Vec<_> = epochs.finished(SET).collect();
        assert_eq!((ended.len(), ended[0].files_read), (1, 200));
        assert!(epochs.now(other).is_none());
    }

    #[test]
    fn memory_is_bounded_and_the_set_that_was_used_last_is_kept() {
        let mut epochs = Epochs::with_files_max(1000);
        for group in 0..5 {
            for n in 0..400 {
                let file = Subject { group: GroupId(group), ..file(u64::from(group) * 1000 + n) };
                let now_ms = u64::from(group) * 1000 + n;
                epochs.note(&file, Access { from: Tier::Source, again: false, now_ms });
                assert!(epochs.files_tracked() <= 1000);
            }
        }
        assert_eq!(epochs.now(GroupId(4)).unwrap().files_read, 400);
        for n in 0..3 {
            read(&mut epochs, (0..2000).map(|f| f + n));
        }
        assert!(!epochs.is_recognised(SET) && epochs.files_tracked() <= 1000, "too large to be told");
    }
}
