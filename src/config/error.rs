//! What is said to somebody whose configuration is wrong: one line with the place, the key and what to write
//! instead.
//!
//! Apart from the code that finds the mistake so that all layers speak alike. Whatever the user wrote is
//! shown escaped and cut, so that the line stays one line.

use super::keys::{self, KEYS};
use crate::types::escape_bytes;

/// A mistake in the configuration. `Display` is one line: the place (`FILE:LINE`, a variable or a flag), the
/// key, and the accepted values or known keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    place: String,
    problem: String,
}

impl ConfigError {
    pub(super) fn new(place: impl ToString, problem: impl Into<String>) -> Self {
        Self { place: place.to_string(), problem: problem.into() }
    }
}

/// What the user wrote, fit for an error line.
pub(super) fn shown(text: &str) -> String {
    // Long enough for any sensible value, short enough to leave the rest of the line in sight.
    const SHOWN_CHARS_MAX: usize = 60;
    let cut: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let dots = if cut.len() < text.len() { "..." } else { "" };
    format!("`{}{dots}`", escape_bytes(cut.as_bytes()))
}

/// The problem of a key that nobody knows, in a section that is known.
pub(super) fn unknown_key(section: &str, leaf: &str) -> String {
    let known: Vec<_> = keys::leaves(section).collect();
    format!(
        "unknown key {}{}; known keys of [{section}]: {}",
        shown(&format!("{section}.{leaf}")),
        did_you_mean(near_key(leaf)),
        known.join(", ")
    )
}

/// The problem of something outside every known section: a section with a wrong name, or a key without one.
pub(super) fn unknown_top(name: &str, is_table: bool) -> String {
    let sections = keys::sections();
    if sections.contains(&name) {
        return format!("`{name}` is a section: write [{name}] on a line of its own and its keys below it");
    }
    let (what, near) = if is_table {
        (format!("section {}", shown(name)), nearest(name, sections.iter().copied()))
    } else {
        (format!("key {} outside any section", shown(name)), near_key(name))
    };
    format!("unknown {what}{}; known sections: {}", did_you_mean(near), sections.join(", "))
}

/// The problem of a `WARMFS_` variable that belongs to no key.
pub(super) fn unknown_variable(variable: &str) -> String {
    let all: Vec<String> = KEYS.iter().map(|key| key.variable()).collect();
    let near = nearest(variable, all.iter().map(String::as_str));
    format!("belongs to no key{}; known: {}", did_you_mean(near), all.join(", "))
}

fn did_you_mean(near: Option<&str>) -> String {
    near.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default()
}

/// The key whose last part is `leaf`, in whatever section, or else looks most like it.
fn near_key(leaf: &str) -> Option<&'static str> {
    let near = nearest(leaf, KEYS.iter().map(|key| key.leaf()))?;
    KEYS.iter().find(|key| key.leaf() == near).map(|key| key.name)
}

/// The candidate that `name` was probably meant to be: at most two slips away, and not another word
/// altogether.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Longer than any name of ours with its slips; also keeps the quadratic distance off a megabyte of
    // garbage.
    const NAME_BYTES_MAX: usize = 40;
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let (slips, candidate) =
        candidates.map(|c| (edit_distance(name, c), c)).min_by_key(|&(slips, _)| slips)?;
    (slips <= 2 && slips * 2 < candidate.len()).then_some(candidate)
}

/// How many insertions, deletions and replacements of one byte lead from `a` to `b` (Levenshtein).
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, slips) in
            [("", "", 0), ("size", "size", 0), ("sise", "size", 1), ("", "dir", 3), ("ttl", "tl", 1)]
        {
            assert_eq!(edit_distance(a, b), slips, "{a} {b}");
            assert_eq!(edit_distance(b, a), slips, "{b} {a}");
        }
    }

    #[test]
    fn a_guess_is_made_only_for_a_slip() {
        assert_eq!(near_key("evict-policy"), Some("cache.evict_policy"));
        assert_eq!(near_key("sizes"), Some("cache.size"));
        assert_eq!(near_key("ttl"), Some("metadata.ttl"));
        assert_eq!(near_key("colour"), None);
        assert_eq!(near_key(""), None);
        assert_eq!(near_key(&"x".repeat(1 << 20)), None);
    }

    #[test]
    fn what_is_shown_is_one_short_line() {
        assert_eq!(shown("a\nb"), "`a\\x0ab`");
        assert_eq!(shown(&"é".repeat(1000)), format!("`{}...`", "é".repeat(60)));
    }
}
