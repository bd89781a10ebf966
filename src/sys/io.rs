//! The one way to the kernel for all who touch files of the SSD or of the source: opening, reading, writing, naming,
//! syncing.
//!
//! It stands between so that a test can count every call, fail the n-th one, cut a transfer short, delay it, let it hang, flip
//! a bit of what was read, or keep a record from which it builds what a power cut would have left ([`Between`]). In
//! production nothing stands there, and a call costs one look at an `Option`. `tests/it/tidy.rs` holds that the rooms
//! `store`, `backing` and `cache` make no such call by another way.
//!
//! Calls that a signal cut off are made again, here and nowhere else: for who reads a file, EINTR does not exist.

use super::lease;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, OFlags, ResolveFlags, Stat, StatVfs, Statx, StatxFlags,
};
use rustix::io::{Errno, ReadWriteFlags};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// What this room's calls answer.
type Result<T> = std::result::Result<T, Errno>;

/// Most bytes of one ACL: a page, which is also the most that the kernel takes from a FUSE file system (fs/fuse/acl.c). It
/// holds 511 entries; a longer one is an error, and lets nobody in.
const ACL_BYTES_MAX: usize = 4096;

/// How often in a row EINTR is asked again. Signals may come at 1 kHz, and a source on another FUSE file system may
/// answer each with EINTR.
const INTERRUPTED_RETRIES: u32 = 10_000;

/// Kinds of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// openat, openat2.
    Open,
    /// fstat, fstatat, statx.
    Stat,
    /// statfs, statvfs.
    StatFs,
    /// getdents, to the end of the directory.
    List,
    /// readlinkat.
    ReadLink,
    /// getxattr of the access control list.
    Acl,
    /// pread.
    Read,
    /// preadv2 that does not wait for a disk.
    ReadCached,
    /// The same two, of bytes that were read and compared with their checksum a moment before: they come from the page cache.
    ReadAgain,
    /// A read by io_uring.
    RingRead,
    /// pwrite.
    Write,
    /// A write by io_uring.
    RingWrite,
    /// ftruncate.
    SetLen,
    /// fallocate that makes a hole.
    Punch,
    /// fdatasync.
    SyncData,
    /// syncfs.
    SyncFs,
    /// mkdirat.
    MakeDir,
    /// unlinkat.
    Remove,
    /// unlinkat of a directory.
    RemoveDir,
    /// renameat.
    Rename,
    /// fchmod.
    Chmod,
    /// futimens.
    SetTime,
    /// fcntl that turns the page cache off or on for a descriptor.
    Direct,
    /// posix_fadvise that drops pages.
    DropPages,
    /// flock, exclusive and at once.
    Lock,
    /// fcntl that asks whether somebody has the file open for writing.
    Writers,
    /// memfd_create.
    Memory,
}

/// A call that is about to be made, or was made.
pub struct Call<'a> {
    /// What is asked.
    pub op: Op,
    /// The file, or the directory that `path` starts from.
    pub fd: BorrowedFd<'a>,
    /// Below `fd`; empty where the call is about `fd` itself.
    pub path: &'a Path,
    /// Place in the file, bytes; of `SetLen` the new length.
    pub offset: u64,
    /// Bytes to move, or to make a hole of.
    pub len: usize,
    /// Bytes to write.
    pub bytes: &'a [u8],
}

/// What a call that succeeded brought.
pub enum Outcome<'a> {
    /// Nothing to be seen from here.
    Done,
    /// An open file.
    Opened(BorrowedFd<'a>),
    /// These bytes.
    Read(&'a [u8]),
    /// So many bytes were written.
    Wrote(usize),
}

/// How a call may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Bytes that may move at most.
    pub most: usize,
    /// Whether one bit of what is read becomes another.
    pub flip: bool,
}

impl Pass {
    /// As if nobody stood there.
    pub const WHOLE: Self = Self { most: usize::MAX, flip: false };
}

