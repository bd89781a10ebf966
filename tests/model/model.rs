//! Random steps on a source, its mount and the mount's control socket, each use of the mount being compared with the
//! reference at once. The TTL is 0, so there is one right answer to every question but one: a handle that is held may
//! have lost the version it opened, and says so.

use crate::common::{World, unmount_all};
use crate::figures::{self, Figure};
use crate::need_mount;
use crate::steps::{How, Step, first_dirs, name, step};
use crate::tools::Map;
use crate::tree::{Object, Tree};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::fs::{AtFlags, CWD, Mode, RenameFlags, Timespec, Timestamps};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use warmfs::control::{Client, ClientError, ControlErrorKind, RelPath, Request, WarmRequest, find_mount};

/// Steps of one sequence, which begins with a mount and an empty cache.
const STEPS: usize = 500;

/// Handles that are held at the same time.
const HELD_MAX: usize = 8;

/// How one sequence is mounted.
#[derive(Clone, Copy, Debug)]
struct Setup {
    by_path: bool,
    ram_window: bool,
    large_cache: bool,
    pread: bool,
    /// The source is in memory rather than on the disk: its inode numbers are not used again, and it is quick.
    shm: bool,
}

fn setup() -> impl Strategy<Value = Setup> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(by_path, ram_window, large_cache, pread, shm)| Setup {
            by_path,
            ram_window,
            large_cache,
            pread,
            shm,
        },
    )
}

impl Setup {
    fn flags(self, passthrough: bool) -> Vec<&'static str> {
        let choice = |is: bool, yes, no| if is { yes } else { no };
        let mut flags = vec!["--ttl", "0", "-o", "cache.small_file_max=16KiB", "-o", "cache.min_free=0"];
        flags.extend(["-o", choice(self.by_path, "source.identity=path", "source.identity=inode")]);
        flags.extend(["-o", choice(self.ram_window, "cache.ram_window=1MiB", "cache.ram_window=0")]);
        flags.extend(["-o", choice(self.pread, "mount.io_engine=pread", "mount.io_engine=auto")]);
        flags.extend(["--cache-size", choice(self.large_cache, "64MiB", "3MiB")]);
        flags.extend(["--evict-policy", choice(self.pread, "lru", "epoch")]);
        flags.extend((!passthrough).then_some("--no-passthrough"));
        flags
    }

    fn world(self, passthrough: bool) -> World {
        let shm = Path::new("/dev/shm");
        let shm = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        // The cache in memory: its index is committed often, which would be most of the time on a disk.
        let world = World::with_cache_in(&shm, &self.flags(passthrough));
        if self.shm {
            let elsewhere = world.cache().parent().unwrap().join("src");
            std::fs::create_dir(&elsewhere).unwrap();
            rustix::mount::mount_bind(&elsewhere, world.src("")).unwrap();
        }
        world
    }
}

/// An open handle and what it was opened on.
struct Held {
    file: File,
    map: Option<Map>,
    bytes: Arc<Vec<u8>>,
    /// All of it was cached when it was opened, so that it can never be lost.
    whole: bool,
    /// Which file, and how many names it had.
    id: usize,
    links: usize,
    /// It was overwritten since with size and mtime set back.
    overwritten: bool,
}

/// How often each kind of step had an effect.
#[derive(Default)]
struct Counts {
    steps: AtomicU64,
    fired: parking_lot::Mutex<BTreeMap<&'static str, u64>>,
}

impl Counts {
    fn note(&self, kind: &'static str) {
        *self.fired.lock().entry(kind).or_default() += 1;
    }
}

/// What is wrong, or nothing.
type Checked = Result<(), String>;

macro_rules! check {
    ($is:expr, $($text:tt)+) => {
        if !$is {
            return Err(format!($($text)+));
        }
    };
}

struct Run<'a> {
    world: World,
    counts: &'a Counts,
    tree: Tree,
    held: Vec<Held>,
    client: Option<Client>,
    versions: u64,
}

impl<'a> Run<'a> {
    fn new(world: World, counts: &'a Counts) -> Self {
        let mut tree = Tree::default();
        for dir in first_dirs() {
            std::fs::create_dir(world.src(&dir)).unwrap();
            tree.put(&dir, Object::Dir);
        }
        world.mount();
        Self { world, counts, tree, held: Vec::new(), client: None, versions: 0 }
    }

