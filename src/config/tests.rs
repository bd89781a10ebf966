//! The room as its users see it: layers, origins, and what is said about every kind of mistake.

use super::keys::{KEYS, Key};
use super::*;
use crate::types::CHUNK_BYTES;
use proptest::prelude::*;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

/// Values that a key refuses whatever it is about, as a TOML value; the numeric ones at both ends of nowhere.
const NEVER_ACCEPTED: &[&str] =
    &["\"\"", "\"?\"", "1.5", "1979-05-27", "[1]", "{ a = 1 }", "-1", "99999999999999999999"];

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn file(&self, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join("w.toml");
        fs::write(&path, content).expect("written");
        path
    }
}

fn load_text(content: impl AsRef<[u8]>) -> Result<Resolved, ConfigError> {
    load(Some(&Scratch::new().file(content)), [], &[])
}

fn refusal(content: impl AsRef<[u8]>) -> String {
    let line = load_text(content).expect_err("refused").to_string();
    assert!(!line.contains('\n'), "one line: {line}");
    line
}

fn variable(name: &str, value: &str) -> (OsString, OsString) {
    (name.into(), value.into())
}

fn flag(flag: &str, key: &'static str, text: &str) -> Flag {
    Flag { flag: flag.into(), key, text: text.into() }
}

fn one_line(key: &Key, value: &str) -> String {
    format!("# first\n[{}]\n{} = {value}\n", key.section(), key.leaf())
}

#[test]
fn the_defaults_are_what_the_contract_says() {
    let config = Config::default();
    assert_eq!(config.cache.dir, None);
    assert_eq!(config.cache.size, CacheSize::Auto);
    assert_eq!(config.cache.min_free, FreeFloor::Percent(5));
    assert_eq!(config.cache.max_files, None);
    assert_eq!(config.cache.ram_window, 64 << 20);
    assert_eq!(config.cache.evict_policy, EvictPolicy::Epoch);
    assert_eq!(config.cache.small_file_max, 4 << 20);
    assert_eq!(config.mount.allow_other, None);
    assert!(config.mount.passthrough);
    assert_eq!(config.mount.io_engine, IoEngineChoice::Auto);
    assert_eq!(config.mount.workers, None);
    assert_eq!(config.mount.read_ahead, 1 << 20);
    assert_eq!(config.mount.backing_ids_max, 16384);
    assert_eq!(config.metadata.ttl, Some(Duration::from_secs(60)));
    assert_eq!(config.source.identity, IdentitySource::Auto);
    assert_eq!(config.source.threads, 64);
    assert_eq!(config.source.timeout, Duration::from_secs(60));
    assert_eq!(config.source.hang_after, Duration::from_secs(1));
    assert_eq!(config.scrub.rate, 16 << 20);
    assert_eq!(config.scrub.interval, Some(Duration::from_secs(7 * 86_400)));
    assert!(!config.inspect.list_xattrs);
    assert_eq!(config.log.level, "info");
    assert_eq!(config.log.file, None);
    assert_eq!(config.log.max_size, 8 << 20);
}

#[test]
fn the_default_file_has_every_key_and_no_other_in_the_order_of_the_table() {
    let shown: Vec<_> = Resolved::defaults().show().iter().map(|entry| entry.key).collect();
    let table: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(shown, table);
}

#[test]
fn the_default_file_documents_what_the_table_accepts() {
    let lines: Vec<_> = DEFAULT_TOML.lines().collect();
    let mut section = "";
    let mut documented = 0;
    for (i, line) in lines.iter().enumerate() {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
        } else if let Some((leaf, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            let key = keys::find(section, leaf).expect("a key of the table");
            assert_eq!(lines[i - 1], format!("# Accepted: {}", key.accepts), "{}", key.name);
            assert!(lines[i - 2].starts_with("# "), "{} has no explanation", key.name);
            documented += 1;
        }
    }
    assert_eq!(documented, KEYS.len());
}

#[test]
fn a_user_can_copy_the_default_file() {
    let resolved = load_text(DEFAULT_TOML).expect("accepted");
    assert_eq!(resolved.config, Config::default());
    assert!(matches!(resolved.origin("log.max_size"), Some(Origin::File { .. })));
}

