//! Paths as text: names are bytes, JSON and terminals want characters.
//!
//! Valid UTF-8 without a backslash or a control character stays as it is; every other byte becomes `\xNN` and a
//! backslash becomes `\\`, so that the text is one line, printable, and can be turned back into exactly the same bytes.

use std::fmt;
use std::path::Path;

/// Bytes as one line of reversible text.
pub fn escape_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for piece in bytes.utf8_chunks() {
        for c in piece.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => {
                    let mut buffer = [0; 4];
                    for b in c.encode_utf8(&mut buffer).bytes() {
                        text.push_str(&format!("\\x{b:02x}"));
                    }
                }
                c => text.push(c),
            }
        }
        for b in piece.invalid() {
            text.push_str(&format!("\\x{b:02x}"));
        }
    }
    text
}

/// The reverse of [`escape_bytes`]; `None` for text that it cannot have written.
pub fn unescape_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        if b != b'\\' {
            bytes.push(b);
            rest = tail;
            continue;
        }
        match tail {
            [b'\\', tail @ ..] => {
                bytes.push(b'\\');
                rest = tail;
            }
            [b'x', high, low, tail @ ..] => {
                let digit = |d: &u8| (*d as char).to_digit(16);
                bytes.push((digit(high)? * 16 + digit(low)?) as u8);
                rest = tail;
            }
            _ => return None,
        }
    }
    Some(bytes)
}

/// Shows a path by [`escape_bytes`].
pub struct PathText<'a>(pub &'a Path);

impl fmt::Display for PathText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_bytes(self.0.as_os_str().as_encoded_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn odd_names_are_one_printable_line() {
        assert_eq!(escape_bytes(b"a b"), "a b");
        assert_eq!(escape_bytes(b"a\nb"), "a\\x0ab");
        assert_eq!(escape_bytes(b"a\xffb.jpg"), "a\\xffb.jpg");
        assert_eq!(escape_bytes(b"c:\\x41"), "c:\\\\x41");
        assert_eq!(escape_bytes("é".as_bytes()), "é");
    }

    #[test]
    fn text_that_was_never_escaped_so_is_refused() {
        assert_eq!(unescape_bytes("\\"), None);
        assert_eq!(unescape_bytes("\\xg0"), None);
        assert_eq!(unescape_bytes("\\n"), None);
    }

    proptest! {
        #[test]
        fn every_byte_string_round_trips(bytes: Vec<u8>) {
            prop_assert_eq!(unescape_bytes(&escape_bytes(&bytes)), Some(bytes));
        }
    }
}
