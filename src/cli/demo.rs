//! `warmfs demo`: the speed-up, shown on this machine without set-up.
//!
//! It makes a dataset, puts a source in front of it that is slow in a stated way (so much latency a request, so much
//! bandwidth), mounts warmfs over that, and reads every file once per epoch in random order, as training does: cold,
//! then warm with the page cache dropped, then warm again; and the same from the bare SSD for comparison. Everything
//! goes through real mounts and the same program that users run; nothing is left behind.

use super::Failure;
use super::args::DemoArgs;
use super::show::{files, print_json, table};
use crate::types::PathText;
use crate::types::units::{parse_duration, show_size};
use serde::Serialize;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// One pass over the dataset.
#[derive(Serialize)]
struct Epoch {
    name: &'static str,
    files: usize,
    bytes: u64,
    seconds: f64,
    /// Of the opens in this epoch, how many needed no byte from the source; none for the bare SSD.
    hit_ratio: Option<f64>,
}

/// `warmfs demo`
pub fn run(args: &DemoArgs) -> Result<(), Failure> {
    parse_duration(&args.latency).map_err(Failure::usage)?;
    super::mount::parse_bandwidth(&args.bandwidth)?;
    if args.files == 0 || args.readers == 0 {
        return Err(Failure::usage("a demo needs at least one file and one reader"));
    }
    let stage = Stage::new(args.dir.as_deref())?;
    let say = |text: &str| {
        if !args.json {
            say!("{text}");
        }
    };
    say(&format!("working in   {} (removed at the end)", PathText(&stage.dir)));
    let bytes = make_dataset(&stage, args.files)?;
    let count = files(args.files as u64);
    say(&format!("dataset      {count}, {}, on this machine's own disk", show_size(bytes)));
    stage.mount_slow(args)?;
    let bandwidth = args.bandwidth.trim_end_matches("/s");
    say(&format!("slow source  the same files, each request delayed by {}, {bandwidth}/s", args.latency));
    stage.mount_warmfs()?;
    say("warmfs       mounted over the slow source, with its cache on the disk");
    say("bare SSD     the dataset read directly, for comparison");
    say(&format!("epoch        every file read once in a new random order, {} readers", args.readers));
    let drops = may_drop_caches();
    if !drops {
        say("             only root may empty the page cache: what is called SSD here is RAM");
    }
    say("");
    let epochs = epochs(&stage, args.readers)?;
    report(&epochs, args.json);
    let (cold, warm, bare) = (&epochs[0], &epochs[1], &epochs[3]);
    say(&format!(
        "\nThe second epoch took {:.2} s instead of {:.2} s, {:.1} times as fast: {:.0} % of the speed of the bare SSD.",
        warm.seconds,
        cold.seconds,
        cold.seconds / warm.seconds,
        bare.seconds * 100.0 / warm.seconds
    ));
    Ok(())
}

fn epochs(stage: &Stage, readers: usize) -> Result<Vec<Epoch>, Failure> {
    let files = list(&stage.mnt())?;
    let native = list(&stage.ssd())?;
    if files.len() != native.len() {
        return Err(Failure::run_time(format!(
            "the mount lists {} of {} files: please report this",
            files.len(),
            native.len()
        )));
    }
    let mut epochs = Vec::new();
    for (seed, name, drop) in [
        (1, "warmfs, cold: from the slow source", true),
        (2, "warmfs, warm: from the SSD", true),
        (3, "warmfs, warm: from RAM", false),
    ] {
        epochs.push(through_mount(stage, name, &files, readers, seed, drop)?);
    }
    for (seed, name, drop) in [(4, "bare SSD", true), (5, "bare SSD: from RAM", false)] {
        if drop {
            drop_caches();
            list(&stage.ssd())?;
        }
        let (seconds, bytes) = read_all(&native, readers, seed, &stage.stop)?;
        epochs.push(Epoch { name, files: native.len(), bytes, seconds, hit_ratio: None });
    }
    Ok(epochs)
}

