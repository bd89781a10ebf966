//! What the user asked for, checked before anything is changed: each refusal names the thing and the remedy.

use crate::config::{CacheSize, Config};
use crate::sys::facts::{FsClass, FsFacts};
use crate::sys::mountinfo;
use crate::types::{CHUNK_BYTES, Error, ErrorKind, PathText, Result};
use std::path::{Component, Path, PathBuf};

/// A mount that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The directory that is served, canonical.
    pub source: PathBuf,
    /// Where; may be the same.
    pub mountpoint: PathBuf,
    /// Where the cache is.
    pub cache_dir: PathBuf,
}

impl Plan {
    /// Checks `source`, `mountpoint` (none: over the source itself) and the configuration.
    pub fn new(source: &Path, mountpoint: Option<&Path>, config: &Config) -> Result<Self> {
        let source = directory(source, "SOURCE")?;
        let mountpoint = match mountpoint {
            Some(path) => directory(path, "MOUNTPOINT")?,
            None => source.clone(),
        };
        if mountpoint != source {
            refuse_nested(&mountpoint, &source, "MOUNTPOINT", "SOURCE")?;
            refuse_nested(&source, &mountpoint, "SOURCE", "MOUNTPOINT")?;
        }
        refuse_live_mount(&mountpoint)?;
        let cache_dir = match &config.cache.dir {
            Some(dir) => resolve_new(dir)?,
            None => resolve_new(&default_cache_dir(&source))?,
        };
        for (place, name) in [(&source, "SOURCE"), (&mountpoint, "MOUNTPOINT")] {
            if cache_dir == *place {
                return Err(invalid(format!(
                    "the cache directory {} is {name} itself; choose another --cache-dir",
                    PathText(place)
                )));
            }
            refuse_nested(&cache_dir, place, "the cache directory", name)?;
            refuse_nested(place, &cache_dir, name, "the cache directory")?;
        }
        check_cache_fs(&cache_dir)?;
        check_size(config, &cache_dir)?;
        Ok(Self { source, mountpoint, cache_dir })
    }
}

/// An existing directory that may be entered, by its canonical path.
fn directory(path: &Path, name: &str) -> Result<PathBuf> {
    let shown = PathText(path);
    // What a daemon that died left behind cannot be looked at; it is replaced when we mount.
    if let Some(stale) = stale(path) {
        return Ok(stale);
    }
    let canonical = path
        .canonicalize()
        .map_err(|e| invalid(format!("{name} {shown}: {}; name an existing directory", reason(&e))))?;
    let meta = canonical.metadata().map_err(|e| invalid(format!("{name} {shown}: {}", reason(&e))))?;
    if !meta.is_dir() {
        return Err(invalid(format!("{name} {shown} is not a directory")));
    }
    std::fs::read_dir(&canonical).map_err(|e| {
        invalid(format!("{name} {shown} cannot be read: {}; run warmfs as a user who may", reason(&e)))
    })?;
    Ok(canonical)
}

fn stale(path: &Path) -> Option<PathBuf> {
    // The table's spelling of it is canonical.
    let place = mountinfo::top_mount_at(path).ok()??.mountpoint;
    mountinfo::is_stale(&place).then_some(place)
}

fn refuse_nested(inner: &Path, outer: &Path, inner_name: &str, outer_name: &str) -> Result<()> {
    if inner == outer || !inner.starts_with(outer) {
        return Ok(());
    }
    Err(invalid(format!(
        "{inner_name} {} lies inside {outer_name} {}: warmfs would wait for itself; choose one outside",
        PathText(inner),
        PathText(outer)
    )))
}

fn refuse_live_mount(mountpoint: &Path) -> Result<()> {
    let top = mountinfo::top_mount_at(mountpoint)?;
    let ours = top.is_some_and(|m| m.fs_type == mountinfo::FS_TYPE);
    if ours && !mountinfo::is_stale(mountpoint) {
        let shown = PathText(mountpoint);
        return Err(invalid(format!("{shown} is a warmfs mount already; `warmfs umount {shown}` ends it")));
    }
    Ok(())
}

/// The canonical path of a directory that may not exist yet. Its last part, if it exists, is not followed.
fn resolve_new(path: &Path) -> Result<PathBuf> {
    let mut missing = Vec::new();
    let mut existing = path;
    let canonical = loop {
        match existing.canonicalize() {
            Ok(canonical) => break canonical,
            Err(_) => match (existing.parent(), existing.components().next_back()) {
                (Some(parent), Some(Component::Normal(name))) => {
                    missing.push(name.to_owned());
                    existing = parent;
                }
                _ => return Err(invalid(format!("cache directory {} cannot be resolved", PathText(path)))),
            },
        }
    };
    if path.is_symlink() {
        return Err(invalid(format!(
            "cache directory {} is a symbolic link; name the directory itself",
            PathText(path)
        )));
    }
    Ok(missing.into_iter().rev().fold(canonical, |path, name| path.join(name)))
}

