//! Real mounts: what a user of the slow source sees through the kernel. Skipped, with a reason, without /dev/fuse.

use super::*;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use tempfile::TempDir;

/// Unmounts first, then removes the directories.
struct World {
    fs: FaultFs,
    real: TempDir,
    place: TempDir,
}

impl World {
    fn real(&self, name: &str) -> PathBuf {
        self.real.path().join(name)
    }
    fn seen(&self, name: &str) -> PathBuf {
        self.fs.mountpoint().join(name)
    }
    fn counts(&self) -> Counts {
        self.fs.handle().counts()
    }
    fn rules(&self, text: &str) {
        self.fs.handle().set_rules(text).expect("good rules");
    }
}

fn world(change: impl FnOnce(&mut Options)) -> Option<World> {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse");
        return None;
    }
    let real = tempfile::tempdir().expect("a directory");
    let place = tempfile::tempdir().expect("a directory");
    let mut options = Options::new(real.path(), place.path());
    change(&mut options);
    let fs = spawn(options).expect("mounted");
    Some(World { fs, real, place })
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect()
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(ms(1));
    }
}

#[test]
fn it_is_the_directory_itself() {
    let Some(w) = world(|_| ()) else { return };
    let bytes = noise(3_000_017);
    fs::create_dir(w.real("sub")).expect("made");
    fs::write(w.real("sub/big"), &bytes).expect("written");
    fs::hard_link(w.real("sub/big"), w.real("link")).expect("linked");
    std::os::unix::fs::symlink("sub/big", w.real("soft")).expect("linked");
    for i in 0..3000 {
        fs::write(w.real(&format!("sub/f{i:05}")), "x").expect("written");
    }
    assert!(fs::read(w.seen("sub/big")).expect("read") == bytes);
    assert!(fs::read(w.seen("soft")).expect("read") == bytes);
    assert_eq!(fs::read_link(w.seen("soft")).expect("read"), Path::new("sub/big"));
    for name in ["sub", "sub/big", "link", "soft", ""] {
        let (a, b) = (fs::symlink_metadata(w.real(name)), fs::symlink_metadata(w.seen(name)));
        let (a, b) = (a.expect("there"), b.expect("there"));
        assert_eq!(
            (a.ino(), a.size(), a.mode(), a.nlink()),
            (b.ino(), b.size(), b.mode(), b.nlink()),
            "{name}"
        );
        assert_eq!((a.mtime(), a.mtime_nsec(), a.ctime_nsec()), (b.mtime(), b.mtime_nsec(), b.ctime_nsec()));
    }
    let mut names: Vec<_> = fs::read_dir(w.seen("sub"))
        .expect("listed")
        .map(|e| e.expect("entry"))
        .map(|e| (e.file_name(), e.file_type().expect("known").is_file(), e.metadata().expect("there").len()))
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 3001);
    assert!(names[1..].iter().all(|(_, file, len)| *file && *len == 1));
    assert_eq!(fs::read(w.seen("none")).expect_err("missing").raw_os_error(), Some(libc::ENOENT));
    assert_eq!(fs::write(w.seen("new"), "").expect_err("read-only").raw_os_error(), Some(libc::EROFS));
}

#[test]
fn changes_show_at_once() {
    let Some(w) = world(|_| ()) else { return };
    fs::write(w.real("a"), "one").expect("written");
    let read = |name: &str| fs::read_to_string(w.seen(name));
    let mut old = fs::File::open(w.seen("a")).expect("opened");
    assert_eq!(read("a").expect("read"), "one");
    fs::write(w.real("a"), "2").expect("written");
    assert_eq!((read("a").expect("read"), fs::metadata(w.seen("a")).expect("there").len()), ("2".into(), 1));
    fs::write(w.real("tmp"), "three").expect("written");
    fs::rename(w.real("tmp"), w.real("a")).expect("renamed");
    assert_eq!(read("a").expect("read"), "three");
    fs::rename(w.real("a"), w.real("b")).expect("renamed");
    assert!(read("a").is_err());
    assert_eq!(read("b").expect("read"), "three");
    let mut text = String::new();
    old.read_to_string(&mut text).expect("an open file keeps its bytes");
    assert_eq!((text.as_str(), old.metadata().expect("by handle").nlink()), ("2", 0));
    // A number that is given out again at once, as ext4 does, is another file all the same.
    for i in 0..20 {
        fs::remove_file(w.real("b")).expect("removed");
        assert!(read("b").is_err());
        fs::write(w.real("b"), i.to_string()).expect("written");
        assert_eq!(read("b").expect("read"), i.to_string());
    }
    fs::create_dir(w.real("d")).expect("made");
    fs::write(w.real("d/x"), "x").expect("written");
    assert_eq!(fs::read_dir(w.seen("d")).expect("listed").count(), 1);
    fs::rename(w.real("d"), w.real("e")).expect("renamed");
    fs::write(w.real("e/y"), "y").expect("written");
    assert_eq!(fs::read_dir(w.seen("e")).expect("listed").count(), 2);
    assert_eq!(read("e/x").expect("read"), "x");
}

