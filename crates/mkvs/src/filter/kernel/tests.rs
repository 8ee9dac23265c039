//! Interleavings of writers, rebuilds and probes, up to a number of preemptions: loom. The engine is
//! a word for each key.
//!
//! Each model runs with and without `LATEST`, and with and without `SHARED`. Of the accesses to a word loom keeps only the last, to find the accesses to try in the
//! other order. So a store after a load of the same thread hides another thread's load from it, and interleavings
//! are left out. If every load and store is a change that depends on the one before (`LATEST`), none are left out;
//! but then a load sees the latest value, which a plain load need not.

use super::{Atomic, Gate, Phase, Place, Stay, Switch, Table};
use loom::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The part that is broken in a model that is to fail.
const CAS: u8 = 1;
const LIGHT: u8 = 2;
const HEAVY: u8 = 8;
/// Loads and stores are read-modify-writes.
const LATEST: u8 = 4;
/// All threads share a stripe of the gate.
const SHARED: u8 = 16;

/// loom's atomic, changed as `WAY` says.
#[derive(Debug)]
struct Word<const WAY: u8>(loom::sync::atomic::AtomicU64);

impl<const WAY: u8> Atomic for Word<WAY> {
    fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }

    fn load(&self, order: Ordering) -> u64 {
        if WAY & LATEST == 0 { self.0.load(order) } else { self.0.fetch_add(0, Ordering::AcqRel) }
    }

    fn replace(&self, current: u64, new: u64) -> Result<u64, u64> {
        if WAY & CAS != 0 {
            self.0.store(new, Ordering::Relaxed);
            return Ok(current);
        }
        self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed)
    }

    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        if WAY & LATEST == 0 {
            self.0.store(value, order);
        } else {
            self.0.swap(value, Ordering::AcqRel);
        }
    }

    fn light() {
        if WAY & LIGHT == 0 {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    fn heavy() {
        if WAY & HEAVY == 0 {
            loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }
}

/// A published pointer: the index of a value in the list of all values so far.
struct Shelf<T, const WAY: u8> {
    at: Word<WAY>,
    values: Mutex<Vec<std::sync::Arc<T>>>,
}

impl<T, const WAY: u8> Place<T> for Shelf<T, WAY> {
    fn new(value: T) -> Self {
        let values = Mutex::new(vec![std::sync::Arc::new(value)]);
        Self { at: Word::new(0), values }
    }

    fn look<R>(&self, with: impl FnOnce(&T) -> R) -> R {
        let at = self.at.load(Ordering::Acquire);
        let value = self.values.lock().unwrap()[at as usize].clone();
        with(&value)
    }

    fn replace(&self, value: T) {
        // Not locked where loom may let another thread run.
        let last = {
            let mut values = self.values.lock().unwrap();
            values.push(std::sync::Arc::new(value));
            values.len() - 1
        };
        self.at.store(last as u64, Ordering::Release);
    }
}

fn table<const WAY: u8>() -> std::sync::Arc<Table<Word<WAY>>> {
    std::sync::Arc::new(Table::new(1, &std::sync::Arc::new(AtomicU64::new(0))).unwrap())
}

/// Two keys that share all counters.
const TWIN: u64 = 0;
/// A key with words of its own.
const OTHER: u64 = 2;

/// The hashes of three keys, and for each whether the engine has it.
const KEYS: [u64; 3] = [TWIN, TWIN, OTHER];

/// Threads of a model at most.
const THREADS_MAX: usize = 3;

struct Parts<const WAY: u8> {
    engine: [Word<WAY>; 3],
    switch: Switch<Word<WAY>, Shelf<Phase<Word<WAY>>, WAY>>,
}

/// What a thread of a model sees.
struct World<const WAY: u8> {
    parts: Arc<Parts<WAY>>,
    /// The number of the thread.
    number: usize,
}

impl<const WAY: u8> std::ops::Deref for World<WAY> {
    type Target = Parts<WAY>;

    fn deref(&self) -> &Self::Target {
        &self.parts
    }
}

impl<const WAY: u8> World<WAY> {
    /// The engine and the filter have both keys of `TWIN`.
    fn new() -> Self {
        let engine = [1, 1, 0].map(Word::new);
        let gate = Gate::new(if WAY & SHARED == 0 { THREADS_MAX } else { 0 }, 1);
        let parts = Arc::new(Parts { engine, switch: Switch::new(table(), gate) });
        let world = Self { parts, number: 0 };
        world.change(|stay| {
            world.switch.insert(stay, TWIN);
            world.switch.insert(stay, TWIN);
        });
        world
    }

    fn change<R>(&self, change: impl FnOnce(&Stay) -> R) -> R {
        let stay = self.switch.enter(self.number);
        let changed = change(&stay);
        self.switch.leave(&stay);
        changed
    }

    fn put(&self, key: usize) {
        self.engine[key].store(1, Ordering::Relaxed);
    }

    fn delete(&self, key: usize) {
        self.engine[key].store(0, Ordering::Relaxed);
    }

    fn fill(&self) {
        let next = table();
        self.switch.start(next.clone(), loom::thread::yield_now);
        for (key, hash) in KEYS.into_iter().enumerate() {
            if self.engine[key].load(Ordering::Relaxed) == 1 {
                next.add(hash);
            }
        }
    }

    fn rebuild(&self) {
        self.fill();
        self.switch.finish(loom::thread::yield_now);
    }

    fn assert_has(&self, hash: u64) {
        assert!(self.switch.may_contain(hash), "a key that is there was denied");
    }
}

/// A thread of a model.
type Act<const WAY: u8> = fn(&World<WAY>);

/// Runs `others` beside `main` in every way of so many preemptions.
fn run<const WAY: u8>(
    preemptions: usize,
    others: &'static [Act<WAY>],
    main: Act<WAY>,
    after: Act<WAY>,
) {
    assert!(others.len() < THREADS_MAX, "each has a stripe of its own");
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        let world = World::<WAY>::new();
        let threads: Vec<_> = (1..)
            .zip(others)
            .map(|(number, act)| {
                let world = World { parts: world.parts.clone(), number };
                loom::thread::spawn(move || act(&world))
            })
            .collect();
        main(&world);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        after(&world);
    });
}

