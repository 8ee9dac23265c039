//! Tests of pools through the public interface: what they keep, and what they refuse.

use coreplane_pmem::pool::ROOT_WORDS;
use coreplane_pmem::{CreateOptions, MediaChoice, OpenOptions, Pool, PoolError};
use std::path::PathBuf;

const PAGE: u32 = 64 << 10;

fn options(pages: u64) -> CreateOptions {
    CreateOptions {
        size: pages * u64::from(PAGE) + 17,
        media: MediaChoice::Auto,
        page_size: PAGE,
        kind: "test".to_owned(),
        parameters: [1, 2, 3, 4, 5, 6, 7, u64::MAX],
    }
}

/// A directory on a memory file system, and one in `/tmp`.
fn directories() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()]
}

fn root_of(seed: u64) -> [u64; ROOT_WORDS] {
    std::array::from_fn(|at| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64))
}

#[test]
fn a_pool_is_found_again_as_it_was_left() {
    for directory in directories() {
        let path = directory.path().join("p");
        let pool = Pool::create(&path, &options(4)).unwrap();
        assert_eq!(pool.space().len(), 4 * u64::from(PAGE));
        assert_eq!(pool.root(), [0; ROOT_WORDS]);
        let uuid = pool.uuid();
        for seed in 1..=5 {
            pool.set_root(root_of(seed)).unwrap();
        }
        pool.grow(9 * u64::from(PAGE) + 1).unwrap();
        assert_eq!(pool.space().pages(), 9);
        pool.check().unwrap();
        drop(pool);

        let pool = Pool::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!((pool.uuid(), pool.kind()), (uuid, "test"));
        assert_eq!(pool.parameters(), options(1).parameters);
        assert_eq!(pool.root(), root_of(5));
        assert_eq!(pool.space().pages(), 9);
        assert_eq!(pool.path(), Some(path.as_path()));
        pool.check().unwrap();
        pool.expect_kind("test").unwrap();
        assert!(matches!(pool.expect_kind("scmkv"), Err(PoolError::WrongKind { .. })));
    }
}

#[test]
fn a_second_opener_is_refused_until_the_first_is_gone() {
    for directory in directories() {
        let path = directory.path().join("p");
        let open = || Pool::open(&path, &OpenOptions::default());
        let pool = Pool::create(&path, &options(2)).unwrap();
        assert!(matches!(open(), Err(PoolError::Locked { path: locked }) if locked == path));
        assert!(matches!(
            Pool::create(&path, &options(2)),
            Err(PoolError::Exists { path: there }) if there == path
        ));
        let space = pool.space().clone();
        drop(pool);
        assert!(matches!(open(), Err(PoolError::Locked { .. })), "the mapping still lives");
        drop(space);
        open().unwrap();
    }
}

#[test]
fn no_path_is_left_behind_by_a_refused_creation() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path: PathBuf = directory.path().join("p");
    let dax = CreateOptions { media: MediaChoice::Dax, ..options(2) };
    assert!(matches!(Pool::create(&path, &dax), Err(PoolError::NotPowerSafe { .. })));
    assert!(!path.exists());
    // A mark of another pool at this path that cannot be removed.
    for mark in ["p.cut-short", "p.sync-failed"] {
        let mark = directory.path().join(mark);
        std::fs::create_dir(&mark).unwrap();
        assert!(matches!(Pool::create(&path, &options(2)), Err(PoolError::Io { .. })));
        assert!(!path.exists());
        std::fs::remove_dir(&mark).unwrap();
    }
}

/// The bytes of a small pool in which only the root has been replaced.
fn bytes_of_a_pool() -> Vec<u8> {
    bytes_with_pages_of(4096)
}

fn bytes_with_pages_of(page_size: u32) -> Vec<u8> {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    let create = CreateOptions { page_size, size: u64::from(page_size.max(2048)), ..options(1) };
    let pool = Pool::create(&path, &create).unwrap();
    for seed in 1..=3 {
        pool.set_root(root_of(seed)).unwrap();
    }
    drop(pool);
    std::fs::read(&path).unwrap()
}

fn open_bytes(bytes: &[u8]) -> (tempfile::TempDir, Result<Pool, PoolError>) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    std::fs::write(&path, bytes).unwrap();
    let opened = Pool::open(&path, &OpenOptions::default());
    (directory, opened)
}

