//! Which source this is, for what is kept of its names beyond the end of a mount.
//!
//! A listing is found again by inode numbers, so it may be used only where these still mean the same objects. Promise: two
//! stamps are equal only if they are of the same file system, seen through the same mount options; where a file system numbers
//! its inodes as it goes, only while it stays mounted. What cannot be told apart gets no stamp, and nothing is kept of it.

use super::IdentityRule;
use crate::sys::clock;
use crate::sys::io::Io;
use crate::sys::mountinfo::{self, MountEntry};
use rustix::fs::StatxFlags;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// A number of the mount that the kernel never gives out twice while the machine runs (since Linux 6.8).
const MNT_ID_UNIQUE: u32 = 0x4000;

/// The stamp of the source whose root is open.
pub(super) fn stamp(io: &Io, root: &OwnedFd, rule: IdentityRule) -> Option<[u8; 16]> {
    let fs = io.statfs(root).ok()?;
    let fsid = io.statvfs(root).ok()?.f_fsid;
    let stat = io.statx_of(root, StatxFlags::INO | StatxFlags::BTIME | StatxFlags::MNT_ID).ok()?;
    let mount = mount(stat.stx_mnt_id)?;
    let mut hasher = blake3::Hasher::new();
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for n in [fs.f_type as u64, fsid, stat.stx_ino, stat.stx_btime.tv_sec as u64] {
        add(&n.to_le_bytes());
    }
    add(mount.fs_type.as_bytes());
    add(mount.source.as_bytes());
    add(mount.root.as_os_str().as_bytes());
    add(mount.options.as_bytes());
    match rule {
        IdentityRule::Inode => add(b"inode"),
        IdentityRule::Path => {
            let unique = io.statx_of(root, StatxFlags::from_bits_retain(MNT_ID_UNIQUE)).ok()?;
            if unique.stx_mask & MNT_ID_UNIQUE == 0 || clock::boot() == 0 {
                return None;
            }
            add(b"path");
            add(&unique.stx_mnt_id.to_le_bytes());
            add(&clock::boot().to_le_bytes());
        }
    }
    let mut stamp = [0; 16];
    stamp.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Some(stamp)
}

fn mount(id: u64) -> Option<MountEntry> {
    mountinfo::mounts().ok()?.into_iter().find(|mount| mount.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::io::PLAIN;
    use rustix::fs::{CWD, Mode, OFlags};
    use std::path::Path;

    fn of(path: &Path, rule: IdentityRule) -> [u8; 16] {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let root = PLAIN.open(CWD, path, flags, Mode::empty()).unwrap();
        stamp(&PLAIN, &root, rule).expect("a mount of this machine, on a kernel of today")
    }

    #[test]
    fn a_source_is_known_again_and_another_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        assert_eq!(of(&a, IdentityRule::Inode), of(&a, IdentityRule::Inode));
        assert_ne!(of(&a, IdentityRule::Inode), of(&b, IdentityRule::Inode));
        assert_ne!(of(&a, IdentityRule::Inode), of(&a, IdentityRule::Path));
        assert_ne!(of(&a, IdentityRule::Inode), of(Path::new("/proc"), IdentityRule::Inode));
    }
}
