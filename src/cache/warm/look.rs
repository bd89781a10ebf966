//! What is there, and what of it is warm: names of a list, trees and globs become files with their sizes. Asks the source
//! for names and attributes and never for data, and changes nothing in the cache.

use super::glob::{Glob, Places};
use super::report::Reason;
use crate::cache::Cache;
use crate::store::{CacheFile, Place, disk_bytes};
use crate::types::{Attr, Error, ErrorKind, FileKind};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something to look at. Written into a spool and read from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// What somebody named: a file, or a directory with all below it.
    Named(PathBuf),
    /// What a directory lists as a regular file.
    File(PathBuf),
    /// A directory, of which all is wanted.
    Tree(PathBuf),
    /// A directory in which a glob goes on.
    Match {
        /// The directory.
        dir: PathBuf,
        /// Which glob.
        glob: u16,
        /// Where one is in it.
        places: Places,
    },
}

impl Look {
    /// As bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, glob, places, path) = match self {
            Self::Named(path) => (0, 0, 0, path),
            Self::File(path) => (1, 0, 0, path),
            Self::Tree(path) => (2, 0, 0, path),
            Self::Match { dir, glob, places } => (3, *glob, places.0, dir),
        };
        let mut bytes = vec![kind];
        if kind == 3 {
            bytes.extend_from_slice(&glob.to_le_bytes());
            bytes.extend_from_slice(&places.to_le_bytes());
        }
        bytes.extend_from_slice(path.as_os_str().as_bytes());
        bytes
    }

    /// The reverse; `None` for bytes that are none.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        match bytes.split_first()? {
            (0, rest) => Some(Self::Named(path(rest))),
            (1, rest) => Some(Self::File(path(rest))),
            (2, rest) => Some(Self::Tree(path(rest))),
            (3, rest) => {
                let (glob, rest) = rest.split_first_chunk::<2>()?;
                let (places, rest) = rest.split_first_chunk::<8>()?;
                let places = Places(u64::from_le_bytes(*places));
                Some(Self::Match { dir: path(rest), glob: u16::from_le_bytes(*glob), places })
            }
            _ => None,
        }
    }
}

/// What was seen.
pub enum Sight {
    /// To be looked at in turn.
    Next(Look),
    /// A file that is warm.
    Warm {
        /// The copy.
        file: Arc<CacheFile>,
    },
    /// A file that is not warm.
    Cold {
        /// Its path.
        path: PathBuf,
        /// Its size, bytes.
        bytes: u64,
        /// What is cached of it, bytes.
        cached_bytes: u64,
    },
    /// A file that can never be warm.
    Hopeless {
        /// Its path.
        path: PathBuf,
        /// Its size, bytes.
        bytes: u64,
        /// Why.
        reason: Reason,
    },
    /// Nothing that could be warm.
    Problem {
        /// Its path.
        path: PathBuf,
        /// Why.
        reason: Reason,
    },
    /// A glob has a match.
    Matched(u16),
}

impl Cache {
    /// Looks at one thing.
    pub(super) fn look(&self, look: Look, globs: &[Glob]) -> Vec<Sight> {
        match look {
            Look::Named(path) => vec![self.look_at_name(path)],
            Look::File(path) => self.look_at_listed(path),
            Look::Tree(dir) => self.look_into(&dir, &mut |path, kind| match kind {
                FileKind::Directory => vec![Sight::Next(Look::Tree(path))],
                FileKind::Regular => vec![Sight::Next(Look::File(path))],
                _ => Vec::new(),
            }),
            Look::Match { dir, glob: index, places } => {
                let Some(glob) = globs.get(usize::from(index)) else { return Vec::new() };
                self.look_into(&dir, &mut |path, kind| matching(glob, index, places, path, kind))
            }
        }
    }

