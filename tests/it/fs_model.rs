//! A model test: random sequences of changes to a directory and of uses of the file system over it, with crashes and
//! restarts between, against the directory itself. With a TTL of 0 everything must be as the directory is.

use crate::common::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;
use warmfs::backing::IdentityRule;

/// Names are few, so that sequences meet.
const NAMES: [&str; 5] = ["a", "b", "c", "d/e", "d/f"];

#[derive(Clone, Debug)]
enum Step {
    Write(usize, u64),
    Overwrite(usize, u64, u64),
    Grow(usize, u64),
    Shrink(usize),
    Rename(usize, usize),
    Replace(usize, u64),
    Delete(usize),
    Link(usize, usize),
    Mkdir,
    Evict(usize),
    Read(usize),
    Stat(usize),
    Hold(usize),
    ReadHeld(usize, u64),
    Close(usize),
    List,
    Restart,
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len();
    // A third of the files is large: in pieces, with the last one cut.
    let size = || prop_oneof![Just(0u64), 1u64..20_000, 4096u64..4097, 60_000u64..3_000_000];
    prop_oneof![
        4 => (name(), size()).prop_map(|(n, s)| Step::Write(n, s)),
        2 => (name(), 0u64..50_000, 1u64..5000).prop_map(|(n, at, len)| Step::Overwrite(n, at, len)),
        1 => (name(), 1u64..1_500_000).prop_map(|(n, s)| Step::Grow(n, s)),
        1 => name().prop_map(Step::Shrink),
        2 => (name(), name()).prop_map(|(a, b)| Step::Rename(a, b)),
        2 => (name(), size()).prop_map(|(n, s)| Step::Replace(n, s)),
        1 => name().prop_map(Step::Delete),
        1 => (name(), name()).prop_map(|(a, b)| Step::Link(a, b)),
        1 => Just(Step::Mkdir),
        1 => name().prop_map(Step::Evict),
        8 => name().prop_map(Step::Read),
        2 => name().prop_map(Step::Stat),
        2 => name().prop_map(Step::Hold),
        3 => (0usize..8, 0u64..3_000_000).prop_map(|(h, at)| Step::ReadHeld(h, at)),
        1 => (0usize..8).prop_map(Step::Close),
        3 => Just(Step::List),
        1 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ]
}

/// What a held handle was opened on.
struct Held {
    file: File,
    bytes: Vec<u8>,
}

struct Model {
    world: World,
    held: HashMap<usize, Held>,
    seed: u64,
}

impl Model {
    fn new(world: World) -> Self {
        std::fs::create_dir(world.src("d")).unwrap();
        Self { world, held: HashMap::new(), seed: 0 }
    }

    fn fresh(&mut self, size: u64) -> Vec<u8> {
        self.seed += 1;
        pattern(self.seed, size as usize)
    }

    fn path(&self, name: usize) -> std::path::PathBuf {
        self.world.src(NAMES[name])
    }