fn default_cache_dir(source: &Path) -> PathBuf {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/var/cache"),
        false => std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
            .or_else(home)
            .unwrap_or_else(|| PathBuf::from("/var/tmp")),
    };
    let hash = blake3::hash(source.as_os_str().as_encoded_bytes()).to_hex();
    base.join("warmfs").join(&hash[..16])
}

fn check_cache_fs(dir: &Path) -> Result<()> {
    let existing = nearest_existing(dir);
    let facts = FsFacts::of(&existing)?;
    let kind = match facts.class {
        FsClass::Network => "a network file system",
        FsClass::Fuse => "a FUSE file system",
        FsClass::Local | FsClass::Overlay | FsClass::Memory => return Ok(()),
    };
    Err(invalid(format!(
        "cache directory {} is on {kind} ({}), which is not faster than the source and not safe to map; \
         choose a --cache-dir on a local SSD",
        PathText(dir),
        facts.name
    )))
}

fn check_size(config: &Config, dir: &Path) -> Result<()> {
    let total = FsFacts::of(&nearest_existing(dir))?.total_bytes;
    let size = match config.cache.size {
        CacheSize::Auto => return Ok(()),
        other => other.bytes_of(total).unwrap_or(total),
    };
    if size < CHUNK_BYTES {
        return Err(invalid(format!(
            "a cache of {size} bytes holds not even one chunk ({CHUNK_BYTES} bytes); give --cache-size at least 1MiB"
        )));
    }
    Ok(())
}

fn nearest_existing(path: &Path) -> PathBuf {
    path.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/")).to_path_buf()
}

fn reason(error: &std::io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => {
            let text = std::io::Error::from_raw_os_error(errno).to_string();
            text.split(" (os error").next().unwrap_or_default().to_lowercase()
        }
        None => error.to_string(),
    }
}

fn invalid(text: String) -> Error {
    Error::new(ErrorKind::Invalid, "", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(cache: &Path) -> Config {
        let mut config = Config::default();
        config.cache.dir = Some(cache.to_path_buf());
        config
    }

    fn refusal(source: &Path, mountpoint: Option<&Path>, cache: &Path) -> String {
        Plan::new(source, mountpoint, &config(cache)).expect_err("refused").to_string()
    }

    #[test]
    fn bug_085_nothing_lies_inside_anything_else() {
        let tmp = tempfile::tempdir().unwrap();
        let (s, m, c) = (tmp.path().join("s"), tmp.path().join("m"), tmp.path().join("c"));
        for dir in [&s, &m, &c, &s.join("in"), &m.join("in"), &c.join("in")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        assert!(refusal(&s, Some(&m), &s.join("cache")).contains("inside SOURCE"));
        assert!(refusal(&s, Some(&m), &m.join("cache")).contains("inside MOUNTPOINT"));
        assert!(refusal(&s, Some(&s.join("in")), &c).contains("inside SOURCE"));
        assert!(refusal(&m.join("in"), Some(&m), &c).contains("inside MOUNTPOINT"));
        assert!(refusal(&c.join("in"), Some(&m), &c).contains("inside the cache directory"));
        assert!(refusal(&s, None, &s).contains("SOURCE itself"));
        let link = tmp.path().join("link");
        std::os::unix::fs::symlink(s.join("in"), &link).unwrap();
        assert!(refusal(&s, Some(&link), &c).contains("inside SOURCE"), "through a link too");
        assert!(Plan::new(&s, Some(&m), &config(&c)).is_ok());
        assert_eq!(Plan::new(&s, None, &config(&c)).unwrap().mountpoint, s.canonicalize().unwrap());
    }

    #[test]
    fn bug_154_what_is_missing_or_of_the_wrong_kind_is_named() {
        let tmp = tempfile::tempdir().unwrap();
        let file = tmp.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let none = tmp.path().join("none");
        let c = tmp.path().join("c");
        assert!(refusal(&none, None, &c).contains("none: no such file or directory"));
        assert!(refusal(&file, None, &c).contains("is not a directory"));
        assert!(refusal(tmp.path(), Some(&file), &c).contains("MOUNTPOINT"));
    }

    #[test]
    fn a_size_below_one_chunk_is_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let (s, c) = (tmp.path().join("s"), tmp.path().join("c"));
        std::fs::create_dir_all(&s).unwrap();
        let mut config = config(&c);
        config.cache.size = CacheSize::Bytes(1000);
        assert!(Plan::new(&s, None, &config).expect_err("refused").to_string().contains("--cache-size"));
    }
}
