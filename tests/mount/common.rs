//! A world of its own for each test: a source, a cache and a mount in one temporary directory, ended and removed
//! whatever happens, and a watchdog that ends a test that hangs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, mpsc};
use std::time::{Duration, Instant};

/// A test that takes longer than this hangs; in a longer tier, which does more of the same, a multiple of it.
const WATCHDOG: Duration = Duration::from_secs(120);

/// A source, a cache and a place to mount.
pub struct World {
    dir: tempfile::TempDir,
    /// Where the cache is if not beside the source.
    cache: Option<tempfile::TempDir>,
    flags: Vec<String>,
    _watchdog: mpsc::Sender<()>,
}

/// Whether this machine can mount; says so if not.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        eprintln!("skipped: mount tests need root and /dev/fuse");
    }
    can
}

/// A test that needs a mount returns at once where there can be none.
#[macro_export]
macro_rules! need_mount {
    () => {
        if !$crate::common::can_mount() {
            return;
        }
        let _together = $crate::common::RUNNING.read_recursive();
    };
}

/// The same for a test that compares times, or what depends on them: it runs alone.
#[macro_export]
macro_rules! need_quiet {
    () => {
        if !$crate::common::can_mount() {
            return;
        }
        let _alone = $crate::common::RUNNING.write();
    };
}

/// Held by the tests of this program that run.
pub static RUNNING: parking_lot::RwLock<()> = parking_lot::RwLock::new(());

/// The binary under test.
pub fn warmfs() -> Command {
    program(env!("CARGO_BIN_EXE_warmfs"))
}

/// A program that is the binary, or runs it in the end.
pub fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    command.stdin(Stdio::null());
    // Words to the tests; the binary takes every WARMFS_ variable for a key of its own.
    for name in ["WARMFS_TEST_SEED", "WARMFS_TIER", "WARMFS_FIGURES"] {
        command.env_remove(name);
    }
    command
}

/// Runs the binary and gives what it said.
pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Output {
    warmfs().args(args).output().unwrap()
}

impl World {
    /// Nothing mounted yet; `flags` are for every mount (besides the cache directory).
    pub fn new(flags: &[&str]) -> Self {
        Self::patient(flags, WATCHDOG * crate::figures::scale(1, 10, 20) as u32)
    }

    /// The same for a test that may take longer.
    pub fn patient(flags: &[&str], patience: Duration) -> Self {
        let dir = tempfile::Builder::new().prefix("warmfs-test-").tempdir().unwrap();
        for name in ["src", "mnt"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let (alive, watched) = mpsc::channel::<()>();
        let shown = dir.path().to_path_buf();
        std::thread::spawn(move || {
            if watched.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("a test hangs: {}", shown.display());
                dump_stacks();
                unmount_all(&shown);
                std::process::exit(99);
            }
        });
        Self { dir, cache: None, flags: flags.iter().map(ToString::to_string).collect(), _watchdog: alive }
    }

    /// The same with its cache in another directory, on another file system say.
    #[allow(dead_code)] // Of the programs that share this file, the model only.
    pub fn with_cache_in(base: &Path, flags: &[&str]) -> Self {
        let cache = tempfile::Builder::new().prefix("warmfs-test-").tempdir_in(base).unwrap();
        let mut world = Self::new(flags);
        world.cache = Some(cache);
        world
    }

    /// A world that is mounted.
    pub fn mounted(flags: &[&str]) -> Self {
        let world = Self::new(flags);
        world.mount();
        world
    }

    /// The directory that everything is in.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A path in the source.
    pub fn src(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join("src").join(name)
    }

    /// The same path through the mount.
    pub fn mnt(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir().join("mnt").join(name)
    }

    /// The cache directory.
    pub fn cache(&self) -> PathBuf {
        self.cache.as_ref().map_or(self.dir(), |cache| cache.path()).join("cache")
    }

    /// Mounts; fails the test if that fails.
    pub fn mount(&self) {
        let output = self.try_mount(&[]);
        assert!(output.status.success(), "{}", text(&output));
    }

    /// Mounts with more flags, and gives what was said.
    pub fn try_mount(&self, more: &[&str]) -> Output {
        let mut command = warmfs();
        command.arg("mount").arg(self.src("")).arg(self.mnt(""));
        command.arg("--cache-dir").arg(self.cache()).args(&self.flags).args(more);
        command.output().unwrap()
    }

