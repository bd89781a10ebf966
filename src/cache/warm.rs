//! Fills whole trees, in parallel, with progress.
//!
//! It walks the source and not the cache: "100 % warm" is a statement about every file that is there.

use super::Cache;
use super::fill::{FillError, Served, Want, shown};
use super::read::Serving;
use crate::types::{Attr, Error, ErrorKind, FileKind, Result};
use parking_lot::Mutex;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// How far a warm-up has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WarmReport {
    /// Files found.
    pub files_total: u64,
    /// Their bytes.
    pub bytes_total: u64,
    /// Files that are warm now.
    pub files_warm: u64,
    /// Bytes looked after so far: fetched or found.
    pub bytes_done: u64,
    /// Bytes fetched from the source.
    pub bytes_fetched: u64,
    /// Files that found no room.
    pub files_without_room: u64,
    /// Files that the source refused, each with the reason; the first hundred.
    pub failed: Vec<String>,
    /// How many files the source refused.
    pub files_failed: u64,
}

/// Reasons that are kept word for word.
const FAILURES_SHOWN_MAX: usize = 100;

/// How many files are filled at a time unless told otherwise.
pub const JOBS_DEFAULT: usize = 8;

enum Event {
    Bytes { done: u64, fetched: bool },
    Warm,
    NoRoom,
    Failed(String),
}

impl Cache {
    /// Makes every regular file below `paths` warm, `jobs` at a time. `progress` is told as things happen and may stop
    /// it. Errors only if a path itself cannot be walked; files that cannot be filled are in the report.
    pub fn warm(
        self: &Arc<Self>,
        paths: &[&Path],
        jobs: usize,
        progress: &mut dyn FnMut(&WarmReport) -> bool,
    ) -> Result<WarmReport> {
        let files = self.walk(paths)?;
        let mut report = WarmReport {
            files_total: files.len() as u64,
            bytes_total: files.iter().map(|(_, attr)| attr.size).sum(),
            ..WarmReport::default()
        };
        let (events, received) = mpsc::sync_channel(1024);
        let (next, stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, files.len().max(1)) {
                let (events, files, next, stopped) = (events.clone(), &files, &next, &stopped);
                scope.spawn(move || {
                    while let Some((path, attr)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if stopped.load(Ordering::Relaxed) {
                            break;
                        }
                        self.warm_file(path, attr, &events, stopped);
                    }
                });
            }
            drop(events);
            for event in received {
                report.note(event);
                if !progress(&report) {
                    stopped.store(true, Ordering::Relaxed);
                }
            }
        });
        let complete = |id| self.files.get(id).is_some_and(|file| file.is_complete());
        let warm =
            files.iter().filter(|(path, attr)| complete(self.source.file_id(path, attr))).count() as u64;
        report.settle(warm);
        Ok(report)
    }

    fn warm_file(&self, path: &Path, attr: &Attr, events: &mpsc::SyncSender<Event>, stopped: &AtomicBool) {
        // The receiver outlives the threads: it ends when the last sender is gone.
        let tell = |event| drop(events.send(event));
        match self.make_warm(path, attr, &mut |done, fetched| {
            tell(Event::Bytes { done, fetched });
            !stopped.load(Ordering::Relaxed)
        }) {
            Ok(true) => tell(Event::Warm),
            Ok(false) => tell(Event::NoRoom),
            Err(e) => tell(Event::Failed(format!("{}: {e}", shown(path)))),
        }
    }

    /// Makes one file warm. `false`: there is no room for it.
    fn make_warm(&self, path: &Path, attr: &Attr, bytes: &mut dyn FnMut(u64, bool) -> bool) -> Result<bool> {
        let mut attr = *attr;
        // The file may change while we look; a file that changes all the time is the user's to know about.
        for _ in 0..3 {
            match self.make_version_warm(path, &attr, bytes) {
                Err(FillError::Changed(now)) => attr = now,
                Err(FillError::Failed(e)) => return Err(e),
                Ok(warm) => return Ok(warm),
            }
        }
        Err(Error::new(ErrorKind::Stale, "", "it changes all the time"))
    }

    fn make_version_warm(
        &self,
        path: &Path,
        attr: &Attr,
        bytes: &mut dyn FnMut(u64, bool) -> bool,
    ) -> std::result::Result<bool, FillError> {
        let want = Want {
            id: self.source.file_id(path, attr),
            version: self.source.version(attr),
            path: path.to_path_buf(),
            pin: None,
            ahead: None,
        };
        if self.get(want.id, &want.version).is_some_and(|f| f.is_complete()) {
            bytes(attr.size, false);
            return Ok(true);
        }
        if self.is_small(attr.size) {
            let served = self.fill_blocking(&want)?;
            bytes(attr.size, true);
            return Ok(
                matches!(served, Served::File(file) if matches!(file.place(), crate::store::Place::Ssd { .. })),
            );
        }
        let serving = self.begin_blocking(&want)?;
        self.fill_rest(&serving, &mut |n| bytes(n, true)).map_err(FillError::Failed)?;
        Ok(serving.file().is_some_and(|f| f.is_complete()))
    }

    /// [`Cache::fill`] for a thread that may block.
    pub fn fill_blocking(&self, want: &Want) -> std::result::Result<Served, FillError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.fill(want.clone(), Box::new(move |result| drop(tx.send(result))));
        rx.recv().unwrap_or_else(|_| Err(FillError::Failed(super::abandoned())))
    }

    /// [`Cache::begin_partial`] for a thread that may block.
    fn begin_blocking(&self, want: &Want) -> std::result::Result<Arc<Serving>, FillError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.begin_partial(want, Box::new(move |result| drop(tx.send(result))));
        rx.recv().unwrap_or_else(|_| Err(FillError::Failed(super::abandoned())))
    }

    /// All regular files below `paths`, each name once; a hard link's second name is warm with the first.
    fn walk(&self, paths: &[&Path]) -> Result<Vec<(PathBuf, Attr)>> {
        let files = Mutex::new(Vec::new());
        for path in paths {
            let attr = self.source.stat(path)?;
            match attr.kind {
                FileKind::Regular => files.lock().push((path.to_path_buf(), attr)),
                FileKind::Directory => self.walk_dir(path, &files)?,
                _ => {}
            }
        }
        Ok(files.into_inner())
    }

    fn walk_dir(&self, top: &Path, files: &Mutex<Vec<(PathBuf, Attr)>>) -> Result<()> {
        let mut waiting = vec![top.to_path_buf()];
        while let Some(path) = waiting.pop() {
            let dir = match self.source.open_dir(&path) {
                // Removed while we walk.
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Stale) && path != top => {
                    continue;
                }
                other => other?,
            };
            for entry in dir.entries()? {
                let child = path.join(&entry.name);
                match entry.kind {
                    FileKind::Directory => waiting.push(child),
                    FileKind::Regular => {
                        if let Ok(attr) = dir.stat(entry.name.as_encoded_bytes()) {
                            files.lock().push((child, attr));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl WarmReport {
    /// What had to make room for the files after it is not warm at the end.
    fn settle(&mut self, warm: u64) {
        let gone = self.files_warm.saturating_sub(warm);
        self.files_warm -= gone;
        self.files_without_room += gone;
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Bytes { done, fetched } => {
                self.bytes_done += done;
                self.bytes_fetched += if fetched { done } else { 0 };
            }
            Event::Warm => self.files_warm += 1,
            Event::NoRoom => self.files_without_room += 1,
            Event::Failed(reason) => {
                self.files_failed += 1;
                if self.failed.len() < FAILURES_SHOWN_MAX {
                    self.failed.push(reason);
                }
            }
        }
    }
}
