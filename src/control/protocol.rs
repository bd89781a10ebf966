//! The words of the control protocol and their only parser: pure, so that it can be fed rubbish without a socket.
//!
//! Kept apart from the server because both ends speak it. It promises never to panic on any bytes, to refuse every
//! field that it does not know (a misspelled option must not be dropped in silence), and that a [`RelPath`] which it
//! lets through cannot name anything outside the mount.

use std::ffi::OsStr;
use std::num::{NonZeroU32, NonZeroU64};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::types::{Error, ErrorKind, escape_bytes, unescape_bytes};

/// The protocol's version; a request that carries another one is refused.
pub const VERSION: u64 = 1;

/// Longest request line in bytes, the newline included. 1 MiB is some ten thousand paths; longer lists come as
/// [`batches`].
pub const REQUEST_BYTES_MAX: usize = 1 << 20;

/// Room for everything in a request that is not a path, in bytes.
const REQUEST_FRAME_BYTES: usize = 1024;

/// Longest path in bytes: the kernel's PATH_MAX less its NUL.
const PATH_BYTES_MAX: usize = 4095;

/// Longest name in bytes: the kernel's NAME_MAX.
const NAME_BYTES_MAX: usize = 255;

/// What the daemon can be asked. The empty variants have braces because serde only then refuses unknown fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The counters, as `warmfs stats --json` shows them.
    Stats {},
    /// Who the daemon is: [`Info`].
    Info {},
    /// Drop what is cached of these files and trees.
    Evict {
        /// Files and trees.
        paths: Vec<RelPath>,
    },
    /// Fill the cache with these files and trees.
    Warm(WarmRequest),
    /// Adds paths to a list for [`WarmRequest::list`]; the answer is `{"list": NUMBER}`.
    WarmList {
        /// The list; a new one where absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        list: Option<u64>,
        /// Files and trees.
        paths: Vec<RelPath>,
    },
    /// Stop all warm-ups; the answer is `{"stopped": COUNT}`.
    WarmStop {},
    /// Hash again what is cached of these files and trees, and drop what is wrong.
    Verify {
        /// Files and trees.
        paths: Vec<RelPath>,
    },
    /// What hit ratio each of these cache sizes would have given.
    Advise {
        /// Sizes in bytes, [`ADVISE_SIZES_MAX`] at most; the daemon's own choice where there are none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        cache_bytes: Vec<u64>,
    },
    /// Tell of the coming order of access of a job; and, always, say what is known of all orders.
    Hint {
        /// Which order; [`JOB_DEFAULT`] where absent.
        #[serde(default = "job_default")]
        job: String,
        /// Forget first what was told before; otherwise the paths come after it.
        #[serde(default)]
        clear: bool,
        /// Paths as text of [`escape_bytes`], in the order in which they will be opened; relative to the mount's root, or
        /// absolute below it. One that is neither is counted, and is no error.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        paths: Vec<String>,
    },
    /// Tell of every use of a file from now on, as progress, until the caller goes.
    Record {},
    /// Unmount and end.
    Stop {},
}

/// The job of an order that has no name.
pub const JOB_DEFAULT: &str = "default";

/// Longest name of a job, bytes.
pub const JOB_BYTES_MAX: usize = 64;

fn job_default() -> String {
    JOB_DEFAULT.into()
}

/// Each size is a replay of its own.
pub const ADVISE_SIZES_MAX: usize = 32;

/// What to warm, and how. One of the first three must name something.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WarmRequest {
    /// Files and trees.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<RelPath>,
    /// Patterns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub globs: Vec<GlobPath>,
    /// A list that was sent before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub list: Option<u64>,
    /// Files at a time; the daemon's own choice where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jobs: Option<NonZeroU32>,
    /// Bytes to fetch in a second, at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<NonZeroU64>,
    /// Answer at once, with `{"job": NUMBER}`, and go on.
    #[serde(skip_serializing_if = "is_false")]
    pub background: bool,
    /// Only say what is not warm.
    #[serde(skip_serializing_if = "is_false")]
    pub check: bool,
}