fn through_mount(
    stage: &Stage,
    name: &'static str,
    files: &[PathBuf],
    readers: usize,
    seed: u64,
    drop: bool,
) -> Result<Epoch, Failure> {
    if drop {
        drop_caches();
        // A job lists its dataset before it reads it; the time of an epoch is that of the reading.
        list(&stage.mnt())?;
    }
    let before = stage.hits()?;
    let (seconds, bytes) = read_all(files, readers, seed, &stage.stop)?;
    let after = stage.hits()?;
    let (hits, misses) = (after.0 - before.0, after.1 - before.1);
    let hit_ratio = Some(hits as f64 / (hits + misses).max(1) as f64);
    Ok(Epoch { name, files: files.len(), bytes, seconds, hit_ratio })
}

fn report(epochs: &[Epoch], json: bool) {
    if json {
        print_json(&epochs);
        return;
    }
    let cold = epochs[0].seconds;
    let row = |e: &Epoch| {
        vec![
            e.name.into(),
            format!("{:.0}", e.files as f64 / e.seconds),
            format!("{:.0}", e.bytes as f64 / 1e6 / e.seconds),
            e.hit_ratio.map_or("-".into(), |r| format!("{:.0} %", r * 100.0)),
            format!("{:.1} x", cold / e.seconds),
        ]
    };
    let heading = ["epoch", "files/s", "MB/s", "hits", "speed-up"];
    table(&heading, &epochs.iter().map(row).collect::<Vec<_>>());
}

/// The directories of a demo, and what is mounted on them; all of it goes when this is dropped.
struct Stage {
    dir: PathBuf,
    /// Set by Ctrl-C, so that a demo that is cut short leaves nothing behind either.
    stop: Arc<AtomicBool>,
}

