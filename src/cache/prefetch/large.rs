//! A large file that nobody has asked for, fetched as a reader of it would: step by step into its place, so that one who
//! opens it meanwhile has what is here and waits for no more than the step that is under way.

use super::{Cache, Fetched};
use crate::cache::fill::STEP_CHUNKS;
use crate::cache::space::Room;
use crate::cache::{Serving, Want};
use crate::store::{Tally, disk_bytes};
use crate::types::ChunkRange;
use std::sync::Arc;

impl Cache {
    /// Fetches it if there is room for all of it: room that is free or, where its tally may take places, that of files
    /// that are used later.
    pub(super) fn fetch_large(&self, want: &Want, tally: &Arc<Tally>) -> Fetched {
        if !self.may_write() {
            return Fetched::Done;
        }
        // Room for what is still to come is held, so that two of them do not both begin what only one can end.
        let room = |bytes, files| match self.room_to_spare(bytes, files) {
            None if tally.may_take_places() => self.make_room_ahead(&want.path, bytes, files),
            room => room,
        };
        let Some(mut to_come) = room(disk_bytes(want.version.size), 0) else { return Fetched::NoRoom };
        let Some(place) = room(0, 1) else { return Fetched::NoRoom };
        // Begun by a reader meanwhile: then it comes as it is read.
        let Some((file, true)) = self.put_sparse(want, place) else { return Fetched::Done };
        let serving = Serving::partial(file.clone(), None);
        for start in (0..file.all().end).step_by(STEP_CHUNKS as usize) {
            let _fetching = self.prefetch.way.fetch();
            let step = ChunkRange { start, end: (start + STEP_CHUNKS).min(file.all().end) };
            let bytes = step.bytes(file.size()).len();
            to_come.shrink(disk_bytes(bytes));
            // An error is for its readers to hear of.
            let fetched = !self.prefetch.is_stopped()
                && matches!(self.ensure_blocking(&serving, step, Room::Spare), Ok(true));
            if !fetched {
                break;
            }
            if !file.grow_ahead(bytes) {
                // Somebody reads it by now.
                tally.fetched(bytes).used();
            }
        }
        Fetched::Done
    }
}