impl WarmRequest {
    /// These files and trees, as usual.
    pub fn of(paths: Vec<RelPath>) -> Self {
        Self { paths, ..Self::default() }
    }

    fn names_nothing(&self) -> bool {
        self.paths.is_empty() && self.globs.is_empty() && self.list.is_none()
    }
}

/// A pattern below a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GlobPath {
    /// The directory, by its very name.
    pub base: RelPath,
    /// The pattern, below it.
    pub pattern: RelPath,
}

/// Globs in one request: the daemon follows each through the tree.
pub const GLOBS_MAX: usize = 1000;

fn is_false(value: &bool) -> bool {
    !value
}

/// Every verb, for error messages and for telling an unknown verb from a malformed request.
const VERBS: [&str; 11] = [
    "stats",
    "info",
    "evict",
    "warm",
    "warm_list",
    "warm_stop",
    "verify",
    "advise",
    "hint",
    "record",
    "stop",
];

impl Request {
    /// The verb as it is written on the wire.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Stats {} => "stats",
            Self::Info {} => "info",
            Self::Evict { .. } => "evict",
            Self::Warm(_) => "warm",
            Self::WarmList { .. } => "warm_list",
            Self::WarmStop {} => "warm_stop",
            Self::Verify { .. } => "verify",
            Self::Advise { .. } => "advise",
            Self::Hint { .. } => "hint",
            Self::Record {} => "record",
            Self::Stop {} => "stop",
        }
    }

    /// Whether the answer takes moments, whatever the size of the dataset.
    pub fn is_quick(&self) -> bool {
        self.paths().is_none() && !matches!(self, Self::Record {})
    }

    /// The paths of the verbs that take some.
    pub fn paths(&self) -> Option<&[RelPath]> {
        match self {
            Self::Evict { paths } | Self::WarmList { paths, .. } | Self::Verify { paths } => Some(paths),
            Self::Warm(warm) => Some(&warm.paths),
            Self::Stats {} | Self::Info {} | Self::WarmStop {} | Self::Advise { .. } => None,
            Self::Hint { .. } | Self::Record {} | Self::Stop {} => None,
        }
    }

    /// The request as one line, its newline included.
    pub fn to_line(&self) -> Vec<u8> {
        let mut value = serde_json::to_value(self).expect("a request is plain data: no map with odd keys");
        if let Value::Object(fields) = &mut value {
            fields.insert("v".into(), VERSION.into());
        }
        to_line(&value)
    }
}

/// Parses one line (with or without its newline). The error is ready to be sent.
pub fn parse_request(line: &[u8]) -> Result<Request, ControlError> {
    let bad =
        |message: String| ControlError::new(ControlErrorKind::BadRequest, cut(message, MESSAGE_CHARS_MAX));
    let mut fields: serde_json::Map<String, Value> = serde_json::from_slice(line)
        .map_err(|e| bad(format!("the request is not one JSON object on one line: {e}")))?;
    check_version(fields.remove("v"))?;
    check_verb(fields.get("verb"))?;
    let request: Request =
        serde_json::from_value(Value::Object(fields)).map_err(|e| bad(format!("malformed request: {e}")))?;
    match (&request, request.paths()) {
        (Request::Advise { cache_bytes }, _) if cache_bytes.len() > ADVISE_SIZES_MAX => {
            Err(bad(format!("more than {ADVISE_SIZES_MAX} sizes in `cache_bytes`: ask for fewer at a time")))
        }
        (Request::Hint { job, .. }, _)
            if job.is_empty() || job.len() > JOB_BYTES_MAX || job.contains(char::is_control) =>
        {
            Err(bad(format!("`job` is to be 1 to {JOB_BYTES_MAX} bytes without control characters")))
        }
        (Request::Warm(warm), _) if warm.globs.len() > GLOBS_MAX => {
            Err(bad(format!("more than {GLOBS_MAX} globs: use `**`, or a list")))
        }
        (Request::Warm(warm), _) if !warm.names_nothing() => Ok(request),
        (_, Some([])) => Err(bad("`paths` is empty: \"\" names the whole mount".into())),
        _ => Ok(request),
    }
}

