//! What a daemon that root started may still do once it has been set up.
//!
//! A thread's capabilities are its own and are inherited by the threads that it starts, so this is called while there
//! is one thread. They are also taken from the bounding set: a program that the daemon were made to start would
//! otherwise get all of them back, since it runs as root. What stays is that root owns its files; the daemon writes
//! nowhere but in its cache directory and its log.

use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::types::{Error, Result};

/// What serving needs, and what for.
const KEPT: [CapabilitySet; 5] = [
    // Passthrough, and the unmount at the end.
    CapabilitySet::SYS_ADMIN,
    // Reading the source for whoever may: the kernel checks the caller, the daemon must be able to.
    CapabilitySet::DAC_READ_SEARCH,
    // O_NOATIME on files of others: the source's access times are not for the cache to change.
    CapabilitySet::FOWNER,
    // Asking whether somebody has a file of another user open for writing.
    CapabilitySet::LEASE,
    // The rings of io_uring count as locked memory on kernels before 5.12.
    CapabilitySet::IPC_LOCK,
];

/// Gives up every capability that serving does not need, for this thread and those that it starts from now on. Does
/// nothing for a daemon that has none.
pub fn drop_unneeded() -> Result<()> {
    let fail = |op: &'static str| move |e: rustix::io::Errno| Error::os(op, "capabilities", e.raw_os_error());
    let has = rustix::thread::capabilities(None).map_err(fail("read"))?;
    let kept = KEPT.into_iter().fold(CapabilitySet::empty(), |all, one| all | one);
    if has.permitted.difference(kept).is_empty() {
        return Ok(());
    }
    // First the bounding set, because it takes CAP_SETPCAP; without that the rest is still worth doing.
    if has.effective.contains(CapabilitySet::SETPCAP) {
        for one in has.permitted.difference(kept).iter() {
            rustix::thread::remove_capability_from_bounding_set(one).map_err(fail("bound"))?;
        }
    }
    let left = CapabilitySets {
        effective: has.effective.intersection(kept),
        permitted: has.permitted.intersection(kept),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, left).map_err(fail("give up"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, which ends with what it has left.
    #[test]
    fn what_is_given_up_is_gone_for_this_thread_and_its_children() {
        let sets = || rustix::thread::capabilities(None).expect("readable");
        let before = sets();
        let after = std::thread::spawn(move || {
            drop_unneeded().expect("may always give up");
            drop_unneeded().expect("twice is no harm");
            std::thread::spawn(sets).join().expect("ends")
        });
        let after = after.join().expect("ends");
        let kept = KEPT.into_iter().fold(CapabilitySet::empty(), |all, one| all | one);
        assert_eq!(after.effective, before.effective & kept);
        assert_eq!(after.permitted, before.permitted & kept);
        assert_eq!(sets(), before, "another thread's are its own");
    }
}
