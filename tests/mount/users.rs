//! Other users: what they may do through the mount is exactly what they may do in the source, cold and warm; and what a
//! mount by an ordinary user can do.

use crate::common::*;
use crate::need_mount;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const OWNER: u32 = 54_321;
const GROUP: u32 = 54_400;

/// Who asks.
#[derive(Clone, Copy, Debug)]
enum Who {
    Root,
    Owner,
    Group,
    Supplementary,
    /// In the group only by a supplementary one, and owner besides: the owner's bits are what counts.
    OwnerInGroup,
    Other,
}

const ALL: [Who; 6] = [Who::Root, Who::Owner, Who::Group, Who::Supplementary, Who::OwnerInGroup, Who::Other];

impl Who {
    /// `setpriv` with this identity, in front of a program to come.
    fn command(self) -> Command {
        let (uid, gid, groups) = match self {
            Self::Root => (0, 0, None),
            Self::Owner => (OWNER, OWNER, None),
            Self::Group => (65534, GROUP, None),
            Self::Supplementary => (65534, 65534, Some(GROUP)),
            Self::OwnerInGroup => (OWNER, 65534, Some(GROUP)),
            Self::Other => (65534, 65534, None),
        };
        let mut command = program("setpriv");
        command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
        command.arg(groups.map_or("--clear-groups".into(), |g| format!("--groups={g}"))).arg("--");
        command.env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Runs a shell script in a directory and gives all that it said.
    fn script(self, script: &str, cwd: &Path) -> String {
        let output = self.command().args(["sh", "-c", script]).current_dir(cwd).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A world that other users can reach.
fn open_world(flags: &[&str]) -> World {
    let world = World::new(flags);
    chmod(world.dir(), 0o755);
    world
}

const FILE_MODES: [u32; 9] = [0o000, 0o004, 0o040, 0o400, 0o444, 0o600, 0o640, 0o644, 0o066];
const DIR_MODES: [u32; 8] = [0o755, 0o750, 0o711, 0o744, 0o700, 0o070, 0o007, 0o000];

/// What a user sees of everything in the current directory: reads, stats, listings, and what the kernel says to access().
const LOOK: &str = r#"
for f in f.* d.*/f; do
    cat "$f" 2>&1
    stat -c '%n %a %u:%g %s %h' "$f" 2>&1
    test -r "$f" && echo "$f readable"
    test -x "$f" && echo "$f executable"
done
for d in d.*; do
    ls "$d" 2>&1
    ls -n "$d/f" 2>&1 | cut -c 1-10
    test -x "$d" && echo "$d enterable"
done
exit 0
"#;

fn make_table(world: &World) {
    let owned = |name: &str| chown(world.src(name), Some(OWNER), Some(GROUP)).unwrap();
    for mode in FILE_MODES {
        let name = format!("f.{mode:03o}");
        std::fs::write(world.src(&name), format!("bytes of {name}\n")).unwrap();
        owned(&name);
        chmod(&world.src(&name), mode);
    }
    for mode in DIR_MODES {
        let name = format!("d.{mode:03o}");
        world.put(&format!("{name}/f"), 0, 0);
        std::fs::write(world.src(format!("{name}/f")), "inner\n").unwrap();
        owned(&name);
        owned(&format!("{name}/f"));
        chmod(&world.src(&name), mode);
    }
}

fn table_is_that_of_the_source(flags: &[&str]) {
    let world = open_world(flags);
    make_table(&world);
    let expected = ALL.map(|who| who.script(LOOK, &world.src("")));
    for (who, text) in ALL.iter().zip(&expected) {
        let denied = text.matches("Permission denied").count();
        assert_eq!(denied == 0, matches!(who, Who::Root), "{who:?}:\n{text}");
        assert!(text.contains("bytes of f.444"), "{who:?}:\n{text}");
    }
    // Cold: each is the first to ask, on a mount of its own with an empty cache.
    for (who, expected) in ALL.iter().zip(&expected) {
        world.mount();
        assert_eq!(&who.script(LOOK, &world.mnt("")), expected, "{who:?}, cold");
        world.umount();
        std::fs::remove_dir_all(world.cache()).unwrap();
    }
    // Warm: root has read everything.
    world.mount();
    Who::Root.script(LOOK, &world.mnt(""));
    assert_eq!(world.xattr("f.000", "state"), "warm");
    for (who, expected) in ALL.iter().zip(&expected) {
        assert_eq!(&who.script(LOOK, &world.mnt("")), expected, "{who:?}, warm");
    }
}

#[test]
fn bug_148_permissions_are_those_of_the_source() {
    need_mount!();
    table_is_that_of_the_source(&[]);
}

#[test]
fn bug_148_permissions_are_those_of_the_source_without_passthrough() {
    need_mount!();
    table_is_that_of_the_source(&["--no-passthrough", "--allow-other"]);
}

#[test]
fn bug_146_what_one_user_warmed_another_may_not_read() {
    need_mount!();
    let world = open_world(&[]);
    std::fs::create_dir(world.src("private")).unwrap();
    std::fs::write(world.src("private/secret"), "secret bytes").unwrap();
    std::fs::hard_link(world.src("private/secret"), world.src("link")).unwrap();
    chmod(&world.src("private/secret"), 0o600);
    chmod(&world.src("private"), 0o700);
    for name in ["private/secret", "private"] {
        chown(world.src(name), Some(OWNER), Some(OWNER)).unwrap();
    }
    world.mount();
    assert_eq!(Who::Owner.script("cat private/secret link", &world.mnt("")), "secret bytessecret bytes");
    assert_eq!(world.xattr("link", "state"), "warm");
    let xattr =
        |name: &str| format!("attr -q -g warmfs.{name} link; attr -q -g warmfs.{name} private/secret");
    for script in [
        "cat private/secret",
        "stat private/secret",
        "ls private",
        "cat link",
        "head -c 1 link",
        "cat .warmfs/../private/secret",
        &xattr("state"),
        &xattr("cache_path"),
        &xattr("hits"),
    ] {
        let said = Who::Other.script(script, &world.mnt(""));
        assert!(said.contains("Permission denied"), "{script}: {said}");
        assert!(!said.contains("secret bytes") && !said.contains("data/"), "{script}: {said}");
    }
    // The copy on the SSD is not a way round.
    let copy = world.xattr("link", "cache_path");
    let said = Who::Other.script(&format!("cat '{copy}'; ls '{}'", world.cache().display()), Path::new("/"));
    assert_eq!(said.matches("Permission denied").count(), 2, "{said}");
    // Nor is the operator's door.
    let binary = binary_for_users(&world);
    let output = Who::Other.command().arg(&binary).arg("stats").arg(world.mnt("")).output().unwrap();
    assert!(
        !output.status.success() && text(&output).contains("the user who mounted, or root"),
        "{}",
        text(&output)
    );
}

#[test]
fn bug_013_a_change_of_mode_or_owner_takes_effect_within_the_ttl() {
    need_mount!();
    let world = open_world(&["--ttl=1s"]);
    std::fs::write(world.src("f"), "x").unwrap();
    chmod(&world.src("f"), 0o644);
    world.mount();
    let reads = |who: Who| who.script("cat f", &world.mnt("")) == "x";
    assert!(reads(Who::Other) && reads(Who::Owner));
    chmod(&world.src("f"), 0o600);
    wait_until("others are kept out", || !reads(Who::Other));
    assert_eq!(std::fs::metadata(world.mnt("f")).unwrap().mode() & 0o777, 0o600);
    assert!(!reads(Who::Owner));
    chown(world.src("f"), Some(OWNER), None).unwrap();
    wait_until("the new owner is let in", || reads(Who::Owner));
    assert!(!reads(Who::Other));
}

#[test]
fn root_lets_others_in_unless_private() {
    need_mount!();
    let world = open_world(&[]);
    world.put("f", 100, 1);
    for (more, said) in
        [(&[][..], "f\n"), (&["--private"], "Permission denied"), (&["-o", "allow_other"], "f\n")]
    {
        let output = world.try_mount(more);
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(Who::Root.script("ls mnt", world.dir()), "f\n");
        let others = Who::Other.script("ls mnt", world.dir());
        assert!(others.contains(said), "{more:?}: {others}");
        world.umount();
    }
}

/// Asserts that nobody else has any right to anything of the cache.
fn assert_private(cache: &Path) {
    let mut dirs = vec![cache.to_path_buf()];
    let mut seen = 0;
    while let Some(dir) = dirs.pop() {
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o7777;
        assert_eq!(mode(&dir), 0o700, "{dir:?}");
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                assert_eq!(mode(&path), 0o600, "{path:?}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 5, "{seen} files only");
}

#[test]
fn bug_147_the_cache_is_private_whatever_the_umask() {
    need_mount!();
    for (umask, exists) in [("000", false), ("022", false), ("000", true), ("777", false)] {
        let world = open_world(&[]);
        let bytes = world.put("f", 3 << 20, 1);
        if exists {
            std::fs::create_dir(world.cache()).unwrap();
            chmod(&world.cache(), 0o755);
        }
        let script = format!("umask {umask}; exec \"$@\"");
        let output = program("sh")
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_warmfs"), "mount"])
            .args([world.src(""), world.mnt("")])
            .args([OsStr::new("--cache-dir"), world.cache().as_os_str()])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(world.get("f"), bytes);
        assert!(run(&[OsStr::new("stats"), world.mnt("").as_os_str()]).status.success());
        assert_private(&world.cache());
        world.umount();
        assert_private(&world.cache());
    }
}

/// Runs a script as an ordinary user in a mount name space of its own, where /dev/fuse may be opened by users as it may
/// on most machines. `$W` is the binary.
fn as_user(world: &World, script: &str) -> Output {
    const SET_UP: &str = "
        if [ \"$(stat -c %a /dev/fuse)\" != 666 ]; then
            [ -e \"$D/fuse\" ] || mknod \"$D/fuse\" c 10 229
            chmod 666 \"$D/fuse\"; mount --bind \"$D/fuse\" /dev/fuse
        fi
        exec setpriv --reuid=65534 --regid=65534 --clear-groups -- sh -c \"$SCRIPT\"";
    let mut command = program("unshare");
    command.args(["-m", "--propagation=slave", "sh", "-ec", SET_UP]).stdin(Stdio::null());
    command.env("SCRIPT", script).env("W", binary_for_users(world)).env("D", world.dir());
    command.env("HOME", world.dir()).env("LC_ALL", "C");
    command.output().unwrap()
}

/// Whether an ordinary user can mount here at all; says so if not.
fn user_can_mount(world: &World) -> bool {
    chmod(world.dir(), 0o755);
    chown(world.mnt(""), Some(65534), Some(65534)).unwrap();
    let output = as_user(
        world,
        "exec 3<>/dev/fuse && command -v fusermount3 && test -u \"$(command -v fusermount3)\"",
    );
    if !output.status.success() {
        eprintln!("skipped: an ordinary user cannot mount here: {}", text(&output));
    }
    output.status.success()
}

#[test]
fn bug_073_an_ordinary_user_mounts_without_passthrough() {
    need_mount!();
    let world = World::new(&[]);
    if !user_can_mount(&world) {
        return;
    }
    let small = world.put("small", 300_000, 1);
    world.put("large", 6 << 20, 2);
    let cache = world.dir().join("user");
    std::fs::create_dir(&cache).unwrap();
    chown(&cache, Some(65534), Some(65534)).unwrap();
    let script = "
        $W mount $D/src $D/mnt --cache-dir $D/user/c || exit 1
        cmp $D/src/small $D/mnt/small && cmp $D/src/large $D/mnt/large && cmp $D/src/small $D/mnt/small || exit 2
        exec 3<$D/mnt/small; attr -q -g warmfs.mode $D/mnt/small; echo; exec 3<&-
        $W stats --json $D/mnt || exit 3
        touch $D/mnt/x 2>&1
        grep \"$D/mnt .* - fuse.warmfs \" /proc/self/mountinfo
        $W umount $D/mnt || exit 4
        grep -c \"$D/mnt .* - fuse.warmfs \" /proc/self/mountinfo
        exit 0";
    let output = as_user(&world, script);
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for want in [
        "\ncached\n",
        "\"passthrough_opens\": 0",
        "Read-only file system",
        "user_id=65534",
        "default_permissions",
    ] {
        assert!(said.contains(want), "{want}: {said}");
    }
    assert!(!said.contains("allow_other"), "{said}");
    assert!(said.trim_end().ends_with('0'), "still mounted: {said}");
    let log = std::fs::read_to_string(cache.join("c/log/warmfs.log")).unwrap();
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert!(log.contains("CAP_SYS_ADMIN"), "{log}");
    wait_until("the daemon is gone", || daemons(&cache).is_empty());
    drop(small);
}

#[test]
fn bug_073_a_users_mount_is_that_users_only_and_survives_a_crash() {
    need_mount!();
    let world = World::new(&[]);
    if !user_can_mount(&world) {
        return;
    }
    world.put("f", 5000, 1);
    let cache = world.dir().join("user");
    std::fs::create_dir(&cache).unwrap();
    chown(&cache, Some(65534), Some(65534)).unwrap();
    // Root is another user too; it comes in by the name space of a process of the user's.
    let script = "
        $W mount $D/src $D/mnt --cache-dir $D/user/c || exit 1
        cmp $D/src/f $D/mnt/f || exit 2
        kill -9 $(cat $D/user/c/LOCK)
        while cat $D/mnt/f >/dev/null 2>&1; do :; done
        $W mount $D/src $D/mnt --cache-dir $D/user/c || exit 3
        cmp $D/src/f $D/mnt/f || exit 4
        test $(grep -c \"$D/mnt .* - fuse.warmfs \" /proc/self/mountinfo) = 1 || exit 5
        echo serving > $D/user/now
        while [ -e $D/user/now ]; do sleep 0.02; done
        $W umount $D/mnt || exit 6";
    std::thread::scope(|scope| {
        let user = scope.spawn(|| as_user(&world, script));
        let now = cache.join("now");
        wait_until("the user's mount serves", || now.exists() || user.is_finished());
        if now.exists() {
            let pid = std::fs::read_to_string(cache.join("c/LOCK")).unwrap();
            let output = Command::new("nsenter")
                .args(["-m", "-t", pid.trim(), "cat"])
                .arg(world.mnt("f"))
                .env("LC_ALL", "C")
                .output()
                .unwrap();
            let denied = !output.status.success() && text(&output).contains("Permission denied");
            std::fs::remove_file(now).unwrap();
            assert!(denied, "{}", text(&output));
        }
        let output = user.join().unwrap();
        assert!(output.status.success(), "{}", text(&output));
    });
    wait_until("the daemon is gone", || daemons(&cache).is_empty());
}