#[test]
fn every_request_has_its_latency() {
    let latency = ms(2);
    let Some(w) = world(|o| o.latency = latency) else { return };
    fs::write(w.real("a"), "x").expect("written");
    let (before, start) = (w.counts(), Instant::now());
    for _ in 0..50 {
        fs::metadata(w.seen("a")).expect("there");
    }
    let (after, took) = (w.counts(), start.elapsed());
    let requests = (after.lookup + after.getattr) - (before.lookup + before.getattr);
    assert!(requests >= 50);
    let each = took / requests as u32;
    eprintln!("latency of 2 ms: {each:?} each");
    // Never less; more only as a busy machine makes it.
    assert!(each >= latency && each < ms(20), "{each:?}");

    let start = Instant::now();
    std::thread::scope(|s| {
        for _ in 0..32 {
            s.spawn(|| fs::File::open(w.seen("a")).expect("opened").read_at(&mut [0], 0).expect("read"));
        }
    });
    assert!(start.elapsed() < 32 * ms(2), "latencies overlap: {:?}", start.elapsed());
}

#[test]
fn reads_share_the_bandwidth() {
    let Some(w) = world(|o| o.bandwidth = Some(20_000_000)) else { return };
    for i in 0..4 {
        fs::write(w.real(&i.to_string()), noise(2_500_000)).expect("written");
    }
    let start = Instant::now();
    std::thread::scope(|s| {
        for i in 0..4 {
            let w = &w;
            s.spawn(move || fs::read(w.seen(&i.to_string())).expect("read"));
        }
    });
    let rate = 10e6 / start.elapsed().as_secs_f64();
    eprintln!("bandwidth of 20 MB/s, 4 readers: {:.3} MB/s", rate / 1e6);
    // Never faster; slower only as a busy machine makes it.
    assert!(rate < 20.4e6 && rate > 8e6, "{rate}");

    let start = Instant::now();
    fs::read(w.seen("0")).expect("read");
    let rate = 2.5e6 / start.elapsed().as_secs_f64();
    eprintln!("bandwidth of 20 MB/s, 1 reader: {:.3} MB/s", rate / 1e6);
    assert!(rate < 20.4e6 && rate > 8e6, "{rate}");
}

#[test]
fn errors_come_as_often_as_asked() {
    let Some(w) = world(|o| o.direct_io = true) else { return };
    fs::create_dir(w.real("d")).expect("made");
    fs::write(w.real("d/a"), noise(5000)).expect("written");
    let file = fs::File::open(w.seen("d/a")).expect("opened");
    let read = || file.read_at(&mut [0; 5000], 0).map_err(|e| e.raw_os_error());
    w.rules("op=read path=d/* errno=EIO count=3\nop=open errno=ESTALE");
    let got: Vec<_> = (0..5).map(|_| read()).collect();
    let eio = Err(Some(libc::EIO));
    assert_eq!(got, [eio, eio, eio, Ok(5000), Ok(5000)]);
    assert_eq!(w.counts().faults, 3);
    assert_eq!(fs::File::open(w.seen("d/a")).expect_err("stale").raw_os_error(), Some(libc::ESTALE));

    w.rules("op=read short=1000");
    assert_eq!(read(), Ok(1000));
    w.rules("op=read flip");
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, 7).expect("read"), 1);
    assert_eq!(byte[0], noise(8)[7] ^ 1);
    w.rules("op=read delay=80ms");
    let start = Instant::now();
    assert_eq!(read(), Ok(5000));
    assert!(start.elapsed() >= ms(80));
    assert!(w.fs.handle().set_rules("op=rad hang").is_err());
}

