//! The epochs of the data sets, as rows for the figures.
//!
//! Apart from [`super::report`] because there can be many: 256 data sets with 17 epochs each. So the order is that in which
//! they are wanted, and where an answer has a greatest size the last ones are left out.

use super::Fs;
use crate::policy::epochs::EpochFigures;
use serde_json::{Value, json};

impl Fs {
    /// Of every data set the epoch that it is in, and then those that have ended; among both what was read last comes first.
    pub(super) fn epochs_json(&self) -> Vec<Value> {
        let mut found = self.cache.reading(|desk| {
            let (epochs, groups) = (desk.epochs(), desk.groups());
            let of = |group| {
                let name = groups.name(group);
                let now = epochs.now(group).map(|figures| (name.clone(), true, group, *figures));
                let ended = epochs.finished(group).map(move |figures| (name.clone(), false, group, *figures));
                now.into_iter().chain(ended)
            };
            epochs.groups().flat_map(of).collect::<Vec<_>>()
        });
        // Within a millisecond the data set that was seen first is older.
        found
            .sort_by_key(|(_, is_now, group, figures)| std::cmp::Reverse((*is_now, figures.last_ms, *group)));
        found.iter().map(|(name, is_now, _, figures)| row(name, *is_now, figures)).collect()
    }
}

fn row(data_set: &str, is_now: bool, figures: &EpochFigures) -> Value {
    let seconds = |units: u64, in_one: f64| json!(units as f64 / in_one);
    json!({
        "data_set": data_set,
        "epoch": figures.number,
        "ended": !is_now,
        "files": figures.files_read,
        "files_known": figures.files_known,
        "hits": figures.hits,
        "misses": figures.misses,
        "bytes": figures.bytes(),
        "ssd_bytes": figures.ssd_bytes,
        "ram_bytes": figures.ram_bytes,
        "source_bytes": figures.source_bytes,
        "seconds": seconds(figures.last_ms - figures.began_ms, 1e3),
        "source_wait_s": seconds(figures.source_wait_us, 1e6),
    })
}
