//! The layers over one another: each value and where it came from.
//!
//! Apart from `config::load` because `check` lays a file without the layers above it. Every value of every
//! layer is checked when it is laid, so that a bad one cannot hide under a good one.

use super::error::{self, ConfigError, shown};
use super::file;
use super::keys::{self, BLANK, KEYS, Key};
use super::schema::Config;
use super::values::Parsed;
use crate::types::PathText;
use serde::{Serialize, Serializer};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// Variables that begin like ours and are not for us: the log's filter before there is a configuration.
const FOREIGN_VARIABLES: [&str; 1] = ["WARMFS_LOG"];

/// The layer that a value came from. As text: `default`, `FILE:LINE`, `environment VARIABLE`, `flag --NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "layer", rename_all = "lowercase")]
pub enum Origin {
    /// `config/default.toml`.
    Default,
    /// The configuration file.
    File {
        /// Its path, as given.
        #[serde(serialize_with = "path_text")]
        path: PathBuf,
        /// Line of the key, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Environment {
        /// Its name.
        variable: String,
    },
    /// The command line.
    Flag {
        /// The flag as typed, with its dashes.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => f.write_str(&file::at(path, *line)),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::Flag { flag } => write!(f, "flag {flag}"),
        }
    }
}

fn path_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&PathText(path))
}

/// A flag of the command line that sets a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The flag as typed, with its dashes: `--cache-size`.
    pub flag: String,
    /// The key it sets: `cache.size`.
    pub key: &'static str,
    /// The value, as it would stand in the environment: `200GB`, `false`.
    pub text: String,
}

/// One line of `warmfs config show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// `section.leaf`.
    pub key: &'static str,
    /// The value as it was written.
    pub value: String,
    /// Where it was written.
    pub origin: Origin,
}

/// The configuration that holds, with the origin of each value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The values.
    pub config: Config,
    entries: Vec<Entry>,
}

impl Resolved {
    /// The defaults alone.
    pub fn defaults() -> Self {
        let mut resolved = Self { config: BLANK, entries: Vec::with_capacity(KEYS.len()) };
        let settings = file::settings(Path::new("default.toml"), super::DEFAULT_TOML)
            .expect("the embedded defaults are TOML: a test parses them");
        for setting in settings {
            let (key, text) =
                setting.found.expect("the embedded defaults hold known keys: a test parses them");
            resolved
                .lay(key, &text, Origin::Default)
                .expect("the embedded defaults are accepted: a test lays them");
        }
        resolved
    }

    /// Every key with its value and origin, in the order of `config/default.toml`.
    pub fn show(&self) -> &[Entry] {
        &self.entries
    }

    /// Where the value of a key came from; `None` for a name that is no key.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| &entry.origin)
    }

    /// Lays a file over what is there; returns what is wrong with it, in its order.
    pub(super) fn lay_file(&mut self, path: &Path, text: &str) -> Vec<ConfigError> {
        let settings = match file::settings(path, text) {
            Ok(settings) => settings,
            Err(not_toml) => return vec![not_toml],
        };
        let lay = |setting: file::Setting| {
            let origin = Origin::File { path: path.to_owned(), line: setting.line };
            match setting.found {
                Ok((key, text)) => self.lay(key, &text, origin).err(),
                Err(problem) => Some(ConfigError::new(origin, problem)),
            }
        };
        settings.into_iter().filter_map(lay).take(file::ERRORS_MAX).collect()
    }

    /// Lays one variable; those that do not begin with `WARMFS_` are nobody's business here.
    pub(super) fn lay_variable(&mut self, variable: &OsStr, value: &OsStr) -> Result<(), ConfigError> {
        if !variable.as_encoded_bytes().starts_with(b"WARMFS_") {
            return Ok(());
        }
        let name = variable.to_string_lossy();
        if FOREIGN_VARIABLES.contains(&name.as_ref()) {
            return Ok(());
        }
        let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
            return Err(ConfigError::new(
                format_args!("environment {}", shown(&name)),
                error::unknown_variable(&name),
            ));
        };
        let origin = Origin::Environment { variable: name.into_owned() };
        match value.to_str() {
            Some(text) => self.lay(key, text, origin),
            None => Err(ConfigError::new(
                origin,
                format!("{}: is not UTF-8 text; accepted: {}", key.name, key.accepts),
            )),
        }
    }

    /// Lays one flag.
    pub(super) fn lay_flag(&mut self, flag: &Flag) -> Result<(), ConfigError> {
        let origin = Origin::Flag { flag: flag.flag.clone() };
        let known = match flag.key.split_once('.') {
            Some((section, leaf)) => {
                keys::find(section, leaf).ok_or_else(|| error::unknown_key(section, leaf))
            }
            None => Err(error::unknown_top(flag.key, false)),
        };
        match known {
            Ok(key) => self.lay(key, &flag.text, origin),
            Err(problem) => Err(ConfigError::new(origin, problem)),
        }
    }

    fn lay(&mut self, key: &'static Key, text: &str, origin: Origin) -> Result<(), ConfigError> {
        let set: Parsed<()> = (key.set)(&mut self.config, text);
        set.map_err(|why| {
            let problem = format!("{}: {} {why}; accepted: {}", key.name, shown(text), key.accepts);
            ConfigError::new(&origin, problem)
        })?;
        let entry = Entry { key: key.name, value: text.to_owned(), origin };
        match self.entries.iter_mut().find(|entry| entry.key == key.name) {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        Resolved::defaults().config
    }
}
