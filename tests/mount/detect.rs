//! What a few opens or reads say of the next: shards, siblings, the ends of archives, strides, advice. And that who reads
//! otherwise pays nothing for it.

use crate::common::*;
use crate::need_mount;
use rustix::fs::Advice;
use rustix::io::ReadWriteFlags;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;
use warmfs::types::FileId;

const MIB: u64 = 1 << 20;

/// Bytes that were fetched before anybody asked, and those of them that were used and that went unused.
fn ahead(world: &World) -> [u64; 3] {
    ["prefetched_bytes", "prefetch_used_bytes", "prefetch_wasted_bytes"].map(|name| world.stat(name))
}

fn cached_bytes(world: &World, name: &str) -> u64 {
    world.xattr(name, "cached_bytes").parse().unwrap()
}

/// A file of so many bytes, zeros, that takes no room in the source.
fn put_zeros(world: &World, name: &str, bytes: u64) {
    File::create(world.src(name)).unwrap().set_len(bytes).unwrap();
}

/// Reads a page there, by itself.
fn page(file: &File, offset: u64) {
    let mut page = [1; 4096];
    file.read_exact_at(&mut page, offset).unwrap();
    assert_eq!(page, [0; 4096]);
}

fn shard(n: u64) -> String {
    format!("part-{n:05}-of-00100.bin")
}

/// Goal: two shards that are read in order bring the next one whole, and when it is read the next two, be they filled at
/// their open or chunk by chunk.
#[test]
fn the_next_shards_are_fetched() {
    need_mount!();
    // Filled chunk by chunk, and filled whole.
    for small in ["1MiB", "8MiB"] {
        let world = World::mounted(&["-o", &format!("cache.small_file_max={small}")]);
        let all: Vec<_> = (0..8).map(|n| world.put(&shard(n), 3 * MIB as usize + 5, n)).collect();
        let size = all[0].len() as u64;
        let read = |n: u64| assert!(world.get(&shard(n)) == all[n as usize], "{n}");
        let warm = |n: u64| {
            wait_until("the next shard is here", || world.xattr(&shard(n), "state") == "warm");
        };
        (0..2).for_each(read);
        warm(2);
        assert_eq!(world.xattr(&shard(3), "state"), "cold", "one at first");
        assert_eq!(ahead(&world), [size, 0, 0]);
        let hits = world.stat("hits");
        read(2);
        assert_eq!(world.stat("hits"), hits + 1);
        warm(3);
        warm(4);
        wait_until("both are counted", || ahead(&world) == [3 * size, size, 0]);
        (3..8).for_each(|n| {
            warm(n.min(7));
            read(n);
        });
        assert_eq!((world.stat("backing_bytes_read"), ahead(&world)[2]), (8 * size, 0), "each byte once");
        world.umount();
    }
}

