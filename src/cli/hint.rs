//! `hint`: tells a mount in which order files will be opened.
//!
//! The list is passed on as it is read, in requests that fit, so that it may be longer than memory and come from a pipe.
//! What is no path is counted, and the first few are shown: a list that is partly right is of use all the same.

use super::Failure;
use super::args::HintArgs;
use super::list::{Line, Lines};
use super::show::{print_json, table};
use crate::control::{Client, ClientError, ControlErrorKind, REQUEST_BYTES_MAX, Request, find_mount};
use crate::types::{PathText, escape_bytes};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Room in a request for what is not a path.
const FRAME_BYTES: usize = 4096;

/// Refused lines that are shown.
const SHOWN_MAX: usize = 5;

/// `warmfs hint`
pub fn hint(args: &HintArgs) -> Result<(), Failure> {
    let found = find_mount(&args.mount)?;
    let mut teller = Teller {
        client: Client::connect(&found.socket)?,
        job: args.job.clone(),
        clear: args.clear,
        paths: Vec::new(),
        bytes: 0,
        accepted: 0,
        refused: 0,
        refused_first: Vec::new(),
    };
    if let Some(order) = &args.order {
        teller.tell_all(order, if args.null { 0 } else { b'\n' })?;
    }
    // The last request, or the only one.
    let jobs = teller.send()?;
    let first = teller.refused_first.join("; ");
    let refused = format!("{} lines refused, the first of them: {first}", teller.refused);
    if teller.refused > 0 && teller.accepted == 0 {
        let order = args.order.as_deref().unwrap_or(Path::new("-"));
        return Err(Failure::usage(format!("--order {}: no line is accepted; {refused}", PathText(order))));
    }
    if args.json {
        print_json(&json!({ "accepted": teller.accepted, "refused": teller.refused,
            "refused_first": teller.refused_first, "jobs": jobs }));
    } else if args.order.is_some() {
        say!("{} lines accepted for job {}", teller.accepted, args.job);
    } else if !args.clear {
        show(&jobs);
    }
    if teller.refused > 0 {
        complain!("warmfs: {refused}");
    }
    Ok(())
}

struct Teller {
    client: Client,
    job: String,
    clear: bool,
    paths: Vec<String>,
    bytes: usize,
    accepted: u64,
    refused: u64,
    refused_first: Vec<String>,
}

impl Teller {
    fn tell_all(&mut self, order: &Path, end: u8) -> Result<(), Failure> {
        let wrong = |e: std::io::Error| Failure::usage(format!("--order {}: {e}", PathText(order)));
        let source: Box<dyn Read> = match order.as_os_str() == "-" {
            true => Box::new(std::io::stdin()),
            false => Box::new(File::open(order).map_err(wrong)?),
        };
        for line in Lines::new(BufReader::with_capacity(1 << 20, source), end) {
            match line.map_err(wrong)? {
                Line::TooLong(first) => {
                    self.refuse(format!("longer than a path can be: {}…", escape_bytes(&first[..40])));
                }
                Line::Whole(line) if end == 0 => self.add(escape_bytes(&line))?,
                Line::Whole(line) => match path_of(&line) {
                    [] => {}
                    path => self.add(escape_bytes(path))?,
                },
            }
        }
        Ok(())
    }

    fn add(&mut self, text: String) -> Result<(), Failure> {
        // JSON doubles at most each byte of such text, plus `"",`.
        let bytes = 2 * text.len() + 3;
        if self.bytes + bytes > REQUEST_BYTES_MAX - FRAME_BYTES {
            self.send()?;
        }
        self.bytes += bytes;
        self.paths.push(text);
        Ok(())
    }

    /// Sends what waits. Gives what is known of all jobs.
    fn send(&mut self) -> Result<Value, Failure> {
        self.bytes = 0;
        let paths = std::mem::take(&mut self.paths);
        let clear = std::mem::take(&mut self.clear);
        let request = Request::Hint { job: self.job.clone(), clear, paths };
        let answer = self.client.call(&request, |_| {}).map_err(|e| match e {
            ClientError::Refused(e) if e.kind == ControlErrorKind::BadRequest => Failure::usage(e.message),
            e => e.into(),
        })?;
        self.accepted += answer["accepted"].as_u64().unwrap_or(0);
        let first = answer["refused_first"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let refused = answer["refused"].as_u64().unwrap_or(0);
        for reason in first {
            if self.refused_first.len() < SHOWN_MAX {
                self.refused_first.push(reason.into());
            }
        }
        self.refused += refused;
        Ok(answer["jobs"].clone())
    }

    fn refuse(&mut self, reason: String) {
        self.refused += 1;
        if self.refused_first.len() < SHOWN_MAX {
            self.refused_first.push(reason);
        }
    }
}

/// The path of a line, which may be one of a trace with the bytes of the file and a tab before it.
fn path_of(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match line.iter().position(|b| !b.is_ascii_digit()) {
        Some(tab) if tab > 0 && line[tab] == b'\t' => &line[tab + 1..],
        _ => line,
    }
}

fn show(jobs: &Value) {
    let jobs = jobs.as_array().cloned().unwrap_or_default();
    if jobs.is_empty() {
        say!("No order is known: `warmfs hint MOUNT --order FILE` tells of one.");
        return;
    }
    let text = |job: &Value, name: &str| match &job[name] {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        Value::Number(n) if n.is_f64() => format!("{:.3}", n.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    };
    let names = ["job", "state", "position", "lines", "precision", "skipped", "unknown"];
    let rows: Vec<_> = jobs.iter().map(|job| names.map(|name| text(job, name)).to_vec()).collect();
    table(&names, &rows);
    for job in &jobs {
        for path in job["unknown_first"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            complain!("warmfs: job {}: no such file in the source: {path}", text(job, "job"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_a_trace_is_a_path_too() {
        for (line, path) in [
            ("a/b", "a/b"),
            ("12\tc\r", "c"),
            ("1\td\te", "d\te"),
            ("n\t1", "n\t1"),
            ("\tx", "\tx"),
            ("12\t", ""),
            ("12", "12"),
        ] {
            assert_eq!(path_of(line.as_bytes()), path.as_bytes(), "{line:?}");
        }
    }
}