    /// Ends the mount; fails the test if that fails.
    pub fn umount(&self) {
        let output = run(&[OsStr::new("umount"), self.mnt("").as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
        wait_until("the daemon is gone", || daemons(&self.cache()).is_empty());
    }

    /// The daemon's process.
    pub fn pid(&self) -> i32 {
        let pids = daemons(&self.cache());
        assert_eq!(pids.len(), 1, "{pids:?}");
        pids[0]
    }

    /// Sends a signal to the daemon.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// kill -9, and waits until it is gone. The dead mount stays.
    pub fn kill(&self) {
        self.signal(rustix::process::Signal::KILL);
        wait_until("the daemon is gone", || daemons(&self.cache()).is_empty());
    }

    /// Makes a file in the source, its bytes being [`pattern`].
    pub fn put(&self, name: &str, size: usize, seed: u64) -> Vec<u8> {
        let bytes = pattern(seed, size);
        let path = self.src(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &bytes).unwrap();
        bytes
    }

    /// Reads a file whole through the mount.
    pub fn get(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.mnt(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// A figure of `warmfs stats --json`.
    pub fn stat(&self, name: &str) -> u64 {
        self.stats()[name].as_u64().unwrap_or_else(|| panic!("no figure {name}"))
    }

    /// All figures.
    pub fn stats(&self) -> serde_json::Value {
        let output = run(&[OsStr::new("stats"), OsStr::new("--json"), self.mnt("").as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// An inspection attribute, as text.
    pub fn xattr(&self, name: &str, attribute: &str) -> String {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(self.mnt(name), format!("user.warmfs.{attribute}"), &mut value)
            .unwrap_or_else(|e| panic!("{name} {attribute}: {e}"));
        String::from_utf8(value[..len].to_vec()).unwrap()
    }

    /// The log of the daemon.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.cache().join("log/warmfs.log")).unwrap_or_default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of the daemon\n{}", self.log());
        }
        unmount_all(self.dir());
        for pid in daemons(self.dir()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// What is mounted at `dir` or below it, in the order in which it was mounted.
pub fn mounts_below(dir: &Path) -> Vec<warmfs::sys::mountinfo::MountEntry> {
    let mut mounts = warmfs::sys::mountinfo::mounts().unwrap();
    mounts.retain(|m| m.mountpoint.starts_with(dir));
    mounts
}

/// Ends whatever is mounted at `dir` or below it, whether it answers or not.
pub fn unmount_all(dir: &Path) {
    for mount in mounts_below(dir).iter().rev() {
        let _ = warmfs::sys::mount::unmount_force(&mount.mountpoint);
    }
}

/// Processes of the binary that have `path`, or something below it, on their command line.
pub fn daemons(path: &Path) -> Vec<i32> {
    let wanted = path.as_os_str().as_encoded_bytes();
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_daemon = line.split(|b| *b == 0).any(|word| word == b"--daemon" || word == b"--foreground");
        let names_it = line.split(|b| *b == 0).any(|word| word.starts_with(wanted));
        // A process that has ended and was not waited for has an empty command line.
        if is_daemon && names_it {
            pids.push(pid);
        }
    }
    pids
}

/// Waits for something that happens soon; fails the test if it does not.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that name their place: each 8 bytes are a mixture of the seed and the offset.
pub fn pattern(seed: u64, size: usize) -> Vec<u8> {
    let word = |i: u64| {
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (i << 7)
    };
    let mut bytes: Vec<u8> = (0..size.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes()).collect();
    bytes.truncate(size);
    bytes
}

/// A copy of the binary in the world's directory, where users can reach it.
pub fn binary_for_users(world: &World) -> PathBuf {
    let path = world.dir().join("warmfs");
    if !path.exists() {
        let built = env!("CARGO_BIN_EXE_warmfs");
        // A link saves the copying where both are on one file system.
        std::fs::hard_link(built, &path).or_else(|_| std::fs::copy(built, &path).map(drop)).unwrap();
    }
    path
}

/// Asserts that the command was refused as a user may expect it: exit code 2, nothing on standard output, one line that
/// has all `words` in it.
pub fn assert_refused(output: &Output, words: &[&str]) {
    assert_eq!(output.status.code(), Some(2), "{}", text(output));
    assert!(output.stdout.is_empty(), "{}", text(output));
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(said.ends_with('\n') && said.lines().count() == 1, "not one line:\n{said}");
    for word in words {
        assert!(said.contains(word), "`{word}` is missing in:\n{said}");
    }
}

/// What a command said, for a failing test.
pub fn text(output: &Output) -> String {
    format!(
        "{:?}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Held while requests are counted: what is dropped for one test is dropped for all.
static CACHES: RwLock<()> = RwLock::new(());

/// Runs a test that counts requests while no other test drops the kernel's caches; it must not, either. If another
/// process does, a failure says nothing and the test runs again.
pub fn undisturbed(test: impl Fn()) {
    let _quiet = CACHES.read().unwrap_or_else(PoisonError::into_inner);
    loop {
        let before = drops();
        let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&test)) else { return };
        if drops() == before {
            std::panic::resume_unwind(panic);
        }
        eprintln!("another process has dropped the kernel's caches meanwhile: once more");
    }
}

/// How often the kernel's caches were dropped since the machine started.
fn drops() -> Vec<String> {
    let figures = std::fs::read_to_string("/proc/vmstat").unwrap();
    figures.lines().filter(|line| line.starts_with("drop_")).map(String::from).collect()
}

/// Drops the kernel's page, name and attribute caches.
pub fn drop_caches() {
    rustix::fs::sync();
    drop_some("3");
}

/// Drops the kernel's name and attribute caches.
pub fn drop_names() {
    drop_some("2");
}

fn drop_some(what: &str) {
    let _alone = CACHES.write().unwrap_or_else(PoisonError::into_inner);
    std::fs::write("/proc/sys/vm/drop_caches", what).unwrap();
}

/// Where the threads of all daemons are, for somebody who looks at a hang.
pub fn dump_stacks() {
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if !line.windows(6).any(|w| w == b"warmfs") {
            continue;
        }
        for task in std::fs::read_dir(entry.path().join("task")).into_iter().flatten().flatten() {
            let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            eprintln!("{} {}{}", task.path().display(), read("comm"), read("stack"));
        }
    }
}
