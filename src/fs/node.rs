//! Nodes: what the kernel knows, under which number, and the table of them.
//!
//! A node is one object of the source ([`Identity`]) and, while it is open, one version of it: handles that are open
//! keep their version whole, and the kernel has one page cache and one I/O mode per node. When a file changed and is
//! still open, its node is *retired* and the new version gets a node of its own. A number is the source's inode number
//! wherever that is free to use.
//!
//! A node holds its parent, so that its path can always be told; it is in the table for as long as the kernel holds
//! references ([`Node::nlookup`]).

use super::contested::Hold;
use super::dir::Listing;
use crate::cache::Serving;
use crate::types::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::types::sync::{Mutex, MutexGuard};
use crate::types::{Attr, FileKind, Identity, KernelRef, NodeId, Timestamp};
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The root's number, by the protocol.
pub const ROOT: NodeId = 1;

/// Numbers from here on are not inode numbers of the source's own device.
const FOREIGN: NodeId = 1 << 63;

/// Numbers from here on are for what warmfs itself provides.
pub const INSIDE: NodeId = NodeId::MAX - 15;

/// One object that the kernel knows.
pub struct Node {
    /// Its number.
    pub id: NodeId,
    /// Its type, which never changes: another type is another object.
    pub kind: FileKind,
    nlookup: AtomicU64,
    state: Mutex<NodeState>,
}

/// What changes about a node.
pub struct NodeState {
    /// Where it was last seen; `None` for the root.
    pub place: Option<(Arc<Node>, Box<[u8]>)>,
    /// Its attributes then.
    pub attr: Attr,
    /// When that was, in milliseconds: see [`super::Fs`].
    pub checked_ms: u64,
    /// The file has a newer version, which has another node.
    pub retired: bool,
    /// The kernel's pages are of an older version: the next open must not keep them.
    pub pages_stale: bool,
    /// Open handles and what they read.
    pub open: Option<Box<OpenState>>,
    /// The file itself, held for an open that is to come.
    pub hold: Option<Box<Hold>>,
    /// The directory's entries, if they were read.
    pub listing: Option<Arc<Listing>>,
    /// Its access control list, if the kernel asked for it.
    pub acl: Option<Box<KnownAcl>>,
}

/// An access control list that was read. A change of it is a change of the object's ctime.
pub struct KnownAcl {
    /// The object's ctime before it was read.
    pub ctime: Timestamp,
    /// As the kernel's extended attribute holds it; `None`: the mode says everything.
    pub bytes: Option<Box<[u8]>>,
}

impl NodeState {
    /// Whether somebody has this version open or was promised it.
    pub fn keeps_version(&self) -> bool {
        self.open.is_some() || self.hold.is_some()
    }

    /// Whether it was last seen as `name` in `parent`.
    pub fn is_at(&self, parent: &Arc<Node>, name: &[u8]) -> bool {
        self.place.as_ref().is_some_and(|(p, n)| Arc::ptr_eq(p, parent) && **n == *name)
    }
}

/// What the open handles of a node share.
pub struct OpenState {
    /// How many there are.
    pub handles: u32,
    /// The kernel's I/O mode of the node.
    pub mode: Mode,
    /// What they read from.
    pub serving: Arc<Serving>,
}

/// The kernel's I/O mode of a node while it is open: mixing the two is EIO for the user (fs/fuse/iomode.c).
#[derive(Clone)]
pub enum Mode {
    /// The kernel reads the data file by itself, all handles through this registration.
    Passthrough(KernelRef),
    /// Reads come to us, through the kernel's page cache.
    Cached,
}

impl Node {
    fn new(id: NodeId, attr: Attr, place: Option<(Arc<Node>, Box<[u8]>)>, checked_ms: u64) -> Arc<Self> {
        let state = NodeState {
            place,
            attr,
            checked_ms,
            retired: false,
            pages_stale: false,
            open: None,
            hold: None,
            listing: None,
            acl: None,
        };
        Arc::new(Self { id, kind: attr.kind, nlookup: AtomicU64::new(0), state: Mutex::new(state) })
    }

