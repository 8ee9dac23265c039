//! Damage at rest: a record with changed bytes is healed from a peer.

use crate::shelf::sample::{FRESH, at, created, numbered as key, put};
use crate::shelf::{Kind, Shelf};
use coreplane_engine::{Engine, Entry, Error, Mutation, Repairable, UnixMillis, WriteOptions};
use coreplane_mkvs::{Ack, CopyOptions, Matrix, MemberState, Options};
use std::sync::atomic::Ordering;

#[test]
fn a_damaged_record_is_written_anew_from_its_peer() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let shelf = Shelf::new(kind, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        let value = |number: u64| format!("the value of number {number:04}, and some more");
        (0..500).for_each(|it| put(&matrix, &key(it), value(it).as_bytes()));
        // A tree may have old copies of the value as well.
        assert!(shelf.damage(at(0, 0), value(123).as_bytes()) >= 1);
        assert!(shelf.damage(at(0, 1), value(321).as_bytes()) >= 1);
        let mut scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        // In the order in which an engine shows its keys.
        scrubbed.repaired.sort();
        assert_eq!(scrubbed.repaired, [at(0, 0), at(0, 1)], "{scrubbed:?}");
        assert_eq!((scrubbed.records, scrubbed.lost.len()), (500, 0));
        let again = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((again.repaired.len(), again.lost.len()), (0, 0));
        for device in 0..2 {
            assert!(matrix.member_states().contains(&(at(0, device), MemberState::Current)));
        }
        let check = |matrix: &Matrix| {
            for number in 0..500 {
                let found = matrix.get(&key(number)).expect("get");
                assert_eq!(found.as_deref(), Some(value(number).as_bytes()));
            }
        };
        check(&matrix);
        shelf.pull(at(0, 0));
        check(&matrix);
    }
}

/// A scan that meets damage on a device reads a peer, which has the same records.
#[test]
fn a_scan_goes_around_damage() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    (0..500).for_each(|it| put(&matrix, &key(it), &it.to_le_bytes()));
    let scan = |reverse: bool| {
        let mut keys = Vec::new();
        let visit = &mut |entry: Entry<'_>| {
            keys.push(entry.key.to_vec());
            true
        };
        let ordered = matrix.ordered().expect("trees have an order");
        ordered.scan(&key(100), Some(&key(400)), reverse, 250, visit).map(|()| keys)
    };
    let expected = (scan(false).expect("scan"), scan(true).expect("scan"));
    assert_eq!((expected.0.len(), expected.1.len()), (250, 250));
    for device in 0..2 {
        shelf.gate(at(0, device)).scans_damaged.store(true, Ordering::SeqCst);
        if device == 0 {
            assert_eq!(scan(false).expect("its peer is whole"), expected.0);
            assert_eq!(scan(true).expect("its peer is whole"), expected.1);
            shelf.gate(at(0, 0)).scans_damaged.store(false, Ordering::SeqCst);
        }
    }
    // Now the device that is asked first.
    assert_eq!(scan(false).expect("its peer is whole"), expected.0);
    shelf.gate(at(0, 0)).scans_damaged.store(true, Ordering::SeqCst);
    assert!(matches!(scan(false), Err(Error::ChecksumMismatch { .. })));
    assert!(matrix.member_states().iter().all(|(_, standing)| *standing == MemberState::Current));
}

/// Whichever call of the scrub meets it: the whole check of a device, or the question what it is in doubt of.
#[test]
fn a_device_whose_scrub_meets_damage_stays() {
    for calls in 1..=2 {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        (0..500).for_each(|it| put(&matrix, &key(it), b"a value, and some more of it"));
        let value = b"the value that is damaged, and some more of it";
        put(&matrix, b"damaged", value);
        assert!(shelf.damage(at(0, 1), value) >= 1);
        shelf.gate(at(0, 1)).damages_cares.store(calls, Ordering::SeqCst);
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        let standings = matrix.member_states();
        assert!(standings.iter().all(|(_, it)| *it == MemberState::Current), "{scrubbed:?}");
        assert_eq!(scrubbed.repaired, [at(0, 1)], "{scrubbed:?}");
        // What the second look at the pages did not meet again is not reported.
        assert_eq!(scrubbed.unreadable.len() as u64, calls - 1, "{scrubbed:?}");
        assert_eq!(matrix.get(b"damaged").expect("get").as_deref(), Some(&value[..]));
        let again = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((again.repaired.len(), again.unreadable.len()), (0, 0), "{again:?}");
    }
}

