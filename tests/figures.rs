//! What a test found, in figures: one JSON line a figure, appended to the file that `WARMFS_FIGURES` names, from which
//! `scripts/scoreboard` makes its table. Every test program includes this file; without the variable the line only goes to
//! the test's output. How much a test does follows `WARMFS_TIER`: `check` (each change), `nightly`, `release`.

#![allow(dead_code)] // No test program uses all of it.

use std::io::Write;

/// One figure. `what` and `figure` (a row of the scoreboard, `R8`) name it.
pub struct Figure {
    line: serde_json::Map<String, serde_json::Value>,
}

impl Figure {
    /// `bad` of `n` trials went wrong.
    pub fn new(figure: &str, what: &str, n: u64, bad: u64) -> Self {
        let mut line = serde_json::Map::new();
        line.insert("figure".into(), figure.into());
        line.insert("what".into(), what.into());
        line.insert("n".into(), n.into());
        line.insert("bad".into(), bad.into());
        Self { line }
    }

    /// The seed that gives the same run again.
    pub fn seed(mut self, seed: u64) -> Self {
        self.line.insert("seed".into(), seed.into());
        self
    }

    /// A kind of fault and how often it really happened; a kind that never did makes the scoreboard fail.
    pub fn fired(self, kind: &str, count: u64) -> Self {
        self.nested("fired", kind, count.into())
    }

    /// A quantity that is better when it is less.
    pub fn less(self, name: &str, value: f64, unit: &str) -> Self {
        self.measure(name, value, unit, "less")
    }

    /// A quantity that is better when it is more.
    pub fn more(self, name: &str, value: f64, unit: &str) -> Self {
        self.measure(name, value, unit, "more")
    }

    /// What a reader of the table must know, such as what was left out and why.
    pub fn note(mut self, text: &str) -> Self {
        self.line.insert("note".into(), text.into());
        self
    }

    /// Writes the line.
    pub fn report(self) {
        let line = format!("{}\n", serde_json::Value::Object(self.line));
        print!("figure {line}");
        if let Some(path) = std::env::var_os("WARMFS_FIGURES") {
            // One write call: lines of tests that run at the same time do not mix.
            let file = std::fs::File::options().create(true).append(true).open(path);
            file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
        }
    }

    fn measure(self, name: &str, value: f64, unit: &str, better: &str) -> Self {
        self.nested("measures", name, serde_json::json!({ "value": value, "unit": unit, "better": better }))
    }

    fn nested(mut self, group: &str, name: &str, value: serde_json::Value) -> Self {
        let group = self.line.entry(group).or_insert_with(|| serde_json::json!({}));
        if let Some(group) = group.as_object_mut() {
            group.insert(name.into(), value);
        }
        self
    }
}

/// How much to do in this tier.
pub fn scale(check: u64, nightly: u64, release: u64) -> u64 {
    match std::env::var("WARMFS_TIER").as_deref() {
        Err(_) | Ok("check") => check,
        Ok("nightly") => nightly,
        Ok("release") => release,
        Ok(other) => panic!("WARMFS_TIER is `{other}`, not check, nightly or release"),
    }
}

/// The seed of this run: `WARMFS_TEST_SEED`, else the clock's.
pub fn seed() -> u64 {
    let given = std::env::var("WARMFS_TEST_SEED").ok().map(|s| s.parse().unwrap());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64 & 0xffff_ffff
    });
    println!("WARMFS_TEST_SEED={seed}");
    seed
}
