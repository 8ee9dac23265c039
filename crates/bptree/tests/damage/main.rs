//! Bits that flip at rest: after a crash and after a close the store opens, and no key answers wrongly, not even
//! where the bit is in the last record of a leaf, behind which nothing was written.

mod absence;
mod counts;
mod heads;
mod lengths;
mod long;
mod made;
mod order;
mod scrub;
mod short;
mod superseded_mark;
mod sweep;

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{
    Batch, Durability, Engine, Error, Expected, KeyRange, Ordered, Repairable, WriteOptions,
};
use coreplane_pmem::MediaChoice;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No caller waits for a sync.
fn unhurried() -> Durability {
    Durability::Relaxed { window_bytes: 1 << 40, window: Duration::from_hours(1) }
}

type Map = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

const PAGE: usize = 4 << 10;
const KEYS: u32 = 90;

fn is_full() -> bool {
    std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full")
}

fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::ChecksumMismatch { .. })
}

/// A pool in memory, as it was when its store was closed or had crashed.
struct Shelf {
    directory: tempfile::TempDir,
    pool: Vec<u8>,
    /// The state of every key: its value, or its absence.
    map: Map,
}

impl Shelf {
    fn path(&self) -> PathBuf {
        self.directory.path().join("pool")
    }

    /// Opens the pool with these flips exclusive-or'ed into it.
    fn open(&self, flips: &[(usize, u8)]) -> Result<Bptree, Error> {
        let mut pool = self.pool.clone();
        flips.iter().for_each(|(at, bits)| pool[*at] ^= bits);
        std::fs::write(self.path(), &pool).expect("write");
        opened(&self.path())
    }
}

/// A read that checks the checksum finds a flipped bit in a value.
fn options() -> Options {
    Options { check_reads: true, ..Options::default() }
}

fn opened(path: &Path) -> Result<Bptree, Error> {
    Bptree::open(path, MediaChoice::Auto, &options(), &|_| {})
}

fn shelf(closes: bool) -> Shelf {
    shelf_on(MediaChoice::Auto, closes)
}

