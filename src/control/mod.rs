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
//! <- {"ok":{"files":1000}}                 exactly one, or {"error":{"kind":"…","message":"…"}}
//! ```
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
    ADVISE_SIZES_MAX, ControlError, ControlErrorKind, Info, JOB_DEFAULT, PassthroughInfo, REQUEST_BYTES_MAX,
    RelPath, Reply, Request, VERSION, batches, parse_request,
};
pub use server::{Handler, SOCKET_NAME, Server};
