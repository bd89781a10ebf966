//! Operations on one mount, many of them, and what the daemon takes meanwhile: memory, descriptors, threads, log, disk.
//!
//! An operation is one call of a client on the mount: an open, a read (of 4 KiB; on a warm file the kernel serves it),
//! a close, a stat, an fstat, a listing (opened, read to its end and closed), a look at an attribute, a map (mapped,
//! every page touched, unmapped). Changes of the source, evictions and fills asked of the daemon happen all the time
//! and are counted on their own. Everything that is read is compared.

use super::stage::{Daemon, Stage, alive, rel};
use super::tree::{DIRS, Dice, Sizes, Tree};
use crate::figures::Figure;
use crate::tools::Map;
use rustix::fs::{Mode, OFlags, openat, statat};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use warmfs::control::{Request, WarmRequest};

const SIZES: Sizes =
    Sizes { small: 1500, large: 12, small_bytes: 40_000, large_bytes: (2_200_000, 4_000_000) };
/// More than two cores, so that they meet.
const CLIENTS: u64 = 4;
const TTL: Duration = Duration::from_secs(1);
/// Bytes of one read.
const READ: u64 = 4096;
/// Reads of an open file.
const READS: u64 = 6;
/// The log's limit for one of its two files.
const LOG_BYTES: u64 = 64 << 10;
/// Less than the tree takes, so that files are evicted all the time.
const CACHE_BYTES: u64 = 88 << 20;
/// What the index may grow between two looks at it.
const INDEX_GROWTH: u64 = 1 << 20;
/// Beyond this the daemon's memory grows with use. The allocator's own ups and downs stay below.
const GROWTH_MAX_KIB: f64 = 4096.0;
/// Until some million opens were seen, what is remembered of uses comes up to its bounds.
const GROWTH_AT_FIRST_MAX_KIB: f64 = 16_384.0;
/// How long the daemon's idle threads may take to end.
const QUIET: Duration = Duration::from_secs(30);

/// What happens and what was seen.
#[derive(Default)]
struct Counts {
    ops: AtomicU64,
    opens: AtomicU64,
    reads: AtomicU64,
    maps: AtomicU64,
    listings: AtomicU64,
    changes: AtomicU64,
    requests: AtomicU64,
    lost: Mutex<HashSet<PathBuf>>,
    wrong: Mutex<Vec<String>>,
    done: AtomicBool,
}

impl Counts {
    fn say(&self, wrong: String) {
        let mut said = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < 20 {
            said.push(wrong);
        }
        self.done.store(true, Ordering::Relaxed);
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }
}

/// One look at the daemon.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Duration,
    ops: u64,
    rss_kib: u64,
    fds: u64,
    threads: u64,
    log_bytes: u64,
    used_bytes: u64,
    disk_bytes: u64,
    /// What the file system has left for others.
    free_bytes: u64,
}

/// Works until `count` operations are done; whether all went well.
pub fn run(work: &Path, count: u64, seed: u64, start: Instant) -> bool {
    let stage = Stage::new(work, "ops", false);
    let tree = Tree::make(&stage.real(), &SIZES, false, &mut Dice::new(seed, 0));
    let flags = [
        format!("metadata.ttl={}ms", TTL.as_millis()),
        format!("cache.size={CACHE_BYTES}"),
        // Evicts most of all policies.
        "cache.evict_policy=lru".into(),
        "cache.small_file_max=1MiB".into(),
        "cache.min_free=0".into(),
        format!("log.max_size={LOG_BYTES}"),
    ];
    let flags: Vec<String> = flags.into_iter().flat_map(|option| ["-o".into(), option]).collect();
    let (daemon, _) = stage.mount(&flags).unwrap_or_else(|e| panic!("{e}"));
    let _ = std::fs::read(stage.mnt().join(&tree.files[0].path));
    let base = sample(&stage, &daemon, start, 0).unwrap_or_else(|e| panic!("{e}"));
    let counts = Counts::default();
    let begin = Instant::now();
    let samples = std::thread::scope(|scope| {
        let (counts, tree, stage) = (&counts, &tree, &stage);
        for n in 0..CLIENTS {
            scope.spawn(move || client(stage, tree, counts, &mut Dice::new(seed, n + 1)));
        }
        scope.spawn(move || change(tree, counts, &mut Dice::new(seed, 100)));
        scope.spawn(move || operate(stage, tree, counts, &mut Dice::new(seed, 101)));
        watch(stage, &daemon, counts, count, start)
    });
    let took = begin.elapsed();
    let lost = counts.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let end = finish(&stage, &daemon, base, &lost, start);
    report(&counts, seed, took, base, &samples, end)
}

