//! Files that are fetched before they are asked for: what it brings, what it costs, and when it keeps still.

use crate::common::*;
use crate::need_quiet;
use std::path::Path;
use std::time::{Duration, Instant};
use warmfs::types::FileId;

/// A number that depends on both.
fn mixed(seed: u64, n: u64) -> u32 {
    FileId { high: seed, low: n }.fingerprint()
}

/// `0..count` in an order of its own.
pub fn shuffled(seed: u64, count: u64) -> Vec<u64> {
    let mut files: Vec<u64> = (0..count).collect();
    files.sort_by_key(|&n| mixed(seed, n));
    files
}

/// A data set of files of mixed sizes in classes.
pub struct DataSet {
    pub count: u64,
    pub mean_bytes: usize,
}

impl DataSet {
    pub fn name(&self, n: u64) -> String {
        format!("train/class{}/{n}.jpg", n % 20)
    }

    fn size(&self, n: u64) -> usize {
        self.mean_bytes / 2 + mixed(3, n) as usize % self.mean_bytes
    }

    pub fn bytes(&self) -> u64 {
        (0..self.count).map(|n| self.size(n) as u64).sum()
    }

    /// What the files take in blocks.
    pub fn blocks(&self) -> u64 {
        (0..self.count).map(|n| self.size(n).next_multiple_of(4096) as u64).sum()
    }

    pub fn write(&self, dir: &Path) {
        for n in 0..self.count {
            let path = dir.join(self.name(n));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, pattern(n, self.size(n))).unwrap();
        }
    }

    /// Reads all files once, on one thread, with a pause after each, as who computes makes; and compares them, once the
    /// time has been taken.
    pub fn read(&self, dir: &Path, order: &[u64], pause: Duration) -> Duration {
        let start = Instant::now();
        let read = |&n: &u64| {
            let bytes = std::fs::read(dir.join(self.name(n))).unwrap();
            std::thread::sleep(pause);
            (n, bytes)
        };
        let all: Vec<_> = order.iter().map(read).collect();
        let took = start.elapsed();
        for (n, bytes) in all {
            assert!(bytes == pattern(n, self.size(n)), "{}", self.name(n));
        }
        took
    }
}

pub fn grown<T>(world: &World, names: [&str; 5], work: impl FnOnce() -> T) -> ([u64; 5], T) {
    let before = names.map(|name| world.stat(name));
    let done = work();
    let after = names.map(|name| world.stat(name));
    (std::array::from_fn(|i| after[i] - before[i]), done)
}

pub const FIGURES: [&str; 5] =
    ["hits", "opens", "prefetched_bytes", "prefetch_used_bytes", "prefetch_wasted_bytes"];

/// Goal: with half of the data on the SSD, and RAM for a twentieth, reading ahead of an epoch makes hits of 62 % of its
/// opens at least; keeping what fits makes 50 %. Nothing of it is written to the SSD, and nearly all of it is used.
#[test]
fn a_ring_of_unread_files_raises_the_hit_ratio() {
    need_quiet!();
    let set = DataSet { count: 2000, mean_bytes: 12_000 };
    let capacity = (set.blocks() / 2 + (2 << 20)).to_string();
    // Three quarters of the window are for what nobody has asked for yet.
    let window = format!("cache.ram_window={}", set.blocks() / 20 * 4 / 3);
    let world = World::new(&["--cache-size", &capacity, "-o", &window]);
    set.write(&world.src(""));
    world.mount();
    let mut steady = Vec::new();
    for epoch in 0..5 {
        let order = shuffled(epoch + 10, set.count);
        let ([hits, opens, fetched, used, wasted], _) =
            grown(&world, FIGURES, || set.read(&world.mnt(""), &order, Duration::from_micros(300)));
        let ratio = hits as f64 / opens as f64;
        println!(
            "epoch {epoch}: hit ratio {ratio:.3}, {fetched} bytes fetched ahead, {used} used, {wasted} wasted"
        );
        if epoch >= 2 {
            steady.push(ratio);
            assert!(wasted * 10 < fetched, "{wasted} of {fetched} bytes wasted");
        }
    }
    let mean = steady.iter().sum::<f64>() / steady.len() as f64;
    assert!(mean >= 0.62, "{mean}: {steady:?}");
    world.umount();
}

/// A source that takes its time.
struct Slow {
    world: World,
}

impl Slow {
    fn new(set: &DataSet, flags: &[&str]) -> Self {
        let world = World::new(flags);
        let real = world.dir().join("real");
        std::fs::create_dir(&real).unwrap();
        set.write(&real);
        // Attributes are believed for a moment, as NFS, sshfs and Lustre do.
        let args = ["--latency", "2ms", "--bandwidth", "100MB", "--ttl", "1s"];
        let output = warmfs().arg("faultfs").arg(&real).arg(world.src("")).args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        Self { world }
    }
}

/// Goal: one thread that reads a data set for the first time from a slow source is four times as fast when what it will
/// read is fetched ahead.
#[test]
fn a_first_epoch_over_a_slow_source_is_read_ahead() {
    need_quiet!();
    let set = DataSet { count: 1200, mean_bytes: 100_000 };
    let order = shuffled(7, set.count);
    let mut seconds = Vec::new();
    for flags in [&["--no-prefetch"][..], &[]] {
        let slow = Slow::new(&set, flags);
        slow.world.mount();
        let ([hits, opens, fetched, used, wasted], took) =
            grown(&slow.world, FIGURES, || set.read(&slow.world.mnt(""), &order, Duration::ZERO));
        println!(
            "{flags:?}: {took:.1?}, {hits} hits of {opens}, {fetched} ahead, {used} used, {wasted} wasted"
        );
        assert_eq!(fetched > 0, flags.is_empty());
        assert!(wasted * 10 <= fetched && fetched <= set.bytes());
        seconds.push(took.as_secs_f64());
        slow.world.umount();
    }
    let ratio = seconds[0] / seconds[1];
    assert!(ratio >= 4.0, "{ratio:.2} times as fast");
}
