//! What is refused: exit code 2 with one line that names the thing and the remedy, nothing mounted, nothing changed. And
//! the verbs that need no mount.

use crate::common::*;
use crate::need_mount;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Every name below a directory with owner, mode and size, so that a refusal that leaves something behind is seen.
fn tree(dir: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let m = path.symlink_metadata().unwrap();
            let size = if m.is_dir() { 0 } else { m.size() };
            lines.push(format!("{path:?} {:o} {} {size}", m.mode(), m.uid()));
            if m.is_dir() {
                dirs.push(path);
            }
        }
    }
    lines.sort();
    lines
}

/// Runs it, and asserts that it was refused with these words and left nothing behind.
fn refuses(world: &World, command: &mut Command, words: &[&str]) {
    let (before, mounts) = (tree(world.dir()), mounts_below(world.dir()));
    let output = command.output().unwrap();
    assert_refused(&output, words);
    assert_eq!(mounts_below(world.dir()), mounts, "{}", text(&output));
    assert_eq!(tree(world.dir()), before, "{}", text(&output));
}

fn mount_command(
    source: impl AsRef<OsStr>,
    mountpoint: impl AsRef<OsStr>,
    cache: impl AsRef<OsStr>,
) -> Command {
    let mut command = warmfs();
    command.arg("mount").arg(source).arg(mountpoint).arg("--cache-dir").arg(cache);
    command
}

