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
//! has one, a million files have a thousand, and one that has lost its last file goes. A complete data file bears a stamp
//! instead of a time ([`CacheDir::stamp`]), by which it is recognised before the kernel is given it. Everything is reached
//! from descriptors opened once, without following links, so that a directory that was moved or replaced cannot lead us
//! elsewhere.

use super::format::FORMAT_VERSION;
use super::shards::{Shards, dir_of, relative};
use crate::sys::facts;
use crate::sys::io::Io;
use crate::types::{Error, ErrorKind, PathText, Result, escape_bytes};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An opened and locked cache directory.
pub struct CacheDir {
    io: Io,
    path: PathBuf,
    source_name: String,
    dirs: RwLock<Arc<Dirs>>,
    next_number: AtomicU64,
    shards: Shards,
    /// Files that no record speaks of yet; `None` once the cache has stopped.
    unfinished: Mutex<Option<HashSet<u64>>>,
}

const INDEX: &str = "index.redb";
/// FORMAT, LOCK, SOURCE and the directories down to `data`, a block each.
const FIXED_BYTES: u64 = 7 * super::BLOCK_BYTES;
/// A directory of 1024 data files, 28 bytes an entry on ext4, blocks half full.
const SHARD_BYTES: u64 = 14 * super::BLOCK_BYTES;

/// What is open of the directory.
struct Dirs {
    /// Holds the flock for as long as the cache is in use.
    lock: Mutex<Arc<OwnedFd>>,
    root: OwnedFd,
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

/// What [`CacheDir::sweep`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// How many files it removed.
    pub removed: u64,
    /// Numbers of the files that stay.
    pub kept: HashSet<u64>,
}

impl CacheDir {
    /// Creates or opens `path` for `source` and locks it. Refuses a directory that is not ours alone, that another
    /// daemon holds, that has another format, or that holds something else.
    pub fn open(path: &Path, source: &Path) -> Result<Self> {
        Self::open_through(Io::default(), path, source)
    }

    /// The same by these calls.
    pub fn open_through(io: Io, path: &Path, source: &Path) -> Result<Self> {
        Self::try_open(io, path, source).map_err(|e| match e.kind() {
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

    fn try_open(io: Io, path: &Path, source: &Path) -> Result<Self> {
        let setup = Setup { io: &io, path };
        create_private(&io, path)?;
        let lock = setup.take()?;
        setup.write_format()?;
        let name = source_name(source);
        let source_path = path.join(&name);
        create_private(&io, &source_path)?;
        // A link in its place leads to what is not ours to write.
        open_dir(&io, &source_path)?;
        create_private(&io, &source_path.join("data"))?;
        write_text(&io, &source_path.join("SOURCE"), &format!("{}\n", PathText(source)))?;
        Self::with_lock(io, path, name, Arc::new(lock))
    }

    /// Opens what a cache directory has of every source, for looking after it while no daemon uses it.
    pub fn open_all(path: &Path) -> Result<Vec<Self>> {
        let io = Io::default();
        let setup = Setup { io: &io, path };
        let lock = Arc::new(setup.take()?);
        let mut all = Vec::new();
        for name in setup.names()? {
            if io.stat_at(CWD, &path.join(&name).join(INDEX)).is_ok() {
                all.push(Self::with_lock(io.clone(), path, name, lock.clone())?);
            }
        }
        Ok(all)
    }

    fn with_lock(io: Io, path: &Path, source_name: String, lock: Arc<OwnedFd>) -> Result<Self> {
        let source_path = path.join(&source_name);
        let dirs = Dirs::open(&io, path, &source_path, lock)?;
        Ok(Self {
            io,
            path: path.to_path_buf(),
            source_name,
            dirs: RwLock::new(Arc::new(dirs)),
            next_number: AtomicU64::new(0),
            shards: Shards::default(),
            unfinished: Mutex::new(Some(HashSet::new())),
        })
    }

    fn dirs(&self) -> Arc<Dirs> {
        self.dirs.read().clone()
    }

    /// Makes the directories anew that somebody has removed under us, with the checks and the lock of a start. Tells
    /// whether there was a need to.
    pub fn revive(&self) -> Result<bool> {
        if !self.is_removed() {
            return Ok(false);
        }
        let mut dirs = self.dirs.write();
        if !dirs.are_removed(&self.io) {
            return Ok(false);
        }
        let setup = Setup { io: &self.io, path: &self.path };
        create_private(&self.io, &self.path)?;
        setup.check_private()?;
        let held = dirs.lock.lock().clone();
        let lock = if setup.has_lock(&held) { held } else { Arc::new(setup.take_lock()?) };
        setup.write_format()?;
        let source_path = self.path.join(&self.source_name);
        create_private(&self.io, &source_path.join("data"))?;
        *dirs = Arc::new(Dirs::open(&self.io, &self.path, &source_path, lock)?);
        tracing::warn!("cache directory {} was removed, and is made anew", PathText(&self.path));
        Ok(true)
    }

    /// Makes the lock and the format anew that somebody has removed: without them another daemon could come in, or none
    /// be let in. Where the directory was moved to, if it was.
    pub fn restore_headers(&self) -> Result<()> {
        let dirs = self.dirs();
        let root = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&dirs.root)));
        let setup = Setup { io: &self.io, path: &root };
        let mut lock = dirs.lock.lock();
        if !setup.has_lock(&lock) {
            *lock = Arc::new(setup.take_lock()?);
        }
        if matches!(self.io.stat_at(&dirs.root, "FORMAT".as_ref()), Err(Errno::NOENT)) {
            setup.write_format()?;
        }
        Ok(())
    }

