//! Defaults, file, environment and flags become one checked [`Config`].
//!
//! The other rooms are given values; only this one knows where a value came from. `config/default.toml` is
//! the documentation of every key and, embedded, the lowest layer, parsed by the same code as a user's file:
//! what it says is what holds. Above it lie the file, the environment and the flags.
//!
//! Promises: nothing unknown is skipped and nothing bad is replaced by a guess, in any layer, even where a
//! higher layer would have hidden it; every error is one line that says where, which key and what would be
//! accepted; no input panics. Reading the configuration touches nothing but the file it was given.
#![forbid(unsafe_code)]

mod error;
mod file;
mod keys;
mod layers;
mod schema;
mod values;

pub use error::ConfigError;
pub use layers::{Entry, Flag, Origin, Resolved};
pub use schema::{
    CacheSettings, CacheSize, Config, EvictPolicy, FreeFloor, IdentitySource, InspectSettings,
    IoEngineChoice, LogSettings, MetadataSettings, MountSettings, SourceSettings,
};

use std::ffi::OsString;
use std::path::Path;

/// The defaults layer, and the documentation of every key.
pub const DEFAULT_TOML: &str = include_str!("../../config/default.toml");

/// Resolves the layers: defaults, then `file`, then `environment` (normally [`std::env::vars_os`]), then
/// `flags` in their order.
///
/// # Errors
/// The first thing wrong, lowest layer first and in the file's order.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    flags: &[Flag],
) -> Result<Resolved, ConfigError> {
    let mut resolved = Resolved::defaults();
    if let Some(path) = file {
        let text = file::read(path)?;
        if let Some(first) = resolved.lay_file(path, &text).into_iter().next() {
            return Err(first);
        }
    }
    for (variable, value) in environment {
        resolved.lay_variable(&variable, &value)?;
    }
    for flag in flags {
        resolved.lay_flag(flag)?;
    }
    Ok(resolved)
}

/// Everything that is wrong with a file, in its order (of very many, the first few); empty when it is good.
pub fn check(path: &Path) -> Vec<ConfigError> {
    match file::read(path) {
        Ok(text) => Resolved::defaults().lay_file(path, &text),
        Err(unreadable) => vec![unreadable],
    }
}

#[cfg(test)]
mod tests;