fn client(stage: &Stage, tree: &Tree, counts: &Counts, dice: &mut Dice) {
    let root = File::open(stage.mnt()).unwrap();
    let mut buffer = vec![0; READ as usize];
    while !counts.is_done() {
        let result = match dice.below(100) {
            0..70 => read_some(&root, tree, counts, dice, &mut buffer),
            70..86 => stat_some(&root, tree, dice),
            86..88 => list(stage, counts, dice),
            88..96 => attributes(stage, tree, dice),
            _ => map(stage, tree, counts, dice),
        };
        match result {
            Ok(ops) => drop(counts.ops.fetch_add(ops, Ordering::Relaxed)),
            Err(wrong) => counts.say(wrong),
        }
    }
}

/// Three files open at once, some reads of each.
fn read_some(
    root: &File,
    tree: &Tree,
    counts: &Counts,
    dice: &mut Dice,
    buffer: &mut [u8],
) -> Result<u64, String> {
    let mut ops = 0;
    let files: Vec<_> = (0..3).map(|_| tree.any(dice)).map(|entry| (entry, entry.look(TTL))).collect();
    let mut open = Vec::with_capacity(3);
    for (entry, look) in files {
        let file: OwnedFd = match openat(root, &entry.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => file,
            // Overwritten in place and then cut, at both of the kernel's tries.
            Err(rustix::io::Errno::STALE) if entry.changed_since(look) => return Ok(ops),
            Err(e) => return Err(format!("open {}: {e}", entry.path.display())),
        };
        let len = rustix::fs::fstat(&file).map_err(|e| e.to_string())?.st_size as u64;
        open.push((entry, look, File::from(file), len));
        ops += 2;
    }
    for (entry, look, file, len) in &open {
        let mut of_all = None;
        for _ in 0..READS {
            let offset = dice.below(len.div_ceil(READ)) * READ;
            let got = match file.read_at(buffer, offset) {
                Ok(got) => got,
                Err(e) if e.raw_os_error() == Some(libc::ESTALE) && entry.changed_since(*look) => break,
                Err(e) => return Err(format!("read {}: {e}", entry.path.display())),
            };
            ops += 1;
            entry.judge_piece(*look, offset, &buffer[..got], &mut of_all)?;
        }
    }
    ops += open.len() as u64;
    counts.opens.fetch_add(open.len() as u64, Ordering::Relaxed);
    counts.reads.fetch_add(READS * open.len() as u64, Ordering::Relaxed);
    Ok(ops)
}

fn stat_some(root: &File, tree: &Tree, dice: &mut Dice) -> Result<u64, String> {
    for _ in 0..16 {
        let entry = tree.any(dice);
        statat(root.as_fd(), &entry.path, rustix::fs::AtFlags::empty())
            .map_err(|e| format!("stat {}: {e}", entry.path.display()))?;
    }
    Ok(16)
}

fn list(stage: &Stage, counts: &Counts, dice: &mut Dice) -> Result<u64, String> {
    let dir = dice.below(DIRS);
    let names = std::fs::read_dir(stage.mnt().join(format!("d{dir}")))
        .and_then(|dir| dir.collect::<std::io::Result<Vec<_>>>())
        .map_err(|e| format!("list d{dir}: {e}"))?;
    let right = (SIZES.small + DIRS - 1 - dir) / DIRS;
    if names.len() as u64 != right {
        return Err(format!("d{dir} has {} names, not {right}", names.len()));
    }
    counts.listings.fetch_add(1, Ordering::Relaxed);
    Ok(1)
}

