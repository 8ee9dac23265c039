//! The rules of the simulated medium, one by one.

use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use coreplane_pmem::{Claim, Durable, PageWriter, Space, Volatile, WriteMode, fence_mark};
use std::collections::BTreeSet;
use std::sync::Arc;

const LIMIT: usize = 100_000;

fn sim(model: Model) -> Sim {
    let sim = Sim::new(&SimOptions { model, ..SimOptions::default() }).unwrap();
    assert!(sim.space().claim_words(0, Claim::Words));
    sim.space().persist(0, 4096).unwrap();
    sim
}

fn store(space: &Space, offset: u64, value: u64) {
    space.word::<Durable>(offset).unwrap().store(value);
}

/// The combined values of the words at `offsets` in all images of a power cut now.
fn outcomes(sim: &Sim, offsets: &[u64]) -> BTreeSet<Vec<u64>> {
    let images = sim.crashes(LIMIT);
    assert!(images.len() < LIMIT);
    images.iter().map(|image| offsets.iter().map(|at| image.word(*at)).collect()).collect()
}

fn set<const N: usize>(outcomes: &[[u64; N]]) -> BTreeSet<Vec<u64>> {
    outcomes.iter().map(|it| it.to_vec()).collect()
}

fn elsewhere(action: impl FnOnce() + Send) {
    std::thread::scope(|scope| scope.spawn(action).join().unwrap());
}

fn writer(space: &Arc<Space>) -> PageWriter {
    space.claim_log(1).unwrap()
}

#[test]
fn stores_to_one_line_never_persist_in_reverse() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    store(sim.space(), 56, 2);
    store(sim.space(), 0, 3);
    assert_eq!(outcomes(&sim, &[0, 56]), set(&[[0, 0], [1, 0], [1, 2], [3, 2]]));
}

#[test]
fn lines_persist_in_any_order_and_by_eviction_alone() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    store(sim.space(), 64, 2);
    assert_eq!(outcomes(&sim, &[0, 64]), set(&[[0, 0], [1, 0], [0, 2], [1, 2]]));
}

#[test]
fn a_flush_without_a_fence_guarantees_nothing() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    sim.space().flush(0, 8);
    assert_eq!(outcomes(&sim, &[0]), set(&[[0], [1]]));
    sim.space().fence().unwrap();
    assert_eq!(outcomes(&sim, &[0]), set(&[[1]]));
}

#[test]
fn a_fence_without_a_flush_guarantees_nothing() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    sim.space().fence().unwrap();
    assert_eq!(outcomes(&sim, &[0]), set(&[[0], [1]]));
}

#[test]
fn a_fence_of_another_thread_does_not_count() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    sim.space().flush(0, 8);
    elsewhere(|| sim.space().fence().unwrap());
    assert_eq!(outcomes(&sim, &[0]), set(&[[0], [1]]));
}

#[test]
fn a_flush_of_another_threads_store_counts_at_the_flushers_fence() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    elsewhere(|| sim.space().persist(0, 8).unwrap());
    assert_eq!(outcomes(&sim, &[0]), set(&[[1]]));
}

#[test]
fn a_store_after_the_flush_is_not_covered_by_it() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    sim.space().flush(0, 8);
    store(sim.space(), 0, 2);
    sim.space().fence().unwrap();
    assert_eq!(outcomes(&sim, &[0]), set(&[[1], [2]]));
}

#[test]
fn a_bulk_copy_tears_between_any_of_its_words() {
    let sim = sim(Model::X86);
    let bytes: Vec<u8> = [1_u64, 2, 3].iter().flat_map(|word| word.to_le_bytes()).collect();
    writer(sim.space()).append(&[&bytes]).unwrap();
    let all = outcomes(&sim, &[4096, 4104, 4112]);
    assert_eq!(all.len(), 8);
    assert!(all.contains(&vec![0, 2, 0]) && all.contains(&vec![1, 0, 3]));
}

#[test]
fn a_store_after_a_bulk_copy_to_its_line_persists_after_it() {
    let sim = sim(Model::X86);
    let bytes: Vec<u8> = [1_u64, 2].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut writer = writer(sim.space());
    writer.append(&[&bytes]).unwrap();
    writer.append(&[&3_u64.to_le_bytes()]).unwrap();
    let all = outcomes(&sim, &[4096, 4104, 4112]);
    let expected = [[0, 0, 0], [1, 0, 0], [0, 2, 0], [1, 2, 0], [1, 2, 3]];
    assert_eq!(all, set(&expected));
}

