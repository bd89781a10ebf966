//! A world of its own for each test: a source that can be made to fail, a cache and a file system over it, without a
//! kernel. The test plays the kernel: it looks names up, opens, reads what it was handed, and forgets.

use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use warmfs::backing::faulty::{Faults, FaultySource, Handle};
use warmfs::backing::{IdentityRule, LocalSource, Source};
use warmfs::cache::engine::{FillEngine, PreadEngine, UringEngine};
use warmfs::cache::{self, Cache};
use warmfs::fs::open::Opened as Answer;
use warmfs::fs::{self, Door, Entry, Fs, Reply};
use warmfs::policy::{Eviction, Lru, NeverEvict};
use warmfs::stats::Stats;
use warmfs::store::{CacheDir, Index};
use warmfs::sys::io::Io;
use warmfs::types::{Attr, Error, FileKind, KernelRef, NodeId, Result};

pub const MIB: u64 = 1 << 20;

/// Which engine fills. By ring go only files that have a descriptor, so that engine reads the source itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Pread,
    Uring,
}

pub const ENGINES: [Engine; 2] = [Engine::Pread, Engine::Uring];

/// What a test wants different from usual.
#[derive(Clone)]
pub struct Options {
    pub bytes_max: u64,
    pub files_max: u64,
    pub free_floor_bytes: u64,
    pub ram_window_bytes: u64,
    pub small_file_bytes_max: u64,
    pub ttl: Option<Duration>,
    pub evict: bool,
    pub passthrough: bool,
    pub backing_ids_max: usize,
    pub source_threads: usize,
    pub hang_after: Duration,
    pub timeout: Duration,
    pub identity: Option<IdentityRule>,
    pub engine: Engine,
    /// Where the cache is; `None`: in the world's own directory.
    pub cache_dir: Option<PathBuf>,
    /// Where everything else is; `None`: where temporary files are.
    pub base_dir: Option<PathBuf>,
    /// The calls on files of the SSD, and of the source.
    pub ssd: Io,
    pub source: Io,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bytes_max: 256 * MIB,
            files_max: 1 << 20,
            free_floor_bytes: 0,
            ram_window_bytes: 0,
            small_file_bytes_max: 4 * MIB,
            ttl: Some(Duration::ZERO),
            evict: true,
            passthrough: true,
            backing_ids_max: 1024,
            source_threads: 64,
            hang_after: Duration::from_millis(300),
            timeout: Duration::from_secs(20),
            identity: None,
            engine: Engine::Pread,
            cache_dir: None,
            base_dir: None,
            ssd: Io::default(),
            source: Io::default(),
        }
    }
}

/// A source, a cache and a file system.
pub struct World {
    dir: tempfile::TempDir,
    pub options: Options,
    running: Option<Running>,
}

struct Running {
    fs: Arc<Fs>,
    cache: Arc<Cache>,
    faults: Handle,
}

impl World {
    /// As usual.
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    /// With what is different.
    pub fn with(options: Options) -> Self {
        let mut world = Self::stopped(options);
        world.start();
        world
    }

    /// Not started yet.
    pub fn stopped(options: Options) -> Self {
        let base = options.base_dir.clone().unwrap_or_else(std::env::temp_dir);
        let dir = tempfile::Builder::new().prefix("warmfs-it-").tempdir_in(base).unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        Self { dir, options, running: None }
    }

