//! A bit that flips in a key, while the store is open.

use crate::{PAGE, is_damage, key};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{
    Batch, Engine, Entry, Error, Outcome, Repairable, Replicated, UnixMillis, WriteOptions,
};
use coreplane_pmem::MediaChoice;
use coreplane_pmem::checksum::crc32c_append;
use std::os::unix::fs::FileExt as _;

const KEYS: u32 = 30;
const HURT: u32 = 17;

/// A store in which a key has a wrong bit.
fn hurt(options: &Options) -> (tempfile::TempDir, Bptree) {
    hurt_at(2, options)
}

/// The same, of the byte at a place of the key.
fn hurt_at(byte: usize, options: &Options) -> (tempfile::TempDir, Bptree) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 1 << 20, PAGE as u32, MediaChoice::Auto, options);
    let store = store.expect("create");
    for number in 0..KEYS {
        let _outcome = store.put(&key(number), b"value", &WriteOptions::default()).expect("put");
    }
    let bytes = std::fs::read(&path).expect("read");
    let wanted = key(HURT);
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    for (at, _) in bytes.windows(wanted.len()).enumerate().filter(|(_, it)| *it == wanted) {
        file.write_at(&[wanted[byte] ^ 4], (at + byte) as u64).expect("write");
    }
    (directory, store)
}

type Keys = Vec<Vec<u8>>;

/// The keys that an iteration shows, and its result.
fn listed(store: &Bptree) -> Result<Keys, (Keys, Error)> {
    let (mut keys, mut cursor) = (Vec::new(), 0);
    loop {
        let mut take = |entry: Entry<'_>| keys.push(entry.key.to_vec());
        match store.iterate(cursor, 1, &mut take) {
            Ok(0) => return Ok(keys),
            Ok(next) => cursor = next,
            Err(error) => return Err((keys, error)),
        }
    }
}

#[test]
fn a_short_key_that_is_damaged_is_told_of_and_put_again() {
    type Write = fn(&Bptree) -> Result<Outcome, Error>;
    let writes: [(Write, bool); 3] = [
        (|store| store.put(&key(HURT), b"new", &WriteOptions::default()), true),
        // With a sequence, as a peer gives it.
        (
            |store| {
                let sequence = Some(store.advance_sequence().expect("sequence"));
                store.put(&key(HURT), b"new", &WriteOptions { sequence, ..Default::default() })
            },
            true,
        ),
        (
            |store| {
                let sequence = Some(store.advance_sequence().expect("sequence") + 1);
                store.delete(&key(HURT), &WriteOptions { sequence, ..Default::default() })
            },
            false,
        ),
    ];
    for (write, is_put) in writes {
        for check_reads in [false, true] {
            let (_directory, store) = hurt(&Options { check_reads, ..Options::default() });
            let all = || (0..KEYS).filter(|it| *it != HURT).map(key).collect::<Vec<_>>();
            for answer in [store.get(&key(HURT)).map(|_| ()), store.check(&key(HURT)).map(|_| ())] {
                assert!(answer.as_ref().is_err_and(is_damage), "{answer:?}");
            }
            let (keys, error) = listed(&store).expect_err("one is damaged");
            assert!(is_damage(&error), "{error}");
            assert_eq!(keys, all());
            let insert = store.insert(&key(HURT), b"new", &WriteOptions::default());
            assert!(insert.as_ref().is_err_and(is_damage), "{insert:?}");
            let _outcome = write(&store).expect("write");
            let mut keys = listed(&store).expect("it is sound");
            keys.sort();
            let is_left = |it: &Vec<u8>| is_put || *it != key(HURT);
            assert!(keys.iter().eq((0..KEYS).map(key).filter(is_left).collect::<Vec<_>>().iter()));
            assert_eq!(store.len().expect("len"), keys.len() as u64);
            let found = store.get(&key(HURT)).expect("get");
            assert_eq!(found.as_deref(), is_put.then_some(&b"new"[..]));
            // Dead records may still be damaged, and a recovery would read them.
            assert!(store.scrub(&mut |_| {}).expect("scrub").damages.is_empty());
            assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
        }
    }
}

