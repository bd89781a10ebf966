//! The index: which data files are true. A redb data base, one record per cached file ([`Record`]); and what the source said of
//! names, one listing per directory ([`super::names`]).
//!
//! It is written in batches by one thread, after the data it speaks of has reached the disk, and it is never believed
//! beyond that: a damaged index is moved aside and the cache starts empty, a damaged record is dropped, and after a stop
//! that was not clean every file is verified before it is opened again.

use super::format::Record;
use super::index_file::IndexFile;
use super::names::{DirKey, Stamp, decode_contents, encode_contents};
use crate::sys::io::Io;
use crate::types::{Error, ErrorKind, FileId, PathText, Result};
use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use rustix::fs::CWD;
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

const FILES: TableDefinition<[u8; 16], &[u8]> = TableDefinition::new("files");
const NAMES: TableDefinition<[u8; 20], &[u8]> = TableDefinition::new("names");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
/// Present while no daemon uses the index: set by a clean stop, removed by the next start.
const CLEAN: &str = "clean";
/// The eviction order at the last clean stop: file ids, the next to go first.
const ORDER: &str = "order";
/// What the scrub knows at a clean stop; its own to encode.
const SCRUB: &str = "scrub";

/// Which directories [`NAMES`] has.
const CONTENTS: &str = "names";

/// Pages that redb keeps in memory. The index is read once, at the start; writes touch few pages.
const PAGE_CACHE_BYTES: usize = 4 << 20;

/// One change of the index.
pub enum Change {
    /// The file is cached, as the record says.
    Put(Record),
    /// The file is not cached any more.
    Remove,
}

impl Change {
    /// What it brings into the index, bytes, about.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Put(record) => record.encoded_bytes(),
            Self::Remove => 0,
        }
    }
}

/// An open index.
pub struct Index {
    io: Io,
    path: PathBuf,
    /// `None` after a fault: redb answers nothing any more then, and the file is opened anew.
    db: Option<Database>,
}

/// What an index held when it was opened.
pub struct Loaded {
    /// The index.
    pub index: Index,
    /// All records that can be read.
    pub records: Vec<(FileId, Record)>,
    /// Records that could not, and were dropped.
    pub damaged: u64,
    /// Eviction order of the last clean stop.
    pub order: Vec<FileId>,
    /// Whether the last stop was clean: only then is the data believed without a look at it.
    pub clean: bool,
    /// Whether there was an index that could not be opened at all.
    pub lost: bool,
}

impl Index {
    /// Opens or creates the index at `path`, reads it, and marks it as in use.
    pub fn open(io: &Io, path: &Path) -> Result<Loaded> {
        let existed = io.stat_at(CWD, path).is_ok();
        match Self::try_open(io, path) {
            Err(error) if existed && !is_want(&error) => {
                tracing::warn!("index {} cannot be read ({error}); the cache starts empty", PathText(path));
                io.rename(CWD, path, &path.with_extension("damaged"))
                    .map_err(|e| Error::os("move aside", PathText(path).to_string(), e.raw_os_error()))?;
                let loaded = Self::try_open(io, path)?;
                Ok(Loaded { lost: true, clean: false, ..loaded })
            }
            other => other,
        }
    }

    fn try_open(io: &Io, path: &Path) -> Result<Loaded> {
        unharmed(path, || Self::open_and_load(io, path))
    }

    fn open_and_load(io: &Io, path: &Path) -> Result<Loaded> {
        let fail = |e: redb::Error| db_error("open", path, e);
        let db = open_db(io, path)?;
        check_readable(&db).map_err(fail)?;
        let (records, damaged) = load(&db).map_err(fail)?;
        let order = read_order(&db).map_err(fail)?;
        let clean = take_clean(&db).map_err(fail)?;
        let index = Self { io: io.clone(), path: path.to_path_buf(), db: Some(db) };
        Ok(Loaded { index, records, damaged, order, clean, lost: false })
    }