/// Who stands between the callers and the kernel: a test.
pub trait Between: Send + Sync {
    /// Before a call. An error is the answer, and the call is not made.
    fn before(&self, call: &Call<'_>) -> Result<Pass>;

    /// After a call that succeeded.
    fn after(&self, call: &Call<'_>, outcome: Outcome<'_>);
}

/// The calls. Cheap to clone; every clone has the same between.
#[derive(Clone, Default)]
pub struct Io(Option<Arc<dyn Between>>);

/// Calls with nothing between.
pub static PLAIN: Io = Io(None);

/// One name in a directory.
pub struct RawEntry {
    /// The name.
    pub name: CString,
    /// Inode number.
    pub ino: u64,
    /// Type, `Unknown` where the file system does not say.
    pub kind: FileType,
}

impl Io {
    /// Calls that pass through `between`.
    pub fn through(between: Arc<dyn Between>) -> Self {
        Self(Some(between))
    }

    /// Opens `path`, which starts at `dir`.
    pub fn open(&self, dir: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        let call = Call::at(Op::Open, dir.as_fd(), path);
        self.run(call, |_| rustix::fs::openat(&dir, path, flags | OFlags::CLOEXEC, mode), opened)
    }

    /// Opens `path`, resolved as `resolve` says.
    pub fn open_beneath(
        &self,
        dir: impl AsFd,
        path: &Path,
        flags: OFlags,
        resolve: ResolveFlags,
    ) -> Result<OwnedFd> {
        let call = Call::at(Op::Open, dir.as_fd(), path);
        let flags = flags | OFlags::CLOEXEC;
        self.run(call, |_| rustix::fs::openat2(&dir, path, flags, Mode::empty(), resolve), opened)
    }

    /// Attributes of an open file.
    pub fn stat(&self, fd: impl AsFd) -> Result<Stat> {
        self.run(Call::on(Op::Stat, fd.as_fd()), |_| rustix::fs::fstat(&fd), done)
    }

    /// Attributes of `path`, links not followed.
    pub fn stat_at(&self, dir: impl AsFd, path: &Path) -> Result<Stat> {
        let call = Call::at(Op::Stat, dir.as_fd(), path);
        self.run(call, |_| rustix::fs::statat(&dir, path, AtFlags::SYMLINK_NOFOLLOW), done)
    }

    /// Attributes of `name` (empty: of `dir` itself), with the time of birth, links not followed.
    pub fn statx(&self, dir: impl AsFd, name: &CStr) -> Result<Statx> {
        let mut flags = AtFlags::SYMLINK_NOFOLLOW;
        flags.set(AtFlags::EMPTY_PATH, name.is_empty());
        let call = Call::on(Op::Stat, dir.as_fd());
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        self.run(call, |_| rustix::fs::statx(&dir, name, flags, mask), done)
    }

    /// What else is to be known of an open file: the fields of `mask` that the file system has.
    pub fn statx_of(&self, fd: impl AsFd, mask: StatxFlags) -> Result<Statx> {
        let call = Call::on(Op::Stat, fd.as_fd());
        self.run(call, |_| rustix::fs::statx(&fd, c"", AtFlags::EMPTY_PATH, mask), done)
    }

    /// Space and inodes of a file system.
    pub fn statvfs(&self, fd: impl AsFd) -> Result<StatVfs> {
        self.run(Call::on(Op::StatFs, fd.as_fd()), |_| rustix::fs::fstatvfs(&fd), done)
    }

    /// The same with its type.
    pub fn statfs(&self, fd: impl AsFd) -> Result<rustix::fs::StatFs> {
        self.run(Call::on(Op::StatFs, fd.as_fd()), |_| rustix::fs::fstatfs(&fd), done)
    }

    /// All names in an open directory but `.` and `..`.
    pub fn list(&self, dir: impl AsFd) -> Result<Vec<RawEntry>> {
        self.run(Call::on(Op::List, dir.as_fd()), |_| list(dir.as_fd()), done)
    }

