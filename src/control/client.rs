//! The command line's end of the control socket, and how a path leads to the daemon that serves it.
//!
//! A user names a file, not a daemon: the xattr `user.warmfs.control` says where that daemon listens, and the mount
//! table says what the file is called below the mount's root. Every error names the thing and the remedy.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use serde_json::Value;

use super::line::{Lines, Next};
use super::protocol::{ControlError, ControlErrorKind, REQUEST_BYTES_MAX, Reply, Request};
use crate::types::PathText;

/// The xattr by which every path of a mount names its daemon's socket.
const CONTROL_XATTR: &str = "user.warmfs.control";

/// How long a request may take to be accepted by the daemon, and a quick one to be answered. A daemon that is alive
/// does so in microseconds.
const QUICK: Duration = Duration::from_secs(30);

/// Longest line of an answer in bytes. The daemon is trusted; this only keeps a wrong socket from filling memory.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Why a call failed, ready to be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The path lies on another file system.
    #[error("{0} is not on a warmfs mount: `warmfs mount SOURCE MOUNTPOINT` makes one")]
    NotOnMount(String),
    /// Nobody listens at the socket.
    #[error("no warmfs daemon listens at {socket}: it has stopped, mount again with `warmfs mount`")]
    NotMounted {
        /// The socket's path as text.
        socket: String,
    },
    /// The mount is there, its daemon is not.
    #[error("the daemon of the mount at {0} has died: `warmfs umount` it, then mount again")]
    Dead(String),
    /// The file modes or the daemon refuse this user.
    #[error("{0}: use the user who mounted, or root")]
    NotPermitted(String),
    /// All connections of the daemon are taken.
    #[error("the daemon at {socket} is busy with other control connections: try again in a moment")]
    Busy {
        /// The socket's path as text.
        socket: String,
    },
    /// The daemon does not answer.
    #[error(
        "the daemon at {socket} did not answer `{verb}` within {QUICK:?}: see its log, or `warmfs umount`"
    )]
    TimedOut {
        /// The socket's path as text.
        socket: String,
        /// What it was asked.
        verb: &'static str,
    },
    /// The daemon ended before the answer.
    #[error("the daemon at {socket} closed the connection before it answered `{verb}`: see its log")]
    Closed {
        /// The socket's path as text.
        socket: String,
        /// What it was asked.
        verb: &'static str,
    },
    /// A request that the daemon would refuse for its length.
    #[error(
        "the request is {bytes} bytes, at most {REQUEST_BYTES_MAX} are allowed: name fewer paths at a time"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// What came back is not an answer.
    #[error("{socket} does not answer like a warmfs daemon: {problem}")]
    NotUnderstood {
        /// The socket's path as text.
        socket: String,
        /// What was wrong.
        problem: String,
    },
    /// The daemon's own refusal or failure.
    #[error(transparent)]
    Refused(#[from] ControlError),
    /// The operating system's error.
    #[error("{op} {subject}: {error}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// On what.
        subject: String,
        /// What the system said.
        #[source]
        error: io::Error,
    },
}

/// A connection to a daemon. Dropping it in the middle of a call cancels the call.
pub struct Client {
    lines: Lines,
    socket: String,
}

