//! The tree against a model, and readers beside changes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
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
        let (least, _) = model.range(..=key.clone()).next_back().unwrap();
        let next = model.range((Bound::Excluded(key), Bound::Unbounded)).next();
        let bound = next.map(|(bound, _)| bound.clone().into_boxed_slice());
        assert_eq!(inner.bound_of(least), bound);
        assert_eq!(inner.bounds_of(*leaf), Some((least.clone().into_boxed_slice(), bound)));
    }
    assert_eq!(inner.bounds_of(u32::MAX), None);
    assert_eq!(inner.descend_before(None).leaf, *model.last_key_value().unwrap().1);
}

/// Every node is in use once, or not at all, and none is being changed.
fn check_nodes(inner: &Inner) {
    let spare = inner.spare.lock();
    let mut seen = spare.free.clone();
    let mut level = vec![inner.root.load(Ordering::Relaxed)];
    while let Some(first) = level.first() {
        let depth = inner.node(*first).content().level;
        let mut below = Vec::new();
        for number in level {
            let content = inner.node(number).content();
            assert_eq!((content.level, inner.node(number).stable() & 1), (depth, 0));
            seen.push(number);
            below.extend(content.children);
        }
        level = if depth > 0 { below } else { Vec::new() };
    }
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..spare.fresh));
}

/// The bytes of all separators are counted as nodes change.
fn check_bytes(inner: &Inner) {
    let nodes = (0..20_000).filter_map(|number| inner.nodes.made(number));
    let separators = nodes.flat_map(|node| node.content().separators);
    let bytes: usize = separators.map(|it| it.len() + size_of::<Box<[u8]>>()).sum();
    assert_eq!(inner.dram_bytes(), inner.nodes.bytes() + bytes as u64);
}

/// Bounds between leaves of different nodes, each with the level of the node that has it.
fn bounds_of_nodes(inner: &Inner) -> Vec<(u8, Vec<u8>)> {
    let mut level = vec![inner.root.load(Ordering::Relaxed)];
    let mut bounds = Vec::new();
    loop {
        let contents: Vec<_> = level.iter().map(|number| inner.node(*number).content()).collect();
        if contents[0].level == 0 {
            return bounds;
        }
        for Content { level, separators, .. } in &contents {
            bounds.extend(separators.iter().map(|separator| (*level, separator.to_vec())));
        }
        level = contents.into_iter().flat_map(|content| content.children).collect();
    }
}

fn key_of(number: u16) -> Vec<u8> {
    // Variable in length; some are prefixes of others.
    let mut key = number.to_string().into_bytes();
    key.extend(vec![b'x'; number as usize % 3 * 9]);
    key
}

#[derive(Debug, Clone)]
enum Step {
    Split(u16),
    Merge(u16),
    /// Two neighbouring leaves, below any node or nodes.
    MergeAnywhere(u16),
    Replace(u16),
    Build,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u16>().prop_map(Step::Split),
        3 => any::<u16>().prop_map(Step::Merge),
        2 => any::<u16>().prop_map(Step::MergeAnywhere),
        1 => any::<u16>().prop_map(Step::Replace),
    ]
}

/// Merges two leaves into a new one; returns the two.
fn merge(inner: &Inner, model: &mut Model, (separator, new): (&[u8], u32)) -> (u32, u32) {
    let right = model.remove(separator).unwrap();
    let mine = model.range_mut(..separator.to_vec()).next_back().unwrap().1;
    let left = std::mem::replace(mine, new);
    inner.merge(separator, new);
    (left, right)
}

