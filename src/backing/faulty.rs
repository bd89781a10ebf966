//! The misbehaving twin of a source, for tests: it counts, fails, delays, hangs and cuts reads short on demand.
//!
//! It stands behind the same traits as the real one, so that what is tested is the code that runs in production. A
//! file opened through it has no descriptor to read directly, so every byte passes the faults.

use super::{DirEntry, FsFigures, Look, Pin, Source, SourceDir, SourceFile};
use crate::sys::io::Io;
use crate::types::{Attr, Error, FileId, FileVersion, Result};
use parking_lot::{Condvar, Mutex};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Attributes of a path or an open file.
    Stat,
    /// Opening a file.
    Open,
    /// Reading bytes.
    Read,
    /// Opening or reading a directory.
    List,
    /// Closing a file: it cannot fail, but hang.
    Close,
}

/// What is wrong at present.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Calls that fail, with the errno.
    pub errno: Option<(Call, i32)>,
    /// How many more calls fail; `None` is all.
    pub errno_count: Option<u64>,
    /// Calls that block until this is cleared.
    pub hang: Option<Call>,
    /// Longest read that is answered, bytes.
    pub read_bytes_max: Option<usize>,
    /// Wait before each answer.
    pub delay: Duration,
}

/// A source with faults.
pub struct FaultySource<S> {
    inner: S,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    faults: Mutex<Faults>,
    changed: Condvar,
    reads: AtomicU64,
    bytes: AtomicU64,
    opens: AtomicU64,
    stats: AtomicU64,
}

/// Sets the faults and reads the counts of a [`FaultySource`].
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// Replaces all faults; calls that hang go on when their fault is gone.
    pub fn set(&self, faults: Faults) {
        *self.0.faults.lock() = faults;
        self.0.changed.notify_all();
    }

    /// Bytes read from the source so far.
    pub fn bytes_read(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    /// Files opened so far.
    pub fn opens(&self) -> u64 {
        self.0.opens.load(Ordering::Relaxed)
    }

    /// Attribute calls so far.
    pub fn stats(&self) -> u64 {
        self.0.stats.load(Ordering::Relaxed)
    }
}

impl<S: Source> FaultySource<S> {
    /// Wraps `inner`, without faults at first.
    pub fn new(inner: S) -> (Self, Handle) {
        let shared = Arc::new(Shared::default());
        (Self { inner, shared: shared.clone() }, Handle(shared))
    }
}

impl Shared {
    fn enter(&self, call: Call) -> Result<Faults> {
        match call {
            Call::Stat => self.stats.fetch_add(1, Ordering::Relaxed),
            Call::Open => self.opens.fetch_add(1, Ordering::Relaxed),
            Call::Read => self.reads.fetch_add(1, Ordering::Relaxed),
            Call::List | Call::Close => 0,
        };
        let mut faults = self.faults.lock();
        while faults.hang == Some(call) {
            self.changed.wait(&mut faults);
        }
        if let Some((failing, errno)) = faults.errno
            && failing == call
            && faults.errno_count != Some(0)
        {
            faults.errno_count = faults.errno_count.map(|n| n - 1);
            return Err(Error::os("injected", format!("{call:?}"), errno));
        }
        let faults = faults.clone();
        std::thread::sleep(faults.delay);
        Ok(faults)
    }
}

impl<S: Source> Source for FaultySource<S> {
    fn stat(&self, path: &Path) -> Result<Attr> {
        self.shared.enter(Call::Stat)?;
        self.inner.stat(path)
    }

    fn look(&self, path: &Path) -> Result<(Attr, Option<Pin>)> {
        self.shared.enter(Call::Stat)?;
        self.inner.look(path)
    }

    fn open_pinned(&self, pin: &Pin) -> Result<Arc<dyn SourceFile>> {
        self.shared.enter(Call::Open)?;
        Ok(Arc::new(FaultyFile { inner: self.inner.open_pinned(pin)?, shared: self.shared.clone() }))
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn SourceFile>> {
        self.shared.enter(Call::Open)?;
        Ok(Arc::new(FaultyFile { inner: self.inner.open(path)?, shared: self.shared.clone() }))
    }

    fn open_dir(&self, path: &Path) -> Result<Box<dyn SourceDir>> {
        self.shared.enter(Call::List)?;
        Ok(Box::new(FaultyDir { inner: self.inner.open_dir(path)?, shared: self.shared.clone() }))
    }

    fn read_link(&self, path: &Path) -> Result<Vec<u8>> {
        self.shared.enter(Call::Stat)?;
        self.inner.read_link(path)
    }

    fn has_acls(&self) -> bool {
        self.inner.has_acls()
    }

    fn acl(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        self.shared.enter(Call::Stat)?;
        self.inner.acl(path)
    }

    fn figures(&self) -> Result<FsFigures> {
        self.inner.figures()
    }

    fn file_id(&self, path: &Path, attr: &Attr) -> FileId {
        self.inner.file_id(path, attr)
    }

    fn file_id_without_path(&self, attr: &Attr) -> Option<FileId> {
        self.inner.file_id_without_path(attr)
    }

    fn version(&self, attr: &Attr) -> FileVersion {
        self.inner.version(attr)
    }

    fn is_racy(&self, attr: &Attr, look: &Look) -> bool {
        self.inner.is_racy(attr, look)
    }

    fn stamp(&self) -> Option<[u8; 16]> {
        self.inner.stamp()
    }

    fn root_device(&self) -> u64 {
        self.inner.root_device()
    }
}

struct FaultyFile {
    inner: Arc<dyn SourceFile>,
    shared: Arc<Shared>,
}

impl Drop for FaultyFile {
    fn drop(&mut self) {
        let _ = self.shared.enter(Call::Close);
    }
}

impl SourceFile for FaultyFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let faults = self.shared.enter(Call::Read)?;
        let len = buf.len().min(faults.read_bytes_max.unwrap_or(usize::MAX));
        let n = self.inner.read_at(&mut buf[..len], offset)?;
        self.shared.bytes.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn attr(&self) -> Result<Attr> {
        self.shared.enter(Call::Stat)?;
        self.inner.attr()
    }

    fn is_open_for_writing(&self) -> Option<bool> {
        self.inner.is_open_for_writing()
    }

    fn direct(&self) -> Option<(&Io, &Arc<OwnedFd>)> {
        None
    }
}

struct FaultyDir {
    inner: Box<dyn SourceDir>,
    shared: Arc<Shared>,
}

impl SourceDir for FaultyDir {
    fn attr(&self) -> Result<Attr> {
        self.inner.attr()
    }

    fn entries(&self) -> Result<Vec<DirEntry>> {
        self.shared.enter(Call::List)?;
        self.inner.entries()
    }

    fn stat(&self, name: &[u8]) -> Result<Attr> {
        self.shared.enter(Call::Stat)?;
        self.inner.stat(name)
    }
}