/// Longest text of an error. What it quotes came from outside, a name of a field as long as the line for one.
const MESSAGE_CHARS_MAX: usize = 500;

/// Of a path in a message: names of a megabyte reach us only from an attacker.
const PATH_CHARS_MAX: usize = 80;

fn cut(text: String, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn check_version(version: Option<Value>) -> Result<(), ControlError> {
    match version {
        Some(v) if v.as_u64() == Some(VERSION) => Ok(()),
        Some(v) => Err(ControlError::new(
            ControlErrorKind::UnsupportedVersion,
            format!(
                "this daemon speaks control version {VERSION}, not {}: use the same warmfs for both",
                short(&v)
            ),
        )),
        None => Err(ControlError::new(
            ControlErrorKind::BadRequest,
            format!("the request has no version: add \"v\":{VERSION}"),
        )),
    }
}

fn check_verb(verb: Option<&Value>) -> Result<(), ControlError> {
    match verb {
        Some(Value::String(verb)) if VERBS.contains(&verb.as_str()) => Ok(()),
        Some(verb) => Err(ControlError::new(
            ControlErrorKind::UnknownVerb,
            format!("unknown verb {}; known are {}", short(verb), VERBS.join(", ")),
        )),
        None => Err(ControlError::new(
            ControlErrorKind::BadRequest,
            format!("the request has no verb; known are {}", VERBS.join(", ")),
        )),
    }
}

/// A foreign value in a message of ours: cut, so that an error is not as long as the request that caused it.
fn short(value: &Value) -> String {
    cut(value.to_string(), 60)
}

/// What the daemon says, one line each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Work goes on.
    Progress(Value),
    /// The answer; the last line of a call.
    Ok(Value),
    /// The refusal or failure; the last line of a call.
    Error(ControlError),
}

impl Reply {
    /// The reply as one line, its newline included.
    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }
}

/// JSON never holds a raw newline, so that one line is one message.
fn to_line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).expect("messages are plain data: no map with odd keys");
    line.push(b'\n');
    line
}

/// Why a request was refused or failed, as text for people and as a kind for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ControlError {
    /// What the caller can do about it.
    pub kind: ControlErrorKind,
    /// One line that names the thing and the remedy.
    pub message: String,
}

/// What the caller can do about a [`ControlError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlErrorKind {
    /// The line is not a request.
    BadRequest,
    /// The request is of another protocol version.
    UnsupportedVersion,
    /// No such verb.
    UnknownVerb,
    /// The line is longer than 1 MiB.
    TooLong,
    /// All connections are taken, or the thing is in use: later.
    Busy,
    /// The caller is neither the daemon's user nor root.
    NotPermitted,
    /// No request came in time, or the source did not answer.
    TimedOut,
    /// A path does not exist.
    NotFound,
    /// The daemon is stopping, or the caller went away.
    Cancelled,
    /// The work failed; the message says how.
    Failed,
    /// The handler panicked.
    Bug,
    /// A kind that a newer daemon knows and this program does not.
    #[serde(other)]
    Other,
}

impl ControlError {
    /// An error with its one line of text.
    pub fn new(kind: ControlErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl From<Error> for ControlError {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound => ControlErrorKind::NotFound,
            ErrorKind::Escapes | ErrorKind::Invalid => ControlErrorKind::BadRequest,
            ErrorKind::Busy => ControlErrorKind::Busy,
            ErrorKind::TimedOut => ControlErrorKind::TimedOut,
            ErrorKind::Stale | ErrorKind::NoSpace | ErrorKind::Corrupt | ErrorKind::Io => {
                ControlErrorKind::Failed
            }
        };
        Self::new(kind, error.to_string())
    }
}

