//! Files fetched in the order that a job has told of.
//!
//! The paths of each order wait in a [`Spool`]. One thread an order goes through them and several fetch, behind whoever
//! asks now, each file into room that is free on the SSD, else into the share of the RAM window for what nobody has asked
//! for yet, else, while little lies here unread, into the place of a cached file that is used later. What was read
//! meanwhile is left out. What the order says is kept, and judged, in [`crate::policy::orders`].

use super::{Cache, Fetched, LOOK_MAX, Looks, want_ahead};
use crate::policy::Subject;
use crate::policy::orders::{Name, OrderFigures, Turn};
use crate::store::spool::{self, Spool, SpoolPart};
use crate::store::{Tally, disk_bytes};
use crate::types::sync::{Condvar, Mutex};
use crate::types::{Error, ErrorKind, FileKind, GroupId, Result, escape_bytes};
use std::collections::{BTreeSet, HashMap};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Files that are fetched at the same time for one order, at most: as many as [`crate::policy::lanes`] allows.
const FETCHERS: usize = 16;

/// A cached file goes for one that is fetched ahead only while fewer bytes lie here unread: enough for a second of
/// reading, and few enough to spare the SSD, which need not be written where the RAM window does.
const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// In a small cache while they are less than one part in so many: the rest is for what comes again.
const AHEAD_SHARE: u64 = 4;

/// Unknown names that are kept to be shown.
const UNKNOWN_SHOWN_MAX: usize = 5;

/// Cached files that the policy is told of at a time.
const TOLD_AT_A_TIME: usize = 1024;

/// What is known of one job's order.
#[derive(Clone, Debug)]
pub struct HintReport {
    /// The job.
    pub job: String,
    /// How it goes.
    pub order: OrderFigures,
    /// Lines that name no regular file of the source.
    pub unknown: u64,
    /// The first few of them, as text.
    pub unknown_first: Vec<String>,
}

/// The orders of all jobs.
#[derive(Default)]
pub(super) struct Hints {
    jobs: Mutex<HashMap<String, Arc<Job>>>,
    /// Held by whoever adds lines: those of two calls do not mix.
    adding: Mutex<bool>,
}

/// One order that is fetched.
struct Job {
    name: String,
    serial: u64,
    tally: Arc<Tally>,
    state: Mutex<State>,
    line: Line,
}

#[derive(Default)]
struct State {
    spool: Spool,
    /// Position of the next path of the spool.
    position: u32,
    is_out: bool,
    unknown: u64,
    unknown_first: Vec<String>,
}

/// A file that an order tells of.
struct Told<'a> {
    position: u32,
    path: &'a Path,
    file: Subject,
    /// As [`Cache::is_small`].
    is_small: bool,
}

/// Who waits for room: the file that is used first has it first.
#[derive(Default)]
struct Line {
    positions: Mutex<BTreeSet<u32>>,
    moved: Condvar,
}

/// A place in the line, at its head; the next one comes to the head when this is dropped.
struct Head<'a> {
    line: &'a Line,
    position: u32,
}

impl Line {
    fn wait(&self, position: u32) -> Head<'_> {
        let mut positions = self.positions.lock();
        positions.insert(position);
        while positions.first() != Some(&position) {
            self.moved.wait(&mut positions);
        }
        Head { line: self, position }
    }
}

impl Drop for Head<'_> {
    fn drop(&mut self) {
        self.line.positions.lock().remove(&self.position);
        self.line.moved.notify_all();
    }
}

/// Ends the adding of lines.
struct Adding<'a>(&'a Mutex<bool>);

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        *self.0.lock() = false;
    }
}

