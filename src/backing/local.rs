//! A mounted directory as the source.
//!
//! Everything is resolved from one descriptor that was opened before the mount, by `openat2` with `RESOLVE_BENEATH`,
//! `RESOLVE_NO_SYMLINKS` and `RESOLVE_NO_MAGICLINKS`: a link planted in the source, even one swapped in while we look,
//! cannot lead the daemon outside (its rights may be greater than the reader's). The same descriptor is what makes a
//! mount over the source's own path possible.

use super::{DirEntry, FsFigures, Look, Pin, Source, SourceDir, SourceFile};
use crate::sys::io::Io;
use crate::types::{
    Attr, Error, ErrorKind, FileId, FileKind, FileVersion, Identity, PathText, Result, Timestamp,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, makedev};
use rustix::io::Errno;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How a file is recognised after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityRule {
    /// By device and inode: hard links share a copy, a renamed file keeps it.
    Inode,
    /// By path, for sources that number their inodes anew (sshfs, rclone and other FUSE file systems, SMB).
    Path,
}

/// A directory of the local machine, on whatever it is mounted from.
pub struct LocalSource {
    io: Io,
    root: OwnedFd,
    rule: IdentityRule,
    root_device: u64,
    acls: bool,
    /// Whether this machine's kernel knows all who write to a file of the root's file system.
    knows_writers: bool,
    /// Whether every change of a file that was looked at gets a time of its own.
    exact_times: bool,
    /// Cleared when the source refuses O_NOATIME (it needs ownership): asking again would cost a call per open.
    no_atime: AtomicBool,
}

impl LocalSource {
    /// Opens `path` as a source. `rule`: `None` lets the file system's type decide.
    pub fn new(path: &Path, rule: Option<IdentityRule>) -> Result<Self> {
        Self::through(Io::default(), path, rule)
    }

    /// The same by these calls.
    pub fn through(io: Io, path: &Path, rule: Option<IdentityRule>) -> Result<Self> {
        let fail = |e: Errno| Error::os("open source", PathText(path).to_string(), e.raw_os_error());
        let root = io.open(CWD, path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).map_err(fail)?;
        let f_type = io.statfs(&root).map_err(fail)?.f_type as u64;
        let rule = rule.unwrap_or_else(|| default_rule(f_type));
        let root_device = attr_of(&io, root.as_fd(), c"").map_err(fail)?.identity.dev;
        let acls = !matches!(io.acl(&root), Err(Errno::NOTSUP | Errno::NOSYS));
        // By path, another file may take the place of one with the same times.
        let knows_writers = is_of_this_machine(f_type);
        let exact_times =
            rule == IdentityRule::Inode && knows_writers && crate::sys::facts::kernel_version() >= (6, 13);
        let no_atime = AtomicBool::new(true);
        Ok(Self { io, root, rule, root_device, acls, knows_writers, exact_times, no_atime })
    }

    /// The rule in force.
    pub fn identity_rule(&self) -> IdentityRule {
        self.rule
    }

    /// The root's descriptor (`O_PATH`).
    pub fn root_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    fn resolve(&self, op: &'static str, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        open_beneath(&self.io, self.root.as_fd(), path, flags).map_err(|e| {
            // Who asks has looked up each part of the path, and links are not looked through: one has come into it since.
            // Told so, the kernel looks the path up again.
            let e = if e == Errno::LOOP { Errno::STALE } else { e };
            Error::os(op, PathText(path).to_string(), e.raw_os_error())
        })
    }

    /// An open file with these attributes. What is mounted below the source may be anything.
    fn file(&self, fd: OwnedFd, name: String, attr: &Attr) -> LocalFile {
        let knows_writers = self.knows_writers && attr.identity.dev == self.root_device;
        LocalFile { io: self.io.clone(), fd: Arc::new(fd), name, knows_writers }
    }

    /// What is at `path`, held and looked at.
    fn see(&self, path: &Path) -> Result<(OwnedFd, Attr)> {
        while_stale(|| {
            let fd = self.resolve("stat", path, OFlags::PATH | OFlags::NOFOLLOW)?;
            let attr = attr_of(&self.io, fd.as_fd(), c"")
                .map_err(|e| Error::os("stat", PathText(path).to_string(), e.raw_os_error()))?;
            Ok((fd, attr))
        })
    }

    fn resolve_for_reading(&self, path: &Path) -> Result<OwnedFd> {
        // O_NONBLOCK: a pipe that took the file's place must not hold us.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        self.without_atime(flags, |flags| self.resolve("open", path, flags))
    }

    /// Opens without touching the access time where the source allows that.
    fn without_atime(&self, flags: OFlags, open: impl Fn(OFlags) -> Result<OwnedFd>) -> Result<OwnedFd> {
        if self.no_atime.load(Ordering::Relaxed) {
            match open(flags | OFlags::NOATIME) {
                Err(e) if e.errno() == Some(Errno::PERM.raw_os_error()) => {
                    self.no_atime.store(false, Ordering::Relaxed);
                }
                other => return other,
            }
        }
        open(flags)
    }
}

