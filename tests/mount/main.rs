//! Real mounts of the real binary: what a user, a training job and an operator see. Needs /dev/fuse and root; without
//! them each test says so once and passes.

// A test that cannot go on should say where, and unwrap does.
#![allow(clippy::unwrap_used)]

mod common;
mod lifecycle;
mod listing;
mod refusals;
mod restart;
mod smoke;
mod users;
