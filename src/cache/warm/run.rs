//! One warm-up from begin to end.
//!
//! The thread that is asked keeps the queues and the count, and hands work to two pools: one looks at names, the other
//! fills. They go on side by side, so that the totals are known long before the end and nothing waits for them. It never
//! waits for the source itself: a stop is heard within a tenth of a second, also while the source is silent; what is on
//! its way then ends by itself, and nothing new is begun.

use super::jobs::Job;
use super::keep::{Keeper, Kept};
use super::look::{Look, Sight};
use super::pace::Meter;
use super::report::{Reason, WarmReport};
use super::spool::Spool;
use super::{Glob, JOBS_DEFAULT, Plan};
use crate::cache::Cache;
use crate::cache::fill::shown;
use crate::cache::pool::Pool;
use crate::types::Result;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Names that are looked at in one piece of work.
const BATCH: usize = 32;
/// Events that may wait to be counted; who has more waits.
const EVENTS_MAX: usize = 1024;
/// Events that are counted before the progress is told.
const EVENTS_AT_ONCE: usize = 64;
/// Files without room that are counted off before a stop is heard.
const COUNTED_OFF_MAX: usize = 4096;
/// The longest time between two looks whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// What the pools tell.
enum Event {
    Looked(Vec<Sight>),
    Fetched {
        bytes: u64,
        fetched: u64,
    },
    Filled {
        path: Vec<u8>,
        bytes: u64,
        counted: u64,
        /// Nothing else was being filled.
        alone: bool,
        kept: Kept,
    },
    /// Who looked has died.
    LookerDied,
}

/// Tells the end of a piece of work, also if it panics.
struct Ticket {
    events: SyncSender<Event>,
    end: Option<Event>,
}

impl Ticket {
    fn end_with(mut self, event: Event) {
        self.end = Some(event);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Nobody listens once the warm-up was stopped.
        let _ = self.end.take().map(|end| self.events.send(end));
    }
}

struct Run<'a> {
    cache: &'a Arc<Cache>,
    job: &'a Arc<Job>,
    globs: Arc<[Glob]>,
    matched: Vec<bool>,
    check: bool,
    jobs: usize,
    keeper: Arc<Keeper>,
    looks: Spool,
    fills: Spool,
    lookers: Pool,
    fillers: Pool,
    looking: usize,
    filling: usize,
    /// No room is left: the rest is counted and not fetched.
    full: Option<Reason>,
    /// What is free is filled; the rest waits until it is known whom to spare.
    waits: bool,
    /// One found no room while others were being filled, and what they push out is free only when they are done: one at a
    /// time, until one has found room.
    narrow: bool,
    /// Files that were warm at some time, each once.
    warmed: u64,
    report: WarmReport,
    meter: Meter,
    published: Option<Instant>,
    events: SyncSender<Event>,
}

/// Does all of it on this thread.
pub fn run(
    cache: &Arc<Cache>,
    job: &Arc<Job>,
    plan: Plan,
    progress: &mut dyn FnMut(&WarmReport) -> bool,
) -> Result<WarmReport> {
    let (events, received) = sync_channel(EVENTS_MAX);
    let mut run = Run::new(cache, job, plan, events)?;
    let result = run.go(&received, progress);
    run.lookers.stop();
    run.fillers.stop();
    // From here on nobody waits for whoever has something to tell.
    drop(received);
    result.map(|()| run.report)
}

impl<'a> Run<'a> {
    fn new(cache: &'a Arc<Cache>, job: &'a Arc<Job>, plan: Plan, events: SyncSender<Event>) -> Result<Self> {
        let jobs = plan.jobs.unwrap_or(JOBS_DEFAULT).max(1);
        let mut looks = plan.list.unwrap_or_default();
        for path in plan.paths {
            looks.push(cache, &Look::Named(path).to_bytes())?;
        }
        for (index, glob) in plan.globs.iter().enumerate() {
            let (dir, places) = (glob.base().to_path_buf(), glob.start());
            looks.push(cache, &Look::Match { dir, glob: index as u16, places }.to_bytes())?;
        }
        Ok(Self {
            cache,
            job,
            matched: vec![false; plan.globs.len()],
            globs: plan.globs.into(),
            check: plan.check,
            jobs,
            keeper: Arc::new(Keeper::new(job.clone(), plan.bytes_per_s)),
            looks,
            fills: Spool::default(),
            lookers: Pool::new("warmfs-look", jobs),
            fillers: Pool::new("warmfs-warm", jobs),
            looking: 0,
            filling: 0,
            full: None,
            waits: false,
            narrow: false,
            warmed: 0,
            report: WarmReport { counting: true, ..WarmReport::default() },
            meter: Meter::default(),
            published: None,
            events,
        })
    }

