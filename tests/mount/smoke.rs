//! The first thing to work: mount, read, stop, in both ways of serving.

use crate::common::*;
use crate::need_mount;

fn reads_right(flags: &[&str], mode: &str) {
    let world = World::mounted(flags);
    let small = world.put("d/small", 100_000, 1);
    let large = world.put("large", 9 << 20, 2);
    assert_eq!(world.get("d/small"), small);
    assert_eq!(world.get("large"), large);
    let held = std::fs::File::open(world.mnt("d/small")).unwrap();
    assert_eq!(world.xattr("d/small", "state"), "warm");
    assert_eq!(world.xattr("d/small", "mode"), mode);
    assert_eq!(std::fs::read(world.xattr("d/small", "cache_path")).unwrap(), small);
    drop(held);
    let before = world.stat("backing_bytes_read");
    drop_caches();
    assert_eq!(world.get("d/small"), small);
    assert_eq!(world.stat("backing_bytes_read"), before, "warm reads need nothing from the source");
    world.umount();
}

#[test]
fn reads_through_passthrough() {
    need_mount!();
    reads_right(&[], "passthrough");
}

#[test]
fn reads_without_passthrough() {
    need_mount!();
    reads_right(&["--no-passthrough"], "cached");
}

#[test]
fn what_is_inside_is_found_after_a_listing_too() {
    need_mount!();
    let world = World::mounted(&[]);
    world.put("f", 1, 1);
    let names: Vec<_> = std::fs::read_dir(world.mnt("")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["f"], "it is not listed");
    let stats = std::fs::read_to_string(world.mnt(".warmfs/stats.json")).unwrap();
    assert!(stats.contains("\"opens\""), "{stats}");
}

#[test]
fn after_umount_the_cache_is_free() {
    need_mount!();
    let world = World::mounted(&[]);
    world.put("f", 100_000, 1);
    world.get("f");
    world.umount();
    let verified = warmfs().arg("verify").arg("--cache-dir").arg(world.cache()).output().unwrap();
    assert!(verified.status.success(), "{}", text(&verified));
}
