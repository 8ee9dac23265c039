//! A wrong bit in the head of a leaf in use.

use super::{KEYS, PAGE, is_damage, key, shelf, tail};
use coreplane_engine::{Batch, Doubt, Engine, Ordered, WriteOptions};
use std::os::unix::fs::FileExt;

/// A bit of the head of a leaf in use, where it says whether there are leaves behind it. Nothing waits
/// for ever, and nothing is left locked.
#[test]
fn a_leaf_that_says_wrongly_where_it_ends_is_an_error_and_never_a_loop() {
    let shelf = shelf(false);
    let is_leaf = |page: &usize| tail(&shelf.pool, *page).is_some();
    let all = Doubt { start: Vec::new(), end: None };
    let mut told = 0;
    for page in (1..shelf.pool.len() / PAGE).filter(is_leaf) {
        let store = shelf.open(&[]).expect("open");
        let scan = |reverse| {
            let mut keys = Vec::new();
            let mut take = |entry: coreplane_engine::Entry<'_>| {
                keys.push(entry.key.to_vec());
                true
            };
            store.scan(b"", None, reverse, usize::MAX, &mut take).map(|()| keys)
        };
        let down = scan(true).expect("scan");
        let mut batch = Batch::new();
        (0..KEYS).for_each(|number| _ = batch.put(&key(number), b"of a batch"));
        let file = std::fs::File::options().read(true).write(true).open(shelf.path());
        let (file, mut byte) = (file.expect("the pool"), [0]);
        let at = (page * PAGE + 5) as u64;
        file.read_exact_at(&mut byte, at).expect("read");
        file.write_all_at(&[byte[0] ^ 1], at).expect("write");
        let results = [
            store.apply(&batch, &WriteOptions::default()).map(drop),
            store.settle(&all),
            store.doubts().map(drop),
            scan(false).map(drop),
        ];
        let is_told = results.iter().any(Result::is_err);
        told += u32::from(is_told);
        if is_told {
            assert!(results.iter().all(|it| it.as_ref().is_err_and(is_damage)), "{results:?}");
            // A scan down asks where leaves begin.
            assert!(scan(true).is_err() || scan(true).expect("scan") == down);
        }
        file.write_all_at(&byte, at).expect("write");
        store.apply(&batch, &WriteOptions::default()).expect("nothing is locked");
    }
    assert!(told > 3, "{told} of the leaves are in use");
}
