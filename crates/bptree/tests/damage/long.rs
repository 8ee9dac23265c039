//! Keys of which a record has only a part: a bit in the rest costs that key, or a leaf, and not the store.

use super::{
    KEYS, Map, PAGE, Shelf, answers, differing, is_damage, is_full, opened, places, wrong,
};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Engine, Ordered, Repairable, WriteOptions};
use coreplane_pmem::MediaChoice;

/// Keys that share more than the part in a record: so bounds have rests, too.
fn long_shelf(closes: bool) -> Shelf {
    shelf_of(closes, |number| {
        let rest = vec![b'l'; number as usize % 3 * 2500];
        [vec![b'k'; 460], format!("{number:05}").into_bytes(), rest].concat()
    })
}

fn shelf_of(closes: bool, key: fn(u32) -> Vec<u8>) -> Shelf {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 2 << 20, PAGE as u32, MediaChoice::Auto, &Options::default());
    let store = store.expect("create");
    let mut map = Map::new();
    for round in 0..3_u32 {
        for number in (0..KEYS / 2).map(|at| at * 37 % KEYS) {
            let options = WriteOptions::default();
            let is_deleted = (number + round).is_multiple_of(7);
            let value = (!is_deleted).then(|| vec![(number + round) as u8; 150]);
            match &value {
                Some(value) => store.put(&key(number), value, &options).map(drop).expect("put"),
                None => store.delete(&key(number), &options).map(drop).expect("delete"),
            }
            map.insert(key(number), value);
        }
    }
    if closes {
        store.close().expect("close");
    }
    drop(store);
    let pool = std::fs::read(&path).expect("read");
    Shelf { directory, pool, map }
}

/// A bit in the rest of a long key, of a record or of a bound, costs keys and not the store.
#[test]
fn a_bit_that_flips_in_a_long_key_is_told_and_costs_no_more_than_its_leaves() {
    for closes in [false, true] {
        let shelf = long_shelf(closes);
        assert_eq!(wrong(&shelf.open(&[]).expect("open"), &shelf.map), Vec::<Vec<u8>>::new());
        let (mut told, mut most) = (0, 0);
        // The heads of all pages, and other places.
        let heads = (PAGE..shelf.pool.len()).step_by(PAGE);
        let heads = heads.flat_map(|page| [(page + 17, 1), (page + 21, 2)]);
        let flips = places(&shelf, 1499).chain(heads).chain(flips_in_rests(&shelf));
        for flip in flips {
            let store = shelf.open(&[flip]).unwrap_or_else(|error| panic!("{flip:?}: {error}"));
            let answers = answers(&store, &shelf.map);
            let wrong = differing(&answers, &shelf.map).len();
            assert_eq!(wrong, 0, "{flip:?}: {wrong} keys are not what they were");
            is_scanned_whole(&store, &shelf.map, flip);
            let hurt = answers.values().filter(|it| it.is_none()).count();
            (told, most) = (told + u32::from(hurt > 0), most.max(hurt));
        }
        eprintln!("{told} told, {most} keys of {} at most", shelf.map.len());
        assert!(told > 40, "{told} of the flips are told");
        assert!(2 * most < shelf.map.len(), "{most} keys for one bit");
    }
}

/// A scan shows all records, or reports damage.
fn is_scanned_whole(store: &Bptree, map: &Map, flip: (usize, u8)) {
    for reverse in [false, true] {
        let mut keys = Vec::new();
        let scanned = store.scan(b"", None, reverse, usize::MAX, &mut |entry| {
            keys.push(entry.key.to_vec());
            true
        });
        let live = map.iter().filter(|(_, value)| value.is_some()).count();
        let is_told = scanned.as_ref().is_err_and(is_damage);
        assert!(is_told || keys.len() == live, "{flip:?}: {} keys, {scanned:?}", keys.len());
    }
}

/// Keys begin with their numbers.
fn name(key: &[u8]) -> String {
    key[..5].escape_ascii().to_string()
}

