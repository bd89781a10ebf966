//! Real mounts of the real binary: what a user, a training job and an operator see. Needs /dev/fuse and root; without
//! them each test says so once and passes.
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod common;
mod lifecycle;
mod refusals;
mod restart;
mod smoke;
mod users;
