//! Bytes that say where they come from: each 8 bytes are file, version and place, mixed so that none looks like another.
//!
//! A reader that got a wrong word can say whose it is, and "all of one version" is a comparison of words.

/// Bits of a word: a mark, the file, the version, the place (in words).
const MARK: u64 = 0b10_1101;
const FILE_BITS: u32 = 14;
const VERSION_BITS: u32 = 22;
const PLACE_BITS: u32 = 22;

/// Any odd number mixes; this one has its bits well spread.
const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
const INVERSE: u64 = inverse(FACTOR);
const KEY: u64 = 0x5851_f42d_4c95_7f2d;

/// The number that undoes a multiplication by `factor`, by Newton: each step doubles the bits that are right.
const fn inverse(factor: u64) -> u64 {
    let mut x = factor;
    let mut step = 0;
    while step < 6 {
        x = x.wrapping_mul(2u64.wrapping_sub(factor.wrapping_mul(x)));
        step += 1;
    }
    x
}

/// Where a word comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Number of the file.
    pub file: u64,
    /// Version of its content.
    pub version: u64,
    /// Offset, bytes.
    pub offset: u64,
}

/// The word of a place.
fn word(file: u64, version: u64, place: u64) -> u64 {
    let plain = (((MARK << FILE_BITS | file) << VERSION_BITS | version) << PLACE_BITS) | place;
    let mut x = plain ^ KEY;
    x ^= x >> 32;
    x = x.wrapping_mul(FACTOR);
    x ^ (x >> 32)
}

/// Where a word comes from; `None` for one that we never wrote.
pub fn origin(word: u64) -> Option<Origin> {
    let mut x = word ^ (word >> 32);
    x = x.wrapping_mul(INVERSE);
    x ^= x >> 32;
    x ^= KEY;
    let take = |x: &mut u64, bits: u32| {
        let value = *x & ((1 << bits) - 1);
        *x >>= bits;
        value
    };
    let place = take(&mut x, PLACE_BITS);
    let version = take(&mut x, VERSION_BITS);
    let file = take(&mut x, FILE_BITS);
    (x == MARK).then_some(Origin { file, version, offset: place * 8 })
}

/// The whole content of a version.
pub fn content(file: u64, version: u64, size: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..size.div_ceil(8)).flat_map(|place| word(file, version, place).to_le_bytes()).collect();
    bytes.truncate(size as usize);
    bytes
}

/// The version that the first word of a file speaks of; `None` if it is shorter than a word, or no word of ours.
pub fn version_of(bytes: &[u8]) -> Option<Origin> {
    bytes.first_chunk().and_then(|first| origin(u64::from_le_bytes(*first)))
}

/// Compares what was read at `offset`, a multiple of 8, with the version; the error says where the first wrong word
/// comes from, and how many are wrong.
pub fn compare(bytes: &[u8], offset: u64, file: u64, version: u64) -> Result<(), String> {
    let first = offset / 8;
    let (words, tail) = bytes.as_chunks::<8>();
    let is_wrong =
        |(i, got): (usize, &[u8; 8])| u64::from_le_bytes(*got) != word(file, version, first + i as u64);
    if let Some(at) = words.iter().enumerate().position(is_wrong) {
        let wrong = words.iter().enumerate().filter(|w| is_wrong(*w)).count();
        let got = u64::from_le_bytes(words[at]);
        let whose = match origin(got) {
            Some(o) => format!("file {} version {} offset {}", o.file, o.version, o.offset),
            None if got == 0 => "zeros".into(),
            None => format!("nobody ({got:#018x})"),
        };
        return Err(format!(
            "file {file} version {version}: {wrong} of {} words from {offset} are wrong, the first at offset {} \
             is of {whose}",
            words.len(),
            offset + at as u64 * 8
        ));
    }
    let last = word(file, version, first + words.len() as u64).to_le_bytes();
    match tail == &last[..tail.len()] {
        true => Ok(()),
        false => Err(format!("file {file} version {version}: the last {} bytes are wrong", tail.len())),
    }
}

/// Goal: a wrong word is found and named. The harness is believed only as far as this holds, so it is run first.
pub fn self_check() {
    let bytes = content(7, 123, 100_003);
    assert_eq!(compare(&bytes, 0, 7, 123), Ok(()));
    assert_eq!(compare(&bytes[4096..], 4096, 7, 123), Ok(()));
    assert_eq!(version_of(&bytes[800..]), Some(Origin { file: 7, version: 123, offset: 800 }));
    let other = content(8, 124, 100_003);
    let mut mixed = bytes.clone();
    mixed[50_000..50_008].copy_from_slice(&other[4000..4008]);
    let said = compare(&mixed, 0, 7, 123).expect_err("a foreign word");
    assert!(said.contains("1 of 12500") && said.contains("file 8 version 124 offset 4000"), "{said}");
    mixed[50_000..50_008].fill(0);
    assert!(compare(&mixed, 0, 7, 123).expect_err("zeros").contains("zeros"));
    mixed = bytes;
    mixed[100_002] ^= 1;
    assert!(compare(&mixed, 0, 7, 123).is_err(), "the tail");
}
