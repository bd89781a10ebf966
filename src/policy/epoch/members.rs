//! The files that are cached, in two parts: the set that stays, from which any member of a data set can be drawn in one
//! step, and the window, a list by recency.

use super::super::Subject;
use crate::types::{FileId, GroupId};
use lru::LruCache;
use std::collections::HashMap;

/// Where a cached file is.
#[derive(Clone, Copy)]
struct Place {
    group: GroupId,
    bytes: u64,
    /// Its place in the set of its data set; `None`: in the window.
    slot: Option<u32>,
}

/// The cached files.
pub struct Members {
    places: HashMap<FileId, Place>,
    sets: HashMap<GroupId, Set>,
    // Unbounded: the policy decides how many there are.
    window: LruCache<FileId, ()>,
    window_bytes: u64,
    set_bytes: u64,
}

/// Files of one data set that stay.
#[derive(Default)]
struct Set {
    files: Vec<FileId>,
    bytes: u64,
}

impl Default for Members {
    fn default() -> Self {
        Self {
            places: HashMap::new(),
            sets: HashMap::new(),
            window: LruCache::unbounded(),
            window_bytes: 0,
            set_bytes: 0,
        }
    }
}

impl Members {
    /// Adds a file, to the window or to the set.
    pub fn insert(&mut self, file: &Subject, to_window: bool) {
        self.remove(file.id);
        let place = Place { group: file.group, bytes: file.bytes, slot: None };
        self.put(file.id, place, to_window);
    }

    fn put(&mut self, id: FileId, mut place: Place, to_window: bool) {
        if to_window {
            self.window.put(id, ());
            self.window_bytes += place.bytes;
            place.slot = None;
        } else {
            let set = self.sets.entry(place.group).or_default();
            place.slot = Some(set.files.len() as u32);
            set.files.push(id);
            set.bytes += place.bytes;
            self.set_bytes += place.bytes;
        }
        self.places.insert(id, place);
    }

    /// Removes a file.
    pub fn remove(&mut self, id: FileId) {
        self.take(id);
    }

    fn take(&mut self, id: FileId) -> Option<Place> {
        let place = self.places.remove(&id)?;
        match place.slot {
            None => {
                self.window.pop(&id);
                self.window_bytes -= place.bytes;
            }
            Some(slot) => {
                let set = self.sets.get_mut(&place.group).expect("a file's slot is in its set");
                set.files.swap_remove(slot as usize);
                set.bytes -= place.bytes;
                self.set_bytes -= place.bytes;
                // The last one has taken the slot.
                if let Some(moved) = set.files.get(slot as usize).and_then(|id| self.places.get_mut(id)) {
                    moved.slot = Some(slot);
                }
            }
        }
        Some(place)
    }

    /// A file of the window stays.
    pub fn keep(&mut self, id: FileId) {
        if let Some(place) = self.take(id) {
            self.put(id, place, false);
        }
    }

    /// A file was used. Says whether it is in the set.
    pub fn touch(&mut self, id: FileId) -> bool {
        !self.window.promote(&id) && self.places.contains_key(&id)
    }

    /// The file of the window that was used longest ago.
    pub fn oldest_of_window(&self) -> Option<Subject> {
        let (&id, ()) = self.window.peek_lru()?;
        let place = self.places.get(&id)?;
        Some(Subject { id, group: place.group, bytes: place.bytes })
    }

    /// A member of the set of `group`: which, `draw` decides.
    pub fn member(&self, group: GroupId, draw: u64) -> Option<FileId> {
        let files = &self.sets.get(&group)?.files;
        files.get((draw % files.len().max(1) as u64) as usize).copied()
    }

    /// What a cached file takes, bytes.
    pub fn bytes_of(&self, id: FileId) -> u64 {
        self.places.get(&id).map_or(0, |place| place.bytes)
    }

    /// Data sets that have files in the set.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.sets.iter().filter(|(_, set)| !set.files.is_empty()).map(|(&group, _)| group)
    }

    /// Bytes in the window.
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// Bytes in the set.
    pub fn set_bytes(&self) -> u64 {
        self.set_bytes
    }

    /// The files of `from` belong to `into`.
    pub fn regrouped(&mut self, from: GroupId, into: GroupId) {
        let moved = self.sets.remove(&from).map(|set| set.files).unwrap_or_default();
        let set = self.sets.entry(into).or_default();
        for id in moved {
            let place = self.places.get_mut(&id).expect("a member has a place");
            *place = Place { group: into, slot: Some(set.files.len() as u32), ..*place };
            set.files.push(id);
            set.bytes += place.bytes;
        }
        let in_window = self.places.values_mut().filter(|place| place.group == from);
        in_window.for_each(|place| place.group = into);
    }

    /// All files: the window first, its oldest first.
    pub fn all(&self) -> impl Iterator<Item = FileId> {
        let window = self.window.iter().rev().map(|(&id, ())| id);
        window.chain(self.sets.values().flat_map(|set| set.files.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(low: u64, group: u16) -> Subject {
        Subject { id: FileId { high: 0, low }, group: GroupId(group), bytes: low + 1 }
    }

    fn check(members: &Members, files: &[Subject]) {
        let window: u64 = members.window.iter().map(|(id, ())| members.bytes_of(*id)).sum();
        assert_eq!(members.window_bytes(), window);
        let all: u64 = files.iter().map(|f| f.bytes).sum();
        assert_eq!(members.set_bytes() + window, all);
        let mut listed: Vec<FileId> = members.all().collect();
        let mut expected: Vec<FileId> = files.iter().map(|f| f.id).collect();
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected);
        for (group, set) in &members.sets {
            for (slot, id) in set.files.iter().enumerate() {
                let place = members.places[id];
                assert_eq!((place.group, place.slot), (*group, Some(slot as u32)));
            }
        }
    }

    #[test]
    fn random_steps_keep_the_books() {
        let mut members = Members::default();
        let mut files: Vec<Subject> = Vec::new();
        let mut random = 1u64;
        for step in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let file = file((random >> 40) % 50, ((random >> 33) % 3) as u16);
            match (random >> 50) % 5 {
                0 => {
                    members.remove(file.id);
                    files.retain(|f| f.id != file.id);
                }
                1 => members.keep(file.id),
                2 => assert!(
                    members.touch(file.id) || !files.contains(&file) || members.window.contains(&file.id)
                ),
                3 if step % 100 == 0 => members.regrouped(GroupId(2), GroupId(1)),
                _ => {
                    members.insert(&file, random >> 62 == 0);
                    files.retain(|f| f.id != file.id);
                    files.push(file);
                }
            }
            check(&members, &files);
        }
    }
}
