//! A configuration file: its text becomes settings with line numbers.
//!
//! Apart from the layers because it knows TOML and they do not. It decides which key each line is about and
//! turns the value back into text; whether that text is accepted is the key's business. It promises to read a
//! bounded amount and to name a line wherever the parser knows one.

use super::error::{self, ConfigError, shown};
use super::keys::{self, Key, Shape};
use crate::types::PathText;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// Errors that are reported of one file; whoever has more gave the wrong file.
pub(super) const ERRORS_MAX: usize = 20;

/// A hundred times the size of `default.toml`: what is larger is not a configuration, and reading on would
/// only cost memory.
const FILE_BYTES_MAX: usize = 1 << 20;

/// One `key = value` of a file.
pub(super) struct Setting {
    /// Line of the key, from 1.
    pub line: usize,
    /// The key and the text of its value, or what is wrong with either.
    pub found: Result<(&'static Key, String), String>,
}

/// The text of a file.
///
/// # Errors
/// It cannot be read, is too large, or is not UTF-8.
pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
    let place = PathText(path);
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes))
        .map_err(|e| ConfigError::new(&place, format!("cannot read this configuration file: {e}")))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(ConfigError::new(
            &place,
            "is larger than 1MiB: this is not a configuration file of warmfs",
        ));
    }
    String::from_utf8(bytes).map_err(|e| {
        let valid = e.utf8_error().valid_up_to();
        let line = Lines::of(&e.as_bytes()[..valid]).count();
        ConfigError::new(at(path, line), "is not UTF-8 text")
    })
}

/// The settings of a file, in its order.
///
/// # Errors
/// It is not TOML.
pub(super) fn settings(path: &Path, text: &str) -> Result<Vec<Setting>, ConfigError> {
    let lines = Lines::of(text.as_bytes());
    let root = DeTable::parse(text).map_err(|e| not_toml(path, text, &lines, &e))?.into_inner();
    let mut found = Vec::new();
    for (name, value) in &root {
        match value.get_ref() {
            DeValue::Table(table) if keys::sections().contains(&name.get_ref().as_ref()) => {
                found.extend(table.iter().map(|(leaf, value)| {
                    (leaf.span().start, setting(name.get_ref(), leaf.get_ref(), value.get_ref()))
                }));
            }
            value => {
                let is_table = matches!(value, DeValue::Table(_));
                found.push((name.span().start, Err(error::unknown_top(name.get_ref(), is_table))));
            }
        }
    }
    // The parser's tables are sorted by name; people read from the top.
    found.sort_by_key(|(offset, _)| *offset);
    Ok(found.into_iter().map(|(offset, found)| Setting { line: lines.at(offset), found }).collect())
}

/// `FILE:LINE`, the way compilers say it.
pub(super) fn at(path: &Path, line: usize) -> String {
    format!("{}:{line}", PathText(path))
}

fn setting(section: &str, leaf: &str, value: &DeValue<'_>) -> Result<(&'static Key, String), String> {
    let key = keys::find(section, leaf).ok_or_else(|| error::unknown_key(section, leaf))?;
    let refuse = |what: &str| Err(format!("{}: {what} is not accepted; accepted: {}", key.name, key.accepts));
    match value {
        DeValue::String(text) => Ok((key, text.clone().into_owned())),
        DeValue::Integer(_) if key.shape == Shape::Text => refuse("a bare number"),
        DeValue::Boolean(_) if key.shape == Shape::Text => refuse("a bare true or false"),
        DeValue::Integer(number) => {
            // Hexadecimal and the like become decimal; what no integer holds stays as written and is refused
            // later.
            let decimal = i128::from_str_radix(number.as_str(), number.radix());
            Ok((key, decimal.map_or_else(|_| number.to_string(), |n| n.to_string())))
        }
        DeValue::Boolean(yes) => Ok((key, yes.to_string())),
        DeValue::Float(_) => refuse("a bare fraction"),
        DeValue::Datetime(_) => refuse("a date"),
        DeValue::Array(_) => refuse("a list"),
        DeValue::Table(_) => refuse("a table"),
    }
}

/// What the parser has to say, with the key of the line and what that accepts, since the usual slip is a
/// value without its quotes.
fn not_toml(path: &Path, text: &str, lines: &Lines, e: &toml::de::Error) -> ConfigError {
    let message = shown_message(e.message());
    let Some(span) = e.span() else {
        return ConfigError::new(PathText(path), format!("is not TOML: {message}"));
    };
    let line = lines.at(span.start);
    let key = key_of_line(text, line);
    let problem = match (e.message(), key) {
        ("duplicate key", Some(key)) => format!("{} is given twice: keep one of them", key.name),
        ("duplicate key", None) => {
            format!("{} is given twice: keep one of them", shown(text.get(span).unwrap_or_default()))
        }
        (_, Some(key)) => {
            // What the grammar expects here is of no use to somebody who is told what the key accepts.
            let (wrong, _) = message.split_once(", expected").unwrap_or((&message, ""));
            format!("{}: not TOML: {wrong}; accepted: {}", key.name, key.accepts)
        }
        (_, None) => format!("not TOML: {message}; expected `[section]` or `key = value`"),
    };
    ConfigError::new(at(path, line), problem)
}

/// The parser's message without anything that would break the line.
fn shown_message(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Which key a line that did not parse is probably about, read off the text.
fn key_of_line(text: &str, line: usize) -> Option<&'static Key> {
    let mut section = "";
    for (number, content) in text.lines().enumerate().take(line) {
        let content = content.trim_start_matches('\u{feff}').trim();
        if number + 1 == line {
            let name = content.split('=').next()?.trim();
            let (section, leaf) = name.split_once('.').unwrap_or((section, name));
            return keys::find(section.trim(), leaf.trim());
        }
        if let Some(header) = content.strip_prefix('[') {
            section = header.split(']').next().unwrap_or_default().trim();
        }
    }
    None
}

/// Where the lines of a text begin. Built once, because counting newlines anew for each key would be
/// quadratic.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &[u8]) -> Self {
        let after_newline = text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1);
        Self(std::iter::once(0).chain(after_newline).collect())
    }

    fn count(&self) -> usize {
        self.0.len()
    }

    /// The line, from 1, that holds the byte at `offset`.
    fn at(&self, offset: usize) -> usize {
        self.0.partition_point(|&start| start <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_from_one() {
        let lines = Lines::of(b"a\r\nb\n\nc");
        let at: Vec<_> = (0..8).map(|offset| lines.at(offset)).collect();
        assert_eq!(at, [1, 1, 1, 2, 2, 3, 4, 4]);
        assert_eq!(lines.count(), 4);
        assert_eq!(Lines::of(b"").at(0), 1);
    }

    #[test]
    fn the_key_of_a_broken_line_is_read_off_the_text() {
        let text = "\u{feff}[cache] # here\nsize = 200GB\n[ log ]\nfile = /x\nmount.workers = x\n";
        let name = |line| key_of_line(text, line).map(|key| key.name);
        assert_eq!(name(2), Some("cache.size"));
        assert_eq!(name(4), Some("log.file"));
        assert_eq!(name(5), Some("mount.workers"));
        assert_eq!((name(1), name(99)), (None, None));
    }
}