fn attributes(stage: &Stage, tree: &Tree, dice: &mut Dice) -> Result<u64, String> {
    let path = stage.mnt().join(&tree.any(dice).path);
    let mut value = [0; 64];
    for name in ["state", "hits", "cached_bytes", "mode"] {
        rustix::fs::lgetxattr(&path, format!("user.warmfs.{name}"), &mut value)
            .map_err(|e| format!("{}: {name}: {e}", path.display()))?;
    }
    Ok(4)
}

fn map(stage: &Stage, tree: &Tree, counts: &Counts, dice: &mut Dice) -> Result<u64, String> {
    let entry = &tree.files[dice.below(SIZES.small) as usize];
    let look = entry.look(TTL);
    let fail = |e: std::io::Error| format!("map {}: {e}", entry.path.display());
    let file = match File::open(stage.mnt().join(&entry.path)) {
        // Overwritten in place at both of the kernel's tries.
        Err(e) if e.raw_os_error() == Some(libc::ESTALE) && entry.changed_since(look) => return Ok(1),
        other => other.map_err(fail)?,
    };
    let map = Map::new(&file, libc::MAP_SHARED).map_err(fail)?;
    entry.judge(look, &map)?;
    counts.maps.fetch_add(1, Ordering::Relaxed);
    // Opened, mapped, closed.
    Ok(3)
}

