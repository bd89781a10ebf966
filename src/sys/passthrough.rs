//! Handing open files to the kernel, so that it reads them by itself (FUSE passthrough, Linux 6.9 and later).
//!
//! The FUSE library registers a file through a reply and closes the registration with the value that it returns. We
//! keep registrations longer than a reply lives, so they are made here on the session's own descriptor, and lent to the
//! library for the moment of the reply.

use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A file that the kernel can read by itself, until this is dropped and the last handle on it is closed.
#[derive(Debug)]
pub struct Registration {
    fuse: Arc<OwnedFd>,
    id: u32,
}

/// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)` of include/uapi/linux/fuse.h.
const BACKING_CLOSE: libc::c_ulong = 0x4004_e502;

impl Registration {
    /// Registers `file` with the session on `fuse`.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN; ELOOP if the file's file system is stacked too deep (overlayfs); EOPNOTSUPP or
    /// ENOTTY from kernels without passthrough.
    pub fn new(fuse: &Arc<OwnedFd>, file: BorrowedFd<'_>) -> std::io::Result<Self> {
        let id = BackingId::create_raw(fuse.as_fd(), file)?;
        Ok(Self { fuse: fuse.clone(), id })
    }

    /// Answers an OPEN: the kernel reads this file by itself.
    pub fn answer(&self, reply: ReplyOpen, handle: FileHandle, flags: FopenFlags) {
        // SAFETY: `id` was registered on this session and stays registered for as long as `self` lives, which is past
        // the end of this function; `into_raw` below keeps the library's value from closing it.
        let lent = unsafe { reply.wrap_backing(self.id) };
        reply.opened_passthrough(handle, flags, &lent);
        let _ = lent.into_raw();
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: the ioctl reads one u32 through the pointer, which points at a field of `self`, alive and unshared
        // here. The only effect is on the kernel's table; an error (the connection is gone) means there is nothing to
        // close.
        let _ = unsafe { libc::ioctl(self.fuse.as_raw_fd(), BACKING_CLOSE, &raw const self.id) };
    }
}