impl Cache {
    /// Adds paths below the source's root to the order of `job`; they will be opened in this order after those that it told
    /// of before.
    ///
    /// # Errors
    /// Invalid where the bounds of [`crate::policy::orders`] are reached, Busy while another call adds, and what the SSD
    /// says.
    pub fn hint(self: &Arc<Self>, job: &str, paths: &[PathBuf]) -> Result<()> {
        let hints = &self.prefetch.hints;
        if std::mem::replace(&mut *hints.adding.lock(), true) {
            let text = "another call adds to an order at this moment: try again";
            return Err(Error::new(ErrorKind::Busy, "", text));
        }
        let _adding = Adding(&hints.adding);
        let fetches = self.prefetch.cache.get().is_some();
        // Without prefetch the order is for the eviction alone, and paths are not needed.
        let part = if fetches { Some(self.write_paths(paths)?) } else { None };
        let names: Vec<Name> = paths.iter().map(|path| Name::of(path.as_os_str().as_bytes())).collect();
        let is_first = self.reading(|desk| desk.orders().is_empty());
        let appended = self.policy.lock().orders_mut().append(job, &names);
        let (serial, first) = appended.map_err(|e| Error::new(ErrorKind::Invalid, "", e.to_string()))?;
        if is_first {
            self.tell_cached();
        }
        if let Some(part) = part {
            self.follow_later(job, serial, first, part);
        }
        Ok(())
    }

    /// Forgets the order of `job`.
    pub fn clear_hint(&self, job: &str) {
        self.policy.lock().orders_mut().clear(job);
        let old = self.prefetch.hints.jobs.lock().remove(job);
        drop(old);
    }

    /// What is known of all orders.
    pub fn hints(&self) -> Vec<HintReport> {
        let figures = self.reading(|desk| desk.orders().figures());
        let jobs = self.prefetch.hints.jobs.lock();
        let report = |(job, order): (String, OrderFigures)| {
            let unknown = jobs.get(&job).map(|job| {
                let state = job.state.lock();
                (state.unknown, state.unknown_first.clone())
            });
            let (unknown, unknown_first) = unknown.unwrap_or_default();
            HintReport { job, order, unknown, unknown_first }
        };
        figures.into_iter().map(report).collect()
    }

    fn write_paths(&self, paths: &[PathBuf]) -> Result<SpoolPart> {
        let bytes = spool::encode(paths.iter().map(|path| path.as_os_str().as_bytes()));
        let no_room = || Error::new(ErrorKind::NoSpace, "write", "an order of access beside the cache");
        let bytes_on_disk = disk_bytes(bytes.len() as u64);
        let room = self.make_room(None, bytes_on_disk, 1, None).ok_or_else(no_room)?;
        Spool::write(&self.dir, &bytes, room)
    }

    /// Tells the policy what is cached already.
    fn tell_cached(&self) {
        let files = self.files.all();
        for some in files.chunks(TOLD_AT_A_TIME) {
            let mut policy = self.policy.lock();
            some.iter().for_each(|file| policy.cached_at(file.id(), file.path()));
        }
    }

    fn follow_later(self: &Arc<Self>, name: &str, serial: u64, first: u32, part: SpoolPart) {
        let orders = self.reading(|desk| desk.orders().figures());
        let job = {
            let mut jobs = self.prefetch.hints.jobs.lock();
            // Those of orders that are long forgotten.
            jobs.retain(|name, _| orders.iter().any(|(known, _)| known == name));
            let known = jobs.get(name).filter(|job| job.serial == serial).cloned();
            known.unwrap_or_else(|| {
                let ahead_bytes_max = AHEAD_BYTES_MAX.min(self.usage().bytes_max / AHEAD_SHARE);
                let tally = Tally::in_place_of_others(self.stats.clone(), ahead_bytes_max);
                let state = Mutex::new(State { position: first, ..State::default() });
                let job = Arc::new(Job { name: name.into(), serial, tally, state, line: Line::default() });
                jobs.insert(name.into(), job.clone());
                job
            })
        };
        let was_out = {
            let mut state = job.state.lock();
            state.spool.add(part);
            std::mem::replace(&mut state.is_out, true)
        };
        if !was_out {
            let cache = self.clone();
            self.prefetch.orders.submit(Box::new(move || cache.follow(&job)));
        }
    }

    /// Fetches what waits in the spool, to its end or to that of the order.
    fn follow(&self, job: &Job) {
        let (listed, files) = sync_channel(FETCHERS);
        let files = Mutex::new(files);
        std::thread::scope(|scope| {
            for _ in 0..FETCHERS {
                scope.spawn(|| self.fetch_listed(job, &files));
            }
            self.list(job, listed);
        });
    }

    fn list(&self, job: &Job, listed: SyncSender<(u32, PathBuf)>) {
        while let Some((position, path)) = self.next_path(job) {
            match self.wait_for_turn(job, position) {
                Turn::Go if listed.send((position, path)).is_ok() => {}
                Turn::Skip => {}
                _ => {
                    job.state.lock().is_out = false;
                    return;
                }
            }
        }
    }

