//! Whether anybody else has a file open.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Whether this descriptor is the only one of a file, mappings included; `true` as well where the file system cannot
/// tell. The file must have lost its name, or the answer is old at once.
///
/// The kernel gives a write lease on those terms and no others. Nobody is asked to give way by it: a lease matters to who
/// opens the file, which nobody can, and it ends with the descriptor.
pub fn is_only_opener(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is open for the length of the call, and no memory is passed.
    let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    granted == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn another_descriptor_is_seen_and_its_end_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        for write in [false, true] {
            let mine = std::fs::File::options().read(!write).write(write).open(&path).unwrap();
            let other = std::fs::File::open(&path).unwrap();
            assert!(!is_only_opener(mine.as_fd()));
            drop(other);
            // Another test that starts a program has a copy of everything for a moment.
            let start = std::time::Instant::now();
            while !is_only_opener(mine.as_fd()) {
                assert!(start.elapsed() < std::time::Duration::from_secs(5));
            }
        }
    }
}
