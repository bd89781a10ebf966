//! `record`: writes down which files are used on a mount, in their order, until it is told to end.
//!
//! The daemon tells and this process writes, with the rights of whoever called it; when it ends, the daemon forgets it.

use super::Failure;
use crate::control::{Client, ClientError, ControlErrorKind, Request, find_mount};
use crate::types::units::{parse_size, show_size};
use crate::types::{PathText, unescape_bytes};
use parking_lot::Mutex;
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// After the wish to end: what was used until then is on its way.
const GRACE: Duration = Duration::from_millis(300);

/// The trace, and what became of it.
struct Trace {
    file: Box<dyn Write + Send>,
    shown: String,
    sizes: bool,
    bytes_max: u64,
    bytes: u64,
    uses: u64,
    /// Uses that the daemon could not keep for us.
    lost: u64,
    /// Paths that are no line.
    unwritable: u64,
    failed: bool,
}

/// `warmfs record`
pub fn record(mount: &Path, out: &Path, sizes: bool, max_size: &str) -> Result<(), Failure> {
    let bytes_max = parse_size(max_size).map_err(|e| Failure::usage(format!("--max-size: {e}")))?;
    let found = find_mount(mount)?;
    let mut client = Client::connect(&found.socket)?;
    let shown = PathText(out).to_string();
    let file: Box<dyn Write + Send> = match out.as_os_str() == "-" {
        true => Box::new(std::io::stdout()),
        false => Box::new(File::create(out).map_err(|e| Failure::usage(format!("--out {shown}: {e}")))?),
    };
    let trace =
        Trace { file, shown, sizes, bytes_max, bytes: 0, uses: 0, lost: 0, unwritable: 0, failed: false };
    let trace = Arc::new(Mutex::new(trace));
    end_at_signals(trace.clone())?;
    let mut has_begun = false;
    let result = client.call(&Request::Record {}, |told| {
        if !std::mem::replace(&mut has_begun, true) {
            complain!("recording the uses of {}; Ctrl-C ends it", PathText(&found.mountpoint));
        }
        let mut trace = trace.lock();
        if trace.add(&told).is_err() || trace.bytes >= trace.bytes_max {
            trace.end();
        }
    });
    match result {
        // The mount has ended.
        Err(ClientError::Closed { .. }) => trace.lock().end(),
        Err(ClientError::Refused(e)) if e.kind == ControlErrorKind::Cancelled => trace.lock().end(),
        Err(e) => Err(e.into()),
        Ok(_) => trace.lock().end(),
    }
}

fn end_at_signals(trace: Arc<Mutex<Trace>>) -> Result<(), Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]);
    let mut signals = signals.map_err(|e| Failure::run_time(format!("signals: {e}")))?;
    std::thread::spawn(move || {
        if signals.forever().next().is_some() {
            std::thread::sleep(GRACE);
            trace.lock().end();
        }
    });
    Ok(())
}

impl Trace {
    /// Writes whole lines, all that were told at once, so that a trace that is cut off anywhere is one.
    fn add(&mut self, told: &Value) -> std::io::Result<()> {
        let mut lines = Vec::new();
        self.lost = told["lost"].as_u64().unwrap_or(0);
        for one in told["uses"].as_array().into_iter().flatten() {
            let path = one[1].as_str().and_then(unescape_bytes);
            let Some(path) = path.filter(|path| !path.contains(&b'\n')) else {
                self.unwritable += 1;
                continue;
            };
            let start = lines.len();
            if self.sizes {
                lines.extend_from_slice(format!("{}\t", one[0].as_u64().unwrap_or(0)).as_bytes());
            }
            lines.extend_from_slice(&path);
            lines.push(b'\n');
            if self.bytes + lines.len() as u64 > self.bytes_max {
                lines.truncate(start);
                // Which ends it.
                self.bytes = self.bytes_max;
                break;
            }
            self.uses += 1;
        }
        self.bytes += lines.len() as u64;
        let written = self.file.write_all(&lines).and_then(|()| self.file.flush());
        if let Err(e) = &written {
            complain!("warmfs: --out {}: {e}", self.shown);
            self.failed = true;
        }
        written
    }

    /// Says what was written, and ends the process: the call to the daemon waits for more.
    fn end(&mut self) -> ! {
        if self.failed {
            std::process::exit(1);
        }
        complain!("{} uses recorded in {}, {}", self.uses, self.shown, show_size(self.bytes));
        let missing = self.lost + self.unwritable;
        if missing > 0 {
            complain!(
                "warmfs: {} uses came too fast to be recorded, {} paths hold a newline",
                self.lost,
                self.unwritable
            );
        }
        if self.bytes >= self.bytes_max {
            complain!("warmfs: the trace is full; --max-size allows a larger one");
        }
        std::process::exit(i32::from(missing > 0))
    }
}
