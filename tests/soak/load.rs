//! A mixed load on a mount until the daemon dies: files read whole, pieces of large ones, listings, evictions, fills, and a
//! source that changes. What is read is judged at once; what fails is judged by what may fail.

use super::stage::{Stage, rel};
use super::tree::{Dice, Entry, Sizes, Tree};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use warmfs::control::{Request, WarmRequest};

/// Threads that read.
const READERS: u64 = 4;
/// Most failures that are kept word by word.
const SAID_MAX: usize = 20;

/// One load.
pub struct Load<'a> {
    stage: &'a Stage,
    tree: &'a Tree,
    sizes: &'a Sizes,
    mnt: PathBuf,
    ttl: Duration,
    /// Files that are not in the cache, as far as is known.
    cold: Mutex<Vec<usize>>,
    /// The end of the daemon has begun: from now on anything may fail.
    dying: AtomicBool,
    /// Reads of cold large files that the daemon's end cut off.
    pub cut_off: AtomicU64,
    /// Files and pieces of files that were judged.
    pub judged: AtomicU64,
    /// What was wrong.
    pub wrong: Mutex<Vec<String>>,
}

impl<'a> Load<'a> {
    /// Nothing is running yet.
    pub fn new(stage: &'a Stage, tree: &'a Tree, sizes: &'a Sizes, ttl: Duration) -> Self {
        Self {
            stage,
            tree,
            sizes,
            mnt: stage.mnt(),
            ttl,
            cold: Mutex::default(),
            dying: AtomicBool::new(false),
            cut_off: AtomicU64::new(0),
            judged: AtomicU64::new(0),
            wrong: Mutex::default(),
        }
    }

    /// Runs it for a while, then calls `end`, which ends the daemon.
    pub fn run<T>(&self, seed: u64, time: Duration, end: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            for n in 0..READERS {
                scope.spawn(move || self.read(&mut Dice::new(seed, n + 1)));
            }
            scope.spawn(|| self.change(&mut Dice::new(seed, 100)));
            scope.spawn(|| self.operate(&mut Dice::new(seed, 101)));
            std::thread::sleep(time);
            self.dying.store(true, Ordering::SeqCst);
            end()
        })
    }

    fn is_dying(&self) -> bool {
        self.dying.load(Ordering::SeqCst)
    }

    /// Drops what is cached below some directories and files, so that there is something to fill.
    pub fn evict(&self, paths: &[PathBuf]) -> Result<(), String> {
        let hit = |entry: &&Entry| paths.iter().any(|path| entry.path.starts_with(path));
        let forget = || self.tree.files.iter().filter(hit).for_each(|entry| entry.set_complete(None));
        // Before and after: what was read meanwhile may or may not have stayed.
        forget();
        let request = Request::Evict { paths: paths.iter().map(|path| rel(path)).collect() };
        let result = self.stage.ask(&request).map(drop);
        forget();
        let mut cold = self.cold.lock().unwrap_or_else(PoisonError::into_inner);
        cold.extend(self.tree.files.iter().filter(hit).map(|entry| entry.file as usize));
        result
    }

    /// A cold file, if one is known, else any; and whether it is cold.
    fn pick(&self, dice: &mut Dice) -> (&Entry, bool) {
        let mut cold = self.cold.lock().unwrap_or_else(PoisonError::into_inner);
        if cold.is_empty() || dice.one_in(6) {
            return (self.tree.any(dice), false);
        }
        let at = dice.below(cold.len() as u64) as usize;
        (&self.tree.files[cold.swap_remove(at)], true)
    }

    fn read(&self, dice: &mut Dice) {
        while !self.is_dying() {
            let (entry, cold) = self.pick(dice);
            let look = entry.look(self.ttl);
            let path = self.mnt.join(&entry.path);
            let result = match dice.below(16) {
                0 => path.metadata().map(|_| Ok(())),
                1 => std::fs::read_dir(path.parent().unwrap_or(&path))
                    .and_then(|dir| dir.collect::<std::io::Result<Vec<_>>>())
                    .map(|_| Ok(())),
                _ if entry.large && !dice.one_in(4) => {
                    pieces(&path, dice).map(|pieces| entry.judge_pieces(look, &pieces))
                }
                _ => std::fs::read(&path).map(|bytes| entry.judge(look, &bytes)),
            };
            match result {
                Ok(verdict) => {
                    self.judged.fetch_add(1, Ordering::Relaxed);
                    // A copy that was read too soon after a change is not kept, and is not warm.
                    if verdict.is_ok() && !entry.large && is_warm(&path) {
                        entry.note_complete(look);
                    }
                    verdict.unwrap_or_else(|wrong| self.say(wrong));
                }
                // It began before the end, and the end is what ended it.
                Err(_) if self.is_dying() => {
                    self.cut_off.fetch_add(u64::from(cold && entry.large), Ordering::Relaxed);
                    return;
                }
                // The version that was opened was only partly cached, and is gone.
                Err(e) if e.raw_os_error() == Some(libc::ESTALE) && entry.changed_since(look) => {}
                Err(e) => self.say(format!("{}: {e}", entry.path.display())),
            }
        }
    }

    fn change(&self, dice: &mut Dice) {
        while !self.is_dying() {
            std::thread::sleep(Duration::from_millis(1 + dice.below(12)));
            let entry = self.tree.any(dice);
            self.tree.change(entry, self.sizes, dice);
            self.cold.lock().unwrap_or_else(PoisonError::into_inner).push(entry.file as usize);
        }
    }

    fn operate(&self, dice: &mut Dice) {
        while !self.is_dying() {
            std::thread::sleep(Duration::from_millis(5 + dice.below(60)));
            let path = match dice.below(3) {
                0 => self.tree.any(dice).path.clone(),
                1 => PathBuf::from("large"),
                _ => PathBuf::from(format!("d{}", dice.below(super::tree::DIRS))),
            };
            let result = match dice.one_in(3) {
                true => self.stage.ask(&Request::Warm(WarmRequest::of(vec![rel(&path)]))).map(drop),
                false => self.evict(&[path]),
            };
            if let Err(e) = result
                && !self.is_dying()
            {
                self.say(e);
            }
        }
    }

    fn say(&self, wrong: String) {
        let mut said = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < SAID_MAX {
            said.push(wrong);
        }
    }
}

/// Some pieces of one open file.
fn pieces(path: &Path, dice: &mut Dice) -> std::io::Result<Vec<(u64, Vec<u8>)>> {
    const PIECE: u64 = 64 << 10;
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let piece = |_| {
        let offset = dice.below(len.div_ceil(PIECE)) * PIECE;
        let mut bytes = vec![0; PIECE as usize];
        let got = file.read_at(&mut bytes, offset)?;
        bytes.truncate(got);
        Ok((offset, bytes))
    };
    (0..6).map(piece).collect()
}

/// Whether the cache says that it holds the file.
fn is_warm(path: &Path) -> bool {
    let mut value = [0; 16];
    rustix::fs::lgetxattr(path, "user.warmfs.state", &mut value).is_ok_and(|len| &value[..len] == b"warm")
}
