//! What is remembered of names that the kernel has forgotten.
//!
//! The kernel drops its names and attributes when memory is short, and the nodes go with them. Asking a slow source
//! anew for what it said a moment ago would make a warm epoch as slow as its metadata, so listings outlive their nodes
//! here, and keep the attributes of their entries: packed, as there are as many as there are files, and bounded in all.
//! How old an answer may be is not decided here; each is kept with the time when the source gave it.

use super::dir::Listing;
use crate::types::{Attr, FileKind, Identity, Timestamp};
use lru::LruCache;
use std::num::NonZeroU64;
use std::sync::Arc;

/// Entries of all remembered listings together; about 100 bytes each.
pub(super) const ENTRIES_MAX: usize = 1 << 20;

/// A directory itself takes as much as so many entries.
const ENTRIES_OF_DIR: usize = 4;

/// The attributes of one entry, in 64 bytes. Its type, inode number and device are the listing's.
#[derive(Clone, Copy, Debug)]
pub struct Remembered {
    /// One more than the milliseconds: never 0, so that an entry of which nothing is remembered takes no more room.
    checked: NonZeroU64,
    size: u64,
    times_ns: [i64; 4],
    blocks: u32,
    uid: u32,
    gid: u32,
    nlink: u16,
    perm: u16,
}

const _: () = assert!(size_of::<Option<Remembered>>() == 64);

impl Remembered {
    /// Packs what the source said at `checked_ms`. `None` if it does not fit, as with dates centuries away; then it is
    /// simply not remembered.
    pub fn new(attr: &Attr, checked_ms: u64) -> Option<Self> {
        let device = matches!(attr.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if device {
            return None;
        }
        Some(Self {
            checked: NonZeroU64::MIN.checked_add(checked_ms)?,
            size: attr.size,
            times_ns: [
                to_nanos(attr.atime)?,
                to_nanos(attr.mtime)?,
                to_nanos(attr.ctime)?,
                to_nanos(attr.identity.birth)?,
            ],
            blocks: attr.blocks.try_into().ok()?,
            uid: attr.uid,
            gid: attr.gid,
            nlink: attr.nlink.try_into().ok()?,
            perm: attr.perm,
        })
    }

    /// When the source gave them.
    pub fn checked_ms(&self) -> u64 {
        self.checked.get() - 1
    }

    /// The attributes, of an entry with this type and identity, and when the source gave them.
    pub fn attr(&self, kind: FileKind, dev: u64, ino: u64) -> (Attr, u64) {
        let [atime, mtime, ctime, birth] = self.times_ns.map(from_nanos);
        let attr = Attr {
            kind,
            perm: self.perm,
            nlink: self.nlink.into(),
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            size: self.size,
            blocks: self.blocks.into(),
            atime,
            mtime,
            ctime,
            identity: Identity { dev, ino, birth },
        };
        (attr, self.checked_ms())
    }
}

const SECOND_NS: i64 = 1_000_000_000;

fn to_nanos(t: Timestamp) -> Option<i64> {
    t.secs.checked_mul(SECOND_NS)?.checked_add(t.nanos.into())
}

fn from_nanos(ns: i64) -> Timestamp {
    Timestamp { secs: ns.div_euclid(SECOND_NS), nanos: ns.rem_euclid(SECOND_NS) as u32 }
}

/// Listings by directory; those used longest ago make room.
pub struct Listings {
    by_dir: LruCache<Identity, Arc<Listing>>,
    entries: usize,
    entries_max: usize,
    /// How often everything was forgotten.
    cleared: u64,
}

impl Default for Listings {
    fn default() -> Self {
        Self { by_dir: LruCache::unbounded(), entries: 0, entries_max: ENTRIES_MAX, cleared: 0 }
    }
}

impl Listings {
    /// The listing of a directory.
    pub fn get(&mut self, dir: &Identity) -> Option<Arc<Listing>> {
        self.by_dir.get(dir).cloned()
    }

    /// Keeps a listing. One that is larger than all that may be kept is not.
    pub fn put(&mut self, dir: Identity, listing: Arc<Listing>) {
        self.entries += weight(&listing);
        if let Some(old) = self.by_dir.put(dir, listing) {
            self.entries -= weight(&old);
        }
        while self.entries > self.entries_max {
            let Some((_, oldest)) = self.by_dir.pop_lru() else { break };
            self.entries -= weight(&oldest);
        }
    }