    /// Writes a batch, durably and at once or not at all. After an error it may be either; to write the batch again makes
    /// it sure.
    pub fn commit<'a>(&mut self, changes: impl Iterator<Item = (FileId, &'a Change)>) -> Result<()> {
        self.with_db("write", |db| write(db, changes))
    }

    /// Notes a stop, the eviction order to go on with, and whether all that is cached can be trusted by the next start.
    pub fn close(&mut self, order: &[FileId], trusted: bool) -> Result<()> {
        self.with_db("close", |db| note_stop(db, order, trusted))
    }

    /// What [`Index::set_scrub_note`] wrote last; none if there is none that can be read.
    pub fn scrub_note(&mut self) -> Option<Vec<u8>> {
        let read = |db: &Database| {
            let tx = db.begin_read()?;
            let meta = tx.open_table(META)?;
            Ok(meta.get(SCRUB)?.map(|value| value.value().to_vec()))
        };
        self.with_db("read", read).ok().flatten()
    }

    /// Keeps what the scrub wants to know after the next start.
    pub fn set_scrub_note(&mut self, note: &[u8]) -> Result<()> {
        self.with_db("write", |db| {
            let tx = db.begin_write()?;
            tx.open_table(META)?.insert(SCRUB, note)?;
            Ok(tx.commit()?)
        })
    }

    /// Which directories' listings are kept, and how many bytes each takes. Those of another source are dropped, as are all
    /// if the table of contents cannot be read.
    pub fn names_kept(&mut self, stamp: &Stamp) -> Result<Vec<(DirKey, u32)>> {
        let kept = self.with_db("read", |db| {
            let tx = db.begin_read()?;
            let meta = tx.open_table(META)?;
            Ok(meta.get(CONTENTS)?.map(|value| decode_contents(value.value(), stamp)))
        })?;
        match kept {
            None => Ok(Vec::new()),
            Some(Some(dirs)) => Ok(dirs),
            Some(None) => self.forget_names().map(|()| Vec::new()),
        }
    }

    /// The bytes kept of a directory, as they were written or damaged since.
    pub fn names(&mut self, dir: &DirKey) -> Result<Option<Vec<u8>>> {
        self.with_db("read", |db| {
            let tx = db.begin_read()?;
            let names = tx.open_table(NAMES)?;
            Ok(names.get(dir)?.map(|value| value.value().to_vec()))
        })
    }

    /// Keeps the listings `put` and drops those of `gone`, after which `all` is there: at once or not at all.
    pub fn keep_names<'a>(
        &mut self,
        stamp: &Stamp,
        put: impl Iterator<Item = (&'a DirKey, &'a [u8])>,
        gone: impl Iterator<Item = &'a DirKey>,
        all: impl Iterator<Item = (DirKey, u32)>,
    ) -> Result<()> {
        self.with_db("write", |db| {
            let tx = db.begin_write()?;
            {
                let mut names = tx.open_table(NAMES)?;
                for dir in gone {
                    names.remove(dir)?;
                }
                for (dir, bytes) in put {
                    names.insert(dir, bytes)?;
                }
                tx.open_table(META)?.insert(CONTENTS, encode_contents(stamp, all).as_slice())?;
            }
            Ok(tx.commit()?)
        })
    }

    /// Drops all listings.
    pub fn forget_names(&mut self) -> Result<()> {
        self.with_db("write", |db| {
            let tx = db.begin_write()?;
            tx.delete_table(NAMES)?;
            tx.open_table(NAMES)?;
            tx.open_table(META)?.remove(CONTENTS)?;
            Ok(tx.commit()?)
        })
    }

    /// Calls `each` with every record, in order of id; for the operator's questions about trees.
    pub fn for_each(&mut self, each: &mut dyn FnMut(FileId, &Record)) -> Result<()> {
        let (records, _) = self.with_db("read", load)?;
        records.iter().for_each(|(id, record)| each(*id, record));
        Ok(())
    }

    /// Uses the data base, which is opened anew if the last use ended in a fault.
    fn with_db<T>(
        &mut self,
        op: &'static str,
        work: impl FnOnce(&Database) -> std::result::Result<T, redb::Error>,
    ) -> Result<T> {
        let db = match self.db.take() {
            Some(db) => db,
            None => unharmed(&self.path, || open_db(&self.io, &self.path))?,
        };
        let done = unharmed(&self.path, || work(&db).map_err(|e| db_error(op, &self.path, e)));
        match done {
            Ok(_) => self.db = Some(db),
            // What is damaged may panic once more when it is closed.
            Err(_) => drop(unharmed(&self.path, || {
                drop(db);
                Ok(())
            })),
        }
        done
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let db = self.db.take();
        // Closing writes, and what is damaged may panic once more.
        let _ = unharmed(&self.path, || {
            drop(db);
            Ok(())
        });
    }
}

/// redb asserts on some kinds of damage; that is a damaged index like any other, not the end of the daemon.
fn unharmed<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::new(ErrorKind::Corrupt, "use", PathText(path).to_string())))
}

