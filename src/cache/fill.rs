//! A whole file: into the SSD; if there is no room, into RAM; if there is none either, straight from the source.
//!
//! The source is looked at before and after: what was filled is one version, the one that was asked for, or it is
//! thrown away.

use super::Cache;
use super::engine::{Copy, CopyError};
use super::flight::Waiter;
use super::read::{Opened, Serving};
use super::space::Room;
use crate::backing::Pin;
use crate::policy::Subject;
use crate::store::{CacheFile, Chunk, FileUse, Place, RamWindow, Reservation, Tally, disk_bytes};
use crate::types::{Attr, ChunkRange, Error, FileId, FileVersion, Result, chunk_count};
use std::ffi::OsStr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which content of which file is wanted.
#[derive(Clone, Debug)]
pub struct Want {
    /// Its key.
    pub id: FileId,
    /// Its version, as the source was last seen.
    pub version: FileVersion,
    /// Its path below the source's root.
    pub path: PathBuf,
    /// The file itself, if it is held since it was looked up.
    pub pin: Option<Pin>,
    /// Nobody has asked for it: it takes room that is free, and its bytes are counted here.
    pub ahead: Option<Arc<Tally>>,
    /// The warm-up that wants it: kept on the SSD or not at all.
    pub warm_job: Option<NonZeroU32>,
}

/// Where the file can be read now.
#[derive(Clone)]
pub enum Served {
    /// In the cache, complete.
    File(FileUse),
    /// Only in the source: nothing could be kept.
    Source(Opened),
}

/// Why it cannot be read.
#[derive(Clone, Debug)]
pub enum FillError {
    /// The source holds another version by now.
    Changed(Attr),
    /// The source failed.
    Failed(Error),
}

/// Chunks per step of a fill in the background: 8 MiB, what the engine keeps in flight at most.
pub(super) const STEP_CHUNKS: u32 = 8;

impl Cache {
    /// Makes the file readable and then calls `then`, on this thread or, when another fills it already, on that one.
    /// May wait for the source: call it from a pool.
    pub fn fill(&self, want: Want, then: Waiter<std::result::Result<Served, FillError>>) {
        let mut then = Some(then);
        let waiter = || then.take().expect("asked for once at most");
        // By version: who wants a newer one is not served what an older flight brings.
        let Some(lead) = self.fills.join((want.id, want.version), waiter) else { return };
        let result = self.fill_now(&want);
        lead.finish(result.clone());
        if let Some(then) = then {
            then(result);
        }
    }

    fn fill_now(&self, want: &Want) -> std::result::Result<Served, FillError> {
        // Another flight may have landed between the caller's look and this one.
        if let Some(file) = self.get(want.id, &want.version)
            && (file.is_servable() || (file.is_complete() && self.verify_file(&file)))
        {
            return Ok(Served::File(file));
        }
        let _reader = want.ahead.is_none().then(|| self.prefetch.reader());
        let opened = self.open_version(want)?;
        let room = if want.ahead.is_some() { Room::Spare } else { Room::Made };
        match self.fill_ssd(want, &opened, room) {
            Ok(file) => return Ok(Served::File(file)),
            Err(Stop::Source(error)) => return Err(error),
            Err(Stop::NoRoom) if want.ahead.is_some() => {}
            Err(Stop::NoRoom) => self.stats.cache_refusals.inc(),
            Err(Stop::Ssd(error)) => self.ssd_failed(&error),
        }
        if want.warm_job.is_some() {
            return Ok(Served::Source(opened));
        }
        let filled = match (self.fill_ram(want, &opened), &want.ahead) {
            (Err(Stop::NoRoom), Some(tally)) if tally.may_take_places() => {
                self.fill_ssd(want, &opened, Room::OfLaterFiles)
            }
            (filled, _) => filled,
        };
        match filled {
            Ok(file) => Ok(Served::File(file)),
            Err(Stop::Source(error)) => Err(error),
            Err(Stop::NoRoom | Stop::Ssd(_)) => Ok(Served::Source(opened)),
        }
    }

    /// Opens the source's file if it still holds the version that is wanted.
    pub(super) fn open_version(&self, want: &Want) -> std::result::Result<Opened, FillError> {
        let count = |e: Error| {
            self.stats.backing_errors.inc();
            FillError::Failed(e)
        };
        if let Some(pin) = &want.pin
            && let Ok(source) = self.source.open_pinned(pin)
        {
            let now = source.attr().map_err(count)?;
            // As it was looked up, which is the version that is served: it may have lost its name since.
            let opened = Opened { source, attr: pin.attr };
            if self.source.version(&pin.attr) == want.version && self.is_unchanged(&opened, &now) {
                return Ok(opened);
            }
        }
        let source = self.source.open(&want.path).map_err(count)?;
        let attr = source.attr().map_err(count)?;
        if self.source.version(&attr) != want.version {
            return Err(FillError::Changed(attr));
        }
        Ok(Opened { source, attr })
    }

