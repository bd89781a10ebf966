//! Listings: read once from the source, kept for the TTL, served in any pieces the kernel asks for.
//!
//! A handle keeps the listing it began with, so that every entry that was there all the time is told exactly once,
//! whatever happens meanwhile. Positions are indexes into it, which makes every page as cheap as the first.

use super::ahead::Walk;
use super::memory::Remembered;
use super::node::Node;
use super::watch::Pending;
use super::{ESTALE, Fs, Reply};
use crate::backing::{DirEntry, Look, SourceDir};
use crate::store::names::{KeptEntry, KeptListing, Stamp};
use crate::sys::clock::file_time;
use crate::types::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::{Attr, Error, FileKind, Identity, Moment, NodeId, Result, Timestamp};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The entries of a directory at one moment. Names lie in one piece of memory: a million of them are kept.
pub struct Listing {
    names: Box<[u8]>,
    rows: Box<[Row]>,
    /// Indexes into `rows`, by name.
    sorted: Box<[u32]>,
    /// The directory's own times: as long as they stay, so do its entries.
    times: (Timestamp, Timestamp),
    /// A change that the times do not tell may have followed at once.
    racy: bool,
    /// The device that its entries are on, but for those that something is mounted on.
    dev: u64,
    checked_ms: AtomicU64,
    /// What the source said of the entries, as far as it was asked; empty until it is.
    remembered: Mutex<Vec<Option<Remembered>>>,
    /// Indexes into `rows` of the directories, when somebody has asked for them.
    dirs: OnceLock<Box<[u32]>>,
    /// Who goes through it.
    walk: Mutex<Walk>,
    /// What is not in the index of it: [`UNSAVED_CONTENT`], [`UNSAVED_TIMES`].
    unsaved: AtomicU8,
}

/// Something is known that was not.
const UNSAVED_CONTENT: u8 = 1;
/// The same is known to be younger.
const UNSAVED_TIMES: u8 = 2;

/// One entry.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    start: u32,
    len: u16,
    /// Its type.
    pub kind: FileKind,
    /// Its inode number in the source.
    pub ino: u64,
}

