//! The conductor: makes the source's files appear on the SSD, once for all who ask, within the budget, and serves them.
//!
//! | file | its part |
//! |---|---|
//! | [`pool`] | threads that may wait for the source |
//! | [`flight`] | one fetch in progress, any number of waiters |
//! | [`engine`] | bytes from the source to the SSD, hashed on the way |
//! | [`fill`] | a whole file: into the SSD, else into RAM, else straight from the source |
//! | [`read`] | a range of a file, fetching what is missing |
//! | [`space`] | room for a fill, by evicting |
//! | [`journal`] | what changed goes into the index, in batches, after the data |
//! | [`verify`] | re-hashes what is cached |
//! | [`scrub`] | the same in the background, slowly and for ever |
//! | [`names`] | what the source said of names, kept in the index |
//! | [`disk`] | reads what the SSD has, past the page cache |
//! | [`mend`] | a cache directory that somebody removed is made anew |
//! | [`warm`] | fills whole trees, lists and globs |
//! | [`prefetch`] | fetches what will be asked for, behind those who ask now |
//! | [`record`] | tells of each use, to whoever writes a trace |
//!
//! What it promises: a reader gets the bytes of the version it opened or an error of the source's; a fault of the SSD
//! becomes a counter and a read from the source.
#![forbid(unsafe_code)]

pub mod disk;
pub mod engine;
pub mod fill;
pub mod flight;
pub mod journal;
pub mod mend;
pub mod names;
pub mod pool;
pub mod prefetch;
pub mod read;
pub mod record;
pub mod scrub;
pub mod space;
pub mod verify;
pub mod warm;

pub use fill::{FillError, Served, Want};
pub use read::Serving;

use crate::backing::Source;
use crate::policy::{Desk, Eviction, Subject, Tier};
use crate::stats::Stats;
use crate::store::dir::Swept;
use crate::store::index::Loaded;
use crate::store::{Budget, CacheDir, CacheFile, FileUse, RamWindow, Record, disk_bytes};
use crate::types::sync::Mutex;
use crate::types::sync::atomic::{AtomicU64, Ordering};
use crate::types::{ChunkIndex, Error, ErrorKind, FileId, FileVersion, KernelRef, Result};
use engine::FillEngine;
use flight::FlightTable;
use journal::Journal;
use pool::Pool;
use prefetch::Prefetch;
use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a cache is to behave.
pub struct Settings {
    /// Capacity, bytes.
    pub bytes_max: u64,
    /// Capacity, files.
    pub files_max: u64,
    /// Free bytes of the file system that are left to others.
    pub free_floor_bytes: u64,
    /// RAM for files that find no room, bytes.
    pub ram_window_bytes: u64,
    /// Files up to this size are filled whole when they are opened, bytes.
    pub small_file_bytes_max: u64,
}

/// Fills of large files that run by themselves in the background at the same time. Each keeps several chunks in
/// flight; more would only take turns on the same source.
const BACKGROUND_FILLS_MAX: usize = 4;

/// A cache over one source.
///
/// Lock order: `policy` before a shard of `files`; the others are leaves. None is held across I/O.
pub struct Cache {
    settings: Settings,
    source: Arc<dyn Source>,
    dir: Arc<CacheDir>,
    engine: Arc<dyn FillEngine>,
    stats: Arc<Stats>,
    budget: Arc<Budget>,
    ram: RamWindow,
    policy: Mutex<Desk>,
    started: Instant,
    files: FileMap,
    // By version, too: who wants one must not be given another.
    fills: FlightTable<(FileId, FileVersion), std::result::Result<Served, FillError>>,
    begins: FlightTable<(FileId, FileVersion), std::result::Result<Arc<Serving>, FillError>>,
    chunks: FlightTable<(u64, ChunkIndex), Result<()>>,
    verifies: FlightTable<(FileId, FileVersion), bool>,
    journal: Journal,
    scrub: scrub::Scrub,
    background: Pool,
    prefetch: Prefetch,
    recorder: record::Recorder,
    warms: warm::Jobs,
    ssd: SsdHealth,
    free_seen: Mutex<Option<Instant>>,
    /// The most that a write to the index had to copy, bytes.
    index_copied_max: AtomicU64,
}

