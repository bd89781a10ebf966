//! kill -9 at a random instant of a mixed load, again and again on the same cache, and what must hold after each: the mount
//! comes back, every file reads as the source has it, nothing lies in the cache that the index does not know, and what
//! was complete is still there.
//!
//! What the figures mean:
//!
//! - **during a fill**: a data file that the index does not know and that is shorter than the file it is to become lay in
//!   the cache at the kill; or a read of a large file that was not cached began before the kill and was ended by it.
//! - **kept**: of the entries that were complete in the cache 2 s before the kill (the index is written once a second) or
//!   had survived an earlier kill, whose source file did not change and which nobody evicted, those that are complete
//!   after the next mount. That no byte of them is asked of the source again is checked, too. Mounts whose cache is
//!   smaller than the data are left out: there entries go as they should.
//! - **ready**: from the start of `warmfs mount` to its return, when the mount answers.

use super::content;
use super::load::Load;
use super::stage::{Daemon, DataFile, Stage, alive, numbers};
use super::tree::{DIRS, Dice, Entry, Sizes, Tree};
use crate::figures::Figure;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use warmfs::types::FileId;

const SIZES: Sizes = Sizes { small: 160, large: 6, small_bytes: 60_000, large_bytes: (1_200_000, 3_000_000) };
/// An index that is written once a second has what is this old.
const SETTLED: Duration = Duration::from_secs(2);
/// Threads that read everything after a mount.
const READERS: usize = 3;
/// What the slow source does to a fill, so that a random instant meets one.
const SLOW: &str = "op=read delay=15ms\nop=open delay=1ms\n";
/// After so many failures the rest would say nothing new.
const FAILURES_MAX: usize = 10;

/// How a mount is made.
#[derive(Clone)]
struct Mode {
    flags: Vec<String>,
    ttl: Duration,
    /// Whether everything fits.
    roomy: bool,
}

impl Mode {
    fn draw(dice: &mut Dice) -> Self {
        let ttl = if dice.one_in(3) { Duration::from_millis(200) } else { Duration::ZERO };
        let roomy = !dice.one_in(5);
        let engine = if dice.one_in(2) { "pread" } else { "io_uring" };
        let size = if roomy { "1GB" } else { "12MB" };
        let mut flags: Vec<String> = vec!["--ttl".into(), format!("{}ms", ttl.as_millis())];
        for option in [
            format!("mount.io_engine={engine}"),
            format!("cache.size={size}"),
            format!("cache.evict_policy={}", if dice.one_in(2) { "lru" } else { "epoch" }),
            "cache.small_file_max=1MiB".into(),
            "cache.min_free=0".into(),
        ] {
            flags.extend(["-o".into(), option]);
        }
        if dice.one_in(2) {
            flags.push("--no-passthrough".into());
        }
        Self { flags, ttl, roomy }
    }
}

/// A source and its mount.
struct World {
    stage: Stage,
    tree: Tree,
    mode: Mode,
    daemon: Daemon,
}

/// What was counted.
#[derive(Default)]
struct Totals {
    kills: u64,
    in_a_fill: u64,
    unfinished_files: u64,
    cut_off_reads: u64,
    reads: u64,
    entries: u64,
    kept: u64,
    lost: Vec<String>,
    clean_stops: u64,
    ready: Vec<Duration>,
    cycles: Vec<Duration>,
    failures: Vec<String>,
}

/// Kills `count` times; whether all went well.
pub fn run(work: &Path, count: u64, seed: u64, start: Instant) -> bool {
    let mut dice = Dice::new(seed, 0);
    let mut totals = Totals::default();
    let mut worlds: Vec<_> =
        [("plain", false), ("slow", true)].map(|(name, slow)| World::new(work, name, slow, &mut dice)).into();
    let mut told = 0;
    for cycle in 0..count {
        let begin = Instant::now();
        // Four in five over the slow source: there a random instant meets a fill.
        let world = &mut worlds[usize::from(cycle % 5 != 0)];
        if let Err(error) = world.cycle(&mut dice, &mut totals) {
            totals.failures.push(format!("cycle {cycle}: {error}"));
            break;
        }
        totals.cycles.push(begin.elapsed());
        totals.failures[told..].iter().for_each(|failure| println!("cycle {cycle}: {failure}"));
        told = totals.failures.len();
        alive(start);
        if (cycle + 1) % 50 == 0 {
            println!("{}", totals.line());
        }
        if totals.failures.len() >= FAILURES_MAX {
            break;
        }
    }
    for world in &worlds {
        if totals.failures.is_empty()
            && let Err(error) = world.end()
        {
            totals.failures.push(error);
        }
    }
    totals.report(count, seed)
}