    fn truth(&self, name: usize) -> Option<Vec<u8>> {
        std::fs::read(self.path(name)).ok()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Write(n, size) => {
                let bytes = self.fresh(size);
                std::fs::write(self.path(n), bytes).unwrap();
            }
            Step::Overwrite(n, at, len) => self.overwrite(n, at, len),
            Step::Grow(n, more) => {
                if let Some(bytes) = self.truth(n) {
                    set_len(&self.path(n), bytes.len() as u64 + more);
                }
            }
            Step::Shrink(n) => {
                if let Some(bytes) = self.truth(n) {
                    set_len(&self.path(n), bytes.len() as u64 / 2);
                }
            }
            Step::Rename(a, b) => drop(std::fs::rename(self.path(a), self.path(b))),
            Step::Replace(n, size) => {
                let bytes = self.fresh(size);
                std::fs::write(self.world.dir().join("aside"), bytes).unwrap();
                std::fs::rename(self.world.dir().join("aside"), self.path(n)).unwrap();
            }
            Step::Delete(n) => drop(std::fs::remove_file(self.path(n))),
            Step::Link(a, b) => drop(std::fs::hard_link(self.path(a), self.path(b))),
            Step::Mkdir => drop(std::fs::create_dir(self.world.src(format!("d/{}", self.seed)))),
            Step::Evict(n) => drop(self.world.evict(NAMES[n]).then_some(())),
            Step::Read(n) => self.read(n),
            Step::Stat(n) => self.stat(n),
            Step::Hold(n) => self.hold(n),
            Step::ReadHeld(h, at) => self.read_held(h, at),
            Step::Close(h) => drop(self.held.remove(&h)),
            Step::List => self.list(),
            Step::Restart => {
                self.held.clear();
                self.world.restart();
            }
            Step::Crash => {
                self.held.clear();
                self.world.cache().flush();
                self.world.crash_and_start();
            }
        }
    }

    fn overwrite(&mut self, n: usize, at: u64, len: u64) {
        use std::os::unix::fs::FileExt;
        let bytes = self.fresh(len);
        if let Ok(file) = std::fs::File::options().write(true).open(self.path(n)) {
            file.write_all_at(&bytes, at).unwrap();
        }
    }

    fn read(&self, n: usize) {
        match (self.world.read(NAMES[n]), self.truth(n)) {
            (Ok(got), Some(truth)) => assert!(got == truth, "{}: {} bytes", NAMES[n], got.len()),
            (Err(e), None) => assert_eq!(e.errno(), Some(2), "{}", NAMES[n]),
            (got, truth) => {
                panic!("{}: {:?}, truth {:?}", NAMES[n], got.map(|b| b.len()), truth.map(|b| b.len()))
            }
        }
    }

    fn stat(&self, n: usize) {
        use std::os::unix::fs::MetadataExt;
        match (self.world.lookup(NAMES[n]), std::fs::metadata(self.path(n))) {
            (Ok(seen), Ok(truth)) => {
                let (attr, _) = wait(|reply| self.world.fs().getattr(seen.node, reply)).unwrap();
                let mtime = (attr.mtime.secs, i64::from(attr.mtime.nanos));
                assert_eq!(
                    (attr.size, attr.nlink as u64, mtime),
                    (truth.len(), truth.nlink(), (truth.mtime(), truth.mtime_nsec()))
                );
            }
            (Err(e), Err(_)) => assert_eq!(e.errno(), Some(2)),
            (seen, truth) => panic!("{}: {:?}, truth {truth:?}", NAMES[n], seen.map(|s| s.attr)),
        }
    }

    fn hold(&mut self, n: usize) {
        if let (Ok(file), Some(bytes)) = (self.world.open(NAMES[n]), self.truth(n)) {
            self.held.insert(self.held.len() % 8, Held { file, bytes });
        }
    }

    /// The version that was opened, or ESTALE where it was not kept whole.
    fn read_held(&self, h: usize, at: u64) {
        let Some(held) = self.held.get(&h) else { return };
        let from = (at as usize).min(held.bytes.len());
        let expected = &held.bytes[from..(from + 200_000).min(held.bytes.len())];
        match held.file.read_at(at, 200_000) {
            Ok(got) => assert!(got == expected, "held handle at {at}"),
            Err(e) => assert_eq!(e.errno(), Some(116), "{e}"),
        }
    }

    fn list(&self) {
        for dir in ["", "d"] {
            let mut truth: Vec<_> = std::fs::read_dir(self.world.src(dir))
                .unwrap()
                .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
                .collect();
            truth.sort();
            assert_eq!(self.world.list(dir).unwrap(), truth, "`{dir}`");
        }
    }

    /// At the end, whatever happened: every file is right, the budget held, and all space can be given back.
    fn check_all(mut self) {
        (0..NAMES.len()).for_each(|n| self.read(n));
        self.list();
        let usage = self.world.cache().usage();
        assert!(usage.bytes <= usage.bytes_max);
        self.held.clear();
        wait_until("all space is given back", || {
            self.world.cache().all_files().iter().for_each(|f| _ = self.world.cache().evict(f.id()));
            self.world.cache().usage().files == 0
        });
        assert_eq!(self.world.data_files(), Vec::<std::path::PathBuf>::new());
    }
}

fn set_len(path: &Path, len: u64) {
    std::fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn run(steps: Vec<Step>, passthrough: bool, by_path: bool, engine: Engine) {
    let shm = Path::new("/dev/shm");
    let base = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
    let cache = tempfile::Builder::new().prefix("warmfs-it-").tempdir_in(base).unwrap();
    let world = World::with(Options {
        bytes_max: 8 * MIB,
        ram_window_bytes: 2 * MIB,
        small_file_bytes_max: MIB / 2,
        ttl: Some(Duration::ZERO),
        passthrough,
        identity: by_path.then_some(IdentityRule::Path),
        engine,
        cache_dir: Some(cache.path().join("cache")),
        ..Options::default()
    });
    let mut model = Model::new(world);
    steps.into_iter().for_each(|step| model.take(step));
    model.check_all();
}

/// Steps of a sequence.
const STEPS: usize = 30;

/// Goal: without a kernel between, where sequences are quick: each use is as the directory is. The seed is printed;
/// WARMFS_TEST_SEED gives the run again.
#[test]
fn random_sequences_are_as_the_directory_is() {
    let seed = crate::figures::seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &bytes);
    let cases = crate::figures::scale(300, 3_000, 10_000) as u32;
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let engines = prop_oneof![Just(Engine::Pread), Just(Engine::Uring)];
    let inputs = (prop::collection::vec(step(), STEPS), any::<bool>(), any::<bool>(), engines);
    TestRunner::new_with_rng(config, rng)
        .run(&inputs, |(steps, passthrough, by_path, engine)| {
            run(steps, passthrough, by_path, engine);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("WARMFS_TEST_SEED={seed}\n{e}"));
    let steps = u64::from(cases) * STEPS as u64;
    crate::figures::Figure::new("R6", "model steps in process", steps, 0).seed(seed).report();
}
