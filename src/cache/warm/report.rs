//! What a warm-up says of itself: how far it has come, and every file that is not warm at its end, by kind and by name.
//! Pure: figures of events.

use serde::{Deserialize, Serialize};

/// How far a warm-up has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WarmReport {
    /// Files found so far; all of them once `counting` is false.
    pub files_total: u64,
    /// Their bytes.
    pub bytes_total: u64,
    /// The tree is still being looked at: the totals grow.
    pub counting: bool,
    /// Files that are dealt with, whatever became of them.
    pub files_done: u64,
    /// Bytes looked after so far: fetched or found.
    pub bytes_done: u64,
    /// Files that are warm now.
    pub files_warm: u64,
    /// Their bytes.
    pub bytes_warm: u64,
    /// Files that were warm already.
    pub files_found: u64,
    /// Bytes fetched from the source.
    pub bytes_fetched: u64,
    /// Files that found no room beside those of this warm-up.
    pub files_without_room: u64,
    /// Their bytes.
    pub bytes_without_room: u64,
    /// Files that are larger than the cache.
    pub files_too_large: u64,
    /// Files that changed each time they were read.
    pub files_changing: u64,
    /// Files and directories that the source refused.
    pub files_failed: u64,
    /// Files that others pushed out again.
    pub files_evicted: u64,
    /// What was asked for that is not there, or is neither a file nor a directory.
    pub paths_unknown: u64,
    /// Of a check: files that are not warm, but could be.
    pub files_cold: u64,
    /// What is not warm, each with the reason; the first hundred.
    pub failed: Vec<String>,
    /// Time since the start, milliseconds.
    pub elapsed_ms: u64,
    /// Bytes fetched a second, of late.
    pub bytes_per_s: u64,
    /// What the rest takes at that rate, seconds; not known while counting.
    pub seconds_left: Option<u64>,
}

/// Reasons that are kept word for word.
pub const REASONS_MAX: usize = 100;

/// Why a file is not warm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The cache is full, of this warm-up's files or of what must not go.
    NoRoom,
    /// The cache is full and the policy lets nothing go.
    Refused,
    /// It is larger than the cache.
    TooLarge,
    /// It changed each time.
    Changing,
    /// There is no such file or directory.
    Unknown,
    /// It is a link, a pipe or a device.
    NoFile,
    /// The source's error, or the SSD's.
    Failed(String),
    /// Nothing is wrong with it, and nothing was fetched of it, or not all.
    Cold {
        /// What there is of it, bytes.
        cached_bytes: u64,
    },
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoRoom => write!(f, "no room in the cache"),
            Self::Refused => write!(f, "no room in the cache, and the eviction policy makes none"),
            Self::TooLarge => write!(f, "larger than the cache"),
            Self::Changing => write!(f, "it changes all the time, or changed a moment ago"),
            Self::Unknown => write!(f, "no such file or directory"),
            Self::NoFile => write!(f, "neither a file nor a directory"),
            Self::Failed(text) => write!(f, "{text}"),
            Self::Cold { cached_bytes: 0 } => write!(f, "not cached"),
            Self::Cold { .. } => write!(f, "cached in part"),
        }
    }
}

impl WarmReport {
    /// A file was found.
    pub fn found(&mut self, bytes: u64) {
        self.files_total += 1;
        self.bytes_total += bytes;
    }

    /// Bytes of a file that is being filled.
    pub fn progress(&mut self, bytes: u64, fetched: u64) {
        self.bytes_done += bytes;
        self.bytes_fetched += fetched;
    }

    /// A file is tried again later; `counted` of it were told as progress.
    pub fn later(&mut self, counted: u64) {
        self.bytes_done = self.bytes_done.saturating_sub(counted);
    }

    /// A file of `bytes` is warm; `counted` of it were told as progress before.
    pub fn warm(&mut self, bytes: u64, counted: u64) {
        self.files_done += 1;
        self.files_warm += 1;
        self.bytes_warm += bytes;
        self.bytes_done = self.bytes_done + bytes - counted.min(self.bytes_done);
    }

    /// A file, found before, will not be warm; `counted` of it were told as progress.
    pub fn not_warm(&mut self, path: &str, bytes: u64, counted: u64, reason: &Reason) {
        self.files_done += 1;
        self.bytes_done = self.bytes_done.saturating_sub(counted);
        match reason {
            Reason::NoRoom | Reason::Refused => self.bytes_without_room += bytes,
            _ => {}
        }
        self.problem(path, reason);
    }