#[test]
fn a_higher_layer_wins_and_the_origin_says_which() {
    let scratch = Scratch::new();
    let path = scratch.file("[cache]\nsize = \"1GB\"\n");
    let environment =
        || [variable("WARMFS_CACHE_SIZE", "2GB"), variable("HOME", "/x"), variable("WARMFS_LOG", "?")];
    let flags = [flag("--cache-size", "cache.size", "3GB")];
    let layers: [(Resolved, CacheSize, Origin); 4] = [
        (load(None, [], &[]).expect("defaults"), CacheSize::Auto, Origin::Default),
        (
            load(Some(&path), [], &[]).expect("file"),
            CacheSize::Bytes(1_000_000_000),
            Origin::File { path: path.clone(), line: 2 },
        ),
        (
            load(Some(&path), environment(), &[]).expect("environment"),
            CacheSize::Bytes(2_000_000_000),
            Origin::Environment { variable: "WARMFS_CACHE_SIZE".into() },
        ),
        (
            load(Some(&path), environment(), &flags).expect("flag"),
            CacheSize::Bytes(3_000_000_000),
            Origin::Flag { flag: "--cache-size".into() },
        ),
    ];
    for (resolved, size, origin) in layers {
        assert_eq!(resolved.config.cache.size, size);
        assert_eq!(resolved.origin("cache.size"), Some(&origin));
        assert_eq!(resolved.origin("cache.dir"), Some(&Origin::Default));
        assert_eq!(resolved.show().len(), KEYS.len());
    }
}

#[test]
fn of_two_flags_for_a_key_the_last_wins() {
    let flags = [flag("--ttl", "metadata.ttl", "5s"), flag("--ttl", "metadata.ttl", "forever")];
    assert_eq!(load(None, [], &flags).expect("accepted").config.metadata.ttl, None);
}

#[test]
fn every_key_can_be_set_in_every_layer() {
    for entry in Resolved::defaults().show() {
        let key = KEYS.iter().find(|key| key.name == entry.key).expect("in the table");
        let from_environment = load(None, [variable(&key.variable(), &entry.value)], &[]).expect(entry.key);
        assert!(matches!(from_environment.origin(entry.key), Some(Origin::Environment { .. })));
        let from_flag = load(None, [], &[flag("--x", key.name, &entry.value)]).expect(entry.key);
        assert!(matches!(from_flag.origin(entry.key), Some(Origin::Flag { .. })));
        let from_file = load_text(one_line(key, &format!("\"{}\"", entry.value))).expect(entry.key);
        assert!(matches!(from_file.origin(entry.key), Some(Origin::File { line: 3, .. })));
    }
}

#[test]
fn every_bad_value_in_a_file_names_file_line_key_and_what_is_accepted() {
    for key in KEYS {
        let free_path = key.accepts.ends_with("a path");
        // Any text is a path; what it cannot be is nothing.
        for value in NEVER_ACCEPTED.iter().filter(|value| !(free_path && **value == "\"?\"")) {
            let line = refusal(one_line(key, value));
            for part in ["w.toml:3: ", key.name, key.accepts] {
                assert!(line.contains(part), "{} = {value}: {line}", key.name);
            }
        }
    }
}

#[test]
fn a_bad_value_in_the_environment_or_a_flag_names_it() {
    for key in KEYS {
        let variable_name = key.variable();
        let line = load(None, [variable(&variable_name, "")], &[]).expect_err(key.name).to_string();
        assert!(line.contains(&variable_name) && line.contains(key.accepts), "{line}");
        let line = load(None, [], &[flag("--this", key.name, "")]).expect_err(key.name).to_string();
        assert!(line.contains("--this") && line.contains(key.name) && line.contains(key.accepts), "{line}");
    }
}

