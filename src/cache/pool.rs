//! Threads that wait for the source, so that those which serve the kernel never do.
//!
//! Threads are started as jobs arrive and end when there was nothing to do for a while. The queue is bounded: a caller
//! that finds it full runs into a refusal and not into memory. A job that panics is one failed request (its reply is
//! dropped, which answers EIO), not a lost thread.

use crate::types::sync::{Condvar, Mutex, thread};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Something to do.
pub type Job = Box<dyn FnOnce() + Send>;

/// A thread ends after it had nothing to do for this long: a burst's threads cost nothing an instant later.
const IDLE: Duration = Duration::from_secs(5);

/// Jobs that may wait. Each is a request of a client thread that is blocked until the answer comes, so that more than
/// this are not seen before the clients' own limits.
const QUEUE_MAX: usize = 65_536;

/// A bounded set of threads over a bounded queue.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    name: &'static str,
    threads_max: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

impl Pool {
    /// A pool of up to `threads_max` threads, none of them started yet.
    pub fn new(name: &'static str, threads_max: usize) -> Self {
        let shared = Shared { name, threads_max, state: Mutex::default(), work: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Queues a job. `false` and the job is dropped when the queue is full or the pool has stopped.
    pub fn submit(&self, job: Job) -> bool {
        let mut state = self.shared.state.lock();
        if state.stopped || state.queue.len() >= QUEUE_MAX {
            return false;
        }
        state.queue.push_back(job);
        if state.idle >= state.queue.len() || state.threads >= self.shared.threads_max {
            drop(state);
            self.shared.work.notify_one();
            return true;
        }
        state.threads += 1;
        drop(state);
        let shared = self.shared.clone();
        let started = thread::Builder::new().name(self.shared.name.into()).spawn(move || shared.run());
        if started.is_err() {
            // No thread to be had: one that runs will come to it, or the job is refused.
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            if state.threads == 0 {
                state.queue.pop_back();
                return false;
            }
        }
        true
    }

    /// Jobs that wait and threads that exist.
    pub fn gauges(&self) -> (usize, usize) {
        let state = self.shared.state.lock();
        (state.queue.len(), state.threads)
    }

    /// Jobs that wait or run.
    pub fn jobs(&self) -> usize {
        let state = self.shared.state.lock();
        state.queue.len() + state.threads - state.idle
    }

    /// Drops what waits and takes no more. Jobs that run are not waited for: the source may never answer.
    pub fn stop(&self) {
        let waiting = {
            let mut state = self.shared.state.lock();
            state.stopped = true;
            std::mem::take(&mut state.queue)
        };
        drop(waiting);
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn run(&self) {
        while let Some(job) = self.next() {
            // A panic was already reported by the panic hook; the thread is as good as new.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    }

    /// The next job; `None` when this thread should end, which is then already counted.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            if state.stopped {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if timed_out && state.queue.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn all_jobs_run_on_no_more_threads_than_allowed() {
        let pool = Pool::new("test", 3);
        let (tx, rx) = mpsc::channel();
        for n in 0..200 {
            let tx = tx.clone();
            assert!(pool.submit(Box::new(move || tx.send(n).unwrap())));
        }
        let mut seen: Vec<i32> = (0..200).map(|_| rx.recv().unwrap()).collect();
        seen.sort();
        assert_eq!(seen, (0..200).collect::<Vec<_>>());
        assert!(pool.gauges().1 <= 3);
    }

    #[test]
    fn a_panicking_job_costs_nothing_but_itself() {
        let pool = Pool::new("test", 1);
        let (tx, rx) = mpsc::channel();
        pool.submit(Box::new(|| panic!("on purpose")));
        pool.submit(Box::new(move || tx.send(()).unwrap()));
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
    }

    #[test]
    fn blocked_jobs_do_not_keep_others_from_running() {
        let pool = Pool::new("test", 8);
        let (hold, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..7 {
            let held = held.clone();
            pool.submit(Box::new(move || _ = held.lock().recv()));
        }
        let (tx, rx) = mpsc::channel();
        pool.submit(Box::new(move || tx.send(()).unwrap()));
        rx.recv_timeout(Duration::from_secs(5)).unwrap();
        drop(hold);
    }

    #[test]
    fn a_stopped_pool_refuses() {
        let pool = Pool::new("test", 1);
        pool.stop();
        assert!(!pool.submit(Box::new(|| ())));
    }
}
