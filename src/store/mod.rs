//! Bytes on the SSD, and what may be believed of them.
//!
//! One plain file per source file at the same offsets ([`dir`]), because the kernel's passthrough has no offset
//! mapping; an index that survives a crash ([`index`], [`mod@format`], [`names`]); space reserved before it is used ([`budget`]);
//! and [`CacheFile`], which is one version of one file and everything known of its chunks. A room of mechanisms: what
//! to fetch, keep or drop is decided above.
#![forbid(unsafe_code)]

pub mod ahead;
pub mod budget;
pub mod dir;
pub mod file;
pub mod format;
pub mod index;
mod index_file;
pub mod names;
pub mod ram;
mod shards;
pub mod spool;

pub use ahead::{Ahead, Tally};
pub use budget::{Budget, Reservation};
pub use dir::CacheDir;
pub use file::{CacheFile, Chunk, FileUse, Place};
pub use format::Record;
pub use index::{Change, Index};
pub use ram::RamWindow;

/// Blocks of the cache's file system, for accounting: what a file takes is rounded up to this. 4 KiB is the block of
/// ext4, XFS and btrfs and the page of tmpfs.
pub const BLOCK_BYTES: u64 = 4096;

/// What `bytes` of a file take on the disk.
pub fn disk_bytes(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}