    /// The next path of the spool and its position. `None`: there is none, and this journey is over.
    fn next_path(&self, job: &Job) -> Option<(u32, PathBuf)> {
        loop {
            let chunk = {
                let mut state = job.state.lock();
                if let Some(path) = state.spool.take_next() {
                    state.position += 1;
                    return Some((state.position - 1, PathBuf::from(std::ffi::OsStr::from_bytes(&path))));
                }
                let chunk = state.spool.want();
                state.is_out = chunk.is_some();
                chunk?
            };
            match chunk.read(&self.dir) {
                Ok(bytes) => job.state.lock().spool.give(&bytes),
                Err(e) => {
                    self.ssd_failed(&e);
                    return None;
                }
            }
        }
    }

    fn turn_of(&self, job: &Job, position: u32) -> Turn {
        match self.prefetch.is_stopped() || self.dir.is_closed() {
            true => Turn::End,
            false => self.reading(|desk| desk.orders().turn(&job.name, job.serial, position)),
        }
    }

    /// The turn, once it is not to rest.
    fn wait_for_turn(&self, job: &Job, position: u32) -> Turn {
        loop {
            match self.turn_of(job, position) {
                Turn::Rest => std::thread::sleep(LOOK_MAX),
                turn => return turn,
            }
        }
    }

    fn fetch_listed(&self, job: &Job, files: &Mutex<Receiver<(u32, PathBuf)>>) {
        loop {
            // One waits for the next, the others for the lock.
            let next = files.lock().recv();
            let Ok((position, path)) = next else { return };
            if self.fetch_told(job, position, &path).is_none() {
                let mut state = job.state.lock();
                state.unknown += 1;
                if state.unknown_first.len() < UNKNOWN_SHOWN_MAX {
                    state.unknown_first.push(escape_bytes(path.as_os_str().as_bytes()));
                }
            }
        }
    }

    /// Fetches one file when there is room for it and it was not read meanwhile. `None`: it is no regular file.
    fn fetch_told(&self, job: &Job, position: u32, path: &Path) -> Option<()> {
        // Behind nobody: it is one short question, and those of later files would stand in the way of an earlier one.
        let attr = match self.look_ahead(path) {
            Ok(attr) if attr.kind == FileKind::Regular => attr,
            Err(e) if e.kind() != ErrorKind::NotFound => return Some(()),
            _ => return None,
        };
        if attr.size == 0 {
            return Some(());
        }
        let (id, version) = (self.source.file_id(path, &attr), self.source.version(&attr));
        let file = Subject { id, group: GroupId::default(), bytes: disk_bytes(attr.size) };
        let told = Told { position, path, file, is_small: self.is_small(attr.size) };
        while self.turn_of(job, position) == Turn::Go && self.get(id, &version).is_none() {
            let head = job.line.wait(position);
            if !self.wait_for_room(job, &told) {
                continue;
            }
            let want = want_ahead(id, version, path, &job.tally);
            let fetched = if told.is_small {
                drop(head);
                let _fetching = self.prefetch.way.fetch();
                self.fetch_small(&want)
            } else {
                // One at a time: the first is needed first, and keeps the source busy by itself.
                self.fetch_large(&want, &job.tally)
            };
            // Or another was quicker to take the room.
            if fetched == Fetched::Done {
                break;
            }
        }
        Some(())
    }

    /// `false`: it need not be fetched any more.
    fn wait_for_room(&self, job: &Job, told: &Told<'_>) -> bool {
        let mut looks = Looks::new();
        while self.turn_of(job, told.position) == Turn::Go {
            if self.has_room_ahead(told, &job.tally) {
                return true;
            }
            looks.wait((job.tally.unused_bytes(), self.reading(|desk| desk.orders().uses())));
        }
        false
    }

    /// Whether a file that nobody has asked for would find room now.
    fn has_room_ahead(&self, told: &Told<'_>, tally: &Tally) -> bool {
        let path = told.path.as_os_str().as_bytes();
        self.room_to_spare(told.file.bytes, 1).is_some()
            || (told.is_small && self.ram.reserve_ahead(told.file.bytes).is_some())
            || (tally.may_take_places() && self.policy.lock().victim_ahead(path, &mut |_| false).is_some())
    }
}
