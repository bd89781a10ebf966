//! `warmfs doctor`: what this kernel, this user and these disks can do, and what each missing thing costs.
//!
//! Gathering ([`report`]) is apart from judging, which is a pure function of the facts, so that every verdict is
//! tested on machines that we do not have. Nothing is changed, nothing is mounted; a row that is not ok always says
//! what it costs and how to mend it.

use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::sys::facts::{BlockFacts, FsClass, FsFacts, FuseDevice, KernelFacts, Limit};
use crate::types::PathText;
use crate::types::units::show_size;

/// First kernel with openat2(2), without which a source cannot be fenced in.
const KERNEL_MIN: (u32, u32) = (5, 6);

/// Below this many descriptors a job of many workers meets the limit: served read by read, each open file is one.
const OPEN_FILES_GOOD: u64 = 16_384;

/// One FUSE request that carries a whole chunk of 1 MiB.
const REQUEST_BYTES_GOOD: u64 = 1 << 20;

/// What a user may lock without being asked, since 5.16: 8 MiB. Less is a machine that was set up so.
const LOCKED_BYTES_GOOD: u64 = 8 << 20;

/// Kernels' own read-ahead; less makes a sequential reader wait for each piece.
const READ_AHEAD_KB_GOOD: u64 = 128;

/// A cache below this size keeps nothing that matters.
const FREE_BYTES_GOOD: u64 = 1_000_000_000;

/// One inode a cached file.
const FREE_INODES_GOOD: u64 = 10_000;

/// The verdict of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be, or only worth knowing.
    Ok,
    /// It works and costs something.
    Warn,
    /// It does not work.
    Fail,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What was looked at; a stable name.
    pub check: &'static str,
    /// The verdict.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// What the missing thing costs; empty where nothing is missing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub costs: String,
    /// What to do about it; empty where there is nothing to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

/// All checks, in the order in which a mount meets them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The checks.
    pub rows: Vec<Row>,
}

/// Looks at this machine, and at the cache directory and the source where they are given. `uring` is the answer of a
/// probe of io_uring: the error says why it is refused.
pub fn report(cache_dir: Option<&Path>, source: Option<&Path>, uring: Result<(), String>) -> Report {
    judge(&Evidence {
        kernel: KernelFacts::gather(),
        uring,
        cache: cache_dir.map(Place::of_cache),
        source: source.map(Place::of_source),
    })
}

/// Everything that the verdicts are made from.
#[derive(Clone, Debug)]
struct Evidence {
    kernel: KernelFacts,
    uring: Result<(), String>,
    cache: Option<Place>,
    source: Option<Place>,
}

/// A directory that was named.
#[derive(Clone, Debug)]
struct Place {
    path: String,
    fs: Result<FsFacts, String>,
    block: Option<BlockFacts>,
}

impl Place {
    /// A cache directory need not exist yet: its nearest ancestor is on the file system that it will be on.
    fn of_cache(path: &Path) -> Self {
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let there = absolute.ancestors().find(|p| p.exists()).unwrap_or(path);
        Self::of(path, there)
    }

    fn of_source(path: &Path) -> Self {
        let place = Self::of(path, path);
        match path.is_dir() || place.fs.is_err() {
            true => place,
            false => Self { fs: Err(format!("{} is not a directory", place.path)), ..place },
        }
    }

    /// `path` is what it is called, `there` what is looked at.
    fn of(path: &Path, there: &Path) -> Self {
        Self {
            path: PathText(path).to_string(),
            fs: FsFacts::of(there).map_err(|e| e.to_string()),
            block: BlockFacts::of(there),
        }
    }
}

fn judge(evidence: &Evidence) -> Report {
    let kernel = &evidence.kernel;
    let mut rows = vec![
        kernel_version(kernel),
        fuse_device(kernel),
        mounting(kernel),
        passthrough(kernel),
        io_uring(kernel, &evidence.uring),
        request_size(kernel),
        request_timeout(kernel),
        open_files(kernel.open_files),
        locked_memory(kernel),
        fuse_over_io_uring(kernel),
    ];
    if let Some(cache) = &evidence.cache {
        rows.extend(cache_rows(cache));
    }
    if let Some(source) = &evidence.source {
        rows.push(source_row(source));
    }
    Report { rows }
}

