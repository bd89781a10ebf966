//! The file under the index, for redb: every byte of it passes [`Io`], so that tests can fail, tear and lose what redb
//! believes to be written. It has no lock of its own: who opens the index holds the lock of the cache directory.

use crate::sys::io::Io;
use redb::StorageBackend;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fmt;
use std::io::Result;
use std::os::fd::OwnedFd;
use std::path::Path;

/// An open index file.
pub(super) struct IndexFile {
    io: Io,
    fd: OwnedFd,
}

impl IndexFile {
    /// Opens or creates it, 0600; never follows a link or waits on a pipe.
    pub(super) fn open(io: &Io, path: &Path) -> std::result::Result<Self, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = io.open(CWD, path, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Self { io: io.clone(), fd })
    }
}

impl fmt::Debug for IndexFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IndexFile")
    }
}

impl StorageBackend for IndexFile {
    fn len(&self) -> Result<u64> {
        Ok(self.io.stat(&self.fd)?.st_size as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        Ok(self.io.read_exact(&self.fd, out, offset)?)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        Ok(self.io.set_len(&self.fd, len)?)
    }

    fn sync_data(&self) -> Result<()> {
        Ok(self.io.sync_data(&self.fd)?)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.io.write_all(&self.fd, data, offset)?)
    }
}
