//! Single flight: one fetch in progress, one who does it, any number who wait for its result.
//!
//! Who waits holds no thread: it leaves what is to be done with the result and goes. A lead that ends without a result
//! (it panicked, say) gives its waiters the value for that, so that nobody waits for ever.

use crate::types::sync::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// What a waiter does with the result; run on the lead's thread, so it must not block for long.
pub type Waiter<T> = Box<dyn FnOnce(T) + Send>;

/// Flights in progress by key.
pub struct FlightTable<K, T> {
    flights: Arc<Mutex<HashMap<K, Vec<Waiter<T>>>>>,
    abandoned: fn() -> T,
}

/// The right and the duty to fetch.
pub struct Lead<K: Hash + Eq, T: Clone> {
    key: Option<K>,
    flights: Arc<Mutex<HashMap<K, Vec<Waiter<T>>>>>,
    abandoned: fn() -> T,
}

impl<K: Hash + Eq + Clone, T: Clone> FlightTable<K, T> {
    /// No flights. `abandoned` makes the result for those whose lead never had one.
    pub fn new(abandoned: fn() -> T) -> Self {
        Self { flights: Arc::default(), abandoned }
    }

    /// Leads the flight for `key` if there is none; otherwise leaves the waiter that `waiter` makes.
    pub fn join(&self, key: K, waiter: impl FnOnce() -> Waiter<T>) -> Option<Lead<K, T>> {
        let mut flights = self.flights.lock();
        if let Some(waiters) = flights.get_mut(&key) {
            waiters.push(waiter());
            return None;
        }
        flights.insert(key.clone(), Vec::new());
        Some(self.lead(key))
    }

    /// Leads the flight for `key` if there is none.
    pub fn try_lead(&self, key: K) -> Option<Lead<K, T>> {
        let mut flights = self.flights.lock();
        if flights.contains_key(&key) {
            return None;
        }
        flights.insert(key.clone(), Vec::new());
        Some(self.lead(key))
    }

    fn lead(&self, key: K) -> Lead<K, T> {
        Lead { key: Some(key), flights: self.flights.clone(), abandoned: self.abandoned }
    }

    /// Flights in progress.
    pub fn len(&self) -> usize {
        self.flights.lock().len()
    }

    /// Whether nothing is in progress.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: Hash + Eq, T: Clone> Lead<K, T> {
    /// Ends the flight with its result. Whoever comes now starts a new one.
    pub fn finish(mut self, result: T) {
        self.end(result);
    }

    fn end(&mut self, result: T) {
        self.land().into_iter().for_each(|waiter| waiter(result.clone()));
    }

    /// Takes the flight off the table; gives those who are to be told.
    fn land(&mut self) -> Vec<Waiter<T>> {
        let Some(key) = self.key.take() else { return Vec::new() };
        self.flights.lock().remove(&key).unwrap_or_default()
    }
}

/// Ends several flights with one result. All are over before the first waiter is told: what it asks for next is not
/// answered by a flight that is history.
pub fn finish_all<K: Hash + Eq, T: Clone>(mut leads: Vec<Lead<K, T>>, result: &T) {
    let waiters: Vec<_> = leads.iter_mut().flat_map(Lead::land).collect();
    waiters.into_iter().for_each(|waiter| waiter(result.clone()));
}

impl<K: Hash + Eq, T: Clone> Drop for Lead<K, T> {
    fn drop(&mut self) {
        if self.key.is_some() {
            self.end((self.abandoned)());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn table() -> FlightTable<u32, Option<u32>> {
        FlightTable::new(|| None)
    }

    #[test]
    fn one_leads_and_all_others_get_its_result() {
        let t = table();
        let lead = t.join(1, || unreachable!("the first leads")).unwrap();
        let (tx, rx) = mpsc::channel();
        for _ in 0..63 {
            let tx = tx.clone();
            assert!(t.join(1, || Box::new(move |r| tx.send(r).unwrap())).is_none());
        }
        assert!(t.try_lead(1).is_none() && t.try_lead(2).is_some());
        lead.finish(Some(7));
        assert_eq!(rx.try_iter().filter(|r| *r == Some(7)).count(), 63);
        assert!(t.is_empty());
    }

    #[test]
    fn a_lead_that_dies_wakes_its_waiters() {
        let t = table();
        let lead = t.try_lead(1).unwrap();
        let (tx, rx) = mpsc::channel();
        t.join(1, || Box::new(move |r| tx.send(r).unwrap()));
        let died = std::thread::spawn(move || {
            let _lead = lead;
            panic!("on purpose");
        });
        assert!(died.join().is_err());
        assert_eq!(rx.recv().unwrap(), None);
        assert!(t.try_lead(1).is_some(), "the next one may try");
    }

    #[test]
    fn of_flights_that_end_together_none_is_left_when_the_first_waiter_is_told() {
        let t = Arc::new(table());
        let leads = vec![t.try_lead(1).unwrap(), t.try_lead(2).unwrap()];
        let (tx, rx) = mpsc::channel();
        let again = t.clone();
        t.join(1, || Box::new(move |_| tx.send(again.try_lead(2).is_some()).unwrap()));
        finish_all(leads, &None);
        assert!(rx.recv().unwrap());
    }

    #[test]
    fn a_waiter_may_lead_the_next_flight() {
        let t = Arc::new(table());
        let lead = t.try_lead(1).unwrap();
        let (tx, rx) = mpsc::channel();
        let again = t.clone();
        t.join(1, || Box::new(move |_| tx.send(again.try_lead(1).is_some()).unwrap()));
        lead.finish(None);
        assert!(rx.recv().unwrap());
    }
}