impl Client {
    /// Connects to the socket of a daemon, as [`find_mount`] or the cache directory gives it.
    pub fn connect(socket: &Path) -> Result<Self, ClientError> {
        let text = PathText(socket).to_string();
        let stream =
            connect(socket).map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED) => {
                    ClientError::NotMounted { socket: text.clone() }
                }
                Some(Errno::ACCESS | Errno::PERM) => {
                    ClientError::NotPermitted(format!("no permission to connect to {text}"))
                }
                _ => ClientError::Io { op: "connect to", subject: text.clone(), error },
            })?;
        Ok(Self { lines: Lines::new(stream, REPLY_BYTES_MAX), socket: text })
    }

    /// Sends a request, passes on the progress, returns the answer. Verbs that walk trees may take as long as they
    /// take; the others answer within 30 s or fail.
    pub fn call(
        &mut self,
        request: &Request,
        mut on_progress: impl FnMut(Value),
    ) -> Result<Value, ClientError> {
        let verb = request.verb();
        let line = request.to_line();
        if line.len() > REQUEST_BYTES_MAX {
            return Err(ClientError::TooLong { bytes: line.len() });
        }
        let deadline = Instant::now() + QUICK;
        if let Err(error) = self.lines.send(&line, deadline) {
            match error.kind() {
                // Refused and closed before we had written: the reason waits to be read.
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {}
                io::ErrorKind::TimedOut => return Err(self.timed_out(verb)),
                _ => return Err(ClientError::Io { op: "write to", subject: self.socket.clone(), error }),
            }
        }
        loop {
            match self.reply(verb, request.is_quick().then_some(deadline))? {
                Reply::Progress(value) => on_progress(value),
                Reply::Ok(value) => return Ok(value),
                Reply::Error(error) => return Err(self.refused(error)),
            }
        }
    }

    /// What ends this connection from another thread: a call that is under way then fails, and the daemon hears of it.
    pub fn hang_up(&self) -> io::Result<impl FnOnce() + Send + 'static> {
        let twin = self.lines.stream().try_clone()?;
        // Fails only where it has ended already.
        Ok(move || drop(twin.shutdown(std::net::Shutdown::Both)))
    }

    /// The daemon's process, as a descriptor that polls readable once it has ended; none where this process cannot
    /// see it.
    pub fn daemon(&self) -> Option<OwnedFd> {
        let peer = rustix::net::sockopt::socket_peercred(self.lines.stream()).ok()?;
        rustix::process::pidfd_open(peer.pid, rustix::process::PidfdFlags::empty()).ok()
    }

    fn reply(&mut self, verb: &'static str, deadline: Option<Instant>) -> Result<Reply, ClientError> {
        let problem = match self.lines.next(deadline) {
            Ok(Next::Line(line)) => match serde_json::from_slice(&line) {
                Ok(reply) => return Ok(reply),
                Err(e) => e.to_string(),
            },
            Ok(Next::End) => return Err(ClientError::Closed { socket: self.socket.clone(), verb }),
            Ok(Next::TimedOut) => return Err(self.timed_out(verb)),
            Ok(Next::TooLong) => format!("a line of more than {REPLY_BYTES_MAX} bytes"),
            Err(error) => {
                return Err(ClientError::Io { op: "read from", subject: self.socket.clone(), error });
            }
        };
        Err(ClientError::NotUnderstood { socket: self.socket.clone(), problem })
    }

    fn timed_out(&self, verb: &'static str) -> ClientError {
        ClientError::TimedOut { socket: self.socket.clone(), verb }
    }

    fn refused(&self, error: ControlError) -> ClientError {
        match error.kind {
            ControlErrorKind::Busy => ClientError::Busy { socket: self.socket.clone() },
            ControlErrorKind::NotPermitted => ClientError::NotPermitted(error.message),
            _ => ClientError::Refused(error),
        }
    }
}

/// Connects by the directory's descriptor: a socket address holds 108 bytes, a path may be longer.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let name = socket.file_name().ok_or(io::ErrorKind::NotFound)?;
    let parent = socket.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let dir: OwnedFd = rustix::fs::open(parent, flags, rustix::fs::Mode::empty())?;
    UnixStream::connect(short_path(dir.as_raw_fd(), name))
}

/// `name` in the directory that `dir` is, in a few bytes.
pub(super) fn short_path(dir: RawFd, name: &OsStr) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{dir}")).join(name)
}

/// Where a path is, in a daemon's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The daemon's control socket.
    pub socket: PathBuf,
    /// The path below the root of what is mounted; empty for the root.
    pub relative: PathBuf,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
}

/// Finds the daemon that serves `path`. A link is taken as itself where it lies on a mount, and followed where it
/// only leads to one.
pub fn find_mount(path: &Path) -> Result<Mounted, ClientError> {
    let io = |op, error| io_error(op, path, error);
    let (dir, name) = resolve(path).map_err(|e| io("resolve", e))?;
    let socket = match control_socket(path, &dir) {
        Err(ClientError::NotOnMount(_)) if name.is_some() && path.is_symlink() => {
            return find_mount(&path.canonicalize().map_err(|e| io("resolve", e))?);
        }
        other => other?,
    };
    let dev = dir.metadata().map_err(|e| io("stat", e))?.dev();
    let table = std::fs::read("/proc/self/mountinfo").map_err(|e| io("look up the mount of", e))?;
    let (mountpoint, below) = mount_of(&table, (rustix::fs::major(dev), rustix::fs::minor(dev)), &dir)
        .ok_or_else(|| ClientError::NotOnMount(PathText(path).to_string()))?;
    let relative = name.map_or(below.clone(), |name| below.join(name));
    Ok(Mounted { socket, relative, mountpoint })
}