/// The used parts of the header.
const STATIC: std::ops::Range<usize> = 0..512;
const SLOTS: [std::ops::Range<usize>; 2] = [512..640, 1024..1152];
const STATE: std::ops::Range<usize> = 1536..1544;

#[test]
fn every_flipped_bit_of_the_header_is_an_error_and_flips_of_one_copy_are_repaired() {
    // The header is in a page with other data, in a page of its own, and in two pages.
    for page_size in [4096, 2048, 1024] {
        flip_every_bit(&bytes_with_pages_of(page_size));
    }
}

fn flip_every_bit(sound: &[u8]) {
    let copies = SLOTS.into_iter().flatten().chain(STATE);
    for (at, has_copy) in STATIC.map(|at| (at, false)).chain(copies.map(|at| (at, true))) {
        for bit in 0..8 {
            let mut bytes = sound.to_vec();
            bytes[at] ^= 1 << bit;
            let (directory, opened) = open_bytes(&bytes);
            let error = opened.expect_err("a flipped bit was not noticed");
            let named = match &error {
                PoolError::Damaged { what, offset: 0 } => at < 8 && what.contains("magic"),
                PoolError::ChecksumMismatch { offset, stored, computed, .. } => {
                    at >= 8 && *offset as usize <= at && (stored != computed || at % 128 >= 124)
                }
                _ => false,
            };
            assert!(named, "byte {at}, bit {bit}: {error}");
            if has_copy {
                let path = directory.path().join("p");
                assert_eq!(Pool::repair(&path, &OpenOptions::default()).unwrap().len(), 1);
                assert_eq!(std::fs::read(&path).unwrap(), sound);
                assert!(Pool::repair(&path, &OpenOptions::default()).unwrap().is_empty());
            }
        }
    }
}

#[test]
fn both_copies_of_the_root_damaged_is_an_error_that_nothing_repairs() {
    let mut bytes = bytes_of_a_pool();
    bytes[SLOTS[0].start + 40] ^= 1;
    bytes[SLOTS[1].start + 48] ^= 1;
    let (directory, opened) = open_bytes(&bytes);
    assert!(matches!(opened, Err(PoolError::ChecksumMismatch { .. })));
    assert!(Pool::repair(&directory.path().join("p"), &OpenOptions::default()).is_err());
}

#[test]
fn an_older_root_put_in_place_of_the_newer_is_noticed() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    let pool = Pool::create(&path, &options(1)).unwrap();
    pool.set_root(root_of(1)).unwrap();
    let older = std::fs::read(&path).unwrap();
    pool.set_root(root_of(2)).unwrap();
    drop(pool);
    let mut bytes = std::fs::read(&path).unwrap();
    for slot in SLOTS {
        bytes[slot.clone()].copy_from_slice(&older[slot]);
    }
    assert!(matches!(open_bytes(&bytes).1, Err(PoolError::Damaged { .. })));
}

#[test]
fn what_is_no_pool_is_refused() {
    let sound = bytes_of_a_pool();
    for (bytes, what) in [
        (vec![], "0 bytes"),
        (b"#!/bin/sh\n".to_vec(), "10 bytes"),
        (vec![0; 8192], "zeroes"),
        (vec![0x5a; 8192], "0x5a5a5a5a5a5a5a5a"),
    ] {
        match open_bytes(&bytes).1 {
            Err(PoolError::NotAPool(said)) => assert!(said.contains(what), "{said}"),
            other => panic!("{what}: {other:?}"),
        }
    }
    let mut torn = sound.clone();
    torn[..8].fill(0);
    match open_bytes(&torn).1 {
        Err(PoolError::NotAPool(said)) => assert!(said.contains("did not finish"), "{said}"),
        other => panic!("{other:?}"),
    }
    for len in [8, 511, 2047, 2048, 4095] {
        match open_bytes(&sound[..len]).1 {
            Err(PoolError::Truncated { expected, found }) => {
                assert!(found == len as u64 && expected > found);
            }
            other => panic!("{len} bytes: {other:?}"),
        }
    }
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(
        Pool::open(directory.path(), &OpenOptions::default()),
        Err(PoolError::NotAPool(_))
    ));
    assert!(matches!(
        Pool::open(&directory.path().join("none"), &OpenOptions::default()),
        Err(PoolError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound
    ));
}

