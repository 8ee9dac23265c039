//! The tree against a model, and readers beside changes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// The leaves by their least keys, as the tree should have them.
type Model = BTreeMap<Vec<u8>, u32>;

fn check(inner: &Inner, model: &Model, keys: impl Iterator<Item = Vec<u8>>) {
    for key in keys {
        let (_, leaf) = model.range(..=key.clone()).next_back().unwrap();
        let descent = inner.descend(&key);
        assert_eq!((descent.leaf, inner.is_current(&descent)), (*leaf, true), "{key:?}");
        let before = model
            .range(..key.clone())
            .next_back()
            .unwrap_or_else(|| model.first_key_value().unwrap());
        assert_eq!(inner.descend_before(Some(&key)).leaf, *before.1, "before {key:?}");
    }
    assert_eq!(inner.descend_before(None).leaf, *model.last_key_value().unwrap().1);
}

fn key_of(number: u16) -> Vec<u8> {
    // Variable in length; some begin with others.
    let mut key = number.to_string().into_bytes();
    key.extend(vec![b'x'; number as usize % 3 * 9]);
    key
}

#[derive(Debug, Clone)]
enum Step {
    Split(u16),
    Merge(u16),
    Replace(u16),
    Build,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u16>().prop_map(Step::Split),
        5 => any::<u16>().prop_map(Step::Merge),
        1 => any::<u16>().prop_map(Step::Replace),
    ]
}

fn run(inner: &Inner, model: &mut Model, next: &mut u32, step: &Step) {
    let mut leaf = || {
        *next += 1;
        *next
    };
    match step {
        Step::Split(number) => {
            let key = key_of(*number);
            if model.contains_key(&key) {
                return;
            }
            let (left, right) = (leaf(), leaf());
            *model.range_mut(..=key.clone()).next_back().unwrap().1 = left;
            inner.split(left, &key, right);
            model.insert(key, right);
        }
        Step::Merge(number) => {
            let Some((left, separator, right)) = inner.pair_of(&key_of(*number)) else {
                return;
            };
            let new = leaf();
            assert_eq!(model.remove(&*separator), Some(right));
            let mine = model.range_mut(..separator.to_vec()).next_back().unwrap().1;
            assert_eq!(std::mem::replace(mine, new), left);
            inner.merge(&separator, new);
        }
        Step::Replace(number) => {
            let key = key_of(*number);
            let new = leaf();
            *model.range_mut(..=key.clone()).next_back().unwrap().1 = new;
            inner.replace(&key, new);
        }
        Step::Build => {
            let mut leaves = model.iter().map(|(key, leaf)| (key.as_slice().into(), *leaf));
            let (_, first) = leaves.next().unwrap();
            inner.build(first, leaves.collect());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_tree_is_the_one_that_was_asked_for(
        grow in proptest::collection::vec(any::<u16>(), 0..3000),
        steps in proptest::collection::vec(step(), 1..3000),
        looked_up in proptest::collection::vec(any::<u16>(), 300),
    ) {
        let inner = Inner::new(0, 10_000);
        let (mut model, mut next) = (Model::from([(Vec::new(), 0)]), 0);
        for number in grow {
            run(&inner, &mut model, &mut next, &Step::Split(number));
        }
        check(&inner, &model, looked_up.iter().copied().map(key_of));
        run(&inner, &mut model, &mut next, &Step::Build);
        check(&inner, &model, looked_up.iter().copied().map(key_of));
        for step in &steps {
            run(&inner, &mut model, &mut next, step);
        }
        check(&inner, &model, looked_up.iter().copied().map(key_of));
        let bounds: Vec<_> = model.keys().cloned().collect();
        check(&inner, &model, bounds.into_iter());
    }
}

#[test]
fn a_tree_that_is_merged_down_is_one_node_again() {
    let inner = Inner::new(0, 10_000);
    let (mut model, mut next) = (Model::from([(Vec::new(), 0)]), 0);
    for number in 0..5000 {
        run(&inner, &mut model, &mut next, &Step::Split(number));
    }
    let most = inner.spare.lock().fresh;
    for number in (0..5000).cycle().take(1_000_000) {
        if model.len() == 1 {
            break;
        }
        run(&inner, &mut model, &mut next, &Step::Merge(number));
    }
    let spare = inner.spare.lock();
    assert_eq!((spare.fresh, spare.free.len() as u32), (most, most - 1));
}

/// Bounds come and go; one of them never does, and the leaf right of it is always the last
/// that was put there, or the one that is just being put.
#[test]
fn readers_beside_changes_find_what_serves_their_key() {
    let inner = Inner::new(0, 100_000);
    let stop = AtomicBool::new(false);
    let newest = AtomicU32::new(1);
    inner.split(0, b"m", 1);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let before = newest.load(Ordering::Acquire);
                    let descent = inner.descend(b"m");
                    let is_current = inner.is_current(&descent);
                    let after = newest.load(Ordering::Acquire);
                    assert!(descent.leaf & 1 == 1, "a leaf for other keys");
                    let known = before..=after + 2;
                    assert!(!is_current || known.contains(&descent.leaf), "{descent:?}");
                }
            });
        }
        let (mut even, mut bounds) = (0, std::collections::BTreeSet::new());
        for round in 0..40_u32 {
            let bound = |number: u32| format!("{}{number:05}", ["a", "z"][number as usize % 2]);
            for number in 0..400 {
                even += 2;
                let bound = bound(number);
                if !bounds.insert(bound.clone().into_bytes()) {
                    continue;
                }
                if bound.as_bytes() < b"m".as_slice() {
                    inner.split(even, bound.as_bytes(), even);
                } else {
                    let odd = inner.descend(bound.as_bytes()).leaf;
                    if odd & 1 == 1 {
                        // The keys right behind "m" stay those of the odd leaf.
                        let next = newest.load(Ordering::Relaxed) + 2;
                        inner.split(next, bound.as_bytes(), even);
                        newest.store(next, Ordering::Release);
                    } else {
                        inner.split(odd, bound.as_bytes(), even);
                    }
                }
            }
            for number in (0..400).rev() {
                let bound = bound(number ^ round & 1);
                let Some((left, separator, right)) = inner.pair_of(bound.as_bytes()) else {
                    continue;
                };
                if &*separator == b"m" {
                    continue;
                }
                assert!(bounds.remove(&*separator));
                if left & 1 == 1 {
                    let next = newest.load(Ordering::Relaxed) + 2;
                    inner.merge(&separator, next);
                    newest.store(next, Ordering::Release);
                } else {
                    assert_eq!(right & 1, 0);
                    inner.merge(&separator, left);
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}
