//! A disk that remembers: records every change that warmfs makes to the SSD's files, and builds from the record what a power
//! cut could have left. What was not synced may be there, or not, in part, and in any order; what was synced is there.
//!
//! ```text
//!   record:  create a   write a   mkdir   write i   [sync i]   write a   remove b   [syncfs] ...
//!   a cut here ─────────────────────────────────────────────────────▲
//!   durable:                              write i
//!   pending: create a   write a   mkdir                        write a   remove b      each may be lost or torn
//! ```

use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use warmfs::sys::io::{Between, Call, Io, Op, Outcome, Pass};

/// Number of a file in the record: another after its name was given to a new one.
type FileNumber = usize;

/// One change.
#[derive(Clone, Debug)]
pub enum Change {
    MakeDir(PathBuf),
    Create(PathBuf, FileNumber),
    Remove(PathBuf),
    RemoveDir(PathBuf),
    Write(FileNumber, u64, Vec<u8>),
    SetLen(FileNumber, u64),
    Punch(FileNumber, u64, u64),
}

/// What the record holds, in order.
#[derive(Clone, Debug)]
pub enum Event {
    Change(Change),
    /// All changes of this file so far are durable.
    SyncFile(FileNumber),
    /// All changes so far are durable.
    SyncAll,
}

#[derive(Default)]
struct Record {
    events: Vec<Event>,
    /// By inode number, as a file may be written to after it lost its name.
    files: HashMap<u64, FileNumber>,
    next: FileNumber,
}

/// Keeps the record.
pub struct Recorder {
    root: PathBuf,
    record: Mutex<Record>,
}

impl Recorder {
    /// Records what happens below `root`.
    pub fn new(root: &Path) -> (Arc<Self>, Io) {
        let recorder = Arc::new(Self { root: root.to_path_buf(), record: Mutex::default() });
        (recorder.clone(), Io::through(recorder))
    }

    pub fn events(&self) -> Vec<Event> {
        self.record.lock().events.clone()
    }

    fn path(&self, fd: BorrowedFd<'_>, below: &Path) -> PathBuf {
        if below.is_absolute() {
            return below.strip_prefix(&self.root).unwrap_or(below).to_path_buf();
        }
        let dir = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        let dir = dir.strip_prefix(&self.root).unwrap_or(&dir).to_path_buf();
        if below.as_os_str().is_empty() { dir } else { dir.join(below) }
    }
}

impl Record {
    fn change(&mut self, change: Change) {
        self.events.push(Event::Change(change));
    }

    fn number(&self, fd: BorrowedFd<'_>) -> FileNumber {
        self.files[&inode(fd)]
    }

    /// A file that was opened for writing: a new one, unless it was seen before under this name.
    fn opened(&mut self, fd: BorrowedFd<'_>, path: PathBuf, known: bool) {
        let ino = inode(fd);
        if known && self.files.contains_key(&ino) {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.files.insert(ino, number);
        self.change(Change::Create(path, number));
    }
}

fn inode(fd: BorrowedFd<'_>) -> u64 {
    rustix::fs::fstat(fd).unwrap().st_ino
}

impl Between for Recorder {
    fn before(&self, _: &Call<'_>) -> Result<Pass, Errno> {
        Ok(Pass::WHOLE)
    }