impl Listing {
    /// The listing of `entries`, in their order, of the directory with these attributes. `racy`: for this time only.
    pub fn new(entries: &[DirEntry], dir: &Attr, racy: bool, checked_ms: u64) -> Self {
        let mut names = Vec::with_capacity(entries.iter().map(|e| e.name.len()).sum());
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            let start = names.len() as u32;
            names.extend(entry.name.as_bytes());
            rows.push(Row { start, len: entry.name.len() as u16, kind: entry.kind, ino: entry.ino });
        }
        let name = |i: &u32| {
            let row: &Row = &rows[*i as usize];
            &names[row.start as usize..][..usize::from(row.len)]
        };
        let mut sorted: Vec<u32> = (0..rows.len() as u32).collect();
        sorted.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        Self {
            sorted: sorted.into(),
            names: names.into(),
            rows: rows.into(),
            times: (dir.mtime, dir.ctime),
            racy,
            dev: dir.identity.dev,
            checked_ms: checked_ms.into(),
            remembered: Mutex::default(),
            dirs: OnceLock::new(),
            walk: Mutex::default(),
            unsaved: AtomicU8::new(UNSAVED_CONTENT),
        }
    }

    /// A listing from the index; `at` tells when something was asked that was so old when it was written.
    pub(super) fn restored(kept: &KeptListing, dev: u64, at: &dyn Fn(u64) -> u64) -> Self {
        let entry = |e: &KeptEntry| DirEntry { name: e.name.clone(), ino: e.ino, kind: e.kind };
        let entries: Vec<_> = kept.entries.iter().map(entry).collect();
        let identity = Identity { dev, ..Attr::UNKNOWN.identity };
        let dir = Attr { mtime: kept.times.0, ctime: kept.times.1, identity, ..Attr::UNKNOWN };
        let remembered =
            |e: &KeptEntry| e.attr.as_ref().and_then(|(attr, age_ms)| Remembered::new(attr, at(*age_ms)));
        Self {
            remembered: Mutex::new(kept.entries.iter().map(remembered).collect()),
            unsaved: AtomicU8::new(0),
            ..Self::new(&entries, &dir, kept.racy, at(kept.age_ms))
        }
    }

    /// What to keep of it in the index. `has_no_acl` tells of an object what is known of its access control list.
    pub(super) fn to_keep(
        &self,
        dir: &Identity,
        stamp: &Stamp,
        written: Moment,
        now_ms: u64,
        has_no_acl: &dyn Fn(&Identity, Timestamp) -> bool,
    ) -> KeptListing {
        let remembered = self.remembered.lock().clone();
        let entry = |(i, row): (usize, &Row)| {
            let known = remembered.get(i).copied().flatten();
            let attr = known.map(|known| known.attr(row.kind, self.dev, row.ino));
            KeptEntry {
                name: OsStr::from_bytes(self.name(row)).to_owned(),
                ino: row.ino,
                kind: row.kind,
                attr: attr.map(|(attr, checked_ms)| (attr, now_ms.saturating_sub(checked_ms))),
                no_acl: attr.is_some_and(|(attr, _)| has_no_acl(&attr.identity, attr.ctime)),
            }
        };
        KeptListing {
            times: self.times,
            racy: self.racy,
            no_acl: has_no_acl(dir, self.times.1),
            age_ms: now_ms.saturating_sub(self.checked_ms()),
            written,
            stamp: *stamp,
            entries: self.rows.iter().enumerate().map(entry).collect(),
        }
    }

    /// Whether there is something to write; only at a stop it is worth it that the same is known to be younger.
    pub(super) fn is_unsaved(&self, at_stop: bool) -> bool {
        let mask = if at_stop { UNSAVED_CONTENT | UNSAVED_TIMES } else { UNSAVED_CONTENT };
        self.unsaved.load(Ordering::Relaxed) & mask != 0
    }

    /// It is going to be written as it is now. Gives what to set again if it is not.
    pub(super) fn take_unsaved(&self) -> u8 {
        self.unsaved.swap(0, Ordering::AcqRel)
    }

    /// It is to be written.
    pub(super) fn set_unsaved(&self, unsaved: u8) {
        self.unsaved.fetch_or(unsaved, Ordering::AcqRel);
    }

    /// More is known of one of its entries than is remembered here.
    pub(super) fn learnt(&self) {
        self.set_unsaved(UNSAVED_CONTENT);
    }

    /// How many entries it has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the directory is empty.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Keeps what the source said of an entry at `checked_ms`, if that is what is listed under the name.
    pub fn remember(&self, name: &[u8], attr: &Attr, checked_ms: u64) {
        let Some(index) = self.index(name) else { return };
        let row = &self.rows[index];
        if (row.ino, row.kind, self.dev) != (attr.identity.ino, attr.kind, attr.identity.dev) {
            return;
        }
        let mut remembered = self.remembered.lock();
        if remembered.is_empty() {
            remembered.resize(self.rows.len(), None);
        }
        // Of two that asked at the same time the later one knows better.
        if remembered[index].is_some_and(|known| known.checked_ms() > checked_ms) {
            return;
        }
        // Who reads in the source changes the time of access, which is not worth writing down each time.
        let but_for_atime = |attr: Attr| Attr { atime: Timestamp::ZERO, ..attr };
        let same = remembered[index].is_some_and(|known| {
            but_for_atime(known.attr(row.kind, self.dev, row.ino).0) == but_for_atime(*attr)
        });
        // Told once more of what was remembered, not asked anew.
        let known_ms = remembered[index].map(|known| known.checked_ms());
        if same && known_ms == Some(checked_ms) {
            return;
        }
        remembered[index] = Remembered::new(attr, checked_ms);
        drop(remembered);
        self.set_unsaved(if same { UNSAVED_TIMES } else { UNSAVED_CONTENT });
    }

    /// Forgets what the source said of an entry.
    pub fn forget(&self, name: &[u8]) {
        if let Some(index) = self.index(name)
            && let Some(slot) = self.remembered.lock().get_mut(index)
        {
            *slot = None;
            self.set_unsaved(UNSAVED_CONTENT);
        }
    }

    /// What the source said of an entry, and when.
    pub fn recall(&self, name: &[u8]) -> Option<(Attr, u64)> {
        let index = self.index(name)?;
        let remembered = *self.remembered.lock().get(index)?;
        Some(remembered?.attr(self.rows[index].kind, self.dev, self.rows[index].ino))
    }

    /// When the source last confirmed it, milliseconds since the start.
    pub fn checked_ms(&self) -> u64 {
        self.checked_ms.load(Ordering::Relaxed)
    }

    fn name(&self, row: &Row) -> &[u8] {
        &self.names[row.start as usize..][..usize::from(row.len)]
    }

    /// The entry at a position; the first come after `.` and `..`.
    fn at(&self, position: u64) -> Option<(&Row, &OsStr)> {
        let row = self.rows.get(position.checked_sub(DOTS)? as usize)?;
        Some((row, OsStr::from_bytes(self.name(row))))
    }

    /// The entry with this name.
    pub fn find(&self, name: &[u8]) -> Option<&Row> {
        self.index(name).map(|index| &self.rows[index])
    }

    /// Who goes through it.
    pub(super) fn walk(&self) -> MutexGuard<'_, Walk> {
        self.walk.lock()
    }

    /// The entry at a place in the source's order, and when the source was last asked for its attributes.
    pub(super) fn entry(&self, index: u32) -> Option<(&Row, &OsStr, Option<u64>)> {
        let row = self.rows.get(index as usize)?;
        let remembered = self.remembered.lock().get(index as usize).copied().flatten();
        Some((row, OsStr::from_bytes(self.name(row)), remembered.map(|r| r.checked_ms())))
    }

    /// Places of the directories among the entries.
    pub(super) fn dirs(&self) -> &[u32] {
        self.dirs.get_or_init(|| {
            let is_dir = |i: &u32| self.rows[*i as usize].kind == FileKind::Directory;
            (0..self.rows.len() as u32).filter(is_dir).collect()
        })
    }

    /// The place of an entry in the source's order.
    pub(super) fn index(&self, name: &[u8]) -> Option<usize> {
        let at = self.sorted.binary_search_by(|i| self.name(&self.rows[*i as usize]).cmp(name)).ok()?;
        Some(self.sorted[at] as usize)
    }
}

