//! Builds everything from a configuration, starts it, and stops it.
//!
//! | file | its part |
//! |---|---|
//! | [`plan`] | what the user asked for, checked before anything is changed |
//! | this one | the life of a daemon: start, serve, stop |
//! | [`operator`] | the verbs of the control socket |
//! | [`log`] | where the daemon writes what it has to say |
//!
//! The order of a start is the promise: the source is opened before the mount covers it, the cache is ready before the
//! kernel asks, and whoever waits for the mount is told when it answers. The order of a stop: the mount goes first, so
//! that nothing new comes in, then what is known is written down.
#![forbid(unsafe_code)]

pub mod log;
pub mod operator;
pub mod plan;

pub use plan::Plan;

use crate::backing::{LocalSource, Source};
use crate::cache::{self, Cache, engine};
use crate::config::{Config, EvictPolicy, IoEngineChoice};
use crate::control::Server;
use crate::fs::{self, Fs};
use crate::fuse::session::Connection;
use crate::policy::{Epoch, Eviction, Lru, NeverEvict};
use crate::stats::Stats;
use crate::store::{CacheDir, Index, disk_bytes};
use crate::sys::facts::KernelFacts;
use crate::sys::{mount as sys_mount, mountinfo};
use crate::types::{Error, ErrorKind, PathText, Result};
use operator::Operator;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// What ends a daemon.
pub(crate) enum End {
    /// The mount is gone: somebody unmounted it.
    Unmounted(Result<()>),
    /// SIGTERM, SIGINT, or the operator's `stop`.
    Asked,
}

/// How long the kernel's side may take to end after a clean unmount, before we go without it.
const SESSION_END: Duration = Duration::from_secs(2);

/// Mounts as planned and serves until the end. `ready` is called when the mount answers.
pub fn run(plan: Plan, config: &Config, ready: impl FnOnce(&Path)) -> Result<()> {
    crate::sys::facts::raise_nofile();
    let facts = KernelFacts::gather();
    clear_stale_mount(&plan.mountpoint)?;
    let source = Arc::new(LocalSource::new(&plan.source, config.source.identity.into())?);
    let (cache, fs) = build(&plan, config, &facts, source)?;
    let (ends, ended) = mpsc::channel();
    let operator = Arc::new(Operator::new(&plan, fs.clone(), ends.clone()));
    let server = Server::start(cache.dir().path(), operator.clone())?;
    fs.set_control_path(server.path().to_path_buf());
    let mounted = Mounted::new(&plan, config, &facts)?;
    let connection =
        Connection::open(fs.clone(), mounted.device()?, workers(config), facts_keep_listings(&facts))?;
    operator.set_forgetter(connection.forgetter());
    serve(connection, ends.clone())?;
    mounted.tune(config.mount.read_ahead);
    watch_signals(ends)?;
    fs.start_keeping();
    ready(&plan.mountpoint);
    tracing::info!(
        "serving {} at {} ({}, {})",
        PathText(&plan.source),
        PathText(&plan.mountpoint),
        cache.engine_name(),
        if fs.passthrough_off().is_none() { "passthrough" } else { "no passthrough" },
    );
    let end = ended.recv().unwrap_or(End::Asked);
    let result = match end {
        End::Unmounted(result) => result,
        End::Asked => {
            mounted.unmount();
            // A mount that is still in use somewhere ends when we do.
            let _ = ended.recv_timeout(SESSION_END);
            Ok(())
        }
    };
    tracing::info!("stopping");
    fs.stop();
    drop(server);
    fs.keep_names();
    cache.stop();
    // Not taken apart: to close a file of the source may wait for the source, and the end of the process does it all.
    std::mem::forget((fs, cache, operator));
    result
}

/// The cache and the file system over it, with nothing mounted yet.
fn build(
    plan: &Plan,
    config: &Config,
    facts: &KernelFacts,
    source: Arc<LocalSource>,
) -> Result<(Arc<Cache>, Arc<Fs>)> {
    let dir = Arc::new(CacheDir::open(&plan.cache_dir, &plan.source)?);
    // The cache directory may have been made inside somebody else's, which takes more rights than serving does; and
    // this is still the only thread.
    if let Err(e) = crate::sys::privileges::drop_unneeded() {
        tracing::warn!("keeps rights that it does not need: {e}");
    }
    let loaded = Index::open(dir.io(), &dir.index_path())?;
    let stats = Arc::new(Stats::default());
    let choice = match config.mount.io_engine {
        IoEngineChoice::Auto => engine::EngineChoice::Auto,
        IoEngineChoice::IoUring => engine::EngineChoice::Uring,
        IoEngineChoice::Pread => engine::EngineChoice::Pread,
    };
    let (engine, refused) = engine::choose(choice, engine::DEPTH_DEFAULT);
    if let Some(reason) = refused {
        tracing::warn!("fills use plain reads and writes: {reason}");
    }
    let policy: Box<dyn Eviction> = match config.cache.evict_policy {
        EvictPolicy::Epoch => Box::new(Epoch::new()),
        EvictPolicy::Lru => Box::new(Lru::new()),
        EvictPolicy::None => Box::new(NeverEvict),
    };
    let settings = cache_settings(config, &dir, &loaded)?;
    let source: Arc<dyn Source> = source;
    let cache = Cache::start(settings, source, dir, loaded, engine, policy, stats)?;
    if let Some(bytes_per_s) = NonZeroU64::new(config.scrub.rate) {
        cache.start_scrub(cache::scrub::Settings { bytes_per_s, interval: config.scrub.interval });
    }
    if config.prefetch.enabled {
        cache.start_prefetch();
    }
    let fs = Fs::new(fs_settings(config), cache.clone())?;
    if config.mount.passthrough
        && let Err(reason) = facts.passthrough_possible()
    {
        fs.lose_passthrough(&reason);
    }
    Ok((cache, fs))
}

