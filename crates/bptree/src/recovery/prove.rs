//! Proofs between leaves, after a crash.
//!
//! Each leaf shows by itself up to where it was durable ([`read`](crate::tree::leaf_page)). Later writes in other
//! leaves prove more:
//!
//! - if a record that follows was appended to a leaf, the superseded mark that made the leaf was durable. If
//!   its predecessor has no mark, the mark is damaged, and the predecessor is dead;
//! - a batch is durable as a whole. If one of its parts was, all were, and a leaf that lacks its part
//!   has lost it.

use crate::leaf::{Head, Life};
use crate::recovery::Recovery;
use crate::tree::leaf_page::{DEAD, Found};
use crate::tree::multi_leaf_commit::CommitLink;
use coreplane_engine::Result;
use coreplane_pmem as pmem;
use std::collections::HashMap;

/// The places of the leaves that were found, by page.
pub(super) struct Places(Vec<u32>);

impl Places {
    pub(super) fn new(found: &[Found], pages: u32) -> Self {
        let mut places = vec![u32::MAX; pages as usize];
        for (found, place) in found.iter().zip(0..) {
            places[found.page as usize] = place;
        }
        Self(places)
    }

    /// The place of a leaf; none if it no longer exists.
    pub(super) fn of(&self, found: &[Found], life: Life) -> Option<usize> {
        let place = *self.0.get(life.page as usize)? as usize;
        found.get(place).filter(|found| found.life() == life).map(|_| place)
    }
}

impl Recovery<'_> {
    /// Finds out what is known to have been durable, and reads leaves again that have lost a part of it.
    ///
    /// # Errors
    /// As [`Tree::read_leaf_page`](crate::tree::Tree::read_leaf_page).
    pub(crate) fn prove(&self, recovery: &pmem::Recovery, found: &mut [Found]) -> Result<()> {
        let places = Places::new(found, self.space.pages());
        loop {
            loop {
                for page in die(found, &places) {
                    self.free(page);
                }
                if !prove_batches(found, &places) {
                    break;
                }
            }
            let lacks =
                |found: &&mut Found| !found.is_dead && found.proven > found.end.max(found.doubt);
            let guard = recovery.pin();
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
            for page in end_superseded(found, &places, self.field_max()) {
                self.free(page);
            }
        }
    }
}

/// Declares leaves dead whose successors have been written to, and so on with the predecessors of those leaves: a
/// leaf is marked superseded only once it counts. Returns the pages of leaves that were not dead before.
fn die(found: &mut [Found], places: &Places) -> Vec<u32> {
    let mut died = Vec::new();
    for mut at in 0..found.len() {
        while found[at].has_proof {
            let before = found[at].head.predecessor.and_then(|before| places.of(found, before));
            let Some(before) = before.filter(|before| found[*before].proven != DEAD) else { break };
            if !found[before].is_dead {
                died.push(found[before].page);
            }
            let it = &mut found[before];
            (it.is_dead, it.has_proof, it.proven) = (true, true, DEAD);
            at = before;
        }
    }
    died
}

/// A leaf that has lost the end of its durable part, and has all its successors, has lost its superseded mark:
/// nothing else is written to a leaf with successors. A leaf without all of them, or with incomplete ones, was
/// being rewritten because of its loss when the power went; or some of them have successors in turn
/// ([`is_outlived`]). Returns the pages of the dead leaves.
fn end_superseded(found: &mut [Found], places: &Places, field_max: usize) -> Vec<u32> {
    let has_lost = |found: &Found| {
        !found.is_dead && found.doubt > found.end && found.end >= found.head.image_len
    };
    if !found.iter().any(has_lost) {
        return Vec::new();
    }
    let is_whole = |found: &&Found| !found.is_to_be_told() && found.end >= found.head.image_len;
    let mut successors: HashMap<Life, Vec<&Head>> = HashMap::new();
    for successor in found.iter().filter(is_whole) {
        if let Some(before) = successor.head.predecessor {
            successors.entry(before).or_default().push(&successor.head);
        }
    }
    let is_dead = |it: &Found| {
        has_lost(it)
            && (successors.get(&it.life()).is_some_and(|successors| cover(&it.head, successors))
                || is_outlived(it, found, places, field_max))
    };
    let dead: Vec<usize> = (0..found.len()).filter(|at| is_dead(&found[*at])).collect();
    for at in &dead {
        let found = &mut found[*at];
        (found.is_dead, found.has_proof, found.proven) = (true, true, DEAD);
    }
    dead.into_iter().map(|at| found[at].page).collect()
}

