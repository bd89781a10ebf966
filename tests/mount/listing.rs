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
    std::fs::write(world.dir().join("rules"), "").unwrap();
    command.arg("--rules").arg(world.dir().join("rules")).arg("--counts").arg(world.dir().join("counts"));
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

/// The kernel forgets names and attributes when memory is short. What the source said a moment ago is still known, so
/// that warm files are opened without a word to it.
#[test]
fn regression_warm_files_need_nothing_of_the_source_after_the_kernel_forgot_them() {
    need_mount!();
    let (world, slow) = slow_world("1ms");
    let files: Vec<_> = (0..60).map(|n| world.put(&format!("d{}/file-{n}", n % 3), 5000, n)).collect();
    let mut command = warmfs();
    command
        .arg("mount")
        .arg(&slow)
        .arg(world.mnt(""))
        .args(["--ttl", "1h", "--cache-dir"])
        .arg(world.cache());
    assert!(command.status().unwrap().success());
    let list = || Command::new("ls").arg("-lR").arg(world.mnt("")).output().unwrap().stdout;
    let read = || {
        for (n, bytes) in files.iter().enumerate() {
            assert_eq!(world.get(&format!("d{}/file-{n}", n % 3)), *bytes);
        }
    };
    let listed = list();
    read();
    drop_caches();
    // Hung, the source cannot answer: whatever asks it now does not come back in time.
    std::fs::write(world.dir().join("rules"), "op=* hang\n").unwrap();
    let mut asks = Command::new("stat").arg(slow.join("none")).spawn().unwrap();
    wait_until("the source hangs", || {
        let counts = std::fs::read(world.dir().join("counts")).unwrap_or_default();
        serde_json::from_slice(&counts).is_ok_and(|c: serde_json::Value| c["hanging"].as_u64() > Some(0))
    });
    let started = std::time::Instant::now();
    read();
    assert_eq!(list(), listed);
    assert!(started.elapsed() < std::time::Duration::from_millis(900), "{:?}", started.elapsed());
    assert_eq!(world.stat("stale_answers"), 0, "all of it was fresh");
    std::fs::write(world.dir().join("rules"), "").unwrap();
    asks.wait().unwrap();
    world.umount();
    let _ = warmfs::sys::mount::unmount_force(&slow);
}