impl Cache {
    /// A cache with what the index remembers. After a stop that was not clean nothing is trusted before it was
    /// verified, and data files that the index does not know are removed.
    pub fn start(
        settings: Settings,
        source: Arc<dyn Source>,
        dir: Arc<CacheDir>,
        loaded: Loaded,
        engine: Arc<dyn FillEngine>,
        policy: Box<dyn Eviction>,
        stats: Arc<Stats>,
    ) -> Result<Arc<Self>> {
        let Loaded { mut index, mut records, damaged, order, clean, lost: _ } = loaded;
        stats.cache_errors.add(damaged);
        let next_number = records.iter().map(|(_, r)| r.number + 1).max().unwrap_or(0);
        // What the index has lost is on the disk all the same.
        let forgotten = if clean && damaged == 0 { Vec::new() } else { sweep(&dir, &mut records)? };
        dir.adopt(records.iter().map(|(_, r)| r.number), next_number);
        // After a stop that was not clean it is of another time.
        let note = index.scrub_note().filter(|_| clean);
        let cache = Arc::new(Self {
            scrub: scrub::Scrub::new(note, records.is_empty()),
            budget: Budget::new(settings.bytes_max, settings.files_max),
            policy: Mutex::new(Desk::new(policy, settings.bytes_max)),
            started: Instant::now(),
            ram: RamWindow::new(settings.ram_window_bytes),
            settings,
            source,
            dir: dir.clone(),
            engine,
            stats: stats.clone(),
            files: FileMap::new(),
            fills: FlightTable::new(|| Err(FillError::Failed(abandoned()))),
            begins: FlightTable::new(|| Err(FillError::Failed(abandoned()))),
            chunks: FlightTable::new(|| Err(abandoned())),
            verifies: FlightTable::new(|| false),
            journal: Journal::new(index, dir, stats.clone()),
            background: Pool::new("warmfs-fill", BACKGROUND_FILLS_MAX),
            prefetch: Prefetch::new(stats.clone()),
            recorder: record::Recorder::default(),
            warms: warm::Jobs::default(),
            ssd: SsdHealth::default(),
            free_seen: Mutex::new(None),
            index_copied_max: AtomicU64::new(0),
        });
        cache.adopt(records, &order, clean);
        forgotten.into_iter().for_each(|id| cache.journal.removed(id));
        cache.journal.start(&cache);
        Ok(cache)
    }

    /// Takes over what the index remembers, in the eviction order of the last stop; without one the older numbers go
    /// first, which is the order of filling.
    fn adopt(&self, mut records: Vec<(FileId, Record)>, order: &[FileId], trusted: bool) {
        let rank: HashMap<FileId, usize> = order.iter().enumerate().map(|(i, id)| (*id, i + 1)).collect();
        records.sort_by_key(|(id, record)| (rank.get(id).copied().unwrap_or(0), record.number));
        let mut policy = self.policy.lock();
        for (id, record) in &records {
            // A stop, clean or not, may leave chunks on the disk that the index does not know.
            let bytes = match record.is_complete() {
                true => disk_bytes(record.version.size),
                false => self.dir.data_bytes(record.number),
            };
            // A file that is not complete bears no stamp: its chunks are looked at as they are read.
            let trusted = trusted && record.is_complete();
            let file = CacheFile::from_record(*id, record, trusted, self.budget.adopt(bytes, 1));
            note_inserted(&mut policy, &file);
            self.files.insert(file);
        }
        drop(policy);
        self.budget.set_overhead(self.dir.overhead_bytes());
        self.shrink_to_budget();
    }

