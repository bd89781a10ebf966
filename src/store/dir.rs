//! The cache directory: its layout, its lock, its files.
//!
//! ```text
//! CACHE/                      0700, ours, flocked by the daemon that uses it
//!   FORMAT                    "warmfs 1\n": refused if it says anything else
//!   LOCK                      pid of the holder, for people; the flock is what counts
//!   control.sock              the operator's door
//!   log/warmfs.log
//!   <source-id>/              16 hex digits of the hash of the source's path, and its last name
//!     SOURCE                  the source's path, for people
//!     index.redb
//!     data/ab/cd/<number>     one plain file per cached file, 0600; number in 16 hex digits
//! ```
//!
//! `ab/cd` are bits 10..26 of the number, so that directories fill one after the other, 1024 files each: a small cache
//! has one, a million files have a thousand. Everything is reached from descriptors opened once, without following
//! links, so that a directory that was moved or replaced cannot lead us elsewhere.

use super::format::FORMAT_VERSION;
use crate::types::{Error, ErrorKind, PathText, Result};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An opened and locked cache directory.
pub struct CacheDir {
    path: PathBuf,
    source_name: String,
    dirs: RwLock<Arc<Dirs>>,
    next_number: AtomicU64,
    /// Files that no record speaks of yet; `None` once the cache has stopped.
    unfinished: Mutex<Option<HashSet<u64>>>,
}

/// FORMAT, LOCK, SOURCE and the directories down to `data`, a block each.
const FIXED_BYTES: u64 = 7 * super::BLOCK_BYTES;
/// A directory of 1024 data files, 28 bytes an entry on ext4, blocks half full.
const SHARD_BYTES: u64 = 14 * super::BLOCK_BYTES;

/// What is open of the directory.
struct Dirs {
    /// Holds the flock for as long as the cache is in use.
    _lock: Arc<std::fs::File>,
    source: OwnedFd,
    data: OwnedFd,
}

/// Space and inodes of the cache's file system.
#[derive(Clone, Copy, Debug)]
pub struct DiskFree {
    /// Size, bytes.
    pub total_bytes: u64,
    /// Free for us, bytes.
    pub free_bytes: u64,
    /// Free inodes for us; `None` where the file system does not count them (btrfs says 0 of 0).
    pub free_files: Option<u64>,
}

impl CacheDir {
    /// Creates or opens `path` for `source` and locks it. Refuses a directory that is not ours alone, that another
    /// daemon holds, that has another format, or that holds something else.
    pub fn open(path: &Path, source: &Path) -> Result<Self> {
        Self::try_open(path, source).map_err(|e| match e.kind() {
            ErrorKind::Invalid | ErrorKind::Busy => e,
            // The user chose it, and can choose another.
            _ => {
                let text = format!(
                    "cache directory {} cannot be used ({e}); choose another --cache-dir",
                    PathText(path)
                );
                Error::new(ErrorKind::Invalid, "", text)
            }
        })
    }

    fn try_open(path: &Path, source: &Path) -> Result<Self> {
        create_private(path)?;
        let lock = take(path)?;
        write_format(path)?;
        let name = source_name(source);
        let source_path = path.join(&name);
        create_private(&source_path)?;
        std::fs::write(source_path.join("SOURCE"), format!("{}\n", PathText(source)))
            .map_err(|e| Error::io("write", PathText(&source_path).to_string(), &e))?;
        create_private(&source_path.join("data"))?;
        Self::with_lock(path, name, Arc::new(lock))
    }

