//! `advise`: what hit ratio other cache sizes would have given.
//!
//! Of a mount its daemon answers, from a sample of all that was read since it was mounted. Of a trace the whole of it is
//! replayed here, through every policy and through the best that knows the future.

use super::Failure;
use super::show::{print_json, table};
use crate::control::{ADVISE_SIZES_MAX, Client, Request, find_mount};
use crate::policy::simulate::{self, Figures, Point, Trace};
use crate::policy::trace::{LINE_BYTES_MAX, TraceReader};
use crate::types::PathText;
use crate::types::units::{parse_size, show_size};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// `warmfs advise`
pub fn advise(
    path: Option<&Path>,
    trace: Option<&Path>,
    sizes: &[String],
    json: bool,
) -> Result<(), Failure> {
    if sizes.len() > ADVISE_SIZES_MAX {
        return Err(Failure::usage(format!("--cache-size: {ADVISE_SIZES_MAX} sizes at most")));
    }
    let parse = |text: &String| match parse_size(text) {
        Ok(0) => Err(Failure::usage("--cache-size: 0 is no cache; accepted: a size such as 200GB")),
        Ok(bytes) => Ok(bytes),
        Err(e) => Err(Failure::usage(format!("--cache-size: {e}"))),
    };
    let sizes = sizes.iter().map(parse).collect::<Result<Vec<u64>, _>>()?;
    match (path, trace) {
        (_, Some(trace)) => of_trace(trace, sizes, json),
        (Some(path), None) => of_mount(path, sizes, json),
        (None, None) => Err(Failure::usage("a path on a mount or --trace FILE is wanted")),
    }
}

fn of_mount(path: &Path, cache_bytes: Vec<u64>, json: bool) -> Result<(), Failure> {
    let found = find_mount(path)?;
    let advice = Client::connect(&found.socket)?.call(&Request::Advise { cache_bytes }, |_| {})?;
    if json {
        print_json(&advice);
        return Ok(());
    }
    let number = |value: &Value, name: &str| value[name].as_u64().unwrap_or(0);
    if number(&advice, "uses") == 0 {
        say!("Nothing was read on this mount yet: read some, then ask again.");
        return Ok(());
    }
    say!(
        "{} uses of about {} files, {} (a sample of {} files{})",
        number(&advice, "uses"),
        number(&advice, "files"),
        show_size(number(&advice, "bytes")),
        number(&advice, "sampled_files"),
        if advice["is_part"] == true { ", the last part of what was read" } else { "" },
    );
    let capacity = number(&advice, "cache_capacity_bytes");
    let row = |point: &Value| {
        let bytes = number(point, "cache_bytes");
        let share = |name: &str| ratio(point[name].as_f64().unwrap_or(0.0));
        let shown = if bytes == capacity { format!("{} (now)", show_size(bytes)) } else { show_size(bytes) };
        let names = ["epoch_hit_ratio", "epoch_byte_hit_ratio", "lru_hit_ratio", "lru_byte_hit_ratio"];
        [vec![shown], names.map(share).to_vec()].concat()
    };
    let rows: Vec<_> = advice["sizes"].as_array().into_iter().flatten().map(row).collect();
    table(&["cache size", "epoch", "of bytes", "lru", "of bytes"], &rows);
    Ok(())
}

fn of_trace(path: &Path, mut sizes: Vec<u64>, json: bool) -> Result<(), Failure> {
    let (trace, counts_files) = read_trace(path)?;
    if sizes.is_empty() {
        sizes = simulate::usual_sizes(trace.bytes());
    }
    sizes.sort_unstable();
    sizes.dedup();
    let points = simulate::curve(&trace, &sizes);
    if json {
        print_json(&as_json(&trace, counts_files, &points));
        return Ok(());
    }
    let size = |n: u64| if counts_files { format!("{n} files") } else { show_size(n) };
    let uses = points.first().map_or(0, |point| point.lru.uses);
    say!(
        "{} opens, {uses} uses, of {} files{}",
        trace.opens.len(),
        trace.files.len(),
        if counts_files { String::new() } else { format!(", {}", show_size(trace.bytes())) },
    );
    let row = |point: &Point| {
        let share = point.cache_bytes as f64 * 100.0 / trace.bytes().max(1) as f64;
        let by = [point.epoch, point.none, point.lru, point.best].map(|figures| ratio(figures.hit_ratio()));
        [vec![size(point.cache_bytes), format!("{share:.0} %")], by.to_vec()].concat()
    };
    let heading = ["cache size", "of the data", "epoch", "none", "lru", "best possible"];
    table(&heading, &points.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

fn as_json(trace: &Trace, counts_files: bool, points: &[Point]) -> Value {
    let figures = |figures: Figures| {
        json!({ "hit_ratio": figures.hit_ratio(), "byte_hit_ratio": figures.byte_hit_ratio(),
            "written_bytes": figures.written_bytes })
    };
    let point = |point: &Point| {
        json!({ "cache_bytes": point.cache_bytes, "epoch": figures(point.epoch), "none": figures(point.none),
            "lru": figures(point.lru), "best": figures(point.best) })
    };
    json!({ "opens": trace.opens.len(), "uses": points.first().map_or(0, |point| point.lru.uses),
        "files": trace.files.len(), "bytes": trace.bytes(), "bytes_are_files": counts_files,
        "sizes": points.iter().map(point).collect::<Vec<_>>() })
}

fn ratio(of: f64) -> String {
    format!("{of:.3}")
}

/// The trace, and whether its sizes are numbers of files.
fn read_trace(path: &Path) -> Result<(Trace, bool), Failure> {
    let shown = PathText(path).to_string();
    let is_stdin = path.as_os_str() == "-";
    let source: Box<dyn Read> = match is_stdin {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(path).map_err(|e| Failure::usage(format!("--trace {shown}: {e}")))?),
    };
    let wrong = |e: &dyn std::fmt::Display| Failure::usage(format!("--trace {shown}: {e}"));
    let mut source = BufReader::with_capacity(1 << 20, source);
    let mut reader = TraceReader::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        // One byte more than a line may have and its newline: rubbish without lines must not fill memory.
        let limit = LINE_BYTES_MAX as u64 + 2;
        if source.by_ref().take(limit).read_until(b'\n', &mut line).map_err(|e| wrong(&e))? == 0 {
            break;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        reader.line(text.strip_suffix(b"\r").unwrap_or(text)).map_err(|e| wrong(&e))?;
    }
    let counts_files = reader.counts_files();
    Ok((reader.finish().map_err(|e| wrong(&e))?, counts_files))
}
