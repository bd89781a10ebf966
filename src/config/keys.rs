//! The table of keys: the name of each, what it accepts, and the field it sets.
//!
//! The one place where a key exists. Names of fields and of keys are the same by construction; the variable
//! in the environment follows from the name; `config/default.toml` repeats the accepted values, and a test
//! compares the two.

use super::schema::{
    CacheSettings, CacheSize, Config, EvictPolicy, FreeFloor, IdentitySource, InspectSettings,
    IoEngineChoice, LogSettings, MetadataSettings, MountSettings, PrefetchSettings, ScrubSettings,
    SourceSettings,
};
use super::values::{
    Parsed, SIZE_BYTES_MAX, auto_or, boolean, cache_size, count, free_floor, log_filter, number, path,
    patience, period, size, ttl, word,
};
use std::time::Duration;

/// What a value may look like in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// A string, or a bare number or boolean: its parser sorts them out.
    Word,
    /// Any text, so that a bare number or boolean is a slip that the parser could not notice.
    Text,
}

/// One key.
#[derive(Debug)]
pub(super) struct Key {
    /// `section.leaf`.
    pub name: &'static str,
    /// What it may look like in a file.
    pub shape: Shape,
    /// The accepted values, for people.
    pub accepts: &'static str,
    /// Parses the text into its field of the configuration.
    pub set: fn(&mut Config, &str) -> Parsed<()>,
}

macro_rules! key {
    ($section:ident . $leaf:ident, $shape:ident, $parse:expr, $accepts:literal) => {
        Key {
            name: concat!(stringify!($section), ".", stringify!($leaf)),
            shape: Shape::$shape,
            accepts: $accepts,
            set: |config, text| {
                config.$section.$leaf = $parse(text)?;
                Ok(())
            },
        }
    };
}

const EVICT_POLICIES: &[(&str, EvictPolicy)] =
    &[("epoch", EvictPolicy::Epoch), ("lru", EvictPolicy::Lru), ("none", EvictPolicy::None)];
const IO_ENGINES: &[(&str, IoEngineChoice)] = &[
    ("auto", IoEngineChoice::Auto),
    ("io_uring", IoEngineChoice::IoUring),
    ("pread", IoEngineChoice::Pread),
];
const IDENTITIES: &[(&str, IdentitySource)] =
    &[("auto", IdentitySource::Auto), ("inode", IdentitySource::Inode), ("path", IdentitySource::Path)];

/// Every key, in the order of `config/default.toml`.
#[rustfmt::skip] // one row a key reads as the table it is
pub(super) static KEYS: &[Key] = &[
    key!(cache.dir, Text, auto_or(path),
        "auto, or a path"),
    key!(cache.size, Word, cache_size,
        "auto, a size from 1MiB to 1024PiB such as 200GB, or a share from 1% to 100%"),
    key!(cache.min_free, Word, free_floor,
        "a size from 0 to 1024PiB such as 10GB, or a share from 0% to 99%"),
    key!(cache.max_files, Word, auto_or(number(1..=u64::from(u32::MAX))),
        "auto, or a number from 1 to 4294967295"),
    key!(cache.ram_window, Word, size(0..=SIZE_BYTES_MAX),
        "a size from 0 (off) to 1024PiB such as 64MiB"),
    key!(cache.evict_policy, Word, word(EVICT_POLICIES),
        "epoch, lru, none"),
    key!(cache.small_file_max, Word, size(0..=SIZE_BYTES_MAX),
        "a size from 0 (off) to 1024PiB such as 4MiB"),
    key!(mount.allow_other, Word, auto_or(boolean),
        "auto, true, false"),
    key!(mount.passthrough, Word, boolean,
        "true, false"),
    key!(mount.io_engine, Word, word(IO_ENGINES),
        "auto, io_uring, pread"),
    key!(mount.workers, Word, auto_or(count(1..=64)),
        "auto, or a number from 1 to 64"),
    key!(mount.read_ahead, Word, size(0..=1 << 30),
        "a size from 0 (off) to 1GiB such as 1MiB"),
    key!(mount.backing_ids_max, Word, count(1..=1 << 20),
        "a number from 1 to 1048576"),
    key!(metadata.ttl, Word, ttl,
        "a duration from 0 to 3650d such as 60s, or forever"),
    key!(metadata.read_ahead, Word, boolean,
        "true, false"),
    key!(metadata.keep, Word, boolean,
        "true, false"),
    key!(source.identity, Word, word(IDENTITIES),
        "auto, inode, path"),
    key!(source.threads, Word, count(1..=1024),
        "a number from 1 to 1024"),
    key!(source.timeout, Word, patience,
        "a duration from 1ms to 1d such as 60s"),
    key!(source.hang_after, Word, patience,
        "a duration from 1ms to 1d such as 1s"),
    key!(prefetch.enabled, Word, boolean,
        "true, false"),
    key!(scrub.rate, Word, size(0..=SIZE_BYTES_MAX),
        "a size from 0 (off) to 1024PiB such as 16MiB"),
    key!(scrub.interval, Word, period,
        "a duration from 1s to 3650d such as 7d, or off"),
    key!(inspect.list_xattrs, Word, boolean,
        "true, false"),
    key!(log.level, Text, log_filter,
        "off, error, warn, info, debug, trace, or directives such as \"info,warmfs::cache=debug\""),
    key!(log.file, Text, auto_or(path),
        "auto, or a path"),
    key!(log.max_size, Word, size(64 << 10..=SIZE_BYTES_MAX),
        "a size from 64KiB to 1024PiB such as 8MiB"),
];

