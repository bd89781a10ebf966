//! Globs, followed through a tree one name at a time, so that only directories that can hold a match are looked into.
//!
//! As in a shell with `globstar`: `*`, `?`, `[a-z]` and `{a,b}` match within one name, `**` stands for any number of
//! directories, and a leading dot must be written. What is between two slashes is matched by the globset crate.

use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names that a pattern may have: one bit each.
const STEPS_MAX: usize = 60;

/// A pattern below a directory that is given by its very name.
pub struct Glob {
    base: PathBuf,
    text: String,
    steps: Vec<Step>,
}

enum Step {
    /// `**`
    Dirs,
    Name {
        matcher: GlobMatcher,
        dot: bool,
    },
}

/// Where one is in a pattern: all the places that the names so far can have led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places(pub u64);

/// What one more name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The pattern is matched, by this object and by everything below it.
    pub matched: bool,
    /// Where one is below it; none if nothing there can match.
    pub below: Option<Places>,
}

/// Whether a name has characters that a glob gives a meaning to.
pub fn has_meta(name: &OsStr) -> bool {
    name.as_bytes().iter().any(|b| b"*?[{".contains(b))
}

/// The part of a path before the first name that is a pattern, and the rest.
pub fn split(path: &Path) -> (PathBuf, PathBuf) {
    let is_plain = |c: &std::path::Component<'_>| !has_meta(c.as_os_str());
    (path.components().take_while(is_plain).collect(), path.components().skip_while(is_plain).collect())
}

impl Glob {
    /// `pattern` below `base`. The error is text for people.
    pub fn new(base: &Path, pattern: &Path) -> Result<Self, String> {
        let text = pattern.to_str().ok_or("a glob must be UTF-8: name the files by --from instead")?;
        let names: Vec<&str> = text.split('/').filter(|name| !name.is_empty()).collect();
        if names.is_empty() || names.len() > STEPS_MAX {
            return Err(format!("a glob has between 1 and {STEPS_MAX} names, not {}", names.len()));
        }
        let steps = names.into_iter().map(step).collect::<Result<_, _>>()?;
        Ok(Self { base: base.to_path_buf(), text: text.to_string(), steps })
    }

    /// The directory that it begins in.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The whole pattern, to be shown.
    pub fn shown(&self) -> String {
        crate::types::escape_bytes(self.base.join(&self.text).as_os_str().as_bytes())
    }

    /// Where one is in the base.
    pub fn start(&self) -> Places {
        self.closed(1)
    }

    /// Where `name` leads from `places`.
    pub fn step(&self, places: Places, name: &OsStr) -> Next {
        let hidden = name.as_bytes().first() == Some(&b'.');
        let mut next = 0;
        for (at, step) in self.steps.iter().enumerate().filter(|(at, _)| places.0 & (1 << at) != 0) {
            match step {
                Step::Dirs if !hidden => next |= 1 << at,
                Step::Name { matcher, dot } if (*dot || !hidden) && matcher.is_match(name) => {
                    next |= 1 << (at + 1);
                }
                _ => {}
            }
        }
        let places = self.closed(next);
        let end = 1 << self.steps.len();
        Next { matched: places.0 & end != 0, below: (places.0 & !end != 0).then_some(places) }
    }

    /// `**` stands for no directory, too.
    fn closed(&self, mut places: u64) -> Places {
        for (at, step) in self.steps.iter().enumerate() {
            if places & (1 << at) != 0 && matches!(step, Step::Dirs) {
                places |= 1 << (at + 1);
            }
        }
        Places(places)
    }
}

fn step(name: &str) -> Result<Step, String> {
    if name == "**" {
        return Ok(Step::Dirs);
    }
    let glob = GlobBuilder::new(name).literal_separator(true).backslash_escape(true).build();
    let glob = glob.map_err(|e| format!("`{name}` is no glob: {}", e.kind()))?;
    Ok(Step::Name { matcher: glob.compile_matcher(), dot: name.starts_with('.') || name.starts_with("\\.") })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the walk would take `path`, by itself or by a directory above it.
    fn takes(pattern: &str, path: &str) -> bool {
        let glob = Glob::new(Path::new(""), Path::new(pattern)).unwrap();
        let mut places = glob.start();
        for name in path.split('/') {
            let next = glob.step(places, OsStr::new(name));
            match next {
                Next { matched: true, .. } => return true,
                Next { below: Some(below), .. } => places = below,
                Next { below: None, .. } => return false,
            }
        }
        false
    }

    #[test]
    fn names_match_as_in_a_shell() {
        for (pattern, path, is) in [
            ("*.jpg", "a.jpg", true),
            ("*.jpg", "d/a.jpg", false),
            ("*.jpg", ".a.jpg", false),
            (".*.jpg", ".a.jpg", true),
            ("*/*.jpg", "d/a.jpg", true),
            ("d/?.jpg", "d/a.jpg", true),
            ("d/?.jpg", "d/ab.jpg", false),
            ("[a-c]*", "bx", true),
            ("{train,val}/*", "val/x", true),
            ("{train,val}/*", "test/x", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            // A directory that matches is taken with all that is in it.
            ("tr*", "train/d/x", true),
        ] {
            assert_eq!(takes(pattern, path), is, "{pattern} {path}");
        }
    }

    #[test]
    fn two_stars_are_any_number_of_directories() {
        for (pattern, path, is) in [
            ("**/*.jpg", "a.jpg", true),
            ("**/*.jpg", "d/e/a.jpg", true),
            ("**/*.jpg", "d/.e/a.jpg", false),
            ("**/e/*.jpg", "d/e/a.jpg", true),
            ("a/**/b/**/c", "a/b/c", true),
            ("a/**/b/**/c", "a/x/b/y/z/c", true),
            ("a/**/b/**/c", "a/x/y/c", false),
            ("**", "d/x", true),
        ] {
            assert_eq!(takes(pattern, path), is, "{pattern} {path}");
        }
    }

    #[test]
    fn a_directory_that_can_hold_no_match_is_not_looked_into() {
        let glob = Glob::new(Path::new(""), Path::new("train/*.jpg")).unwrap();
        assert_eq!(glob.step(glob.start(), OsStr::new("val")), Next { matched: false, below: None });
        assert!(glob.step(glob.start(), OsStr::new("train")).below.is_some());
    }

    #[test]
    fn names_are_bytes_and_bad_patterns_are_named() {
        let glob = Glob::new(Path::new("d"), Path::new("*.bin")).unwrap();
        assert!(glob.step(glob.start(), OsStr::from_bytes(b"\xff.bin")).matched);
        assert_eq!(glob.shown(), "d/*.bin");
        for bad in ["[a", "{a", "{a/b,c}", "", "/"] {
            assert!(Glob::new(Path::new(""), Path::new(bad)).is_err(), "{bad}");
        }
        assert!(Glob::new(Path::new(""), Path::new(&"*/".repeat(61))).is_err());
        assert!(Glob::new(Path::new(""), Path::new(&"**/".repeat(60))).is_ok());
    }

    #[test]
    fn a_path_is_split_at_its_first_pattern() {
        let halves = |path: &str| {
            let (base, pattern) = split(Path::new(path));
            (base.to_str().unwrap().to_owned(), pattern.to_str().unwrap().to_owned())
        };
        assert_eq!(halves("/m/train/*.jpg"), ("/m/train".into(), "*.jpg".into()));
        assert_eq!(halves("m/*/x/y"), ("m".into(), "*/x/y".into()));
        assert_eq!(halves("/m/x"), ("/m/x".into(), String::new()));
    }
}