impl World {
    fn new(work: &Path, name: &str, slow: bool, dice: &mut Dice) -> Self {
        let stage = Stage::new(work, name, slow);
        let tree = Tree::make(&stage.real(), &SIZES, slow, dice);
        let mode = Mode::draw(dice);
        let (daemon, _) = stage.mount(&mode.flags).unwrap_or_else(|e| panic!("{e}"));
        let world = Self { stage, tree, mode, daemon };
        world.read_everything(&HashSet::new(), &mut Totals::default());
        world
    }

    /// One kill and what must hold after it. An error is the end of the run: there is no mount to go on with.
    fn cycle(&mut self, dice: &mut Dice, totals: &mut Totals) -> Result<(), String> {
        if dice.one_in(10) {
            self.stop_and_start(dice, totals)?;
        }
        self.tree.settle();
        let load = Load::new(&self.stage, &self.tree, &SIZES, self.mode.ttl);
        let mut paths = Vec::new();
        for _ in 0..dice.below(6) + 4 {
            paths.push(PathBuf::from(format!("d{}", dice.below(DIRS))));
        }
        paths.push("large".into());
        load.evict(&paths)?;
        if self.stage.slow {
            self.stage.rules(SLOW);
        }
        let time = match dice.one_in(12) {
            true => Duration::from_millis(1000 + dice.below(2000)),
            false => Duration::from_micros(10_000 + dice.below(390_000)),
        };
        let died = load.run(dice.below(u64::MAX), time, || self.daemon.kill().map(|()| Instant::now()))?;
        totals.kills += 1;
        totals.reads += load.judged.into_inner();
        let cut_off = load.cut_off.into_inner();
        let wrong = load.wrong.into_inner().unwrap_or_default();
        let mode = format!("slow source: {}, {:?}", self.stage.slow, self.mode.flags);
        totals.failures.extend(wrong.into_iter().map(|w| format!("under load ({mode}): {w}")));
        if self.stage.slow {
            self.stage.rules("");
        }
        let known = self.stage.index()?;
        let unfinished = self.unfinished(&known);
        totals.unfinished_files += unfinished;
        totals.cut_off_reads += cut_off;
        totals.in_a_fill += u64::from(unfinished + cut_off > 0);
        let was_roomy = self.mode.roomy;
        self.start(dice, totals)?;
        self.check_disk(&numbers(&known), totals)?;
        let warm = self.check_kept(was_roomy.then_some(died), totals)?;
        self.read_everything(&warm, totals);
        Ok(())
    }

    fn start(&mut self, dice: &mut Dice, totals: &mut Totals) -> Result<(), String> {
        self.mode = Mode::draw(dice);
        let (daemon, took) = self.stage.mount(&self.mode.flags)?;
        self.daemon = daemon;
        totals.ready.push(took);
        Ok(())
    }

    /// A clean stop leaves exactly what the index knows.
    fn stop_and_start(&mut self, dice: &mut Dice, totals: &mut Totals) -> Result<(), String> {
        self.stage.umount(&self.daemon)?;
        totals.clean_stops += 1;
        let (known, there) = (numbers(&self.stage.index()?), numbers(&self.stage.data_files()));
        if known != there {
            totals.failures.push(format!(
                "after a clean stop: not known {:?}, not there {:?}",
                there.difference(&known).collect::<Vec<_>>(),
                known.difference(&there).collect::<Vec<_>>()
            ));
        }
        self.start(dice, totals)
    }