/// Open directories.
#[derive(Default)]
pub struct DirHandles {
    next: u64,
    open: HashMap<u64, Arc<DirHandle>>,
}

/// An open directory.
pub struct DirHandle {
    node: Option<Arc<Node>>,
    listing: Option<Arc<Listing>>,
    parent: NodeId,
    id: NodeId,
}

/// What OPENDIR tells the kernel.
pub struct OpenedDir {
    /// The handle's number.
    pub handle: u64,
    /// The kernel's own copy of the listing is still good.
    pub keep: bool,
}

/// An entry handed to the kernel.
pub struct Listed<'a> {
    /// Its number.
    pub id: NodeId,
    /// Its type.
    pub kind: FileKind,
    /// Its name.
    pub name: &'a OsStr,
    /// The position after it.
    pub next: u64,
    /// For READDIRPLUS, its attributes and how long they are good; a reference is counted on its node. What is not known
    /// is good for no time.
    pub attr: Option<(Attr, Duration)>,
}

/// `.` and `..` come first.
const DOTS: u64 = 2;

/// Time that one READDIRPLUS may spend on asking a quick source for attributes. What is left then is sent without, and is
/// looked up by those who want it.
const STAT_BUDGET: Duration = Duration::from_millis(50);
/// A source that takes longer than this for one answer is not quick, and is not asked for more than one: a listing must
/// not become slower by wanting to help.
const QUICK_STAT: Duration = Duration::from_micros(200);

impl Fs {
    /// OPENDIR.
    pub fn open_dir(self: &Arc<Self>, id: NodeId, reply: Reply<OpenedDir>) {
        if Self::is_inside(id) {
            let handle = DirHandle { node: None, listing: None, parent: super::node::ROOT, id };
            return reply(Ok(self.add_dir_handle(handle, false)));
        }
        let node = match self.node(id) {
            Ok(node) => node,
            Err(e) => return reply(Err(e)),
        };
        match self.is_unread(&node) {
            true => self.after_reading(node, |fs, node| fs.open_dir_of(node, reply)),
            false => self.open_dir_of(node, reply),
        }
    }

    fn open_dir_of(self: &Arc<Self>, node: Arc<Node>, reply: Reply<OpenedDir>) {
        let kept = self.listing_of(&node);
        if let Some(listing) = &kept
            && self.is_fresh(listing.checked_ms())
        {
            self.read_ahead_of_open(&node, listing);
            return reply(Ok(self.opened_dir(&node, listing.clone(), true)));
        }
        let known: Option<super::watch::Known<OpenedDir>> = kept.map(|listing| {
            let (fs, node) = (self.clone(), node.clone());
            Box::new(move || Some(fs.opened_dir(&node, listing, true))) as super::watch::Known<OpenedDir>
        });
        self.slow(
            reply,
            known,
            move |fs| {
                let (listing, same) = fs.list(&node)?;
                fs.read_ahead_of_open(&node, &listing);
                Ok(fs.opened_dir(&node, listing, same))
            },
            |fs, late| fs.release_dir(late.handle),
        );
    }

