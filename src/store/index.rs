//! The index: which data files are true. A redb data base, one record per cached file ([`Record`]).
//!
//! It is written in batches by one thread, after the data it speaks of has reached the disk, and it is never believed
//! beyond that: a damaged index is moved aside and the cache starts empty, a damaged record is dropped, and after a stop
//! that was not clean every file is verified before it is opened again.

use super::format::Record;
use crate::types::{Error, ErrorKind, FileId, PathText, Result};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::Path;

const FILES: TableDefinition<[u8; 16], &[u8]> = TableDefinition::new("files");
const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
/// Present while no daemon uses the index: set by a clean stop, removed by the next start.
const CLEAN: &str = "clean";
/// The eviction order at the last clean stop: file ids, the next to go first.
const ORDER: &str = "order";

/// Pages that redb keeps in memory. The index is read once, at the start; writes touch few pages.
const PAGE_CACHE_BYTES: usize = 4 << 20;

/// One change of the index.
pub enum Change {
    /// The file is cached, as the record says.
    Put(Record),
    /// The file is not cached any more.
    Remove,
}

/// An open index.
pub struct Index {
    db: Database,
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
    pub fn open(path: &Path) -> Result<Loaded> {
        let existed = path.exists();
        match Self::try_open(path) {
            Ok(loaded) => Ok(loaded),
            Err(error) if existed => {
                tracing::warn!("index {} cannot be read ({error}); the cache starts empty", PathText(path));
                let aside = path.with_extension("damaged");
                std::fs::rename(path, &aside)
                    .map_err(|e| Error::io("move aside", PathText(path).to_string(), &e))?;
                let loaded = Self::try_open(path)?;
                Ok(Loaded { lost: true, clean: false, ..loaded })
            }
            Err(error) => Err(error),
        }
    }

    fn try_open(path: &Path) -> Result<Loaded> {
        // redb asserts on some kinds of damage; that is a damaged index like any other, not the end of the daemon.
        std::panic::catch_unwind(|| Self::open_and_load(path))
            .unwrap_or_else(|_| Err(Error::new(ErrorKind::Corrupt, "open", PathText(path).to_string())))
    }

    fn open_and_load(path: &Path) -> Result<Loaded> {
        let fail = |e: redb::Error| db_error("open", path, e);
        let db =
            Database::builder().set_cache_size(PAGE_CACHE_BYTES).create(path).map_err(|e| fail(e.into()))?;
        let index = Self { db };
        index.check_readable().map_err(fail)?;
        let (records, damaged) = index.load().map_err(fail)?;
        let order = index.read_order().map_err(fail)?;
        let clean = index.take_clean().map_err(fail)?;
        Ok(Loaded { index, records, damaged, order, clean, lost: false })
    }

    /// Creates the tables, so that reading never meets a missing one.
    fn check_readable(&self) -> std::result::Result<(), redb::Error> {
        let tx = self.db.begin_write()?;
        tx.open_table(FILES)?;
        tx.open_table(META)?;
        tx.commit()?;
        Ok(())
    }

    fn load(&self) -> std::result::Result<(Vec<(FileId, Record)>, u64), redb::Error> {
        let mut records = Vec::new();
        let mut damaged = 0;
        let tx = self.db.begin_read()?;
        for row in tx.open_table(FILES)?.iter()? {
            let (key, value) = row?;
            let id = FileId::from_bytes(key.value());
            match Record::decode(id, value.value()) {
                Some(record) => records.push((id, record)),
                None => damaged += 1,
            }
        }
        Ok((records, damaged))
    }

    fn read_order(&self) -> std::result::Result<Vec<FileId>, redb::Error> {
        let tx = self.db.begin_read()?;
        let meta = tx.open_table(META)?;
        let Some(value) = meta.get(ORDER)? else { return Ok(Vec::new()) };
        Ok(value.value().as_chunks::<16>().0.iter().map(|&b| FileId::from_bytes(b)).collect())
    }

