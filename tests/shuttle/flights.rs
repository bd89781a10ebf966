//! Single flight: one who does it, and each who waits is told exactly once.

use crate::{SMALL, explore};
use shuttle::rand::Rng;
use shuttle::sync::atomic::{AtomicU32, Ordering::SeqCst};
use shuttle::thread;
use std::sync::Arc;
use warmfs::cache::flight::{FlightTable, Lead};

const ABANDONED: u32 = 999;

struct World {
    flights: FlightTable<u32, u32>,
    /// Leads of each key now.
    leading: [AtomicU32; 2],
    /// What each thread was told: how often.
    heard: [AtomicU32; 4],
    results: AtomicU32,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            flights: FlightTable::new(|| ABANDONED),
            leading: Default::default(),
            heard: Default::default(),
            results: AtomicU32::new(0),
        })
    }

    fn hear(&self, who: usize, result: u32) {
        assert!(result == ABANDONED || result < self.results.load(SeqCst), "a result that nobody had");
        self.heard[who].fetch_add(1, SeqCst);
    }

    /// Does the work, alone; ends with a result or, as a thread that dies, without one.
    fn work(&self, key: u32, lead: Lead<u32, u32>) {
        assert_eq!(self.leading[key as usize].fetch_add(1, SeqCst), 0, "two lead");
        thread::yield_now();
        self.leading[key as usize].fetch_sub(1, SeqCst);
        if shuttle::rand::thread_rng().gen_bool(0.3) {
            drop(lead);
        } else {
            lead.finish(self.results.fetch_add(1, SeqCst));
        }
    }
}

/// Goal: four who want one of two things: one leads, nobody else at the same time, everybody hears once, and nothing is
/// left, also when the lead dies or a waiter goes on to lead the next flight.
fn everybody_hears_once() {
    let world = World::new();
    let threads: Vec<_> = (0..4)
        .map(|who| {
            let world = world.clone();
            thread::spawn(move || {
                let key = u32::from(who == 3);
                let waiter_world = world.clone();
                let waiter = || -> warmfs::cache::flight::Waiter<u32> {
                    Box::new(move |result| {
                        waiter_world.hear(who, result);
                        if result == ABANDONED
                            && let Some(lead) = waiter_world.flights.try_lead(key)
                        {
                            waiter_world.work(key, lead);
                        }
                    })
                };
                if let Some(lead) = world.flights.join(key, waiter) {
                    world.work(key, lead);
                    world.heard[who].fetch_add(1, SeqCst);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    for (who, heard) in world.heard.iter().enumerate() {
        assert_eq!(heard.load(SeqCst), 1, "thread {who}");
    }
    assert!(world.flights.is_empty());
}

#[test]
fn one_leads_and_everybody_hears_once() {
    explore("schedules: flights", &SMALL, everybody_hears_once);
}
