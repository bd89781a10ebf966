//! The figures of a mount as one flat JSON object: the xattr, the control socket, `.warmfs/stats.json` and
//! `warmfs stats` all show this. Where an answer has a greatest size the oldest epochs are left out.

use super::Fs;
use serde_json::{Map, Value, json};

impl Fs {
    /// All figures, by stable names.
    pub fn stats_json(&self) -> Value {
        self.all_figures(self.epochs_json(), 0)
    }

    /// The same as text of at most `bytes_max`, which must be enough for the figures without epochs.
    pub(super) fn stats_text(&self, bytes_max: usize) -> String {
        let mut epochs = self.epochs_json();
        let others = self.all_figures(Vec::new(), epochs.len()).to_string().len();
        let mut room = bytes_max.saturating_sub(others);
        let fits = |row: &&Value| {
            let bytes = row.to_string().len() + 1;
            let fits = bytes <= room;
            room = room.saturating_sub(bytes);
            fits
        };
        let kept = epochs.iter().take_while(fits).count();
        let left_out = epochs.len() - kept;
        epochs.truncate(kept);
        self.all_figures(epochs, left_out).to_string()
    }

    fn all_figures(&self, epochs: Vec<Value>, epochs_left_out: usize) -> Value {
        let mut map: Map<String, Value> =
            self.stats.rows().into_iter().map(|(name, _, value)| (name.to_string(), json!(value))).collect();
        let (hits, misses) = (self.stats.hits.get(), self.stats.misses.get());
        let asked = hits + misses;
        let ratio = if asked == 0 { Value::Null } else { json!(hits as f64 / asked as f64) };
        let usage = self.cache.usage();
        let (waiting, threads) = self.pool.gauges();
        let (ahead_waiting, _) = self.ahead.gauges();
        for (name, value) in [
            ("hit_ratio", ratio),
            // Nothing is pinned or decoded yet; the names are promised.
            ("pinned_bytes", json!(0)),
            ("decoded_bytes", json!(0)),
            ("epochs", json!(epochs)),
            ("epochs_left_out", json!(epochs_left_out)),
            ("cache_used_bytes", json!(usage.bytes)),
            ("cache_capacity_bytes", json!(usage.bytes_max)),
            ("cached_files", json!(self.cache.file_count())),
            ("ram_window_bytes", json!(self.cache.ram_bytes())),
            // Seconds since 1970; null before the first pass of this cache has ended.
            ("scrub_last_pass_s", json!(self.cache.scrub().last_pass_s())),
            ("scrub_waiting_files", json!(self.cache.scrub().waiting())),
            ("warm_jobs", json!(self.cache.warms().running())),
            ("warming", self.cache.warms().figures()),
            ("nodes", json!(self.nodes.len())),
            ("names_ahead_queue", json!(ahead_waiting)),
            ("names_kept_dirs", json!(self.kept.gauges().0)),
            ("source_queue_depth", json!(waiting)),
            ("source_threads", json!(threads)),
            ("source_waiting", json!(self.watch.len())),
            ("source_silent", json!(self.watch.is_silent())),
            ("passthrough", json!(self.passthrough_off().is_none())),
            ("io_engine", json!(self.cache.engine_name())),
        ] {
            map.insert(name.into(), value);
        }
        Value::Object(map)
    }
}
