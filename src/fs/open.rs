//! How a file is opened: one pure decision ([`decide`]) over what is known, and what follows from it.
//!
//! The kernel has one I/O mode per node while it is open and turns every mix into EIO for the user, so the first open
//! decides for all that follow until the last is closed. A file that became complete meanwhile is handed to the kernel
//! at the next first open; one that changed gets another node.

use super::contested::Held;
use super::node::{Mode, Node, OpenState};
use super::watch::Pending;
use super::{ESTALE, Fs, Reply};
use crate::backing::Look;
use crate::cache::read::ReadDone;
use crate::cache::{FillError, Served, Serving, Want};
use crate::store::file::Need;
use crate::store::{CacheFile, FileUse};
use crate::sys::clock::file_time;
use crate::types::{Attr, Error, ErrorKind, FileVersion, KernelRef, NodeId, Result};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// What is cached of the version that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cached {
    /// Nothing.
    Nothing,
    /// Some chunks.
    Part,
    /// All of it, but nobody looked at it since an unclean stop.
    Doubtful,
    /// All of it.
    Complete,
}

/// What the decision depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Other handles are open on the node.
    pub is_open: bool,
    /// The node was retired: the file has a newer version under another node.
    pub retired: bool,
    /// What is cached.
    pub cached: Cached,
    /// The file is filled whole when it is opened.
    pub small: bool,
}

/// How to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// As the handles that are open.
    Join,
    /// Answer ESTALE: the kernel looks the name up again and finds the new node.
    Retry,
    /// From the complete copy.
    Serve,
    /// Fill or verify it whole first.
    Fill,
    /// Chunk by chunk.
    Chunks,
}

/// The decision. Pure, and tested for every combination of facts.
pub fn decide(facts: Facts) -> Plan {
    match facts {
        Facts { retired: true, .. } => Plan::Retry,
        Facts { is_open: true, .. } => Plan::Join,
        Facts { cached: Cached::Complete, .. } => Plan::Serve,
        Facts { small: true, .. } => Plan::Fill,
        Facts { small: false, .. } => Plan::Chunks,
    }
}

/// What OPEN tells the kernel.
pub enum Opened {
    /// Read it by yourself.
    Passthrough(KernelRef),
    /// Ask us; the pages you have are good.
    KeepPages,
    /// Ask us; the pages you have are of an older version.
    DropPages,
}

/// A version may change between the look-up and the open, and again while it is filled. After this many tries the
/// kernel is sent back to look the name up anew.
const TRIES: u32 = 4;

/// An OPEN on its way.
struct Opening {
    node: Arc<Node>,
    /// The very file that was looked up, if it is held: the node stays at its version meanwhile.
    held: Option<Held>,
    /// When the request came.
    since: Instant,
    /// So often it may begin anew.
    tries: u32,
}

impl Opening {
    fn new(node: Arc<Node>) -> Self {
        let held = Held::take(&node);
        Self { node, held, since: Instant::now(), tries: TRIES }
    }
}

impl Fs {
    /// OPEN of a regular file. An answer counts one handle on the node.
    pub fn open(self: &Arc<Self>, id: NodeId, reply: Reply<Opened>) {
        if Self::is_inside(id) {
            return reply(Ok(Opened::DropPages));
        }
        let node = match self.node(id) {
            Ok(node) => node,
            Err(e) => return reply(Err(e)),
        };
        self.stats.opens.inc();
        let opening = Opening::new(node);
        let (plan, file) = self.plan(&opening);
        match plan {
            Plan::Retry => reply(Err(self.send_back(&opening.node))),
            Plan::Join => match self.join(&opening.node) {
                Some(opened) => reply(Ok(opened)),
                // Closed between the two looks.
                None => self.open_slow(opening, reply),
            },
            Plan::Serve => {
                let file = file.expect("a complete copy is a copy");
                // The stat of a registered file needs no disk: its inode is held.
                if file.kernel_ref().is_some() && !self.may_be_handed_over(&file) {
                    return self.open_slow(opening, reply);
                }
                match self.serve_quickly(&opening, &file) {
                    Some(answer) => reply(answer),
                    None => self.open_local(opening, file, reply),
                }
            }
            Plan::Fill | Plan::Chunks => match file.filter(|file| file.is_complete()) {
                Some(file) => self.open_doubtful(opening, file, reply),
                None => self.open_slow(opening, reply),
            },
        }
    }