/// `mount` of a world's usual places, with more flags.
fn mount_more(world: &World, more: &[&str]) -> Command {
    let mut command = mount_command(world.src(""), world.mnt(""), world.cache());
    command.args(more);
    command
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The same command, run by uid 65534 from a copy of the binary that it can reach.
fn as_nobody(world: &World, command: &Command) -> Command {
    let binary = binary_for_users(world);
    let mut other = program("setpriv");
    other
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(binary)
        .args(command.get_args());
    other.env("HOME", "/nonexistent").stdin(Stdio::null());
    other
}

#[test]
fn bug_154_source_and_mountpoint_must_be_directories_that_can_be_read() {
    need_mount!();
    let world = World::new(&[]);
    let file = world.dir().join("file");
    std::fs::write(&file, "x").unwrap();
    let dangling = world.dir().join("dangling");
    std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
    let looped = world.dir().join("looped");
    std::os::unix::fs::symlink("looped", &looped).unwrap();
    let (src, mnt, cache) = (world.src(""), world.mnt(""), world.cache());
    let none = world.dir().join("none");
    let missing = ["no such file or directory", "existing directory"];
    for (bad, words) in [
        (&none, &missing[..]),
        (&none.join("deeper"), &missing),
        (&dangling, &missing),
        (&file, &["is not a directory"]),
        (&file.join("below"), &["not a directory"]),
        (&looped, &["symbolic links"]),
    ] {
        refuses(&world, &mut mount_command(bad, &mnt, &cache), &[&["SOURCE"], words].concat());
        refuses(&world, &mut mount_command(&src, bad, &cache), &[&["MOUNTPOINT"], words].concat());
    }
    // In the foreground alike, and in place.
    refuses(&world, mount_command(&none, &mnt, &cache).arg("--foreground"), &["SOURCE", "none"]);
    refuses(&world, warmfs().args(["mount".as_ref(), none.as_os_str()]), &["SOURCE", "none"]);
    // A name that would break the line or the terminal is shown escaped.
    let odd = world.dir().join("no\nsuch\x1b[1m");
    refuses(&world, &mut mount_command(&odd, &mnt, &cache), &["SOURCE", "\\x0a", "\\x1b"]);
}

#[test]
fn bug_154_an_unreadable_source_is_refused() {
    need_mount!();
    let world = World::new(&[]);
    chmod(world.dir(), 0o755);
    chmod(&world.src(""), 0o700);
    binary_for_users(&world);
    let (src, mnt, cache) = (world.src(""), world.mnt(""), world.dir().join("c"));
    let mut command = as_nobody(&world, &mount_command(&src, &mnt, &cache));
    refuses(&world, &mut command, &["SOURCE", "permission denied", "user who may"]);
    // Nor one that cannot even be looked at.
    let inner = world.src("in");
    std::fs::create_dir(&inner).unwrap();
    let mut command = as_nobody(&world, &mount_command(&inner, &mnt, &cache));
    refuses(&world, &mut command, &["SOURCE", "permission denied"]);
    // A cache directory that cannot be made.
    chmod(&world.src(""), 0o755);
    chmod(&mnt, 0o777);
    let mut command = as_nobody(&world, &mount_command(&src, &mnt, &cache));
    refuses(&world, &mut command, &["cache directory", "ermission denied"]);
}

#[test]
fn bug_085_nothing_refers_to_itself() {
    need_mount!();
    let world = World::new(&[]);
    let (src, mnt, cache) = (world.src(""), world.mnt(""), world.cache());
    for dir in [world.src("in"), world.mnt("in"), cache.join("in")] {
        std::fs::create_dir_all(dir).unwrap();
    }
    let link = world.dir().join("link");
    std::os::unix::fs::symlink(world.src("in"), &link).unwrap();
    let cases: [(&Path, &Path, PathBuf, &[&str]); 9] = [
        (&src, &mnt, world.src("cache"), &["inside SOURCE", "choose"]),
        (&src, &mnt, world.mnt("cache"), &["inside MOUNTPOINT", "choose"]),
        (&src, &mnt, src.clone(), &["SOURCE itself", "--cache-dir"]),
        (&src, &mnt, mnt.clone(), &["MOUNTPOINT itself", "--cache-dir"]),
        (&src, &mnt, link.join("cache"), &["inside SOURCE"]),
        (&src, &world.src("in"), world.dir().join("c"), &["MOUNTPOINT", "inside SOURCE"]),
        (&world.mnt("in"), &mnt, world.dir().join("c"), &["SOURCE", "inside MOUNTPOINT"]),
        (&cache.join("in"), &mnt, cache.clone(), &["inside the cache directory"]),
        (&src, &cache.join("in"), cache.clone(), &["inside the cache directory"]),
    ];
    for (source, mountpoint, cache, words) in cases {
        refuses(&world, &mut mount_command(source, mountpoint, cache), words);
    }
}

#[test]
fn bug_085_a_cache_on_fuse_is_refused() {
    need_mount!();
    let world = World::new(&[]);
    let (below, slow) = (world.dir().join("below"), world.dir().join("slow"));
    for dir in [&below, &slow] {
        std::fs::create_dir(dir).unwrap();
    }
    let output = run(&[OsStr::new("faultfs"), below.as_os_str(), slow.as_os_str()]);
    assert!(output.status.success(), "{}", text(&output));
    let mut command = mount_command(world.src(""), world.mnt(""), slow.join("cache"));
    refuses(&world, &mut command, &["cache", "FUSE", "--cache-dir"]);
    refuses(
        &world,
        &mut mount_command(world.src(""), world.mnt(""), &slow),
        &["cache", "FUSE", "--cache-dir"],
    );
}

#[test]
fn bug_155_bad_values_are_refused_with_what_is_accepted() {
    need_mount!();
    let world = World::new(&[]);
    for size in ["1000", "1MB", "0", "1048575", "-1", "", "ten", "10 XB", "1e3", "101%", "0%", "2EiB", "9e99"]
    {
        let mut command = mount_more(&world, &[&format!("--cache-size={size}")]);
        refuses(&world, &mut command, &["--cache-size", "cache.size", "1MiB"]);
    }
    for ttl in ["", "-1", "soon", "1y2", "99999999999999999999s", "4000d"] {
        refuses(
            &world,
            &mut mount_more(&world, &[&format!("--ttl={ttl}")]),
            &["--ttl", "metadata.ttl", "60s"],
        );
    }
    for policy in ["", "LRU", "mru", "lru,none", "epochs"] {
        let mut command = mount_more(&world, &[&format!("--evict-policy={policy}")]);
        refuses(&world, &mut command, &["--evict-policy", "epoch, lru, none"]);
    }
    for (option, words) in [
        ("turbo", &["-o turbo", "no such option"][..]),
        ("turbo=9", &["-o turbo=9", "no such option"]),
        ("ttl", &["-o ttl", "60s"]),
        ("rw", &["-o rw", "read-only"]),
        ("cache.size=1k", &["-o cache.size=1k", "chunk"]),
        ("mount.workers=0", &["mount.workers", "1 to 64"]),
        ("mount.workers=18446744073709551616", &["mount.workers", "1 to 64"]),
        ("source.timeout=0", &["source.timeout", "1ms"]),
        ("log.level=loud", &["log.level", "debug"]),
        ("cache.max_files=-1", &["cache.max_files"]),
        ("mount.passthrough=maybe", &["mount.passthrough", "true, false"]),
        ("cache.dir=~/cache", &["~", "not expanded"]),
    ] {
        refuses(&world, &mut mount_command_without_cache(&world, &["-o", option]), words);
    }
    let mut command = mount_more(&world, &[]);
    refuses(&world, command.env("WARMFS_CACHE_SIZE", "much"), &["WARMFS_CACHE_SIZE", "cache.size"]);
    let mut command = mount_more(&world, &[]);
    refuses(&world, command.env("WARMFS_CACHE_SISE", "1GB"), &["WARMFS_CACHE_SISE", "WARMFS_CACHE_SIZE"]);
}

fn mount_command_without_cache(world: &World, more: &[&str]) -> Command {
    let mut command = warmfs();
    command.arg("mount").args([world.src(""), world.mnt("")]).args(more);
    command
}

#[test]
fn bug_155_a_bad_configuration_file_is_refused_by_line() {
    need_mount!();
    let world = World::new(&[]);
    let file = world.dir().join("warmfs.toml");
    let huge = format!("# {}\n", "x".repeat(2 << 20));
    let cases: [(&[u8], &[&str]); 9] = [
        (b"[cache]\nsize = \"1GB\"\nsizes = 3\n", &["warmfs.toml:3", "sizes", "cache.size"]),
        (b"[cash]\nsize = \"1GB\"\n", &["warmfs.toml:1", "cash", "known sections"]),
        (b"\n\n[metadata]\nttl = \"soon\"\n", &["warmfs.toml:4", "metadata.ttl", "60s"]),
        (b"[cache]\nsize = 200GB\n", &["warmfs.toml:2", "cache.size"]),
        (b"[cache]\nsize = \"1GB\"\nsize = \"2GB\"\n", &["warmfs.toml:3", "twice"]),
        (b"[cache]\r\nsize = \"1GB\"\r\nmax = 1\r\n", &["warmfs.toml:3", "max"]),
        (b"\xef\xbb\xbf[mount]\nworkers = 9999999\n", &["warmfs.toml:2", "mount.workers"]),
        (b"[cache]\ndir = \"/\xff\"\n", &["warmfs.toml:2", "UTF-8"]),
        (huge.as_bytes(), &["warmfs.toml", "1MiB"]),
    ];
    for (content, words) in cases {
        std::fs::write(&file, content).unwrap();
        refuses(&world, &mut mount_more(&world, &["--config", file.to_str().unwrap()]), words);
        let checked = run(&[OsStr::new("config"), OsStr::new("check"), file.as_os_str()]);
        assert_refused(&checked, words);
        let output = warmfs().args(["config", "show", "--config"]).arg(&file).output().unwrap();
        assert_refused(&output, words);
    }
    let none = world.dir().join("none.toml");
    refuses(&world, mount_more(&world, &["--config"]).arg(&none), &["none.toml", "No such file"]);
    refuses(&world, mount_more(&world, &["--config"]).arg(world.dir()), &["configuration file", "directory"]);
}

#[test]
fn bug_147_a_cache_directory_that_is_not_ours_alone_is_refused_and_left_alone() {
    need_mount!();
    let world = World::new(&[]);
    let (src, mnt) = (world.src(""), world.mnt(""));
    let make = |name: &str, mode: u32| {
        let path = world.dir().join(name);
        std::fs::create_dir(&path).unwrap();
        chmod(&path, mode);
        path
    };
    let cache = make("writable", 0o777);
    refuses(&world, &mut mount_command(&src, &mnt, &cache), &["writable", "by others", "chmod 700"]);
    let cache = make("sticky", 0o1777);
    refuses(&world, &mut mount_command(&src, &mnt, &cache), &["sticky", "by others", "chmod 700"]);
    let cache = make("group", 0o770);
    refuses(&world, &mut mount_command(&src, &mnt, &cache), &["group", "by others", "chmod 700"]);
    let cache = make("foreign", 0o700);
    std::os::unix::fs::chown(&cache, Some(65534), Some(65534)).unwrap();
    refuses(&world, &mut mount_command(&src, &mnt, &cache), &["foreign", "65534", "--cache-dir"]);
    let real = make("real", 0o700);
    let link = world.dir().join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    refuses(&world, &mut mount_command(&src, &mnt, &link), &["link", "symbolic link"]);
    let dangling = world.dir().join("dangling");
    std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
    refuses(&world, &mut mount_command(&src, &mnt, &dangling), &["dangling", "symbolic link"]);
    let file = world.dir().join("file");
    std::fs::write(&file, "x").unwrap();
    refuses(&world, &mut mount_command(&src, &mnt, &file), &["cache directory", "file"]);
    refuses(&world, &mut mount_command(&src, &mnt, file.join("c")), &["cache directory", "file"]);
    // Somebody's home, given by mistake: neither a lock nor other permissions are left in it.
    let home = make("home", 0o755);
    std::fs::write(home.join("thesis.tex"), "x").unwrap();
    refuses(&world, &mut mount_command(&src, &mnt, &home), &["home", "not empty", "thesis.tex", "choose"]);
    let old = make("old", 0o700);
    std::fs::write(old.join("FORMAT"), "warmfs 99\n").unwrap();
    refuses(&world, &mut mount_command(&src, &mnt, &old), &["old", "warmfs 99", "remove"]);
}

#[test]
fn bug_154_a_cache_that_cannot_be_written_is_refused() {
    need_mount!();
    let world = World::new(&[]);
    let disk = world.dir().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "ro,size=1m", "t"]).arg(&disk).status().unwrap();
    assert!(mounted.success());
    let mut command = mount_command(world.src(""), world.mnt(""), disk.join("cache"));
    refuses(&world, &mut command, &["cache", "ead-only file system"]);
    refuses(&world, &mut mount_command(world.src(""), world.mnt(""), &disk), &["cache", "isk"]);
}

