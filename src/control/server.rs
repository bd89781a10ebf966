//! The daemon's end of the control socket: who may connect, how many, for how long, and what happens when they
//! misbehave. What a verb does is the [`Handler`]'s business.
//!
//! One thread accepts, each connection has one; a handful of operators does not need an event loop. The promises:
//! nobody but the daemon's user and root is heard; at most 16 connections live, one more is told so and closed; a
//! request is at most 1 MiB and complete within 30 s, an answer is read within 10 s a line or the connection goes; a
//! panic in a handler is an error for its caller and for nobody else; a socket file that somebody removed is back within
//! 5 s; dropping the [`Server`] ends all of it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{AtFlags, FileType, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, UCred};
use rustix::process::Uid;
use serde_json::Value;

use super::line::{Lines, Next};
use super::protocol::{ControlError, ControlErrorKind, REQUEST_BYTES_MAX, Reply, Request, parse_request};
use crate::types::{Error, ErrorKind, PathText, Result};

/// Name of the socket inside the cache directory.
pub const SOCKET_NAME: &str = "control.sock";

/// Connections that the kernel keeps for us until the accept thread comes round. It only has to bridge one turn of
/// that thread; whoever finds it full waits in connect(2).
const BACKLOG: i32 = 64;

/// How long to leave connections in the backlog when accept(2) fails (no descriptors, say), so that it does not spin.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Between two looks whether the socket file is still there.
const LOOK_INTERVAL: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Does what a request asks. Called from several threads at once.
pub trait Handler: Send + Sync {
    /// Answers one request. `progress` sends one line of progress and says `false` when there is no point in going
    /// on (the caller went away, or the daemon stops): long work calls it at least every second or so, because it is
    /// the only way to hear of that. It may block for the time that a slow reader is given (10 s): hold no lock.
    fn handle(
        &self,
        request: Request,
        progress: &mut dyn FnMut(Value) -> bool,
    ) -> std::result::Result<Value, ControlError>;
}

/// The bounds; tests make them short.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Live connections.
    connections_max: usize,
    /// For a complete request, counted from the last answer.
    request_time: Duration,
    /// For one line of an answer to be taken by the reader.
    send_time: Duration,
    /// How long a drop waits for answers under way.
    stop_time: Duration,
}

const LIMITS: Limits = Limits {
    connections_max: 16,
    request_time: Duration::from_secs(30),
    send_time: Duration::from_secs(10),
    stop_time: Duration::from_secs(2),
};

/// The listening control socket. Dropping it removes the socket file, lets answers under way finish for at most 2 s
/// and cuts the rest off. Not to be dropped from inside a handler, which would wait for itself.
#[derive(Debug)]
pub struct Server {
    dir: Arc<Mutex<OwnedFd>>,
    path: PathBuf,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    handler: Arc<dyn Handler>,
    limits: Limits,
    own_uid: Uid,
    /// How many strangers were sent away.
    refused: AtomicU64,
    stopping: AtomicBool,
    /// The live connections, so that a drop can wake their threads.
    connections: Mutex<HashMap<u64, UnixStream>>,
    /// Signalled when a connection has ended.
    ended: Condvar,
}

impl Server {
    /// Binds [`SOCKET_NAME`] inside `dir`, which the caller owns (0700) and has locked: a socket file that is there
    /// already belonged to a daemon that is dead, and is replaced.
    pub fn start(dir: &Path, handler: Arc<dyn Handler>) -> Result<Self> {
        Self::start_with(dir, handler, LIMITS)
    }

