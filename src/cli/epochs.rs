//! The epochs of the data sets, as `warmfs stats` shows them: a table under the figures, and what goes on now at the end of
//! each line of `--watch`.

use super::show::table;
use crate::types::units::show_size;
use serde_json::Value;

/// Data sets in the table: those that were read last. All are in the JSON.
const DATA_SETS_SHOWN_MAX: usize = 16;

/// Epochs of each in the table, the one that it is in among them.
const EPOCHS_SHOWN_MAX: usize = 4;

/// Data sets at the end of a line: a job reads one or two.
const WATCHED_MAX: usize = 3;

fn number(row: &Value, name: &str) -> u64 {
    row[name].as_u64().unwrap_or(0)
}

fn name(row: &Value) -> &str {
    row["data_set"].as_str().unwrap_or("?")
}

/// Where there are any: the last epochs of the data sets that were read last.
pub fn print(epochs: &Value) -> bool {
    let all = epochs.as_array().map_or(&[][..], Vec::as_slice);
    let rows: Vec<_> = shown(all).iter().map(|row| cells(row)).collect();
    let heading = [
        "data set",
        "epoch",
        "files",
        "hits",
        "misses",
        "from SSD",
        "from RAM",
        "from source",
        "seconds",
        "waited for the source",
    ];
    rows.is_empty() || (say!("") && table(&heading, &rows))
}

/// The rows of the table: those of a data set stand together, the newest first, as they are in the JSON.
fn shown(all: &[Value]) -> Vec<&Value> {
    let now = all.iter().filter(|row| row["ended"] == false).take(DATA_SETS_SHOWN_MAX);
    now.flat_map(|first| all.iter().filter(|row| row["data_set"] == first["data_set"]).take(EPOCHS_SHOWN_MAX))
        .collect()
}

fn cells(row: &Value) -> Vec<String> {
    let size = |name: &str| show_size(number(row, name));
    let seconds = |name: &str| format!("{:.1}", row[name].as_f64().unwrap_or(0.0));
    vec![
        name(row).to_string(),
        number(row, "epoch").to_string(),
        files(row),
        number(row, "hits").to_string(),
        number(row, "misses").to_string(),
        size("ssd_bytes"),
        size("ram_bytes"),
        size("source_bytes"),
        seconds("seconds"),
        format!("{} s", seconds("source_wait_s")),
    ]
}

/// In a first epoch nobody knows how many there will be.
fn files(row: &Value) -> String {
    match (row["ended"] == false, number(row, "epoch")) {
        (true, 2..) => format!("{} of {}", number(row, "files"), number(row, "files_known")),
        _ => number(row, "files").to_string(),
    }
}

/// In a few words: the data sets that were read between the two, and where in their epochs they are.
pub fn since(before: &Value, now: &Value) -> String {
    let before = before.as_array().map_or(&[][..], Vec::as_slice);
    let text = |row: &Value| {
        let is_it = |old: &&Value| old["data_set"] == row["data_set"] && old["epoch"] == row["epoch"];
        let old = before.iter().find(is_it);
        if row["ended"] == true || old.is_some_and(|old| uses(old) == uses(row)) {
            return None;
        }
        let waited = |row: &Value| row["source_wait_s"].as_f64().unwrap_or(0.0);
        let waited = waited(row) - old.map_or(0.0, waited);
        Some(format!("{} {}: {} files, waited {waited:.1} s", name(row), number(row, "epoch"), files(row)))
    };
    let rows = now.as_array().into_iter().flatten().filter_map(text).take(WATCHED_MAX);
    rows.collect::<Vec<_>>().join("; ")
}

fn uses(row: &Value) -> u64 {
    number(row, "hits") + number(row, "misses")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(data_set: &str, epoch: u64, ended: bool, hits: u64, waited: f64) -> Value {
        json!({
            "data_set": data_set, "epoch": epoch, "ended": ended, "files": hits, "files_known": 9,
            "hits": hits, "misses": 0, "source_wait_s": waited, "seconds": 1.0,
        })
    }

    #[test]
    fn the_table_has_the_data_sets_that_were_read_last_with_their_last_epochs() {
        let now = (0..20).map(|n| row(&format!("d{n}"), 9, false, 5, 0.0));
        let ended = (0..8).rev().map(|n| row("d3", n + 1, true, 9, 0.0));
        let all: Vec<Value> = now.chain(ended).collect();
        let told: Vec<_> = shown(&all).iter().map(|row| (name(row), number(row, "epoch"))).collect();
        assert_eq!(told.len(), 16 + 3);
        assert_eq!(told[2..8], [("d2", 9), ("d3", 9), ("d3", 8), ("d3", 7), ("d3", 6), ("d4", 9)]);
        assert_eq!((files(&all[0]), files(all.last().unwrap())), ("5 of 9".into(), "9".into()));
    }

    #[test]
    fn a_line_tells_only_of_what_was_read_since_the_last() {
        let before = json!([row("train", 1, false, 5, 1.0), row("val", 1, false, 5, 1.0)]);
        let now = json!([row("train", 1, false, 7, 3.5), row("val", 1, false, 5, 1.0)]);
        assert_eq!(since(&before, &now), "train 1: 7 files, waited 2.5 s");
        let later = json!([row("train", 2, false, 1, 0.5), row("train", 1, true, 9, 4.0)]);
        assert_eq!(since(&now, &later), "train 2: 1 of 9 files, waited 0.5 s");
        assert_eq!(since(&now, &now), "");
    }
}
