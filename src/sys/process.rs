//! Processes: whether a client is to die, and how our own lets go of things although it cannot end.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Whether a thread, in the numbering of our own process, was killed and has not ended yet. A signal that ends a process
/// (TERM, INT and others, where nobody handles them) becomes SIGKILL for each of its threads. `false` if it cannot be
/// seen.
pub fn is_killed(thread: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    has_kill_pending(&status)
}

fn has_kill_pending(status: &str) -> bool {
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let signals = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    signals & (1 << (libc::SIGKILL - 1)) != 0
}

/// Whether a process has come to its end, seen from its pidfd: nothing of it runs any more, though a thread that is stuck
/// in a system call may keep it in the table.
pub fn has_stopped(pidfd: BorrowedFd<'_>) -> bool {
    let info =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap_or_default();
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap_or_default().trim();
    // Not there, or the first thread has ended: all end with it, or with the process.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| {
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    })
}

/// Lets go of what others wait for: what is open below `dir` with its locks, sockets, and `/dev/fuse`, whose last close
/// ends a connection. For a process that is about to end: one thread of it that is stuck in a dead source keeps it, and
/// all that it has open, until the source answers.
///
/// Each descriptor stays valid and leads to `/dev/null`: what another thread still does with it does nothing. Nothing
/// else is touched, because to close a file of the source may wait for the source.
pub fn let_go(dir: &Path) {
    let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") else { return };
    for fd in open_descriptors() {
        let is_ours = |link: &Path| {
            link == Path::new("/dev/fuse")
                || link.starts_with(dir)
                || link.as_os_str().as_bytes().starts_with(b"socket:")
        };
        // By its name in /proc, which asks nothing of the file's file system.
        if fd > libc::STDERR_FILENO
            && std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|l| is_ours(&l))
        {
            // SAFETY: both numbers are plain values, no memory is passed. `fd` stays open for whoever owns it, as another
            // file, which is what this is for; should its owner have closed it meanwhile, a duplicate of /dev/null is
            // left over in a process that is about to end.
            let _ = unsafe { libc::dup3(null.as_raw_fd(), fd, libc::O_CLOEXEC) };
        }
    }
}

fn open_descriptors() -> Vec<RawFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};

    #[test]
    fn who_was_killed_is_seen_by_its_pending_signals() {
        assert!(has_kill_pending("Name:\tcat\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"));
        assert!(!has_kill_pending("SigPnd:\t0000000000000200\nShdPnd:\t0000000000000100\n"));
        assert!(!has_kill_pending(""));
        assert!(!is_killed(std::process::id()) && !is_killed(u32::MAX));
    }

    #[test]
    fn a_process_has_stopped_when_it_is_a_zombie_and_not_before() {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        assert!(!has_stopped(pidfd.as_fd()));
        drop(child.stdin.take());
        while !has_stopped(pidfd.as_fd()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(child.wait().unwrap().success());
        assert!(has_stopped(pidfd.as_fd()));
    }

    /// Goal: locks go, other descriptors stay. Method: in a process of its own, this test once more.
    #[test]
    fn what_is_open_below_a_directory_is_let_go_of_and_nothing_else() {
        const DIR: &str = "WARMFS_TEST_LET_GO";
        let Some(dir) = std::env::var_os(DIR) else {
            let dir = tempfile::tempdir().unwrap();
            let name = "sys::process::tests::what_is_open_below_a_directory_is_let_go_of_and_nothing_else";
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args([name, "--exact"]).env(DIR, dir.path().canonicalize().unwrap()).stdout(Stdio::null());
            assert!(again.status().unwrap().success());
            return;
        };
        let dir = Path::new(&dir);
        let lock = || std::fs::File::options().create(true).append(true).open(dir.join("LOCK")).unwrap();
        let (held, other) = (lock(), std::fs::File::open("/proc/self/status").unwrap());
        let flock = |file: &std::fs::File| {
            rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        };
        flock(&held).unwrap();
        assert!(flock(&lock()).is_err());
        let_go(dir);
        assert!(flock(&lock()).is_ok());
        let link =
            |file: &std::fs::File| std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        assert_eq!(link(&held), Path::new("/dev/null"));
        assert!(link(&other).ends_with("status"));
    }
}
