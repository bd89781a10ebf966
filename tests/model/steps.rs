//! The steps of a random sequence and how often each comes.

use proptest::prelude::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names are few, so that steps meet; some are directories of others at times.
const NAMES: [&[u8]; 13] =
    [b"a", b"b", b"c", b"odd \n\xff\"'%", b"d", b"d/x", b"d/y", b"d/s", b"d/s/z", b"e", b"e/x", DEEP, LONG];

/// Under directories that stay.
const DEEP: &[u8] = b"deep/1/2/3/4/5/6/7/8/9/10/11/12/f";

/// As long as a name may be.
const LONG: &[u8] = &[b'n'; 255];

/// A name by its number.
pub fn name(slot: usize) -> PathBuf {
    Path::new(OsStr::from_bytes(NAMES[slot])).to_path_buf()
}

/// The directories that are there from the start.
pub fn first_dirs() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = ["d", "d/s", "e"].map(PathBuf::from).to_vec();
    let deep = Path::new(OsStr::from_bytes(DEEP));
    let mut above: Vec<_> =
        deep.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).map(PathBuf::from).collect();
    above.reverse();
    dirs.extend(above);
    dirs
}

/// How a file is read.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// From the start to the end.
    Whole,
    /// A piece from here on, then one that ends at the end.
    Pieces(u64),
    /// Through a shared map.
    Map,
}

/// One step.
#[derive(Clone, Debug)]
pub enum Step {
    // The source changes.
    Write(usize, u64),
    Overwrite(usize, u64, u64),
    Grow(usize, u64),
    Shrink(usize),
    SameSizeAndMtime(usize),
    Touch(usize),
    Rename(usize, usize),
    Exchange(usize, usize),
    Replace(usize, u64),
    Delete(usize),
    HardLink(usize, usize),
    Mkdir(usize),
    Symlink(usize),
    Mkfifo(usize),
    // The mount is used.
    Read(usize, How),
    Stat(usize),
    ReadLink(usize),
    List(usize),
    ListAndStat(usize),
    Xattrs(usize),
    Hold(usize, bool),
    ReadHeld(usize, u64),
    StatHeld(usize),
    Close(usize),
    // The operator does something.
    Evict(usize),
    EvictAll,
    Warm(usize),
    Verify,
    Stats,
    Remount,
    Kill,
}

/// Any step.
pub fn step() -> impl Strategy<Value = Step> {
    let slot = || 0..NAMES.len();
    let size = || {
        prop_oneof![
            2 => Just(0u64),
            12 => 1u64..6000,
            2 => Just(4096u64),
            6 => 17_000u64..100_000,
            1 => 1_000_000u64..2_200_000,
        ]
    };
    let how =
        prop_oneof![3 => Just(How::Whole), 2 => (0u64..1_200_000).prop_map(How::Pieces), 1 => Just(How::Map)];
    let changes = prop_oneof![
        45 => (slot(), size()).prop_map(|(n, s)| Step::Write(n, s)),
        20 => (slot(), 0u64..50_000, 1u64..5000).prop_map(|(n, at, len)| Step::Overwrite(n, at, len)),
        10 => (slot(), 1u64..40_000).prop_map(|(n, more)| Step::Grow(n, more)),
        10 => slot().prop_map(Step::Shrink),
        15 => slot().prop_map(Step::SameSizeAndMtime),
        5 => slot().prop_map(Step::Touch),
        20 => (slot(), slot()).prop_map(|(a, b)| Step::Rename(a, b)),
        6 => (slot(), slot()).prop_map(|(a, b)| Step::Exchange(a, b)),
        20 => (slot(), size()).prop_map(|(n, s)| Step::Replace(n, s)),
        6 => slot().prop_map(Step::Delete),
        12 => (slot(), slot()).prop_map(|(a, b)| Step::HardLink(a, b)),
        5 => slot().prop_map(Step::Mkdir),
        3 => slot().prop_map(Step::Symlink),
        2 => slot().prop_map(Step::Mkfifo),
    ];
    let uses = prop_oneof![
        60 => (slot(), how).prop_map(|(n, how)| Step::Read(n, how)),
        15 => slot().prop_map(Step::Stat),
        4 => slot().prop_map(Step::ReadLink),
        10 => slot().prop_map(Step::List),
        8 => slot().prop_map(Step::ListAndStat),
        15 => slot().prop_map(Step::Xattrs),
        20 => (slot(), any::<bool>()).prop_map(|(n, begin)| Step::Hold(n, begin)),
        25 => (0usize..8, 0u64..1_500_000).prop_map(|(h, at)| Step::ReadHeld(h, at)),
        6 => (0usize..8).prop_map(Step::StatHeld),
        8 => (0usize..8).prop_map(Step::Close),
    ];
    let control = prop_oneof![
        40 => slot().prop_map(Step::Evict),
        8 => Just(Step::EvictAll),
        30 => slot().prop_map(Step::Warm),
        8 => Just(Step::Verify),
        10 => Just(Step::Stats),
        2 => Just(Step::Remount),
        2 => Just(Step::Kill),
    ];
    prop_oneof![18 => changes, 22 => uses, 3 => control]
}
