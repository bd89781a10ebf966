//! Attributes and errors in the kernel's terms.

use crate::types::{Attr, Error, ErrorKind, FileKind, NodeId, Timestamp};
use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime};

/// What `stat` reports as the preferred I/O size. At 4 KiB, readers that take it as their buffer (stdio, OpenCV) make a
/// request per page; 128 KiB is what network file systems say too.
const BLOCK_SIZE: u32 = 128 << 10;

/// Attributes of a node.
pub fn file_attr(node: NodeId, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(node),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// Of an entry that does not exist: node 0.
pub fn no_attr() -> FileAttr {
    FileAttr { size: 0, ..listed_attr(0, FileKind::Regular) }
}

/// Of an entry that is listed without its attributes: a number that stands for no node, its type, and a size that no file
/// has. The kernel then tells the entry to who reads the directory and makes nothing of the rest (`fuse_invalid_attr`, asked
/// by `fuse_direntplus_link` in `fs/fuse/readdir.c`). With a size that could be true it would link the entry, and for that wait for whoever is looking up
/// the same name, as long as the source takes to answer. (Node 0 says the same; the library writes one number for
/// the node and for `d_ino`, which must not be 0.)
pub fn listed_attr(id: NodeId, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(id),
        size: u64::MAX,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(kind),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The type of a node.
pub fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

fn system_time(t: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(t.nanos));
    let seconds = Duration::from_secs(t.secs.unsigned_abs());
    let whole = if t.secs < 0 {
        // The library halves a time before 1970 into seconds and a fraction the wrong way round (fuser 0.18): such a
        // time is told in whole seconds.
        return SystemTime::UNIX_EPOCH.checked_sub(seconds).unwrap_or(SystemTime::UNIX_EPOCH);
    } else {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    };
    whole.and_then(|t| t.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The errno for the reader. The source's own goes through as it is; what we say ourselves follows from the kind.
pub fn errno(error: &Error) -> Errno {
    if let Some(errno) = error.errno() {
        return match errno {
            // A source that interrupts itself, or asks to be asked again, must not show: no program expects either
            // from a file. (EAGAIN is also our own answer to a read-ahead, which nobody sees.)
            4 => Errno::EIO,
            // The source's path led outside its root: the reader sees a link that leads nowhere it may go.
            18 => Errno::EACCES,
            other => Errno::from_i32(other),
        };
    }
    match error.kind() {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Stale => Errno::from_i32(116),
        ErrorKind::Escapes => Errno::EACCES,
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::Busy => Errno::EBUSY,
        ErrorKind::Invalid => Errno::EINVAL,
        ErrorKind::TimedOut => Errno::from_i32(110),
        // Damage on the SSD never reaches a reader; if it does, it is ours.
        ErrorKind::Corrupt | ErrorKind::Io => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_of_the_source_goes_through_but_three() {
        for n in 1..=133 {
            let expected = match n {
                4 => 5,
                18 => 13,
                n => n,
            };
            assert_eq!(errno(&Error::os("x", "y", n)).code(), expected, "{n}");
        }
    }

    #[test]
    fn every_kind_has_an_errno() {
        for (kind, expected) in [
            (ErrorKind::NotFound, 2),
            (ErrorKind::Stale, 116),
            (ErrorKind::Escapes, 13),
            (ErrorKind::NoSpace, 28),
            (ErrorKind::Corrupt, 5),
            (ErrorKind::Busy, 16),
            (ErrorKind::Invalid, 22),
            (ErrorKind::TimedOut, 110),
            (ErrorKind::Io, 5),
        ] {
            assert_eq!(errno(&Error::new(kind, "x", "y")).code(), expected, "{kind:?}");
        }
    }

    #[test]
    fn bug_003_nanoseconds_survive() {
        let t = Timestamp { secs: 1_700_000_000, nanos: 123_456_789 };
        let since = system_time(t).duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!((since.as_secs(), since.subsec_nanos()), (1_700_000_000, 123_456_789));
    }
}