/// Sizes in bytes, from what the configuration says in shares of the disk.
fn cache_settings(
    config: &Config,
    dir: &CacheDir,
    loaded: &crate::store::index::Loaded,
) -> Result<cache::Settings> {
    let free = dir.free()?;
    let floor = config.cache.min_free.bytes_of(free.total_bytes);
    let used: u64 = loaded.records.iter().map(|(_, r)| disk_bytes(r.version.size)).sum();
    let bytes_max = match config.cache.size.bytes_of(free.total_bytes) {
        Some(bytes) => bytes,
        // What is free now, with what the cache has already, less what is left to others.
        None => (free.free_bytes + used).saturating_sub(floor),
    };
    let files_max = match (config.cache.max_files, free.free_files) {
        (Some(files), _) => files,
        // A quarter of the inodes is left to others.
        (None, Some(files)) => (files + loaded.records.len() as u64) / 4 * 3,
        (None, None) => u64::MAX / 2,
    };
    Ok(cache::Settings {
        bytes_max,
        files_max,
        free_floor_bytes: floor,
        ram_window_bytes: config.cache.ram_window,
        small_file_bytes_max: config.cache.small_file_max,
    })
}

fn fs_settings(config: &Config) -> fs::Settings {
    fs::Settings {
        ttl: config.metadata.ttl,
        passthrough: config.mount.passthrough,
        backing_ids_max: config.mount.backing_ids_max,
        read_ahead: config.metadata.read_ahead,
        keep_names: config.metadata.keep,
        source_threads: config.source.threads,
        hang_after: config.source.hang_after,
        timeout: config.source.timeout,
        list_xattrs: config.inspect.list_xattrs,
    }
}

/// Threads that answer the kernel. They never wait for the source, so a few are enough; more only take turns at the
/// kernel's one queue. On two cores one opens 47,000 files a second for four clients, two open 40,000.
fn workers(config: &Config) -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    config.mount.workers.unwrap_or((cpus / 2).clamp(1, 4))
}

/// Linux 6.9 to 6.12 keep a listing without looking whether it is still true (fixed by commit 03f275adb8fb).
fn facts_keep_listings(facts: &KernelFacts) -> bool {
    !((6, 9)..(6, 13)).contains(&facts.version)
}

/// A mount left by a daemon that died is replaced; anything else at the mount point is not touched.
fn clear_stale_mount(mountpoint: &Path) -> Result<()> {
    if mountinfo::is_stale(mountpoint) {
        tracing::info!("replacing the mount that a daemon that died left at {}", PathText(mountpoint));
        sys_mount::unmount(mountpoint, true)?;
    }
    Ok(())
}

/// Serves the kernel on threads of its own.
fn serve(connection: Connection, ends: mpsc::Sender<End>) -> Result<()> {
    std::thread::Builder::new()
        .name("warmfs-session".into())
        .spawn(move || drop(ends.send(End::Unmounted(connection.serve()))))
        .map(drop)
        .map_err(|e| Error::io("start thread", "warmfs-session", &e))
}

fn watch_signals(ends: mpsc::Sender<End>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let fail = |e: std::io::Error| Error::io("watch", "signals", &e);
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(fail)?;
    let wait = move || {
        for signal in signals.forever() {
            // The terminal that started us may go; the mount stays.
            if signal != SIGHUP && ends.send(End::Asked).is_err() {
                break;
            }
        }
    };
    std::thread::Builder::new().name("warmfs-signals".into()).spawn(wait).map(drop).map_err(fail)
}

/// The kernel's mount; unmounted when dropped before it was served.
struct Mounted {
    mountpoint: PathBuf,
    device: OwnedFd,
    dev: Option<u64>,
}

