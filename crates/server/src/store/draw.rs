//! A key drawn at random, in bounded steps.
//!
//! Where keys have an order, a key is drawn byte by byte. Elsewhere a random cursor is a random place: some places are
//! looked at, each alone, until one has a record. Where nearly all are empty, as those of an index whose records have
//! expired, none of these may have one: then a [`Walk`] goes through the places from a random one on, step by step,
//! up to the first record.
//!
//! A transaction draws among the records that it has made and those that it has not changed, by their numbers. It
//! cannot be cut between two steps, but its draws share one walk: however many they are, they pass each place twice
//! at most.

use super::Store;
use coreplane_engine::{Entry, Result};
use std::hash::{BuildHasher, RandomState};

/// Places that a draw looks at, or keys that it draws by their order, before it begins a walk.
const PROBES: u64 = 32;

/// Records, or empty places, in a step of a walk.
const STEP: usize = 128;

/// A draw so far.
#[derive(Debug)]
pub(crate) enum Drawn {
    /// The key; none if there is no record.
    Key(Option<Vec<u8>>),
    /// Nothing was met yet: [`Store::walk_on`].
    Walk(Walk),
}

/// A walk through the places of an engine up to the first record: from a random one to the last, and then from the
/// first to the last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    /// The leadership in which it began.
    pub leadership: u64,
    cursor: u64,
    is_from_start: bool,
    is_over: bool,
}

