//! Least recently used, and its opposite, which evicts nothing.

use super::{Access, Eviction, Subject};
use crate::types::{FileId, GroupId};
use lru::LruCache;

/// Evicts the file whose last open lies furthest back.
pub struct Lru {
    // Unbounded: the budget decides how many there are.
    files: LruCache<FileId, ()>,
}

impl Lru {
    /// An empty list.
    pub fn new() -> Self {
        Self { files: LruCache::unbounded() }
    }
}

impl Default for Lru {
    fn default() -> Self {
        Self::new()
    }
}

impl Eviction for Lru {
    fn accessed(&mut self, file: &Subject, _: Access) {
        self.files.promote(&file.id);
    }

    fn inserted(&mut self, file: &Subject) {
        self.files.put(file.id, ());
    }

    fn removed(&mut self, id: FileId) {
        self.files.pop(&id);
    }

    fn victim(&mut self, _: Option<&Subject>, in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        // A file that is open is being used now: it goes to the young end, so that nobody passes it over again.
        for _ in 0..self.files.len() {
            let (&id, ()) = self.files.peek_lru()?;
            if !in_use(id) {
                return Some(id);
            }
            self.files.promote(&id);
        }
        None
    }

    fn set_capacity(&mut self, _: u64) {}

    fn regrouped(&mut self, _: GroupId, _: GroupId) {}

    fn order(&self) -> Vec<FileId> {
        self.files.iter().rev().map(|(&id, ())| id).collect()
    }
}

/// Keeps what it has: the cache fills once and then only serves.
#[derive(Default)]
pub struct NeverEvict;

impl Eviction for NeverEvict {
    fn accessed(&mut self, _: &Subject, _: Access) {}

    fn inserted(&mut self, _: &Subject) {}

    fn removed(&mut self, _: FileId) {}

    fn victim(&mut self, _: Option<&Subject>, _: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        None
    }

    fn set_capacity(&mut self, _: u64) {}

    fn regrouped(&mut self, _: GroupId, _: GroupId) {}

    fn order(&self) -> Vec<FileId> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Tier;

    const OPEN: Access = Access { from: Tier::Ssd, again: false, now_ms: 0 };

    fn id(n: u64) -> FileId {
        FileId { high: 0, low: n }
    }

    fn file(n: u64) -> Subject {
        Subject { id: id(n), group: GroupId(0), bytes: 1 }
    }

    #[test]
    fn the_oldest_goes_first_and_an_open_renews() {
        let mut lru = Lru::new();
        (1..=3).for_each(|n| lru.inserted(&file(n)));
        lru.accessed(&file(1), OPEN);
        assert_eq!(lru.victim(None, &mut |_| false), Some(id(2)));
        lru.removed(id(2));
        assert_eq!(lru.order(), [id(3), id(1)]);
    }

    #[test]
    fn bug_047_files_in_use_are_passed_over_and_count_as_used() {
        let mut lru = Lru::new();
        (1..=3).for_each(|n| lru.inserted(&file(n)));
        assert_eq!(lru.victim(None, &mut |f| f == id(1)), Some(id(2)));
        assert_eq!(lru.order(), [id(2), id(3), id(1)]);
        assert_eq!(lru.victim(None, &mut |_| true), None, "all in use");
    }

    #[test]
    fn an_unknown_file_is_no_harm() {
        let mut lru = Lru::new();
        lru.accessed(&file(9), OPEN);
        lru.removed(id(9));
        assert_eq!(lru.victim(None, &mut |_| false), None);
    }
}
