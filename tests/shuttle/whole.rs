//! The file system and the cache whole, over a source in memory and a cache directory on a RAM disk: opens, closes,
//! changes, evictions and forgets in every order. The test plays the kernel.

use crate::{WHOLE, explore};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::sync::mpsc;
use shuttle::thread;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use warmfs::backing::{FsFigures, Pin, Source, SourceDir, SourceFile};
use warmfs::cache::engine::PreadEngine;
use warmfs::cache::{self, Cache};
use warmfs::fs::node::ROOT;
use warmfs::fs::open::Opened;
use warmfs::fs::{self, Door, Entry, Fs, Reply};
use warmfs::policy::Lru;
use warmfs::stats::Stats;
use warmfs::store::{CacheDir, Index};
use warmfs::sys::io::Io;
use warmfs::types::{
    Attr, Error, FileId, FileKind, FileVersion, Identity, KernelRef, NodeId, Result, Timestamp,
};

const NAMES: [&str; 2] = ["a", "b"];
const FIRST_INO: u64 = 100;

/// Files whose every byte is the low byte of their version, changed in place.
struct Memory {
    versions: [AtomicU64; 2],
}

/// Versions 1 and 2 have the same size, 3 another.
fn size_of(version: u64) -> u64 {
    600 + version / 3 * 100
}

impl Memory {
    fn attr(&self, n: usize) -> Attr {
        let version = self.versions[n].load(SeqCst);
        let time = Timestamp { secs: version as i64, nanos: 0 };
        let identity = Identity { dev: 9, ino: FIRST_INO + n as u64, birth: Timestamp::default() };
        Attr { kind: FileKind::Regular, size: size_of(version), mtime: time, ctime: time, identity, ..root() }
    }

    fn number(path: &Path) -> Result<usize> {
        let found = NAMES.iter().position(|name| Path::new(name) == path);
        found.ok_or_else(|| Error::os("stat", "a name", libc::ENOENT))
    }
}

fn root() -> Attr {
    let time = Timestamp::default();
    Attr {
        kind: FileKind::Directory,
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        identity: Identity { dev: 9, ino: 2, birth: time },
    }
}

/// The source, as the cache and the test share it.
#[derive(Clone)]
struct Shared(Arc<Memory>);

struct MemoryFile(Arc<Memory>, usize);

impl SourceFile for MemoryFile {
    /// Short reads, so that a copy may meet two versions.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let version = self.0.versions[self.1].load(SeqCst);
        let left = size_of(version).saturating_sub(offset) as usize;
        let n = left.min(buf.len()).min(400);
        buf[..n].fill(version as u8);
        Ok(n)
    }

    fn attr(&self) -> Result<Attr> {
        Ok(self.0.attr(self.1))
    }

    fn direct(&self) -> Option<(&Io, &Arc<OwnedFd>)> {
        None
    }
}

impl Source for Shared {
    fn stat(&self, path: &Path) -> Result<Attr> {
        if path == Path::new("") {
            return Ok(root());
        }
        Ok(self.0.attr(Memory::number(path)?))
    }

