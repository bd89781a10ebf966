//! Tests of the library without a mount: no privileges, no kernel in the loop.

// A test that cannot go on should say where, and unwrap does.
#![allow(clippy::unwrap_used)]

mod tidy;
