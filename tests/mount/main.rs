//! Real mounts of the real binary: what a user, a training job and an operator see. Needs /dev/fuse and root; without
//! them each test says so once and passes.
#![allow(clippy::unwrap_used)]

mod clients;
mod coherence;
mod common;
mod dirs;
mod files;
mod modes;
mod smoke;
mod tools;
