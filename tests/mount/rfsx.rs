//! A file-system exerciser for readers: files of the source are changed at random in every way that a file can be
//! changed, and after each change read through the mount in every way that a file can be read. What must come is known
//! from a model in memory. The same seed gives the same run (`WARMFS_TEST_SEED`).
//!
//! The public exercisers write and read the same file system, which a read-only mount cannot have; the idea is theirs.

use crate::common::*;
use crate::figures::{self, Figure};
use crate::need_mount;
use crate::tools::*;
use rustix::fs::FallocateFlags;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// The most that one file grows to: well below the limit under which a file is filled whole (4 MiB), around it, above.
const LENGTHS_MAX: [usize; 5] = [9_000, 300_000, 1 << 20, (4 << 20) + 70_000, 7 << 20];

/// How often each file is taken, of a hundred: large ones cost a hundred times as much.
const SHARES: [usize; 5] = [45, 38, 11, 3, 3];

/// Longest change or read, bytes.
const PIECE_MAX: usize = 128 << 10;

/// A handle that was opened before changes, and what it must go on to show.
struct Held {
    file: File,
    bytes: Vec<u8>,
}

struct Subject {
    name: String,
    bytes: Vec<u8>,
    len_max: usize,
    /// When the source last changed, as the version sees it.
    changed: (u64, i64, i64, i64),
    held: Option<Held>,
}

struct Run<'a> {
    world: &'a World,
    dice: Dice,
    subjects: Vec<Subject>,
    done: BTreeMap<&'static str, u64>,
    wrong: Vec<String>,
}

fn version(path: &PathBuf) -> (u64, i64, i64, i64) {
    let meta = std::fs::metadata(path).unwrap();
    (meta.len(), meta.ctime(), meta.ctime_nsec(), meta.ino() as i64)
}

impl<'a> Run<'a> {
    fn new(world: &'a World, seed: u64) -> Self {
        let mut subjects = Vec::new();
        for (i, len_max) in LENGTHS_MAX.into_iter().enumerate() {
            let name = format!("f{i}");
            let bytes = world.put(&name, len_max / 2, seed + i as u64);
            let changed = version(&world.src(&name));
            subjects.push(Subject { name, bytes, len_max, changed, held: None });
        }
        Self { world, dice: Dice::new(seed), subjects, done: BTreeMap::new(), wrong: Vec::new() }
    }

    fn step(&mut self, step: u64) {
        let mut at = self.dice.below(SHARES.iter().sum());
        let i =
            SHARES.iter().position(|share| at.checked_sub(*share).map(|left| at = left).is_none()).unwrap();
        let what = match self.dice.below(3) {
            0 => self.change(i),
            _ => self.read(i),
        };
        match what {
            Ok(what) => *self.done.entry(what).or_default() += 1,
            Err(wrong) => self.wrong.push(format!("step {step}, file {i}: {wrong}")),
        }
    }

    /// A place in the file and a length, both at random; the place may be the end.
    fn piece(&mut self, len: usize) -> (usize, usize) {
        let at = self.dice.below(len + 1);
        (at, self.dice.below(PIECE_MAX.min(len - at) + 1))
    }

