//! What was asked of the slow source: the table of operations, their counters, and the file that shows them.
//!
//! Apart from the `stats` room, because that counts what warmfs does and this counts what reaches its source: the
//! one figure that proves that a warm read touched nothing. A request is counted when it arrives, so that one that
//! hangs is seen; its bytes are counted before it is answered.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use serde::Serialize;

use crate::types::{Error, Result};

macro_rules! operations {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:ident,)+) => {
        /// A kind of request that is counted, and that rules can name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Op {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Op {
            /// Every operation with its name in rules and counts.
            pub(super) const ALL: &'static [(Op, &'static str)] = &[$((Op::$variant, stringify!($name)),)+];
        }

        /// How many requests of each kind have arrived, and what became of them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Counts {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Bytes that reads were answered with.
            pub read_bytes: u64,
            /// Requests that a rule changed in any way.
            pub faults: u64,
            /// Requests that hang now.
            pub hanging: u64,
            /// How often rules were taken over; grows when a changed rules file has been read.
            pub rules: u64,
        }

        impl Counters {
            /// The figures now.
            pub(super) fn snapshot(&self) -> Counts {
                Counts {
                    $($name: load(&self.requests[Op::$variant as usize]),)+
                    read_bytes: load(&self.read_bytes),
                    faults: load(&self.faults),
                    hanging: load(&self.hanging),
                    rules: load(&self.rules),
                }
            }
        }
    };
}

operations! {
    /// A name looked up.
    Lookup lookup,
    /// Attributes asked for.
    Getattr getattr,
    /// A file opened.
    Open open,
    /// A read, of at most 1 MiB.
    Read read,
    /// A directory opened.
    Opendir opendir,
    /// A piece of a directory listed, with attributes or without.
    Readdir readdir,
    /// A symbolic link read.
    Readlink readlink,
    /// Space of the file system asked for.
    Statfs statfs,
    /// An extended attribute asked for.
    Getxattr getxattr,
    /// The names of extended attributes asked for.
    Listxattr listxattr,
    /// A file closed for the last time. Costs nothing and cannot fail.
    Release release,
}

/// The counters of one mount. Relaxed: each figure stands for itself.
#[derive(Default)]
pub(super) struct Counters {
    requests: [AtomicU64; Op::ALL.len()],
    read_bytes: AtomicU64,
    faults: AtomicU64,
    hanging: AtomicU64,
    rules: AtomicU64,
    changed: AtomicBool,
    writer: OnceLock<Thread>,
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    pub(super) fn request(&self, op: Op) {
        self.add(&self.requests[op as usize], 1);
    }

    pub(super) fn bytes(&self, n: u64) {
        self.add(&self.read_bytes, n);
    }

    pub(super) fn fault(&self) {
        self.add(&self.faults, 1);
    }

    pub(super) fn hangs(&self) {
        self.add(&self.hanging, 1);
    }

    pub(super) fn hangs_no_more(&self) {
        self.hanging.fetch_sub(1, Ordering::Relaxed);
        self.show();
    }

    pub(super) fn rules_taken(&self) {
        self.add(&self.rules, 1);
    }

    fn add(&self, counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
        self.show();
    }

    /// Wakes the writer of the file, unless it is awake. Release pairs with its acquire: it sees what was counted.
    fn show(&self) {
        if !self.changed.swap(true, Ordering::AcqRel)
            && let Some(writer) = self.writer.get()
        {
            writer.unpark();
        }
    }
}

/// No two writes of the file are closer than this.
const WRITE_EVERY: Duration = Duration::from_millis(20);

/// Keeps a JSON file with the figures up to date until dropped: at once after quiet, then every 20 ms. Readers see a
/// whole file, because it is renamed into place.
pub(super) struct CountsFile {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl CountsFile {
    /// Writes the file a first time, so that it exists from now on.
    pub(super) fn start(path: PathBuf, counters: Arc<Counters>) -> Result<Self> {
        let fail = |e: &std::io::Error| Error::io("write", path.to_string_lossy(), e);
        write(&path, &counters.snapshot()).map_err(|e| fail(&e))?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (path, stop, counters) = (path.clone(), stop.clone(), counters.clone());
            let builder = std::thread::Builder::new().name("faultfs-counts".to_owned());
            builder.spawn(move || keep(&path, &counters, &stop)).map_err(|e| fail(&e))?
        };
        // The only writer of this mount; what was counted before it was known is shown by its first round.
        let _ = counters.writer.set(thread.thread().clone());
        thread.thread().unpark();
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for CountsFile {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the writer has been printed, and no figure depends on the file.
            let _ = thread.join();
        }
    }
}

fn keep(path: &Path, counters: &Counters, stop: &AtomicBool) {
    let mut complained = false;
    loop {
        let last = stop.load(Ordering::Acquire);
        if counters.changed.swap(false, Ordering::AcqRel) {
            if let Err(e) = write(path, &counters.snapshot())
                && !std::mem::replace(&mut complained, true)
            {
                tracing::warn!("cannot write the counts to {}: {e}", path.display());
            }
            if !last {
                std::thread::sleep(WRITE_EVERY);
            }
        } else if last {
            return;
        } else {
            std::thread::park();
        }
    }
}

fn write(path: &Path, counts: &Counts) -> std::io::Result<()> {
    let mut next = path.as_os_str().to_owned();
    next.push(".tmp");
    std::fs::write(&next, serde_json::to_vec(counts)?)?;
    std::fs::rename(&next, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_follows_and_is_final_when_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("counts.json");
        let counters = Arc::new(Counters::default());
        let file = CountsFile::start(path.clone(), counters.clone()).expect("started");
        let read = || -> serde_json::Value {
            serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("whole JSON")
        };
        assert_eq!(read()["open"], 0);
        counters.request(Op::Open);
        counters.bytes(7);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!((&read()["open"], &read()["read_bytes"]), (&1.into(), &7.into()));
        for _ in 0..100 {
            counters.request(Op::Lookup);
        }
        drop(file);
        assert_eq!(read()["lookup"], 100);
    }
}
