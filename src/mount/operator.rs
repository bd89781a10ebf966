//! The verbs of the control socket, on a running mount.

use super::{End, Plan};
use crate::cache::prefetch::hints::HintReport;
use crate::cache::warm::{Glob, Lists, Plan as WarmPlan};
use crate::control::{
    ControlError, ControlErrorKind, Handler, Info, PassthroughInfo, RelPath, Request, WarmRequest,
};
use crate::fs::Fs;
use crate::fuse::session::Forgetter;
use crate::policy::sample::AdvicePoint;
use crate::policy::simulate;
use crate::types::{PathText, escape_bytes, unescape_bytes};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Progress is told at most this often: often enough for a bar, rarely enough to cost nothing.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Does what the operator asks.
pub struct Operator {
    plan: Plan,
    fs: Arc<Fs>,
    ends: parking_lot::Mutex<Sender<End>>,
    forgetter: OnceLock<Forgetter>,
    lists: Lists,
    started: Instant,
}

impl Operator {
    pub(super) fn new(plan: &Plan, fs: Arc<Fs>, ends: Sender<End>) -> Self {
        let ends = parking_lot::Mutex::new(ends);
        Self {
            plan: plan.clone(),
            fs,
            ends,
            forgetter: OnceLock::new(),
            lists: Lists::default(),
            started: Instant::now(),
        }
    }

    pub(super) fn set_forgetter(&self, forgetter: Forgetter) {
        let _ = self.forgetter.set(forgetter);
    }

    fn info(&self) -> Value {
        let off = self.fs.passthrough_off().map(str::to_string);
        let info = Info {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            source: PathText(&self.plan.source).to_string(),
            mountpoint: PathText(&self.plan.mountpoint).to_string(),
            cache_dir: PathText(&self.plan.cache_dir).to_string(),
            engine: self.fs.cache().engine_name().into(),
            passthrough: PassthroughInfo { on: off.is_none(), reason: off },
            uptime_s: self.started.elapsed().as_secs(),
        };
        serde_json::to_value(info).unwrap_or(Value::Null)
    }

    /// Drops the cached copies below `paths` and forgets how fresh they are: the next open asks the source.
    fn evict(
        &self,
        paths: &[RelPath],
        progress: &mut dyn FnMut(Value) -> bool,
    ) -> Result<Value, ControlError> {
        let (mut evicted, mut in_use, mut bytes) = (0u64, 0u64, 0u64);
        for path in paths {
            self.check_exists(path)?;
            let mut every = Every::new();
            let cache = self.fs.cache();
            for file in cache.all_files().into_iter().chain(cache.ram_files()) {
                if !file_is_below(file.path(), path.as_path()) {
                    continue;
                }
                let size = file.cached_bytes();
                match self.fs.cache().evict(file.id()) {
                    true => {
                        evicted += 1;
                        bytes += size;
                    }
                    false => in_use += 1,
                }
                if every.due() && !progress(json!({ "files": evicted })) {
                    return Err(cancelled());
                }
            }
            // This thread serves no requests, so it may tell the kernel.
            for (parent, name) in self.fs.expire(path.as_path()) {
                if let Some(forgetter) = self.forgetter.get() {
                    forgetter.entry(parent, &name);
                }
            }
        }
        self.fs.cache().flush();
        Ok(json!({ "files": evicted, "bytes": bytes, "in_use": in_use }))
    }

    fn warm(
        &self,
        request: WarmRequest,
        progress: &mut dyn FnMut(Value) -> bool,
    ) -> Result<Value, ControlError> {
        let background = request.background && !request.check;
        let plan = self.warm_plan(request)?;
        if background {
            let job = self.fs.cache().warm_in_background(plan).map_err(in_full)?;
            return Ok(json!({ "job": job }));
        }
        let (mut every, mut alive) = (Every::new(), true);
        let result = self.fs.cache().warm(plan, &mut |report| {
            if alive && every.due() {
                alive = progress(json!(report));
            }
            alive
        });
        let (report, stopped) = result.map_err(in_full)?;
        match (alive, stopped) {
            (false, _) => Err(cancelled()),
            (true, true) => Err(ControlError::new(
                ControlErrorKind::Cancelled,
                "the warm-up was stopped; the same command goes on from where it ended",
            )),
            (true, false) => Ok(json!(report)),
        }
    }