    fn open_pinned(&self, _: &Pin) -> Result<Arc<dyn SourceFile>> {
        Err(Error::os("open", "a pinned file", libc::ESTALE))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn SourceFile>> {
        Ok(Arc::new(MemoryFile(self.0.clone(), Memory::number(path)?)))
    }

    fn open_dir(&self, _: &Path) -> Result<Box<dyn SourceDir>> {
        Err(Error::os("open", "a directory", libc::EACCES))
    }

    fn read_link(&self, _: &Path) -> Result<Vec<u8>> {
        Err(Error::os("read link", "a file", libc::EINVAL))
    }

    fn has_acls(&self) -> bool {
        false
    }

    fn acl(&self, _: &Path) -> Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn figures(&self) -> Result<FsFigures> {
        Ok(FsFigures::default())
    }

    fn file_id(&self, _: &Path, attr: &Attr) -> FileId {
        FileId { high: 0, low: attr.identity.ino }
    }

    fn file_id_without_path(&self, attr: &Attr) -> Option<FileId> {
        Some(self.file_id(Path::new(""), attr))
    }

    fn version(&self, attr: &Attr) -> FileVersion {
        FileVersion { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, ino: attr.identity.ino }
    }

    fn root_device(&self) -> u64 {
        9
    }
}

/// The kernel's end of passthrough: keeps the file open and reads it by itself.
struct TestDoor;

impl Door for TestDoor {
    fn register(&self, fd: BorrowedFd<'_>) -> std::io::Result<KernelRef> {
        Ok(Arc::new(fd.try_clone_to_owned()?))
    }
}

/// How the handles of a node are open, as the kernel knows it.
#[derive(Clone)]
struct IoMode {
    handles: u32,
    kernel: Option<KernelRef>,
}

struct World {
    source: Arc<Memory>,
    cache: Arc<Cache>,
    fs: Arc<Fs>,
    /// Of the standard library: never held where another may go on.
    modes: Mutex<HashMap<NodeId, IoMode>>,
    dir: tempfile::TempDir,
}

impl World {
    /// `room` is for how many files.
    fn new(room: u64, passthrough: bool) -> Arc<Self> {
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let temp = tempfile::Builder::new().prefix("warmfs-shuttle-").tempdir_in(base).unwrap();
        let dir = Arc::new(CacheDir::open(&temp.path().join("cache"), Path::new("/s")).unwrap());
        let loaded = Index::open(dir.io(), &dir.index_path()).unwrap();
        let overhead = dir.overhead_bytes() + (8 << 20);
        let settings = cache::Settings {
            // The index may grow: what bounds here is the number of files.
            bytes_max: overhead + (1 << 20),
            files_max: room,
            free_floor_bytes: 0,
            ram_window_bytes: 0,
            small_file_bytes_max: 4096,
        };
        let source = Arc::new(Memory { versions: [AtomicU64::new(1), AtomicU64::new(1)] });
        let stats = Arc::new(Stats::default());
        let shared = Arc::new(Shared(source.clone()));
        let engine = Arc::new(PreadEngine::new());
        let cache = Cache::start(settings, shared, dir, loaded, engine, Box::new(Lru::new()), stats).unwrap();
        let settings = fs::Settings {
            ttl: Some(Duration::ZERO),
            passthrough,
            backing_ids_max: 1,
            // By the clock it would, and a schedule would not be the same again.
            read_ahead: false,
            keep_names: false,
            source_threads: 2,
            hang_after: Duration::from_secs(3600),
            timeout: Duration::from_secs(3600),
            list_xattrs: false,
        };
        let fs = Fs::new(settings, cache.clone()).unwrap();
        fs.set_door(Arc::new(TestDoor));
        Arc::new(Self { source, cache, fs, modes: Mutex::default(), dir: temp })
    }

    fn look_up(&self, name: &str) -> (NodeId, Attr) {
        match wait(|reply| self.fs.lookup(ROOT, OsStr::new(name), reply)).unwrap() {
            Entry::Found { node, attr, .. } => (node, attr),
            Entry::Missing(_) => panic!("{name} is missing"),
        }
    }

    /// One client: looks up, opens, reads, closes; the kernel forgets. A file that changes on the way may be refused as
    /// stale, and only so.
    fn client(&self, n: usize) {
        let oldest = self.source.versions[n].load(SeqCst);
        let (node, attr) = self.look_up(NAMES[n]);
        assert!(attr.mtime.secs as u64 >= oldest, "the look-up is older than the file");
        match wait(|reply| self.fs.open(node, reply)) {
            Ok(opened) => {
                let kernel = self.note_open(node, opened);
                if let Some(kernel) = &kernel {
                    self.check_content(kernel, oldest);
                    thread::yield_now();
                    self.check_content(kernel, oldest);
                }
                self.note_close(node);
                drop(kernel);
                self.fs.release(node);
            }
            Err(e) => assert_eq!(e.errno(), Some(libc::ESTALE), "{e}"),
        }
        self.fs.forget(node, 1);
    }

    /// The same while the cache stops: a file may still be read, from the source.
    fn client_until_stop(&self, n: usize) {
        let (node, _) = self.look_up(NAMES[n]);
        if wait(|reply| self.fs.open(node, reply)).is_ok() {
            self.fs.release(node);
        }
        self.fs.forget(node, 1);
    }

    /// A copy of the index, as the next start would find it.
    fn index_image(&self) -> std::path::PathBuf {
        let image = self.dir.path().join("image");
        std::fs::copy(self.cache.dir().index_path(), &image).unwrap();
        image
    }

    /// All handles of a node have one mode and one registration, or the kernel says EIO.
    fn note_open(&self, node: NodeId, opened: Opened) -> Option<KernelRef> {
        let kernel = match opened {
            Opened::Passthrough(kernel) => Some(kernel),
            Opened::KeepPages | Opened::DropPages => None,
        };
        let mut modes = self.modes.lock().unwrap();
        let mode = modes.entry(node).or_insert(IoMode { handles: 0, kernel: kernel.clone() });
        let same = match (&mode.kernel, &kernel) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        assert!(same, "two modes or two registrations on one node");
        mode.handles += 1;
        kernel
    }

    fn note_close(&self, node: NodeId) {
        let mut modes = self.modes.lock().unwrap();
        let mode = modes.get_mut(&node).unwrap();
        mode.handles -= 1;
        if mode.handles == 0 {
            modes.remove(&node);
        }
    }

