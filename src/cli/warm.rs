//! `warmfs warm`: what the user named becomes one request for each mount, and its answer a report and an exit code.
//!
//! The daemon does the work. This end sends lists in parts, shows the progress, and hears a ^C: it then hangs up, which is
//! how the daemon learns that nobody wants the rest.

use super::Failure;
use super::args::WarmArgs;
use super::list::{Base, Line, Lines, Trouble, Troubles};
use super::show::{Progress, files, print_json};
use crate::cache::warm::{Glob, WarmReport, glob};
use crate::control::{
    Client, GLOBS_MAX, GlobPath, Mounted, RelPath, Request, WarmRequest, batches, find_mount,
};
use crate::types::PathText;
use crate::types::units::show_size;
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Lines of a list that are sent together, before they are cut into requests.
const LINES_AT_ONCE: usize = 4096;
/// Files that are named on the terminal; JSON has more.
const SHOWN_MAX: usize = 10;

/// What is wanted on one mount.
struct Target {
    mount: Mounted,
    paths: Vec<RelPath>,
    globs: Vec<GlobPath>,
}

/// `warmfs warm`
pub fn warm(args: &WarmArgs) -> Result<(), Failure> {
    if args.stop {
        return stop(&args.paths, args.json);
    }
    let mut troubles = Troubles::default();
    let mut requests = Vec::new();
    match &args.from {
        Some(from) => requests.extend(from_list(args, from, &mut troubles)?),
        None => {
            for target in targets(&args.paths)? {
                requests.push(request_of(args, target)?);
            }
        }
    }
    match args.background {
        true => in_background(requests, &troubles, args.json),
        false => in_foreground(args, requests, &troubles),
    }
}

/// A daemon's socket, and what to ask it. Not connected before: a daemon does not wait long for a request.
type Asked = (PathBuf, WarmRequest);

fn in_background(requests: Vec<Asked>, troubles: &Troubles, json: bool) -> Result<(), Failure> {
    let mut jobs = Vec::new();
    for (socket, request) in requests {
        let answer = Client::connect(&socket)?.call(&Request::Warm(request), |_| {})?;
        jobs.push(answer["job"].clone());
    }
    if json {
        print_json(
            &json!({ "jobs": jobs, "lines_no_path": troubles.no_paths, "lines_outside": troubles.outside }),
        );
    } else {
        for job in &jobs {
            say!(
                "warm-up {job} runs in the background: `warmfs status` shows it, `warmfs warm --stop` ends it"
            );
        }
    }
    complain_of(troubles);
    match troubles.count() {
        0 => Ok(()),
        _ => Err(Failure::run_time(problems(&WarmReport::default(), troubles).join("; "))),
    }
}

fn in_foreground(args: &WarmArgs, requests: Vec<Asked>, troubles: &Troubles) -> Result<(), Failure> {
    let interrupt = Interrupt::watch()?;
    let what = if args.check { "checking" } else { "warming" };
    let mut bar = Progress::with_line(args.json);
    let mut total = WarmReport::default();
    for (socket, request) in requests {
        let mut client = Client::connect(&socket)?;
        interrupt.ends(&client)?;
        let mut last = WarmReport::default();
        let answer = client.call(&Request::Warm(request), |value| {
            last = serde_json::from_value(value).unwrap_or_default();
            bar.line(last.bytes_done, last.bytes_total, &format!("{what}: {}", line(&last)))
        });
        match answer {
            Ok(value) => total.add(&serde_json::from_value(value).unwrap_or_default()),
            Err(_) if interrupt.came() => {
                bar.finish();
                total.add(&last);
                return Err(tell_interrupted(args, &total, troubles));
            }
            Err(e) => return Err(e.into()),
        }
    }
    bar.finish();
    tell_end(args, &total, troubles)
}

/// Hears a ^C: the first ends the call and so the daemon's work, a second one this program.
#[derive(Clone, Default)]
struct Interrupt {
    came: Arc<AtomicBool>,
    hang_up: Arc<Mutex<Option<HangUp>>>,
}

