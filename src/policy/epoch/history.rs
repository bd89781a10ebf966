//! What is remembered of each file: when it was used last and how often, cached or not.
//!
//! Bounded. When there are more files than fit, those of which a bit of their fingerprint is set are forgotten and not
//! looked at any more, and each of the others stands for two: totals stay right, and of single files those that are
//! still known decide.

use crate::types::{FileId, GroupId};
use std::collections::HashMap;

/// Files that are remembered; 16 bytes each and the table's slack: 64 MiB at the most.
pub const FILES_MAX: usize = 3 << 20;

/// Uses of a file. Counted to 15 and halved as time goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Number of its last use.
    pub last: u32,
    freq: u8,
    age: u8,
}

impl Heat {
    /// Uses so far, those of long ago counted less.
    pub fn freq(&self, age: u8) -> u8 {
        self.freq.checked_shr(u32::from(age.wrapping_sub(self.age))).unwrap_or(0)
    }

    fn touch(&mut self, tick: u32, age: u8) {
        *self = Self { last: tick, freq: (self.freq(age) + 1).min(15), age };
    }
}

#[derive(Clone, Copy)]
struct Entry {
    heat: Heat,
    group: GroupId,
}

/// What a use of a file was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The first one. The file stands for so many.
    First(u64),
    /// Another one, so many uses after the last.
    After(u32),
    /// Nothing is kept of this file.
    NotKept,
}

/// The files that were used.
pub struct History {
    files: HashMap<u32, Entry>,
    files_max: usize,
    /// Fingerprints with any of these many lowest bits set are not kept.
    shift: u32,
    age: u8,
    uses_of_age: u64,
}

impl Default for History {
    fn default() -> Self {
        Self::with_files_max(FILES_MAX)
    }
}

impl History {
    /// With room for so many files.
    pub fn with_files_max(files_max: usize) -> Self {
        Self { files: HashMap::new(), files_max, shift: 0, age: 0, uses_of_age: 0 }
    }

    /// Notes a use, number `tick`.
    pub fn used(&mut self, id: FileId, group: GroupId, tick: u32) -> Seen {
        self.grow_older();
        let Some(print) = self.kept(id) else { return Seen::NotKept };
        let age = self.age;
        if let Some(entry) = self.files.get_mut(&print) {
            let since = tick.wrapping_sub(entry.heat.last);
            entry.heat.touch(tick, age);
            entry.group = group;
            return Seen::After(since);
        }
        self.files.insert(print, Entry { heat: Heat { last: tick, freq: 1, age }, group });
        self.make_room();
        Seen::First(self.stands_for())
    }

    /// Notes a file that is cached without having been used. Says for how many it stands if it was not known.
    pub fn found(&mut self, id: FileId, group: GroupId, tick: u32) -> Option<u64> {
        let print = self.kept(id)?;
        let age = self.age;
        let mut new = false;
        self.files.entry(print).or_insert_with(|| {
            new = true;
            Entry { heat: Heat { last: tick, freq: 0, age }, group }
        });
        self.make_room();
        new.then(|| self.stands_for())
    }

    /// What is known of a file.
    pub fn get(&self, id: FileId) -> Option<Heat> {
        self.files.get(&id.fingerprint()).map(|entry| entry.heat)
    }

    /// [`Heat::freq`] now; 0 of a file of which nothing is kept.
    pub fn freq(&self, id: FileId) -> u8 {
        self.get(id).map_or(0, |heat| heat.freq(self.age))
    }

    /// The files of `from` belong to `into`.
    pub fn regrouped(&mut self, from: GroupId, into: GroupId) {
        self.files.values_mut().filter(|entry| entry.group == from).for_each(|entry| entry.group = into);
    }

    /// Files that are remembered, and how many those stand for.
    pub fn len(&self) -> (usize, u64) {
        (self.files.len(), self.files.len() as u64 * self.stands_for())
    }

    /// The counts halve every eight uses of each file: what was hot in a job that has ended is not for ever.
    fn grow_older(&mut self) {
        self.uses_of_age += 1;
        if self.uses_of_age >= 8 * self.len().1 + 1000 {
            self.uses_of_age = 0;
            self.age = self.age.wrapping_add(1);
        }
    }

    fn kept(&self, id: FileId) -> Option<u32> {
        let print = id.fingerprint();
        (print & self.mask() == 0).then_some(print)
    }

    fn mask(&self) -> u32 {
        (1 << self.shift) - 1
    }

    fn stands_for(&self) -> u64 {
        1 << self.shift
    }

    fn make_room(&mut self) {
        while self.files.len() > self.files_max {
            self.shift += 1;
            let mask = self.mask();
            self.files.retain(|print, _| print & mask == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: GroupId = GroupId(1);

    fn id(low: u64) -> FileId {
        FileId { high: 0, low }
    }

    #[test]
    fn uses_are_told_and_counted_and_counts_fade() {
        let mut history = History::default();
        assert_eq!(history.used(id(1), GROUP, 10), Seen::First(1));
        assert_eq!(history.used(id(1), GROUP, 25), Seen::After(15));
        (0..10).for_each(|n| assert_ne!(history.used(id(1), GROUP, 30 + n), Seen::NotKept));
        assert_eq!((history.freq(id(1)), history.freq(id(2))), (12, 0));
        (0..2000).for_each(|n| assert_ne!(history.used(id(2), GROUP, 50 + n), Seen::NotKept));
        assert!(history.freq(id(1)) < 12 && history.freq(id(2)) == 15, "{}", history.freq(id(1)));
    }

    #[test]
    fn memory_is_bounded_and_totals_stay_right() {
        let mut history = History::with_files_max(1000);
        let mut counted = 0;
        for n in 0..100_000 {
            if let Seen::First(stands_for) = history.used(id(n), GROUP, n as u32) {
                counted += stands_for;
            }
            assert!(history.len().0 <= 1000);
        }
        let (_, estimate) = history.len();
        assert!((80_000..120_000).contains(&estimate), "{estimate}");
        assert!((70_000..130_000).contains(&counted), "{counted}");
        let known = (0..100_000).filter(|n| history.get(id(*n)).is_some()).count();
        assert!((500..=1000).contains(&known));
    }
}
