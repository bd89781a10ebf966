//! Which file systems are mounted where: `/proc/self/mountinfo`, parsed.
//!
//! Apart from [`super::mount`], because these are questions and change nothing. The table is read rather than
//! `statfs` asked, since a question put to a mount can block for as long as its server does; only [`is_stale`] puts
//! one. Names are bytes: the kernel's octal escapes are decoded and nothing is taken for UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dev, StatxFlags};
use rustix::io::Errno;

use crate::types::{Error, Result};

const TABLE: &str = "/proc/self/mountinfo";

/// The type of a warmfs mount, as the table shows it.
pub const FS_TYPE: &str = "fuse.warmfs";

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the mount. The kernel gives it out again after an unmount, so compare `minor` with it.
    pub id: u64,
    /// Number of the mount that this one sits on.
    pub parent: u64,
    /// Major number of `st_dev` of the files on it; 0 for file systems without a device.
    pub major: u32,
    /// Minor number of `st_dev`; for FUSE also the number of the connection.
    pub minor: u32,
    /// The directory of the file system that is seen at the mount point: `/` unless it is a bind mount.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// Type, with the subtype of FUSE file systems: `ext4`, `fuse.warmfs`.
    pub fs_type: String,
    /// What it says it is mounted from: a device, or any text. May be empty.
    pub source: OsString,
    /// Options of the mount and of its superblock, the latter with the FUSE ones, separated by commas.
    pub options: String,
}

impl MountEntry {
    /// `st_dev` of the files on it.
    pub fn dev(&self) -> Dev {
        rustix::fs::makedev(self.major, self.minor)
    }
}

/// All mounts that this process sees, in the table's order: a mount comes after the one it covers.
pub fn mounts() -> Result<Vec<MountEntry>> {
    let table = std::fs::read(TABLE).map_err(|e| Error::io("read", TABLE, &e))?;
    Ok(parse(&table))
}

/// The first mount of the file system with this `st_dev`, or `None` where it is not mounted any more.
pub fn find_by_dev(dev: Dev) -> Result<Option<MountEntry>> {
    Ok(mounts()?.into_iter().find(|m| m.dev() == dev))
}

/// The mount that is seen at `path`, if `path` is a mount point: the last one, where several are stacked. Symbolic
/// links are followed; the server of the mount is not asked.
pub fn top_mount_at(path: &Path) -> Result<Option<MountEntry>> {
    let path = place_of(path)?;
    Ok(mounts()?.into_iter().rfind(|m| m.mountpoint == path))
}

/// Whether a warmfs mount at `path` has lost its daemon. Blocks if the daemon lives and does not answer.
pub fn is_stale(path: &Path) -> bool {
    let ours = matches!(top_mount_at(path), Ok(Some(entry)) if entry.fs_type == FS_TYPE);
    // A plain stat may be answered from what the kernel remembers of a daemon that is gone: this one goes to it.
    let asked = rustix::fs::statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    // ECONNABORTED is what ENOTCONN becomes when the daemon asked to be told of an abort.
    ours && matches!(asked, Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The path as the table spells it. Resolving a mount point does not ask its server (readlink on a directory is
/// answered by the kernel alone), but what lies above may be unreadable: then the path is taken as it stands.
fn place_of(path: &Path) -> Result<PathBuf> {
    match std::fs::canonicalize(path) {
        Ok(path) => Ok(path),
        Err(_) => std::path::absolute(path).map_err(|e| Error::io("resolve", path.to_string_lossy(), &e)),
    }
}

/// The entries of a table. Lines that are not of the documented form are left out: no caller could do better.
pub fn parse(table: &[u8]) -> Vec<MountEntry> {
    table.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// `id parent major:minor root mountpoint options [tags...] - type source superoptions`. Single blanks separate, and
/// an empty source leaves two of them in a row.
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = 6 + fields.get(6..)?.iter().position(|f| *f == b"-")?;
    let &[fs_type, source, super_options, ..] = fields.get(dash + 1..)? else { return None };
    let (major, minor) = text(fields[2]).split_once(':').map(|(a, b)| (a.parse(), b.parse()))?;
    Some(MountEntry {
        id: text(fields[0]).parse().ok()?,
        parent: text(fields[1]).parse().ok()?,
        major: major.ok()?,
        minor: minor.ok()?,
        root: OsString::from_vec(decode(fields[3])).into(),
        mountpoint: OsString::from_vec(decode(fields[4])).into(),
        fs_type: text(&decode(fs_type)),
        source: OsString::from_vec(decode(source)),
        options: format!("{},{}", text(&decode(fields[5])), text(&decode(super_options))),
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Undoes the kernel's `\ooo`; a backslash that begins no such escape stays.
fn decode(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &[u8]) -> MountEntry {
        let mut entries = parse(line);
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries.remove(0)
    }

    #[test]
    fn a_plain_line() {
        let m = one(b"36 35 98:2 /sub /mnt rw,noatime - ext4 /dev/sda2 rw,errors=continue\n");
        assert_eq!((m.id, m.parent, m.major, m.minor), (36, 35, 98, 2));
        assert_eq!((m.root.as_path(), m.mountpoint.as_path()), (Path::new("/sub"), Path::new("/mnt")));
        assert_eq!((m.fs_type.as_str(), m.source.to_str()), ("ext4", Some("/dev/sda2")));
        assert_eq!(m.options, "rw,noatime,rw,errors=continue");
        assert_eq!(m.dev(), rustix::fs::makedev(98, 2));
    }

    #[test]
    fn any_number_of_tags_before_the_dash() {
        let m = one(b"1 2 0:5 / /a rw shared:1 master:2 unbindable - tmpfs tmpfs rw");
        assert_eq!(m.fs_type, "tmpfs");
    }

    #[test]
    fn odd_names_come_back_as_bytes() {
        let m =
            one(b"1 2 0:5 / /a\\040b\\011c\\012d\\134e\xff\\ rw - fuse.warmfs warmfs:/x\\040-\\040\\043y rw");
        assert_eq!(m.mountpoint.as_os_str().as_encoded_bytes(), b"/a b\tc\nd\\e\xff\\");
        assert_eq!(m.source.as_encoded_bytes(), b"warmfs:/x - #y");
    }

    #[test]
    fn an_empty_source_is_empty() {
        assert_eq!(one(b"1 2 0:5 / /a rw - tmpfs  rw").source, OsString::new());
    }

    #[test]
    fn what_is_no_line_is_left_out() {
        assert_eq!(parse(b"\n\nnonsense\n1 2 0:5 / /a rw - tmpfs\n1 2 05 / /a rw - t s o\n"), vec![]);
    }

    #[test]
    fn the_real_table_has_proc() {
        let entry = top_mount_at(Path::new("/proc")).expect("readable").expect("mounted");
        assert_eq!(entry.fs_type, "proc");
        let dev = rustix::fs::stat("/proc").expect("stat").st_dev;
        assert_eq!(find_by_dev(dev).expect("readable").map(|m| m.fs_type), Some("proc".to_owned()));
        assert!(!is_stale(Path::new("/proc")));
    }
}