#[test]
fn a_part_of_a_word_tears_too() {
    let sim = sim(Model::X86);
    writer(sim.space()).append(&[&[0x11; 5], &[0x22; 3]]).unwrap();
    let all = outcomes(&sim, &[4096]);
    assert!(all.contains(&vec![0x0000_0000_1111_1111]), "{all:x?}");
    assert!(all.contains(&vec![0x2222_2211_1111_1111]), "{all:x?}");
    assert!(!all.contains(&vec![0x2222_2200_0000_0000]), "prefix within the line: {all:x?}");
}

#[test]
fn what_is_appended_in_words_tears_between_them_alone() {
    for past_caches in [false, true] {
        let sim = sim(Model::X86);
        let mut writer = writer(sim.space());
        let parts: [&[u8]; 3] = [&[0x11; 5], &[0x22; 4], &[0x33; 2]];
        let appended =
            if past_caches { writer.append_nt(&parts) } else { writer.append_in_words(&parts) };
        assert_eq!((appended, writer.tail()), (Some(4096), 16));
        let [first, second] = [0x2222_2211_1111_1111, 0x33_3322];
        let any = [[0, 0], [first, 0], [0, second], [first, second]];
        assert_eq!(outcomes(&sim, &[4096, 4104]), set(&any));
    }
}

#[test]
fn the_rest_of_a_page_is_filled_and_written_over() {
    for mode in [WriteMode::Cached, WriteMode::NonTemporal] {
        let sim = sim(Model::X86);
        let mut writer = writer(sim.space());
        writer.append(&[&1_u64.to_le_bytes()]).unwrap();
        assert!(writer.fill_rest(7, mode));
        writer.flush_from(4096);
        sim.space().fence().unwrap();
        assert_eq!(outcomes(&sim, &[4096, 4104, 8184]), set(&[[1, 7, 7]]));
        writer.append(&[&2_u64.to_le_bytes()]).unwrap();
        assert_eq!(outcomes(&sim, &[4096, 4104, 4112]), set(&[[1, 7, 7], [1, 2, 7]]));
    }
}

#[test]
fn non_temporal_stores_may_be_lost_until_a_fence_of_their_thread() {
    let sim = sim(Model::X86);
    let mut writer = writer(sim.space());
    writer.append_nt(&[&1_u64.to_le_bytes()]).unwrap();
    writer.append_nt(&[&2_u64.to_le_bytes()]).unwrap();
    let any = set(&[[0, 0], [1, 0], [0, 2], [1, 2]]);
    assert_eq!(outcomes(&sim, &[4096, 4104]), any);
    elsewhere(|| sim.space().fence().unwrap());
    assert_eq!(outcomes(&sim, &[4096, 4104]), any);
    sim.space().fence().unwrap();
    assert_eq!(outcomes(&sim, &[4096, 4104]), set(&[[1, 2]]));
}

#[test]
fn what_became_durable_is_never_undone_by_an_older_store() {
    let sim = sim(Model::X86);
    let space = sim.space();
    let mut writer = writer(space);
    writer.append_nt(&[&1_u64.to_le_bytes()]).unwrap();
    elsewhere(|| {
        assert!(writer.rewind(4096));
        writer.append(&[&2_u64.to_le_bytes()]).unwrap();
        writer.flush_from(4096);
        space.fence().unwrap();
    });
    assert_eq!(outcomes(&sim, &[4096]), set(&[[2]]));
}

#[test]
fn a_failed_compare_and_swap_stores_nothing() {
    let sim = sim(Model::X86);
    let word = sim.space().word::<Durable>(8).unwrap();
    assert_eq!(word.compare_exchange(5, 6), Err(0));
    assert_eq!(outcomes(&sim, &[8]), set(&[[0]]));
    word.compare_exchange(0, 6).unwrap();
    assert_eq!(outcomes(&sim, &[8]), set(&[[0], [6]]));
}

