//! Sizes and durations as people write them: `200GB`, `64MiB`, `90 %`, `60s`, `2ms`, `forever`.
//!
//! One parser for the command line, the environment and the file, so that a value means the same everywhere. Each
//! error says which forms are accepted.

use std::time::Duration;

/// `1.5GiB`, `200GB`, `4096`: decimal units are powers of 1000, binary ones (`KiB`, `MiB`, ...; a bare `K`, `M`, `G`,
/// `T` too) powers of 1024.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let error = || format!("`{text}` is not a size: write for example 200GB, 64MiB or 4096 (bytes)");
    let (number, unit) = split_number(text).ok_or_else(error)?;
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        _ => return Err(error()),
    };
    scale(number, factor).ok_or_else(error)
}

/// `500ms`, `60s`, `5m`, `12h`, `7d`; a bare number is seconds. `0` is allowed and means "check every time".
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let error = || format!("`{text}` is not a duration: write for example 500ms, 60s, 5m, 12h or 7d");
    let (number, unit) = split_number(text).ok_or_else(error)?;
    let factor_us: u64 = match unit.to_ascii_lowercase().as_str() {
        "us" => 1,
        "ms" => 1000,
        "" | "s" | "sec" => 1_000_000,
        "m" | "min" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(error()),
    };
    scale(number, factor_us).map(Duration::from_micros).ok_or_else(error)
}

/// How long a fact about the source may be believed: a duration, or `forever` (`None`).
pub fn parse_ttl(text: &str) -> Result<Option<Duration>, String> {
    if text.trim().eq_ignore_ascii_case("forever") {
        return Ok(None);
    }
    parse_duration(text).map(Some).map_err(|e| format!("{e}, or `forever` for data that never changes"))
}

/// A number of bytes for people: three significant digits, decimal units.
pub fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes} B"),
        _ if value < 9.995 => format!("{value:.2} {}", UNITS[unit]),
        _ if value < 99.95 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

/// Splits `1.5 GiB` into the number's text and the unit.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number.starts_with(|c: char| c.is_ascii_digit())).then_some((number, unit.trim_start()))
}

/// `number * factor` without passing through a float, so that large whole sizes are exact; `None` on overflow.
fn scale(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().ok()?;
    let mut total = whole.checked_mul(factor)?;
    if !fraction.is_empty() {
        if fraction.len() > 9 || fraction.contains('.') {
            return None;
        }
        let numerator: u64 = fraction.parse().ok()?;
        let denominator = 10u64.pow(fraction.len() as u32);
        total = total
            .checked_add((u128::from(numerator) * u128::from(factor) / u128::from(denominator)) as u64)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_people_write() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1K", 1024),
            ("64MiB", 64 << 20),
            ("200GB", 200_000_000_000),
            ("10 GB", 10_000_000_000),
            ("1.5GiB", 3 << 29),
            ("2t", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn bug_155_sizes_that_are_refused_name_the_forms() {
        for text in ["", "-1", "GB", "1e3", "10X", "1.2.3", "99999999999P", "0x10", "1,5G"] {
            let e = parse_size(text).expect_err(text);
            assert!(e.contains("200GB"), "{e}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("60"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_duration("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_ttl("forever"), Ok(None));
        assert_eq!(parse_ttl("0"), Ok(Some(Duration::ZERO)));
        assert!(parse_ttl("soon").expect_err("refused").contains("forever"));
        assert!(parse_duration("1y").is_err());
    }

    #[test]
    fn shown_sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (15_300_000_000, "15.3 GB"),
        ] {
            assert_eq!(show_size(bytes), text);
        }
    }
}