    /// Data files that were being filled when the daemon died: not known, and shorter than they were to become.
    fn unfinished(&self, known: &HashMap<u64, FileId>) -> u64 {
        let is_short = |file: &DataFile| {
            let head = std::fs::File::open(&file.path).and_then(|mut file| {
                let mut head = Vec::new();
                std::io::Read::read_to_end(&mut std::io::Read::take(&mut file, 8), &mut head)?;
                Ok(head)
            });
            match head.ok().as_deref().and_then(content::version_of) {
                Some(origin) => {
                    let entry = &self.tree.files[origin.file as usize];
                    entry.size_of(origin.version).is_some_and(|size| file.len < size)
                }
                // No byte of it was written yet; one with its full length is filled in pieces.
                None => file.len == 0,
            }
        };
        let files = self.stage.data_files();
        files.iter().filter(|(number, file)| !known.contains_key(number) && is_short(file)).count() as u64
    }

    /// Nothing lies in the cache that the index did not know at the kill, and all that lies there is counted.
    fn check_disk(&self, known: &HashSet<u64>, totals: &mut Totals) -> Result<(), String> {
        let stats = self.stage.stats()?;
        let figure = |name: &str| stats[name].as_u64().unwrap_or(u64::MAX);
        let files: HashMap<u64, DataFile> = self.stage.data_files();
        let leaked: Vec<_> = files.keys().filter(|number| !known.contains(number)).collect();
        let disk: u64 = files.values().map(|file| file.disk).sum();
        if !leaked.is_empty() {
            totals.failures.push(format!("leaked: data files {leaked:?} are in no index"));
        }
        if figure("cached_files") != files.len() as u64 {
            totals.failures.push(format!("{} data files, {} entries", files.len(), figure("cached_files")));
        }
        if disk > figure("cache_used_bytes") {
            totals.failures.push(format!("{disk} bytes on the disk, {} counted", figure("cache_used_bytes")));
        }
        Ok(())
    }

    /// Counts what was kept, and reads what is warm: the numbers of those files. `died` is when the daemon did, if the
    /// cache had room for everything.
    fn check_kept(&self, died: Option<Instant>, totals: &mut Totals) -> Result<HashSet<u64>, String> {
        let mut warm = Vec::new();
        for entry in &self.tree.files {
            let state = self.state(entry)?;
            let settled = |t: Instant| died.is_some_and(|died| t + SETTLED <= died);
            if self.mode.roomy && entry.complete_since().is_some_and(settled) {
                totals.entries += 1;
                totals.kept += u64::from(state == "warm");
                if state != "warm" {
                    let age = died.zip(entry.complete_since()).map(|(died, since)| died - since);
                    totals
                        .lost
                        .push(format!("{} ({state} now, complete for {age:.1?})", entry.path.display()));
                }
            }
            // What survived is in the index for good.
            entry.set_complete((state == "warm").then(|| Instant::now() - SETTLED));
            warm.extend((state == "warm").then_some(entry));
        }
        // Not its bytes: what is not warm may be fetched ahead meanwhile.
        let misses = || Ok::<_, String>(self.stage.stats()?["misses"].as_u64());
        let before = misses()?;
        self.read(&warm, totals);
        let after = misses()?;
        if after != before {
            totals.failures.push(format!("what was warm was a miss: {before:?} to {after:?}"));
        }
        Ok(warm.iter().map(|entry| entry.file).collect())
    }

    fn state(&self, entry: &Entry) -> Result<String, String> {
        let mut value = [0; 16];
        let path = self.stage.mnt().join(&entry.path);
        let len = rustix::fs::lgetxattr(&path, "user.warmfs.state", &mut value)
            .map_err(|e| format!("{}: state: {e}", path.display()))?;
        Ok(String::from_utf8_lossy(&value[..len]).into_owned())
    }