/// Only the tag of the damaged key is left in the leaf: one key in 256 has it.
#[test]
fn a_write_of_another_key_with_its_tag_leaves_a_damaged_key_where_it_is() {
    let tag = |key: &[u8]| (crc32c_append(0, key) >> 11) as u8;
    let tagged = |number: &u32| tag(&key(*number)) == tag(&key(HURT));
    let other = key((KEYS..).find(tagged).expect("a key with this tag"));
    type Write = fn(&Bptree, &[u8]) -> Result<(), Error>;
    let writes: [Write; 3] = [
        |store, key| {
            let outcome = store.put(key, b"new", &WriteOptions::default())?;
            assert!(outcome.written().is_some_and(|it| !it.replaced), "{outcome:?}");
            Ok(())
        },
        |store, key| {
            let options = WriteOptions { sequence: Some(1), ..Default::default() };
            let outcome = store.put(key, b"new", &options)?;
            assert!(outcome.written().is_some_and(|it| !it.replaced), "{outcome:?}");
            Ok(())
        },
        |store, key| {
            let mut batch = Batch::new();
            batch.put(key, b"new");
            let options = WriteOptions { sequence: Some(1), ..Default::default() };
            assert!(!store.apply(&batch, &options)?.replaced);
            Ok(())
        },
    ];
    for (number, write) in writes.iter().enumerate() {
        for check_reads in [false, true] {
            let (_directory, store) = hurt(&Options { check_reads, ..Options::default() });
            for answer in [
                store.get(&other).map(drop),
                store.insert(&other, b"new", &WriteOptions::default()).map(drop),
                store.delete(&other, &WriteOptions::default()).map(drop),
            ] {
                assert!(answer.as_ref().is_err_and(is_damage), "{number}: {answer:?}");
            }
            write(&store, &other).expect("a write");
            assert_eq!(store.get(&other).expect("get").as_deref(), Some(&b"new"[..]), "{number}");
            let found = store.get(&key(HURT));
            assert!(found.as_ref().is_err_and(is_damage), "{number}: {found:?}");
            assert_eq!(store.len().expect("len"), u64::from(KEYS) + 1, "{number}");
            // Its own key takes its place.
            let outcome = store.put(&key(HURT), b"anew", &WriteOptions::default()).expect("put");
            assert!(outcome.written().is_some_and(|it| it.replaced), "{number}: {outcome:?}");
            assert_eq!(store.get(&key(HURT)).expect("get").as_deref(), Some(&b"anew"[..]));
            assert_eq!(store.get(&other).expect("get").as_deref(), Some(&b"new"[..]), "{number}");
            assert_eq!(store.len().expect("len"), u64::from(KEYS) + 1, "{number}");
        }
    }
}

/// In a rewritten leaf it would be another key with a valid checksum: its tag is lost with the old leaf.
#[test]
fn a_short_key_that_is_damaged_is_told_of_when_its_leaf_is_written_anew() {
    let others = || (0..KEYS).filter(|it| *it != HURT);
    let put = |store: &Bptree, key: &[u8]| {
        store.put(key, &[1; 100], &WriteOptions::default()).map(|_| ()).expect("put");
    };
    type Rewrite<'a> = &'a dyn Fn(&Bptree);
    let over: Rewrite<'_> = &|store| others().cycle().take(200).for_each(|it| put(store, &key(it)));
    let cut: Rewrite<'_> = &|store| (1000..1600).for_each(|it| put(store, &key(it)));
    let batches: Rewrite<'_> = &|store| {
        for _ in 0..30 {
            let mut batch = Batch::new();
            for number in others() {
                batch.put(&key(number), &[1; 100]);
            }
            store.apply(&batch, &WriteOptions::default()).map(drop).expect("batch");
        }
    };
    let sweep: Rewrite<'_> = &|store| {
        let brief = WriteOptions { expires_at: Some(UnixMillis(1)), ..WriteOptions::default() };
        let _outcome = store.put(b"brief", b"value", &brief).expect("put");
        assert_eq!(store.sweep_expired().expect("a sweep"), 1);
    };
    let ways =
        [("puts over", over), ("puts of more", cut), ("batches", batches), ("a sweep", sweep)];
    for (what, rewrite) in ways {
        let (_directory, store) = hurt(&Options::default());
        rewrite(&store);
        let figure = |name| store.stats().figure(name).expect("a figure");
        assert!(figure("leaves_rewritten") + figure("leaves_split") > 0, "{what}");
        let found = store.get(&key(HURT));
        assert!(found.as_ref().is_err_and(is_damage), "{what}: {found:?}");
        others().for_each(|it| assert!(store.get(&key(it)).expect(what).is_some()));
        put(&store, &key(HURT));
        assert!(store.get(&key(HURT)).expect(what).is_some());
    }
}