    /// Its changing part. Never held across I/O or a reply.
    pub fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock()
    }

    /// Its path below the source's root.
    pub fn path(&self) -> PathBuf {
        // From the bottom up; a tree that was turned inside out in the source while we looked could be a circle.
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let mut place = self.lock().place.clone();
        while let Some((parent, name)) = place {
            names.push(name);
            if names.len() > DEPTH_MAX {
                break;
            }
            place = parent.lock().place.clone();
        }
        let mut path = PathBuf::new();
        names.into_iter().rev().for_each(|name| path.push(OsString::from_vec(name.into())));
        path
    }

    /// References that the kernel holds.
    pub fn nlookup(&self) -> u64 {
        self.nlookup.load(Ordering::Acquire)
    }
}

/// Deeper trees than this are circles: PATH_MAX holds 2048 names.
const DEPTH_MAX: usize = 65_536;

type NodeShard = Mutex<HashMap<NodeId, Arc<Node>>>;

/// More shards than cores on a training node.
const SHARDS: usize = 64;

/// All nodes that the kernel knows.
pub struct NodeTable {
    shards: Box<[NodeShard]>,
    root: Arc<Node>,
    root_device: u64,
    /// Objects whose natural number was taken: by a retired node, or by a file that is gone and still open. Nearly
    /// always empty, which `alternates_len` tells without the lock.
    alternates: Mutex<HashMap<Identity, NodeId>>,
    alternates_len: AtomicUsize,
    next_alternate: AtomicU64,
}