/// Renews the static part's checksum, as defined in `docs/media-format.md`.
fn reseal(bytes: &mut [u8]) {
    bytes[12..16].fill(0);
    let crc = crc32c::crc32c(&bytes[..512]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn other_versions_are_named_and_impossible_sizes_refused() {
    let sound = bytes_of_a_pool();
    let mut same = sound.clone();
    reseal(&mut same);
    assert_eq!(same, sound, "the test seals as the pool does");
    for version in [0_u32, 2, 77, u32::MAX] {
        let mut bytes = sound.clone();
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        reseal(&mut bytes);
        match open_bytes(&bytes).1 {
            Err(PoolError::WrongVersion { found, supported: 1 }) => assert_eq!(found, version),
            other => panic!("{other:?}"),
        }
    }
    for page_size in [0_u64, 3, 512, 1023, 4097, 1 << 31, 1 << 40] {
        let mut bytes = sound.clone();
        bytes[40..48].copy_from_slice(&page_size.to_le_bytes());
        reseal(&mut bytes);
        assert!(matches!(open_bytes(&bytes).1, Err(PoolError::Geometry(_))));
    }
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    for wrong in [
        CreateOptions { size: 1, ..options(1) },
        CreateOptions { page_size: 0, ..options(1) },
        CreateOptions { page_size: 4097, ..options(1) },
        CreateOptions { page_size: 512, ..options(1) },
        CreateOptions { page_size: 1024, size: 2047, ..options(1) },
        CreateOptions { size: u64::MAX, ..options(1) },
        CreateOptions { kind: String::new(), ..options(1) },
        CreateOptions { kind: "ninechars".to_owned(), ..options(1) },
    ] {
        assert!(matches!(Pool::create(&path, &wrong), Err(PoolError::Geometry(_))), "{wrong:?}");
        assert!(!path.exists());
    }
}

#[test]
fn a_full_file_system_is_an_error_at_creation_and_at_growth() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    // No machine of ours has that much; `fallocate` refuses without touching a page.
    let huge = CreateOptions { size: 1 << 45, page_size: 2 << 20, ..options(1) };
    assert!(matches!(Pool::create(&path, &huge), Err(PoolError::NoSpace { .. })));
    assert!(!path.exists(), "what was allocated is given back");

    let pool = Pool::create(&path, &CreateOptions { size: 4 << 20, ..huge }).unwrap();
    pool.set_root(root_of(1)).unwrap();
    assert!(matches!(pool.grow(1 << 39), Err(PoolError::NoSpace { needed, .. }) if needed > 0));
    assert_eq!((pool.space().len(), std::fs::metadata(&path).unwrap().len()), (4 << 20, 4 << 20));
    for (size, what) in [(1 << 45, "over the reserve"), (1 << 60, "over all"), (1, "no header")] {
        let grown = pool.grow(size);
        let is_told = matches!(grown, Err(PoolError::OutOfRange { given, .. }) if given == size);
        assert!(is_told, "{what}: {grown:?}");
    }
    pool.grow(6 << 20).unwrap();
    drop(pool);
    assert_eq!(Pool::open(&path, &OpenOptions::default()).unwrap().root(), root_of(1));
}

#[test]
fn a_sparse_copy_is_filled_when_it_is_opened() {
    use std::os::unix::fs::MetadataExt;
    let sound = bytes_of_a_pool();
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("p");
    let pool = Pool::create(&path, &CreateOptions { size: 1 << 20, ..options(1) }).unwrap();
    drop(pool);
    let header = std::fs::read(&path).unwrap()[..sound.len()].to_vec();
    std::fs::write(&path, header).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20);
    drop(Pool::open(&path, &OpenOptions::default()).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().blocks() * 512, 1 << 20);
}

