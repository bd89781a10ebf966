//! Bytes and attributes: first reads, odd sizes, holes, files beyond 4 GiB, how often the source is asked, and everything
//! that `stat`, `statfs` and `getxattr` say.

use crate::common::*;
use crate::figures::Figure;
use crate::need_mount;
use crate::tools::*;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Barrier;

#[test]
fn bug_022_a_reply_is_short_at_the_end_of_the_file_only() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        let bytes = world.put("f", (12 << 20) + 777, 1);
        std::thread::scope(|scope| {
            for t in 0..8 {
                let (world, bytes) = (&world, &bytes);
                scope.spawn(move || {
                    let file = File::open(world.mnt("f")).unwrap();
                    let (mut dice, mut buffer) = (Dice::new(t + 1), vec![0; 1 << 20]);
                    let mut at = (bytes.len() / 8) * t as usize;
                    for _ in 0..40 {
                        let len = 4096 + dice.below((1 << 20) - 4096);
                        let n = file.read_at(&mut buffer[..len], at as u64).unwrap();
                        assert_eq!(n, len.min(bytes.len() - at), "short at {at} of {}", bytes.len());
                        assert!(buffer[..n] == bytes[at..][..n]);
                        at = if at + n >= bytes.len() { dice.below(9999) } else { at + n };
                    }
                });
            }
            scope.spawn(|| {
                let (file, mut dice) = (File::open(world.mnt("f")).unwrap(), Dice::new(99));
                for _ in 0..300 {
                    let at = dice.below(bytes.len()) as u64;
                    let len = std::num::NonZeroU64::new(1 + dice.below(1 << 20) as u64);
                    rustix::fs::fadvise(&file, at, len, rustix::fs::Advice::DontNeed).unwrap();
                }
            });
        });
    });
}

#[test]
fn bug_024_the_very_first_read_is_right() {
    need_mount!();
    const MIB: usize = 1 << 20;
    both(|mode| {
        let world = World::mounted(mode);
        let sizes =
            [0, 1, 4095, 4096, 4097, MIB - 1, MIB, MIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 6 * MIB];
        for (i, size) in sizes.into_iter().enumerate() {
            for way in 0..4 {
                let name = format!("{size}-{way}");
                let bytes = world.put(&name, size, (i * 10 + way) as u64);
                let file = File::open(world.mnt(&name)).unwrap();
                let right = match way {
                    0 => std::fs::read(world.mnt(&name)).unwrap() == bytes,
                    1 if size == 0 => {
                        Map::new(&file, libc::MAP_SHARED).err().unwrap().raw_os_error() == Some(22)
                    }
                    1 => *Map::shared(&file) == *bytes,
                    2 => {
                        let (at, mut end) = (size.saturating_sub(100), [0; 200]);
                        let n = file.read_at(&mut end, at as u64).unwrap();
                        end[..n] == bytes[at..]
                    }
                    _ => {
                        let (mut a, mut b) = (vec![0; size / 3], vec![0; size - size / 3 + 10]);
                        let mut parts = [&mut a[..], &mut b[..]].map(std::io::IoSliceMut::new);
                        let n = rustix::io::preadv(&file, &mut parts, 0).unwrap();
                        // One call may give less than all of a large file, as everywhere.
                        n > 0 && [a, b].concat()[..n] == bytes[..n] || size == 0
                    }
                };
                assert!(right, "{name}");
            }
        }
    });
}

