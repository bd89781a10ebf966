//! The threads that answer requests: as many as latencies may overlap.
//!
//! Apart from the session's own thread, which only reads requests and must never wait. The queue needs no bound of
//! its own: the kernel has one request outstanding per waiting thread and a limit for those without.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// One request's whole life.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of threads. Dropping it runs what is queued and waits for it.
pub(super) struct Pool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    ready: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
}

/// Jobs are shallow; many threads should not cost memory.
const STACK_BYTES: usize = 256 << 10;

impl Pool {
    /// Starts `threads` of them, at least one.
    pub(super) fn start(threads: usize) -> std::io::Result<Self> {
        let mut pool = Self { queue: Arc::default(), threads: Vec::new() };
        for i in 0..threads.max(1) {
            let queue = pool.queue.clone();
            let builder = std::thread::Builder::new().name(format!("faultfs-{i}")).stack_size(STACK_BYTES);
            pool.threads.push(builder.spawn(move || queue.work())?);
        }
        Ok(pool)
    }

    /// Queues a job; never waits.
    pub(super) fn run(&self, job: Job) {
        self.queue.state.lock().jobs.push_back(job);
        self.queue.ready.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.ready.notify_all();
        for thread in self.threads.drain(..) {
            // A panic has been printed, and its request was answered by the drop of its reply.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn work(&self) {
        // The default of 50 us would make every latency so much longer. Where it is refused, it is just that.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        while let Some(job) = self.next() {
            job();
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            self.ready.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    #[test]
    fn sleeps_overlap_and_drop_waits_for_all() {
        let done = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let pool = Pool::start(16).expect("threads");
        for _ in 0..32 {
            let done = done.clone();
            pool.run(Box::new(move || {
                std::thread::sleep(Duration::from_millis(20));
                done.fetch_add(1, Ordering::Relaxed);
            }));
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 32);
        assert!(start.elapsed() < Duration::from_millis(320), "{:?}", start.elapsed());
    }
}