    /// Whether somebody has removed the directory under us.
    pub fn is_removed(&self) -> bool {
        self.dirs().are_removed(&self.io)
    }

    /// Device and inode of what bears the index's name now; none if nothing does. A directory that was moved takes its
    /// index along.
    pub fn index_inode(&self) -> Option<(u64, u64)> {
        let stat = self.io.stat_at(&self.dirs().source, INDEX.as_ref()).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    /// Whether the path of the index leads to where the data is: not if the directory was moved away.
    pub fn is_in_place(&self) -> bool {
        let inode = |s: rustix::fs::Stat| (s.st_dev, s.st_ino);
        let there = self.io.stat_at(CWD, &self.path.join(&self.source_name)).map(inode);
        there.is_ok() && there == self.io.stat(&self.dirs().source).map(inode)
    }

    /// Whether a data file has its name still. Unsure is yes: what cannot be asked for now is not lost.
    pub fn has_data(&self, number: u64) -> bool {
        let stat = self.io.stat_at(&self.dirs().data, relative(number).as_ref());
        !matches!(stat, Err(Errno::NOENT | Errno::NOTDIR))
    }

    /// The calls by which all files of the cache are reached.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the index.
    pub fn index_path(&self) -> PathBuf {
        self.path.join(&self.source_name).join(INDEX)
    }

    /// The path of a data file, for people and for programs that read the SSD directly.
    pub fn data_path(&self, number: u64) -> PathBuf {
        self.path.join(&self.source_name).join("data").join(OsStr::from_bytes(relative(number).as_bytes()))
    }

    /// Creates a new, empty data file under a number that no other has.
    pub fn create(&self) -> Result<(u64, OwnedFd)> {
        loop {
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            match self.open_at(number, flags) {
                Ok(fd) => {
                    self.begin(number)?;
                    self.shards.added(number);
                    return Ok((number, fd));
                }
                // No record has so high a number: created when a daemon stopped, and nobody will miss it.
                Err(Errno::EXIST) => {
                    let _ = self.io.remove(&self.dirs().data, relative(number).as_ref());
                }
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

    /// The index will speak of this file: it stays when the cache stops. `false` if the cache has stopped, which removes
    /// the file.
    pub fn finish(&self, number: u64) -> bool {
        match self.unfinished.lock().as_mut() {
            Some(unfinished) => {
                unfinished.remove(&number);
                true
            }
            None => false,
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

    /// Opens a data file. `Corrupt` if it is not a regular file of `size` bytes (a partly filled file has its full
    /// length from the start), or has a second name: ours have one, so another file was put in its place.
    pub fn open_data(&self, number: u64, size: u64, write: bool) -> Result<OwnedFd> {
        let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
        // O_NONBLOCK: a pipe planted in place of the file must not hold us.
        let fd = self
            .open_at(number, access | OFlags::NOFOLLOW | OFlags::NONBLOCK)
            .map_err(|e| self.error("open", number, e))?;
        let stat = self.io.stat(&fd).map_err(|e| self.error("stat", number, e))?;
        let regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !regular || stat.st_size as u64 != size || stat.st_nlink > 1 {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "open",
                PathText(&self.data_path(number)).to_string(),
            ));
        }
        Ok(fd)
    }

    /// Marks data file `number`, which is complete and is not written any more: its modification time becomes a number
    /// made from its name and length. Whoever changes it, exchanges it for another or puts another in its place leaves
    /// another time there. Bits that the disk itself loses do not: checksums are for those.
    pub fn stamp(&self, fd: &OwnedFd, number: u64, size: u64) -> Result<()> {
        self.io.set_time(fd, stamp_of(number, size)).map_err(|e| self.error("stamp", number, e))
    }

    /// Whether what bears the name of a complete data file is what was stamped so.
    pub fn is_as_stamped(&self, number: u64, size: u64) -> bool {
        self.io.stat_at(&self.dirs().data, relative(number).as_ref()).is_ok_and(|s| {
            let is_file = FileType::from_raw_mode(s.st_mode) == FileType::RegularFile;
            let time = (s.st_mtime, s.st_mtime_nsec as i64);
            is_file && s.st_size as u64 == size && time == (stamp_of(number, size), 0)
        })
    }

    /// Removes a data file, and its directory with the last of it; one that is gone already is no error. Nor is it if
    /// somebody has put a directory in its place, or a file in that of its directory: ours is gone, the disk works, and
    /// theirs is not ours to remove.
    pub fn remove(&self, number: u64) -> Result<()> {
        self.finish(number);
        match self.io.remove(&self.dirs().data, relative(number).as_ref()) {
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR | Errno::NOTDIR) => {}
            Err(e) => return Err(self.error("remove", number, e)),
        }
        match self.shards.removed(number, self.next_number()) {
            true => self.remove_shard(number),
            false => Ok(()),
        }
    }

    fn remove_shard(&self, number: u64) -> Result<()> {
        match self.io.remove_dir(&self.dirs().data, dir_of(number).as_ref()) {
            Ok(()) | Err(Errno::NOENT) => self.shards.dropped(number),
            // Theirs, or of a file that was created at this moment.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            Err(e) => return Err(self.error("remove the directory of", number, e)),
        }
        Ok(())
    }

    /// Writes everything of the cache's file system to the disk: one call for a batch of files costs less than one
    /// per file.
    pub fn sync(&self) -> Result<()> {
        self.io
            .sync_fs(&self.dirs().source)
            .map_err(|e| Error::os("syncfs", PathText(&self.path).to_string(), e.raw_os_error()))
    }

    /// Space and inodes left.
    pub fn free(&self) -> Result<DiskFree> {
        let s = self
            .io
            .statvfs(&self.dirs().source)
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
        self.io.stat_at(&self.dirs().data, relative(number).as_ref()).map_or(0, |s| s.st_blocks as u64 * 512)
    }

    /// What the directory takes on the disk beside the data files, bytes; the log not counted, which has a limit of its
    /// own.
    pub fn overhead_bytes(&self) -> u64 {
        let shards = self.shards.count();
        self.index_bytes() + FIXED_BYTES + shards.min(256) * super::BLOCK_BYTES + shards * SHARD_BYTES
    }

    /// What the index takes on the disk, bytes.
    fn index_bytes(&self) -> u64 {
        let stat = self.io.stat_at(&self.dirs().source, INDEX.as_ref());
        stat.map_or(0, |s| s.st_blocks as u64 * 512)
    }

    /// Says which data files there are. New ones are numbered from `next`, above whatever the index on the disk speaks of:
    /// a crash may come before it is told that a file is gone, and then takes who has its number for it.
    pub fn adopt(&self, numbers: impl IntoIterator<Item = u64>, next: u64) {
        numbers.into_iter().for_each(|number| self.shards.added(number));
        self.next_number.store(next, Ordering::Relaxed);
    }

    /// Above the numbers of all data files.
    pub fn next_number(&self) -> u64 {
        self.next_number.load(Ordering::Relaxed)
    }

    /// Removes data files that the index does not know, which a crash left half filled, and directories without any.
    pub fn sweep(&self, known: &HashSet<u64>) -> Result<Swept> {
        let mut swept = Swept::default();
        for shard in self.list(Path::new("."))? {
            for sub in self.list(Path::new(&shard))? {
                let dir = format!("{shard}/{sub}");
                let mut is_empty = true;
                for name in self.list(Path::new(&dir))? {
                    let number = u64::from_str_radix(&name, 16).ok();
                    let path = format!("{dir}/{name}");
                    match number.filter(|n| known.contains(n) && relative(*n) == path) {
                        Some(number) => {
                            swept.kept.insert(number);
                            is_empty = false;
                        }
                        None => {
                            swept.removed +=
                                u64::from(self.io.remove(&self.dirs().data, path.as_ref()).is_ok());
                        }
                    }
                }
                if is_empty {
                    // One that stays is made use of, or is found again at the next sweep.
                    let _ = self.io.remove_dir(&self.dirs().data, dir.as_ref());
                }
            }
        }
        Ok(swept)
    }

    /// Names in a directory under `data`; what is not a directory has none.
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let fail = |e: Errno| Error::os("read directory", PathText(dir).to_string(), e.raw_os_error());
        let fd = match self.io.open(&self.dirs().data, dir, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => return Ok(Vec::new()),
            Err(e) => return Err(fail(e)),
        };
        names_in(&self.io, &fd).map_err(fail)
    }

    fn open_at(&self, number: u64, flags: OFlags) -> std::result::Result<OwnedFd, Errno> {
        self.io.open(&self.dirs().data, relative(number).as_ref(), flags, PRIVATE_FILE)
    }

    fn create_shards(&self, number: u64) -> Result<()> {
        let path = relative(number);
        for dir in [&path[..2], &path[..5]] {
            match self.io.make_dir(&self.dirs().data, dir.as_ref(), PRIVATE_DIR) {
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
    fn open(io: &Io, path: &Path, source_path: &Path, lock: Arc<OwnedFd>) -> Result<Self> {
        let (root, source) = (open_dir(io, path)?, open_dir(io, source_path)?);
        Ok(Self { lock: Mutex::new(lock), root, source, data: open_dir(io, &source_path.join("data"))? })
    }

    /// Whether they have no name any more.
    fn are_removed(&self, io: &Io) -> bool {
        io.stat(&self.data).is_ok_and(|s| s.st_nlink == 0)
    }
}

/// Even seconds from 1990 to 2024, which every file system can keep.
fn stamp_of(number: u64, size: u64) -> i64 {
    let mixed = (number ^ size.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    631_152_000 + 2 * ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 35) as i64
}

/// The directory of one source: a hash of its path, and its last name so that people recognise it.
fn source_name(source: &Path) -> String {
    let hash = blake3::hash(source.as_os_str().as_bytes()).to_hex();
    let last = source.file_name().unwrap_or_default().to_string_lossy();
    let readable: String =
        last.chars().filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c)).take(40).collect();
    format!("{}-{readable}", &hash[..16])
}

/// Directories and files of the cache are for nobody else; given at creation, so that no moment and no umask leaves them
/// open to others.
const PRIVATE_DIR: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// How long a daemon that was killed may take to let go of what it had open.
const LET_GO: Duration = Duration::from_secs(2);

/// Texts in the directory are short; one that is not is not ours.
const TEXT_BYTES_MAX: usize = 4096;

/// A directory that is about to become ours.
struct Setup<'a> {
    io: &'a Io,
    path: &'a Path,
}

impl Setup<'_> {
    /// Makes an existing directory ours and locks it. What is refused is left exactly as it is.
    fn take(&self) -> Result<OwnedFd> {
        self.check_private()?;
        self.refuse_foreign_content()?;
        self.check_format()?;
        let lock = self.take_lock()?;
        let dir = open_dir(self.io, self.path)?;
        self.io.chmod(&dir, PRIVATE_DIR).map_err(|e| os_error("chmod 700", self.path, e))?;
        Ok(lock)
    }

    fn check_private(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, "", text));
        let shown = PathText(self.path);
        let stat =
            self.io.stat_at(CWD, self.path).map_err(|e| os_error("stat cache directory", self.path, e))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink {
            return invalid(format!("cache directory {shown} is a symbolic link; name the directory itself"));
        }
        let me = rustix::process::geteuid().as_raw();
        if stat.st_uid != me {
            return invalid(format!(
                "cache directory {shown} belongs to uid {}, not to uid {me} who runs warmfs; choose another --cache-dir",
                stat.st_uid
            ));
        }
        if stat.st_mode & 0o022 != 0 {
            return invalid(format!(
                "cache directory {shown} can be written by others (mode {:04o}), who could plant data in it; \
                 chmod 700 it or choose another --cache-dir",
                stat.st_mode & 0o7777
            ));
        }
        if kind != FileType::Directory {
            return invalid(format!(
                "cache directory {shown} is not a directory; choose another --cache-dir"
            ));
        }
        Ok(())
    }

    /// A directory that holds something else is not made ours: `--cache-dir ~` is a slip of the hand.
    fn refuse_foreign_content(&self) -> Result<()> {
        for name in self.names()? {
            // FORMAT comes before all else that a daemon makes, perhaps one that starts just now.
            // A socket alone is left by a daemon whose directory was moved away.
            if name != "LOCK"
                && name != "lost+found"
                && name != "control.sock"
                && self.io.stat_at(CWD, &self.path.join("FORMAT")).is_err()
            {
                return Err(Error::new(
                    ErrorKind::Invalid,
                    "",
                    format!(
                        "cache directory {} is not empty and not a warmfs cache (it holds `{}`); choose an empty one",
                        PathText(self.path),
                        PathText(Path::new(&name))
                    ),
                ));
            }
        }
        Ok(())
    }

    fn names(&self) -> Result<Vec<String>> {
        let dir = open_dir(self.io, self.path)?;
        names_in(self.io, &dir).map_err(|e| os_error("read", self.path, e))
    }

    fn check_format(&self) -> Result<()> {
        let ours = format_text();
        match read_text(self.io, &self.path.join("FORMAT")) {
            // Empty: a daemon that starts just now is writing it, or one died there; after a power cut the length may have
            // reached the disk without the bytes.
            Ok(text) if text.iter().all(|b| *b == 0) || is_nearly(&text, ours.as_bytes()) => Ok(()),
            Ok(text) => Err(Error::new(
                ErrorKind::Invalid,
                "",
                format!(
                    "cache directory {} has format `{}`, this warmfs writes `{}`; remove the directory or choose another \
                     --cache-dir",
                    PathText(self.path),
                    escape_bytes(text.trim_ascii()).chars().take(40).collect::<String>(),
                    ours.trim()
                ),
            )),
            // A new directory.
            Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(os_error("read", &self.path.join("FORMAT"), e)),
        }
    }

    /// Once we hold the lock.
    fn write_format(&self) -> Result<()> {
        let file = self.path.join("FORMAT");
        if read_text(self.io, &file).is_ok_and(|text| text == format_text().as_bytes()) {
            return Ok(());
        }
        write_text(self.io, &file, &format_text())?;
        // Before anything else is made: a power cut must not leave a directory that has all but the mark of being ours.
        let dir = open_dir(self.io, self.path)?;
        self.io.sync_fs(&dir).map_err(|e| os_error("sync", self.path, e))
    }

    /// Whether this lock is the one that lies in the directory.
    fn has_lock(&self, lock: &OwnedFd) -> bool {
        let inode = |s: rustix::fs::Stat| (s.st_dev, s.st_ino);
        let there = self.io.stat_at(CWD, &self.path.join("LOCK")).map(inode);
        there.is_ok() && there == self.io.stat(lock).map(inode)
    }

    fn take_lock(&self) -> Result<OwnedFd> {
        let path = self.path.join("LOCK");
        let fail = |e: Errno| os_error("lock", &path, e);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = self.io.open(CWD, &path, flags, PRIVATE_FILE).map_err(fail)?;
        let holder = || text_of(self.io, &file).unwrap_or_default();
        let mut locked = self.io.lock(&file);
        let deadline = Instant::now() + LET_GO;
        while locked == Err(Errno::WOULDBLOCK)
            && !facts::is_alive(holder().trim())
            && Instant::now() < deadline
        {
            std::thread::sleep(Duration::from_millis(5));
            locked = self.io.lock(&file);
        }
        match locked {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "",
                    format!(
                        "cache directory {} is in use by another warmfs (pid {}); unmount that one or choose another \
                         --cache-dir",
                        PathText(self.path),
                        holder().trim()
                    ),
                ));
            }
            Err(e) => return Err(fail(e)),
        }
        self.io.set_len(&file, 0).map_err(fail)?;
        self.io.write_all(&file, std::process::id().to_string().as_bytes(), 0).map_err(fail)?;
        Ok(file)
    }
}

