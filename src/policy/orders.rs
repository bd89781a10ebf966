//! Coming orders of access that jobs have told of: which file is used next when, and which cached file is used last.
//!
//! An order is a list of names, as long as it has not been read. A *position* is the place of a line in it. The uses that
//! are seen move its front on: a use is right when its file stands near the front, where "near" leaves room for loaders
//! with many workers. Several jobs have orders of their own; a use counts for the one in whose order it comes soonest.
//!
//! Bounded: [`LINES_MAX`] lines that were not read yet, in all orders together, of at most 40 bytes each; of a name only
//! [`Name`] is kept. What an order is not to be believed in costs little: one whose uses come elsewhere is dropped, and
//! one none of whose files is used rests until one is.

use crate::types::FileId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hasher};

/// Lines of all orders that were not read yet.
pub const LINES_MAX: usize = 10_000_000;
/// Jobs with an order.
pub const JOBS_MAX: usize = 16;

/// A use is right within this share of the files of its order from the front...
const SLACK_SHARE: usize = 8;
/// ...at least so many lines: samples in flight in a small loader...
const SLACK_MIN: u32 = 64;
/// ...and at most so many: those of sixteen workers with two batches of 512 each.
const SLACK_MAX: u32 = 16_384;
/// An order is judged every so many uses of its files...
const JUDGE_USES: u32 = 32;
/// ...and dropped when fewer than this share were right, or fewer than half while more
/// lines were passed over than read. A wrong order is right by
/// chance in one of eight; two jobs over the same files of which one has an order are in one of two.
const RIGHT_SHARE: u32 = 4;
/// Before so many of its uses were right, files are fetched by an order into free room only, and no cached file goes
/// because of it: one that is wrong is dropped before.
const PROVEN_RIGHT: u64 = 16;
/// After so many uses, none of them of its own, an order rests.
const REST_USES: u64 = 4096;
/// Cached files that are looked at to find the one that is used last.
const SAMPLE: usize = 32;
/// Cached files that are kept from the policy below, for one decision: it may look through all there are.
const PROTECTED_MAX: u32 = 64;

/// A path by which files of an order are known. Two paths of ten million share one now and then, which makes one guess
/// wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name(u32);

impl Name {
    /// Of a path below the mount.
    pub fn of(path: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(path);
        Self(hasher.finish() as u32)
    }
}

/// How soon a file is used next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Next {
    /// After so many uses of its job.
    After(u32),
    /// Not before the order ends.
    Later,
}

/// What whoever fetches an order's files does about one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Fetches it.
    Go,
    /// It was read already.
    Skip,
    /// Nobody reads in this order now.
    Rest,
    /// The order is not there any more.
    End,
}

/// What is known of one order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderFigures {
    /// Lines that it was given.
    pub lines: u64,
    /// The line that is expected next, from 0.
    pub position: u64,
    /// Uses that came where it said.
    pub right: u64,
    /// Uses of its files that came elsewhere.
    pub wrong: u64,
    /// Lines that were passed over unread.
    pub skipped: u64,
    /// No file of it was used for long.
    pub resting: bool,
    /// It was wrong too often, and is forgotten.
    pub dropped: bool,
}

/// Why lines were refused: more than [`LINES_MAX`] or [`JOBS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many lines.
    #[error(
        "more than {LINES_MAX} lines of all orders would wait to be read: give the next part when some were read"
    )]
    Lines,
    /// Too many jobs.
    #[error("{JOBS_MAX} jobs have an order already: clear one with `--job NAME --clear`")]
    Jobs,
}

/// No later line has this name.
const NONE: u32 = u32::MAX;
/// The line was read.
const READ: u32 = u32::MAX - 1;

struct Line {
    name: Name,
    /// Position of the next line of this name.
    next: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

/// One table for all names would stop everybody for a tenth of a second while it grows.
const SHARDS: usize = 64;

struct Order {
    serial: u64,
    /// From the front on.
    lines: VecDeque<Line>,
    front: u32,
    /// One after the line that was read furthest on.
    furthest: u32,
    index: Vec<HashMap<Name, Ends>>,
    names: usize,
    names_max: usize,
    right: u64,
    wrong: u64,
    skipped: u64,
    /// Uses since the last judgement, and those of them that were right.
    judged: (u32, u32),
    judged_skipped: u64,
    last_right: u64,
}

impl Order {
    fn new(serial: u64, now: u64) -> Self {
        Self {
            serial,
            lines: VecDeque::new(),
            front: 0,
            furthest: 0,
            index: (0..SHARDS).map(|_| HashMap::new()).collect(),
            names: 0,
            names_max: 0,
            right: 0,
            wrong: 0,
            skipped: 0,
            judged: (0, 0),
            judged_skipped: 0,
            last_right: now,
        }
    }