/// How often a name is looked up anew when what it led to was replaced before it could be asked.
const STALE_TRIES: u32 = 4;

/// Network file systems say ESTALE of an object that was replaced between two calls. For whoever asks for a path that is
/// no answer: the kernel, too, looks the path up anew.
fn while_stale<T>(ask: impl Fn() -> Result<T>) -> Result<T> {
    for _ in 1..STALE_TRIES {
        match ask() {
            Err(e) if e.errno() == Some(Errno::STALE.raw_os_error()) => {}
            other => return other,
        }
    }
    ask()
}

impl Source for LocalSource {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.see(path).map(|(_, attr)| attr)
    }

    fn look(&self, path: &Path) -> Result<(Attr, Option<Pin>)> {
        let (fd, attr) = self.see(path)?;
        let regular = attr.kind == FileKind::Regular;
        Ok((attr, regular.then(|| Pin { fd: Arc::new(fd), attr })))
    }

    fn open_pinned(&self, pin: &Pin) -> Result<Arc<dyn SourceFile>> {
        // Not a link of the source's: our own descriptor, which was resolved beneath the root when it was made.
        let path = format!("/proc/self/fd/{}", pin.fd.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.without_atime(flags, |flags| {
            self.io
                .open(CWD, path.as_ref(), flags, Mode::empty())
                .map_err(|e| Error::os("open", "a file that was looked up", e.raw_os_error()))
        })?;
        Ok(Arc::new(self.file(fd, "a file that was looked up".into(), &pin.attr)))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn SourceFile>> {
        while_stale(|| {
            let fd = self.resolve_for_reading(path)?;
            let name = PathText(path).to_string();
            let attr = attr_of(&self.io, fd.as_fd(), c"")
                .map_err(|e| Error::os("stat", name.clone(), e.raw_os_error()))?;
            if attr.kind != FileKind::Regular {
                // What was a file when it was looked up is something else now.
                return Err(Error::os("open", name, Errno::STALE.raw_os_error()));
            }
            Ok(Arc::new(self.file(fd, name, &attr)) as Arc<dyn SourceFile>)
        })
    }

    fn open_dir(&self, path: &Path) -> Result<Box<dyn SourceDir>> {
        let fd =
            self.resolve("open directory", path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW)?;
        Ok(Box::new(LocalDir { io: self.io.clone(), fd, name: PathText(path).to_string() }))
    }

    fn read_link(&self, path: &Path) -> Result<Vec<u8>> {
        while_stale(|| {
            let fd = self.resolve("readlink", path, OFlags::PATH | OFlags::NOFOLLOW)?;
            self.io
                .read_link(&fd)
                .map_err(|e| Error::os("readlink", PathText(path).to_string(), e.raw_os_error()))
        })
    }

    fn has_acls(&self) -> bool {
        self.acls
    }

    fn acl(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        while_stale(|| {
            let fd = self.resolve("read the ACL of", path, OFlags::PATH | OFlags::NOFOLLOW)?;
            match self.io.acl(&fd) {
                Ok(acl) => Ok(Some(acl)),
                // A file system inside the source that knows no ACLs.
                Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS) => Ok(None),
                Err(e) => Err(Error::os("read the ACL of", PathText(path).to_string(), e.raw_os_error())),
            }
        })
    }

    fn figures(&self) -> Result<FsFigures> {
        let s = self.io.statfs(&self.root).map_err(|e| Error::os("statfs", "source", e.raw_os_error()))?;
        Ok(FsFigures {
            blocks: s.f_blocks,
            bfree: s.f_bfree,
            bavail: s.f_bavail,
            files: s.f_files,
            ffree: s.f_ffree,
            bsize: s.f_bsize as u32,
            namelen: s.f_namelen as u32,
            frsize: if s.f_frsize > 0 { s.f_frsize as u32 } else { s.f_bsize as u32 },
        })
    }

    fn file_id(&self, path: &Path, attr: &Attr) -> FileId {
        self.file_id_without_path(attr).unwrap_or_else(|| path_id(path))
    }

    fn file_id_without_path(&self, attr: &Attr) -> Option<FileId> {
        if self.rule == IdentityRule::Path {
            return None;
        }
        let dev = attr.identity.dev;
        // The root's own device is written as 0: device numbers of network file systems change with a reboot.
        Some(FileId { high: if dev == self.root_device { 0 } else { dev }, low: attr.identity.ino })
    }

    fn version(&self, attr: &Attr) -> FileVersion {
        let ino = match self.rule {
            IdentityRule::Inode => attr.identity.ino,
            IdentityRule::Path => 0,
        };
        FileVersion { size: attr.size, mtime: attr.mtime, ctime: attr.ctime, ino }
    }

    fn is_racy(&self, attr: &Attr, look: &Look) -> bool {
        // Not so directories: tmpfs gives one that a file was deleted from the time of the file. What is mounted below the
        // source may be anything.
        let here = attr.identity.dev == self.root_device && attr.kind != FileKind::Directory;
        look.is_racy(attr.mtime, attr.ctime, self.exact_times && here)
    }

    fn stamp(&self) -> Option<[u8; 16]> {
        super::stamp::stamp(&self.io, &self.root, self.rule)
    }

    fn root_device(&self) -> u64 {
        self.root_device
    }
}

