//! The thin binary: everything is in the library, so that tests and other programs reach it.

#[cfg(not(feature = "schedules"))]
fn main() -> std::process::ExitCode {
    warmfs::cli::run(std::env::args_os())
}

/// Locks of the explorer work inside its tests only.
#[cfg(feature = "schedules")]
fn main() -> std::process::ExitCode {
    eprintln!("warmfs: built with the feature `schedules`, which is for tests/shuttle; run: cargo build");
    std::process::ExitCode::FAILURE
}