/// What the defaults are written over. None of these values survives: `config/default.toml` has every key.
pub(super) const BLANK: Config = Config {
    cache: CacheSettings {
        dir: None,
        size: CacheSize::Auto,
        min_free: FreeFloor::Bytes(0),
        max_files: None,
        ram_window: 0,
        evict_policy: EvictPolicy::None,
        small_file_max: 0,
    },
    mount: MountSettings {
        allow_other: None,
        passthrough: false,
        io_engine: IoEngineChoice::Auto,
        workers: None,
        read_ahead: 0,
        backing_ids_max: 0,
    },
    metadata: MetadataSettings { ttl: Some(Duration::ZERO), read_ahead: false, keep: false },
    source: SourceSettings {
        identity: IdentitySource::Auto,
        threads: 0,
        timeout: Duration::ZERO,
        hang_after: Duration::ZERO,
    },
    prefetch: PrefetchSettings { enabled: false },
    scrub: ScrubSettings { rate: 0, interval: None },
    inspect: InspectSettings { list_xattrs: false },
    log: LogSettings { level: String::new(), file: None, max_size: 0 },
};

impl Key {
    /// The part before the dot.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(section, _)| section)
    }

    /// The part after the dot.
    pub fn leaf(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, leaf)| leaf)
    }

    /// Its variable in the environment.
    pub fn variable(&self) -> String {
        format!("WARMFS_{}", self.name.to_ascii_uppercase().replace('.', "_"))
    }
}

/// The key of this section and leaf.
pub(super) fn find(section: &str, leaf: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.section() == section && key.leaf() == leaf)
}

/// The sections, in order.
pub(super) fn sections() -> Vec<&'static str> {
    let mut names: Vec<_> = KEYS.iter().map(Key::section).collect();
    names.dedup();
    names
}

/// The leaves of one section, in order.
pub(super) fn leaves(section: &str) -> impl Iterator<Item = &'static str> {
    KEYS.iter().filter(move |key| key.section() == section).map(Key::leaf)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_and_variables_are_unique_and_sections_hang_together() {
        let names: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
        let variables: BTreeSet<_> = KEYS.iter().map(Key::variable).collect();
        assert_eq!((names.len(), variables.len()), (KEYS.len(), KEYS.len()));
        assert_eq!(
            sections(),
            ["cache", "mount", "metadata", "source", "prefetch", "scrub", "inspect", "log"]
        );
        assert!(!variables.contains("WARMFS_LOG"));
    }

    #[test]
    fn a_key_is_found_by_section_and_leaf_only() {
        assert_eq!(find("cache", "size").map(|key| key.variable()).as_deref(), Some("WARMFS_CACHE_SIZE"));
        assert!(find("cache", "ttl").is_none());
        assert!(find("", "cache.size").is_none());
    }
}
