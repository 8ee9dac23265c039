//! Reads beside a clear.

use crate::upkeep::tests::new_store;
use coreplane_engine::{Visibility, WriteOptions};
use coreplane_pmem::spin::{self, Backoff};

/// The reader has locked the first leaf, and comes to the second when the tree leads to the empty leaf.
#[test]
fn a_read_of_several_keys_sees_all_of_a_clear_or_nothing() {
    let (_directory, store) = new_store();
    for number in 0..60_u8 {
        let _outcome = store.put(&[number], &[7; 100], &WriteOptions::default()).expect("put");
    }
    let [first, last] = [[0], [59]].map(|key| (key, store.inner.descend(&key).leaf));
    assert_ne!(first.1, last.1);
    // Beside batches the reader would have to look again and again: it locks the leaves.
    let _publishing = store.isolation.begin();
    let mut backoff = Backoff::new();
    let found: Vec<bool> = std::thread::scope(|scope| {
        let changing = spin::lock(&store.root_change);
        let clear = scope.spawn(|| store.clear());
        // Leaves are shut in the order of their keys.
        let locked = loop {
            let locked = store.lock_leaf(&last.0).expect("a leaf");
            if locked.held.is_shut() {
                break locked;
            }
            drop(locked);
            backoff.wait();
        };
        let read = scope.spawn(|| {
            let mut found = Vec::new();
            let keys: [&[u8]; 2] = [&first.0, &last.0];
            let read = store.multi_get(&keys, Visibility::Durable, &mut |_, record| {
                found.push(record.is_some());
            });
            read.map(|_| found)
        });
        let leaf = store.leaves.get(first.1 as usize);
        while leaf.version().is_some_and(|version| leaf.try_lock(version).is_some()) {
            backoff.wait();
        }
        drop(changing);
        while store.inner.leaves().len() > 1 {
            backoff.wait();
        }
        drop(locked);
        let found = read.join().expect("a reader").expect("a read");
        clear.join().expect("a thread").expect("a clear");
        found
    });
    assert_eq!(found[0], found[1]);
}