    fn go(
        &mut self,
        received: &Receiver<Event>,
        progress: &mut dyn FnMut(&WarmReport) -> bool,
    ) -> Result<()> {
        loop {
            self.hand_out_looks()?;
            self.hand_out_fills()?;
            self.tick();
            if !progress(&self.report) {
                self.job.stop();
            }
            if self.job.is_stopped() {
                self.publish();
                return Ok(());
            }
            if self.looking == 0 && self.filling == 0 {
                if self.fills.is_empty() {
                    break;
                }
                // Nothing is on its way: the rest is being counted off.
                continue;
            }
            match received.recv_timeout(TICK) {
                Ok(event) => self.note(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("this thread has a sender of its own"),
            }
            for event in received.try_iter().take(EVENTS_AT_ONCE) {
                self.note(event)?;
            }
        }
        self.finish();
        progress(&self.report);
        Ok(())
    }

    fn hand_out_looks(&mut self) -> Result<()> {
        while self.looking < self.jobs && !self.looks.is_empty() {
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Some(record) = self.looks.pop(self.cache)?
            {
                batch.extend(Look::from_bytes(&record));
            }
            let (cache, globs, job) = (self.cache.clone(), self.globs.clone(), self.job.clone());
            let ticket = self.ticket(Event::LookerDied);
            let busy = self.cache.warms.busy();
            self.looking += 1;
            // Refused only where no thread is to be had; the ticket then tells.
            self.lookers.submit(Box::new(move || {
                let _busy = busy;
                let wanted = batch.into_iter().take_while(|_| !job.is_stopped());
                ticket.end_with(Event::Looked(wanted.flat_map(|look| cache.look(look, &globs)).collect()));
            }));
        }
        self.report.counting = self.looking > 0 || !self.looks.is_empty();
        if !self.report.counting {
            self.job.let_evict();
            self.waits = false;
        }
        Ok(())
    }

    fn hand_out_fills(&mut self) -> Result<()> {
        let mut counted_off = 0;
        while !self.waits
            && self.filling < if self.narrow { 1 } else { 2 * self.jobs }
            && counted_off < COUNTED_OFF_MAX
            && let Some(record) = self.fills.pop(self.cache)?
        {
            let Some((bytes, path)) = record.split_first_chunk::<8>() else { continue };
            let (bytes, path) = (u64::from_le_bytes(*bytes), path.to_vec());
            if let Some(reason) = &self.full {
                counted_off += 1;
                self.report.not_warm(&shown(path_of(&path)), bytes, 0, reason);
                continue;
            }
            self.fill(path, bytes);
        }
        Ok(())
    }

    fn fill(&mut self, path: Vec<u8>, bytes: u64) {
        let (cache, keeper, events) = (self.cache.clone(), self.keeper.clone(), self.events.clone());
        let died = Kept::Not(Reason::Failed("the thread that filled it died".into()));
        let ticket =
            self.ticket(Event::Filled { path: path.clone(), bytes, counted: 0, alone: false, kept: died });
        let busy = self.cache.warms.busy();
        let alone = self.narrow && self.filling == 0;
        self.filling += 1;
        self.fillers.submit(Box::new(move || {
            let _busy = busy;
            let mut counted = 0;
            let kept = cache.keep(path_of(&path), &keeper, &mut |bytes, fetched| {
                counted += bytes;
                let _ = events.send(Event::Fetched { bytes, fetched });
            });
            ticket.end_with(Event::Filled { path, bytes, counted, alone, kept });
        }));
    }

    fn ticket(&self, end: Event) -> Ticket {
        Ticket { events: self.events.clone(), end: Some(end) }
    }

    fn note(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Fetched { bytes, fetched } => self.report.progress(bytes, fetched),
            Event::Looked(sights) => {
                self.looking -= 1;
                sights.into_iter().try_for_each(|sight| self.see(sight))?;
            }
            Event::Filled { path, bytes, counted, alone, kept } => {
                self.filling -= 1;
                self.narrow &= !(alone && matches!(kept, Kept::Warm { .. }));
                match kept {
                    Kept::Not(Reason::NoRoom | Reason::Refused) if !alone && self.full.is_none() => {
                        self.narrow = true;
                        self.report.later(counted);
                        self.queue(&path, bytes)?;
                    }
                    kept => self.note_kept(&path, bytes, counted, kept)?,
                }
            }
            Event::LookerDied => {
                self.looking -= 1;
                self.report.problem("", &Reason::Failed("a thread that looked at names died".into()));
            }
        }
        Ok(())
    }

