//! Where the daemon writes what it has to say: to the terminal in the foreground, into a bounded file in the
//! background. When the file is full it is renamed to `.old`, and a new one begins: two of them at most.

use crate::types::{Error, PathText, Result};
use parking_lot::Mutex;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{self, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Says things on the terminal. `level` is a level or levels of modules (`warn,warmfs::fs=debug`).
pub fn to_terminal(level: &str) {
    // Colours are for people: under a service manager this is a file.
    let colours = std::io::stderr().is_terminal();
    let layer = fmt::layer().with_ansi(colours).with_target(false).with_writer(std::io::stderr);
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter(level))).try_init();
}

/// Writes into `path`, whose directory is made if it is missing.
pub fn to_file(level: &str, path: &Path, bytes_max: u64) -> Result<()> {
    let log = BoundedLog::open(path, bytes_max)?;
    let layer = fmt::layer().with_ansi(false).with_target(false).with_writer(log);
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter(level))).try_init();
    Ok(())
}

/// A bare level is about us; the libraries below stay at warnings.
fn filter(level: &str) -> Targets {
    let bare = level.chars().all(|c| c.is_ascii_alphabetic());
    // The FUSE library reports each reply that found its client gone, which is no news; what ends a session it returns.
    let text = if bare { format!("warn,fuser=off,warmfs={level}") } else { level.to_string() };
    // The configuration has read it before.
    text.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::WARN))
}

/// A file that never takes more than twice its limit.
#[derive(Clone)]
struct BoundedLog(Arc<Mutex<State>>);

struct State {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl BoundedLog {
    fn open(path: &Path, bytes_max: u64) -> Result<Self> {
        let fail = |e: std::io::Error| Error::io("open log", PathText(path).to_string(), &e);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(fail)?;
        }
        let file = open_append(path).map_err(fail)?;
        let bytes = file.metadata().map_err(fail)?.len();
        Ok(Self(Arc::new(Mutex::new(State { path: path.to_path_buf(), file, bytes, bytes_max }))))
    }
}

impl State {
    /// After somebody removed the file, or the cache directory that it is in.
    fn reopen(&mut self) -> std::io::Result<()> {
        // Its directory only: what is above is made by who owns it, and until then the lines go where they went.
        let made =
            self.path.parent().map_or(Ok(()), |dir| std::fs::DirBuilder::new().mode(0o700).create(dir));
        match made.is_ok() || self.path.parent().is_some_and(Path::is_dir) {
            true => {
                self.file = open_append(&self.path)?;
                self.bytes = 0;
                Ok(())
            }
            false => Ok(()),
        }
    }
}

fn is_removed(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|meta| meta.nlink() == 0)
}

fn open_append(path: &Path) -> std::io::Result<File> {
    // 0600: names of files that not everybody may list are in it.
    File::options().append(true).create(true).mode(0o600).open(path)
}

impl Write for BoundedLog {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut state = self.0.lock();
        if state.bytes + line.len() as u64 > state.bytes_max && state.bytes > 0 {
            std::fs::rename(&state.path, state.path.with_extension("log.old"))?;
            state.file = open_append(&state.path)?;
            state.bytes = 0;
        } else if is_removed(&state.file) {
            state.reopen()?;
        }
        state.bytes += line.len() as u64;
        state.file.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for BoundedLog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bug_049_the_log_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log/warmfs.log");
        let mut log = BoundedLog::open(&path, 1000).unwrap();
        for n in 0..1000 {
            log.write_all(format!("line {n}\n").as_bytes()).unwrap();
        }
        let sizes: Vec<u64> = std::fs::read_dir(path.parent().unwrap())
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .collect();
        assert!(sizes.len() == 2 && sizes.iter().all(|s| *s <= 1000), "{sizes:?}");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("line 999\n"));
    }

    #[test]
    fn a_log_that_was_removed_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache/log/warmfs.log");
        let mut log = BoundedLog::open(&path, 1000).unwrap();
        log.write_all(b"one\n").unwrap();
        std::fs::remove_dir_all(dir.path().join("cache")).unwrap();
        log.write_all(b"two\n").unwrap();
        assert!(!path.exists(), "the cache directory is not the log's to make");
        std::fs::create_dir(dir.path().join("cache")).unwrap();
        log.write_all(b"three\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three\n");
    }

    #[test]
    fn a_bare_level_is_about_us() {
        let enabled = |text: &str, target: &str, level| filter(text).would_enable(target, &level);
        use tracing::Level;
        assert!(enabled("debug", "warmfs::fs", Level::DEBUG) && !enabled("debug", "warmfs", Level::TRACE));
        assert!(enabled("debug", "redb", Level::WARN) && !enabled("debug", "redb", Level::INFO));
        assert!(!enabled("debug", "fuser", Level::ERROR));
        assert!(enabled("warmfs::fs=trace,info", "warmfs::fs::open", Level::TRACE));
        assert!(!enabled("warmfs::fs=trace,info", "warmfs::cache", Level::DEBUG));
    }
}
