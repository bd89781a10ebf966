//! Everything asked of the kernel that the standard library and rustix do not already say safely, and the only room
//! with `unsafe`.
//!
//! Nothing bare leaves this room: descriptors are owned or borrowed, memory that the kernel may touch is owned until
//! the kernel says that it is done, and an errno travels as data.
#![allow(unsafe_code)]

pub mod clock;
pub mod facts;
mod fusermount;
pub mod io;
pub mod lease;
pub mod mount;
pub mod mountinfo;
pub mod passthrough;
pub mod privileges;
pub mod process;
pub mod uring;