type HangUp = Box<dyn FnOnce() + Send>;

impl Interrupt {
    fn watch() -> Result<Self, Failure> {
        let fail = |e: std::io::Error| Failure::run_time(format!("watch signals: {e}"));
        let interrupt = Self::default();
        let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT]).map_err(fail)?;
        let heard = interrupt.clone();
        let wait = move || {
            for _ in signals.forever() {
                if heard.came.swap(true, Ordering::SeqCst) {
                    std::process::exit(INTERRUPTED);
                }
                heard.end();
            }
        };
        std::thread::Builder::new().spawn(wait).map_err(fail)?;
        Ok(interrupt)
    }

    /// From here on it ends this connection.
    fn ends(&self, client: &Client) -> Result<(), Failure> {
        let hang_up = client.hang_up().map_err(|e| Failure::run_time(format!("watch a connection: {e}")))?;
        *self.hang_up.lock() = Some(Box::new(hang_up));
        if self.came() {
            self.end();
        }
        Ok(())
    }

    fn end(&self) {
        if let Some(hang_up) = self.hang_up.lock().take() {
            hang_up();
        }
    }

    fn came(&self) -> bool {
        self.came.load(Ordering::SeqCst)
    }
}

/// The exit code after a ^C, as shells have it.
const INTERRUPTED: i32 = 130;

/// Where a warm-up is, in one line.
pub(super) fn line(report: &WarmReport) -> String {
    let more = if report.counting { "+" } else { "" };
    let left = report.seconds_left.map_or(String::new(), |s| format!(", {} left", show_seconds(s)));
    format!(
        "{} of {}{more} files, {} of {}{more}, {}/s{left}",
        report.files_done,
        report.files_total,
        show_size(report.bytes_done),
        show_size(report.bytes_total),
        show_size(report.bytes_per_s),
    )
}

