//! `mount`, `umount` and the hidden `faultfs`: starting a daemon, and waiting until it serves.
//!
//! The daemon is the same program, started anew (no fork of a process with threads). It reports on its standard output,
//! which is a pipe to the one who waits: `ready`, or the error with its exit code. Then it lets go of the terminal.

use super::Failure;
use super::args::{FaultfsArgs, MountArgs};
use crate::config::{self, Config};
use crate::mount::{self, Plan, log};
use crate::types::units;
use crate::{faultfs, types::PathText};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A mount that takes longer than this to end is reported.
const UMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// `warmfs mount`
pub fn mount(args: &MountArgs) -> Result<(), Failure> {
    if args.daemon || args.foreground {
        let planned = plan(args);
        let cache_dir = planned.as_ref().ok().map(|(plan, _)| plan.cache_dir.clone());
        let result = planned.and_then(|(plan, config)| serve(plan, &config, args.daemon));
        let result = if args.daemon { report(result) } else { result };
        // The process ends now, unless a thread of it is stuck in the source; the next daemon need not wait for that.
        cache_dir.iter().for_each(|dir| crate::sys::process::let_go(dir));
        return result;
    }
    // What can be refused without a daemon is refused here, where the user looks.
    plan(args)?;
    start_daemon()
}

fn load(args: &MountArgs) -> Result<Config, Failure> {
    let flags = args.flags().map_err(Failure::usage)?;
    let mut config = config::load(args.config.as_deref(), std::env::vars_os(), &flags)?.config;
    if let Some(dir) = args.cache_dir_beyond_text() {
        let dir = std::path::absolute(dir)
            .map_err(|e| Failure::usage(format!("--cache-dir {}: {e}", PathText(dir))))?;
        config.cache.dir = Some(dir);
    }
    Ok(config)
}

/// Everything that can be checked before anything is changed.
fn plan(args: &MountArgs) -> Result<(Plan, Config), Failure> {
    let config = load(args)?;
    let plan = Plan::new(&args.source, args.mountpoint.as_deref(), &config)?;
    crate::sys::mount::check_possible()?;
    Ok((plan, config))
}

fn serve(plan: Plan, config: &Config, daemon: bool) -> Result<(), Failure> {
    // Whatever is made from here on is for nobody else.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let level = std::env::var("WARMFS_LOG").unwrap_or_else(|_| config.log.level.clone());
    let default_log = plan.cache_dir.join("log/warmfs.log");
    match (&config.log.file, daemon) {
        (Some(path), _) => log::to_file(&level, path, config.log.max_size)?,
        (None, true) => {
            // The cache directory is made by its owner, the store, with the right permissions.
            crate::store::CacheDir::open(&plan.cache_dir, &plan.source)?;
            log::to_file(&level, &default_log, config.log.max_size)?;
        }
        (None, false) => log::to_terminal(&level),
    }
    mount::run(plan, config, move |mountpoint| match daemon {
        true => let_go(),
        false => complain!("warmfs: serving at {}", PathText(mountpoint)),
    })?;
    Ok(())
}

/// Starts this very program again as the daemon, and waits for its report.
fn start_daemon() -> Result<(), Failure> {
    let fail = |e: std::io::Error| Failure::run_time(format!("cannot start the daemon: {e}"));
    // By the link and not by its path: the file may have been replaced since we were started.
    let mut child = Command::new("/proc/self/exe")
        .arg0("warmfs")
        .args(std::env::args_os().skip(1))
        .arg("--daemon")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    let output = child.stdout.take().ok_or_else(|| Failure::run_time("the daemon has no output"))?;
    let mut report = String::new();
    BufReader::new(output).read_line(&mut report).map_err(fail)?;
    match report.trim_end().split_once(' ') {
        _ if report == "ready\n" => Ok(()),
        Some((code, message)) => {
            let _ = child.wait();
            Err(Failure { code: code.parse().unwrap_or(1), message: message.into() })
        }
        None => {
            let status = child.wait().map_err(fail)?;
            Err(Failure::run_time(format!("the daemon ended before it served ({status})")))
        }
    }
}

/// Tells the one who waits how it ended, if it still waits; to a daemon that has served nobody listens any more.
fn report(result: Result<(), Failure>) -> Result<(), Failure> {
    if let Err(failure) = &result {
        tracing::error!("{}", failure.message);
        say!("{} {}", failure.code, failure.message.replace('\n', " "));
    }
    result.map_err(|failure| Failure { message: String::new(), ..failure })
}

/// The mount serves: says so, and lets go of the terminal and of whoever waits for our output to end.
fn let_go() {
    say!("ready");
    // Started through a link, the process would be called `exe` in ps and pgrep.
    let _ = rustix::thread::set_name(c"warmfs");
    // Each may fail only if /dev/null is missing, and then the terminal stays open: no harm to the mount.
    let _ = rustix::process::setsid();
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let _ = std::env::set_current_dir("/");
}

/// `warmfs umount`
pub fn umount(mountpoint: &Path) -> Result<(), Failure> {
    // Not canonicalised: a dead mount cannot be looked at.
    let absolute = std::path::absolute(mountpoint).map_err(|e| Failure::usage(e.to_string()))?;
    let tidy: std::path::PathBuf = absolute.components().collect();
    let path = match crate::sys::mountinfo::is_stale(&tidy) {
        true => tidy,
        false => tidy.canonicalize().map_err(|e| Failure::usage(format!("{}: {e}", PathText(mountpoint))))?,
    };
    Ok(mount::unmount(&path, UMOUNT_PATIENCE)?)
}

/// `warmfs faultfs`
pub fn faultfs(args: &FaultfsArgs) -> Result<(), Failure> {
    if !args.daemon && !args.foreground {
        return start_daemon();
    }
    let result = serve_faultfs(args);
    if args.daemon { report(result) } else { result }
}

fn serve_faultfs(args: &FaultfsArgs) -> Result<(), Failure> {
    log::to_terminal("warn");
    let mut options = faultfs::Options::new(&args.source, &args.mountpoint);
    options.latency = units::parse_duration(&args.latency).map_err(Failure::usage)?;
    options.ttl = units::parse_duration(&args.ttl).map_err(Failure::usage)?;
    options.bandwidth = args.bandwidth.as_deref().map(parse_bandwidth).transpose()?;
    options.jobs = args.jobs;
    options.rules = args.rules.clone();
    options.counts = args.counts.clone();
    let daemon = args.daemon;
    faultfs::run(options, move || {
        if daemon {
            let_go();
        }
    })?;
    Ok(())
}

/// `100MB` and `100MB/s` are the same.
pub(super) fn parse_bandwidth(text: &str) -> Result<u64, Failure> {
    units::parse_size(text.strip_suffix("/s").unwrap_or(text)).map_err(Failure::usage)
}