    fn start_with(dir: &Path, handler: Arc<dyn Handler>, limits: Limits) -> Result<Self> {
        let name = |e: &io::Error, op| Error::io(op, PathText(&dir.join(SOCKET_NAME)).to_string(), e);
        let path = dir.canonicalize().map_err(|e| name(&e, "resolve"))?.join(SOCKET_NAME);
        let dir_fd = OwnedFd::from(File::open(dir).map_err(|e| name(&e, "open the directory of"))?);
        remove_stale(&dir_fd, &path)?;
        let listener = bind(&dir_fd).map_err(|e| name(&e, "bind"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| name(&e.into(), "eventfd for"))?;
        let wake = Arc::new(wake);
        let shared = Arc::new(Shared {
            handler,
            limits,
            own_uid: rustix::process::geteuid(),
            refused: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            connections: Mutex::new(HashMap::new()),
            ended: Condvar::new(),
        });
        let dir = Arc::new(Mutex::new(dir_fd));
        let door = Doorway { listener, dir: dir.clone(), path: path.clone() };
        let acceptor = std::thread::Builder::new()
            .name("control".into())
            .spawn({
                let (wake, shared) = (wake.clone(), shared.clone());
                move || accept_loop(door, &wake, &shared)
            })
            .map_err(|e| name(&e, "start a thread for"))?;
        Ok(Self { dir, path, wake, shared, acceptor: Some(acceptor) })
    }

    /// The socket's absolute path: what the xattr `user.warmfs.control` says.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // First the name, so that whoever comes now hears "not mounted" and not a closed connection.
        if let Err(e) = rustix::fs::unlinkat(&*self.dir.lock(), SOCKET_NAME, AtFlags::empty()) {
            tracing::debug!(error = %e, "control socket was already removed");
        }
        self.shared.stopping.store(true, Ordering::Release);
        // An eventfd takes 2^64-2 wake-ups before this could fail.
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        if let Some(acceptor) = self.acceptor.take() {
            // Its panic has been reported on stderr already; nothing is left to undo.
            let _ = acceptor.join();
        }
        self.shared.end_connections();
    }
}