    /// The complete or partial copy of this version of the file, if there is one that is good for a new open; another is
    /// dropped.
    pub fn get(&self, id: FileId, version: &FileVersion) -> Option<FileUse> {
        if let Some(file) = self.files.get(id) {
            if file.version() == *version && !file.is_unsettled() {
                return file.use_it();
            }
            if self.take_out(&file) {
                self.stats.stale_drops.inc();
                self.supersede(&file);
            }
        }
        self.ram.get(id, version)?.use_it()
    }

    /// Whether a file of this size is filled whole when it is opened.
    pub fn is_small(&self, size: u64) -> bool {
        size <= self.settings.small_file_bytes_max
    }

    /// Notes that a file was opened of which something is cached. Whether all of it is, makes it a hit.
    pub fn note_open(&self, file: &CacheFile, cached: bool) {
        let was_ahead = self.note_use(file);
        let from = match (cached, file.place()) {
            (false, _) => Tier::Source,
            (true, crate::store::Place::Ssd { .. }) => Tier::Ssd,
            (true, crate::store::Place::Ram(_)) => Tier::Ram,
        };
        self.tell_policy(&subject(file), file.path(), file.size(), from);
        if was_ahead {
            self.guess_siblings(file.path());
            self.guess_shards(file.path(), file.size());
        }
    }

    /// Somebody has opened the file, for the file's own sake. Says whether it was fetched ahead of that.
    pub fn note_use(&self, file: &CacheFile) -> bool {
        file.count_hit();
        let was_ahead = file.end_ahead();
        if was_ahead {
            self.ram.used(file.id());
        }
        was_ahead
    }

    fn tell_policy(&self, file: &Subject, path: &[u8], size: u64, from: Tier) {
        let noted = self.policy.lock().opened(file, path, from, self.now_ms());
        if noted.is_use {
            self.recorder.used(path, size);
        }
        if let Some(group) = noted.scout {
            self.prefetch.send_scout(group);
        }
    }

    /// The same for a file that must be fetched, or looked at, first; before that is asked for, so that the policy knows of
    /// this open when it decides whether to keep the file.
    pub fn note_opening(&self, id: FileId, path: &Path, size: u64, cached: bool) {
        let group = self.policy.lock().group_of(path.as_os_str().as_bytes());
        let from = if cached { Tier::Ssd } else { Tier::Source };
        let file = Subject { id, group, bytes: disk_bytes(size) };
        let path = path.as_os_str().as_bytes();
        self.tell_policy(&file, path, size, from);
        if cached {
            return;
        }
        self.guess_siblings(path);
        if self.is_small(size) {
            self.guess_shards(path, size);
        }
    }

    /// A reader of the file at `path` has waited so long for the source.
    pub fn note_waited(&self, path: &Path, waited: Duration) {
        let mut policy = self.policy.lock();
        let group = policy.groups().peek(path.as_os_str().as_bytes());
        policy.waited(group, waited.as_micros() as u64);
    }

