//! What this kernel, this user and these disks can do, asked once and kept as plain data.
//!
//! Reading is apart from understanding: each text that the kernel gives has a pure parser with tests on sample texts,
//! and every decision (here and in `cli::doctor`) is a function of [`KernelFacts`], so that it can be tested on
//! machines that we do not have. A fact that cannot be read is `None`, never a guess, and gathering never fails:
//! whoever needs the thing finds out with a better error.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;

use crate::types::{Error, PathText, Result};

/// First kernel with FUSE passthrough.
pub const PASSTHROUGH_KERNEL: (u32, u32) = (6, 9);

/// Whether `/dev/fuse` can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FuseDevice {
    /// It opens.
    Usable,
    /// There is none: the module is not loaded, or a container was not given it.
    Missing,
    /// It is there and does not open; the system's reason.
    Refused(String),
}

/// A resource limit; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What holds now.
    pub soft: Option<u64>,
    /// Up to where a process may raise it itself.
    pub hard: Option<u64>,
}

impl From<Rlimit> for Limit {
    fn from(limit: Rlimit) -> Self {
        Self { soft: limit.current, hard: limit.maximum }
    }
}

/// What the kernel and the user's rights allow. Gathered once, at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// The kernel's release as it says it, such as `6.12.8-arch1`.
    pub release: String,
    /// Its major and minor number; (0, 0) where the release does not begin with two numbers.
    pub version: (u32, u32),
    /// Effective user.
    pub uid: u32,
    /// Whether CAP_SYS_ADMIN is effective.
    pub admin: bool,
    /// Whether this is the machine's own user namespace; in another one (rootless containers) CAP_SYS_ADMIN does not
    /// count for passthrough.
    pub init_user_ns: bool,
    /// `/dev/fuse`.
    pub fuse_device: FuseDevice,
    /// The set-uid helper that mounts for users.
    pub fusermount: Option<PathBuf>,
    /// Whether `/etc/fuse.conf` lets users mount for others.
    pub user_allow_other: bool,
    /// `kernel.io_uring_disabled`: 0 for all, 1 for a group, 2 for nobody; `None` before 6.6.
    pub io_uring_disabled: Option<u64>,
    /// Open files of this process.
    pub open_files: Limit,
    /// Locked memory of this process, bytes.
    pub locked_memory: Limit,
    /// `fs.fuse.max_pages_limit`: pages of one request; `None` before 6.13 (then 256).
    pub max_pages_limit: Option<u64>,
    /// `fs.fuse.default_request_timeout`, seconds, 0 for none; `None` before 6.15.
    pub default_request_timeout_s: Option<u64>,
    /// `fs.fuse.max_request_timeout`, seconds, 0 for none; `None` before 6.15.
    pub max_request_timeout_s: Option<u64>,
    /// Whether the fuse module lets requests travel over io_uring; `None` before 6.14 or without the module.
    pub fuse_over_io_uring: Option<bool>,
}

