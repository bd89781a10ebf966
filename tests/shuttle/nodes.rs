//! Nodes: what the kernel refers to stays, handles keep their version, and in the end nothing is left.

use crate::{SMALL, explore};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;
use std::sync::Arc;
use warmfs::backing::SourceFile;
use warmfs::cache::Serving;
use warmfs::cache::read::Opened;
use warmfs::fs::node::{Mode, Node, NodeTable, OpenState};
use warmfs::sys::io::Io;
use warmfs::types::{Attr, FileKind, Identity, Result, Timestamp};

const INO: u64 = 100;

fn attr(size: u64) -> Attr {
    let time = Timestamp::default();
    let identity = Identity { dev: 9, ino: INO, birth: time };
    let kind = FileKind::Regular;
    Attr {
        kind,
        perm: 0o644,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        identity,
    }
}

struct Never;

impl SourceFile for Never {
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        unreachable!("nothing is read here")
    }

    fn attr(&self) -> Result<Attr> {
        unreachable!("nothing is read here")
    }

    fn direct(&self) -> Option<(&Io, &Arc<std::os::fd::OwnedFd>)> {
        None
    }
}

struct World {
    nodes: NodeTable,
    /// The source: the size is the version.
    size: AtomicU64,
}

impl World {
    fn new() -> Arc<Self> {
        let root = Attr { kind: FileKind::Directory, ..attr(0) };
        Arc::new(Self { nodes: NodeTable::new(root, 9, 0), size: AtomicU64::new(1) })
    }

    /// A look-up: what the source says now, and a reference on its node.
    fn look_up(&self, name: &str) -> Arc<Node> {
        let seen = attr(self.size.load(SeqCst));
        let root = self.nodes.root().clone();
        self.nodes.enter(&root, name.as_bytes(), &seen, 0, &|a, b| a.size != b.size)
    }

    /// What the kernel may count on while it refers to a node.
    fn check_referred(&self, node: &Arc<Node>) {
        let there = self.nodes.get(node.id);
        assert!(there.is_some_and(|n| Arc::ptr_eq(&n, node)), "a node was removed that the kernel refers to");
        assert!(node.nlookup() > 0);
    }

    /// An open as `fs::open` counts it; `None` is ESTALE.
    fn open(&self, node: &Node) -> Option<u64> {
        let mut state = node.lock();
        if state.retired {
            return None;
        }
        match state.open.as_mut() {
            Some(open) => open.handles += 1,
            None => {
                let opened = Opened { source: Arc::new(Never), attr: state.attr };
                let serving = Arc::new(Serving::Source(opened));
                state.open = Some(Box::new(OpenState { handles: 1, mode: Mode::Cached, serving }));
            }
        }
        Some(state.attr.size)
    }

    fn close(&self, node: &Node, version: u64) {
        let mut state = node.lock();
        assert_eq!(state.attr.size, version, "an open handle's version changed");
        let open = state.open.as_mut().unwrap();
        open.handles -= 1;
        if open.handles == 0 {
            state.open = None;
        }
    }

    /// One client: looks up, opens, reads a while, closes; the kernel forgets.
    fn client(&self, name: &str) {
        let node = self.look_up(name);
        self.check_referred(&node);
        if let Some(version) = self.open(&node) {
            thread::yield_now();
            self.check_referred(&node);
            self.close(&node, version);
        }
        self.nodes.forget(node.id, 1);
    }

    fn check_all_gone(&self) {
        assert!(self.nodes.is_empty(), "{} nodes are left", self.nodes.len());
        let node = self.look_up("a");
        assert_eq!(node.id, INO, "another number is remembered for a node that is gone");
        assert_eq!(node.nlookup(), 1);
        self.nodes.forget(node.id, 1);
    }
}

/// Goal: three clients by two names of one file, which changes meanwhile.
fn clients_and_a_change() {
    let world = World::new();
    let threads: Vec<_> = ["a", "b", "a"]
        .into_iter()
        .map(|name| {
            let world = world.clone();
            thread::spawn(move || world.client(name))
        })
        .collect();
    world.size.fetch_add(1, SeqCst);
    threads.into_iter().for_each(|t| t.join().unwrap());
    world.check_all_gone();
}

/// Goal: two look-ups at once of a file that changed while its old version is open: both get the same new node, and a
/// third one later gets it too.
fn one_new_node_for_all() {
    let world = World::new();
    let old = world.look_up("a");
    let version = world.open(&old).unwrap();
    world.size.fetch_add(1, SeqCst);
    let other = {
        let world = world.clone();
        thread::spawn(move || world.look_up("b"))
    };
    let mine = world.look_up("a");
    let theirs = other.join().unwrap();
    assert!(!Arc::ptr_eq(&mine, &old), "an open handle's node got another version");
    assert!(Arc::ptr_eq(&mine, &theirs), "two nodes for one version of one file");
    let later = world.look_up("a");
    assert!(Arc::ptr_eq(&mine, &later), "a new node for a version that has one");
    world.close(&old, version);
    world.nodes.forget(old.id, 1);
    world.nodes.forget(mine.id, 3);
    world.check_all_gone();
}

/// Goal: the kernel forgets a node at the very moment it is looked up again, also one that has not its natural number:
/// who holds a reference finds the node, and a second look-up finds the same one.
fn forgotten_and_looked_up_at_once() {
    let world = World::new();
    let old = world.look_up("a");
    let version = world.open(&old).unwrap();
    world.size.fetch_add(1, SeqCst);
    let new = world.look_up("a");
    let kernel = {
        let (world, id) = (world.clone(), new.id);
        thread::spawn(move || world.nodes.forget(id, 1))
    };
    let again = world.look_up("a");
    world.check_referred(&again);
    kernel.join().unwrap();
    let third = world.look_up("b");
    assert!(Arc::ptr_eq(&again, &third), "two nodes for one version of one file");
    world.nodes.forget(again.id, 1);
    world.nodes.forget(third.id, 1);
    world.close(&old, version);
    world.nodes.forget(old.id, 1);
    world.check_all_gone();
}

#[test]
fn nodes_stay_while_they_are_referred_to() {
    explore("schedules: nodes", &SMALL, clients_and_a_change);
}

#[test]
fn a_changed_open_file_gets_one_new_node() {
    explore("schedules: retired nodes", &SMALL, one_new_node_for_all);
}

#[test]
fn a_node_is_forgotten_while_it_is_looked_up() {
    explore("schedules: forget beside look-up", &SMALL, forgotten_and_looked_up_at_once);
}
