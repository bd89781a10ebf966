//! The inspection interface: `user.warmfs.*` on files and directories. Answered from memory, never by asking the
//! source, and hidden from `listxattr` unless the configuration asks for it, so that `cp -a` does not copy figures.

use super::Fs;
use super::Reply;
use super::node::{Mode, Node};
use crate::cache::Serving;
use crate::store::{CacheFile, Place};
use crate::types::{Error, FileKind, NodeId, Result};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

const PREFIX: &[u8] = b"user.warmfs.";
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ON_FILES: [&str; 6] = ["state", "pinned", "cached_bytes", "mode", "hits", "cache_path"];
/// The kernel's XATTR_SIZE_MAX: no value is longer.
const VALUE_BYTES_MAX: usize = 65_536;

const EVERYWHERE: [&str; 2] = ["stats", "control"];

impl Fs {
    /// GETXATTR. Unknown names are ENODATA; an answer of ENOSYS would silence all attributes for the whole mount.
    pub fn get_xattr(self: &Arc<Self>, id: NodeId, name: &[u8], reply: Reply<Vec<u8>>) {
        match name == ACL_ACCESS && self.source.has_acls() && !Self::is_inside(id) {
            true => self.get_acl(id, reply),
            false => reply(self.own_xattr(id, name)),
        }
    }

    fn own_xattr(&self, id: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        let Some(name) = name.strip_prefix(PREFIX) else { return Err(no_data()) };
        match name {
            b"stats" => return Ok(self.stats_text(VALUE_BYTES_MAX).into_bytes()),
            b"control" => {
                let path = self.control_path.get().ok_or_else(no_data)?;
                return Ok(path.as_os_str().as_bytes().to_vec());
            }
            _ => {}
        }
        if Self::is_inside(id) {
            return Err(no_data());
        }
        let node = self.node(id)?;
        match node.kind {
            FileKind::Regular => self.file_xattr(&node, name),
            FileKind::Directory if name == b"state" => {
                Ok(self.dir_state(&node.path()).to_string().into_bytes())
            }
            _ => Err(no_data()),
        }
    }

    /// LISTXATTR: the names, each ended by NUL.
    pub fn list_xattrs(&self, id: NodeId) -> Result<Vec<u8>> {
        if !self.settings.list_xattrs {
            return Ok(Vec::new());
        }
        let mut names = EVERYWHERE.to_vec();
        if !Self::is_inside(id) {
            match self.node(id)?.kind {
                FileKind::Regular => names.extend(ON_FILES),
                FileKind::Directory => names.push("state"),
                _ => {}
            }
        }
        Ok(names.iter().flat_map(|name| [PREFIX, name.as_bytes(), b"\0"].concat()).collect())
    }

    fn file_xattr(&self, node: &Arc<Node>, name: &[u8]) -> Result<Vec<u8>> {
        let file = self.copy_of(node);
        let file = file.as_deref();
        let text = match name {
            b"state" => state_of(file).to_string(),
            b"pinned" => "0".into(),
            b"cached_bytes" => file.map_or(0, CacheFile::cached_bytes).to_string(),
            b"mode" => self.mode_of(node).into(),
            b"hits" => file.map_or(0, CacheFile::hits).to_string(),
            b"cache_path" => match file.map(CacheFile::place) {
                // One that is only held open has no name any more.
                Some(Place::Ssd { number }) if file.is_some_and(|file| self.is_kept(file)) => {
                    return Ok(self.cache.dir().data_path(*number).as_os_str().as_bytes().to_vec());
                }
                _ => return Err(no_data()),
            },
            _ => return Err(no_data()),
        };
        Ok(text.into_bytes())
    }

    /// The copy that handles read from, else the one that the next open would find.
    fn copy_of(&self, node: &Arc<Node>) -> Option<Arc<CacheFile>> {
        let (attr, open) = {
            let state = node.lock();
            (state.attr, state.open.as_ref().map(|open| open.serving.clone()))
        };
        if let Some(serving) = open {
            return serving.file().map(|file| Arc::clone(file));
        }
        let file = self.cache.peek(self.source.file_id(&node.path(), &attr))?;
        (file.version() == self.source.version(&attr) && !file.is_unsettled()).then_some(file)
    }

    fn is_kept(&self, file: &CacheFile) -> bool {
        self.cache.peek(file.id()).is_some_and(|kept| std::ptr::eq(&*kept, file))
    }

    fn mode_of(&self, node: &Node) -> &'static str {
        match node.lock().open.as_ref().map(|open| (&open.mode, &*open.serving)) {
            Some((Mode::Passthrough(_), _)) => "passthrough",
            Some((Mode::Cached, Serving::Source(_))) | None => "none",
            Some((Mode::Cached, _)) => "cached",
        }
    }

    /// What is cached below a directory.
    pub fn dir_state(&self, dir: &Path) -> serde_json::Value {
        let (mut warm, mut partial, mut bytes) = (0u64, 0u64, 0u64);
        for file in self.cache.all_files() {
            if !Path::new(std::ffi::OsStr::from_bytes(file.path())).starts_with(dir) {
                continue;
            }
            if file.is_complete() {
                warm += 1
            } else {
                partial += 1
            }
            bytes += file.cached_bytes();
        }
        serde_json::json!({ "warm": warm, "partial": partial, "cached_bytes": bytes })
    }
}

fn state_of(file: Option<&CacheFile>) -> &'static str {
    match file {
        Some(file) if file.is_complete() => "warm",
        Some(file) if file.cached_bytes() > 0 => "partial",
        _ => "cold",
    }
}

pub(super) fn no_data() -> Error {
    Error::os("getxattr", "", 61) // ENODATA
}
