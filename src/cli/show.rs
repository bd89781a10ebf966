//! Tables, progress and JSON, the same for every verb. Progress is a bar on a terminal and plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Writes to standard output; false if its reader has gone, which is no error, and no reason for a daemon to end.
pub fn out(text: impl Display) -> bool {
    let mut stdout = std::io::stdout();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).is_ok()
}

/// The same to standard error.
pub fn err(text: impl Display) {
    let _ = write!(std::io::stderr(), "{text}");
}

/// One JSON value and a newline.
pub fn print_json(value: &impl Serialize) -> bool {
    let text = serde_json::to_string_pretty(value).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"));
    say!("{text}")
}

/// `1 file`, `2 files`.
pub fn files(count: u64) -> String {
    format!("{count} file{}", if count == 1 { "" } else { "s" })
}

/// A table with a heading, its columns as wide as they must be.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> bool {
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count());
        cells.chain([heading[i].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let print = |cells: &mut dyn Iterator<Item = &str>| {
        let padded: Vec<String> = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        say!("{}", padded.join("  ").trim_end())
    };
    print(&mut heading.iter().copied()) && rows.iter().all(|row| print(&mut row.iter().map(String::as_str)))
}

/// Progress of something with a known end.
pub struct Progress {
    bar: Option<ProgressBar>,
    last_line: Instant,
    what: &'static str,
}

/// Between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

impl Progress {
    /// Progress of `what`; silent if `quiet`.
    pub fn new(what: &'static str, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let style = "{msg} [{bar:30}] {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
            let style = ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(0).with_style(style).with_message(what)
        });
        // Quiet is a line interval that never ends.
        let last_line =
            if quiet { Instant::now() + Duration::from_secs(u32::MAX.into()) } else { Instant::now() };
        Self { bar, last_line, what }
    }

    /// Progress that is a line of text beside a bar; silent if `quiet`.
    pub fn with_line(quiet: bool) -> Self {
        let mut progress = Self::new("", quiet);
        progress.bar = progress.bar.map(|bar| {
            let style = ProgressStyle::with_template("[{bar:20}] {wide_msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        progress
    }

    /// So many bytes are done, and `line` says it all.
    pub fn line(&mut self, bytes: u64, bytes_total: u64, line: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(bytes_total);
                bar.set_position(bytes);
                bar.set_message(line.to_string());
            }
            None if is_due(&mut self.last_line) => complain!("{line}"),
            None => {}
        }
    }

    /// So many bytes and files are done.
    pub fn set(&mut self, bytes: u64, bytes_total: u64, files: u64, files_total: u64) {
        match &self.bar {
            Some(bar) => {
                bar.set_length(bytes_total);
                bar.set_position(bytes);
                bar.set_message(format!("{} {files}/{files_total}", self.what));
            }
            None if is_due(&mut self.last_line) => {
                let shown = crate::types::units::show_size;
                complain!(
                    "{}: {files} of {files_total} files, {} of {}",
                    self.what,
                    shown(bytes),
                    shown(bytes_total)
                );
            }
            None => {}
        }
    }

    /// The end: the bar goes.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Whether a plain line is due, which is then the last one.
fn is_due(last: &mut Instant) -> bool {
    let due = Instant::now().checked_duration_since(*last) >= Some(LINE_INTERVAL);
    if due {
        *last = Instant::now();
    }
    due
}
