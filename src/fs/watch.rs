//! Requests that wait for the source, and what happens when the source is silent.
//!
//! A thread that is stuck in a dead source cannot be called back, but its client can be answered by another: the
//! reply lies in a [`Pending`], and whoever takes it first answers. After a first while the answer is what is known,
//! where something is; after a second one it is ETIMEDOUT. While the oldest request about names and attributes is
//! overdue the source counts as silent, and what is known is given at once, so that cached files open as fast as ever.
//!
//! A client that is killed while it waits cannot end before it is answered: the kernel holds it until then. (It would say
//! so by INTERRUPT, which the FUSE library does not pass on.) So those who have waited for a moment are looked at, and
//! one that is to die is answered. And when the daemon stops everybody is, because a thread that is stuck in the source
//! may keep its process, and with it the connection, from ending.

use crate::stats::Stats;
use crate::sys::process;
use crate::types::Error;
use crate::types::sync::{Condvar, Mutex, MutexGuard, thread};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A reply that several may want to give; the first one does.
pub struct Pending<R>(Arc<Mutex<Option<R>>>);

impl<R> Pending<R> {
    /// Nobody has answered yet.
    pub fn new(reply: R) -> Self {
        Self(Arc::new(Mutex::new(Some(reply))))
    }

    /// The reply, if it was not given yet.
    pub fn take(&self) -> Option<R> {
        self.0.lock().take()
    }

    /// Works on the reply, if it was not given yet. Not for long, and not while asking the source.
    pub fn with<T>(&self, work: impl FnOnce(&mut R) -> T) -> Option<T> {
        self.0.lock().as_mut().map(work)
    }

    /// The reply and an answer to it, if it was not given yet and `answer` has one.
    fn take_with<T>(&self, answer: impl FnOnce() -> Option<T>) -> Option<(R, T)> {
        let mut reply = self.0.lock();
        // An answer may count references, which nobody would drop if it were not told.
        reply.as_ref()?;
        let answer = answer()?;
        reply.take().map(|reply| (reply, answer))
    }
}

impl<R> Clone for Pending<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Gives what is known, if anything is, when the source is silent.
pub type Known<T> = Box<dyn FnOnce() -> Option<T> + Send>;

type Action = Box<dyn FnOnce() + Send>;

/// Answers with an error, if nobody has answered yet.
type Refuse = Box<dyn FnOnce(Error) + Send>;

thread_local! {
    static CLIENT: Cell<u32> = const { Cell::new(0) };
}

/// Says which thread asks for what this thread does from now on, as the kernel numbers it; 0 if none is known.
pub fn set_client(thread: u32) {
    CLIENT.set(thread);
}

/// Which thread asks for what this thread does; 0 if none is known.
pub fn client() -> u32 {
    CLIENT.get()
}

/// The requests that wait.
pub struct Watch {
    hang_after: Duration,
    timeout: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    next: u64,
    // In order of arrival, so that the first is the oldest.
    waiting: BTreeMap<u64, Waiting>,
    running: bool,
    stopped: bool,
}

impl State {
    /// Whether the oldest request about names and attributes has waited for so long.
    fn waits_longer_than(&self, time: Duration) -> bool {
        self.waiting.values().find(|w| w.metadata).is_some_and(|w| w.since.elapsed() >= time)
    }
}

struct Waiting {
    since: Instant,
    /// After this long its client is told ETIMEDOUT.
    patience: Duration,
    /// About names and attributes: tells whether the source is silent. A fill may rightly take long.
    metadata: bool,
    /// No request: something is to be done then.
    alarm: bool,
    on_hang: Option<Action>,
    refuse: Option<Refuse>,
    /// Who waits, to be looked at.
    client: u32,
    looked: Instant,
}

impl Waiting {
    /// Whether its client is to die and waits only for the answer.
    fn is_killed(&mut self) -> bool {
        let due = self.client != 0 && self.refuse.is_some() && self.looked.elapsed() >= LOOK_AFTER;
        if due {
            self.looked = Instant::now();
        }
        due && process::is_killed(self.client)
    }

    /// What answers it with this error.
    fn refusal(&mut self, error: Error) -> Option<Action> {
        let refuse = self.refuse.take()?;
        self.on_hang = None;
        Some(Box::new(move || refuse(error)))
    }
}

/// The request waits until this is dropped.
pub struct WatchGuard {
    watch: Arc<Watch>,
    number: u64,
}