    fn opened_dir(&self, node: &Arc<Node>, listing: Arc<Listing>, keep: bool) -> OpenedDir {
        let parent = node.lock().place.as_ref().map_or(super::node::ROOT, |(parent, _)| parent.id);
        let handle = DirHandle { node: Some(node.clone()), listing: Some(listing), parent, id: node.id };
        self.add_dir_handle(handle, keep)
    }

    fn add_dir_handle(&self, handle: DirHandle, keep: bool) -> OpenedDir {
        let mut handles = self.dir_handles.lock();
        handles.next += 1;
        let number = handles.next;
        handles.open.insert(number, Arc::new(handle));
        OpenedDir { handle: number, keep }
    }

    /// The listing, from memory if the directory's times say that it is still true. Tells whether it is the same.
    fn list(&self, node: &Arc<Node>) -> Result<(Arc<Listing>, bool)> {
        let (checked_ms, look) = (self.now_ms(), Look::without_writers(file_time()));
        let dir = self.source.open_dir(&node.path())?;
        let attr = dir.attr()?;
        if node.lock().attr.identity != attr.identity {
            return Err(Error::os("open directory", "one that has moved", ESTALE));
        }
        let (listing, same) = self.read_listing(&*dir, &attr, self.listing_of(node), checked_ms, &look)?;
        if !same {
            node.lock().listing = Some(listing.clone());
            self.listings.lock().put(attr.identity, listing.clone());
        }
        Ok((listing, same))
    }

    /// Reads the listing of an open directory with these attributes, if it is not the one that is `kept`.
    pub(super) fn read_listing(
        &self,
        dir: &dyn SourceDir,
        attr: &Attr,
        kept: Option<Arc<Listing>>,
        checked_ms: u64,
        look: &Look,
    ) -> Result<(Arc<Listing>, bool)> {
        if let Some(kept) = kept
            && kept.times == (attr.mtime, attr.ctime)
            && !kept.racy
        {
            kept.checked_ms.fetch_max(checked_ms, Ordering::Relaxed);
            kept.set_unsaved(UNSAVED_TIMES);
            return Ok((kept, true));
        }
        self.stats.listings.inc();
        let racy = self.source.is_racy(attr, look);
        Ok((Arc::new(Listing::new(&dir.entries()?, attr, racy, checked_ms)), false))
    }

    /// The listing of a directory, if there is one: the node's, or the one that outlived an earlier node of it.
    pub(super) fn listing_of(&self, node: &Node) -> Option<Arc<Listing>> {
        let identity = {
            let state = node.lock();
            if let Some(listing) = &state.listing {
                return Some(listing.clone());
            }
            state.attr.identity
        };
        let listing = self.listings.lock().get(&identity)?;
        node.lock().listing = Some(listing.clone());
        Some(listing)
    }

    /// RELEASEDIR.
    pub fn release_dir(&self, handle: u64) {
        self.dir_handles.lock().open.remove(&handle);
    }

    fn dir_handle(&self, handle: u64) -> Result<Arc<DirHandle>> {
        let found = self.dir_handles.lock().open.get(&handle).cloned();
        found.ok_or_else(|| Error::os("find handle", handle.to_string(), 9)) // EBADF
    }

