//! A slow, faulty source for tests, benchmarks and the demo: a read-only FUSE file system that mirrors a directory
//! and adds latency, a bandwidth limit, errors, hangs and counters.
//!
//! warmfs meets it as it meets an NFS mount, through the kernel: so what is measured and tested over it is the whole,
//! and "a warm read asks the source for nothing" is a number to read rather than a claim. It is not built on the
//! `fuse` room, because a mistake there must not hide itself here.
//!
//! **The model.** A request waits `latency` and is then carried out; a read's bytes then share a line of `bandwidth`
//! with all others. At most `jobs` requests are in this at a time, others queue: requests that hang count, too.
//! Closing is free. Changes of the directory show at once, with a `ttl` of 0.
//!
//! **The rules** say which requests go wrong; one a line, `#` begins a comment. All that match act, in order, up to
//! the first `errno` or `hang`:
//!
//! ```text
//! op=read path=a/b* errno=EIO count=3     # the first three reads of such files fail
//! op=* hang                               # nothing is answered until the rules change
//! op=open,lookup delay=50ms               # so much more latency
//! op=read short=1000 after=2              # from the third read on, at most 1000 bytes
//! op=read flip                            # the lowest bit of the first byte is wrong
//! ```
//!
//! `op` is `*` or names from [`Counts`]; `path` is relative to the source's root, in it `*` stands for any bytes
//! (slashes too), `?` for one, and `\xNN` for a byte that cannot be written otherwise. Both may be left out. `errno`
//! is a name or a number. A short read is the end of the file to the kernel's page cache; with `direct_io` it reaches
//! the reader as it is.
#![forbid(unsafe_code)]

mod bucket;
mod core;
mod counts;
mod gate;
mod mirror;
mod pool;
mod rules;
mod serve;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use signal_hook::consts::{SIGINT, SIGTERM};

use self::core::Core;
pub use self::counts::Counts;
use self::counts::{Counters, CountsFile};
use self::gate::Gate;
use self::mirror::Mirror;
use self::pool::Pool;
use self::serve::Server;
use crate::sys::mount::{self, MountOptions};
use crate::sys::mountinfo;
use crate::types::{Error, PathText, Result};

/// For the fuzz targets: parses rules and lets them judge a read of `path`, over and over.
#[cfg(fuzzing)]
pub fn fuzz_rules(text: &str, path: &[u8]) -> std::result::Result<(), String> {
    let mut rules = rules::Rules::parse(text)?;
    (0..3).for_each(|_| _ = rules.judge(counts::Op::Read, path));
    Ok(())
}

/// What follows `fuse.` in the mount's type.
pub const SUBTYPE: &str = "warmfs-faultfs";

/// A slow source to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory to mirror.
    pub source: PathBuf,
    /// Where to mount it; may be the source itself.
    pub mountpoint: PathBuf,
    /// What each request waits.
    pub latency: Duration,
    /// Bytes per second of all reads together; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// How many requests are served at a time.
    pub jobs: usize,
    /// For how long the kernel may believe names and attributes. With 0 each stat is a request.
    pub ttl: Duration,
    /// Past the kernel's page cache: each read(2) is one request or more, of exactly the reader's size up to 1 MiB.
    pub direct_io: bool,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// A file with rules, read again when it changes (looked at with each request, every 5 ms at most; every 10 ms
    /// while one hangs). A missing file is an empty one. Not to be kept on the mount itself.
    pub rules: Option<PathBuf>,
    /// A file to show [`Counts`] in, as JSON: replaced at once after quiet, then every 20 ms.
    pub counts: Option<PathBuf>,
}

impl Options {
    /// No slowness and no faults, 64 jobs; others may enter if root mounts.
    pub fn new(source: impl Into<PathBuf>, mountpoint: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            mountpoint: mountpoint.into(),
            latency: Duration::ZERO,
            bandwidth: None,
            jobs: 64,
            ttl: Duration::ZERO,
            direct_io: false,
            allow_other: rustix::process::geteuid().is_root(),
            rules: None,
            counts: None,
        }
    }
}