/// True if there is, or was, a younger leaf for some of the same keys that surely counted: its predecessor no
/// longer exists. Leaves with a long bound are skipped.
fn is_outlived(leaf: &Found, found: &[Found], places: &Places, field_max: usize) -> bool {
    let bounds = |head: &Head| {
        let is_short = |field: &[u8]| field.len() < field_max;
        let are_short = is_short(&head.least) && head.bound.as_deref().is_none_or(is_short);
        are_short.then(|| (head.least.clone(), head.bound.clone()))
    };
    let Some((least, bound)) = bounds(&leaf.head) else { return false };
    let is_below = |least: &[u8], bound: &Option<Box<[u8]>>| {
        bound.as_deref().is_none_or(|bound| least < bound)
    };
    found.iter().filter(|it| it.head.birth > leaf.head.birth).any(|it| {
        it.head.predecessor.is_some_and(|before| places.of(found, before).is_none())
            && bounds(&it.head)
                .is_some_and(|its| is_below(&its.0, &bound) && is_below(&least, &its.1))
    })
}

/// True if successors serve all keys of a leaf, or more: of two leaves that were merged one may be left.
fn cover(leaf: &Head, successors: &[&Head]) -> bool {
    let mut least = &leaf.least;
    // Each begins where the last one ended.
    for _ in successors {
        let Some(successor) = successors.iter().find(|successor| successor.least == *least) else {
            return false;
        };
        let Some(bound) = &successor.bound else { return true };
        if leaf.bound.as_ref().is_some_and(|it| it <= bound) {
            return true;
        }
        least = bound;
    }
    false
}

