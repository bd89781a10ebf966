//! `stats`, `status`, `evict`, `verify`: asking a running mount through its control socket and its xattrs.

use super::Failure;
use super::epochs;
use super::show::{Progress, files, print_json, table};
use crate::cache::verify::VerifyReport;
use crate::cache::warm::WarmReport;
use crate::control::{Client, Mounted, RelPath, Request, batches, find_mount};
use crate::store::{CacheDir, Index};
use crate::types::units::show_size;
use crate::types::{PathText, escape_bytes};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `warmfs stats`
pub fn stats(path: &Path, watch: bool, json: bool) -> Result<(), Failure> {
    let found = find_mount(path)?;
    let mut client = Client::connect(&found.socket)?;
    let mut before: Option<Value> = None;
    loop {
        let now = client.call(&Request::Stats {}, |_| {})?;
        let heard = match (json, watch) {
            (true, _) => print_json(&now),
            (false, false) => print_stats(&now),
            (false, true) => print_watch(before.as_ref(), &now),
        };
        if !watch || !heard {
            return Ok(());
        }
        before = Some(now);
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn print_stats(stats: &Value) -> bool {
    let Value::Object(map) = stats else { return true };
    let figures = map.iter().filter(|(name, _)| !name.starts_with("epochs"));
    let row = |(name, value): (&String, &Value)| {
        let shown = match value.as_u64() {
            Some(n) if name.contains("bytes") => format!("{n} ({})", show_size(n)),
            _ => match value {
                Value::Null => "-".into(),
                Value::String(text) => text.clone(),
                Value::Number(n) if n.is_f64() => format!("{:.4}", n.as_f64().unwrap_or(0.0)),
                other => other.to_string(),
            },
        };
        vec![name.clone(), shown]
    };
    table(&["name", "value"], &figures.map(row).collect::<Vec<_>>()) && epochs::print(&stats["epochs"])
}

/// One line a second: what happened since the last.
fn print_watch(before: Option<&Value>, now: &Value) -> bool {
    let get = |v: &Value, name: &str| v[name].as_u64().unwrap_or(0);
    let since = |name: &str| get(now, name) - before.map_or(get(now, name), |b| get(b, name));
    if before.is_none() {
        return say!(
            "opens/s  passthrough/s  misses/s  source/s    SSD writes/s  evictions/s  cached              epochs"
        );
    }
    say!(
        "{:>7}  {:>13}  {:>8}  {:>8}    {:>12}  {:>11}  {:18}  {}",
        since("opens"),
        since("passthrough_opens"),
        since("misses"),
        show_size(since("backing_bytes_read")),
        show_size(since("ssd_bytes_written")),
        since("evictions"),
        format!(
            "{} of {}",
            show_size(get(now, "cache_used_bytes")),
            show_size(get(now, "cache_capacity_bytes"))
        ),
        epochs::since(&before.unwrap_or(&Value::Null)["epochs"], &now["epochs"]),
    )
}

/// One line of `warmfs status`.
#[derive(Default, Serialize)]
struct Status {
    path: String,
    state: String,
    files: u64,
    warm: u64,
    partial: u64,
    cold: u64,
    bytes: u64,
    cached_bytes: u64,
    /// `ssd`, `ram`, `source`, or `mixed` for trees.
    tier: String,
    /// Files that can never be warm: they are larger than the cache.
    too_large: u64,
    /// The first of the files that are not warm, each with its state.
    not_warm: Vec<String>,
    /// Warm-ups that run on this mount.
    warm_jobs: u64,
}

/// Files that are not warm and are named, for each path.
const NOT_WARM_MAX: usize = 100;
/// Those of them that the table names.
const NOT_WARM_SHOWN: usize = 10;

/// `warmfs status`
pub fn status(paths: &[PathBuf], json: bool) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for path in paths {
        find_mount(path)?;
        rows.push(status_of(path)?);
    }
    if json {
        print_json(&rows);
        return Ok(());
    }
    let row = |s: &Status| {
        if s.files == 0 {
            // A link, or a tree without files: there is nothing to cache.
            return vec![s.path.clone(), "-".into(), "0 of 0".into(), "-".into(), "-".into()];
        }
        vec![
            s.path.clone(),
            s.state.clone(),
            format!("{} of {}", s.warm, s.files),
            match s.bytes {
                0 => "0 B of 0 B".into(),
                bytes => {
                    let share = s.cached_bytes as f64 * 100.0 / bytes as f64;
                    format!("{} of {} ({share:.1} %)", show_size(s.cached_bytes), show_size(bytes))
                }
            },
            s.tier.clone(),
        ]
    };
    table(
        &["path", "state", "warm files", "cached bytes", "tier"],
        &rows.iter().map(row).collect::<Vec<_>>(),
    );
    rows.iter().filter(|s| s.warm > 0 || s.too_large > 0).for_each(say_not_warm);
    if let Some(path) = paths.first() {
        print_warming(&stats_of(path)?);
    }
    Ok(())
}

/// Names what a tree lacks that is warm but for that; of a cold one it would be a list of the tree.
fn say_not_warm(status: &Status) {
    status.not_warm.iter().take(NOT_WARM_SHOWN).for_each(|line| _ = say!("not warm: {line}"));
    let more = (status.files - status.warm).saturating_sub(NOT_WARM_SHOWN as u64);
    if more > 0 {
        say!("not warm: {} more", files(more));
    }
}

/// The warm-ups that run, and those that have ended in the background.
fn print_warming(stats: &Value) {
    for job in stats["warming"].as_array().into_iter().flatten() {
        let report: WarmReport = serde_json::from_value(job.clone()).unwrap_or_default();
        let text = |name: &str| job[name].as_str().unwrap_or_default().to_string();
        let far = match job["error"].as_str() {
            Some(error) => error.to_string(),
            None => super::warm::line(&report),
        };
        say!("warm-up {} of {}, {}: {far}", job["job"], text("what"), text("state"));
    }
}

/// The figures of the mount that `path` is on, from memory.
fn stats_of(path: &Path) -> Result<Value, Failure> {
    let mut value = vec![0; 65536];
    let read = rustix::fs::lgetxattr(path, "user.warmfs.stats", &mut value);
    let len = read.map_err(|e| Failure::run_time(format!("{}: {e}", PathText(path))))?;
    serde_json::from_slice(&value[..len]).map_err(|e| Failure::run_time(format!("{}: {e}", PathText(path))))
}

/// Asks every file below `path` through its xattrs: what is reported is true file by file.
fn status_of(path: &Path) -> Result<Status, Failure> {
    let mut total = Status { path: PathText(path).to_string(), ..Status::default() };
    let stats = stats_of(path)?;
    total.warm_jobs = stats["warm_jobs"].as_u64().unwrap_or(0);
    let capacity = stats["cache_capacity_bytes"].as_u64().unwrap_or(u64::MAX);
    for entry in walkdir::WalkDir::new(path) {
        let entry = entry.map_err(|e| Failure::run_time(e.to_string()))?;
        if !entry.file_type().is_file() {
            continue;
        }
        let size = entry.metadata().map_err(|e| Failure::run_time(e.to_string()))?.len();
        let state = xattr(entry.path(), "state")?;
        let tier = match (state.as_str(), xattr(entry.path(), "cache_path")) {
            ("cold", _) => "source",
            (_, Ok(_)) => "ssd",
            (_, Err(_)) => "ram",
        };
        total.files += 1;
        total.bytes += size;
        // What is in RAM is there while somebody reads it, and is not kept.
        let state = if tier == "ram" { "cold" } else { state.as_str() };
        match state {
            "warm" => total.warm += 1,
            "partial" => total.partial += 1,
            _ => total.cold += 1,
        }
        if state != "cold" {
            total.cached_bytes += xattr(entry.path(), "cached_bytes")?.parse().unwrap_or(0);
        }
        if state != "warm" {
            let too_large = size > capacity;
            total.too_large += u64::from(too_large);
            if total.not_warm.len() < NOT_WARM_MAX {
                let why = if too_large { "larger than the cache" } else { state };
                total.not_warm.push(format!("{}: {why}", PathText(entry.path())));
            }
        }
        total.tier = if total.tier.is_empty() || total.tier == tier { tier.into() } else { "mixed".into() };
    }
    total.state = match (total.warm, total.cold, total.files) {
        (warm, _, files) if warm == files => "warm",
        (0, cold, files) if cold == files => "cold",
        _ => "partial",
    }
    .into();
    Ok(total)
}

fn xattr(path: &Path, name: &str) -> Result<String, Failure> {
    let mut value = vec![0; 4096];
    let read = rustix::fs::lgetxattr(path, format!("user.warmfs.{name}"), &mut value);
    let len = read.map_err(|e| Failure::run_time(format!("{}: {e}", PathText(path))))?;
    value.truncate(len);
    Ok(escape_bytes(&value))
}

/// A mount, and the paths on it in requests that fit.
type Asked = (Mounted, Vec<Vec<RelPath>>);

/// The mounts that `paths` are on, each with the paths on it, in requests that fit.
fn by_mount(paths: &[PathBuf]) -> Result<Vec<Asked>, Failure> {
    let mut mounts: Vec<(Mounted, Vec<RelPath>)> = Vec::new();
    for path in paths {
        let found = find_mount(path)?;
        let relative = RelPath::new(&found.relative).map_err(Failure::usage)?;
        match mounts.iter_mut().find(|(m, _)| m.socket == found.socket) {
            Some((_, paths)) => paths.push(relative),
            None => mounts.push((found, vec![relative])),
        }
    }
    Ok(mounts.into_iter().map(|(mount, paths)| (mount, batches(paths))).collect())
}

/// Calls every request and hands each answer on.
fn call_all(
    paths: &[PathBuf],
    request: impl Fn(Vec<RelPath>) -> Request,
    mut progress: impl FnMut(&Value),
    mut answer: impl FnMut(Value) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (mount, requests) in by_mount(paths)? {
        let mut client = Client::connect(&mount.socket)?;
        for paths in requests {
            answer(client.call(&request(paths), |value| progress(&value))?)?;
        }
    }
    Ok(())
}

/// `warmfs evict`
pub fn evict(paths: &[PathBuf], json: bool) -> Result<(), Failure> {
    let (mut evicted, mut bytes, mut in_use) = (0, 0, 0);
    call_all(
        paths,
        |paths| Request::Evict { paths },
        |_| {},
        |v| {
            let number = |name: &str| v[name].as_u64().unwrap_or(0);
            evicted += number("files");
            bytes += number("bytes");
            in_use += number("in_use");
            Ok(())
        },
    )?;
    if json {
        print_json(&json!({ "files": evicted, "bytes": bytes, "in_use": in_use }));
    } else {
        say!("{} evicted, {}", files(evicted), show_size(bytes));
    }
    if in_use > 0 {
        return Err(Failure::run_time(format!(
            "{} in use stay{}; close and evict again",
            files(in_use),
            if in_use == 1 { "s" } else { "" }
        )));
    }
    Ok(())
}

/// `warmfs verify`
pub fn verify(paths: &[PathBuf], cache_dir: Option<&Path>, json: bool) -> Result<(), Failure> {
    let report = match cache_dir {
        Some(dir) => verify_offline(dir)?,
        None => verify_online(paths, json)?,
    };
    if json {
        print_json(&report);
    } else {
        say!(
            "{} verified, {}, {} damaged",
            files(report.files),
            show_size(report.bytes),
            report.damaged.len()
        );
        report.damaged.iter().for_each(|path| {
            say!("damaged, dropped: {path}");
        });
    }
    if report.damaged.is_empty() { Ok(()) } else { Err(Failure::damage()) }
}

fn verify_online(paths: &[PathBuf], json: bool) -> Result<VerifyReport, Failure> {
    let mut bar = Progress::new("verifying", json);
    let mut total = VerifyReport::default();
    let number = |v: &Value, name: &str| v[name].as_u64().unwrap_or(0);
    call_all(
        paths,
        |paths| Request::Verify { paths },
        |v| bar.set(number(v, "bytes"), number(v, "bytes"), number(v, "files"), number(v, "files_total")),
        |v| {
            total.files += number(&v, "files");
            total.bytes += number(&v, "bytes");
            total.files_total += number(&v, "files_total");
            let damaged = v["damaged"].as_array().cloned().unwrap_or_default();
            total.damaged.extend(damaged.iter().filter_map(Value::as_str).map(String::from));
            Ok(())
        },
    )?;
    bar.finish();
    Ok(total)
}

/// Verifies every source's part of a cache directory that no daemon uses.
fn verify_offline(dir: &Path) -> Result<VerifyReport, Failure> {
    if !dir.join("FORMAT").exists() {
        return Err(Failure::usage(format!("{} is not a warmfs cache directory", PathText(dir))));
    }
    let mut total = VerifyReport::default();
    for cache in CacheDir::open_all(dir)? {
        let loaded = Index::open(cache.io(), &cache.index_path())?;
        let report = crate::cache::verify::offline(&cache, loaded)?;
        total.files += report.files;
        total.files_total += report.files_total;
        total.bytes += report.bytes;
        total.damaged.extend(report.damaged);
    }
    Ok(total)
}
