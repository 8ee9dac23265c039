//! A node whose medium fails stops, and says what is known of its open writes.

use crate::seat::{LEN, Seat, early, seat_on};
use coreplane_engine::{Deferred, Engine, Error, Horizon};
use coreplane_mvcc::MapKind;
use coreplane_pmem::media::sim::Model;

/// Turns after which a sync has ended.
const TURNS: usize = 500;

/// A later leader may have what a node that stops has proposed, and make it.
#[test]
fn what_a_stopped_node_leaves_open_is_indeterminate() {
    for kind in MapKind::ALL {
        let Seat { replica, sim, .. } = seat_on((Model::File, LEN), kind, 1, vec![1]);
        let put = |key: &[u8]| replica.put(key, b"1", &early()).map(|outcome| outcome.ticket());
        assert!((0..TURNS).any(|_| replica.tick().is_ok() && replica.leads()), "it leads");
        let made = Horizon::from(put(b"made").expect("put"));
        let is_made = || replica.tick().is_ok() && replica.is_durable(&made).expect("it runs");
        assert!((0..TURNS).any(|_| is_made()));
        let open = Horizon::from(put(b"open").expect("put"));
        sim.fail_syncs();
        assert!((0..TURNS).any(|_| replica.tick().is_err()), "a failed sync is noticed");
        assert!(replica.is_durable(&made).expect("it was made before"));
        let told = replica.is_durable(&open);
        assert!(matches!(told, Err(Error::Indeterminate)), "{told:?}");
        for told in [replica.commit(&open).map(drop), replica.wait_durable(&open)] {
            assert!(matches!(told, Err(Error::Indeterminate)), "{told:?}");
        }
        // A later write is not proposed at all.
        let later = put(b"later");
        assert!(matches!(later, Err(Error::Unusable(_))), "{later:?}");
    }
}