    fn shard(&mut self, name: Name) -> &mut HashMap<Name, Ends> {
        &mut self.index[name.0 as usize % SHARDS]
    }

    fn end(&self) -> u32 {
        self.front + self.lines.len() as u32
    }

    fn push(&mut self, name: Name) {
        let at = self.end();
        self.lines.push_back(Line { name, next: NONE });
        let before = match self.shard(name).get_mut(&name) {
            Some(ends) => Some(std::mem::replace(&mut ends.last, at)),
            None => {
                self.shard(name).insert(name, Ends { first: at, last: at });
                None
            }
        };
        match before {
            Some(before) => self.lines[(before - self.front) as usize].next = at,
            None => self.names += 1,
        }
        self.names_max = self.names_max.max(self.names);
    }

    fn slack(&self) -> u32 {
        ((self.names_max / SLACK_SHARE) as u32).clamp(SLACK_MIN, SLACK_MAX)
    }

    fn distance(&self, name: Name) -> Option<u32> {
        self.index[name.0 as usize % SHARDS].get(&name).map(|ends| ends.first - self.front)
    }

    /// The first line of this name does not count any more.
    fn unlink(&mut self, name: Name, next: u32) {
        if next != NONE {
            if let Some(ends) = self.shard(name).get_mut(&name) {
                ends.first = next;
            }
        } else if self.shard(name).remove(&name).is_some() {
            self.names -= 1;
        }
    }

    /// The file was used at `distance`, which is near enough.
    fn read(&mut self, name: Name, distance: u32) {
        let next = std::mem::replace(&mut self.lines[distance as usize].next, READ);
        self.unlink(name, next);
        self.furthest = self.furthest.max(self.front + distance + 1);
        // Half of it: after a stretch that nobody reads the next file is still near.
        let front_min = self.furthest.saturating_sub(self.slack() / 2);
        while let Some(line) = self.lines.front()
            && (line.next == READ || self.front < front_min)
        {
            let (name, next) = (line.name, line.next);
            if next != READ {
                self.skipped += 1;
                self.unlink(name, next);
            }
            self.lines.pop_front();
            self.front += 1;
        }
    }

    /// `false`: it is not to be believed.
    fn judge(&mut self, right: bool) -> bool {
        let (of, good) = &mut self.judged;
        *of += 1;
        *good += u32::from(right);
        *(if right { &mut self.right } else { &mut self.wrong }) += 1;
        if *of < JUDGE_USES {
            return true;
        }
        // One that is right by chance leaps over most of its lines.
        let skipped = self.skipped - self.judged_skipped;
        let leaps = skipped > u64::from(*good) && *good * 2 < *of;
        let believed = *good * RIGHT_SHARE >= *of && !leaps;
        (self.judged, self.judged_skipped) = ((0, 0), self.skipped);
        believed
    }

    fn is_proven(&self) -> bool {
        self.right >= PROVEN_RIGHT
    }

    fn rests(&self, now: u64) -> bool {
        now - self.last_right > REST_USES
    }

    fn figures(&self, now: u64) -> OrderFigures {
        OrderFigures {
            lines: self.end().into(),
            position: self.front.into(),
            right: self.right,
            wrong: self.wrong,
            skipped: self.skipped,
            resting: self.rests(now),
            dropped: false,
        }
    }
}

struct Member {
    id: FileId,
    name: Name,
    /// It was used where an order said.
    was_read: bool,
}

/// The files that are cached, for as long as there is an order.
#[derive(Default)]
struct Members {
    places: HashMap<FileId, u32>,
    list: Vec<Member>,
}

impl Members {
    fn add(&mut self, id: FileId, name: Name) {
        if let Some(&place) = self.places.get(&id) {
            self.list[place as usize].name = name;
            return;
        }
        self.places.insert(id, self.list.len() as u32);
        self.list.push(Member { id, name, was_read: false });
    }

    fn remove(&mut self, id: FileId) {
        let Some(place) = self.places.remove(&id) else { return };
        self.list.swap_remove(place as usize);
        if let Some(moved) = self.list.get(place as usize) {
            self.places.insert(moved.id, place);
        }
    }