/// Runs them in both ways of loading, with stripes of their own and with a shared one.
macro_rules! explore {
    ($preemptions:expr, [$($other:ident),+], $main:ident, $after:ident) => {
        run::<0>($preemptions, &[$($other),+], $main, $after);
        run::<LATEST>($preemptions, &[$($other),+], $main, $after);
        run::<SHARED>($preemptions, &[$($other),+], $main, $after);
        run::<{ LATEST | SHARED }>($preemptions, &[$($other),+], $main, $after);
    };
}

fn is_caught(model: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(model)).is_err()
}

/// Deletes one of two keys that share their counters.
fn delete_a_twin<const WAY: u8>(world: &World<WAY>) {
    world.change(|stay| {
        world.delete(1);
        world.switch.remove(stay, TWIN);
    });
    world.assert_has(TWIN);
}

fn insert_first<const WAY: u8>(world: &World<WAY>) {
    world.change(|stay| {
        world.switch.insert(stay, OTHER);
        world.put(2);
    });
    world.assert_has(OTHER);
}

/// As a put in a matrix, which asks and counts at once.
fn insert_absent<const WAY: u8>(world: &World<WAY>) {
    world.change(|stay| {
        assert!(world.switch.insert_absent(stay, OTHER).is_some());
        world.put(2);
    });
    world.assert_has(OTHER);
}

fn put_first<const WAY: u8>(world: &World<WAY>) {
    world.change(|stay| {
        world.put(2);
        world.switch.insert(stay, OTHER);
        world.assert_has(OTHER);
    });
}

/// Like a put that is known not to delete: its change begins when the key is known to be new.
fn put_before<const WAY: u8>(world: &World<WAY>) {
    world.put(2);
    world.change(|stay| world.switch.insert(stay, OTHER));
    world.assert_has(OTHER);
}

fn rebuild<const WAY: u8>(world: &World<WAY>) {
    world.rebuild();
    world.assert_has(TWIN);
}

fn has_twin<const WAY: u8>(world: &World<WAY>) {
    world.assert_has(TWIN);
}

fn has_both<const WAY: u8>(world: &World<WAY>) {
    world.assert_has(TWIN);
    world.assert_has(OTHER);
}

#[test]
fn a_removal_in_a_rebuild_denies_no_other_key() {
    explore!(4, [delete_a_twin], rebuild, has_twin);
    explore!(2, [delete_a_twin, has_twin], rebuild, has_twin);
}