fn shown(
    store: &Bptree,
    (start, end): (&[u8], Option<&[u8]>),
    reverse: bool,
) -> Option<Vec<String>> {
    let mut keys = Vec::new();
    let scanned = store.scan(start, end, reverse, usize::MAX, &mut |entry| {
        keys.push(name(entry.key));
        true
    });
    match scanned {
        Ok(()) => Some(keys),
        Err(error) if is_damage(&error) => None,
        Err(error) => panic!("{error}"),
    }
}

/// All but one key of a store are as expected, scanned too, and that one is damaged.
fn is_only_hurt(store: &Bptree, map: &Map, hurt: &[u8]) {
    let answers = answers(store, map);
    assert_eq!(differing(&answers, map).len(), 0);
    let damaged = answers.iter().filter(|it| it.1.is_none()).map(|it| name(it.0));
    assert!(damaged.eq([name(hurt)]));
    let live: Vec<&Vec<u8>> = map.keys().filter(|key| map[*key].is_some()).collect();
    let names = |is_mine: &dyn Fn(&[u8]) -> bool| {
        live.iter().filter(|key| is_mine(key)).map(|key| name(key)).collect::<Vec<_>>()
    };
    let (below, above) = (names(&|key| key < hurt), names(&|key| key > hurt));
    let from = hurt[..5].to_vec();
    let to = [from.as_slice(), b"z"].concat();
    for reverse in [false, true] {
        let mut found =
            [shown(store, (b"", Some(&from)), reverse), shown(store, (&to, None), reverse)];
        found.iter_mut().flatten().filter(|_| reverse).for_each(|keys| keys.reverse());
        assert_eq!(found, [Some(below.clone()), Some(above.clone())], "{}", name(hurt));
        // A scan does not report a damaged key that was deleted.
        let is_told = map[hurt].is_some();
        assert_eq!(shown(store, (b"", None), reverse).is_none(), is_told, "{}", name(hurt));
        assert_eq!(shown(store, (hurt, None), reverse).is_none(), is_told, "{}", name(hurt));
    }
    assert!(!store.verify(&mut |_| {}).expect("verify").is_sound());
}

/// A bit of each page of a rest, in its head or in its data.
fn all_flips_in_rests(shelf: &Shelf) -> impl Iterator<Item = (usize, u8)> {
    let is_rest = |page: &usize| {
        shelf.pool[page * PAGE..][..8] != [0; 8] && shelf.pool[page * PAGE + 4] == 0x4b
    };
    let pages = (1..shelf.pool.len() / PAGE).filter(is_rest);
    pages.flat_map(|page| [(page * PAGE + 4, 1), (page * PAGE + 40, 4)])
}

fn flips_in_rests(shelf: &Shelf) -> impl Iterator<Item = (usize, u8)> {
    all_flips_in_rests(shelf).step_by(if is_full() { 1 } else { 5 })
}

/// The key whose rest is damaged; none if it is the rest of a bound of several keys, or has no owner.
fn hurt_in(store: &Bptree, map: &Map) -> Option<Vec<u8>> {
    let mut hurt = answers(store, map).into_iter().filter(|(_, it)| it.is_none());
    let first = hurt.next().map(|(key, _)| key);
    first.filter(|_| hurt.next().is_none())
}

/// Puts a damaged key, or deletes it; afterwards all is as expected, after a crash too.
fn heal(shelf: &Shelf, store: Bptree, mut map: Map, (hurt, round): (Vec<u8>, u8)) {
    let options = WriteOptions::default();
    assert!(store.insert(&hurt, b"new", &options).is_err_and(|it| is_damage(&it)));
    assert!(store.delete(&hurt, &options).is_err_and(|it| is_damage(&it)));
    let given = WriteOptions { sequence: Some(1 << 40), ..options };
    let value = (round % 4 < 3).then(|| vec![round; if round % 4 == 0 { 9000 } else { 70 }]);
    match (&value, round % 4) {
        (Some(value), 1) => store.put(&hurt, value, &given).map(drop).expect("put"),
        (Some(value), _) => store.put(&hurt, value, &options).map(drop).expect("put"),
        (None, _) => store.delete(&hurt, &given).map(drop).expect("delete"),
    }
    map.insert(hurt, value);
    let is_right = |store: &Bptree| {
        assert_eq!(wrong(store, &map).len(), 0);
        assert!(answers(store, &map).values().all(Option::is_some));
        assert!(store.verify(&mut |_| {}).expect("verify").is_sound());
    };
    is_right(&store);
    drop(store);
    is_right(&opened(&shelf.path()).expect("open"));
}

