//! Changes since a sequence, also in a tree in which most leaves have nothing newer.

use coreplane_bptree::{Bptree, Options};
use coreplane_engine::{Engine, Repairable, Replicated, WriteOptions};
use coreplane_pmem::MediaChoice;
use std::collections::BTreeMap;

const KEYS: u64 = 4000;

/// The last sequence of each key, and whether the key is there.
type Model = BTreeMap<Vec<u8>, (u64, bool)>;

fn key(number: u64) -> Vec<u8> {
    format!("key {number:06}").into_bytes()
}

fn check(tree: &Bptree, model: &Model, since: u64) {
    let mut found = Model::new();
    let shown = tree.changes_since(since, &mut |entry| {
        let known = found.insert(entry.key.to_vec(), (entry.sequence, entry.record.is_some()));
        assert!(known.is_none(), "{:?} is shown twice", entry.key);
    });
    shown.expect("nothing was forgotten");
    let newer = model.iter().filter(|(_, (sequence, _))| *sequence > since);
    let newer: Model = newer.map(|(key, state)| (key.clone(), *state)).collect();
    assert!(found == newer, "since {since}: {} and not {}", found.len(), newer.len());
    assert!(tree.damaged_keys_since(since).expect("hurt").is_empty());
}

#[test]
fn what_is_newer_is_shown_wherever_it_is() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = directory.path().join("pool");
    let options = Options { background: false, ..Options::default() };
    let tree = Bptree::create(&path, 16 << 20, 8192, MediaChoice::Auto, &options).expect("create");
    let (mut tree, mut model, mut sequence) = (tree, Model::new(), 0);
    tree.hold_tombstones(0).expect("hold");
    let mut write = |tree: &Bptree, model: &mut Model, number: u64| {
        sequence += 1 + number % 3;
        let (key, options) =
            (key(number), WriteOptions { sequence: Some(sequence), ..WriteOptions::default() });
        let is_put = sequence % 5 > 0 || !model.contains_key(&key);
        if is_put {
            let _outcome = tree.put(&key, &[7; 100], &options).expect("put");
        } else {
            let _outcome = tree.delete(&key, &options).expect("delete");
        }
        model.insert(key, (sequence, is_put));
        sequence
    };
    // All over the tree, then in some leaves, in one, and nowhere.
    let mut marks = vec![0];
    for at in 0..KEYS {
        write(&tree, &mut model, at * 7919 % KEYS);
    }
    for round in 0..6_u64 {
        let from = round * 600;
        let written = (0..200 >> round).map(|at| write(&tree, &mut model, from + at * at % 300));
        marks.extend(written.last());
        marks.iter().for_each(|mark| check(&tree, &model, *mark));
        // A kill, and a close.
        if round % 2 == 0 {
            tree.close().expect("close");
        }
        drop(tree);
        tree = Bptree::open(&path, MediaChoice::Auto, &options, &|_| {}).expect("open");
        tree.hold_tombstones(0).expect("hold");
        marks.iter().for_each(|mark| check(&tree, &model, *mark));
    }
}