/// Grown, shrunk and overwritten, so that there are images, tails, dead leaves, batches, large values. In a file no
/// write waits for a sync, so that no record states that another was durable.
fn shelf_on(media: MediaChoice, closes: bool) -> Shelf {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let is_file = media == MediaChoice::File;
    let durability = if is_file { unhurried() } else { Durability::Strict };
    let options = Options { durability, background: false, ..Options::default() };
    let store = Bptree::create(&path, 1 << 20, PAGE as u32, media, &options);
    let store = store.expect("create");
    let mut map: Map = (0..2 * KEYS).map(|number| (key(number), None)).collect();
    let mut write = |number: u32, value: Option<Vec<u8>>| {
        let options = WriteOptions::default();
        match &value {
            Some(value) => store.put(&key(number), value, &options).map(drop).expect("put"),
            None => store.delete(&key(number), &options).map(drop).expect("delete"),
        }
        map.insert(key(number), value);
    };
    for round in 0..4_u32 {
        for at in 0..KEYS {
            let number = at * 37 % KEYS;
            let value = vec![(number * 7 + round) as u8; 40 + ((number + round) % 5) as usize * 30];
            let is_deleted = (number + round).is_multiple_of(11);
            write(number, (!is_deleted).then_some(value));
        }
    }
    write(17, Some(vec![9; 6000]));
    let mut batch = Batch::new();
    for number in [3, 30, 60, 85] {
        batch.put(&key(number), b"of a batch");
        map.insert(key(number), Some(b"of a batch".to_vec()));
    }
    store.apply(&batch, &WriteOptions::default()).expect("apply");
    // Behind the batch in some of its leaves, not in all.
    for number in [4, 31, 4] {
        let _outcome =
            store.put(&key(number), b"behind it", &WriteOptions::default()).expect("put");
        map.insert(key(number), Some(b"behind it".to_vec()));
    }
    if closes {
        store.close().expect("close");
    }
    drop(store);
    let pool = std::fs::read(&path).expect("read");
    Shelf { directory, pool, map }
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

/// The places of the records behind the image of the leaf in a page; none if there is no leaf.
fn tail(pool: &[u8], page: usize) -> Option<Vec<Range<usize>>> {
    let bytes = &pool[page * PAGE..][..PAGE];
    if bytes[4] != 0x4c || bytes[..4] == [0; 4] {
        return None;
    }
    let (mut at, mut records, mut last) = (word(bytes, 12), Vec::new(), 0);
    while at + 20 <= PAGE {
        let (lengths, version) = (word(bytes, at + 4), word(bytes, at + 12));
        let (kind, flags) = (lengths >> 17 & 7, lengths >> 20 & 3);
        let len = 20 + 8 * flags.count_ones() as usize + (lengths & 0x1ffff) + word(bytes, at + 8);
        let end = at + len.next_multiple_of(8);
        // A record from an earlier use of the page has a smaller version.
        if ![1, 2, 4].contains(&kind) || end > PAGE || version < last {
            break;
        }
        records.push(page * PAGE + at..page * PAGE + end);
        (at, last) = (end, version);
    }
    Some(records)
}

/// Records that no later record proves durable: the last of a leaf, and, if it belongs to a batch, the others of
/// that batch.
fn last_records(pool: &[u8]) -> Vec<Range<usize>> {
    let mut last = Vec::new();
    for page in 1..pool.len() / PAGE {
        let Some(mut records) = tail(pool, page) else { continue };
        let Some(end) = records.pop() else { continue };
        let is_batched = |range: &Range<usize>| word(pool, range.start + 4) >> 23 & 1 == 1;
        let mut start = end.start;
        while is_batched(&end) && records.last().is_some_and(is_batched) {
            start = records.pop().expect("one").start;
        }
        last.push(start..end.end);
    }
    last
}

/// The answer of the store for each key; none: that it is damaged.
fn answers(store: &Bptree, map: &Map) -> BTreeMap<Vec<u8>, Option<Option<Vec<u8>>>> {
    let answer = |key: &Vec<u8>| match store.get(key) {
        Ok(value) => Some(value),
        Err(error) if is_damage(&error) => None,
        Err(error) => panic!("{error}"),
    };
    map.keys().map(|key| (key.clone(), answer(key))).collect()
}

/// Keys whose answers differ from their states.
fn differing(answers: &BTreeMap<Vec<u8>, Option<Option<Vec<u8>>>>, map: &Map) -> Vec<Vec<u8>> {
    let is_wrong =
        |(key, _): &(&Vec<u8>, _)| answers[*key].as_ref().is_some_and(|it| *it != map[*key]);
    map.iter().filter(is_wrong).map(|(key, _)| key.clone()).collect()
}

/// Keys with a wrong answer and no report of damage.
fn wrong(store: &Bptree, map: &Map) -> Vec<Vec<u8>> {
    let answers = answers(store, map);
    let wrong = differing(&answers, map);
    // A scan reports damage, or shows the results of single reads.
    for reverse in [false, true] {
        let mut shown = BTreeMap::new();
        let mut take = |entry: coreplane_engine::Entry<'_>| {
            shown.insert(entry.key.to_vec(), ());
            true
        };
        let scanned = store.scan(b"", None, reverse, usize::MAX, &mut take);
        let is_there = |key: &&Vec<u8>| answers[*key].as_ref().is_none_or(Option::is_some);
        match scanned {
            Err(error) => assert!(is_damage(&error), "{error}"),
            Ok(()) => assert!(map.keys().filter(is_there).eq(shown.keys()), "{reverse}"),
        }
    }
    wrong
}

/// A place every `step` bytes, so that all kinds of places come up.
fn places(shelf: &Shelf, step: usize) -> impl Iterator<Item = (usize, u8)> {
    let step = if is_full() { step / 16 } else { step };
    let is_used = |at: &usize| shelf.pool[at / PAGE * PAGE..][..8] != [0; 8];
    (PAGE..shelf.pool.len()).step_by(step).filter(is_used).map(|at| (at, 1 << (at % 8)))
}

/// Bits of the last records of leaves: some of each.
fn last_places(shelf: &Shelf) -> Vec<(usize, u8)> {
    let step = if is_full() { 1 } else { 29 };
    let bits = last_records(&shelf.pool).into_iter().flat_map(|it| 8 * it.start..8 * it.end);
    bits.step_by(step).map(|bit| (bit / 8, 1 << (bit % 8))).collect()
}

