//! What several test files need beside a world: a slow source that counts, maps, both ways of serving, content that
//! names its version, and file systems mounted for one test.

use crate::common::{World, pattern, run, text, wait_until, warmfs};
use std::ffi::OsStr;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Runs a test in both ways of serving; it is given the flags.
pub fn both(mut test: impl FnMut(&[&'static str])) {
    for mode in [&[][..], &["--no-passthrough"]] {
        eprintln!("mode {mode:?}");
        test(mode);
    }
}

/// The flags of the mode and more.
pub fn with(mode: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
    [mode, more].concat()
}

/// Runs a verb on a path and fails the test if that fails.
pub fn verb(verb: &str, path: &Path) {
    let output = run(&[OsStr::new(verb), path.as_os_str()]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Evicts what nobody uses below a path; that something is in use is said by the exit code and is no fault.
pub fn evict(path: &Path) {
    let output = run(&[OsStr::new("evict"), path.as_os_str()]);
    let in_use = output.status.code() == Some(1) && text(&output).contains("in use stay");
    assert!(output.status.success() || in_use, "{}", text(&output));
}

/// Runs a shell command, `$1` and so on being the arguments, and gives what it printed. It must say nothing on
/// standard error.
pub fn shell(script: &str, args: &[&Path]) -> Vec<u8> {
    let output = Command::new("bash").arg("-c").arg(script).arg("bash").args(args).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{script}\n{}", text(&output));
    output.stdout
}

/// Runs a Python script; it fails the test by failing.
pub fn python(script: &str, args: &[&Path]) -> String {
    let output = Command::new("/usr/bin/python3").arg("-c").arg(script).args(args).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Content that tells its version and its size, so that a reader can see whether it is whole.
pub fn versioned(version: u64, size: usize) -> Vec<u8> {
    let mut bytes = pattern(version, size.max(16));
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    let len = bytes.len() as u64;
    bytes[8..16].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// The version of which `bytes` are the whole content, if they are.
pub fn whole_version(bytes: &[u8]) -> Option<u64> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (version, size) = (word(0)?, word(8)?);
    (size == bytes.len() as u64 && bytes == versioned(version, bytes.len())).then_some(version)
}

/// Puts a file in the place of another, at one moment.
pub fn replace(path: &Path, bytes: &[u8]) {
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    std::fs::write(&next, bytes).unwrap();
    std::fs::rename(&next, path).unwrap();
}

/// Open descriptors of a process.
pub fn fd_count(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// A world whose source is slow and counts what it is asked.
pub struct Slow {
    world: World,
}

impl Slow {
    /// Nothing is mounted yet: files can be put.
    pub fn new() -> Self {
        let world = World::new(&[]);
        std::fs::create_dir(world.dir().join("slow")).unwrap();
        Self { world }
    }

    fn slow(&self) -> PathBuf {
        self.dir().join("slow")
    }

    /// Mounts the slow source over the files, and warmfs over that.
    pub fn mount(&self, faults: &[&str], flags: &[&str]) {
        let mut command = warmfs();
        command.arg("faultfs").arg(self.src("")).arg(self.slow());
        command.arg("--counts").arg(self.dir().join("counts.json")).args(faults);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        // The kernel asks it for up to 1 MiB at a time, as it asks an NFS server.
        let dev = std::os::unix::fs::MetadataExt::dev(&std::fs::metadata(self.slow()).unwrap());
        warmfs::sys::mount::set_read_ahead(dev, 1024).unwrap();
        let mut command = warmfs();
        command.arg("mount").arg(self.slow()).arg(self.mnt(""));
        command.arg("--cache-dir").arg(self.cache()).args(flags);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    }

    /// What the slow source was asked so far, once it is quiet.
    pub fn counts(&self) -> serde_json::Value {
        let read = || std::fs::read(self.dir().join("counts.json")).unwrap();
        let mut last = read();
        wait_until("the source is quiet", || {
            std::thread::sleep(Duration::from_millis(60));
            let now = read();
            std::mem::replace(&mut last, now.clone()) == now
        });
        serde_json::from_slice(&last).unwrap()
    }

    /// One of the counts.
    pub fn count(&self, name: &str) -> u64 {
        self.counts()[name].as_u64().unwrap_or_else(|| panic!("no count {name}"))
    }
}

impl Deref for Slow {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = warmfs::sys::mount::unmount_force(&self.mnt(""));
        let _ = warmfs::sys::mount::unmount_force(&self.slow());
    }
}

/// A file system that is mounted for one test.
pub struct Mounted(PathBuf);

impl Mounted {
    /// A file system in memory.
    pub fn tmpfs(at: &Path) -> Self {
        Self::new(at, "mount -t tmpfs -o mode=700 test \"$1\"", &[])
    }

    /// An overlay whose lower layer is `lower` and whose upper layer is new, below `dir`.
    pub fn overlay(at: &Path, lower: &Path, dir: &Path) -> Self {
        let script = "mkdir \"$3/upper\" \"$3/work\" && \
            mount -t overlay -o \"lowerdir=$2,upperdir=$3/upper,workdir=$3/work\" test \"$1\"";
        Self::new(at, script, &[lower, dir])
    }

    fn new(at: &Path, script: &str, more: &[&Path]) -> Self {
        std::fs::create_dir_all(at).unwrap();
        shell(script, &[&[at], more].concat());
        Self(at.to_path_buf())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A file in memory.
pub struct Map {
    start: *mut libc::c_void,
    len: usize,
}

/// Memory belongs to the process, not to a thread, and nobody writes to it.
#[expect(unsafe_code, reason = "a map is not tied to a thread")]
// SAFETY: see above.
unsafe impl Send for Map {}

impl Map {
    /// Maps the whole file to be read, with these flags.
    pub fn new(file: &File, flags: i32) -> std::io::Result<Self> {
        Self::with(file, libc::PROT_READ, flags)
    }

    /// Maps the whole file.
    #[expect(unsafe_code, reason = "no safe wrapper is among the dependencies")]
    pub fn with(file: &File, prot: i32, flags: i32) -> std::io::Result<Self> {
        let len = file.metadata()?.len() as usize;
        // SAFETY: a new map at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { start, len })
    }

    /// Maps the whole file, shared.
    pub fn shared(file: &File) -> Self {
        Self::new(file, libc::MAP_SHARED).unwrap()
    }
}

impl Map {
    /// Writes by the map, which must be writable and new: the file system hears of the first store to a page only.
    #[expect(unsafe_code, reason = "stores into the map")]
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: within the map, as was just asserted; `&mut self` keeps other slices of it away.
        let to = unsafe { self.start.cast::<u8>().add(at) };
        // SAFETY: the same bytes, and `bytes` is memory of the caller's and no part of the map.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
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

/// A buffer as O_DIRECT wants it.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        Self { bytes, start, len }
    }

    /// The buffer.
    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// A small generator for tests: where to read next.
pub struct Dice(u64);

impl Dice {
    /// The same throws for the same seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
