//! A cache directory that somebody removed while it was in use is made anew, as far as it was removed.
//!
//! Everything is reached from descriptors, so that a removed directory goes on to work in the dark: what is filled there
//! is lost at the next start, and takes space that nobody can see. Somebody looks therefore, before each commit of the
//! index and every few seconds: directories without a name are made again, cached files without one are dropped and
//! fetched again when they are wanted, and the index is written anew from what is left. What is open stays readable.

use super::Cache;
use crate::store::Place;

impl Cache {
    /// Looks whether the cache directory still is what was opened, and mends it. Costs a few stat calls when it is.
    pub fn mend(&self) {
        let revived = match self.dir.revive().and_then(|revived| self.dir.restore_headers().map(|()| revived))
        {
            Ok(revived) => revived,
            // It cannot be had now: what is cached is forgotten as it is opened, and the source is read instead.
            Err(e) => return self.ssd_failed(&e),
        };
        if !revived && self.journal.has_its_name() {
            return;
        }
        self.stats.cache_errors.inc();
        let mut lost = 0u64;
        for file in self.all_files() {
            if let Place::Ssd { number } = file.place()
                && !self.dir.has_data(*number)
            {
                self.drop_file(&file);
                lost += 1;
            }
        }
        // In a directory that was moved away and lost its index there is nothing to be had by our path.
        let renewed = self.dir.is_in_place().then(|| self.journal.renew(self));
        match renewed {
            Some(Ok(())) => {
                tracing::warn!("the index was removed and is written anew; {lost} cached files are lost")
            }
            Some(Err(e)) => self.ssd_failed(&e),
            None => tracing::warn!("the index was removed; what is cached is forgotten at the next stop"),
        }
    }
}
