//! Names, nodes, handles, attributes, directories and xattrs: a file system, without a kernel.
//!
//! Every operation takes a reply to be called once, on this thread if the answer is known and from a pool if the
//! source must be asked; the kernel's door ([`crate::fuse`]) only translates. So everything here is tested without a
//! mount.
//!
//! | file | its part |
//! |---|---|
//! | [`node`] | nodes and their table: who is known to the kernel, and as what |
//! | [`lookup`] | names to nodes, attributes, links |
//! | [`open`] | how a file is opened: a pure decision, and what follows from it |
//! | [`contested`] | names that are replaced faster than they can be opened |
//! | [`dir`] | listings |
//! | [`ahead`] | what a walk over the tree is going to ask for, asked ahead of it |
//! | [`acl`] | access control lists of the source |
//! | [`memory`] | what is remembered of names that the kernel has forgotten |
//! | [`kept`] | names and attributes that outlive the mount |
//! | [`xattr`] | the inspection interface |
//! | [`inside`] | `.warmfs/`, the directory that no listing shows |
//! | [`watch`] | requests that wait for the source, and what happens when it is silent |
//! | [`report`] | the figures, as JSON |
//! | `epochs` | the part of them that tells of the epochs |
//!
#![doc = include_str!("SEMANTICS.md")]
#![forbid(unsafe_code)]

pub mod acl;
pub mod ahead;
pub mod contested;
pub mod dir;
mod epochs;
pub mod inside;
pub mod kept;
pub mod lookup;
pub mod memory;
pub mod node;
pub mod open;
pub mod report;
pub mod watch;
pub mod xattr;

use crate::backing::{FsFigures, Source};
use crate::cache::Cache;
use crate::cache::pool::Pool;
use crate::stats::Stats;
use crate::store::CacheFile;
use crate::types::sync::Mutex;
use crate::types::{Attr, Error, FileId, KernelRef, NodeId, Result};
use lru::LruCache;
use node::{Node, NodeTable};
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use watch::Watch;

/// Called once with the answer.
pub type Reply<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// "For ever", in the kernel's terms: longer than a machine stays up, short enough for its arithmetic.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How long an answer from memory is good that was given because the source was silent: the source is asked again
/// soon.
const STALE_TTL: Duration = Duration::from_secs(1);

/// What the kernel's door offers to the file system.
pub trait Door: Send + Sync {
    /// Registers an open file so that the kernel can read it by itself. The registration ends with the returned value.
    fn register(&self, fd: BorrowedFd<'_>) -> std::io::Result<KernelRef>;
}

/// How the file system is to behave.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How old a fact about the source may be; `None` is for ever.
    pub ttl: Option<Duration>,
    /// Whether the kernel may read complete files by itself.
    pub passthrough: bool,
    /// Registrations that are kept for the next open.
    pub backing_ids_max: usize,
    /// Whether names and attributes are asked for ahead of a walk.
    pub read_ahead: bool,
    /// Whether names and attributes are kept in the index, for the next mount.
    pub keep_names: bool,
    /// Requests to the source at the same time.
    pub source_threads: usize,
    /// After this long without an answer, what is known is given instead.
    pub hang_after: Duration,
    /// After this long without an answer, the reader gets ETIMEDOUT.
    pub timeout: Duration,
    /// Whether `listxattr` shows the inspection attributes.
    pub list_xattrs: bool,
}

/// An entry of a directory, as the kernel learns of it.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    /// It exists.
    Found {
        /// Its node, on which the kernel now holds one more reference.
        node: NodeId,
        /// Its attributes.
        attr: Attr,
        /// How long both are good.
        ttl: Duration,
    },
    /// It does not exist, which is good for this long.
    Missing(Duration),
}

impl Entry {
    /// Not for whoever asks next: answers that cross must not lead from a newer version back to an older one.
    fn for_now(self) -> Self {
        match self {
            Self::Found { node, attr, .. } => Self::Found { node, attr, ttl: Duration::ZERO },
            missing => missing,
        }
    }
}