#[test]
fn what_is_damaged_everywhere_is_named_and_left_alone() {
    let shelf = Shelf::new(Kind::Bptree, 16 << 20);
    let matrix = created(&shelf, (1, 2), Ack::All);
    let value = b"a value that is damaged on both devices";
    put(&matrix, b"lost", value);
    put(&matrix, b"kept", b"another");
    (0..2).for_each(|device| assert_eq!(shelf.damage(at(0, device), value), 1));
    let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
    assert_eq!((scrubbed.lost, scrubbed.repaired), (vec![b"lost".to_vec()], vec![]));
    assert_eq!(matrix.get(b"kept").expect("get").as_deref(), Some(&b"another"[..]));
}

/// After a crash a device that has lost records does not know of which keys: its peer has them all.
#[test]
fn what_a_device_has_lost_it_is_given_by_its_peer() {
    const PAGE: usize = 8192;
    // In a record, in a head, and in the image of a leaf.
    for place in [4000, 16, 300] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        let value = |number: u64| format!("the value of number {number:04}, and some more");
        (0..500).for_each(|it| put(&matrix, &key(it), b"an older value"));
        (0..500).for_each(|it| put(&matrix, &key(it), value(it).as_bytes()));
        (0..20).for_each(|it| drop(matrix.delete(&key(25 * it), &WriteOptions::default())));
        drop(matrix);
        // The youngest leaf of about a hundred: none of the matrix's own records is in it.
        let mut pool = std::fs::read(shelf.path(at(0, 0))).expect("read");
        let birth = |page: &[u8]| u64::from_le_bytes(page[16..24].try_into().expect("eight"));
        let is_leaf =
            |page: &&[u8]| page[4] == 0x4c && page[..4] != [0; 4] && page[64..].starts_with(b"k");
        let leaves = pool.chunks(PAGE).enumerate().skip(1).filter(|(_, page)| is_leaf(page));
        let (page, _) = leaves.max_by_key(|(_, page)| birth(page)).expect("a leaf");
        pool[page * PAGE + place] ^= 1;
        std::fs::write(shelf.path(at(0, 0)), &pool).expect("write");
        let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
        assert!(matrix.member_states().contains(&(at(0, 0), MemberState::Current)));
        let is_right = |matrix: &Matrix| {
            (0..500_u64).all(|number| {
                let value = (!number.is_multiple_of(25)).then(|| value(number).into_bytes());
                matrix.get(&key(number)).expect("get") == value
            })
        };
        assert!(is_right(&matrix));
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        // A leaf that was made with it, and was not written to since, is in doubt with it.
        let is_settled = (1..=2).contains(&scrubbed.settled.len());
        assert!(is_settled && scrubbed.settled.iter().all(|it| *it == at(0, 0)), "{scrubbed:?}");
        assert_eq!(scrubbed.lost.len(), 0);
        let again = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((again.repaired.len(), again.settled.len(), again.unreadable.len()), (0, 0, 0));
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
        shelf.pull(at(0, 1));
        assert!(is_right(&matrix), "with the healed one alone, place {place}");
    }
}

/// A record has a part of a long key, and pages of their own have the rest.
#[test]
fn a_long_key_whose_rest_is_damaged_is_written_anew_from_its_peer() {
    const PAGE: usize = 8192;
    let key = |number: u64| [key(number), vec![b'l'; 3000], key(number)].concat();
    let value = |number: u64| format!("the value of number {number}").into_bytes();
    for in_its_head in [false, true] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        (0..60).for_each(|it| put(&matrix, &key(it), &value(it)));
        let rest = [&b"lll"[..], &key(42)[key(42).len() - 8..]].concat();
        if in_its_head {
            // The kind of the page.
            let mut pool = std::fs::read(shelf.path(at(0, 0))).expect("read");
            let found = pool.windows(rest.len()).position(|it| it == rest).expect("the rest");
            pool[found / PAGE * PAGE + 4] ^= 1;
            std::fs::write(shelf.path(at(0, 0)), &pool).expect("write");
        } else {
            assert_eq!(shelf.damage(at(0, 0), &rest), 1);
        }
        let is_right = |matrix: &Matrix| {
            (0..60).all(|it| matrix.get(&key(it)).expect("get") == Some(value(it)))
        };
        assert!(is_right(&matrix), "its peer has it");
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((scrubbed.repaired, scrubbed.lost.len()), (vec![at(0, 0)], 0));
        let again = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((again.repaired.len(), again.lost.len(), again.unreadable.len()), (0, 0, 0));
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
        shelf.pull(at(0, 1));
        assert!(is_right(&matrix), "with the healed one alone");
    }
}