    /// Looks at what is known of how the mount is read: its data sets and their epochs. With the policy locked: be quick.
    pub fn reading<T>(&self, look: impl FnOnce(&Desk) -> T) -> T {
        look(&self.policy.lock())
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// The data file of a cached file, open. A fault of the SSD drops the file and says so.
    pub fn open_data(&self, file: &Arc<CacheFile>) -> Result<Arc<std::os::fd::OwnedFd>> {
        file.open(&self.dir).inspect_err(|e| {
            // Removed to make room meanwhile.
            if file.is_retired() {
                return;
            }
            self.stats.cache_errors.inc();
            self.ssd.say(&format_args!("cached copy dropped: {e}"));
            self.drop_file(file);
        })
    }

    /// Whether the data file of a complete copy is the one that was written; asked before the kernel reads it by itself. One
    /// that somebody has changed or put in its place is dropped.
    pub fn is_as_written(&self, file: &Arc<CacheFile>) -> bool {
        let crate::store::Place::Ssd { number } = file.place() else { return true };
        let is = self.dir.is_as_stamped(*number, file.size());
        if !is {
            self.stats.cache_errors.inc();
            let path = crate::types::escape_bytes(file.path());
            self.ssd.say(&format_args!("cached copy of {path} is not as it was written, dropped"));
            self.drop_file(file);
        }
        is
    }

    /// Drops a cached file because it is in doubt; who uses it keeps what it has open.
    pub fn drop_file(&self, file: &Arc<CacheFile>) {
        self.ram.remove(file.id());
        if self.take_out(file) {
            self.discard(file);
        }
    }

    /// Takes this file, and no other that has its place by now, out of the map and the policy; the two change together,
    /// or a file could be left in the one that the other does not know.
    fn take_out(&self, file: &Arc<CacheFile>) -> bool {
        let mut policy = self.policy.lock();
        let was_there = self.files.remove_exactly(file);
        if was_there {
            policy.removed(file.id());
            self.journal.removed(file.id());
        }
        was_there
    }

    /// Drops the cached copy of `id`, at an operator's wish. `false` if there is none or somebody uses it.
    pub fn evict(&self, id: FileId) -> bool {
        let in_ram = self.ram.remove(id);
        let Some(file) = self.files.get(id) else { return in_ram };
        if !file.retire() {
            return false;
        }
        self.drop_file(&file);
        true
    }

    /// After it left the map: its name and the kernel's reference go. Its space is given back when nobody has it open; if
    /// somebody uses it, after that.
    fn discard(&self, file: &Arc<CacheFile>) {
        drop(file.set_kernel_ref(None));
        if let crate::store::Place::Ssd { number } = file.place() {
            // Without a descriptor its space counts as free once nobody here refers to it.
            let _ = file.keep_open(&self.dir);
            if let Err(e) = self.dir.remove(*number) {
                self.ssd_failed(&e);
            }
            if file.is_retired() {
                file.leave();
            }
        }
    }

    /// Puts a file into the map; another version of it that was there is dropped. `false` if the cache has stopped.
    fn publish(&self, file: &Arc<CacheFile>) -> bool {
        let old = {
            let mut policy = self.policy.lock();
            if !self.enlist(file) {
                return false;
            }
            note_inserted(&mut policy, file);
            let old = self.files.insert(file.clone());
            self.journal.changed(file.id());
            old
        };
        if let Some(old) = old {
            self.supersede(&old);
        }
        true
    }

    /// The same, unless this version of it is there already, which is then used: of two that are opened at once, both
    /// read from one. Tells whether it is the new one. `None` if the cache has stopped.
    fn publish_or_join(&self, file: &Arc<CacheFile>) -> Option<(FileUse, bool)> {
        let put = {
            let mut policy = self.policy.lock();
            if !self.enlist(file) {
                return None;
            }
            let put = self.files.insert_or_use(file);
            if put.is_ok() {
                note_inserted(&mut policy, file);
                self.journal.changed(file.id());
            }
            put
        };
        match put {
            Ok((used, old)) => {
                if let Some(old) = old {
                    self.supersede(&old);
                }
                Some((used, true))
            }
            Err(used) => Some((used, false)),
        }
    }

    /// Its data file stays, and the index will speak of it: the journal is told once the file is in the map, where a
    /// commit looks for it. With the policy locked, together with its place in the map: a stop finds all of it or nothing.
    /// `false` if the cache has stopped.
    fn enlist(&self, file: &CacheFile) -> bool {
        match file.place() {
            crate::store::Place::Ssd { number } => self.dir.finish(*number),
            crate::store::Place::Ram(_) => true,
        }
    }

    /// Another version has taken the place of `old`, which is sound: who uses it reads on from it.
    fn supersede(&self, old: &Arc<CacheFile>) {
        if !old.retire()
            && let Err(e) = old.keep_open(&self.dir)
        {
            self.ssd_failed(&e);
        }
        self.discard(old);
    }

    /// Counts a fault of the SSD; says so once in a while.
    fn ssd_failed(&self, error: &Error) {
        self.stats.cache_errors.inc();
        self.ssd.failed();
        self.ssd.say(&format_args!("the cache is at fault, reading from the source instead: {error}"));
    }

    /// Every file that lies in RAM for want of room.
    pub fn ram_files(&self) -> Vec<Arc<CacheFile>> {
        self.ram.all()
    }

    /// Every cached file, in no order.
    pub fn all_files(&self) -> Vec<Arc<CacheFile>> {
        self.files.all()
    }

    /// The cached file of this id, whatever its version.
    pub fn peek(&self, id: FileId) -> Option<Arc<CacheFile>> {
        self.files.get(id)
    }

    /// The source below.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Who wants to know of each use.
    pub fn recorder(&self) -> &record::Recorder {
        &self.recorder
    }

    /// The counters.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// The cache directory.
    pub fn dir(&self) -> &Arc<CacheDir> {
        &self.dir
    }

    /// The engine that fills.
    pub fn engine_name(&self) -> &'static str {
        self.engine.name()
    }