/// Runs a script in a mount name space of its own, where `warmfs` is the binary.
fn in_own_namespace(script: &str, arguments: &[&OsStr]) -> Output {
    let mut command = program("unshare");
    command
        .args(["-m", "--propagation=slave", "sh", "-ec", script, env!("CARGO_BIN_EXE_warmfs")])
        .args(arguments);
    command.stdin(Stdio::null()).output().unwrap()
}

const DEV: &str = "mount -t tmpfs t /dev; mknod -m 666 /dev/null c 1 3";
const FORBIDDEN: &str = "mkdir /dev/x; mount -t tmpfs -o nodev t /dev/x; mknod -m 666 /dev/x/fuse c 10 229; \
    touch /dev/fuse; mount --bind /dev/x/fuse /dev/fuse";

#[test]
fn without_dev_fuse_it_says_what_to_do() {
    need_mount!();
    let world = World::new(&[]);
    let paths = [world.src(""), world.mnt(""), world.cache()];
    let paths: Vec<&OsStr> = paths.iter().map(|p| p.as_os_str()).collect();
    for (hide, words) in [
        // What a container without the device has, and one whose rules forbid it.
        (DEV.to_string(), &["/dev/fuse is missing", "modprobe fuse", "--device"][..]),
        (format!("{DEV}; {FORBIDDEN}"), &["/dev/fuse may not be opened", "--device"]),
    ] {
        for more in ["", "--foreground"] {
            let before = tree(world.dir());
            let script = format!("{hide}; exec \"$0\" mount \"$1\" \"$2\" --cache-dir \"$3\" {more}");
            let output = in_own_namespace(&script, &paths);
            assert_refused(&output, words);
            assert_eq!(tree(world.dir()), before, "{hide} {more}");
        }
    }
}

