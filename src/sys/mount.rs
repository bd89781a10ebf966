//! Mounting and unmounting a FUSE file system, and the two knobs of one that is mounted.
//!
//! Ours rather than the FUSE library's, because fuser 0.18 may unmount somebody else's file system on its way out,
//! gives up on a busy mount and lets a comma in the source's name become an option. Here nothing is unmounted unless
//! it is asked for, an option cannot be smuggled in through a name, and an error names the missing thing and how to
//! get it. With CAP_SYS_ADMIN the kernel is asked directly; otherwise `fusermount3` is.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

use super::fusermount;
use crate::types::{Error, ErrorKind, PathText, Result};

const DEVICE: &str = "/dev/fuse";

/// What to mount, where and how. Always nosuid, nodev, noatime and with the kernel checking permissions.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory to mount over. It may be the very directory that is served, if that was opened before.
    pub mountpoint: PathBuf,
    /// Shown as the mount's source, for example `warmfs:/slow/data`: any bytes but NUL, and not an absolute path,
    /// because mount(8) runs an absolute path as a program when such a mount is remounted.
    pub source: OsString,
    /// What follows `fuse.` in the mount's type: letters, digits, `-` and `_`.
    pub subtype: String,
    /// Whether the superblock is read-only.
    pub read_only: bool,
    /// Whether users other than the one who mounts may enter.
    pub allow_other: bool,
}

/// Mounts and returns the FUSE device, on which the kernel's INIT waits. Every access to the mount blocks until that
/// is answered; when the last copy of the descriptor is closed, the mount is dead and answers ENOTCONN.
///
/// Errors are of kind `Invalid` where something is missing or not allowed; the text then says what to do about it.
pub fn mount(options: &MountOptions) -> Result<OwnedFd> {
    check(options)?;
    if is_privileged() { mount_directly(options) } else { fusermount::mount(options) }
}

/// Whether [`mount`] has what it needs. Asked before anything is made that a mount which fails would leave behind.
pub fn check_possible() -> Result<()> {
    if is_privileged() {
        return open_device().map(drop);
    }
    if !Path::new(DEVICE).exists() {
        return Err(no_device());
    }
    fusermount::check_present()
}

/// Unmounts the topmost file system at `mountpoint`; a final symbolic link is not followed. A busy one gives EBUSY,
/// unless `lazy`: then it leaves the tree at once and ends with its last open file.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::unmount(mountpoint, lazy),
        Err(e) => Err(unmount_error(mountpoint, e)),
    }
}

/// Unmounts although requests hang: the connection is aborted (whoever waits gets ENOTCONN or ECONNABORTED) and the
/// mount leaves the tree at once. For a server that is to end, or has ended badly.
pub fn unmount_force(mountpoint: &Path) -> Result<()> {
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        // The helper cannot abort. For its user, the end of the server does.
        Err(Errno::PERM) => fusermount::unmount(mountpoint, true),
        Err(e) => Err(unmount_error(mountpoint, e)),
    }
}

/// Sets how far the kernel reads ahead on the file system with this `st_dev`, in KiB. Needs root; the kernel's
/// default of 128 stands where it fails.
pub fn set_read_ahead(dev: Dev, kib: u32) -> Result<()> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    write(&format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), &kib.to_string())
}

/// Aborts the FUSE connection with this number (`MountEntry::minor`): every request on it, waiting or coming, fails
/// with ENOTCONN. Needs the `fusectl` file system at its usual place; [`unmount_force`] does not.
pub fn abort_connection(minor: u32) -> Result<()> {
    write(&format!("/sys/fs/fuse/connections/{minor}/abort"), "1")
}

fn write(path: &str, value: &str) -> Result<()> {
    std::fs::write(path, value).map_err(|e| Error::io("write", path, &e))
}

/// Whether this thread may call mount(2).
fn is_privileged() -> bool {
    rustix::thread::capabilities(None).is_ok_and(|c| c.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// An error whose text is the whole story.
pub(super) fn refused(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, "", text)
}

fn check(options: &MountOptions) -> Result<()> {
    let name_char = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if options.subtype.is_empty() || !options.subtype.chars().all(name_char) {
        return Err(refused(format!("subtype `{}`: use letters, digits, - and _", options.subtype)));
    }
    let source = options.source.as_bytes();
    if source.is_empty() || source.contains(&0) || source.starts_with(b"/") {
        return Err(refused("a mount's source must not be empty, contain NUL or be an absolute path"));
    }
    Ok(())
}

fn mount_directly(options: &MountOptions) -> Result<OwnedFd> {
    let device = open_device()?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, options.read_only);
    let data = mount_data(&device, options.allow_other);
    let fs_type = format!("fuse.{}", options.subtype);
    rustix::mount::mount(options.source.as_os_str(), &options.mountpoint, fs_type, flags, data.as_c_str())
        .map_err(|e| mount_error(&options.mountpoint, e))?;
    Ok(device)
}