/// A tree of that many leaves, and its model.
fn tree_of(leaves: u16) -> (Inner, Model, u32) {
    let inner = Inner::new(0, 10_000, CHUNK);
    let (mut model, mut next) = (Model::from([(Vec::new(), 0)]), 0);
    for number in 1..leaves {
        run(&inner, &mut model, &mut next, &Step::Split(number));
    }
    (inner, model, next)
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
            let Some((left, separator, right)) = inner.pairs_of(&key_of(*number)).pop() else {
                return;
            };
            assert_eq!(merge(inner, model, (&separator, leaf())), (left, right));
        }
        Step::MergeAnywhere(number) => {
            let bound = model.range(key_of(*number)..).next().map(|(bound, _)| bound.clone());
            if let Some(bound) = bound {
                merge(inner, model, (&bound, leaf()));
            }
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
        let inner = Inner::new(0, 10_000, CHUNK);
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
        check_nodes(&inner);
        check_bytes(&inner);
    }

    /// As when a merge and a split run side by side: the pair is chosen, the node above it is split in the middle
    /// of the pair or anywhere else, and then the pair is merged.
    #[test]
    fn a_pair_is_merged_whatever_was_split_since_it_was_chosen(
        grow in proptest::collection::vec(any::<u16>(), 100..3000),
        chosen in proptest::collection::vec((any::<u16>(), 0_u16..130), 1..60),
    ) {
        let inner = Inner::new(0, 10_000, CHUNK);
        let (mut model, mut next) = (Model::from([(Vec::new(), 0)]), 0);
        for number in grow {
            run(&inner, &mut model, &mut next, &Step::Split(number));
        }
        for (number, splits) in chosen {
            let Some((left, separator, right)) = inner.pairs_of(&key_of(number)).pop() else { continue };
            for third in number..number.saturating_add(splits) {
                let key = key_of(third);
                let (_, leaf) = model.range(..=key.clone()).next_back().unwrap();
                if ![left, right].contains(leaf) {
                    run(&inner, &mut model, &mut next, &Step::Split(third));
                }
            }
            next += 1;
            prop_assert_eq!(merge(&inner, &mut model, (&separator, next)), (left, right));
        }
        let bounds: Vec<_> = model.keys().cloned().collect();
        check(&inner, &model, bounds.into_iter());
        check_nodes(&inner);
        check_bytes(&inner);
    }
}

/// At every depth: merges the last leaf of one node with the first of the next, until no such pair is left.
#[test]
fn leaves_of_two_nodes_become_one() {
    for chosen in [0, 1, 2] {
        let (inner, mut model, mut next) = tree_of(6000);
        assert!(bounds_of_nodes(&inner).iter().any(|(level, _)| *level == 2));
        loop {
            let mut bounds = bounds_of_nodes(&inner);
            // The uppermost, the lowest, or one in the middle.
            let at = [0, bounds.len().saturating_sub(1), bounds.len() / 2][chosen];
            if at >= bounds.len() {
                break;
            }
            let (_, bound) = bounds.swap_remove(at);
            next += 1;
            merge(&inner, &mut model, (&bound, next));
            let (least, _) = model.range(..bound.clone()).next_back().unwrap();
            let above = model.range(bound.clone()..).next().map(|(key, _)| key.clone());
            let near = [least.clone(), bound].into_iter().chain(above);
            check(&inner, &model, near);
            if next % 64 == 0 {
                check(&inner, &model, model.keys().cloned());
                check_nodes(&inner);
            }
        }
        check(&inner, &model, model.keys().cloned());
        check_nodes(&inner);
    }
}

/// The nodes between the node that has the bound and the leaf count too: they keep their children, and lead to
/// other keys.
#[test]
fn whoever_is_on_the_way_to_a_leaf_that_is_merged_looks_again() {
    let (inner, mut model, next) = tree_of(6000);
    let bounds = bounds_of_nodes(&inner);
    let (_, bound) = bounds.iter().find(|(level, _)| *level == 2).unwrap();
    let way: Vec<_> = inner.path(bound).into_iter().map(|(number, _)| number).collect();
    let versions: Vec<_> = way.iter().map(|number| inner.node(*number).stable()).collect();
    assert_eq!(versions.len(), 3);
    merge(&inner, &mut model, (bound, next + 1));
    for (number, version) in way.iter().zip(versions) {
        assert!(!inner.node(*number).is_at(version), "node {number} of {way:?}");
    }
}

#[test]
fn a_tree_that_is_merged_down_is_one_node_again() {
    let (inner, mut model, mut next) = tree_of(5000);
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

/// Bounds come and go; one of them stays, and the leaf right of it is always the last that was put there, or the
/// one that is being put there.
#[test]
fn readers_beside_changes_find_what_serves_their_key() {
    let inner = Inner::new(0, 100_000, CHUNK);
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
                let Some((left, separator, right)) = inner.pairs_of(bound.as_bytes()).pop() else {
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