    fn look_at_name(&self, path: PathBuf) -> Sight {
        match self.source.stat(&path) {
            Ok(attr) => match attr.kind {
                FileKind::Directory => Sight::Next(Look::Tree(path)),
                FileKind::Regular => self.see_file(path, &attr),
                _ => Sight::Problem { path, reason: Reason::NoFile },
            },
            Err(e) => Sight::Problem { path, reason: reason_of(&e) },
        }
    }

    /// A file that a directory lists. One that is gone since, or is something else, is no file of the tree any more.
    fn look_at_listed(&self, path: PathBuf) -> Vec<Sight> {
        match self.source.stat(&path) {
            Ok(attr) if attr.kind == FileKind::Regular => vec![self.see_file(path, &attr)],
            Ok(_) => Vec::new(),
            Err(e) if is_gone(&e) => Vec::new(),
            Err(e) => vec![Sight::Problem { path, reason: reason_of(&e) }],
        }
    }

    fn see_file(&self, path: PathBuf, attr: &Attr) -> Sight {
        let copy = self.copy_of(&path, attr);
        match copy {
            Some(file) if file.is_complete() => Sight::Warm { file },
            _ if disk_bytes(attr.size) > self.settings.bytes_max => {
                Sight::Hopeless { path, bytes: attr.size, reason: Reason::TooLarge }
            }
            copy => {
                let cached_bytes = copy.map_or(0, |file| file.cached_bytes());
                Sight::Cold { path, bytes: attr.size, cached_bytes }
            }
        }
    }

    /// The copy on the SSD, whole or not, that the next open would find. Nothing is dropped by the question.
    pub(super) fn copy_of(&self, path: &Path, attr: &Attr) -> Option<Arc<CacheFile>> {
        let file = self.files.get(self.source.file_id(path, attr))?;
        let is_good = file.version() == self.source.version(attr) && !file.is_unsettled();
        (is_good && matches!(file.place(), Place::Ssd { .. })).then_some(file)
    }

    fn look_into(&self, dir: &Path, see: &mut dyn FnMut(PathBuf, FileKind) -> Vec<Sight>) -> Vec<Sight> {
        let entries = self.source.open_dir(dir).and_then(|opened| opened.entries());
        match entries {
            Ok(entries) => {
                entries.into_iter().flat_map(|entry| see(dir.join(&entry.name), entry.kind)).collect()
            }
            // Removed while we walk.
            Err(e) if is_gone(&e) => Vec::new(),
            Err(e) => vec![Sight::Problem { path: dir.to_path_buf(), reason: reason_of(&e) }],
        }
    }
}

fn matching(glob: &Glob, index: u16, places: Places, path: PathBuf, kind: FileKind) -> Vec<Sight> {
    let next = glob.step(places, path.file_name().unwrap_or_default());
    match (kind, next.matched, next.below) {
        (FileKind::Regular, true, _) => vec![Sight::Matched(index), Sight::Next(Look::File(path))],
        (FileKind::Directory, true, _) => vec![Sight::Matched(index), Sight::Next(Look::Tree(path))],
        (FileKind::Directory, false, Some(places)) => {
            vec![Sight::Next(Look::Match { dir: path, glob: index, places })]
        }
        _ => Vec::new(),
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale)
}

fn reason_of(error: &Error) -> Reason {
    match error.kind() {
        ErrorKind::NotFound => Reason::Unknown,
        _ => Reason::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_looked_at_survives_a_spool() {
        let path = PathBuf::from(OsStr::from_bytes(b"a/\xff\n"));
        for look in [
            Look::Named(PathBuf::new()),
            Look::Named(path.clone()),
            Look::File(path.clone()),
            Look::Tree(path.clone()),
            Look::Match { dir: path, glob: 300, places: Places(1 << 59) },
        ] {
            assert_eq!(Look::from_bytes(&look.to_bytes()), Some(look));
        }
        for rubbish in [&b""[..], b"\x09x", b"\x03", b"\x031234"] {
            assert_eq!(Look::from_bytes(rubbish), None);
        }
    }
}