    /// READDIR from `offset` on: `add` is told entry after entry until it says that the buffer is full.
    pub fn read_dir(&self, handle: u64, offset: u64, add: &mut dyn FnMut(Listed<'_>) -> bool) -> Result<()> {
        let handle = self.dir_handle(handle)?;
        let Some(listing) = &handle.listing else {
            handle.inside(offset, add);
            return Ok(());
        };
        if !handle.dots(offset, add) {
            return Ok(());
        }
        for (i, row) in listing.rows.iter().enumerate().skip(offset.saturating_sub(DOTS) as usize) {
            let entry = Listed {
                id: self.nodes.listed_id(row.ino),
                kind: row.kind,
                name: OsStr::from_bytes(listing.name(row)),
                next: i as u64 + DOTS + 1,
                attr: None,
            };
            if add(entry) {
                break;
            }
        }
        Ok(())
    }

    /// READDIRPLUS: as READDIR, with nodes and attributes where they can be had in time; from memory when the source is
    /// silent.
    pub fn read_dir_plus(self: &Arc<Self>, handle: u64, offset: u64, mut reply: Box<dyn PlusReply>) {
        let handle = match self.dir_handle(handle) {
            Ok(handle) => handle,
            Err(e) => return reply.end(Err(e)),
        };
        if handle.listing.is_none() {
            handle.inside(offset, &mut |entry| reply.add(entry));
            return reply.end(Ok(()));
        }
        let page = Page { reply, at: offset, sent: false };
        if self.watch.is_silent() {
            return self.page_from_memory(&handle, page);
        }
        let pending = Pending::new(page);
        let (fs, known) = (self.clone(), handle.clone());
        let guard = self.watch.listing(&pending, move |page| fs.page_from_memory(&known, page));
        let fs = self.clone();
        self.pool.submit(Box::new(move || {
            fs.page_from_source(&handle, &pending);
            drop(guard);
            if let Some(page) = pending.take() {
                page.reply.end(Ok(()));
            }
        }));
    }

    fn page_from_source(self: &Arc<Self>, handle: &DirHandle, pending: &Pending<Page>) {
        let (Some(listing), Some(node)) = (&handle.listing, &handle.node) else { return };
        let mut asker = Asker { fs: self, node, dir: None, asked: 0, took: Duration::ZERO };
        let Some(mut at) = pending.with(|page| page.dots(handle)) else { return };
        let is_wanted = at > DOTS;
        while let Some((row, name)) = listing.at(at) {
            let asked = asker.entry(name, row);
            // Without the lock until here: if the source did not tell in time, another has answered meanwhile.
            match pending.with(|page| page.add(self, row, name, &asked)) {
                Some(true) => at += 1,
                Some(false) | None => {
                    asked.undo(self);
                    break;
                }
            }
        }
        // The kernel asks for the first page with attributes always, for the others when they are used.
        if is_wanted && at > DOTS {
            self.read_ahead_of_entry(node, listing, (at - DOTS - 1) as u32);
        }
    }

    /// What is left of a page, without asking the source.
    fn page_from_memory(&self, handle: &DirHandle, mut page: Page) {
        let (Some(listing), Some(node)) = (&handle.listing, &handle.node) else { return };
        if !page.sent {
            self.stats.stale_answers.inc();
            let mut at = page.dots(handle);
            while let Some((row, name)) = listing.at(at) {
                let asked = match self.listed_entry(node, name, row) {
                    Some(super::Entry::Found { node, attr, ttl }) => self.asked(node, attr, ttl),
                    _ => Asked::Unknown,
                };
                if !page.add(self, row, name, &asked) {
                    asked.undo(self);
                    break;
                }
                at += 1;
            }
        }
        page.reply.end(Ok(()));
    }

    fn asked(&self, node: NodeId, attr: Attr, ttl: Duration) -> Asked {
        self.nodes.get(node).map_or(Asked::Unknown, |node| Asked::Known((node, attr, ttl)))
    }
}

/// Takes the entries of a READDIRPLUS, until it is told that this was all.
pub trait PlusReply: Send {
    /// One entry; `true` if the buffer is full and it was not taken.
    fn add(&mut self, entry: Listed<'_>) -> bool;

    /// The end.
    fn end(self: Box<Self>, result: Result<()>);
}

/// A reply to READDIRPLUS in the making.
struct Page {
    reply: Box<dyn PlusReply>,
    /// Position of the next entry.
    at: u64,
    /// An entry was taken; a reply without one would be the end of the listing.
    sent: bool,
}

impl Page {
    /// Tells `.` and `..` if it is their turn. Gives the position after.
    fn dots(&mut self, handle: &DirHandle) -> u64 {
        if self.at < DOTS {
            let reply = &mut self.reply;
            handle.dots(self.at, &mut |entry| reply.add(entry));
            (self.at, self.sent) = (DOTS, true);
        }
        self.at
    }