    /// Content that was never there before.
    fn fresh(&mut self, size: u64) -> Vec<u8> {
        self.versions += 1;
        crate::common::pattern(self.versions, size as usize)
    }

    fn take(&mut self, step: &Step) -> Checked {
        match *step {
            Step::Write(n, size) => self.write(&name(n), size),
            Step::Overwrite(n, at, len) => self.overwrite(&name(n), at, len),
            Step::Grow(n, more) => self.set_len(&name(n), "grow", |len| len + more as usize),
            Step::Shrink(n) => self.set_len(&name(n), "shrink", |len| len / 2),
            Step::SameSizeAndMtime(n) => self.same_size_and_mtime(&name(n)),
            Step::Touch(n) => self.touch(&name(n)),
            Step::Rename(a, b) => self.rename(&name(a), &name(b)),
            Step::Exchange(a, b) => self.exchange(&name(a), &name(b)),
            Step::Replace(n, size) => self.replace(&name(n), size),
            Step::Delete(n) => drop(self.delete(&name(n))),
            Step::HardLink(a, b) => self.hard_link(&name(a), &name(b)),
            Step::Mkdir(n) => self.make(&name(n), Object::Dir),
            Step::Symlink(n) => self.make(&name(n), Object::Link(format!("nowhere/{n}"))),
            Step::Mkfifo(n) => self.make(&name(n), Object::Fifo),
            _ => return self.use_mount(step),
        }
        Ok(())
    }

    fn use_mount(&mut self, step: &Step) -> Checked {
        match *step {
            Step::Read(n, how) => self.read(&name(n), how),
            Step::Stat(n) => self.stat(&name(n)),
            Step::ReadLink(n) => self.read_link(&name(n)),
            Step::List(n) => self.list(&name(n)).and_then(|()| self.list(Path::new(""))),
            Step::ListAndStat(n) => self.list_and_stat(&name(n)),
            Step::Xattrs(n) => self.xattrs(&name(n)),
            Step::Hold(n, begin) => self.hold(&name(n), begin),
            Step::ReadHeld(h, at) => self.read_held(h, at),
            Step::StatHeld(h) => self.stat_held(h),
            Step::Close(h) => {
                if h < self.held.len() {
                    self.held.remove(h);
                    self.counts.note("close");
                }
                Ok(())
            }
            _ => self.operate(step),
        }
    }

    // Changes of the source. What the system does not allow is not done to the reference either.

    fn write(&mut self, path: &Path, size: u64) {
        let bytes = self.fresh(size);
        match self.tree.find(path) {
            Ok(Object::File(_)) => {
                std::fs::write(self.world.src(path), &bytes).unwrap();
                self.tree.change(path, bytes);
                self.counts.note("write in place");
            }
            Err(libc::ENOENT) if std::fs::write(self.world.src(path), &bytes).is_ok() => {
                self.tree.put_file(path, bytes);
                self.counts.note("create");
            }
            _ => {}
        }
    }

    fn overwrite(&mut self, path: &Path, at: u64, len: u64) {
        let Some(old) = self.tree.file(path).cloned() else { return };
        let new = self.fresh(len);
        let file = File::options().write(true).open(self.world.src(path)).unwrap();
        file.write_all_at(&new, at).unwrap();
        let mut bytes = Arc::unwrap_or_clone(old);
        let end = at as usize + new.len();
        bytes.resize(bytes.len().max(end), 0);
        bytes[at as usize..end].copy_from_slice(&new);
        self.tree.change(path, bytes);
        self.counts.note("overwrite");
    }

    fn set_len(&mut self, path: &Path, kind: &'static str, len: impl Fn(usize) -> usize) {
        let Some(old) = self.tree.file(path).cloned() else { return };
        let len = len(old.len());
        File::options().write(true).open(self.world.src(path)).unwrap().set_len(len as u64).unwrap();
        let mut bytes = Arc::unwrap_or_clone(old);
        bytes.resize(len, 0);
        self.tree.change(path, bytes);
        self.counts.note(kind);
    }

