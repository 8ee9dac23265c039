//! Four words that must change together.

use super::*;
use coreplane_pmem::media::sim::{Fault, History, Run};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Two copies, and a word that selects the one that counts.
    Right,
    /// One copy, overwritten in place.
    InPlace,
}

struct Pair(Version);

impl Subject for Pair {
    type Op = u64;
    type Store = Arc<Space>;
    type Contents = u64;

    fn work(&self, run: &Run<'_, u64>) {
        let space = run.space();
        claim(space, Claim::WordsAsStored);
        for value in 1..5 {
            run.acknowledged(value, || {
                let copy = if self.0 == Version::Right { value % 2 } else { 0 };
                for word in 0..4 {
                    store(space, 8 * (copy + 1) + word, value << 8 | value << 40);
                }
                flush(space, 8 * (copy + 1));
                fence(space);
                if self.0 == Version::Right {
                    persist(space, 0, copy | copy << 63);
                }
            });
        }
    }

    fn recover(&self, space: &Arc<Space>) -> Result<Arc<Space>, String> {
        claim(space, Claim::WordsAsStored);
        let copy = load(space, 0) & 1;
        if load(space, 0) != copy | copy << 63 {
            return Err("the switch is torn".to_owned());
        }
        // The other copy is made the same, so that there is a recovery to cut.
        for word in 0..4 {
            let value = load(space, 8 * (copy + 1) + word);
            persist(space, 8 * (2 - copy) + word, value);
        }
        Ok(space.clone())
    }

    fn contents(&self, space: &Arc<Space>) -> Result<u64, String> {
        let first = 8 * (1 + (load(space, 0) & 1));
        let words: Vec<u64> = (0..4).map(|word| load(space, first + word)).collect();
        if words.iter().all(|word| *word == words[0] && *word << 32 >> 40 == *word >> 40) {
            return Ok(words[0] >> 40);
        }
        Err(format!("torn: {words:x?}"))
    }

    fn check(&self, contents: &u64, history: &History<'_, u64>) -> Result<(), String> {
        let least = history.acknowledged().last().copied().unwrap_or(0);
        let most = history.in_flight().last().copied().unwrap_or(least);
        if *contents == least || *contents == most {
            return Ok(());
        }
        Err(format!("{contents} is neither {least} nor {most}"))
    }
}

#[test]
fn the_right_one_is_never_torn() {
    for seed in 0..4 {
        assert_right(&options(seed), &Pair(Version::Right));
    }
}

#[test]
fn a_torn_update_of_several_words_is_caught() {
    assert_caught(&options(1), &Pair(Version::InPlace), "torn");
}

#[test]
fn a_word_that_is_stored_in_halves_is_caught() {
    let torn = SimOptions { fault: Some(Fault::TearStoresOf(0..8)), ..options(1) };
    assert_caught(&torn, &Pair(Version::Right), "torn");
}