/// Whether an error only says that the machine lacks something just now; the index may be sound.
fn is_want(error: &Error) -> bool {
    let errno = error.errno().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

fn open_db(io: &Io, path: &Path) -> Result<Database> {
    let file = IndexFile::open(io, path)
        .map_err(|e| Error::os("open", PathText(path).to_string(), e.raw_os_error()))?;
    let mut builder = Database::builder();
    builder.set_cache_size(PAGE_CACHE_BYTES);
    // Else redb looks at checksums after a stop that was not clean only, and a page number that rotted at rest is the size
    // of an allocation: more than there is ends the process, at every start.
    builder.set_check_integrity_on_open(true);
    builder.create_with_backend(file).map_err(|e| db_error("open", path, e.into()))
}

/// Creates the tables, so that reading never meets a missing one.
fn check_readable(db: &Database) -> std::result::Result<(), redb::Error> {
    let tx = db.begin_write()?;
    tx.open_table(FILES)?;
    tx.open_table(META)?;
    tx.open_table(NAMES)?;
    tx.commit()?;
    Ok(())
}

fn load(db: &Database) -> std::result::Result<(Vec<(FileId, Record)>, u64), redb::Error> {
    let mut records = Vec::new();
    let mut damaged = 0;
    let tx = db.begin_read()?;
    let table = tx.open_table(FILES)?;
    let mut rows = 0;
    for row in table.iter()? {
        let (key, value) = row?;
        rows += 1;
        let id = FileId::from_bytes(key.value());
        match Record::decode(id, value.value()) {
            Some(record) => records.push((id, record)),
            None => damaged += 1,
        }
    }
    // A branch page that leads nowhere hides records without a trace; the count does not fit then.
    Ok((records, damaged + table.len()?.abs_diff(rows)))
}

fn read_order(db: &Database) -> std::result::Result<Vec<FileId>, redb::Error> {
    let tx = db.begin_read()?;
    let meta = tx.open_table(META)?;
    let Some(value) = meta.get(ORDER)? else { return Ok(Vec::new()) };
    Ok(value.value().as_chunks::<16>().0.iter().map(|&b| FileId::from_bytes(b)).collect())
}

/// Reads and removes the mark of a clean stop; an index without records is clean by nature.
fn take_clean(db: &Database) -> std::result::Result<bool, redb::Error> {
    let tx = db.begin_write()?;
    let clean = tx.open_table(META)?.remove(CLEAN)?.is_some();
    tx.commit()?;
    Ok(clean)
}

fn write<'a>(
    db: &Database,
    changes: impl Iterator<Item = (FileId, &'a Change)>,
) -> std::result::Result<(), redb::Error> {
    let tx = db.begin_write()?;
    {
        let mut files = tx.open_table(FILES)?;
        for (id, change) in changes {
            match change {
                Change::Put(record) => {
                    files.insert(id.to_bytes(), record.encode(id).as_slice())?;
                }
                Change::Remove => {
                    files.remove(id.to_bytes())?;
                }
            }
        }
    }
    tx.commit()?;
    Ok(())
}

fn note_stop(db: &Database, order: &[FileId], trusted: bool) -> std::result::Result<(), redb::Error> {
    let bytes: Vec<u8> = order.iter().flat_map(|id| id.to_bytes()).collect();
    let tx = db.begin_write()?;
    {
        let mut meta = tx.open_table(META)?;
        meta.insert(ORDER, bytes.as_slice())?;
        if trusted {
            meta.insert(CLEAN, [1u8].as_slice())?;
        }
    }
    tx.commit()?;
    Ok(())
}

fn db_error(op: &'static str, path: &Path, error: redb::Error) -> Error {
    match &error {
        redb::Error::Io(e) => Error::io(op, PathText(path).to_string(), e),
        other => Error::new(ErrorKind::Corrupt, op, format!("{}: {other}", PathText(path))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::names::KeptListing;
    use crate::sys::io::PLAIN;
    use crate::types::{FileVersion, Timestamp};
    use std::os::unix::fs::FileExt;

    fn id(n: u64) -> FileId {
        FileId { high: 0, low: n }
    }

    fn record(n: u64) -> Record {
        let time = Timestamp { secs: n as i64, nanos: 1 };
        let version = FileVersion { size: 10, mtime: time, ctime: time, ino: n };
        Record { number: n, version, path: b"p".to_vec(), chunks: vec![Some([n as u8; 32])] }
    }

    fn put(index: &mut Index, numbers: std::ops::Range<u64>) {
        let changes: Vec<_> = numbers.map(|n| (id(n), Change::Put(record(n)))).collect();
        index.commit(changes.iter().map(|(id, c)| (*id, c))).unwrap();
    }

    #[test]
    fn records_order_and_the_clean_mark_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let mut first = Index::open(&PLAIN, &path).unwrap();
        assert!(!first.clean && first.records.is_empty());
        put(&mut first.index, 1..4);
        first.index.commit([(id(2), &Change::Remove)].into_iter()).unwrap();
        first.index.close(&[id(3), id(1)], true).unwrap();
        drop(first);
        let second = Index::open(&PLAIN, &path).unwrap();
        assert!(second.clean);
        assert_eq!(second.records, [(id(1), record(1)), (id(3), record(3))]);
        assert_eq!(second.order, [id(3), id(1)]);
        drop(second);
        assert!(!Index::open(&PLAIN, &path).unwrap().clean, "the mark is taken at the start");
    }

    fn keep(index: &mut Index, stamp: &Stamp, dirs: &[(DirKey, &[u8])]) {
        let put = dirs.iter().map(|(dir, bytes)| (dir, *bytes));
        let all = dirs.iter().map(|(dir, bytes)| (*dir, bytes.len() as u32));
        index.keep_names(stamp, put, [].iter(), all).unwrap();
    }

    #[test]
    fn names_survive_a_restart_and_not_a_change_of_the_source() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let (a, b, here, there) = ([1; 20], [2; 20], [5; 16], [6; 16]);
        let mut first = Index::open(&PLAIN, &path).unwrap().index;
        assert!(first.names_kept(&here).unwrap().is_empty() && first.names(&a).unwrap().is_none());
        keep(&mut first, &here, &[(a, b"of a"), (b, b"of b, longer")]);
        first.keep_names(&here, [].into_iter(), [b].iter(), [(a, 4)].into_iter()).unwrap();
        drop(first);
        let mut second = Index::open(&PLAIN, &path).unwrap().index;
        assert_eq!(second.names_kept(&here).unwrap(), [(a, 4)]);
        assert_eq!(second.names(&a).unwrap().as_deref(), Some(&b"of a"[..]));
        assert!(second.names(&b).unwrap().is_none());
        assert!(second.names_kept(&there).unwrap().is_empty());
        assert!(second.names(&a).unwrap().is_none(), "those of another source are gone for good");
    }

    #[test]
    fn a_damaged_index_is_set_aside_and_never_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        std::fs::write(&path, vec![7u8; 100_000]).unwrap();
        let loaded = Index::open(&PLAIN, &path).unwrap();
        assert!(loaded.lost && !loaded.clean && loaded.records.is_empty());
        assert!(path.with_extension("damaged").exists());
    }

    #[test]
    fn any_flipped_byte_gives_right_records_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let mut loaded = Index::open(&PLAIN, &path).unwrap();
        put(&mut loaded.index, 1..50);
        let (key, stamp) = ([1; 20], [5; 16]);
        let listing = KeptListing {
            times: Default::default(),
            racy: false,
            no_acl: false,
            age_ms: 1,
            written: Default::default(),
            stamp,
            entries: Vec::new(),
        };
        keep(&mut loaded.index, &stamp, &[(key, &listing.encode(&key))]);
        loaded.index.close(&[], true).unwrap();
        drop(loaded);
        let image = std::fs::read(&path).unwrap();
        for at in (0..image.len()).step_by(image.len() / 150) {
            std::fs::write(&path, &image).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[image[at] ^ 0x10], at as u64).unwrap();
            drop(file);
            let loaded = Index::open(&PLAIN, &path).unwrap();
            for (id, r) in &loaded.records {
                assert_eq!(*r, record(id.low), "flip at {at}");
            }
            let mut index = loaded.index;
            let kept = index.names_kept(&stamp).unwrap_or_default();
            assert!(kept.is_empty() || kept.iter().all(|(dir, _)| *dir == key), "flip at {at}");
            if let Ok(Some(bytes)) = index.names(&key) {
                let found = KeptListing::decode(&key, &bytes, 0);
                assert!(found.is_none_or(|found| found == listing), "flip at {at}");
            }
            drop(index);
            let _ = std::fs::remove_file(path.with_extension("damaged"));
        }
    }
}