impl NodeTable {
    /// A table with the root, of which the source told so at this time.
    pub fn new(root: Attr, root_device: u64, checked_ms: u64) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            root: Node::new(ROOT, root, None, checked_ms),
            root_device,
            alternates: Mutex::default(),
            alternates_len: AtomicUsize::new(0),
            next_alternate: AtomicU64::new(0),
        }
    }

    /// The root.
    pub fn root(&self) -> &Arc<Node> {
        &self.root
    }

    /// The node with this number.
    pub fn get(&self, id: NodeId) -> Option<Arc<Node>> {
        if id == ROOT {
            return Some(self.root.clone());
        }
        self.shard(id).lock().get(&id).cloned()
    }

    /// Every node, the root too.
    pub fn all(&self) -> Vec<Arc<Node>> {
        let mut all = vec![self.root.clone()];
        all.extend(self.shards.iter().flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>()));
        all
    }

    /// Nodes known to the kernel, the root not counted.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }

    /// Whether the kernel knows only the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number that an object gets if it is free: its inode number, or a mixture if it is on another device.
    pub fn natural_id(&self, identity: &Identity) -> NodeId {
        if identity.dev == self.root_device && identity.ino > ROOT && identity.ino < FOREIGN {
            return identity.ino;
        }
        let mixed = mix(identity.ino ^ mix(identity.dev));
        (mixed | FOREIGN).min(INSIDE - 1)
    }

    /// The number of an entry in a listing, of which only the inode number is known.
    pub fn listed_id(&self, ino: u64) -> NodeId {
        self.natural_id(&Identity { dev: self.root_device, ino, birth: Timestamp::default() })
    }

    /// A number for an entry in a listing that is not made a node. Not 0: readers of directories take that for an entry
    /// that was deleted, and pass it over. Not the object's own either, which may be known with attributes.
    pub fn unknown_id(&self, ino: u64) -> NodeId {
        (mix(!ino) | FOREIGN).min(INSIDE - 1)
    }

    /// Notes that `name` in `parent` is the object with these attributes, counts a reference of the kernel on it and
    /// returns it. `version_changed` tells whether two attributes speak of different contents.
    pub fn enter(
        &self,
        parent: &Arc<Node>,
        name: &[u8],
        attr: &Attr,
        checked_ms: u64,
        version_changed: &dyn Fn(&Attr, &Attr) -> bool,
    ) -> Arc<Node> {
        let mut id = self.known_id(&attr.identity);
        loop {
            match self.enter_as(id, parent, name, attr, checked_ms, version_changed) {
                Some(node) => return node,
                None => id = self.other_id(&attr.identity, id),
            }
        }
    }

    /// As [`NodeTable::enter`], under this number; `None` if the node that has it cannot be the object.
    fn enter_as(
        &self,
        id: NodeId,
        parent: &Arc<Node>,
        name: &[u8],
        attr: &Attr,
        checked_ms: u64,
        version_changed: &dyn Fn(&Attr, &Attr) -> bool,
    ) -> Option<Arc<Node>> {
        let mut shard = self.shard(id).lock();
        let Some(node) = shard.get(&id).cloned() else {
            // Since it was looked for the object may have got another number, or given this one back.
            if self.known_id(&attr.identity) != id {
                return None;
            }
            let node = Node::new(id, *attr, Some((parent.clone(), name.into())), checked_ms);
            node.nlookup.store(1, Ordering::Release);
            shard.insert(id, node.clone());
            return Some(node);
        };
        // A reference is counted while the shard is locked: FORGET removes under the same lock.
        let mut state = node.state.lock();
        if state.attr.identity != attr.identity || node.kind != attr.kind || state.retired {
            return None;
        }
        // What is told is older than what is known: a reference is counted, and nothing else.
        if state.checked_ms != super::EXPIRED && checked_ms < state.checked_ms {
            drop(state);
            node.nlookup.fetch_add(1, Ordering::AcqRel);
            return Some(node);
        }
        if version_changed(&state.attr, attr) {
            if state.keeps_version() {
                state.retired = true;
                return None;
            }
            state.pages_stale = true;
        }
        if !state.is_at(parent, name) {
            state.place = Some((parent.clone(), name.into()));
        }
        state.attr = *attr;
        state.checked_ms = checked_ms;
        drop(state);
        node.nlookup.fetch_add(1, Ordering::AcqRel);
        Some(node)
    }

    /// The kernel drops `count` references.
    pub fn forget(&self, id: NodeId, count: u64) {
        if id == ROOT {
            return;
        }
        let mut shard = self.shard(id).lock();
        let Some(node) = shard.get(&id) else { return };
        let before = node.nlookup.fetch_sub(count, Ordering::AcqRel);
        debug_assert!(before >= count, "the kernel forgets more than it was told");
        if before > count {
            return;
        }
        let node = shard.remove(&id);
        // Under the shard's lock: who finds the number free then also finds that it is nobody's.
        if let Some(node) = &node
            && self.alternates_len.load(Ordering::Acquire) > 0
        {
            self.forget_alternate(node);
        }
        drop(shard);
    }

    fn known_id(&self, identity: &Identity) -> NodeId {
        if self.alternates_len.load(Ordering::Acquire) > 0
            && let Some(id) = self.alternates.lock().get(identity)
        {
            return *id;
        }
        self.natural_id(identity)
    }

    /// Another number for an object than `tried`: the one that it was given meanwhile, by a look-up at the same time, or
    /// else a new one. The first is made of the object alone: one that the kernel forgets and finds again, under a new
    /// name say, is to have the same number as before.
    fn other_id(&self, identity: &Identity, tried: NodeId) -> NodeId {
        let mut alternates = self.alternates.lock();
        let known = alternates.get(identity).copied().unwrap_or_else(|| self.natural_id(identity));
        if known != tried {
            return known;
        }
        let birth = mix(identity.birth.secs as u64) ^ u64::from(identity.birth.nanos);
        let mixed = |salt: u64| (mix(identity.ino ^ mix(salt)) | FOREIGN).min(INSIDE - 1);
        let first = mixed(mix(birth) ^ identity.dev);
        let id = match first == tried {
            true => mixed(self.next_alternate.fetch_add(1, Ordering::Relaxed) + 1),
            false => first,
        };
        alternates.insert(*identity, id);
        self.alternates_len.store(alternates.len(), Ordering::Release);
        id
    }

    fn forget_alternate(&self, node: &Node) {
        let identity = node.lock().attr.identity;
        let mut alternates = self.alternates.lock();
        if alternates.get(&identity) == Some(&node.id) {
            alternates.remove(&identity);
        }
        self.alternates_len.store(alternates.len(), Ordering::Release);
    }

    fn shard(&self, id: NodeId) -> &NodeShard {
        &self.shards[(id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % SHARDS]
    }
}

