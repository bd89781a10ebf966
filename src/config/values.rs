//! From a value's text to the value: small parsers that the keys' table combines.
//!
//! Apart from `types::units`, which knows how sizes and durations are written, because here is decided which
//! of them a key takes. A parser refuses with the end of a sentence that began with the text (`is out of
//! range`); the accepted values are the table's to add.

use super::schema::{CacheSize, FreeFloor};
use crate::types::CHUNK_BYTES;
use crate::types::units;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use tracing_subscriber::filter::Targets;

/// The value, or why not: the end of a sentence.
pub(super) type Parsed<T> = Result<T, &'static str>;

/// The largest size that is accepted, 1024 PiB: more than any file system holds, and far enough below
/// `u64::MAX` that sums of a few sizes cannot overflow.
pub(super) const SIZE_BYTES_MAX: u64 = 1 << 60;

/// The longest lifetime of a fact short of `forever`, ten years: adding it to a clock cannot overflow.
const TTL_MAX: Duration = Duration::from_secs(3650 * 86_400);

const REFUSED: &str = "is not accepted";
const OUT_OF_RANGE: &str = "is out of range";

/// One of a few words.
pub(super) fn word<T: Copy>(words: &[(&str, T)]) -> impl Fn(&str) -> Parsed<T> {
    move |text| words.iter().find(|(word, _)| *word == text).map(|&(_, value)| value).ok_or(REFUSED)
}

/// `true` or `false`.
pub(super) fn boolean(text: &str) -> Parsed<bool> {
    word(&[("true", true), ("false", false)])(text)
}

/// `auto` (`None`), or what `parse` takes.
pub(super) fn auto_or<T>(parse: impl Fn(&str) -> Parsed<T>) -> impl Fn(&str) -> Parsed<Option<T>> {
    move |text| if text == "auto" { Ok(None) } else { parse(text).map(Some) }
}

/// A whole number.
pub(super) fn number(range: RangeInclusive<u64>) -> impl Fn(&str) -> Parsed<u64> {
    move |text| within(&range, text.trim().parse().map_err(|_| REFUSED)?)
}

/// A whole number of things that are counted in memory.
pub(super) fn count(range: RangeInclusive<u64>) -> impl Fn(&str) -> Parsed<usize> {
    move |text| usize::try_from(number(range.clone())(text)?).map_err(|_| OUT_OF_RANGE)
}

/// A number of bytes.
pub(super) fn size(range: RangeInclusive<u64>) -> impl Fn(&str) -> Parsed<u64> {
    move |text| within(&range, units::parse_size(text).map_err(|_| REFUSED)?)
}

/// A duration from one millisecond to one day.
pub(super) fn patience(text: &str) -> Parsed<Duration> {
    let range = Duration::from_millis(1)..=Duration::from_secs(86_400);
    within(&range, units::parse_duration(text).map_err(|_| REFUSED)?)
}

/// How often something is done, or `off`.
pub(super) fn period(text: &str) -> Parsed<Option<Duration>> {
    if text == "off" {
        return Ok(None);
    }
    within(&(Duration::from_secs(1)..=TTL_MAX), units::parse_duration(text).map_err(|_| REFUSED)?).map(Some)
}

/// How long a fact may be believed.
pub(super) fn ttl(text: &str) -> Parsed<Option<Duration>> {
    match units::parse_ttl(text).map_err(|_| REFUSED)? {
        Some(long) if long > TTL_MAX => Err("is out of range, write forever for data that never changes"),
        ttl => Ok(ttl),
    }
}

/// `auto`, a share or a size that holds at least one chunk.
pub(super) fn cache_size(text: &str) -> Parsed<CacheSize> {
    if text == "auto" {
        return Ok(CacheSize::Auto);
    }
    if let Some(share) = percent(text, 1..=100) {
        return share.map(CacheSize::Percent);
    }
    match size(0..=SIZE_BYTES_MAX)(text)? {
        bytes if bytes < CHUNK_BYTES => {
            Err("is less than one chunk (1MiB), the least that can be cached; give more, or leave it at auto")
        }
        bytes => Ok(CacheSize::Bytes(bytes)),
    }
}

/// A share or a size of space to keep free.
pub(super) fn free_floor(text: &str) -> Parsed<FreeFloor> {
    match percent(text, 0..=99) {
        Some(share) => share.map(FreeFloor::Percent),
        None => size(0..=SIZE_BYTES_MAX)(text).map(FreeFloor::Bytes),
    }
}

/// A path, made absolute now, because a daemon later leaves the directory it was started in.
pub(super) fn path(text: &str) -> Parsed<PathBuf> {
    match text {
        "" => Err("is empty"),
        _ if text.contains('\0') => Err("holds a NUL byte"),
        _ if text.starts_with('~') => Err("starts with `~`, which is not expanded: write the directory out"),
        _ => std::path::absolute(text).map_err(|_| "is relative and the working directory is gone"),
    }
}