#[test]
fn the_ends_of_the_ranges() {
    for (key, good, bad) in [
        (
            "cache.size",
            vec!["1MiB", "1048576", "1%", "100%"],
            vec!["0", "1", "1048575", "0%", "101%", "9999P"],
        ),
        ("cache.min_free", vec!["0", "1", "0%", "99%"], vec!["100%", "9999P"]),
        ("cache.max_files", vec!["1", "4294967295"], vec!["0", "4294967296"]),
        ("cache.ram_window", vec!["0", "1", "1024PiB"], vec!["1025PiB"]),
        ("cache.small_file_max", vec!["0", "1", "1024PiB"], vec!["1025PiB"]),
        ("mount.workers", vec!["1", "64"], vec!["0", "65"]),
        ("mount.read_ahead", vec!["0", "1GiB"], vec!["1025MiB"]),
        ("mount.backing_ids_max", vec!["1", "1048576"], vec!["0", "1048577"]),
        ("metadata.ttl", vec!["0", "3650d", "forever"], vec!["3651d"]),
        ("source.threads", vec!["1", "1024"], vec!["0", "1025"]),
        ("source.timeout", vec!["1ms", "1d"], vec!["0", "2d"]),
        ("source.hang_after", vec!["1ms", "1d"], vec!["0", "2d"]),
        ("log.max_size", vec!["64KiB"], vec!["0", "65535"]),
    ] {
        for text in good {
            assert!(load(None, [], &[flag("--x", key, text)]).is_ok(), "{key} {text}");
        }
        for text in bad.into_iter().chain(["-1", "18446744073709551616", "18446744073709551615"]) {
            assert!(load(None, [], &[flag("--x", key, text)]).is_err(), "{key} {text}");
        }
    }
}

#[test]
fn numbers_and_booleans_are_written_naturally() {
    let config = load_text(
        "[cache]\nsize = 200_000_000\nmax_files = 0x10\n[mount]\nworkers = 4\nallow_other = true\n\
         passthrough = false\n\
         [metadata]\nttl = 5\n",
    )
    .expect("accepted")
    .config;
    assert_eq!(config.cache.size, CacheSize::Bytes(200_000_000));
    assert_eq!(config.cache.max_files, Some(16));
    assert_eq!(config.mount.workers, Some(4));
    assert_eq!(config.mount.allow_other, Some(true));
    assert!(!config.mount.passthrough);
    assert_eq!(config.metadata.ttl, Some(Duration::from_secs(5)));
}

#[test]
fn dotted_keys_and_inline_tables_are_toml_too() {
    let config = load_text("cache.size = \"1GB\"\nlog = { level = \"warn\" }\n").expect("accepted").config;
    assert_eq!(config.cache.size, CacheSize::Bytes(1_000_000_000));
    assert_eq!(config.log.level, "warn");
}

#[test]
fn a_bare_number_is_no_path() {
    for value in ["5", "true"] {
        assert!(
            refusal(format!("[cache]\ndir = {value}\n")).contains("w.toml:2: cache.dir: a bare"),
            "{value}"
        );
    }
}

#[test]
fn a_cache_below_one_chunk_is_refused_with_a_remedy() {
    let line = refusal(format!("[cache]\nsize = {}\n", CHUNK_BYTES - 1));
    assert!(line.contains("one chunk (1MiB)") && line.contains("leave it at auto"), "{line}");
}

#[test]
fn a_policy_that_does_not_exist_lists_exactly_those_that_do() {
    let line = refusal("[cache]\nevict_policy = \"arc\"\n");
    assert!(
        line.ends_with("cache.evict_policy: `arc` is not accepted; accepted: epoch, lru, none"),
        "{line}"
    );
}