    /// Opens what a cache directory has of every source, for looking after it while no daemon uses it.
    pub fn open_all(path: &Path) -> Result<Vec<Self>> {
        let lock = Arc::new(take(path)?);
        let fail = |e: std::io::Error| Error::io("read", PathText(path).to_string(), &e);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(path).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if entry.path().join("index.redb").exists() {
                let name = entry.file_name().to_string_lossy().into_owned();
                all.push(Self::with_lock(path, name, lock.clone())?);
            }
        }
        Ok(all)
    }

    fn with_lock(path: &Path, source_name: String, lock: Arc<std::fs::File>) -> Result<Self> {
        let source_path = path.join(&source_name);
        Ok(Self {
            path: path.to_path_buf(),
            source_name,
            dirs: RwLock::new(Arc::new(Dirs::open(&source_path, lock)?)),
            next_number: AtomicU64::new(0),
            unfinished: Mutex::new(Some(HashSet::new())),
        })
    }

    fn dirs(&self) -> Arc<Dirs> {
        self.dirs.read().clone()
    }

    /// Makes the directories anew that somebody has removed under us, with the checks and the lock of a start.
    fn revive(&self) -> Result<()> {
        let mut dirs = self.dirs.write();
        if !dirs.are_removed() {
            return Ok(());
        }
        create_private(&self.path)?;
        check_private(&self.path)?;
        let lock = Arc::new(take_lock(&self.path)?);
        write_format(&self.path)?;
        let source_path = self.path.join(&self.source_name);
        create_private(&source_path.join("data"))?;
        *dirs = Arc::new(Dirs::open(&source_path, lock)?);
        tracing::warn!("cache directory {} was removed, and is made anew", PathText(&self.path));
        Ok(())
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the index.
    pub fn index_path(&self) -> PathBuf {
        self.path.join(&self.source_name).join("index.redb")
    }

    /// The path of a data file, for people and for programs that read the SSD directly.
    pub fn data_path(&self, number: u64) -> PathBuf {
        self.path.join(&self.source_name).join("data").join(OsStr::from_bytes(relative(number).as_bytes()))
    }

    /// Creates a new, empty data file under a number that no other has.
    pub fn create(&self) -> Result<(u64, OwnedFd)> {
        loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match self.open_at(number, flags) {
                Ok(fd) => return self.begin(number).map(|()| (number, fd)),
                Err(Errno::EXIST) => continue,
                Err(Errno::NOENT) => {
                    self.revive()?;
                    self.create_shards(number)?;
                }
                Err(e) => return Err(self.error("create", number, e)),
            }
        }
    }

    fn begin(&self, number: u64) -> Result<()> {
        if let Some(unfinished) = self.unfinished.lock().as_mut() {
            unfinished.insert(number);
            return Ok(());
        }
        self.remove(number)?;
        Err(Error::new(ErrorKind::Busy, "create", "a file in a cache that has stopped"))
    }

    /// The index will speak of this file: it stays when the cache stops.
    pub fn finish(&self, number: u64) {
        if let Some(unfinished) = self.unfinished.lock().as_mut() {
            unfinished.remove(&number);
        }
    }

    /// The cache stops: files that are still being filled go, as no later start would know of them, and none is created
    /// any more.
    pub fn close(&self) -> Result<()> {
        let unfinished = self.unfinished.lock().take().unwrap_or_default();
        unfinished.into_iter().try_for_each(|number| self.remove(number))
    }

    /// Whether the cache has stopped.
    pub fn is_closed(&self) -> bool {
        self.unfinished.lock().is_none()
    }

    /// Opens a data file. `Corrupt` if it is not a regular file of `size` bytes: a partly filled file has its full
    /// length from the start.
    pub fn open_data(&self, number: u64, size: u64, write: bool) -> Result<OwnedFd> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // O_NONBLOCK: a pipe planted in place of the file must not hold us.
        let fd = self
            .open_at(number, access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC)
            .map_err(|e| self.error("open", number, e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| self.error("stat", number, e))?;
        let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::RegularFile;
        if !regular || stat.st_size as u64 != size {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "open",
                PathText(&self.data_path(number)).to_string(),
            ));
        }
        Ok(fd)
    }

    /// Removes a data file; one that is gone already is no error.
    pub fn remove(&self, number: u64) -> Result<()> {
        self.finish(number);
        match rustix::fs::unlinkat(&self.dirs().data, relative(number), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(self.error("remove", number, e)),
        }
    }

    /// Writes everything of the cache's file system to the disk: one call for a batch of files costs less than one
    /// per file.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(&self.dirs().source)
            .map_err(|e| Error::os("syncfs", PathText(&self.path).to_string(), e.raw_os_error()))
    }

    /// Space and inodes left.
    pub fn free(&self) -> Result<DiskFree> {
        let s = rustix::fs::fstatvfs(&self.dirs().source)
            .map_err(|e| Error::os("statvfs", PathText(&self.path).to_string(), e.raw_os_error()))?;
        Ok(DiskFree {
            total_bytes: s.f_blocks * s.f_frsize,
            // f_bavail, not f_bfree: the blocks kept for root are not ours.
            free_bytes: s.f_bavail * s.f_frsize,
            free_files: (s.f_files > 0).then_some(s.f_favail),
        })
    }

    /// What a data file takes on the disk, bytes; nothing if it is gone.
    pub fn data_bytes(&self, number: u64) -> u64 {
        rustix::fs::statat(&self.dirs().data, relative(number), AtFlags::SYMLINK_NOFOLLOW)
            .map_or(0, |s| s.st_blocks as u64 * 512)
    }

    /// What the directory takes on the disk beside the data files, bytes; the log not counted, which has a limit of its
    /// own.
    pub fn overhead_bytes(&self) -> u64 {
        let shards = (self.next_number.load(Ordering::Relaxed) >> 10) + 1;
        self.index_bytes() + FIXED_BYTES + shards * SHARD_BYTES
    }

    /// What the index takes on the disk, bytes.
    fn index_bytes(&self) -> u64 {
        rustix::fs::statat(&self.dirs().source, "index.redb", AtFlags::SYMLINK_NOFOLLOW)
            .map_or(0, |s| s.st_blocks as u64 * 512)
    }

    /// Says from which number on new files are named: above all that the index knows.
    pub fn start_numbers_at(&self, number: u64) {
        self.next_number.store(number, Ordering::Relaxed);
    }

    /// Removes data files that the index does not know: what a crash left half filled. Returns how many.
    pub fn sweep(&self, known: &HashSet<u64>) -> Result<u64> {
        let mut removed = 0;
        for shard in self.list(Path::new("."))? {
            for sub in self.list(Path::new(&shard))? {
                let dir = format!("{shard}/{sub}");
                for name in self.list(Path::new(&dir))? {
                    let number = u64::from_str_radix(&name, 16).ok();
                    if number.is_some_and(|n| known.contains(&n) && relative(n) == format!("{dir}/{name}")) {
                        continue;
                    }
                    if rustix::fs::unlinkat(&self.dirs().data, format!("{dir}/{name}"), AtFlags::empty())
                        .is_ok()
                    {
                        removed += 1;
                    }
                }
            }
        }
        Ok(removed)
    }

    /// Names in a directory under `data`; what is not a directory has none.
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fail = |e: Errno| Error::os("read directory", PathText(dir).to_string(), e.raw_os_error());
        let fd = match rustix::fs::openat(&self.dirs().data, dir, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(Vec::new()),
            Err(e) => return Err(fail(e)),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open_at(&self, number: u64, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.dirs().data, relative(number), flags, Mode::from_raw_mode(0o600))
    }

    fn create_shards(&self, number: u64) -> Result<()> {
        let path = relative(number);
        for dir in [&path[..2], &path[..5]] {
            match rustix::fs::mkdirat(&self.dirs().data, dir, Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(self.error("create directory of", number, e)),
            }
        }
        Ok(())
    }

    fn error(&self, op: &'static str, number: u64, errno: Errno) -> Error {
        Error::os(op, PathText(&self.data_path(number)).to_string(), errno.raw_os_error())
    }
}