fn change(tree: &Tree, counts: &Counts, dice: &mut Dice) {
    while !counts.is_done() {
        std::thread::sleep(Duration::from_millis(5 + dice.below(40)));
        tree.change(tree.any(dice), &SIZES, dice);
        counts.changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Evicts and warms, and takes data files away behind the daemon's back, which is an error that it meets again and again.
fn operate(stage: &Stage, tree: &Tree, counts: &Counts, dice: &mut Dice) {
    while !counts.is_done() {
        std::thread::sleep(Duration::from_millis(50 + dice.below(200)));
        let dir = PathBuf::from(format!("d{}", dice.below(DIRS)));
        let request = match dice.below(4) {
            0 => Request::Warm(WarmRequest::of(vec![rel(&dir)])),
            1 => Request::Evict { paths: vec![rel(&dir)] },
            2 => Request::Evict { paths: vec![rel(&tree.any(dice).path)] },
            _ => {
                let mut value = [0; 4096];
                let path = &tree.any(dice).path;
                let attribute = "user.warmfs.cache_path";
                if let Ok(len) = rustix::fs::lgetxattr(stage.mnt().join(path), attribute, &mut value)
                    && std::fs::remove_file(String::from_utf8_lossy(&value[..len]).as_ref()).is_ok()
                {
                    counts.lost.lock().unwrap_or_else(PoisonError::into_inner).insert(path.clone());
                }
                continue;
            }
        };
        match stage.ask(&request) {
            Ok(_) => drop(counts.requests.fetch_add(1, Ordering::Relaxed)),
            Err(e) => counts.say(e),
        }
    }
}

fn sample(stage: &Stage, daemon: &Daemon, start: Instant, ops: u64) -> Result<Sample, String> {
    // The disk first: what is filled meanwhile is counted before it is there.
    let disk_bytes = stage.data_files().values().map(|file| file.disk).sum();
    let status = |name: &str| daemon.status(name).ok_or_else(|| format!("no {name} of {}", daemon.pid));
    // Before the daemon is asked: the connection and its thread would be counted until they are gone.
    let (fds, threads) = (daemon.fds(), status("Threads")?);
    let stats = stage.stats()?;
    Ok(Sample {
        at: start.elapsed(),
        ops,
        rss_kib: status("RssAnon")?,
        fds,
        threads,
        log_bytes: stage.log_bytes(),
        used_bytes: stats["cache_used_bytes"].as_u64().unwrap_or_default(),
        disk_bytes,
        free_bytes: free_bytes(&stage.real()),
    })
}

fn free_bytes(path: &Path) -> u64 {
    rustix::fs::statvfs(path).map_or(0, |fs| fs.f_bavail * fs.f_frsize)
}

/// Looks at the daemon once a second, until the work is done.
fn watch(stage: &Stage, daemon: &Daemon, counts: &Counts, count: u64, start: Instant) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut last_ops = 0;
    while !counts.is_done() {
        std::thread::sleep(Duration::from_millis(if count < 1_000_000 { 100 } else { 1000 }));
        let ops = counts.ops.load(Ordering::Relaxed);
        match sample(stage, daemon, start, ops) {
            Ok(sample) => samples.push(sample),
            Err(e) => counts.say(e),
        }
        if ops > last_ops {
            alive(start);
        }
        if ops / 5_000_000 > last_ops / 5_000_000 {
            println!("{ops} operations, {:?}", samples.last());
        }
        last_ops = ops;
        if ops >= count {
            counts.done.store(true, Ordering::Relaxed);
        }
    }
    samples
}

/// What is left when the work is over.
struct End {
    verified: u64,
    /// What the descriptors lead to.
    open: Vec<String>,
    damaged: u64,
    fds: u64,
    threads: u64,
    cache_errors: u64,
    /// Before everything was evicted.
    stats: serde_json::Value,
}

/// Hashes everything, gives back everything, and waits until the daemon is as it was.
fn finish(
    stage: &Stage,
    daemon: &Daemon,
    base: Sample,
    lost: &HashSet<PathBuf>,
    start: Instant,
) -> Result<End, String> {
    // What was taken away behind the daemon's back, and was not opened since, is found now, and nothing else; a second
    // look finds nothing.
    let verify = || stage.ask(&Request::Verify { paths: vec![rel(Path::new(""))] });
    let damaged = |report: &serde_json::Value| -> Vec<PathBuf> {
        let paths = report["damaged"].as_array().into_iter().flatten();
        paths.map(|path| path.as_str().unwrap_or_default().into()).collect()
    };
    let first = damaged(&verify()?);
    if let Some(path) = first.iter().find(|path| !lost.contains(*path)) {
        return Err(format!("verify: {} is damaged, and nobody did that", path.display()));
    }
    let report = verify()?;
    let stats = stage.stats()?;
    let cache_errors = stats["cache_errors"].as_u64().unwrap_or_default();
    let deadline = Instant::now() + QUIET;
    let last = loop {
        // The kernel says a moment late that a file was closed: one that was open is still here at the first look.
        stage.ask(&Request::Evict { paths: vec![rel(Path::new(""))] })?;
        // The connection of that question is open for another moment.
        std::thread::sleep(Duration::from_millis(200));
        let last = sample(stage, daemon, start, 0)?;
        alive(start);
        if last.fds <= base.fds && last.threads <= base.threads + 1 || Instant::now() >= deadline {
            break last;
        }
    };
    let open = daemon.open();
    stage.umount(daemon)?;
    Ok(End {
        open,
        verified: report["files"].as_u64().unwrap_or_default(),
        damaged: damaged(&report).len() as u64,
        fds: last.fds,
        threads: last.threads,
        cache_errors,
        stats,
    })
}

/// The line through the samples: KiB of memory per second and per operation.
fn slope(samples: &[Sample]) -> (f64, f64) {
    let line = |x: &dyn Fn(&Sample) -> f64| {
        let n = samples.len() as f64;
        let mean = |f: &dyn Fn(&Sample) -> f64| samples.iter().map(f).sum::<f64>() / n;
        let (mx, my) = (mean(x), mean(&|s| s.rss_kib as f64));
        let above = samples.iter().map(|s| (x(s) - mx) * (s.rss_kib as f64 - my)).sum::<f64>();
        let below = samples.iter().map(|s| (x(s) - mx).powi(2)).sum::<f64>();
        if below > 0.0 { above / below } else { 0.0 }
    };
    (line(&|s| s.at.as_secs_f64()), line(&|s| s.ops as f64))
}

fn report(
    counts: &Counts,
    seed: u64,
    took: Duration,
    base: Sample,
    samples: &[Sample],
    end: Result<End, String>,
) -> bool {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let ops = get(&counts.ops);
    let mut wrong = counts.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let end = end.unwrap_or_else(|e| {
        wrong.push(e);
        End {
            verified: 0,
            open: Vec::new(),
            damaged: 0,
            fds: 0,
            threads: 0,
            cache_errors: 0,
            stats: serde_json::Value::Null,
        }
    });
    let half = &samples[samples.len() / 2..];
    let (per_second, per_op) = slope(half);
    let first = half.first().copied().unwrap_or(base);
    let last = half.last().copied().unwrap_or(base);
    let growth = per_second * (last.at - first.at).as_secs_f64();
    let most = |f: &dyn Fn(&Sample) -> u64| samples.iter().map(f).max().unwrap_or_default();
    let log = most(&|s| s.log_bytes);
    let lost = counts.lost.lock().unwrap_or_else(PoisonError::into_inner).len() as u64;
    let mut demand = |met: bool, text: String| (!met).then(|| wrong.push(text));
    let growth_max = if ops < 20_000_000 { GROWTH_AT_FIRST_MAX_KIB } else { GROWTH_MAX_KIB };
    demand(growth <= growth_max, format!("memory grew by {growth:.0} KiB in the last half"));
    demand(end.fds <= base.fds, format!("{} descriptors, {} before: {:?}", end.fds, base.fds, end.open));
    // One thread starts when opens first come in quick succession, and stays.
    demand(end.threads <= base.threads + 1, format!("{} threads, {} before", end.threads, base.threads));
    demand(log <= 2 * LOG_BYTES, format!("the log takes {log} bytes"));
    demand(end.damaged == 0, format!("verify found {} damaged files", end.damaged));
    demand(end.verified > 0, "verify found nothing to look at".into());
    demand(end.cache_errors > 0 && lost > 0, "no file was lost behind the daemon's back".into());
    let least_free = samples.iter().map(|s| s.free_bytes).min().unwrap_or_default();
    demand(least_free > CACHE_BYTES, format!("others left only {least_free} bytes of the disk: no fair run"));
    // Space that is counted and never given back would leave less and less of it.
    let late = &samples[samples.len() - samples.len().div_ceil(10)..];
    let used = late.iter().map(|s| s.disk_bytes).sum::<u64>() / late.len().max(1) as u64;
    demand(
        used > CACHE_BYTES / 2,
        format!("the SSD is hardly used any more, {used} bytes on average; at the end {}", end.stats),
    );
    // The index is counted as it grows, and then something is evicted for it.
    let over =
        samples.iter().find(|s| s.disk_bytes > CACHE_BYTES || s.used_bytes > CACHE_BYTES + INDEX_GROWTH);
    demand(over.is_none(), format!("more than {CACHE_BYTES} bytes in use: {over:?}"));
    println!(
        "{ops} operations in {took:.0?} ({:.0}/s): {} opens, {} reads, {} maps, {} listings; {} changes of the source, \
         {} requests, {} files lost\n\
         memory {} KiB at first, {} at the end, {:.2} MiB/h and {:.3} MiB per million operations in the last half; \
         at most {} descriptors and {} threads (before {} and {}, after {} and {}), log {log} bytes, cache {} MiB",
        ops as f64 / took.as_secs_f64(),
        get(&counts.opens),
        get(&counts.reads),
        get(&counts.maps),
        get(&counts.listings),
        get(&counts.changes),
        get(&counts.requests),
        lost,
        base.rss_kib,
        last.rss_kib,
        per_second * 3600.0 / 1024.0,
        per_op * 1e6 / 1024.0,
        most(&|s| s.fds),
        most(&|s| s.threads),
        base.fds,
        base.threads,
        end.fds,
        end.threads,
        most(&|s| s.used_bytes) >> 20,
    );
    wrong.iter().for_each(|failure| println!("FAILED {failure}"));
    Figure::new("R21", "mixed operations on one mount", ops, wrong.len() as u64)
        .seed(seed)
        .fired("changes of the source", get(&counts.changes))
        .fired("evictions and fills asked for", get(&counts.requests))
        .fired("data files removed behind its back", lost)
        .less("memory per million operations, last half", per_op * 1e6 / 1024.0, "MiB")
        .more("operations per second", ops as f64 / took.as_secs_f64(), "1/s")
        .note(&format!(
            "memory {:.2} MiB/h in the last half of {took:.0?}; log at most {log} bytes; {} files verified at the end",
            per_second * 3600.0 / 1024.0,
            end.verified
        ))
        .report();
    wrong.is_empty()
}
