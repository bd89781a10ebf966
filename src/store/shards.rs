//! How many data files each directory of data files has: one that has lost its last is removed, because numbers only go
//! up and it would lie there empty for ever. Apart from [`super::dir`], which does what this says.
//!
//! Numbers are taken in order, 1024 to a directory, so that new files come to the newest directory and the others only
//! lose theirs. The count is kept, and not derived, as a listing of each directory at each removal would be the price.

use crate::types::sync::Mutex;
use std::collections::HashMap;

/// Data files of one directory.
const FILES: u64 = 1024;
/// Directories; after them the numbers begin again at the first.
const DIRS: u64 = 1 << 16;

/// Files by directory, of those that have any or that could not be removed.
#[derive(Default)]
pub(super) struct Shards(Mutex<HashMap<u64, u64>>);

/// The directory of a file, and below it its name: `00/01/0000000000000400`.
pub(super) fn relative(number: u64) -> String {
    format!("{}/{number:016x}", dir_of(number))
}

/// The directory of a file.
pub(super) fn dir_of(number: u64) -> String {
    let shard = shard_of(number);
    format!("{:02x}/{:02x}", shard >> 8, shard & 0xff)
}

fn shard_of(number: u64) -> u64 {
    number / FILES % DIRS
}

impl Shards {
    /// A file was created, or found.
    pub(super) fn added(&self, number: u64) {
        *self.0.lock().entry(shard_of(number)).or_default() += 1;
    }

    /// A file is gone. Says whether its directory has none any more and gets none, as the next file has number `next`:
    /// then it is to be removed, and [`Shards::dropped`] be told if it was.
    pub(super) fn removed(&self, number: u64, next: u64) -> bool {
        let mut shards = self.0.lock();
        let Some(files) = shards.get_mut(&shard_of(number)) else { return false };
        *files = files.saturating_sub(1);
        *files == 0 && shard_of(number) != shard_of(next)
    }

    /// The directory of this file is not there any more.
    pub(super) fn dropped(&self, number: u64) {
        let mut shards = self.0.lock();
        // Unless a file was created meanwhile, by who had its number for long.
        if shards.get(&shard_of(number)) == Some(&0) {
            shards.remove(&shard_of(number));
        }
    }

    /// Directories that are there.
    pub(super) fn count(&self) -> u64 {
        self.0.lock().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_goes_with_its_last_file_unless_more_will_come() {
        let shards = Shards::default();
        [0, 1, FILES].into_iter().for_each(|number| shards.added(number));
        assert_eq!(shards.count(), 2);
        assert!(!shards.removed(0, FILES + 1), "it has another");
        assert!(shards.removed(1, FILES + 1));
        shards.dropped(1);
        assert_eq!(shards.count(), 1);
        assert!(!shards.removed(FILES, FILES + 1), "the next comes there");
        assert!(!shards.removed(5 * FILES, FILES), "not known");
        // The numbers begin again.
        shards.added(DIRS * FILES + 3);
        assert_eq!((shards.count(), relative(DIRS * FILES + 3).as_str()), (2, "00/00/0000000004000003"));
    }

    /// Goal: what could not be removed still counts, and is tried again.
    #[test]
    fn one_that_could_not_be_removed_is_tried_again() {
        let shards = Shards::default();
        shards.added(1);
        assert!(shards.removed(1, FILES) && shards.count() == 1);
        shards.added(2);
        assert!(shards.removed(2, FILES));
    }
}
