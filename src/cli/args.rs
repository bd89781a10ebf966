//! The words: verbs and flags, and what they mean for the configuration. Nothing is done here.

use crate::config::Flag;
use clap::{Args, Parser, Subcommand};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};

/// A tiered SSD cache file system for GPU training.
///
/// Mount it over a dataset directory on slow storage; what is read is kept on a local SSD, and warm files are read by
/// the kernel itself. Training scripts need no change.
#[derive(Parser)]
#[command(name = "warmfs", version, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Verb {
    /// Mount a source; returns when the mount serves
    Mount(MountArgs),
    /// End a mount cleanly
    Umount {
        /// Where it is mounted
        mountpoint: PathBuf,
    },
    /// Totals of the mount that PATH is on
    Stats {
        /// Any path on the mount
        path: PathBuf,
        /// Show them again every second
        #[arg(long)]
        watch: bool,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// What is cached of files and trees
    Status {
        /// Files or directories on a mount
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// One JSON array
        #[arg(long)]
        json: bool,
    },
    /// Fill the cache with files, trees, globs and lists, or check what is in it
    ///
    /// What is warm already is passed over without reading it, so that a warm-up that was interrupted goes on where it
    /// ended: give the same command again. Exit codes: 0 everything is warm, 1 something is not, which is named with its
    /// reason, 2 usage, 130 interrupted by ^C, which stops the daemon's work too.
    Warm(WarmArgs),
    /// Drop cached copies; the next open asks the source
    Evict {
        /// Files or directories on a mount
        #[arg(required = true)]
        paths: Vec<PathBuf>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Re-hash what is cached, drop and report what is wrong (exit code 3)
    Verify {
        /// Files or directories on a mount
        #[arg(required_unless_present = "cache_dir", conflicts_with = "cache_dir")]
        paths: Vec<PathBuf>,
        /// A cache directory that no daemon uses now
        #[arg(long, value_name = "DIR")]
        cache_dir: Option<PathBuf>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// What hit ratio each cache size would have given: of what was read on a mount, or of a recorded trace
    Advise {
        /// Any path on a mount
        #[arg(required_unless_present = "trace", conflicts_with = "trace")]
        path: Option<PathBuf>,
        /// A recorded trace: the path of each open on a line, or its bytes, a tab and the path; - is standard input
        #[arg(long, value_name = "FILE")]
        trace: Option<PathBuf>,
        /// Sizes to look at, such as 200GB,1TB; in a trace without bytes, numbers of files [default: shares of the data]
        #[arg(long, value_name = "SIZE", value_delimiter = ',')]
        cache_size: Vec<String>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Tell a mount in which order files will be opened, so that it fetches them in time; or show what it was told
    Hint(HintArgs),
    /// Write down which files are used on a mount, in order, until Ctrl-C: a trace for `hint` and `advise`
    Record {
        /// Any path on a mount
        mount: PathBuf,
        /// Where to: a line for each use, its path; - is standard output
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Write the bytes of the file and a tab before each path, for `advise --trace`
        #[arg(long)]
        sizes: bool,
        /// Ends when the trace is so large
        #[arg(long, value_name = "SIZE", default_value = "1GB")]
        max_size: String,
    },
    /// What this kernel and this user can do, and what each missing thing costs
    Doctor {
        /// A source to look at too
        source: Option<PathBuf>,
        /// A cache directory to look at too
        #[arg(long, value_name = "DIR")]
        cache_dir: Option<PathBuf>,
        /// One JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make a dataset and a slow source, read it cold and warm, show the speed-up
    Demo(DemoArgs),
    /// Look at configuration
    Config {
        /// What to do
        #[command(subcommand)]
        verb: ConfigVerb,
    },
    /// Completions for a shell, on standard output
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// The manual page of warmfs or of one command, on standard output: `warmfs man mount | man -l -`
    Man {
        /// The command; without it, warmfs itself
        command: Option<String>,
    },
    /// A slow, faulty source, for tests and benchmarks
    #[command(hide = true)]
    Faultfs(FaultfsArgs),
}

/// Looking at configuration.
#[derive(Subcommand)]
pub enum ConfigVerb {
    /// Check a file
    Check {
        /// The file
        file: PathBuf,
    },
    /// Every value and where it comes from
    Show {
        /// A configuration file
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// One JSON array
        #[arg(long)]
        json: bool,
    },
}

/// `warmfs mount`
#[derive(Args)]
pub struct MountArgs {
    /// The directory on slow storage
    pub source: PathBuf,
    /// Where to mount; without it, over SOURCE itself
    pub mountpoint: Option<PathBuf>,
    /// Configuration file (`config/default.toml` describes every key)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Directory on the SSD [default: below /var/cache/warmfs, or ~/.cache/warmfs for users]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// How much of the SSD to use: 200GB, 80% [default: what is free, less 5 % of the disk]
    #[arg(long, value_name = "SIZE")]
    pub cache_size: Option<String>,
    /// Who goes when the cache is full: epoch (knows training), lru, or none (keep what is there) [default: epoch]
    #[arg(long, value_name = "POLICY")]
    pub evict_policy: Option<String>,
    /// How old a fact about the source may be: 60s, 0, forever [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<String>,
    /// Serve warm files by warmfs instead of letting the kernel read them
    #[arg(long)]
    pub no_passthrough: bool,
    /// Fetch nothing before it is asked for
    #[arg(long)]
    pub no_prefetch: bool,
    /// Let other users in (default when root mounts)
    #[arg(long, conflicts_with = "private")]
    pub allow_other: bool,
    /// Let only the user who mounts in
    #[arg(long)]
    pub private: bool,
    /// Stay in the foreground and log to the terminal
    #[arg(long, short)]
    pub foreground: bool,
    /// Mount options as in fstab: any configuration key (`cache.size=200GB`), or the usual words
    #[arg(short = 'o', value_name = "OPTS", value_delimiter = ',')]
    pub options: Vec<String>,
    /// Report readiness on standard output, then let go of the terminal: how `mount` starts its daemon
    #[arg(long, hide = true)]
    pub daemon: bool,
}

/// `warmfs hint`
#[derive(Args)]
pub struct HintArgs {
    /// Any path on a mount; without --order and --clear what is known of all orders is shown
    pub mount: PathBuf,
    /// The coming order: one path a line, relative to the mount or absolute below it, or a trace of `warmfs record`; - is
    /// standard input. It comes after what the job has told before
    #[arg(long, value_name = "FILE")]
    pub order: Option<PathBuf>,
    /// Paths end with a NUL byte and not with a newline
    #[arg(short = '0', long, requires = "order")]
    pub null: bool,
    /// Whose order: each job that reads in an order of its own has a name
    #[arg(long, value_name = "NAME", default_value = crate::control::JOB_DEFAULT)]
    pub job: String,
    /// Forget what the job has told before
    #[arg(long)]
    pub clear: bool,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `warmfs warm`
#[derive(Args)]
pub struct WarmArgs {
    /// Files, directories or quoted globs on a mount: 'MOUNT/train/*.jpg', 'MOUNT/**/*.tar'
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Take the names from a list, one a line, relative to PATH or absolute; - is standard input
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// The names of the list are ended by NUL, as `find -print0` writes them
    #[arg(short = '0', long, requires = "from")]
    pub null: bool,
    /// Files to fill at the same time [default: 8]
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroU32>,
    /// Fetch at most so much a second: 100MB
    #[arg(long, value_name = "SIZE", value_parser = rate)]
    pub rate: Option<NonZeroU64>,
    /// Return at once; `warmfs status` and `warmfs stats` show how far it is
    #[arg(long)]
    pub background: bool,
    /// Only say what is not warm; fetches and changes nothing
    #[arg(long, conflicts_with_all = ["background", "rate"])]
    pub check: bool,
    /// Stop all warm-ups on the mount that PATH is on
    #[arg(long, conflicts_with_all = ["from", "jobs", "rate", "background", "check"])]
    pub stop: bool,
    /// One JSON object at the end
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<NonZeroU64, String> {
    let none = "a rate of 0 fetches nothing: leave --rate out for no limit";
    NonZeroU64::new(crate::types::units::parse_size(text)?).ok_or_else(|| none.into())
}

/// `warmfs demo`
#[derive(Args)]
pub struct DemoArgs {
    /// Files in the dataset
    #[arg(long, default_value_t = 2000, value_name = "N")]
    pub files: usize,
    /// Reader threads
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub readers: usize,
    /// Latency of each request to the slow source
    #[arg(long, default_value = "2ms", value_name = "DURATION")]
    pub latency: String,
    /// Bandwidth of the slow source, per second
    #[arg(long, default_value = "100MB", value_name = "SIZE")]
    pub bandwidth: String,
    /// Where to work [default: a new directory below /var/tmp, removed at the end]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// `warmfs faultfs`
#[derive(Args)]
pub struct FaultfsArgs {
    /// The directory to mirror
    pub source: PathBuf,
    /// Where to mount
    pub mountpoint: PathBuf,
    /// Latency of each request
    #[arg(long, default_value = "0ms")]
    pub latency: String,
    /// Bytes per second, for instance 100MB
    #[arg(long)]
    pub bandwidth: Option<String>,
    /// Requests at the same time
    #[arg(long, default_value_t = 64)]
    pub jobs: usize,
    /// How long the kernel may believe an answer
    #[arg(long, default_value = "0")]
    pub ttl: String,
    /// Rules of what goes wrong, read anew when the file changes
    #[arg(long)]
    pub rules: Option<PathBuf>,
    /// A file that is kept up to date with the counts of requests
    #[arg(long)]
    pub counts: Option<PathBuf>,
    /// Stay in the foreground
    #[arg(long, short)]
    pub foreground: bool,
    /// How `faultfs` starts its daemon
    #[arg(long, hide = true)]
    pub daemon: bool,
}

impl MountArgs {
    /// What the flags say, as values of the configuration. Flags beat `-o`.
    ///
    /// # Errors
    /// One line, if an option of `-o` means nothing.
    pub fn flags(&self) -> Result<Vec<Flag>, String> {
        let mut flags =
            self.options.iter().filter_map(|o| option(o).transpose()).collect::<Result<Vec<_>, _>>()?;
        let mut add = |flag: &str, key: &'static str, text: Option<String>| {
            flags.extend(text.map(|text| Flag { flag: flag.into(), key, text }));
        };
        let on = |given: bool, value: &str| given.then(|| value.to_string());
        // A value of the configuration is text; what is not, [`Self::cache_dir_beyond_text`] has.
        add("--cache-dir", "cache.dir", self.cache_dir.as_ref().and_then(|d| d.to_str()).map(String::from));
        add("--cache-size", "cache.size", self.cache_size.clone());
        add("--evict-policy", "cache.evict_policy", self.evict_policy.clone());
        add("--ttl", "metadata.ttl", self.ttl.clone());
        add("--no-passthrough", "mount.passthrough", on(self.no_passthrough, "false"));
        add("--no-prefetch", "prefetch.enabled", on(self.no_prefetch, "false"));
        add("--allow-other", "mount.allow_other", on(self.allow_other, "true"));
        add("--private", "mount.allow_other", on(self.private, "false"));
        Ok(flags)
    }
}

impl MountArgs {
    /// The cache directory of the flag, where it is not UTF-8 and so cannot be a value of the configuration.
    pub fn cache_dir_beyond_text(&self) -> Option<&Path> {
        self.cache_dir.as_deref().filter(|dir| dir.to_str().is_none())
    }
}

/// Words of fstab that say nothing to us, or what is the case anyway.
const NO_MEANING: [&str; 14] = [
    "ro", "defaults", "nosuid", "nodev", "noatime", "relatime", "_netdev", "nofail", "auto", "noauto",
    "user", "nouser", "users", "exec",
];

fn option(text: &str) -> Result<Option<Flag>, String> {
    let shown = format!("-o {text}");
    let (name, value) = text.split_once('=').unwrap_or((text, "true"));
    if NO_MEANING.contains(&text) || name.starts_with("x-") || name == "comment" {
        return Ok(None);
    }
    if text == "rw" {
        return Err("-o rw: a warmfs mount is read-only; write to the source itself".into());
    }
    let short = match name {
        "allow_other" => "mount.allow_other",
        "cache_dir" | "cache" => "cache.dir",
        "cache_size" | "size" => "cache.size",
        "ttl" => "metadata.ttl",
        other => other,
    };
    let resolved = crate::config::Resolved::defaults();
    let known = resolved.show().iter().find(|entry| entry.key == short);
    match known {
        Some(entry) => Ok(Some(Flag { flag: shown, key: entry.key, text: value.into() })),
        None => Err(format!(
            "{shown}: no such option; `warmfs config show` lists the keys, as in -o cache.size=200GB"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Vec<Flag>, String> {
        let cli =
            Cli::try_parse_from([&["warmfs", "mount", "/s"], words].concat()).map_err(|e| e.to_string())?;
        let Verb::Mount(args) = cli.verb else { unreachable!("mount was typed") };
        args.flags()
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn options_of_fstab_are_understood() {
        let flags = parse(&["-o", "ro,nofail,x-systemd.automount,cache.size=2GB,ttl=forever"]).unwrap();
        let said: Vec<_> = flags.iter().map(|f| (f.key, f.text.as_str())).collect();
        assert_eq!(said, [("cache.size", "2GB"), ("metadata.ttl", "forever")]);
        assert!(parse(&["-o", "rw"]).unwrap_err().contains("read-only"));
        assert!(parse(&["-o", "turbo"]).unwrap_err().contains("no such option"));
    }

    #[test]
    fn flags_come_after_options_so_that_they_win() {
        let flags = parse(&["--ttl", "1s", "-o", "ttl=9s", "--private"]).unwrap();
        assert_eq!(flags.iter().rfind(|f| f.key == "metadata.ttl").unwrap().text, "1s");
        assert_eq!(flags.last().unwrap().key, "mount.allow_other");
        assert!(parse(&["--private", "--allow-other"]).is_err());
    }
}
