//! Words that people type become one command.
//!
//! | file | its part |
//! |---|---|
//! | [`args`] | the words: verbs, flags, and what they mean for the configuration |
//! | [`mount`] | `mount`, `umount`: starting a daemon and waiting until it serves |
//! | [`ask`] | `stats`, `status`, `evict`, `verify`: asking a running one |
//! | [`warm`] | `warm`: files, trees, globs and lists |
//! | [`list`] | lists of paths, read in bounded memory |
//! | [`mod@hint`] | `hint`: the coming order of access |
//! | [`mod@record`] | `record`: a trace of what is used |
//! | [`mod@advise`] | `advise`: other cache sizes, of a mount or of a trace |
//! | [`mod@doctor`] | what this kernel and this user can do |
//! | [`demo`] | the speed-up, shown without set-up |
//! | [`show`] | tables, progress, JSON |
//! | `epochs` | the part of `stats` that tells of epochs |
//!
//! Exit codes: 0 done, 1 failed at run time, 2 usage or configuration, 3 verify found damage, 130 a `warm` that was
//! interrupted.
#![forbid(unsafe_code)]

/// A line on standard output, as `println!` but without its panic when the reader has gone.
macro_rules! say {
    ($($words:tt)*) => { $crate::cli::show::out(format_args!("{}\n", format_args!($($words)*))) };
}

/// A line on standard error, likewise.
macro_rules! complain {
    ($($words:tt)*) => { $crate::cli::show::err(format_args!("{}\n", format_args!($($words)*))) };
}

pub mod advise;
pub mod args;
pub mod ask;
pub mod demo;
pub mod doctor;
mod epochs;
pub mod hint;
pub mod list;
pub mod mount;
pub mod record;
pub mod show;
pub mod warm;

use crate::config;
use crate::types::{Error, ErrorKind, PathText};
use args::{Cli, ConfigVerb, Verb};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::process::ExitCode;

/// How a command ended badly.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The user asked for something that makes no sense.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// It was asked rightly and went wrong.
    pub fn run_time(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// The user has pressed ^C.
    pub fn interrupted(message: impl Into<String>) -> Self {
        Self { code: 130, message: message.into() }
    }

    /// Verification found damage; the report was printed already.
    pub fn damage() -> Self {
        Self { code: 3, message: String::new() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Invalid | ErrorKind::Busy | ErrorKind::Escapes => Self::usage(error.to_string()),
            _ => Self::run_time(error.to_string()),
        }
    }
}

impl From<config::ConfigError> for Failure {
    fn from(error: config::ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<crate::control::ClientError> for Failure {
    fn from(error: crate::control::ClientError) -> Self {
        use crate::control::ClientError::{Io, NotMounted, NotOnMount};
        match error {
            NotOnMount { .. } | NotMounted { .. } => Self::usage(error.to_string()),
            Io { op: "resolve", subject, error } if error.kind() == std::io::ErrorKind::NotFound => {
                Self::usage(format!("{subject}: no such file or directory"))
            }
            other => Self::run_time(other.to_string()),
        }
    }
}

/// Runs the command in `args` and gives its exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            // clap's own codes: 0 for --help and --version, 2 for the rest. A closed pipe is no error.
            let _ = e.print();
            return ExitCode::from(e.exit_code() as u8);
        }
    };
    match dispatch(cli.verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.message.is_empty() {
                complain!("warmfs: {}", failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}

fn dispatch(verb: Verb) -> Result<(), Failure> {
    match verb {
        Verb::Mount(args) => mount::mount(&args),
        Verb::Umount { mountpoint } => mount::umount(&mountpoint),
        Verb::Stats { path, watch, json } => ask::stats(&path, watch, json),
        Verb::Status { paths, json } => ask::status(&paths, json),
        Verb::Warm(args) => warm::warm(&args),
        Verb::Evict { paths, json } => ask::evict(&paths, json),
        Verb::Verify { paths, cache_dir, json } => ask::verify(&paths, cache_dir.as_deref(), json),
        Verb::Advise { path, trace, cache_size, json } => {
            advise::advise(path.as_deref(), trace.as_deref(), &cache_size, json)
        }
        Verb::Hint(args) => hint::hint(&args),
        Verb::Record { mount, out, sizes, max_size } => record::record(&mount, &out, sizes, &max_size),
        Verb::Doctor { source, cache_dir, json } => doctor(source, cache_dir, json),
        Verb::Demo(args) => demo::run(&args),
        Verb::Config { verb } => config_verb(&verb),
        Verb::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "warmfs", &mut script);
            show::out(String::from_utf8_lossy(&script));
            Ok(())
        }
        Verb::Man { command } => man(command.as_deref()),
        Verb::Faultfs(args) => mount::faultfs(&args),
    }
}

fn man(command: Option<&str>) -> Result<(), Failure> {
    let mut shown = Cli::command();
    // Gives every command its whole name, as its synopsis shows it.
    shown.build();
    if let Some(name) = command {
        let found = shown.find_subcommand(name).filter(|c| !c.is_hide_set()).cloned();
        shown = found
            .ok_or_else(|| Failure::usage(format!("there is no command `{name}`: see warmfs --help")))?;
        shown = shown.display_name(format!("warmfs-{name}"));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(shown).render(&mut page).map_err(|e| Failure::run_time(e.to_string()))?;
    show::out(String::from_utf8_lossy(&page));
    Ok(())
}

fn doctor(
    source: Option<std::path::PathBuf>,
    cache_dir: Option<std::path::PathBuf>,
    json: bool,
) -> Result<(), Failure> {
    let uring = crate::sys::uring::probe().map_err(|e| e.to_string());
    let report = doctor::report(cache_dir.as_deref(), source.as_deref(), uring);
    if json {
        show::print_json(&report);
    } else {
        say!("{report}");
    }
    match report.worst() {
        doctor::Status::Fail => Err(Failure { code: 1, message: String::new() }),
        _ => Ok(()),
    }
}

fn config_verb(verb: &ConfigVerb) -> Result<(), Failure> {
    match verb {
        ConfigVerb::Check { file } => {
            let errors = config::check(file);
            errors.iter().for_each(|e| complain!("warmfs: {e}"));
            match errors.is_empty() {
                true => {
                    say!("{}: good", PathText(file));
                    Ok(())
                }
                false => Err(Failure { code: 2, message: String::new() }),
            }
        }
        ConfigVerb::Show { config, json } => {
            let resolved = config::load(config.as_deref(), std::env::vars_os(), &[])?;
            if *json {
                show::print_json(&resolved.show());
                return Ok(());
            }
            let rows =
                resolved.show().iter().map(|e| vec![e.key.into(), e.value.clone(), e.origin.to_string()]);
            show::table(&["key", "value", "from"], &rows.collect::<Vec<_>>());
            Ok(())
        }
    }
}