#[test]
fn a_removal_whose_change_began_after_the_delete_does() {
    fn delete(world: &World<0>) {
        world.delete(1);
        world.change(|stay| world.switch.remove(stay, TWIN));
    }
    assert!(is_caught(|| run(3, &[delete], rebuild, has_twin)));
}

#[test]
fn an_insertion_in_a_rebuild_is_in_the_new_table() {
    explore!(4, [insert_first], rebuild, has_both);
    explore!(4, [insert_absent], rebuild, has_both);
    explore!(4, [put_first], rebuild, has_both);
    explore!(4, [put_before], rebuild, has_both);
    explore!(2, [put_before, delete_a_twin], rebuild, has_both);
    explore!(2, [insert_first, delete_a_twin], rebuild, has_both);
}

#[test]
fn an_insertion_whose_change_ended_before_the_put_is_not() {
    fn insert(world: &World<0>) {
        world.change(|stay| world.switch.insert(stay, OTHER));
        world.put(2);
    }
    assert!(is_caught(|| run(3, &[insert], rebuild, has_both)));
}

fn rebuild_twice<const WAY: u8>(world: &World<WAY>) {
    world.rebuild();
    world.rebuild();
}

#[test]
fn a_change_that_outlives_a_rebuild_is_waited_for_by_the_next() {
    explore!(3, [insert_first], rebuild_twice, has_both);
    explore!(3, [delete_a_twin], rebuild_twice, has_twin);
}

#[test]
fn without_the_fences_a_change_is_not_waited_for() {
    assert!(is_caught(|| run::<LIGHT>(3, &[insert_first], rebuild, has_both)));
    assert!(is_caught(|| run::<HEAVY>(3, &[insert_first], rebuild, has_both)));
}

fn give_up<const WAY: u8>(world: &World<WAY>) {
    world.fill();
    world.switch.abandon();
    world.assert_has(TWIN);
}

fn give_up_and_rebuild<const WAY: u8>(world: &World<WAY>) {
    give_up(world);
    rebuild(world);
}

/// The counts of `TWIN` are exact.
fn has_one_twin<const WAY: u8>(world: &World<WAY>) {
    world.assert_has(TWIN);
    world.change(|stay| world.switch.remove(stay, TWIN));
    assert!(!world.switch.may_contain(TWIN), "a count was left");
}

fn has_two_twins<const WAY: u8>(world: &World<WAY>) {
    world.assert_has(TWIN);
    world.change(|stay| world.switch.remove(stay, TWIN));
    has_one_twin(world);
}

#[test]
fn a_rebuild_that_is_given_up_leaves_all_counts_exact() {
    explore!(4, [delete_a_twin], give_up, has_one_twin);
}

/// Counts a key that is there already, and takes it back.
fn overwrite<const WAY: u8>(world: &World<WAY>) {
    world.change(|stay| {
        let youngest = world.switch.insert(stay, TWIN);
        world.assert_has(TWIN);
        world.switch.undo(stay, TWIN, youngest);
    });
}

#[test]
fn what_is_undone_was_never_there() {
    explore!(3, [overwrite], rebuild, has_two_twins);
    explore!(2, [overwrite], give_up_and_rebuild, has_two_twins);
}

/// A key that shares both words with `TWIN`, and no counter.
const NEIGHBOUR: u64 = 0x76_5321 << 11;

fn change_neighbours<const WAY: u8>() {
    fn insert_and_remove<const WAY: u8>(world: &World<WAY>) {
        world.change(|stay| {
            world.switch.insert(stay, NEIGHBOUR);
            world.switch.remove(stay, TWIN);
        });
    }
    fn insert<const WAY: u8>(world: &World<WAY>) {
        world.change(|stay| world.switch.insert(stay, TWIN));
        world.assert_has(TWIN);
    }
    run::<WAY>(4, &[insert_and_remove::<WAY>], insert, |world| {
        world.assert_has(NEIGHBOUR);
        world.change(|stay| world.switch.remove(stay, NEIGHBOUR));
        has_two_twins(world);
        assert!(!world.switch.may_contain(NEIGHBOUR), "a count was left");
    });
}

#[test]
fn counters_of_one_word_are_changed_exactly_by_two_threads() {
    change_neighbours::<0>();
    change_neighbours::<LATEST>();
}

#[test]
fn by_a_load_and_a_store_they_are_not() {
    assert!(is_caught(change_neighbours::<CAS>));
}