/// Mounts, calls `ready` when the mount answers, and serves until it is unmounted or the process is told to end
/// (SIGTERM, SIGINT), which unmounts it.
pub fn run(options: Options, ready: impl FnOnce()) -> Result<()> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, told.clone())
            .map_err(|e| Error::io("watch for", "signals", &e))?;
    }
    let mounted = spawn(options)?;
    ready();
    while mounted.is_serving() {
        if told.load(Ordering::Relaxed) {
            return mounted.stop();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    mounted.wait()
}

/// Mounts and serves in threads of this process, until the result is dropped. It answers when this returns.
pub fn spawn(options: Options) -> Result<FaultFs> {
    let source = PathText(&options.source).to_string();
    let mirror =
        Mirror::open(&options.source).map_err(|e| Error::os("open", source.clone(), e.raw_os_error()))?;
    let core = Arc::new(Core {
        mirror,
        gate: Gate::new(options.rules)?,
        counters: Arc::new(Counters::default()),
        bucket: options.bandwidth.map(bucket::Bucket::new),
        latency: options.latency,
        ttl: options.ttl,
        direct_io: options.direct_io,
        place: OnceLock::new(),
    });
    let pool = Pool::start(options.jobs).map_err(|e| Error::io("start", "threads", &e))?;
    let counts_file =
        options.counts.map(|path| CountsFile::start(path, core.counters.clone())).transpose()?;
    // From here on the path alone must not be touched: it blocks until the session serves.
    let mountpoint = std::fs::canonicalize(&options.mountpoint)
        .map_err(|e| Error::io("find", PathText(&options.mountpoint).to_string(), &e))?;
    let device = mount::mount(&MountOptions {
        mountpoint: mountpoint.clone(),
        source: source_name(&options.source),
        subtype: SUBTYPE.to_owned(),
        read_only: true,
        allow_other: options.allow_other,
    })?;
    let session = start(&core, pool, device, &mountpoint).inspect_err(|_| {
        // The error that led here is the one to report.
        let _ = mount::unmount_force(&mountpoint);
    })?;
    Ok(FaultFs { handle: Handle { core }, mountpoint, session: Some(session), _counts_file: counts_file })
}

fn source_name(source: &Path) -> OsString {
    let mut name = OsString::from("faultfs:");
    name.push(source);
    name
}

type Serving = JoinHandle<io::Result<()>>;

fn start(core: &Arc<Core>, pool: Pool, device: std::os::fd::OwnedFd, mountpoint: &Path) -> Result<Serving> {
    if let Some(entry) = mountinfo::top_mount_at(mountpoint)? {
        // The only setter: this mount is made once.
        let _ = core.place.set(entry);
    }
    let fail = |e: &io::Error| Error::io("serve", PathText(mountpoint).to_string(), e);
    // The kernel itself keeps other users out, where it should.
    let server = Server::new(core.clone(), pool);
    let session =
        Session::from_fd(server, device, SessionACL::All, Config::default()).map_err(|e| fail(&e))?;
    let builder = std::thread::Builder::new().name("faultfs-session".to_owned());
    builder.spawn(move || session.run()).map_err(|e| fail(&e))
}

/// Ends the mount: frees what hangs, unmounts, by force if it is busy. Nothing else is ever unmounted.
fn end(core: &Core, mountpoint: &Path) {
    core.gate.stop();
    let Some(place) = core.place.get() else { return };
    if !matches!(mountinfo::top_mount_at(mountpoint), Ok(Some(m)) if self::core::is_same(&m, place)) {
        return;
    }
    if mount::unmount(mountpoint, false).is_err()
        && let Err(e) = mount::unmount_force(mountpoint)
    {
        tracing::warn!("{e}");
    }
}

/// A mounted slow source. Dropping it ends it: requests that hang fail, files still open on it fail from then on.
pub struct FaultFs {
    handle: Handle,
    mountpoint: PathBuf,
    session: Option<Serving>,
    /// Goes last, so that the final figures are in it.
    _counts_file: Option<CountsFile>,
}

/// How long the session may take to end. Only one that was unmounted lazily and is still in use takes longer.
const END_WITHIN: Duration = Duration::from_secs(5);

impl FaultFs {
    /// Its controls.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Where it is mounted, symbolic links resolved.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Whether it is still mounted, or in use after a lazy unmount.
    pub fn is_serving(&self) -> bool {
        self.session.as_ref().is_some_and(|s| !s.is_finished())
    }

    /// Serves until somebody unmounts it.
    pub fn wait(mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        join(session, &self.mountpoint)
    }

    /// Ends it, as drop does, and says how it went.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        end(&self.handle.core, &self.mountpoint);
        let deadline = Instant::now() + END_WITHIN;
        while !session.is_finished() {
            if Instant::now() > deadline {
                return Err(Error::os("end", PathText(&self.mountpoint).to_string(), libc::EBUSY));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        join(session, &self.mountpoint)
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            tracing::warn!("{e}");
        }
    }
}

fn join(session: Serving, mountpoint: &Path) -> Result<()> {
    let result = session.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
    result.map_err(|e| Error::io("serve", PathText(mountpoint).to_string(), &e))
}

/// The controls of a mounted slow source, for use in the same process.
#[derive(Clone)]
pub struct Handle {
    core: Arc<Core>,
}

impl Handle {
    /// The figures now. A request is in them before it is answered.
    pub fn counts(&self) -> Counts {
        self.core.counters.snapshot()
    }

    /// Puts other rules in force, at once; what the old ones had used up of `count` is forgotten. A rules file, if
    /// there is one, takes over again with its next change.
    pub fn set_rules(&self, text: &str) -> Result<()> {
        self.core.gate.set_rules(text)?;
        self.core.counters.rules_taken();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