#[test]
fn bug_034_bug_035_markers_beyond_two_and_four_gib_are_where_they_belong() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        let size: u64 = (5 << 30) + 123;
        let file = File::options().create_new(true).read(true).write(true).open(world.src("huge")).unwrap();
        file.set_len(size).unwrap();
        let places = [0, (1 << 31) - 8, 1 << 31, (1 << 32) - 8, (1 << 32) + 8, size - 16];
        let marker = |at: u64| [at.to_le_bytes(), (!at).to_le_bytes()].concat();
        // Some overlap by half; what was written last holds.
        places.iter().for_each(|&at| file.write_all_at(&marker(at), at).unwrap());
        let expected = |at: u64| {
            let mut bytes = [0; 16];
            file.read_exact_at(&mut bytes, at).unwrap();
            bytes
        };
        let seen = File::open(world.mnt("huge")).unwrap();
        assert_eq!(seen.metadata().unwrap().len(), size);
        for round in 0..3 {
            let mut bytes = [0; 16];
            for at in places {
                seen.read_exact_at(&mut bytes, at).unwrap();
                assert_eq!(bytes[..], expected(at), "{at} in round {round}");
            }
            seen.read_exact_at(&mut bytes, 3 << 30).unwrap();
            assert_eq!(bytes, [0; 16], "a hole");
            if round == 0 {
                let map = Map::shared(&seen);
                places.iter().for_each(|&at| assert_eq!(map[at as usize..][..16], expected(at)));
            }
            drop_caches();
        }
        let mut end = [0; 32];
        assert_eq!(seen.read_at(&mut end, size - 16).unwrap(), 16);
        assert_eq!(seen.read_at(&mut end, size).unwrap(), 0);
        // What was touched, and what the kernel read ahead; not five gigabytes.
        assert!(world.stat("cache_used_bytes") < 200 << 20, "{}", world.stat("cache_used_bytes"));
        drop(seen);
        evict(&world.mnt("huge"));
        let mut bytes = [0; 16];
        File::open(world.mnt("huge")).unwrap().read_exact_at(&mut bytes, 1 << 31).unwrap();
        assert_eq!(bytes[..], expected(1 << 31));
    });
}

#[test]
fn bug_036_holes_at_the_end_and_elsewhere_are_part_of_the_file() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for (name, size) in [("s", 1 << 20), ("l", 7 << 20)] {
            for data in [&[][..], &[0], &[size / 2], &[size - 4096]] {
                let name = format!("{name}{data:?}");
                let file = File::create(world.src(&name)).unwrap();
                file.set_len(size).unwrap();
                data.iter().for_each(|&at| file.write_all_at(&pattern(at, 4096), at).unwrap());
                let expected = std::fs::read(world.src(&name)).unwrap();
                for _ in 0..2 {
                    assert!(world.get(&name) == expected, "{name}");
                    assert_eq!(std::fs::metadata(world.mnt(&name)).unwrap().len(), size);
                }
            }
        }
    });
}

#[test]
fn bug_037_sixty_four_cold_readers_read_the_source_once() {
    need_mount!();
    undisturbed(|| {
        both(|mode| {
            let world = Slow::new();
            let sizes = [100_000, 1 << 20, (3 << 20) + 5, 8 << 20];
            let bytes: Vec<_> = (0..4).map(|n| world.put(&format!("d/{n}"), sizes[n], n as u64)).collect();
            world.mount(&["--latency", "2ms"], mode);
            let barrier = Barrier::new(64);
            std::thread::scope(|scope| {
                for t in 0..64 {
                    let (world, bytes, barrier) = (&world, &bytes, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        for n in 0..4 {
                            let n = (n + t) % 4;
                            assert!(world.get(&format!("d/{n}")) == bytes[n], "{n}");
                        }
                    });
                }
            });
            let total: usize = sizes.iter().sum();
            wait_until("the large one is complete", || world.xattr("d/3", "state") == "warm");
            assert_eq!(world.stat("backing_bytes_read"), total as u64);
            let read = world.count("read_bytes");
            let share = read as f64 / total as f64;
            assert!(share <= 1.05, "{read} of {total}");
            Figure::new("R20", "cold reads of a file by 64 at once: errors, wrong content", 64 * 4, 0)
                .fired("bytes asked of the source", read)
                .less("bytes asked of the source, of the files' bytes", share, "share")
                .report();
        });
    });
}

#[test]
fn bug_141_an_empty_file_is_empty_and_cached() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for n in 0..100 {
            world.put(&format!("d/{n}"), 0, 0);
        }
        for round in 0..2 {
            for n in 0..100 {
                assert_eq!(world.get(&format!("d/{n}")), b"");
            }
            assert_eq!(world.xattr("d/7", "state"), "warm", "{round}");
            assert_eq!(world.stat("cached_files"), 100);
            if round == 0 {
                world.umount();
                world.mount();
            }
        }
        verb("warm", &world.mnt("d"));
        verb("verify", &world.mnt("d"));
        verb("evict", &world.mnt("d"));
        assert_eq!(world.stat("cached_files"), 0);
    });
}