/// Id of a path: the first 16 bytes of its hash, with the top bit set so that it can never equal an inode's id.
fn path_id(path: &Path) -> FileId {
    let hash = blake3::hash(path.as_os_str().as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    bytes[0] |= 0x80;
    FileId::from_bytes(bytes)
}

/// File systems that number inodes as they go: a number says nothing after a remount.
fn default_rule(f_type: u64) -> IdentityRule {
    const FUSE: u64 = 0x6573_5546;
    const CIFS: u64 = 0xff53_4d42;
    const SMB2: u64 = 0xfe53_4d42;
    const V9FS: u64 = 0x0102_1997;
    match f_type & 0xffff_ffff {
        FUSE | CIFS | SMB2 | V9FS => IdentityRule::Path,
        _ => IdentityRule::Inode,
    }
}

/// File systems that are of this machine alone: its kernel knows who has a file open for writing. NFS and SMB do not, and
/// refuse every lease that their server has not delegated, as if there were a writer. From Linux 6.13 on these also give a
/// file that was looked at a new time at each change, however soon after.
fn is_of_this_machine(f_type: u64) -> bool {
    const EXT4: u64 = 0xef53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683e;
    const TMPFS: u64 = 0x0102_1994;
    matches!(f_type & 0xffff_ffff, EXT4 | XFS | BTRFS | TMPFS)
}

/// A program that is being started has a copy of everything that its parent has open, for a moment, which is waited for.
const STARTING_PROGRAM: Duration = Duration::from_millis(1);
const STARTING_PROGRAMS: u32 = 5;

struct LocalFile {
    io: Io,
    fd: Arc<OwnedFd>,
    name: String,
    knows_writers: bool,
}

impl SourceFile for LocalFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.io.read(&*self.fd, buf, offset);
        read.map_err(|e| Error::os("read", self.name.clone(), e.raw_os_error()))
    }

    fn attr(&self) -> Result<Attr> {
        attr_of(&self.io, self.fd.as_fd(), c"")
            .map_err(|e| Error::os("stat", self.name.clone(), e.raw_os_error()))
    }

    fn is_open_for_writing(&self) -> Option<bool> {
        if !self.knows_writers {
            return None;
        }
        for _ in 0..STARTING_PROGRAMS {
            match self.io.is_open_for_writing(&*self.fd) {
                Ok(true) => std::thread::sleep(STARTING_PROGRAM),
                Ok(false) => return Some(false),
                Err(_) => return None,
            }
        }
        Some(true)
    }

    fn direct(&self) -> Option<(&Io, &Arc<OwnedFd>)> {
        Some((&self.io, &self.fd))
    }
}