/// The answer to [`Request::Info`]. Paths are text of [`escape_bytes`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    /// Version of the daemon's program.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// The source directory.
    pub source: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// Where its cache lies.
    pub cache_dir: String,
    /// The engine that moves bytes: `io_uring` or `pread`.
    pub engine: String,
    /// Whether the kernel reads complete files itself.
    pub passthrough: PassthroughInfo,
    /// Seconds since the mount began to serve.
    pub uptime_s: u64,
}

/// Whether passthrough is on, and what is missing where it is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassthroughInfo {
    /// On or off.
    pub on: bool,
    /// Why it is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A path below the mount's root, as bytes; empty for the root itself. It has no `..`, no leading `/` and no NUL, so
/// that joining it to a root stays below that root (links are the business of whoever opens it).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelPath(PathBuf);

impl RelPath {
    /// Checks and tidies (`a//./b/` is `a/b`) a relative path. The error is text for people.
    pub fn new(path: &Path) -> Result<Self, String> {
        let shown = || cut(escape_bytes(path.as_os_str().as_bytes()), PATH_CHARS_MAX);
        if path.as_os_str().len() > PATH_BYTES_MAX {
            return Err(format!("path of more than {PATH_BYTES_MAX} bytes: {}", shown()));
        }
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(format!("path with a NUL byte: {}", shown()));
        }
        let mut tidy = PathBuf::new();
        for component in path.components() {
            match component {
                Component::Normal(name) if name.len() > NAME_BYTES_MAX => {
                    return Err(format!("name of more than {NAME_BYTES_MAX} bytes in {}", shown()));
                }
                Component::Normal(name) => tidy.push(name),
                Component::CurDir => {}
                Component::ParentDir => return Err(format!("`..` is not allowed in {}", shown())),
                Component::RootDir | Component::Prefix(_) => {
                    return Err(format!("{} is absolute: paths are relative to the mount's root", shown()));
                }
            }
        }
        Ok(Self(tidy))
    }

    /// The mount's root.
    pub fn root() -> Self {
        Self(PathBuf::new())
    }

    /// The path, relative, without `.` or `..`; empty for the root.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    fn to_text(&self) -> String {
        escape_bytes(self.0.as_os_str().as_bytes())
    }
}

impl Serialize for RelPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_text())
    }
}

impl<'de> Deserialize<'de> for RelPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = unescape_bytes(&text).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "`{}` is no escaped path: a backslash is \\\\, a byte \\xNN",
                cut(text.to_string(), PATH_CHARS_MAX)
            ))
        })?;
        Self::new(Path::new(OsStr::from_bytes(&bytes))).map_err(serde::de::Error::custom)
    }
}