#[test]
fn without_fusermount3_a_user_is_told_what_to_install() {
    need_mount!();
    let world = World::new(&[]);
    chmod(world.dir(), 0o777);
    binary_for_users(&world);
    std::os::unix::fs::chown(world.mnt(""), Some(65534), Some(65534)).unwrap();
    let command = mount_command(world.src(""), world.mnt(""), world.dir().join("c"));
    let mut command = as_nobody(&world, &command);
    refuses(
        &world,
        command.env("FUSERMOUNT_PATH", "/nonexistent/fusermount3"),
        &["fusermount3", "apt-get install fuse3"],
    );
}

#[test]
fn bug_153_relative_paths_and_trailing_slashes() {
    need_mount!();
    let world = World::new(&[]);
    let bytes = world.put("a", 5000, 1);
    let below = world.dir().join("x/y");
    std::fs::create_dir_all(&below).unwrap();
    std::os::unix::fs::symlink("src", world.dir().join("link to src")).unwrap();
    let config = world.dir().join("relative.toml");
    std::fs::write(&config, "[cache]\ndir = \"x/cache\"\n").unwrap();
    let cases: [(&Path, &[&str], &str); 6] = [
        (world.dir(), &["src", "mnt", "--cache-dir=cache"], "cache"),
        (world.dir(), &["./src///", "mnt/", "--cache-dir", "./x/c 2//"], "x/c 2"),
        (&below, &["../../src/.", "../../x/../mnt", "--cache-dir=../c3"], "x/c3"),
        (world.dir(), &["link to src", "mnt", "--cache-dir=c,4\u{e9}"], "c,4\u{e9}"),
        (world.dir(), &["link to src/", "mnt", "--config=relative.toml"], "x/cache"),
        (&world.src(""), &[".", "../mnt", "-o", "cache.dir=../x/c5"], "x/c5"),
    ];
    for (cwd, words, cache) in cases {
        for foreground in [false, true] {
            let mut command = warmfs();
            command.arg("mount").args(words).current_dir(cwd);
            if foreground {
                command.arg("--foreground").stderr(Stdio::null()).stdout(Stdio::null());
                let mut child = command.spawn().unwrap();
                wait_until("it is mounted", || {
                    world.mnt("a").exists() || child.try_wait().unwrap().is_some()
                });
                assert_eq!(world.get("a"), bytes, "{words:?}");
                umount_from(world.dir(), "./mnt/");
                assert!(child.wait().unwrap().success(), "{words:?}");
            } else {
                let output = command.output().unwrap();
                assert!(output.status.success(), "{words:?}: {}", text(&output));
                assert_eq!(world.get("a"), bytes, "{words:?}");
                let output = warmfs().args(["stats", "mnt/a"]).current_dir(world.dir()).output().unwrap();
                assert!(output.status.success(), "{}", text(&output));
                umount_from(&below, "../../mnt");
            }
            assert!(mounts_below(world.dir()).is_empty());
            let lock = world.dir().join(cache).join("LOCK");
            assert!(lock.exists(), "{words:?}: the cache is not at {lock:?}");
            let pid = std::fs::read_to_string(&lock).unwrap();
            wait_until("the daemon is gone", || !Path::new("/proc").join(&pid).join("exe").exists());
        }
    }
}

