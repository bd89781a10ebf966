//! The FUSE side: each request becomes a job for the pool, each result a reply. No decision is taken here.
//!
//! The session's thread runs these methods and never waits in one; what is answered on the spot is what is not a
//! request to the source (forget, release) or what the kernel then does by itself (flush, lseek, ...).

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use fuser::{
    AccessFlags, Errno as FuseErrno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen,
    ReplyPoll, ReplyStatfs, ReplyXattr, Request,
};
use rustix::io::Errno;

use super::core::Core;
use super::counts::Op;
use super::pool::Pool;
use super::rules::Verdict;

/// The file system that the session serves.
pub(super) struct Server {
    core: Arc<Core>,
    pool: Pool,
}

/// A reply that can say no.
trait Refuse: Send + 'static {
    fn refuse(self, errno: FuseErrno);
}

macro_rules! refuse {
    ($($reply:ty),+) => {
        $(impl Refuse for $reply {
            fn refuse(self, errno: FuseErrno) {
                self.error(errno);
            }
        })+
    };
}

refuse!(
    ReplyAttr,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEntry,
    ReplyOpen,
    ReplyStatfs,
    ReplyXattr
);

/// What a request is about, for the rules.
enum Subject {
    Node(u64),
    Child(u64, OsString),
}

impl Subject {
    fn path(&self, core: &Core) -> PathBuf {
        match self {
            Self::Node(node) => core.mirror.path(*node),
            Self::Child(parent, name) => core.mirror.path(*parent).join(name),
        }
    }
}

/// A request that was admitted.
struct Admitted<'a> {
    core: &'a Core,
    path: PathBuf,
    verdict: Verdict,
    /// When its latency was over; the thread may have been woken later.
    due: Instant,
}

impl Server {
    pub(super) fn new(core: Arc<Core>, pool: Pool) -> Self {
        Self { core, pool }
    }

    /// Queues a request: `work` does it, and `answer` sends what it found.
    fn serve<R: Refuse, T>(
        &self,
        op: Op,
        subject: Subject,
        mut reply: R,
        work: impl FnOnce(Admitted<'_>, &mut R) -> Result<T, Errno> + Send + 'static,
        answer: impl FnOnce(R, T) + Send + 'static,
    ) {
        self.core.counters.request(op);
        let core = self.core.clone();
        self.pool.run(Box::new(move || {
            let arrived = Instant::now();
            let path = subject.path(&core);
            let result = core.admit(op, &path, arrived).and_then(|verdict| {
                let due = arrived + core.latency + verdict.delay;
                work(Admitted { core: &core, path, verdict, due }, &mut reply)
            });
            match result {
                Ok(found) => answer(reply, found),
                Err(e) => reply.refuse(FuseErrno::from_i32(e.raw_os_error())),
            }
        }));
    }
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wish in [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            // Cached pages go when size or modification time have changed: the mirror shows changes at once.
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ] {
            // A kernel without it is served all the same.
            let _ = config.add_capabilities(wish);
        }
        // Nothing is written; this is what makes reads of 1 MiB (256 pages) possible.
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(128);
        Ok(())
    }

