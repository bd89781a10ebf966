//! The small grammars: the index's records, the slow source's rules, the kernel's table of mounts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::os::unix::ffi::OsStrExt;
use warmfs::faultfs::fuzz_rules;
use warmfs::store::Record;
use warmfs::store::names::{KeptListing, decode_contents};
use warmfs::sys::mountinfo;
use warmfs::types::{CHUNK_BYTES, FileId, FileVersion, Timestamp};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    match kind % 5 {
        0 => rules(data),
        3 => body(data),
        4 => edited_record(data),
        1 => assert!(mountinfo::parse(data).len() <= data.split(|b| *b == b'\n').count()),
        _ => mounted(data),
    }
});

/// The first line is the path that is asked for, the rest are rules.
fn rules(data: &[u8]) {
    let at = data.iter().position(|b| *b == b'\n').unwrap_or(data.len());
    let (path, text) = data.split_at(at);
    let Ok(text) = std::str::from_utf8(text.get(1..).unwrap_or_default()) else { return };
    if let Err(why) = fuzz_rules(text, path) {
        assert!(!why.contains('\n'), "not one line: {why:?}");
    }
}

/// A line as the kernel writes it, whatever the names: they come back as they were.
fn mounted(data: &[u8]) {
    let mut names = data.splitn(3, |b| *b == 0);
    let mut name = || names.next().unwrap_or_default();
    let (root, mountpoint, source) = (name(), name(), name());
    let mangle = |name: &[u8]| -> Vec<u8> {
        let one = |b: &u8| match b {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{b:03o}").into_bytes(),
            b => vec![*b],
        };
        name.iter().flat_map(one).collect()
    };
    let fields: [&[u8]; 4] = [b"36 35 98:0", &mangle(root), &mangle(mountpoint), b"rw - ext4"];
    let line = [&fields.join(&b' '), b" ".as_slice(), &mangle(source), b" rw"].concat();
    let entries = mountinfo::parse(&line);
    let [entry] = entries.as_slice() else { panic!("{} entries of one line", entries.len()) };
    assert_eq!(entry.root.as_os_str().as_bytes(), root);
    assert_eq!(entry.mountpoint.as_os_str().as_bytes(), mountpoint);
    assert_eq!(entry.source.as_bytes(), source);
    assert_eq!((entry.id, entry.parent, entry.major, entry.minor), (36, 35, 98, 0));
}

const ID: FileId = FileId { high: 3, low: 7 };

fn id(n: u64) -> FileId {
    FileId { high: 0, low: n }
}

fn record(n: u64) -> Record {
    let time = Timestamp { secs: n as i64, nanos: 1 };
    let version = FileVersion { size: 2 * CHUNK_BYTES + n, mtime: time, ctime: time, ino: n };
    let chunk = |i: u64| (i != n % 4).then_some([n as u8; 32]);
    Record {
        number: n,
        version,
        path: format!("dir/file {n}").into_bytes(),
        chunks: (0..3).map(chunk).collect(),
    }
}

/// Any bytes under a right checksum, so that what comes after it is reached: what is read is what would be written.
fn body(body: &[u8]) {
    let mut bytes = body.to_vec();
    let hash = blake3::Hasher::new().update(&ID.to_bytes()).update(body).finalize();
    bytes.extend(&hash.as_bytes()[..8]);
    if let Some(record) = Record::decode(ID, &bytes) {
        assert_eq!(record.encode(ID), bytes, "not what is written for it");
    }
    let _ = Record::decode(ID, body);
    names(body);
}

/// The same for what is kept of a directory.
fn names(body: &[u8]) {
    let key = [0; 20];
    let mut bytes = body.to_vec();
    bytes.extend(&blake3::Hasher::new().update(&key).update(body).finalize().as_bytes()[..8]);
    if let Some(listing) = KeptListing::decode(&key, &bytes, 7) {
        assert_eq!(listing.encode(&key), bytes, "not what is written for it");
    }
    let _ = KeptListing::decode(&key, body, 7);
    let _ = decode_contents(&bytes, &[0; 16]);
}

/// A record with bytes changed, cut or added is none.
fn edited_record(data: &[u8]) {
    let Some((&n, edits)) = data.split_first() else { return };
    let (n, original) = (u64::from(n % 50) + 1, record(u64::from(n % 50) + 1));
    let mut bytes = original.encode(id(n));
    for edit in edits.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % (bytes.len() + 40);
        match (at < bytes.len(), edit[2]) {
            (true, 0) => bytes.truncate(at.max(1)),
            (true, flip) => bytes[at] ^= flip,
            (false, add) => bytes.push(add),
        }
    }
    assert!(Record::decode(id(n), &bytes).is_none_or(|r| r == original));
    assert!(Record::decode(id(n + 1), &bytes).is_none(), "another file's record");
}