/// The damaged key now reads like its neighbour, which is sound and must keep its value, whatever the leaf is
/// rewritten for.
#[test]
fn a_sound_key_stays_where_a_damaged_one_reads_like_it() {
    // '7' with another bit is '3'.
    let (twin, others) = (13, || (0..KEYS).filter(|it| *it != HURT && *it != 13));
    let batch_of = |store: &Bptree, keys: &[u32], len: usize| {
        let mut batch = Batch::new();
        for number in keys {
            batch.put(&key(*number), &vec![1; len]);
        }
        store.apply(&batch, &WriteOptions::default()).map(drop).expect("batch");
    };
    type Rewrite<'a> = &'a dyn Fn(&Bptree);
    let beside: Rewrite<'_> = &|store| {
        (0..30).for_each(|_| batch_of(store, &others().collect::<Vec<_>>(), 100));
    };
    let over: Rewrite<'_> = &|store| batch_of(store, &[HURT], 2000);
    let sequence = |store: &Bptree| Some(store.advance_sequence().expect("sequence") + 1);
    let deleted: Rewrite<'_> = &|store| {
        let options = WriteOptions { sequence: sequence(store), ..Default::default() };
        assert!(matches!(store.delete(&key(HURT), &options), Ok(Outcome::Written(_))));
    };
    let puts: Rewrite<'_> = &|store| {
        for number in others().cycle().take(200) {
            let _outcome =
                store.put(&key(number), &[1; 100], &WriteOptions::default()).expect("put");
        }
    };
    let all = [("a batch", beside, true), ("a batch over it", over, false), ("puts", puts, true)];
    for (what, rewrite, is_lost) in all.into_iter().chain([("a delete", deleted, false)]) {
        let (_directory, store) = hurt_at(8, &Options::default());
        assert_eq!(store.get(&key(twin)).expect(what).as_deref(), Some(&b"value"[..]), "{what}");
        rewrite(&store);
        assert_eq!(store.get(&key(twin)).expect(what).as_deref(), Some(&b"value"[..]), "{what}");
        let found = store.get(&key(HURT));
        assert_eq!(found.as_ref().is_err_and(is_damage), is_lost, "{what}: {found:?}");
        let _outcome = store.put(&key(HURT), b"anew", &WriteOptions::default()).expect("put");
        assert_eq!(store.get(&key(HURT)).expect(what).as_deref(), Some(&b"anew"[..]), "{what}");
        assert_eq!(store.get(&key(twin)).expect(what).as_deref(), Some(&b"value"[..]), "{what}");
        others().for_each(|it| assert!(store.get(&key(it)).expect(what).is_some(), "{what}"));
        assert_eq!(store.len().expect("len"), u64::from(KEYS), "{what}");
    }
}

/// A store with one key, in which one bit is wrong by now.
fn store_with(key: &[u8], flip: (usize, u8), options: &Options) -> (tempfile::TempDir, Bptree) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 256 << 10, PAGE as u32, MediaChoice::Auto, options);
    let store = store.expect("create");
    let _outcome = store.put(key, b"value", &WriteOptions::default()).expect("put");
    let bytes = std::fs::read(&path).expect("read");
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    let beginning = &key[..key.len().min(100)];
    let found = bytes.windows(beginning.len()).enumerate().filter(|(_, it)| *it == beginning);
    for (at, _) in found {
        file.write_at(&[key[flip.0] ^ flip.1], (at + flip.0) as u64).expect("write");
    }
    (directory, store)
}

/// Any bit: some leave the tag of the key in its leaf unchanged.
#[test]
fn any_bit_of_a_key_that_flips_is_told_where_reads_are_checked() {
    let key: Vec<u8> = (0..60_u8).map(|at| at.wrapping_mul(37)).collect();
    let options = Options { check_reads: true, ..Options::default() };
    for bit in 0..8 * key.len() {
        let (_directory, store) = store_with(&key, (bit / 8, 1 << (bit % 8)), &options);
        let answers = [
            store.get(&key).map(drop),
            store.multi_get(&[&key], Default::default(), &mut |_, _| {}).map(drop),
            store.check(&key).map(drop),
            store.insert(&key, b"new", &WriteOptions::default()).map(drop),
            store.delete(&key, &WriteOptions::default()).map(drop),
        ];
        assert!(answers.iter().all(|it| it.as_ref().is_err_and(is_damage)), "{bit}: {answers:?}");
    }
}