    /// A complete copy that nobody has looked at since an unclean stop: to verify it the disk is needed and not the
    /// source. If it is damaged the file is opened as one that is not cached.
    fn open_doubtful(self: &Arc<Self>, opening: Opening, file: FileUse, reply: Reply<Opened>) {
        let (fs, cache) = (self.clone(), self.cache.clone());
        self.local.submit(Box::new(move || {
            if !cache.is_small(file.size()) {
                // Its chunks are verified as they are read.
                cache.note_open(&file, true);
                return reply(fs.begin_chunks(&opening, Arc::new(Serving::partial(file, None))));
            }
            let verified = file.clone();
            let then = move |good| match good {
                true => {
                    fs.note_hit(&file);
                    reply(fs.open_served(&opening, Served::File(file)));
                }
                false => {
                    drop(file);
                    fs.open_slow(opening, reply);
                }
            };
            cache.verify_once(&verified, Box::new(then));
        }));
    }

    fn plan(&self, opening: &Opening) -> (Plan, Option<FileUse>) {
        let node = &opening.node;
        let (attr, is_open, retired) = {
            let state = node.lock();
            (state.attr, state.open.is_some(), state.retired && opening.held.is_none())
        };
        let file = match is_open || retired {
            true => None,
            false => self.cached_copy(node, &attr),
        };
        let cached = match &file {
            None => Cached::Nothing,
            Some(file) if file.is_servable() => Cached::Complete,
            Some(file) if file.is_complete() => Cached::Doubtful,
            Some(_) => Cached::Part,
        };
        let facts = Facts { is_open, retired, cached, small: self.cache.is_small(attr.size) };
        (decide(facts), file)
    }

    fn want(&self, opening: &Opening, attr: &Attr) -> Want {
        let path = opening.node.path();
        let pin = opening.held.as_ref().map(|held| held.pin().clone());
        let (id, version) = (self.source.file_id(&path, attr), self.source.version(attr));
        Want { id, version, path, pin, ahead: None, warm_job: None }
    }

    fn cached_copy(&self, node: &Arc<Node>, attr: &Attr) -> Option<FileUse> {
        // With identity by inode the path is not needed, and building it is most of a warm open's work.
        let id = match self.source.file_id_without_path(attr) {
            Some(id) => id,
            None => self.source.file_id(&node.path(), attr),
        };
        self.cache.get(id, &self.source.version(attr))
    }

    /// One more handle beside those that are open.
    fn join(&self, node: &Node) -> Option<Opened> {
        let mut state = node.lock();
        let open = state.open.as_mut()?;
        open.handles += 1;
        let (mode, serving) = (open.mode.clone(), open.serving.clone());
        drop(state);
        match serving.file() {
            Some(file) if file.is_complete() => self.note_hit(file),
            // Its reads are counted one by one.
            Some(file) => self.cache.note_open(file, false),
            None => {
                self.stats.misses.inc();
                self.note_miss(node);
            }
        }
        Some(self.opened(mode, true))
    }

    /// An open that needs nothing of the source.
    fn note_hit(&self, file: &CacheFile) {
        self.stats.hits.inc();
        self.cache.note_open(file, true);
    }

    /// Tells the policy of one more open beside those that are served from the source.
    fn note_miss(&self, node: &Node) {
        let (path, attr) = (node.path(), node.lock().attr);
        self.cache.note_opening(self.source.file_id(&path, &attr), &path, attr.size, false);
    }

    fn opened(&self, mode: Mode, keep_pages: bool) -> Opened {
        match mode {
            Mode::Passthrough(kernel) => {
                self.stats.passthrough_opens.inc();
                Opened::Passthrough(kernel)
            }
            Mode::Cached => {
                self.stats.cached_opens.inc();
                if keep_pages { Opened::KeepPages } else { Opened::DropPages }
            }
        }
    }

    /// A complete copy that needs no look at the disk: its registration is kept, or none is wanted.
    fn serve_quickly(&self, opening: &Opening, file: &FileUse) -> Option<Result<Opened>> {
        let mode = match self.passthrough_off() {
            Some(_) => Mode::Cached,
            None => {
                let kernel = file.kernel_ref()?;
                self.keep_registered(file);
                Mode::Passthrough(kernel)
            }
        };
        self.note_hit(file);
        Some(self.begin(opening, mode.clone(), Arc::new(serving_for(&mode, file.clone()))))
    }

