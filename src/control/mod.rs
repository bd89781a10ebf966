//! The operator's door: a unix socket inside the cache directory, over which the command line asks the running
//! daemon to show, evict, warm, verify or stop.
//!
//! It stands apart from the kernel's door (`fuse`) because the mount is read-only: neither a write nor a setxattr can
//! carry a command. It is bounded in connections, in bytes and in time, and it adds no authority: only the daemon's
//! own user and root are heard, and paths can only name what lies below the mount's root.
//!
//! ```text
//! -> {"v":1,"verb":"warm","paths":["train"],"jobs":8}
//! <- {"progress":{"files":10}}             zero or more
//! <- {"ok":{"files_warm":1000}}                 exactly one, or {"error":{"kind":"…","message":"…"}}
//! ```
//!
//! A list that is longer than a request goes ahead of it in parts: `{"verb":"warm_list","paths":[…]}` is answered by
//! `{"list":1}`, the next part carries that number, and `warm` has `"list":1` in place of paths.
//!
//! What a verb *does* is not known here: `mount` hands in a [`Handler`].
#![forbid(unsafe_code)]

mod client;
mod line;
mod protocol;
mod server;

pub use client::{Client, ClientError, Mounted, find_mount};
#[cfg(fuzzing)]
pub use line::{Lines, Next};
pub use protocol::{
    ADVISE_SIZES_MAX, ControlError, ControlErrorKind, GLOBS_MAX, GlobPath, Info, JOB_DEFAULT,
    PassthroughInfo, REQUEST_BYTES_MAX, RelPath, Reply, Request, VERSION, WarmRequest, batches,
    parse_request,
};
pub use server::{Handler, SOCKET_NAME, Server};