    fn warm_plan(&self, request: WarmRequest) -> Result<WarmPlan, ControlError> {
        let glob = |text: String| ControlError::new(ControlErrorKind::BadRequest, text);
        let globs = request.globs.iter().map(|g| Glob::new(g.base.as_path(), g.pattern.as_path()));
        Ok(WarmPlan {
            globs: globs.collect::<Result<_, _>>().map_err(glob)?,
            paths: request.paths.iter().map(|path| path.as_path().to_path_buf()).collect(),
            list: request.list.map(|list| self.lists.remove(list)).transpose()?,
            jobs: request.jobs.map(|n| n.get().min(JOBS_MAX) as usize),
            bytes_per_s: request.rate,
            check: request.check,
        })
    }

    /// Adds to a list of a warm-up that is to come.
    fn warm_list(&self, list: Option<u64>, paths: &[RelPath]) -> Result<Value, ControlError> {
        let list =
            self.lists.add(self.fs.cache(), list, paths.iter().map(RelPath::as_path)).map_err(in_full)?;
        Ok(json!({ "list": list }))
    }

    fn verify(
        &self,
        paths: &[RelPath],
        progress: &mut dyn FnMut(Value) -> bool,
    ) -> Result<Value, ControlError> {
        for path in paths {
            self.check_exists(path)?;
        }
        let paths: Vec<&Path> = paths.iter().map(RelPath::as_path).collect();
        let (mut every, mut alive) = (Every::new(), true);
        let report = self.fs.cache().verify(&paths, &mut |report| {
            if every.due() {
                let shown = json!({ "files": report.files, "files_total": report.files_total,
                    "bytes": report.bytes, "damaged": report.damaged.len() });
                alive = progress(shown);
            }
            alive
        });
        if !alive {
            return Err(cancelled());
        }
        Ok(json!(report))
    }

    /// What the sample of all uses says of these sizes; of shares of what was read where none are given.
    fn advise(&self, mut sizes: Vec<u64>) -> Value {
        // A copy: the replays take a moment, and opens wait for nobody.
        let sample = self.fs.cache().reading(|desk| desk.sample().clone());
        let capacity = self.fs.cache().usage().bytes_max;
        if sizes.is_empty() {
            let bytes = sample.advise(&[]).bytes;
            sizes = simulate::usual_sizes(bytes);
            sizes.extend((bytes > 0).then_some(capacity));
        }
        sizes.sort_unstable();
        sizes.dedup();
        let advice = sample.advise(&sizes);
        let point = |point: &AdvicePoint| {
            json!({ "cache_bytes": point.cache_bytes,
                "lru_hit_ratio": point.lru.0, "lru_byte_hit_ratio": point.lru.1,
                "epoch_hit_ratio": point.epoch.0, "epoch_byte_hit_ratio": point.epoch.1 })
        };
        json!({ "uses": advice.uses, "files": advice.files, "bytes": advice.bytes,
            "sampled_files": advice.sampled_files, "is_part": advice.is_part,
            "cache_capacity_bytes": capacity,
            "sizes": advice.points.iter().map(point).collect::<Vec<_>>() })
    }

    /// Takes in the coming order of `job`, and says what is known of all orders.
    fn hint(&self, job: &str, clear: bool, lines: &[String]) -> Result<Value, ControlError> {
        let cache = self.fs.cache();
        if clear {
            cache.clear_hint(job);
        }
        let mut paths = Vec::with_capacity(lines.len());
        let (mut refused, mut refused_first) = (0u64, Vec::new());
        for line in lines {
            match self.hinted_path(line) {
                Ok(path) => paths.push(path),
                Err(reason) => {
                    refused += 1;
                    if refused_first.len() < REFUSED_SHOWN_MAX {
                        refused_first.push(reason);
                    }
                }
            }
        }
        if !paths.is_empty() {
            cache.hint(job, &paths)?;
        }
        let jobs: Vec<Value> = cache.hints().iter().map(hint_json).collect();
        Ok(
            json!({ "accepted": paths.len(), "refused": refused, "refused_first": refused_first, "jobs": jobs }),
        )
    }