    /// Every file that was not read yet is what the source has, and every listing is complete.
    fn read_everything(&self, read: &HashSet<u64>, totals: &mut Totals) {
        let rest: Vec<_> = self.tree.files.iter().filter(|entry| !read.contains(&entry.file)).collect();
        self.read(&rest, totals);
        for entry in self.tree.files.iter().filter(|entry| entry.large) {
            let look = entry.look(Duration::ZERO);
            if self.state(entry).is_ok_and(|state| state == "warm") {
                entry.note_complete(look);
            }
        }
        let mut listed = 0;
        for dir in std::fs::read_dir(self.stage.mnt()).into_iter().flatten().flatten() {
            listed += std::fs::read_dir(dir.path()).into_iter().flatten().flatten().count();
        }
        if listed != self.tree.files.len() {
            totals.failures.push(format!("{listed} names, not {}", self.tree.files.len()));
        }
    }

    fn read(&self, entries: &[&Entry], totals: &mut Totals) {
        let read = |entry: &Entry| {
            let look = entry.look(Duration::ZERO);
            let bytes = std::fs::read(self.stage.mnt().join(&entry.path))
                .map_err(|e| format!("{}: {e}", entry.path.display()))?;
            entry.judge(look, &bytes)?;
            if !entry.large {
                entry.note_complete(look);
            }
            Ok(())
        };
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..READERS)
                .map(|n| {
                    let mine = entries.iter().skip(n).step_by(READERS);
                    scope.spawn(move || mine.filter_map(|entry| read(entry).err()).collect::<Vec<_>>())
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        totals.reads += entries.len() as u64;
        totals
            .failures
            .extend(wrong.into_iter().map(|w| format!("after the mount: {w}\n{}", self.stage.log())));
    }

    /// The last stop is clean; then every byte is hashed once more.
    fn end(&self) -> Result<(), String> {
        self.stage.umount(&self.daemon)?;
        let (known, there) = (numbers(&self.stage.index()?), numbers(&self.stage.data_files()));
        if known != there {
            return Err(format!("at the end {} files are there, {} are known", there.len(), known.len()));
        }
        let cache = self.stage.cache();
        let output = crate::common::run(&["verify".as_ref(), "--cache-dir".as_ref(), cache.as_os_str()]);
        match output.status.success() {
            true => Ok(()),
            false => Err(format!("verify: {}", crate::common::text(&output))),
        }
    }
}

impl Totals {
    fn line(&self) -> String {
        format!(
            "{} kills, {} in a fill ({} unfinished files, {} reads cut off), {} clean stops, {} files compared, \
             {} of {} entries kept, ready in {:.0?} (median) and {:.0?} (p99), a cycle {:.0?} (median), {} failures",
            self.kills,
            self.in_a_fill,
            self.unfinished_files,
            self.cut_off_reads,
            self.clean_stops,
            self.reads,
            self.kept,
            self.entries,
            share(&self.ready, 50),
            share(&self.ready, 99),
            share(&self.cycles, 50),
            self.failures.len()
        )
    }

    fn report(&self, count: u64, seed: u64) -> bool {
        println!("{}", self.line());
        self.lost.iter().take(20).for_each(|entry| println!("not kept: {entry}"));
        self.failures.iter().for_each(|failure| println!("FAILED {failure}"));
        let kept = 100.0 * self.kept as f64 / self.entries.max(1) as f64;
        let mut demands = vec![
            (self.failures.is_empty(), "0 wrong reads, failed mounts and leaked files".to_string()),
            (self.kills == count, format!("{count} kills")),
            (self.in_a_fill * 2 >= self.kills, "half of the kills during a fill".into()),
            (self.entries > 0 && kept >= 95.0, format!("95 % of the entries kept: {kept:.1} %")),
        ];
        demands.retain(|(met, _)| !met);
        demands.iter().for_each(|(_, demand)| println!("NOT MET: {demand} (seed {seed})"));
        Figure::new("R8", "kill -9 cycles", self.kills, self.failures.len() as u64)
            .seed(seed)
            .fired("killed during a fill", self.in_a_fill)
            .fired("entries that could be lost", self.entries)
            .more("entries kept", kept, "%")
            .less("time to ready p99", share(&self.ready, 99).as_secs_f64(), "s")
            .note(&format!(
                "{} files compared; {} clean stops between the kills",
                self.reads, self.clean_stops
            ))
            .report();
        demands.is_empty()
    }
}

/// The value below which `percent` of them are.
pub fn share(times: &[Duration], percent: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(index).copied().unwrap_or_default()
}
