//! Counters: one table of names and units, so that the xattr, `warmfs stats`, the JSON and the metrics cannot differ.
//!
//! Counters only grow and are relaxed atomics: they are read by people and by tests after the fact, never to decide
//! anything. A figure that decides (space in use, say) lives with its owner and is copied here when it is shown.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The number now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident: $unit:literal,)+) => {
        /// All counters of one mount.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        }

        impl Stats {
            /// Name, unit and value of every counter, in the order of the table.
            pub fn rows(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $unit, self.$name.get()),)+]
            }
        }
    };
}

counters! {
    /// Opens of regular files.
    opens: "1",
    /// Opens that the kernel serves itself.
    passthrough_opens: "1",
    /// Opens that warmfs serves from the SSD, read by read.
    cached_opens: "1",
    /// Opens that are served from the source, because nothing could be kept.
    bypass_opens: "1",
    /// Opens, or reads of a partly cached file, that needed no byte from the source.
    hits: "1",
    /// Opens, or reads of a partly cached file, that needed bytes from the source.
    misses: "1",
    /// Bytes read from the source.
    backing_bytes_read: "bytes",
    /// Requests that the source answered with an error.
    backing_errors: "1",
    /// Requests that the source did not answer in time.
    backing_timeouts: "1",
    /// Bytes written to the SSD.
    ssd_bytes_written: "bytes",
    /// Files removed to make room.
    evictions: "1",
    /// Files dropped because the source has a newer version.
    stale_drops: "1",
    /// Chunks whose bytes were not what was written; each was dropped.
    checksum_failures: "1",
    /// Cached bytes that the scrub has read back from the SSD and compared.
    scrub_bytes: "bytes",
    /// Passes of the scrub over everything that is cached.
    scrub_passes: "1",
    /// Faults of the SSD, each of which became a read from the source.
    cache_errors: "1",
    /// Files that found no room in the cache and were served without being kept.
    cache_refusals: "1",
    /// Bytes fetched before anybody asked for them.
    prefetched_bytes: "bytes",
    /// Of these, bytes of files that somebody opened in the end.
    prefetch_used_bytes: "bytes",
    /// Of these, bytes of files that had to go before anybody opened them.
    prefetch_wasted_bytes: "bytes",
    /// Whole files filled.
    fills: "1",
    /// Requests answered from what was known because the source was silent.
    stale_answers: "1",
    /// LOOKUP requests.
    lookups: "1",
    /// READ requests that reached warmfs.
    reads: "1",
    /// Directory listings read from the source.
    listings: "1",
    /// Listings and attributes asked of the source ahead of a walk.
    names_ahead: "1",
    /// Listings taken over from an earlier mount.
    names_restored: "1",
}
