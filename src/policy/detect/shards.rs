//! Shards are numbered, and readers that go through two in order go on to the next: `part-00001-of-01024.parquet`,
//! `train-000123.tar`. To open a shard is not to go through it: who looks at the directory of each large file wants none of
//! them whole. So it counts as read when it is known to be wanted whole.

use crate::types::CHUNK_BYTES;
use std::collections::VecDeque;

/// Families of shards that are watched at the same time: each worker of a data loader may be in another one.
const FAMILIES_MAX: usize = 64;
/// So far ahead once a guess has come true; the first guess is one shard.
const DEPTH_MAX: u64 = 2;
/// A number of more digits is none that counts shards.
const DIGITS_MAX: usize = 12;

/// Whether a file of this size may be a shard. Smaller ones are samples, whose numbers say little about what comes next.
pub fn is_shard(size: u64) -> bool {
    size > CHUNK_BYTES
}

/// Files that differ in one number only.
struct Family {
    before: Box<[u8]>,
    after: Box<[u8]>,
    last: u64,
    /// Up to this number they were guessed.
    guessed: u64,
}

/// The families that were read last.
#[derive(Default)]
pub struct Shards {
    /// The one that was read last is at the end.
    families: VecDeque<Family>,
}

impl Shards {
    /// A file is read whole. Gives the shards that are expected next and were not guessed yet.
    pub fn read(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        let Some((before, digits, after)) = split(path) else { return Vec::new() };
        let Some(number) = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok())
        else {
            return Vec::new();
        };
        let known =
            self.families.iter().position(|family| *family.before == *before && *family.after == *after);
        let mut family = match known.and_then(|at| self.families.remove(at)) {
            Some(family) => family,
            None => Family { before: before.into(), after: after.into(), last: number, guessed: number },
        };
        let mut next = 0..0;
        if number == family.last + 1 {
            let depth = if number <= family.guessed { DEPTH_MAX } else { 1 };
            let from = family.guessed.max(number) + 1;
            next = from..(number + depth + 1).max(from);
            family.guessed = next.end - 1;
        } else if number != family.last {
            family.guessed = number;
        }
        family.last = number;
        let width = digits.len();
        let name = |n| [&*family.before, format!("{n:0width$}").as_bytes(), &*family.after].concat();
        let names = next.map(name).collect();
        if self.families.len() >= FAMILIES_MAX {
            self.families.pop_front();
        }
        self.families.push_back(family);
        names
    }
}

/// What comes before a shard's number, its digits, and what comes after.
fn split(path: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let name = path.iter().rposition(|&b| b == b'/').map_or(0, |at| at + 1);
    let stem_end = path[name..].iter().rposition(|&b| b == b'.').map_or(path.len(), |at| name + at);
    let (start, end) = last_digits(path, name, stem_end)?;
    // Of `00001-of-01024` the second says how many there are.
    let (start, end) = match path[name..start].strip_suffix(b"-of-") {
        Some(head) => match last_digits(path, name, name + head.len()) {
            Some((first, until)) if until == name + head.len() => (first, until),
            _ => (start, end),
        },
        None => (start, end),
    };
    (end - start <= DIGITS_MAX).then(|| (&path[..start], &path[start..end], &path[end..]))
}

/// Where the last digits in a part of the path are.
fn last_digits(path: &[u8], from: usize, to: usize) -> Option<(usize, usize)> {
    let end = from + path[from..to].iter().rposition(u8::is_ascii_digit)? + 1;
    let start = path[from..end].iter().rposition(|b| !b.is_ascii_digit()).map_or(from, |at| from + at + 1);
    Some((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses(shards: &mut Shards, path: &str) -> Vec<String> {
        shards.read(path.as_bytes()).into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn two_in_order_announce_the_third_and_a_right_guess_two_more() {
        let mut shards = Shards::default();
        let name = |n: u32| format!("c4/part-{n:05}-of-01024.parquet");
        assert!(guesses(&mut shards, &name(8)).is_empty());
        assert_eq!(guesses(&mut shards, &name(9)), [name(10)]);
        assert!(guesses(&mut shards, &name(9)).is_empty(), "once more");
        assert_eq!(guesses(&mut shards, &name(10)), [name(11), name(12)]);
        assert_eq!(guesses(&mut shards, &name(11)), [name(13)]);
        assert!(guesses(&mut shards, &name(500)).is_empty(), "elsewhere");
        assert_eq!(guesses(&mut shards, &name(501)), [name(502)]);
    }

    #[test]
    fn numbers_in_their_width() {
        let mut shards = Shards::default();
        for (first, second, third) in [
            ("train-000099.tar", "train-000100.tar", "train-000101.tar"),
            ("a/data.9.bin", "a/data.10.bin", "a/data.11.bin"),
            ("7", "8", "9"),
            ("v2/x_01.mp4", "v2/x_02.mp4", "v2/x_03.mp4"),
        ] {
            assert!(guesses(&mut shards, first).is_empty());
            assert_eq!(guesses(&mut shards, second), [third]);
        }
        for name in ["dir1/x", "x.mp4", "", "9999999999999.tar", "x/"] {
            assert!(split(name.as_bytes()).is_none(), "{name}");
        }
    }

    #[test]
    fn a_random_order_announces_hardly_anything_and_memory_is_bounded() {
        let mut shards = Shards::default();
        let order = (0..1000u32).map(|n| n * 617 % 1000);
        let told: usize = order.map(|n| guesses(&mut shards, &format!("s-{n:04}.tar")).len()).sum();
        assert!(told < 10, "{told}");
        for n in 0..1000 {
            guesses(&mut shards, &format!("family{n}x/1.tar"));
            assert!(shards.families.len() <= FAMILIES_MAX);
        }
    }
}