fn ok(check: &'static str, found: impl Into<String>) -> Row {
    Row { check, status: Status::Ok, found: found.into(), costs: String::new(), remedy: String::new() }
}

impl Row {
    fn warn(self, costs: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: Status::Warn, costs: costs.into(), remedy: remedy.into(), ..self }
    }

    fn fail(self, costs: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: Status::Fail, ..self.warn(costs, remedy) }
    }

    /// Ok, with something to know.
    fn note(self, costs: impl Into<String>) -> Self {
        Self { costs: costs.into(), ..self }
    }
}

fn kernel_version(kernel: &KernelFacts) -> Row {
    let row = ok("kernel", kernel.release.as_str());
    match kernel.version {
        v if v < KERNEL_MIN => row.fail(
            "no openat2(2): a source cannot be kept from leading out of itself",
            "use kernel 5.6 or newer; 6.9 or newer is what warmfs is made for",
        ),
        v if v < crate::sys::facts::PASSTHROUGH_KERNEL => row
            .warn("no FUSE passthrough: every warm read goes through the daemon", "use kernel 6.9 or newer"),
        v if v < (6, 13) => {
            row.note("directory listings are not kept by this kernel (a fault of 6.9 to 6.12)")
        }
        _ => row,
    }
}

fn fuse_device(kernel: &KernelFacts) -> Row {
    match &kernel.fuse_device {
        FuseDevice::Usable => ok("/dev/fuse", "opens"),
        FuseDevice::Missing => ok("/dev/fuse", "missing")
            .fail("nothing can be mounted", "`modprobe fuse`; in a container add `--device /dev/fuse`"),
        FuseDevice::Refused(why) => ok("/dev/fuse", why.as_str()).fail(
            "nothing can be mounted",
            "`chmod 666 /dev/fuse`, as distributions have it; in a container add `--device /dev/fuse`",
        ),
    }
}

fn mounting(kernel: &KernelFacts) -> Row {
    let row = |found: String| ok("mounting", found);
    match &kernel.fusermount {
        _ if kernel.admin => row(format!("user {} mounts directly", kernel.uid)),
        None => row(format!("user {}, no fusermount3", kernel.uid))
            .fail("only root can mount", "install the package fuse3, or mount as root"),
        Some(helper) if kernel.user_allow_other => {
            row(format!("user {} by {}, for other users too", kernel.uid, PathText(helper)))
        }
        Some(helper) => row(format!("user {} by {}", kernel.uid, PathText(helper))).warn(
            "no other user, root included, can read the mount",
            "write `user_allow_other` into /etc/fuse.conf if other users run jobs",
        ),
    }
}

fn passthrough(kernel: &KernelFacts) -> Row {
    match kernel.passthrough_possible() {
        Ok(()) => ok("passthrough", "possible"),
        Err(why) => {
            let (found, remedy) = why.split_once(": ").unwrap_or((&why, "use kernel 6.9 or newer, as root"));
            ok("passthrough", found).warn(
                "warm reads go through the daemon: about half the speed for small files, a copy more for large ones",
                remedy,
            )
        }
    }
}

fn io_uring(kernel: &KernelFacts, probe: &Result<(), String>) -> Row {
    let costs = "fills move one piece a thread at a time (pread and pwrite): slower from fast sources";
    match (probe, kernel.io_uring_disabled) {
        (Ok(()), _) => ok("io_uring", "works"),
        (Err(why), Some(1 | 2)) => {
            ok("io_uring", why.as_str()).warn(costs, "`sysctl kernel.io_uring_disabled=0`")
        }
        (Err(why), _) => ok("io_uring", why.as_str()).warn(
            costs,
            "allow the io_uring calls in the container's seccomp profile, or use kernel 5.11 or newer",
        ),
    }
}

fn request_size(kernel: &KernelFacts) -> Row {
    let bytes = kernel.request_bytes_max();
    let row = ok("request size", format!("up to {}", show_kib(bytes)));
    if bytes >= REQUEST_BYTES_GOOD {
        return row;
    }
    row.warn(
        "more round trips for each read that the daemon serves",
        "`sysctl fs.fuse.max_pages_limit=256`, then mount",
    )
}