impl Dirs {
    fn open(source_path: &Path, lock: Arc<std::fs::File>) -> Result<Self> {
        Ok(Self { _lock: lock, source: open_dir(source_path)?, data: open_dir(&source_path.join("data"))? })
    }

    /// Whether they have no name any more.
    fn are_removed(&self) -> bool {
        rustix::fs::fstat(&self.data).is_ok_and(|s| s.st_nlink == 0)
    }
}

/// Path of a data file below `data`.
fn relative(number: u64) -> String {
    format!("{:02x}/{:02x}/{number:016x}", (number >> 18) & 0xff, (number >> 10) & 0xff)
}

/// The directory of one source: a hash of its path, and its last name so that people recognise it.
fn source_name(source: &Path) -> String {
    let hash = blake3::hash(source.as_os_str().as_bytes()).to_hex();
    let last = source.file_name().unwrap_or_default().to_string_lossy();
    let readable: String =
        last.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(40).collect();
    format!("{}-{readable}", &hash[..16])
}

/// Makes an existing directory ours and locks it. What is refused is left exactly as it is.
fn take(path: &Path) -> Result<std::fs::File> {
    check_private(path)?;
    refuse_foreign_content(path)?;
    check_format(path)?;
    let lock = take_lock(path)?;
    make_private(path)?;
    Ok(lock)
}

fn create_private(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    // The mode is given at creation, so that no moment and no umask leaves it open to others.
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| Error::io("create cache directory", PathText(path).to_string(), &e))
}