#[test]
fn bug_125_a_dense_file_has_no_hole() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for (name, lines) in [("small", 5000), ("large", 400_000)] {
            std::fs::write(world.src(name), "some word here\n".repeat(lines)).unwrap();
            for _ in 0..2 {
                let file = File::open(world.mnt(name)).unwrap();
                let size = file.metadata().unwrap().len();
                assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0)), Ok(size));
                assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(0)), Ok(0));
                let found = shell("grep -c word \"$1\"", &[&world.mnt(name)]);
                assert_eq!(String::from_utf8(found).unwrap(), format!("{lines}\n"));
            }
        }
    });
}

#[test]
fn bug_128_any_bytes_are_a_name() {
    need_mount!();
    let long = [b'n'; 255];
    let names: [&[u8]; 20] = [
        b"\xff",
        b"a\xffb.jpg",
        b"caf\xe9",
        b"\xed\xa0\x80",
        b"new\nline",
        b"tab\t",
        b"quote\"'",
        b"back\\slash",
        b"-rf",
        b"dot.",
        b"blank ",
        b"...",
        "\u{1f600}".as_bytes(),
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        b"f.tmp",
        b"f.part",
        b"f.meta",
        b"*?[",
        &long,
    ];
    both(|mode| {
        let world = World::mounted(mode);
        let dir = OsStr::from_bytes(b"d\xfe\n");
        std::fs::create_dir(world.src(dir)).unwrap();
        let path = |name: &[u8]| Path::new(dir).join(OsStr::from_bytes(name));
        for (i, name) in names.iter().enumerate() {
            std::fs::write(world.src(path(name)), versioned(i as u64, 100)).unwrap();
        }
        let listed: BTreeSet<_> =
            std::fs::read_dir(world.mnt(dir)).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(listed, names.iter().map(|n| OsStr::from_bytes(n).to_owned()).collect());
        let read = || {
            for (i, name) in names.iter().enumerate() {
                let bytes = std::fs::read(world.mnt(path(name))).unwrap();
                assert_eq!(whole_version(&bytes), Some(i as u64), "{name:?}");
                assert_eq!(std::fs::metadata(world.mnt(path(name))).unwrap().len(), 100);
            }
        };
        read();
        for name in names {
            verb("evict", &world.mnt(path(name)));
        }
        assert_eq!(world.stat("cached_files"), 0);
        for name in names {
            verb("warm", &world.mnt(path(name)));
        }
        assert_eq!(world.stat("cached_files"), names.len() as u64);
        let output = run(&[OsStr::new("status"), OsStr::new("--json"), world.mnt(dir).as_os_str()]);
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
        world.umount();
        world.mount();
        read();
        assert_eq!(world.stat("misses"), 0);
    });
}

#[test]
fn bug_111_hard_links_are_one_file_and_one_copy() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        let bytes = world.put("d/a", 100_000, 1);
        std::fs::hard_link(world.src("d/a"), world.src("b")).unwrap();
        let attr = |name: &str| {
            let m = std::fs::metadata(world.mnt(name)).unwrap();
            (m.ino(), m.nlink(), m.size(), m.mtime(), m.mtime_nsec())
        };
        assert_eq!(attr("d/a"), attr("b"));
        assert_eq!(attr("b").1, 2);
        assert_eq!(world.get("d/a"), bytes);
        let used = world.stat("cache_used_bytes");
        assert_eq!(world.get("b"), bytes);
        assert_eq!(world.stat("cache_used_bytes"), used);
        assert_eq!((world.stat("cached_files"), world.stat("misses")), (1, 1));
        let more = [&bytes[..], b"more"].concat();
        std::fs::write(world.src("d/a"), &more).unwrap();
        assert_eq!(attr("d/a"), attr("b"));
        assert_eq!((world.get("b"), world.get("d/a")), (more.clone(), more));
        let archive = shell("tar -C \"$1\" -cf - . | tar -tvf - | grep -c 'link to'", &[&world.mnt("")]);
        assert_eq!(archive, b"1\n");
    });
}

