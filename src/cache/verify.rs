//! Re-hashes what is cached and drops what is wrong.

use super::Cache;
use crate::store::index::Loaded;
use crate::store::{CacheDir, CacheFile, Change, Chunk, Record};
use crate::types::{CHUNK_BYTES, Error, ErrorKind, Result, chunk_range, escape_bytes};
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
        for file in files {
            // In use while it is read: not evicted under our eyes. One that is being evicted needs no look.
            let Some(used) = file.use_it() else { continue };
            report.files += 1;
            report.bytes += used.cached_bytes();
            if !self.verify_file(&used) {
                report.damaged.push(escape_bytes(used.path()));
            }
            if !progress(&report) {
                break;
            }
        }
        report
    }

    /// Verifies one file; one that is damaged is dropped.
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
    for (id, record) in &loaded.records {
        report.files += 1;
        match verify_record(dir, record) {
            Ok(bytes) => report.bytes += bytes,
            Err(_) => {
                report.damaged.push(escape_bytes(&record.path));
                dir.remove(record.number)?;
                dropped.push((*id, Change::Remove));
            }
        }
    }
    loaded.index.commit(dropped.iter().map(|(id, change)| (*id, change)))?;
    loaded.index.close(&loaded.order, true)?;
    Ok(report)
}

/// Hashes what the record says is present; gives the bytes.
fn verify_record(dir: &CacheDir, record: &Record) -> Result<u64> {
    let fd = dir.open_data(record.number, record.version.size, false)?;
    let mut bytes = 0;
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    for (index, hash) in record.chunks.iter().enumerate() {
        let Some(hash) = hash else { continue };
        let range = chunk_range(index as u32, record.version.size);
        let chunk = &mut buffer[..range.len() as usize];
        let read = dir.io().read_exact(&fd, chunk, range.start);
        if read.is_err() || blake3::hash(chunk).as_bytes() != hash {
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