    /// A complete copy that must be looked at on the disk, but needs nothing of the source.
    fn open_local(self: &Arc<Self>, opening: Opening, file: FileUse, reply: Reply<Opened>) {
        let fs = self.clone();
        self.local.submit(Box::new(move || {
            if !fs.may_be_handed_over(&file) {
                return fs.open_slow(opening, reply);
            }
            fs.note_hit(&file);
            reply(fs.open_served(&opening, Served::File(file)));
        }));
    }

    /// Whether the kernel may read the copy by itself: after that nobody looks. Reads through us are looked at one by one.
    fn may_be_handed_over(&self, file: &FileUse) -> bool {
        self.passthrough_off().is_some() || self.cache.is_as_written(file)
    }

    /// Counts a first handle, or one beside others that came between.
    fn begin(&self, opening: &Opening, mode: Mode, serving: Arc<Serving>) -> Result<Opened> {
        let mut state = opening.node.lock();
        let retired = state.retired && opening.held.is_none();
        // The file changed while it was fetched: its size and its bytes must be of one version.
        if retired || self.version_of(&serving) != self.source.version(&state.attr) {
            drop(state);
            return Err(self.send_back(&opening.node));
        }
        if let Some(open) = state.open.as_mut() {
            open.handles += 1;
            let mode = open.mode.clone();
            drop(state);
            return Ok(self.opened(mode, true));
        }
        // Pages of a copy that is for this open only are not for the next.
        let racy = self.is_for_this_open_only(&serving, &state.attr);
        let keep = !std::mem::replace(&mut state.pages_stale, racy) && !racy;
        state.open = Some(Box::new(OpenState { handles: 1, mode: mode.clone(), serving }));
        drop(state);
        Ok(self.opened(mode, keep))
    }

    fn is_for_this_open_only(&self, serving: &Serving, attr: &Attr) -> bool {
        let writers = serving.file().map(|_| false);
        let look = Look { began: file_time(), writers };
        serving.file().is_some_and(|file| file.is_unsettled()) || self.source.is_racy(attr, &look)
    }

    fn version_of(&self, serving: &Serving) -> FileVersion {
        match serving {
            Serving::Kept(kept) => kept.version(),
            Serving::Partial(partial) => partial.version(),
            Serving::Source(opened) => self.source.version(&opened.attr),
        }
    }

    /// The open that may wait: for the source, or for the SSD.
    fn open_slow(self: &Arc<Self>, opening: Opening, reply: Reply<Opened>) {
        let pending = Pending::new(reply);
        let guard = self.watch.data(&pending, &self.stats, |reply, error| reply(Err(error)));
        let fs = self.clone();
        self.pool.submit(Box::new(move || {
            let (answerer, answered) = (fs.clone(), opening.node.clone());
            let answer: Reply<Opened> = Box::new(move |result| {
                drop(guard);
                match (pending.take(), result) {
                    (Some(reply), result) => reply(result),
                    // Too late: the client was told so, and will not close what it never opened.
                    (None, Ok(_)) => answerer.release_node(&answered),
                    (None, Err(_)) => {}
                }
            });
            fs.open_by_plan(opening, answer);
        }));
    }

    fn open_by_plan(self: &Arc<Self>, opening: Opening, reply: Reply<Opened>) {
        if opening.tries == 0 {
            self.doubt(&opening.node);
            return reply(Err(changed()));
        }
        let (plan, file) = self.plan(&opening);
        match (plan, file) {
            (Plan::Retry, _) => reply(Err(self.send_back(&opening.node))),
            (Plan::Join, _) => match self.join(&opening.node) {
                Some(opened) => reply(Ok(opened)),
                None => self.open_anew(opening, reply),
            },
            (Plan::Serve, Some(file)) if !self.may_be_handed_over(&file) => self.open_anew(opening, reply),
            (Plan::Serve, Some(file)) => {
                self.note_hit(&file);
                reply(self.open_served(&opening, Served::File(file)));
            }
            (Plan::Chunks, _) => self.open_chunks(opening, reply),
            (Plan::Fill | Plan::Serve, file) => self.open_filled(opening, file, reply),
        }
    }

