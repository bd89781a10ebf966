//! Requests that wait: answered once, whoever is first.

use crate::{SMALL, explore};
use shuttle::sync::atomic::{AtomicU32, Ordering::SeqCst};
use shuttle::thread;
use std::sync::Arc;
use std::time::Duration;
use warmfs::fs::Reply;
use warmfs::fs::watch::{Pending, Watch};
use warmfs::stats::Stats;

/// Goal: two requests, one with something known and one without, each with an answer from the source, while the watch
/// finds all of them overdue at once: each is answered exactly once, and nothing waits in the end.
fn answered_once() {
    let watch = Watch::new(Duration::ZERO, Duration::ZERO);
    let stats = Arc::new(Stats::default());
    let answers: Arc<[AtomicU32; 2]> = Arc::default();
    let asked: Vec<_> = (0..2usize)
        .map(|n| {
            let (watch, stats, answers) = (watch.clone(), stats.clone(), answers.clone());
            thread::spawn(move || {
                let reply: Reply<u32> = Box::new(move |_| _ = answers[n].fetch_add(1, SeqCst));
                let pending = Pending::new(reply);
                let known = (n == 0).then(|| Box::new(|| Some(7u32)) as warmfs::fs::watch::Known<u32>);
                let guard = watch.metadata(&pending, known, &stats);
                thread::yield_now();
                drop(guard);
                if let Some(reply) = pending.take() {
                    reply(Ok(1));
                }
            })
        })
        .collect();
    asked.into_iter().for_each(|t| t.join().unwrap());
    assert!(watch.is_empty());
    // An answer that the watch has taken it also gives, perhaps a moment later.
    while answers.iter().any(|n| n.load(SeqCst) == 0) {
        thread::yield_now();
    }
    watch.stop();
    assert!(answers.iter().all(|n| n.load(SeqCst) == 1), "answered twice");
}

#[test]
fn a_request_is_answered_exactly_once() {
    explore("schedules: replies", &SMALL, answered_once);
}