#[test]
fn volatile_words_are_evicted_like_any_others() {
    let sim = sim(Model::X86);
    sim.space().word::<Volatile>(16).unwrap().store(7);
    assert_eq!(outcomes(&sim, &[16]), set(&[[0], [7]]));
}

#[test]
fn on_a_file_a_fence_covers_what_others_flushed() {
    let sim = sim(Model::File);
    assert!(!sim.space().fences_at_once());
    store(sim.space(), 0, 1);
    store(sim.space(), 1024, 2);
    sim.space().flush(0, 8);
    elsewhere(|| sim.space().fence().unwrap());
    assert_eq!(outcomes(&sim, &[0, 1024]), set(&[[1, 0], [1, 2]]));
}

#[test]
fn on_a_file_sectors_are_independent_and_larger_than_lines() {
    let sim = sim(Model::File);
    store(sim.space(), 0, 1);
    store(sim.space(), 504, 2);
    store(sim.space(), 512, 3);
    let sectors = [[0, 0, 0], [1, 0, 0], [1, 2, 0], [0, 0, 3], [1, 0, 3], [1, 2, 3]];
    assert_eq!(outcomes(&sim, &[0, 504, 512]), set(&sectors));
}

#[test]
fn a_failed_sync_stops_writes_for_good() {
    let sim = sim(Model::File);
    store(sim.space(), 0, 1);
    sim.space().flush(0, 8);
    sim.fail_syncs();
    sim.space().fence().unwrap_err();
    sim.space().fence().unwrap_err();
    sim.space().check_sync().unwrap_err();
    assert_eq!(outcomes(&sim, &[0]), set(&[[0], [1]]));
}

/// A file with a store that is flushed, and the generation that was drawn for it.
fn with_early_store(seed: u64) -> (Sim, u64) {
    let sim = Sim::new(&SimOptions { model: Model::File, seed, ..SimOptions::default() }).unwrap();
    assert!(sim.space().claim_words(0, Claim::WordsAsStored));
    store(sim.space(), 0, 1);
    sim.space().flush(0, 8);
    let generation = sim.space().sync_generation();
    (sim, generation)
}

#[test]
fn on_a_file_a_generation_covers_nothing_until_a_sync_that_was_asked_for_has_ended() {
    let mut polls = BTreeSet::new();
    for seed in 0..40 {
        let (sim, generation) = with_early_store(seed);
        let space = sim.space();
        for _ in 0..300 {
            assert!(!space.sync_is_done(generation).unwrap(), "nobody has asked for it");
        }
        assert_eq!(outcomes(&sim, &[0]), set(&[[0], [1]]));
        space.sync_request(generation);
        let mut polled = 0;
        while !space.sync_is_done(generation).unwrap() {
            assert_eq!(outcomes(&sim, &[0]), set(&[[0], [1]]));
            polled += 1;
        }
        assert_eq!(outcomes(&sim, &[0]), set(&[[1]]));
        assert_eq!(space.sync_generation(), generation, "nothing is dirty");
        polls.insert(polled);
    }
    assert!(polls.len() > 10 && polls.contains(&1), "{polls:?}");
}

#[test]
fn on_a_file_a_sync_does_not_cover_what_is_flushed_while_it_is_under_way() {
    for seed in 0..40 {
        let (sim, first) = with_early_store(seed);
        let space = sim.space();
        space.sync_request(first);
        let mut value = 0;
        let second = loop {
            value += 1;
            store(space, 1024, value);
            space.flush(1024, 8);
            match space.sync_generation() {
                same if same == first => {}
                next => break next,
            }
        };
        assert_eq!(second, first + 1);
        while !space.sync_is_done(first).unwrap() {}
        let left = outcomes(&sim, &[0, 1024]);
        let newest = vec![1, value];
        assert!(left.contains(&newest) && left.len() > 1, "{left:?}");
        assert!(!space.sync_is_done(second).unwrap());
        space.fence().unwrap();
        assert!(space.sync_is_done(second).unwrap());
        assert_eq!(outcomes(&sim, &[0, 1024]), BTreeSet::from([newest]));
    }
}

#[test]
fn on_a_file_a_fence_without_anything_dirty_syncs_nothing() {
    let (sim, generation) = with_early_store(1);
    sim.space().fence().unwrap();
    assert!(sim.space().sync_is_done(generation).unwrap());
    sim.fail_syncs();
    sim.space().fence().unwrap();
}

