//! A source, a cache and a mount of the real binary, ended and removed whatever happens; and a watchdog.

use crate::common::{mounts_below, text, unmount_all, warmfs};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use warmfs::control::{Client, RelPath, Request};
use warmfs::store::{CacheDir, Index};
use warmfs::sys::io::Io;
use warmfs::types::FileId;

/// A place for everything of one source.
pub struct Stage {
    dir: PathBuf,
    /// Whether the source is a slow one, by `warmfs faultfs`.
    pub slow: bool,
}

/// The daemon of a mount.
pub struct Daemon {
    /// Its process.
    pub pid: i32,
    pidfd: OwnedFd,
}

impl Stage {
    /// Nothing mounted over the source yet; the source itself is [`Stage::real`].
    pub fn new(work: &Path, name: &str, slow: bool) -> Self {
        let stage = Self { dir: work.join(name), slow };
        for dir in ["real", "src", "mnt"] {
            std::fs::create_dir_all(stage.dir.join(dir)).unwrap();
        }
        if slow {
            stage.rules("");
            let output = warmfs()
                .arg("faultfs")
                .args([stage.real(), stage.dir.join("src")])
                .arg("--rules")
                .arg(stage.dir.join("rules"))
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", text(&output));
        }
        stage
    }

    /// Where files are changed.
    pub fn real(&self) -> PathBuf {
        self.dir.join("real")
    }

    /// What is mounted.
    pub fn source(&self) -> PathBuf {
        if self.slow { self.dir.join("src") } else { self.real() }
    }