    fn destroy(&mut self) {
        // The pool is joined next, so nothing may hang any more.
        self.core.gate.stop();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ttl = self.core.ttl;
        self.serve(
            Op::Lookup,
            Subject::Child(parent.0, name.to_owned()),
            reply,
            |request, _| request.core.mirror.lookup(request.path),
            move |reply, seen| reply.entry(&ttl, &seen.attr, Generation(seen.generation)),
        );
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.core.mirror.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let ttl = self.core.ttl;
        self.serve(
            Op::Getattr,
            Subject::Node(ino.0),
            reply,
            move |request, _| request.core.mirror.attr(ino.0),
            move |reply, attr| reply.attr(&ttl, &attr),
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.serve(
            Op::Readlink,
            Subject::Node(ino.0),
            reply,
            move |request, _| request.core.mirror.readlink(ino.0),
            |reply, text| reply.data(&text),
        );
    }

    fn open(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // Never KEEP_CACHE: what another open has left in the page cache may be old.
        let flags = if self.core.direct_io { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_NOFLUSH };
        self.serve(
            Op::Open,
            Subject::Node(ino.0),
            reply,
            move |request, _| request.core.mirror.open_file(ino.0),
            move |reply, handle| reply.opened(FileHandle(handle), flags),
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.serve(
            Op::Read,
            Subject::Node(ino.0),
            reply,
            move |request, _| request.core.read(fh.0, offset, size, &request.verdict, request.due),
            |reply, bytes| reply.data(&bytes),
        );
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.core.counters.request(Op::Release);
        self.core.mirror.release(fh.0);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.serve(
            Op::Opendir,
            Subject::Node(ino.0),
            reply,
            move |request, _| request.core.mirror.open_listing(ino.0),
            |reply, handle| reply.opened(FileHandle(handle), FopenFlags::empty()),
        );
    }

    fn readdir(&self, _req: &Request, ino: INodeNo, fh: FileHandle, offset: u64, reply: ReplyDirectory) {
        let work = move |request: Admitted<'_>, reply: &mut ReplyDirectory| {
            let entries = request.core.mirror.list(ino.0, fh.0, offset)?;
            for (next, entry) in (offset + 1..).zip(entries) {
                if reply.add(INodeNo(entry.node), next, entry.kind, &entry.name) {
                    break;
                }
            }
            Ok(())
        };
        self.serve(Op::Readdir, Subject::Node(ino.0), reply, work, |reply, ()| reply.ok());
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let work = move |request: Admitted<'_>, reply: &mut ReplyDirectoryPlus| {
            let mirror = &request.core.mirror;
            for (next, entry) in (offset + 1..).zip(mirror.list(ino.0, fh.0, offset)?) {
                // Gone since the listing: as if it had not been there.
                let Ok(seen) = mirror.see(&entry.path) else { continue };
                let (node, generation) = (seen.node(), Generation(seen.generation));
                let told = !entry.is_dot();
                if told {
                    mirror.remember(node, entry.path);
                }
                if reply.add(INodeNo(node), next, &entry.name, &request.core.ttl, &seen.attr, generation) {
                    if told {
                        mirror.forget(node, 1);
                    }
                    break;
                }
            }
            Ok(())
        };
        self.serve(Op::Readdir, Subject::Node(ino.0), reply, work, |reply, ()| reply.ok());
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.core.mirror.release_listing(fh.0);
        reply.ok();
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        self.serve(
            Op::Statfs,
            Subject::Node(ino.0),
            reply,
            |request, _| request.core.mirror.statvfs(),
            |reply, s| {
                let (block, fragment) = (s.f_bsize as u32, s.f_frsize as u32);
                let name_max = s.f_namemax as u32;
                reply.statfs(
                    s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, block, name_max, fragment,
                );
            },
        );
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, _name: &OsStr, _size: u32, reply: ReplyXattr) {
        self.serve(
            Op::Getxattr,
            Subject::Node(ino.0),
            reply,
            |_, _| Err::<(), _>(Errno::NODATA),
            |reply, ()| reply.size(0),
        );
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let answer = move |reply: ReplyXattr, ()| if size == 0 { reply.size(0) } else { reply.data(&[]) };
        self.serve(Op::Listxattr, Subject::Node(ino.0), reply, |_, _| Ok(()), answer);
    }

    fn ioctl(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: IoctlFlags,
        _cmd: u32,
        _in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(FuseErrno::ENOTTY);
    }

    // ENOSYS to these is remembered by the kernel, which then does without asking.

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.error(FuseErrno::ENOSYS);
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.error(FuseErrno::ENOSYS);
    }

    fn fsyncdir(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.error(FuseErrno::ENOSYS);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(FuseErrno::ENOSYS);
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(FuseErrno::ENOSYS);
    }

    fn poll(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(FuseErrno::ENOSYS);
    }
}