impl KernelFacts {
    /// Asks the kernel. Opens and closes `/dev/fuse`; changes nothing.
    pub fn gather() -> Self {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        Self {
            version: parse_release(&release).unwrap_or((0, 0)),
            release,
            uid: rustix::process::geteuid().as_raw(),
            admin: rustix::thread::capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN)),
            init_user_ns: read("/proc/self/uid_map").is_none_or(|map| maps_everyone(&map)),
            fuse_device: probe_fuse_device(Path::new("/dev/fuse")),
            fusermount: find_program("fusermount3"),
            user_allow_other: read("/etc/fuse.conf").is_some_and(|conf| allows_other(&conf)),
            io_uring_disabled: read_number("/proc/sys/kernel/io_uring_disabled"),
            open_files: getrlimit(Resource::Nofile).into(),
            locked_memory: getrlimit(Resource::Memlock).into(),
            max_pages_limit: read_number("/proc/sys/fs/fuse/max_pages_limit"),
            default_request_timeout_s: read_number("/proc/sys/fs/fuse/default_request_timeout"),
            max_request_timeout_s: read_number("/proc/sys/fs/fuse/max_request_timeout"),
            fuse_over_io_uring: read("/sys/module/fuse/parameters/enable_uring")
                .and_then(|t| parse_switch(&t)),
        }
    }

    /// Whether the kernel would let us register files for passthrough; the error says what is missing and the
    /// remedy. The cache's file system has a say too, at the first registration.
    pub fn passthrough_possible(&self) -> std::result::Result<(), String> {
        let (major, minor) = PASSTHROUGH_KERNEL;
        if self.version < PASSTHROUGH_KERNEL {
            return Err(format!(
                "kernel {} has no FUSE passthrough: use {major}.{minor} or newer",
                self.release
            ));
        }
        if !self.init_user_ns {
            return Err(
                "this user namespace is not the machine's own, passthrough needs CAP_SYS_ADMIN there: \
                        mount outside of the container and bind the mount into it"
                    .into(),
            );
        }
        if !self.admin {
            return Err(format!(
                "user {} lacks CAP_SYS_ADMIN: mount as root, or give the service AmbientCapabilities=CAP_SYS_ADMIN",
                self.uid
            ));
        }
        Ok(())
    }

    /// The largest FUSE request, bytes.
    pub fn request_bytes_max(&self) -> u64 {
        const PAGES_BEFORE_6_13: u64 = 256;
        self.max_pages_limit.unwrap_or(PAGES_BEFORE_6_13) * rustix::param::page_size() as u64
    }

    /// Seconds after which the kernel aborts the whole connection over one unanswered request, if ever.
    pub fn request_timeout_s(&self) -> Option<u64> {
        let set = |timeout: Option<u64>| timeout.filter(|s| *s > 0);
        match (set(self.default_request_timeout_s), set(self.max_request_timeout_s)) {
            (Some(default), Some(max)) => Some(default.min(max)),
            (one, other) => one.or(other),
        }
    }
}

/// Whether a process of this number runs. One that is coming to its end, but may still hold its locks, does not: it has no
/// command line any more.
pub fn is_alive(pid: &str) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| !words.is_empty())
}

/// Raises the soft limit of open files to the hard one, for this process and its children; says what holds then.
pub fn raise_nofile() -> Limit {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum
        && let Err(e) = setrlimit(Resource::Nofile, raised)
    {
        tracing::warn!(error = %e, "cannot raise the limit of open files");
    }
    getrlimit(Resource::Nofile).into()
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.trim().parse().ok()
}

fn probe_fuse_device(path: &Path) -> FuseDevice {
    match fs::File::options().read(true).write(true).open(path) {
        Ok(_) => FuseDevice::Usable,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => FuseDevice::Missing,
        Err(e) => FuseDevice::Refused(e.to_string()),
    }
}

/// Looks through PATH, and where fuse packages put it when PATH is short (services).
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(usual)
        .map(|dir| dir.join(name))
        .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok() && file.is_file())
}

/// The running kernel's version; (0, 0) where it does not tell.
pub fn kernel_version() -> (u32, u32) {
    parse_release(&rustix::system::uname().release().to_string_lossy()).unwrap_or((0, 0))
}

/// `6.18.44-generic` is (6, 18); `5.4` and `6.1-rc3` exist too.
fn parse_release(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Whether `/proc/self/uid_map` is the identity over all users, as only the first user namespace has it.
fn maps_everyone(map: &str) -> bool {
    let mut fields = map.split_whitespace();
    fields.next() == Some("0") && fields.next() == Some("0") && fields.next() == Some("4294967295")
}

/// Whether fuse.conf has the line `user_allow_other`; comments begin with `#`.
fn allows_other(conf: &str) -> bool {
    conf.lines().any(|line| line.split('#').next().unwrap_or("").trim() == "user_allow_other")
}

/// A module's boolean parameter.
fn parse_switch(text: &str) -> Option<bool> {
    match text.trim() {
        "Y" | "1" => Some(true),
        "N" | "0" => Some(false),
        _ => None,
    }
}

/// What kind of thing a file system is, as far as a cache cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsClass {
    /// On a disk of this machine, or unknown to us.
    Local,
    /// On another machine.
    Network,
    /// Served by a process.
    Fuse,
    /// Layers over another file system, as in containers.
    Overlay,
    /// In RAM.
    Memory,
}

