//! The reference: what a source directory holds, in memory. It knows nothing of caches, versions or mounts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A file; two names with the same number are links to one.
    File(usize),
    /// A directory.
    Dir,
    /// A link with this text, which leads nowhere.
    Link(String),
    /// A pipe.
    Fifo,
}

/// A directory and all below it.
#[derive(Default)]
pub struct Tree {
    entries: BTreeMap<PathBuf, Object>,
    contents: Vec<Arc<Vec<u8>>>,
}

impl Tree {
    /// What is under a path, or the errno that says why nothing is.
    pub fn find(&self, path: &Path) -> Result<&Object, i32> {
        for above in path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()) {
            match self.entries.get(above) {
                Some(Object::Dir) | None => {}
                Some(Object::Link(_)) => return Err(libc::ENOENT),
                Some(Object::File(_) | Object::Fifo) => return Err(libc::ENOTDIR),
            }
        }
        self.entries.get(path).ok_or(libc::ENOENT)
    }

    /// The bytes of a file.
    pub fn content(&self, file: usize) -> &Arc<Vec<u8>> {
        &self.contents[file]
    }

    /// How many names a file has.
    pub fn links(&self, file: usize) -> usize {
        self.entries.values().filter(|object| **object == Object::File(file)).count()
    }

    /// The bytes under a path, if that is a file.
    pub fn file(&self, path: &Path) -> Option<&Arc<Vec<u8>>> {
        match self.find(path) {
            Ok(Object::File(file)) => Some(self.content(*file)),
            _ => None,
        }
    }

    /// Names and objects in a directory.
    pub fn children(&self, dir: &Path) -> BTreeMap<OsString, Object> {
        let here = self.entries.iter().filter(|(path, _)| path.parent() == Some(dir));
        here.map(|(path, object)| (path.file_name().unwrap().to_owned(), object.clone())).collect()
    }

    /// Every path.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.entries.keys().cloned().collect()
    }

    /// Another content of the file under a path, by all its names.
    pub fn change(&mut self, path: &Path, bytes: Vec<u8>) {
        match self.entries.get(path) {
            Some(Object::File(file)) => self.contents[*file] = Arc::new(bytes),
            other => panic!("{} is {other:?}, not a file", path.display()),
        }
    }

    /// A new file takes the place of what is under a path.
    pub fn put_file(&mut self, path: &Path, bytes: Vec<u8>) {
        self.contents.push(Arc::new(bytes));
        self.put(path, Object::File(self.contents.len() - 1));
    }

    /// Something takes the place of what is under a path.
    pub fn put(&mut self, path: &Path, object: Object) {
        self.remove(path);
        self.entries.insert(path.to_path_buf(), object);
    }

    /// A path and all below it are gone.
    pub fn remove(&mut self, path: &Path) {
        self.entries.retain(|entry, _| !entry.starts_with(path));
    }

    /// A rename that the system has allowed.
    pub fn rename(&mut self, from: &Path, to: &Path) {
        let (source, target) = (self.entries.get(from), self.entries.get(to));
        // Two names of one file: POSIX does nothing.
        if from == to || matches!((source, target), (Some(Object::File(a)), Some(Object::File(b))) if a == b)
        {
            return;
        }
        let moved = self.take(from);
        self.remove(to);
        self.give(to, moved);
    }

    /// An exchange that the system has allowed.
    pub fn exchange(&mut self, a: &Path, b: &Path) {
        if a == b {
            return;
        }
        let (from_a, from_b) = (self.take(a), self.take(b));
        self.give(a, from_b);
        self.give(b, from_a);
    }

    /// A hard link that the system has allowed.
    pub fn link(&mut self, from: &Path, to: &Path) {
        let object = self.entries[from].clone();
        self.entries.insert(to.to_path_buf(), object);
    }

    /// What is under a path and below, with the names below it.
    fn take(&mut self, path: &Path) -> Vec<(PathBuf, Object)> {
        let below = self.entries.iter().filter(|(entry, _)| entry.starts_with(path));
        let taken =
            below.map(|(entry, object)| (entry.strip_prefix(path).unwrap().to_owned(), object.clone()));
        let taken = taken.collect();
        self.remove(path);
        taken
    }

    fn give(&mut self, path: &Path, objects: Vec<(PathBuf, Object)>) {
        for (below, object) in objects {
            let at = if below.as_os_str().is_empty() { path.to_path_buf() } else { path.join(below) };
            self.entries.insert(at, object);
        }
    }
}