#[test]
fn links_and_special_files_are_what_they_are() {
    need_mount!();
    let world = World::mounted(&[]);
    let bytes = world.put("d/f", 100, 1);
    symlink("d/f", world.src("relative")).unwrap();
    symlink(world.mnt("d/f"), world.src("absolute")).unwrap();
    symlink("nowhere", world.src("dangling")).unwrap();
    symlink("loop", world.src("loop")).unwrap();
    let long = "x/".repeat(2000);
    symlink(&long, world.src("long")).unwrap();
    shell(
        "mkfifo \"$1/fifo\" && mknod \"$1/char\" c 1 3 && mknod \"$1/block\" b 259 70000",
        &[&world.src("")],
    );
    let _socket = std::os::unix::net::UnixListener::bind(world.src("socket")).unwrap();
    for name in ["relative", "absolute", "dangling", "loop", "long"] {
        let (here, there) = (world.mnt(name), world.src(name));
        assert_eq!(std::fs::read_link(here).unwrap(), std::fs::read_link(there).unwrap());
    }
    assert_eq!((world.get("relative"), world.get("absolute")), (bytes.clone(), bytes));
    assert_eq!(std::fs::read(world.mnt("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    let kind = |name: &str| std::fs::symlink_metadata(world.mnt(name)).unwrap();
    assert!(kind("fifo").file_type().is_fifo() && kind("socket").file_type().is_socket());
    assert!(kind("char").file_type().is_char_device() && kind("block").file_type().is_block_device());
    for name in ["char", "block"] {
        let there = std::fs::symlink_metadata(world.src(name)).unwrap();
        assert_eq!(kind(name).rdev(), there.rdev(), "{name}");
    }
}

#[test]
fn bug_121_the_space_is_the_sources() {
    need_mount!();
    let world = World::mounted(&[]);
    let (here, there) =
        (rustix::fs::statvfs(world.mnt("")).unwrap(), rustix::fs::statvfs(world.src("")).unwrap());
    let facts = |s: &rustix::fs::StatVfs| (s.f_blocks, s.f_files, s.f_namemax, s.f_frsize, s.f_bsize);
    assert_eq!(facts(&here), facts(&there));
    assert!(here.f_bavail.abs_diff(there.f_bavail) < there.f_blocks / 10);
    assert!(here.f_ffree.abs_diff(there.f_ffree) < there.f_files / 10);
    assert_eq!(here.f_namemax, 255);
    let df = shell("df -h \"$1\" && df -i \"$1\"", &[&world.mnt("")]);
    assert!(!df.is_empty());
}

#[test]
fn attributes_are_the_sources_and_numbers_stay() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(&with(mode, &["--ttl", "0"]));
        world.put("d/f", 100_000, 1);
        let sparse = File::create(world.src("d/sparse")).unwrap();
        sparse.set_len(50 << 20).unwrap();
        std::fs::set_permissions(world.src("d/f"), std::os::unix::fs::PermissionsExt::from_mode(0o4751))
            .unwrap();
        rustix::fs::sync();
        let same = |name: &str| {
            let of = |m: std::fs::Metadata| {
                let times = (m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec(), m.atime(), m.atime_nsec());
                (m.ino(), m.mode(), m.nlink(), m.uid(), m.gid(), m.size(), m.blocks(), times)
            };
            let here = std::fs::symlink_metadata(world.mnt(name)).unwrap();
            assert_eq!(here.blksize(), 128 << 10, "{name}");
            assert_eq!(of(here), of(std::fs::symlink_metadata(world.src(name)).unwrap()), "{name}");
        };
        let all = ["d", "d/f", "d/sparse"];
        all.into_iter().for_each(same);
        world.get("d/f");
        evict(&world.mnt(""));
        all.into_iter().for_each(same);
        world.umount();
        world.mount();
        all.into_iter().for_each(same);
    });
}

