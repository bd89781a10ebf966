//! The bytes of what the index keeps of names: the listing of one directory and the attributes of its entries, as the
//! source told them. Drawn here, and read nowhere else.
//!
//! ```text
//! listing, little-endian, under the key of its directory: inode (8), birth: seconds (8), nanoseconds (4)
//!   0   1   layout, 1
//!   1   1   bit 0: a change that the directory's times do not tell may have followed at once; bit 1: the directory itself has
//!           no access control list, as of its ctime
//!   2   4   N, number of entries
//!   6  12   mtime of the directory: seconds (8), nanoseconds (4)
//!  18  12   ctime
//!  30   8   how long ago the source had told the listing when this was written, milliseconds
//!  38   8   when this was written: wall clock, milliseconds since 1970
//!  46   8   the same by the clock of the machine's start, milliseconds
//!  54  16   which start of the machine that was
//!  70  16   which source: a stamp of what makes its names and numbers mean what they mean
//!  86       N entries:
//!             8   inode
//!             2   L, length of the name
//!             1   type: 0 file, 1 directory, 2 link, 3 pipe, 4 socket, 5 character device, 6 block device
//!             1   bit 0: attributes follow; bit 1: the object has no access control list
//!             L   name
//!             8   how long ago the source had told the attributes, milliseconds
//!             2   permissions
//!            12   links, owner, group (4 each)
//!            16   size, blocks (8 each)
//!            48   atime, mtime, ctime, birth
//!  ..   8   first 8 bytes of blake3 over the key and everything before
//! ```
//!
//! The last field makes a listing believe nobody, as the one of a cached file's record does ([`super::format`]). All is of the
//! device of the source's root: what is mounted below it is not kept.

use crate::types::{Attr, FileKind, Identity, Moment, Timestamp};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The key of a directory.
pub type DirKey = [u8; 20];

/// Which source; see [`crate::backing::Source::stamp`].
pub type Stamp = [u8; 16];

const LAYOUT: u8 = 1;
const RACY: u8 = 1;
const HAS_ATTR: u8 = 1;
const HAS_NO_ACL: u8 = 2;
const CHECK_BYTES: usize = 8;
/// An entry without its name and attributes; no entry is shorter.
const ENTRY_BYTES: usize = 12;

/// What is kept of one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptListing {
    /// Its times: as long as they stay, so do its entries.
    pub times: (Timestamp, Timestamp),
    /// A change that the times do not tell may have followed at once.
    pub racy: bool,
    /// The directory itself is known to have no access control list, as of its ctime.
    pub no_acl: bool,
    /// How long ago the source had told it when it was written, milliseconds.
    pub age_ms: u64,
    /// When it was written.
    pub written: Moment,
    /// Which source.
    pub stamp: Stamp,
    /// Its entries, in the source's order.
    pub entries: Vec<KeptEntry>,
}

/// One entry of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptEntry {
    /// Its name.
    pub name: OsString,
    /// Its inode number.
    pub ino: u64,
    /// Its type.
    pub kind: FileKind,
    /// Its attributes and how long ago the source had told them, milliseconds, if it was asked.
    pub attr: Option<(Attr, u64)>,
    /// It is known to have no access control list, as of the ctime among its attributes.
    pub no_acl: bool,
}

/// The key of the directory with this identity.
pub fn dir_key(dir: &Identity) -> DirKey {
    let mut key = [0; 20];
    key[..8].copy_from_slice(&dir.ino.to_le_bytes());
    key[8..16].copy_from_slice(&dir.birth.secs.to_le_bytes());
    key[16..].copy_from_slice(&dir.birth.nanos.to_le_bytes());
    key
}

impl KeptListing {
    /// The listing's bytes, to be kept under `key`.
    pub fn encode(&self, key: &DirKey) -> Vec<u8> {
        let mut out = Vec::with_capacity(96 + self.entries.len() * 120);
        out.extend([LAYOUT, flag(self.racy, RACY) | flag(self.no_acl, HAS_NO_ACL)]);
        out.extend((self.entries.len() as u32).to_le_bytes());
        put_time(&mut out, self.times.0);
        put_time(&mut out, self.times.1);
        for n in [self.age_ms, self.written.wall_ms, self.written.boot_ms] {
            out.extend(n.to_le_bytes());
        }
        out.extend(self.written.boot.to_le_bytes());
        out.extend(self.stamp);
        self.entries.iter().for_each(|entry| entry.encode(&mut out));
        out.extend(check(key, &out));
        out
    }