    fn open_anew(self: &Arc<Self>, mut opening: Opening, reply: Reply<Opened>) {
        opening.tries -= 1;
        self.open_by_plan(opening, reply);
    }

    fn open_filled(self: &Arc<Self>, opening: Opening, file: Option<FileUse>, reply: Reply<Opened>) {
        // To verify is not to fetch: bytes of the source were needed only if another file took the doubtful one's place.
        let doubtful = file.map(|file| Arc::clone(&file));
        let attr = opening.node.lock().attr;
        let want = self.want(&opening, &attr);
        self.cache.note_opening(want.id, &want.path, attr.size, doubtful.is_some());
        let (fs, path) = (self.clone(), want.path.clone());
        self.cache.fill(
            want,
            Box::new(move |filled| match filled {
                Ok(served) => {
                    let was_here =
                        matches!((&served, &doubtful), (Served::File(f), Some(d)) if Arc::ptr_eq(f, d));
                    let counter = if was_here { &fs.stats.hits } else { &fs.stats.misses };
                    counter.inc();
                    if !was_here {
                        fs.cache.note_waited(&path, opening.since.elapsed());
                    }
                    if let Served::File(file) = &served {
                        fs.cache.note_use(file);
                    }
                    reply(fs.open_served(&opening, served));
                }
                Err(FillError::Changed(now)) => fs.open_changed(opening, &now, reply),
                Err(FillError::Failed(e)) => fs.open_failed(opening, e, reply),
            }),
        );
    }

    /// The source has another version than the look-up saw. If nobody has the old one open the node takes the new one.
    /// With another size the kernel must hear of it first, or it would end every read where the old version ended: it
    /// is sent back to look the name up.
    fn open_changed(self: &Arc<Self>, opening: Opening, now: &Attr, reply: Reply<Opened>) {
        if opening.held.is_some() {
            // Told by one who came at the same time and did not hold the file.
            return self.open_anew(opening, reply);
        }
        let goes_on = {
            let mut state = opening.node.lock();
            let same = now.identity == state.attr.identity && now.kind == opening.node.kind;
            let takes_it = same && !state.keeps_version();
            let same_size = now.size == state.attr.size;
            if takes_it {
                state.attr = *now;
                state.checked_ms = self.now_ms();
                state.pages_stale = true;
            }
            takes_it && same_size
        };
        match goes_on {
            true => self.open_anew(opening, reply),
            false => {
                self.doubt_unless_seen(&opening.node, now);
                reply(Err(self.send_back(&opening.node)));
            }
        }
    }