    /// `false` if the buffer is full.
    fn add(&mut self, fs: &Fs, row: &Row, name: &OsStr, asked: &Asked) -> bool {
        let next = self.at + 1;
        let (id, attr) = match asked {
            Asked::Known((node, attr, ttl)) => (node.id, Some((*attr, *ttl))),
            Asked::Unknown => (fs.nodes.unknown_id(row.ino), None),
            Asked::Gone => {
                self.at = next;
                return true;
            }
        };
        if self.reply.add(Listed { id, kind: row.kind, name, next, attr }) {
            return false;
        }
        (self.at, self.sent) = (next, true);
        true
    }
}

impl DirHandle {
    /// Tells `.` and `..`; `false` if the buffer is full.
    fn dots(&self, offset: u64, add: &mut dyn FnMut(Listed<'_>) -> bool) -> bool {
        let kind = FileKind::Directory;
        for (at, name, id) in [(0, ".", self.id), (1, "..", self.parent)] {
            let entry = Listed { id, kind, name: OsStr::new(name), next: at + 1, attr: None };
            if offset <= at && add(entry) {
                return false;
            }
        }
        true
    }

    fn inside(&self, offset: u64, add: &mut dyn FnMut(Listed<'_>) -> bool) {
        if !self.dots(offset, add) {
            return;
        }
        for (i, (name, id, kind)) in Fs::inside_names().into_iter().enumerate() {
            let next = i as u64 + DOTS + 1;
            if offset < next && add(Listed { id, kind, name: OsStr::new(name), next, attr: None }) {
                return;
            }
        }
    }
}

/// Finds the attributes of entries: from memory, else from the source while there is time.
struct Asker<'a> {
    fs: &'a Fs,
    node: &'a Arc<Node>,
    dir: Option<Box<dyn SourceDir>>,
    asked: u32,
    took: Duration,
}

/// What became of asking for an entry's attributes.
enum Asked {
    /// Here they are, with a reference on the node.
    Known((Arc<Node>, Attr, Duration)),
    /// The source does not tell; who asks for the entry learns why.
    Unknown,
    /// It is not there any more.
    Gone,
}

impl Asker<'_> {
    fn entry(&mut self, name: &OsStr, row: &Row) -> Asked {
        let fs = self.fs;
        match fs.known_entry(self.node, name) {
            Some(super::Entry::Found { node, attr, ttl }) => return fs.asked(node, attr, ttl),
            Some(super::Entry::Missing(_)) => return Asked::Gone,
            None => {}
        }
        let is_slow = match self.asked {
            0 => fs.pace.is_slow(),
            asked => self.took > STAT_BUDGET || self.took > QUICK_STAT * asked,
        };
        if is_slow {
            // What was known of it, good for no time, or at least that it exists.
            return match fs.listed_entry(self.node, name, row) {
                Some(super::Entry::Found { node, attr, .. }) => fs.asked(node, attr, Duration::ZERO),
                _ => Asked::Unknown,
            };
        }
        if self.dir.is_none() {
            self.dir = self.fs.source.open_dir(&self.node.path()).ok();
        }
        let Some(dir) = &self.dir else { return Asked::Unknown };
        let checked_ms = fs.now_ms();
        let started = Instant::now();
        let found = dir.stat(name.as_bytes());
        let took = started.elapsed();
        fs.pace.note(took);
        self.took += took;
        self.asked += 1;
        match found {
            Ok(attr) => {
                Asked::Known((fs.enter(self.node, name, &attr, checked_ms), attr, fs.ttl_left(checked_ms)))
            }
            Err(e) if e.errno() == Some(super::ENOENT) => Asked::Gone,
            Err(_) => Asked::Unknown,
        }
    }
}

impl Asked {
    /// The entry was not sent, so the kernel has no reference.
    fn undo(self, fs: &Fs) {
        if let Self::Known((node, ..)) = self {
            fs.forget(node.id, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_odd_ones_too() {
        let names: [&[u8]; 5] = [b"b", b"a\n", b"\xff", b"a", b"longer name"];
        let entry = |(i, n): (usize, &&[u8])| DirEntry {
            name: OsStr::from_bytes(n).to_owned(),
            ino: i as u64,
            kind: FileKind::Regular,
        };
        let entries: Vec<_> = names.iter().enumerate().map(entry).collect();
        let listing = Listing::new(&entries, &Attr::UNKNOWN, false, 0);
        for (i, name) in names.iter().enumerate() {
            assert_eq!(listing.find(name).map(|row| row.ino), Some(i as u64));
        }
        assert!(listing.find(b"aa").is_none() && listing.find(b"").is_none());
    }
}
