//! Interleavings of lock-free readers with writes, and with a leaf that is rewritten and whose page is reused for
//! another leaf, up to a number of preemptions: loom. Each of the looks and fences is needed: without it the model
//! finds a reader that is wrong.
//!
//! The accesses are those of the tree; the order in which `arrive`, `write` and `rewrite` make them is repeated
//! here. No test here shows that the tree makes them in this order too.
//!
//! loom does not keep the order of a load before a store of the same word by the same thread; the threads here do
//! that to a word only under its lock.

use super::{Atomic, CHANGING, DEAD, LOCKED, VERSION, begin, end, is_at, look, try_lock};
use loom::sync::Arc;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

/// The step that the reader or the writer leaves out.
const NOTHING: u8 = 0;
const READERS_FENCE: u8 = 1;
const WRITERS_FENCE: u8 = 2;
const LOOK_AT_LEAF: u8 = 3;
const LOOK_AT_NODE: u8 = 4;

/// loom's atomic, without the fences that are left out.
#[derive(Debug)]
struct Word<const WITHOUT: u8>(loom::sync::atomic::AtomicU64);

impl<const WITHOUT: u8> Word<WITHOUT> {
    fn new(value: u64) -> Self {
        Self(loom::sync::atomic::AtomicU64::new(value))
    }
}

impl<const WITHOUT: u8> Atomic for Word<WITHOUT> {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    fn replace(&self, current: u64, new: u64) -> bool {
        self.0.compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn fence(order: Ordering) {
        let is_left_out = match WITHOUT {
            READERS_FENCE => order == Ordering::Acquire,
            WRITERS_FENCE => order == Ordering::Release,
            _ => false,
        };
        if !is_left_out {
            loom::sync::atomic::fence(order);
        }
    }
}

/// A leaf with one place, which is two words that change together.
#[derive(Debug)]
struct Leaf<const WITHOUT: u8> {
    word: Word<WITHOUT>,
    place: [Word<WITHOUT>; 2],
}

/// An inner node of one child, and two pages: one of them is the leaf of the only key.
#[derive(Debug)]
struct World<const WITHOUT: u8> {
    node: Word<WITHOUT>,
    child: Word<WITHOUT>,
    leaves: [Leaf<WITHOUT>; 2],
}

/// The value in the page once another leaf uses it.
const OF_ANOTHER: u64 = 77;

impl<const WITHOUT: u8> World<WITHOUT> {
    fn new() -> Self {
        let leaf = |word| Leaf { word: Word::new(word), place: [Word::new(1), Word::new(1)] };
        Self { node: Word::new(0), child: Word::new(0), leaves: [leaf(VERSION), leaf(DEAD)] }
    }

    /// The leaf at the end of the way down, and its version.
    fn arrive(&self) -> Option<(&Leaf<WITHOUT>, u64)> {
        let version = look(&self.node);
        if version & 1 != 0 {
            return None;
        }
        let leaf = &self.leaves[self.child.load(Ordering::Relaxed) as usize];
        if !is_at(&self.node, version, 0) {
            return None;
        }
        let word = look(&leaf.word);
        if word & (DEAD | CHANGING) != 0 {
            return None;
        }
        let is_current = WITHOUT == LOOK_AT_NODE || is_at(&self.node, version, 0);
        is_current.then_some((leaf, word & !LOCKED))
    }

    fn read(&self) -> u64 {
        loop {
            if let Some((leaf, version)) = self.arrive() {
                let [first, second] =
                    [&leaf.place[0], &leaf.place[1]].map(|word| word.load(Ordering::Relaxed));
                if WITHOUT == LOOK_AT_LEAF || is_at(&leaf.word, version, LOCKED) {
                    assert_eq!(first, second, "a place is torn");
                    return first;
                }
            }
            loom::thread::yield_now();
        }
    }

    fn lock(&self) -> (&Leaf<WITHOUT>, u64) {
        loop {
            if let Some((leaf, version)) = self.arrive()
                && try_lock(&leaf.word, version, version | LOCKED)
            {
                return (leaf, version);
            }
            loom::thread::yield_now();
        }
    }

    /// A put: adds one.
    fn write(&self) {
        let (leaf, version) = self.lock();
        let value = leaf.place[0].load(Ordering::Relaxed) + 1;
        begin(&leaf.word, version | LOCKED | CHANGING);
        leaf.place.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        end(&leaf.word, version + VERSION);
    }

    /// Rewrites the leaf in the other page, and uses its own page for other keys.
    fn rewrite(&self) {
        let (leaf, version) = self.lock();
        let value = leaf.place[0].load(Ordering::Relaxed);
        let [_, successor] = &self.leaves;
        successor.place.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        end(&successor.word, VERSION);
        end(&leaf.word, (version + VERSION) | DEAD);
        begin(&self.node, 1);
        self.child.store(1, Ordering::Relaxed);
        end(&self.node, 2);
        begin(&leaf.word, (version + VERSION) | DEAD);
        leaf.place.iter().for_each(|word| word.store(OF_ANOTHER, Ordering::Relaxed));
        end(&leaf.word, version + 2 * VERSION);
    }
}

/// Runs one operation beside a reader that reads twice, or two beside one that reads once; checks the values that
/// the reader sees and the value at the end.
fn explore<const WITHOUT: u8>(others: &'static [fn(&World<WITHOUT>)], sum: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(if others.len() > 1 { 2 } else { 3 });
    builder.max_branches = 20_000;
    builder.check(move || {
        let world = Arc::new(World::<WITHOUT>::new());
        let threads: Vec<_> = others
            .iter()
            .map(|other| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || other(&world))
            })
            .collect();
        let first = world.read();
        let second = if others.len() > 1 { first } else { world.read() };
        assert!(1 <= first && first <= second && second <= sum, "{first}, then {second}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(world.read(), sum, "a write is lost");
    });
}

#[test]
fn a_reader_sees_what_was_there_at_a_moment() {
    explore::<NOTHING>(&[World::write], 2);
    explore::<NOTHING>(&[World::rewrite], 1);
    explore::<NOTHING>(&[World::write, World::rewrite], 2);
}

#[test]
fn no_write_is_lost_to_another() {
    explore::<NOTHING>(&[World::write, World::write], 3);
}

fn is_caught<const WITHOUT: u8>(others: &'static [fn(&World<WITHOUT>)]) -> bool {
    let sum = if others.len() > 1 { 2 } else { 1 };
    let explored = catch_unwind(AssertUnwindSafe(|| explore::<WITHOUT>(others, sum)));
    let Err(panic) = explored else { return false };
    let said = panic.downcast_ref::<String>().map_or("", String::as_str);
    assert!(said.contains("a place is torn") || said.contains(", then "), "{said}");
    true
}

#[test]
fn without_a_look_or_a_fence_a_reader_is_wrong() {
    assert!(is_caught::<LOOK_AT_LEAF>(&[World::write, World::rewrite]));
    assert!(is_caught::<READERS_FENCE>(&[World::write, World::rewrite]));
    assert!(is_caught::<WRITERS_FENCE>(&[World::write, World::rewrite]));
    // Otherwise the page may be another leaf by now.
    assert!(is_caught::<LOOK_AT_NODE>(&[World::rewrite]));
}