/// A file system as statfs(2) shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsFacts {
    /// Its name, or `unknown (0x…)`.
    pub name: String,
    /// Its kind.
    pub class: FsClass,
    /// Whether an inode number means the same file after the file system was mounted again.
    pub stable_inodes: bool,
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// Its size.
    pub total_bytes: u64,
    /// Inodes still to be had; `None` where they are not counted (btrfs).
    pub free_inodes: Option<u64>,
    /// All inodes; `None` where they are not counted.
    pub total_inodes: Option<u64>,
}

impl FsFacts {
    /// Asks the file system that `path` is on.
    pub fn of(path: &Path) -> Result<Self> {
        let os = |e: rustix::io::Errno| Error::os("statfs", PathText(path).to_string(), e.raw_os_error());
        let magic = rustix::fs::statfs(path).map_err(os)?.f_type as u64;
        let space = rustix::fs::statvfs(path).map_err(os)?;
        let (name, class, stable_inodes) = classify(magic);
        let counted = space.f_files > 0;
        Ok(Self {
            name,
            class,
            stable_inodes,
            free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
            total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
            free_inodes: counted.then_some(space.f_favail),
            total_inodes: counted.then_some(space.f_files),
        })
    }
}

/// Magic numbers of statfs(2), from linux/magic.h and, for those outside of the kernel, from their own sources; the
/// last column is [`FsFacts::stable_inodes`]. fat and exfat make their numbers up at each mount, fuse servers and 9p
/// may, and overlay does where its layers are on different file systems.
const FILE_SYSTEMS: &[(u32, &str, FsClass, bool)] = &[
    (0x0000_ef53, "ext4", FsClass::Local, true),
    (0x5846_5342, "xfs", FsClass::Local, true),
    (0x9123_683e, "btrfs", FsClass::Local, true),
    (0x2fc1_2fc1, "zfs", FsClass::Local, true),
    (0xf2f5_2010, "f2fs", FsClass::Local, true),
    (0xca45_1a4e, "bcachefs", FsClass::Local, true),
    (0x3153_464a, "jfs", FsClass::Local, true),
    (0x5265_4973, "reiserfs", FsClass::Local, true),
    (0x7366_746e, "ntfs3", FsClass::Local, true),
    (0x0000_4d44, "vfat", FsClass::Local, false),
    (0x2011_bab0, "exfat", FsClass::Local, false),
    (0x0000_9660, "iso9660", FsClass::Local, true),
    (0x7371_7368, "squashfs", FsClass::Local, true),
    (0xe0f5_e1e2, "erofs", FsClass::Local, true),
    (0x0102_1994, "tmpfs", FsClass::Memory, true),
    (0x8584_58f6, "ramfs", FsClass::Memory, true),
    (0x9584_58f6, "hugetlbfs", FsClass::Memory, true),
    (0x794c_7630, "overlay", FsClass::Overlay, false),
    (0x0000_f15f, "ecryptfs", FsClass::Overlay, true),
    (0x6175_6673, "aufs", FsClass::Overlay, false),
    (0x0000_6969, "nfs", FsClass::Network, true),
    (0xff53_4d42, "cifs", FsClass::Network, true),
    (0xfe53_4d42, "smb2", FsClass::Network, true),
    (0x0000_517b, "smb", FsClass::Network, true),
    (0x00c3_6400, "ceph", FsClass::Network, true),
    (0x0bd0_0bd0, "lustre", FsClass::Network, true),
    (0x4750_4653, "gpfs", FsClass::Network, true),
    (0x1983_0326, "beegfs", FsClass::Network, true),
    (0x2003_0528, "orangefs", FsClass::Network, true),
    (0x0116_1970, "gfs2", FsClass::Network, true),
    (0x7461_636f, "ocfs2", FsClass::Network, true),
    (0x5346_414f, "afs", FsClass::Network, true),
    (0x6b41_4653, "kafs", FsClass::Network, true),
    (0x7375_7245, "coda", FsClass::Network, true),
    (0x0102_1997, "9p", FsClass::Network, false),
    (0x786f_4256, "vboxsf", FsClass::Network, false),
    (0x6573_5546, "fuse", FsClass::Fuse, false),
];