/// No member can list all of its keys then, and the filter is made of those that they can list.
#[test]
fn a_matrix_opens_although_each_member_has_a_long_key_that_is_damaged() {
    const PAGE: usize = 8192;
    let key = |number: u64| [key(number), vec![b'l'; 3000], key(number)].concat();
    let value = |number: u64| format!("the value of number {number}").into_bytes();
    let hurt = |shelf: &Shelf, device: u8, number: u64| {
        let rest = [&b"lll"[..], &key(number)[key(number).len() - 8..]].concat();
        // The kind of the page.
        let mut pool = std::fs::read(shelf.path(at(0, device))).expect("read");
        let found = pool.windows(rest.len()).position(|it| it == rest).expect("the rest");
        pool[found / PAGE * PAGE + 4] ^= 1;
        std::fs::write(shelf.path(at(0, device)), &pool).expect("write");
    };
    // Two keys, or one key whose rest is damaged on both devices.
    for numbers in [[17, 42], [42, 42]] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        (0..60).for_each(|it| put(&matrix, &key(it), &value(it)));
        // Now the filter is made of the keys: it is too small to be kept.
        matrix.close().expect("close");
        drop(matrix);
        (0..2).for_each(|device| hurt(&shelf, device, numbers[usize::from(device)]));
        let matrix = Matrix::open(&shelf, &Options::default(), &|_| {}).expect("open");
        let is_lost = |number| numbers == [number; 2];
        for number in 0..60 {
            match matrix.get(&key(number)) {
                Err(Error::Corrupt { .. }) => assert!(is_lost(number), "{number}"),
                found => {
                    assert!(!is_lost(number), "{number} is taken for one that is not there");
                    assert_eq!(found.expect("get"), Some(value(number)));
                }
            }
        }
        if numbers[0] != numbers[1] {
            let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
            assert_eq!((scrubbed.repaired.len(), scrubbed.lost.len()), (2, 0), "{scrubbed:?}");
            let again = matrix.scrub(&|_| {}).expect("scrub");
            assert_eq!((again.repaired.len(), again.unreadable.len()), (0, 0), "{again:?}");
            assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
        }
    }
}