#[test]
fn a_bit_that_flips_after_a_kill_is_told_wherever_it_is() {
    for media in [MediaChoice::Auto, MediaChoice::File] {
        let shelf = shelf_on(media.clone(), false);
        assert_eq!(wrong(&shelf.open(&[]).expect("open"), &shelf.map), Vec::<Vec<u8>>::new());
        let last = last_places(&shelf);
        assert!(last.len() > 100, "{} bits of last records", last.len());
        let mut told = 0;
        for flip in places(&shelf, 233).chain(last) {
            let store = shelf.open(&[flip]).unwrap_or_else(|error| panic!("{flip:?}: {error}"));
            let wrong = wrong(&store, &shelf.map);
            told += u32::from(answers(&store, &shelf.map).values().any(Option::is_none));
            let keys: Vec<_> = wrong.iter().map(|key| key.escape_ascii().to_string()).collect();
            assert!(keys.is_empty(), "{media:?}, {flip:?}: {keys:?}");
        }
        eprintln!("{told} told");
        assert!(told > 100, "{told} of the flips are told");
    }
}

/// Lengths that reach behind all arrived bytes look like those of a record in which the power went; only the record
/// behind it states that it was durable.
#[test]
fn lengths_with_two_wrong_bits_are_told_where_a_later_record_follows() {
    let shelf = shelf(false);
    let follows = |range: &Range<usize>| word(&shelf.pool, range.start + 4) >> 24 & 1 == 1;
    let mut told = 0;
    for page in 1..shelf.pool.len() / PAGE {
        let records = tail(&shelf.pool, page).unwrap_or_default();
        for pair in records.windows(2).filter(|pair| follows(&pair[1])).step_by(2) {
            // 3072 bytes more of a value.
            let flips = [(pair[0].start + 9, 4 | 8)];
            let store = shelf.open(&flips).unwrap_or_else(|it| panic!("{flips:?}: {it}"));
            assert_eq!(wrong(&store, &shelf.map), Vec::<Vec<u8>>::new(), "{flips:?}");
            told += u32::from(answers(&store, &shelf.map).values().any(Option::is_none));
        }
    }
    assert!(told > 10, "{told} are told");
}

#[test]
fn a_bit_that_flips_after_a_close_is_told_wherever_it_is() {
    let shelf = shelf(true);
    let mut told = 0;
    for flip in places(&shelf, 233) {
        let store = shelf.open(&[flip]).unwrap_or_else(|error| panic!("{flip:?}: {error}"));
        assert_eq!(wrong(&store, &shelf.map), Vec::<Vec<u8>>::new(), "{flip:?}");
        told += u32::from(answers(&store, &shelf.map).values().any(Option::is_none));
    }
    assert!(told > 40, "{told} of the flips are told");
}

/// Damage that was reported once is reported for ever: after more writes, crashes and closes.
#[test]
fn what_is_known_of_damage_outlives_writes_crashes_and_closes() {
    for closes in [false, true] {
        let shelf = shelf(closes);
        for (round, flip) in (0..).zip(places(&shelf, 1999)) {
            let mut map = shelf.map.clone();
            let mut store = shelf.open(&[flip]).expect("open");
            for step in 0..6_u32 {
                let hurt = answers(&store, &map).into_iter().filter(|(_, it)| it.is_none());
                let hurt: Vec<Vec<u8>> = hurt.map(|(key, _)| key).collect();
                let report = store.verify(&mut |_| {}).expect("verify");
                assert!(hurt.is_empty() || !report.is_sound(), "{flip:?}: {report:?}");
                for number in (0..KEYS).filter(|it| (it + step).is_multiple_of(5)) {
                    let value = vec![step as u8; 70];
                    let _outcome =
                        store.put(&key(number), &value, &WriteOptions::default()).expect("put");
                    map.insert(key(number), Some(value));
                }
                assert_eq!(wrong(&store, &map), Vec::<Vec<u8>>::new(), "{flip:?}, {step}");
                if (step + round).is_multiple_of(2) {
                    store.close().expect("close");
                }
                drop(store);
                store = opened(&shelf.path()).expect("open");
                assert_eq!(wrong(&store, &map), Vec::<Vec<u8>>::new(), "{flip:?}, {step}");
            }
        }
    }
}