    fn same_size_and_mtime(&mut self, path: &Path) {
        let Some(size) = self.tree.file(path).map(|bytes| bytes.len() as u64) else { return };
        let bytes = self.fresh(size);
        let source = self.world.src(path);
        let before = std::fs::metadata(&source).unwrap();
        File::options().write(true).open(&source).unwrap().write_all_at(&bytes, 0).unwrap();
        set_mtime(&source, before.mtime(), before.mtime_nsec());
        let id = self.tree.find(path).cloned();
        for held in &mut self.held {
            held.overwritten |= id == Ok(Object::File(held.id));
        }
        self.tree.change(path, bytes);
        self.counts.note("same size and mtime");
    }

    fn touch(&mut self, path: &Path) {
        self.versions += 1;
        if matches!(self.tree.find(path), Ok(Object::File(_) | Object::Dir)) {
            set_mtime(&self.world.src(path), 1_600_000_000 + self.versions as i64, 5);
            self.counts.note("touch");
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) {
        let Ok(kind) = self.tree.find(from).cloned() else { return };
        if std::fs::rename(self.world.src(from), self.world.src(to)).is_err() {
            return;
        }
        let type_change = self.tree.find(to).is_ok_and(|there| !same_kind(there, &kind));
        self.tree.rename(from, to);
        self.counts.note(match kind {
            _ if type_change => "type change",
            Object::Dir => "rename a directory",
            _ => "rename",
        });
    }

    fn exchange(&mut self, a: &Path, b: &Path) {
        let (Ok(from), Ok(to)) = (self.tree.find(a).cloned(), self.tree.find(b).cloned()) else { return };
        let flags = RenameFlags::EXCHANGE;
        if rustix::fs::renameat_with(CWD, self.world.src(a), CWD, self.world.src(b), flags).is_ok() {
            self.tree.exchange(a, b);
            self.counts.note(if same_kind(&from, &to) { "exchange" } else { "type change" });
        }
    }

    fn replace(&mut self, path: &Path, size: u64) {
        let bytes = self.fresh(size);
        let aside = self.world.src(".aside");
        std::fs::write(&aside, &bytes).unwrap();
        match std::fs::rename(&aside, self.world.src(path)) {
            Ok(()) => {
                self.tree.put_file(path, bytes);
                self.counts.note("replace");
            }
            Err(_) => std::fs::remove_file(&aside).unwrap(),
        }
    }

    /// Whether something was there and was deleted.
    fn delete(&mut self, path: &Path) -> bool {
        let Ok(object) = self.tree.find(path) else { return false };
        let source = self.world.src(path);
        match object {
            Object::Dir => std::fs::remove_dir_all(source).unwrap(),
            _ => std::fs::remove_file(source).unwrap(),
        }
        self.tree.remove(path);
        self.counts.note("delete");
        true
    }

    fn hard_link(&mut self, from: &Path, to: &Path) {
        if matches!(self.tree.find(from), Ok(Object::File(_)))
            && std::fs::hard_link(self.world.src(from), self.world.src(to)).is_ok()
        {
            self.tree.link(from, to);
            self.counts.note("hard link");
        }
    }

    /// Something that is not a file, in the place of what is there.
    fn make(&mut self, path: &Path, object: Object) {
        if path
            .parent()
            .is_some_and(|dir| !dir.as_os_str().is_empty() && self.tree.find(dir) != Ok(&Object::Dir))
        {
            return;
        }
        let type_change = self.tree.find(path).is_ok_and(|there| !same_kind(there, &object));
        self.delete(path);
        let source = self.world.src(path);
        match &object {
            Object::Dir => std::fs::create_dir(source).unwrap(),
            Object::Link(text) => std::os::unix::fs::symlink(text, source).unwrap(),
            Object::Fifo => {
                let mode = Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(CWD, source, rustix::fs::FileType::Fifo, mode, 0).unwrap();
            }
            Object::File(_) => unreachable!("files are written"),
        }
        self.counts.note(match object {
            _ if type_change => "type change",
            Object::Dir => "mkdir",
            Object::Link(_) => "symlink",
            _ => "mkfifo",
        });
        self.tree.put(path, object);
    }

    // Uses of the mount.

    fn open(&self, path: &Path) -> std::io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new().read(true).custom_flags(flags).open(self.world.mnt(path))
    }