struct LocalDir {
    io: Io,
    fd: OwnedFd,
    name: String,
}

impl SourceDir for LocalDir {
    fn attr(&self) -> Result<Attr> {
        attr_of(&self.io, self.fd.as_fd(), c"")
            .map_err(|e| Error::os("stat", self.name.clone(), e.raw_os_error()))
    }

    fn entries(&self) -> Result<Vec<DirEntry>> {
        let fail = |e: Errno| Error::os("read directory", self.name.clone(), e.raw_os_error());
        let mut entries = Vec::new();
        for entry in self.io.list(&self.fd).map_err(fail)? {
            let name = entry.name.as_bytes();
            let kind = match kind_of_dirent(entry.kind) {
                Some(kind) => kind,
                // Some file systems leave the type out; our own listing never does.
                None => match self.stat(name) {
                    Ok(attr) => attr.kind,
                    Err(e) if e.kind() == ErrorKind::NotFound => continue,
                    Err(e) => return Err(e),
                },
            };
            entries.push(DirEntry { name: OsStr::from_bytes(name).to_owned(), ino: entry.ino, kind });
        }
        Ok(entries)
    }

    fn stat(&self, name: &[u8]) -> Result<Attr> {
        let fail = |e: Errno| {
            Error::os("stat", PathText(Path::new(OsStr::from_bytes(name))).to_string(), e.raw_os_error())
        };
        let mut buffer = [0u8; 256];
        if name.len() >= buffer.len() || name.contains(&b'/') {
            return Err(fail(Errno::NAMETOOLONG));
        }
        buffer[..name.len()].copy_from_slice(name);
        let name = CStr::from_bytes_until_nul(&buffer).expect("the last byte of the buffer is 0");
        attr_of(&self.io, self.fd.as_fd(), name).map_err(fail)
    }
}

/// Longest piece handed to the kernel at once: a path may be longer than PATH_MAX, its pieces may not.
const PIECE_BYTES_MAX: usize = 3800;

fn open_beneath(
    io: &Io,
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
) -> std::result::Result<OwnedFd, Errno> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() {
        return open_piece(io, root, b".", flags);
    }
    if bytes.len() <= PIECE_BYTES_MAX {
        return open_piece(io, root, bytes, flags);
    }
    let cut = bytes[..PIECE_BYTES_MAX].iter().rposition(|&b| b == b'/').ok_or(Errno::NAMETOOLONG)?;
    let dir = open_piece(io, root, &bytes[..cut], OFlags::PATH | OFlags::DIRECTORY)?;
    open_beneath(io, dir.as_fd(), Path::new(OsStr::from_bytes(&bytes[cut + 1..])), flags)
}

fn open_piece(
    io: &Io,
    dir: BorrowedFd<'_>,
    piece: &[u8],
    flags: OFlags,
) -> std::result::Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // openat2 gives EAGAIN when something below was renamed while it looked; a few tries are always enough but for
    // someone who renames in a loop, who then gets ESTALE and a new look-up.
    for _ in 0..64 {
        match io.open_beneath(dir, Path::new(OsStr::from_bytes(piece)), flags, resolve) {
            Err(Errno::AGAIN) => continue,
            other => return other,
        }
    }
    Err(Errno::STALE)
}

fn attr_of(io: &Io, fd: BorrowedFd<'_>, name: &CStr) -> std::result::Result<Attr, Errno> {
    let s = io.statx(fd, name)?;
    let time = |t: rustix::fs::StatxTimestamp| Timestamp { secs: t.tv_sec, nanos: t.tv_nsec };
    let has_birth = s.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(Attr {
        kind: kind_of_mode(u32::from(s.stx_mode)),
        perm: s.stx_mode & 0o7777,
        nlink: s.stx_nlink,
        uid: s.stx_uid,
        gid: s.stx_gid,
        rdev: encode_dev(s.stx_rdev_major, s.stx_rdev_minor),
        size: s.stx_size,
        blocks: s.stx_blocks,
        atime: time(s.stx_atime),
        mtime: time(s.stx_mtime),
        ctime: time(s.stx_ctime),
        identity: Identity {
            dev: makedev(s.stx_dev_major, s.stx_dev_minor),
            ino: s.stx_ino,
            birth: if has_birth { time(s.stx_btime) } else { Timestamp::default() },
        },
    })
}

