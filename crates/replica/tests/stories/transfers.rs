//! Snapshots that are interrupted, and what a node still knows after one.

use crate::table::Table;
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;
use coreplane_replica::Role;

/// The offset of its kind in an envelope, and the kind of a page.
const KIND: usize = 5;
const PAGE: u8 = 2;

/// A node has some pages of a snapshot, and is cut off until its leader gives up the transfer. The next transfer is of
/// the same state: it goes on, although the leader has not sent the wanted page before.
#[test]
fn a_transfer_that_was_given_up_is_taken_up_again() {
    for kind in MapKind::ALL {
        let mut table = Table::with(kind, (3, 3), Model::X86, |it| {
            (it.ring_bytes, it.page_bytes) = (1, 1);
        });
        table.lead(1);
        table.part(&[3], &[1, 2]);
        table.fill_keys(1, 30);
        table.cut.clear();
        let mut pages = 0;
        while pages < 8 {
            let first = table.letters.first();
            let is_page = first.is_some_and(|(_, to, bytes)| *to == 3 && bytes[KIND] == PAGE);
            pages += usize::from(is_page);
            if !table.deliver() {
                (1..=3).for_each(|id| table.tick(id));
            }
        }
        assert_eq!(table.node(3).status().role, Role::Installing);
        table.part(&[3], &[1, 2]);
        let before = table.node(1).status();
        table.run(400);
        assert_eq!(table.node(1).status(), before, "the same state in the same term");
        table.cut.clear();
        table.run(60);
        assert_eq!(table.node(3).installed(), 1, "of {kind:?}: the transfer does not end");
        let (newest, third) = (table.node(1).status().newest, table.node(3).status());
        assert_eq!((third.newest, third.applied), (newest, newest));
    }
}
