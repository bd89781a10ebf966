//! Which data set a path belongs to.
//!
//! A data set is a directory: jobs read all of it, once per epoch, and move on to another. Nobody tells us which
//! directory it is, so the names do:
//!
//! - the first part of the path that says train, val or test ends the name of a data set: `imagenet/train`,
//!   `coco/images/val2017`, `train-clean-100`. A job reads the parts of a data set at different rates;
//! - without such a part it is the directory at the top of the mount: `laion/00001.tar` belongs to `laion`;
//! - unless there are many at the top: then they are the classes, or the shards, of one data set that the mount lies
//!   directly over, and what was taken for several until then is one ([`Groups::take_merges`]);
//! - files at the top itself belong to the mount.
//!
//! Bounded: a data set beyond [`GROUPS_MAX`] counts as the mount's.

use crate::types::{GroupId, escape_bytes};
use std::collections::HashMap;

/// The mount itself.
pub const MOUNT: GroupId = GroupId(0);

/// Data sets that are told apart at most. They do not end: a daemon may run for months.
pub const GROUPS_MAX: usize = 256;

/// With more directories at the top than this they are classes and no data sets. A shared tree of data sets has tens, an
/// ImageFolder hundreds.
const TOP_MAX: usize = 32;

/// A part of the path deeper than this names no split: `.../2023/test/0001` is how samples are called.
const DEPTH_MAX: usize = 4;

/// A name longer than this is no name that anybody gave to a data set.
const NAME_BYTES_MAX: usize = 1024;

const SPLITS: [&[u8]; 10] = [
    b"train",
    b"training",
    b"val",
    b"valid",
    b"validation",
    b"test",
    b"testing",
    b"dev",
    b"eval",
    b"evaluation",
];

/// The data sets of one mount.
pub struct Groups {
    by_name: HashMap<Box<[u8]>, GroupId>,
    names: Vec<Box<[u8]>>,
    /// Directories at the top that were taken for data sets.
    top: Vec<GroupId>,
    collapsed: bool,
    merges: Vec<(GroupId, GroupId)>,
}

impl Default for Groups {
    fn default() -> Self {
        Self {
            by_name: HashMap::from([(Box::default(), MOUNT)]),
            names: vec![Box::default()],
            top: Vec::new(),
            collapsed: false,
            merges: Vec::new(),
        }
    }
}

impl Groups {
    /// The data set of the file at `path`, below the mount.
    pub fn of(&mut self, path: &[u8]) -> GroupId {
        let (name, is_split) = name_of(path);
        if !is_split && self.collapsed {
            return MOUNT;
        }
        if let Some(&id) = self.by_name.get(name) {
            return id;
        }
        if self.names.len() >= GROUPS_MAX || name.len() > NAME_BYTES_MAX {
            return MOUNT;
        }
        let id = GroupId(self.names.len() as u16);
        if !is_split {
            self.top.push(id);
            if self.top.len() > TOP_MAX {
                self.collapse();
                return MOUNT;
            }
        }
        self.names.push(name.into());
        self.by_name.insert(name.into(), id);
        id
    }

    /// The data set of the file at `path` as far as it is known.
    pub fn peek(&self, path: &[u8]) -> GroupId {
        let (name, is_split) = name_of(path);
        match is_split || !self.collapsed {
            true => self.by_name.get(name).copied().unwrap_or(MOUNT),
            false => MOUNT,
        }
    }

    /// The directory below which the files of a data set are, and whether they may lie deeper in it.
    pub fn dir(&self, id: GroupId) -> (&[u8], bool) {
        let name = self.names.get(usize::from(self.current(id).0)).map_or(&[][..], |name| name);
        (name, !name.is_empty() || self.collapsed)
    }

    /// From now on the directories at the top are parts of one data set.
    fn collapse(&mut self) {
        self.collapsed = true;
        for from in self.top.drain(..).filter(|id| usize::from(id.0) < self.names.len()) {
            self.by_name.insert(self.names[usize::from(from.0)].clone(), MOUNT);
            self.merges.push((from, MOUNT));
        }
    }