/// Whether it is `ours` but for one flipped bit. A cache is not lost for that, nor is the mount refused: every record of
/// the index vouches for itself. A later format takes a text that differs from this one in more than a bit.
fn is_nearly(text: &[u8], ours: &[u8]) -> bool {
    let bits = text.iter().zip(ours).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    text.len() == ours.len() && bits <= 1
}

fn format_text() -> String {
    format!("warmfs {FORMAT_VERSION}\n")
}

/// Makes a directory and those above it that are missing.
fn create_private(io: &Io, path: &Path) -> Result<()> {
    let fail = |e: Errno| os_error("create cache directory", path, e);
    match io.make_dir(CWD, path, PRIVATE_DIR) {
        Ok(()) => Ok(()),
        // Whatever it is: whether it will do is asked by those who mind.
        Err(Errno::EXIST) => Ok(()),
        Err(Errno::NOENT) => {
            let above = path.parent().ok_or(Errno::NOENT).map_err(fail)?;
            create_private(io, above)?;
            match io.make_dir(CWD, path, PRIVATE_DIR) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(e) => Err(fail(e)),
            }
        }
        Err(e) => Err(fail(e)),
    }
}

fn names_in(io: &Io, dir: &OwnedFd) -> std::result::Result<Vec<String>, Errno> {
    let entries = io.list(dir)?;
    Ok(entries.iter().map(|entry| entry.name.to_string_lossy().into_owned()).collect())
}