fn check_private(path: &Path) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let invalid = |text: String| Error::new(ErrorKind::Invalid, "", text);
    let shown = PathText(path);
    let meta = std::fs::symlink_metadata(path)
        .map_err(|e| Error::io("stat cache directory", shown.to_string(), &e))?;
    if meta.is_symlink() {
        return Err(invalid(format!(
            "cache directory {shown} is a symbolic link; name the directory itself"
        )));
    }
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me {
        return Err(invalid(format!(
            "cache directory {shown} belongs to uid {}, not to uid {me} who runs warmfs; choose another --cache-dir",
            meta.uid()
        )));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(invalid(format!(
            "cache directory {shown} can be written by others (mode {:04o}), who could plant data in it; \
             chmod 700 it or choose another --cache-dir",
            meta.mode() & 0o7777
        )));
    }
    if !meta.is_dir() {
        return Err(invalid(format!(
            "cache directory {shown} is not a directory; choose another --cache-dir"
        )));
    }
    Ok(())
}

fn make_private(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
        .map_err(|e| Error::io("chmod 700", PathText(path).to_string(), &e))
}

/// How long a daemon that was killed may take to let go of what it had open.
const LET_GO: Duration = Duration::from_secs(2);

/// The pid in the lock file; empty while it is being written.
fn holder_of(mut lock: &std::fs::File) -> String {
    let mut text = String::new();
    let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut text));
    text.trim().to_string()
}

/// A process that is coming to its end has no command line any more, but may still hold its locks.
fn is_alive(pid: &str) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
}

fn take_lock(path: &Path) -> Result<std::fs::File> {
    let lock_path = path.join("LOCK");
    let io = |e: std::io::Error| Error::io("open lock", PathText(&lock_path).to_string(), &e);
    let mut file = open_nofollow(&lock_path).map_err(io)?;
    let try_lock = || rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    let mut locked = try_lock();
    let deadline = Instant::now() + LET_GO;
    while locked == Err(Errno::WOULDBLOCK) && !is_alive(&holder_of(&file)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
        locked = try_lock();
    }
    match locked {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let holder = holder_of(&file);
            return Err(Error::new(
                ErrorKind::Busy,
                "",
                format!(
                    "cache directory {} is in use by another warmfs (pid {}); unmount that one or choose another \
                     --cache-dir",
                    PathText(path),
                    holder
                ),
            ));
        }
        Err(e) => return Err(Error::os("lock", PathText(&lock_path).to_string(), e.raw_os_error())),
    }
    file.rewind().and_then(|()| file.set_len(0)).map_err(io)?;
    write!(file, "{}", std::process::id()).map_err(io)?;
    Ok(file)
}

fn open_nofollow(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path)
}

fn check_format(path: &Path) -> Result<()> {
    let file = path.join("FORMAT");
    let ours = format!("warmfs {FORMAT_VERSION}\n");
    match std::fs::read_to_string(&file) {
        // Empty: a daemon that starts just now is writing it, or one died there.
        Ok(text) if text == ours || text.is_empty() => Ok(()),
        Ok(text) => Err(Error::new(
            ErrorKind::Invalid,
            "",
            format!(
                "cache directory {} has format `{}`, this warmfs writes `{}`; remove the directory or choose another \
                 --cache-dir",
                PathText(path),
                text.trim(),
                ours.trim()
            ),
        )),
        // A new directory.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io("read", PathText(&file).to_string(), &e)),
    }
}

/// Once we hold the lock.
fn write_format(path: &Path) -> Result<()> {
    let file = path.join("FORMAT");
    let ours = format!("warmfs {FORMAT_VERSION}\n");
    if std::fs::read(&file).is_ok_and(|text| text == ours.as_bytes()) {
        return Ok(());
    }
    std::fs::write(&file, ours).map_err(|e| Error::io("write", PathText(&file).to_string(), &e))
}

/// A directory that holds something else is not made ours: `--cache-dir ~` is a slip of the hand.
fn refuse_foreign_content(path: &Path) -> Result<()> {
    let listing = std::fs::read_dir(path).map_err(|e| Error::io("read", PathText(path).to_string(), &e))?;
    for entry in listing {
        let name = entry.map_err(|e| Error::io("read", PathText(path).to_string(), &e))?.file_name();
        // FORMAT comes before all else that a daemon makes, perhaps one that starts just now.
        if name != "LOCK" && name != "lost+found" && !path.join("FORMAT").exists() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "",
                format!(
                    "cache directory {} is not empty and not a warmfs cache (it holds `{}`); choose an empty one",
                    PathText(path),
                    PathText(Path::new(&name))
                ),
            ));
        }
    }
    Ok(())
}

