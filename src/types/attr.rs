//! Attributes of a source object, as every room passes them on: complete, with nanoseconds, and without a node
//! number, which is the business of the `fs` room.

use super::Identity;

/// Seconds and nanoseconds since the epoch; seconds may be negative (files older than 1970 exist).
///
/// Packed to 12 bytes: four of them are kept of every file that the kernel knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C, packed(4))]
pub struct Timestamp {
    /// Seconds since 1970-01-01 UTC.
    pub secs: i64,
    /// Nanoseconds of that second, always 0..1e9 and always counted forward.
    pub nanos: u32,
}

impl Timestamp {
    /// The epoch.
    pub const ZERO: Self = Self { secs: 0, nanos: 0 };
}

/// The type of a source object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// Regular file: the only kind that is cached.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link, served as a link and never followed by the daemon.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Unix socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl Attr {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self {
        kind: FileKind::Regular,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: Timestamp::ZERO,
        mtime: Timestamp::ZERO,
        ctime: Timestamp::ZERO,
        identity: Identity { dev: 0, ino: 0, birth: Timestamp::ZERO },
    };
}

/// All that `stat` says of a source object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Type.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits included.
    pub perm: u16,
    /// Link count.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device file, as the kernel encodes it for FUSE (32 bits).
    pub rdev: u32,
    /// Length in bytes.
    pub size: u64,
    /// Allocated 512-byte blocks.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last modification.
    pub mtime: Timestamp,
    /// Last inode change.
    pub ctime: Timestamp,
    /// Which object this is.
    pub identity: Identity,
}
