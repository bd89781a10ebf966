//! A trace as text, read line by line: which files a run opened, in order.
//!
//! ```text
//! train/n01440764/1.JPEG            a path a line: all files count the same, and a cache size is a number of files
//! 109527<TAB>train/n01440764/1.JPEG  or its bytes before it, on every line
//! ```
//!
//! Of a path only a hash is kept. Bounded: what is longer than [`OPENS_MAX`] is refused, not cut.

use super::Subject;
use super::groups::Groups;
use super::simulate::Trace;
use crate::types::{FileId, escape_bytes};
use std::collections::HashMap;

/// Opens of one trace: 4 bytes each.
pub const OPENS_MAX: usize = 100_000_000;
/// Files of one trace: some 80 bytes each.
pub const FILES_MAX: usize = 20_000_000;
/// Bytes of one line: the kernel's longest path, a number and a tab.
pub const LINE_BYTES_MAX: usize = 4096 + 32;

/// Why a line is none of a trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TraceError {
    /// The first is 1.
    pub line: u64,
    /// What is wrong, and what would be right.
    pub reason: String,
}

/// Reads a trace.
#[derive(Default)]
pub struct TraceReader {
    trace: Trace,
    groups: Groups,
    places: HashMap<FileId, u32>,
    with_bytes: Option<bool>,
    line: u64,
}

impl TraceReader {
    /// Takes the next line, without its newline. An empty one is passed over.
    pub fn line(&mut self, line: &[u8]) -> Result<(), TraceError> {
        self.line += 1;
        if line.is_empty() {
            return Ok(());
        }
        let (bytes, path) = self.parse(line).map_err(|reason| TraceError { line: self.line, reason })?;
        let place = match self.place_of(path, bytes) {
            Some(place) if self.trace.opens.len() < OPENS_MAX => place,
            _ => {
                let reason = format!(
                    "more than {OPENS_MAX} opens or {FILES_MAX} files: take a part of the trace, as with `head -n`"
                );
                return Err(TraceError { line: self.line, reason });
            }
        };
        self.trace.opens.push(place);
        Ok(())
    }

    fn parse<'a>(&mut self, line: &'a [u8]) -> Result<(u64, &'a [u8]), String> {
        if line.len() > LINE_BYTES_MAX {
            return Err(format!("longer than {LINE_BYTES_MAX} bytes: one path a line is wanted"));
        }
        if line.contains(&0) {
            return Err("a NUL byte: this is no text of one path a line".into());
        }
        let tab = line.iter().position(|&b| b == b'\t');
        if *self.with_bytes.get_or_insert(tab.is_some()) != tab.is_some() {
            return Err("bytes and a tab stand before the path on some lines and not on others".into());
        }
        let (bytes, path) = match tab {
            None => (1, line),
            Some(tab) => {
                let word = String::from_utf8_lossy(&line[..tab]);
                let wrong = || {
                    let shown = escape_bytes(&line[..tab.min(40)]);
                    format!("`{shown}` is no number of bytes; accepted: a path, or bytes, a tab and a path")
                };
                (word.parse().map_err(|_| wrong())?, &line[tab + 1..])
            }
        };
        let below = path.iter().position(|&b| b != b'/').map(|start| &path[start..]);
        below.map(|path| (bytes, path)).ok_or_else(|| "there is no path".into())
    }

    /// Of a file that grew the largest size counts.
    fn place_of(&mut self, path: &[u8], bytes: u64) -> Option<u32> {
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(path).as_bytes()[..16]);
        let id = FileId::from_bytes(hash);
        if let Some(&place) = self.places.get(&id) {
            let file = &mut self.trace.files[place as usize];
            file.bytes = file.bytes.max(bytes);
            return Some(place);
        }
        if self.trace.files.len() >= FILES_MAX {
            return None;
        }
        let place = self.trace.files.len() as u32;
        self.places.insert(id, place);
        let group = self.groups.of(path);
        self.trace.files.push(Subject { id, group, bytes });
        Some(place)
    }

    /// Whether sizes are numbers of files, because no line gave bytes.
    pub fn counts_files(&self) -> bool {
        self.with_bytes != Some(true)
    }

    /// The whole trace. An error if there was no open in it.
    pub fn finish(mut self) -> Result<Trace, TraceError> {
        if self.trace.opens.is_empty() {
            return Err(TraceError { line: self.line, reason: "the trace is empty".into() });
        }
        for file in &mut self.trace.files {
            file.group = self.groups.current(file.group);
        }
        Ok(self.trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Trace, TraceError> {
        let mut reader = TraceReader::default();
        text.split(|&b| b == b'\n').try_for_each(|line| reader.line(line))?;
        reader.finish()
    }

    #[test]
    fn both_forms() {
        let plain = read(b"a/x\n/a/y\n\na/x\n").unwrap();
        assert_eq!((plain.files.len(), plain.opens, plain.files[0].bytes), (2, vec![0, 1, 0], 1));
        let sized = read(b"10\ttrain/x\n20\tval/y\n15\ttrain/x").unwrap();
        assert_eq!((sized.bytes(), sized.opens), (35, vec![0, 1, 0]));
        assert_ne!(sized.files[0].group, sized.files[1].group);
    }

    #[test]
    fn rubbish_is_refused_with_its_line() {
        let long = [b"ok\n".to_vec(), vec![b'x'; LINE_BYTES_MAX + 1]].concat();
        let known: [(&[u8], u64, &str); 8] = [
            (b"ok\nx\ty", 2, "on some lines"),
            (b"x\ty", 1, "`x` is no number of bytes"),
            (b"1\ta\n-2\tb", 2, "`-2` is no number"),
            (b"1\ta\n99999999999999999999\tb", 2, "is no number"),
            (b"a\nb\0c", 2, "NUL"),
            (b"1\ta\n2\t/", 2, "no path"),
            (b"\n\n", 3, "empty"),
            (&long, 2, "longer than"),
        ];
        for (text, line, words) in known {
            let error = read(text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.to_string().contains(words), "{error}");
        }
    }
}