    fn note_kept(&mut self, path: &[u8], bytes: u64, counted: u64, kept: Kept) -> Result<()> {
        match kept {
            Kept::Warm { first } => {
                self.warmed += u64::from(first);
                self.report.warm(bytes, counted);
            }
            Kept::Not(reason) => {
                self.report.not_warm(&shown(path_of(path)), bytes, counted, &reason);
                if matches!(reason, Reason::NoRoom | Reason::Refused) {
                    self.full = Some(reason);
                }
            }
            Kept::Later => {
                self.waits = true;
                self.report.later(counted);
                self.queue(path, bytes)?;
            }
            Kept::Stopped => {}
        }
        Ok(())
    }

    fn see(&mut self, sight: Sight) -> Result<()> {
        match sight {
            Sight::Next(look) => self.looks.push(self.cache, &look.to_bytes())?,
            Sight::Matched(glob) => self.matched[usize::from(glob)] = true,
            Sight::Problem { path, reason } => self.report.problem(&shown(&path), &reason),
            Sight::Hopeless { path, bytes, reason } => {
                self.report.found(bytes);
                self.report.not_warm(&shown(&path), bytes, 0, &reason);
            }
            Sight::Warm { file } => {
                self.report.found(file.size());
                self.report.files_found += 1;
                if !self.check {
                    self.warmed += u64::from(self.cache.warms.claim(&file, self.job, true));
                }
                self.report.warm(file.size(), 0);
            }
            Sight::Cold { path, bytes, cached_bytes } => {
                self.report.found(bytes);
                if self.check {
                    let reason = Reason::Cold { cached_bytes };
                    self.report.not_warm(&shown(&path), bytes, 0, &reason);
                } else {
                    self.queue(path.as_os_str().as_bytes(), bytes)?;
                }
            }
        }
        Ok(())
    }

    fn queue(&mut self, path: &[u8], bytes: u64) -> Result<()> {
        self.fills.push(self.cache, &[&bytes.to_le_bytes(), path].concat())
    }

    /// Notes the time; shows where it is, ten times a second.
    fn tick(&mut self) {
        let elapsed = self.job.started().elapsed();
        let rate = self.meter.rate(elapsed, self.report.bytes_fetched);
        self.report.clock(elapsed.as_millis() as u64, rate);
        if self.published.is_none_or(|at| at.elapsed() >= TICK) {
            self.publish();
        }
    }

    fn publish(&mut self) {
        self.job.publish(&self.report);
        self.published = Some(Instant::now());
    }

    /// Globs that found nothing, and files that are not there any more.
    fn finish(&mut self) {
        for (glob, _) in self.globs.iter().zip(&self.matched).filter(|(_, matched)| !**matched) {
            self.report.problem(&glob.shown(), &Reason::Unknown);
        }
        if !self.check {
            let is_still = |file: &Arc<crate::store::CacheFile>| {
                file.warmed_by() == Some((self.job.id(), true)) && file.is_complete() && !file.is_unsettled()
            };
            let still = self.cache.all_files().iter().filter(|file| is_still(file)).count() as u64;
            self.report.settle(self.warmed.saturating_sub(still + self.job.handed_over()));
        }
        self.report.seconds_left = Some(0);
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