/// Extends a proof of one part of a batch to all its parts, and with it the proof that their leaves count. True if
/// anything was proven.
fn prove_batches(found: &mut [Found], places: &Places) -> bool {
    let has_others = |found: &Found| found.parts.iter().any(|it| it.link.next != found.life());
    let several: Vec<usize> = (0..found.len()).filter(|at| has_others(&found[*at])).collect();
    let mut named_by: HashMap<usize, Vec<usize>> = HashMap::new();
    for at in &several {
        for part in &found[*at].parts {
            if let Some(next) = places.of(found, part.link.next) {
                named_by.entry(next).or_default().push(*at);
            }
        }
    }
    let (mut to_look_at, mut was_any) = (several, false);
    while let Some(at) = to_look_at.pop() {
        for number in 0..found[at].parts.len() {
            let part = found[at].parts[number];
            let CommitLink { next, next_at, .. } = part.link;
            let other = places.of(found, next);
            let is_proven = found[at].proven > part.at;
            // A leaf that no longer exists was rewritten since.
            let is_next_proven = other.is_none_or(|other| found[other].proven > next_at);
            if is_proven == is_next_proven {
                continue;
            }
            was_any = true;
            let (of, proven) = if is_proven { (other, next_at) } else { (Some(at), part.at) };
            let Some(of) = of else { continue };
            found[of].proven = proven + 8;
            found[of].has_proof |= found[of].proven > found[of].head.image_len;
            // It may prove others, and be proven by others.
            to_look_at.push(of);
            to_look_at.extend(named_by.get(&of).into_iter().flatten());
        }
    }
    was_any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::multi_leaf_commit::Part;

    fn life(page: u32) -> Life {
        Life { page, birth: 100 + u64::from(page) }
    }

    /// A leaf with a complete image of 200 bytes, a predecessor, and a range of keys.
    fn leaf(page: u32, of: Option<u32>, (least, bound): (&[u8], &[u8])) -> Found {
        let head = Head {
            birth: life(page).birth,
            predecessor: of.map(life),
            least: least.into(),
            bound: Some(bound.into()),
            image_len: 200,
            ..Head::default()
        };
        Found { end: 200, ..Found::new(page, head) }
    }

    fn dead(found: &[Found]) -> Vec<u32> {
        found.iter().filter(|it| it.is_dead && it.proven == DEAD).map(|it| it.page).collect()
    }

    #[test]
    fn who_was_written_to_proves_all_dead_that_it_comes_of() {
        let all = (&b"a"[..], &b"z"[..]);
        for proof in 1..=3 {
            let mut found = [leaf(1, None, all), leaf(2, Some(1), all), leaf(3, Some(2), all)];
            found[proof - 1].has_proof = true;
            let places = Places::new(&found, 9);
            let died = die(&mut found, &places);
            assert_eq!(died.len(), proof - 1);
            assert_eq!(dead(&found), Vec::from_iter(1..proof as u32));
            assert_eq!(die(&mut found, &places), [], "they are");
        }
    }

    #[test]
    fn who_has_a_part_of_a_batch_that_was_durable_counts() {
        let [lower, upper] = [(&b"a"[..], &b"m"[..]), (&b"m"[..], &b"z"[..])];
        let part = |next, next_at, at| {
            let link = CommitLink { next: life(next), next_at, is_superseded: false };
            Part { start: at, at, link }
        };
        for is_durable in [false, true] {
            let mut found = [leaf(1, None, lower), leaf(2, Some(1), lower), leaf(3, None, upper)];
            found[1].parts.push(part(3, 320, 240));
            found[2].parts.push(part(2, 240, 320));
            found[2].proven = if is_durable { 400 } else { 320 };
            let places = Places::new(&found, 9);
            assert_eq!(prove_batches(&mut found, &places), is_durable);
            assert_eq!(found[1].has_proof, is_durable);
            assert_eq!(die(&mut found, &places).len(), usize::from(is_durable));
        }
    }

    #[test]
    fn who_has_lost_its_end_is_dead_if_all_that_it_served_has_successors() {
        let all = (&b"b"[..], &b"y"[..]);
        let [lower, upper] = [(&b"b"[..], &b"m"[..]), (&b"m"[..], &b"y"[..])];
        let is_dead = |successors: Vec<Found>| {
            let old = Found { doubt: 300, ..leaf(1, None, all) };
            let mut found = Vec::from_iter(std::iter::once(old).chain(successors));
            let places = Places::new(&found, 9);
            assert_eq!(end_superseded(&mut found, &places, 400).len(), dead(&found).len());
            !dead(&found).is_empty()
        };
        let (left, right) = (|| leaf(2, Some(1), lower), || leaf(3, Some(1), upper));
        assert!(!is_dead(vec![]) && !is_dead(vec![left()]) && !is_dead(vec![right()]));
        assert!(is_dead(vec![left(), right()]) && is_dead(vec![right(), left()]));
        assert!(is_dead(vec![leaf(2, Some(1), all)]));
        assert!(is_dead(vec![leaf(2, Some(1), (b"b", b"z"))]), "it was merged with the next one");
        assert!(!is_dead(vec![leaf(2, Some(3), all), right()]), "of another");
        assert!(
            !is_dead(vec![left(), Found { end: 160, ..right() }]),
            "an image that ends too soon"
        );
        assert!(!is_dead(vec![left(), Found { doubt: 160, ..right() }]), "one with a hole");
        // The lower one has a successor in turn, and its page holds another leaf.
        let lower_successor = |of, keys| leaf(5, of, keys);
        assert!(is_dead(vec![lower_successor(Some(2), lower), right()]));
        assert!(
            !is_dead(vec![lower_successor(Some(3), lower), right()]),
            "nothing says that it counted"
        );
        assert!(!is_dead(vec![lower_successor(Some(2), (b"y", b"z"))]), "for other keys");
    }
}