/// The kernel's 32-bit device encoding, which FUSE uses (`new_encode_dev` in include/linux/kdev_t.h).
fn encode_dev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn kind_of_mode(mode: u32) -> FileKind {
    match FileType::from_raw_mode(mode) {
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::Regular,
    }
}

fn kind_of_dirent(kind: FileType) -> Option<FileKind> {
    match kind {
        FileType::Unknown => None,
        other => Some(kind_of_mode(other.as_raw_mode())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn source() -> (tempfile::TempDir, LocalSource) {
        let dir = tempfile::tempdir().unwrap();
        let source = LocalSource::new(dir.path(), None).unwrap();
        (dir, source)
    }

    /// Goal: a network file system, which refuses leases as if there were a writer, is not asked: each of its files would
    /// be waited for and fetched again. Method: the numbers of include/uapi/linux/magic.h; and a file whose device is not
    /// the root's, with a writer.
    #[test]
    fn only_file_systems_of_this_machine_are_asked_for_writers() {
        const NFS: u64 = 0x6969;
        const SMB2: u64 = 0xfe53_4d42;
        const FUSE: u64 = 0x6573_5546;
        assert!([NFS, SMB2, FUSE].iter().all(|f| !is_of_this_machine(*f)) && is_of_this_machine(0xef53));
        let (dir, mut source) = source();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let _writer = std::fs::File::options().write(true).open(dir.path().join("f")).unwrap();
        if source.knows_writers {
            assert_eq!(source.open(Path::new("f")).unwrap().is_open_for_writing(), Some(true));
        }
        source.root_device += 1;
        assert_eq!(source.open(Path::new("f")).unwrap().is_open_for_writing(), None);
    }

    #[test]
    fn bug_149_links_are_served_as_links_and_never_followed() {
        let (dir, source) = source();
        std::fs::create_dir(dir.path().join("d")).unwrap();
        std::fs::write(dir.path().join("d/f"), "x").unwrap();
        symlink("/etc", dir.path().join("evil")).unwrap();
        symlink("d", dir.path().join("inside")).unwrap();
        assert_eq!(source.read_link(Path::new("evil")).unwrap(), b"/etc");
        assert_eq!(source.stat(Path::new("evil")).unwrap().kind, FileKind::Symlink);
        for path in ["evil/passwd", "inside/f", "../x", "/etc/passwd", "d/../../etc/passwd"] {
            let error = source.open(Path::new(path)).err().expect(path);
            assert!(matches!(error.errno(), Some(libc::ESTALE | libc::EXDEV)), "{path}: {error}");
            assert!(source.stat(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn a_pipe_in_place_of_a_file_does_not_hang() {
        let (dir, source) = source();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("p"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert_eq!(source.open(Path::new("p")).err().unwrap().errno(), Some(libc::ESTALE));
    }

    #[test]
    fn paths_longer_than_path_max_resolve() {
        let (dir, source) = source();
        let mut fd = rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        let name = "n".repeat(250);
        let mut path = std::path::PathBuf::new();
        for _ in 0..40 {
            rustix::fs::mkdirat(&fd, name.as_str(), Mode::from_raw_mode(0o700)).unwrap();
            fd = rustix::fs::openat(&fd, name.as_str(), OFlags::PATH, Mode::empty()).unwrap();
            path.push(&name);
        }
        assert_eq!(source.stat(&path).unwrap().kind, FileKind::Directory);
    }

    #[test]
    fn versions_differ_when_anything_that_matters_does() {
        let (dir, source) = source();
        let file = dir.path().join("f");
        std::fs::write(&file, "aaaa").unwrap();
        let before = source.version(&source.stat(Path::new("f")).unwrap());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mtime = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::write(&file, "bbbb").unwrap();
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(mtime).unwrap();
        let after = source.version(&source.stat(Path::new("f")).unwrap());
        assert_eq!((before.size, before.mtime), (after.size, after.mtime));
        assert_ne!(before, after, "ctime tells");
    }

    #[test]
    fn numbered_as_they_go_means_by_path() {
        assert_eq!(default_rule(0x6573_5546), IdentityRule::Path);
        assert_eq!(default_rule(0xEF53), IdentityRule::Inode);
        assert_ne!(path_id(Path::new("a")), path_id(Path::new("b")));
    }
}
