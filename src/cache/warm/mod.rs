//! Fills whole trees, lists and globs, in parallel, with progress; or says what of them is not warm.
//!
//! | file | its part |
//! |---|---|
//! | [`run`] | one warm-up from begin to end: hands out work, keeps count |
//! | [`look`] | names become files, warm ones and others |
//! | [`keep`] | one file is made warm |
//! | [`glob`] | patterns, name by name |
//! | [`pace`] | the limit of the rate, and the rate that is shown |
//! | [`report`] | what is told at the end and on the way |
//! | [`spool`] | queues of millions of names in bounded memory |
//! | [`lists`] | lists that arrive in parts |
//! | [`jobs`] | the warm-ups that run: protection, figures, stopping |
//!
//! It looks at the source and not at the cache: "100 % warm" is a statement about every file that is there. What is warm is
//! never fetched again, so that a warm-up that was interrupted goes on where it ended. What one has made warm is not pushed out by
//! it or by another that runs: it stops filling and says how much fits. Readers go by the policy all the same; what they
//! have pushed out by the end is not called warm.

pub mod glob;
pub mod jobs;
pub mod keep;
pub mod lists;
pub mod look;
pub mod pace;
pub mod report;
pub mod run;
pub mod spool;

pub use glob::Glob;
pub use jobs::Jobs;
pub use lists::Lists;
pub use report::WarmReport;

use crate::cache::Cache;
use crate::types::Result;
use spool::Spool;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::sync::Arc;

/// How many files are filled at a time unless told otherwise.
pub const JOBS_DEFAULT: usize = 8;

/// What is to be warm, and how.
#[derive(Default)]
pub struct Plan {
    /// Files and trees, below the source's root. All must be there.
    pub paths: Vec<PathBuf>,
    /// Patterns.
    pub globs: Vec<Glob>,
    /// More files and trees, of which some may not be there.
    pub list: Option<Spool>,
    /// Files at a time; [`JOBS_DEFAULT`] if none is said.
    pub jobs: Option<usize>,
    /// Bytes to fetch in a second, at most.
    pub bytes_per_s: Option<NonZeroU64>,
    /// Only look: nothing is fetched or changed.
    pub check: bool,
}

impl Plan {
    /// For people: what is warmed.
    fn what(&self) -> String {
        let first = self.paths.first().map(|path| crate::cache::fill::shown(path));
        let first = first.or_else(|| self.globs.first().map(Glob::shown));
        let listed = self.list.as_ref().map_or(0, Spool::len);
        match (first, self.paths.len() + self.globs.len()) {
            (None, _) => format!("a list of {listed}"),
            (Some(first), _) if first.is_empty() => "the whole mount".into(),
            (Some(first), 1) => first,
            (Some(first), n) => format!("{first} and {} more", n - 1),
        }
    }
}

impl Cache {
    /// Makes every regular file of the plan warm. `progress` is told as things happen, and ten times a second if nothing
    /// does, and may stop it. Errors only if a path itself is not there; files that cannot be filled are in the report. Tells whether it
    /// was stopped before its end.
    pub fn warm(
        self: &Arc<Self>,
        plan: Plan,
        progress: &mut dyn FnMut(&WarmReport) -> bool,
    ) -> Result<(WarmReport, bool)> {
        self.check_paths(&plan)?;
        let running = jobs::Running::begin(self, plan.what(), false)?;
        let result = run::run(self, running.job(), plan, progress);
        running.job().end(&result);
        result.map(|report| (report, running.job().is_stopped()))
    }

    /// The same on a thread of its own; gives its number.
    pub fn warm_in_background(self: &Arc<Self>, plan: Plan) -> Result<NonZeroU32> {
        self.check_paths(&plan)?;
        let running = jobs::Running::begin(self, plan.what(), true)?;
        let (id, cache) = (running.job().id(), self.clone());
        let work = move || {
            let result = run::run(&cache, running.job(), plan, &mut |_| true);
            if let Err(e) = &result {
                tracing::warn!("warm-up {id} has failed: {e}");
            }
            running.job().end(&result);
        };
        let thread = std::thread::Builder::new().name("warmfs-warm".into()).spawn(work);
        thread.map(|_| id).map_err(|e| crate::types::Error::io("start a thread for", "a warm-up", &e))
    }

    /// The warm-ups of this cache.
    pub fn warms(&self) -> &Jobs {
        &self.warms
    }

    fn check_paths(&self, plan: &Plan) -> Result<()> {
        plan.paths.iter().try_for_each(|path| self.source.stat(path).map(drop))
    }
}
