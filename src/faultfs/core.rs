//! What a request goes through: rules, latency, the mirrored directory, bandwidth, counters.
//!
//! Apart from `serve`, which turns FUSE requests into calls of this and results into replies, and from the parts
//! themselves, which do not know each other.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::bucket::Bucket;
use super::counts::{Counters, Op};
use super::gate::{Change, Gate, Generation};
use super::mirror::Mirror;
use super::rules::Verdict;
use crate::sys::mountinfo::{self, MountEntry};

/// One slow source.
pub(super) struct Core {
    pub(super) mirror: Mirror,
    pub(super) gate: Gate,
    pub(super) counters: Arc<Counters>,
    pub(super) bucket: Option<Bucket>,
    pub(super) latency: Duration,
    pub(super) ttl: Duration,
    pub(super) direct_io: bool,
    /// Set once, when it is mounted.
    pub(super) place: OnceLock<MountEntry>,
}

/// A request that hangs looks for other rules this often,
const LOOK_FOR_RULES_EVERY: Duration = Duration::from_millis(10);
/// and for the end of a mount that was unmounted lazily, which its own hanging keeps alive, this often.
const LOOK_FOR_MOUNT_EVERY: Duration = Duration::from_millis(100);

impl Core {
    /// Lets a request for `path` wait as it should; an error is its answer.
    pub(super) fn admit(&self, op: Op, path: &Path, arrived: Instant) -> Result<Verdict, Errno> {
        let verdict = self.judge(op, path)?;
        if !self.gate.wait_until(arrived + self.latency + verdict.delay) {
            return Err(Errno::IO);
        }
        match verdict.errno {
            Some(errno) => Err(errno),
            None => Ok(verdict),
        }
    }

    /// The verdict of the first rules that do not let it hang.
    fn judge(&self, op: Op, path: &Path) -> Result<Verdict, Errno> {
        let mut touched = false;
        loop {
            self.refresh_rules();
            let (verdict, generation) = self.gate.judge(op, path.as_os_str().as_encoded_bytes());
            if verdict != Verdict::default() && !touched {
                touched = true;
                self.counters.fault();
            }
            if !verdict.hang {
                return Ok(verdict);
            }
            self.counters.hangs();
            let ended = self.hang(generation);
            self.counters.hangs_no_more();
            ended?;
        }
    }

    fn hang(&self, generation: Generation) -> Result<(), Errno> {
        let mut looked = Instant::now();
        loop {
            self.refresh_rules();
            match self.gate.wait_for_rules(generation, LOOK_FOR_RULES_EVERY) {
                Change::Rules => return Ok(()),
                Change::Stopping => return Err(Errno::IO),
                Change::None => {}
            }
            if looked.elapsed() >= LOOK_FOR_MOUNT_EVERY {
                looked = Instant::now();
                if !self.is_mounted() {
                    self.gate.stop();
                }
            }
        }
    }

    fn refresh_rules(&self) {
        if self.gate.refresh() {
            self.counters.rules_taken();
        }
    }

    /// Whether the mount is still in the tree. An unreadable table is no proof that it is not.
    pub(super) fn is_mounted(&self) -> bool {
        let Some(place) = self.place.get() else { return true };
        mountinfo::mounts().map_or(true, |all| all.iter().any(|m| is_same(m, place)))
    }

    /// A read: latency has passed, `ready` is when the bytes were due to be ready.
    pub(super) fn read(
        &self,
        handle: u64,
        offset: u64,
        size: u32,
        verdict: &Verdict,
        ready: Instant,
    ) -> Result<Vec<u8>, Errno> {
        let size = verdict.short.unwrap_or(u64::MAX).min(size.into()) as usize;
        let mut bytes = self.mirror.read(handle, offset, size)?;
        if verdict.flip
            && let Some(first) = bytes.first_mut()
        {
            *first ^= 1;
        }
        let len = bytes.len() as u64;
        if let Some(bucket) = &self.bucket
            && !bucket.send(len, ready, |instant| self.gate.wait_until(instant))
        {
            return Err(Errno::IO);
        }
        self.counters.bytes(len);
        Ok(bytes)
    }
}

/// Ids are given out again, so both numbers count.
pub(super) fn is_same(a: &MountEntry, b: &MountEntry) -> bool {
    (a.id, a.minor) == (b.id, b.minor)
}
