//! Fetches what will be asked for, behind those who ask now.
//!
//! | file | its part |
//! |---|---|
//! | this one | what is counted, who is out, how a file is fetched that nobody has asked for |
//! | `scout` | goes through a data set ahead of its readers |
//! | `guess` | fetches what the detectors expect |
//! | `hints` | fetches in the order that a job has told of |
//! | `large` | a large file, step by step |
//! | `seen` | what the source said of files that were fetched |
//! | `way` | who is at the source, and who gives way to whom |
//!
//! What it promises: nothing is evicted for what nobody has asked for, so that it takes free room on the SSD or its share
//! of the RAM window (only a file that an order tells of takes the place of one that it tells to be used later); every
//! byte is counted as used or as wasted in the end; and while readers wait for the source only a few threads are in their
//! way. When to fetch what is decided in `policy` ([`crate::policy::rings`], [`crate::policy::detect`],
//! [`crate::policy::orders`]).

mod guess;
pub mod hints;
mod large;
mod scout;
mod seen;
mod way;

use self::seen::Seen;
use self::way::Way;
use super::pool::Pool;
use super::{Cache, FillError, Served, Want};
use crate::policy::detect::{DETECTORS, Detector};
use crate::policy::epochs::FileState;
use crate::stats::Stats;
use crate::store::Tally;
use crate::types::sync::Mutex;
use crate::types::sync::atomic::AtomicU64;
use crate::types::{Attr, FileId, FileKind, FileVersion, GroupId, Result};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Data sets that are gone through at the same time: a training set and its validation set.
const SCOUTS_MAX: usize = 2;

/// Threads that fetch what detectors expect.
const GUESSERS_MAX: usize = 4;
/// Orders that are followed at the same time: all there may be.
const ORDERS_MAX: usize = crate::policy::orders::JOBS_MAX;

/// How soon whoever waits for others looks again. Short against a request to a slow source.
const LOOK: Duration = Duration::from_millis(2);
/// The longest time between two looks while nothing happens.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// Time between two looks: longer and longer while they see the same.
struct Looks<T> {
    pause: Duration,
    seen: Option<T>,
}

impl<T: PartialEq> Looks<T> {
    fn new() -> Self {
        Self { pause: LOOK, seen: None }
    }

    /// Waits for the next look, after one that saw this.
    fn wait(&mut self, seen: T) {
        let seen = Some(seen);
        self.pause = if seen == self.seen { (self.pause * 2).min(LOOK_MAX) } else { LOOK };
        self.seen = seen;
        std::thread::sleep(self.pause);
    }
}

/// The part of a [`Cache`] that fetches ahead.
pub struct Prefetch {
    stats: Arc<Stats>,
    cache: OnceLock<Weak<Cache>>,
    scouts: Pool,
    guesses: Pool,
    orders: Pool,
    hints: hints::Hints,
    tallies: Mutex<HashMap<GroupId, Arc<Tally>>>,
    /// What was fetched for each detector.
    detectors: [Arc<Tally>; DETECTORS],
    /// How often a detector was asked.
    turns: AtomicU64,
    way: Way,
    seen: Seen,
}

/// What became of a file that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetched {
    /// It is here now, or nothing is to be done about it.
    Done,
    /// There is no room for it now.
    NoRoom,
}

/// What becomes of a large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Large {
    /// It is fetched whole.
    Fetched,
    /// It is fetched as it is read, and whole when it is read in order: who has opened many such files may have looked at
    /// a few bytes of each.
    Left,
}

impl Prefetch {
    /// Fetches nothing before [`Cache::start_prefetch`].
    pub(super) fn new(stats: Arc<Stats>) -> Self {
        Self {
            detectors: std::array::from_fn(|_| Tally::new(stats.clone())),
            turns: AtomicU64::new(0),
            guesses: Pool::new("warmfs-guess", GUESSERS_MAX),
            stats,
            cache: OnceLock::new(),
            scouts: Pool::new("warmfs-scout", SCOUTS_MAX),
            orders: Pool::new("warmfs-order", ORDERS_MAX),
            hints: hints::Hints::default(),
            tallies: Mutex::default(),
            way: Way::default(),
            seen: Seen::default(),
        }
    }

