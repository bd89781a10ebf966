//! Who is at the source: readers that wait for it come first, and of those who fetch ahead as many go on beside them as
//! [`Lanes`] says, or twice as many while no reader waits; those have begun when the next reader comes.

use crate::policy::lanes::Lanes;
use crate::types::sync::{Condvar, Mutex};
use std::time::Duration;

/// Readers and fetches that are at the source now.
#[derive(Default)]
pub(super) struct Way {
    // Nothing else is locked while this is.
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    readers: usize,
    fetching: usize,
    lanes: Lanes,
    stopped: bool,
}

impl State {
    fn is_free(&self) -> bool {
        let lanes = self.lanes.now();
        self.stopped || self.fetching < if self.readers > 0 { lanes } else { 2 * lanes }
    }
}

/// A reader that waits for the source, as long as this lives.
pub(super) struct Reader<'a>(&'a Way);

/// A fetch that goes on as long as this lives.
pub(super) struct Fetching<'a>(&'a Way);

impl Way {
    /// A reader comes.
    pub(super) fn reader(&self) -> Reader<'_> {
        self.state.lock().readers += 1;
        Reader(self)
    }

    /// Waits for a turn to fetch. After [`Way::stop`] everybody has one, to see that there is nothing to do.
    pub(super) fn fetch(&self) -> Fetching<'_> {
        let mut state = self.state.lock();
        while !state.is_free() {
            self.moved.wait(&mut state);
        }
        state.fetching += 1;
        Fetching(self)
    }

    /// A fetch that brought its file took so long.
    pub(super) fn took(&self, time: Duration) {
        let grew = {
            let mut state = self.state.lock();
            let before = state.lanes.now();
            state.lanes.note(time.as_micros() as u64);
            state.lanes.now() > before
        };
        if grew {
            // One more than those that end call in.
            self.moved.notify_one();
        }
    }

    /// Nobody waits here any more.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.moved.notify_all();
    }

    /// Whether it was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.state.lock().stopped
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.state.lock();
            state.readers -= 1;
            state.readers == 0
        };
        if last {
            self.0.moved.notify_all();
        }
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.state.lock().fetching -= 1;
        self.0.moved.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::lanes::LANES_MIN;

    /// Goal: beside a reader few go on, and the others when it has gone.
    #[test]
    fn readers_come_first() {
        let way = Way::default();
        let reader = way.reader();
        let first: Vec<_> = (0..LANES_MIN).map(|_| way.fetch()).collect();
        std::thread::scope(|scope| {
            let more = scope.spawn(|| drop(way.fetch()));
            // Time in which it would get through if nothing held it.
            std::thread::sleep(Duration::from_millis(50));
            assert!(!more.is_finished());
            drop(reader);
            more.join().unwrap();
            // Once there are as many as may be, one goes on when one ends, and all at the stop.
            let full: Vec<_> = (0..LANES_MIN).map(|_| way.fetch()).collect();
            let waits = scope.spawn(|| drop(way.fetch()));
            drop(first);
            waits.join().unwrap();
            drop(full);
        });
        let _full: Vec<_> = (0..2 * LANES_MIN).map(|_| way.fetch()).collect();
        way.stop();
        drop(way.fetch());
    }
}
