//! Long runs against the real binary: `--kills N` kills the daemon N times in the middle of a mixed load, `--ops N` works
//! on one mount for N operations and watches what the daemon takes. A program of its own and no part of `cargo test`,
//! because its length is chosen; `scripts/soak` runs it. Needs /dev/fuse and root.

// Helpers may fail a test as tests may.
#![allow(clippy::unwrap_used)]

#[path = "../mount/common.rs"]
#[allow(dead_code, unused_macros, unused_imports)]
mod common;
mod content;
#[path = "../figures.rs"]
mod figures;
mod kills;
mod load;
mod ops;
mod ready;
mod stage;
// Only its maps are used here.
#[allow(dead_code)]
#[path = "../mount/tools.rs"]
mod tools;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// What was asked for.
#[derive(Default)]
struct Args {
    kills: Option<u64>,
    ops: Option<u64>,
    seed: Option<u64>,
    work: Option<PathBuf>,
}

const USAGE: &str = "soak [--kills N] [--ops N] [--seed S] [--work DIR]";

fn parse(mut words: impl Iterator<Item = String>) -> Option<Args> {
    let mut args = Args::default();
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--kills" => args.kills = Some(value.parse().ok()?),
            "--ops" => args.ops = Some(value.parse().ok()?),
            "--seed" => args.seed = Some(value.parse().ok()?),
            "--work" => args.work = Some(value.into()),
            _ => return None,
        }
    }
    Some(args)
}

fn main() -> ExitCode {
    let Some(mut args) = parse(std::env::args().skip(1)) else {
        eprintln!("usage: {USAGE}");
        return ExitCode::from(2);
    };
    if !common::can_mount() {
        return ExitCode::from(2);
    }
    if args.kills.is_none() && args.ops.is_none() {
        args.kills = Some(figures::scale(20, 1000, 1000));
    }
    content::self_check();
    let parent = args.work.clone().unwrap_or_else(std::env::temp_dir);
    let work = tempfile::Builder::new().prefix("warmfs-soak-").tempdir_in(&parent);
    let mut work = work.unwrap_or_else(|e| panic!("{}: {e}", parent.display()));
    let path = work.path().canonicalize().unwrap();
    let start = Instant::now();
    stage::watch(&path, start, Duration::from_secs(120));
    let seed = args.seed.unwrap_or_else(figures::seed);
    let mut good = true;
    if let Some(count) = args.kills {
        good &= kills::run(&path, count, seed, start);
        good &= ready::run(&path, if count < 100 { 3 } else { 100 }, start);
    }
    if let Some(count) = args.ops {
        good &= ops::run(&path, count, seed, start);
    }
    stage::ended();
    println!("soak: {}, seed {seed}, {:.0?}", if good { "passed" } else { "FAILED" }, start.elapsed());
    if !good && args.work.is_some() {
        work.disable_cleanup(true);
        println!("everything is kept in {}", path.display());
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