/// How long a request waits while an older one waits in vain: as long as a source that is back takes to answer.
const PATIENCE_IN_VAIN: Duration = Duration::from_millis(100);

/// Whether a client was killed is looked at when it has waited for so long, and then again and again: seldom enough to
/// cost nothing, often enough that who presses ^C does not notice.
const LOOK_AFTER: Duration = Duration::from_millis(300);

/// The thread looks this often while something waits.
const TICK: Duration = Duration::from_millis(100);

impl Watch {
    /// Nothing waits. The thread that looks after it begins with the first that does, and sleeps while none does.
    pub fn new(hang_after: Duration, timeout: Duration) -> Arc<Self> {
        Arc::new(Self { hang_after, timeout, state: Mutex::default(), changed: Condvar::new() })
    }

    /// A request about names or attributes begins to wait; `known` is its answer if the source is silent.
    pub fn metadata<T: Send + 'static>(
        self: &Arc<Self>,
        pending: &Pending<super::Reply<T>>,
        known: Option<Known<T>>,
        stats: &Arc<Stats>,
    ) -> WatchGuard {
        let on_hang = known.map(|known| -> Action {
            let (pending, stats) = (pending.clone(), stats.clone());
            Box::new(move || {
                if let Some((reply, answer)) = pending.take_with(known) {
                    stats.stale_answers.inc();
                    reply(Ok(answer));
                }
            })
        });
        self.add(true, on_hang, refusal(pending.clone(), stats, |reply, error| reply(Err(error))))
    }

    /// A request for entries with their attributes begins to wait; `known` answers if the source is silent.
    pub fn listing<R: Send + 'static>(
        self: &Arc<Self>,
        pending: &Pending<R>,
        known: impl FnOnce(R) + Send + 'static,
    ) -> WatchGuard {
        let pending = pending.clone();
        // What is known is an answer whatever the reason.
        let known: Refuse = Box::new(move |_| {
            if let Some(reply) = pending.take() {
                known(reply);
            }
        });
        self.add_with(true, self.hang_after, None, known)
    }

    /// A request for data begins to wait.
    pub fn data<R: Send + 'static>(
        self: &Arc<Self>,
        pending: &Pending<R>,
        stats: &Arc<Stats>,
        answer: impl FnOnce(R, Error) + Send + 'static,
    ) -> WatchGuard {
        self.add(false, None, refusal(pending.clone(), stats, answer))
    }

    /// Calls `act` after `time`, unless the guard is dropped before. At the end of the mount at once.
    pub fn after(self: &Arc<Self>, time: Duration, act: impl FnOnce() + Send + 'static) -> WatchGuard {
        let since = Instant::now();
        self.insert(Waiting {
            since,
            patience: time,
            metadata: false,
            alarm: true,
            on_hang: None,
            refuse: Some(Box::new(move |_| act())),
            client: 0,
            looked: since,
        })
    }

    /// Whether the oldest request about names and attributes is overdue.
    pub fn is_silent(&self) -> bool {
        self.waits_longer_than(self.hang_after)
    }

    fn waits_longer_than(&self, time: Duration) -> bool {
        self.state.lock().waits_longer_than(time)
    }

    /// Requests that wait now.
    pub fn len(&self) -> usize {
        self.state.lock().waiting.values().filter(|w| !w.alarm).count()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the thread, and answers whoever still waits: as a mount does that is gone.
    pub fn stop(&self) {
        let left: Vec<Action> = {
            let mut state = self.state.lock();
            state.stopped = true;
            state.waiting.values_mut().filter_map(|w| w.refusal(gone())).collect()
        };
        self.changed.notify_all();
        left.into_iter().for_each(|act| act());
    }

    fn add(self: &Arc<Self>, metadata: bool, on_hang: Option<Action>, refuse: Refuse) -> WatchGuard {
        self.add_with(metadata, self.timeout, on_hang, refuse)
    }

    fn add_with(
        self: &Arc<Self>,
        metadata: bool,
        patience: Duration,
        on_hang: Option<Action>,
        refuse: Refuse,
    ) -> WatchGuard {
        // Where one has waited in vain the next need not wait as long: the kernel asks for one name at a time in a
        // directory, and their times would add up.
        let in_vain = metadata && self.waits_longer_than(self.timeout);
        let patience = if in_vain { PATIENCE_IN_VAIN.min(patience) } else { patience };
        let (since, client, refuse) = (Instant::now(), CLIENT.get(), Some(refuse));
        self.insert(Waiting {
            since,
            patience,
            metadata,
            alarm: false,
            on_hang,
            refuse,
            client,
            looked: since,
        })
    }

    fn insert(self: &Arc<Self>, waiting: Waiting) -> WatchGuard {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, waiting);
        if !state.running {
            let watch = self.clone();
            state.running =
                thread::Builder::new().name("warmfs-watch".into()).spawn(move || watch.run()).is_ok();
        } else if state.waiting.len() == 1 {
            self.changed.notify_one();
        }
        WatchGuard { watch: self.clone(), number }
    }

    fn run(&self) {
        let mut state = self.state.lock();
        while !state.stopped {
            if state.waiting.is_empty() {
                self.changed.wait(&mut state);
                continue;
            }
            self.changed.wait_for(&mut state, TICK);
            let overdue = self.overdue(&mut state);
            // The answers are given without the lock: they write to the kernel.
            MutexGuard::unlocked(&mut state, || overdue.into_iter().for_each(|act| act()));
        }
    }

    fn overdue(&self, state: &mut State) -> Vec<Action> {
        let mut actions = Vec::new();
        for waiting in state.waiting.values_mut() {
            let age = waiting.since.elapsed();
            if age >= self.hang_after {
                actions.extend(waiting.on_hang.take());
            }
            if age >= waiting.patience {
                actions.extend(waiting.refusal(timed_out()));
            } else if waiting.is_killed() {
                actions.extend(waiting.refusal(killed()));
            }
        }
        actions
    }
}

