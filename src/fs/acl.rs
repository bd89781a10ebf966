//! Access control lists of the source, which the kernel asks for before it lets in anybody but the owner: the mode bits of an
//! object that has one show the most that it grants to anybody, not what it grants to this one.
//!
//! The source is asked once per change of an object's ctime. Nearly all objects have no list, and that is remembered
//! beyond the life of their nodes ([`Unlisted`]); a warm file is opened without a word to the source. If the source fails,
//! nobody is let in.

use super::node::{KnownAcl, Node};
use super::watch;
use super::xattr::no_data;
use super::{Fs, Reply};
use crate::backing::Look;
use crate::sys::clock::file_time;
use crate::types::{Attr, Identity, NodeId, Timestamp};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Objects of which it is known that they have no list, in each of two generations: about 16 bytes each.
const GENERATION_MAX: usize = 1 << 19;

/// Objects without a list, as hashes of who they are and when they last changed. The hash has a key of this process, so that
/// nobody can make two objects that agree; by chance two do once in 2^44 questions when it is full.
pub struct Unlisted {
    hasher: RandomState,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl Default for Unlisted {
    fn default() -> Self {
        Self { hasher: RandomState::new(), generations: Mutex::default() }
    }
}

impl Unlisted {
    pub(super) fn contains(&self, object: &Identity, ctime: Timestamp) -> bool {
        let hash = self.hasher.hash_one((object, ctime));
        let mut generations = self.generations.lock();
        if generations.young.contains(&hash) {
            return true;
        }
        let was_old = generations.old.contains(&hash);
        if was_old {
            generations.add(hash, GENERATION_MAX);
        }
        was_old
    }

    pub(super) fn insert(&self, object: &Identity, ctime: Timestamp) {
        let hash = self.hasher.hash_one((object, ctime));
        self.generations.lock().add(hash, GENERATION_MAX);
    }
}

impl Generations {
    /// When the young are many, they become the old, and the old of before are forgotten.
    fn add(&mut self, hash: u64, max: usize) {
        if self.young.len() >= max {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(hash);
    }
}

/// What is known of an object's list.
enum Known {
    /// This is it.
    Current(Option<Box<[u8]>>),
    /// The source must be asked; this is what it said at an earlier time.
    Ask(Option<Option<Box<[u8]>>>),
}

impl Fs {
    /// The access control list of an object; ENODATA if it has none.
    pub(super) fn get_acl(self: &Arc<Self>, id: NodeId, reply: Reply<Vec<u8>>) {
        let node = match self.node(id) {
            Ok(node) => node,
            Err(e) => return reply(Err(e)),
        };
        match self.is_unread(&node) {
            true => self.after_reading(node, |fs, node| fs.get_acl_of(node, reply)),
            false => self.get_acl_of(node, reply),
        }
    }

    fn get_acl_of(self: &Arc<Self>, node: Arc<Node>, reply: Reply<Vec<u8>>) {
        let (attr, known) = {
            let state = node.lock();
            (state.attr, state.acl.as_ref().map(|acl| (acl.ctime, acl.bytes.clone())))
        };
        let reply: Reply<Option<Box<[u8]>>> =
            Box::new(move |acl| reply(acl.and_then(|acl| acl.map(Vec::from).ok_or_else(no_data))));
        let known = match self.known_acl(&attr, known) {
            Known::Current(acl) => return reply(Ok(acl)),
            Known::Ask(known) => known,
        };
        let known = known.map(|acl| -> watch::Known<_> { Box::new(move || Some(acl)) });
        let ask = move |fs: &Arc<Self>| {
            let look = Look::without_writers(file_time());
            let bytes = fs.source.acl(&node.path())?.map(Vec::into_boxed_slice);
            fs.remember_acl(&node, &attr, bytes.clone(), look);
            Ok(bytes)
        };
        self.slow(reply, known, ask, |_, _| {});
    }

    fn known_acl(&self, attr: &Attr, known: Option<(Timestamp, Option<Box<[u8]>>)>) -> Known {
        match known {
            Some((ctime, acl)) if ctime == attr.ctime => Known::Current(acl),
            _ if self.unlisted.contains(&attr.identity, attr.ctime) => Known::Current(None),
            known => Known::Ask(known.map(|(_, acl)| acl)),
        }
    }

    /// A list that was read when a change of it could leave no other ctime is good for this time only.
    fn remember_acl(&self, node: &Node, attr: &Attr, acl: Option<Box<[u8]>>, look: Look) {
        if self.source.is_racy(attr, &look) {
            return;
        }
        match acl {
            None => {
                self.unlisted.insert(&attr.identity, attr.ctime);
                let (place, own) = {
                    let state = node.lock();
                    (state.place.clone(), state.listing.clone())
                };
                if let Some(own) = own {
                    own.learnt();
                }
                if let Some(around) = place.and_then(|(parent, _)| self.listing_of(&parent)) {
                    around.learnt();
                }
            }
            Some(_) => node.lock().acl = Some(Box::new(KnownAcl { ctime: attr.ctime, bytes: acl })),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(ino: u64) -> Identity {
        Identity { dev: 1, ino, birth: Timestamp::default() }
    }

    #[test]
    fn a_change_of_the_object_is_another_question() {
        let unlisted = Unlisted::default();
        let (then, now) = (Timestamp { secs: 1, nanos: 2 }, Timestamp { secs: 1, nanos: 3 });
        unlisted.insert(&object(1), then);
        assert!(unlisted.contains(&object(1), then));
        assert!(!unlisted.contains(&object(1), now) && !unlisted.contains(&object(2), then));
    }

    #[test]
    fn two_generations_bound_it() {
        let mut generations = Generations::default();
        (0..100).for_each(|hash| generations.add(hash, 10));
        assert!(generations.young.len() + generations.old.len() <= 20);
        assert!(generations.young.contains(&99) && generations.old.contains(&85));
    }
}