fn show_seconds(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

fn tell_interrupted(args: &WarmArgs, report: &WarmReport, troubles: &Troubles) -> Failure {
    if args.json {
        print_json(&as_json(report, troubles, true));
    }
    let more = if report.counting { " or more" } else { "" };
    let text = format!(
        "interrupted: {} of {}{more} warm, {} of {}{more}; the same command goes on from there",
        report.files_warm,
        files(report.files_total),
        show_size(report.bytes_warm),
        show_size(report.bytes_total),
    );
    Failure::interrupted(text)
}

fn as_json(report: &WarmReport, troubles: &Troubles, interrupted: bool) -> Value {
    let mut value = json!(report);
    value["lines_no_path"] = json!(troubles.no_paths);
    value["lines_outside"] = json!(troubles.outside);
    value["all_warm"] = json!(!interrupted && report.is_all_warm() && troubles.count() == 0);
    value["interrupted"] = json!(interrupted);
    value
}

fn tell_end(args: &WarmArgs, report: &WarmReport, troubles: &Troubles) -> Result<(), Failure> {
    if args.json {
        print_json(&as_json(report, troubles, false));
    } else if args.check {
        report.failed.iter().for_each(|reason| _ = say!("{reason}"));
        say_more(report, report.failed.len());
        say!(
            "{} of {} warm, {} of {}",
            report.files_warm,
            files(report.files_total),
            show_size(report.bytes_warm),
            show_size(report.bytes_total)
        );
    } else {
        say!(
            "{} of {} warm, {} of {} fetched",
            report.files_warm,
            files(report.files_total),
            show_size(report.bytes_fetched),
            show_size(report.bytes_total)
        );
        report.failed.iter().take(SHOWN_MAX).for_each(|reason| complain!("warmfs: {reason}"));
        say_more(report, SHOWN_MAX);
    }
    complain_of(troubles);
    let problems = problems(report, troubles);
    if problems.is_empty() { Ok(()) } else { Err(Failure::run_time(problems.join("; "))) }
}

fn say_more(report: &WarmReport, shown: usize) {
    let all = report.files_without_room
        + report.files_too_large
        + report.files_changing
        + report.files_failed
        + report.files_cold
        + report.paths_unknown;
    let more = all.saturating_sub(shown.min(report.failed.len()) as u64);
    if more > 0 {
        complain!("warmfs: and {more} more");
    }
}

fn complain_of(troubles: &Troubles) {
    troubles.named.iter().for_each(|line| complain!("warmfs: {line}"));
}

/// Why not everything is warm, by kind, each with its remedy.
fn problems(report: &WarmReport, troubles: &Troubles) -> Vec<String> {
    let room = format!(
        "found no room ({}): {} of {} fit; a larger --cache-size would hold them",
        show_size(report.bytes_without_room),
        show_size(report.bytes_warm),
        show_size(report.bytes_total)
    );
    [
        (report.files_cold, "not warm: the same command without --check makes them so"),
        (report.files_without_room, room.as_str()),
        (report.files_too_large, "larger than the whole cache"),
        (report.files_changing, "changed all the time, or a moment ago: warm again later"),
        (report.files_failed, "could not be read from the source"),
        (report.files_evicted, "pushed out again by readers meanwhile"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{} {what}", files(count)))
    .chain(
        [
            (report.paths_unknown, "not there, or neither file nor directory"),
            (troubles.outside, "outside the mount"),
            (troubles.no_paths, "no path at all"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} of the names {what}")),
    )
    .collect()
}

/// What each mount is asked, from paths and globs.
fn targets(paths: &[PathBuf]) -> Result<Vec<Target>, Failure> {
    let mut targets: Vec<Target> = Vec::new();
    for path in paths {
        // What bears such a name is meant by it, whatever is in the name.
        let is_glob =
            path.components().any(|c| glob::has_meta(c.as_os_str())) && path.symlink_metadata().is_err();
        let (base, pattern) = if is_glob { glob::split(path) } else { (path.clone(), PathBuf::new()) };
        let base = if base.as_os_str().is_empty() { PathBuf::from(".") } else { base };
        let mount = find_mount(&base)?;
        let relative = RelPath::new(&mount.relative).map_err(Failure::usage)?;
        let at = targets.iter().position(|t| t.mount.socket == mount.socket).unwrap_or_else(|| {
            targets.push(Target { mount, paths: Vec::new(), globs: Vec::new() });
            targets.len() - 1
        });
        match is_glob {
            false => targets[at].paths.push(relative),
            true => targets[at].globs.push(glob_of(relative, &pattern)?),
        }
    }
    Ok(targets)
}

fn glob_of(base: RelPath, pattern: &Path) -> Result<GlobPath, Failure> {
    let bad = |text: String| Failure::usage(format!("{}: {text}", PathText(pattern)));
    Glob::new(base.as_path(), pattern).map_err(bad)?;
    Ok(GlobPath { base, pattern: RelPath::new(pattern).map_err(bad)? })
}

fn request_of(args: &WarmArgs, target: Target) -> Result<Asked, Failure> {
    if target.globs.len() > GLOBS_MAX {
        return Err(Failure::usage(format!("more than {GLOBS_MAX} globs: use `**`, or --from a list")));
    }
    let socket = target.mount.socket;
    let mut parts = batches(target.paths);
    let mut request = WarmRequest { globs: target.globs, ..request(args) };
    match parts.len() {
        0 | 1 => request.paths = parts.pop().unwrap_or_default(),
        _ => request.list = send_list(&socket, None, parts)?,
    }
    Ok((socket, request))
}

fn request(args: &WarmArgs) -> WarmRequest {
    let (jobs, rate) = (args.jobs, args.rate);
    WarmRequest { jobs, rate, background: args.background, check: args.check, ..WarmRequest::default() }
}

fn send_list(socket: &Path, list: Option<u64>, parts: Vec<Vec<RelPath>>) -> Result<Option<u64>, Failure> {
    let mut list = list;
    for paths in parts {
        let answer = Client::connect(socket)?.call(&Request::WarmList { list, paths }, |_| {})?;
        list = answer["list"].as_u64();
    }
    Ok(list)
}

/// Sends the list on as it is read. `None` if it names nothing.
fn from_list(args: &WarmArgs, from: &Path, troubles: &mut Troubles) -> Result<Option<Asked>, Failure> {
    let [dir] = &args.paths[..] else {
        return Err(Failure::usage(
            "--from takes one directory, which the lines of the list are relative to",
        ));
    };
    let mount = find_mount(dir)?;
    let resolved = |e: std::io::Error| Failure::usage(format!("{}: {e}", PathText(dir)));
    let (absolute, canonical) =
        (std::path::absolute(dir).map_err(resolved)?, dir.canonicalize().map_err(resolved)?);
    if !canonical.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory", PathText(dir))));
    }
    let base = Base::new(&mount, &absolute, &canonical);
    let reader: Box<dyn Read> = match from.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(
            std::fs::File::open(from)
                .map_err(|e| Failure::usage(format!("--from {}: {e}", PathText(from))))?,
        ),
    };
    let socket = mount.socket;
    let (mut list, mut paths) = (None, Vec::new());
    for line in Lines::new(BufReader::with_capacity(1 << 20, reader), if args.null { 0 } else { b'\n' }) {
        match line.map_err(|e| Failure::run_time(format!("--from {}: {e}", PathText(from))))? {
            Line::TooLong(start) => troubles.add(&start, Trouble::NoPath),
            Line::Whole(line) => match base.place(&line) {
                Ok(path) => paths.push(path),
                Err(trouble) => troubles.add(&line, trouble),
            },
        }
        if paths.len() >= LINES_AT_ONCE {
            list = send_list(&socket, list, batches(std::mem::take(&mut paths)))?;
        }
    }
    list = send_list(&socket, list, batches(paths))?;
    Ok(list.map(|list| (socket, WarmRequest { list: Some(list), ..request(args) })))
}

/// `warmfs warm --stop`
fn stop(paths: &[PathBuf], json: bool) -> Result<(), Failure> {
    let mut stopped = 0;
    for path in paths {
        let mut client = Client::connect(&find_mount(path)?.socket)?;
        stopped += client.call(&Request::WarmStop {}, |_| {})?["stopped"].as_u64().unwrap_or(0);
    }
    if json {
        print_json(&json!({ "stopped": stopped }));
    } else {
        say!("{stopped} warm-up{} stopped", if stopped == 1 { "" } else { "s" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_files_bytes_rate_and_time_left() {
        let mut report = WarmReport {
            files_total: 40,
            files_done: 10,
            bytes_total: 9_000_000,
            bytes_done: 5_000_000,
            bytes_per_s: 1_200_000,
            seconds_left: Some(75),
            ..WarmReport::default()
        };
        let text = line(&report);
        assert_eq!(text, "10 of 40 files, 5.00 MB of 9.00 MB, 1.20 MB/s, 1 min 15 s left");
        (report.counting, report.seconds_left) = (true, None);
        assert!(line(&report).contains("10 of 40+ files"));
        assert_eq!(show_seconds(7384), "2 h 3 min");
    }

    #[test]
    fn each_kind_of_problem_is_named_with_its_count() {
        assert!(problems(&WarmReport::default(), &Troubles::default()).is_empty());
        let report = WarmReport {
            files_without_room: 2,
            files_too_large: 1,
            files_changing: 3,
            files_evicted: 4,
            paths_unknown: 5,
            ..WarmReport::default()
        };
        let troubles = Troubles { outside: 6, no_paths: 7, ..Troubles::default() };
        let text = problems(&report, &troubles).join("; ");
        for words in [
            "2 files found no room",
            "1 file larger",
            "3 files changed",
            "5 of the names not there",
            "6 of",
            "7 of",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
