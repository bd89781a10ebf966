//! The kernel's door: translates FUSE requests into calls of [`crate::fs`], and nothing else. A branch here that is
//! more than "answer or error" belongs in `fs`.
//!
//! | file | its part |
//! |---|---|
//! | this one | the adapter: one method per request |
//! | [`convert`] | attributes and errors in the kernel's terms |
//! | [`spin`] | one worker stays awake while files are being opened |
//! | [`session`] | the connection: what is negotiated, threads, registrations, notifications |
#![forbid(unsafe_code)]

pub mod convert;
pub mod session;
pub mod spin;

use crate::fs::dir::{Listed, PlusReply};
use crate::fs::open::Opened;
use crate::fs::watch::set_client;
use crate::fs::{Entry, Fs};
use crate::sys::passthrough::Registration;
use crate::types::{Error, KernelRef};
use convert::{errno, file_attr, file_type};
use fuser::{
    AccessFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

/// A span for the request, at debug level, with the kernel's number of it; what is said while it is handled on this
/// thread is said in it, and what waits, waits for its client.
macro_rules! request {
    ($name:literal, $req:ident, $($field:tt)*) => {
        let _span = tracing::debug_span!($name, id = $req.unique().0, $($field)*).entered();
        set_client($req.pid());
        tracing::debug!("request");
    };
}

/// The adapter.
pub struct Adapter {
    fs: Arc<Fs>,
    /// Whether the kernel may keep listings: not from 6.9 to 6.12, which forget to look whether they are still true.
    cache_dirs: bool,
    spin: Option<Arc<spin::Spin>>,
}

impl Adapter {
    /// An adapter for `fs`.
    pub fn new(fs: Arc<Fs>, cache_dirs: bool, spin: Option<Arc<spin::Spin>>) -> Self {
        Self { fs, cache_dirs, spin }
    }
}

/// A READDIRPLUS that is being answered.
struct PlusPage(ReplyDirectoryPlus);

impl PlusReply for PlusPage {
    fn add(&mut self, entry: Listed<'_>) -> bool {
        let (attr, ttl) = match &entry.attr {
            Some((attr, ttl)) => (file_attr(entry.id, attr), *ttl),
            None => (convert::listed_attr(entry.id, entry.kind), Duration::ZERO),
        };
        self.0.add(INodeNo(entry.id), entry.next, entry.name, &ttl, &attr, GENERATION)
    }

    fn end(self: Box<Self>, result: crate::types::Result<()>) {
        match result {
            Ok(()) => self.0.ok(),
            Err(e) => self.0.error(errno(&e)),
        }
    }
}

/// Nodes are never reused under the same number while the kernel knows them.
const GENERATION: Generation = Generation(0);

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        session::negotiate(config, &self.fs);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        request!("LOOKUP", req, parent = parent.0, ?name);
        self.fs.lookup(
            parent.0,
            name,
            Box::new(move |answer| match answer {
                Ok(Entry::Found { node, attr, ttl }) => {
                    reply.entry(&ttl, &file_attr(node, &attr), GENERATION)
                }
                // Node 0 is "there is none", which the kernel remembers as well.
                Ok(Entry::Missing(ttl)) if !ttl.is_zero() => {
                    reply.entry(&ttl, &convert::no_attr(), GENERATION);
                }
                Ok(Entry::Missing(_)) => reply.error(Errno::ENOENT),
                Err(e) => reply.error(errno(&e)),
            }),
        );
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.fs.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        request!("GETATTR", req, ino = ino.0);
        self.fs.getattr(
            ino.0,
            Box::new(move |answer| match answer {
                Ok((attr, ttl)) => reply.attr(&ttl, &file_attr(ino.0, &attr)),
                Err(e) => reply.error(errno(&e)),
            }),
        );
    }

    fn readlink(&self, req: &Request, ino: INodeNo, reply: ReplyData) {
        request!("READLINK", req, ino = ino.0);
        self.fs.read_link(
            ino.0,
            Box::new(move |answer| match answer {
                Ok(text) => reply.data(&text),
                Err(e) => reply.error(errno(&e)),
            }),
        );
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        request!("OPEN", req, ino = ino.0, flags = flags.0);
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        if Fs::is_inside(ino.0) {
            return reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
        }
        if let Some(spin) = &self.spin {
            spin.note_open();
        }
        self.fs.open(
            ino.0,
            Box::new(move |answer| match answer {
                Ok(Opened::Passthrough(kernel)) => answer_passthrough(reply, &kernel),
                Ok(Opened::KeepPages) => {
                    reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH);
                }
                Ok(Opened::DropPages) => reply.opened(FileHandle(0), FopenFlags::FOPEN_NOFLUSH),
                Err(e) => reply.error(errno(&e)),
            }),
        );
    }

    fn read(
        &self,
        req: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        request!("READ", req, ino = ino.0, offset, size);
        self.fs.read(
            ino.0,
            offset,
            size,
            Box::new(move |answer| match answer {
                Ok(bytes) => reply.data(bytes),
                Err(e) => reply.error(errno(&e)),
            }),
        );
    }

    fn release(
        &self,
        req: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        request!("RELEASE", req, ino = ino.0);
        self.fs.release(ino.0);
        reply.ok();
    }

    fn opendir(&self, req: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        request!("OPENDIR", req, ino = ino.0);
        let cache_dirs = self.cache_dirs && !Fs::is_inside(ino.0);
        self.fs.open_dir(
            ino.0,
            Box::new(move |answer| match answer {
                Ok(opened) => {
                    let mut flags = FopenFlags::empty();
                    flags.set(FopenFlags::FOPEN_CACHE_DIR, cache_dirs);
                    flags.set(FopenFlags::FOPEN_KEEP_CACHE, cache_dirs && opened.keep);
                    reply.opened(FileHandle(opened.handle), flags);
                }
                Err(e) => reply.error(errno(&e)),
            }),
        );
    }

    fn readdir(&self, req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        request!("READDIR", req, ino = ino.0, offset);
        let listed = self.fs.read_dir(fh.0, offset, &mut |entry| {
            reply.add(INodeNo(entry.id), entry.next, file_type(entry.kind), entry.name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn readdirplus(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        request!("READDIRPLUS", req, ino = ino.0, offset);
        self.fs.read_dir_plus(fh.0, offset, Box::new(PlusPage(reply)));
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.fs.release_dir(fh.0);
        reply.ok();
    }

    fn statfs(&self, req: &Request, _: INodeNo, reply: ReplyStatfs) {
        request!("STATFS", req,);
        self.fs.figures(Box::new(move |answer| match answer {
            Ok(f) => {
                reply.statfs(f.blocks, f.bfree, f.bavail, f.files, f.ffree, f.bsize, f.namelen, f.frsize)
            }
            Err(e) => reply.error(errno(&e)),
        }));
    }

    fn getxattr(&self, req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        request!("GETXATTR", req, ino = ino.0, ?name);
        let reply = Box::new(move |value| answer_xattr(reply, size, value));
        self.fs.get_xattr(ino.0, name.as_encoded_bytes(), reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        request!("LISTXATTR", req, ino = ino.0);
        answer_xattr(reply, size, self.fs.list_xattrs(ino.0));
    }

    // Each Python open asks whether the file is a terminal: answered first and in silence.
    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    // What follows is answered once with ENOSYS, after which the kernel does it by itself or not at all.

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _: &Request, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: fuser::CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn bmap(&self, _: &Request, _: INodeNo, _: u32, _: u64, reply: fuser::ReplyBmap) {
        reply.error(Errno::ENOSYS);
    }

    fn poll(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::PollNotifier,
        _: fuser::PollEvents,
        _: fuser::PollFlags,
        reply: fuser::ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }
}

fn answer_passthrough(reply: ReplyOpen, kernel: &KernelRef) {
    match kernel.downcast_ref::<Registration>() {
        Some(registration) => registration.answer(reply, FileHandle(0), FopenFlags::FOPEN_NOFLUSH),
        // Made by the session's own door, and by no other.
        None => reply.error(Errno::EIO),
    }
}

fn answer_xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Error>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(e) => reply.error(errno(&e)),
    }
}