    /// A data set is to be fetched ahead of its readers.
    pub(super) fn send_scout(&self, group: GroupId) {
        let Some(cache) = self.cache.get().and_then(Weak::upgrade) else { return };
        self.scouts.submit(Box::new(move || cache.scout(group)));
    }

    /// A reader waits for the source as long as the answer lives.
    pub(super) fn reader(&self) -> impl Drop + '_ {
        self.way.reader()
    }

    fn is_stopped(&self) -> bool {
        self.way.is_stopped()
    }

    fn tally(&self, group: GroupId) -> Arc<Tally> {
        self.tallies.lock().entry(group).or_insert_with(|| Tally::new(self.stats.clone())).clone()
    }

    fn detector(&self, detector: Detector) -> Arc<Tally> {
        self.detectors[detector as usize].clone()
    }
}

impl Cache {
    /// Fetches ahead from now on.
    pub fn start_prefetch(self: &Arc<Self>) {
        let _ = self.prefetch.cache.set(Arc::downgrade(self));
    }

    /// Fetches nothing ahead any more. What is being fetched is not waited for.
    pub fn stop_prefetch(&self) {
        self.prefetch.way.stop();
        self.prefetch.scouts.stop();
        self.prefetch.guesses.stop();
        self.prefetch.orders.stop();
    }

    /// Fetches a file that nobody has asked for, if it is a regular file that is not here and was not read in this epoch.
    fn fetch_ahead(&self, path: &Path, group: GroupId, tally: &Arc<Tally>) -> Fetched {
        self.fetch_if_absent(path, tally, Large::Left, |id| {
            self.reading(|desk| desk.epochs().state(group, id) != FileState::Read)
        })
    }

    /// Fetches a file that nobody has asked for, if it is a regular file that is not here and is wanted.
    fn fetch_if_absent(
        &self,
        path: &Path,
        tally: &Arc<Tally>,
        large: Large,
        is_wanted: impl FnOnce(FileId) -> bool,
    ) -> Fetched {
        let fetching = self.prefetch.way.fetch();
        // A file that vanished, or that the source refuses, is for its readers to hear of.
        let Ok(attr) = self.look_ahead(path) else { return Fetched::Done };
        if attr.kind != FileKind::Regular || attr.size == 0 {
            return Fetched::Done;
        }
        let id = self.source.file_id(path, &attr);
        let version = self.source.version(&attr);
        if large == Large::Left && !self.is_small(attr.size) {
            return Fetched::Done;
        }
        if !is_wanted(id) || self.get(id, &version).is_some() {
            return Fetched::Done;
        }
        let want = want_ahead(id, version, path, tally);
        if !self.is_small(attr.size) {
            drop(fetching);
            return self.fetch_large(&want, tally);
        }
        self.fetch_small(&want)
    }

    /// Asks the source about a file that will be opened soon.
    fn look_ahead(&self, path: &Path) -> Result<Attr> {
        let asked = Instant::now();
        let attr = self.source.stat(path)?;
        self.prefetch.seen.note(path, attr, asked);
        Ok(attr)
    }

    /// What the source said of this file when it was fetched ahead, and when it was asked; to be used once.
    pub fn seen_ahead(&self, path: &Path) -> Option<(Attr, Instant)> {
        self.prefetch.seen.take(path)
    }

    /// Nothing that was seen ahead is to be believed any more.
    pub fn forget_seen_ahead(&self) {
        self.prefetch.seen.forget();
    }

    fn fetch_small(&self, want: &Want) -> Fetched {
        let start = Instant::now();
        match self.fill_blocking(want) {
            Ok(Served::Source(_)) => Fetched::NoRoom,
            Ok(Served::File(_)) => {
                self.prefetch.way.took(start.elapsed());
                Fetched::Done
            }
            Err(FillError::Changed(_) | FillError::Failed(_)) => Fetched::Done,
        }
    }
}

fn want_ahead(id: FileId, version: FileVersion, path: &Path, tally: &Arc<Tally>) -> Want {
    let (path, ahead) = (path.to_path_buf(), Some(tally.clone()));
    Want { id, version, path, pin: None, ahead, warm_job: None }
}
