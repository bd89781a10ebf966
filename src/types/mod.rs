//! The ground floor: words that more than one room speaks.
//!
//! A type that two rooms name belongs here, however small it is; a small word kept one floor too high is what ties
//! modules into a knot. Nothing here does I/O, takes a lock or reads a clock;
//! [`sync`] only names the locks that others take.
#![forbid(unsafe_code)]

mod attr;
mod error;
mod id;
mod moment;
mod range;
pub mod sync;
mod text;
pub mod units;

pub use attr::{Attr, FileKind, Timestamp};
pub use error::{Error, ErrorKind, Result};
pub use id::{FileId, FileVersion, GroupId, Identity, NodeId};
pub use moment::Moment;
pub use range::{ByteRange, CHUNK_BYTES, ChunkIndex, ChunkRange, chunk_count, chunk_range};
pub use text::{PathText, escape_bytes, unescape_bytes};

use std::any::Any;
use std::sync::Arc;

/// Something that the kernel's door attaches to a cached file and that must live no longer than the file: the
/// registration for passthrough. The lower rooms keep it and drop it without knowing what it is.
pub type KernelRef = Arc<dyn Any + Send + Sync>;