    fn read(&self, path: &Path, how: How) -> Checked {
        let opened = self.open(path);
        let expected = match self.tree.find(path) {
            Ok(Object::File(file)) => Ok(self.tree.content(*file)),
            Ok(Object::Link(_)) => Err(libc::ELOOP),
            Ok(Object::Dir) => {
                let mut opened = opened.map_err(|e| format!("a directory: {e}"))?;
                let errno = opened.read(&mut [0]).map_err(|e| e.raw_os_error());
                check!(errno == Err(Some(libc::EISDIR)), "read of a directory: {errno:?}");
                return Ok(());
            }
            Ok(Object::Fifo) => {
                check!(opened.is_ok(), "a pipe: {opened:?}");
                return Ok(());
            }
            Err(errno) => Err(errno),
        };
        let (file, expected) = match (opened, expected) {
            (Ok(file), Ok(expected)) => (file, expected),
            (Err(e), Err(errno)) if e.raw_os_error() == Some(errno) => {
                self.counts.note("read of what is no file");
                return Ok(());
            }
            (opened, expected) => {
                return Err(format!("opened {opened:?}, expected {:?}", expected.map(|b| b.len())));
            }
        };
        self.read_opened(&file, expected, how)
    }

    fn read_opened(&self, mut file: &File, expected: &[u8], how: How) -> Checked {
        match how {
            How::Whole => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes).map_err(|e| format!("read: {e}"))?;
                self.counts.note("read whole");
                same(&bytes, expected)
            }
            How::Pieces(at) => {
                let at = at.min(expected.len() as u64);
                read_piece(file, expected, at, 50_000).map_err(|e| format!("at {at}: {e}"))??;
                let end = (expected.len() as u64).saturating_sub(5000);
                self.counts.note("read in pieces");
                read_piece(file, expected, end, 10_000).map_err(|e| format!("at {end}: {e}"))?
            }
            How::Map if expected.is_empty() => Ok(()),
            How::Map => {
                let len = file.metadata().map_err(|e| e.to_string())?.len();
                check!(len == expected.len() as u64, "{len} bytes, expected {}", expected.len());
                let map = Map::new(file, libc::MAP_SHARED).map_err(|e| format!("map: {e}"))?;
                self.counts.note("read by map");
                same(&map, expected)
            }
        }
    }

    fn stat(&self, path: &Path) -> Checked {
        self.counts.note("stat");
        let seen = std::fs::symlink_metadata(self.world.mnt(path));
        match self.tree.find(path) {
            Ok(object) => self.check_stat(path, object, &seen.map_err(|e| e.to_string())?),
            Err(errno) => {
                let seen = seen.map(|m| m.len()).map_err(|e| e.raw_os_error());
                check!(seen == Err(Some(errno)), "stat: {seen:?}, expected errno {errno}");
                Ok(())
            }
        }
    }

    fn check_stat(&self, path: &Path, object: &Object, seen: &Metadata) -> Checked {
        let truth = std::fs::symlink_metadata(self.world.src(path)).unwrap();
        let kind = seen.file_type();
        let as_expected = match object {
            Object::File(file) => kind.is_file() && seen.len() == self.tree.content(*file).len() as u64,
            Object::Dir => kind.is_dir(),
            Object::Link(text) => kind.is_symlink() && seen.len() == text.len() as u64,
            Object::Fifo => kind.is_fifo(),
        };
        check!(as_expected, "{object:?} is {kind:?} of {} bytes", seen.len());
        let facts = |m: &Metadata| (m.mode(), m.nlink(), m.uid(), m.gid(), m.mtime(), m.mtime_nsec());
        check!(facts(seen) == facts(&truth), "stat {:?}, source {:?}", facts(seen), facts(&truth));
        let ctime = |m: &Metadata| (m.ctime(), m.ctime_nsec());
        check!(ctime(seen) == ctime(&truth), "ctime {:?}, source {:?}", ctime(seen), ctime(&truth));
        Ok(())
    }

    fn read_link(&self, path: &Path) -> Checked {
        let read = std::fs::read_link(self.world.mnt(path)).map_err(|e| e.raw_os_error().unwrap_or(0));
        let expected = match self.tree.find(path) {
            Ok(Object::Link(text)) => Ok(PathBuf::from(text)),
            Ok(_) => Err(libc::EINVAL),
            Err(errno) => Err(errno),
        };
        check!(read == expected, "link {read:?}, expected {expected:?}");
        self.counts.note("readlink");
        Ok(())
    }

    fn list(&self, dir: &Path) -> Checked {
        self.listed(dir, &|_, _| Ok(()))
    }

    fn list_and_stat(&self, dir: &Path) -> Checked {
        let dir = if self.tree.find(dir) == Ok(&Object::Dir) { dir } else { Path::new("") };
        self.listed(dir, &|path, entry| {
            let seen = entry.metadata().map_err(|e| format!("{path:?}: {e}"))?;
            let object = self.tree.find(path).map_err(|e| format!("{path:?} is listed: {e}"))?;
            self.check_stat(path, object, &seen).map_err(|e| format!("{path:?}: {e}"))
        })
    }

    fn listed(&self, dir: &Path, look: &dyn Fn(&Path, &std::fs::DirEntry) -> Checked) -> Checked {
        let expected = match self.tree.find(dir) {
            _ if dir.as_os_str().is_empty() => None,
            Ok(Object::Dir) => None,
            Ok(Object::Link(_)) => Some(libc::ENOENT),
            Ok(_) => Some(libc::ENOTDIR),
            Err(errno) => Some(errno),
        };
        let entries = match (std::fs::read_dir(self.world.mnt(dir)), expected) {
            (Ok(entries), None) => entries,
            (Err(e), Some(errno)) if e.raw_os_error() == Some(errno) => return Ok(()),
            (listed, expected) => {
                return Err(format!("list {dir:?}: {:?}, expected {expected:?}", listed.err()));
            }
        };
        let mut names: BTreeMap<OsString, std::fs::FileType> = BTreeMap::new();
        for entry in entries {
            let entry = entry.map_err(|e| format!("list {dir:?}: {e}"))?;
            look(&dir.join(entry.file_name()), &entry)?;
            let twice = names.insert(entry.file_name(), entry.file_type().map_err(|e| e.to_string())?);
            check!(twice.is_none(), "{:?} is listed twice", entry.file_name());
        }
        let children = self.tree.children(dir);
        let same_names = names.keys().eq(children.keys());
        check!(same_names, "list {dir:?}: {:?}, expected {:?}", names.keys(), children.keys());
        for (name, kind) in names {
            check!(is_kind(&children[&name], kind), "{name:?} is listed as {kind:?}: {:?}", children[&name]);
        }
        self.counts.note("list");
        Ok(())
    }

    fn xattrs(&self, path: &Path) -> Checked {
        let Some(bytes) = self.tree.file(path) else { return Ok(()) };
        let path = self.world.mnt(path);
        let get = |name: &str| {
            let mut value = vec![0; 4096];
            let len = rustix::fs::lgetxattr(&path, format!("user.warmfs.{name}"), &mut value)?;
            value.truncate(len);
            Ok::<_, rustix::io::Errno>(String::from_utf8(value).unwrap())
        };
        let must = |name: &str| get(name).map_err(|e| format!("xattr {name}: {e}"));
        check!(get("nothing") == Err(rustix::io::Errno::NODATA), "an unknown xattr");
        let (state, cached) = (must("state")?, must("cached_bytes")?.parse::<usize>().unwrap());
        let consistent = match &*state {
            "cold" => cached == 0,
            "partial" => cached > 0 && cached < bytes.len(),
            "warm" => cached == bytes.len(),
            _ => false,
        };
        check!(consistent, "{state}, {cached} of {} bytes", bytes.len());
        self.counts.note("xattrs");
        // What others read directly must be the file as it is now.
        if state == "warm"
            && let Ok(place) = get("cache_path")
        {
            let there = std::fs::read(place).map_err(|e| format!("cache_path: {e}"))?;
            same(&there, bytes).map_err(|e| format!("cache_path: {e}"))?;
            self.counts.note("cache_path read");
        }
        Ok(())
    }

    fn hold(&mut self, path: &Path, begin: bool) -> Checked {
        let Ok(&Object::File(id)) = self.tree.find(path) else { return Ok(()) };
        let (bytes, links) = (self.tree.content(id).clone(), self.tree.links(id));
        let file = self.open(path).map_err(|e| format!("hold: {e}"))?;
        if begin {
            read_piece(&file, &bytes, 0, 4096).map_err(|e| format!("hold: {e}"))??;
        }
        let xattr = |name: &str| {
            let mut value = [0; 32];
            let len = rustix::fs::fgetxattr(&file, name, &mut value).map_err(|e| format!("{name}: {e}"))?;
            Ok::<_, String>(String::from_utf8_lossy(&value[..len]).into_owned())
        };
        let whole = xattr("user.warmfs.state")? == "warm";
        // A map of what the kernel reads by itself; a fault that we cannot serve any more would be a signal.
        let map = xattr("user.warmfs.mode")? == "passthrough" && begin && !bytes.is_empty();
        let map = match map {
            true => Some(Map::new(&file, libc::MAP_SHARED).map_err(|e| format!("map: {e}"))?),
            false => None,
        };
        if self.held.len() == HELD_MAX {
            self.held.remove(0);
        }
        self.held.push(Held { file, map, bytes, whole, id, links, overwritten: false });
        self.counts.note("hold");
        Ok(())
    }

    /// The version that was opened, or ESTALE where it was not kept whole.
    fn read_held(&self, h: usize, at: u64) -> Checked {
        let Some(held) = self.held.get(h) else { return Ok(()) };
        if let Some(map) = &held.map {
            same(map, &held.bytes).map_err(|e| format!("held map: {e}"))?;
            self.counts.note("read of a held map");
        }
        let at = at.min(held.bytes.len() as u64 + 10);
        // The one thing that a handle on a file in pieces cannot see: see the list of it in `main.rs`.
        let lost_a_name = self.tree.links(held.id) < held.links;
        let unseen = held.overwritten && lost_a_name && !held.whole;
        match read_piece(&held.file, &held.bytes, at, 200_000) {
            Ok(Err(_)) if unseen => {
                self.counts.note("overwrite that a held handle cannot see");
                Ok(())
            }
            Ok(checked) => {
                self.counts.note("read of a held handle");
                checked.map_err(|e| format!("held at {at}: {e}"))
            }
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) && !held.whole => {
                self.counts.note("ESTALE of a held handle");
                Ok(())
            }
            Err(e) => Err(format!("held at {at}, whole: {}: {e}", held.whole)),
        }
    }

    fn stat_held(&self, h: usize) -> Checked {
        let Some(held) = self.held.get(h) else { return Ok(()) };
        let len = held.file.metadata().map_err(|e| format!("stat of a held handle: {e}"))?.len();
        check!(len == held.bytes.len() as u64, "held: {len} bytes, opened with {}", held.bytes.len());
        self.counts.note("stat of a held handle");
        Ok(())
    }

    // The operator.

    fn operate(&mut self, step: &Step) -> Checked {
        match *step {
            Step::Evict(n) => self.of_path("evict", &name(n), |paths| Request::Evict { paths }).map(drop),
            Step::EvictAll => {
                self.call("evict all", &Request::Evict { paths: vec![RelPath::root()] }).map(drop)
            }
            Step::Warm(n) => self.warm(&name(n)),
            Step::Verify => {
                let report = self.call("verify", &Request::Verify { paths: vec![RelPath::root()] })?;
                let damaged = report["damaged"].as_array().map(Vec::len);
                check!(damaged == Some(0), "verify: {report}");
                Ok(())
            }
            Step::Stats => {
                let stats = self.call("stats", &Request::Stats {})?;
                let figure = |name: &str| stats[name].as_u64().unwrap();
                check!(
                    figure("cache_used_bytes") <= figure("cache_capacity_bytes"),
                    "over capacity: {stats}"
                );
                check!(figure("checksum_failures") + figure("cache_errors") == 0, "a fault: {stats}");
                Ok(())
            }
            Step::Remount => {
                self.held.clear();
                self.client = None;
                self.world.umount();
                self.world.mount();
                self.counts.note("remount");
                Ok(())
            }
            Step::Kill => self.kill(),
            _ => unreachable!("{step:?} is no step of the operator"),
        }
    }

    fn warm(&mut self, path: &Path) -> Checked {
        let report = self.of_path("warm", path, |paths| Request::Warm(WarmRequest::of(paths)))?;
        let failed = report.map_or(0, |report| report["files_failed"].as_u64().unwrap());
        check!(failed == 0, "warm: {failed} files failed");
        Ok(())
    }

    /// A verb on a path, which must find what is there and may find what was.
    fn of_path(
        &mut self,
        verb: &'static str,
        path: &Path,
        request: impl Fn(Vec<RelPath>) -> Request,
    ) -> Result<Option<serde_json::Value>, String> {
        let there = self.tree.find(path).is_ok();
        let request = request(vec![RelPath::new(path).unwrap()]);
        match self.client().call(&request, |_| {}) {
            Ok(report) => {
                self.counts.note(verb);
                Ok(Some(report))
            }
            Err(ClientError::Refused(e)) if !there && refuses_missing(e.kind) => Ok(None),
            Err(e) => Err(format!("{verb}: {e}, there: {there}")),
        }
    }

    fn call(&mut self, kind: &'static str, request: &Request) -> Result<serde_json::Value, String> {
        self.counts.note(kind);
        self.client().call(request, |_| {}).map_err(|e| format!("{kind}: {e}"))
    }

    fn client(&mut self) -> &mut Client {
        let connect = || Client::connect(&find_mount(&self.world.mnt("")).unwrap().socket).unwrap();
        self.client.get_or_insert_with(connect)
    }

    /// kill -9. What the kernel reads by itself goes on; all else says that the connection is gone.
    fn kill(&mut self) -> Checked {
        self.client = None;
        self.world.kill();
        let seen = |held: &Held| !held.overwritten || held.whole;
        for held in self.held.drain(..).filter(seen) {
            match read_piece(&held.file, &held.bytes, 0, 200_000) {
                Ok(checked) => checked.map_err(|e| format!("after the kill: {e}"))?,
                Err(e) => {
                    let gone =
                        matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO));
                    check!(gone, "after the kill: {e}");
                }
            }
        }
        warmfs::sys::mount::unmount_force(&self.world.mnt("")).map_err(|e| e.to_string())?;
        self.world.mount();
        self.counts.note("kill");
        Ok(())
    }

    /// At the end: everything is as it should be, read in every way, and the reference agrees with the source.
    fn check_all(&mut self) -> Checked {
        for path in self.tree.paths() {
            let shown = |e: String| format!("at the end, {path:?}: {e}");
            self.stat(&path).map_err(shown)?;
            self.read(&path, How::Whole).map_err(shown)?;
            if let Some(bytes) = self.tree.file(&path) {
                same(&std::fs::read(self.world.src(&path)).unwrap(), bytes)
                    .map_err(|e| format!("the reference is wrong at {path:?}: {e}"))?;
            }
            if self.tree.find(&path) == Ok(&Object::Dir) {
                self.list_and_stat(&path).map_err(shown)?;
            }
        }
        (0..self.held.len()).try_for_each(|h| self.read_held(h, 0))?;
        self.list_and_stat(Path::new(""))?;
        self.operate(&Step::Verify)?;
        self.operate(&Step::Stats)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.held.clear();
        unmount_all(self.world.dir());
    }
}

