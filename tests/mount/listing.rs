//! Listings of a source that is slow: whole, with numbers, and no slower than the source's own.

use crate::common::*;
use crate::need_mount;
use std::process::Command;

/// A world whose source is behind a file system that takes its time.
fn slow_world(latency: &str) -> (World, std::path::PathBuf) {
    let world = World::new(&[]);
    let slow = world.dir().join("slow");
    std::fs::create_dir(&slow).unwrap();
    let mut command = warmfs();
    command.arg("faultfs").arg(world.src("")).arg(&slow).args(["--latency", latency]);
    assert!(command.status().unwrap().success());
    (world, slow)
}

/// A READDIRPLUS that ran out of time told the rest of the entries without a number, and the C library takes an entry
/// without a number for one that was deleted: `ls` showed 191 of 1000 names.
#[test]
fn regression_no_name_is_lost_when_attributes_take_too_long() {
    need_mount!();
    let (world, slow) = slow_world("3ms");
    for n in 0..300 {
        world.put(&format!("d/file-{n}"), 1, n);
    }
    let mut command = warmfs();
    command.arg("mount").arg(&slow).arg(world.mnt("")).arg("--cache-dir").arg(world.cache());
    assert!(command.status().unwrap().success());
    for _ in 0..2 {
        let listed = Command::new("ls").arg("-a").arg(world.mnt("d")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 302, "with . and ..");
    }
    let long = Command::new("ls").arg("-l").arg(world.mnt("d")).output().unwrap();
    let sizes = String::from_utf8_lossy(&long.stdout).lines().filter(|l| l.contains(" 1 ")).count();
    assert_eq!(sizes, 300, "who asks for attributes gets the right ones");
    world.umount();
    let _ = warmfs::sys::mount::unmount(&slow, true);
}
