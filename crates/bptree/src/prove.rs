//! What leaves prove of each other, after a crash.
//!
//! Each leaf says of itself up to where it was durable ([`read`](crate::read)). Of others it is known by
//! what came after them:
//!
//! - a leaf to which something was appended that follows was made by a farewell that was durable. If
//!   the one that it was made of says none, that is damaged, and the leaf is dead;
//! - a batch is durable as a whole. If one of its parts was, all were, and a leaf that lacks its part
//!   has lost it.

use crate::leaf::Life;
use crate::read::Found;
use crate::ring::Closing;
use crate::store::Store;
use coreplane_engine::Result;
use coreplane_pmem::epoch;
use std::collections::HashSet;

/// The proof of a leaf that is known to be dead: whatever was in it was durable.
pub(crate) const DEAD: u32 = u32::MAX;

/// Which of the leaves that were found is where.
struct Places(Vec<u32>);

impl Places {
    fn new(found: &[Found], pages: u32) -> Self {
        let mut places = vec![u32::MAX; pages as usize];
        for (found, place) in found.iter().zip(0..) {
            places[found.page as usize] = place;
        }
        Self(places)
    }

    fn of(&self, found: &[Found], life: Life) -> Option<usize> {
        let place = *self.0.get(life.page as usize)? as usize;
        found.get(place).filter(|found| found.life() == life).map(|_| place)
    }
}

impl Store {
    /// Finds out what is known to have been durable, and reads those leaves again that have lost
    /// some of it.
    ///
    /// # Errors
    /// As [`Store::read_leaf_page`].
    pub(crate) fn prove(&self, found: &mut [Found]) -> Result<()> {
        let places = Places::new(found, self.space.pages());
        loop {
            for page in die(found, &places) {
                self.bury(page);
            }
            prove_batches(found, &places);
            let lacks =
                |found: &&mut Found| !found.is_dead && found.proven > found.end.max(found.doubt);
            let guard = epoch::pin();
            let mut is_any = false;
            for found in found.iter_mut().filter(lacks) {
                let (page, head, proof) = (found.page, found.head.clone(), found.has_proof);
                let latest;
                (*found, latest) =
                    self.read_leaf_page(&guard, page, head, (u32::MAX, found.proven))?;
                found.has_proof |= proof;
                self.begin_found(found, &latest);
                is_any = true;
            }
            drop(guard);
            if !is_any {
                return Ok(());
            }
            for page in bid_farewell(found) {
                self.bury(page);
            }
        }
    }
}

/// Lets those be dead whose heirs have been written to: the pages of those that were not.
fn die(found: &mut [Found], places: &Places) -> Vec<u32> {
    let mut died = Vec::new();
    for at in 0..found.len() {
        let heir = &found[at];
        let before = heir.head.predecessor.filter(|_| heir.has_proof);
        let Some(before) = before.and_then(|before| places.of(found, before)) else { continue };
        let before = &mut found[before];
        if !before.is_dead {
            died.push(before.page);
        }
        (before.is_dead, before.proven) = (true, DEAD);
    }
    died
}

/// What has lost the end of what was durable there, and has heirs, has lost its farewell: nothing else
/// is written to a leaf that has some. The pages of those.
fn bid_farewell(found: &mut [Found]) -> Vec<u32> {
    let has_lost = |found: &Found| {
        !found.is_dead && found.doubt > found.end && found.end >= found.head.image_len
    };
    if !found.iter().any(has_lost) {
        return Vec::new();
    }
    let heirs: HashSet<Life> = found.iter().filter_map(|found| found.head.predecessor).collect();
    let mut died = Vec::new();
    for found in found.iter_mut().filter(|found| has_lost(found) && heirs.contains(&found.life())) {
        (found.is_dead, found.proven) = (true, DEAD);
        died.push(found.page);
    }
    died
}

/// What is proven of one part of a batch is proven of all.
fn prove_batches(found: &mut [Found], places: &Places) {
    let has_others = |found: &Found| found.parts.iter().any(|it| it.closing.next != found.life());
    let several: Vec<usize> = (0..found.len()).filter(|at| has_others(&found[*at])).collect();
    loop {
        let mut is_any = false;
        for at in &several {
            for number in 0..found[*at].parts.len() {
                let part = found[*at].parts[number];
                let Closing { next, next_at, .. } = part.closing;
                let other = places.of(found, next);
                let is_proven = found[*at].proven > part.at;
                // One that is there no more was written anew since.
                let is_next_proven = other.is_none_or(|other| found[other].proven > next_at);
                if is_proven != is_next_proven {
                    let (of, proven) =
                        if is_proven { (other, next_at) } else { (Some(*at), part.at) };
                    of.into_iter().for_each(|of| found[of].proven = proven + 8);
                    is_any = true;
                }
            }
        }
        if !is_any {
            return;
        }
    }
}