    /// Reads the listing found under `key`, of the source whose root is on device `dev`; `None` for anything that
    /// [`KeptListing::encode`] did not write for it.
    pub fn decode(key: &DirKey, bytes: &[u8], dev: u64) -> Option<Self> {
        let (body, found) = bytes.split_at_checked(bytes.len().checked_sub(CHECK_BYTES)?)?;
        if check(key, body) != *found {
            return None;
        }
        let mut r = Reader(body);
        let [layout, flags] = r.array()?;
        if layout != LAYOUT || flags & !(RACY | HAS_NO_ACL) != 0 {
            return None;
        }
        let count = r.u32()? as usize;
        let times = (r.time()?, r.time()?);
        let age_ms = r.u64()?;
        let written = Moment { wall_ms: r.u64()?, boot_ms: r.u64()?, boot: u128::from_le_bytes(r.array()?) };
        let stamp = r.array()?;
        let mut entries = Vec::with_capacity(count.min(r.0.len() / ENTRY_BYTES));
        for _ in 0..count {
            entries.push(KeptEntry::decode(&mut r, dev)?);
        }
        let (racy, no_acl) = (flags & RACY != 0, flags & HAS_NO_ACL != 0);
        r.0.is_empty().then_some(Self { times, racy, no_acl, age_ms, written, stamp, entries })
    }
}

impl KeptEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.ino.to_le_bytes());
        out.extend((self.name.len() as u16).to_le_bytes());
        out.push(KINDS.iter().position(|kind| *kind == self.kind).expect("all types are in the table") as u8);
        out.push(flag(self.attr.is_some(), HAS_ATTR) | flag(self.no_acl, HAS_NO_ACL));
        out.extend(self.name.as_bytes());
        let Some((attr, age_ms)) = &self.attr else { return };
        out.extend(age_ms.to_le_bytes());
        out.extend(attr.perm.to_le_bytes());
        [attr.nlink, attr.uid, attr.gid].iter().for_each(|n| out.extend(n.to_le_bytes()));
        [attr.size, attr.blocks].iter().for_each(|n| out.extend(n.to_le_bytes()));
        [attr.atime, attr.mtime, attr.ctime, attr.identity.birth].iter().for_each(|t| put_time(out, *t));
    }

    fn decode(r: &mut Reader<'_>, dev: u64) -> Option<Self> {
        let ino = r.u64()?;
        let len = u16::from_le_bytes(r.array()?);
        let [kind, flags] = r.array()?;
        let kind = *KINDS.get(usize::from(kind))?;
        if flags & !(HAS_ATTR | HAS_NO_ACL) != 0 {
            return None;
        }
        let name = OsStr::from_bytes(r.take(usize::from(len))?).to_owned();
        let attr = if flags & HAS_ATTR != 0 { Some(decode_attr(r, kind, dev, ino)?) } else { None };
        Some(Self { name, ino, kind, attr, no_acl: flags & HAS_NO_ACL != 0 })
    }
}

fn flag(is: bool, bit: u8) -> u8 {
    if is { bit } else { 0 }
}

fn decode_attr(r: &mut Reader<'_>, kind: FileKind, dev: u64, ino: u64) -> Option<(Attr, u64)> {
    let age_ms = r.u64()?;
    let perm = u16::from_le_bytes(r.array()?);
    let (nlink, uid, gid) = (r.u32()?, r.u32()?, r.u32()?);
    let (size, blocks) = (r.u64()?, r.u64()?);
    let (atime, mtime, ctime, birth) = (r.time()?, r.time()?, r.time()?, r.time()?);
    let identity = Identity { dev, ino, birth };
    // Device files are not kept.
    let attr = Attr { kind, perm, nlink, uid, gid, rdev: 0, size, blocks, atime, mtime, ctime, identity };
    Some((attr, age_ms))
}

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::Fifo,
    FileKind::Socket,
    FileKind::CharDevice,
    FileKind::BlockDevice,
];

/// The table of contents: which directories are kept, of which source, and how many bytes each takes.
///
/// ```text
///   0  16   which source
///  16       for each directory: key (20), bytes (4)
///  ..   8   first 8 bytes of blake3 over everything before
/// ```
pub fn encode_contents(stamp: &Stamp, dirs: impl Iterator<Item = (DirKey, u32)>) -> Vec<u8> {
    let mut out = stamp.to_vec();
    for (key, bytes) in dirs {
        out.extend(key);
        out.extend(bytes.to_le_bytes());
    }
    out.extend(check(&[0; 20], &out));
    out
}

/// Reads the table of contents; `None` if it is not what [`encode_contents`] wrote, or of another source.
pub fn decode_contents(bytes: &[u8], stamp: &Stamp) -> Option<Vec<(DirKey, u32)>> {
    let (body, found) = bytes.split_at_checked(bytes.len().checked_sub(CHECK_BYTES)?)?;
    let (of, dirs) = body.split_at_checked(stamp.len())?;
    let (dirs, []) = dirs.as_chunks::<24>() else { return None };
    if check(&[0; 20], body) != *found || of != stamp {
        return None;
    }
    let dir = |d: &[u8; 24]| {
        let (key, bytes) = d.split_first_chunk::<20>()?;
        Some((*key, u32::from_le_bytes(bytes.try_into().ok()?)))
    };
    dirs.iter().map(dir).collect()
}