#[test]
fn requests_are_counted() {
    let Some(w) = world(|o| (o.direct_io, o.ttl) = (true, Duration::from_secs(60))) else { return };
    fs::create_dir(w.real("d")).expect("made");
    fs::write(w.real("d/a"), noise(4096)).expect("written");
    let file = fs::File::open(w.seen("d/a")).expect("opened");
    file.read_at(&mut [0; 4096], 0).expect("read");
    file.read_at(&mut [0; 4096], 4096).expect("at the end");
    let names = fs::read_dir(w.seen("d")).expect("listed").count();
    assert_eq!(names, 1);
    assert!(rustix::fs::getxattr(w.seen("d/a"), "user.x", &mut [0_u8; 8]).is_err());
    drop(file);
    until("release", || w.counts().release == 1);
    let c = w.counts();
    assert_eq!((c.lookup, c.open, c.opendir, c.read, c.read_bytes), (2, 1, 1, 2, 4096));
    assert_eq!((c.getxattr, c.faults, c.hanging), (1, 0, 0));
    assert!(c.readdir >= 1);
    let again = fs::metadata(w.seen("d/a")).expect("there").len();
    assert_eq!((again, w.counts().lookup), (4096, 2));
}

#[test]
fn a_hang_ends_with_its_rule_in_the_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let (rules, counts) = (dir.path().join("rules"), dir.path().join("counts.json"));
    fs::write(&rules, "op=open path=*stuck hang").expect("written");
    let Some(w) = world(|o| (o.rules, o.counts) = (Some(rules.clone()), Some(counts.clone()))) else {
        return;
    };
    for name in ["stuck", "free"] {
        fs::write(w.real(name), name).expect("written");
    }
    let show = |key: &str| -> u64 {
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(&counts).expect("there")).expect("whole JSON");
        json[key].as_u64().expect("a number")
    };
    std::thread::scope(|s| {
        let hung = s.spawn(|| fs::read_to_string(w.seen("stuck")).expect("read at last"));
        until("hangs", || show("hanging") == 1);
        assert_eq!(fs::read_to_string(w.seen("free")).expect("read"), "free");
        std::thread::sleep(ms(50));
        assert!(!hung.is_finished());
        fs::write(&rules, "op=open path=other hang").expect("written");
        assert_eq!(hung.join().expect("no panic"), "stuck");
    });
    until("rules taken", || show("rules") == 1);
    until("hangs no more", || show("hanging") == 0);
    drop(w);
    assert_eq!(show("open"), 2);
}

#[test]
fn the_mount_ends_while_requests_hang() {
    for lazily in [false, true] {
        let Some(w) = world(|_| ()) else { return };
        fs::write(w.real("a"), "x").expect("written");
        let kept = fs::File::open(w.seen("a")).expect("opened");
        w.rules("op=open hang");
        let path = w.seen("a");
        let hung = std::thread::spawn(move || fs::File::open(path).map(|_| ()));
        until("hangs", || w.counts().hanging == 1);
        let start = Instant::now();
        let place = w.fs.mountpoint().to_owned();
        if lazily {
            mount::unmount(&place, true).expect("unmounted");
            assert!(hung.join().expect("no panic").is_err());
            drop(kept);
            w.fs.wait().expect("ended by itself");
        } else {
            assert!(mount::unmount(&place, false).is_err(), "busy");
            drop(w);
            assert!(hung.join().expect("no panic").is_err());
            assert!(kept.read_at(&mut [0], 0).is_err());
        }
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
        assert!(mountinfo::top_mount_at(&place).expect("readable").is_none_or(|m| m.mountpoint != place));
    }
}

#[test]
fn it_may_be_mounted_over_the_source_itself() {
    let mut place = None;
    let Some(w) = world(|o| {
        fs::write(o.source.join("a"), "x").expect("written");
        o.mountpoint = o.source.clone();
        place = Some(o.source.clone());
    }) else {
        return;
    };
    let place = place.expect("set by world");
    assert_eq!(fs::read_to_string(place.join("a")).expect("read"), "x");
    assert_eq!(w.counts().open, 1);
    w.fs.stop().expect("ended");
    fs::write(place.join("a"), "y").expect("the source is bare again");
    drop((w.real, w.place));
}

#[test]
fn run_serves_until_it_is_unmounted() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: no /dev/fuse");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("a"), "x").expect("written");
    let options = Options::new(dir.path(), dir.path());
    run(options, || {
        assert_eq!(fs::read_to_string(dir.path().join("a")).expect("read"), "x");
        mount::unmount(dir.path(), false).expect("unmounted");
    })
    .expect("ended");
}
