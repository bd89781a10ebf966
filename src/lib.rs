//! # warmfs: a tiered SSD cache file system for GPU training
//!
//! warmfs is mounted over a dataset directory on slow storage and keeps what is read on a local SSD. A file that
//! is complete on the SSD is read by the kernel itself (FUSE passthrough), so that a warm read costs what the SSD's
//! own file system costs.
//!
//! ## The house
//!
//! Each module is a room. A room uses only rooms **below** it in this list, never one beside or above it;
//! `tests/it/tidy.rs` reads the imports and fails the build when an arrow points up.
//!
//! | room | what happens there |
//! |---|---|
//! | [`cli`] | words that people type become one command |
//! | [`mount`] | builds everything from a [`config::Config`], starts it, stops it |
//! | [`faultfs`] | a slow, faulty source for tests, benchmarks and the demo |
//! | [`fuse`] | the kernel's door: one thin adapter from FUSE requests to [`fs`] |
//! | [`control`] | the operator's door: a unix socket with JSON lines |
//! | [`config`] | defaults, file, environment and flags become one checked `Config` |
//! | [`fs`] | names, nodes, handles, attributes, directories, xattrs, how a file is opened |
//! | [`cache`] | the conductor: read-through, single flight, fill, evict, warm, verify |
//! | [`policy`] | pure decisions: whom to evict, what a stream of reads looks like |
//! | [`store`] | bytes on the SSD and the index that says which of them are true |
//! | [`backing`] | where truth lives: the source directory |
//! | [`stats`] | one table of counters with names and units |
//! | [`sys`] | everything asked of the kernel, and the only room with `unsafe` |
//! | [`types`] | ids, ranges, sizes, errors: the shared words live on the ground floor |
//!
//! ## Where to start reading
//!
//! A warm `open(2)` is [`fs::open`]: a pure decision over four facts. A cold one goes on into
//! [`cache`], which joins or leads a flight, reserves space in [`store::budget`], copies by an
//! [`cache::engine`] and commits to the [`store::index`].

pub mod backing;
pub mod cache;
pub mod cli;
pub mod config;
pub mod control;
pub mod faultfs;
pub mod fs;
pub mod fuse;
pub mod mount;
pub mod policy;
pub mod stats;
pub mod store;
pub mod sys;
pub mod types;
