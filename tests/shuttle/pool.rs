//! The pool: each job is done once or refused, on no more threads than allowed, and none is left lying.

use crate::{SMALL, explore};
use shuttle::sync::atomic::{AtomicU32, Ordering::SeqCst};
use shuttle::sync::mpsc;
use shuttle::thread;
use std::sync::Arc;
use warmfs::cache::pool::Pool;

const THREADS: usize = 2;

/// A job says what became of it when it is dropped, done or not.
struct Fate {
    done: bool,
    tell: mpsc::Sender<bool>,
}

impl Fate {
    fn done(mut self) {
        self.done = true;
    }
}

impl Drop for Fate {
    fn drop(&mut self) {
        // The receiver is gone only when the test has failed already.
        let _ = self.tell.send(self.done);
    }
}

fn submit(pool: &Pool, running: &Arc<AtomicU32>, tell: &mpsc::Sender<bool>) -> bool {
    let (fate, running) = (Fate { done: false, tell: tell.clone() }, running.clone());
    pool.submit(Box::new(move || {
        assert!(running.fetch_add(1, SeqCst) < THREADS as u32, "more threads than allowed");
        thread::yield_now();
        running.fetch_sub(1, SeqCst);
        fate.done();
    }))
}

/// Goal: two submit four jobs while threads come, go idle, time out and end: all four are done. A lost wake-up is a
/// main thread that waits for ever, which the explorer reports.
fn all_are_done() {
    let pool = Pool::new("test", THREADS);
    let running = Arc::new(AtomicU32::new(0));
    let (tell, told) = mpsc::channel();
    let other = {
        let (pool, running, tell) = (pool.clone(), running.clone(), tell.clone());
        thread::spawn(move || (0..2).for_each(|_| assert!(submit(&pool, &running, &tell))))
    };
    (0..2).for_each(|_| assert!(submit(&pool, &running, &tell)));
    for _ in 0..4 {
        assert!(told.recv().unwrap(), "a job was dropped");
    }
    other.join().unwrap();
    assert!(pool.gauges().1 <= THREADS);
    pool.stop();
}

/// Goal: the same while the pool is stopped: what was taken is done or dropped, never kept, and after the stop nothing is
/// taken.
fn stopped_in_between() {
    let pool = Pool::new("test", THREADS);
    let running = Arc::new(AtomicU32::new(0));
    let (tell, told) = mpsc::channel();
    let other = {
        let (pool, running, tell) = (pool.clone(), running.clone(), tell.clone());
        thread::spawn(move || (0..3).for_each(|_| _ = submit(&pool, &running, &tell)))
    };
    pool.stop();
    assert!(!submit(&pool, &running, &tell), "taken after the stop");
    for _ in 0..4 {
        told.recv().unwrap();
    }
    other.join().unwrap();
    assert_eq!(pool.gauges().0, 0);
}

#[test]
fn every_job_is_done() {
    explore("schedules: pool", &SMALL, all_are_done);
}

#[test]
fn a_stop_leaves_no_job_behind() {
    explore("schedules: pool stopped", &SMALL, stopped_in_between);
}