fn refuses_missing(kind: ControlErrorKind) -> bool {
    matches!(kind, ControlErrorKind::NotFound | ControlErrorKind::Failed | ControlErrorKind::BadRequest)
}

fn same_kind(a: &Object, b: &Object) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

fn is_kind(object: &Object, kind: std::fs::FileType) -> bool {
    match object {
        Object::File(_) => kind.is_file(),
        Object::Dir => kind.is_dir(),
        Object::Link(_) => kind.is_symlink(),
        Object::Fifo => kind.is_fifo(),
    }
}

fn set_mtime(path: &Path, secs: i64, nanos: i64) {
    let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ };
    let time = Timespec { tv_sec: secs, tv_nsec: nanos as _ };
    let times = Timestamps { last_access: omit, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Where two contents begin to differ.
fn same(got: &[u8], expected: &[u8]) -> Checked {
    if got == expected {
        return Ok(());
    }
    let at = got.iter().zip(expected).position(|(a, b)| a != b);
    Err(format!("{} bytes, expected {}, differing from {at:?}", got.len(), expected.len()))
}

/// Reads a piece whole and compares it; the outer error is the reader's.
fn read_piece(file: &File, expected: &[u8], at: u64, len: usize) -> std::io::Result<Checked> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let from = (at as usize).min(expected.len());
    let to = (from + len).min(expected.len());
    Ok(same(&bytes[..done], &expected[from..to]))
}