    fn fill_ssd(&self, want: &Want, opened: &Opened, room: Room) -> std::result::Result<FileUse, Stop> {
        if !self.may_write() {
            return Err(Stop::NoRoom);
        }
        let candidate = self.candidate(want);
        let room = self.find_room(room, (&candidate, &want.path), candidate.bytes, 1, want.warm_job);
        let room = room.ok_or(Stop::NoRoom)?;
        let (number, fd) = self.dir.create().map_err(Stop::Ssd)?;
        let fd = Arc::new(fd);
        let stamp = || self.dir.stamp(&fd, number, want.version.size).map_err(Stop::Ssd);
        match self.copy_whole(want, opened, fd.clone()).and_then(|copied| stamp().map(|()| copied)) {
            Ok(copied) => {
                self.ssd.worked();
                self.stats.ssd_bytes_written.add(want.version.size);
                let file = self.complete(want, Place::Ssd { number }, copied, room);
                // In use before it is in the map: nothing can evict it between the two.
                let used = file.use_it().expect("not in the map yet, so nobody retired it");
                if self.publish(&file) { Ok(used) } else { Err(Stop::NoRoom) }
            }
            Err(stop) => {
                if let Err(e) = self.dir.remove(number) {
                    self.ssd_failed(&e);
                }
                Err(stop)
            }
        }
    }

    fn fill_ram(&self, want: &Want, opened: &Opened) -> std::result::Result<FileUse, Stop> {
        let size = want.version.size;
        let room = match want.ahead {
            None => self.ram.reserve(size),
            Some(_) => self.ram.reserve_ahead(size),
        };
        let room = room.ok_or(Stop::NoRoom)?;
        let fd = Arc::new(RamWindow::create(self.dir.io()).map_err(Stop::Ssd)?);
        let copied = self.copy_whole(want, opened, fd.clone())?;
        let file = self.complete(want, Place::Ram(fd), copied, room);
        file.set_group(self.candidate(want).group);
        let used = file.use_it().expect("not in the window yet, so nobody retired it");
        self.ram.insert(file);
        Ok(used)
    }

    /// The file that is wanted, as the policy sees it.
    fn candidate(&self, want: &Want) -> Subject {
        let group = self.policy.lock().group_of(want.path.as_os_str().as_bytes());
        Subject { id: want.id, group, bytes: disk_bytes(want.version.size) }
    }

    fn complete(&self, want: &Want, place: Place, copied: Copied, room: Reservation) -> Arc<CacheFile> {
        self.stats.fills.inc();
        let path = want.path.as_os_str().as_bytes();
        let file = CacheFile::new(want.id, want.version, path, place, copied.chunks, room);
        if copied.racy {
            file.set_unsettled();
        }
        if let Some(tally) = &want.ahead {
            file.set_ahead(tally.fetched(file.size()));
        }
        file
    }

    /// Copies all of the file and looks whether it stayed the same meanwhile.
    fn copy_whole(
        &self,
        want: &Want,
        opened: &Opened,
        target: Arc<OwnedFd>,
    ) -> std::result::Result<Copied, Stop> {
        let size = want.version.size;
        let look = opened.look();
        let mut chunks = vec![Chunk::Missing; chunk_count(size) as usize];
        let all = ChunkRange { start: 0, end: chunk_count(size) };
        let io = self.dir.io();
        let job = Copy { source: &*opened.source, target: &target, io, chunks: all, size };
        let copied = self.engine.copy(&job, &mut |index, hash, bytes| {
            self.stats.backing_bytes_read.add(bytes.len() as u64);
            chunks[index as usize] = Chunk::Present { hash: *hash.as_bytes(), trusted: true };
            true
        });
        self.check_same(want, opened, copied)?;
        Ok(Copied { chunks, racy: self.source.is_racy(&opened.attr, &look) })
    }

    /// After a copy: its error if it had one, unless the source changed under it, which explains any.
    fn check_same(
        &self,
        want: &Want,
        opened: &Opened,
        copied: std::result::Result<(), CopyError>,
    ) -> std::result::Result<(), Stop> {
        match copied {
            Err(CopyError::Ssd(e)) => return Err(Stop::Ssd(e)),
            Err(CopyError::Source(e)) => {
                self.stats.backing_errors.inc();
                return Err(Stop::Source(FillError::Failed(e)));
            }
            Ok(()) | Err(CopyError::Truncated) => {}
        }
        let now = opened.source.attr().map_err(|e| Stop::Source(FillError::Failed(e)))?;
        if !self.is_unchanged(opened, &now) {
            return Err(Stop::Source(FillError::Changed(now)));
        }
        match copied {
            Ok(()) => Ok(()),
            // Ends early and has not changed: the source contradicts itself, and no bytes are right.
            Err(_) => Err(Stop::Source(FillError::Failed(Error::os("read", shown(&want.path), EIO)))),
        }
    }

