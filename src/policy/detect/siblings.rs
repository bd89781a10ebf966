//! Files that are read together: an image and its label, a recording and its text. They have one stem, and differ in the
//! extension, or in one directory, or in both: `images/a/7.jpg` and `labels/a/7.txt`.
//!
//! A rule is learned from a few pairs, and used while more than 80 % of the files that it speaks of were followed by their
//! sibling.

use std::collections::VecDeque;

/// A sibling is opened within so many other opens: several workers read at the same time.
const WINDOW: usize = 16;
/// Rules that are remembered.
const RULES_MAX: usize = 32;
/// A rule is used after so many pairs.
const PAIRS_MIN: u32 = 4;
/// After so many tries they count half: data and jobs change.
const TRIES_MAX: u32 = 128;

/// A path in its parts.
struct Parts<'a> {
    dirs: Vec<&'a [u8]>,
    stem: &'a [u8],
    /// With its dot.
    ext: &'a [u8],
}

/// How the second file's path is made of the first one's.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    dir: Option<DirChange>,
    ext: (Box<[u8]>, Box<[u8]>),
}

/// The one directory that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DirChange {
    /// Counted from the top.
    at: usize,
    from: Box<[u8]>,
    to: Box<[u8]>,
}

struct Rule {
    change: Change,
    tries: u32,
    pairs: u32,
}

struct Recent {
    path: Box<[u8]>,
    /// Its sibling came.
    paired: bool,
}

/// The rules of a mount, and the files from which they are learned.
#[derive(Default)]
pub struct Siblings {
    recent: VecDeque<Recent>,
    rules: Vec<Rule>,
}

impl Siblings {
    /// A file was opened. Gives those that are expected with it.
    pub fn opened(&mut self, path: &[u8]) -> Vec<Vec<u8>> {
        if self.recent.back().is_some_and(|last| *last.path == *path) {
            return Vec::new();
        }
        let Some(parts) = parts(path) else { return Vec::new() };
        self.learn(&parts);
        let was_read = |path: &Vec<u8>| self.recent.iter().any(|recent| *recent.path == **path);
        let good = self.rules.iter().filter(|rule| rule.is_good());
        let expected =
            good.filter_map(|rule| rule.change.of(&parts)).filter(|path| !was_read(path)).collect();
        if self.recent.len() >= WINDOW {
            self.forget_oldest();
        }
        self.recent.push_back(Recent { path: path.into(), paired: false });
        expected
    }

    /// A file of the same stem was opened a moment before.
    fn learn(&mut self, second: &Parts<'_>) {
        let is_pair = |recent: &Recent| Change::between(&parts(&recent.path)?, second);
        let found = self.recent.iter_mut().rev().find_map(|recent| Some((is_pair(recent)?, recent)));
        let Some((change, first)) = found else { return };
        first.paired = true;
        if let Some(rule) = self.rules.iter_mut().find(|rule| rule.change == change) {
            return rule.tried(true);
        }
        if self.rules.len() >= RULES_MAX {
            let worst = (0..self.rules.len()).min_by_key(|&at| self.rules[at].pairs).unwrap_or(0);
            self.rules.swap_remove(worst);
        }
        self.rules.push(Rule { change, tries: 1, pairs: 1 });
    }

    /// A file that was followed by no sibling speaks against every rule that said so.
    fn forget_oldest(&mut self) {
        let Some(oldest) = self.recent.pop_front().filter(|oldest| !oldest.paired) else { return };
        let Some(parts) = parts(&oldest.path) else { return };
        for rule in self.rules.iter_mut().filter(|rule| rule.change.of(&parts).is_some()) {
            rule.tried(false);
        }
    }
}

impl Rule {
    fn tried(&mut self, came: bool) {
        self.tries += 1;
        self.pairs += u32::from(came);
        if self.tries >= TRIES_MAX {
            self.tries /= 2;
            self.pairs /= 2;
        }
    }

    fn is_good(&self) -> bool {
        self.pairs >= PAIRS_MIN && self.pairs * 5 > self.tries * 4
    }
}

