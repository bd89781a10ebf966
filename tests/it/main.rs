//! Tests of the library without a mount: no privileges, no kernel in the loop.
#![allow(clippy::unwrap_used)]

mod tidy;