fn check(key: &DirKey, body: &[u8]) -> [u8; CHECK_BYTES] {
    let hash = blake3::Hasher::new().update(key).update(body).finalize();
    let mut check = [0; CHECK_BYTES];
    check.copy_from_slice(&hash.as_bytes()[..CHECK_BYTES]);
    check
}

fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend({ time.secs }.to_le_bytes());
    out.extend({ time.nanos }.to_le_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.array()?))
    }

    fn time(&mut self) -> Option<Timestamp> {
        Some(Timestamp { secs: self.u64()? as i64, nanos: self.u32()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: DirKey = [7; 20];
    const DEV: u64 = 3;

    fn entry(n: u64, name: &[u8]) -> KeptEntry {
        let time = |secs| Timestamp { secs, nanos: 999_999_999 };
        let kind = KINDS[n as usize % KINDS.len()];
        let identity = Identity { dev: DEV, ino: n, birth: time(-7) };
        let attr = Attr {
            kind,
            perm: 0o4711,
            nlink: 3,
            uid: 1000,
            gid: 1001,
            rdev: 0,
            size: n << 40,
            blocks: 8,
            atime: time(1),
            mtime: time(-1),
            ctime: time(1 << 33),
            identity,
        };
        let attr = (!n.is_multiple_of(3)).then_some((attr, n * 1000));
        KeptEntry {
            name: OsStr::from_bytes(name).to_owned(),
            ino: n,
            kind,
            attr,
            no_acl: n.is_multiple_of(2),
        }
    }

    fn listing(names: &[Vec<u8>]) -> KeptListing {
        KeptListing {
            times: (Timestamp { secs: 5, nanos: 1 }, Timestamp { secs: -5, nanos: 2 }),
            racy: names.len() % 2 == 1,
            no_acl: names.len() % 3 == 1,
            age_ms: 12_345,
            written: Moment { wall_ms: 1 << 40, boot_ms: 99, boot: u128::MAX - 3 },
            stamp: [9; 16],
            entries: names.iter().enumerate().map(|(n, name)| entry(n as u64, name)).collect(),
        }
    }

    /// Goal: damage is noticed wherever it is. Method: each single bit, all of them.
    #[test]
    fn every_flipped_bit_is_refused() {
        let bytes = listing(&[b"a".to_vec(), b"a\n\xff".to_vec(), b"longer name".to_vec()]).encode(&KEY);
        let contents = encode_contents(&[9; 16], [(KEY, 7), ([8; 20], 1 << 30)].into_iter());
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(KeptListing::decode(&KEY, &bytes, DEV), None, "bit {bit}");
        }
        for bit in 0..contents.len() * 8 {
            let mut contents = contents.clone();
            contents[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_contents(&contents, &[9; 16]), None, "bit {bit} of the contents");
        }
    }

    #[test]
    fn what_is_of_another_directory_or_of_another_source_is_refused() {
        let bytes = listing(&[b"a".to_vec()]).encode(&KEY);
        assert_eq!(KeptListing::decode(&[8; 20], &bytes, DEV), None);
        let contents = encode_contents(&[9; 16], [(KEY, 7)].into_iter());
        assert_eq!(decode_contents(&contents, &[9; 16]), Some(vec![(KEY, 7)]));
        assert_eq!(decode_contents(&contents, &[8; 16]), None);
    }

    /// Goal: bytes that were never written are no listing, even under a right checksum.
    #[test]
    fn odd_flags_types_and_lengths_are_refused_under_a_right_checksum() {
        let whole = listing(&[b"a".to_vec()]).encode(&KEY);
        let body = &whole[..whole.len() - CHECK_BYTES];
        let entry = 86;
        for (at, value) in [(0, 2), (1, 4), (2, 2), (2, 0), (entry + 8, 9), (entry + 10, 7), (entry + 11, 4)]
        {
            let mut bytes = body.to_vec();
            bytes[at] = value;
            bytes.extend(check(&KEY, &bytes));
            assert_eq!(KeptListing::decode(&KEY, &bytes, DEV), None, "{value} at {at}");
        }
    }

    proptest! {
        #[test]
        fn listings_round_trip(names: Vec<Vec<u8>>) {
            let listing = listing(&names);
            prop_assert_eq!(KeptListing::decode(&KEY, &listing.encode(&KEY), DEV), Some(listing));
        }

        #[test]
        fn rubbish_is_refused_without_a_panic(bytes: Vec<u8>) {
            prop_assert_eq!(KeptListing::decode(&KEY, &bytes, DEV), None);
            prop_assert_eq!(decode_contents(&bytes, &[9; 16]), None);
            // The same behind a right checksum: the reader itself is met.
            let mut bytes = bytes;
            bytes.splice(0..0, [LAYOUT, 0]);
            let check = check(&KEY, &bytes);
            bytes.extend(check);
            let _ = KeptListing::decode(&KEY, &bytes, DEV);
        }
    }
}
