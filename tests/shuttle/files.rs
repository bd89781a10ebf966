//! Cached files: used or retired, never both; what is known of their chunks adds up.

use crate::{SMALL, explore};
use shuttle::sync::atomic::{AtomicU32, Ordering::SeqCst};
use shuttle::thread;
use std::sync::Arc;
use warmfs::store::{Budget, CacheFile, Chunk, Place, disk_bytes};
use warmfs::types::{CHUNK_BYTES, FileId, FileVersion, Timestamp};

const TRUSTED: Chunk = Chunk::Present { hash: [1; 32], trusted: true };

fn file(budget: &Arc<Budget>, chunks: Vec<Chunk>) -> Arc<CacheFile> {
    let time = Timestamp::default();
    let size = chunks.len() as u64 * CHUNK_BYTES;
    let version = FileVersion { size, mtime: time, ctime: time, ino: 1 };
    let room = budget.reserve(0, 1).unwrap();
    CacheFile::new(FileId { high: 0, low: 1 }, version, b"f", Place::Ssd { number: 1 }, chunks, room)
}

/// Goal: two users, one of whom hands his use on, and two who want to remove the file: at most one of those gets it,
/// never while it is used, and nobody begins to use it after.
fn used_or_retired() {
    let f = file(&Budget::new(1 << 40, 9), vec![TRUSTED]);
    let removed = Arc::new(AtomicU32::new(0));
    let users = (0..2).map(|n| {
        let (f, removed) = (f.clone(), removed.clone());
        thread::spawn(move || {
            let Some(used) = f.use_it() else { return };
            assert!(f.is_in_use());
            assert_eq!(removed.load(SeqCst), 0, "used after it was removed");
            if n == 0 {
                let handed_on = used.clone();
                drop(used);
                thread::yield_now();
                assert_eq!(removed.load(SeqCst), 0, "removed while it was used");
                drop(handed_on);
            }
        })
    });
    let users: Vec<_> = users.collect();
    let removers = (0..2).map(|_| {
        let (f, removed) = (f.clone(), removed.clone());
        thread::spawn(move || {
            if f.retire() {
                assert_eq!(removed.fetch_add(1, SeqCst), 0, "removed twice");
                assert!(f.use_it().is_none() && !f.is_in_use());
            }
        })
    });
    let removers: Vec<_> = removers.collect();
    users.into_iter().chain(removers).for_each(|t| t.join().unwrap());
    assert!(removed.load(SeqCst) == 1 || f.retire(), "nobody uses it any more");
}

/// Goal: chunks that are written, doubted and lost at the same time: the counts that decide who may read are those of
/// the chunks, and a doubt never brings a chunk back that was lost.
fn chunks_add_up() {
    let f = file(&Budget::new(1 << 40, 9), vec![TRUSTED, Chunk::Missing, TRUSTED]);
    let works: [fn(&CacheFile); 3] = [
        |f| {
            f.set_present(1, [2; 32]);
            f.set_present(2, [3; 32]);
        },
        |f| {
            f.distrust(0);
            f.distrust(2);
        },
        |f| {
            f.set_missing(0);
            assert_eq!(f.chunk(0), Chunk::Missing, "a doubt brought back what was lost");
        },
    ];
    let threads: Vec<_> = works
        .into_iter()
        .map(|work| {
            let f = f.clone();
            thread::spawn(move || work(&f))
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let chunks: Vec<Chunk> = (0..3).map(|i| f.chunk(i)).collect();
    assert_eq!(chunks[0], Chunk::Missing, "a doubt brought back what was lost");
    assert!(matches!(chunks[2], Chunk::Present { hash, .. } if hash == [3; 32]), "an older chunk came back");
    let doubtful = chunks.iter().any(|c| matches!(c, Chunk::Present { trusted: false, .. }));
    assert_eq!((f.is_complete(), f.is_doubtful(), f.is_servable()), (false, doubtful, false));
    f.set_present(0, [4; 32]);
    assert!(f.is_complete());
    assert_eq!(f.is_servable(), !doubtful);
}

/// Goal: space for the same chunks taken twice at once is counted once, and all is given back with the file.
fn space_is_counted_once() {
    let budget = Budget::new(3 * CHUNK_BYTES, 9);
    let f = file(&budget, vec![Chunk::Missing]);
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (f, budget) = (f.clone(), budget.clone());
            thread::spawn(move || {
                let room = budget.reserve(CHUNK_BYTES, 0).unwrap();
                f.add_space(room);
                f.set_present(0, [1; 32]);
                assert!(f.reserved_bytes() <= disk_bytes(f.size()));
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert_eq!((f.reserved_bytes(), budget.usage().bytes), (CHUNK_BYTES, CHUNK_BYTES));
    drop(f);
    assert_eq!((budget.usage().bytes, budget.usage().files), (0, 0));
}

#[test]
fn a_file_is_used_or_retired_and_never_both() {
    explore("schedules: use and retire", &SMALL, used_or_retired);
}

#[test]
fn what_is_known_of_chunks_adds_up() {
    explore("schedules: chunks", &SMALL, chunks_add_up);
}

#[test]
fn space_of_a_chunk_is_counted_once() {
    explore("schedules: space of chunks", &SMALL, space_is_counted_once);
}