/// The canonical directory, and the last component where that is no directory: names of files are asked of their
/// directory, because a link has no user xattrs and a file may be unreadable.
fn resolve(path: &Path) -> io::Result<(PathBuf, Option<OsString>)> {
    if path.symlink_metadata()?.is_dir() {
        return Ok((path.canonicalize()?, None));
    }
    let name = path.file_name().ok_or(io::ErrorKind::NotFound)?.to_owned();
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((parent.canonicalize()?, Some(name)))
}

fn control_socket(path: &Path, dir: &Path) -> Result<PathBuf, ClientError> {
    // An xattr of more than PATH_MAX is no path.
    let mut value = Vec::with_capacity(4096);
    match rustix::fs::lgetxattr(dir, CONTROL_XATTR, spare_capacity(&mut value)) {
        Ok(0) | Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS | Errno::RANGE) => {
            Err(ClientError::NotOnMount(PathText(path).to_string()))
        }
        Ok(_) => Ok(PathBuf::from(OsString::from_vec(value))),
        Err(Errno::ACCESS | Errno::PERM) => {
            Err(ClientError::NotPermitted(format!("no permission to read {}", PathText(dir))))
        }
        Err(Errno::NOTCONN | Errno::CONNABORTED) => Err(ClientError::Dead(PathText(path).to_string())),
        Err(e) => Err(io_error("read the xattr user.warmfs.control of", dir, e.into())),
    }
}

fn io_error(op: &'static str, path: &Path, error: io::Error) -> ClientError {
    match Errno::from_io_error(&error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            ClientError::NotPermitted(format!("no permission to {op} {}", PathText(path)))
        }
        // A FUSE mount whose daemon died.
        Some(Errno::NOTCONN | Errno::CONNABORTED) => ClientError::Dead(PathText(path).to_string()),
        _ => ClientError::Io { op, subject: PathText(path).to_string(), error },
    }
}

/// The FUSE mount of device `dev` under which the canonical `dir` lies, and what `dir` is called below the *root of
/// the file system*, which for a bind mount of a subtree is not the mountpoint. Only FUSE counts: on any other file
/// system the xattr is a user's own invention.
fn mount_of(table: &[u8], dev: (u32, u32), dir: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut best: Option<(PathBuf, PathBuf)> = None;
    for entry in table.split(|b| *b == b'\n').filter_map(MountEntry::parse) {
        let Ok(rest) = dir.strip_prefix(&entry.mountpoint) else { continue };
        if entry.dev != dev || !entry.fs_type.starts_with(b"fuse") {
            continue;
        }
        // Later lines were mounted later and cover earlier ones at the same place.
        if best.as_ref().is_none_or(|(b, _)| entry.mountpoint.as_os_str().len() >= b.as_os_str().len()) {
            let root = entry.root.strip_prefix("/").unwrap_or(&entry.root);
            best = Some((entry.mountpoint.clone(), root.components().chain(rest.components()).collect()));
        }
    }
    best
}

/// The fields of a line of `/proc/self/mountinfo` that are needed here.
struct MountEntry<'a> {
    dev: (u32, u32),
    root: PathBuf,
    mountpoint: PathBuf,
    fs_type: &'a [u8],
}

impl<'a> MountEntry<'a> {
    /// `36 35 98:0 /root /mountpoint options [tags…] - type source super-options`
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|b| *b == b' ');
        let dev = std::str::from_utf8(fields.nth(2)?).ok()?;
        let (major, minor) = dev.split_once(':')?;
        let root = unescape_octal(fields.next()?);
        let mountpoint = unescape_octal(fields.next()?);
        let fs_type = fields.skip_while(|f| *f != b"-").nth(1)?;
        Some(Self { dev: (major.parse().ok()?, minor.parse().ok()?), root, mountpoint, fs_type })
    }
}

