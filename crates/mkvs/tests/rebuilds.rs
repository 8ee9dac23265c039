//! Writers, probes and rebuilds side by side: no existing key is ever denied. Threads are joined explicitly,
//! for the thread sanitizer.

use coreplane_mkvs::filter::{Filter, hash_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Keys of each writer; as many more always exist.
const KEYS: u64 = 1_000;
const WRITERS: u64 = 2;
const REBUILDS: u64 = 60;

fn hash(key: u64) -> u64 {
    hash_of(&key.to_le_bytes())
}

/// A generator of numbers (xorshift), from a seed above 0.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// Lets other threads run now and then, especially between the engine and the filter.
    fn pause(&mut self) {
        if self.throw(8) == 0 {
            std::thread::yield_now();
        }
    }
}

struct Store {
    filter: Filter,
    /// The engine: the keys that exist.
    engine: Vec<AtomicBool>,
    is_over: AtomicBool,
    changes: AtomicU64,
}

impl Store {
    fn has(&self, key: u64) -> bool {
        self.engine[key as usize].load(Ordering::SeqCst)
    }

    fn assert_contained(&self, key: u64) {
        assert!(self.filter.may_contain(hash(key)), "key {key} was denied");
    }

    fn put(&self, key: u64, dice: &mut Dice) {
        let change = self.filter.change();
        let inserted = change.insert(hash(key));
        dice.pause();
        if self.engine[key as usize].swap(true, Ordering::SeqCst) {
            inserted.undo();
        }
    }

    /// The other order, for writers of a key that exclude each other.
    fn put_and_count(&self, key: u64, dice: &mut Dice) {
        let change = self.filter.change();
        let was_there = self.engine[key as usize].swap(true, Ordering::SeqCst);
        dice.pause();
        if !was_there {
            change.insert(hash(key));
        }
    }

    fn delete(&self, key: u64, dice: &mut Dice) {
        let change = self.filter.change();
        if self.engine[key as usize].swap(false, Ordering::SeqCst) {
            dice.pause();
            change.remove(hash(key));
        }
    }

    /// Changes its own keys, and looks for keys that it knows to exist.
    fn write(&self, writer: u64) {
        let mut dice = Dice(0x9e37_79b9 + writer);
        let own = (1 + writer) * KEYS;
        while !self.is_over.load(Ordering::Relaxed) {
            let key = own + dice.throw(KEYS);
            match dice.throw(4) {
                0 => self.put(key, &mut dice),
                1 => self.put_and_count(key, &mut dice),
                _ => self.delete(key, &mut dice),
            }
            for key in [key, own + dice.throw(KEYS), dice.throw(KEYS)] {
                if self.has(key) {
                    self.assert_contained(key);
                }
            }
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn list(&self, add: impl Fn(u64), part: u64) {
        let keys = (0..self.engine.len() as u64).filter(|key| key % 2 == part);
        for key in keys {
            if self.has(key) {
                add(hash(key));
            }
        }
    }

    fn rebuild(self: &Arc<Self>, number: u64) {
        let rebuild = self.filter.rebuild(KEYS * (2 + number % 3)).unwrap();
        self.list(|hash| rebuild.add(hash), 0);
        std::thread::yield_now();
        self.list(|hash| rebuild.add(hash), 1);
        if number % 4 != 3 {
            rebuild.finish();
        }
        (0..KEYS).for_each(|key| self.assert_contained(key));
    }
}

#[test]
fn no_key_that_is_there_is_denied_beside_a_rebuild() {
    let keys = (1 + WRITERS) * KEYS;
    let store = Arc::new(Store {
        filter: Filter::with_capacity(2 * KEYS).unwrap(),
        engine: (0..keys).map(|_| AtomicBool::new(false)).collect(),
        is_over: AtomicBool::new(false),
        changes: AtomicU64::new(0),
    });
    (0..KEYS).for_each(|key| store.put(key, &mut Dice(1)));
    let mut threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = store.clone();
            std::thread::spawn(move || store.write(writer))
        })
        .collect();
    threads.push({
        let store = store.clone();
        std::thread::spawn(move || {
            while !store.is_over.load(Ordering::Relaxed) {
                (0..KEYS).for_each(|key| store.assert_contained(key));
            }
        })
    });
    for number in 0..REBUILDS {
        // Some changes between two rebuilds, and beside each, however busy the machine is.
        let until = store.changes.load(Ordering::Relaxed) + 200;
        while store.changes.load(Ordering::Relaxed) < until
            && threads.iter().all(|thread| !thread.is_finished())
        {
            std::thread::yield_now();
        }
        store.rebuild(number);
    }
    store.is_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let there: Vec<u64> = (0..keys).filter(|key| store.has(*key)).collect();
    there.iter().for_each(|key| store.assert_contained(*key));
    // Without concurrent changes a rebuild counts the existing keys and no more.
    store.rebuild(0);
    assert_eq!(store.filter.len(), there.len() as u64);
    there.iter().for_each(|key| store.delete(*key, &mut Dice(1)));
    assert!((0..keys).all(|key| !store.filter.may_contain(hash(key))));
}