fn request_timeout(kernel: &KernelFacts) -> Row {
    match kernel.request_timeout_s() {
        None => ok("request timeout", "none"),
        Some(seconds) => ok("request timeout", format!("{seconds} s")).warn(
            "one answer later than that and the kernel aborts the whole mount: a slow source becomes a dead job",
            "`sysctl fs.fuse.default_request_timeout=0 fs.fuse.max_request_timeout=0`, then mount",
        ),
    }
}

fn open_files(limit: Limit) -> Row {
    let row = ok(
        "open files",
        format!("{} (raised to {} at mount)", show_limit(limit.soft), show_limit(limit.hard)),
    );
    if limit.hard.is_none_or(|n| n >= OPEN_FILES_GOOD) {
        return row;
    }
    row.warn(
        "opens beyond it fail where files are served by the daemon",
        format!("`ulimit -Hn {OPEN_FILES_GOOD}` or more, or LimitNOFILE= of the service"),
    )
}

fn locked_memory(kernel: &KernelFacts) -> Row {
    let found = kernel.locked_memory.soft.map_or("unlimited".into(), show_kib);
    let row = ok("locked memory", found);
    if kernel.uid == 0 || kernel.locked_memory.soft.is_none_or(|bytes| bytes >= LOCKED_BYTES_GOOD) {
        return row;
    }
    row.warn(
        "old kernels count io_uring's buffers in it and refuse deep queues",
        "`ulimit -l 65536`, or LimitMEMLOCK=64M",
    )
}

fn fuse_over_io_uring(kernel: &KernelFacts) -> Row {
    // Not used yet, so that its absence costs nothing.
    ok(
        "fuse over io_uring",
        match kernel.fuse_over_io_uring {
            Some(true) => "enabled",
            Some(false) => "off (not needed)",
            None => "not in this kernel (not needed)",
        },
    )
}

fn cache_rows(cache: &Place) -> Vec<Row> {
    let fs = match &cache.fs {
        Ok(fs) => fs,
        Err(why) => {
            return vec![
                ok("cache", why.as_str()).fail("nothing can be cached there", "name another --cache-dir"),
            ];
        }
    };
    let mut rows = vec![cache_fs(cache, fs), cache_space(fs)];
    if fs.class == FsClass::Local {
        rows.extend(cache_disk(cache));
    }
    rows
}

fn cache_fs(cache: &Place, fs: &FsFacts) -> Row {
    let row = ok("cache", format!("{} on {}", cache.path, fs.name));
    let remedy = "choose a directory on ext4 or xfs on a local SSD";
    match fs.class {
        FsClass::Local => row,
        FsClass::Network => row.fail("a cache on the network is not faster than the network", remedy),
        FsClass::Fuse => row.fail("no passthrough over another FUSE, and two daemons that wait for each other", remedy),
        FsClass::Overlay => row.warn(
            "every cached read goes through one more layer, and passthrough needs the mount not to be stacked on",
            "in a container, put the cache on a volume",
        ),
        FsClass::Memory => row.warn(
            "the cache takes the memory that the job needs, and is gone after a restart",
            remedy,
        ),
    }
}

fn cache_space(fs: &FsFacts) -> Row {
    let inodes = fs.free_inodes.map_or(String::new(), |n| format!(", {n} inodes"));
    let row = ok(
        "cache space",
        format!("{} of {} free{inodes}", show_size(fs.free_bytes), show_size(fs.total_bytes)),
    );
    if fs.free_bytes < FREE_BYTES_GOOD {
        return row.warn("next to nothing can be kept", "make room, or name another --cache-dir");
    }
    if fs.free_inodes.is_some_and(|n| n < FREE_INODES_GOOD) {
        return row
            .warn("each cached file takes an inode", "make room, or use xfs, which makes inodes as needed");
    }
    row
}