/// Runs a sequence in a mount of its own; a failure tells the step, by its place, and what was wrong.
fn run(steps: &[Step], setup: Setup, passthrough: bool, counts: &Counts) -> Result<(), (usize, String)> {
    let mut run = Run::new(setup.world(passthrough), counts);
    for (i, step) in steps.iter().enumerate() {
        run.take(step).map_err(|e| (i, format!("{step:?}: {e}")))?;
        counts.steps.fetch_add(1, Ordering::Relaxed);
    }
    run.check_all().map_err(|e| (steps.len(), e))
}

/// How long a failing sequence is made shorter.
const SHRINK: Duration = Duration::from_secs(100);

/// Leaves out what the failure does not need: halves first, then ever smaller pieces. Whole steps and not their numbers,
/// which is all that a reader needs, and quick where each try is a mount.
fn shrink(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let until = Instant::now() + SHRINK;
    let mut piece = steps.len() / 2;
    while piece > 0 && Instant::now() < until {
        let mut at = 0;
        while at < steps.len() && Instant::now() < until {
            let end = (at + piece).min(steps.len());
            let less = [&steps[..at], &steps[end..]].concat();
            match fails(&less) {
                true => steps = less,
                false => at = end,
            }
        }
        piece /= 2;
    }
    steps
}

