//! A machine holds the style: the direction of the rooms, the doors' paragraphs, where `unsafe` may be.
//!
//! Rooms are one crate, so the compiler does not keep them apart; this test reads the imports.

use std::path::{Path, PathBuf};

/// From the top down; a room uses only what stands after it. Rooms on one line do not use each other.
const FLOORS: [&[&str]; 12] = [
    &["cli"],
    &["mount"],
    &["faultfs", "fuse", "control"],
    &["config"],
    &["fs"],
    &["cache"],
    &["policy"],
    &["store", "backing"],
    &["sys"],
    &["stats"],
    &["types"],
    &[],
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files
}

/// The room of a file below `src`; none for `lib.rs` and `main.rs`.
fn room(path: &Path) -> Option<String> {
    let below = path.strip_prefix(root().join("src")).unwrap();
    let first = below.components().next()?.as_os_str().to_string_lossy().into_owned();
    (!first.ends_with(".rs")).then_some(first)
}

fn floor(room: &str) -> usize {
    FLOORS.iter().position(|f| f.contains(&room)).unwrap_or_else(|| panic!("room `{room}` has no floor"))
}

/// Rooms that a piece of source names by `crate::`, also inside braces.
fn named_rooms(text: &str) -> Vec<String> {
    let mut rooms = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at + "crate::".len()..];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        if let Some(list) = rest.strip_prefix('{') {
            let mut depth = 1;
            let mut word = String::new();
            let mut at_start = true;
            for c in list.chars() {
                match c {
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    _ => {}
                }
                if depth == 0 {
                    break;
                }
                if depth == 1 && is_word(c) && at_start {
                    word.push(c);
                } else if !word.is_empty() {
                    rooms.push(std::mem::take(&mut word));
                    at_start = false;
                }
                if depth == 1 && c == ',' {
                    at_start = true;
                }
            }
            rooms.extend((!word.is_empty()).then_some(word));
        } else {
            rooms.push(rest.chars().take_while(|c| is_word(*c)).collect());
        }
    }
    rooms
}

#[test]
fn braces_and_paths_are_read() {
    let text = "use crate::{types::{Error, Result}, store}; crate::sys::x(); use crate::cache::{a, b};";
    assert_eq!(named_rooms(text), ["types", "store", "sys", "cache"]);
}

#[test]
fn arrows_point_down() {
    let mut wrong = Vec::new();
    for path in sources(&root().join("src")) {
        let Some(from) = room(&path) else { continue };
        // A comment may point anywhere: a door says who knocks.
        let code: String = std::fs::read_to_string(&path)
            .unwrap()
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n");
        for to in named_rooms(&code) {
            if to != from && floor(&to) <= floor(&from) {
                wrong.push(format!("{}: {from} uses {to}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "arrows that point up or sideways:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_opens_with_a_paragraph() {
    let all = ["src", "tests"].iter().flat_map(|dir| sources(&root().join(dir)));
    let bare: Vec<_> = all.filter(|p| !std::fs::read_to_string(p).unwrap().starts_with("//! ")).collect();
    assert!(bare.is_empty(), "no //! paragraph: {bare:?}");
}

#[test]
fn unsafe_lives_in_sys() {
    let allowing = |text: &str| text.contains("allow(unsafe_code)") || text.contains("expect(unsafe_code)");
    let wrong: Vec<_> = sources(&root().join("src"))
        .into_iter()
        .filter(|p| room(p).is_none_or(|r| r != "sys"))
        .filter(|p| allowing(&std::fs::read_to_string(p).unwrap()))
        .collect();
    assert!(wrong.is_empty(), "unsafe outside sys: {wrong:?}");
}

#[test]
fn the_map_in_lib_rs_names_every_room() {
    let map = std::fs::read_to_string(root().join("src/lib.rs")).unwrap();
    for room in FLOORS.iter().flat_map(|f| f.iter()) {
        assert!(map.contains(&format!("//! | [`{room}`]")), "{room} is not on the map");
    }
}

#[test]
fn dependencies_have_reasons() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let wanted = ["[dependencies]", "[dev-dependencies]"];
    let mut inside = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = wanted.contains(&line);
        } else if inside && line.contains('=') {
            assert!(line.contains('#'), "no reason beside: {line}");
        }
    }
}

/// Goal: a call to the kernel about a file of the SSD or of the source has one way only, where tests can stand.
#[test]
fn the_rooms_of_files_call_the_kernel_by_one_way() {
    let calls = ["rustix::fs::", "rustix::io::", "rustix::mm::"];
    let is_call = |line: &str| {
        let after = |way: &&str| line.split(way).skip(1).any(|rest| rest.starts_with(char::is_lowercase));
        calls.iter().any(after)
            || ["std::fs", " File::", ".exists()", "libc::"].iter().any(|w| line.contains(w))
    };
    let mut wrong = Vec::new();
    for room in ["store", "backing", "cache"] {
        for path in sources(&root().join("src").join(room)) {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            let bad = code.lines().filter(|l| !l.trim_start().starts_with("//") && is_call(l));
            wrong.extend(bad.map(|line| format!("{}: {}", path.display(), line.trim())));
        }
    }
    assert!(wrong.is_empty(), "calls past sys::io:\n{}", wrong.join("\n"));
    assert!(is_call("rustix::fs::openat(x)") && !is_call("use rustix::fs::{Mode, OFlags};"));
}
