//! `.warmfs/`: what warmfs provides beside the source's files. Reachable by name from the root and never listed, so
//! that `cp -r`, `grep -r` and walkers do not meet it. A `.warmfs` of the source's own is not hidden by it.
//!
//! `stats.json` has one size for ever, its text being padded with blanks: a size made up for a file whose length
//! changes is what makes `cp` and `cat` disagree.

use super::node::{INSIDE, Node, ROOT};
use super::{Entry, FOREVER, Fs};
use crate::types::{Attr, Error, FileKind, Identity, NodeId, Result};
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

const DIRECTORY: NodeId = INSIDE;
const STATS: NodeId = INSIDE + 1;

/// Size of `stats.json`: the figures take 3 KiB today, and an epoch a third of one.
const STATS_BYTES: u64 = 16_384;

impl Fs {
    /// Whether a number is of something in `.warmfs/`.
    pub fn is_inside(id: NodeId) -> bool {
        id >= INSIDE
    }

    /// LOOKUP below `.warmfs/`.
    pub(super) fn lookup_inside(&self, parent: NodeId, name: &OsStr) -> Option<Result<Entry>> {
        (parent == DIRECTORY).then(|| match name.as_encoded_bytes() {
            b"stats.json" => Ok(self.inside_entry(STATS)),
            _ => Ok(Entry::Missing(FOREVER)),
        })
    }

    /// `.warmfs` in the root, once the source has said that it has none.
    pub(super) fn lookup_shadow(&self, parent: &Arc<Node>, name: &OsStr) -> Option<Entry> {
        (parent.id == ROOT && name == ".warmfs").then(|| self.inside_entry(DIRECTORY))
    }

    fn inside_entry(&self, id: NodeId) -> Entry {
        Entry::Found { node: id, attr: inside_attr(id), ttl: FOREVER }
    }

    pub(super) fn getattr_inside(&self, id: NodeId) -> Option<(Attr, Duration)> {
        Self::is_inside(id).then(|| (inside_attr(id), FOREVER))
    }

    /// READ of a file in `.warmfs/`.
    pub fn read_inside(&self, id: NodeId, offset: u64, len: u32) -> Result<Vec<u8>> {
        if id != STATS {
            return Err(Error::os("read", ".warmfs", 21)); // EISDIR
        }
        let mut text = self.stats_text(STATS_BYTES as usize - 1).into_bytes();
        text.resize(STATS_BYTES as usize - 1, b' ');
        text.push(b'\n');
        let start = offset.min(STATS_BYTES) as usize;
        let end = (start + len as usize).min(text.len());
        Ok(text[start..end].to_vec())
    }

    /// Entries of `.warmfs/`.
    pub(super) fn inside_names() -> [(&'static str, NodeId, FileKind); 1] {
        [("stats.json", STATS, FileKind::Regular)]
    }
}

fn inside_attr(id: NodeId) -> Attr {
    let directory = id == DIRECTORY;
    Attr {
        kind: if directory { FileKind::Directory } else { FileKind::Regular },
        perm: if directory { 0o555 } else { 0o444 },
        nlink: if directory { 2 } else { 1 },
        size: if directory { 0 } else { STATS_BYTES },
        identity: Identity { ino: id, ..Attr::UNKNOWN.identity },
        ..Attr::UNKNOWN
    }
}