fn cache_disk(cache: &Place) -> Vec<Row> {
    let Some(block) = &cache.block else {
        return vec![ok("cache disk", "not told by the kernel (a pool, or more than one device)")];
    };
    let disk = if block.rotational {
        ok("cache disk", format!("{} says that it turns", block.device)).warn(
            "a hard disk is no faster than most sources (virtual disks often say so without turning)",
            "choose an SSD",
        )
    } else {
        ok("cache disk", format!("{}, solid state", block.device))
    };
    let read_ahead = ok("read-ahead", format!("{} KiB", block.read_ahead_kb));
    let read_ahead = if block.read_ahead_kb >= READ_AHEAD_KB_GOOD {
        read_ahead
    } else {
        read_ahead.warn(
            "passthrough reads have the disk's own read-ahead: sequential reads wait for each piece",
            format!("`blockdev --setra 256` (128 KiB) on the disk of {}", block.device),
        )
    };
    vec![disk, read_ahead]
}

fn source_row(source: &Place) -> Row {
    match &source.fs {
        Err(why) => ok("source", why.as_str())
            .fail("there is nothing to cache", "check the path, and that it is mounted"),
        Ok(fs) if fs.stable_inodes => {
            ok("source", format!("{} on {}, stable inode numbers", source.path, fs.name))
        }
        Ok(fs) => ok("source", format!("{} on {}", source.path, fs.name)).note(
            "its inode numbers may change: files are known by path, so that a renamed file is read again",
        ),
    }
}

fn show_limit(limit: Option<u64>) -> String {
    limit.map_or("unlimited".into(), |n| n.to_string())
}

