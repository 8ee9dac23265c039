//! Power cuts before a fence of the last steps, and machines that go on after them.

use coreplane_pmem::media::sim::{Eviction, Image, Model, Sim, SimOptions};
use coreplane_pmem::{Claim, Durable, Space};
use std::collections::BTreeSet;

/// The offset of word `number` of the test: each has its own line and sector.
fn at(number: u64) -> u64 {
    number * 512
}

/// Words of the test.
const WORDS: u64 = 6;

fn started(model: Model) -> Sim {
    let sim = Sim::new(&SimOptions { model, ..SimOptions::default() }).unwrap();
    assert!(sim.space().claim_words(0, Claim::Words));
    sim.space().persist(0, 4096).unwrap();
    sim
}

/// Stores all words, one after the other, and makes each but the last durable.
fn turn(space: &Space, value: u64) {
    for number in 0..WORDS {
        space.word::<Durable>(at(number)).unwrap().store(value);
        if number + 1 < WORDS {
            space.persist(at(number), 8).unwrap();
        }
    }
}

fn words(image: &Image) -> Vec<u64> {
    (0..WORDS).map(|number| image.word(at(number))).collect()
}

#[test]
fn the_power_is_cut_in_front_of_each_fence_and_at_the_end() {
    for model in [Model::X86, Model::File] {
        let sim = started(model);
        turn(sim.space(), 1);
        let before = sim.events();
        assert_eq!(sim.fences_since(before), 0);
        turn(sim.space(), 2);
        let fences = sim.fences_since(before);
        assert_eq!(fences as u64, WORDS - 1, "{model:?}: those of the turn before do not count");
        for made in 0..=fences {
            // Fenced stores are there, and stores after the next fence are not. The last word of the
            // turn before is not fenced either, and no later fence covers it.
            let left = |eviction| words(&sim.crash_at_fence(before, made, eviction));
            let [nothing, everything] = [Eviction::Nothing, Eviction::Everything].map(left);
            for number in 0..WORDS as usize - 1 {
                let fenced = if number < made { 2 } else { 1 };
                assert_eq!(nothing[number], fenced, "{model:?}, {made}: {nothing:?}");
                let stored = if number <= made { 2 } else { 1 };
                assert_eq!(everything[number], stored, "{model:?}, {made}: {everything:?}");
            }
            let last = [nothing[WORDS as usize - 1], everything[WORDS as usize - 1]];
            assert_eq!(last, [0, if made == fences { 2 } else { 1 }], "{model:?}, {made}");
        }
        let end = sim.crash(Eviction::Everything);
        for beyond in [fences, fences + 1, usize::MAX] {
            let left = sim.crash_at_fence(before, beyond, Eviction::Everything);
            assert_eq!(left.bytes(), end.bytes());
        }
        let left = sim.crash_at_fence(usize::MAX, 0, Eviction::Everything);
        assert_eq!(left.bytes(), end.bytes(), "nothing has run since");
    }
}

#[test]
fn the_seed_decides_what_is_kept_of_what_no_fence_covers() {
    for model in [Model::X86, Model::File] {
        let sim = started(model);
        let before = sim.events();
        turn(sim.space(), 1);
        for made in 0..=sim.fences_since(before) {
            let left = |seed| sim.crash_at_fence(before, made, Eviction::Seeded(seed));
            let mut seen = BTreeSet::new();
            for seed in 0..40 {
                let image = left(seed);
                assert_eq!(image.bytes(), left(seed).bytes(), "the same again");
                seen.insert(words(&image));
            }
            let of = |kept: usize| (0..WORDS as usize).map(|it| u64::from(it < kept)).collect();
            let expected: BTreeSet<Vec<u64>> = [of(made), of(made + 1)].into();
            assert_eq!(seen, expected, "{model:?}, {made}");
        }
    }
}

/// The images of successive lives of one machine, each cut somewhere and continued.
fn lives(model: Model, seed: u64) -> Vec<Vec<u8>> {
    let mut sim = started(model);
    let mut left = Vec::new();
    for life in 1..20 {
        let before = sim.events();
        turn(sim.space(), life);
        let draw = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(life as u32);
        let fences = draw as usize % (sim.fences_since(before) + 1);
        let image = sim.crash_at_fence(before, fences, Eviction::Seeded(draw));
        sim = image.reopen().unwrap();
        assert!(sim.space().claim_words(0, Claim::WordsAsStored));
        let load = |number| sim.space().word::<Durable>(at(number)).unwrap().load();
        assert_eq!((0..WORDS).map(load).collect::<Vec<_>>(), words(&image));
        left.push(image.bytes().to_vec());
    }
    left
}

#[test]
fn a_machine_goes_on_from_what_is_left_and_does_so_each_time() {
    for model in [Model::X86, Model::File] {
        let all: Vec<_> = (1..6).map(|seed| lives(model, seed)).collect();
        for (seed, left) in (1..6).zip(&all) {
            assert_eq!(*left, lives(model, seed), "{model:?}, seed {seed}");
        }
        assert!(all.iter().collect::<BTreeSet<_>>().len() > 1, "seeds do not matter");
    }
}

#[test]
fn fences_of_all_spaces_count() {
    let sim = Sim::new(&SimOptions { spaces: 2, ..SimOptions::default() }).unwrap();
    let [one, other] = sim.spaces() else { panic!("two spaces") };
    let before = sim.events();
    for (number, space) in [one, other, one].into_iter().enumerate() {
        let _again = space.claim_words(0, Claim::WordsAsStored);
        space.word::<Durable>(at(number as u64)).unwrap().store(7);
        space.persist(at(number as u64), 8).unwrap();
        assert_eq!(sim.fences_since(before), number + 1);
    }
    let second = one.len();
    let places = [at(0), second + at(1), at(2)];
    for made in 0..=3 {
        let image = sim.crash_at_fence(before, made, Eviction::Nothing);
        let expected = [0, 1, 2].map(|number| if number < made { 7 } else { 0 });
        assert_eq!(places.map(|place| image.word(place)), expected);
    }
}
