//! What one mount knows of how it is read: every event enters here once, and all who decide see the same.
//!
//! The eviction, the epochs and the sample are apart from each other; what they share, the data set of a path and what is
//! one use of a file, is found out here.

use super::detect::shards::Shards;
use super::detect::siblings::Siblings;
use super::epochs::Epochs;
use super::groups::Groups;
use super::orders::{Name, Next, Orders};
use super::rings::{self, Outcome, Rings, Turn};
use super::sample::Sample;
use super::uses::RecentUses;
use super::{Access, Eviction, Subject, Tier};
use crate::types::{FileId, GroupId};
use std::collections::HashSet;

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
    orders: Orders,
    /// Data sets that are read in an order that was told: no scout goes through them.
    ordered: HashSet<GroupId>,
}

/// What is to be done about an open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// It began a use of the file: one that is opened again at once is still the same use.
    pub is_use: bool,
    /// A data set that should be fetched ahead from now on.
    pub scout: Option<GroupId>,
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
            orders: Orders::default(),
            ordered: HashSet::new(),
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

    /// The file at `path` was opened, from there. Its group may be one that was given out long ago.
    pub fn opened(&mut self, file: &Subject, path: &[u8], from: Tier, now_ms: u64) -> Noted {
        let file = self.current(file);
        let access = Access { from, again: self.uses.is_again(file.id, now_ms), now_ms };
        self.eviction.accessed(&file, access);
        self.epochs.note(&file, access);
        if access.again {
            return Noted::default();
        }
        self.sample.used(&file, now_ms);
        if !self.orders.is_empty() && self.orders.used(file.id, Name::of(path)) {
            self.ordered.insert(file.group);
        }
        let is_scouted = !self.is_ordered(file.group) && self.rings.note(file.group, &self.epochs);
        Noted { is_use: true, scout: is_scouted.then_some(file.group) }
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

    fn is_ordered(&self, group: GroupId) -> bool {
        !self.orders.is_empty() && self.ordered.contains(&group)
    }

    /// What the scout of a data set, which was sent out in its epoch `number`, is to do now.
    pub fn scout(&mut self, group: GroupId, number: u32, unused_bytes: u64, now_ms: u64) -> Turn {
        if self.is_ordered(group) {
            return Turn::End;
        }
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
        self.orders.removed(id);
    }

    /// The path of a file that is cached.
    pub fn cached_at(&mut self, id: FileId, path: &[u8]) {
        if !self.orders.is_empty() {
            self.orders.cached(id, Name::of(path));
        }
    }

    /// As [`Eviction::victim`]. Where the cache must become smaller for no file's sake, what orders tell of goes as they say.
    pub fn victim(
        &mut self,
        candidate: Option<&Subject>,
        in_use: &mut dyn FnMut(FileId) -> bool,
    ) -> Option<FileId> {
        if candidate.is_none()
            && !self.orders.is_empty()
            && let Some(id) = self.orders.farther(Next::After(0), in_use)
        {
            return Some(id);
        }
        let candidate = candidate.map(|file| self.current(file));
        self.eviction.victim(candidate.as_ref(), in_use)
    }

    /// The same for a file at this path, by the orders that were told: of those whose next use is known the one that comes
    /// last goes, if it comes later than the candidate. Where they know of none the policy decides, and none goes that comes
    /// sooner.
    pub fn victim_for(
        &mut self,
        candidate: &Subject,
        path: &[u8],
        in_use: &mut dyn FnMut(FileId) -> bool,
    ) -> Option<FileId> {
        let next = match self.orders.is_empty() {
            true => None,
            false => self.orders.next_use(Name::of(path)),
        };
        let Some(next) = next else { return self.victim(Some(candidate), in_use) };
        if let Some(id) = self.orders.farther(next, in_use) {
            return Some(id);
        }
        let candidate = self.current(candidate);
        self.eviction.victim(Some(&candidate), &mut self.orders.protecting(Some(next), in_use))
    }

    /// The cached file that goes for one that is fetched because an order tells of it, if one comes later.
    pub fn victim_ahead(&mut self, path: &[u8], in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        match self.orders.next_use(Name::of(path))? {
            next @ Next::After(_) => self.orders.farther(next, in_use),
            Next::Later => None,
        }
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

    /// The orders that jobs have told of.
    pub fn orders(&self) -> &Orders {
        &self.orders
    }

    /// The same, to be told of more.
    pub fn orders_mut(&mut self) -> &mut Orders {
        // Whether a data set is read in one will be seen anew.
        self.ordered.clear();
        &mut self.orders
    }

    /// What is remembered of all uses.
    pub fn sample(&self) -> &Sample {
        &self.sample
    }

    fn current(&self, file: &Subject) -> Subject {
        Subject { group: self.groups.current(file.group), ..*file }
    }
}