    /// Space in use and in all.
    pub fn usage(&self) -> crate::store::budget::Usage {
        self.budget.usage()
    }

    /// Bytes in the RAM window.
    pub fn ram_bytes(&self) -> u64 {
        self.ram.bytes()
    }

    /// Large files that are being filled in the background, or wait for it.
    pub fn background_fills(&self) -> usize {
        self.background.jobs()
    }

    /// Files in the cache.
    pub fn file_count(&self) -> u64 {
        self.files.len()
    }

    /// Writes down what is known, so that the next start can trust it. The last thing a daemon does.
    pub fn stop(&self) {
        self.stop_prefetch();
        self.background.stop();
        self.warms.stop_all();
        if let Err(e) = self.dir.close() {
            self.ssd_failed(&e);
        }
        // The index does not know them; and from here on no file comes into the map.
        self.files.all().iter().filter(|file| file.is_unsettled()).for_each(|file| self.drop_file(file));
        // A directory that was removed whole is not wanted any more.
        if !self.dir.is_removed() {
            self.mend();
        }
        // Who put a file into the map before the directory closed has told the journal of it by then.
        let order = self.policy.lock().order();
        self.journal.stop(self, &order);
    }

    /// Writes what changed to the index now rather than in a moment.
    pub fn flush(&self) {
        self.journal.flush(self);
    }

    /// Registers or forgets what the kernel's door attaches to a file.
    pub fn attach(&self, file: &CacheFile, kernel: Option<KernelRef>) {
        drop(file.set_kernel_ref(kernel));
    }
}

/// After a crash, or damage of the index: removes data files that no record speaks of, and takes out the records whose file was removed before
/// the index could be told, which would count as cached and take up room. Gives the ids of those.
fn sweep(dir: &CacheDir, records: &mut Vec<(FileId, Record)>) -> Result<Vec<FileId>> {
    // A new cache has nothing to be said of.
    let had_records = !records.is_empty();
    let Swept { removed, kept } = dir.sweep(&records.iter().map(|(_, r)| r.number).collect())?;
    let gone = records.extract_if(.., |(_, record)| !kept.contains(&record.number));
    let forgotten: Vec<_> = gone.map(|(id, _)| id).collect();
    if removed > 0 || had_records {
        let records = forgotten.len();
        tracing::info!("{removed} files that the index does not know and {records} outdated records removed");
    }
    Ok(forgotten)
}

/// With the policy locked: a file comes into the map.
fn note_inserted(policy: &mut Desk, file: &CacheFile) {
    file.set_group(policy.group_of(file.path()));
    policy.inserted(&subject(file));
    policy.cached_at(file.id(), file.path());
}

/// A cached file as the policy sees it.
fn subject(file: &CacheFile) -> Subject {
    Subject { id: file.id(), group: file.group(), bytes: disk_bytes(file.size()) }
}

fn abandoned() -> Error {
    Error::new(ErrorKind::Io, "fill", "the thread that filled it died")
}

/// Cached files by id, in shards so that opens of different files do not meet.
pub struct FileMap {
    shards: Box<[FileShard]>,
    count: AtomicU64,
}

