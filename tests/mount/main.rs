//! Real mounts of the real binary: what a user, a training job and an operator see. Needs /dev/fuse and root; without
//! them each test says so once and passes.

// Helpers may fail a test as tests may.
#![allow(clippy::unwrap_used)]

mod common;
mod faulty_source;
mod smoke;
mod space;