impl Shared {
    /// Idle connections end at once, those that are being answered within `stop_time`; then they are cut off. The
    /// accept thread must be gone, so that none is added.
    fn end_connections(&self) {
        let deadline = Instant::now() + self.limits.stop_time;
        let mut connections = self.connections.lock();
        shut(&connections, std::net::Shutdown::Read);
        while !connections.is_empty() {
            if self.ended.wait_until(&mut connections, deadline).timed_out() {
                tracing::warn!(connections = connections.len(), "control requests are cut off by the stop");
                shut(&connections, std::net::Shutdown::Both);
                return;
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn shut(connections: &HashMap<u64, UnixStream>, how: std::net::Shutdown) {
    for stream in connections.values() {
        // Fails only where the peer has gone already.
        let _ = stream.shutdown(how);
    }
}

/// Removes the socket of a dead daemon. Anything that is not a socket is not ours and stays.
fn remove_stale(dir: &OwnedFd, path: &Path) -> Result<()> {
    let os = |op, e: rustix::io::Errno| Error::os(op, PathText(path).to_string(), e.raw_os_error());
    match rustix::fs::statat(dir, SOCKET_NAME, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(e) => Err(os("stat", e)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Socket => {
            rustix::fs::unlinkat(dir, SOCKET_NAME, AtFlags::empty())
                .map_err(|e| os("remove the stale socket", e))
        }
        Ok(_) => Err(Error::new(
            ErrorKind::Invalid,
            "bind",
            format!("{}: something that is not a socket lies there; remove it", PathText(path)),
        )),
    }
}

/// Binds by the directory's descriptor: a socket address holds 108 bytes, a cache directory's path may be longer.
fn bind(dir: &OwnedFd) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Linux gives the file the socket's own mode (unix_bind), so there is no moment at which it is open to others.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    let address = SocketAddrUnix::new(super::client::short_path(dir.as_raw_fd(), SOCKET_NAME.as_ref()))?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Where connections come in.
struct Doorway {
    listener: UnixListener,
    dir: Arc<Mutex<OwnedFd>>,
    path: PathBuf,
}

impl Doorway {
    /// Binds the socket anew if nothing bears its name any more: somebody removed it, or the directory with it, or moved
    /// the directory away. Only in a directory that is the user's own, and never over something that lies there.
    fn mend(&mut self, own_uid: Uid) {
        let (Some(dir), Err(rustix::io::Errno::NOENT)) =
            (self.path.parent(), rustix::fs::lstat(&self.path).map(drop))
        else {
            return;
        };
        let Ok(dir) = File::open(dir).map(OwnedFd::from) else { return };
        let is_ours = |s: rustix::fs::Stat| s.st_uid == own_uid.as_raw() && s.st_mode & 0o022 == 0;
        if !rustix::fs::fstat(&dir).is_ok_and(is_ours) {
            return;
        }
        match bind(&dir) {
            Ok(listener) => {
                tracing::warn!("the control socket was removed, and is made anew");
                self.listener = listener;
                *self.dir.lock() = dir;
            }
            Err(e) => tracing::debug!(error = %e, "the control socket was removed"),
        }
    }
}

fn accept_loop(mut door: Doorway, wake: &OwnedFd, shared: &Arc<Shared>) {
    let mut serial = 0;
    while !shared.is_stopping() {
        let mut fds = [PollFd::new(&door.listener, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        // Fails only with EINTR: the loop looks again.
        if poll(&mut fds, Some(&LOOK_INTERVAL)) == Ok(0) {
            door.mend(shared.own_uid);
            continue;
        }
        match door.listener.accept() {
            Ok((stream, _)) => {
                serial += 1;
                admit(shared, stream, serial);
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(e) => {
                tracing::warn!(error = %e, "cannot accept control connections for now");
                let _ = poll(&mut [PollFd::new(wake, PollFlags::IN)], Some(&ACCEPT_PAUSE));
            }
        }
    }
}

/// Gives the connection its thread, or its refusal.
fn admit(shared: &Arc<Shared>, stream: UnixStream, serial: u64) {
    if let Err(refusal) = check_peer(&stream, shared.own_uid, &shared.refused) {
        return refuse(stream, refusal);
    }
    let Some(guard) = Connection::register(shared, &stream, serial) else {
        return refuse(stream, busy());
    };
    let spare = stream.try_clone();
    let spawned = std::thread::Builder::new().name("control-conn".into()).spawn(move || {
        serve(&guard.shared, stream);
        drop(guard);
    });
    if let (Err(e), Ok(stream)) = (spawned, spare) {
        tracing::warn!(error = %e, "no thread for a control connection");
        refuse(stream, busy());
    }
}

fn busy() -> ControlError {
    ControlError::new(
        ControlErrorKind::Busy,
        "the daemon has no room for another control connection: try again in a moment",
    )
}

/// One line into the empty buffer of a fresh socket, which cannot block, and close.
fn refuse(stream: UnixStream, refusal: ControlError) {
    let lines = Lines::new(stream, 0);
    if let Err(e) = lines.send(&Reply::Error(refusal).to_line(), Instant::now() + Duration::from_secs(1)) {
        tracing::debug!(error = %e, "a refused control connection had gone already");
    }
}

fn check_peer(
    stream: &UnixStream,
    own_uid: Uid,
    refused: &AtomicU64,
) -> std::result::Result<(), ControlError> {
    let denied = |message: String| ControlError::new(ControlErrorKind::NotPermitted, message);
    let peer = rustix::net::sockopt::socket_peercred(stream.as_fd())
        .map_err(|e| denied(format!("the kernel does not say who connects: {e}")))?;
    if peer_allowed(peer, own_uid) {
        return Ok(());
    }
    // Whoever knocks all the time must not fill the log.
    let times = refused.fetch_add(1, Ordering::Relaxed) + 1;
    if times.is_power_of_two() {
        let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get());
        tracing::warn!(uid, pid, times, "control connection refused");
    }
    Err(denied(format!(
        "user {} may not control this daemon: run it as user {} or as root",
        peer.uid.as_raw(),
        own_uid.as_raw()
    )))
}

/// The daemon's own user and root. Group and process say nothing about authority.
fn peer_allowed(peer: UCred, own_uid: Uid) -> bool {
    peer.uid == own_uid || peer.uid == Uid::ROOT
}

/// A live connection's place in the table; given back when its thread ends, however it ends.
struct Connection {
    shared: Arc<Shared>,
    serial: u64,
}

impl Connection {
    /// `None` when all places are taken (or no descriptor is left for the stream's twin).
    fn register(shared: &Arc<Shared>, stream: &UnixStream, serial: u64) -> Option<Self> {
        let twin = stream.try_clone().ok()?;
        let mut connections = shared.connections.lock();
        if connections.len() >= shared.limits.connections_max {
            return None;
        }
        connections.insert(serial, twin);
        Some(Self { shared: shared.clone(), serial })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.connections.lock().remove(&self.serial);
        self.shared.ended.notify_all();
    }
}

fn serve(shared: &Shared, stream: UnixStream) {
    let mut lines = Lines::new(stream, REQUEST_BYTES_MAX);
    while !shared.is_stopping() {
        let farewell = match lines.next(Some(Instant::now() + shared.limits.request_time)) {
            Ok(Next::Line(line)) if answer(shared, &lines, &line) => continue,
            Ok(Next::Line(_) | Next::End) => return,
            Ok(Next::TooLong) => ControlError::new(
                ControlErrorKind::TooLong,
                format!("a request is at most {REQUEST_BYTES_MAX} bytes: send long lists of paths in parts"),
            ),
            Ok(Next::TimedOut) => ControlError::new(
                ControlErrorKind::TimedOut,
                format!("no complete request within {:?}: connect again", shared.limits.request_time),
            ),
            Err(e) => return tracing::debug!(error = %e, "control connection failed"),
        };
        let _ = send(shared, &lines, &Reply::Error(farewell));
        return;
    }
}

/// Answers one line; `false` when the caller is gone.
fn answer(shared: &Shared, lines: &Lines, line: &[u8]) -> bool {
    let request = match parse_request(line) {
        Ok(request) => request,
        Err(error) => return send(shared, lines, &Reply::Error(error)),
    };
    let mut gone = false;
    let mut progress = |value| {
        gone = gone || !send(shared, lines, &Reply::Progress(value));
        !gone && !shared.is_stopping()
    };
    let reply = match run(shared, request, &mut progress) {
        Ok(value) => Reply::Ok(value),
        Err(error) => Reply::Error(error),
    };
    !gone && send(shared, lines, &reply)
}

/// The handler behind a wall: its panic becomes an error of this one request.
fn run(
    shared: &Shared,
    request: Request,
    progress: &mut dyn FnMut(Value) -> bool,
) -> std::result::Result<Value, ControlError> {
    let verb = request.verb();
    tracing::debug!(verb, "control request");
    // Unwind safe: `progress` holds one flag and a stream of whole lines, and the handler is shared between threads
    // already, so that its locks, not this wall, keep it whole.
    catch_unwind(AssertUnwindSafe(|| shared.handler.handle(request, progress))).unwrap_or_else(|_| {
        tracing::error!(verb, "a control handler panicked");
        Err(ControlError::new(
            ControlErrorKind::Bug,
            format!("`{verb}` hit a bug in the daemon; the mount goes on, its log has the details"),
        ))
    })
}

/// Sends one reply; `false` when the caller is gone or too slow.
fn send(shared: &Shared, lines: &Lines, reply: &Reply) -> bool {
    match lines.send(&reply.to_line(), Instant::now() + shared.limits.send_time) {
        Ok(()) => true,
        Err(e) => {
            tracing::debug!(error = %e, "control reply not taken");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::{Client, ClientError};
    use super::super::protocol::{RelPath, WarmRequest};
    use super::*;
    use serde_json::json;
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::PermissionsExt;

    /// Does each thing that a handler may do, by the first path's name.
    #[derive(Default)]
    struct Toy {
        steps: AtomicU64,
        cancelled: AtomicBool,
    }

    impl Handler for Toy {
        fn handle(
            &self,
            request: Request,
            progress: &mut dyn FnMut(Value) -> bool,
        ) -> std::result::Result<Value, ControlError> {
            match request {
                Request::Stats {} => Ok(json!({"opens": 3})),
                Request::Info {} => panic!("on purpose"),
                Request::Warm(_) | Request::WarmList { .. } | Request::WarmStop {} => {
                    for step in 0..3 {
                        assert!(progress(json!({"files": step})));
                    }
                    Ok(json!({"files": 3}))
                }
                Request::Verify { .. } => {
                    while progress(json!({"text": "x".repeat(1000)})) {
                        self.steps.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    self.cancelled.store(true, Ordering::Release);
                    Err(ControlError::new(ControlErrorKind::Cancelled, "stopped"))
                }
                Request::Evict { paths } => {
                    Err(ControlError::new(ControlErrorKind::NotFound, format!("no {:?}", paths[0])))
                }
                Request::Advise { .. } | Request::Hint { .. } => Ok(Value::Null),
                Request::Record {} | Request::Stop {} => Ok(Value::Null),
            }
        }
    }

    struct World {
        dir: tempfile::TempDir,
        toy: Arc<Toy>,
        server: Server,
    }

    fn world_with(limits: Limits) -> World {
        let dir = tempfile::tempdir().unwrap();
        let toy = Arc::new(Toy::default());
        let server = Server::start_with(dir.path(), toy.clone(), limits).unwrap();
        World { dir, toy, server }
    }

    fn world() -> World {
        world_with(LIMITS)
    }

    fn raw(world: &World) -> UnixStream {
        let stream = UnixStream::connect(world.dir.path().join(SOCKET_NAME)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream
    }

    fn read_reply(stream: &UnixStream) -> Option<Reply> {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn read_error(stream: &UnixStream) -> ControlErrorKind {
        match read_reply(stream) {
            Some(Reply::Error(error)) => error.kind,
            other => panic!("not an error: {other:?}"),
        }
    }

    fn here() -> Vec<RelPath> {
        vec![RelPath::root()]
    }

    fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn calls_round_trip_over_one_connection() {
        let world = world();
        let mut client = Client::connect(world.server.path()).unwrap();
        assert_eq!(client.call(&Request::Stats {}, |_| {}).unwrap(), json!({"opens": 3}));
        let mut seen = Vec::new();
        let answer = client.call(&Request::Warm(WarmRequest::of(here())), |p| seen.push(p)).unwrap();
        assert_eq!(answer, json!({"files": 3}));
        assert_eq!(seen, [json!({"files": 0}), json!({"files": 1}), json!({"files": 2})]);
        match client.call(&Request::Evict { paths: here() }, |_| {}) {
            Err(ClientError::Refused(e)) => assert_eq!(e.kind, ControlErrorKind::NotFound),
            other => panic!("{other:?}"),
        }
        assert_eq!(client.call(&Request::Stop {}, |_| {}).unwrap(), Value::Null);
    }

    #[test]
    fn the_socket_is_private_and_goes_with_the_server() {
        let world = world();
        let path = world.server.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        drop(world.server);
        assert!(!path.exists());
        assert!(matches!(Client::connect(&path), Err(ClientError::NotMounted { .. })));
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_file_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SOCKET_NAME);
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Server::start(dir.path(), Arc::new(Toy::default())).unwrap());
        std::fs::write(&path, "mine").unwrap();
        let error = Server::start(dir.path(), Arc::new(Toy::default())).unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn a_cache_directory_deeper_than_a_socket_address_works() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("d".repeat(200)).join("e".repeat(200));
        std::fs::create_dir_all(&dir).unwrap();
        let server = Server::start(&dir, Arc::new(Toy::default())).unwrap();
        let mut client = Client::connect(server.path()).unwrap();
        assert!(client.call(&Request::Stats {}, |_| {}).is_ok());
    }

    #[test]
    fn a_bad_request_leaves_the_connection_usable() {
        let world = world();
        let mut stream = raw(&world);
        for (line, kind) in [
            (&b"{\"v\":9,\"verb\":\"stats\"}\n"[..], ControlErrorKind::UnsupportedVersion),
            (b"{\"v\":1,\"verb\":\"explode\"}\n", ControlErrorKind::UnknownVerb),
            (b"\xff\xfe\x00\n", ControlErrorKind::BadRequest),
            (b"\n", ControlErrorKind::BadRequest),
            (b"{\"v\":1,\"verb\":\"evict\",\"paths\":[\"../x\"]}\n", ControlErrorKind::BadRequest),
        ] {
            stream.write_all(line).unwrap();
            assert_eq!(read_error(&stream), kind);
        }
        stream.write_all(&Request::Stats {}.to_line()).unwrap();
        assert!(matches!(read_reply(&stream), Some(Reply::Ok(_))));
    }

    #[test]
    fn a_request_in_pieces_is_put_together_and_half_a_one_is_dropped() {
        let world = world();
        let mut stream = raw(&world);
        for piece in (Request::Stats {}).to_line().chunks(5) {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(matches!(read_reply(&stream), Some(Reply::Ok(_))));
        stream.write_all(b"{\"v\":1,\"ve").unwrap();
        drop(stream);
        wait_for("the connection ends", || world.server.shared.connections.lock().is_empty());
    }

    #[test]
    fn a_line_of_more_than_a_megabyte_is_refused() {
        let world = world();
        let mut stream = raw(&world);
        let writer = {
            let mut stream = stream.try_clone().unwrap();
            // The server closes on us in the middle: the error is expected.
            std::thread::spawn(move || drop(stream.write_all(&vec![b'a'; 8 << 20])))
        };
        assert_eq!(read_error(&stream), ControlErrorKind::TooLong);
        writer.join().unwrap();
        let mut rest = Vec::new();
        // End of file or a reset: the connection is closed either way.
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
    }

    #[test]
    fn forty_at_once_are_served_or_told_busy() {
        let world = world();
        let streams: Vec<_> = (0..40).map(|_| raw(&world)).collect();
        let mut served = 0;
        for mut stream in &streams {
            // A refused connection is closed already, which the write may notice.
            let _ = stream.write_all(&Request::Stats {}.to_line());
            match read_reply(stream) {
                Some(Reply::Ok(_)) => served += 1,
                Some(Reply::Error(e)) => assert_eq!(e.kind, ControlErrorKind::Busy),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(served, LIMITS.connections_max);
        drop(streams);
        wait_for("room again", || {
            Client::connect(world.server.path()).unwrap().call(&Request::Stats {}, |_| {}).is_ok()
        });
    }

    #[test]
    fn busy_has_a_name_at_the_client() {
        let world = world();
        let _all: Vec<_> = (0..LIMITS.connections_max).map(|_| raw(&world)).collect();
        let error =
            Client::connect(world.server.path()).unwrap().call(&Request::Stats {}, |_| {}).unwrap_err();
        assert!(matches!(error, ClientError::Busy { .. }), "{error:?}");
    }

    #[test]
    fn an_idle_connection_is_told_and_closed() {
        let world = world_with(Limits { request_time: Duration::from_millis(30), ..LIMITS });
        let stream = raw(&world);
        assert_eq!(read_error(&stream), ControlErrorKind::TimedOut);
        assert_eq!(read_reply(&stream), None);
    }

    #[test]
    fn a_panicking_handler_is_an_error_and_the_next_call_works() {
        let world = world();
        let mut client = Client::connect(world.server.path()).unwrap();
        match client.call(&Request::Info {}, |_| {}) {
            Err(ClientError::Refused(e)) => assert_eq!(e.kind, ControlErrorKind::Bug),
            other => panic!("{other:?}"),
        }
        assert!(client.call(&Request::Stats {}, |_| {}).is_ok());
    }

    #[test]
    fn a_client_that_leaves_cancels_its_work() {
        let world = world();
        let mut stream = raw(&world);
        stream.write_all(&Request::Verify { paths: here() }.to_line()).unwrap();
        assert!(matches!(read_reply(&stream), Some(Reply::Progress(_))));
        drop(stream);
        wait_for("cancelled", || world.toy.cancelled.load(Ordering::Acquire));
    }

    #[test]
    fn a_reader_that_sleeps_is_cut_off() {
        let world = world_with(Limits { send_time: Duration::from_millis(50), ..LIMITS });
        let mut stream = raw(&world);
        stream.write_all(&Request::Verify { paths: here() }.to_line()).unwrap();
        wait_for("cut off", || world.toy.cancelled.load(Ordering::Acquire));
        assert!(world.toy.steps.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn a_drop_ends_idle_and_busy_connections_soon() {
        let world = world();
        let idle = raw(&world);
        let mut busy = raw(&world);
        busy.write_all(&Request::Verify { paths: here() }.to_line()).unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = String::new();
            busy.read_to_string(&mut all).unwrap();
            all
        });
        wait_for("work", || world.toy.steps.load(Ordering::Relaxed) > 0);
        let begun = Instant::now();
        drop(world.server);
        assert!(begun.elapsed() < Duration::from_millis(1000), "{:?}", begun.elapsed());
        assert_eq!(read_reply(&idle), None);
        let last = reader.join().unwrap();
        assert!(last.trim_end().ends_with(r#""message":"stopped"}}"#), "the answer under way is still given");
    }

    #[test]
    fn the_owner_and_root_are_heard_and_nobody_else() {
        let me = Uid::from_raw(1000);
        let peer = |uid| UCred {
            pid: rustix::process::getpid(),
            uid: Uid::from_raw(uid),
            gid: rustix::process::Gid::from_raw(0),
        };
        assert!(peer_allowed(peer(1000), me));
        assert!(peer_allowed(peer(0), me));
        assert!(!peer_allowed(peer(1001), me));
        assert!(!peer_allowed(peer(65534), me));
        assert!(!peer_allowed(peer(1000), Uid::ROOT));
    }

    /// Another user who gets as far as the socket (the modes are opened here for that) is refused by the peer check.
    #[test]
    fn a_foreign_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: becoming another user needs root");
        }
        let world = world();
        let path = world.dir.path().join(SOCKET_NAME);
        for (path, mode) in [(world.dir.path(), 0o755), (&path, 0o666)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        // Credentials are a thread's own on Linux; this one never becomes root again, and ends.
        let error = std::thread::spawn(move || {
            let nobody = Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            let stream = UnixStream::connect(path).unwrap();
            read_error(&stream)
        });
        assert_eq!(error.join().unwrap(), ControlErrorKind::NotPermitted);
    }
}