    /// Keeps a listing that nobody waits for, and tells whether it does: not if everything was forgotten since `cleared`
    /// was read, nor if what is kept is newer.
    pub fn put_unasked(&mut self, dir: Identity, listing: &Arc<Listing>, cleared: u64) -> bool {
        let newer = |kept: &Arc<Listing>| kept.checked_ms() > listing.checked_ms();
        if self.cleared != cleared || self.by_dir.peek(&dir).is_some_and(newer) {
            return false;
        }
        self.put(dir, listing.clone());
        true
    }

    /// All of them, those used last first.
    pub fn all(&self) -> Vec<(Identity, Arc<Listing>)> {
        self.by_dir.iter().map(|(dir, listing)| (*dir, listing.clone())).collect()
    }

    /// How often everything was forgotten.
    pub fn cleared(&self) -> u64 {
        self.cleared
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.by_dir.clear();
        self.entries = 0;
        self.cleared += 1;
    }
}

fn weight(listing: &Listing) -> usize {
    listing.len() + ENTRIES_OF_DIR
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backing::DirEntry;

    fn listing(entries: usize) -> Arc<Listing> {
        let entry =
            |n: usize| DirEntry { name: n.to_string().into(), ino: n as u64, kind: FileKind::Regular };
        Arc::new(Listing::new(&(0..entries).map(entry).collect::<Vec<_>>(), &Attr::UNKNOWN, false, 0))
    }

    fn dir(ino: u64) -> Identity {
        Identity { dev: 1, ino, birth: Timestamp::default() }
    }

    #[test]
    fn attributes_survive_packing_to_the_nanosecond() {
        for secs in [-5, 0, 1_700_000_000] {
            let time = Timestamp { secs, nanos: 999_999_999 };
            let identity = Identity { dev: 7, ino: 8, birth: time };
            let attr = Attr { size: 1 << 40, mtime: time, nlink: 3, perm: 0o640, identity, ..Attr::UNKNOWN };
            let packed = Remembered::new(&attr, 5).unwrap();
            assert_eq!(packed.attr(FileKind::Regular, 7, 8), (attr, 5));
        }
    }

    #[test]
    fn what_does_not_fit_is_not_remembered_wrongly() {
        let far = Timestamp { secs: 1 << 40, nanos: 0 };
        assert!(Remembered::new(&Attr { mtime: far, ..Attr::UNKNOWN }, 0).is_none());
        assert!(Remembered::new(&Attr { kind: FileKind::BlockDevice, ..Attr::UNKNOWN }, 0).is_none());
    }

    #[test]
    fn the_oldest_listings_make_room() {
        let mut listings = Listings { entries_max: 100 + 2 * ENTRIES_OF_DIR, ..Listings::default() };
        listings.put(dir(1), listing(60));
        listings.put(dir(2), listing(40));
        assert!(listings.get(&dir(1)).is_some());
        listings.put(dir(3), listing(30));
        assert!(listings.get(&dir(2)).is_none(), "used longest ago");
        assert!(listings.get(&dir(1)).is_some() && listings.get(&dir(3)).is_some());
        listings.put(dir(1), listing(10));
        assert_eq!(listings.entries, 40 + 2 * ENTRIES_OF_DIR, "a newer listing takes the place of the older");
        listings.put(dir(9), listing(200));
        assert!(listings.get(&dir(9)).is_none());
    }

    #[test]
    fn what_nobody_waited_for_does_not_take_the_place_of_what_is_newer_or_was_forgotten() {
        let at = |checked_ms| Arc::new(Listing::new(&[], &Attr::UNKNOWN, false, checked_ms));
        let mut listings = Listings::default();
        let cleared = listings.cleared();
        assert!(
            listings.put_unasked(dir(1), &at(5), cleared) && listings.put_unasked(dir(1), &at(6), cleared)
        );
        assert!(!listings.put_unasked(dir(1), &at(5), cleared));
        listings.clear();
        assert!(!listings.put_unasked(dir(1), &at(7), cleared) && listings.get(&dir(1)).is_none());
    }
}