    /// The source has not what we thought it had: what is known of the name is old.
    fn open_failed(self: &Arc<Self>, opening: Opening, error: Error, reply: Reply<Opened>) {
        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Stale) {
            if opening.held.is_some() && opening.tries > 1 {
                // As above: it may not have been our file that was not found.
                return self.open_anew(opening, reply);
            }
            self.doubt(&opening.node);
        }
        reply(Err(error));
    }

    /// Sent back to look the name up, the kernel must not be told the same again.
    fn doubt_unless_seen(&self, node: &Node, now: &Attr) {
        if node.lock().attr != *now {
            self.doubt(node);
        }
    }

    /// The kernel is to look the name up again, which it does once: that look-up must lead to an open that succeeds.
    fn send_back(&self, node: &Node) -> Error {
        let place = node.lock().place.clone();
        if let Some((parent, name)) = place {
            self.contested.add(parent.id, &name);
        }
        changed()
    }

    fn open_served(self: &Arc<Self>, opening: &Opening, served: Served) -> Result<Opened> {
        match served {
            Served::File(file) => {
                let mode = self.mode_for(&file);
                self.begin(opening, mode.clone(), Arc::new(serving_for(&mode, file)))
            }
            Served::Source(opened) => {
                self.stats.bypass_opens.inc();
                self.begin(opening, Mode::Cached, Arc::new(Serving::Source(opened)))
            }
        }
    }

    /// Passthrough if it can be had for this file. A refusal is final for the mount where it says something about the
    /// mount, and only about this file otherwise.
    fn mode_for(&self, file: &FileUse) -> Mode {
        if self.passthrough_off().is_some() {
            return Mode::Cached;
        }
        if let Some(kernel) = file.kernel_ref() {
            self.keep_registered(file);
            return Mode::Passthrough(kernel);
        }
        let Ok(fd) = self.cache.open_data(file) else { return Mode::Cached };
        match self.register(file, &fd) {
            Ok(kernel) => Mode::Passthrough(kernel),
            Err(e) => {
                if is_about_the_mount(&e) {
                    self.lose_passthrough(&format!(
                        "the kernel refuses passthrough to the cache directory ({e})"
                    ));
                }
                Mode::Cached
            }
        }
    }

    fn open_chunks(self: &Arc<Self>, opening: Opening, reply: Reply<Opened>) {
        let attr = opening.node.lock().attr;
        // Only to be verified: the source is not needed for that.
        if let Some(file) = self.cached_copy(&opening.node, &attr).filter(|file| file.is_complete()) {
            self.cache.note_open(&file, true);
            return reply(self.begin_chunks(&opening, Arc::new(Serving::partial(file, None))));
        }
        let want = self.want(&opening, &attr);
        let (fs, path) = (self.clone(), want.path.clone());
        self.cache.note_opening(want.id, &want.path, attr.size, false);
        self.cache.begin_partial(
            &want,
            Box::new(move |begun| match begun {
                Ok(serving) => {
                    fs.cache.note_waited(&path, opening.since.elapsed());
                    if let Some(file) = serving.file() {
                        fs.cache.note_use(file);
                    }
                    fs.cache.guess_ends(&serving);
                    reply(fs.begin_chunks(&opening, serving));
                }
                Err(FillError::Changed(now)) => fs.open_changed(opening, &now, reply),
                Err(FillError::Failed(e)) => fs.open_failed(opening, e, reply),
            }),
        );
    }

    fn begin_chunks(&self, opening: &Opening, serving: Arc<Serving>) -> Result<Opened> {
        if serving.file().is_none() {
            self.stats.bypass_opens.inc();
        }
        self.begin(opening, Mode::Cached, serving)
    }

    /// RELEASE: one handle less.
    pub fn release(&self, id: NodeId) {
        if let Some(node) = self.nodes.get(id) {
            self.release_node(&node);
        }
    }

    fn release_node(&self, node: &Node) {
        let closed = {
            let mut state = node.lock();
            let Some(open) = state.open.as_mut() else { return };
            open.handles -= 1;
            let closed = if open.handles == 0 { state.open.take() } else { None };
            // A copy that is good for nobody who comes later may have left pages in the kernel.
            let unsettled = |open: &OpenState| open.serving.file().is_some_and(|file| file.is_unsettled());
            state.pages_stale |= closed.as_deref().is_some_and(unsettled);
            closed
        };
        // Not under the lock: the last use of an evicted file ends here, and with it its space.
        if let Some(closed) = closed {
            self.put_down(closed.serving);
        }
    }

    /// Drops what handles were served from. To close a file of the source may wait for the source, which the threads that
    /// answer the kernel must not.
    fn put_down(&self, serving: Arc<Serving>) {
        if let Some(last) = Arc::into_inner(serving)
            && last.has_source_open()
        {
            self.pool.submit(Box::new(move || drop(last)));
        }
    }

    /// READ, which comes for every file that the kernel does not read by itself.
    pub fn read(self: &Arc<Self>, id: NodeId, offset: u64, len: u32, reply: ReadDone) {
        if Self::is_inside(id) {
            return match self.read_inside(id, offset, len) {
                Ok(bytes) => reply(Ok(&bytes)),
                Err(e) => reply(Err(e)),
            };
        }
        let (mode, serving) = match self.open_state(id) {
            Ok(open) => open,
            Err(e) => return reply(Err(e)),
        };
        if let Mode::Passthrough(_) = mode {
            self.will_need(&serving, offset, len);
            // Not an answer that anybody reads: the kernel sends such a READ for readahead(2) and fadvise(WILLNEED),
            // and data would be a second copy in its page cache.
            return reply(Err(Error::os("read", "a file that the kernel reads by itself", 11))); // EAGAIN
        }
        self.stats.reads.inc();
        let pending = Pending::new(reply);
        let guard = self.watch.data(&pending, &self.stats, |reply, error| reply(Err(error)));
        let done: ReadDone = Box::new(move |result| {
            drop(guard);
            if let Some(reply) = pending.take() {
                reply(result);
            }
        });
        match serving.need(offset, len) {
            None => self.cache.read(&serving, offset, len, &self.local, done),
            Some(Need::Fetch(_)) => {
                let done = self.noting_the_wait(id, done);
                self.cache.read(&serving, offset, len, &self.pool, done);
            }
            Some(Need::Verify(_)) => return self.read_doubtful(serving, offset, len, done),
        }
        self.put_down(serving);
    }

    /// Of a read that needs the source: the time until its answer is what its reader waited.
    fn noting_the_wait(self: &Arc<Self>, id: NodeId, done: ReadDone) -> ReadDone {
        let Ok(node) = self.node(id) else { return done };
        let (fs, since) = (self.clone(), Instant::now());
        Box::new(move |result| {
            fs.cache.note_waited(&node.path(), since.elapsed());
            done(result);
        })
    }

    /// Chunks that nobody has looked at since an unclean stop are verified first, for which the source is not needed;
    /// those that are damaged are missing then.
    fn read_doubtful(self: &Arc<Self>, serving: Arc<Serving>, offset: u64, len: u32, done: ReadDone) {
        let fs = self.clone();
        self.local.submit(Box::new(move || {
            fs.cache.verify_range(&serving, offset, len);
            let pool = if serving.need(offset, len).is_none() { &fs.local } else { &fs.pool };
            fs.cache.read(&serving, offset, len, pool, done);
            fs.put_down(serving);
        }));
    }

    fn open_state(&self, id: NodeId) -> Result<(Mode, Arc<Serving>)> {
        let node = self.node(id)?;
        let state = node.lock();
        let open = state.open.as_ref().ok_or_else(|| Error::os("read", "a file that is not open", 9))?; // EBADF
        Ok((open.mode.clone(), open.serving.clone()))
    }

    /// Passes `fadvise(WILLNEED)` on to the data file.
    fn will_need(&self, serving: &Serving, offset: u64, len: u32) {
        let Some(file) = serving.file() else { return };
        let Ok(fd) = self.cache.open_data(file) else { return };
        let len = std::num::NonZeroU64::new(u64::from(len));
        let _ = rustix::fs::fadvise(&*fd, offset, len, rustix::fs::Advice::WillNeed);
    }

    /// Drops the cached copy of a path, at an operator's wish. Says whether there was one that nobody uses.
    pub fn evict(&self, path: &Path, attr: &Attr) -> bool {
        self.cache.evict(self.source.file_id(path, attr))
    }
}