    /// A large file, to be filled chunk by chunk as it is read: opens it in the source, once for all who ask at the same
    /// time, and then calls `then`, on this thread or on that of the one who opens it already. [`Serving::Source`] if
    /// nothing can be kept of it.
    pub fn begin_partial(&self, want: &Want, then: Waiter<std::result::Result<Arc<Serving>, FillError>>) {
        let mut then = Some(then);
        let waiter = || then.take().expect("asked for once at most");
        let Some(lead) = self.begins.join((want.id, want.version), waiter) else { return };
        let result = self.begin_now(want).map(Arc::new);
        let Some(then) = then else { return };
        if result.is_ok() {
            // Before the flight ends: who comes after it finds the file open.
            then(result.clone());
            lead.finish(result);
        } else {
            // After it: who is told of an error and asks again is not to be told of the same one.
            lead.finish(result.clone());
            then(result);
        }
    }

    fn begin_now(&self, want: &Want) -> std::result::Result<Serving, FillError> {
        let opened = self.open_version(want)?;
        let file = match self.get(want.id, &want.version) {
            Some(file) => Some(file),
            None => self.create_sparse(want),
        };
        Ok(match file {
            Some(file) => Serving::partial(file, Some(opened)),
            None => Serving::Source(opened),
        })
    }

    fn create_sparse(&self, want: &Want) -> Option<FileUse> {
        if !self.may_write() {
            return None;
        }
        let candidate = self.candidate(want);
        let admitted = want.warm_job.is_some() || self.admits(&candidate, &want.path);
        let room =
            admitted.then(|| self.find_room(Room::Made, (&candidate, &want.path), 0, 1, want.warm_job));
        let Some(room) = room.flatten() else {
            self.stats.cache_refusals.inc();
            return None;
        };
        self.put_sparse(want, room).map(|(used, _)| used)
    }

    /// Whether the SSD is to be tried at all.
    pub(super) fn may_write(&self) -> bool {
        !self.ssd.is_resting() && !self.dir.is_closed()
    }

    /// A file of which nothing is here yet, and whether it is a new one: another may have begun it at the same time.
    pub(super) fn put_sparse(&self, want: &Want, room: Reservation) -> Option<(FileUse, bool)> {
        let create = || -> Result<u64> {
            let (number, fd) = self.dir.create()?;
            self.dir.io().set_len(&fd, want.version.size).map_err(|e| {
                let _ = self.dir.remove(number);
                Error::os("truncate", shown(&want.path), e.raw_os_error())
            })?;
            Ok(number)
        };
        match create() {
            Ok(number) => {
                let chunks = vec![Chunk::Missing; chunk_count(want.version.size) as usize];
                let path = want.path.as_os_str().as_bytes();
                let file = CacheFile::new(want.id, want.version, path, Place::Ssd { number }, chunks, room);
                if let Some(tally) = &want.ahead {
                    file.set_ahead(tally.fetched(0));
                }
                let (used, first) = self.publish_or_join(&file)?;
                if !first && let Err(e) = self.dir.remove(number) {
                    self.ssd_failed(&e);
                }
                Some((used, first))
            }
            Err(e) => {
                self.ssd_failed(&e);
                None
            }
        }
    }

    /// Fills what is missing of a large file in the background, once however often it is asked for.
    pub fn fill_in_background(self: &Arc<Self>, serving: &Arc<Serving>) {
        let (cache, serving) = (self.clone(), serving.clone());
        self.background.submit(Box::new(move || {
            let _ = cache.fill_rest(&serving, &mut |_| true);
        }));
    }

    /// Fills what is missing of a large file, step by step. `progress` is told the bytes of each step and may stop it.
    pub(super) fn fill_rest(&self, serving: &Serving, progress: &mut dyn FnMut(u64) -> bool) -> Result<()> {
        let Some(file) = serving.file() else { return Ok(()) };
        for start in (0..file.all().end).step_by(STEP_CHUNKS as usize) {
            let step = ChunkRange { start, end: (start + STEP_CHUNKS).min(file.all().end) };
            // No room or no SSD: there is no point in going on.
            if !self.ensure_blocking(serving, step, Room::Made)? || !progress(step.bytes(file.size()).len()) {
                break;
            }
        }
        Ok(())
    }
}

/// What a whole copy is.
struct Copied {
    chunks: Vec<Chunk>,
    /// The file had changed a moment before.
    racy: bool,
}

/// Why a fill did not become a file.
pub(super) enum Stop {
    /// The source's fault; the reader learns of it.
    Source(FillError),
    /// The SSD's fault; the reader does not.
    Ssd(Error),
    /// No room to be had.
    NoRoom,
}

const EIO: i32 = 5;

pub(super) fn shown(path: &Path) -> String {
    crate::types::escape_bytes(path.as_os_str().as_bytes())
}

/// The path of a cached file.
pub(super) fn path_of(file: &CacheFile) -> &Path {
    Path::new(OsStr::from_bytes(file.path()))
}
