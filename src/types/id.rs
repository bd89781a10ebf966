//! Which file, which content of it, and under which number the kernel knows it.
//!
//! Three different questions that are easily taken for one. A [`FileId`] is the key of the cache and outlives a
//! restart. A [`FileVersion`] says which content: two equal versions have equal bytes. An [`Identity`] is what the
//! source's kernel calls the same object right now, and is only ever kept in memory.

use super::Timestamp;

/// The number under which the kernel knows a node; also `st_ino`, because the FUSE library ties the two together.
pub type NodeId = u64;

/// The key of a file in the cache: stable for as long as the source is.
///
/// For sources with stable inode numbers it is (device, inode), the device being 0 for the source's own; hard links
/// then share one cached copy. For the others (FUSE file systems that number inodes as they go) it is a hash of the
/// path. `backing::local` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// High half: device, or upper half of a path hash.
    pub high: u64,
    /// Low half: inode, or lower half of a path hash.
    pub low: u64,
}

impl FileId {
    /// The 16 bytes under which the index knows the file: big-endian, so that byte order is number order.
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.high) << 64) | u128::from(self.low)).to_be_bytes()
    }

    /// The reverse of [`FileId::to_bytes`].
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let n = u128::from_be_bytes(bytes);
        Self { high: (n >> 64) as u64, low: n as u64 }
    }
}

impl FileId {
    /// 32 bits by which a table may know the file where a rare mistake does no harm. Ids whose numbers are neighbours
    /// have fingerprints that are not.
    pub fn fingerprint(self) -> u32 {
        let mixed =
            (self.low ^ self.high.rotate_left(32)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
    }
}

/// A data set, as far as the paths of its files tell: what the policy decides about as one. Good for one run of the
/// daemon; `policy::groups` gives them out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(pub u16);

/// Which content of a file. Equal versions have equal bytes; anything that may have changed the bytes changes the
/// version (`ctime` cannot be set by a user), but for changes within one step of the source's clock, which the rule in
/// `backing::racy` is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileVersion {
    /// Length in bytes.
    pub size: u64,
    /// Last modification, nanoseconds.
    pub mtime: Timestamp,
    /// Last change of the inode, nanoseconds.
    pub ctime: Timestamp,
    /// Inode number, or 0 where the source's numbers are not stable.
    pub ino: u64,
}

/// What the source's kernel calls the same object: survives rename, differs after delete and recreate even when the
/// inode number is used again, where the file system records a birth time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Device of the source file.
    pub dev: u64,
    /// Inode of the source file.
    pub ino: u64,
    /// Birth time, zero where the file system has none.
    pub birth: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_id_bytes_round_trip_and_sort() {
        let a = FileId { high: 1, low: u64::MAX };
        let b = FileId { high: 2, low: 0 };
        assert_eq!(FileId::from_bytes(a.to_bytes()), a);
        assert!(a.to_bytes() < b.to_bytes());
    }

    #[test]
    fn fingerprints_of_neighbours_differ_in_every_bit() {
        let prints: Vec<u32> = (0..1000).map(|low| FileId { high: 0, low }.fingerprint()).collect();
        let distinct: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
        for bit in 0..32 {
            let set = prints.iter().filter(|&&print| print & (1 << bit) != 0).count();
            assert!((400..600).contains(&set), "bit {bit}: {set}");
        }
    }
}