fn umount_from(cwd: &Path, path: &str) {
    let output = warmfs().args(["umount", path]).current_dir(cwd).output().unwrap();
    assert!(output.status.success(), "{path}: {}", text(&output));
}

#[test]
fn a_cache_directory_may_have_any_bytes_in_its_name() {
    need_mount!();
    use std::os::unix::ffi::OsStringExt;
    let world = World::new(&[]);
    world.put("a", 5000, 1);
    let cache = world.dir().join(OsString::from_vec(b"c\xe9,\n d".to_vec()));
    let output = mount_command(world.src(""), world.mnt(""), &cache).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    world.get("a");
    assert!(cache.join("LOCK").exists());
    umount_from(world.dir(), "mnt");
}

#[test]
fn what_is_no_mount_is_told_so() {
    need_mount!();
    let world = World::new(&[]);
    let src = world.src("");
    let src = src.to_str().unwrap();
    let order = world.src("order");
    std::fs::write(&order, "a\n").unwrap();
    for words in
        [&["stats", src][..], &["stats", "--json", src], &["status", src], &["warm", src], &["evict", src]]
    {
        refuses(&world, warmfs().args(words), &["src", "not on a warmfs mount", "warmfs mount"]);
    }
    refuses(&world, warmfs().args(["umount", src]), &["src", "not a warmfs mount"]);
    let none = world.dir().join("none");
    assert_refused(&warmfs().arg("umount").arg(&none).output().unwrap(), &["none"]);
    assert!(text(&warmfs().arg("stats").arg(&none).output().unwrap()).contains("none"));
    // Another FUSE file system is none of ours.
    let slow = world.dir().join("slow");
    std::fs::create_dir(&slow).unwrap();
    let output = run(&[OsStr::new("faultfs"), OsStr::new(src), slow.as_os_str()]);
    assert!(output.status.success(), "{}", text(&output));
    assert_refused(&run(&[OsStr::new("stats"), slow.as_os_str()]), &["slow", "not on a warmfs mount"]);
}

