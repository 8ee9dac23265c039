//! Iterations over an index that has many groups and few records.

use crate::read::history::PASSED_MAX;
use crate::recovery::open::{Options, Placement, create_options};
use crate::store::Store;
use crate::table::geometry::Geometry;
use crate::table::index::Position;
use coreplane_engine::WriteOptions;
use coreplane_pmem::media::sim::{Sim, SimOptions};
use coreplane_pmem::{MediaChoice, Pool};
use std::sync::Arc;

/// The logarithm of the number of groups.
const DEPTH: u32 = 10;

/// The number of a group, each of which is a segment.
fn group_at(cursor: u64) -> usize {
    (Position::from_cursor(cursor).y >> (u32::BITS - DEPTH)) as usize
}

#[test]
fn a_call_does_not_pass_all_of_an_empty_index() {
    let sim = Sim::new(&SimOptions { len: 1 << 20, max_len: 1 << 20, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let space = Arc::clone(sim.space());
    let geometry = Geometry { depth: DEPTH, ..Geometry::TINY };
    let create = create_options(space.len(), geometry, MediaChoice::Auto);
    let pool = Pool::simulated_create(space, &create).expect("a pool");
    let options = Options { background: false, ..Options::default() };
    let store = Store::format(pool, Placement::Dram, &options).expect("a store");
    for records in [0, 1] {
        for (count, most) in [(0, 1), (1, PASSED_MAX), (10, PASSED_MAX), (500, 500)] {
            let (mut cursor, mut shown, mut calls) = (0, 0, 0);
            loop {
                let next = store.iterate(cursor, count, &mut |_| shown += 1).expect("iterate");
                let end = if next == 0 { 1 << DEPTH } else { group_at(next) };
                let passed = end - group_at(cursor);
                assert!((1..=most + records).contains(&passed), "{passed} groups at {count}");
                (cursor, calls) = (next, calls + 1);
                if next == 0 {
                    break;
                }
            }
            assert_eq!(shown, records);
            assert!(calls <= (1_usize << DEPTH).div_ceil(most) + records, "{calls} calls");
        }
        let put = store.put(b"key", b"value", &WriteOptions::default()).expect("put");
        assert!(put.is_written());
    }
}
