//! The thin binary: everything is in the library, so that tests and other programs reach it.

fn main() -> std::process::ExitCode {
    warmfs::cli::run(std::env::args_os())
}
