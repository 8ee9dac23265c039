//! A listing of keys, step by step.
//!
//! A key that exists from the first step to the last is listed; one that is added or deleted meanwhile may be listed
//! or not: the promise of the engine's cursors ([`Engine::iterate`](coreplane_engine::Engine::iterate)). Cursors may
//! show a key twice, `KEYS` may not: it remembers a digest of each listed key. A digest has 128 bits of two hashes
//! with secret keys, so in practice no two keys have the same. The digests are in many small sets, since a set that
//! grows is moved as a whole, which for one large set would take longer than a slice.

use super::Pieces;
use crate::glob::Pattern;
use crate::resp::reply::{Proto, Reply};
use crate::store::Store;
use coreplane_engine::{Entry, Result as EngineResult};
use coreplane_pmem::mutant;
use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// Records looked at in a step, at most.
const STEP: usize = 128;
/// Comparisons of keys with a pattern in a step, unless one key takes more.
const COMPARISONS: usize = 1 << 20;

/// The keys to be listed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// None: all.
    pattern: Option<Pattern<'a>>,
    /// Records are of the requested kind.
    is_kind: bool,
}

impl<'a> Wanted<'a> {
    /// Keys that match; none at all unless records, which are strings, are of the requested kind.
    pub(crate) fn new(pattern: Option<&'a [u8]>, is_kind: bool) -> Result<Self, &'static str> {
        let pattern = pattern.filter(|pattern| *pattern != b"*").map(Pattern::new).transpose()?;
        Ok(Self { pattern, is_kind })
    }

    fn has(&self, key: &[u8]) -> bool {
        self.is_kind && self.pattern.is_none_or(|pattern| pattern.matches(key, false))
    }

    fn comparisons(&self, key: &[u8]) -> usize {
        self.pattern.map_or(0, |pattern| pattern.comparisons(key.len()))
    }
}

/// A listing in the making.
#[derive(Debug)]
pub(crate) struct Listing {
    has_begun: bool,
    /// The leadership in which it began.
    leadership: u64,
    cursor: u64,
    /// Records that are still to be read; none: all.
    left: Option<usize>,
    /// Keys that were read, and are matched by the next steps: an engine may show many at once.
    unmatched: VecDeque<Box<[u8]>>,
    listed: Option<Digests>,
    count: usize,
    keys: Pieces,
    /// All records were read.
    is_read: bool,
}

impl Listing {
    /// A listing of all keys, each once, begun in this leadership.
    pub(crate) fn of_all(leadership: u64) -> Self {
        Self { left: None, listed: Some(Digests::default()), ..Self::from(0, 0, leadership) }
    }

    /// A listing from a cursor on, of so many records.
    pub(crate) fn from(cursor: u64, records: usize, leadership: u64) -> Self {
        Self {
            has_begun: false,
            leadership,
            cursor,
            left: Some(records),
            unmatched: VecDeque::new(),
            listed: None,
            count: 0,
            keys: Pieces::default(),
            is_read: false,
        }
    }

    /// The leadership in which it began.
    pub(crate) fn leadership(&self) -> u64 {
        self.leadership
    }

    /// True if it has read records.
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Bytes of the answer so far.
    pub(crate) fn bytes(&self) -> usize {
        self.keys.len()
    }

    /// Reads some more records, or matches some that were read; true if the listing is complete.
    ///
    /// # Errors
    /// As [`Engine::iterate`](coreplane_engine::Engine::iterate).
    pub(crate) fn step(&mut self, store: &mut Store<'_>, wanted: Wanted<'_>) -> EngineResult<bool> {
        let Self { unmatched, listed, .. } = self;
        self.has_begun = true;
        let (mut comparisons, mut shown, mut bytes) = (0, 0, Vec::new());
        // False if the key is left to a later step, and then so are all behind it.
        let mut look = |key: &[u8]| {
            let before = comparisons;
            comparisons += wanted.comparisons(key);
            if before > 0 && comparisons > COMPARISONS {
                return false;
            }
            if wanted.has(key) && listed.as_mut().is_none_or(|listed| listed.add(key)) {
                shown += 1;
                // Strings are encoded alike in both versions.
                Reply { out: &mut bytes, proto: Proto::Two }.bulk(key);
            }
            true
        };
        let matched = unmatched.iter().take_while(|key| look(key)).count();
        unmatched.drain(..matched);
        let mut read = Ok(());
        if matched == 0 && !self.is_read {
            let most = self.left.map_or(STEP, |left| left.min(STEP));
            let mut met = 0;
            let next = store.iterate(self.cursor, most, &mut |entry: Entry<'_>| {
                met += 1;
                if !look(entry.key) {
                    unmatched.push_back(entry.key.into());
                }
            });
            read = next.map(|next| {
                self.cursor = next;
                if let Some(left) = &mut self.left {
                    // An engine that is not at its end has met as many records as requested, if expired ones are
                    // counted.
                    *left = left.saturating_sub(if next == 0 { met } else { met.max(most) });
                }
                self.is_read = next == 0 || self.left == Some(0);
            });
        }
        // A step that failed is repeated: keys whose digests were added would not be listed again, so they are kept.
        if read.is_ok() || self.listed.is_some() {
            self.count += shown;
            self.keys.append(|out| out.extend_from_slice(&bytes));
        }
        if read.is_err() {
            self.unmatched.clear();
        }
        read?;
        Ok(self.is_read && self.unmatched.is_empty() && self.end(store))
    }

