//! The warm-ups that run, and the last few that ran in the background: who is protected from whom, what `stats` shows, and
//! how to stop them. Bounded, whatever the source does.

use super::report::WarmReport;
use crate::cache::Cache;
use crate::store::CacheFile;
use crate::types::sync::Mutex;
use crate::types::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Warm-ups in the background at the same time: more would only take turns at one source.
pub const BACKGROUND_MAX: usize = 4;

/// Those that have ended and are still shown.
const ENDED_MAX: usize = 4;

/// Threads of warm-ups, stopped ones included, that may wait for a source that is silent. Nothing starts beyond it.
const BUSY_MAX: usize = 1024;

/// One warm-up.
pub struct Job {
    id: NonZeroU32,
    background: bool,
    what: String,
    started: Instant,
    stopped: AtomicBool,
    evicts: AtomicBool,
    handed_over: AtomicU64,
    state: Mutex<State>,
}

struct State {
    word: &'static str,
    error: Option<String>,
    report: WarmReport,
}

impl Job {
    /// Its number; counted from 1 since the mount.
    pub fn id(&self) -> NonZeroU32 {
        self.id
    }

    /// Stops it; what it has made warm stays.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// It knows all that it is to keep: from here on others make room for the rest.
    pub fn let_evict(&self) {
        self.evicts.store(true, Ordering::Release);
    }

    /// Whether it is so.
    pub fn may_evict(&self) -> bool {
        self.evicts.load(Ordering::Acquire)
    }

    /// Files that it had made warm and that another warm-up answers for since.
    pub fn handed_over(&self) -> u64 {
        self.handed_over.load(Ordering::Relaxed)
    }

    /// When it began.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Shows how far it is.
    pub fn publish(&self, report: &WarmReport) {
        self.state.lock().report = report.clone();
    }

    /// It has ended.
    pub fn end(&self, result: &Result<WarmReport>) {
        let mut state = self.state.lock();
        state.word = match result {
            _ if self.is_stopped() => "stopped",
            Ok(report) if report.is_all_warm() => "done",
            Ok(_) => "incomplete",
            Err(_) => "failed",
        };
        match result {
            Ok(report) => state.report = report.clone(),
            Err(e) => state.error = Some(e.to_string()),
        }
    }

    fn figures(&self) -> Value {
        let state = self.state.lock();
        let mut figures = json!(state.report);
        // All of it must fit into an extended attribute.
        figures["failed"] = state.report.failed.iter().take(FAILED_SHOWN).map(|line| cut(line)).collect();
        figures["job"] = json!(self.id);
        figures["background"] = json!(self.background);
        figures["what"] = json!(cut(&self.what));
        figures["state"] = json!(state.word);
        figures["error"] = json!(state.error);
        figures
    }
}

/// Reasons that are shown of each.
const FAILED_SHOWN: usize = 3;
/// Characters of a text that are shown.
const TEXT_CHARS_MAX: usize = 120;

fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

/// All warm-ups of a cache. Lock order: a leaf, and before a job's own.
#[derive(Default)]
pub struct Jobs {
    table: Mutex<Table>,
    busy: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Table {
    started: u32,
    running: Vec<Arc<Job>>,
    ended: VecDeque<Arc<Job>>,
}

impl Jobs {
    fn begin(&self, what: String, background: bool) -> Result<Arc<Job>> {
        let busy = |text: String| Error::new(ErrorKind::Busy, "", text);
        if self.busy.load(Ordering::Relaxed) >= BUSY_MAX {
            return Err(busy(format!("{BUSY_MAX} threads of earlier warm-ups still wait for the source")));
        }
        let mut table = self.table.lock();
        if background && table.running.iter().filter(|job| job.background).count() >= BACKGROUND_MAX {
            return Err(busy(format!(
                "{BACKGROUND_MAX} warm-ups run in the background already: wait, or end them by `warmfs warm --stop MOUNT`"
            )));
        }
        table.started += 1;
        let id = NonZeroU32::new(table.started).expect("counted from 1, and nobody starts 4,000,000,000");
        let state = State { word: "running", error: None, report: WarmReport::default() };
        let job = Arc::new(Job {
            id,
            background,
            what,
            started: Instant::now(),
            stopped: AtomicBool::new(false),
            evicts: AtomicBool::new(false),
            handed_over: AtomicU64::new(0),
            state: Mutex::new(state),
        });
        table.running.push(job.clone());
        Ok(job)
    }

    fn end(&self, job: &Arc<Job>) {
        let mut table = self.table.lock();
        table.running.retain(|other| !Arc::ptr_eq(other, job));
        if job.background {
            table.ended.push_back(job.clone());
            if table.ended.len() > ENDED_MAX {
                table.ended.pop_front();
            }
        }
    }

    /// Stops all that run; says how many.
    pub fn stop_all(&self) -> usize {
        let table = self.table.lock();
        table.running.iter().for_each(|job| job.stop());
        table.running.len()
    }

    /// How many run.
    pub fn running(&self) -> usize {
        self.table.lock().running.len()
    }

    /// Those that run, then those that ended last, oldest first.
    pub fn figures(&self) -> Value {
        let table = self.table.lock();
        table.running.iter().chain(&table.ended).map(|job| job.figures()).collect()
    }

    /// Whose files are not to make room for `job`: those of all that run. `None` if nothing is to make room for it yet.
    pub fn spared_by(&self, job: Option<NonZeroU32>) -> Option<Vec<NonZeroU32>> {
        let table = self.table.lock();
        match table.running.iter().find(|running| Some(running.id) == job) {
            Some(job) => job.may_evict().then(|| table.running.iter().map(|job| job.id).collect()),
            // A reader, also of what a warm-up has once made warm.
            None => Some(Vec::new()),
        }
    }

    /// Notes that `job` has made a file warm (`done`), or is about to. Tells whether that is news.
    pub fn claim(&self, file: &CacheFile, job: &Job, done: bool) -> bool {
        let before = file.set_warmed_by(job.id, done);
        if let Some((other, true)) = before
            && other != job.id
            && let Some(other) = self.table.lock().running.iter().find(|running| running.id == other)
        {
            other.handed_over.fetch_add(1, Ordering::Relaxed);
        }
        before != Some((job.id, done))
    }

    /// Counts a piece of work for as long as it lives.
    pub fn busy(&self) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.busy.clone())
    }
}

/// A piece of work that may wait for the source.
pub struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A warm-up that is in the table for as long as this lives.
pub struct Running {
    cache: Arc<Cache>,
    job: Arc<Job>,
}

impl Running {
    /// Puts one into the table. `what` says for people what it warms.
    pub fn begin(cache: &Arc<Cache>, what: String, background: bool) -> Result<Self> {
        Ok(Self { job: cache.warms.begin(what, background)?, cache: cache.clone() })
    }

    /// The one.
    pub fn job(&self) -> &Arc<Job> {
        &self.job
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.cache.warms.end(&self.job);
    }
}

/// Whether one of these warm-ups has made this file warm, or is about to.
pub fn is_spared(file: &CacheFile, spared: &[NonZeroU32]) -> bool {
    !spared.is_empty() && file.warmed_by().is_some_and(|(job, _)| spared.contains(&job))
}
