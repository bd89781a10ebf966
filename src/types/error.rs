//! The one error of the library: what was done, to what, and the errno, which survives every layer of context.
//!
//! The kind says what the caller can do about it; the errno is data from the system call to the reply and is never
//! rebuilt from text. Faults of the SSD do not become an error for a reader: the cache turns them into a bypass. So
//! an `Error` that reaches the kernel's door is the source's own, or a stale version.

use std::fmt;

/// Result with the library's error.
pub type Result<T> = std::result::Result<T, Error>;

/// What the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The source says that it does not exist.
    NotFound,
    /// The source changed under a handle: open again.
    Stale,
    /// A path would leave the source's root.
    Escapes,
    /// The SSD has no space, or the budget is spent by files in use.
    NoSpace,
    /// Bytes on the SSD are not what was written.
    Corrupt,
    /// Another daemon holds it.
    Busy,
    /// The caller asked for something that makes no sense; the message names the remedy.
    Invalid,
    /// The source did not answer in time.
    TimedOut,
    /// Any other answer of the operating system.
    Io,
}

/// An operation that failed. Cheap to clone, because all waiters of one flight get the same.
#[derive(Clone)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    op: &'static str,
    subject: String,
    errno: Option<i32>,
}

impl Error {
    /// An error without an errno of its own: `op` failed on `subject`.
    pub fn new(kind: ErrorKind, op: &'static str, subject: impl Into<String>) -> Self {
        Self { inner: Box::new(Inner { kind, op, subject: subject.into(), errno: None }) }
    }

    /// An error of the operating system; the kind follows from the errno.
    pub fn os(op: &'static str, subject: impl Into<String>, errno: i32) -> Self {
        let kind = match errno {
            ENOENT | ENOTDIR => ErrorKind::NotFound,
            ESTALE => ErrorKind::Stale,
            EXDEV => ErrorKind::Escapes,
            ENOSPC | EDQUOT => ErrorKind::NoSpace,
            ETIMEDOUT => ErrorKind::TimedOut,
            _ => ErrorKind::Io,
        };
        Self { inner: Box::new(Inner { kind, op, subject: subject.into(), errno: Some(errno) }) }
    }

    /// From a standard I/O error, keeping its errno.
    pub fn io(op: &'static str, subject: impl Into<String>, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Self::os(op, subject, errno),
            None => Self::new(ErrorKind::Io, op, format!("{}: {error}", subject.into())),
        }
    }

    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// The operating system's errno, where there was one.
    pub fn errno(&self) -> Option<i32> {
        self.inner.errno
    }

    /// The operation that failed.
    pub fn op(&self) -> &'static str {
        self.inner.op
    }
}

// The few numbers that decide a kind. The ground floor does not know the system's headers; Linux's are stable.
const ENOENT: i32 = 2;
const EXDEV: i32 = 18;
const ENOTDIR: i32 = 20;
const ENOSPC: i32 = 28;
const ETIMEDOUT: i32 = 110;
const ESTALE: i32 = 116;
const EDQUOT: i32 = 122;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.inner.op.is_empty() {
            write!(f, "{}", self.inner.subject)?;
        } else {
            write!(f, "{} {}", self.inner.op, self.inner.subject)?;
        }
        match self.inner.errno {
            Some(errno) => write!(f, ": {}", std::io::Error::from_raw_os_error(errno)),
            None if self.inner.op.is_empty() => Ok(()),
            None => write!(f, ": {:?}", self.inner.kind),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.inner.kind)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_survives_and_names_itself() {
        let e = Error::os("open", "a/b", 5);
        assert_eq!(e.errno(), Some(5));
        assert_eq!(e.kind(), ErrorKind::Io);
        assert!(e.to_string().starts_with("open a/b: Input/output error"), "{e}");
    }

    #[test]
    fn kinds_follow_from_errno() {
        for (errno, kind) in [
            (2, ErrorKind::NotFound),
            (20, ErrorKind::NotFound),
            (116, ErrorKind::Stale),
            (28, ErrorKind::NoSpace),
            (122, ErrorKind::NoSpace),
            (110, ErrorKind::TimedOut),
            (13, ErrorKind::Io),
        ] {
            assert_eq!(Error::os("x", "y", errno).kind(), kind, "{errno}");
        }
    }
}