#[test]
fn usage_errors_are_2_and_help_is_0() {
    for words in [
        &[][..],
        &["mount"],
        &["mount", "a", "b", "c"],
        &["mount", "--turbo", "a"],
        &["mount", "a", "--private", "--allow-other"],
        &["frobnicate"],
        &["stats"],
        &["warm"],
        &["warm", "--jobs=0", "x"],
        &["warm", "--jobs=many", "x"],
        &["warm", "--rate=0", "x"],
        &["warm", "-0", "x"],
        &["warm", "--check", "--background", "x"],
        &["warm", "--stop", "--check", "x"],
        &["verify"],
        &["config"],
        &["completions", "tcsh"],
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", text(&output));
        assert!(!output.stderr.is_empty(), "{words:?}");
    }
    for words in [&["--help"][..], &["--version"], &["mount", "--help"], &["help", "warm"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output));
        assert!(output.stderr.is_empty() && !output.stdout.is_empty(), "{words:?}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("faultfs"), "hidden verbs stay hidden");
    }
}

#[test]
fn config_check_and_show() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("good.toml");
    std::fs::write(&file, "[cache]\nsize = \"3GB\"\n[metadata]\nttl = \"forever\"\n").unwrap();
    let output = run(&[OsStr::new("config"), OsStr::new("check"), file.as_os_str()]);
    assert!(output.status.success() && text(&output).contains("good"), "{}", text(&output));
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/default.toml");
    let output = run(&[OsStr::new("config"), OsStr::new("check"), shipped.as_os_str()]);
    assert!(output.status.success(), "{}", text(&output));
    let mut show = warmfs();
    show.args(["config", "show", "--json", "--config"]).arg(&file).env("WARMFS_MOUNT_WORKERS", "3");
    let output = show.output().unwrap();
    let shown: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let entry = |key: &str| shown.iter().find(|e| e["key"] == key).unwrap_or_else(|| panic!("no {key}"));
    assert_eq!(entry("cache.size")["value"], "3GB");
    assert!(entry("cache.size").to_string().contains("good.toml"), "{}", entry("cache.size"));
    assert_eq!(entry("mount.workers")["value"], "3");
    assert!(entry("mount.workers").to_string().contains("WARMFS_MOUNT_WORKERS"));
    assert_eq!(entry("log.level")["value"], "info");
    // Several mistakes are all told, one a line.
    std::fs::write(&file, "[cache]\nsize = \"x\"\nx = 1\n").unwrap();
    let output = run(&[OsStr::new("config"), OsStr::new("check"), file.as_os_str()]);
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 2, "{}", text(&output));
}

#[test]
fn what_is_written_for_programs_can_be_read_by_them() {
    let output = run(&["completions", "bash"]);
    assert!(output.status.success());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("warmfs.bash");
    std::fs::write(&file, &output.stdout).unwrap();
    let parsed = Command::new("bash").arg("-n").arg(&file).output().unwrap();
    assert!(parsed.status.success() && parsed.stderr.is_empty(), "{}", text(&parsed));
    for shell in ["zsh", "fish"] {
        assert!(run(&["completions", shell]).status.success(), "{shell}");
    }
    let output = run(&["man"]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && page.contains(".TH warmfs 1") && page.contains("umount"), "{page}");
    let output = run(&["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.is_object() || report.is_array());
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", text(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_crash() {
    for words in ["man", "completions bash", "config show", "config show --json", "doctor", "--help"] {
        let script = format!("\"$0\" {words} | true");
        let output = program("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_warmfs")])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(!text(&output).contains("panicked"), "{words}: {}", text(&output));
    }
}

/// Goal: who evicts a tree has its memory back, too: what found no room on the SSD lies in RAM.
#[test]
fn evict_gives_back_what_lies_in_ram() {
    need_mount!();
    let world = World::mounted(&["--cache-size", "1MiB", "--evict-policy", "none"]);
    for n in 0..100 {
        let name = format!("f{n}");
        let bytes = world.put(&name, 16_000, n);
        assert!(world.get(&name) == bytes);
    }
    assert!(world.stat("ram_window_bytes") > 0, "everything found room on the SSD");
    let output = warmfs().arg("evict").arg(world.mnt("")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // The kernel says a moment late that a file was closed.
    wait_until("nothing is left in RAM", || world.stat("ram_window_bytes") == 0);
    world.umount();
}
