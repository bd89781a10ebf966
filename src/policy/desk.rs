//! What one mount knows of how it is read: every event enters here once, and all who decide see the same.
//!
//! The eviction, the epochs and the sample are apart from each other; what they share, the data set of a path and what is
//! one use of a file, is found out here.

use super::detect::shards::Shards;
use super::detect::siblings::Siblings;
use super::epochs::Epochs;
use super::groups::Groups;
use super::rings::{self, Outcome, Rings, Turn};
use super::sample::Sample;
use super::uses::RecentUses;
use super::{Access, Eviction, Subject, Tier};
use crate::types::{FileId, GroupId};

/// All decisions of one mount.
pub struct Desk {
    eviction: Box<dyn Eviction>,
    groups: Groups,
    uses: RecentUses,
    epochs: Epochs,
    rings: Rings,
    shards: Shards,
    siblings: Siblings,
    sample: Sample,
}

impl Desk {
    /// With this policy, for a cache of so many bytes.
    pub fn new(mut eviction: Box<dyn Eviction>, capacity_bytes: u64) -> Self {
        eviction.set_capacity(capacity_bytes);
        Self {
            eviction,
            groups: Groups::default(),
            uses: RecentUses::default(),
            epochs: Epochs::default(),
            rings: Rings::default(),
            shards: Shards::default(),
            siblings: Siblings::default(),
            sample: Sample::default(),
        }
    }

    /// The data set of the file at `path`, below the mount.
    pub fn group_of(&mut self, path: &[u8]) -> GroupId {
        let group = self.groups.of(path);
        for (from, into) in self.groups.take_merges() {
            self.eviction.regrouped(from, into);
            self.epochs.regrouped(from, into);
            self.rings.forget(from);
            self.sample.regrouped(from, into);
        }
        group
    }

    /// `file` was opened, from there. Its group may be one that was given out long ago. Gives a
    /// data set if it should be fetched ahead from now on.
    pub fn opened(&mut self, file: &Subject, from: Tier, now_ms: u64) -> Option<GroupId> {
        let file = self.current(file);
        let access = Access { from, again: self.uses.is_again(file.id, now_ms), now_ms };
        self.eviction.accessed(&file, access);
        self.epochs.note(&file, access);
        if access.again {
            return None;
        }
        self.sample.used(&file, now_ms);
        self.rings.note(file.group, &self.epochs).then_some(file.group)
    }

    /// A reader of a file of `group`, which may have been given out long ago, has waited so long for the source.
    pub fn waited(&mut self, group: GroupId, us: u64) {
        self.epochs.waited(self.groups.current(group), us);
    }

    /// As [`Shards::read`].
    pub fn shards_after(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        self.shards.read(path)
    }

    /// As [`Siblings::opened`].
    pub fn siblings_of(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        self.siblings.opened(path)
    }

    /// What the scout of a data set, which was sent out in its epoch `number`, is to do now.
    pub fn scout(&mut self, group: GroupId, number: u32, unused_bytes: u64, now_ms: u64) -> Turn {
        rings::turn(self.epochs.now(group), self.epochs.is_recognised(group), number, unused_bytes, now_ms)
    }

    /// The scout of a data set has come back: it has seen all of it, or was called back.
    pub fn scout_back(&mut self, group: GroupId, outcome: Outcome) {
        self.rings.back(group, outcome);
    }

    /// `file` is now cached.
    pub fn inserted(&mut self, file: &Subject) {
        let file = self.current(file);
        self.eviction.inserted(&file);
    }

    /// `id` is not cached any more.
    pub fn removed(&mut self, id: FileId) {
        self.eviction.removed(id);
    }

    /// As [`Eviction::victim`].
    pub fn victim(
        &mut self,
        candidate: Option<&Subject>,
        in_use: &mut dyn FnMut(FileId) -> bool,
    ) -> Option<FileId> {
        let candidate = candidate.map(|file| self.current(file));
        self.eviction.victim(candidate.as_ref(), in_use)
    }

    /// As [`Eviction::order`].
    pub fn order(&self) -> Vec<FileId> {
        self.eviction.order()
    }

    /// The data sets.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Where in their epochs the data sets are.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// What is remembered of all uses.
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    fn current(&self, file: &Subject) -> Subject {
        Subject { group: self.groups.current(file.group), ..*file }
    }
}