#[test]
fn unknown_names_are_errors_that_know_better() {
    for (content, parts) in [
        (
            "[cache]\nsise = 1\n",
            vec![":2: ", "`cache.sise`", "did you mean `cache.size`?", "dir, size, min_free"],
        ),
        ("[cache]\nttl = 1\n", vec![":2: ", "`cache.ttl`", "did you mean `metadata.ttl`?"]),
        ("[cache]\ncolour = 1\n", vec![":2: ", "`cache.colour`; known keys of [cache]"]),
        (
            "\n[cahce]\nsize = 1\n",
            vec![":2: ", "unknown section `cahce`", "did you mean `cache`?", "mount, metadata"],
        ),
        ("size = 1\n", vec![":1: ", "unknown key `size` outside any section", "did you mean `cache.size`?"]),
        ("cache = 1\n", vec![":1: ", "`cache` is a section"]),
        ("[[cache]]\nsize = 1\n", vec![":1: ", "`cache` is a section"]),
        ("\"cache.size\" = 1\n", vec![":1: ", "unknown key", "known sections"]),
        ("[cache.size]\nx = 1\n", vec![":1: ", "cache.size", "a table"]),
        ("[cache]\n\"a\\nb\" = 1\n", vec![":2: ", "`cache.a\\x0ab`"]),
    ] {
        let line = refusal(content);
        for part in parts {
            assert!(line.contains(part), "{content:?}: no {part:?} in {line}");
        }
    }
}

#[test]
fn unknown_variables_are_errors_that_know_better() {
    let line = load(None, [variable("WARMFS_CACHE_SISE", "1")], &[]).expect_err("refused").to_string();
    assert!(
        line.contains("WARMFS_CACHE_SISE") && line.contains("did you mean `WARMFS_CACHE_SIZE`?"),
        "{line}"
    );
    assert!(line.contains("WARMFS_METADATA_TTL"), "{line}");
    assert!(load(None, [variable("WARMFS_", "1")], &[]).is_err());
    assert!(load(None, [variable("WARMFSX", "1")], &[]).is_ok());
}

#[test]
fn bytes_that_are_no_text_are_refused_politely() {
    let line = refusal(b"[cache]\n# \xff\n");
    assert!(line.contains("w.toml:2: is not UTF-8"), "{line}");
    let bad = || OsString::from_vec(b"\xff".to_vec());
    let line = load(None, [("WARMFS_CACHE_DIR".into(), bad())], &[]).expect_err("refused").to_string();
    assert!(line.contains("WARMFS_CACHE_DIR: cache.dir: is not UTF-8"), "{line}");
    assert!(load(None, [(OsString::from_vec(b"WARMFS_\xff\n".to_vec()), bad())], &[]).is_err());
    assert!(load(None, [(bad(), bad())], &[]).is_ok());
}

#[test]
fn a_key_or_section_given_twice_is_named_with_its_second_line() {
    let line = refusal("[cache]\nsize = 1\nsize = 2\n");
    assert!(line.contains("w.toml:3: cache.size is given twice"), "{line}");
    let line = refusal("[cache]\n\n[cache]\n");
    assert!(line.contains("w.toml:3: `cache` is given twice"), "{line}");
}