/// The kernel writes space, tab, newline and backslash as `\ooo`.
fn unescape_octal(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        rest = tail;
        match tail {
            [x @ b'0'..=b'3', y @ b'0'..=b'7', z @ b'0'..=b'7', after @ ..] if b == b'\\' => {
                bytes.push((x - b'0') << 6 | (y - b'0') << 3 | (z - b'0'));
                rest = after;
            }
            _ => bytes.push(b),
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    const TABLE: &[u8] = b"\
22 27 0:21 / /proc rw,relatime - proc proc rw
30 27 0:50 / /mnt/my\\040data ro,nosuid shared:3 master:1 - fuse.warmfs /srv ro,user_id=0
31 27 0:50 /train /mnt/train ro - fuse.warmfs /srv ro
32 30 0:50 /a\\134b /mnt/my\\040data/deep ro - fuse.warmfs /srv ro
33 27 8:1 / / rw - ext4 /dev/sda1 rw
garbage
34 27 x:y / /z rw - fuse none rw
";

    fn found(dev: (u32, u32), dir: &str) -> Option<(String, String)> {
        let (mountpoint, below) = mount_of(TABLE, dev, Path::new(dir))?;
        Some((mountpoint.to_str()?.to_owned(), below.to_str()?.to_owned()))
    }

    fn pair(a: &str, b: &str) -> Option<(String, String)> {
        Some((a.to_owned(), b.to_owned()))
    }

    #[test]
    fn a_path_finds_its_mount_and_its_name_below() {
        assert_eq!(found((0, 50), "/mnt/my data"), pair("/mnt/my data", ""));
        assert_eq!(found((0, 50), "/mnt/my data/x/y"), pair("/mnt/my data", "x/y"));
        assert_eq!(found((0, 50), "/mnt/train/x"), pair("/mnt/train", "train/x"));
        assert_eq!(found((0, 50), "/mnt/my data/deep/x"), pair("/mnt/my data/deep", "a\\b/x"));
    }

    #[test]
    fn other_file_systems_and_devices_are_not_ours() {
        assert_eq!(found((8, 1), "/home"), None);
        assert_eq!(found((0, 51), "/mnt/train"), None);
        assert_eq!(found((0, 50), "/mnt/trainer"), None);
    }

    #[test]
    fn the_real_mount_table_parses() {
        let table = std::fs::read("/proc/self/mountinfo").unwrap();
        let lines = table.split(|b| *b == b'\n').filter(|l| !l.is_empty());
        assert!(lines.clone().count() > 0);
        assert!(lines.into_iter().all(|l| MountEntry::parse(l).is_some()));
    }

    #[test]
    fn a_plain_directory_is_not_on_a_mount() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, "").unwrap();
        let link = dir.path().join("l");
        std::os::unix::fs::symlink("f", &link).unwrap();
        for path in [dir.path(), &file, &link] {
            let error = find_mount(path).unwrap_err();
            assert!(matches!(error, ClientError::NotOnMount(_)), "{error:?}");
            assert!(error.to_string().contains("is not on a warmfs mount"), "{error}");
        }
        assert!(matches!(find_mount(&dir.path().join("none")), Err(ClientError::Io { .. })));
    }

    #[test]
    fn an_xattr_on_an_ordinary_file_system_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(dir.path(), CONTROL_XATTR, b"/tmp/evil.sock", flags).is_err() {
            return eprintln!("skipped: no user xattrs in the temporary directory");
        }
        assert!(matches!(find_mount(dir.path()), Err(ClientError::NotOnMount(_))));
    }

    #[test]
    fn nobody_there_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("control.sock");
        assert!(matches!(Client::connect(&socket), Err(ClientError::NotMounted { .. })));
        drop(UnixListener::bind(&socket).unwrap());
        assert!(matches!(Client::connect(&socket), Err(ClientError::NotMounted { .. })));
        assert!(matches!(Client::connect(&dir.path().join("a/b")), Err(ClientError::NotMounted { .. })));
    }

    /// Answers one connection with `reply` and closes.
    fn fake_daemon(reply: &'static [u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            if stream.read(&mut [0; 1000]).is_ok_and(|n| n > 0) {
                stream.write_all(reply).unwrap();
            }
        });
        (dir, socket)
    }

    #[test]
    fn answers_that_are_none_are_errors() {
        let (_dir, socket) = fake_daemon(b"SSH-2.0-x\n");
        let error = Client::connect(&socket).unwrap().call(&Request::Stats {}, |_| {}).unwrap_err();
        assert!(matches!(error, ClientError::NotUnderstood { .. }), "{error:?}");
        let (_dir, socket) = fake_daemon(b"{\"progress\":1}\n{\"ok\":");
        let mut seen = 0;
        let error = Client::connect(&socket).unwrap().call(&Request::Stats {}, |_| seen += 1).unwrap_err();
        assert!(matches!(error, ClientError::Closed { .. }), "{error:?}");
        assert_eq!(seen, 1);
    }

    #[test]
    fn a_request_that_would_be_refused_is_not_sent() {
        let (_dir, socket) = fake_daemon(b"");
        let name = "x".repeat(250);
        let path = super::super::protocol::RelPath::new(Path::new(&name)).unwrap();
        let request = Request::Evict { paths: vec![path; 5000] };
        let error = Client::connect(&socket).unwrap().call(&request, |_| {}).unwrap_err();
        assert!(matches!(error, ClientError::TooLong { .. }), "{error:?}");
    }
}
