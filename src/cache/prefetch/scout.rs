//! A scout goes through a data set ahead of its readers, in the order in which the source lists it.
//!
//! It lists on one thread and fetches on several, because what a slow source makes one wait for is each answer and not
//! the bytes. It holds back while enough lies here unread, as [`crate::policy::rings`] says, and while there is no room;
//! it comes back when it has seen everything, when nobody reads any more, and when another epoch has begun.

use super::{Cache, Fetched, Looks};
use crate::policy::rings::{Outcome, Turn};
use crate::store::Tally;
use crate::types::{FileKind, GroupId};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Files that are fetched at the same time, at most: as many as [`crate::policy::lanes`] allows.
const FETCHERS: usize = 16;

/// Names that were listed and wait for a thread.
const LISTED_MAX: usize = 16;

/// One journey.
struct Journey<'a> {
    cache: &'a Cache,
    group: GroupId,
    /// The epoch in which it began.
    number: u32,
    tally: Arc<Tally>,
    /// There is nothing to do any more.
    over: AtomicBool,
}

impl Cache {
    pub(super) fn scout(&self, group: GroupId) {
        let number = self.reading(|desk| desk.epochs().now(group).map_or(0, |now| now.number));
        let tally = self.prefetch.tally(group);
        let before = tally.used_and_wasted();
        let journey = Journey { cache: self, group, number, tally, over: AtomicBool::new(false) };
        let saw_all = journey.go();
        let after = journey.tally.used_and_wasted();
        let (used, wasted) = (after.0 - before.0, after.1 - before.1);
        tracing::debug!(?group, number, saw_all, used, wasted, "a data set was fetched ahead");
        self.policy.lock().scout_back(group, Outcome { number, saw_all, used, wasted });
    }
}

impl Journey<'_> {
    /// Says whether it has seen everything.
    fn go(&self) -> bool {
        let (listed, files) = sync_channel(LISTED_MAX);
        let files = Mutex::new(files);
        std::thread::scope(|scope| {
            for _ in 0..FETCHERS {
                scope.spawn(|| self.fetch(&files));
            }
            self.list(listed)
        });
        !self.over.load(Ordering::Acquire)
    }

    /// Lists the tree, a directory at a time, until it ends or this is over.
    fn list(&self, listed: SyncSender<PathBuf>) {
        let (top, is_deep) = self.cache.reading(|desk| {
            let (dir, is_deep) = desk.groups().dir(self.group);
            (PathBuf::from(std::ffi::OsStr::from_bytes(dir)), is_deep)
        });
        let mut waiting = vec![top];
        while let Some(path) = waiting.pop() {
            let Ok(entries) = self.cache.source.open_dir(&path).and_then(|dir| dir.entries()) else {
                continue;
            };
            let mut dirs = Vec::new();
            for entry in entries {
                let child = path.join(&entry.name);
                match entry.kind {
                    FileKind::Directory if is_deep && self.is_ours(&child.join("f")) => dirs.push(child),
                    FileKind::Regular if self.is_ours(&child) && !self.offer(&listed, child) => return,
                    _ => {}
                }
            }
            // The first is taken next.
            waiting.extend(dirs.into_iter().rev());
        }
    }

    /// Gives it to who fetches, in time. `false`: it is over.
    fn offer(&self, listed: &SyncSender<PathBuf>, file: PathBuf) -> bool {
        self.wait_for_turn() && listed.send(file).is_ok()
    }

    /// Whether a file there belongs to the data set, and not to another within it.
    fn is_ours(&self, path: &Path) -> bool {
        self.cache.reading(|desk| desk.groups().peek(path.as_os_str().as_bytes())) == self.group
    }

    /// Fetches what was listed, until there is no more.
    fn fetch(&self, files: &Mutex<Receiver<PathBuf>>) {
        loop {
            let next = files.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(path) = next else { return };
            while !self.over.load(Ordering::Acquire)
                && self.cache.fetch_ahead(&path, self.group, &self.tally) == Fetched::NoRoom
            {
                // Until something that lies here is read.
                if !self.wait_for_room() {
                    break;
                }
            }
        }
    }

    fn turn(&self) -> Turn {
        let unused = self.tally.unused_bytes();
        let now_ms = self.cache.now_ms();
        let turn = match self.cache.prefetch.is_stopped() {
            true => Turn::End,
            false => self.cache.policy.lock().scout(self.group, self.number, unused, now_ms),
        };
        if turn == Turn::End {
            self.over.store(true, Ordering::Release);
        }
        turn
    }

    /// What changes when somebody reads.
    fn moves(&self) -> (u64, u64) {
        let uses = self.cache.reading(|desk| desk.epochs().now(self.group).map_or(0, |now| now.files_read));
        (self.tally.unused_bytes(), uses)
    }

    /// `false`: it is over.
    fn wait_for_turn(&self) -> bool {
        let mut looks = Looks::new();
        loop {
            match self.turn() {
                Turn::Go => return true,
                Turn::Wait => looks.wait(self.moves()),
                Turn::End => return false,
            }
        }
    }

    /// The same, after a file that found no room.
    fn wait_for_room(&self) -> bool {
        let before = self.tally.unused_bytes();
        let mut looks = Looks::new();
        loop {
            looks.wait(self.moves());
            match self.turn() {
                Turn::End => return false,
                _ if self.tally.unused_bytes() < before || before == 0 => return true,
                _ => {}
            }
        }
    }
}
