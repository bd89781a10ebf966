//! Lists of names that arrive in parts, until a warm-up takes them. Bounded: a few lists, of which those that nobody adds to
//! are dropped.

use super::look::Look;
use super::spool::Spool;
use crate::cache::Cache;
use crate::types::sync::Mutex;
use crate::types::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Lists at the same time.
const LISTS_MAX: usize = 8;
/// A list that was not added to for so long is forgotten when another begins.
const IDLE: Duration = Duration::from_secs(600);

/// The lists of one mount.
#[derive(Default)]
pub struct Lists {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    begun: u64,
    /// `None` while somebody writes to it.
    lists: HashMap<u64, (Instant, Option<Spool>)>,
}

impl Lists {
    /// Adds names to a list, or begins one; gives its number.
    pub fn add<'a>(
        &self,
        cache: &Cache,
        list: Option<u64>,
        names: impl Iterator<Item = &'a Path>,
    ) -> Result<u64> {
        let (id, mut spool) = match list {
            Some(id) => (id, self.take(id)?),
            None => (self.begin()?, Spool::default()),
        };
        for name in names {
            if let Err(e) = spool.push(cache, &Look::Named(name.to_path_buf()).to_bytes()) {
                self.table.lock().lists.remove(&id);
                return Err(e);
            }
        }
        self.table.lock().lists.insert(id, (Instant::now(), Some(spool)));
        Ok(id)
    }

    fn begin(&self) -> Result<u64> {
        let mut table = self.table.lock();
        table.lists.retain(|_, (used, _)| used.elapsed() < IDLE);
        if table.lists.len() >= LISTS_MAX {
            let text = format!("{LISTS_MAX} lists are being sent already: try again in a while");
            return Err(Error::new(ErrorKind::Busy, "", text));
        }
        table.begun += 1;
        let id = table.begun;
        table.lists.insert(id, (Instant::now(), None));
        Ok(id)
    }

    fn take(&self, id: u64) -> Result<Spool> {
        let mut table = self.table.lock();
        let spool = table.lists.get_mut(&id).and_then(|(_, spool)| spool.take());
        spool
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "", format!("there is no list {id}: send it anew")))
    }

    /// Takes a list, which then is no more.
    pub fn remove(&self, id: u64) -> Result<Spool> {
        let spool = self.take(id)?;
        self.table.lock().lists.remove(&id);
        Ok(spool)
    }
}