    /// Frees some of the digests; true if all are freed, and then the answer of this turn waits for all that the
    /// listing has seen. (To free the digests of a million keys takes milliseconds.)
    fn end(&mut self, store: &mut Store<'_>) -> bool {
        let is_over = self.listed.as_mut().is_none_or(Digests::give_back);
        if is_over && !mutant!("server.keys.rest") {
            store.rest_on_all();
        }
        is_over
    }

    /// Where a later listing goes on; 0 at the end.
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// The keys as an answer, behind `head`.
    pub(crate) fn into_answer(self, mut head: Vec<u8>) -> Pieces {
        Reply { out: &mut head, proto: Proto::Two }.array(self.count);
        let mut keys = self.keys;
        keys.put_before(head);
        keys
    }
}

/// Digests of keys.
#[derive(Debug)]
struct Digests {
    hashers: (RandomState, RandomState),
    sets: Vec<HashSet<u128>>,
}

impl Default for Digests {
    fn default() -> Self {
        let sets = (0..Self::SETS).map(|_| HashSet::default()).collect();
        Self { hashers: Default::default(), sets }
    }
}

impl Digests {
    /// With a hundred million keys one set is moved within a millisecond.
    const SETS: usize = 1 << 10;

    /// Frees some of the memory, after which no key can be added; true if all is freed.
    fn give_back(&mut self) -> bool {
        const DIGESTS: usize = 4 << 10;
        let mut given_back = 0;
        while given_back < DIGESTS
            && let Some(set) = self.sets.pop()
        {
            given_back += set.len();
        }
        self.sets.is_empty()
    }

    /// False if `key` was added before.
    fn add(&mut self, key: &[u8]) -> bool {
        let (low, high) = (self.hashers.0.hash_one(key), self.hashers.1.hash_one(key));
        let set = low as usize % Self::SETS;
        let digest = u128::from(high) << u64::BITS | u128::from(low);
        self.sets.get_mut(set).is_none_or(|set| set.insert(digest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::WatchedAbsences;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::{Completion, Engine, Horizon, WriteOptions};

    #[test]
    fn a_key_is_added_once() {
        let mut digests = Digests::default();
        let key = |number: u32| number.to_le_bytes();
        assert!((0..10_000).all(|number| digests.add(&key(number))));
        assert!((0..10_000).all(|number| !digests.add(&key(number))));
        assert!(digests.add(b"") && !digests.add(b""));
        let steps = (1..).take_while(|_| !digests.give_back()).count();
        assert!(digests.sets.is_empty() && (1..3).contains(&steps), "{steps}");
    }

    /// The answer is sent in the last step's turn: however many turns the end takes, that turn waits for all.
    #[test]
    fn the_last_step_waits_for_what_all_have_seen() {
        let engine = ModelEngine::with_manual_commit();
        let options = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
        for number in 0..10_000_u32 {
            let outcome = engine.put(&number.to_le_bytes(), b"v", &options).expect("put");
            assert!(outcome.is_written());
        }
        let (watched, mut listing) = (WatchedAbsences::default(), Listing::of_all(0));
        let mut turns = 0;
        loop {
            let mut horizon = Horizon::new();
            let mut store = Store::new(&engine, &watched, &mut horizon, true);
            turns += 1;
            if listing
                .step(&mut store, Wanted::new(None, true).expect("a pattern"))
                .expect("a step")
            {
                assert!(store.rests, "the answer of {turns} turns waits for nothing");
                break;
            }
        }
        assert!(listing.is_read && listing.count == 10_000 && turns > 3, "{turns}");
    }

    #[test]
    fn what_is_wanted_is_of_the_kind_and_matches() {
        let has = |pattern: Option<&[u8]>, is_kind| {
            Wanted::new(pattern, is_kind).expect("a pattern").has(b"any")
        };
        assert!(has(Some(b"*"), true) && has(None, true) && has(Some(b"a*"), true));
        assert!(!has(Some(b"b*"), true) && !has(None, false));
    }

    /// Whether it is `KEYS`, which remembers what it has listed, or `SCAN`; and however many keys the engine shows at
    /// once.
    #[test]
    fn a_pattern_that_takes_long_is_matched_with_few_keys_in_a_step() {
        let engine = ModelEngine::new().with_places(1);
        for number in 0..64_usize {
            let key = [number.to_le_bytes().as_slice(), &[b'a'; 2000]].concat();
            let put = engine.put(&key, b"v", &WriteOptions::default()).expect("put");
            assert!(put.is_written());
        }
        let pattern = [&b"*"[..], &[b'a'; 900], b"*"].concat();
        let wanted = Wanted::new(Some(&pattern), true).expect("a pattern");
        for mut listing in [Listing::of_all(0), Listing::from(0, 1000, 0)] {
            let (watched, mut horizon) = (WatchedAbsences::default(), Horizon::new());
            let mut store = Store::new(&engine, &watched, &mut horizon, true);
            let mut steps = 1;
            while !listing.step(&mut store, wanted).expect("a step") {
                steps += 1;
            }
            assert!(listing.count == 64 && (64..400).contains(&steps), "{steps} steps");
        }
        let long = vec![b'a'; 2000];
        assert!(Wanted::new(Some(&long), true).is_err());
    }
}