    /// Starts over what the cache directory holds.
    pub fn start(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(e) = self.try_start() {
            // A thread of the crashed one may hold the lock for a moment.
            assert!(Instant::now() < deadline, "{e}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn try_start(&mut self) -> Result<()> {
        assert!(self.running.is_none());
        let o = &self.options;
        let local = LocalSource::through(o.source.clone(), &self.src(""), o.identity)?;
        let (source, faults): (Arc<dyn Source>, Handle) = match o.engine {
            Engine::Pread => {
                let (source, faults) = FaultySource::new(local);
                (Arc::new(source), faults)
            }
            // Its faults are never in force: the ring reads the file itself.
            Engine::Uring => {
                (Arc::new(local), FaultySource::new(LocalSource::new(&self.src(""), o.identity)?).1)
            }
        };
        let dir = Arc::new(CacheDir::open_through(o.ssd.clone(), &self.cache_dir(), &self.src(""))?);
        let loaded = Index::open(dir.io(), &dir.index_path())?;
        let engine: Arc<dyn FillEngine> = match o.engine {
            Engine::Pread => Arc::new(PreadEngine::new()),
            Engine::Uring => Arc::new(UringEngine::new(4)),
        };
        let policy: Box<dyn Eviction> = if o.evict { Box::new(Lru::new()) } else { Box::new(NeverEvict) };
        let stats = Arc::new(Stats::default());
        let settings = cache::Settings {
            bytes_max: o.bytes_max,
            files_max: o.files_max,
            free_floor_bytes: o.free_floor_bytes,
            ram_window_bytes: o.ram_window_bytes,
            small_file_bytes_max: o.small_file_bytes_max,
        };
        let cache = Cache::start(settings, source, dir, loaded, engine, policy, stats)?;
        let settings = fs::Settings {
            ttl: o.ttl,
            passthrough: o.passthrough,
            backing_ids_max: o.backing_ids_max,
            read_ahead: true,
            keep_names: true,
            source_threads: o.source_threads,
            hang_after: o.hang_after,
            timeout: o.timeout,
            list_xattrs: false,
        };
        let fs = Fs::new(settings, cache.clone())?;
        fs.set_door(Arc::new(TestDoor));
        self.running = Some(Running { fs, cache, faults });
        Ok(())
    }

    /// Ends as a daemon that was asked to.
    pub fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.fs.stop();
        running.fs.keep_names();
        running.cache.stop();
    }

    /// Ends without writing anything down.
    pub fn crash(&mut self) {
        let running = self.running.take().unwrap();
        running.fs.stop();
    }

    pub fn restart(&mut self) {
        self.stop();
        self.start();
    }

    pub fn crash_and_start(&mut self) {
        self.crash();
        self.start();
    }

    pub fn fs(&self) -> &Arc<Fs> {
        &self.running.as_ref().unwrap().fs
    }

    pub fn cache(&self) -> &Arc<Cache> {
        &self.running.as_ref().unwrap().cache
    }

    pub fn stats(&self) -> &Arc<Stats> {
        self.cache().stats()
    }

    /// Sets and reads the source's faults.
    pub fn faults(&self) -> &Handle {
        &self.running.as_ref().unwrap().faults
    }

    pub fn fail(&self, call: warmfs::backing::faulty::Call, errno: i32) {
        self.faults().set(Faults { errno: Some((call, errno)), ..Faults::default() });
    }

    pub fn heal(&self) {
        self.faults().set(Faults::default());
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn src(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join("src").join(name)
    }

    pub fn cache_dir(&self) -> PathBuf {
        self.options.cache_dir.clone().unwrap_or_else(|| self.dir().join("cache"))
    }

    /// Makes a file in the source.
    pub fn put(&self, name: &str, size: u64, seed: u64) -> Vec<u8> {
        let bytes = pattern(seed, size as usize);
        let path = self.src(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
        bytes
    }

    /// The data files of the cache.
    pub fn data_files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        collect(&self.cache_dir(), &mut files);
        files.retain(|f| f.components().any(|c| c.as_os_str() == "data"));
        files.sort();
        files
    }

    pub fn lookup(&self, path: &str) -> Result<Seen> {
        lookup(self.fs(), path)
    }

    pub fn open(&self, path: &str) -> Result<File> {
        open(self.fs(), path)
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>> {
        self.open(path)?.read_all()
    }

    /// Reads a file whole; fails the test if it cannot be read.
    pub fn get(&self, path: &str) -> Vec<u8> {
        self.read(path).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// Drops a cached copy; says whether there was one that nobody used.
    pub fn evict(&self, path: &str) -> bool {
        match self.cache().source().stat(Path::new(path)) {
            Ok(attr) => self.fs().evict(Path::new(path), &attr),
            Err(_) => false,
        }
    }

    /// Names in a directory, sorted.
    pub fn list(&self, path: &str) -> Result<Vec<String>> {
        list(self.fs(), path)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.faults.set(Faults::default());
            running.fs.stop();
        }
    }
}

/// The kernel's end of passthrough: keeps the file open and reads it by itself.
struct TestDoor;

impl Door for TestDoor {
    fn register(&self, fd: BorrowedFd<'_>) -> std::io::Result<KernelRef> {
        Ok(Arc::new(fd.try_clone_to_owned()?))
    }
}

/// What the kernel holds of a name that was looked up.
pub struct Seen {
    fs: Arc<Fs>,
    pub node: NodeId,
    pub attr: Attr,
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.fs.forget(self.node, 1);
    }
}

/// Calls with a reply and waits for it.
pub fn wait<T: Send + 'static>(call: impl FnOnce(Reply<T>)) -> Result<T> {
    let (tx, rx) = mpsc::channel();
    call(Box::new(move |answer| drop(tx.send(answer))));
    answer(&rx)
}

fn answer<T>(rx: &mpsc::Receiver<Result<T>>) -> Result<T> {
    match rx.recv_timeout(Duration::from_secs(60)) {
        Ok(answer) => answer,
        // A reply that is dropped is EIO to the kernel.
        Err(mpsc::RecvTimeoutError::Disconnected) => Err(Error::os("wait", "a dropped reply", 5)),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("no answer for a minute"),
    }
}

/// Walks down to a path as the kernel does.
pub fn lookup(fs: &Arc<Fs>, path: &str) -> Result<Seen> {
    let mut at: Option<Seen> = None;
    for name in path.split('/') {
        let parent = at.as_ref().map_or(fs::node::ROOT, |seen| seen.node);
        match wait(|reply| fs.lookup(parent, OsStr::new(name), reply))? {
            Entry::Found { node, attr, .. } => at = Some(Seen { fs: fs.clone(), node, attr }),
            Entry::Missing(_) => return Err(Error::os("look up", path, 2)),
        }
    }
    Ok(at.expect("a path has a name"))
}

/// Opens a path as the kernel does: on ESTALE it looks the name up again, once.
pub fn open(fs: &Arc<Fs>, path: &str) -> Result<File> {
    let open_once = || open_seen(lookup(fs, path)?);
    match open_once() {
        Err(e) if e.errno() == Some(116) => open_once(),
        other => other,
    }
}

/// Opens what was looked up.
pub fn open_seen(seen: Seen) -> Result<File> {
    if seen.attr.kind != FileKind::Regular {
        return Err(Error::os("open", "no file", 21));
    }
    let kernel = match wait(|reply| seen.fs.open(seen.node, reply))? {
        Answer::Passthrough(kernel) => Some(kernel),
        Answer::KeepPages | Answer::DropPages => None,
    };
    Ok(File { kernel, seen })
}

/// An open file.
pub struct File {
    kernel: Option<KernelRef>,
    pub seen: Seen,
}

impl File {
    pub fn is_passthrough(&self) -> bool {
        self.kernel.is_some()
    }