type FileShard = Mutex<HashMap<FileId, Arc<CacheFile>>>;

/// More shards than cores on a training node; a shard costs 64 bytes.
const SHARDS: usize = 64;

impl FileMap {
    fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), count: AtomicU64::new(0) }
    }

    fn shard(&self, id: FileId) -> &FileShard {
        // Inode numbers of a directory's files are neighbours: multiply, so that they spread.
        let hash = (id.low ^ id.high).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 58) as usize % SHARDS]
    }

    fn get(&self, id: FileId) -> Option<Arc<CacheFile>> {
        self.shard(id).lock().get(&id).cloned()
    }

    fn insert(&self, file: Arc<CacheFile>) -> Option<Arc<CacheFile>> {
        let old = self.shard(file.id()).lock().insert(file.id(), file);
        if old.is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        old
    }

    /// Puts `file` in and begins to use it, and gives the one that it replaces; or the use of the one that is there, if
    /// that has the same content.
    fn insert_or_use(
        &self,
        file: &Arc<CacheFile>,
    ) -> std::result::Result<(FileUse, Option<Arc<CacheFile>>), FileUse> {
        let mut shard = self.shard(file.id()).lock();
        if let Some(there) = shard.get(&file.id())
            && there.version() == file.version()
            && let Some(used) = there.use_it()
        {
            return Err(used);
        }
        let used = file.use_it().expect("not in the map yet, so nobody retired it");
        let old = shard.insert(file.id(), file.clone());
        if old.is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok((used, old))
    }

    /// Removes this file and no other that has taken its place.
    fn remove_exactly(&self, file: &Arc<CacheFile>) -> bool {
        let mut shard = self.shard(file.id()).lock();
        let is_it = shard.get(&file.id()).is_some_and(|f| Arc::ptr_eq(f, file));
        if is_it {
            shard.remove(&file.id());
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        is_it
    }

    fn all(&self) -> Vec<Arc<CacheFile>> {
        self.shards.iter().flat_map(|s| s.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    fn len(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// Whether the SSD works. After several faults in a row it is left alone for a while and then tried again, so that a
/// dead disk costs one try per interval and not one per open.
#[derive(Default)]
struct SsdHealth {
    state: Mutex<HealthState>,
}

#[derive(Default)]
struct HealthState {
    faults_in_row: u32,
    resting_until: Option<Instant>,
    last_warning: Option<Instant>,
    unsaid: u64,
}

/// Faults in a row after which the SSD rests.
const FAULTS_MAX: u32 = 8;
/// How long it rests.
const REST: Duration = Duration::from_secs(5);
/// At most one warning in this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

impl SsdHealth {
    /// Notes a fault.
    fn failed(&self) {
        let mut s = self.state.lock();
        s.faults_in_row += 1;
        if s.faults_in_row >= FAULTS_MAX {
            s.resting_until = Some(Instant::now() + REST);
            s.faults_in_row = 0;
        }
    }

    /// Says what is wrong with the SSD, now and then: a dead one has a fault for every file.
    fn say(&self, text: &std::fmt::Arguments<'_>) {
        let unsaid = {
            let mut s = self.state.lock();
            let now = Instant::now();
            if s.last_warning.is_some_and(|t| now - t < WARNING_INTERVAL) {
                s.unsaid += 1;
                None
            } else {
                s.last_warning = Some(now);
                Some(std::mem::take(&mut s.unsaid))
            }
        };
        match unsaid {
            None => tracing::debug!("{text}"),
            Some(0) => tracing::warn!("{text}"),
            Some(n) => tracing::warn!("{text} (and {n} like it since the last time)"),
        }
    }

    fn worked(&self) {
        let mut s = self.state.lock();
        s.faults_in_row = 0;
        s.resting_until = None;
    }

    fn is_resting(&self) -> bool {
        self.state.lock().resting_until.is_some_and(|t| Instant::now() < t)
    }
}
