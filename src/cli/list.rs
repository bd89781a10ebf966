//! Lists of paths that people and programs hand in, one a line or ended by NUL: read in bounded memory, however long they
//! are and whatever is in them. Pure but for the reader.

use crate::control::{Mounted, RelPath};
use std::ffi::OsStr;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A longer line is no path: PATH_MAX, and room for a mountpoint in front of it.
const LINE_BYTES_MAX: usize = 8192;

/// How many lines of each kind of trouble are named.
const NAMED_MAX: usize = 5;

/// The lines of a list; empty ones are passed over.
pub struct Lines<R> {
    reader: R,
    end: u8,
}

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Its bytes, without the end.
    Whole(Vec<u8>),
    /// Its first bytes; it is too long for a path.
    TooLong(Vec<u8>),
}

impl<R: BufRead> Lines<R> {
    /// Lines that end with `end`; the last one need not.
    pub fn new(reader: R, end: u8) -> Self {
        Self { reader, end }
    }

    /// Reads up to the end of a line. `None` at the end of the list.
    fn line(&mut self) -> std::io::Result<Option<Line>> {
        let (mut line, mut too_long, mut any) = (Vec::new(), false, false);
        loop {
            let buffer = match self.reader.fill_buf() {
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if buffer.is_empty() && !any {
                return Ok(None);
            }
            any = true;
            let found = buffer.iter().position(|b| *b == self.end);
            let (piece, used) = match found {
                Some(at) => (&buffer[..at], at + 1),
                None => (buffer, buffer.len()),
            };
            let fits = piece.len().min(LINE_BYTES_MAX - line.len());
            line.extend_from_slice(&piece[..fits]);
            too_long |= fits < piece.len();
            let over = found.is_some() || used == 0;
            self.reader.consume(used);
            if over {
                return Ok(Some(if too_long { Line::TooLong(line) } else { Line::Whole(line) }));
            }
        }
    }
}

impl<R: BufRead> Iterator for Lines<R> {
    type Item = std::io::Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.line().transpose()? {
                Ok(Line::Whole(line)) if line.is_empty() => {}
                other => return Some(other),
            }
        }
    }
}

/// What the lines are relative to, and under which names it is known.
pub struct Base {
    /// Below the root of what is mounted.
    relative: PathBuf,
    /// Absolute names, each with what it is below the root of what is mounted.
    names: Vec<(PathBuf, PathBuf)>,
}

impl Base {
    /// The directory `dir`, found as `mounted`; `canonical` is its absolute path without links, `absolute` the one with
    /// those that the user wrote.
    pub fn new(mounted: &Mounted, absolute: &Path, canonical: &Path) -> Self {
        let relative = mounted.relative.clone();
        let below = canonical.strip_prefix(&mounted.mountpoint).unwrap_or(Path::new(""));
        let depth = relative.components().count().saturating_sub(below.components().count());
        let root: PathBuf = relative.components().take(depth).collect();
        let names = vec![
            (absolute.to_path_buf(), relative.clone()),
            (canonical.to_path_buf(), relative.clone()),
            (mounted.mountpoint.clone(), root),
        ];
        Self { relative, names }
    }

    /// What a line names.
    pub fn place(&self, line: &[u8]) -> Result<RelPath, Trouble> {
        let path = Path::new(OsStr::from_bytes(line));
        let below = match path.is_absolute() {
            false => self.relative.join(path),
            true => {
                let found = self
                    .names
                    .iter()
                    .find_map(|(name, below)| path.strip_prefix(name).ok().map(|rest| below.join(rest)));
                found.ok_or(Trouble::Outside)?
            }
        };
        RelPath::new(&below).map_err(|_| {
            match path.components().any(|c| c == std::path::Component::ParentDir) {
                true => Trouble::Outside,
                false => Trouble::NoPath,
            }
        })
    }
}

/// Why a line names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is longer than a path can be, or has a NUL in it.
    NoPath,
    /// It lies outside the mount, or says `..`.
    Outside,
}

/// The lines that named nothing: how many, and the first few.
#[derive(Debug, Default)]
pub struct Troubles {
    /// Lines that are no path.
    pub no_paths: u64,
    /// Lines outside the mount.
    pub outside: u64,
    /// The first of each, for people.
    pub named: Vec<String>,
}