    fn change(&mut self, i: usize) -> Result<&'static str, String> {
        let way = self.dice.below(8);
        let (len, len_max) = (self.subjects[i].bytes.len(), self.subjects[i].len_max);
        let (at, size) = self.piece(len);
        let room = self.dice.below(PIECE_MAX.min(len_max - at) + 1);
        let (new_len, noise) = (self.dice.below(len_max + 1), self.dice.below(1 << 30) as u64);
        let to = self.dice.below(len_max - size + 1);
        let subject = &mut self.subjects[i];
        let path = self.world.src(&subject.name);
        let bytes = &mut subject.bytes;
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let what = match way {
            0 | 1 => {
                let new = pattern(noise, room);
                bytes.resize(len.max(at + room), 0);
                bytes[at..at + room].copy_from_slice(&new);
                file.write_all_at(&new, at as u64).unwrap();
                "write"
            }
            2 => {
                bytes.resize(new_len, 0);
                file.set_len(new_len as u64).unwrap();
                "truncate or extend"
            }
            3 if size > 0 => {
                bytes[at..at + size].fill(0);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, at as u64, size as u64).unwrap();
                "punch a hole"
            }
            4 if size > 0 && (to >= at + size || to + size <= at) => {
                let copy = bytes[at..at + size].to_vec();
                bytes.resize(len.max(to + size), 0);
                bytes[to..to + size].copy_from_slice(&copy);
                let (mut from, mut into) = (at as u64, to as u64);
                let mut left = size;
                while left > 0 {
                    left -= rustix::fs::copy_file_range(&file, Some(&mut from), &file, Some(&mut into), left)
                        .unwrap();
                }
                "copy_file_range"
            }
            5 => {
                bytes.truncate(at);
                bytes.extend(pattern(noise, room));
                replace(&path, bytes);
                "replace by rename"
            }
            6 if size > 0 => {
                let new = pattern(noise, size);
                bytes[at..at + size].copy_from_slice(&new);
                let flags = libc::MAP_SHARED;
                let mut map = Map::with(&file, libc::PROT_READ | libc::PROT_WRITE, flags).unwrap();
                map.write(at, &new);
                "write by a map"
            }
            _ => {
                // The same again, in place: another version with the same bytes.
                file.write_all_at(&bytes[at..at + size], at as u64).unwrap();
                "write what is there"
            }
        };
        // Rarely: it waits for a disk.
        if way == 1 && noise.is_multiple_of(16) {
            file.sync_all().unwrap();
        }
        self.settle(i);
        Ok(what)
    }

    /// Versions are told apart by size, times and inode. Before Linux 6.13 the clock of a file system stands still for
    /// milliseconds; two changes within one tick are one version by contract.
    fn settle(&mut self, i: usize) {
        let subject = &mut self.subjects[i];
        let path = self.world.src(&subject.name);
        while version(&path) == subject.changed {
            std::thread::sleep(std::time::Duration::from_millis(1));
            File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(std::time::SystemTime::now())
                .unwrap();
        }
        subject.changed = version(&path);
    }

    fn read(&mut self, i: usize) -> Result<&'static str, String> {
        let way = self.dice.below(12);
        if way == 0 && self.subjects[i].held.is_some() {
            return self.read_held(i);
        }
        let (at, size) = self.piece(self.subjects[i].bytes.len());
        let subject = &mut self.subjects[i];
        let path = self.world.mnt(&subject.name);
        let flags = if way == 1 { libc::O_DIRECT } else { 0 };
        let file =
            File::options().read(true).custom_flags(flags).open(&path).map_err(|e| format!("open: {e}"))?;
        let expected = &subject.bytes;
        let told = file.metadata().map_err(|e| format!("fstat: {e}"))?.len();
        if told != expected.len() as u64 {
            return Err(format!("{told} bytes long and not {}", expected.len()));
        }
        let piece = &expected[at..at + size];
        let (what, same) = match way {
            1 => {
                let (from, len) = (at & !4095, (size + 8191) & !4095);
                let mut buffer = Aligned::new(len);
                let n = file.read_at(buffer.as_mut(), from as u64).map_err(|e| format!("O_DIRECT: {e}"))?;
                (
                    "O_DIRECT",
                    n == len.min(expected.len() - from) && buffer.as_mut()[..n] == expected[from..from + n],
                )
            }
            2 | 3 if !expected.is_empty() => ("map", Map::shared(&file)[at..at + size] == *piece),
            4 => {
                let (mut one, mut two) = (vec![0; size / 3], vec![0; size - size / 3]);
                let mut parts = [&mut one[..], &mut two[..]].map(std::io::IoSliceMut::new);
                let n =
                    rustix::io::preadv(&file, &mut parts, at as u64).map_err(|e| format!("preadv: {e}"))?;
                ("readv", n == size && [one, two].concat() == piece)
            }
            5 => {
                let memory = rustix::fs::memfd_create("rfsx", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                let (mut from, mut left) = (at as u64, size);
                while left > 0 {
                    match rustix::fs::sendfile(&memory, &file, Some(&mut from), left) {
                        Ok(0) => return Err(format!("sendfile ends {left} bytes early")),
                        Ok(n) => left -= n,
                        Err(e) => return Err(format!("sendfile: {e}")),
                    }
                }
                let mut got = vec![0; size];
                File::from(memory).read_exact_at(&mut got, 0).unwrap();
                ("sendfile", got == piece)
            }
            6 => {
                let (exit, entry) = rustix::pipe::pipe().unwrap();
                let (mut from, mut got) = (at as u64, Vec::new());
                while got.len() < size {
                    let flags = rustix::pipe::SpliceFlags::empty();
                    let n = rustix::pipe::splice(
                        &file,
                        Some(&mut from),
                        &entry,
                        None,
                        (size - got.len()).min(60_000),
                        flags,
                    )
                    .map_err(|e| format!("splice: {e}"))?;
                    if n == 0 {
                        break;
                    }
                    let start = got.len();
                    got.resize(start + n, 0);
                    std::io::Read::read_exact(&mut File::from(exit.try_clone().unwrap()), &mut got[start..])
                        .unwrap();
                }
                ("splice", got == piece)
            }
            7 => ("whole", std::fs::read(&path).map_err(|e| format!("read whole: {e}"))? == *expected),
            8 => {
                let mut past = [0; 100];
                let n = file
                    .read_at(&mut past, expected.len() as u64)
                    .map_err(|e| format!("past the end: {e}"))?;
                ("at the end", n == 0)
            }
            9 => {
                subject.held = Some(Held { file, bytes: expected.clone() });
                return Ok("held open");
            }
            _ => {
                let mut got = vec![0; size];
                file.read_exact_at(&mut got, at as u64).map_err(|e| format!("pread: {e}"))?;
                ("pread", got == piece)
            }
        };
        if same { Ok(what) } else { Err(format!("{what} of {size} bytes at {at}: other bytes")) }
    }

    /// A handle keeps the version that it opened. One that was only partly cached when the source changed may say that it
    /// is gone, and nothing else.
    fn read_held(&mut self, i: usize) -> Result<&'static str, String> {
        let held = self.subjects[i].held.take().unwrap();
        let (at, size) = self.piece(held.bytes.len());
        let mut got = vec![0; size];
        match held.file.read_exact_at(&mut got, at as u64) {
            Ok(()) if got == held.bytes[at..at + size] => {}
            Ok(()) => return Err(format!("a held handle shows other bytes ({size} at {at})")),
            Err(e) if e.raw_os_error() == Some(libc::ESTALE) => return Ok("held, gone"),
            Err(e) => return Err(format!("a held handle: {e}")),
        }
        if self.dice.below(4) > 0 {
            self.subjects[i].held = Some(held);
        }
        Ok("held")
    }
}