/// Puts each damaged key again, or deletes it, after a look at the store beside it; returns how many keys there were,
/// and how many that had been deleted.
fn heal_each(shelf: fn(bool) -> Shelf, look: fn(&Bptree, &mut Map, &[u8])) -> (u32, u32) {
    let (mut healed, mut deleted) = (0, 0);
    for closes in [false, true] {
        let shelf = shelf(closes);
        for (round, flip) in (0_u8..=255).cycle().zip(flips_in_rests(&shelf)) {
            let store = shelf.open(&[flip]).expect("open");
            let mut map = shelf.map.clone();
            let Some(hurt) = hurt_in(&store, &map) else { continue };
            look(&store, &mut map, &hurt);
            *if map[&hurt].is_some() { &mut healed } else { &mut deleted } += 1;
            heal(&shelf, store, map, (hurt, round));
        }
    }
    (healed, deleted)
}

/// Its leaf is read, scanned and rewritten without it.
#[test]
fn a_long_key_that_is_damaged_costs_itself_and_is_put_again() {
    let shelf = |closes| {
        shelf_of(closes, |number| {
            let rest = vec![b'l'; 430 + number as usize % 3 * 2500];
            [format!("{number:05}").into_bytes(), rest].concat()
        })
    };
    let (healed, deleted) = heal_each(shelf, |store, map, hurt| {
        is_only_hurt(store, map, hurt);
        if map[hurt].is_none() {
            return;
        }
        for round in 0..3 {
            for (key, value) in map.iter_mut().filter(|(key, _)| **key != hurt) {
                let written = vec![round; 120];
                let _outcome = store.put(key, &written, &WriteOptions::default()).expect("put");
                *value = Some(written);
            }
        }
        is_only_hurt(store, map, hurt);
    });
    assert!(healed > 8 && deleted > 0, "{healed} keys, and {deleted} that were deleted");
}

/// The place of the damaged key among them is unknown.
#[test]
fn a_damaged_key_among_others_that_begin_alike_is_put_again() {
    let (healed, _) = heal_each(long_shelf, |store, map, _| {
        assert_eq!(differing(&answers(store, map), map).len(), 0);
    });
    assert!(healed > 8, "{healed} keys");
}

/// Three long keys that begin alike are in the middle of a leaf, and stay together.
#[test]
fn a_leaf_with_a_damaged_key_is_cut_beside_those_that_begin_alike() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 2 << 20, PAGE as u32, MediaChoice::Auto, &Options::default());
    let (store, options) = (store.expect("create"), WriteOptions::default());
    let mut map = Map::new();
    for number in 0..3_u8 {
        let key = [&[b'l'; 500][..], &[number]].concat();
        let _outcome = store.put(&key, &[number; 150], &options).expect("put");
        map.insert(key, Some(vec![number; 150]));
    }
    drop(store);
    let pool = std::fs::read(&path).expect("read");
    let shelf = Shelf { directory, pool, map };
    let mut tried = 0;
    for flip in all_flips_in_rests(&shelf) {
        let store = shelf.open(&[flip]).expect("open");
        let mut map = shelf.map.clone();
        let Some(hurt) = hurt_in(&store, &map) else { continue };
        for number in 0..60_u8 {
            let new = vec![if number % 2 == 0 { b'a' } else { b'z' }, number];
            let put = store.put(&new, &[number; 150], &options);
            assert!(put.is_ok(), "{flip:?} {number}: {put:?}");
            map.insert(new, Some(vec![number; 150]));
        }
        assert!(store.stats().figure("leaves_split").expect("a figure") > 1);
        let answers = answers(&store, &map);
        assert_eq!(differing(&answers, &map).len(), 0);
        assert!(answers.iter().all(|(key, it)| it.is_some() || *key == hurt));
        tried += 1;
    }
    assert_eq!(tried, 6, "the rests of three keys");
}