/// Sizes that the kernel counts in pages are powers of two, which decimal units show badly.
fn show_kib(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 20 && b % (1 << 20) == 0 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

impl Report {
    /// The worst verdict.
    pub fn worst(&self) -> Status {
        match (self.count(Status::Fail), self.count(Status::Warn)) {
            (0, 0) => Status::Ok,
            (0, _) => Status::Warn,
            _ => Status::Fail,
        }
    }

    fn count(&self, status: Status) -> usize {
        self.rows.iter().filter(|row| row.status == status).count()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|row| row.check.len()).max().unwrap_or(0);
        // Status and its gap are 6 wide; details stand below what was found.
        let indent = 6 + width + 2;
        for row in &self.rows {
            writeln!(f, "{:<4}  {:<width$}  {}", row.status, row.check, row.found)?;
            if !row.costs.is_empty() {
                writeln!(
                    f,
                    "{:indent$}{}: {}",
                    "",
                    if row.status == Status::Ok { "note" } else { "costs" },
                    row.costs
                )?;
            }
            if !row.remedy.is_empty() {
                writeln!(f, "{:indent$}remedy: {}", "", row.remedy)?;
            }
        }
        let verdict = match self.worst() {
            Status::Ok => "warmfs can do all it knows here",
            Status::Warn => "warmfs works here, at the costs above",
            Status::Fail => "warmfs cannot work here as it is",
        };
        let (good, warn, fail) = (self.count(Status::Ok), self.count(Status::Warn), self.count(Status::Fail));
        write!(f, "{good} ok, {warn} warn, {fail} fail: {verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good_kernel() -> KernelFacts {
        KernelFacts {
            release: "6.18.1".into(),
            version: (6, 18),
            uid: 0,
            admin: true,
            init_user_ns: true,
            fuse_device: FuseDevice::Usable,
            fusermount: Some("/usr/bin/fusermount3".into()),
            user_allow_other: false,
            io_uring_disabled: Some(0),
            open_files: Limit { soft: Some(1024), hard: Some(524_288) },
            locked_memory: Limit { soft: Some(8 << 20), hard: Some(8 << 20) },
            max_pages_limit: Some(256),
            default_request_timeout_s: Some(0),
            max_request_timeout_s: Some(0),
            fuse_over_io_uring: Some(false),
        }
    }

    fn place(name: &str, class: FsClass) -> Place {
        Place {
            path: "/cache".into(),
            fs: Ok(FsFacts {
                name: name.into(),
                class,
                stable_inodes: class != FsClass::Fuse,
                free_bytes: 800_000_000_000,
                total_bytes: 1_000_000_000_000,
                free_inodes: Some(60_000_000),
                total_inodes: Some(61_000_000),
            }),
            block: Some(BlockFacts { device: "nvme0n1p1".into(), read_ahead_kb: 128, rotational: false }),
        }
    }

    fn good() -> Evidence {
        Evidence {
            kernel: good_kernel(),
            uring: Ok(()),
            cache: Some(place("ext4", FsClass::Local)),
            source: Some(place("nfs", FsClass::Network)),
        }
    }

    fn row(evidence: &Evidence, check: &str) -> Row {
        judge(evidence).rows.into_iter().find(|row| row.check == check).unwrap()
    }

    fn with_kernel(change: impl FnOnce(&mut KernelFacts)) -> Evidence {
        let mut evidence = good();
        change(&mut evidence.kernel);
        evidence
    }

    fn with_cache(class: FsClass) -> Evidence {
        Evidence { cache: Some(place("x", class)), ..good() }
    }

    #[test]
    fn a_good_machine_has_nothing_to_complain_about() {
        let report = judge(&good());
        assert_eq!(report.worst(), Status::Ok, "{report}");
        assert!(report.rows.iter().all(|row| row.costs.is_empty() && row.remedy.is_empty()), "{report}");
        assert!(report.to_string().ends_with("0 warn, 0 fail: warmfs can do all it knows here"));
    }

    #[test]
    fn every_missing_thing_is_seen_with_cost_and_remedy() {
        use Status::*;
        type Change = fn(&mut Evidence);
        let cases: &[(&str, Status, Change)] = &[
            ("kernel", Fail, |e| e.kernel.version = (5, 4)),
            ("kernel", Warn, |e| e.kernel.version = (6, 8)),
            ("/dev/fuse", Fail, |e| e.kernel.fuse_device = FuseDevice::Missing),
            ("/dev/fuse", Fail, |e| e.kernel.fuse_device = FuseDevice::Refused("Permission denied".into())),
            ("passthrough", Warn, |e| e.kernel.admin = false),
            ("passthrough", Warn, |e| e.kernel.version = (6, 8)),
            ("passthrough", Warn, |e| e.kernel.init_user_ns = false),
            ("mounting", Warn, |e| e.kernel.admin = false),
            ("mounting", Fail, |e| {
                e.kernel.admin = false;
                e.kernel.fusermount = None;
            }),
            ("io_uring", Warn, |e| e.uring = Err("Operation not permitted".into())),
            ("request size", Warn, |e| e.kernel.max_pages_limit = Some(32)),
            ("request timeout", Warn, |e| e.kernel.default_request_timeout_s = Some(60)),
            ("request timeout", Warn, |e| e.kernel.max_request_timeout_s = Some(60)),
            ("open files", Warn, |e| e.kernel.open_files.hard = Some(4096)),
            ("locked memory", Warn, |e| {
                e.kernel.uid = 1000;
                e.kernel.locked_memory.soft = Some(64 << 10);
            }),
            ("cache", Fail, |e| *e = with_cache(FsClass::Network)),
            ("cache", Fail, |e| *e = with_cache(FsClass::Fuse)),
            ("cache", Warn, |e| *e = with_cache(FsClass::Overlay)),
            ("cache", Warn, |e| *e = with_cache(FsClass::Memory)),
            ("cache", Fail, |e| e.cache.as_mut().unwrap().fs = Err("statfs /x: gone".into())),
            ("cache space", Warn, |e| e.cache.as_mut().unwrap().fs.as_mut().unwrap().free_bytes = 1000),
            ("cache space", Warn, |e| e.cache.as_mut().unwrap().fs.as_mut().unwrap().free_inodes = Some(9)),
            ("cache disk", Warn, |e| e.cache.as_mut().unwrap().block.as_mut().unwrap().rotational = true),
            ("read-ahead", Warn, |e| e.cache.as_mut().unwrap().block.as_mut().unwrap().read_ahead_kb = 16),
            ("source", Fail, |e| e.source.as_mut().unwrap().fs = Err("statfs /x: gone".into())),
        ];
        for (check, status, change) in cases {
            let mut evidence = good();
            change(&mut evidence);
            let row = row(&evidence, check);
            assert_eq!(row.status, *status, "{row:?}");
            assert!(!row.costs.is_empty() && !row.remedy.is_empty(), "{row:?}");
            assert_eq!(judge(&evidence).worst().max_with(*status), judge(&evidence).worst(), "{row:?}");
        }
    }

    impl Status {
        fn max_with(self, other: Self) -> Self {
            if self as u8 >= other as u8 { self } else { other }
        }
    }

    #[test]
    fn things_that_are_fine_though_they_look_odd() {
        assert_eq!(row(&with_kernel(|k| k.max_pages_limit = None), "request size").status, Status::Ok);
        assert_eq!(row(&with_kernel(|k| k.open_files.hard = None), "open files").status, Status::Ok);
        assert_eq!(row(&with_kernel(|k| k.locked_memory.soft = None), "locked memory").status, Status::Ok);
        let user = with_kernel(|k| {
            (k.admin, k.uid, k.user_allow_other) = (false, 1000, true);
        });
        assert_eq!(row(&user, "mounting").status, Status::Ok);
        let mut btrfs = good();
        let cache = btrfs.cache.as_mut().unwrap();
        cache.block = None;
        cache.fs.as_mut().unwrap().free_inodes = None;
        assert_eq!(judge(&btrfs).worst(), Status::Ok);
        let mut unnamed = good();
        (unnamed.cache, unnamed.source) = (None, None);
        assert_eq!(judge(&unnamed).rows.len(), 10);
    }

    #[test]
    fn notes_do_not_worry() {
        let noted = row(&with_kernel(|k| k.version = (6, 12)), "kernel");
        assert_eq!((noted.status, noted.remedy.as_str()), (Status::Ok, ""));
        assert!(noted.costs.contains("listings"));
        let fuse = Evidence { source: Some(place("fuse", FsClass::Fuse)), ..good() };
        let noted = row(&fuse, "source");
        assert_eq!(noted.status, Status::Ok);
        assert!(noted.costs.contains("known by path"));
    }

    #[test]
    fn a_disabled_io_uring_names_its_sysctl() {
        let mut evidence = with_kernel(|k| k.io_uring_disabled = Some(2));
        evidence.uring = Err("Operation not permitted".into());
        assert!(row(&evidence, "io_uring").remedy.contains("kernel.io_uring_disabled=0"));
    }

    #[test]
    fn the_remedy_of_passthrough_is_split_from_what_was_found() {
        let row = row(&with_kernel(|k| (k.admin, k.uid) = (false, 1000)), "passthrough");
        assert_eq!(row.found, "user 1000 lacks CAP_SYS_ADMIN");
        assert!(row.remedy.starts_with("mount as root"));
    }

    #[test]
    fn columns_stand_below_each_other() {
        let text = judge(&with_kernel(|k| k.max_request_timeout_s = Some(60))).to_string();
        let lines: Vec<_> = text.lines().collect();
        let at = |needle: &str| {
            let line =
                lines.iter().find(|l| l.contains(needle)).unwrap_or_else(|| panic!("{needle} in {text}"));
            line.find(needle).unwrap()
        };
        assert_eq!(at("6.18.1"), at("costs: one answer"));
        assert_eq!(at("6.18.1"), at("remedy: `sysctl"));
        assert!(lines.iter().all(|l| !l.ends_with(' ')));
    }

    #[test]
    fn json_has_the_same_rows() {
        let json = serde_json::to_value(judge(&with_kernel(|k| k.admin = false))).unwrap();
        assert_eq!(json["rows"][0]["check"], "kernel");
        assert_eq!(json["rows"][0]["status"], "ok");
        assert!(json["rows"][0].get("costs").is_none());
        assert_eq!(json["rows"][3]["status"], "warn");
    }

    #[test]
    fn this_machine_is_reported_even_for_a_cache_that_is_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        let report = report(Some(&dir.path().join("a/b")), Some(dir.path()), Ok(()));
        let cache = report.rows.iter().find(|row| row.check == "cache space").unwrap();
        assert!(cache.found.contains("free"), "{report}");
    }
}