impl Store<'_> {
    /// Draws a key, unless none is found at once. The caller must call [`Store::rest_on_all`].
    pub(crate) fn draw(&mut self) -> Result<Drawn> {
        let random = RandomState::new();
        if self.keeps_back() {
            let (made, others) = self.try_lens()?;
            // Those that are not counted yet are taken for more than it can have made.
            let all = made.saturating_add(others.unwrap_or(u64::from(u32::MAX)));
            match random.hash_one("record").checked_rem(all) {
                None => return Ok(Drawn::Key(None)),
                Some(number) if number < made => return Ok(Drawn::Key(self.made(number))),
                Some(_) => {}
            }
        }
        for probe in 0..PROBES {
            let key = match self.engine.ordered().is_some() {
                true => self.draw_of_ordered()?,
                false => self.look_at(random.hash_one(probe), 0)?.0,
            };
            if let Some(key) = key.filter(|key| self.is_unchanged(key)) {
                return Ok(Drawn::Key(Some(key)));
            }
        }
        if !self.keeps_back() && self.engine.try_len()? == Some(0) {
            return Ok(Drawn::Key(None));
        }
        let leadership = self.leaderships();
        let cursor = random.hash_one("place");
        let begun = Walk { leadership, cursor, is_from_start: false, is_over: false };
        Ok(Drawn::Walk(self.walk.unwrap_or(begun)))
    }

    /// Makes a step of a walk; the outer result is none if it has met no record and goes on.
    pub(crate) fn walk_on(&mut self, walk: &mut Walk) -> Result<Option<Option<Vec<u8>>>> {
        let (key, next) = match walk.is_over {
            true => (None, 0),
            false => self.look_at(walk.cursor, STEP)?,
        };
        if key.is_none() {
            walk.cursor = next;
            walk.is_over |= next == 0 && walk.is_from_start;
            walk.is_from_start |= next == 0;
        }
        self.walk = Some(*walk);
        Ok(match walk.is_over {
            // A record that was counted may have expired.
            true => Some(self.made(0)),
            false => key.map(Some),
        })
    }

    /// Any of the records that an iteration meets in one call, and the next cursor.
    fn look_at(&mut self, cursor: u64, count: usize) -> Result<(Option<Vec<u8>>, u64)> {
        let random = RandomState::new();
        let (mut met, mut chosen) = (0_u64, None);
        let next = self.iterate_unchanged(cursor, count, &mut |entry: Entry<'_>| {
            met += 1;
            // The last of `n` is chosen with a chance of 1 in `n`: so each is.
            if random.hash_one(met).is_multiple_of(met) {
                chosen = Some(entry.key.to_vec());
            }
        })?;
        Ok((chosen, next))
    }

    /// Draws a key byte by byte. Each step draws a value between the least and the greatest byte that follow the
    /// prefix drawn so far, and takes the next byte that exists. Every key may be drawn; where all values of a byte
    /// exist, equally often.
    fn draw_of_ordered(&mut self) -> Result<Option<Vec<u8>>> {
        let draw = RandomState::new();
        let mut prefix = Vec::new();
        loop {
            let end = coreplane_engine::end_of_prefix(&prefix);
            let first = self.end_of_range((&prefix, end.as_deref()), false)?;
            let last = self.end_of_range((&prefix, end.as_deref()), true)?;
            let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
            let shared = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
            let Some(greatest) = last.get(shared) else { return Ok(Some(first)) };
            // The first key may be the shared prefix itself, which is one more choice.
            let (is_one, least) = first.get(shared).map_or((true, 0), |least| (false, *least));
            let choices = u64::from(greatest.saturating_sub(least)) + 1 + u64::from(is_one);
            let drawn = draw.hash_one(prefix.as_slice()) % choices;
            let Some(above) = drawn.checked_sub(u64::from(is_one)) else { return Ok(Some(first)) };
            let value = least.saturating_add(u8::try_from(above).unwrap_or(u8::MAX));
            let start = [last.get(..shared).unwrap_or_default(), &[value]].concat();
            let next = self.end_of_range((&start, end.as_deref()), false)?;
            // Others may write meanwhile.
            let Some(next) = next.filter(|next| next.len() > shared) else {
                return Ok(Some(first));
            };
            prefix = next;
            prefix.truncate(shared + 1);
        }
    }

    /// The first or the last key of a range; none if it is empty, or begins with many records that have expired.
    fn end_of_range(
        &mut self,
        range: (&[u8], Option<&[u8]>),
        is_last: bool,
    ) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        for most in [1, STEP] {
            let mut has_expired = false;
            self.range(range, is_last, most, &mut |entry| {
                has_expired |= entry.record.is_none();
                found = entry.record.is_some().then(|| entry.key.to_vec());
                found.is_none()
            })?;
            if !has_expired || found.is_some() {
                break;
            }
        }
        Ok(found)
    }

    /// The number of records that a transaction has made, and that of all others; none of these if not all are
    /// counted yet.
    fn try_lens(&mut self) -> Result<(u64, Option<u64>)> {
        // Asked once: a transaction keeps the others from writing, and to count may take long.
        let len = match (self.clears(), self.engine_len) {
            (true, _) => Some(0),
            (false, Some(known)) => known,
            (false, None) => *self.engine_len.insert(self.engine.try_len()?),
        };
        let (made, replaced) = self.changed()?;
        Ok((made, len.map(|len| len.saturating_sub(replaced))))
    }

    /// The key of a record that a transaction has made, by its number among those.
    fn made(&self, number: u64) -> Option<Vec<u8>> {
        self.overlay.as_ref()?.live_key(number).map(<[u8]>::to_vec)
    }

    /// True if a transaction has not changed `key`.
    fn is_unchanged(&mut self, key: &[u8]) -> bool {
        !self.overlay.as_mut().is_some_and(|overlay| overlay.clears() || overlay.changes(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::WatchedAbsences;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::{Engine, Horizon, UnixMillis, WriteOptions};
    use std::collections::BTreeMap;

    /// How often each key is drawn; the last is none.
    fn draws(engine: &ModelEngine, times: usize) -> BTreeMap<Option<Vec<u8>>, usize> {
        let (watched, mut horizon) = (WatchedAbsences::default(), Horizon::new());
        let mut drawn = BTreeMap::new();
        for _ in 0..times {
            let mut store = Store::new(engine, &watched, &mut horizon, true);
            *drawn.entry(draw(&mut store)).or_default() += 1;
        }
        drawn
    }

    /// Draws a key, in as many steps as it takes.
    fn draw(store: &mut Store<'_>) -> Option<Vec<u8>> {
        match store.draw().expect("draw") {
            Drawn::Key(key) => key,
            Drawn::Walk(mut walk) => loop {
                if let Some(key) = store.walk_on(&mut walk).expect("walk on") {
                    break key;
                }
            },
        }
    }

    fn put(engine: &ModelEngine, keys: &[Vec<u8>]) {
        for key in keys {
            let put = engine.put(key, b"v", &WriteOptions::default()).expect("put");
            assert!(put.is_written());
        }
    }

    fn numbers(count: usize) -> Vec<Vec<u8>> {
        (0..count).map(|at| format!("key:{at:06}").into_bytes()).collect()
    }

    #[test]
    fn any_key_of_an_ordered_engine_is_drawn() {
        let nested = ["", "a", "aa", "aaa", "aab", "b"].map(Vec::from).to_vec();
        for (keys, times, least) in
            [(numbers(1000), 10_000, 990), (nested, 1_000, 6), (vec![vec![255; 100]], 10, 1)]
        {
            let engine = ModelEngine::new();
            put(&engine, &keys);
            let drawn = draws(&engine, times);
            assert!(drawn.len() >= least && !drawn.contains_key(&None), "{}", drawn.len());
            assert!(keys.len() < 1000 || drawn.values().all(|times| *times < 40));
        }
        assert_eq!(draws(&ModelEngine::new(), 10), BTreeMap::from([(None, 10)]));
    }

    #[test]
    fn any_key_of_an_engine_without_an_order_is_drawn() {
        let engine = ModelEngine::new().with_places(6);
        put(&engine, &numbers(1000));
        let drawn = draws(&engine, 10_000);
        assert!(drawn.len() > 900 && drawn.values().all(|times| *times < 60), "{}", drawn.len());
        assert!(!drawn.contains_key(&None));
    }

    #[test]
    fn few_places_are_looked_at_where_there_is_no_record() {
        let engine = ModelEngine::new().with_places(16);
        assert_eq!(draws(&engine, 100), BTreeMap::from([(None, 100)]));
        assert!(engine.places_looked_at() <= 100 * PROBES);
    }

    /// A step is short, and one in which all records that are counted have expired ends, too.
    #[test]
    fn a_key_that_is_alone_is_found_in_short_steps() {
        const PLACES: u64 = 1 << 12;
        let engine = ModelEngine::new().with_places(12);
        put(&engine, &numbers(1));
        let key = Some(numbers(1).remove(0));
        assert_eq!(draws(&engine, 20), BTreeMap::from([(key.clone(), 20)]));
        assert!(engine.places_looked_at() <= 20 * (2 * PLACES + PROBES));
        let (watched, mut horizon) = (WatchedAbsences::default(), Horizon::new());
        let mut store = Store::new(&engine, &watched, &mut horizon, true);
        let (is_from_start, is_over) = (false, false);
        let mut walk = Walk { leadership: 0, cursor: u64::MAX, is_from_start, is_over };
        let mut before = engine.places_looked_at();
        while store.walk_on(&mut walk).expect("walk on").is_none() {
            let looked_at = engine.places_looked_at() - before;
            assert!((1..=STEP as u64).contains(&looked_at), "{looked_at} places in a step");
            before += looked_at;
        }
        let expired = WriteOptions { expires_at: Some(UnixMillis(1)), ..WriteOptions::default() };
        let put = engine.put(b"key:000000", b"v", &expired).expect("put");
        assert!(put.is_written());
        assert_eq!(draws(&engine, 2), BTreeMap::from([(None, 2)]));
    }

    #[test]
    fn a_transaction_asks_for_the_number_of_records_once() {
        let engine = ModelEngine::new();
        put(&engine, &numbers(20));
        let (watched, mut horizon) = (WatchedAbsences::default(), Horizon::new());
        let mut store = Store::new(&engine, &watched, &mut horizon, true);
        store.begin(0, 0);
        assert!(draw(&mut store).is_some());
        engine.set_miscounted(true);
        assert!(draw(&mut store).is_some());
    }

    /// A transaction draws among its own records and the others, and all its draws share one walk.
    #[test]
    fn a_transaction_draws_what_it_leaves_behind() {
        const DRAWS: usize = 1000;
        for (engine, places) in [
            (ModelEngine::new(), 0),
            (ModelEngine::new().with_places(4), 1 << 4),
            (ModelEngine::new().with_places(12), 1 << 12),
        ] {
            put(&engine, &numbers(20));
            let (watched, mut horizon) = (WatchedAbsences::default(), Horizon::new());
            let mut store = Store::new(&engine, &watched, &mut horizon, true);
            store.begin(0, 0);
            let draw_all = |store: &mut Store<'_>| {
                (0..DRAWS).filter_map(|_| draw(store)).collect::<std::collections::BTreeSet<_>>()
            };
            for key in &numbers(20)[1..] {
                assert!(store.delete(key).expect("delete"));
            }
            store.put(b"new", b"v", None).expect("put");
            store.put(b"newer", b"v", None).expect("put");
            assert!(store.delete(b"newer").expect("delete"));
            assert_eq!(store.len().expect("len"), 2);
            let both = [b"key:000000".to_vec(), b"new".to_vec()];
            assert_eq!(draw_all(&mut store), both.clone().into());
            assert!(store.delete(b"new").expect("delete"));
            assert_eq!(draw_all(&mut store), both[..1].iter().cloned().collect());
            let most = 2 * places + 2 * DRAWS as u64 * (PROBES + STEP as u64);
            assert!(engine.places_looked_at() <= most, "{}", engine.places_looked_at());
            assert!(store.delete(b"key:000000").expect("delete"));
            assert!(draw_all(&mut store).is_empty());
            store.put(b"newest", b"v", None).expect("put");
            assert_eq!(draw_all(&mut store), [b"newest".to_vec()].into());
            assert!(store.clear_step(&mut coreplane_engine::Clear::default()).expect("clear"));
            assert!(draw_all(&mut store).is_empty());
        }
    }
}
