//! A file in memory, read-only; the kernel brings its pages as they are touched.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;

/// A mapped file, whole.
pub struct Map {
    start: *mut libc::c_void,
    len: usize,
}

impl Map {
    /// Maps the whole of a file that is not empty. Nobody may cut the file while it is mapped; a file of the mount keeps
    /// the version that was opened.
    #[expect(unsafe_code, reason = "no safe wrapper is among the dependencies")]
    pub fn new(file: &File) -> std::io::Result<Self> {
        let len = file.metadata()?.len() as usize;
        let (prot, flags) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: a new map at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { start, len })
    }
}

impl Deref for Map {
    type Target = [u8];

    #[expect(unsafe_code, reason = "the bytes of the map")]
    fn deref(&self) -> &[u8] {
        // SAFETY: mapped readable for as long as `self` lives. That the bytes never change is what is tested.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len) }
    }
}

impl Drop for Map {
    #[expect(unsafe_code, reason = "ends the map")]
    fn drop(&mut self) {
        // SAFETY: our own map, of which no slice outlives `self`.
        let _ = unsafe { libc::munmap(self.start, self.len) };
    }
}
