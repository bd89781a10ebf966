//! Coherence in numbers: long random sequences against a reference, thousands of counted changes and replacements, two
//! mounts of one source and a mount of a mount. A program of its own, because it takes minutes where the other mount
//! tests take seconds. Needs /dev/fuse and root, like them.
//!
//! **What cannot be seen.** A version is size, mtime and ctime (nanoseconds) and, where inode numbers are stable, the
//! inode. So these escape:
//! 1. a source whose ctime is not kept by a kernel, but can be set or does not follow the content, when size and mtime are
//!    set back too;
//! 2. a source that tells times by another clock than this machine's, off by more than 20 ms (2.5 s where it tells whole
//!    seconds): of two changes within one step of that clock the second, if the first was read in between
//!    (`backing::racy` has the rule for clocks that agree; ext4, XFS, Btrfs and tmpfs need none since Linux 6.13);
//! 3. to an open that joins a fetch which another began before the change: the same, for that one open;
//! 4. to a handle that reads a file in pieces, for what it had not read: that the file was overwritten in place with size
//!    and mtime set back, if it also lost a name since; without the latter it is ESTALE.

// Helpers may fail a test as tests may.
#![allow(clippy::unwrap_used)]

mod changes;
#[allow(dead_code)] // The mount tests use the rest.
#[path = "../mount/common.rs"]
mod common;
#[path = "../figures.rs"]
mod figures;
mod layers;
mod model;
mod races;
mod steps;
#[allow(dead_code)] // The same.
#[path = "../mount/tools.rs"]
mod tools;
mod tree;