    /// Whole, of one version, and not of one that was old before the look-up.
    fn check_content(&self, kernel: &KernelRef, oldest: u64) {
        let fd = kernel.downcast_ref::<OwnedFd>().unwrap();
        let mut bytes = [0; 1024];
        let n = rustix::io::pread(fd, &mut bytes, 0).unwrap();
        let version = u64::from(bytes[0]);
        assert!(bytes[..n].iter().all(|b| u64::from(*b) == version), "two versions in one file");
        assert_eq!(n as u64, size_of(version), "a file of the wrong length");
        assert!(version >= oldest, "version {version} is older than {oldest}");
    }

    fn evict(&self, n: usize) {
        self.cache.evict(FileId { high: 0, low: FIRST_INO + n as u64 });
        self.check_budget();
    }

    fn check_budget(&self) {
        let usage = self.cache.usage();
        assert!(usage.bytes <= usage.bytes_max, "{usage:?}");
    }

    /// Everything is closed: nothing is left of it, and all space can be had back.
    fn end(&self) {
        self.fs.stop();
        (0..NAMES.len()).for_each(|n| self.evict(n));
        let figures = self.fs.stats_json();
        assert_eq!(figures["nodes"], 0, "nodes are left");
        assert_eq!(figures["source_waiting"], 0, "requests are left");
        assert_eq!(self.cache.file_count(), 0, "files are left");
        // Who was told of the end of a flight a moment ago may still hold its file.
        for _ in 0..10_000 {
            if self.cache.usage().files == 0 {
                break;
            }
            thread::yield_now();
        }
        assert_eq!(self.cache.usage().files, 0, "space is left");
        self.cache.stop();
    }
}

/// Calls with a reply and waits for it; a reply that is dropped is EIO to the kernel.
fn wait<T: Send + 'static>(call: impl FnOnce(Reply<T>)) -> Result<T> {
    let (tx, rx) = mpsc::channel();
    call(Box::new(move |answer| drop(tx.send(answer))));
    rx.recv().unwrap_or_else(|_| Err(Error::os("wait", "a dropped reply", libc::EIO)))
}

fn spawn(world: &Arc<World>, work: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || work(&world))
}

/// Goal: two clients on one file and one on another, with room for one file only, so that each fill evicts.
fn three_clients_and_room_for_one() {
    let world = World::new(1, true);
    let threads = [0, 0, 1].map(|n| spawn(&world, move |w| w.client(n)));
    threads.into_iter().for_each(|t| t.join().unwrap());
    world.check_budget();
    world.end();
}

/// Goal: two clients on a file that changes twice, once in size too, while an operator evicts it.
fn a_change_and_an_eviction() {
    let world = World::new(4, true);
    let clients = [0, 0].map(|n| spawn(&world, move |w| w.client(n)));
    let operator = spawn(&world, |w| w.evict(0));
    for _ in 0..2 {
        thread::yield_now();
        world.source.versions[0].fetch_add(1, SeqCst);
    }
    clients.into_iter().chain([operator]).for_each(|t| t.join().unwrap());
    world.client(0);
    world.end();
}

/// Goal: the same where the kernel cannot read by itself, or only until it refuses: one mode all the same.
fn passthrough_is_lost_in_between() {
    let world = World::new(4, true);
    let clients = [0, 0, 0].map(|n| spawn(&world, move |w| w.client(n)));
    world.fs.lose_passthrough("a test");
    clients.into_iter().for_each(|t| t.join().unwrap());
    world.end();
}

/// Goal: a clean stop while files are opened: what the index then says is complete lies in the data directory, whole, and
/// no other file does.
fn stopped_in_between() {
    let world = World::new(4, true);
    let clients = [0, 1].map(|n| spawn(&world, move |w| w.client_until_stop(n)));
    world.cache.stop();
    clients.into_iter().for_each(|t| t.join().unwrap());
    world.fs.stop();
    let dir = world.cache.dir();
    let image = world.index_image();
    let loaded = Index::open(dir.io(), &image).unwrap();
    let mut known = std::collections::HashSet::new();
    for (_, record) in &loaded.records {
        let size = std::fs::metadata(dir.data_path(record.number)).map(|m| m.len());
        assert_eq!(size.ok(), Some(record.version.size), "a record of a file that is not there");
        known.insert(record.number);
    }
    assert_eq!(dir.sweep(&known).unwrap().removed, 0, "a file that no record speaks of");
}

#[test]
fn a_stop_leaves_files_and_records_that_agree() {
    explore("schedules: a stop between opens", &WHOLE, stopped_in_between);
}

#[test]
fn clients_evict_each_other() {
    explore("schedules: opens and evictions", &WHOLE, three_clients_and_room_for_one);
}

#[test]
fn a_file_changes_while_it_is_opened_and_evicted() {
    explore("schedules: opens, changes and evictions", &WHOLE, a_change_and_an_eviction);
}

#[test]
fn a_node_has_one_mode_when_passthrough_is_lost() {
    explore("schedules: one mode per node", &WHOLE, passthrough_is_lost_in_between);
}
