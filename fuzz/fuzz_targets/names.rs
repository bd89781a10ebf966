//! Names: their text, and what they lead to. Any bytes as the name of anything, asked of the file system itself without
//! a kernel that would have refused them: nothing outside the source is ever seen, and nothing is left when all is
//! forgotten.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use warmfs::backing::LocalSource;
use warmfs::cache::engine::PreadEngine;
use warmfs::cache::{self, Cache};
use warmfs::fs::node::{INSIDE, ROOT};
use warmfs::fs::open::Opened;
use warmfs::fs::{self, Door, Entry, Fs, Reply};
use warmfs::policy::Lru;
use warmfs::stats::Stats;
use warmfs::store::{CacheDir, Index};
use warmfs::types::{Attr, Error, FileKind, KernelRef, NodeId, Result, escape_bytes, unescape_bytes};

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => text(data),
        1 => world(Some(Duration::ZERO), 0).walk(data),
        _ => world(None, 1).walk(data),
    }
});

fn text(bytes: &[u8]) {
    let shown = escape_bytes(bytes);
    assert!(!shown.chars().any(char::is_control), "not printable: {shown:?}");
    assert_eq!(unescape_bytes(&shown).as_deref(), Some(bytes));
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some(meant) = unescape_bytes(text)
    {
        assert_eq!(unescape_bytes(&escape_bytes(&meant)), Some(meant));
    }
}

const SECRET: &[u8] = b"SECRET: nobody may read this";

/// A source with something outside it that links point to, and a file system over it.
struct World {
    fs: Arc<Fs>,
    inside: HashSet<(u64, u64)>,
}

/// One for each way of remembering; made when first used and kept.
fn world(ttl: Option<Duration>, n: usize) -> &'static World {
    static WORLDS: [OnceLock<World>; 2] = [const { OnceLock::new() }; 2];
    WORLDS[n].get_or_init(|| World::new(ttl, n))
}