fn open_dir(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|e| Error::os("open", PathText(path).to_string(), e.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn bug_147_everything_is_private_whatever_it_was_before() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("cache");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let dir = CacheDir::open(&path, Path::new("/s")).unwrap();
        let (number, _fd) = dir.create().unwrap();
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(&dir.data_path(number)), 0o600);
        assert_eq!(mode(dir.data_path(number).parent().unwrap()), 0o700);
    }

    #[test]
    fn bug_147_a_directory_that_others_may_write_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("cache");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = CacheDir::open(&path, Path::new("/s")).err().unwrap();
        assert!(error.to_string().contains("chmod 700"), "{error}");
        let link = tmp.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(CacheDir::open(&link, Path::new("/s")).is_err());
    }

    #[test]
    fn bug_087_a_second_daemon_is_refused_with_the_holders_pid_and_a_stale_lock_is_not_in_the_way() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("cache");
        let first = CacheDir::open(&path, Path::new("/s")).unwrap();
        let error = CacheDir::open(&path, Path::new("/other")).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        drop(first);
        assert!(path.join("LOCK").exists());
        CacheDir::open(&path, Path::new("/s")).unwrap();
    }

    #[test]
    fn bug_087_the_lock_of_a_daemon_that_is_just_dying_is_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("cache");
        drop(CacheDir::open(&path, Path::new("/s")).unwrap());
        // Longer than any pid, and of no process.
        std::fs::write(path.join("LOCK"), "123456789012").unwrap();
        let dying = std::fs::File::open(path.join("LOCK")).unwrap();
        rustix::fs::flock(&dying, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let end = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(dying);
        });
        CacheDir::open(&path, Path::new("/s")).unwrap();
        end.join().unwrap();
        assert_eq!(std::fs::read_to_string(path.join("LOCK")).unwrap(), std::process::id().to_string());
    }

    #[test]
    fn other_formats_and_foreign_directories_are_refused() {
        let tmp = tempfile::tempdir().unwrap();
        std::fs::write(tmp.path().join("thesis.tex"), "x").unwrap();
        let error = CacheDir::open(tmp.path(), Path::new("/s")).err().unwrap();
        assert!(error.to_string().contains("thesis.tex"), "{error}");
        let path = tmp.path().join("cache");
        drop(CacheDir::open(&path, Path::new("/s")).unwrap());
        std::fs::write(path.join("FORMAT"), "warmfs 99\n").unwrap();
        let error = CacheDir::open(&path, Path::new("/s")).err().unwrap();
        assert!(error.to_string().contains("warmfs 99"), "{error}");
    }

    #[test]
    fn bug_030_what_is_planted_in_place_of_a_file_is_corrupt_and_never_followed() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let (number, fd) = dir.create().unwrap();
        rustix::fs::ftruncate(&fd, 10).unwrap();
        assert!(dir.open_data(number, 10, false).is_ok());
        assert_eq!(dir.open_data(number, 11, false).err().unwrap().kind(), ErrorKind::Corrupt);
        let path = dir.data_path(number);
        for plant in ["fifo", "dir", "link", "nothing"] {
            std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path)).unwrap_or(());
            match plant {
                "fifo" => rustix::fs::mknodat(
                    rustix::fs::CWD,
                    &path,
                    rustix::fs::FileType::Fifo,
                    Mode::from_raw_mode(0o600),
                    0,
                )
                .unwrap(),
                "dir" => std::fs::create_dir(&path).unwrap(),
                "link" => symlink("/dev/zero", &path).unwrap(),
                _ => {}
            }
            assert!(dir.open_data(number, 10, false).is_err(), "{plant}");
        }
    }

    #[test]
    fn sweeping_removes_what_the_index_does_not_know() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let numbers: Vec<u64> = (0..5).map(|_| dir.create().unwrap().0).collect();
        assert_eq!(dir.sweep(&HashSet::from([numbers[1], numbers[3]])).unwrap(), 3);
        assert!(dir.data_path(numbers[1]).exists() && !dir.data_path(numbers[0]).exists());
    }

    #[test]
    fn numbers_that_exist_are_passed_over() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let (a, _) = dir.create().unwrap();
        dir.start_numbers_at(0);
        let (b, _) = dir.create().unwrap();
        assert_ne!(a, b);
    }
}