fn open_device() -> Result<OwnedFd> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|e| match e {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => no_device(),
        Errno::ACCESS | Errno::PERM => refused(format!(
            "{DEVICE} may not be opened: in a container, start it with --device {DEVICE} --cap-add SYS_ADMIN"
        )),
        e => Error::os("open", DEVICE, e.raw_os_error()),
    })
}

/// The kernel has no FUSE, or this container does not see it.
pub(super) fn no_device() -> Error {
    refused(format!(
        "{DEVICE} is missing: load the kernel's FUSE with `modprobe fuse`, or in a container start it with --device {DEVICE}"
    ))
}

/// `rootmode` only says that the root is a directory: its permissions come with its first attributes.
fn mount_data(device: &OwnedFd, allow_other: bool) -> CString {
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        if allow_other { ",allow_other" } else { "" },
    );
    CString::new(data).expect("numbers and fixed words hold no NUL")
}

fn mount_error(mountpoint: &Path, errno: Errno) -> Error {
    match errno {
        Errno::NODEV => no_device(),
        e => Error::os("mount on", PathText(mountpoint).to_string(), e.raw_os_error()),
    }
}

fn unmount_error(mountpoint: &Path, errno: Errno) -> Error {
    Error::os("unmount", PathText(mountpoint).to_string(), errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::super::mountinfo;
    use super::*;

    fn options(mountpoint: &Path) -> MountOptions {
        MountOptions {
            mountpoint: mountpoint.to_owned(),
            source: "warmfs:/slow/a b,c\\d\ne".into(),
            subtype: "warmfs".to_owned(),
            read_only: true,
            allow_other: true,
        }
    }

    /// Real mounts need the device and the right; without them there is nothing to test.
    fn can_mount() -> bool {
        let can = Path::new(DEVICE).exists() && is_privileged();
        if !can {
            eprintln!("skipped: needs {DEVICE} and CAP_SYS_ADMIN");
        }
        can
    }

    fn mounts_shows_and_unmounts(mount: fn(&MountOptions) -> Result<OwnedFd>) {
        let dir = tempfile::tempdir().expect("a directory");
        let place = dir.path().join("odd name\n\\ é");
        std::fs::create_dir(&place).expect("created");
        let device = mount(&options(&place)).expect("mounted");

        let entry = mountinfo::top_mount_at(&place).expect("readable").expect("listed");
        assert_eq!(entry.fs_type, mountinfo::FS_TYPE);
        assert_eq!(entry.source, options(&place).source);
        assert_eq!(mountinfo::find_by_dev(entry.dev()).expect("readable").as_ref(), Some(&entry));
        let have: Vec<&str> = entry.options.split(',').collect();
        for want in ["ro", "nosuid", "nodev", "noatime", "default_permissions", "allow_other"] {
            assert!(have.contains(&want), "{want} in {have:?}");
        }

        set_read_ahead(entry.dev(), 512).expect("root may");
        unmount(&place, false).expect("unmounted");
        assert_eq!(mountinfo::top_mount_at(&place).expect("readable"), None);
        assert_eq!(unmount(&place, false).expect_err("no longer mounted").errno(), Some(libc::EINVAL));
        drop(device);
    }

    #[test]
    fn mounts_shows_and_unmounts_directly() {
        if can_mount() {
            mounts_shows_and_unmounts(mount);
        }
    }

    #[test]
    fn mounts_shows_and_unmounts_by_the_helper() {
        if can_mount() {
            mounts_shows_and_unmounts(fusermount::mount);
        }
    }

    #[test]
    fn a_mount_without_its_daemon_is_stale_and_can_be_unmounted() {
        if !can_mount() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        drop(mount(&options(dir.path())).expect("mounted"));
        assert!(mountinfo::is_stale(dir.path()));
        fusermount::unmount(dir.path(), true).expect("unmounted");
        assert!(!mountinfo::is_stale(dir.path()));
    }

    #[test]
    fn a_forced_unmount_frees_whoever_waits() {
        if !can_mount() {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let device = mount(&options(dir.path())).expect("mounted");
        let path = dir.path().to_owned();
        let waiter = std::thread::spawn(move || rustix::fs::stat(&path).map(|_| ()));
        std::thread::sleep(std::time::Duration::from_millis(50));
        unmount_force(dir.path()).expect("unmounted");
        assert!(waiter.join().expect("no panic").is_err());
        drop(device);
    }

    #[test]
    fn names_that_would_harm_are_refused() {
        let good = options(Path::new("/nonexistent"));
        for source in ["", "/bin/true", "a\0b"] {
            let bad = MountOptions { source: source.into(), ..good.clone() };
            assert_eq!(mount(&bad).expect_err(source).kind(), ErrorKind::Invalid);
        }
        for subtype in ["", "a,suid", "a.b"] {
            let bad = MountOptions { subtype: subtype.to_owned(), ..good.clone() };
            assert_eq!(mount(&bad).expect_err(subtype).kind(), ErrorKind::Invalid);
        }
    }

    #[test]
    fn knobs_of_no_mount_are_errors() {
        assert!(set_read_ahead(rustix::fs::makedev(4000, 1), 128).is_err());
        assert!(abort_connection(4_000_000).is_err());
    }
}