impl Mounted {
    fn new(plan: &Plan, config: &Config, facts: &KernelFacts) -> Result<Self> {
        let mut source = std::ffi::OsString::from("warmfs:");
        source.push(&plan.source);
        let device = sys_mount::mount(&sys_mount::MountOptions {
            mountpoint: plan.mountpoint.clone(),
            source,
            subtype: "warmfs".into(),
            read_only: true,
            allow_other: config.mount.allow_other.unwrap_or(facts.admin),
        })?;
        let dev = mountinfo::top_mount_at(&plan.mountpoint)?.map(|entry| entry.dev());
        Ok(Self { mountpoint: plan.mountpoint.clone(), device, dev })
    }

    fn device(&self) -> Result<OwnedFd> {
        self.device.try_clone().map_err(|e| Error::io("duplicate", "/dev/fuse", &e))
    }

    /// Lets the kernel read ahead further than its default; without the right to, the default stands.
    fn tune(&self, read_ahead_bytes: u64) {
        if let Some(dev) = self.dev
            && let Err(e) = sys_mount::set_read_ahead(dev, (read_ahead_bytes / 1024) as u32)
        {
            tracing::debug!("the kernel's read-ahead stays as it is: {e}");
        }
    }

    /// Unmounts, though files are open: what is busy leaves the tree at once and ends with the daemon.
    fn unmount(&self) {
        // Only what is ours: another may have been mounted over it, or in its place, meanwhile.
        let ours = mountinfo::top_mount_at(&self.mountpoint)
            .ok()
            .flatten()
            .is_some_and(|entry| Some(entry.dev()) == self.dev);
        if !ours {
            return;
        }
        let clean = sys_mount::unmount(&self.mountpoint, false);
        if clean.is_err()
            && let Err(e) = sys_mount::unmount(&self.mountpoint, true)
        {
            tracing::warn!("not unmounted: {e}");
        }
    }
}

/// Ends the daemon behind `mountpoint`: by its control socket where it answers, else by unmounting. Waits until the
/// mount is gone and the daemon has let go of its cache directory, at most `patience`.
pub fn unmount(mountpoint: &Path, patience: Duration) -> Result<()> {
    let not_ours = || {
        let text =
            format!("{} is not a warmfs mount; `warmfs stats PATH` shows what is", PathText(mountpoint));
        Error::new(ErrorKind::Invalid, "", text)
    };
    let is_ours = || -> Result<Option<u64>> {
        let top = mountinfo::top_mount_at(mountpoint)?;
        Ok(top.filter(|m| m.fs_type.starts_with("fuse.warmfs")).map(|m| m.id))
    };
    let id = is_ours()?.ok_or_else(not_ours)?;
    let asked = if mountinfo::is_stale(mountpoint) { None } else { ask_to_stop(mountpoint) };
    if asked.is_none() {
        let unmounted = sys_mount::unmount(mountpoint, false);
        if unmounted.as_ref().is_err_and(|e| e.errno() == Some(16)) {
            return sys_mount::unmount(mountpoint, true);
        }
        unmounted?;
    }
    let deadline = Instant::now() + patience;
    while is_ours()? == Some(id) {
        if Instant::now() > deadline {
            return Err(Error::new(ErrorKind::TimedOut, "unmount", PathText(mountpoint).to_string()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    match asked {
        Some(Some(daemon)) if !ends_before(&daemon, deadline) => {
            let text = format!("the end of the daemon that served {}", PathText(mountpoint));
            Err(Error::new(ErrorKind::TimedOut, "wait for", text))
        }
        _ => Ok(()),
    }
}

/// Asks the daemon to stop and gives its process, where it can be seen; none if there is nobody to ask.
fn ask_to_stop(mountpoint: &Path) -> Option<Option<OwnedFd>> {
    let found = crate::control::find_mount(mountpoint).ok()?;
    let mut client = crate::control::Client::connect(&found.socket).ok()?;
    let daemon = client.daemon();
    client.call(&crate::control::Request::Stop {}, |_| {}).ok()?;
    Some(daemon)
}

/// How often a daemon is looked at that may be stuck in its source.
const LOOK: Duration = Duration::from_millis(50);

/// Waits until the daemon has stopped. It may still be in the table of processes then, when a thread of it is stuck in the
/// source: its mount and its cache are free all the same.
fn ends_before(daemon: &OwnedFd, deadline: Instant) -> bool {
    use crate::sys::process;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;
    while Instant::now() < deadline {
        let timeout = Timespec::try_from(LOOK).ok();
        match poll(&mut [PollFd::new(daemon, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) if process::has_stopped(daemon.as_fd()) => return true,
            Ok(0) => {}
            Ok(_) | Err(_) => return true,
        }
    }
    false
}

impl From<crate::config::IdentitySource> for Option<crate::backing::IdentityRule> {
    fn from(setting: crate::config::IdentitySource) -> Self {
        match setting {
            crate::config::IdentitySource::Auto => None,
            crate::config::IdentitySource::Inode => Some(crate::backing::IdentityRule::Inode),
            crate::config::IdentitySource::Path => Some(crate::backing::IdentityRule::Path),
        }
    }
}