#[test]
fn a_sync_that_was_asked_for_and_fails_is_told_and_undoes_no_earlier_one() {
    for seed in 0..40 {
        let (sim, good) = with_early_store(seed);
        let space = sim.space();
        space.sync_request(good);
        while !space.sync_is_done(good).unwrap() {}
        sim.fail_syncs();
        store(space, 1024, 2);
        space.flush(1024, 8);
        let bad = space.sync_generation();
        space.sync_request(bad);
        let mut told = space.sync_is_done(bad);
        while told.is_ok() {
            assert!(!told.unwrap());
            told = space.sync_is_done(bad);
        }
        assert!(space.sync_is_done(good).unwrap());
        space.check_sync().unwrap_err();
        space.fence().unwrap_err();
        assert_eq!(outcomes(&sim, &[0, 1024]), set(&[[1, 0], [1, 2]]));
    }
}

#[test]
fn growth_is_refused_beyond_the_medium() {
    let options = SimOptions { len: 8192, max_len: 16384, ..SimOptions::default() };
    let sim = Sim::new(&options).unwrap();
    sim.space().grow(16384).unwrap();
    assert_eq!(sim.crash(Eviction::Nothing).bytes().len(), 16384);
    let refused = sim.space().grow(20480).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::StorageFull);
    assert_eq!(sim.space().len(), 16384);
}

#[test]
fn a_reopened_image_holds_what_was_left_and_goes_on() {
    let sim = sim(Model::X86);
    store(sim.space(), 0, 1);
    sim.space().persist(0, 8).unwrap();
    store(sim.space(), 64, 2);
    let mut image: Image = sim.crash(Eviction::Nothing);
    image.flip_bit(0, 1);
    let again = image.reopen().unwrap();
    assert!(again.space().claim_words(0, Claim::WordsAsStored));
    let load = |offset| again.space().word::<Durable>(offset).unwrap().load();
    assert_eq!((load(0), load(64)), (3, 0));
    store(again.space(), 64, 4);
    assert_eq!(outcomes(&again, &[0, 64]), set(&[[3, 0], [3, 4]]));
    image.fill_line(60, 0xff);
    assert_eq!((image.word(0), image.word(64)), (u64::MAX, 0));
    image.truncate(100);
    assert!(image.bytes().is_empty());
}

#[test]
fn an_operation_is_counted_by_thread() {
    let sim = sim(Model::X86);
    let space = sim.space();
    let ((), cost) = sim.cost_of(|| {
        store(space, 0, 1);
        store(space, 128, 1);
        space.flush(0, 136);
        elsewhere(|| space.persist(1024, 8).unwrap());
        space.fence().unwrap();
    });
    assert_eq!(cost.flushed_lines, [0, 64, 128]);
    assert_eq!((cost.flushes, cost.fences, cost.stores, cost.stored_bytes), (1, 1, 2, 16));
}

#[test]
fn a_load_of_what_another_thread_has_not_made_durable_is_seen() {
    let sim = sim(Model::X86);
    let space = sim.space();
    space.word::<Volatile>(0).unwrap().store(1);
    store(space, 8, 1);
    store(space, 8, 2);
    assert_eq!(space.word::<Durable>(8).unwrap().load(), 2);
    elsewhere(|| assert!(space.load_line(64).is_some()));
    assert_eq!(sim.early_reads(), [], "its own, or of another line");
    elsewhere(|| assert_eq!(space.word::<Durable>(8).unwrap().load(), 2));
    assert_eq!(sim.early_reads().len(), 1);
    assert_eq!(sim.early_reads()[0].offset, 8);
    space.persist(0, 16).unwrap();
    elsewhere(|| assert!(space.load_line(0).is_some()));
    assert_eq!(sim.early_reads().len(), 1);
}