/// Goal: who looks at the end of each shard in their order gets none of them whole.
#[test]
fn shards_that_are_only_looked_at_are_not_fetched() {
    need_mount!();
    let world = World::mounted(&[]);
    for n in 0..20 {
        put_zeros(&world, &shard(n), 12 * MIB);
        page(&File::open(world.mnt(shard(n))).unwrap(), 12 * MIB - 4096);
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((ahead(&world), world.stat("backing_bytes_read")), ([0; 3], 20 * MIB));
    world.umount();
}

/// Goal: for a shard that is only expected nothing is evicted, and none is begun that has no room.
#[test]
fn a_shard_that_is_expected_evicts_nothing() {
    need_mount!();
    let world = World::mounted(&["--cache-size", "16MiB", "-o", "cache.small_file_max=1MiB"]);
    let all: Vec<_> = (0..3).map(|n| world.put(&shard(n), 6 * MIB as usize, n)).collect();
    (0..2).for_each(|n| assert!(world.get(&shard(n)) == all[n as usize]));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((world.stat("evictions"), ahead(&world)), (0, [0, 0, 0]));
    assert_eq!(cached_bytes(&world, &shard(2)), 0);
    world.umount();
}

/// Goal: of a large archive the head and the directory at the end are fetched with its open; of other files nothing.
#[test]
fn head_and_tail_of_an_archive_come_with_its_open() {
    need_mount!();
    let world = World::mounted(&[]);
    for name in ["a.npz", "a.zip", "a.parquet", "a.bin"] {
        put_zeros(&world, name, 8 * MIB);
    }
    for name in ["a.npz", "a.zip", "a.parquet"] {
        let before = ahead(&world);
        let file = File::open(world.mnt(name)).unwrap();
        wait_until("both ends are here", || cached_bytes(&world, name) == 2 * MIB);
        let misses = world.stat("misses");
        page(&file, 8 * MIB - 4096);
        page(&file, 0);
        assert_eq!(world.stat("misses"), misses, "{name}");
        let after = ahead(&world);
        assert_eq!([0, 1, 2].map(|i| after[i] - before[i]), [2 * MIB, 2 * MIB, 0], "{name}");
    }
    let before = ahead(&world);
    let _other = File::open(world.mnt("a.bin")).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((ahead(&world), cached_bytes(&world, "a.bin")), (before, 0));
    world.umount();
}

/// Goal: archives that are opened and not read do not cost for ever.
#[test]
fn ends_that_nobody_reads_are_soon_left_alone() {
    need_mount!();
    let world = World::mounted(&[]);
    let name = |n: u32| format!("{}.zip", (b'a' + n as u8 % 26) as char).repeat(1 + n as usize / 26);
    for n in 0..60 {
        put_zeros(&world, &name(n), 8 * MIB);
        drop(File::open(world.mnt(name(n))).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    let [fetched, used, wasted] = ahead(&world);
    assert!(used == 0 && wasted > 0 && fetched <= 24 * MIB, "{fetched} fetched, {wasted} wasted");
    world.umount();
}

/// Goal: who reads a page every 4 MiB finds the next ones there.
#[test]
fn reads_at_equal_distances_are_foreseen() {
    need_mount!();
    let world = World::mounted(&[]);
    put_zeros(&world, "matrix.bin", 256 * MIB);
    let file = File::open(world.mnt("matrix.bin")).unwrap();
    rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
    let read = |n: u64| page(&file, n * 4 * MIB + 8192);
    (0..4).for_each(read);
    wait_until("the next four are here", || cached_bytes(&world, "matrix.bin") == 8 * MIB);
    let misses = world.stat("misses");
    (4..8).for_each(read);
    assert_eq!(world.stat("misses"), misses);
    wait_until("four more are here", || cached_bytes(&world, "matrix.bin") == 12 * MIB);
    assert_eq!(ahead(&world), [8 * MIB, 4 * MIB, 0]);
    drop(file);
    wait_until("the rest was in vain", || ahead(&world) == [8 * MIB, 4 * MIB, 4 * MIB]);
    world.umount();
}

/// Goal: once it is seen that each image is read with its label, the label comes with the image.
#[test]
fn labels_come_with_their_images() {
    need_mount!();
    let world = World::mounted(&[]);
    // In no order, or they would be shards.
    let mut order: Vec<u64> = (0..40).collect();
    order.sort_by_key(|&n| FileId { high: 5, low: n }.fingerprint());
    for &n in &order {
        world.put(&format!("images/c{}/{n}.jpg", n % 3), 20_000, n);
        world.put(&format!("labels/c{}/{n}.txt", n % 3), 100, n);
    }
    for &n in &order {
        assert_eq!(world.get(&format!("images/c{}/{n}.jpg", n % 3)), pattern(n, 20_000));
        // As long as it takes to decode it.
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(world.get(&format!("labels/c{}/{n}.txt", n % 3)), pattern(n, 100));
    }
    let [fetched, used, wasted] = ahead(&world);
    let hits = world.stat("hits");
    assert!(hits >= 25 && wasted == 0, "{hits} hits, {wasted} wasted");
    assert!(used * 10 >= fetched * 8, "{used} of {fetched} used");
    assert_eq!(world.stat("backing_bytes_read"), 40 * 20_100, "each byte once");
    world.umount();
}

/// Goal: fadvise(WILLNEED) brings bytes before they are read: from the SSD where the kernel reads by itself, from the
/// source where we do.
#[test]
fn advice_that_a_range_will_be_needed_is_taken() {
    need_mount!();
    let world = World::mounted(&[]);
    put_zeros(&world, "large.bin", 16 * MIB);
    let file = File::open(world.mnt("large.bin")).unwrap();
    assert_eq!(world.xattr("large.bin", "mode"), "cached");
    rustix::fs::fadvise(&file, 5 * MIB, NonZeroU64::new(MIB), Advice::WillNeed).unwrap();
    wait_until("it was fetched", || cached_bytes(&world, "large.bin") >= MIB);
    let misses = world.stat("misses");
    page(&file, 5 * MIB + 4096);
    assert_eq!(world.stat("misses"), misses);

    let bytes = world.put("small", MIB as usize, 1);
    world.get("small");
    let file = File::open(world.mnt("small")).unwrap();
    assert_eq!(world.xattr("small", "mode"), "passthrough");
    let data = File::open(world.xattr("small", "cache_path")).unwrap();
    data.sync_all().unwrap();
    let mut first = [0; 4096];
    let mut is_in_ram = |drop_first: bool| {
        if drop_first {
            rustix::fs::fadvise(&data, 0, None, Advice::DontNeed).unwrap();
        }
        let parts = &mut [std::io::IoSliceMut::new(&mut first)];
        matches!(rustix::io::preadv2(&data, parts, MIB / 2, ReadWriteFlags::NOWAIT), Ok(4096))
    };
    wait_until("it is not in RAM", || !is_in_ram(true));
    let source = world.stat("backing_bytes_read");
    rustix::fs::fadvise(&file, MIB / 2, NonZeroU64::new(MIB / 4), Advice::WillNeed).unwrap();
    wait_until("it is in RAM", || is_in_ram(false));
    assert_eq!(first[..], bytes[MIB as usize / 2..][..4096]);
    assert_eq!(world.stat("backing_bytes_read"), source);
    world.umount();
}

/// Source bytes of a piece of work without prefetch and with it, and the bytes that were fetched ahead and not used.
fn costs(flags: &[&str], prepare: impl Fn(&World), work: impl Fn(&World)) -> [u64; 3] {
    let cost = |more: &[&str]| {
        let world = World::mounted(&[flags, more].concat());
        prepare(&world);
        work(&world);
        // What was begun for nobody is to be counted, too.
        std::thread::sleep(Duration::from_millis(500));
        let [fetched, used, _] = ahead(&world);
        let cost = (world.stat("backing_bytes_read"), fetched - used);
        world.umount();
        cost
    };
    let (without, with) = (cost(&["--no-prefetch"]), cost(&[]));
    assert_eq!(without.1, 0);
    [without.0, with.0, with.1]
}

/// Guard: random look-ups in a database bring no more of it than without prefetch.
#[test]
fn a_database_that_is_read_at_random_costs_no_more() {
    need_mount!();
    for pages in [7, 300] {
        let look_up = |world: &World| {
            let file = File::open(world.mnt("data.mdb")).unwrap();
            rustix::fs::fadvise(&file, 0, None, Advice::Random).unwrap();
            for n in 0..pages {
                page(&file, u64::from(FileId { high: 9, low: n }.fingerprint()) % (64 * 256) * 4096);
            }
            // Many look-ups all over it bring all of it, with prefetch or without.
            if pages == 300 {
                wait_until("it is here", || world.xattr("data.mdb", "state") == "warm");
            }
        };
        let [without, with, unused] = costs(&[], |world| put_zeros(world, "data.mdb", 64 * MIB), look_up);
        println!(
            "{pages} pages: {without} bytes of the source without prefetch, {with} with, {unused} unused"
        );
        assert!(with * 100 <= without * 105 && unused * 10 <= with, "{with} for {without}, {unused} unused");
        assert!(without >= MIB);
    }
}

/// Guard: a `grep -r` over a tree, and one that ends early, bring no more than without prefetch.
#[test]
fn a_grep_costs_no_more() {
    need_mount!();
    let prepare = |world: &World| {
        for n in 0..150 {
            world.put(&format!("d{}/f{:03}.txt", n % 5, n / 5), 3000 + n * 50, n as u64);
        }
    };
    for dir in ["", "d3"] {
        let grep = |world: &World| {
            let found = Command::new("grep").args(["-r", "-a", "no such words"]).arg(world.mnt(dir)).output();
            assert_eq!(found.unwrap().status.code(), Some(1));
        };
        let [without, with, unused] = costs(&[], prepare, grep);
        println!("grep in `{dir}`: {without} bytes without prefetch, {with} with, {unused} unused");
        assert!(with * 100 <= without * 105 && unused * 10 <= with, "{with} for {without}, {unused} unused");
        assert!(without > 100_000);
    }
}