    /// What was found to be one data set since the last call, as (from, into): who keeps something by group moves it.
    pub fn take_merges(&mut self) -> Vec<(GroupId, GroupId)> {
        std::mem::take(&mut self.merges)
    }

    /// What `id`, given out at any time, stands for now.
    pub fn current(&self, id: GroupId) -> GroupId {
        self.names.get(usize::from(id.0)).and_then(|name| self.by_name.get(name)).copied().unwrap_or(MOUNT)
    }

    /// The directory, to be shown; `.` for the mount itself.
    pub fn name(&self, id: GroupId) -> String {
        match self.names.get(usize::from(self.current(id).0)) {
            Some(name) if !name.is_empty() => escape_bytes(name),
            _ => ".".into(),
        }
    }
}

/// The directory that makes the data set, and whether a split ends it.
fn name_of(path: &[u8]) -> (&[u8], bool) {
    let mut top: &[u8] = b"";
    let mut start = 0;
    for depth in 0..DEPTH_MAX {
        // The last part is the file.
        let Some(len) = path[start..].iter().position(|&b| b == b'/') else { break };
        let end = start + len;
        if depth == 0 {
            top = &path[..end];
        }
        if is_split(&path[start..end]) {
            return (&path[..end], true);
        }
        start = end + 1;
    }
    (top, false)
}

/// Whether a word of the name, between digits and marks, is that of a split.
fn is_split(name: &[u8]) -> bool {
    let mut words = name.split(|b| !b.is_ascii_alphabetic());
    words.any(|word| SPLITS.iter().any(|split| split.eq_ignore_ascii_case(word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(paths: &[&str]) -> Vec<String> {
        let mut groups = Groups::default();
        let ids: Vec<GroupId> = paths.iter().map(|path| groups.of(path.as_bytes())).collect();
        ids.iter().map(|&id| groups.name(id)).collect()
    }

    #[test]
    fn data_sets_as_they_lie_about() {
        let known = [
            ("a.jpg", "."),
            ("train/n01440764/1.JPEG", "train"),
            ("val/n01440764/1.JPEG", "val"),
            ("imagenet/train/n01440764/1.JPEG", "imagenet/train"),
            ("coco/images/val2017/000000000139.jpg", "coco/images/val2017"),
            ("coco/annotations/instances.json", "coco"),
            ("LibriSpeech/train-clean-100/19/198/19-198-0001.flac", "LibriSpeech/train-clean-100"),
            ("laion/00001.tar", "laion"),
            ("speech_Test_set/a", "speech_Test_set"),
            ("contest/trainer/evaluate/x", "contest"),
            ("a/b/c/d/train/x", "a"),
            ("train", "."),
        ];
        let (paths, expected): (Vec<&str>, Vec<&str>) = known.iter().copied().unzip();
        assert_eq!(names(&paths), expected);
    }

    #[test]
    fn a_thousand_classes_at_the_top_are_one_data_set() {
        let mut groups = Groups::default();
        let first = groups.of(b"n00000/1.jpg");
        assert_eq!(groups.name(first), "n00000");
        let split = groups.of(b"train/n00000/1.jpg");
        let last = (0..1000).map(|n| groups.of(format!("n{n:05}/1.jpg").as_bytes())).last();
        assert_eq!(last, Some(MOUNT));
        assert_eq!(groups.name(first), ".", "an id from before stands for the same");
        assert_eq!(groups.of(b"n00000/2.jpg"), MOUNT);
        let merges = groups.take_merges();
        assert_eq!(merges.len(), TOP_MAX);
        assert!(merges.contains(&(first, MOUNT)) && groups.take_merges().is_empty());
        assert_eq!(groups.of(b"train/n00001/1.jpg"), split, "a split stays what it is");
    }

    #[test]
    fn never_more_than_the_maximum() {
        let mut groups = Groups::default();
        for n in 0..100_000 {
            let id = groups.of(format!("set{n}/train/x").as_bytes());
            assert!(usize::from(id.0) < GROUPS_MAX);
        }
        assert!(groups.names.len() <= GROUPS_MAX && groups.by_name.len() <= GROUPS_MAX);
        assert_eq!(groups.of(&[b'x'; 5000]), MOUNT);
        assert_eq!(groups.name(GroupId(9999)), ".");
    }
}