/// Two spaces lose power at the same moment, and the states left in them are independent.
#[test]
fn spaces_of_one_machine_lose_power_together() {
    let sim = Sim::new(&SimOptions { spaces: 2, ..SimOptions::default() }).unwrap();
    let [one, other] = sim.spaces() else { panic!("two spaces") };
    for space in [one, other] {
        assert!(space.claim_words(0, Claim::Words));
        space.persist(0, 4096).unwrap();
    }
    let second = one.len();
    store(one, 0, 1);
    store(other, 0, 2);
    let any = set(&[[0, 0], [1, 0], [0, 2], [1, 2]]);
    assert_eq!(outcomes(&sim, &[0, second]), any);
    one.flush(0, 8);
    // A fence in one of them does not count in the other.
    other.fence().unwrap();
    assert_eq!(outcomes(&sim, &[0, second]), any);
    one.fence().unwrap();
    assert_eq!(outcomes(&sim, &[0, second]), set(&[[1, 0], [1, 2]]));
    let again = sim.crash(Eviction::Everything).reopen().unwrap();
    for (space, value) in again.spaces().iter().zip([1, 2]) {
        assert!(space.claim_words(0, Claim::WordsAsStored));
        assert_eq!(space.word::<Durable>(0).unwrap().load(), value);
    }
    assert!(one.grow(2 * second).is_err(), "several do not grow");
}

/// On one machine a fence covers the flushes of its thread in all spaces, for a caller of `fence_since`.
#[test]
fn a_fence_in_one_space_covers_what_its_thread_has_flushed_in_another_before() {
    let sim = Sim::new(&SimOptions { spaces: 2, ..SimOptions::default() }).unwrap();
    let [one, other] = sim.spaces() else { panic!("two spaces") };
    for space in [one, other] {
        assert!(space.claim_words(0, Claim::Words));
        space.persist(0, 4096).unwrap();
    }
    let fences = || [one, other].map(|space| space.flushes_and_fences().1);
    let before = fences();
    store(one, 0, 1);
    one.flush(0, 8);
    let mark = fence_mark();
    other.fence().unwrap();
    assert_eq!(outcomes(&sim, &[0]), set(&[[0], [1]]), "nobody has asked");
    one.fence_since(mark).unwrap();
    assert_eq!(outcomes(&sim, &[0]), set(&[[1]]));
    assert_eq!(fences(), [before[0], before[1] + 1], "it is no fence of its own");
    // A fence before the mark, or of another thread, does not count: the call makes its own.
    store(one, 0, 2);
    one.flush(0, 8);
    let mark = fence_mark();
    elsewhere(|| other.fence().unwrap());
    one.fence_since(mark).unwrap();
    assert_eq!(outcomes(&sim, &[0]), set(&[[2]]));
    assert_eq!(fences(), [before[0] + 1, before[1] + 2]);
}

#[test]
fn where_a_fence_is_a_sync_each_space_has_its_own() {
    let file = Sim::new(&SimOptions { model: Model::File, ..SimOptions::default() }).unwrap();
    let memory = sim(Model::X86);
    let space = file.space();
    assert!(space.claim_words(0, Claim::Words));
    space.persist(0, 4096).unwrap();
    store(space, 0, 1);
    space.flush(0, 8);
    let mark = fence_mark();
    memory.space().fence().unwrap();
    let before = space.flushes_and_fences().1;
    space.fence_since(mark).unwrap();
    assert_eq!(space.flushes_and_fences().1, before + 1);
    assert_eq!(outcomes(&file, &[0]), set(&[[1]]));
}

/// Flushes of a file become durable with a sync of that file, not with syncs of others.
#[test]
fn of_several_files_each_has_its_own_syncs() {
    let files = SimOptions { spaces: 2, model: Model::File, ..SimOptions::default() };
    let sim = Sim::new(&files).unwrap();
    let [one, other] = sim.spaces() else { panic!("two files") };
    let second = one.len();
    for file in [one, other] {
        assert!(file.claim_words(0, Claim::Words));
        file.persist(0, 4096).unwrap();
        store(file, 0, 1);
        file.flush(0, 8);
    }
    let pair = [0, second];
    assert_eq!(outcomes(&sim, &pair), set(&[[0, 0], [0, 1], [1, 0], [1, 1]]));
    other.fence().unwrap();
    assert_eq!(outcomes(&sim, &pair), set(&[[0, 1], [1, 1]]), "of the second alone");
    one.fence().unwrap();
    assert_eq!(outcomes(&sim, &pair), set(&[[1, 1]]));
}

#[test]
fn a_machine_has_a_space() {
    assert!(Sim::new(&SimOptions { spaces: 0, ..SimOptions::default() }).is_err());
}
