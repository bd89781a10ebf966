//! Words that people type become one command.
#![forbid(unsafe_code)]

pub mod doctor;
