//! Real mounts of the real binary: what a user, a training job and an operator see. Needs /dev/fuse and root; without
//! them each test says so once and passes.

// Helpers may fail a test as tests may.
#![allow(clippy::unwrap_used)]

mod bugs;
mod clients;
mod coherence;
mod common;
mod damage;
mod dead_source;
mod detect;
mod dirs;
mod epochs;
mod faulty_source;
#[path = "../figures.rs"]
mod figures;
mod files;
mod hints;
mod lifecycle;
mod limits;
mod listing;
mod modes;
mod prefetch;
mod refusals;
mod restart;
mod rfsx;
mod security;
mod smoke;
mod space;
mod tools;
mod users;
mod walks;
mod warm;
