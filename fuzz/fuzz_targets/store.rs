//! What lies in the cache directory, after anybody has been at it: the index, the small files. What comes out
//! was put in; nothing panics, waits, or is written outside the directory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use warmfs::store::{CacheDir, Change, Index, Record};
use warmfs::sys::io::Io;
use warmfs::types::{CHUNK_BYTES, FileId, FileVersion, Timestamp};

fuzz_target!(
    init: {
        // The library catches the data base's panics, which the fuzzer's hook would take for the end. One that nobody
        // catches is the end all the same.
        std::panic::set_hook(Box::new(|info| {
            if std::env::var_os("WARMFS_FUZZ_LOUD").is_some() {
                eprintln!("{info}");
            }
        }));
    },
    |data: &[u8]| {
        let Some((&kind, data)) = data.split_first() else { return };
        let work = if kind % 2 == 0 { edited_index } else { small_files };
        if let Err(panic) = std::panic::catch_unwind(|| work(data)) {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            eprintln!("panic: {}", text.unwrap_or_default());
            std::process::abort();
        }
    }
);

fn id(n: u64) -> FileId {
    FileId { high: 0, low: n }
}

fn record(n: u64) -> Record {
    let time = Timestamp { secs: n as i64, nanos: 1 };
    let version = FileVersion { size: 2 * CHUNK_BYTES + n, mtime: time, ctime: time, ino: n };
    let chunk = |i: u64| (i != n % 4).then_some([n as u8; 32]);
    Record {
        number: n,
        version,
        path: format!("dir/file {n}").into_bytes(),
        chunks: (0..3).map(chunk).collect(),
    }
}

/// A folder of this process's own.
fn place() -> PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    let place =
        PLACE.get_or_init(|| std::env::temp_dir().join(format!("warmfs-fuzz-store-{}", std::process::id())));
    let _ = std::fs::remove_dir_all(place);
    std::fs::create_dir(place).expect("a RAM disk with room");
    place.clone()
}

const RECORDS: std::ops::Range<u64> = 1..40;

/// An index with records, stopped cleanly: at most a MiB of bytes.
fn image() -> &'static [u8] {
    static IMAGE: OnceLock<Vec<u8>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let path = place().join("i");
        let mut index = Index::open(&Io::default(), &path).expect("a new index").index;
        let changes: Vec<_> = RECORDS.map(|n| (id(n), Change::Put(record(n)))).collect();
        index.commit(changes.iter().map(|(id, c)| (*id, c))).expect("a commit");
        index.close(&RECORDS.map(id).collect::<Vec<_>>(), true).expect("a clean stop");
        drop(index);
        std::fs::read(&path).expect("an index")
    })
}

/// An index with bytes changed or cut: right records or none, and it can be written to and opened again.
fn edited_index(data: &[u8]) {
    let mut bytes = image().to_vec();
    for edit in data.chunks_exact(5).take(16) {
        // Half of the offsets are in the first pages, where the structure is.
        let at = u32::from_le_bytes([edit[0], edit[1], edit[2], 0]) as usize;
        let at = if edit[3] & 1 == 0 { at % 8192 } else { at };
        let at = at % bytes.len().max(1);
        match edit[3] >> 1 {
            127 => bytes.truncate(at),
            126 => bytes.extend(std::iter::repeat_n(edit[4], at)),
            125 => bytes[at..].iter_mut().take(64).for_each(|b| *b = edit[4]),
            _ if at < bytes.len() => bytes[at] ^= edit[4],
            _ => {}
        }
    }
    let dir = place();
    let path = dir.join("i");
    std::fs::write(&path, &bytes).expect("a RAM disk with room");
    let Ok(mut loaded) = Index::open(&Io::default(), &path) else { return };
    loaded.records.iter().for_each(|(id, r)| assert_eq!(*r, record(id.low), "a record that nobody wrote"));
    let put = Change::Put(record(99));
    if loaded.index.commit([(id(99), &put)].into_iter()).is_ok() {
        let _ = loaded.index.close(&[id(99)], true);
    }
    drop(loaded);
    let Ok(again) = Index::open(&Io::default(), &path) else { return };
    again.records.iter().for_each(|(id, r)| assert_eq!(*r, record(id.low), "a record that nobody wrote"));
    drop(again);
    let _ = std::fs::remove_dir_all(dir);
}

/// Anything in place of the directory's small files and folders: it opens or is refused, soon, in one line, and nothing
/// outside is touched.
fn small_files(data: &[u8]) {
    const PLACES: [&str; 5] = ["FORMAT", "LOCK", "ID", "ID/SOURCE", "ID/data"];
    let Some((kinds, content)) = data.split_first_chunk::<5>() else { return };
    let base = place();
    let (cache, outside) = (base.join("cache"), base.join("outside"));
    let source = Path::new("/source/of/files");
    std::fs::create_dir_all(outside.join("data")).expect("a RAM disk with room");
    std::fs::write(outside.join("victim"), "as it was").expect("a RAM disk with room");
    drop(CacheDir::open(&cache, source).expect("a new cache directory"));
    let id = std::fs::read_dir(&cache).expect("a directory").flatten().find(|e| e.path().is_dir());
    let id = id.expect("a folder for the source").file_name().to_string_lossy().into_owned();
    for (name, kind) in PLACES.iter().zip(kinds) {
        plant(&cache.join(name.replacen("ID", &id, 1)), *kind, content, &outside);
    }
    if let Err(e) = CacheDir::open(&cache, source) {
        let text = e.to_string();
        assert!(!text.contains('\n') && text.len() < 4096, "not one line: {text:?}");
    }
    let victim = std::fs::read(outside.join("victim")).expect("the victim");
    assert_eq!(victim, b"as it was", "written through a link");
    let names: usize = std::fs::read_dir(&outside).expect("outside").count();
    assert_eq!(names, 2, "made outside");
    let _ = std::fs::remove_dir_all(base);
}

fn plant(path: &Path, kind: u8, content: &[u8], outside: &Path) {
    if kind % 8 < 2 || !path.parent().is_some_and(|p| p.is_dir() && !p.is_symlink()) {
        return;
    }
    let _ = std::fs::remove_file(path).or_else(|_| std::fs::remove_dir_all(path));
    let planted = match kind % 8 {
        2 => std::fs::write(path, content),
        3 => std::fs::create_dir(path),
        4 => symlink(outside.join("victim"), path),
        5 => symlink(outside, path),
        6 => {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0)
                .map_err(Into::into)
        }
        _ => return,
    };
    planted.expect("planted");
}
