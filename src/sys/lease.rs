//! Whether anybody else has a file open, or has it open for writing: asked of the kernel by its leases.

use rustix::io::Errno;
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

/// include/uapi/asm-generic/fcntl.h; libc has it not for every target.
const F_SETSIG: libc::c_int = 10;

/// Whether somebody has this file, which is open for reading, open for writing, mappings included.
///
/// The kernel gives a read lease where nobody has; it is given back at once. Who opens the file for writing in between waits
/// for that instant. The signal that would tell us is made SIGURG, which is ignored unless somebody asks for it.
///
/// # Errors
/// What fcntl(2) says: EINVAL where the file system knows no leases, EACCES without CAP_LEASE on files of others.
pub fn is_open_for_writing(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let fcntl = |command: libc::c_int, argument: libc::c_int| {
        // SAFETY: the descriptor is open for the length of the call, and no memory is passed.
        let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
        if answer == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error())) }
    };
    let known = |e: Option<Errno>| e.unwrap_or(Errno::IO);
    fcntl(F_SETSIG, libc::SIGURG).map_err(known)?;
    match fcntl(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            fcntl(libc::F_SETLEASE, libc::F_UNLCK).map_err(known)?;
            Ok(false)
        }
        Err(Some(Errno::AGAIN)) => Ok(true),
        Err(e) => Err(known(e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_writer_is_seen_a_reader_is_not_and_neither_is_disturbed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "x").unwrap();
        let mine = std::fs::File::open(&path).unwrap();
        let _reader = std::fs::File::open(&path).unwrap();
        let start = std::time::Instant::now();
        while is_open_for_writing(mine.as_fd()).unwrap() {
            assert!(start.elapsed() < std::time::Duration::from_secs(5));
        }
        let writer = std::fs::File::options().write(true).open(&path).unwrap();
        assert!(is_open_for_writing(mine.as_fd()).unwrap());
        drop(writer);
        // Somebody opens it for writing all the time: no signal ends us, and nobody waits for long.
        let opener = std::thread::spawn(move || {
            for _ in 0..2000 {
                std::fs::File::options().write(true).open(&path).unwrap();
            }
        });
        while !opener.is_finished() {
            let _ = is_open_for_writing(mine.as_fd());
        }
        opener.join().unwrap();
        assert!(start.elapsed() < std::time::Duration::from_secs(20));
    }

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