    /// The text of an open symbolic link.
    pub fn read_link(&self, link: impl AsFd) -> Result<Vec<u8>> {
        let read = |_| rustix::fs::readlinkat(&link, c"", Vec::new()).map(CString::into_bytes);
        self.run(Call::on(Op::ReadLink, link.as_fd()), read, done)
    }

    /// The access control list of an open object (O_PATH is enough), as the kernel's extended attribute holds it; ENODATA
    /// where the mode says everything.
    pub fn acl(&self, fd: impl AsFd) -> Result<Vec<u8>> {
        // By the descriptor's path, because an O_PATH descriptor gives no attributes; it is no link of the source's.
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let get = |_| {
            let mut acl = vec![0; ACL_BYTES_MAX];
            let len = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut acl)?;
            acl.truncate(len);
            Ok(acl)
        };
        self.run(Call::on(Op::Acl, fd.as_fd()), get, done)
    }

    /// Reads at `offset`; may be short, 0 only at the end.
    pub fn read(&self, fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.read_as(Op::Read, fd, buffer, offset)
    }

    fn read_as(&self, op: Op, fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let call = Call::transfer(op, fd.as_fd(), offset, buffer.len());
        self.run_read(call, buffer, |buffer| rustix::io::pread(&fd, buffer, offset))
    }

    /// Reads at `offset` what is in the page cache; EAGAIN if nothing is. `again`: the bytes were looked at before.
    pub fn read_cached(&self, fd: impl AsFd, buffer: &mut [u8], offset: u64, again: bool) -> Result<usize> {
        let op = if again { Op::ReadAgain } else { Op::ReadCached };
        let call = Call::transfer(op, fd.as_fd(), offset, buffer.len());
        self.run_read(call, buffer, |buffer| {
            let mut parts = [std::io::IoSliceMut::new(buffer)];
            rustix::io::preadv2(&fd, &mut parts, offset, ReadWriteFlags::NOWAIT)
        })
    }

    /// Writes at `offset`; may be short.
    pub fn write(&self, fd: impl AsFd, bytes: &[u8], offset: u64) -> Result<usize> {
        let call = Call { bytes, ..Call::transfer(Op::Write, fd.as_fd(), offset, bytes.len()) };
        let write = |most: usize| rustix::io::pwrite(&fd, &bytes[..bytes.len().min(most)], offset);
        self.run(call, write, |n| Outcome::Wrote(*n))
    }

    /// Reads exactly `buffer`; an end before that is EIO.
    pub fn read_exact(&self, fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_exact_as(Op::Read, fd, buffer, offset)
    }

    /// The same of bytes that were looked at before.
    pub fn read_again(&self, fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.read_exact_as(Op::ReadAgain, fd, buffer, offset)
    }