    /// The path below the root that a line of an order names.
    fn hinted_path(&self, line: &str) -> Result<PathBuf, String> {
        let bytes = unescape_bytes(line).ok_or("a backslash is \\\\, a byte \\xNN")?;
        let path = Path::new(OsStr::from_bytes(&bytes));
        let below = path.strip_prefix(&self.plan.mountpoint).unwrap_or(path);
        let path = RelPath::new(below)?;
        match path == RelPath::root() {
            true => Err("a line that names the mount itself".into()),
            false => Ok(path.as_path().to_path_buf()),
        }
    }

    /// Tells of each use of a file until the caller goes.
    fn record(&self, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, ControlError> {
        let too_many = || ControlError::new(ControlErrorKind::Busy, "others record this mount already");
        let recording = self.fs.cache().recorder().begin().ok_or_else(too_many)?;
        loop {
            let (uses, lost) = recording.take();
            let uses: Vec<Value> =
                uses.iter().map(|one| json!([one.size, escape_bytes(&one.path)])).collect();
            // Also when there are none: the caller learns that it has begun, and we that it is still there.
            if !progress(json!({ "uses": uses, "lost": lost })) {
                return Err(cancelled());
            }
            std::thread::sleep(PROGRESS_INTERVAL);
        }
    }

    /// A path that neither the source nor the cache knows is a slip of the hand.
    fn check_exists(&self, path: &RelPath) -> Result<(), ControlError> {
        let Err(error) = self.fs.cache().source().stat(path.as_path()) else { return Ok(()) };
        let cached = self.fs.cache().all_files().iter().any(|f| file_is_below(f.path(), path.as_path()));
        if cached { Ok(()) } else { Err(error.into()) }
    }
}

/// Refused lines of an order that are shown.
const REFUSED_SHOWN_MAX: usize = 5;

/// More threads than this only queue at the source.
const JOBS_MAX: u32 = 256;

impl Handler for Operator {
    fn handle(
        &self,
        request: Request,
        progress: &mut dyn FnMut(Value) -> bool,
    ) -> Result<Value, ControlError> {
        match request {
            Request::Stats {} => Ok(self.fs.stats_json()),
            Request::Info {} => Ok(self.info()),
            Request::Evict { paths } => self.evict(&paths, progress),
            Request::Warm(request) => self.warm(request, progress),
            Request::WarmList { list, paths } => self.warm_list(list, &paths),
            Request::WarmStop {} => Ok(json!({ "stopped": self.fs.cache().warms().stop_all() })),
            Request::Verify { paths } => self.verify(&paths, progress),
            Request::Advise { cache_bytes } => Ok(self.advise(cache_bytes)),
            Request::Hint { job, clear, paths } => self.hint(&job, clear, &paths),
            Request::Record {} => self.record(progress),
            Request::Stop {} => {
                let _ = self.ends.lock().send(End::Asked);
                Ok(json!({}))
            }
        }
    }
}

fn hint_json(report: &HintReport) -> Value {
    let order = &report.order;
    let judged = order.right + order.wrong;
    let state = match order {
        order if order.dropped => "dropped",
        order if order.position == order.lines => "read",
        order if order.resting => "resting",
        _ => "followed",
    };
    json!({ "job": report.job, "state": state, "lines": order.lines, "position": order.position,
        "right": order.right, "wrong": order.wrong, "skipped": order.skipped,
        "precision": (judged > 0).then(|| order.right as f64 / judged as f64),
        "unknown": report.unknown, "unknown_first": report.unknown_first })
}

fn file_is_below(file: &[u8], dir: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    PathBuf::from(std::ffi::OsStr::from_bytes(file)).starts_with(dir)
}

/// An error in its own words: a client says of everything that is busy that the connections are.
fn in_full(error: crate::types::Error) -> ControlError {
    match error.kind() {
        crate::types::ErrorKind::Busy => ControlError::new(ControlErrorKind::Failed, error.to_string()),
        _ => error.into(),
    }
}

fn cancelled() -> ControlError {
    ControlError::new(ControlErrorKind::Cancelled, "the client went away")
}

/// Lets something happen once in a while.
struct Every {
    last: Instant,
}

impl Every {
    fn new() -> Self {
        Self { last: Instant::now() }
    }

    fn due(&mut self) -> bool {
        let due = self.last.elapsed() >= PROGRESS_INTERVAL;
        if due {
            self.last = Instant::now();
        }
        due
    }
}