impl Troubles {
    /// One more.
    pub fn add(&mut self, line: &[u8], trouble: Trouble) {
        let (count, what) = match trouble {
            Trouble::NoPath => (&mut self.no_paths, "is no path"),
            Trouble::Outside => (&mut self.outside, "lies outside the mount, or has a `..`"),
        };
        *count += 1;
        if *count <= NAMED_MAX as u64 {
            let text = crate::types::escape_bytes(&line[..line.len().min(60)]);
            let more = if line.len() > 60 { "…" } else { "" };
            self.named.push(format!("{text}{more} {what}"));
        }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.no_paths + self.outside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::BufReader;

    fn lines(text: &[u8], end: u8) -> Vec<Line> {
        // A small buffer: lines lie across its edges.
        Lines::new(BufReader::with_capacity(3, text), end).map(Result::unwrap).collect()
    }

    fn whole(text: &str) -> Line {
        Line::Whole(text.into())
    }

    #[test]
    fn lines_are_cut_at_their_ends() {
        assert_eq!(lines(b"one\ntwo\n\n\nlast", b'\n'), [whole("one"), whole("two"), whole("last")]);
        assert_eq!(lines(b"a\nb\0c\0", 0), [whole("a\nb"), whole("c")]);
        assert_eq!(lines(b"", b'\n'), []);
        assert_eq!(lines(b"\n\n", b'\n'), []);
        assert_eq!(lines(b" a \r\n", b'\n'), [whole(" a \r")], "a name is what it is");
    }

    #[test]
    fn a_line_of_megabytes_takes_no_memory() {
        let mut text = vec![b'x'; 5 << 20];
        text.extend_from_slice(b"\nnext\n");
        let got = lines(&text, b'\n');
        assert!(matches!(&got[0], Line::TooLong(first) if first.len() == LINE_BYTES_MAX));
        assert_eq!(got[1..], [whole("next")]);
        assert_eq!(lines(&[b'x'; LINE_BYTES_MAX], b'\n').len(), 1);
    }

    fn base() -> Base {
        let mounted =
            Mounted { socket: "/s".into(), relative: "train/images".into(), mountpoint: "/mnt/data".into() };
        Base::new(&mounted, Path::new("/home/me/link"), Path::new("/mnt/data/train/images"))
    }

    fn placed(line: &str) -> Result<String, Trouble> {
        base().place(line.as_bytes()).map(|path| path.as_path().to_str().unwrap().to_owned())
    }

    #[test]
    fn a_line_is_relative_to_the_directory_or_absolute_on_the_mount() {
        for (line, path) in [
            ("x.jpg", "train/images/x.jpg"),
            ("./a//x", "train/images/a/x"),
            (".", "train/images"),
            ("/home/me/link/x", "train/images/x"),
            ("/mnt/data/train/images/x", "train/images/x"),
            ("/mnt/data/val/x", "val/x"),
            ("/mnt/data", ""),
        ] {
            assert_eq!(placed(line).as_deref(), Ok(path), "{line}");
        }
    }

    #[test]
    fn what_is_no_path_on_the_mount_is_told_apart() {
        for (line, trouble) in [
            ("/etc/passwd", Trouble::Outside),
            ("/mnt/data2/x", Trouble::Outside),
            ("../x", Trouble::Outside),
            ("/mnt/data/../x", Trouble::Outside),
            ("a\0b", Trouble::NoPath),
        ] {
            assert_eq!(placed(line), Err(trouble), "{line:?}");
        }
        assert_eq!(placed(&"n".repeat(256)), Err(Trouble::NoPath));
        assert_eq!(placed(&"n/".repeat(3000)), Err(Trouble::NoPath));
    }

    #[test]
    fn troubles_are_counted_and_few_are_named() {
        let mut troubles = Troubles::default();
        (0..1000).for_each(|_| troubles.add(&[b'x'; 5000], Trouble::NoPath));
        troubles.add(b"/etc", Trouble::Outside);
        assert_eq!((troubles.no_paths, troubles.outside, troubles.count()), (1000, 1, 1001));
        assert_eq!(troubles.named.len(), NAMED_MAX + 1);
        assert!(troubles.named.iter().all(|line| line.len() < 200));
    }

    proptest! {
        #[test]
        fn rubbish_never_panics_and_never_leaves_the_mount(bytes: Vec<u8>) {
            for line in Lines::new(&bytes[..], b'\n').map(Result::unwrap) {
                let Line::Whole(line) = line else { continue };
                if let Ok(path) = base().place(&line) {
                    prop_assert!(path.as_path().components().all(|c| matches!(c, std::path::Component::Normal(_))));
                }
            }
        }
    }
}