    /// Reads and removes the mark of a clean stop; an index without records is clean by nature.
    fn take_clean(&self) -> std::result::Result<bool, redb::Error> {
        let tx = self.db.begin_write()?;
        let clean = tx.open_table(META)?.remove(CLEAN)?.is_some();
        tx.commit()?;
        Ok(clean)
    }

    /// Writes a batch, durably and at once or not at all.
    pub fn commit<'a>(&self, changes: impl Iterator<Item = (FileId, &'a Change)>) -> Result<()> {
        self.write(changes).map_err(|e| db_error("write", Path::new("index"), e))
    }

    fn write<'a>(
        &self,
        changes: impl Iterator<Item = (FileId, &'a Change)>,
    ) -> std::result::Result<(), redb::Error> {
        let tx = self.db.begin_write()?;
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

    /// Notes a stop, the eviction order to go on with, and whether all that is cached can be trusted by the next start.
    pub fn close(&self, order: &[FileId], trusted: bool) -> Result<()> {
        let bytes: Vec<u8> = order.iter().flat_map(|id| id.to_bytes()).collect();
        let write = || -> std::result::Result<(), redb::Error> {
            let tx = self.db.begin_write()?;
            {
                let mut meta = tx.open_table(META)?;
                meta.insert(ORDER, bytes.as_slice())?;
                if trusted {
                    meta.insert(CLEAN, [1u8].as_slice())?;
                }
            }
            tx.commit()?;
            Ok(())
        };
        write().map_err(|e| db_error("close", Path::new("index"), e))
    }

    /// Calls `each` with every record, in order of id; for the operator's questions about trees.
    pub fn for_each(&self, each: &mut dyn FnMut(FileId, &Record)) -> Result<()> {
        let (records, _) = self.load().map_err(|e| db_error("read", Path::new("index"), e))?;
        records.iter().for_each(|(id, record)| each(*id, record));
        Ok(())
    }
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

    fn put(index: &Index, numbers: std::ops::Range<u64>) {
        let changes: Vec<_> = numbers.map(|n| (id(n), Change::Put(record(n)))).collect();
        index.commit(changes.iter().map(|(id, c)| (*id, c))).unwrap();
    }

    #[test]
    fn records_order_and_the_clean_mark_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let first = Index::open(&path).unwrap();
        assert!(!first.clean && first.records.is_empty());
        put(&first.index, 1..4);
        first.index.commit([(id(2), &Change::Remove)].into_iter()).unwrap();
        first.index.close(&[id(3), id(1)], true).unwrap();
        drop(first);
        let second = Index::open(&path).unwrap();
        assert!(second.clean);
        assert_eq!(second.records, [(id(1), record(1)), (id(3), record(3))]);
        assert_eq!(second.order, [id(3), id(1)]);
        drop(second);
        assert!(!Index::open(&path).unwrap().clean, "the mark is taken at the start");
    }

    #[test]
    fn a_damaged_index_is_set_aside_and_never_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        std::fs::write(&path, vec![7u8; 100_000]).unwrap();
        let loaded = Index::open(&path).unwrap();
        assert!(loaded.lost && !loaded.clean && loaded.records.is_empty());
        assert!(path.with_extension("damaged").exists());
    }

    #[test]
    fn any_flipped_byte_gives_right_records_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i");
        let loaded = Index::open(&path).unwrap();
        put(&loaded.index, 1..50);
        loaded.index.close(&[], true).unwrap();
        drop(loaded);
        let image = std::fs::read(&path).unwrap();
        for at in (0..image.len()).step_by(image.len() / 150) {
            std::fs::write(&path, &image).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[image[at] ^ 0x10], at as u64).unwrap();
            drop(file);
            let loaded = Index::open(&path).unwrap();
            for (id, r) in &loaded.records {
                assert_eq!(*r, record(id.low), "flip at {at}");
            }
            drop(loaded);
            let _ = std::fs::remove_file(path.with_extension("damaged"));
        }
    }
}