    fn read_exact_as(&self, op: Op, fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<()> {
        let mut moved = 0;
        while moved < buffer.len() {
            match self.read_as(op, &fd, &mut buffer[moved..], offset + moved as u64)? {
                0 => return Err(Errno::IO),
                n => moved += n,
            }
        }
        Ok(())
    }

    /// Writes all of `bytes`.
    pub fn write_all(&self, fd: impl AsFd, bytes: &[u8], offset: u64) -> Result<()> {
        let mut moved = 0;
        while moved < bytes.len() {
            match self.write(&fd, &bytes[moved..], offset + moved as u64)? {
                0 => return Err(Errno::IO),
                n => moved += n,
            }
        }
        Ok(())
    }

    /// What a read by io_uring answered, after whoever stands between has had a say.
    pub fn ring_read(
        &self,
        fd: impl AsFd,
        buffer: &mut [u8],
        offset: u64,
        answer: std::result::Result<usize, i32>,
    ) -> std::result::Result<usize, i32> {
        if self.0.is_none() {
            return answer;
        }
        let call = Call::transfer(Op::RingRead, fd.as_fd(), offset, buffer.len());
        let answer = answer.map_err(Errno::from_raw_os_error);
        self.once_read(&call, buffer, |buffer| answer.map(|n| n.min(buffer.len())))
            .map_err(Errno::raw_os_error)
    }

    /// The same of a write.
    pub fn ring_write(
        &self,
        fd: impl AsFd,
        bytes: &[u8],
        offset: u64,
        answer: std::result::Result<usize, i32>,
    ) -> std::result::Result<usize, i32> {
        if self.0.is_none() {
            return answer;
        }
        let call = Call { bytes, ..Call::transfer(Op::RingWrite, fd.as_fd(), offset, bytes.len()) };
        let answer = answer.map_err(Errno::from_raw_os_error);
        self.once(&call, |most| answer.map(|n| n.min(most)), |n| Outcome::Wrote(*n))
            .map_err(Errno::raw_os_error)
    }

    /// Gives an open file this length.
    pub fn set_len(&self, fd: impl AsFd, len: u64) -> Result<()> {
        let call = Call { offset: len, ..Call::on(Op::SetLen, fd.as_fd()) };
        self.run(call, |_| rustix::fs::ftruncate(&fd, len), done)
    }

    /// Makes a hole; the length stays.
    pub fn punch(&self, fd: impl AsFd, offset: u64, len: u64) -> Result<()> {
        let call = Call::transfer(Op::Punch, fd.as_fd(), offset, len as usize);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.run(call, |_| rustix::fs::fallocate(&fd, flags, offset, len), done)
    }

    /// Brings the data of a file to the disk.
    pub fn sync_data(&self, fd: impl AsFd) -> Result<()> {
        self.run(Call::on(Op::SyncData, fd.as_fd()), |_| rustix::fs::fdatasync(&fd), done)
    }

    /// Brings everything of a file system to the disk.
    pub fn sync_fs(&self, fd: impl AsFd) -> Result<()> {
        self.run(Call::on(Op::SyncFs, fd.as_fd()), |_| rustix::fs::syncfs(&fd), done)
    }

    /// Makes a directory.
    pub fn make_dir(&self, dir: impl AsFd, path: &Path, mode: Mode) -> Result<()> {
        self.run(Call::at(Op::MakeDir, dir.as_fd(), path), |_| rustix::fs::mkdirat(&dir, path, mode), done)
    }

    /// Removes the name of what is not a directory.
    pub fn remove(&self, dir: impl AsFd, path: &Path) -> Result<()> {
        let call = Call::at(Op::Remove, dir.as_fd(), path);
        self.run(call, |_| rustix::fs::unlinkat(&dir, path, AtFlags::empty()), done)
    }

    /// Removes a directory that is empty.
    pub fn remove_dir(&self, dir: impl AsFd, path: &Path) -> Result<()> {
        let call = Call::at(Op::RemoveDir, dir.as_fd(), path);
        self.run(call, |_| rustix::fs::unlinkat(&dir, path, AtFlags::REMOVEDIR), done)
    }

    /// Gives `from` the name `to`, both below `dir`.
    pub fn rename(&self, dir: impl AsFd, from: &Path, to: &Path) -> Result<()> {
        let call = Call::at(Op::Rename, dir.as_fd(), from);
        self.run(call, |_| rustix::fs::renameat(&dir, from, &dir, to), done)
    }

    /// Sets the permissions of an open file.
    pub fn chmod(&self, fd: impl AsFd, mode: Mode) -> Result<()> {
        self.run(Call::on(Op::Chmod, fd.as_fd()), |_| rustix::fs::fchmod(&fd, mode), done)
    }

    /// Sets the times of an open file, seconds since 1970.
    pub fn set_time(&self, fd: impl AsFd, seconds: i64) -> Result<()> {
        let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        self.run(Call::on(Op::SetTime, fd.as_fd()), |_| rustix::fs::futimens(&fd, &times), done)
    }

    /// Whether reads of this descriptor pass the page cache by; EINVAL where the file system has no such reads.
    pub fn set_direct(&self, fd: impl AsFd, direct: bool) -> Result<()> {
        let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
        self.run(Call::on(Op::Direct, fd.as_fd()), |_| rustix::fs::fcntl_setfl(&fd, flags), done)
    }

    /// Drops clean pages of a file that nobody has mapped.
    pub fn drop_pages(&self, fd: impl AsFd, offset: u64, len: u64) -> Result<()> {
        let call = Call::transfer(Op::DropPages, fd.as_fd(), offset, len as usize);
        let advice = rustix::fs::Advice::DontNeed;
        self.run(call, |_| rustix::fs::fadvise(&fd, offset, std::num::NonZeroU64::new(len), advice), done)
    }

    /// Locks an open file for us alone; EWOULDBLOCK if another has it.
    pub fn lock(&self, fd: impl AsFd) -> Result<()> {
        let lock = |_| rustix::fs::flock(&fd, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        self.run(Call::on(Op::Lock, fd.as_fd()), lock, done)
    }

    /// Whether somebody has an open file open for writing; see [`lease::is_open_for_writing`].
    pub fn is_open_for_writing(&self, fd: impl AsFd) -> Result<bool> {
        self.run(Call::on(Op::Writers, fd.as_fd()), |_| lease::is_open_for_writing(fd.as_fd()), done)
    }

    /// A file in memory.
    pub fn memory(&self, name: &str) -> Result<OwnedFd> {
        let create = |_| rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC);
        self.run(Call::at(Op::Memory, rustix::fs::CWD, Path::new(name)), create, opened)
    }

    /// Makes a call, again while signals cut it off.
    fn run<T>(
        &self,
        call: Call<'_>,
        make: impl Fn(usize) -> Result<T>,
        outcome: impl for<'a> Fn(&'a mut T) -> Outcome<'a>,
    ) -> Result<T> {
        let mut retries = 0;
        loop {
            match self.once(&call, &make, &outcome) {
                Err(Errno::INTR) if retries < INTERRUPTED_RETRIES => retries += 1,
                other => return other,
            }
        }
    }