    /// One read, as the kernel splits it.
    pub fn read_at(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let Some(kernel) = &self.kernel else { return self.ask(offset, len) };
        let fd = kernel.downcast_ref::<OwnedFd>().unwrap();
        let mut bytes = vec![0; len];
        let n =
            rustix::io::pread(fd, &mut bytes, offset).map_err(|e| Error::os("read", "", e.raw_os_error()))?;
        bytes.truncate(n);
        Ok(bytes)
    }

    fn ask(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let (tx, rx) = mpsc::channel();
        let done: cache::read::ReadDone = Box::new(move |bytes| drop(tx.send(bytes.map(<[u8]>::to_vec))));
        self.seen.fs.read(self.seen.node, offset, len as u32, done);
        answer(&rx)
    }

    /// To the end.
    pub fn read_all(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        loop {
            let piece = self.read_at(all.len() as u64, MIB as usize)?;
            let end = piece.len() < MIB as usize;
            all.extend(piece);
            if end {
                return Ok(all);
            }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.kernel = None;
        self.seen.fs.release(self.seen.node);
    }
}

/// Names in a directory, sorted. The empty path is the root.
pub fn list(fs: &Arc<Fs>, path: &str) -> Result<Vec<String>> {
    let seen = if path.is_empty() { None } else { Some(lookup(fs, path)?) };
    let node = seen.as_ref().map_or(fs::node::ROOT, |seen| seen.node);
    let opened = wait(|reply| fs.open_dir(node, reply))?;
    let mut names = Vec::new();
    let listed = fs.read_dir(opened.handle, 2, &mut |entry| {
        names.push(entry.name.to_string_lossy().into_owned());
        false
    });
    fs.release_dir(opened.handle);
    names.sort();
    listed.map(|()| names)
}

/// Bytes that name their place: each 8 bytes are a mixture of the seed and the offset.
pub fn pattern(seed: u64, size: usize) -> Vec<u8> {
    let word = |i: u64| {
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (i << 7)
    };
    let mut bytes: Vec<u8> = (0..size.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes()).collect();
    bytes.truncate(size);
    bytes
}

/// What `du` says of a tree, bytes. Files may vanish meanwhile.
pub fn du(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::symlink_metadata(path) else { return 0 };
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            bytes += du(&entry.path());
        }
    }
    bytes
}

/// A disk of its own, whose figures are exact at every moment. `None` where nothing can be mounted.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    pub fn new(path: &Path, options: &str) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        match rustix::mount::mount("warmfs-test", path, "tmpfs", flags, options.as_c_str()) {
            Ok(()) => Some(Self(path.to_path_buf())),
            Err(e) => {
                eprintln!("skipped in part: no tmpfs can be mounted ({e})");
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        let s = rustix::fs::statvfs(&self.0).unwrap();
        (s.f_blocks - s.f_bfree) * s.f_frsize
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// Waits for something that happens soon; fails the test if it does not.
pub fn wait_until(what: &str, done: impl FnMut() -> bool) {
    assert!(soon(done), "waited in vain until {what}");
}

/// Whether something happens soon.
pub fn soon(mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(12);
    while !done() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Numbers that look random and are the same in every run.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}