/// A level, or levels of modules (`warn,warmfs::fs=debug`). The filter itself takes any single word for the name of a
/// module, which would turn a mistyped level into silence; here what has no `=` must be a level. No patterns, as the
/// library's `EnvFilter` has them: one of 400 bytes took 36 s to read.
pub(super) fn log_filter(text: &str) -> Parsed<String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    if !text.split(',').all(|part| is_level(part) || part.contains('=')) {
        return Err(REFUSED);
    }
    Targets::from_str(text).map(|_| text.to_owned()).map_err(|_| REFUSED)
}

/// `NN%`; `None` when the text does not end so.
fn percent(text: &str, range: RangeInclusive<u8>) -> Option<Parsed<u8>> {
    let number = text.trim().strip_suffix('%')?.trim_end();
    Some(number.parse().map_err(|_| REFUSED).and_then(|share| within(&range, share)))
}

fn within<T: PartialOrd>(range: &RangeInclusive<T>, value: T) -> Parsed<T> {
    if range.contains(&value) { Ok(value) } else { Err(OUT_OF_RANGE) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_range() {
        let threads = number(1..=1024);
        assert_eq!(threads("1"), Ok(1));
        assert_eq!(threads("1024"), Ok(1024));
        for text in ["0", "1025", "18446744073709551615"] {
            assert_eq!(threads(text), Err(OUT_OF_RANGE), "{text}");
        }
        for text in ["-1", "", "4.0", "0x10", "many", "18446744073709551616"] {
            assert_eq!(threads(text), Err(REFUSED), "{text}");
        }
    }

    #[test]
    fn sizes_keep_their_range() {
        let window = size(0..=SIZE_BYTES_MAX);
        assert_eq!(window("0"), Ok(0));
        assert_eq!(window("1024PiB"), Ok(SIZE_BYTES_MAX));
        assert_eq!(window("1025PiB"), Err(OUT_OF_RANGE));
        assert_eq!(window("-1"), Err(REFUSED));
        assert_eq!(window("99999999999999999999"), Err(REFUSED));
    }

    #[test]
    fn the_cache_holds_a_chunk_or_is_refused() {
        assert_eq!(cache_size("auto"), Ok(CacheSize::Auto));
        assert_eq!(cache_size("1MiB"), Ok(CacheSize::Bytes(CHUNK_BYTES)));
        assert_eq!(cache_size("80%"), Ok(CacheSize::Percent(80)));
        assert_eq!(cache_size("80 %"), Ok(CacheSize::Percent(80)));
        for text in ["0", "1", "1048575", "1MB"] {
            assert!(cache_size(text).expect_err(text).contains("one chunk"), "{text}");
        }
        for text in ["0%", "101%", "-1%", "1.5%", "%", "256%", "", "200XB", "-1"] {
            assert!(cache_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_floor_may_be_zero_but_not_everything() {
        assert_eq!(free_floor("0"), Ok(FreeFloor::Bytes(0)));
        assert_eq!(free_floor("0%"), Ok(FreeFloor::Percent(0)));
        assert_eq!(free_floor("99%"), Ok(FreeFloor::Percent(99)));
        assert_eq!(free_floor("100%"), Err(OUT_OF_RANGE));
    }

    #[test]
    fn durations_keep_their_range() {
        assert_eq!(patience("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(patience("1d"), Ok(Duration::from_secs(86_400)));
        assert_eq!(patience("0"), Err(OUT_OF_RANGE));
        assert_eq!(patience("2d"), Err(OUT_OF_RANGE));
        assert_eq!(patience("forever"), Err(REFUSED));
        assert_eq!(ttl("0"), Ok(Some(Duration::ZERO)));
        assert_eq!(ttl("3650d"), Ok(Some(TTL_MAX)));
        assert_eq!(ttl("forever"), Ok(None));
        assert!(ttl("3651d").expect_err("too long").contains("forever"));
        assert_eq!(ttl("-1"), Err(REFUSED));
    }

    #[test]
    fn paths_are_absolute_and_plain() {
        assert_eq!(path("/a/b"), Ok(PathBuf::from("/a/b")));
        assert!(path("a").expect("relative").is_absolute());
        for text in ["", "~/cache", "a\0b"] {
            assert!(path(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_mistyped_level_is_not_taken_for_a_module() {
        for text in ["info", "OFF", "trace", "warmfs=debug", "info,warmfs::cache=debug", "warn,[read]=trace"]
        {
            assert_eq!(log_filter(text).as_deref(), Ok(text), "{text}");
        }
        for text in ["loud", "", "3", "info,", "info,loud", "info, warn", "warmfs=loud"] {
            assert_eq!(log_filter(text), Err(REFUSED), "{text}");
        }
    }
}
