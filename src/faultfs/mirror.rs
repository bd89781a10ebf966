//! The mirrored directory: nodes that the kernel knows, resolved by path each time, and open files.
//!
//! Knows nothing of slowness, faults or FUSE replies. Nothing about a file is remembered but its paths, so that every
//! change of the directory is seen at once; a node whose path now leads to another file is ESTALE, as on NFS. Node
//! numbers are the files' own inode numbers, and reuse of a number shows in the generation, the time of birth.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, ResolveFlags, StatVfs, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;

/// The kernel's number of the root, whatever its inode number is.
pub(super) const ROOT: u64 = 1;

/// Paths remembered of one node; more hard links than that are found again by their next lookup.
const PATHS_PER_NODE: usize = 8;

/// A directory seen through one descriptor.
pub(super) struct Mirror {
    root: OwnedFd,
    root_dev: u64,
    nodes: Mutex<HashMap<u64, Node>>,
    files: Mutex<HashMap<u64, Arc<OpenFile>>>,
    listings: Mutex<HashMap<u64, Arc<Mutex<Vec<Entry>>>>>,
    next_handle: AtomicU64,
}

struct Node {
    /// Newest first, relative to the root.
    paths: Vec<PathBuf>,
    /// How often the kernel was told of it and has not forgotten it.
    lookups: u64,
}

struct OpenFile {
    node: u64,
    file: File,
}

/// A file as it is now.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) attr: FileAttr,
    pub(super) generation: u64,
}

impl Seen {
    pub(super) fn node(&self) -> u64 {
        self.attr.ino.0
    }
}

/// A name in a listing.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) name: OsString,
    /// Relative to the root.
    pub(super) path: PathBuf,
    pub(super) node: u64,
    pub(super) kind: FileType,
}

impl Entry {
    /// Whether it is `.` or `..`, which the kernel never takes for a lookup.
    pub(super) fn is_dot(&self) -> bool {
        self.name == "." || self.name == ".."
    }
}

impl Mirror {
    /// Opens the directory; what is mounted over it later does not matter.
    pub(super) fn open(source: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(source, flags, Mode::empty())?;
        let root_dev = dev_of(&stat_at(&root, Path::new(""))?);
        Ok(Self {
            root,
            root_dev,
            nodes: Mutex::default(),
            files: Mutex::default(),
            listings: Mutex::default(),
            next_handle: AtomicU64::new(1),
        })
    }

    /// The path by which the kernel last came to a node; empty for the root and for a node that is forgotten.
    pub(super) fn path(&self, node: u64) -> PathBuf {
        self.nodes.lock().get(&node).and_then(|n| n.paths.first().cloned()).unwrap_or_default()
    }

    /// What is at a path now.
    pub(super) fn see(&self, path: &Path) -> Result<Seen, Errno> {
        self.seen(&stat_at(&self.root, path)?)
    }

    /// What is at a path now, told to the kernel: to be forgotten once.
    pub(super) fn lookup(&self, path: PathBuf) -> Result<Seen, Errno> {
        let seen = self.see(&path)?;
        self.remember(seen.node(), path);
        Ok(seen)
    }

    /// Notes that the kernel is told of a node. Do so before it is told, because its forget may come at once.
    pub(super) fn remember(&self, node: u64, path: PathBuf) {
        let mut nodes = self.nodes.lock();
        let entry = nodes.entry(node).or_insert_with(|| Node { paths: Vec::new(), lookups: 0 });
        entry.lookups += 1;
        entry.paths.retain(|p| *p != path);
        entry.paths.insert(0, path);
        entry.paths.truncate(PATHS_PER_NODE);
    }