    fn once<T>(
        &self,
        call: &Call<'_>,
        make: impl Fn(usize) -> Result<T>,
        outcome: impl for<'a> Fn(&'a mut T) -> Outcome<'a>,
    ) -> Result<T> {
        let Some(between) = &self.0 else { return make(usize::MAX) };
        let mut answer = make(between.before(call)?.most)?;
        between.after(call, outcome(&mut answer));
        Ok(answer)
    }

    fn run_read(
        &self,
        call: Call<'_>,
        buffer: &mut [u8],
        make: impl Fn(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let mut retries = 0;
        loop {
            match self.once_read(&call, buffer, &make) {
                Err(Errno::INTR) if retries < INTERRUPTED_RETRIES => retries += 1,
                other => return other,
            }
        }
    }

    fn once_read(
        &self,
        call: &Call<'_>,
        buffer: &mut [u8],
        make: impl Fn(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let Some(between) = &self.0 else { return make(buffer) };
        let pass = between.before(call)?;
        let n = make(&mut buffer[..pass.most.min(call.len)])?;
        if pass.flip && n > 0 {
            buffer[n / 2] ^= 0x10;
        }
        between.after(call, Outcome::Read(&buffer[..n]));
        Ok(n)
    }
}

impl<'a> Call<'a> {
    fn on(op: Op, fd: BorrowedFd<'a>) -> Self {
        Self::at(op, fd, Path::new(""))
    }

    fn at(op: Op, fd: BorrowedFd<'a>, path: &'a Path) -> Self {
        Self { op, fd, path, offset: 0, len: 0, bytes: &[] }
    }

    fn transfer(op: Op, fd: BorrowedFd<'a>, offset: u64, len: usize) -> Self {
        Self { offset, len, ..Self::on(op, fd) }
    }
}

fn done<T>(_: &mut T) -> Outcome<'_> {
    Outcome::Done
}