/// A modification of a damaged record uses the peer's record.
#[test]
fn what_is_made_of_a_damaged_record_is_made_of_its_peers() {
    type Make<'m> = &'m dyn Fn(&[u8]) -> Mutation;
    const EXPIRES_AT: UnixMillis = UnixMillis(1 << 50);
    let value = b"a value that is damaged on one device";
    let expire = |_: &[u8]| Mutation::Expire(Some(EXPIRES_AT));
    let append =
        |old: &[u8]| Mutation::Put { value: [old, b", and more"].concat(), expires_at: None };
    let longer = [&value[..], b", and more"].concat();
    let cases: [(Make<'_>, &[u8]); 2] = [(&expire, value), (&append, &longer)];
    for (kind, damaged) in
        [(Kind::Bptree, 0), (Kind::Bptree, 1), (Kind::Scmkv, 0), (Kind::Scmkv, 1)]
    {
        for (make, expected) in cases {
            let shelf = Shelf::new(kind, 16 << 20);
            let matrix = created(&shelf, (1, 2), Ack::All);
            put(&matrix, b"key", value);
            assert!(shelf.damage(at(0, damaged), value) >= 1);
            let decide = &mut |record: Option<coreplane_engine::Record<'_>>| {
                make(&record.expect("it is there").value.to_cow())
            };
            let _outcome = matrix.modify(b"key", &WriteOptions::default(), decide).expect("modify");
            let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
            assert_eq!((scrubbed.repaired.len(), scrubbed.lost.len()), (0, 0), "all have it anew");
            // Without the matrix, which would ask a peer.
            for device in 0..2 {
                let found = shelf.engine(at(0, device)).get(b"key").expect("get");
                assert_eq!(found.as_deref(), Some(expected), "{kind:?}, device {device}");
            }
        }
    }
}

/// 500 records on three devices, the third of which is then replaced, while the records of the `damaged`
/// devices are damaged.
fn replaced_beside(kind: Kind, damaged: &[u8]) -> (Shelf, Matrix, coreplane_mkvs::Copied) {
    let shelf = Shelf::new(kind, 16 << 20);
    let matrix = created(&shelf, (1, 3), Ack::All);
    (0..500).for_each(|it| put(&matrix, &key(it), b"a value that may be damaged"));
    shelf.pull(at(0, 2));
    put(&matrix, b"more", b"another");
    for device in damaged {
        assert!(shelf.damage(at(0, *device), b"a value that may be damaged") >= 500);
    }
    let filled = matrix.replace(&shelf, at(0, 2), &FRESH, &|_| {}).expect("replace");
    assert!(matrix.member_states().contains(&(at(0, 2), MemberState::Current)));
    (shelf, matrix, filled)
}

#[test]
fn a_device_is_filled_around_damage() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        // The primary is the last device.
        let (shelf, matrix, filled) = replaced_beside(kind, &[1]);
        assert_eq!(filled.lost, Vec::<Vec<u8>>::new());
        for (number, device) in (0..500).flat_map(|it| (0..3).map(move |device| (it, device))) {
            let found = shelf.engine(at(0, device)).get(&key(number)).expect("get");
            let value = &b"a value that may be damaged"[..];
            assert_eq!(found.as_deref(), Some(value), "{kind:?}, {number} on device {device}");
        }
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!((scrubbed.repaired.len(), scrubbed.lost.len()), (0, 0));
    }
}

#[test]
fn what_is_damaged_everywhere_is_given_to_nobody() {
    for kind in [Kind::Bptree, Kind::Scmkv] {
        let (shelf, matrix, mut filled) = replaced_beside(kind, &[0, 1]);
        for number in 0..500 {
            let found = shelf.engine(at(0, 2)).get(&key(number)).expect("get");
            assert_eq!(found, None, "{kind:?}, {number}");
        }
        assert!(shelf.engine(at(0, 2)).get(b"more").expect("get").is_some());
        filled.lost.sort();
        assert_eq!(filled.lost, (0..500).map(key).collect::<Vec<_>>());
        let scrubbed = matrix.scrub(&|_| {}).expect("scrub");
        assert_eq!(scrubbed.lost.len(), 500);
    }
}

/// A new group is given undamaged records, and no slot moves with a key that is damaged on all devices.
#[test]
fn keys_move_to_a_new_group_around_damage() {
    let value = b"a value that may be damaged";
    for damaged in [&[1][..], &[0, 1]] {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        (0..500).for_each(|it| put(&matrix, &key(it), value));
        damaged.iter().for_each(|it| assert!(shelf.damage(at(0, *it), value) >= 500));
        let options = CopyOptions::default();
        let added = matrix.add_group(&shelf, &options, &|_| {});
        if damaged.len() == 2 {
            let error = added.expect_err("nobody has it").to_string();
            assert!(error.contains("key-0"), "{error}");
            assert!(matrix.is_moving());
            (0..500).for_each(|it| put(&matrix, &key(it), value));
            matrix.finish_moves(&options, &|_| {}).expect("all of it is sound");
        } else {
            added.expect("its peer has it");
        }
        assert!(!matrix.is_moving());
        assert!(matrix.slots().0[1] > 0);
        for number in 0..500 {
            let found = matrix.get(&key(number)).expect("get");
            assert_eq!(found.as_deref(), Some(&value[..]), "{number}");
        }
        // Records that were replaced are still damaged.
        matrix.scrub(&|_| {}).expect("scrub");
        assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
    }
}