#[test]
fn bug_134_reading_through_the_mount_is_no_access_to_the_source() {
    need_mount!();
    both(|mode| {
        let world = World::mounted(mode);
        for (name, size) in [("small", 1000), ("large", 6 << 20)] {
            let bytes = world.put(name, size, 1);
            // Long ago, so that relatime would set it at the first read.
            shell("touch -a -d 2001-01-01 \"$1\"", &[&world.src(name)]);
            let before = std::fs::metadata(world.src(name)).unwrap();
            for _ in 0..3 {
                assert!(world.get(name) == bytes);
            }
            let after = std::fs::metadata(world.src(name)).unwrap();
            assert_eq!((after.atime(), after.ctime()), (before.atime(), before.ctime()));
            assert_eq!(std::fs::metadata(world.mnt(name)).unwrap().atime(), before.atime());
        }
    });
}

#[test]
fn bug_130_an_unknown_attribute_is_no_data() {
    need_mount!();
    let world = World::mounted(&[]);
    world.put("d/f", 10, 1);
    symlink("d/f", world.src("link")).unwrap();
    let names = [
        "user.none",
        "security.selinux",
        "security.capability",
        "system.posix_acl_access",
        "user.warmfs.none",
        "user.warmfs.",
        "user.warmfs",
        "trusted.x",
    ];
    for path in ["", "d", "d/f", "link"] {
        for name in names {
            let error = rustix::fs::lgetxattr(world.mnt(path), name, &mut [0u8; 16]).unwrap_err();
            assert!(matches!(error, Errno::NODATA | Errno::OPNOTSUPP), "{path} {name}: {error}");
        }
        assert_eq!(rustix::fs::llistxattr(world.mnt(path), &mut [0u8; 4096]), Ok(0), "{path}");
    }
    // And after all that our own still answer.
    assert_eq!(world.xattr("d/f", "state"), "cold");
    shell(
        "ls -laZ \"$1\" > /dev/null && cp -a \"$1\" \"$2\" && diff -r \"$1\" \"$2\"",
        &[&world.mnt(""), &world.dir().join("copy")],
    );
}