fn serving_for(mode: &Mode, file: FileUse) -> Serving {
    match mode {
        Mode::Passthrough(_) => Serving::handed_over(file),
        Mode::Cached => Serving::kept(file),
    }
}

/// No right to (EPERM), the cache directory stacked too deep (ELOOP), no passthrough in this kernel: so it will be for
/// every file. Anything else, want of descriptors say, may be over at the next open.
fn is_about_the_mount(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::PERM | Errno::LOOP | Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL))
}

fn changed() -> Error {
    Error::os("open", "a version that is not the newest any more", ESTALE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_CACHED: [Cached; 4] = [Cached::Nothing, Cached::Part, Cached::Doubtful, Cached::Complete];

    /// Every combination of facts, and the rule that each must obey.
    #[test]
    fn bug_067_the_open_mode_matrix() {
        for is_open in [false, true] {
            for retired in [false, true] {
                for cached in ALL_CACHED {
                    for small in [false, true] {
                        let plan = decide(Facts { is_open, retired, cached, small });
                        let expected = match (retired, is_open, cached, small) {
                            // An old version is never opened again, not even beside handles that have it.
                            (true, ..) => Plan::Retry,
                            // One mode per node while it is open, whatever became of the copy meanwhile.
                            (_, true, ..) => Plan::Join,
                            // The kernel reads only what is complete and trusted.
                            (_, _, Cached::Complete, _) => Plan::Serve,
                            (_, _, _, true) => Plan::Fill,
                            (_, _, _, false) => Plan::Chunks,
                        };
                        assert_eq!(plan, expected, "{is_open} {retired} {cached:?} {small}");
                    }
                }
            }
        }
    }
}
