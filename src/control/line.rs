//! Lines over a unix stream, bounded in length and in time; both ends of the control socket read and write by it.
//!
//! The standard library's `BufRead::read_line` has neither bound, and its timeouts are per system call: a peer that
//! drips one byte at a time would hold a thread for ever. Here the deadline is that of the whole line.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// One read(2), in bytes. Requests are a few hundred bytes; lists of paths come in 16 reads.
const READ_BYTES: usize = 64 << 10;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// One line without its newline.
    Line(Vec<u8>),
    /// The peer is done; half a line at the end is dropped.
    End,
    /// The line is longer than allowed; the stream is out of step and can only be closed.
    TooLong,
    /// The deadline passed before the newline came.
    TimedOut,
}

/// A stream cut into lines.
pub struct Lines {
    stream: UnixStream,
    /// What was read and not yet returned.
    buffer: Vec<u8>,
    /// How much of `buffer` is known to hold no newline, so that a long line is searched once.
    searched: usize,
    bytes_max: usize,
}

impl Lines {
    /// Lines of at most `bytes_max` bytes, the newline included.
    pub fn new(stream: UnixStream, bytes_max: usize) -> Self {
        Self { stream, buffer: Vec::new(), searched: 0, bytes_max }
    }

    /// The stream itself.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The next line, complete at `deadline`.
    pub fn next(&mut self, deadline: Option<Instant>) -> io::Result<Next> {
        loop {
            if let Some(length) = self.buffer[self.searched..].iter().position(|b| *b == b'\n') {
                return Ok(self.take_line(self.searched + length));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() >= self.bytes_max {
                return Ok(Next::TooLong);
            }
            let Some(timeout) = remaining(deadline) else { return Ok(Next::TimedOut) };
            self.stream.set_read_timeout(timeout)?;
            match self.read_more() {
                Ok(0) => return Ok(Next::End),
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(Next::End),
                Err(e) => return Err(e),
            }
        }
    }

    /// Writes a whole line, or fails at the deadline, however slowly the peer reads.
    pub fn send(&self, mut line: &[u8], deadline: Instant) -> io::Result<()> {
        let mut stream = &self.stream;
        while !line.is_empty() {
            let timeout = remaining(Some(deadline)).ok_or(ErrorKind::TimedOut)?;
            stream.set_write_timeout(timeout)?;
            match stream.write(line) {
                Ok(n) => line = &line[n..],
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn take_line(&mut self, length: usize) -> Next {
        if length >= self.bytes_max {
            return Next::TooLong;
        }
        let rest = self.buffer.split_off(length + 1);
        let mut line = std::mem::replace(&mut self.buffer, rest);
        line.truncate(length);
        self.searched = 0;
        Next::Line(line)
    }

    fn read_more(&mut self) -> io::Result<usize> {
        let start = self.buffer.len();
        self.buffer.resize(start + READ_BYTES, 0);
        let result = self.stream.read(&mut self.buffer[start..]);
        self.buffer.truncate(start + *result.as_ref().unwrap_or(&0));
        result
    }
}

/// The time left as a socket timeout: `Some(None)` for no deadline, `None` when it has passed. Never zero, which
/// would mean "no timeout".
fn remaining(deadline: Option<Instant>) -> Option<Option<Duration>> {
    let Some(deadline) = deadline else { return Some(None) };
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then_some(Some(left.max(Duration::from_millis(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(bytes_max: usize) -> (UnixStream, Lines) {
        let (near, far) = UnixStream::pair().unwrap();
        (near, Lines::new(far, bytes_max))
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(50))
    }

    #[test]
    fn lines_come_one_by_one_and_a_half_one_is_dropped() {
        let (mut near, mut lines) = pair(100);
        near.write_all(b"one\n\ntwo\nhal").unwrap();
        drop(near);
        assert_eq!(lines.next(None).unwrap(), Next::Line(b"one".to_vec()));
        assert_eq!(lines.next(None).unwrap(), Next::Line(Vec::new()));
        assert_eq!(lines.next(None).unwrap(), Next::Line(b"two".to_vec()));
        assert_eq!(lines.next(None).unwrap(), Next::End);
    }

    #[test]
    fn the_limit_counts_the_newline() {
        let (mut near, mut lines) = pair(4);
        near.write_all(b"abc\nabcd\n").unwrap();
        assert_eq!(lines.next(soon()).unwrap(), Next::Line(b"abc".to_vec()));
        assert_eq!(lines.next(soon()).unwrap(), Next::TooLong);
    }

    #[test]
    fn a_line_without_an_end_is_too_long() {
        let (mut near, mut lines) = pair(4);
        near.write_all(b"abcd").unwrap();
        assert_eq!(lines.next(soon()).unwrap(), Next::TooLong);
    }

    #[test]
    fn a_drip_does_not_move_the_deadline() {
        let (near, mut lines) = pair(1000);
        let dripper = std::thread::spawn(move || {
            for _ in 0..100 {
                if (&near).write_all(b"x").is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let begun = Instant::now();
        assert_eq!(lines.next(soon()).unwrap(), Next::TimedOut);
        assert!(begun.elapsed() < Duration::from_millis(700));
        drop(lines);
        dripper.join().unwrap();
    }

    #[test]
    fn a_reader_that_sleeps_fails_the_send_in_time() {
        let (_near, lines) = pair(1000);
        let error = lines.send(&vec![0; 16 << 20], Instant::now() + Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