/// The text of a small file; never waits on a pipe and never follows a link.
fn read_text(io: &Io, path: &Path) -> std::result::Result<Vec<u8>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    bytes_of(io, &io.open(CWD, path, flags, Mode::empty())?)
}

fn text_of(io: &Io, file: &OwnedFd) -> std::result::Result<String, Errno> {
    Ok(String::from_utf8_lossy(&bytes_of(io, file)?).into_owned())
}

fn bytes_of(io: &Io, file: &OwnedFd) -> std::result::Result<Vec<u8>, Errno> {
    let mut bytes = [0; TEXT_BYTES_MAX];
    let mut len = 0;
    while len < bytes.len() {
        match io.read(file, &mut bytes[len..], len as u64)? {
            0 => break,
            n => len += n,
        }
    }
    Ok(bytes[..len].to_vec())
}

fn write_text(io: &Io, path: &Path, text: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let write = || io.write_all(io.open(CWD, path, flags, PRIVATE_FILE)?, text.as_bytes(), 0);
    write().map_err(|e| os_error("write", path, e))
}

fn open_dir(io: &Io, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    io.open(CWD, path, flags, Mode::empty()).map_err(|e| os_error("open", path, e))
}

fn os_error(op: &'static str, path: &Path, errno: Errno) -> Error {
    Error::os(op, PathText(path).to_string(), errno.raw_os_error())
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

    /// Goal: what is planted in place of the small files is refused at once, in one line, and nothing is written outside.
    /// Method: links to a file and to a directory, a pipe, and text that is not ours.
    #[test]
    fn bug_030_small_files_are_neither_followed_nor_waited_for() {
        let tmp = tempfile::tempdir().unwrap();
        let (cache, outside) = (tmp.path().join("cache"), tmp.path().join("outside"));
        std::fs::create_dir_all(outside.join("data")).unwrap();
        std::fs::write(outside.join("victim"), "as it was").unwrap();
        let id = source_name(Path::new("/s"));
        for (name, plant) in [
            (id.clone() + "/SOURCE", "link"),
            (id.clone(), "link to a directory"),
            ("FORMAT".into(), "link"),
            ("FORMAT".into(), "pipe"),
            ("FORMAT".into(), "text"),
        ] {
            let _ = std::fs::remove_dir_all(&cache);
            drop(CacheDir::open(&cache, Path::new("/s")).unwrap());
            let path = cache.join(&name);
            std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path)).unwrap();
            match plant {
                "link" => symlink(outside.join("victim"), &path).unwrap(),
                "link to a directory" => symlink(&outside, &path).unwrap(),
                "pipe" => {
                    let mode = Mode::from_raw_mode(0o600);
                    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
                }
                _ => std::fs::write(&path, "warmfs\n\x1b[31m".repeat(1000)).unwrap(),
            }
            let error = CacheDir::open(&cache, Path::new("/s")).err();
            let text = error.unwrap_or_else(|| panic!("{name} as a {plant} is taken")).to_string();
            assert!(!text.contains(char::is_control) && text.len() < 1000, "{text}");
            assert_eq!(
                std::fs::read_to_string(outside.join("victim")).unwrap(),
                "as it was",
                "{name} {plant}"
            );
            assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 2, "{name} {plant}");
        }
    }

    #[test]
    fn a_stamped_file_that_is_changed_exchanged_or_replaced_is_not_as_stamped() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let make = || {
            let (number, fd) = dir.create().unwrap();
            rustix::io::write(&fd, b"0123456789").unwrap();
            assert!(!dir.is_as_stamped(number, 10));
            dir.stamp(&fd, number, 10).unwrap();
            assert!(dir.is_as_stamped(number, 10) && !dir.is_as_stamped(number, 11));
            (number, dir.data_path(number))
        };
        let ((a, a_path), (b, b_path)) = (make(), make());
        let aside = tmp.path().join("aside");
        for (from, to) in [(&a_path, &aside), (&b_path, &a_path), (&aside, &b_path)] {
            std::fs::rename(from, to).unwrap();
        }
        assert!(!dir.is_as_stamped(a, 10) && !dir.is_as_stamped(b, 10));
        let (c, c_path) = make();
        std::fs::write(&c_path, b"0123456789").unwrap();
        assert!(!dir.is_as_stamped(c, 10));
        let (d, d_path) = make();
        std::fs::remove_file(&d_path).unwrap();
        symlink(&c_path, &d_path).unwrap();
        assert!(!dir.is_as_stamped(d, 10));
        let times: HashSet<i64> = (0..10_000).map(|n| stamp_of(n, 4096)).collect();
        assert!(times.len() > 9_990, "{} of 10,000 differ", times.len());
        assert!(times.iter().all(|t| (631_152_000..1_704_900_000).contains(t)));
    }

    #[test]
    fn a_format_with_one_flipped_bit_is_healed_and_another_one_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("cache");
        drop(CacheDir::open(&path, Path::new("/s")).unwrap());
        let ours = std::fs::read(path.join("FORMAT")).unwrap();
        for bit in 0..ours.len() * 8 {
            let mut text = ours.clone();
            text[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(path.join("FORMAT"), &text).unwrap();
            drop(CacheDir::open(&path, Path::new("/s")).unwrap());
            assert_eq!(std::fs::read(path.join("FORMAT")).unwrap(), ours, "bit {bit}");
        }
        for other in ["warmfs 2\n", "warmfs 4\n", "warmfs 10\n", "\u{7}\n"] {
            std::fs::write(path.join("FORMAT"), other).unwrap();
            assert!(CacheDir::open(&path, Path::new("/s")).is_err(), "{other:?}");
        }
    }

    #[test]
    fn sweeping_removes_what_the_index_does_not_know() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let numbers: Vec<u64> = (0..5).map(|_| dir.create().unwrap().0).collect();
        assert_eq!(
            dir.sweep(&HashSet::from([numbers[1], numbers[3], 99])).unwrap(),
            Swept { removed: 3, kept: HashSet::from([numbers[1], numbers[3]]) }
        );
        assert!(dir.data_path(numbers[1]).exists() && !dir.data_path(numbers[0]).exists());
    }

    #[test]
    fn what_is_not_ours_to_remove_is_no_fault_of_the_disk() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let (number, _) = dir.create().unwrap();
        let path = dir.data_path(number);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        dir.remove(number).unwrap();
        assert!(path.is_dir(), "a directory is not ours");
        let above = path.parent().unwrap();
        std::fs::remove_dir_all(above).unwrap();
        std::fs::write(above, "theirs").unwrap();
        dir.remove(number).unwrap();
        assert_eq!(std::fs::read(above).unwrap(), b"theirs");
    }

    /// Goal: what was filled and evicted long ago takes up no room: neither the directories nor what is counted for them.
    #[test]
    fn directories_go_with_their_last_file() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let (first, _) = dir.create().unwrap();
        let before = dir.overhead_bytes();
        let mut last = first;
        for _ in 0..5000 {
            let (number, _) = dir.create().unwrap();
            dir.remove(std::mem::replace(&mut last, number)).unwrap();
        }
        assert_eq!(dir.overhead_bytes(), before);
        let top = dir.data_path(last).ancestors().nth(2).unwrap().to_path_buf();
        let names: Vec<_> = std::fs::read_dir(top).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["04"]);
        // The same after a crash, which may leave some.
        (0..3).for_each(|shard| dir.create_shards(shard << 10).unwrap());
        assert_eq!(dir.sweep(&HashSet::from([last])).unwrap().kept, HashSet::from([last]));
        let left = std::fs::read_dir(dir.data_path(last).ancestors().nth(2).unwrap()).unwrap().count();
        assert_eq!(left, 1);
    }

    /// Goal: a file that came into being while a daemon stopped, so that no record speaks of it and the next start, which
    /// is after a clean stop, does not look for it, goes when its number comes up; nothing is created in its place then.
    #[test]
    fn a_file_that_nobody_knows_goes_when_its_number_comes_up() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&tmp.path().join("cache"), Path::new("/s")).unwrap();
        let (unknown, _) = dir.create().unwrap();
        dir.adopt([], unknown);
        while dir.next_number() <= unknown {
            let (number, _) = dir.create().unwrap();
            assert!(number != unknown && dir.data_path(number).exists());
        }
        assert!(!dir.data_path(unknown).exists());
    }
}
