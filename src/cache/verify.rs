//! Re-hashes what is cached and drops what is wrong.

use super::Cache;
use crate::store::{CacheFile, Chunk};
use crate::types::escape_bytes;
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
    pub fn verify(
        &self,
        paths: &[&Path],
        progress: &mut dyn FnMut(&VerifyReport) -> bool,
    ) -> VerifyReport {
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
                self.drop_file(file);
                return false;
            }
        }
        // An empty file has no chunk to look at, but must be there all the same.
        self.open_data(file).is_ok()
    }
}

/// Whether the file was filled from below one of `paths`.
pub(super) fn is_below(file: &CacheFile, paths: &[&Path]) -> bool {
    paths.iter().any(|path| super::fill::path_of(file).starts_with(path))
}
