//! A simulated space with its own epochs reuses its pages in the same order each time, with any readers
//! elsewhere in the process.

use coreplane_pmem::epoch;
use coreplane_pmem::media::sim::{Eviction, Sim, SimOptions};

/// Writes records to pages that are reused as soon as possible; returns the pages, and the bytes left by a power cut.
fn run(own_epochs: bool) -> (Vec<u32>, Vec<u8>) {
    let sim = Sim::new(&SimOptions { own_epochs, ..SimOptions::default() }).unwrap();
    let sim = sim.crash(Eviction::Nothing).reopen().unwrap();
    let space = sim.space();
    let mut fresh = 1..16;
    let mut pages = Vec::new();
    for round in 0..15_u8 {
        let page = space.reclaim().or_else(|| fresh.next()).expect("as many pages as rounds");
        let mut writer = space.claim_log(page).unwrap();
        let at = writer.append(&[&[round + 1; 64]]).unwrap();
        writer.flush_from(at);
        space.fence().unwrap();
        writer.publish();
        drop(writer);
        {
            let guard = space.pin();
            assert_eq!(space.bytes(&guard, at, 64), Some([round + 1; 64].as_slice()));
            assert_eq!(space.bytes(&epoch::pin(), at, 64).is_none(), own_epochs);
            assert!(space.retire(page));
            assert_eq!(space.reclaim(), None, "it is being read");
        }
        pages.push(page);
    }
    let left = sim.killed().unwrap().crash(Eviction::Seeded(7));
    (pages, left.bytes().to_vec())
}

#[test]
fn a_guard_elsewhere_does_not_change_which_pages_are_used_again() {
    let alone = run(true);
    assert_eq!(alone.0, [1; 15]);
    let elsewhere = Sim::new(&SimOptions { own_epochs: true, ..SimOptions::default() }).unwrap();
    let (_everybody, _other) = (epoch::pin(), elsewhere.space().pin());
    assert_eq!(run(true), alone);
    let shared = run(false);
    assert_eq!(shared.0, (1..16).collect::<Vec<u32>>(), "each waits for the guard that is kept");
    assert_ne!(shared.1, alone.1);
}

/// A machine that is started again after a kill or a power cut has its own epochs again.
#[test]
fn epochs_stay_a_spaces_own_however_it_is_started_again() {
    let options = SimOptions { own_epochs: true, ..SimOptions::default() };
    let sim = Sim::new(&options).unwrap();
    let after = Sim::after(sim.space(), &options).unwrap();
    let reopened = sim.crash(Eviction::Everything).reopen().unwrap();
    let killed = sim.killed().unwrap();
    for sim in [after, reopened, killed] {
        let space = sim.space();
        assert!(space.adopt_log(1, 64));
        let start = space.start_of(1);
        assert!(space.bytes(&epoch::pin(), start, 8).is_none());
        assert!(space.bytes(&space.pin(), start, 8).is_some());
    }
}