impl Change {
    /// `None`: they are no siblings.
    fn between(first: &Parts<'_>, second: &Parts<'_>) -> Option<Self> {
        if first.stem != second.stem || first.dirs.len() != second.dirs.len() {
            return None;
        }
        let mut differ = (0..first.dirs.len()).filter(|&at| first.dirs[at] != second.dirs[at]);
        let change = |at: usize| DirChange { at, from: first.dirs[at].into(), to: second.dirs[at].into() };
        let dir = differ.next().map(change);
        let one = differ.next().is_none() && (dir.is_some() || first.ext != second.ext);
        one.then(|| Self { dir, ext: (first.ext.into(), second.ext.into()) })
    }

    /// The sibling of a file, if this speaks of such files.
    fn of(&self, first: &Parts<'_>) -> Option<Vec<u8>> {
        if *self.ext.0 != *first.ext {
            return None;
        }
        let mut dirs = first.dirs.clone();
        if let Some(DirChange { at, from, to }) = &self.dir {
            let dir = dirs.get_mut(*at).filter(|dir| ***dir == **from)?;
            *dir = to;
        }
        let mut path: Vec<u8> = dirs.iter().flat_map(|dir| [dir, &b"/"[..]].concat()).collect();
        path.extend_from_slice(first.stem);
        path.extend_from_slice(&self.ext.1);
        Some(path)
    }
}

/// `None` if it has no stem.
fn parts(path: &[u8]) -> Option<Parts<'_>> {
    let mut dirs: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
    let name = dirs.pop()?;
    let end = name.iter().position(|&b| b == b'.').unwrap_or(name.len());
    (end > 0).then(|| Parts { dirs, stem: &name[..end], ext: &name[end..] })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guesses(siblings: &mut Siblings, path: &str) -> Vec<String> {
        siblings.opened(path.as_bytes()).into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
    }

    #[test]
    fn a_label_is_expected_with_its_image_after_four_pairs() {
        for (image, label) in [
            ("images/cN/N.jpg", "labels/cN/N.txt"),
            ("a/N.jpg", "a/N.json"),
            ("N.jpg", "N.seg.png"),
            ("x/rgb/N.png", "x/depth/N.png"),
        ] {
            let mut siblings = Siblings::default();
            for n in 0..20 {
                let (image, label) = (image.replace('N', &n.to_string()), label.replace('N', &n.to_string()));
                let expected = if n < 4 { vec![] } else { vec![label.clone()] };
                assert_eq!(guesses(&mut siblings, &image), expected);
                assert_eq!(guesses(&mut siblings, &label), Vec::<String>::new());
            }
        }
    }

    #[test]
    fn workers_that_read_at_the_same_time_do_not_hide_it() {
        let mut siblings = Siblings::default();
        for batch in 0..10 {
            (0..6).for_each(|n| _ = guesses(&mut siblings, &format!("i/{}.jpg", batch * 6 + n)));
            (0..6).for_each(|n| _ = guesses(&mut siblings, &format!("l/{}.txt", batch * 6 + n)));
        }
        assert_eq!(guesses(&mut siblings, "i/1000.jpg"), ["l/1000.txt"]);
    }

    /// Of the files that are said to come more than 80 % do, or nothing is said.
    #[test]
    fn labels_that_are_read_now_and_then_are_not_expected() {
        for (every, least) in [(2, 0.0), (10, 0.85)] {
            let (mut siblings, mut told, mut right) = (Siblings::default(), 0, 0);
            for n in 0..2000u32 {
                let expected = guesses(&mut siblings, &format!("i/{n}.jpg"));
                let comes = n * 617 % every != 0;
                told += expected.len();
                right += expected.len() * usize::from(comes);
                if comes {
                    guesses(&mut siblings, &format!("l/{n}.txt"));
                }
            }
            let precision = right as f64 / told.max(1) as f64;
            assert!(told < 20 && least == 0.0 || told > 1500 && precision > least, "{told} {precision}");
        }
    }

    #[test]
    fn files_of_no_kin_and_a_walk_are_not_siblings() {
        let mut siblings = Siblings::default();
        for n in 0..500 {
            assert!(guesses(&mut siblings, &format!("c{}/f{n}.jpg", n % 7)).is_empty());
        }
        assert!(siblings.rules.is_empty());
        for n in 0..500 {
            guesses(&mut siblings, &format!("d{n}/x.a{n}"));
            assert!(siblings.rules.len() <= RULES_MAX && siblings.recent.len() <= WINDOW);
        }
        assert!(parts(b"").is_none() && parts(b"a/.hidden").is_none());
    }
}