/// An undo restores the earlier record, and never a damaged one with a valid checksum.
#[test]
fn what_was_refused_makes_no_damage_sound() {
    let value = b"a value that may be damaged";
    for (full, damaged) in (0..3).flat_map(|full| (0..3).map(move |damaged| (full, damaged))) {
        for is_batch in [false, true] {
            if (full, damaged, is_batch) == (2, 2, false) {
                // When the last device refuses the write, no device has the record undamaged any more.
                continue;
            }
            let shelf = Shelf::new(Kind::Bptree, 16 << 20);
            let matrix = created(&shelf, (1, 3), Ack::All);
            put(&matrix, b"key", value);
            assert_eq!(shelf.damage(at(0, damaged), value), 1);
            shelf.gate(at(0, full)).is_full.store(true, Ordering::SeqCst);
            let options = WriteOptions::default();
            let refused = if is_batch {
                let mut batch = coreplane_engine::Batch::new();
                batch.put(b"key", b"new").put(b"other", b"new");
                matrix.apply(&batch, &options).map(|_| ())
            } else {
                matrix.put(b"key", b"new", &options).map(|_| ())
            };
            assert!(matches!(refused, Err(Error::NoSpace { .. })), "{refused:?}");
            for device in 0..3 {
                let engine = shelf.engine(at(0, device));
                let found = engine.get(b"key").expect("get");
                let is_right = found.as_deref() == Some(&value[..]);
                let case = (full, damaged, is_batch, device);
                assert!(is_right || engine.check(b"key").is_err(), "{case:?}: {found:?}");
            }
            shelf.gate(at(0, full)).is_full.store(false, Ordering::SeqCst);
            assert_eq!(matrix.scrub(&|_| {}).expect("scrub").lost.len(), 0);
        }
    }
}

/// No read comes to replaced records in a page, but a recovery does: a scrub without findings has read these
/// as well.
#[test]
fn what_a_scrub_has_healed_is_whole_after_a_crash() {
    const KEYS: u64 = 6000;
    const PAGE: u64 = 8192;
    for device in 0..2 {
        let shelf = Shelf::new(Kind::Bptree, 16 << 20);
        let matrix = created(&shelf, (1, 2), Ack::All);
        let value = |number: u64| format!("the value of number {number:04}, and some more");
        (0..KEYS).for_each(|it| put(&matrix, &key(it), b"an older value"));
        (0..KEYS).filter(|it| it % 3 > 0).for_each(|it| put(&matrix, &key(it), b"another"));
        (0..KEYS).for_each(|it| put(&matrix, &key(it), value(it).as_bytes()));
        flip_some(&shelf.path(at(0, device)), PAGE, 60);
        let first = matrix.scrub(&|_| {}).expect("scrub");
        assert!(first.rewritten.contains(&at(0, device)) && first.lost.is_empty(), "{first:?}");
        let again = matrix.scrub(&|_| {}).expect("scrub");
        let found = [again.repaired.len(), again.settled.len(), again.rewritten.len()];
        assert_eq!((found, again.lost.len(), again.unreadable), ([0; 3], 0, vec![]));
        // The state after a kill, opened by itself.
        let copy = shelf.path(at(0, device)).with_extension("copy");
        std::fs::copy(shelf.path(at(0, device)), &copy).expect("copy");
        let options = coreplane_bptree::Options::default();
        let auto = coreplane_pmem::MediaChoice::Auto;
        let alone = coreplane_bptree::Bptree::open(&copy, auto, &options, &|_| {}).expect("open");
        assert_eq!(alone.lost_ranges().expect("doubts"), []);
        assert!(alone.verify(&mut |_| {}).expect("verify").is_sound());
        for number in 0..KEYS {
            let found = alone.get(&key(number)).expect("get");
            assert_eq!(found.as_deref(), Some(value(number).as_bytes()), "{number}");
        }
    }
}

/// Flips a bit in each of so many bytes of pages that were written to.
fn flip_some(path: &std::path::Path, page_size: u64, count: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().read(true).write(true).open(path).expect("open");
    let pages = file.metadata().expect("metadata").len() / page_size;
    let read = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).expect("read");
        bytes
    };
    let used: Vec<u64> = (1..pages).filter(|page| read(page * page_size) != [0; 8]).collect();
    for number in 0..count {
        let hash = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = used[(hash >> 20) as usize % used.len()] * page_size + (hash >> 7) % page_size;
        file.write_all_at(&[read(at & !7)[(at % 8) as usize] ^ (1 << (hash % 8))], at)
            .expect("write");
    }
}
