//! The checked configuration as the other rooms see it: plain values with their units, one struct a section.
//!
//! Apart from the keys' table because readers of a value need not know how it was written.
//! `config/default.toml` has the meaning of each key in full; the words here say the unit and what `None` is.

use std::path::PathBuf;
use std::time::Duration;

/// Everything that can be configured. `Config::default()` is `config/default.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// `[cache]`: what is kept on the SSD.
    pub cache: CacheSettings,
    /// `[mount]`: how the kernel is served.
    pub mount: MountSettings,
    /// `[metadata]`: names and attributes.
    pub metadata: MetadataSettings,
    /// `[source]`: the slow directory behind it.
    pub source: SourceSettings,
    /// `[scrub]`: looking for damage in the background.
    pub scrub: ScrubSettings,
    /// `[inspect]`: looking at the cache from outside.
    pub inspect: InspectSettings,
    /// `[log]`: what is written down, and where.
    pub log: LogSettings,
    /// What is fetched before it is asked for.
    pub prefetch: PrefetchSettings,
}

/// `[prefetch]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefetchSettings {
    /// Whether anything is fetched before it is asked for.
    pub enabled: bool,
}

/// `[cache]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// Directory of the cache, absolute; `None`: chosen by user and source.
    pub dir: Option<PathBuf>,
    /// How much the cache may take.
    pub size: CacheSize,
    /// Free space that the cache never uses.
    pub min_free: FreeFloor,
    /// Files that the cache may hold; `None`: what the free inodes allow.
    pub max_files: Option<u64>,
    /// Bytes of RAM for files that are not admitted to the SSD; 0: off.
    pub ram_window: u64,
    /// What gives way when the cache is full.
    pub evict_policy: EvictPolicy,
    /// Files up to this many bytes are filled whole inside open; 0: none.
    pub small_file_max: u64,
}

/// `[mount]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountSettings {
    /// Whether other users may enter; `None`: when root mounts.
    pub allow_other: Option<bool>,
    /// Whether the kernel may read cached files itself.
    pub passthrough: bool,
    /// How fills move bytes.
    pub io_engine: IoEngineChoice,
    /// Threads that answer the kernel; `None`: chosen from the number of CPUs.
    pub workers: Option<usize>,
    /// The kernel's read-ahead for this mount, bytes.
    pub read_ahead: u64,
    /// Files that stay registered for passthrough, at most.
    pub backing_ids_max: usize,
}

/// `[metadata]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataSettings {
    /// How long a fact about the source may be believed; zero: ask every time; `None`: forever.
    pub ttl: Option<Duration>,
    /// Whether names and attributes are asked for ahead of a walk over a slow source.
    pub read_ahead: bool,
    /// Whether names and attributes are kept in the index for the next mount.
    pub keep: bool,
}

/// `[source]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceSettings {
    /// What a file is recognised by after a restart.
    pub identity: IdentitySource,
    /// Requests at the same time, at most.
    pub threads: usize,
    /// How long a request may hang before the reader gets ETIMEDOUT.
    pub timeout: Duration,
    /// How long the source may hang before known answers are given from memory.
    pub hang_after: Duration,
}

/// `[scrub]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubSettings {
    /// Bytes to read back in a second, at most; 0: off.
    pub rate: u64,
    /// Between the end of a pass and the begin of the next; `None`: no passes.
    pub interval: Option<Duration>,
}

/// `[inspect]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectSettings {
    /// Whether listxattr shows the `user.warmfs.*` names.
    pub list_xattrs: bool,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// A level or levels of modules, as `Targets` of `tracing-subscriber` reads them; checked.
    pub level: String,
    /// The log file, absolute; `None`: in the cache directory when in the background, else standard error.
    pub file: Option<PathBuf>,
    /// Bytes at which the log file is put aside.
    pub max_size: u64,
}

/// How much the cache may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSize {
    /// All the space that is free beyond the floor.
    Auto,
    /// So many bytes, at least one chunk.
    Bytes(u64),
    /// A share of the cache's file system, 1 to 100.
    Percent(u8),
}

impl CacheSize {
    /// Bytes on a file system of `fs_bytes`; `None` for `Auto`.
    pub fn bytes_of(self, fs_bytes: u64) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Bytes(bytes) => Some(bytes),
            Self::Percent(percent) => Some(share(fs_bytes, percent)),
        }
    }
}

/// Free space that the cache never uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeFloor {
    /// So many bytes.
    Bytes(u64),
    /// A share of the cache's file system, 0 to 99.
    Percent(u8),
}

impl FreeFloor {
    /// Bytes on a file system of `fs_bytes`.
    pub fn bytes_of(self, fs_bytes: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => share(fs_bytes, percent),
        }
    }
}

/// `percent` of `whole`, rounded down.
fn share(whole: u64, percent: u8) -> u64 {
    (u128::from(whole) * u128::from(percent.min(100)) / 100) as u64
}

/// What gives way when the cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictPolicy {
    /// What training needs no more or clearly less: under shuffled epochs nothing.
    Epoch,
    /// What was opened longest ago.
    Lru,
    /// Nothing: what is cached stays, the rest is read from the source.
    None,
}

/// How fills move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoEngineChoice {
    /// io_uring where the kernel allows it, else pread.
    Auto,
    /// io_uring.
    IoUring,
    /// pread and pwrite.
    Pread,
}

/// What a file is recognised by after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentitySource {
    /// Chosen by the source's file system.
    Auto,
    /// Device and inode number.
    Inode,
    /// Path below the source.
    Path,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_do_not_overflow() {
        assert_eq!(CacheSize::Percent(100).bytes_of(u64::MAX), Some(u64::MAX));
        assert_eq!(CacheSize::Percent(50).bytes_of(1001), Some(500));
        assert_eq!(CacheSize::Bytes(7).bytes_of(0), Some(7));
        assert_eq!(CacheSize::Auto.bytes_of(100), None);
        assert_eq!(FreeFloor::Percent(5).bytes_of(1000), 50);
        assert_eq!(FreeFloor::Percent(0).bytes_of(u64::MAX), 0);
        assert_eq!(FreeFloor::Bytes(9).bytes_of(1), 9);
    }
}