    /// Something is not warm.
    pub fn problem(&mut self, path: &str, reason: &Reason) {
        *match reason {
            Reason::NoRoom | Reason::Refused => &mut self.files_without_room,
            Reason::TooLarge => &mut self.files_too_large,
            Reason::Changing => &mut self.files_changing,
            Reason::Unknown | Reason::NoFile => &mut self.paths_unknown,
            Reason::Failed(_) => &mut self.files_failed,
            Reason::Cold { .. } => &mut self.files_cold,
        } += 1;
        if self.failed.len() < REASONS_MAX {
            self.failed.push(format!("{path}: {reason}"));
        }
    }

    /// What others have pushed out meanwhile is not warm at the end.
    pub fn settle(&mut self, files_gone: u64) {
        let gone = files_gone.min(self.files_warm);
        self.files_warm -= gone;
        self.files_evicted += gone;
    }

    /// Notes the time; `rate` is in bytes a second.
    pub fn clock(&mut self, elapsed_ms: u64, rate: u64) {
        self.elapsed_ms = elapsed_ms;
        self.bytes_per_s = rate;
        let left = self.bytes_total.saturating_sub(self.bytes_done + self.bytes_without_room);
        self.seconds_left = (!self.counting && rate > 0).then(|| left.div_ceil(rate));
    }

    /// Whether everything that was asked for is warm.
    pub fn is_all_warm(&self) -> bool {
        self.files_warm == self.files_total && self.files_failed == 0 && self.paths_unknown == 0
    }

    /// Adds what another warm-up says at its end: of the same command, on another mount.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.files_total, other.files_total),
            (&mut self.bytes_total, other.bytes_total),
            (&mut self.files_done, other.files_done),
            (&mut self.bytes_done, other.bytes_done),
            (&mut self.files_warm, other.files_warm),
            (&mut self.bytes_warm, other.bytes_warm),
            (&mut self.files_found, other.files_found),
            (&mut self.bytes_fetched, other.bytes_fetched),
            (&mut self.files_without_room, other.files_without_room),
            (&mut self.bytes_without_room, other.bytes_without_room),
            (&mut self.files_too_large, other.files_too_large),
            (&mut self.files_changing, other.files_changing),
            (&mut self.files_failed, other.files_failed),
            (&mut self.files_evicted, other.files_evicted),
            (&mut self.paths_unknown, other.paths_unknown),
            (&mut self.files_cold, other.files_cold),
            (&mut self.elapsed_ms, other.elapsed_ms),
        ] {
            *sum += more;
        }
        self.counting |= other.counting;
        self.bytes_per_s = other.bytes_per_s;
        self.seconds_left = other.seconds_left;
        let room = REASONS_MAX.saturating_sub(self.failed.len());
        self.failed.extend(other.failed.iter().take(room).cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_end_every_file_is_told_once_and_the_bytes_add_up() {
        let mut report = WarmReport::default();
        (0..5).for_each(|_| report.found(100));
        report.warm(100, 0);
        // Fetched twice because it changed on the way.
        report.progress(60, 60);
        report.progress(100, 100);
        report.warm(100, 160);
        report.progress(30, 30);
        report.not_warm("c", 100, 30, &Reason::NoRoom);
        report.not_warm("d", 100, 0, &Reason::Failed("open: Permission denied".into()));
        report.not_warm("e", 100, 0, &Reason::TooLarge);
        assert_eq!((report.files_done, report.files_warm, report.files_total), (5, 2, 5));
        assert_eq!((report.bytes_done, report.bytes_warm, report.bytes_fetched), (200, 200, 190));
        assert_eq!(
            report.failed,
            ["c: no room in the cache", "d: open: Permission denied", "e: larger than the cache"]
        );
        assert!(!report.is_all_warm());
        report.settle(1);
        assert_eq!((report.files_warm, report.files_evicted), (1, 1));
    }

    #[test]
    fn the_time_left_is_known_once_all_is_counted() {
        let mut report = WarmReport { counting: true, ..WarmReport::default() };
        report.found(1000);
        report.clock(10, 100);
        assert_eq!(report.seconds_left, None);
        report.counting = false;
        report.progress(401, 401);
        report.clock(20, 100);
        assert_eq!(report.seconds_left, Some(6));
        report.clock(20, 0);
        assert_eq!(report.seconds_left, None);
    }

    #[test]
    fn reasons_are_bounded() {
        let mut report = WarmReport::default();
        (0..1000).for_each(|n| report.problem(&n.to_string(), &Reason::Unknown));
        assert_eq!((report.paths_unknown, report.failed.len()), (1000, REASONS_MAX));
    }
}
