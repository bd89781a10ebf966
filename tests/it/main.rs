//! Tests of the library without a mount: no privileges, no kernel in the loop.

mod tidy;