    fn get(&self, id: FileId) -> Option<&Member> {
        self.places.get(&id).map(|&place| &self.list[place as usize])
    }
}

/// Names that were read last, to know a file that has just been asked for.
const RECENT: usize = 1024;

/// All orders of a mount.
pub struct Orders {
    jobs: BTreeMap<String, Order>,
    dropped: BTreeMap<String, OrderFigures>,
    members: Members,
    recent: Box<[Option<Name>; RECENT]>,
    lines: usize,
    uses: u64,
    serial: u64,
    random: u64,
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            jobs: BTreeMap::new(),
            dropped: BTreeMap::new(),
            members: Members::default(),
            recent: Box::new([None; RECENT]),
            lines: 0,
            uses: 0,
            serial: 0,
            random: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Orders {
    /// Whether anybody has told of an order.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Uses that were seen while there was an order.
    pub fn uses(&self) -> u64 {
        self.uses
    }

    /// Adds lines to the order of `job`. Gives the serial number of the order and the position of the first of them.
    ///
    /// # Errors
    /// [`Refused`], and then none was added.
    pub fn append(&mut self, job: &str, names: &[Name]) -> Result<(u64, u32), Refused> {
        let known = self.jobs.get(job);
        let end = known.map_or(0, |order| u64::from(order.end()));
        if self.lines + names.len() > LINES_MAX || end + names.len() as u64 >= READ.into() {
            return Err(Refused::Lines);
        }
        if known.is_none() && self.jobs.len() >= JOBS_MAX {
            return Err(Refused::Jobs);
        }
        if known.is_none() {
            self.serial += 1;
        }
        self.dropped.remove(job);
        let (serial, now) = (self.serial, self.uses);
        let order = self.jobs.entry(job.to_string()).or_insert_with(|| Order::new(serial, now));
        let first = order.end();
        names.iter().for_each(|&name| order.push(name));
        self.lines += names.len();
        Ok((order.serial, first))
    }

    /// Forgets the order of `job`.
    pub fn clear(&mut self, job: &str) {
        self.dropped.remove(job);
        self.forget(job);
    }

    fn forget(&mut self, job: &str) {
        if let Some(order) = self.jobs.remove(job) {
            self.lines -= order.lines.len();
        }
        if self.jobs.is_empty() {
            self.members = Members::default();
        }
    }

    /// What is known of each job's order.
    pub fn figures(&self) -> Vec<(String, OrderFigures)> {
        let mut all: Vec<_> = self.jobs.iter().map(|(job, o)| (job.clone(), o.figures(self.uses))).collect();
        all.extend(self.dropped.iter().map(|(job, figures)| (job.clone(), *figures)));
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// `id` is cached. To be told of what is cached already when the first order comes, and of each that follows.
    pub fn cached(&mut self, id: FileId, name: Name) {
        if !self.is_empty() {
            self.members.add(id, name);
        }
    }

    /// `id` is not cached any more.
    pub fn removed(&mut self, id: FileId) {
        self.members.remove(id);
    }

    /// A file was used. Says whether some order that has proven right had said so.
    pub fn used(&mut self, id: FileId, name: Name) -> bool {
        if self.is_empty() {
            return false;
        }
        self.uses += 1;
        let now = self.uses;
        let near = |order: &Order| order.distance(name).filter(|&d| d <= order.slack());
        let soonest = self.jobs.iter().filter_map(|(job, order)| Some((near(order)?, job))).min();
        let Some((distance, job)) = soonest else {
            self.used_elsewhere(name);
            return false;
        };
        let job = job.clone();
        let Some(order) = self.jobs.get_mut(&job) else { return false };
        let lines = order.lines.len();
        order.read(name, distance);
        order.last_right = now;
        let proven = order.is_proven();
        let believed = order.judge(true);
        let figures = order.figures(now);
        self.lines -= lines - order.lines.len();
        if !believed {
            self.drop_order(job, figures);
        }
        self.recent[name.0 as usize % RECENT] = Some(name);
        if let Some(&place) = self.members.places.get(&id) {
            self.members.list[place as usize].was_read = true;
        }
        proven
    }

    fn used_elsewhere(&mut self, name: Name) {
        let mut wrong = Vec::new();
        for (job, order) in &mut self.jobs {
            if order.distance(name).is_some() && !order.judge(false) {
                wrong.push((job.clone(), order.figures(self.uses)));
            }
        }
        for (job, figures) in wrong {
            self.drop_order(job, figures);
        }
    }

    fn drop_order(&mut self, job: String, figures: OrderFigures) {
        self.forget(&job);
        if self.dropped.len() >= JOBS_MAX {
            self.dropped.pop_first();
        }
        self.dropped.insert(job, OrderFigures { dropped: true, ..figures });
    }

    /// What is to be done about one line of an order.
    pub fn turn(&self, job: &str, serial: u64, position: u32) -> Turn {
        let Some(order) = self.jobs.get(job).filter(|order| order.serial == serial) else { return Turn::End };
        let line = position.checked_sub(order.front).and_then(|at| order.lines.get(at as usize));
        match line {
            Some(line) if line.next != READ => match order.rests(self.uses) {
                true => Turn::Rest,
                false => Turn::Go,
            },
            _ => Turn::Skip,
        }
    }

    /// When the file of this name is used next, if an order tells that has proven right.
    pub fn next_use(&self, name: Name) -> Option<Next> {
        let awake = self.jobs.values().filter(|order| order.is_proven() && !order.rests(self.uses));
        let soonest = awake.filter_map(|order| order.distance(name)).min();
        let was_read = || self.recent[name.0 as usize % RECENT] == Some(name);
        soonest.map(Next::After).or_else(|| was_read().then_some(Next::Later))
    }

    fn next_of(&self, member: &Member) -> Option<Next> {
        self.next_use(member.name).or_else(|| member.was_read.then_some(Next::Later))
    }

    /// Of some cached files, drawn at random, the one that is used last, if that is later than `than`.
    pub fn farther(&mut self, than: Next, in_use: &mut dyn FnMut(FileId) -> bool) -> Option<FileId> {
        let mut drawn: Vec<(Next, FileId)> = Vec::with_capacity(SAMPLE);
        for _ in 0..SAMPLE.min(self.members.list.len()) {
            let place = self.draw() as usize % self.members.list.len();
            let member = &self.members.list[place];
            drawn.extend(self.next_of(member).filter(|next| *next > than).map(|next| (next, member.id)));
        }
        drawn.sort_unstable_by(|a, b| b.cmp(a));
        drawn.dedup();
        drawn.into_iter().map(|(_, id)| id).find(|&id| !in_use(id))
    }

    /// Keeps cached files that are used before `than` from a policy that knows of no order: wraps its question.
    pub fn protecting<'a>(
        &'a self,
        than: Option<Next>,
        in_use: &'a mut dyn FnMut(FileId) -> bool,
    ) -> impl FnMut(FileId) -> bool + 'a {
        let mut left = PROTECTED_MAX;
        move |id| {
            let next = self.members.get(id).and_then(|member| self.next_of(member));
            if left > 0 && matches!((next, than), (Some(next), Some(than)) if next < than) {
                left -= 1;
                return true;
            }
            in_use(id)
        }
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(n: u64) -> Name {
        Name::of(format!("train/{n}.jpg").as_bytes())
    }

    fn id(n: u64) -> FileId {
        FileId { high: 0, low: n }
    }

    fn names(numbers: impl Iterator<Item = u64>) -> Vec<Name> {
        numbers.map(name).collect()
    }

    fn only(orders: &Orders) -> OrderFigures {
        let all = orders.figures();
        assert_eq!(all.len(), 1);
        all[0].1
    }

    /// An order that has proven right, and is at its end.
    fn proven() -> Orders {
        let mut orders = Orders::default();
        let some = || (0..PROVEN_RIGHT).map(|n| 1_000_000 + n);
        orders.append("a", &names(some())).unwrap();
        some().for_each(|n| _ = orders.used(id(n), name(n)));
        orders
    }

    #[test]
    fn uses_move_the_front_and_small_disorder_is_no_harm() {
        let mut orders = Orders::default();
        let (serial, _) = orders.append("a", &names(0..1000)).unwrap();
        for n in (0..1000).collect::<Vec<_>>().chunks(40).flat_map(|c| c.iter().rev()) {
            orders.used(id(*n), name(*n));
        }
        let OrderFigures { position, right, wrong, skipped, .. } = only(&orders);
        assert_eq!((position, right, wrong, skipped), (1000, 1000, 0, 0));
        assert_eq!(orders.lines, 0);
        assert_eq!(orders.turn("a", serial, 999), Turn::Skip);
        assert_eq!(orders.turn("a", serial + 1, 999), Turn::End);
    }

    #[test]
    fn the_next_use_of_a_file_that_comes_twice_is_known_each_time() {
        let mut orders = proven();
        orders.append("a", &names([1, 2, 1, 3].into_iter())).unwrap();
        orders.append("a", &names([1].into_iter())).unwrap();
        let mut seen = Vec::new();
        for n in [1, 2, 1, 3, 1] {
            orders.used(id(n), name(n));
            seen.push(orders.next_use(name(1)));
        }
        let after = |n| Some(Next::After(n));
        assert_eq!(seen, [after(1), after(0), after(1), after(0), Some(Next::Later)]);
        assert_eq!(orders.next_use(name(9)), None);
    }

    #[test]
    fn lines_that_nobody_reads_are_passed_over() {
        let mut orders = Orders::default();
        let (serial, _) = orders.append("a", &names(0..4000)).unwrap();
        for n in (0..4000).filter(|n| n % 10 != 0) {
            orders.used(id(n), name(n));
        }
        let figures = only(&orders);
        assert_eq!(figures.right, 3600);
        assert!(figures.position >= 3500 && figures.skipped >= 350, "{figures:?}");
        assert_eq!(orders.turn("a", serial, 10), Turn::Skip);
        assert_eq!(orders.turn("a", serial, 3990), Turn::Go);
    }

    #[test]
    fn an_order_that_is_wrong_is_dropped_and_said_to_be() {
        let mut orders = Orders::default();
        let (serial, _) = orders.append("a", &names(0..10_000)).unwrap();
        let mixed = |n: u64| n * 7919 % 10_000;
        let used = (0..10_000).take_while(|&n| {
            assert!(!orders.used(id(mixed(n)), name(mixed(n))), "believed");
            assert_eq!(orders.next_use(name(5)), None);
            !orders.is_empty()
        });
        assert!(used.count() < 3 * JUDGE_USES as usize);
        assert!(only(&orders).dropped && orders.lines == 0);
        assert_eq!(orders.turn("a", serial, 9999), Turn::End);
        orders.append("a", &names(0..10)).unwrap();
        assert!(!only(&orders).dropped, "told of anew");
    }

    /// Goal: jobs with names of their own that are all wrong take no more memory than so many, and the last is shown.
    #[test]
    fn wrong_orders_of_many_jobs_are_bounded() {
        let mut orders = Orders::default();
        for job in 0..100 {
            orders.append(&format!("{job:03}"), &names(0..10_000)).unwrap();
            let mixed = |n: u64| n * 7919 % 10_000;
            (0..200).for_each(|n| _ = orders.used(id(mixed(n)), name(mixed(n))));
            let all = orders.figures();
            assert!(all.len() <= JOBS_MAX && orders.is_empty());
            assert!(all.iter().any(|(name, figures)| *name == format!("{job:03}") && figures.dropped));
        }
    }

    #[test]
    fn an_order_whose_job_has_not_begun_rests_and_wakes() {
        let mut orders = proven();
        let (serial, first) = orders.append("a", &names(0..100)).unwrap();
        (0..=REST_USES).for_each(|n| _ = orders.used(id(1000 + n), name(1000 + n)));
        assert_eq!(orders.turn("a", serial, first + 50), Turn::Rest);
        assert_eq!(orders.next_use(name(50)), None);
        assert!(orders.used(id(0), name(0)));
        assert_eq!(orders.turn("a", serial, first + 50), Turn::Go);
    }

    #[test]
    fn the_file_that_is_used_last_goes_and_never_one_that_comes_sooner() {
        let mut orders = proven();
        orders.append("a", &names(0..1000)).unwrap();
        (0..100).for_each(|n| orders.cached(id(n), name(n)));
        orders.cached(id(5000), name(5000));
        let victim = orders.farther(Next::After(50), &mut |_| false).unwrap();
        assert!((51..100).contains(&victim.low), "{victim:?}");
        assert_eq!(orders.farther(Next::After(99), &mut |_| false), None, "and none that no order tells of");
        orders.used(id(0), name(0));
        let mut victims = (0..20).filter_map(|_| orders.farther(Next::After(500), &mut |_| false));
        assert!(victims.all(|victim| victim == id(0)), "what was read comes again last");
        let mut none = |_| false;
        let mut protected = orders.protecting(Some(Next::After(50)), &mut none);
        assert!(protected(id(10)) && !protected(id(90)) && !protected(id(5000)));
    }

    #[test]
    fn too_much_is_refused_whole() {
        let mut orders = Orders::default();
        for n in 0..JOBS_MAX {
            orders.append(&n.to_string(), &names(0..2)).unwrap();
        }
        assert_eq!(orders.append("one more", &names(0..2)), Err(Refused::Jobs));
        let many = vec![name(1); LINES_MAX - 2 * JOBS_MAX + 1];
        assert_eq!(orders.append("0", &many), Err(Refused::Lines));
        orders.append("0", &many[1..]).unwrap();
        assert_eq!(orders.append("0", &many[..1]), Err(Refused::Lines));
        orders.clear("0");
        assert!(orders.append("0", &many[..1]).is_ok());
    }
}
