//! The clocks: the one by which files get their times, and those that outlive the program.

use crate::types::{Moment, Timestamp};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::sync::OnceLock;

/// The time that a change of a local file would get now: the kernel takes it from a clock that advances by ticks, and falls
/// behind on a machine that is short of processor time. Compared with a file's time, the precise clock would say that a
/// change is longer ago than it is.
pub fn file_time() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}

/// Now, to be written down.
pub fn moment() -> Moment {
    let ms = |t: Timespec| (t.tv_sec.max(0) as u64) * 1000 + t.tv_nsec as u64 / 1_000_000;
    Moment {
        wall_ms: ms(clock_gettime(ClockId::Realtime)),
        boot_ms: ms(clock_gettime(ClockId::Boottime)),
        boot: boot(),
    }
}

/// Which start of the machine this is; 0 if the kernel does not say.
pub fn boot() -> u128 {
    static BOOT: OnceLock<u128> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        u128::from_str_radix(&text.trim().replace('-', ""), 16).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_go_on_and_the_start_of_the_machine_is_known() {
        let first = moment();
        assert!(moment().since_ms(&first).is_some() && first.boot != 0 && first.wall_ms > 1_600_000_000_000);
    }
}