/// Spreads 64 bits (the finaliser of splitmix64).
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn attr(ino: u64, size: u64) -> Attr {
        Attr {
            kind: FileKind::Regular,
            perm: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            blocks: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            identity: Identity { dev: 9, ino, birth: Timestamp::default() },
        }
    }

    fn changed(a: &Attr, b: &Attr) -> bool {
        a.size != b.size
    }

    fn table() -> NodeTable {
        NodeTable::new(Attr { kind: FileKind::Directory, ..attr(2, 0) }, 9, 0)
    }

    fn enter(t: &NodeTable, name: &str, a: &Attr) -> Arc<Node> {
        t.enter(&t.root().clone(), name.as_bytes(), a, 0, &changed)
    }

    fn open(node: &Node) {
        let opened = crate::cache::read::Opened { source: Arc::new(Never), attr: attr(1, 1) };
        let serving = Arc::new(Serving::Source(opened));
        node.lock().open = Some(Box::new(OpenState { handles: 1, mode: Mode::Cached, serving }));
    }

    struct Never;

    impl crate::backing::SourceFile for Never {
        fn read_at(&self, _: &mut [u8], _: u64) -> crate::types::Result<usize> {
            unreachable!("nothing is read in these tests")
        }

        fn attr(&self) -> crate::types::Result<Attr> {
            unreachable!("nothing is read in these tests")
        }

        fn direct(&self) -> Option<(&crate::sys::io::Io, &Arc<std::os::fd::OwnedFd>)> {
            None
        }
    }

    #[test]
    fn bug_111_two_names_of_one_file_are_one_node() {
        let t = table();
        let a = enter(&t, "a", &attr(100, 5));
        let b = enter(&t, "b", &attr(100, 5));
        assert!(Arc::ptr_eq(&a, &b) && a.id == 100 && a.nlookup() == 2);
        assert_eq!(b.path(), PathBuf::from("b"));
    }

    #[test]
    fn a_new_version_of_a_closed_file_keeps_the_number_and_drops_the_pages() {
        let t = table();
        enter(&t, "a", &attr(100, 5));
        let node = enter(&t, "a", &attr(100, 6));
        assert_eq!(node.id, 100);
        assert!(node.lock().pages_stale && node.lock().attr.size == 6);
    }

    #[test]
    fn a_new_version_of_an_open_file_is_another_node_for_all_its_names() {
        let t = table();
        let old = enter(&t, "a", &attr(100, 5));
        open(&old);
        let new = enter(&t, "a", &attr(100, 6));
        let link = enter(&t, "b", &attr(100, 6));
        assert_ne!(old.id, new.id);
        assert!(Arc::ptr_eq(&new, &link));
        assert!(old.lock().retired && old.lock().attr.size == 5);
        t.forget(new.id, 2);
        t.forget(old.id, 1);
        assert!(t.is_empty());
        assert_eq!(enter(&t, "a", &attr(100, 6)).id, 100, "the number is free again");
    }

    #[test]
    fn bug_110_a_reused_inode_number_is_another_node_while_the_old_one_lives() {
        let t = table();
        let old = enter(&t, "f1", &attr(100, 5));
        let mut reused = attr(100, 5);
        reused.identity.birth.secs = 77;
        let new = enter(&t, "f2", &reused);
        assert_ne!(old.id, new.id);
        assert!(!old.lock().retired, "it is another file, not another version");
    }

    /// Found by pjdfstest (rename::preserve_metadata): after a rename the same file had another inode number.
    #[test]
    fn bug_110_the_number_given_instead_of_one_that_is_taken_lasts() {
        let t = table();
        enter(&t, "f1", &attr(100, 5));
        let mut reused = attr(100, 5);
        reused.identity.birth.secs = 77;
        let given = enter(&t, "f2", &reused).id;
        t.forget(given, 1);
        assert_eq!(enter(&t, "renamed", &reused).id, given);
        // A version that takes the place of an open one needs another number still.
        open(&t.get(given).expect("known"));
        reused.size = 6;
        let newer = enter(&t, "renamed", &reused);
        assert!(newer.id != given && newer.id != 100);
    }

    #[test]
    fn bug_088_forgetting_to_zero_removes_and_never_below() {
        let t = table();
        let a = enter(&t, "a", &attr(100, 5));
        enter(&t, "a", &attr(100, 5));
        t.forget(a.id, 1);
        assert!(t.get(100).is_some());
        t.forget(a.id, 1);
        assert!(t.get(100).is_none());
        t.forget(100, 5);
        t.forget(ROOT, 1);
        assert!(t.get(ROOT).is_some());
    }

    #[test]
    fn numbers_never_collide_with_the_root_or_with_our_own() {
        let t = table();
        for ino in [0, 1, FOREIGN, u64::MAX] {
            let id = t.natural_id(&Identity { dev: 9, ino, birth: Timestamp::default() });
            assert!((FOREIGN..INSIDE).contains(&id), "{ino} -> {id}");
        }
        assert_eq!(t.listed_id(55), 55);
    }
}