/// Goal: whatever happens to the source, every use of the mount is right. Method: sequences of random steps, each in a
/// mount of its own, on a source on disk and in memory, files known by inode and by path, a cache with room and one
/// without; a failure is made as short as it can be, and the printed seed gives it again.
fn model(passthrough: bool, what: &str) {
    need_mount!();
    let seed = figures::seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8] = u8::from(passthrough);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let sequences = (prop::collection::vec(step(), STEPS), setup());
    let (counts, started) = (Counts::default(), Instant::now());
    for case in 0..figures::scale(50_000, 200_000, 500_000) / STEPS as u64 {
        let (mut steps, setup) = sequences.new_tree(&mut runner).unwrap().current();
        let Err((at, error)) = run(&steps, setup, passthrough, &counts) else { continue };
        eprintln!(
            "WARMFS_TEST_SEED={seed}, sequence {case}, step {at}, {setup:?}\n{error}\nmaking it shorter"
        );
        steps.truncate(at + 1);
        let steps = shrink(steps, |steps| run(steps, setup, passthrough, &Counts::default()).is_err());
        let again = run(&steps, setup, passthrough, &Counts::default());
        panic!("WARMFS_TEST_SEED={seed}, {setup:?}\n{error}\nin short {again:?}\n{}", shown(&steps));
    }
    let steps = counts.steps.into_inner();
    let took = started.elapsed().max(Duration::from_millis(1));
    let mut figure = Figure::new("R6", what, steps, 0).seed(seed);
    for (kind, count) in counts.fired.into_inner() {
        figure = figure.fired(kind, count);
    }
    figure.more("steps", steps as f64 / took.as_secs_f64(), "1/s").report();
}

fn shown(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("  {step:?}\n")).collect()
}

#[test]
fn random_steps_are_as_the_reference_says_with_passthrough() {
    model(true, "model steps on a real mount, passthrough");
}

#[test]
fn random_steps_are_as_the_reference_says_without_passthrough() {
    model(false, "model steps on a real mount, served by warmfs");
}
