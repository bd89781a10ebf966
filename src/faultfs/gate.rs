//! Where a request waits: the rules in force, the file they come from, and the end of all waiting.
//!
//! Apart from `rules`, which is pure. Everything that waits in this file system waits here, so that one call frees it
//! all when the mount ends.

use std::io::ErrorKind::NotFound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::counts::Op;
use super::rules::{Rules, Verdict};
use crate::types::{Error, ErrorKind, PathText, Result};

/// The rules file is looked at no more often than this.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// A wait of up to this is slept through; a longer one can be ended.
const DEAF: Duration = Duration::from_millis(50);

/// Number of the rules in force: grows with each change.
pub(super) type Generation = u64;

/// The gate of one mount.
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    file: Option<RulesFile>,
}

#[derive(Default)]
struct State {
    rules: Rules,
    generation: Generation,
    stopping: bool,
}

struct RulesFile {
    path: PathBuf,
    watch: Mutex<Watch>,
}

struct Watch {
    checked: Instant,
    seen: Option<Stamp>,
}

/// What tells one content of the file from the next; `None` stands for no file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    ino: u64,
    size: u64,
    mtime: (i64, i64),
}

impl Gate {
    /// A gate without rules, or with those of a file. A missing file is an empty one; a bad one is an error.
    pub(super) fn new(file: Option<PathBuf>) -> Result<Self> {
        let mut state = State::default();
        let file = match file {
            None => None,
            Some(path) => {
                let seen = stamp(&path);
                state.rules = load(&path)?;
                Some(RulesFile { path, watch: Mutex::new(Watch { checked: Instant::now(), seen }) })
            }
        };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new(), file })
    }

    /// Puts other rules in force.
    pub(super) fn set_rules(&self, text: &str) -> Result<()> {
        self.install(parse(text, "the text")?);
        Ok(())
    }

    fn install(&self, rules: Rules) {
        let mut state = self.state.lock();
        state.rules = rules;
        state.generation += 1;
        self.changed.notify_all();
    }

    /// Reads the rules file again if it has changed; says whether other rules are in force. A file that cannot be read or understood
    /// leaves the rules as they are, with a warning.
    pub(super) fn refresh(&self) -> bool {
        let Some(file) = &self.file else { return false };
        // Whoever comes while another looks goes on with the rules as they are.
        let Some(mut watch) = file.watch.try_lock() else { return false };
        if watch.checked.elapsed() < CHECK_EVERY {
            return false;
        }
        watch.checked = Instant::now();
        let now = stamp(&file.path);
        if now == watch.seen {
            return false;
        }
        // Taken before the text: a change in between will be seen as one. A bad file is complained of once.
        watch.seen = now;
        match load(&file.path) {
            Ok(rules) => {
                self.install(rules);
                true
            }
            Err(e) => {
                tracing::warn!("rules stay as they were: {e}");
                false
            }
        }
    }

    /// The verdict on a request, and under which rules.
    pub(super) fn judge(&self, op: Op, path: &[u8]) -> (Verdict, Generation) {
        let mut state = self.state.lock();
        (state.rules.judge(op, path), state.generation)
    }

    /// Waits until other rules are in force, at most `time`.
    pub(super) fn wait_for_rules(&self, than: Generation, time: Duration) -> Change {
        let mut state = self.state.lock();
        if state.generation == than && !state.stopping {
            self.changed.wait_for(&mut state, time);
        }
        match (state.stopping, state.generation == than) {
            (true, _) => Change::Stopping,
            (false, true) => Change::None,
            (false, false) => Change::Rules,
        }
    }

    /// Sleeps until `deadline`, accurately; `false` if the mount ends before.
    pub(super) fn wait_until(&self, deadline: Instant) -> bool {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left <= DEAF {
                std::thread::sleep(left);
                return true;
            }
            let mut state = self.state.lock();
            if !state.stopping {
                // A change of rules wakes as well, and the loop goes back to sleep.
                self.changed.wait_for(&mut state, left - DEAF / 2);
            }
            if state.stopping {
                return false;
            }
        }
    }

    /// Frees all who wait, now and from now on.
    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }
}

/// What a wait for other rules came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing yet.
    None,
    /// Other rules are in force.
    Rules,
    /// The mount ends.
    Stopping,
}

fn parse(text: &str, name: &str) -> Result<Rules> {
    Rules::parse(text).map_err(|e| Error::new(ErrorKind::Invalid, "", format!("{name}: {e}")))
}

fn stamp(path: &Path) -> Option<Stamp> {
    let m = std::fs::metadata(path).ok()?;
    Some(Stamp { ino: m.ino(), size: m.size(), mtime: (m.mtime(), m.mtime_nsec()) })
}

fn load(path: &Path) -> Result<Rules> {
    let name = PathText(path).to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text, &name),
        Err(e) if e.kind() == NotFound => Ok(Rules::default()),
        Err(e) => Err(Error::io("read", name, &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_again_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("rules");
        let gate = Gate::new(Some(path.clone())).expect("a missing file has no rules");
        let hangs = || {
            std::thread::sleep(2 * CHECK_EVERY);
            gate.refresh();
            gate.judge(Op::Open, b"x").0.hang
        };
        assert!(!hangs());
        std::fs::write(&path, "hang").expect("written");
        assert!(hangs());
        std::fs::write(&path, "nonsense").expect("written");
        assert!(hangs());
        std::fs::remove_file(&path).expect("removed");
        assert!(!hangs());
        std::fs::write(&path, "nonsense").expect("written");
        assert!(Gate::new(Some(path)).is_err());
    }

    #[test]
    fn waits_are_accurate_and_end_when_stopped() {
        let gate = Gate::new(None).expect("no file");
        let start = Instant::now();
        assert!(gate.wait_until(start + Duration::from_millis(120)));
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(120) && took < Duration::from_millis(140), "{took:?}");
        gate.stop();
        let start = Instant::now();
        assert!(!gate.wait_until(start + Duration::from_secs(60)));
        assert_eq!(gate.wait_for_rules(0, Duration::from_secs(60)), Change::Stopping);
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