#[test]
fn media_say_truthfully_what_a_power_cut_loses() {
    let [memory, other] = directories();
    let medium = |directory: &tempfile::TempDir, media: MediaChoice| {
        let path = directory.path().join("p");
        let made = Pool::create(&path, &CreateOptions { media, ..options(1) });
        let medium = made.map(|pool| pool.medium());
        if medium.is_ok() {
            std::fs::remove_file(&path).unwrap();
        }
        medium
    };
    let emulated = medium(&memory, MediaChoice::Auto).unwrap();
    assert_eq!((emulated.name.as_str(), emulated.power_safe), ("emulated:none", false));
    assert!(emulated.power_cut_loses.starts_with("everything"));
    let synced_dram = medium(&memory, MediaChoice::File).unwrap();
    assert!(!synced_dram.power_safe && synced_dram.power_cut_loses.starts_with("everything"));
    let profile = "optane,jitter=0.5";
    let optane = medium(&memory, MediaChoice::Emulated(profile.to_owned())).unwrap();
    assert_eq!(optane.name, format!("emulated:{profile}"));
    assert!(matches!(
        medium(&memory, MediaChoice::Emulated("floppy".to_owned())),
        Err(PoolError::Profile { .. })
    ));
    if !emulated_is_refused_on(&other) {
        return;
    }
    let file = medium(&other, MediaChoice::File).unwrap();
    assert_eq!((file.name.as_str(), file.power_safe), ("file", true));
    assert_eq!(file.power_cut_loses, "nothing");
}

/// False if `directory` is in memory, too.
fn emulated_is_refused_on(directory: &tempfile::TempDir) -> bool {
    let options = CreateOptions { media: MediaChoice::Emulated("none".to_owned()), ..options(1) };
    match Pool::create(&directory.path().join("e"), &options) {
        Ok(_) => false,
        Err(PoolError::NotMemory { .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_failed_sync_stops_writes_for_good_and_the_last_root_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p");
    let file = CreateOptions { media: MediaChoice::File, ..options(2) };
    let pool = Pool::create(&path, &file).unwrap();
    pool.set_root(root_of(1)).unwrap();
    assert!(pool.space().syncs() > 0);
    pool.space().fail_syncs();
    assert!(matches!(pool.set_root(root_of(2)), Err(PoolError::Sync(_))));
    assert!(matches!(pool.grow(1 << 20), Err(PoolError::Sync(_))));
    assert!(pool.space().check_sync().is_err());
    drop(pool);
    let open = OpenOptions { media: MediaChoice::File };
    let root = Pool::open(&path, &open).unwrap().root();
    assert!(root == root_of(1) || root == root_of(2));
}

#[test]
fn an_event_loop_learns_of_its_syncs_without_waiting() {
    use std::sync::Arc;
    use std::sync::mpsc;
    let directory = tempfile::tempdir().unwrap();
    let file = CreateOptions { media: MediaChoice::File, ..options(2) };
    let pool = Pool::create(&directory.path().join("p"), &file).unwrap();
    let space = pool.space();
    let (tell, told) = mpsc::channel();
    space.on_synced(Arc::new(move || tell.send(()).unwrap_or_default()));
    let mut writer = space.claim_log(1).unwrap();
    for record in 0..20_u64 {
        let at = writer.append_nt(&[&record.to_le_bytes()]).unwrap();
        assert_eq!(at, space.start_of(1) + 8 * record);
        let generation = space.sync_generation();
        space.sync_request(generation);
        while !space.sync_is_done(generation).unwrap() {
            told.recv().unwrap();
        }
    }
    assert!(space.syncs() >= 20, "each record was waited for");
}

/// KiB of the file at `path` that this process has mapped and that the kernel has not yet written.
fn dirty_kib(path: &std::path::Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.to_str().unwrap();
    let (mut is_its, mut dirty) = (false, 0_i64);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        let mut kib = || words.next().and_then(|number| number.parse::<i64>().ok()).unwrap_or(0);
        match first {
            "Private_Dirty:" | "Shared_Dirty:" if is_its => dirty += kib(),
            // Copied pages do not belong to the file.
            "Anonymous:" if is_its => dirty -= kib(),
            first if !first.ends_with(':') => is_its = line.ends_with(name),
            _ => {}
        }
    }
    u64::try_from(dirty).unwrap()
}

/// Writes of a killed process may be only in the kernel. They are not shown before they are durable.
#[test]
fn a_copy_shows_what_is_durable() {
    // On the disk of the build: in a memory file system there is nothing to sync.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("p");
    let bytes = bytes_of_a_pool();
    std::fs::write(&path, &bytes).unwrap();
    let options = OpenOptions { media: MediaChoice::File };
    let copy = Pool::open_copy(&path, &options).unwrap();
    assert_eq!(copy.root(), root_of(3));
    assert_eq!(dirty_kib(&path), 0, "it is shown, and a power cut takes it back");
}
