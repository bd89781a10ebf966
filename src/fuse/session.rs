//! The connection to the kernel: what is negotiated, who serves it, the registrations and the notifications.

use super::Adapter;
use super::spin::Spin;
use crate::fs::{Door, Fs};
use crate::sys::passthrough::Registration;
use crate::types::{Error, KernelRef, NodeId, Result};
use fuser::{Config, INodeNo, InitFlags, KernelConfig, Notifier, Session, SessionACL};
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Requests that the kernel may have in flight of its own accord: read-ahead and releases. The kernel's default of 12
/// lets releases pile up behind reads.
const BACKGROUND_MAX: u16 = 512;

/// 1 MiB: gives requests of 256 pages, the most the kernel makes by default.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// What we ask of the kernel. Not asked for, and why: READDIRPLUS only for the first piece of a directory (it leaves a
/// look-up of its own to each file after that: 42 s instead of 20 for a first `find -size` over a million files), locks (the kernel's own are right on one host), write-back cache
/// and passthrough exclude each other, idmapped mounts are more than the library honours, ACLs of a source that has none
/// would cost a request per file for nothing, and FUSE over io_uring makes the kernel wait for queues that the library never offers.
pub(super) fn negotiate(config: &mut KernelConfig, fs: &Fs) {
    let wanted = InitFlags::FUSE_ASYNC_READ
        | InitFlags::FUSE_PARALLEL_DIROPS
        | InitFlags::FUSE_DO_READDIRPLUS
        | InitFlags::FUSE_ASYNC_DIO
        | InitFlags::FUSE_MAX_PAGES
        | InitFlags::FUSE_CACHE_SYMLINKS
        | InitFlags::FUSE_EXPLICIT_INVAL_DATA
        | InitFlags::FUSE_NO_EXPORT_SUPPORT
        | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
        | InitFlags::FUSE_HAS_EXPIRE_ONLY;
    let offered = config.capabilities();
    // Without it the kernel would go by the mode bits alone, which grant more than an ACL that keeps somebody out.
    let acls = match fs.cache().source().has_acls() {
        true => InitFlags::FUSE_POSIX_ACL,
        false => InitFlags::empty(),
    };
    if config.add_capabilities((wanted | acls) & offered).is_err() {
        tracing::warn!("the kernel takes back what it offered");
    }
    // Both cannot fail: the numbers are within the documented limits.
    let _ = config.set_max_background(BACKGROUND_MAX);
    let _ = config.set_max_write(REQUEST_BYTES_MAX);
    if fs.passthrough_off().is_some() {
        return;
    }
    if !offered.contains(InitFlags::FUSE_PASSTHROUGH) {
        fs.lose_passthrough("this kernel has no FUSE passthrough (Linux 6.9 and later have it)");
        return;
    }
    // Depth 1: the cache directory on a plain file system, and overlayfs may still be stacked on the mount.
    let _ = config.set_max_stack_depth(1);
    if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_err() {
        fs.lose_passthrough("the kernel refuses passthrough");
    }
}

/// A connection that answers the kernel.
pub struct Connection {
    session: Session<Adapter>,
}

/// Tells the kernel to forget.
#[derive(Clone)]
pub struct Forgetter {
    notifier: Notifier,
}

impl Connection {
    /// Answers the kernel's first request on `fuse`; blocks until it comes.
    pub fn open(fs: Arc<Fs>, fuse: OwnedFd, workers: usize, cache_dirs: bool) -> Result<Self> {
        let fail = |e: std::io::Error| Error::io("open the FUSE session on", "/dev/fuse", &e);
        // The same open file as the session's, which the last worker reads.
        let shared = Arc::new(fuse.try_clone().map_err(fail)?);
        fs.set_door(Arc::new(KernelDoor { fuse: shared.clone() }));
        let spin = Spin::new(shared, fs.cache().stats().clone());
        let mut config = Config::default();
        config.n_threads = Some(workers);
        config.clone_fd = workers > 1;
        // The kernel checks who may come in (allow_other, default_permissions): the library must not as well.
        let adapter = Adapter::new(fs, cache_dirs, spin);
        let session = Session::from_fd(adapter, fuse, SessionACL::All, config).map_err(fail)?;
        Ok(Self { session })
    }

    /// A handle for telling the kernel to forget; to be used from threads that serve no requests.
    pub fn forgetter(&self) -> Forgetter {
        Forgetter { notifier: self.session.notifier() }
    }

    /// Serves until the mount is gone.
    pub fn serve(self) -> Result<()> {
        match self.session.run() {
            Ok(()) => Ok(()),
            // The connection was aborted: an end like any other.
            Err(e) if e.raw_os_error() == Some(libc_econnaborted()) => Ok(()),
            Err(e) => Err(Error::io("serve", "the kernel", &e)),
        }
    }
}

fn libc_econnaborted() -> i32 {
    rustix::io::Errno::CONNABORTED.raw_os_error()
}

impl Forgetter {
    /// The kernel forgets an entry, and looks it up again when it is next used.
    pub fn entry(&self, parent: NodeId, name: &[u8]) {
        // An entry that the kernel does not have is forgotten already.
        let _ = self.notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(name));
    }
}

/// Registers files with the session.
struct KernelDoor {
    fuse: Arc<OwnedFd>,
}

impl Door for KernelDoor {
    fn register(&self, fd: BorrowedFd<'_>) -> std::io::Result<KernelRef> {
        Ok(Arc::new(Registration::new(&self.fuse, fd)?))
    }
}