/// A file system over a cache.
///
/// Lock order: a shard of nodes before the state of a node in it; the others are leaves. None is held across I/O or a
/// reply.
pub struct Fs {
    settings: Settings,
    source: Arc<dyn Source>,
    cache: Arc<Cache>,
    stats: Arc<Stats>,
    nodes: NodeTable,
    pool: Pool,
    /// For what may wait for the SSD and never for the source: a source that hangs holds no thread of it.
    local: Pool,
    watch: Arc<Watch>,
    started: Instant,
    door: OnceLock<Arc<dyn Door>>,
    registered: Mutex<LruCache<FileId, Weak<CacheFile>>>,
    passthrough_lost: OnceLock<String>,
    dir_handles: Mutex<dir::DirHandles>,
    listings: Mutex<memory::Listings>,
    ahead: ahead::ReadAhead,
    pace: ahead::Pace,
    kept: Arc<kept::Kept>,
    /// The source's figures, and when it gave them.
    figures: Mutex<Option<(FsFigures, u64)>>,
    contested: contested::Contested,
    unlisted: acl::Unlisted,
    control_path: OnceLock<PathBuf>,
}

impl Fs {
    /// A file system over `cache`, whose source must answer for its root.
    pub fn new(settings: Settings, cache: Arc<Cache>) -> Result<Arc<Self>> {
        let source = cache.source().clone();
        let root = source.stat(std::path::Path::new(""))?;
        let backing_ids_max = NonZeroUsize::new(settings.backing_ids_max).unwrap_or(NonZeroUsize::MIN);
        let fs = Arc::new(Self {
            nodes: NodeTable::new(root, source.root_device(), ORIGIN_MS),
            kept: Arc::new(kept_names(&settings, &cache)),
            figures: Mutex::new(source.figures().ok().map(|figures| (figures, ORIGIN_MS))),
            pool: Pool::new("warmfs-source", settings.source_threads),
            local: Pool::new("warmfs-ssd", settings.source_threads),
            watch: Watch::new(settings.hang_after, settings.timeout),
            started: Instant::now(),
            door: OnceLock::new(),
            registered: Mutex::new(LruCache::new(backing_ids_max)),
            passthrough_lost: OnceLock::new(),
            dir_handles: Mutex::default(),
            listings: Mutex::default(),
            ahead: ahead::ReadAhead::new(settings.source_threads),
            pace: ahead::Pace::default(),
            contested: contested::Contested::default(),
            unlisted: acl::Unlisted::default(),
            control_path: OnceLock::new(),
            stats: cache.stats().clone(),
            settings,
            source,
            cache,
        });
        Ok(fs)
    }

    /// Connects the kernel's door; without one, no file is handed to the kernel.
    pub fn set_door(&self, door: Arc<dyn Door>) {
        let _ = self.door.set(door);
    }

    /// Tells where the control socket is, for the xattr.
    pub fn set_control_path(&self, path: PathBuf) {
        let _ = self.control_path.set(path);
    }

    /// Says that passthrough cannot be had, and why; said aloud once per mount.
    pub fn lose_passthrough(&self, reason: &str) {
        if self.passthrough_lost.set(reason.to_string()).is_ok() {
            tracing::warn!("warm files are served by warmfs itself, which is slower: {reason}");
        }
    }

    /// Why passthrough is not in force, if it is not.
    pub fn passthrough_off(&self) -> Option<&str> {
        if !self.settings.passthrough {
            return Some("turned off by the configuration");
        }
        self.passthrough_lost.get().map(String::as_str)
    }

    /// The cache below.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Figures of the source's file system. May wait for the source.
    pub fn figures(self: &Arc<Self>, reply: Reply<FsFigures>) {
        let known = *self.figures.lock();
        if let Some((figures, checked_ms)) = known
            && self.is_fresh(checked_ms)
            && self.now_ms() - checked_ms < FIGURES_MS_MAX
        {
            return reply(Ok(figures));
        }
        let known = known.map(|(figures, _)| -> watch::Known<_> { Box::new(move || Some(figures)) });
        let ask = |fs: &Arc<Self>| {
            let checked_ms = fs.now_ms();
            let figures = fs.source.figures()?;
            *fs.figures.lock() = Some((figures, checked_ms));
            Ok(figures)
        };
        self.slow(reply, known, ask, |_, _| {});
    }

