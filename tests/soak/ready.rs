//! How soon a mount answers over a cache of 100,000 entries that a kill has left in doubt.

use super::kills::share;
use super::stage::{Stage, alive};
use crate::figures::Figure;
use std::path::Path;
use std::time::{Duration, Instant};
use warmfs::store::{Change, Index, Record};
use warmfs::types::{FileId, FileVersion, Timestamp};

/// What a node's data set may have.
const ENTRIES: u64 = 100_000;
/// A mount that takes longer is late.
const LATE: Duration = Duration::from_secs(2);

/// Goal: ready within 2 s. Method: a cache of 100,000 entries, then a mount and a kill, `count` times; the first mount does
/// not count, as it has no kill before it.
pub fn run(work: &Path, count: u64, start: Instant) -> bool {
    let stage = Stage::new(work, "ready", false);
    make_entries(&stage);
    alive(start);
    let mut times = Vec::new();
    let mut failures = 0;
    for round in 0..=count {
        match stage.mount(&[
            "-o".into(),
            "cache.min_free=0".into(),
            "-o".into(),
            "cache.max_files=200000".into(),
        ]) {
            Ok((daemon, took)) => {
                let entries = stage.stats().ok().and_then(|stats| stats["cached_files"].as_u64());
                if entries != Some(ENTRIES) {
                    println!("FAILED round {round}: {entries:?} entries, not {ENTRIES}");
                    failures += 1;
                }
                times.push(took);
                daemon.kill().unwrap_or_else(|e| panic!("{e}"));
            }
            Err(e) => {
                println!("FAILED round {round}: {e}");
                failures += 1;
            }
        }
        alive(start);
    }
    times.remove(0);
    let p99 = share(&times, 99);
    println!(
        "ready over {ENTRIES} entries after a kill: {:.0?} (median), {p99:.0?} (p99)",
        share(&times, 50)
    );
    Figure::new("R8", "mounts over 100,000 entries after kill -9", count, failures)
        .fired("kills", times.len() as u64)
        .less("time to ready p99", p99.as_secs_f64(), "s")
        .report();
    if p99 >= LATE {
        println!("NOT MET: ready within {LATE:?}");
    }
    failures == 0 && p99 < LATE
}

/// Entries of files that the source does not have, which makes no difference to a start.
fn make_entries(stage: &Stage) {
    let dir = stage.open_cache();
    let mut loaded = Index::open(dir.io(), &dir.index_path()).unwrap();
    let time = Timestamp { secs: 1, nanos: 0 };
    let hash = *blake3::hash(b"0123456789").as_bytes();
    let changes: Vec<_> = (0..ENTRIES)
        .map(|n| {
            let (number, fd) = dir.create().unwrap();
            rustix::io::write(&fd, b"0123456789").unwrap();
            let version = FileVersion { size: 10, mtime: time, ctime: time, ino: 1_000_000 + n };
            let path = format!("directory/file{n}").into_bytes();
            let id = FileId { high: 0, low: 1_000_000 + n };
            (id, Change::Put(Record { number, version, path, chunks: vec![Some(hash)] }))
        })
        .collect();
    loaded.index.commit(changes.iter().map(|(id, change)| (*id, change))).unwrap();
}
