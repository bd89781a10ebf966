//! The control protocol: lines cut from a stream, requests, replies, paths. Whatever comes, nothing panics, an error is
//! one short line, what is understood is understood the same again, and no path leaves the mount.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path};
use warmfs::control::{Lines, Next, RelPath, Reply, parse_request};

/// Longer than any message of ours needs to be, whatever it quotes.
const ERROR_BYTES_MAX: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => request(data),
        1 => lines(data),
        2 => reply(data),
        _ => path(data),
    }
});

fn request(line: &[u8]) {
    match parse_request(line) {
        Ok(request) => {
            request.paths().unwrap_or_default().iter().for_each(|path| stays_below(path.as_path()));
            assert_eq!(parse_request(&request.to_line()).as_ref(), Ok(&request));
        }
        Err(error) => {
            let line = Reply::Error(error).to_line();
            assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
            assert!(line.len() <= ERROR_BYTES_MAX, "an error of {} bytes", line.len());
        }
    }
}

fn stays_below(path: &Path) {
    assert!(path.components().all(|c| matches!(c, Component::Normal(_))), "{path:?}");
    assert!(!path.as_os_str().as_bytes().contains(&0));
}

/// The same lines come out that splitting the whole gives, wherever the writer paused.
fn lines(data: &[u8]) {
    let Some((&[limit, first], data)) = data.split_first_chunk() else { return };
    let (limit, data) = (usize::from(limit) + 1, &data[..data.len().min(32 << 10)]);
    let (mut near, far) = UnixStream::pair().expect("a socket pair");
    let mut lines = Lines::new(far, limit);
    let mut expected = data.split(|b| *b == b'\n').collect::<Vec<_>>();
    let half_line = expected.pop().unwrap_or_default();
    let (early, late) = data.split_at(usize::from(first).min(data.len()));
    near.write_all(early).expect("the buffer holds it");
    let complete = early.iter().filter(|b| **b == b'\n').count();
    for (n, line) in expected.into_iter().enumerate() {
        if n == complete {
            near.write_all(late).expect("the buffer holds it");
        }
        let next = lines.next(None).expect("a line");
        if line.len() >= limit {
            return assert_eq!(next, Next::TooLong);
        }
        assert_eq!(next, Next::Line(line.to_vec()));
    }
    if complete == data.iter().filter(|b| **b == b'\n').count() {
        near.write_all(late).expect("the buffer holds it");
    }
    drop(near);
    let end = lines.next(None).expect("an end");
    assert_eq!(end, if half_line.len() >= limit { Next::TooLong } else { Next::End });
}

/// As the client reads it.
fn reply(line: &[u8]) {
    let Ok(reply) = serde_json::from_slice::<Reply>(line) else { return };
    let line = reply.to_line();
    assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
    let again: Reply = serde_json::from_slice(&line).expect("what was understood is understood again");
    // Numbers may lose their last digit.
    if let Reply::Error(_) = reply {
        assert_eq!(again, reply);
    }
}

fn path(bytes: &[u8]) {
    match RelPath::new(Path::new(OsStr::from_bytes(bytes))) {
        Ok(path) => {
            stays_below(path.as_path());
            assert_eq!(RelPath::new(path.as_path()).as_ref(), Ok(&path));
        }
        Err(why) => assert!(!why.contains('\n') && why.len() <= ERROR_BYTES_MAX),
    }
}