impl World {
    fn new(ttl: Option<Duration>, n: usize) -> Self {
        let base = std::env::temp_dir().join(format!("warmfs-fuzz-names-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&base);
        let src = base.join("src");
        plant(&base, &src).expect("a RAM disk with room");
        let mut inside = HashSet::new();
        note(&src, &mut inside);
        let fs = start(&base, &src, ttl).expect("a file system");
        Self { fs, inside }
    }

    /// Steps of an operation, a node that is known, and a name.
    fn walk(&self, data: &[u8]) {
        let mut known: Vec<(NodeId, FileKind)> = vec![(ROOT, FileKind::Directory)];
        let mut rest = data;
        while let Some((&[op, at, len], tail)) = rest.split_first_chunk() {
            // Names longer than 255 too.
            let len = if len < 200 { usize::from(len) } else { usize::from(len) * 2 };
            let (name, tail) = tail.split_at(len.min(tail.len()));
            rest = tail;
            let (node, kind) = known[usize::from(at) % known.len()];
            match op % 8 {
                0..=2 => known.extend(self.look_up(node, name)),
                3 => self.read(node, kind),
                4 => self.list(node, kind),
                5 => self.ask(node, name),
                6 => drop(wait(|reply| self.fs.read_link(node, reply))),
                _ => drop(self.fs.expire(Path::new(OsStr::from_bytes(name)))),
            }
        }
        known[1..].iter().for_each(|(node, _)| self.fs.forget(*node, 1));
        assert_eq!(self.fs.stats_json()["nodes"], 0, "nodes are left");
    }

    fn look_up(&self, parent: NodeId, name: &[u8]) -> Option<(NodeId, FileKind)> {
        match wait(|reply| self.fs.lookup(parent, OsStr::from_bytes(name), reply)) {
            Ok(Entry::Found { node, attr, .. }) => {
                self.check(node, &attr);
                Some((node, attr.kind))
            }
            Ok(Entry::Missing(_)) | Err(_) => None,
        }
    }

    fn check(&self, node: NodeId, attr: &Attr) {
        let identity = (attr.identity.dev, attr.identity.ino);
        assert!(node >= INSIDE || self.inside.contains(&identity), "outside the source: {attr:?}");
    }

    fn read(&self, node: NodeId, kind: FileKind) {
        if kind != FileKind::Regular {
            return;
        }
        let Ok(opened) = wait(|reply| self.fs.open(node, reply)) else { return };
        let mut bytes = [0; 100];
        let n = match opened {
            Opened::Passthrough(kernel) => {
                let fd = kernel.downcast_ref::<OwnedFd>().expect("what the door registered");
                rustix::io::pread(fd, &mut bytes, 0).expect("a file on a RAM disk")
            }
            Opened::KeepPages | Opened::DropPages => 0,
        };
        assert!(!bytes[..n].windows(6).any(|w| w == &SECRET[..6]), "read from outside the source");
        self.fs.release(node);
    }

    fn list(&self, node: NodeId, kind: FileKind) {
        if kind != FileKind::Directory {
            return;
        }
        let Ok(opened) = wait(|reply| self.fs.open_dir(node, reply)) else { return };
        let _ = self.fs.read_dir(opened.handle, 0, &mut |entry| {
            assert!(!entry.name.as_bytes().contains(&b'/'));
            false
        });
        self.fs.release_dir(opened.handle);
    }

    fn ask(&self, node: NodeId, name: &[u8]) {
        if let Ok((attr, _)) = wait(|reply| self.fs.getattr(node, reply)) {
            self.check(node, &attr);
        }
        let _ = self.fs.list_xattrs(node);
        for name in [name, &[b"user.warmfs.", name].concat()] {
            let value = wait(|reply| self.fs.get_xattr(node, name, reply)).unwrap_or_default();
            assert!(!value.windows(6).any(|w| w == &SECRET[..6]));
        }
    }
}

fn plant(base: &Path, src: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(src.join("d/e"))?;
    std::fs::create_dir_all(base.join("outside"))?;
    std::fs::write(base.join("outside/secret"), SECRET)?;
    std::fs::write(src.join("a"), "inside")?;
    std::fs::write(src.join("d/f"), "inside")?;
    std::fs::write(src.join(OsStr::from_bytes(b"\xff\\\n")), "inside")?;
    std::fs::write(src.join("n".repeat(255)), "inside")?;
    symlink("../outside", src.join("l"))?;
    symlink("../outside/secret", src.join("s"))?;
    symlink("..", src.join("d/u"))
}

/// The objects below a directory and itself, links not followed.
fn note(path: &Path, found: &mut HashSet<(u64, u64)>) {
    let meta = std::fs::symlink_metadata(path).expect("what was planted");
    found.insert((meta.dev(), meta.ino()));
    if meta.is_dir() {
        let entries = std::fs::read_dir(path).expect("what was planted");
        entries.for_each(|entry| note(&entry.expect("an entry").path(), found));
    }
}

struct TestDoor;

impl Door for TestDoor {
    fn register(&self, fd: BorrowedFd<'_>) -> std::io::Result<KernelRef> {
        Ok(Arc::new(fd.try_clone_to_owned()?))
    }
}

fn start(base: &Path, src: &Path, ttl: Option<Duration>) -> Result<Arc<Fs>> {
    let source = Arc::new(LocalSource::new(src, None)?);
    let dir = Arc::new(CacheDir::open(&base.join("cache"), src)?);
    let loaded = Index::open(dir.io(), &dir.index_path())?;
    let settings = cache::Settings {
        bytes_max: 64 << 20,
        files_max: 100,
        free_floor_bytes: 0,
        ram_window_bytes: 0,
        small_file_bytes_max: 1 << 20,
    };
    let engine = Arc::new(PreadEngine::new());
    let stats = Arc::new(Stats::default());
    let cache = Cache::start(settings, source, dir, loaded, engine, Box::new(Lru::new()), stats)?;
    let settings = fs::Settings {
        ttl,
        passthrough: true,
        backing_ids_max: 16,
        source_threads: 2,
        hang_after: Duration::from_secs(60),
        timeout: Duration::from_secs(120),
        list_xattrs: true,
        read_ahead: true,
        keep_names: true,
    };
    let fs = Fs::new(settings, cache)?;
    fs.set_door(Arc::new(TestDoor));
    Ok(fs)
}

/// Calls with a reply and waits for it.
fn wait<T: Send + 'static>(call: impl FnOnce(Reply<T>)) -> Result<T> {
    let (tx, rx) = mpsc::channel();
    call(Box::new(move |answer| drop(tx.send(answer))));
    rx.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|e| match e {
        mpsc::RecvTimeoutError::Disconnected => Err(Error::os("wait", "a dropped reply", 5)),
        mpsc::RecvTimeoutError::Timeout => panic!("no answer"),
    })
}
