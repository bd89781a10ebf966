//! The configuration: a file through all layers, variables, flags, sizes and durations. Whatever comes, it is a
//! configuration or errors of one line, and what is shown of it, laid again, gives the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use warmfs::config::{self, Flag, Resolved};
use warmfs::types::units;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => file(data),
        1 => variables(data),
        2 => flags(data),
        _ => quantities(data),
    }
});

/// A file of this process's own.
fn place() -> &'static PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| std::env::temp_dir().join(format!("warmfs-fuzz-config-{}", std::process::id())))
}

fn file(text: &[u8]) {
    std::fs::write(place(), text).expect("a RAM disk with room");
    let loaded = config::load(Some(place()), [], &[]);
    let errors = config::check(place());
    assert_eq!(loaded.is_ok(), errors.is_empty());
    errors.iter().for_each(|e| one_line(&e.to_string()));
    check(loaded);
    let _ = std::fs::remove_file(place());
}

fn variables(data: &[u8]) {
    let pair = |line: &[u8]| -> (OsString, OsString) {
        let at = line.iter().position(|b| *b == b'=').unwrap_or(line.len());
        let (name, value) = line.split_at(at);
        let name = [b"WARMFS_", name].concat();
        (OsStr::from_bytes(&name).into(), OsStr::from_bytes(value.get(1..).unwrap_or_default()).into())
    };
    check(config::load(None, data.split(|b| *b == b'\n').map(pair), &[]));
}

/// Each line is a value for the key that its first byte chooses.
fn flags(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let keys: Vec<&'static str> = Resolved::defaults().show().iter().map(|entry| entry.key).collect();
    let flag = |line: &str| {
        let mut chars = line.chars();
        let key = keys[chars.next().map_or(0, |c| c as usize) % keys.len()];
        Flag { flag: format!("--{key}"), key, text: chars.as_str().to_owned() }
    };
    check(config::load(None, [], &text.lines().map(flag).collect::<Vec<_>>()));
}

fn check(loaded: Result<Resolved, config::ConfigError>) {
    let resolved = match loaded {
        Ok(resolved) => resolved,
        Err(e) => return one_line(&e.to_string()),
    };
    let again =
        |entry: &config::Entry| Flag { flag: "--again".into(), key: entry.key, text: entry.value.clone() };
    let flags: Vec<Flag> = resolved.show().iter().map(again).collect();
    let laid_again = config::load(None, [], &flags).expect("what was accepted is accepted again");
    assert_eq!(laid_again.config, resolved.config);
}

fn one_line(text: &str) {
    assert!(!text.contains('\n') && !text.is_empty(), "not one line: {text:?}");
    assert!(text.len() < 16 << 10, "an error of {} bytes", text.len());
}

fn quantities(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(bytes) = units::parse_size(text) {
        assert_eq!(units::parse_size(&bytes.to_string()), Ok(bytes));
        assert!(units::show_size(bytes).len() <= 8, "{}", units::show_size(bytes));
    }
    if let Ok(time) = units::parse_duration(text) {
        assert_eq!(units::parse_duration(&format!("{}us", time.as_micros())), Ok(time));
        assert_eq!(units::parse_ttl(text), Ok(Some(time)));
    }
}