impl Stage {
    fn new(parent: Option<&Path>) -> Result<Self, Failure> {
        let parent = parent.unwrap_or(Path::new("/var/tmp"));
        let dir = parent.join(format!("warmfs-demo-{}", std::process::id()));
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, stop.clone())
                .map_err(|e| Failure::run_time(format!("cannot watch for Ctrl-C: {e}")))?;
        }
        let stage = Self { dir, stop };
        for path in [stage.dir.clone(), stage.ssd(), stage.slow(), stage.mnt()] {
            std::fs::create_dir(&path)
                .map_err(|e| Failure::usage(format!("{}: {e}; choose another --dir", PathText(&path))))?;
        }
        Ok(stage)
    }

    fn ssd(&self) -> PathBuf {
        self.dir.join("dataset")
    }

    fn slow(&self) -> PathBuf {
        self.dir.join("slow")
    }

    fn mnt(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn mount_slow(&self, args: &DemoArgs) -> Result<(), Failure> {
        let mut command = warmfs();
        command.arg("faultfs").arg(self.ssd()).arg(self.slow());
        command.args(["--latency", &args.latency, "--bandwidth", &args.bandwidth, "--ttl", "60s"]);
        done(command)
    }

    fn mount_warmfs(&self) -> Result<(), Failure> {
        let mut command = warmfs();
        command.arg("mount").arg(self.slow()).arg(self.mnt());
        command.arg("--cache-dir").arg(self.dir.join("cache"));
        done(command)
    }

    fn hits(&self) -> Result<(u64, u64), Failure> {
        let found = crate::control::find_mount(&self.mnt())?;
        let stats = crate::control::Client::connect(&found.socket)?
            .call(&crate::control::Request::Stats {}, |_| {})?;
        Ok((stats["hits"].as_u64().unwrap_or(0), stats["misses"].as_u64().unwrap_or(0)))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for path in [self.mnt(), self.slow()] {
            let _ = crate::mount::unmount(&path, std::time::Duration::from_secs(10));
            let _ = crate::sys::mount::unmount(&path, true);
        }
        // Only if nothing is mounted any more: what is removed must be ours.
        let mounted = crate::sys::mountinfo::mounts()
            .is_ok_and(|all| all.iter().any(|m| m.mountpoint.starts_with(&self.dir)));
        if !mounted {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn warmfs() -> Command {
    Command::new("/proc/self/exe")
}

fn done(mut command: Command) -> Result<(), Failure> {
    let status = command.status().map_err(|e| Failure::run_time(format!("cannot start warmfs: {e}")))?;
    if status.success() { Ok(()) } else { Err(Failure::run_time("the demo cannot go on (see above)")) }
}

/// Files of about 107 kB each (the mean of ImageNet), their sizes spread as photographs' are, in directories of 500.
fn make_dataset(stage: &Stage, files: usize) -> Result<u64, Failure> {
    let fail = |e: std::io::Error| Failure::run_time(format!("cannot make the dataset: {e}"));
    let mut random = Random(0x5eed);
    let mut total = 0;
    for n in 0..files {
        if stage.stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        let class = stage.ssd().join(format!("class-{:03}", n / 500));
        if n % 500 == 0 {
            std::fs::create_dir_all(&class).map_err(fail)?;
        }
        let size = random.file_size();
        let mut bytes = vec![0; size];
        random.fill(&mut bytes);
        File::create(class.join(format!("{n:06}.bin")))
            .and_then(|mut f| f.write_all(&bytes))
            .map_err(fail)?;
        total += size as u64;
    }
    rustix::fs::sync();
    Ok(total)
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in walkdir::WalkDir::new(dir).sort_by_file_name() {
        let entry = entry.map_err(|e| Failure::run_time(e.to_string()))?;
        if entry.file_type().is_file() {
            files.push(entry.into_path());
        }
    }
    Ok(files)
}

/// Opens, stats, reads whole and closes every file once, in an order of its own. Gives seconds and bytes.
fn read_all(files: &[PathBuf], readers: usize, seed: u64, stop: &AtomicBool) -> Result<(f64, u64), Failure> {
    let mut order: Vec<&PathBuf> = files.iter().collect();
    let mut random = Random(seed);
    for i in (1..order.len()).rev() {
        order.swap(i, (random.next() % (i as u64 + 1)) as usize);
    }
    let next = AtomicUsize::new(0);
    let started = Instant::now();
    let read = || -> std::io::Result<u64> {
        let mut buffer = vec![0; 1 << 20];
        let mut total = 0;
        while let Some(path) = order.get(next.fetch_add(1, Ordering::Relaxed))
            && !stop.load(Ordering::Relaxed)
        {
            let mut file = File::open(path)?;
            let size = file.metadata()?.len();
            let mut done = 0;
            while done < size {
                match file.read(&mut buffer)? as u64 {
                    0 => break,
                    n => done += n,
                }
            }
            total += done;
        }
        Ok(total)
    };
    let totals: Vec<std::io::Result<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..readers).map(|_| scope.spawn(read)).collect();
        threads.into_iter().map(|t| t.join().unwrap_or(Ok(0))).collect()
    });
    if stop.load(Ordering::Relaxed) {
        return Err(stopped());
    }
    let mut bytes = 0;
    for total in totals {
        bytes += total.map_err(|e| Failure::run_time(format!("reading failed: {e}")))?;
    }
    Ok((started.elapsed().as_secs_f64(), bytes))
}

fn stopped() -> Failure {
    Failure::run_time("stopped; everything that the demo made is removed")
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

fn may_drop_caches() -> bool {
    File::options().write(true).open(DROP_CACHES).is_ok()
}

fn drop_caches() {
    rustix::fs::sync();
    let _ = std::fs::write(DROP_CACHES, "3");
}

/// xorshift64*: the same dataset and the same orders everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Log-normal with a mean of 107 kB, from 2 to 900 kB.
    fn file_size(&mut self) -> usize {
        let (a, b) = (self.unit().max(1e-12), self.unit());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        ((11.42 + 0.57 * normal).exp() as usize).clamp(2_000, 900_000)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dataset_is_like_photographs() {
        let mut random = Random(0x5eed);
        let sizes: Vec<usize> = (0..10_000).map(|_| random.file_size()).collect();
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((95_000..120_000).contains(&mean), "{mean}");
        assert!(sizes.iter().all(|s| (2_000..=900_000).contains(s)));
    }
}
