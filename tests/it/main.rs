//! Tests of the library without a mount: no privileges, no kernel in the loop.

// Helpers may fail a test as tests may.
#![allow(clippy::unwrap_used)]

mod bugs;
mod common;
mod damage;
mod disk;
mod faults;
mod faulty_io;
#[path = "../figures.rs"]
mod figures;
mod fs_model;
mod hints;
mod policies;
mod power_loss;
mod restart;
mod rivals;
mod seam;
mod single_flight;
mod space;
mod tidy;
mod warm;