/// Only the low 32 bits count: some machines sign-extend the field.
fn classify(magic: u64) -> (String, FsClass, bool) {
    let magic = magic as u32;
    match FILE_SYSTEMS.iter().find(|(known, ..)| *known == magic) {
        Some((_, name, class, stable)) => ((*name).to_owned(), *class, *stable),
        None => (format!("unknown ({magic:#x})"), FsClass::Local, true),
    }
}

/// The block device below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Its name in sysfs, such as `nvme0n1p2`.
    pub device: String,
    /// Read-ahead in KiB: what passthrough reads get.
    pub read_ahead_kb: u64,
    /// Whether it says that it turns; virtual disks say so without turning.
    pub rotational: bool,
}

impl BlockFacts {
    /// Asks sysfs about the device of `path`; `None` where there is no single one (network, RAM, btrfs, zfs).
    pub fn of(path: &Path) -> Option<Self> {
        let dev = fs::metadata(path).ok()?.dev();
        let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
        Self::at(&Path::new("/sys/dev/block").join(format!("{major}:{minor}")))
    }

    /// A partition has no queue of its own: its disk's is one directory up.
    fn at(link: &Path) -> Option<Self> {
        let device = link.canonicalize().ok()?;
        let queue =
            [device.join("queue"), device.parent()?.join("queue")].into_iter().find(|q| q.is_dir())?;
        Some(Self {
            device: device.file_name()?.to_string_lossy().into_owned(),
            read_ahead_kb: read_number(queue.join("read_ahead_kb"))?,
            rotational: parse_switch(&read(queue.join("rotational"))?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn able() -> KernelFacts {
        KernelFacts {
            release: "6.12.8".into(),
            version: (6, 12),
            uid: 0,
            admin: true,
            init_user_ns: true,
            ..KernelFacts::gather()
        }
    }

    #[test]
    fn releases_of_the_field() {
        for (release, version) in [
            ("6.18.44-fc-v657", Some((6, 18))),
            ("5.14.0-427.13.1.el9_4.x86_64", Some((5, 14))),
            ("6.1-rc3", Some((6, 1))),
            ("7.3", Some((7, 3))),
            ("5.15.167.4-microsoft-standard-WSL2", Some((5, 15))),
            ("Plan9", None),
            ("", None),
        ] {
            assert_eq!(parse_release(release), version, "{release}");
        }
    }

    #[test]
    fn passthrough_says_what_is_missing() {
        assert_eq!(able().passthrough_possible(), Ok(()));
        let old = KernelFacts { release: "6.8.0".into(), version: (6, 8), ..able() };
        assert!(old.passthrough_possible().unwrap_err().contains("6.9 or newer"));
        let user = KernelFacts { uid: 1000, admin: false, ..able() };
        assert!(user.passthrough_possible().unwrap_err().contains("CAP_SYS_ADMIN: mount as root"));
        let container = KernelFacts { init_user_ns: false, ..able() };
        assert!(container.passthrough_possible().unwrap_err().contains("namespace"));
        assert!(KernelFacts { version: (10, 0), ..able() }.passthrough_possible().is_ok());
    }

    #[test]
    fn the_shorter_timeout_counts_and_zero_is_none() {
        let timeout = |default, max| {
            KernelFacts { default_request_timeout_s: default, max_request_timeout_s: max, ..able() }
                .request_timeout_s()
        };
        assert_eq!(timeout(None, None), None);
        assert_eq!(timeout(Some(0), Some(0)), None);
        assert_eq!(timeout(Some(60), Some(0)), Some(60));
        assert_eq!(timeout(Some(0), Some(30)), Some(30));
        assert_eq!(timeout(Some(60), Some(30)), Some(30));
    }

    #[test]
    fn request_size_follows_the_limit() {
        let page = rustix::param::page_size() as u64;
        assert_eq!(KernelFacts { max_pages_limit: None, ..able() }.request_bytes_max(), 256 * page);
        assert_eq!(KernelFacts { max_pages_limit: Some(1024), ..able() }.request_bytes_max(), 1024 * page);
    }

    #[test]
    fn user_namespaces() {
        assert!(maps_everyone("         0          0 4294967295\n"));
        assert!(!maps_everyone("         0     100000      65536\n"));
        assert!(!maps_everyone("         0       1000          1\n"));
        assert!(!maps_everyone(""));
    }

    #[test]
    fn fuse_conf() {
        assert!(allows_other("# comment\nuser_allow_other\n"));
        assert!(allows_other("mount_max = 10\n  user_allow_other  # yes\n"));
        assert!(!allows_other("#user_allow_other\n"));
        assert!(!allows_other("# to have it, write user_allow_other\nuser_allow_others\n"));
    }

    #[test]
    fn module_switches() {
        assert_eq!(parse_switch("Y\n"), Some(true));
        assert_eq!(parse_switch("0"), Some(false));
        assert_eq!(parse_switch("maybe"), None);
    }

    #[test]
    fn file_systems_have_one_row_each_and_their_class() {
        assert_eq!(classify(0xef53), ("ext4".into(), FsClass::Local, true));
        assert_eq!(classify(0x6573_5546), ("fuse".into(), FsClass::Fuse, false));
        assert_eq!(classify(0xffff_ffff_9123_683e).0, "btrfs");
        assert_eq!(classify(0x0bd0_0bd0).1, FsClass::Network);
        assert_eq!(classify(0x1234), ("unknown (0x1234)".into(), FsClass::Local, true));
        let mut seen = std::collections::HashSet::new();
        assert!(FILE_SYSTEMS.iter().all(|(magic, ..)| seen.insert(magic)));
    }

    #[test]
    fn this_machine_answers() {
        let facts = KernelFacts::gather();
        assert!(facts.version >= (5, 0), "{facts:?}");
        assert!(facts.open_files.soft.is_some());
        let proc = FsFacts::of(Path::new("/tmp")).unwrap();
        assert!(proc.total_bytes >= proc.free_bytes && proc.total_bytes > 0, "{proc:?}");
        assert_eq!(FsFacts::of(Path::new("/nonexistent")).unwrap_err().errno(), Some(2));
        let _ = BlockFacts::of(Path::new("/tmp"));
    }

    #[test]
    fn open_files_are_raised_to_the_hard_limit() {
        let limit = raise_nofile();
        assert_eq!(limit.soft, limit.hard);
    }

    #[test]
    fn fuse_devices_that_are_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(probe_fuse_device(&dir.path().join("fuse")), FuseDevice::Missing);
        assert!(matches!(probe_fuse_device(dir.path()), FuseDevice::Refused(_)));
    }

    #[test]
    fn a_disk_and_its_partition_share_the_queue() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/nvme0n1");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("nvme0n1p2")).unwrap();
        fs::write(disk.join("queue/read_ahead_kb"), "128\n").unwrap();
        fs::write(disk.join("queue/rotational"), "0\n").unwrap();
        for (number, target, device) in [("259:0", "", "nvme0n1"), ("259:2", "nvme0n1p2", "nvme0n1p2")] {
            let link = sys.path().join(number);
            std::os::unix::fs::symlink(disk.join(target), &link).unwrap();
            let facts = BlockFacts::at(&link).unwrap();
            assert_eq!(facts, BlockFacts { device: device.into(), read_ahead_kb: 128, rotational: false });
        }
        assert_eq!(BlockFacts::at(&sys.path().join("0:50")), None);
    }
}