fn opened(fd: &mut OwnedFd) -> Outcome<'_> {
    Outcome::Opened(OwnedFd::as_fd(fd))
}

fn list(dir: BorrowedFd<'_>) -> Result<Vec<RawEntry>> {
    let mut entries = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            entries.push(RawEntry { name: name.to_owned(), ino: entry.ino(), kind: entry.file_type() });
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::collections::VecDeque;

    /// Answers calls as told, then lets them through.
    #[derive(Default)]
    struct Told {
        answers: Mutex<VecDeque<Result<usize>>>,
        seen: Mutex<Vec<Op>>,
        read: Mutex<Vec<u8>>,
    }

    impl Between for Told {
        fn before(&self, call: &Call<'_>) -> Result<Pass> {
            self.seen.lock().push(call.op);
            let most = self.answers.lock().pop_front().unwrap_or(Ok(usize::MAX))?;
            Ok(Pass { most, flip: call.op == Op::RingRead })
        }

        fn after(&self, _: &Call<'_>, outcome: Outcome<'_>) {
            if let Outcome::Read(bytes) = outcome {
                self.read.lock().extend_from_slice(bytes);
            }
        }
    }

    fn told(answers: impl IntoIterator<Item = Result<usize>>) -> (Io, Arc<Told>) {
        let told = Arc::new(Told { answers: Mutex::new(answers.into_iter().collect()), ..Told::default() });
        (Io::through(told.clone()), told)
    }

    #[test]
    fn whoever_stands_between_fails_shortens_and_changes_and_signals_are_not_seen() {
        let file = tempfile::tempfile().unwrap();
        let (io, told) = told([Err(Errno::INTR), Ok(2), Err(Errno::INTR), Ok(3), Err(Errno::IO)]);
        assert_eq!(io.write(&file, b"abcd", 0), Ok(2));
        let mut buffer = [0; 4];
        assert_eq!(io.read(&file, &mut buffer, 0), Ok(2));
        assert_eq!((&buffer, &told.read.lock()[..]), (b"ab\0\0", &b"ab"[..]));
        assert_eq!(io.stat(&file).err(), Some(Errno::IO));
        assert_eq!(io.stat(&file).unwrap().st_size, 2);
        assert_eq!(*told.seen.lock(), [Op::Write, Op::Write, Op::Read, Op::Read, Op::Stat, Op::Stat]);
    }

    #[test]
    fn short_transfers_are_carried_on_and_an_early_end_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        let (io, _) = told([Ok(1), Ok(1), Ok(2), Ok(1)]);
        io.write_all(&file, b"abcd", 0).unwrap();
        let mut buffer = [0; 4];
        Io::default().read_exact(&file, &mut buffer, 0).unwrap();
        assert_eq!(&buffer, b"abcd");
        assert_eq!(io.read_exact(&file, &mut [0; 5], 0), Err(Errno::IO));
    }

    #[test]
    fn answers_of_a_ring_pass_too() {
        let file = tempfile::tempfile().unwrap();
        // 'b' with a bit changed is 'r'.
        let (io, told) = told([Ok(3), Err(Errno::NOSPC)]);
        let mut buffer = *b"abcdef";
        assert_eq!(io.ring_read(&file, &mut buffer, 0, Ok(6)), Ok(3));
        assert_eq!(&buffer, b"arcdef");
        assert_eq!(io.ring_write(&file, &buffer, 0, Ok(6)), Err(Errno::NOSPC.raw_os_error()));
        assert_eq!(io.ring_write(&file, &buffer, 0, Err(5)), Err(5));
        assert_eq!(Io::default().ring_read(&file, &mut buffer, 0, Ok(6)), Ok(6));
        assert_eq!(told.seen.lock().len(), 3);
    }
}