/// Splits paths into lists of which each fits into one request.
pub fn batches(paths: Vec<RelPath>) -> Vec<Vec<RelPath>> {
    let room = REQUEST_BYTES_MAX - REQUEST_FRAME_BYTES;
    let mut lists = Vec::new();
    let mut list = Vec::new();
    let mut used = 0;
    for path in paths {
        // Escaped text holds no control characters; JSON then doubles at most each byte (`"` and `\`), plus `"",`.
        let bytes = 2 * path.to_text().len() + 3;
        if used + bytes > room && !list.is_empty() {
            lists.push(std::mem::take(&mut list));
            used = 0;
        }
        used += bytes;
        list.push(path);
    }
    if !list.is_empty() {
        lists.push(list);
    }
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(Path::new(text)).unwrap()
    }

    fn kind(line: &str) -> ControlErrorKind {
        parse_request(line.as_bytes()).expect_err(line).kind
    }

    #[test]
    fn an_error_is_short_however_long_what_it_speaks_of() {
        for line in [
            format!("{{\"{}\":1,\"v\":{VERSION},\"verb\":\"stats\"}}", "x".repeat(100_000)),
            format!("{{\"{}\":1,\"v\":{VERSION},\"verb\":\"stats\"}}", "\\u0001".repeat(10_000)),
            format!("{{\"v\":{VERSION},\"verb\":\"{}\"}}", "x".repeat(100_000)),
            format!("{{\"v\":\"{}\"}}", "x".repeat(100_000)),
        ] {
            let error = parse_request(line.as_bytes()).expect_err("malformed");
            assert!(Reply::Error(error).to_line().len() < 4096);
        }
    }

    #[test]
    fn every_verb_round_trips() {
        let paths = vec![path("a/b"), RelPath::root(), path("odd\n\\\"name")];
        let requests = [
            Request::Stats {},
            Request::Info {},
            Request::Evict { paths: paths.clone() },
            Request::Warm(WarmRequest { jobs: NonZeroU32::new(4), ..WarmRequest::of(paths.clone()) }),
            Request::Warm(WarmRequest::of(paths.clone())),
            Request::Warm(WarmRequest {
                globs: vec![GlobPath { base: path("[odd]"), pattern: path("**/*.jpg") }],
                list: Some(7),
                rate: NonZeroU64::new(1),
                background: true,
                check: true,
                ..WarmRequest::default()
            }),
            Request::WarmList { list: None, paths: paths.clone() },
            Request::WarmList { list: Some(3), paths: paths.clone() },
            Request::WarmStop {},
            Request::Verify { paths },
            Request::Advise { cache_bytes: vec![] },
            Request::Advise { cache_bytes: vec![1, u64::MAX] },
            Request::Hint { job: "rank 0".into(), clear: true, paths: vec!["a/b".into(), "\\xff".into()] },
            Request::Hint { job: JOB_DEFAULT.into(), clear: false, paths: vec![] },
            Request::Record {},
            Request::Stop {},
        ];
        for request in requests {
            let line = request.to_line();
            assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
            assert_eq!(parse_request(&line).unwrap(), request);
            assert!(VERBS.contains(&request.verb()));
        }
    }

    #[test]
    fn requests_as_the_book_says() {
        assert_eq!(parse_request(br#"{"v":1,"verb":"stats"}"#), Ok(Request::Stats {}));
        assert_eq!(
            parse_request(br#"{"v":1,"verb":"evict","paths":["a/b","\\xff"]}"#).unwrap(),
            Request::Evict {
                paths: vec![path("a/b"), RelPath::new(Path::new(OsStr::from_bytes(b"\xff"))).unwrap()]
            }
        );
    }

    #[test]
    fn what_is_wrong_is_said() {
        use ControlErrorKind::*;
        assert_eq!(kind(""), BadRequest);
        assert_eq!(kind("[]"), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"stats"} {}"#), BadRequest);
        assert_eq!(kind(r#"{"verb":"stats"}"#), BadRequest);
        assert_eq!(kind(r#"{"v":2,"verb":"stats"}"#), UnsupportedVersion);
        assert_eq!(kind(r#"{"v":"1","verb":"stats"}"#), UnsupportedVersion);
        assert_eq!(kind(r#"{"v":1}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"format"}"#), UnknownVerb);
        assert_eq!(kind(r#"{"v":1,"verb":7}"#), UnknownVerb);
        assert_eq!(kind(r#"{"v":1,"verb":"stats","all":true}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"evict","paths":["a"],"force":1}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"evict"}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"evict","paths":[]}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"warm","paths":["a"],"jobs":0}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"hint","job":""}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"hint","job":"a\nb"}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"warm","paths":["a"],"speed":1}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"warm","paths":["a"],"rate":0}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"warm"}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"warm","globs":[{"base":"..","pattern":"*"}]}"#), BadRequest);
        assert_eq!(kind(r#"{"v":1,"verb":"warm_list","paths":[]}"#), BadRequest);
        let glob = r#"{"base":"","pattern":"*"},"#.repeat(GLOBS_MAX) + r#"{"base":"","pattern":"*"}"#;
        assert_eq!(kind(&format!(r#"{{"v":1,"verb":"warm","globs":[{glob}]}}"#)), BadRequest);
        let nested = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        assert_eq!(kind(&format!(r#"{{"v":1,"verb":"stats","x":{nested}}}"#)), BadRequest);
    }

    #[test]
    fn paths_that_would_leave_the_mount_are_refused() {
        let long = "x".repeat(256);
        let longer = "x/".repeat(3000);
        for text in ["/etc/passwd", "..", "a/../../b", "a\\x00b", "\\q", &long, &longer] {
            let line = serde_json::json!({"v": 1, "verb": "evict", "paths": [text]}).to_string();
            let error = parse_request(line.as_bytes()).expect_err(text);
            assert_eq!(error.kind, ControlErrorKind::BadRequest);
            assert!(error.message.len() < 500, "{}", error.message.len());
        }
    }

    #[test]
    fn paths_are_tidied() {
        assert_eq!(path("./a//b/."), path("a/b"));
        assert_eq!(path("."), RelPath::root());
        assert_eq!(path(""), RelPath::root());
    }

    #[test]
    fn a_message_does_not_repeat_a_megabyte() {
        let line = format!(r#"{{"v":1,"verb":"{}"}}"#, "é".repeat(100_000));
        assert!(parse_request(line.as_bytes()).expect_err("unknown").message.len() < 300);
    }

    #[test]
    fn kinds_of_a_newer_daemon_are_read() {
        let reply: Reply = serde_json::from_str(r#"{"error":{"kind":"on_fire","message":"x"}}"#).unwrap();
        assert_eq!(reply, Reply::Error(ControlError::new(ControlErrorKind::Other, "x")));
    }

    #[test]
    fn batches_fit_and_lose_nothing() {
        let paths: Vec<_> = (0..30_000).map(|i| path(&format!("{}/{i}\\\"\n", "d".repeat(60)))).collect();
        let lists = batches(paths.clone());
        assert!(lists.len() > 1);
        assert_eq!(lists.concat(), paths);
        for paths in lists {
            let jobs = NonZeroU32::new(u32::MAX);
            let request = Request::Warm(WarmRequest { jobs, ..WarmRequest::of(paths.clone()) });
            assert!(request.to_line().len() <= REQUEST_BYTES_MAX);
            assert!(Request::WarmList { list: Some(u64::MAX), paths }.to_line().len() <= REQUEST_BYTES_MAX);
        }
        assert!(batches(Vec::new()).is_empty());
    }

    #[test]
    fn errors_of_the_library_keep_their_meaning() {
        assert_eq!(ControlError::from(Error::os("open", "x", 2)).kind, ControlErrorKind::NotFound);
        assert_eq!(ControlError::from(Error::os("read", "x", 5)).kind, ControlErrorKind::Failed);
    }

    proptest! {
        #[test]
        fn rubbish_never_panics(bytes: Vec<u8>) {
            let _ = parse_request(&bytes);
        }

        #[test]
        fn near_requests_never_panic(verb in "[a-z]{0,6}|evict|warm", path in ".{0,40}", extra in "\\PC{0,20}") {
            let line = format!(r#"{{"v":1,"verb":"{verb}","paths":["{path}"],{extra}}}"#);
            let _ = parse_request(line.as_bytes());
            let _ = parse_request(&line.as_bytes()[..line.len() / 2]);
        }

        #[test]
        fn a_path_that_passes_stays_below(bytes: Vec<u8>) {
            if let Ok(path) = RelPath::new(Path::new(OsStr::from_bytes(&bytes))) {
                let plain = path.as_path().components().all(|c| matches!(c, Component::Normal(_)));
                prop_assert!(plain);
                let text = serde_json::to_string(&path).unwrap();
                prop_assert_eq!(serde_json::from_str::<RelPath>(&text).unwrap(), path);
            }
        }
    }
}
