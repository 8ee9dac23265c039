//! Of keys of which a record has a part: a bit in the rest costs keys and not the store.

use super::{KEYS, Map, PAGE, Shelf, answers, differing, places, wrong};
use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Engine, WriteOptions};
use coreplane_pmem::MediaChoice;

/// Keys that begin alike for longer than a record has of them: so bounds have rests, too.
fn long_shelf(closes: bool) -> Shelf {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let store = Bptree::create(&path, 2 << 20, PAGE as u32, MediaChoice::Auto, &Options::default());
    let store = store.expect("create");
    let key = |number: u32| {
        let rest = vec![b'l'; number as usize % 3 * 2500];
        [vec![b'k'; 460], format!("{number:05}").into_bytes(), rest].concat()
    };
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
        let flips = places(&shelf, 1499).chain(heads);
        for flip in flips {
            let store = shelf.open(&[flip]).unwrap_or_else(|error| panic!("{flip:?}: {error}"));
            let answers = answers(&store, &shelf.map);
            let wrong = differing(&answers, &shelf.map).len();
            assert_eq!(wrong, 0, "{flip:?}: {wrong} keys are not what they were");
            let hurt = answers.values().filter(|it| it.is_none()).count();
            (told, most) = (told + u32::from(hurt > 0), most.max(hurt));
        }
        eprintln!("{told} told, {most} keys of {} at most", shelf.map.len());
        assert!(told > 40, "{told} of the flips are told");
        assert!(2 * most < shelf.map.len(), "{most} keys for one bit");
    }
}