fn refusal<R: Send + 'static>(
    pending: Pending<R>,
    stats: &Arc<Stats>,
    answer: impl FnOnce(R, Error) + Send + 'static,
) -> Refuse {
    let stats = stats.clone();
    Box::new(move |error| {
        if let Some(reply) = pending.take() {
            if error.errno() == timed_out().errno() {
                stats.backing_timeouts.inc();
            }
            answer(reply, error);
        }
    })
}

fn timed_out() -> Error {
    Error::os("wait for", "the source", Errno::TIMEDOUT.raw_os_error())
}

/// Nobody sees it: the client ends instead.
fn killed() -> Error {
    Error::os("wait for", "the source, for a client that was killed", Errno::INTR.raw_os_error())
}

fn gone() -> Error {
    Error::os("wait for", "the source, at the end of the mount", Errno::NOTCONN.raw_os_error())
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let removed = self.watch.state.lock().waiting.remove(&self.number);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn watch() -> Arc<Watch> {
        Watch::new(Duration::from_millis(100), Duration::from_millis(500))
    }

    #[test]
    fn silence_is_answered_from_memory_first_and_the_late_answer_is_not_given() {
        let (w, stats) = (watch(), Arc::new(Stats::default()));
        let (tx, rx) = mpsc::channel();
        let reply: super::super::Reply<u32> = Box::new(move |r| tx.send(r.unwrap()).unwrap());
        let pending = Pending::new(reply);
        let guard = w.metadata(&pending, Some(Box::new(|| Some(7))), &stats);
        assert!(!w.is_silent());
        assert_eq!(rx.recv_timeout(Duration::from_secs(2)).unwrap(), 7);
        assert!(w.is_silent() && pending.take().is_none());
        assert_eq!(stats.stale_answers.get(), 1);
        drop(guard);
        assert!(!w.is_silent() && w.is_empty());
    }

    #[test]
    fn with_nothing_known_the_reader_gets_a_timeout() {
        let (w, stats) = (watch(), Arc::new(Stats::default()));
        let (tx, rx) = mpsc::channel();
        let pending = Pending::new(tx);
        let _guard = w.data(&pending, &stats, |tx, error| tx.send(error.errno()).unwrap());
        assert_eq!(rx.recv_timeout(Duration::from_secs(2)).unwrap(), Some(110));
        assert!(!w.is_silent(), "a long fill is not silence");
        assert_eq!(stats.backing_timeouts.get(), 1);
    }

    #[test]
    fn at_the_end_who_waits_is_answered() {
        let (w, stats) = (watch(), Arc::new(Stats::default()));
        let (tx, rx) = mpsc::channel();
        let pending = Pending::new(tx);
        let _guard = w.data(&pending, &stats, |tx, error| tx.send(error.errno()).unwrap());
        w.stop();
        assert_eq!(rx.try_recv().unwrap(), Some(libc::ENOTCONN));
        assert_eq!(stats.backing_timeouts.get(), 0, "nothing took too long");
    }
}
