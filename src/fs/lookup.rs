//! Names to nodes, attributes, links.
//!
//! What the kernel asks here after its own caches have expired. An answer from memory says only how much longer it is
//! good, so that nothing is ever older than the TTL, however many caches it passed.

use super::dir::Row;
use super::node::{Node, NodeState};
use super::{ENOENT, EXPIRED, Entry, Fs, Reply, STALE_TTL};
use crate::backing::Pin;
use crate::types::{Attr, ErrorKind, NodeId, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a contested name is looked at until what it leads to can be held.
const LOOKS: u32 = 4;

impl Fs {
    /// LOOKUP: `name` in the directory `parent`. A found entry counts one reference on its node.
    pub fn lookup(self: &Arc<Self>, parent: NodeId, name: &OsStr, reply: Reply<Entry>) {
        self.stats.lookups.inc();
        if let Some(answer) = self.lookup_inside(parent, name) {
            return reply(answer);
        }
        let parent = match self.node(parent) {
            Ok(parent) => parent,
            Err(e) => return reply(Err(e)),
        };
        if self.is_unread(&parent) {
            let name = name.to_owned();
            return self.after_reading(parent, move |fs, parent| fs.lookup_in(parent, &name, reply));
        }
        self.lookup_in(parent, name, reply);
    }

    fn lookup_in(self: &Arc<Self>, parent: Arc<Node>, name: &OsStr, reply: Reply<Entry>) {
        self.read_ahead_of_lookup(&parent, name);
        // Of a contested name the source is asked every time: what is known is without a file held for the open.
        if !self.contested.is(parent.id, name)
            && let Some(entry) = self.known_entry(&parent, name)
        {
            return reply(Ok(entry));
        }
        if let Some(entry) = self.entry_seen_ahead(&parent, name) {
            return reply(Ok(entry));
        }
        // If the source is silent, what was known is better than nothing.
        let (fs, known_parent, known_name) = (self.clone(), parent.clone(), name.to_owned());
        let known = move || fs.last_known_entry(&known_parent, &known_name);
        let name = name.to_owned();
        self.slow(
            reply,
            Some(Box::new(known)),
            move |fs| fs.lookup_source(&parent, &name),
            |fs, late| {
                if let Entry::Found { node, .. } = late {
                    fs.forget(node, 1);
                }
            },
        );
    }

    /// The entry as the source told it when the file was fetched ahead, if that is fresh. It is forgotten either way: whoever
    /// asks the source now is told newer things, and nobody after that older ones.
    fn entry_seen_ahead(&self, parent: &Arc<Node>, name: &OsStr) -> Option<Entry> {
        let (attr, asked) = self.cache.seen_ahead(&parent.path().join(name))?;
        if self.contested.is(parent.id, name) {
            return None;
        }
        let checked_ms = self.now_ms().saturating_sub(asked.elapsed().as_millis() as u64);
        self.is_fresh(checked_ms).then(|| self.found(self.enter(parent, name, &attr, checked_ms)))
    }

    fn lookup_source(&self, parent: &Arc<Node>, name: &OsStr) -> Result<Entry> {
        let mut looks = 0;
        loop {
            looks += 1;
            let checked_ms = self.now_ms();
            let path = parent.path().join(name);
            let contested = self.contested.is(parent.id, name);
            let started = Instant::now();
            let seen = match contested {
                true => self.source.look(&path),
                false => self.source.stat(&path).map(|attr| (attr, None)),
            };
            self.pace.note(started.elapsed());
            match seen {
                Ok((attr, pin)) => {
                    let node = self.enter(parent, name, &attr, checked_ms);
                    // Others have seen a newer version meanwhile.
                    if pin.is_some_and(|pin| !self.hold(&node, pin)) && looks < LOOKS {
                        self.nodes.forget(node.id, 1);
                        continue;
                    }
                    let entry = self.found(node);
                    return Ok(if contested { entry.for_now() } else { entry });
                }
                Err(e) if e.errno() == Some(ENOENT) => {
                    let shadow = self.lookup_shadow(parent, name);
                    return Ok(shadow.unwrap_or_else(|| Entry::Missing(self.ttl_left(checked_ms))));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Holds the file that was looked at for the open of its node, if the node is still of that version.
    fn hold(&self, node: &Arc<Node>, pin: Pin) -> bool {
        let (identity, version) = (pin.attr.identity, self.source.version(&pin.attr));
        let is_version = |state: &NodeState| {
            state.attr.identity == identity && self.source.version(&state.attr) == version
        };
        self.contested.hold(node, pin, is_version, &self.watch)
    }

    /// Notes an object of the source and counts a reference on its node.
    pub(super) fn enter(&self, parent: &Arc<Node>, name: &OsStr, attr: &Attr, checked_ms: u64) -> Arc<Node> {
        if let Some(listing) = self.listing_of(parent) {
            listing.remember(name.as_bytes(), attr, checked_ms);
        }
        let changed = |a: &Attr, b: &Attr| self.source.version(a) != self.source.version(b);
        self.nodes.enter(parent, name.as_bytes(), attr, checked_ms, &changed)
    }

    fn found(&self, node: Arc<Node>) -> Entry {
        let state = node.lock();
        Entry::Found { node: node.id, attr: state.attr, ttl: self.ttl_left(state.checked_ms) }
    }

    /// The entry from memory, if that is fresh: a listing tells what is not there; a node what is, or what the listing
    /// remembers of it.
    pub(super) fn known_entry(&self, parent: &Arc<Node>, name: &OsStr) -> Option<Entry> {
        let listing = self.listing_of(parent)?;
        if !self.is_fresh(listing.checked_ms()) {
            return None;
        }
        let Some(row) = listing.find(name.as_bytes()) else {
            // A listing of the source does not know what warmfs adds to it.
            if let Some(entry) = self.lookup_shadow(parent, name) {
                return Some(entry);
            }
            return Some(Entry::Missing(self.ttl_left(listing.checked_ms())));
        };
        let node = self.nodes.get(self.nodes.listed_id(row.ino));
        let (attr, checked_ms) = match node.map(|node| self.attr_at(&node, parent, name)) {
            Some(seen) => self.newest(seen?, &listing, name)?,
            None => listing.recall(name.as_bytes())?,
        };
        if !self.is_fresh(checked_ms) || attr.kind != row.kind {
            return None;
        }
        // Entered anew, which counts the reference under the table's lock: the kernel may be forgetting it right now.
        Some(self.found(self.enter(parent, name, &attr, checked_ms)))
    }

    /// What a node knows, or, if that is old, what the listing remembers that was asked of the source since. None if the node
    /// is in doubt.
    fn newest(&self, seen: (Attr, u64), listing: &super::dir::Listing, name: &OsStr) -> Option<(Attr, u64)> {
        if seen.1 == EXPIRED {
            return None;
        }
        if self.is_fresh(seen.1) {
            return Some(seen);
        }
        let recalled = listing.recall(name.as_bytes());
        let is_it = |r: &(Attr, u64)| r.1 > seen.1 && r.0.identity == seen.0.identity;
        Some(recalled.filter(is_it).unwrap_or(seen))
    }

    /// What a node knows of itself, if this is where it is and it is not an older version.
    fn attr_at(&self, node: &Node, parent: &Arc<Node>, name: &OsStr) -> Option<(Attr, u64)> {
        let state = node.lock();
        (state.is_at(parent, name.as_bytes()) && !state.retired).then_some((state.attr, state.checked_ms))
    }

    /// The entry as it was last seen, however long ago: for a source that is silent.
    fn last_known_entry(&self, parent: &Arc<Node>, name: &OsStr) -> Option<Entry> {
        let listing = self.listing_of(parent);
        let row = listing.as_ref().map(|listing| listing.find(name.as_bytes()));
        if let Some(Some(row)) = row
            && let Some(entry) = self.listed_entry(parent, name, row)
        {
            return Some(entry);
        }
        // A name that was looked up and not listed is found by a search, which only a silent source is worth.
        let found = self.nodes.all().into_iter().find_map(|node| self.attr_at(&node, parent, name));
        match found {
            Some((attr, checked_ms)) => Some(self.found_stale(parent, name, &attr, checked_ms)),
            None => matches!(row, Some(None)).then_some(Entry::Missing(STALE_TTL)),
        }
    }

    /// The same for an entry of a listing, if its node or the listing knows of it.
    pub(super) fn listed_entry(&self, parent: &Arc<Node>, name: &OsStr, row: &Row) -> Option<Entry> {
        let node = self.nodes.get(self.nodes.listed_id(row.ino));
        let seen = node.and_then(|node| self.attr_at(&node, parent, name));
        let (attr, checked_ms) = seen.or_else(|| self.listing_of(parent)?.recall(name.as_bytes()))?;
        // Another object with the number of an earlier one: the listing knows better.
        (attr.kind == row.kind).then(|| self.found_stale(parent, name, &attr, checked_ms))
    }

    fn found_stale(&self, parent: &Arc<Node>, name: &OsStr, attr: &Attr, checked_ms: u64) -> Entry {
        let node = self.enter(parent, name, attr, checked_ms);
        Entry::Found { node: node.id, attr: *attr, ttl: STALE_TTL }
    }

    /// FORGET: the kernel drops references.
    pub fn forget(&self, node: NodeId, count: u64) {
        self.nodes.forget(node, count);
    }

    /// GETATTR.
    pub fn getattr(self: &Arc<Self>, id: NodeId, reply: Reply<(Attr, Duration)>) {
        if let Some(answer) = self.getattr_inside(id) {
            return reply(Ok(answer));
        }
        let node = match self.node(id) {
            Ok(node) => node,
            Err(e) => return reply(Err(e)),
        };
        let (attr, checked_ms, retired) = {
            let state = node.lock();
            (state.attr, state.checked_ms, state.retired)
        };
        // A retired node is known through its handles only, which keep their version.
        if retired {
            return reply(Ok((attr, STALE_TTL)));
        }
        let left = self.ttl_left(checked_ms);
        if !left.is_zero() {
            return reply(Ok((attr, left)));
        }
        let known = Box::new(move || Some((attr, STALE_TTL)));
        self.slow(reply, Some(known), move |fs| fs.refresh(&node), |_, _| {});
    }

    /// Asks the source for the attributes of a node again.
    fn refresh(&self, node: &Arc<Node>) -> Result<(Attr, Duration)> {
        let checked_ms = self.now_ms();
        let path = node.path();
        // What was seen ahead is older.
        let _ = self.cache.seen_ahead(&path);
        let found = match self.source.stat(&path) {
            Ok(attr) => Some(attr),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Stale) => None,
            Err(e) => return Err(e),
        };
        let mut state = node.lock();
        match found {
            Some(attr) if attr.identity == state.attr.identity && attr.kind == node.kind => {
                let changed = self.source.version(&attr) != self.source.version(&state.attr);
                if changed && state.keeps_version() {
                    // Its handles keep their version; the name leads to a new node at the next look-up.
                    return Ok((state.attr, STALE_TTL));
                }
                state.pages_stale |= changed;
                state.attr = attr;
                state.checked_ms = checked_ms;
                let place = state.place.clone();
                drop(state);
                if let Some((parent, name)) = place
                    && let Some(listing) = self.listing_of(&parent)
                {
                    listing.remember(&name, &attr, checked_ms);
                }
                Ok((attr, self.ttl_left(checked_ms)))
            }
            // Not there any more under that name. Who holds it open, or stands in it, may still ask; so does the kernel
            // between a look-up and an open, and the open will tell.
            _ => Ok((state.attr, self.settings.ttl.unwrap_or(STALE_TTL).min(STALE_TTL))),
        }
    }

    /// READLINK.
    pub fn read_link(self: &Arc<Self>, id: NodeId, reply: Reply<Vec<u8>>) {
        match self.node(id) {
            Ok(node) => self.slow(reply, None, move |fs| fs.source.read_link(&node.path()), |_, _| {}),
            Err(e) => reply(Err(e)),
        }
    }

    /// What is known of a node turned out to be old: the next look-up of its name asks the source, whatever the TTL.
    pub(super) fn doubt(&self, node: &Node) {
        let place = {
            let mut state = node.lock();
            state.checked_ms = EXPIRED;
            state.place.clone()
        };
        let Some((parent, name)) = place else { return };
        self.contested.add(parent.id, &name);
        if let Some(listing) = self.listing_of(&parent) {
            listing.forget(&name);
        }
    }

    /// Forgets how fresh what is known about `path` and everything below is, so that the next use asks the source. Gives
    /// the entries that the kernel should forget.
    pub fn expire(&self, path: &Path) -> Vec<(NodeId, Box<[u8]>)> {
        // All of them, not only those below: an operator does this rarely, and what is lost is asked for again.
        self.kept.forget();
        self.listings.lock().clear();
        self.cache.forget_names();
        self.cache.forget_seen_ahead();
        let mut entries = Vec::new();
        for node in self.nodes.all() {
            let at = node.path();
            if Some(&*at) == path.parent() {
                // It remembers of the path's own attributes.
                node.lock().listing = None;
            }
            if !at.starts_with(path) {
                continue;
            }
            let mut state = node.lock();
            state.listing = None;
            state.checked_ms = EXPIRED;
            if let Some((parent, name)) = &state.place {
                entries.push((parent.id, name.clone()));
            }
        }
        entries
    }
}