fn exercise(flags: &[&str], steps: u64) {
    // The watchdog of a world is for tests that take seconds; a long run takes a new one now and then.
    const STEPS_OF_A_WORLD: u64 = 50_000;
    let seed = figures::seed();
    let (mut done, mut wrong, mut passthrough) = (BTreeMap::<&str, u64>::new(), Vec::new(), 0);
    let begun = std::time::Instant::now();
    for round in 0..steps.div_ceil(STEPS_OF_A_WORLD) {
        let world = World::mounted(&[flags, &["--ttl=0s", "--cache-size=64MiB"]].concat());
        let mut run = Run::new(&world, seed + round);
        for step in 0..STEPS_OF_A_WORLD.min(steps - round * STEPS_OF_A_WORLD) {
            run.step(step);
            if run.wrong.len() > 20 {
                break;
            }
        }
        run.done.iter().for_each(|(what, n)| *done.entry(what).or_default() += n);
        wrong.extend(run.wrong.iter().map(|wrong| format!("seed {}: {wrong}", seed + round)));
        run.subjects.clear();
        passthrough += world.stat("passthrough_opens");
    }
    let n: u64 = done.values().sum::<u64>() + wrong.len() as u64;
    let way = if flags.is_empty() { "passthrough" } else { "no passthrough" };
    let mut figure =
        Figure::new("R5", &format!("rfsx, {way}: operations with a divergence"), n, wrong.len() as u64)
            .seed(seed);
    for (what, count) in &done {
        figure = figure.fired(what, *count);
    }
    figure.more("operations", n as f64 / begun.elapsed().as_secs_f64(), "/s").report();
    assert_eq!(passthrough > 0, flags.is_empty(), "the way of serving that was meant");
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n"));
}

/// Goal: no read gives anything but the newest version of the source, or the version that its handle opened. Method: see
/// above.
#[test]
fn rfsx_with_passthrough() {
    need_mount!();
    exercise(&[], figures::scale(10_000, 1_000_000, 5_000_000));
}

/// The same when every read comes to the daemon.
#[test]
fn rfsx_without_passthrough() {
    need_mount!();
    exercise(&["--no-passthrough"], figures::scale(10_000, 1_000_000, 5_000_000));
}