    /// Takes back so many of those.
    pub(super) fn forget(&self, node: u64, lookups: u64) {
        let mut nodes = self.nodes.lock();
        if let Some(entry) = nodes.get_mut(&node) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 {
                nodes.remove(&node);
            }
        }
    }

    /// A node's attributes: by its paths, or by an open handle where it has none any more.
    pub(super) fn attr(&self, node: u64) -> Result<FileAttr, Errno> {
        let by_path = self.by_path(node, |path| self.see(path), Seen::node);
        let seen = by_path.or_else(|e| {
            let open = self.files.lock().values().find(|f| f.node == node).cloned();
            open.map_or(Err(e), |f| self.seen(&stat_at(&f.file, Path::new(""))?))
        })?;
        Ok(seen.attr)
    }

    /// Opens a node for reading.
    pub(super) fn open_file(&self, node: u64) -> Result<u64, Errno> {
        let (file, _) = self.open_node(node, OFlags::RDONLY)?;
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.files.lock().insert(handle, Arc::new(OpenFile { node, file: file.into() }));
        Ok(handle)
    }

    /// Reads up to `len` bytes of an open file; fewer only at its end.
    pub(super) fn read(&self, handle: u64, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let open = self.files.lock().get(&handle).cloned().ok_or(Errno::BADF)?;
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < len {
            match open.file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Errno::from_io_error(&e).unwrap_or(Errno::IO)),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Closes an open file.
    pub(super) fn release(&self, handle: u64) {
        let file = self.files.lock().remove(&handle);
        drop(file);
    }

    /// Opens a directory for listing; it is read when it is listed from the start.
    pub(super) fn open_listing(&self, node: u64) -> Result<u64, Errno> {
        let attr = self.attr(node)?;
        if attr.kind != FileType::Directory {
            return Err(Errno::NOTDIR);
        }
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.listings.lock().insert(handle, Arc::default());
        Ok(handle)
    }

    /// The names from `offset` on, `.` and `..` first. From 0 the directory is read anew, so that a rewound listing
    /// is fresh and one that goes on is of one moment.
    pub(super) fn list(&self, node: u64, handle: u64, offset: u64) -> Result<Vec<Entry>, Errno> {
        let listing = self.listings.lock().get(&handle).cloned().ok_or(Errno::BADF)?;
        if offset == 0 {
            let fresh = self.read_dir(node)?;
            *listing.lock() = fresh;
        }
        let entries = listing.lock();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(entries.len());
        // More than this does not fit in one reply.
        Ok(entries[from..].iter().take(2048).cloned().collect())
    }

    /// Closes a listing.
    pub(super) fn release_listing(&self, handle: u64) {
        self.listings.lock().remove(&handle);
    }

    /// A symbolic link's text.
    pub(super) fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let read = |path: &Path| {
            let seen = self.see(path)?;
            let text = rustix::fs::readlinkat(&self.root, path, Vec::new())?;
            Ok((text.into_bytes(), seen.node()))
        };
        self.by_path(node, read, |(_, found)| *found).map(|(text, _)| text)
    }

    /// Space of the file system that the directory is on.
    pub(super) fn statvfs(&self) -> Result<StatVfs, Errno> {
        rustix::fs::fstatvfs(&self.root)
    }

    fn read_dir(&self, node: u64) -> Result<Vec<Entry>, Errno> {
        let (directory, path) = self.open_node(node, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let dev = dev_of(&stat_at(&directory, Path::new(""))?);
        let mut entries = Vec::new();
        for name in [".", ".."] {
            let path = if name == "." { &path } else { path.parent().unwrap_or(&path) };
            let node = self.see(path)?.node();
            entries.push(Entry { name: name.into(), path: path.into(), node, kind: FileType::Directory });
        }
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                entries.extend(self.entry(&path, name, dev, entry.ino(), entry.file_type()));
            }
        }
        Ok(entries)
    }

    /// A listed name; `None` if it is gone before its type could be had.
    fn entry(
        &self,
        directory: &Path,
        name: &OsStr,
        dev: u64,
        ino: u64,
        kind: rustix::fs::FileType,
    ) -> Option<Entry> {
        let path = directory.join(name);
        let kind = match kind_of(kind) {
            Some(kind) => kind,
            None => self.see(&path).ok()?.attr.kind,
        };
        Some(Entry { name: name.to_owned(), path, node: self.number(dev, ino), kind })
    }

    /// Opens a node by whichever of its paths still leads to it; never outside the root.
    fn open_node(&self, node: u64, flags: OFlags) -> Result<(OwnedFd, PathBuf), Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let open = |path: &Path| {
            let name = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            let fd = rustix::fs::openat2(&self.root, name, flags, Mode::empty(), resolve)?;
            let found = self.seen(&stat_at(&fd, Path::new(""))?)?.node();
            Ok((fd, path.to_owned(), found))
        };
        self.by_path(node, open, |(_, _, found)| *found).map(|(fd, path, _)| (fd, path))
    }

    /// Tries a node's paths in turn until one leads to the node itself. The root has one path and is always itself.
    fn by_path<T>(
        &self,
        node: u64,
        attempt: impl Fn(&Path) -> Result<T, Errno>,
        found: impl Fn(&T) -> u64,
    ) -> Result<T, Errno> {
        if node == ROOT {
            return attempt(Path::new(""));
        }
        let paths = self.nodes.lock().get(&node).map(|n| n.paths.clone()).unwrap_or_default();
        let mut error = Errno::STALE;
        for path in paths {
            match attempt(&path) {
                Ok(result) if found(&result) == node => return Ok(result),
                Ok(_) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    fn seen(&self, s: &Statx) -> Result<Seen, Errno> {
        let kind = kind_of(rustix::fs::FileType::from_raw_mode(s.stx_mode.into())).ok_or(Errno::IO)?;
        let attr = FileAttr {
            ino: INodeNo(self.number(dev_of(s), s.stx_ino)),
            size: s.stx_size,
            blocks: s.stx_blocks,
            atime: time(s.stx_atime),
            mtime: time(s.stx_mtime),
            ctime: time(s.stx_ctime),
            crtime: UNIX_EPOCH,
            kind,
            perm: s.stx_mode & 0o7777,
            nlink: s.stx_nlink,
            uid: s.stx_uid,
            gid: s.stx_gid,
            rdev: encode_dev(s.stx_rdev_major, s.stx_rdev_minor),
            blksize: s.stx_blksize,
            flags: 0,
        };
        let birth = if s.stx_mask & StatxFlags::BTIME.bits() == 0 { None } else { Some(s.stx_btime) };
        let generation =
            birth.map_or(0, |t| (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec.into()));
        Ok(Seen { attr, generation })
    }

    /// The inode number itself on the root's device; elsewhere, and for the number that FUSE keeps for its root, one
    /// with the highest bit set, which no common file system uses.
    fn number(&self, dev: u64, ino: u64) -> u64 {
        if dev == self.root_dev && ino != ROOT {
            return ino;
        }
        (dev.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ino) | 1 << 63
    }
}

fn stat_at(directory: impl AsFd, path: &Path) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(directory, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

fn dev_of(s: &Statx) -> u64 {
    rustix::fs::makedev(s.stx_dev_major, s.stx_dev_minor)
}

/// A device number in the 32 bits that FUSE has for it.
fn encode_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Seconds may be negative, nanoseconds always count forward.
fn time(t: StatxTimestamp) -> SystemTime {
    let whole = Duration::from_secs(t.tv_sec.unsigned_abs());
    let second = if t.tv_sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(t.tv_nsec.into())
}

fn kind_of(kind: rustix::fs::FileType) -> Option<FileType> {
    use rustix::fs::FileType as Kind;
    Some(match kind {
        Kind::RegularFile => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_follows_its_other_links_and_is_stale_without() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("a"), "1").expect("written");
        std::fs::hard_link(at("a"), at("b")).expect("linked");
        let mirror = Mirror::open(dir.path()).expect("opened");
        let node = mirror.lookup("a".into()).expect("there").node();
        assert_eq!(mirror.lookup("b".into()).expect("there").node(), node);
        std::fs::remove_file(at("b")).expect("removed");
        assert_eq!(mirror.attr(node).expect("by the other path").nlink, 1);
        let handle = mirror.open_file(node).expect("opened");
        std::fs::remove_file(at("a")).expect("removed");
        assert_eq!(mirror.attr(node).expect("by the handle").nlink, 0);
        assert_eq!(mirror.read(handle, 0, 10), Ok(b"1".to_vec()));
        mirror.release(handle);
        assert_eq!(mirror.attr(node).err(), Some(Errno::STALE));
        mirror.forget(node, 2);
        assert!(mirror.nodes.lock().is_empty());
    }

    #[test]
    fn times_before_1970() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = File::create(dir.path().join("old")).expect("created");
        let old = UNIX_EPOCH - Duration::from_millis(1500);
        file.set_modified(old).expect("set");
        let mirror = Mirror::open(dir.path()).expect("opened");
        assert_eq!(mirror.see(Path::new("old")).expect("there").attr.mtime, old);
    }

    #[test]
    fn device_numbers_are_encoded_as_the_kernel_does() {
        assert_eq!(encode_dev(8, 1), 0x801);
        assert_eq!(encode_dev(259, 300), 0x10_0000 | 259 << 8 | 44);
    }
}
