//! The clock by which files get their times.

use crate::types::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// The time that a change of a local file would get now: the kernel takes it from a clock that advances by ticks, and falls
/// behind on a machine that is short of processor time. Compared with a file's time, the precise clock would say that a
/// change is longer ago than it is.
pub fn file_time() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}