    fn after(&self, call: &Call<'_>, outcome: Outcome<'_>) {
        let mut record = self.record.lock();
        match (call.op, outcome) {
            (Op::Open, Outcome::Opened(fd)) => {
                let stat = rustix::fs::fstat(fd).unwrap();
                let flags = rustix::fs::fcntl_getfl(fd).unwrap();
                let writes = flags.intersects(rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::RDWR);
                let regular = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
                if regular && writes {
                    // A data file that is created is empty and was not seen; one that is opened again is known.
                    let path = self.path(call.fd, call.path);
                    let is_new = stat.st_size == 0 && stat.st_blocks == 0 && !record.is_there(&path);
                    record.opened(fd, path, !is_new);
                }
            }
            (Op::MakeDir, _) => {
                let path = self.path(call.fd, call.path);
                record.change(Change::MakeDir(path));
            }
            (Op::Remove, _) => {
                let path = self.path(call.fd, call.path);
                record.change(Change::Remove(path));
            }
            (Op::RemoveDir, _) => {
                let path = self.path(call.fd, call.path);
                record.change(Change::RemoveDir(path));
            }
            (Op::Write | Op::RingWrite, Outcome::Wrote(n)) => {
                let number = record.number(call.fd);
                record.change(Change::Write(number, call.offset, call.bytes[..n].to_vec()));
            }
            (Op::SetLen, _) => {
                let number = record.number(call.fd);
                record.change(Change::SetLen(number, call.offset));
            }
            (Op::Punch, _) => {
                let number = record.number(call.fd);
                record.change(Change::Punch(number, call.offset, call.len as u64));
            }
            (Op::SyncData, _) => {
                let number = record.number(call.fd);
                record.events.push(Event::SyncFile(number));
            }
            (Op::SyncFs, _) => record.events.push(Event::SyncAll),
            (Op::Rename, _) => panic!("a life that is recorded sets no index aside"),
            _ => {}
        }
    }
}

impl Record {
    /// Whether a file of this name was created and not removed.
    fn is_there(&self, path: &Path) -> bool {
        let about = self.events.iter().rev().find_map(|event| match event {
            Event::Change(Change::Create(p, _)) if p == path => Some(true),
            Event::Change(Change::Remove(p)) if p == path => Some(false),
            _ => None,
        });
        about.unwrap_or(false)
    }
}

/// What lies on a disk.
#[derive(Clone, Default)]
pub struct Disk {
    dirs: std::collections::BTreeSet<PathBuf>,
    names: BTreeMap<PathBuf, FileNumber>,
    files: HashMap<FileNumber, Arc<Vec<u8>>>,
}

impl Disk {
    /// Makes a change. One that needs what is not there comes to nothing.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::MakeDir(path) => {
                if self.has_dir_of(path) {
                    self.dirs.insert(path.clone());
                }
            }
            Change::Create(path, number) => {
                if self.has_dir_of(path) {
                    self.names.insert(path.clone(), *number);
                    self.files.entry(*number).or_default();
                }
            }
            Change::Remove(path) => drop(self.names.remove(path)),
            Change::RemoveDir(path) => {
                let mut all = self.dirs.iter().chain(self.names.keys());
                if !all.any(|other| other != path && other.starts_with(path)) {
                    self.dirs.remove(path);
                }
            }
            Change::Write(number, offset, bytes) => self.edit(*number, |file| {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                file.resize(file.len().max(end), 0);
                file[start..end].copy_from_slice(bytes);
            }),
            Change::SetLen(number, len) => self.edit(*number, |file| file.resize(*len as usize, 0)),
            Change::Punch(number, offset, len) => self.edit(*number, |file| {
                let end = ((offset + len) as usize).min(file.len());
                file[(*offset as usize).min(end)..end].fill(0);
            }),
        }
    }

    /// A file whose name is not there (yet) has bytes all the same; the name may come, or have gone, by itself.
    fn edit(&mut self, number: FileNumber, edit: impl FnOnce(&mut Vec<u8>)) {
        edit(Arc::make_mut(self.files.entry(number).or_default()));
    }

    fn has_dir_of(&self, path: &Path) -> bool {
        path.parent().is_none_or(|dir| dir.as_os_str().is_empty() || self.dirs.contains(dir))
    }

    /// What tells this disk from another.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for dir in &self.dirs {
            hasher.update(dir.as_os_str().as_encoded_bytes()).update(b"\0");
        }
        for (name, number) in &self.names {
            hasher.update(name.as_os_str().as_encoded_bytes()).update(b"\0");
            hasher.update(blake3::hash(&self.files[number]).as_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Makes real files of it, below an empty directory.
    pub fn write_to(&self, root: &Path) {
        for dir in &self.dirs {
            make_private(&root.join(dir));
        }
        for (name, number) in &self.names {
            let file = std::fs::File::create(root.join(name)).unwrap();
            let bytes = &self.files[number];
            file.set_len(bytes.len() as u64).unwrap();
            for (i, block) in bytes.chunks(4096).enumerate() {
                if block.iter().any(|b| *b != 0) {
                    file.write_all_at(block, i as u64 * 4096).unwrap();
                }
            }
        }
    }
}

fn make_private(path: &Path) {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().mode(0o700).recursive(true).create(path).unwrap();
}

/// A part of the record between two moments at which everything was durable.
pub struct Epoch {
    /// What was durable at its begin.
    pub base: Disk,
    /// What followed, up to the next such moment or the end.
    pub events: Vec<Event>,
}

/// Cuts a record into epochs.
pub fn epochs(events: &[Event]) -> Vec<Epoch> {
    let mut base = Disk::default();
    let mut epochs = Vec::new();
    for part in events.split_inclusive(|event| matches!(event, Event::SyncAll)) {
        epochs.push(Epoch { base: base.clone(), events: part.to_vec() });
        for event in part {
            if let Event::Change(change) = event {
                base.apply(change);
            }
        }
    }
    epochs
}

/// What became of a change that was pending when the power went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Kept,
    Lost,
    /// Of its bytes only some sectors of 512 reached the disk: those whose bit is set, the 65th as the first.
    Torn(u64),
}

impl Epoch {
    /// The disk after a cut behind `len` events, the pending changes faring as `fate` says (by their number among the
    /// pending ones).
    pub fn disk(&self, len: usize, fate: impl Fn(usize) -> Fate) -> Disk {
        let events = &self.events[..len];
        let mut disk = self.base.clone();
        let mut pending = 0;
        for (i, event) in events.iter().enumerate() {
            let Event::Change(change) = event else { continue };
            if is_durable(change, &events[i..]) {
                disk.apply(change);
                continue;
            }
            match (fate(pending), change) {
                (Fate::Kept, _) => disk.apply(change),
                (Fate::Torn(sectors), Change::Write(number, offset, bytes)) => {
                    for (i, sector) in bytes.chunks(512).enumerate() {
                        let reached = if sectors >> (i % 64) & 1 == 1 { sector } else { &[] };
                        // One that did not may have made the file longer all the same.
                        disk.apply(&Change::Write(*number, offset + i as u64 * 512, reached.to_vec()));
                    }
                }
                _ => {}
            }
            pending += 1;
        }
        disk
    }

    /// How many changes are pending behind `len` events.
    pub fn pending(&self, len: usize) -> usize {
        let events = &self.events[..len];
        let is_pending = |(i, event): (usize, &Event)| match event {
            Event::Change(change) => !is_durable(change, &events[i..]),
            _ => false,
        };
        events.iter().enumerate().filter(|e| is_pending(*e)).count()
    }
}

/// Whether a sync of its file follows. Names become durable with everything only.
fn is_durable(change: &Change, later: &[Event]) -> bool {
    let (Change::Write(file, ..) | Change::SetLen(file, _) | Change::Punch(file, ..)) = change else {
        return false;
    };
    later.iter().any(|event| matches!(event, Event::SyncFile(synced) if synced == file))
}
