//! Who stands between warmfs and the kernel in tests: counts the calls by kind and subject, and does to the n-th of a kind what
//! a test wants.

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use warmfs::sys::io::{Between, Call, Io, Op, Outcome, Pass};

/// What a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// A data file of the cache, or a file of the source.
    Data,
    /// The index.
    Index,
    /// Everything else: directories, the lock, the format.
    Rest,
}

/// A kind of calls.
pub type Site = (Op, Subject);

/// What is done to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Errno(Errno),
    /// Half of what was asked for is moved.
    Short,
    /// One bit of what was read is another.
    Flip,
    /// The answer comes late.
    Delay(Duration),
    /// No answer until the fault is taken away.
    Hang,
}

/// Which call.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub site: Site,
    /// The first is 0.
    pub nth: u64,
    /// All calls of any kind from then on.
    pub lasting: bool,
    pub fault: Fault,
}

#[derive(Default)]
struct State {
    counts: BTreeMap<Site, u64>,
    plan: Option<Plan>,
    fired: u64,
}

/// Counts calls, and makes one go wrong.
#[derive(Default)]
pub struct FaultyIo {
    state: Mutex<State>,
    changed: Condvar,
}

impl FaultyIo {
    pub fn new() -> (Arc<Self>, Io) {
        let faulty = Arc::new(Self::default());
        (faulty.clone(), Io::through(faulty))
    }

    /// Begins to count anew, with this in mind.
    pub fn plan(&self, plan: Option<Plan>) {
        *self.state.lock() = State { plan, ..State::default() };
        self.changed.notify_all();
    }

    /// Nothing goes wrong any more; the counts stay.
    pub fn heal(&self) {
        self.state.lock().plan = None;
        self.changed.notify_all();
    }

    /// Calls so far, by kind.
    pub fn counts(&self) -> BTreeMap<Site, u64> {
        self.state.lock().counts.clone()
    }

    /// How many calls went wrong.
    pub fn fired(&self) -> u64 {
        self.state.lock().fired
    }

    /// What is to happen to the call that comes now.
    fn fault(&self, call: &Call<'_>) -> Option<Fault> {
        let site = (call.op, subject(call));
        let mut state = self.state.lock();
        let count = state.counts.entry(site).or_default();
        let number = *count;
        *count += 1;
        let plan = state.plan?;
        let hit = plan.site == site && plan.nth == number;
        if !(hit || plan.lasting && state.fired > 0) {
            return None;
        }
        state.fired += 1;
        if plan.fault == Fault::Hang {
            while state.plan.is_some() {
                self.changed.wait(&mut state);
            }
        }
        Some(plan.fault)
    }
}

impl Between for FaultyIo {
    fn before(&self, call: &Call<'_>) -> Result<Pass, Errno> {
        match self.fault(call) {
            Some(Fault::Errno(errno)) => Err(errno),
            Some(Fault::Short) if call.len > 0 => Ok(Pass { most: call.len.div_ceil(2), ..Pass::WHOLE }),
            // What an open has looked at comes from the page cache after that: it is not the SSD that flips bits there.
            Some(Fault::Flip) if call.op != Op::ReadAgain => Ok(Pass { flip: true, ..Pass::WHOLE }),
            Some(Fault::Delay(time)) => {
                std::thread::sleep(time);
                Ok(Pass::WHOLE)
            }
            _ => Ok(Pass::WHOLE),
        }
    }

    fn after(&self, _: &Call<'_>, _: Outcome<'_>) {}
}

/// What stands at the end of the path that is open, or is opened.
fn subject(call: &Call<'_>) -> Subject {
    let path = if call.path.as_os_str().is_empty() { path_of(call.fd) } else { call.path.to_path_buf() };
    let path = path.to_string_lossy();
    let name = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default();
    match name {
        "index.redb" => Subject::Index,
        "LOCK" | "FORMAT" | "SOURCE" => Subject::Rest,
        _ if matches!(
            call.op,
            Op::MakeDir | Op::RemoveDir | Op::List | Op::SyncFs | Op::StatFs | Op::Lock
        ) =>
        {
            Subject::Rest
        }
        _ if is_file(call, name) => Subject::Data,
        _ => Subject::Rest,
    }
}

/// A data file of the cache has 16 digits; a file of the tests' sources begins with `f-`.
fn is_file(call: &Call<'_>, name: &str) -> bool {
    let data = name.len() == 16 && name.bytes().all(|b| b.is_ascii_hexdigit());
    data || name.starts_with("f-") || call.op == Op::Memory || name.starts_with("memfd:")
}

fn path_of(fd: BorrowedFd<'_>) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default()
}
