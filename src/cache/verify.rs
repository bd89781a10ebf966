//! Re-hashes what is cached and drops what is wrong.
//!
//! `warmfs verify` looks at what the SSD has ([`super::disk`]), as the scrub does, only at once and at full speed. A copy
//! that must be verified before it is opened is read through the page cache instead: those are the bytes that its
//! reader gets in a moment.

use super::Cache;
use super::disk::{DiskFile, DiskReader};
use super::flight::Waiter;
use super::scrub::Found;
use crate::store::index::Loaded;
use crate::store::{CacheDir, CacheFile, Change, Chunk, FileUse, Record};
use crate::types::{Error, ErrorKind, Result, chunk_range, escape_bytes};
use serde::Serialize;
use std::path::Path;
use std::sync::Arc;

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Files looked at.
    pub files: u64,
    /// Bytes hashed.
    pub bytes: u64,
    /// Files in all, looked at or not.
    pub files_total: u64,
    /// Paths of the files that were damaged, and were dropped. The next read fetches them again.
    pub damaged: Vec<String>,
}

impl Cache {
    /// Verifies every cached file below one of `paths` (the empty path is all). `progress` is told after each file and
    /// may stop it.
    pub fn verify(&self, paths: &[&Path], progress: &mut dyn FnMut(&VerifyReport) -> bool) -> VerifyReport {
        let files: Vec<_> = self.all_files().into_iter().filter(|f| is_below(f, paths)).collect();
        let mut report = VerifyReport { files_total: files.len() as u64, ..VerifyReport::default() };
        let mut reader = DiskReader::new();
        for file in files {
            match self.look_at_file(&file, &mut reader) {
                // One that is being evicted needs no look.
                Found::Gone => continue,
                Found::Good => {}
                Found::Damaged => report.damaged.push(escape_bytes(file.path())),
            }
            report.files += 1;
            report.bytes += file.cached_bytes();
            if !progress(&report) {
                break;
            }
        }
        report
    }

    fn look_at_file(&self, file: &Arc<CacheFile>, reader: &mut DiskReader) -> Found {
        let mut disk = None;
        let chunks = 0..file.all().end.max(1);
        let mut looks = chunks.map(|index| self.look_at_chunk(file, &mut disk, index, reader));
        looks.find(|found| *found != Found::Good).unwrap_or(Found::Good)
    }

    /// Verifies one file, once for all who ask at the same time, and calls `then` with whether it is sound: on this
    /// thread, or on that of the one who verifies it already.
    pub fn verify_once(&self, file: &FileUse, then: Waiter<bool>) {
        let mut then = Some(then);
        let waiter = || then.take().expect("asked for once at most");
        let Some(lead) = self.verifies.join((file.id(), file.version()), waiter) else { return };
        let good = file.is_servable() || self.verify_file(file);
        lead.finish(good);
        if let Some(then) = then {
            then(good);
        }
    }

    /// Verifies one file as its reader will see it; one that is damaged is dropped.
    pub fn verify_file(&self, file: &Arc<CacheFile>) -> bool {
        let present = |i: &u32| matches!(file.chunk(*i), Chunk::Present { .. });
        for index in (file.all().start..file.all().end).filter(present) {
            if !matches!(self.verify_chunk(file, index), Ok(true)) {
                // Before it goes: handles that read it through us turn to the source.
                file.distrust(index);
                self.drop_file(file);
                return false;
            }
        }
        // An empty file has no chunk to look at, but must be there all the same.
        self.open_data(file).is_ok()
    }
}

/// Verifies a cache that no daemon uses, and drops what is damaged. Afterwards all that is left is trusted.
pub fn offline(dir: &CacheDir, mut loaded: Loaded) -> Result<VerifyReport> {
    let mut report = VerifyReport { files_total: loaded.records.len() as u64, ..VerifyReport::default() };
    let mut dropped = Vec::new();
    let mut reader = DiskReader::new();
    for (id, record) in &loaded.records {
        report.files += 1;
        match verify_record(dir, record, &mut reader) {
            Ok(bytes) => report.bytes += bytes,
            // Dropped shortly before a stop that was not clean, after the last commit.
            Err(e) if !loaded.clean && e.kind() == ErrorKind::NotFound => dropped.push((*id, Change::Remove)),
            Err(_) => {
                report.damaged.push(escape_bytes(&record.path));
                dir.remove(record.number)?;
                dropped.push((*id, Change::Remove));
            }
        }
    }
    loaded.index.commit(dropped.iter().map(|(id, change)| (*id, change)))?;
    loaded.index.set_scrub_note(&super::scrub::note_of_pass())?;
    loaded.index.close(&loaded.order, true)?;
    Ok(report)
}

/// Hashes what the record says is present; gives the bytes.
fn verify_record(dir: &CacheDir, record: &Record, reader: &mut DiskReader) -> Result<u64> {
    let mut file = DiskFile::open(dir, record.number, record.version.size)?;
    let mut bytes = 0;
    for (index, hash) in record.chunks.iter().enumerate() {
        let Some(hash) = hash else { continue };
        let range = chunk_range(index as u32, record.version.size);
        if reader.hash(&mut file, range) != Ok(*hash) {
            return Err(Error::new(ErrorKind::Corrupt, "verify", escape_bytes(&record.path)));
        }
        bytes += range.len();
    }
    Ok(bytes)
}

/// Whether the file was filled from below one of `paths`.
pub(super) fn is_below(file: &CacheFile, paths: &[&Path]) -> bool {
    paths.iter().any(|path| super::fill::path_of(file).starts_with(path))
}
