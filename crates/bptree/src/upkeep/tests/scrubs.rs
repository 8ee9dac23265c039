//! Scrubs beside writers.

use crate::tree::image::{Item, Source};
use crate::tree::multi_leaf_commit::NewPart;
use crate::upkeep::tests::new_store;
use coreplane_engine::WriteOptions;
use coreplane_record::Header;
use smallvec::smallvec;

/// A large batch appends to its first leaf long before it publishes the records.
#[test]
fn a_leaf_with_records_that_are_not_published_yet_is_not_damaged() {
    let (_directory, store) = new_store();
    let _outcome = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
    let locked = store.lock_leaf(b"key").expect("a leaf");
    let page = locked.page;
    assert!(matches!(store.scrub_page(page), Some((_, true))));
    let version = locked.held.given() + 1;
    let header = Header { batched: true, ..Header::put(version) };
    let item = Item { header, key: b"another", value: b"value", source: Source::Caller };
    let part = NewPart { life: locked.life(), items: smallvec![item], is_superseded: false };
    let _places = store.append_commit(&[part], version).expect("a commit");
    assert_eq!(store.scrub_page(page), None);
    // The writer is gone, and the record is known to nobody.
    drop(locked);
    assert!(matches!(store.scrub_page(page), Some((_, false))));
}
