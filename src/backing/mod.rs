//! Where truth lives: the source, read-only, one directory tree.
//!
//! A trait, because everything above is tested against a second implementation that fails, hangs and lies
//! ([`faulty`]). Paths are relative to the source's root and never escape it; every method may block for as long as
//! the source pleases, so none is called on a thread that serves the kernel.
#![forbid(unsafe_code)]

pub mod faulty;
mod local;
pub mod racy;
mod stamp;

pub use local::{IdentityRule, LocalSource};
pub use racy::Look;

use crate::sys::io::Io;
use crate::types::{Attr, FileId, FileKind, FileVersion, Result};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// An open file of the source.
pub trait SourceFile: Send + Sync {
    /// Reads up to `buf.len()` bytes at `offset`; 0 only at the end of the file. Short reads are allowed.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// The attributes now, asked of the source and not of a cache of ours.
    fn attr(&self) -> Result<Attr>;

    /// Whether somebody has it open for writing; `None` where that is not known.
    fn is_open_for_writing(&self) -> Option<bool> {
        None
    }

    /// The real descriptor, where reading it directly is the same thing, and the calls to read it by; `None` for sources
    /// that must be asked.
    fn direct(&self) -> Option<(&Io, &Arc<OwnedFd>)>;
}

/// An open directory of the source.
pub trait SourceDir: Send + Sync {
    /// The directory's own attributes.
    fn attr(&self) -> Result<Attr>;

    /// All entries but `.` and `..`, in the source's order.
    fn entries(&self) -> Result<Vec<DirEntry>>;

    /// Attributes of the entry `name`, links not followed.
    fn stat(&self, name: &[u8]) -> Result<Attr>;
}

/// A file of the source that was looked at and is held, not open: between a look-up and an open a name may come to mean
/// another file, and the open is to get the one that was looked up.
#[derive(Clone, Debug)]
pub struct Pin {
    fd: Arc<OwnedFd>,
    /// What it looked like then.
    pub attr: Attr,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, any bytes but `/` and NUL.
    pub name: OsString,
    /// Inode number that the source reports.
    pub ino: u64,
    /// Type of the object.
    pub kind: FileKind,
}

/// Figures of the source's file system, as `statvfs` names them.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsFigures {
    /// Total blocks of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Blocks free for ordinary users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred I/O size, bytes.
    pub bsize: u32,
    /// Longest name, bytes.
    pub namelen: u32,
    /// Unit of `blocks`, bytes.
    pub frsize: u32,
}

/// The source of a mount.
pub trait Source: Send + Sync {
    /// Attributes of the object at `path` (empty: the root), links not followed.
    fn stat(&self, path: &Path) -> Result<Attr>;

    /// As [`Source::stat`], and holds a regular file so that it can be opened as it was seen, whatever takes its name.
    fn look(&self, path: &Path) -> Result<(Attr, Option<Pin>)> {
        Ok((self.stat(path)?, None))
    }

    /// Opens the very file that was looked at.
    fn open_pinned(&self, pin: &Pin) -> Result<Arc<dyn SourceFile>>;

    /// Opens a regular file for reading. Never blocks on a pipe and never follows a link.
    fn open(&self, path: &Path) -> Result<Arc<dyn SourceFile>>;

    /// Opens a directory.
    fn open_dir(&self, path: &Path) -> Result<Box<dyn SourceDir>>;

    /// The text of a symbolic link.
    fn read_link(&self, path: &Path) -> Result<Vec<u8>>;

    /// Whether objects here can have access control lists (POSIX ACLs) at all; asked once, before the mount.
    fn has_acls(&self) -> bool;

    /// The access control list of the object at `path`, as the kernel's extended attribute holds it; `None` where the
    /// mode says everything.
    fn acl(&self, path: &Path) -> Result<Option<Vec<u8>>>;

    /// Figures of the file system.
    fn figures(&self) -> Result<FsFigures>;

    /// The cache's key for the file at `path`.
    fn file_id(&self, path: &Path, attr: &Attr) -> FileId;

    /// The same key, where the path has no part in it.
    fn file_id_without_path(&self, attr: &Attr) -> Option<FileId>;

    /// Which content `attr` speaks of.
    fn version(&self, attr: &Attr) -> FileVersion;

    /// Whether what this look gives of a file with these attributes may be of before a change that its version will not
    /// tell: see [`racy`].
    fn is_racy(&self, attr: &Attr, look: &Look) -> bool {
        look.is_racy(attr.mtime, attr.ctime, false)
    }

    /// Which source this is: the same after a restart only if its inode numbers still mean the same objects and its names and
    /// attributes are seen in the same way. `None` where that cannot be told.
    fn stamp(&self) -> Option<[u8; 16]> {
        None
    }

    /// The device of the root: objects on another device get node numbers of their own.
    fn root_device(&self) -> u64;
}