    /// Ends the threads that wait for the source. Requests that still wait are dropped.
    pub fn stop(&self) {
        self.pool.stop();
        self.local.stop();
        self.kept.stop();
        self.watch.stop();
    }

    fn now_ms(&self) -> u64 {
        ORIGIN_MS + self.started.elapsed().as_millis() as u64
    }

    /// How much longer something is good that was seen at `checked_ms`.
    fn ttl_left(&self, checked_ms: u64) -> Duration {
        if checked_ms == EXPIRED {
            return Duration::ZERO;
        }
        let Some(ttl) = self.settings.ttl else { return FOREVER };
        ttl.saturating_sub(Duration::from_millis(self.now_ms().saturating_sub(checked_ms)))
    }

    fn is_fresh(&self, checked_ms: u64) -> bool {
        !self.ttl_left(checked_ms).is_zero()
    }

    /// The node, which the kernel must know; ESTALE for a number that it cannot have from us.
    fn node(&self, id: NodeId) -> Result<Arc<Node>> {
        self.nodes.get(id).ok_or_else(|| Error::os("find node", id.to_string(), ESTALE))
    }

    /// Asks the source on a thread of the pool. `known` is what to answer if the source is silent; `undo` takes an
    /// answer back that came too late.
    fn slow<T: Send + 'static>(
        self: &Arc<Self>,
        reply: Reply<T>,
        mut known: Option<watch::Known<T>>,
        ask: impl FnOnce(&Arc<Fs>) -> Result<T> + Send + 'static,
        undo: impl FnOnce(&Arc<Fs>, T) + Send + 'static,
    ) {
        if known.is_some()
            && self.watch.is_silent()
            && let Some(answer) = known.take().and_then(|known| known())
        {
            self.stats.stale_answers.inc();
            return reply(Ok(answer));
        }
        let pending = watch::Pending::new(reply);
        let guard = self.watch.metadata(&pending, known, &self.stats);
        let fs = self.clone();
        self.pool.submit(Box::new(move || {
            let answer = ask(&fs).inspect_err(|e| fs.count_source_error(e));
            drop(guard);
            match (pending.take(), answer) {
                (Some(reply), answer) => reply(answer),
                (None, Ok(late)) => undo(&fs, late),
                (None, Err(_)) => {}
            }
        }));
    }

    /// Not found is an answer like any other.
    fn count_source_error(&self, error: &Error) {
        if error.kind() != crate::types::ErrorKind::NotFound {
            self.stats.backing_errors.inc();
        }
    }

    /// The registration of a data file, kept for the next open; the oldest makes room.
    fn register(&self, file: &Arc<CacheFile>, fd: &OwnedFd) -> std::io::Result<KernelRef> {
        let door = self.door.get().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::Unsupported))?;
        let kernel = file.kernel_ref_or(door.register(std::os::fd::AsFd::as_fd(fd))?);
        self.keep_registered(file);
        Ok(kernel)
    }

    fn keep_registered(&self, file: &Arc<CacheFile>) {
        let pushed_out = self.registered.lock().push(file.id(), Arc::downgrade(file));
        if let Some((id, old)) = pushed_out
            && id != file.id()
            && let Some(old) = old.upgrade()
        {
            // Handles that use it hold it themselves.
            self.cache.attach(&old, None);
        }
    }
}

/// What the index keeps of the source's names, if it is to.
fn kept_names(settings: &Settings, cache: &Cache) -> kept::Kept {
    let wanted = settings.keep_names && settings.ttl != Some(Duration::ZERO);
    let stamp = cache.source().stamp().filter(|_| wanted);
    let dirs = stamp.map(|stamp| cache.names_kept(&stamp)).unwrap_or_default();
    kept::Kept::new(stamp, dirs, cache.names_bytes_max())
}

/// Free space changes in a source that never does otherwise.
const FIGURES_MS_MAX: u64 = 60_000;

/// The time of the start by which the ages of answers are counted: about 35 years, so that what an earlier mount was told has
/// its place before it.
const ORIGIN_MS: u64 = 1 << 40;

/// The time of a look that does not count any more, whatever the TTL.
const EXPIRED: u64 = u64::MAX;

const ESTALE: i32 = 116;
const ENOENT: i32 = 2;
