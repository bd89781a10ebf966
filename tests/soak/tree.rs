//! The source and what is true of it: files with versions, how each version came to be, and what a reader who opened at
//! some moment may see.
//!
//! A version is written by one `write` call or put in place by a rename. While a file is being changed in place the source
//! itself holds a mixture; who reads at that moment is not judged, who opens later is.

use super::content;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Numbers that follow from a seed.
pub struct Dice(u64);

impl Dice {
    /// From a seed; `stream` gives threads numbers of their own.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut dice = Self(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        dice.next();
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Whether it is the one case in `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// How a version came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// A new file took the name.
    Rename,
    /// Written over the old content: as long, longer, or shorter.
    InPlace,
}

/// What is known of a version.
#[derive(Clone, Copy, Debug)]
struct Made {
    size: u64,
    how: How,
    /// When it was complete; `None` while it is being written.
    done: Option<Instant>,
}

/// One file of the source.
pub struct Entry {
    /// Its number.
    pub file: u64,
    /// Its path below the root.
    pub path: PathBuf,
    /// Whether it is filled piece by piece.
    pub large: bool,
    state: Mutex<State>,
}

struct State {
    /// The version of `made`'s first.
    oldest: u64,
    /// The last versions, the newest last.
    made: VecDeque<Made>,
    /// Since when the cache holds the current version completely, as far as the harness knows.
    complete: Option<Instant>,
    /// Changed with everything that may end that.
    generation: u64,
}

/// Versions that are remembered; a reader sees none of before that.
const REMEMBERED: usize = 64;

/// What was known when a reader began.
#[derive(Clone, Copy)]
pub struct Look {
    /// The oldest version that may be seen.
    oldest: u64,
    generation: u64,
    at: Instant,
}

/// What a reader may have seen.
pub enum Allowed {
    /// One of these versions, whole.
    OneOf(std::ops::RangeInclusive<u64>),
    /// The source itself held a mixture meanwhile.
    Anything,
}

/// The kernel counts a TTL in ticks of its clock, from the moment when the answer came in; on a machine that is short of
/// processor time that is some time after it was given.
const TICKS: Duration = Duration::from_millis(50);

impl Entry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current version.
    pub fn version(&self) -> u64 {
        let state = self.lock();
        state.oldest + state.made.len() as u64 - 1
    }

    /// The length of a version; `None` if it is not remembered.
    pub fn size_of(&self, version: u64) -> Option<u64> {
        let state = self.lock();
        let index = version.checked_sub(state.oldest)?;
        state.made.get(index as usize).map(|made| made.size)
    }

    /// Before an open by a mount with this TTL.
    pub fn look(&self, ttl: Duration) -> Look {
        let state = self.lock();
        let at = Instant::now();
        // With a TTL of zero no time is counted.
        let slack = if ttl.is_zero() { Duration::ZERO } else { TICKS };
        let since = at.checked_sub(ttl + slack);
        let was_done = |made: &Made| made.done.is_some_and(|t| since.is_none_or(|since| t <= since));
        let newest = |wanted: &dyn Fn(&Made) -> bool| state.made.iter().rposition(wanted).unwrap_or(0) as u64;
        Look { oldest: state.oldest + newest(&was_done), generation: state.generation, at }
    }

    /// After the last byte was read.
    pub fn allowed(&self, look: Look) -> Allowed {
        let state = self.lock();
        let newest = state.oldest + state.made.len() as u64 - 1;
        // What a fill saw of the source up to a TTL ago still holds, so a mixture of that time may be seen as well.
        let begun_since = (look.oldest + 1).max(state.oldest)..=newest;
        let in_place = |version: u64| state.made[(version - state.oldest) as usize].how == How::InPlace;
        match look.oldest + 1 < state.oldest || begun_since.into_iter().any(in_place) {
            true => Allowed::Anything,
            false => Allowed::OneOf(look.oldest..=newest),
        }
    }

    /// Judges a whole file as it was read, opened after `look`.
    pub fn judge(&self, look: Look, bytes: &[u8]) -> Result<(), String> {
        let Allowed::OneOf(versions) = self.allowed(look) else { return Ok(()) };
        let seen = content::version_of(bytes).ok_or_else(|| {
            format!("{}: {} bytes that begin with no word of ours", self.shown(), bytes.len())
        })?;
        if seen.file != self.file || seen.offset != 0 || !versions.contains(&seen.version) {
            return Err(format!(
                "{}: begins with {seen:?}, allowed are {versions:?}; {}",
                self.shown(),
                self.story(look)
            ));
        }
        if self.size_of(seen.version) != Some(bytes.len() as u64) {
            let right = self.size_of(seen.version);
            return Err(format!("{}: {} bytes of {seen:?}, not {right:?}", self.shown(), bytes.len()));
        }
        content::compare(bytes, 0, self.file, seen.version).map_err(|e| format!("{}: {e}", self.shown()))
    }

    /// Judges pieces of one open file, each with its offset, opened after `look`: all of one version.
    pub fn judge_pieces(&self, look: Look, pieces: &[(u64, Vec<u8>)]) -> Result<(), String> {
        let mut of_all = None;
        pieces.iter().try_for_each(|(offset, bytes)| self.judge_piece(look, *offset, bytes, &mut of_all))
    }

    /// The same for one piece; `of_all` is the version that the pieces before it were of.
    pub fn judge_piece(
        &self,
        look: Look,
        offset: u64,
        bytes: &[u8],
        of_all: &mut Option<u64>,
    ) -> Result<(), String> {
        let Allowed::OneOf(versions) = self.allowed(look) else { return Ok(()) };
        if bytes.len() < 8 {
            return Ok(());
        }
        let seen = content::version_of(bytes)
            .ok_or_else(|| format!("{}: no word of ours at {offset}; {}", self.shown(), self.story(look)))?;
        let version = *of_all.get_or_insert(seen.version);
        if seen.file != self.file || !versions.contains(&version) || seen.version != version {
            return Err(format!(
                "{}: {seen:?} at {offset}, allowed are {versions:?}, the first piece is of {version}; {}",
                self.shown(),
                self.story(look)
            ));
        }
        content::compare(bytes, offset, self.file, version).map_err(|e| format!("{}: {e}", self.shown()))
    }

    /// Whether the file may have changed since.
    pub fn changed_since(&self, look: Look) -> bool {
        let state = self.lock();
        look.oldest < state.oldest + state.made.len() as u64 - 1
    }

    /// How the newest version came to be, for somebody who wonders at a stale read.
    fn story(&self, look: Look) -> String {
        let state = self.lock();
        let before = |t: Instant| look.at.saturating_duration_since(t);
        let made = state.made.back().map(|made| (made.how, made.size, made.done.map(before)));
        format!(
            "opened {:?} ago, the newest is (how, size, complete before the open) {made:?}",
            look.at.elapsed()
        )
    }

    fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// The cache holds it completely, if nothing has happened since `look`.
    pub fn note_complete(&self, look: Look) {
        let mut state = self.lock();
        if state.generation == look.generation && state.complete.is_none() {
            state.complete = Some(Instant::now());
        }
    }

    /// The cache was found to hold it, or not, while nothing else happens.
    pub fn set_complete(&self, since: Option<Instant>) {
        let mut state = self.lock();
        state.generation += 1;
        state.complete = since;
    }

    /// Since when it is complete in the cache.
    pub fn complete_since(&self) -> Option<Instant> {
        self.lock().complete
    }
}

/// A source directory.
pub struct Tree {
    root: PathBuf,
    /// Its files.
    pub files: Vec<Entry>,
    /// Replaced files, held so that nobody is given their inode numbers.
    held: Option<Mutex<Vec<File>>>,
}

/// How large the files of a tree are.
pub struct Sizes {
    /// Files that are filled whole.
    pub small: u64,
    /// Files that are filled in pieces.
    pub large: u64,
    /// Most bytes of nine small files in ten; the tenth may be ten times as long.
    pub small_bytes: u64,
    /// Least and most bytes of a large one.
    pub large_bytes: (u64, u64),
}

/// Directories that the small files are in.
pub const DIRS: u64 = 16;

impl Tree {
    /// Makes a tree in an empty directory. `keep_numbers`: an inode number is not used again while the tree changes. The
    /// slow source names files by their inode numbers, and one that is asked for a file just when its number goes to
    /// another gives that other one: its fault, which must not be taken for warmfs's.
    pub fn make(root: &Path, sizes: &Sizes, keep_numbers: bool, dice: &mut Dice) -> Self {
        for dir in 0..DIRS {
            std::fs::create_dir_all(root.join(format!("d{dir}"))).unwrap();
        }
        std::fs::create_dir_all(root.join("large")).unwrap();
        let mut files = Vec::new();
        for file in 0..sizes.small + sizes.large {
            let large = file >= sizes.small;
            let path = match large {
                true => format!("large/l{file}").into(),
                false => PathBuf::from(format!("d{}/f{file}", file % DIRS)),
            };
            let size = new_size(sizes, large, dice);
            std::fs::write(root.join(&path), content::content(file, 0, size)).unwrap();
            let made = Made { size, how: How::Rename, done: Some(Instant::now()) };
            let state = State { oldest: 0, made: [made].into(), complete: None, generation: 0 };
            files.push(Entry { file, path, large, state: Mutex::new(state) });
        }
        Self { root: root.into(), files, held: keep_numbers.then(Mutex::default) }
    }

    /// Lets go of replaced files, when nobody asks for them any more.
    pub fn settle(&self) {
        if let Some(held) = &self.held {
            held.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Any file.
    pub fn any(&self, dice: &mut Dice) -> &Entry {
        &self.files[dice.below(self.files.len() as u64) as usize]
    }

    /// Gives the file a new content. One thread changes files.
    pub fn change(&self, entry: &Entry, sizes: &Sizes, dice: &mut Dice) {
        let version = entry.version() + 1;
        let old = entry.size_of(version - 1).unwrap_or(0);
        let (how, size) = match dice.below(6) {
            0 | 1 => (How::Rename, new_size(sizes, entry.large, dice)),
            2 => (How::Rename, old),
            3 => (How::InPlace, old),
            4 => (How::InPlace, old + 1 + dice.below(old / 4 + 100)),
            _ => (How::InPlace, old - dice.below(old / 2)),
        };
        // Never so short that no word is in it, however often it has shrunk; never longer than a place can say.
        let size = size.clamp(16, 2 * sizes.large_bytes.1);
        begin(entry, Made { size, how, done: None });
        self.write(entry, how, old, &content::content(entry.file, version, size)).unwrap();
        let mut state = entry.lock();
        state.generation += 1;
        if let Some(made) = state.made.back_mut() {
            made.done = Some(Instant::now());
        }
    }

    fn write(&self, entry: &Entry, how: How, old: u64, bytes: &[u8]) -> std::io::Result<()> {
        let path = self.root.join(&entry.path);
        match how {
            How::Rename => {
                if let Some(held) = &self.held {
                    held.lock().unwrap_or_else(PoisonError::into_inner).push(File::open(&path)?);
                }
                let new = self.root.join(".new");
                std::fs::write(&new, bytes)?;
                std::fs::rename(new, path)
            }
            How::InPlace => {
                let file = File::options().write(true).open(path)?;
                let written = file.write_at(bytes, 0)?;
                assert_eq!(
                    written,
                    bytes.len(),
                    "one call, or the source is a mixture for longer than we say"
                );
                if (bytes.len() as u64) < old {
                    file.set_len(bytes.len() as u64)?;
                }
                Ok(())
            }
        }
    }
}

/// A change begins: what the cache holds is not the current version any more.
fn begin(entry: &Entry, made: Made) {
    let mut state = entry.lock();
    state.generation += 1;
    state.complete = None;
    state.made.push_back(made);
    if state.made.len() > REMEMBERED {
        state.made.pop_front();
        state.oldest += 1;
    }
}

fn new_size(sizes: &Sizes, large: bool, dice: &mut Dice) -> u64 {
    let (least, most) = match large {
        true => sizes.large_bytes,
        false if dice.one_in(10) => (16, sizes.small_bytes * 10),
        false => (16, sizes.small_bytes),
    };
    least + dice.below(most - least)
}