/// A store with a damaged leaf, by a bit in its head, and the keys of that leaf.
fn hurt() -> (Shelf, Bptree, Vec<Vec<u8>>) {
    let shelf = shelf(false);
    let open = |page: usize| {
        let store = shelf.open(&[(page * PAGE + 20, 1)]).expect("open");
        let keys = answers(&store, &shelf.map).into_iter().filter(|(_, it)| it.is_none());
        let keys: Vec<_> = keys.map(|(key, _)| key).collect();
        (keys.len() > 3).then_some((store, keys))
    };
    let (store, keys) = (1..shelf.pool.len() / PAGE).find_map(open).expect("a living leaf");
    (shelf, store, keys)
}

#[test]
fn a_write_that_asks_what_was_there_is_refused_and_one_that_does_not_ends_the_doubt() {
    let (_shelf, store, keys) = hurt();
    let options = WriteOptions::default();
    let refused = |outcome: Result<coreplane_engine::Outcome, Error>| {
        assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{outcome:?}");
    };
    refused(store.insert(&keys[0], b"new", &options));
    refused(store.update(&keys[0], b"new", &options));
    refused(store.compare_and_set(&keys[0], Expected::Absent, b"new", &options));
    refused(store.delete(&keys[0], &options));
    assert!(store.multi_get(&[&keys[0]], Default::default(), &mut |_, _| {}).is_err());
    assert!(store.iterate(0, usize::MAX, &mut |_| {}).is_err());
    assert!(store.check(&keys[0]).is_err());
    let _outcome = store.put(&keys[0], b"new", &options).expect("put");
    let mut batch = Batch::new();
    batch.put(&keys[1], &[7; 9000]).delete(&keys[2]);
    store.apply(&batch, &options).expect("apply");
    let given = WriteOptions { sequence: Some(1 << 40), ..options };
    let _outcome = store.delete(&keys[3], &given).expect("delete");
    assert_eq!(store.get(&keys[0]).expect("get").as_deref(), Some(&b"new"[..]));
    assert_eq!(store.get(&keys[1]).expect("get").as_deref(), Some(&[7; 9000][..]));
    assert_eq!(store.get(&keys[2]).expect("get"), None);
    assert_eq!(store.get(&keys[3]).expect("get"), None);
}

#[test]
fn who_has_it_all_puts_it_and_settles_the_doubt() {
    let (shelf, store, keys) = hurt();
    let doubts = store.lost_ranges().expect("doubts");
    let is_in = |doubt: &KeyRange, key: &Vec<u8>| {
        *key >= doubt.start && doubt.end.as_ref().is_none_or(|end| key < end)
    };
    assert!(keys.iter().all(|key| doubts.iter().any(|doubt| is_in(doubt, key))));
    for (key, value) in keys.iter().filter_map(|key| Some((key, shelf.map[key].as_ref()?))) {
        let _outcome = store.put(key, value, &WriteOptions::default()).expect("put");
    }
    doubts.iter().for_each(|doubt| store.settle(doubt).expect("settle"));
    assert_eq!(store.lost_ranges().expect("doubts"), []);
    let is_right = |store: &Bptree| {
        let answers = answers(store, &shelf.map);
        shelf.map.iter().all(|(key, value)| answers[key].as_ref() == Some(value))
    };
    assert!(is_right(&store) && store.verify(&mut |_| {}).expect("verify").is_sound());
    drop(store);
    let store = opened(&shelf.path()).expect("open");
    assert!(is_right(&store) && store.lost_ranges().expect("doubts").is_empty());
}

/// One of its leaves is damaged, and not loaded.
#[test]
fn a_store_with_a_damaged_leaf_can_be_emptied() {
    let shelf = shelf(true);
    let is_leaf = |page: &usize| tail(&shelf.pool, *page).is_some();
    let mut emptied = 0;
    for page in (1..shelf.pool.len() / PAGE).filter(is_leaf) {
        let store = shelf.open(&[(page * PAGE + 20, 1)]).expect("open");
        store.clear().expect("clear");
        let _outcome = store.put(&key(5), b"new", &WriteOptions::default()).expect("put");
        let is_right = |store: &Bptree| {
            let get = |number| store.get(&key(number)).expect("get");
            store.len().expect("len") == 1
                && (0..KEYS).all(|number| get(number).is_some() == (number == 5))
                && store.lost_ranges().expect("doubts").is_empty()
        };
        assert!(is_right(&store), "page {page}");
        drop(store);
        assert!(is_right(&opened(&shelf.path()).expect("open")), "page {page}");
        emptied += 1;
    }
    assert!(emptied > 3, "{emptied} leaves");
}