#[test]
fn the_inspection_attributes_are_all_there_and_ask_the_source_for_nothing() {
    need_mount!();
    undisturbed(|| {
        both(|mode| {
            for list in [false, true] {
                let world = Slow::new();
                let bytes = world.put("d/f", 10_000, 1);
                world.put("d/cold", 10_000, 1);
                let part = world.put("d/part", 40 << 20, 1);
                let more: &[_] = if list { &["-o", "inspect.list_xattrs=true"] } else { &[] };
                world.mount(&[], &[mode, more, &["-o", "mount.read_ahead=0"]].concat());
                assert_eq!(world.get("d/f"), bytes);
                let large = File::open(world.mnt("d/part")).unwrap();
                let mut piece = [0; 100];
                large.read_exact_at(&mut piece, 20 << 20).unwrap();
                assert_eq!(piece, part[20 << 20..][..100]);
                std::fs::metadata(world.mnt("d/cold")).unwrap();
                let held = File::open(world.mnt("d/f")).unwrap();
                let before = world.counts();
                let warm = if mode.is_empty() { "passthrough" } else { "cached" };
                assert_eq!(world.xattr("d/f", "state"), "warm");
                assert_eq!(world.xattr("d/f", "mode"), warm);
                assert_eq!(world.xattr("d/f", "cached_bytes"), "10000");
                assert_eq!(world.xattr("d/f", "pinned"), "0");
                assert_eq!(world.xattr("d/f", "hits"), "2");
                assert_eq!(std::fs::read(world.xattr("d/f", "cache_path")).unwrap(), bytes);
                assert_eq!(world.xattr("d/part", "state"), "partial");
                assert_eq!(world.xattr("d/part", "mode"), "cached");
                assert_eq!(world.xattr("d/part", "cached_bytes"), (1 << 20).to_string());
                assert_eq!(world.xattr("d/cold", "state"), "cold");
                assert_eq!(world.xattr("d/cold", "mode"), "none");
                assert_eq!(world.xattr("d/cold", "cached_bytes"), "0");
                let none =
                    rustix::fs::lgetxattr(world.mnt("d/cold"), "user.warmfs.cache_path", &mut [0u8; 99]);
                assert_eq!(none, Err(Errno::NODATA));
                for dir in ["", "d"] {
                    let state: serde_json::Value = serde_json::from_str(&world.xattr(dir, "state")).unwrap();
                    assert_eq!((&state["warm"], &state["partial"]), (&1.into(), &1.into()), "{state}");
                }
                for path in ["", "d", "d/f"] {
                    let stats: serde_json::Value = serde_json::from_str(&world.xattr(path, "stats")).unwrap();
                    assert_eq!(stats["cached_files"], 2);
                    assert!(Path::new(&world.xattr(path, "control")).exists());
                    let mut names = [0u8; 4096];
                    let len = rustix::fs::llistxattr(world.mnt(path), &mut names).unwrap();
                    let names: BTreeSet<_> = names[..len].split_inclusive(|b| *b == 0).collect();
                    let wanted: &[&str] = match (list, path) {
                        (false, _) => &[],
                        (true, "d/f") => &[
                            "state",
                            "pinned",
                            "cached_bytes",
                            "mode",
                            "hits",
                            "cache_path",
                            "stats",
                            "control",
                        ],
                        (true, _) => &["state", "stats", "control"],
                    };
                    let wanted: Vec<_> = wanted.iter().map(|n| format!("user.warmfs.{n}\0")).collect();
                    assert_eq!(names, wanted.iter().map(|n| n.as_bytes()).collect(), "{path}");
                }
                // A buffer too small is said to be so, and the size can be asked for.
                let short = rustix::fs::lgetxattr(world.mnt("d/f"), "user.warmfs.state", &mut [0u8; 2]);
                assert_eq!(short, Err(Errno::RANGE));
                assert_eq!(world.counts(), before, "the source was asked");
                drop((held, large));
            }
        });
    });
}

#[test]
fn bug_162_faults_in_a_map_fetch_in_large_pieces() {
    need_mount!();
    undisturbed(|| {
        both(|mode| {
            let world = Slow::new();
            let bytes = world.put("model", 32 << 20, 1);
            world.mount(&["--latency", "5ms"], mode);
            let file = File::open(world.mnt("model")).unwrap();
            let map = Map::shared(&file);
            // Tensor by tensor: at odd places, each from its start to its end.
            let mut dice = Dice::new(5);
            for _ in 0..30 {
                let at = dice.below(bytes.len() - (1 << 20)) & !4095;
                for page in (at..at + (1 << 20)).step_by(4096) {
                    assert_eq!(map[page..page + 8], bytes[page..page + 8]);
                }
            }
            assert!(*map == *bytes);
            let (reads, read) = (world.count("read"), world.count("read_bytes"));
            assert!(read / reads >= 512 << 10, "{read} bytes in {reads} reads");
            assert!(read as f64 <= bytes.len() as f64 * 1.05);
        });
    });
}

#[test]
fn bug_164_a_small_file_is_one_read_of_the_source() {
    need_mount!();
    undisturbed(|| {
        both(|mode| {
            let world = Slow::new();
            let sizes: Vec<usize> = (0..50).map(|n| 4096 + n * 20_000).collect();
            let bytes: Vec<_> = (0..50).map(|n| world.put(&format!("d/{n}"), sizes[n], n as u64)).collect();
            world.mount(&["--latency", "1ms", "--ttl", "10s"], mode);
            std::thread::scope(|scope| {
                for t in 0..4 {
                    let (world, bytes) = (&world, &bytes);
                    scope.spawn(move || {
                        for n in (t..50).step_by(4) {
                            assert!(world.get(&format!("d/{n}")) == bytes[n]);
                        }
                    });
                }
            });
            let (total, reads) = (sizes.iter().sum::<usize>(), world.count("read"));
            assert!(reads <= 60, "{reads} reads for 50 files");
            assert!(world.count("read_bytes") as f64 <= total as f64 * 1.05);
        });
    });
}