/// A store with this key, and ten others behind it, in which a bit has flipped since, of the byte at a place of the
/// key's record.
fn flipped(key: &[u8], at: usize, bit: u8, options: &Options) -> (tempfile::TempDir, Bptree) {
    const HEADER: usize = 20;
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 256 << 10, PAGE as u32, MediaChoice::Auto, options);
    let store = store.expect("create");
    let _outcome = store.put(key, b"value", &WriteOptions::default()).expect("put");
    put_others(&store, 10);
    let bytes = std::fs::read(&path).expect("read");
    let beginning = &key[..key.len().min(100)];
    let found = bytes.windows(beginning.len()).position(|it| it == beginning).expect("the key");
    let file = std::fs::File::options().write(true).open(&path).expect("open");
    let at = found - HEADER + at;
    file.write_at(&[bytes[at] ^ bit], at as u64).expect("write");
    (directory, store)
}

/// Overwrites ten keys in turn.
fn put_others(store: &Bptree, count: u32) {
    for number in 0..count {
        let _outcome =
            store.put(&key(number % 10), &[1; 50], &WriteOptions::default()).expect("put");
    }
}

/// Its field is as long as that of a long key then, or longer.
#[test]
fn a_length_of_a_key_that_is_damaged_is_told_and_it_is_put_again() {
    for check_reads in [false, true] {
        for wanted in [key(17), vec![7; 40]] {
            let options = Options { check_reads, background: false, ..Options::default() };
            // 512 bytes more.
            let (_directory, store) = flipped(&wanted, 5, 2, &options);
            let is_told = |what: &str| {
                let insert = store.insert(&wanted, b"new", &WriteOptions::default()).map(drop);
                for answer in [store.get(&wanted).map(drop), insert] {
                    assert!(answer.as_ref().is_err_and(is_damage), "{what}: {answer:?}");
                }
            };
            is_told("as it was");
            let (keys, error) = listed(&store).expect_err("one is damaged");
            assert!(
                is_damage(&error) && keys.iter().eq((0..10).map(key).collect::<Vec<_>>().iter())
            );
            put_others(&store, 200);
            assert!(store.stats().figure("leaves_rewritten").expect("a figure") > 0);
            is_told("written anew");
            let _outcome = store.put(&wanted, b"new", &WriteOptions::default()).expect("put");
            assert_eq!(store.get(&wanted).expect("get").as_deref(), Some(&b"new"[..]));
            assert_eq!(store.len().expect("len"), 11);
        }
    }
}

/// The last four bytes that the record has of it.
#[test]
fn a_checksum_of_a_long_key_that_is_damaged_is_told_and_it_is_put_again() {
    let key: Vec<u8> = (0..900_u32).map(|at| (at * 37) as u8).collect();
    let field_len = PAGE / 8 - 64;
    for bit in (0..32).step_by(3) {
        for (check_reads, is_rewritten) in [(false, false), (false, true), (true, true)] {
            let options = Options { check_reads, background: false, ..Options::default() };
            let at = 20 + field_len - 4 + bit / 8;
            let (_directory, store) = flipped(&key, at, 1 << (bit % 8), &options);
            if is_rewritten {
                put_others(&store, 200);
                assert!(store.stats().figure("leaves_rewritten").expect("a figure") > 0);
            }
            let insert = store.insert(&key, b"new", &WriteOptions::default()).map(drop);
            for answer in [store.get(&key).map(drop), insert] {
                assert!(answer.as_ref().is_err_and(is_damage), "{bit}: {answer:?}");
            }
            let _outcome = store.put(&key, b"new", &WriteOptions::default()).expect("put");
            assert_eq!(store.get(&key).expect("get").as_deref(), Some(&b"new"[..]), "{bit}");
            assert_eq!(store.len().expect("len"), 11, "{bit}");
        }
    }
}

/// In the part that the record has: that includes its whole checksum.
#[test]
fn a_bit_that_flips_in_the_beginning_of_a_long_key_is_told_and_it_is_put_again() {
    let key: Vec<u8> = (0..900_u32).map(|at| (at * 37) as u8).collect();
    for (bit, check_reads) in [(3, false), (77, true), (600, false)] {
        let options = Options { check_reads, ..Options::default() };
        let (_directory, store) = store_with(&key, (bit / 8, 1 << (bit % 8)), &options);
        let answer = store.get(&key);
        assert!(answer.as_ref().is_err_and(is_damage), "{bit}: {answer:?}");
        let _outcome = store.put(&key, b"new", &WriteOptions::default()).expect("put");
        assert_eq!(store.get(&key).expect("get").as_deref(), Some(&b"new"[..]));
        assert_eq!((store.len().expect("len"), listed(&store).expect("sound").len()), (1, 1));
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    }
}