#[test]
fn a_value_without_quotes_says_what_to_write() {
    let line = refusal("[cache]\nsize = 200GB\n");
    for part in ["w.toml:2: cache.size: ", "quoted", "such as 200GB"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(refusal("[cache\n").contains("w.toml:1: "));
    assert!(refusal("what is this\n").contains("w.toml:1: "));
}

#[test]
fn dos_lines_and_a_byte_order_mark_change_nothing() {
    let resolved = load_text("\u{feff}# hi\r\n[cache]\r\nsize = \"1GB\"\r\n").expect("accepted");
    assert_eq!(resolved.config.cache.size, CacheSize::Bytes(1_000_000_000));
    assert!(matches!(resolved.origin("cache.size"), Some(Origin::File { line: 3, .. })));
    assert!(refusal("\u{feff}[cache]\r\n\r\nsize = \"x\"\r\n").contains("w.toml:3: "));
    assert_eq!(load_text("").expect("empty").config, Config::default());
}

#[test]
fn a_file_that_is_not_there_or_not_a_file_is_one_clear_line() {
    let scratch = Scratch::new();
    for path in [scratch.0.path().join("none.toml"), scratch.0.path().to_owned()] {
        let line = load(Some(&path), [], &[]).expect_err("refused").to_string();
        assert!(line.contains("cannot read this configuration file") && !line.contains('\n'), "{line}");
        assert!(line.starts_with(&path.display().to_string()), "{line}");
        assert_eq!(check(&path).len(), 1);
    }
    let endless = load(Some(Path::new("/dev/zero")), [], &[]).expect_err("refused").to_string();
    assert!(endless.contains("larger than 1MiB"), "{endless}");
}

#[test]
fn ten_megabytes_are_refused_and_what_may_still_be_parsed_is_survived() {
    assert!(refusal("# comment\n".repeat(1 << 20)).contains("larger than 1MiB"));
    // A quarter of what is accepted shows every limit of the parser, in a second.
    let length = 1 << 18;
    for piece in ["[", "{", "a=", "a.", "\"", "'''", "\\", "=", "\n", "[[a]]\n", "[a]\n", "a={", "\u{0}", "é"]
    {
        let _ = load_text(piece.repeat(length / piece.len()));
    }
}

#[test]
fn check_reports_every_mistake_in_the_order_of_the_file() {
    let scratch = Scratch::new();
    let path = scratch.file("[mount]\nworkers = 0\n[cache]\nsize = 1\nnope = 1\ndir = \"/x\"\n");
    let places: Vec<_> =
        check(&path).iter().map(|e| e.to_string().split(": ").next().map(str::to_owned)).collect();
    let expected: Vec<_> = [2, 4, 5].iter().map(|line| Some(format!("{}:{line}", path.display()))).collect();
    assert_eq!(places, expected);
    let path = scratch.file("[cache]\nsize = \"1GB\"\n");
    assert_eq!(check(&path), []);
    let many: String = (0..10_000).map(|i| format!("k{i} = 1\n")).collect();
    assert_eq!(check(&scratch.file(many)).len(), file::ERRORS_MAX);
}

#[test]
fn a_bad_value_cannot_hide_under_a_good_one() {
    let path_flags = [flag("--cache-size", "cache.size", "1GB")];
    let scratch = Scratch::new();
    assert!(load(Some(&scratch.file("[cache]\nsize = 1\n")), [], &path_flags).is_err());
    assert!(load(None, [variable("WARMFS_CACHE_SIZE", "1")], &path_flags).is_err());
}

#[test]
fn a_flag_for_no_key_is_an_error_and_not_a_panic() {
    for key in ["cache.sise", "nope", ""] {
        let e = load(None, [], &[flag("--x", key, "1")]).expect_err(key).to_string();
        assert!(e.contains("flag --x: unknown key `"), "{e}");
    }
}

#[test]
fn what_show_prints_as_json() {
    let resolved = load(None, [], &[flag("--ttl", "metadata.ttl", "forever")]).expect("accepted");
    let entry = resolved.show().iter().find(|entry| entry.key == "metadata.ttl").expect("shown");
    assert_eq!(
        serde_json::to_string(entry).expect("json"),
        r#"{"key":"metadata.ttl","value":"forever","origin":{"layer":"flag","flag":"--ttl"}}"#
    );
    let file = Origin::File { path: OsString::from_vec(b"/a\xff".to_vec()).into(), line: 3 };
    assert_eq!(serde_json::to_string(&file).expect("json"), r#"{"layer":"file","path":"/a\\xff","line":3}"#);
    let texts = [Origin::Default, file, Origin::Environment { variable: "V".into() }].map(|o| o.to_string());
    assert_eq!(texts, ["default", "/a\\xff:3", "environment V"]);
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = load_text(bytes);
    }

    #[test]
    fn almost_a_configuration_never_panics(
        pieces in proptest::collection::vec(
            prop::sample::select(vec![
                "[cache]", "[[cache]]", "[log]", "[cache.size]", "size", "dir", "level", "cache", ".", "=",
                "\"", "'", "{", "}", "[", "]", ",", "1", "-1", "0x", "1e9", "true", "\n", "\r\n", " ", "#",
                "\u{feff}", "GB", "%",
            ]),
            0..60,
        )
    ) {
        if let Err(e) = load_text(pieces.concat()) {
            prop_assert!(!e.to_string().contains('\n'));
        }
    }

    #[test]
    fn random_text_in_any_key_never_panics(index in 0..KEYS.len(), text in any::<String>()) {
        if let Err(e) = load(None, [], &[flag("--x", KEYS[index].name, &text)]) {
            prop_assert!(!e.to_string().contains('\n'));
        }
    }
}
