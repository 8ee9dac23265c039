//! Pinned states, page by page.

use crate::seat::{LEN, Seat, alone_on, put_range};
use coreplane_mvcc::MapKind;

/// A list knows the keys that were written since: a page passes some of them, and not all.
#[test]
fn a_page_passes_a_bounded_number_of_later_keys() {
    for (kind, expected) in [(MapKind::List, 3), (MapKind::CowTree, 1)] {
        let Seat { replica, .. } = &alone_on(16 * LEN, kind);
        put_range(replica, 0..10);
        let snapshot = replica.snapshot().expect("a snapshot");
        put_range(replica, 10..25_010);
        let (mut start, mut pages, mut records) = (Vec::new(), 0, 0);
        loop {
            let page = snapshot.page(&start, None, 1 << 20, Some(10_000)).expect("a page");
            records += page.records.len();
            pages += 1;
            let Some(next) = page.next else { break };
            let again = snapshot.page(&start, Some(&next), 1, None).expect("the same page");
            assert_eq!((again.records, again.next.as_ref()), (page.records, Some(&next)));
            start = next;
        }
        assert_eq!((records, pages), (10, expected), "{kind:?}");
    }
}