    /// Where it is mounted.
    pub fn mnt(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    /// The cache directory.
    pub fn cache(&self) -> PathBuf {
        self.dir.join("cache")
    }

    /// Puts rules of the slow source in force; it looks for them every 5 ms.
    pub fn rules(&self, text: &str) {
        let (rules, new) = (self.dir.join("rules"), self.dir.join("rules.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, rules).unwrap();
    }

    /// Mounts, and says how long it took until the mount served.
    pub fn mount(&self, flags: &[String]) -> Result<(Daemon, Duration), String> {
        let begin = Instant::now();
        let mut command = warmfs();
        command.arg("mount").arg(self.source()).arg(self.mnt());
        command.arg("--cache-dir").arg(self.cache()).args(flags);
        let output = command.output().map_err(|e| e.to_string())?;
        let took = begin.elapsed();
        if !output.status.success() {
            return Err(format!("mount {flags:?}: {}", text(&output)));
        }
        Ok((Daemon::of(&self.cache())?, took))
    }

    /// Ends the mount cleanly.
    pub fn umount(&self, daemon: &Daemon) -> Result<(), String> {
        let output = warmfs().arg("umount").arg(self.mnt()).output().map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("umount: {}", text(&output)));
        }
        daemon.wait()
    }

    /// Asks the daemon.
    pub fn ask(&self, request: &Request) -> Result<serde_json::Value, String> {
        let mut client = Client::connect(&self.cache().join("control.sock")).map_err(|e| e.to_string())?;
        client.call(request, |_| {}).map_err(|e| e.to_string())
    }

    /// The figures.
    pub fn stats(&self) -> Result<serde_json::Value, String> {
        self.ask(&Request::Stats {})
    }

    /// The cache's data files: number to length and bytes on the disk.
    pub fn data_files(&self) -> HashMap<u64, DataFile> {
        let mut found = HashMap::new();
        for source in list(&self.cache()) {
            for shard in list(&source.join("data")) {
                for path in list(&shard).iter().flat_map(|dir| list(dir)) {
                    // What is removed meanwhile is not there.
                    let Ok(meta) = path.symlink_metadata() else { continue };
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    let number = u64::from_str_radix(&name, 16).unwrap_or(u64::MAX);
                    found.insert(number, DataFile { path, len: meta.size(), disk: meta.blocks() * 512 });
                }
            }
        }
        found
    }

    /// What the index knows, while no daemon uses the cache: read from a copy, so that the index stays as it is.
    pub fn index(&self) -> Result<HashMap<u64, FileId>, String> {
        let found =
            list(&self.cache()).into_iter().map(|dir| dir.join("index.redb")).find(|path| path.exists());
        let Some(path) = found else { return Ok(HashMap::new()) };
        let copy = self.dir.join("index.copy");
        std::fs::copy(path, &copy).map_err(|e| e.to_string())?;
        let loaded = Index::open(&Io::default(), &copy).map_err(|e| e.to_string())?;
        let known = loaded.records.iter().map(|(id, record)| (record.number, *id)).collect();
        if loaded.lost || loaded.damaged > 0 {
            return Err(format!(
                "the index was lost ({}) or has damaged records ({})",
                loaded.lost, loaded.damaged
            ));
        }
        Ok(known)
    }

    /// The cache directory, opened as a daemon does.
    pub fn open_cache(&self) -> CacheDir {
        CacheDir::open(&self.cache(), &self.source()).unwrap()
    }

    /// The last of what the daemon said.
    pub fn log(&self) -> String {
        let text = std::fs::read_to_string(self.cache().join("log/warmfs.log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// What the log takes, bytes.
    pub fn log_bytes(&self) -> u64 {
        list(&self.cache().join("log")).iter().filter_map(|path| path.metadata().ok()).map(|m| m.len()).sum()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.slow {
            self.rules("");
        }
        if let Ok(daemon) = Daemon::of(&self.cache()) {
            let _ = daemon.kill();
        }
        while !mounts_below(&self.dir).is_empty() {
            unmount_all(&self.dir);
        }
    }
}

/// A data file of the cache.
pub struct DataFile {
    /// Its path.
    pub path: PathBuf,
    /// Its length, bytes.
    pub len: u64,
    /// What it takes on the disk, bytes.
    pub disk: u64,
}

/// Numbers of `files`.
pub fn numbers<T>(files: &HashMap<u64, T>) -> HashSet<u64> {
    files.keys().copied().collect()
}

fn list(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

impl Daemon {
    /// The one that holds this cache.
    fn of(cache: &Path) -> Result<Self, String> {
        let fail = |e: &dyn std::fmt::Display| format!("no daemon holds {}: {e}", cache.display());
        let text = std::fs::read_to_string(cache.join("LOCK")).map_err(|e| fail(&e))?;
        let pid: i32 = text.trim().parse().map_err(|e| fail(&e))?;
        let raw = Pid::from_raw(pid).ok_or_else(|| fail(&"no pid"))?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|e| fail(&e))?;
        // After the descriptor is there: the number may be another's by now.
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|e| fail(&e))?;
        let wanted = cache.as_os_str().as_encoded_bytes();
        match words.split(|b| *b == 0).any(|word| word == wanted) {
            true => Ok(Self { pid, pidfd }),
            false => Err(fail(&"the pid in LOCK is of another process")),
        }
    }

    /// kill -9, and waits until it is gone. The dead mount stays.
    pub fn kill(&self) -> Result<(), String> {
        let pid = Pid::from_raw(self.pid).ok_or("no pid")?;
        kill_process(pid, Signal::KILL).map_err(|e| e.to_string())?;
        self.wait()
    }

    fn wait(&self) -> Result<(), String> {
        let mut fds = [rustix::event::PollFd::new(&self.pidfd, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(1..) => Ok(()),
            other => Err(format!("the daemon does not end: {other:?}")),
        }
    }

    /// A figure of `/proc/PID/status`, as it is written there (kB, or a count).
    pub fn status(&self, name: &str) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse().ok()
    }

    /// What its open descriptors lead to.
    pub fn open(&self) -> Vec<String> {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let mut open: Vec<_> =
            fds.filter_map(|fd| Some(std::fs::read_link(fd.path()).ok()?.display().to_string())).collect();
        open.sort();
        open
    }

    /// How many there are, without the rings that the fill engine keeps: it makes them when they are first needed.
    pub fn fds(&self) -> u64 {
        self.open().iter().filter(|target| *target != "anon_inode:[io_uring]").count() as u64
    }
}

/// A path in the daemon's terms.
pub fn rel(path: &Path) -> RelPath {
    RelPath::new(path).unwrap()
}

/// When somebody last said that things go on, milliseconds since the start.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Things that go on are said here.
pub fn alive(since: Instant) {
    LAST.store(since.elapsed().as_millis() as u64, Ordering::Relaxed);
}

/// Nothing is to be watched any more: to remove a hundred thousand files may take minutes.
pub fn ended() {
    LAST.store(u64::MAX, Ordering::Relaxed);
}

/// Ends the program when nothing was said for `patience`.
pub fn watch(work: &Path, since: Instant, patience: Duration) {
    let work = work.to_path_buf();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let last = Duration::from_millis(LAST.load(Ordering::Relaxed));
            if since.elapsed().saturating_sub(last) > patience {
                eprintln!("nothing goes on for {patience:?}: {}", work.display());
                crate::common::dump_stacks();
                unmount_all(&work);
                std::process::exit(99);
            }
        }
    });
}
