//! Leaves between which there is a long bound, whose rest is damaged.

use crate::upkeep::Store;
use crate::upkeep::tests::{GUARD, new_store};
use crate::volume::counters::Count;
use crate::volume::hurt::is_damage;
use crate::write::plan::{Plan, RestsOn};
use coreplane_engine::{Outcome, Visibility, WriteOptions};
use coreplane_pmem::epoch;
use std::os::unix::fs::FileExt as _;
use std::sync::PoisonError;

const KEYS: u32 = 30;

/// All keys share more than a page has of each.
fn key(number: u32) -> Vec<u8> {
    [vec![b'k'; 4000], format!("{number:03}").into()].concat()
}

/// A store of more than three leaves. A byte of the rest of the least key of the second, which was `k`, is `wrong`.
fn with_damaged_bound(wrong: u8) -> (tempfile::TempDir, Store) {
    let (directory, store) = new_store();
    for number in 0..KEYS {
        let _outcome =
            store.put(&key(number), &[number as u8; 5], &WriteOptions::default()).expect("put");
    }
    let leaves = store.inner.leaves();
    assert!(leaves.len() > 3, "{} leaves", leaves.len());
    let guard = epoch::pin();
    let least = store.head_of(&guard, leaves[1].1).expect("a head").least;
    let rest = store.rest_of(&guard, &least).expect("a rest");
    let file = std::fs::File::options().write(true).open(directory.path().join("pool"));
    let at = store.space.start_of(rest[0]) + 1000;
    file.expect("open").write_all_at(&[wrong], at).expect("write");
    (directory, store)
}

/// The tree leads to the new leaf in the place of the merged ones, not by a key that is read in them.
#[test]
fn merged_leaves_whose_bound_is_damaged_give_way_to_one_in_their_own_place() {
    let _given_back = GUARD.read().unwrap_or_else(PoisonError::into_inner);
    let (_directory, store) = with_damaged_bound(b'j');
    let leaves = store.inner.leaves();
    let (from, to) = (leaves[1].0.clone(), leaves[3].0.clone());
    let mut is_there = [true; KEYS as usize];
    for number in (0..KEYS).filter(|it| key(*it)[..] >= *from && key(*it)[..] < *to) {
        if store.counters.get(Count::Merges) > 0 {
            break;
        }
        let deleted =
            store.write(&key(number), (&WriteOptions::default(), RestsOn::Old), &mut |live| {
                Ok(if live.is_some() { Plan::Delete } else { Plan::Refuse(Outcome::Missing) })
            });
        assert!(deleted.expect("delete").written().is_some());
        is_there[number as usize] = false;
    }
    assert_eq!(store.counters.get(Count::Merges), 1);
    let pages: Vec<u32> = store.inner.leaves().into_iter().map(|(_, page)| page).collect();
    assert!(pages.contains(&leaves[0].1) && pages.len() == leaves.len() - 1, "{pages:?}");
    let is_alive = |page: &u32| store.leaves.get(*page as usize).version().is_some();
    assert!(pages.iter().all(is_alive), "the tree leads to a dead leaf");
    for number in 0..KEYS {
        let found = store.get_with(&key(number), Visibility::Durable, &mut |record| {
            assert!(record.value.equals(&[number as u8; 5]), "{number}");
        });
        assert_eq!(found.expect("get").hit, is_there[number as usize], "{number}");
    }
    store.close().expect("close");
}

/// Too low, the bound leads back; too high, it would make keys of other leaves absent.
#[test]
fn a_read_of_several_keys_does_not_believe_a_damaged_bound() {
    for wrong in [b'j', b'l'] {
        let (_directory, store) = with_damaged_bound(wrong);
        // The reader gives up to read beside batches, and locks the leaves.
        let _publishing = store.isolation.begin();
        let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let mut found = 0;
        let read = store.multi_get(&keys, Visibility::Durable, &mut |_, record| {
            found += u32::from(record.is_some());
        });
        assert!(read.as_ref().is_err_and(is_damage) || found == KEYS, "{wrong}: {found} keys");
    }
}
