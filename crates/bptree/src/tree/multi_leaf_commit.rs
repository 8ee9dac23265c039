//! The multi-leaf commit: changes in several leaves count all together or not at all, with one fence.
//!
//! ```text
//!     leaf A   … │ record │ record │ link ─┐
//!     leaf B   … │ record │ link ─┐ ◀──────┘
//!     leaf C   … │ link: superseded ─┐ ◀─┘
//!                                    └──────▶ A's link
//! ```
//!
//! A batch appends its records to each leaf that it changes, marked as *batched*, and behind them a *commit link*,
//! which names the next leaf's link; the last names the first. All of them are made durable by one fence, while all
//! the leaves are locked. A leaf with too little room is rewritten with the changes in it, before that fence, and
//! its commit link is a superseded mark.
//!
//! **In recovery** the batch counts if all of its links are there. Following them from any one leads
//!
//! - back to the first: the batch is whole;
//! - to a page that is no longer the named leaf, which was rewritten since. That can only
//!   have happened after the fence, so that the batch is whole;
//! - to the named leaf, which has no commit link there, or does not count itself: the power
//!   went before the fence, and the batch was never acknowledged. Its remains are struck out durably
//!   before anything else is written, or the next recovery would find the leaves that lack it rewritten.
//!
//! A batch that is known to have been durable ([`prove`](crate::recovery::prove)) is whole, however little is left
//! of it.
//!
//! Where a fence is an instruction the leaves stay locked until it is done, and only the last commit link of a leaf
//! can fail to count. Where it is a sync they do not stay locked, and writes behind a part that does not count are
//! struck out with it: they were never acknowledged either, since the sync that covers them covers the part too.

use crate::leaf::Life;
use crate::tree::Tree;
use crate::tree::image::{Item, Source};
use crate::tree::leaf_page::DEAD;
use coreplane_engine::Result;
use coreplane_pmem::{Pen, WriteMode, mutant};
use coreplane_record::{HEADER, Header, Kind, View};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};

/// Bytes of the record of a commit link.
pub(crate) const LEN: usize = (HEADER + VALUE).next_multiple_of(8);
const VALUE: usize = 20;
const _: () =
    assert!(LEN <= crate::tree::SUPERSEDED_MARK_LEN, "a leaf has room for its superseded mark");

/// The link behind the changes of a batch in one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CommitLink {
    /// The next leaf of the commit.
    pub(crate) next: Life,
    /// The place of that leaf's commit link in its page.
    pub(crate) next_at: u32,
    /// There is no record before it: the leaf is dead, and its successors have the changes of the batch.
    pub(crate) is_superseded: bool,
}

impl CommitLink {
    // media-format: begin pool
    pub(crate) fn to_value(self) -> [u8; VALUE] {
        let mut value = [0; VALUE];
        value[..8].copy_from_slice(&self.next.birth.to_le_bytes());
        value[8..12].copy_from_slice(&self.next.page.to_le_bytes());
        value[12..16].copy_from_slice(&self.next_at.to_le_bytes());
        value[16..].copy_from_slice(&u32::from(self.is_superseded).to_le_bytes());
        value
    }
    // media-format: end

    /// The link in a sound record that is a batched commit; none if it is anything else.
    pub(crate) fn of(view: &View<'_>) -> Option<Self> {
        Self::from_value(view.value())
    }

    pub(crate) fn from_value(value: &[u8]) -> Option<Self> {
        let (birth, rest) = value.split_first_chunk()?;
        let (page, rest) = rest.split_first_chunk()?;
        let (next_at, last) = rest.split_first_chunk()?;
        Some(Self {
            next: Life { page: u32::from_le_bytes(*page), birth: u64::from_le_bytes(*birth) },
            next_at: u32::from_le_bytes(*next_at),
            is_superseded: u32::from_le_bytes(last.try_into().ok()?) != 0,
        })
    }
}

/// The part of a batch in one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// The place of its first record in the page.
    pub(crate) start: u32,
    /// The place of the commit link in the page.
    pub(crate) at: u32,
    pub(crate) link: CommitLink,
}

/// The parts of batches found in all leaves.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// By page: one more than the number of the leaf; 0: the page holds none.
    places: Vec<u32>,
    leaves: Vec<Leaf>,
    /// Page and place of commit links whose commits are known to be whole.
    whole: HashSet<(u32, u32)>,
    /// Those whose commits are not. Without it, each leaf of a large batch would follow the remaining links again.
    not_whole: HashSet<(u32, u32)>,
}

#[derive(Debug)]
struct Leaf {
    life: Life,
    /// The leaf that had its records before.
    predecessor: Option<Life>,
    /// In the order of their places.
    parts: Vec<Part>,
    /// As in [`Found`](crate::tree::leaf_page::Found).
    proven: u32,
}

impl Commits {
    /// Adds a leaf, with or without parts. Each page has at most one.
    pub(crate) fn add(
        &mut self,
        life: Life,
        predecessor: Option<Life>,
        (parts, proven): (&[Part], u32),
    ) {
        let page = life.page as usize;
        if self.places.len() <= page {
            self.places.resize(page + 1, 0);
        }
        self.leaves.push(Leaf { life, predecessor, parts: parts.to_vec(), proven });
        self.places[page] = self.leaves.len() as u32;
    }

    /// The leaf of this page and birth.
    fn leaf(&self, life: Life) -> Option<&Leaf> {
        let place = *self.places.get(life.page as usize)?;
        let leaf = self.leaves.get(place.checked_sub(1)? as usize)?;
        (leaf.life == life).then_some(leaf)
    }

    /// Finds the parts that do not count: pages, and the first such part of each.
    pub(crate) fn broken(mut self) -> HashMap<u32, Part> {
        let mut broken = HashMap::new();
        loop {
            let mut is_any = false;
            // A commit that was whole may have had a part behind one that was struck out.
            self.whole.clear();
            for number in 0..self.leaves.len() {
                if let Some((at, part)) = self.first_broken(number) {
                    let leaf = &mut self.leaves[number];
                    broken.insert(leaf.life.page, part);
                    leaf.parts.truncate(at);
                    is_any = true;
                }
            }
            if !is_any {
                return broken;
            }
        }
    }

    fn first_broken(&mut self, number: usize) -> Option<(usize, Part)> {
        let leaf = &self.leaves[number];
        // Mostly there is none. A leaf known to be dead is whole, and its superseded mark states that it is dead.
        if leaf.parts.is_empty() || leaf.proven == DEAD {
            return None;
        }
        let (life, len) = (leaf.life, leaf.parts.len());
        if !self.counts(leaf) && !mutant!("bptree.commit.void_leaf") {
            return leaf.parts.first().map(|part| (0, *part));
        }
        (0..len).find_map(|at| {
            let part = self.leaves[number].parts[at];
            (!self.is_whole(life, &part)).then_some((at, part))
        })
    }

    /// True if the predecessor of the leaf no longer exists, or is marked superseded.
    fn counts(&self, leaf: &Leaf) -> bool {
        let before = leaf.predecessor.and_then(|before| self.leaf(before));
        before.is_none_or(|it| {
            it.proven == DEAD || it.parts.last().is_some_and(|part| part.link.is_superseded)
        })
    }

    /// True if the batch of which a leaf has `part` is whole.
    fn is_whole(&mut self, life: Life, part: &Part) -> bool {
        let is_proven = |leaf: &Leaf, at: u32| at < leaf.proven;
        if self.leaf(life).is_some_and(|leaf| is_proven(leaf, part.at)) {
            return true;
        }
        let mut link = part.link;
        let mut walked = Vec::new();
        let mut place = (life.page, part.at);
        let is_whole = loop {
            let CommitLink { next, next_at, .. } = link;
            if mutant!("bptree.commit.any_part") {
                break true;
            }
            if (next, next_at) == (life, part.at) || self.whole.contains(&(next.page, next_at)) {
                break true;
            }
            let Some(leaf) = self.leaf(next).filter(|leaf| !is_proven(leaf, next_at)) else {
                break true;
            };
            if self.not_whole.contains(&(next.page, next_at)) {
                break false;
            }
            let Leaf { parts, .. } = leaf;
            match parts.binary_search_by_key(&next_at, |part| part.at) {
                Ok(at) => link = parts[at].link,
                Err(_) => break false,
            }
            walked.push(place);
            place = (next.page, next_at);
        };
        let known = if is_whole { &mut self.whole } else { &mut self.not_whole };
        // A link that names itself is checked just as fast again.
        if !walked.is_empty() || !is_whole {
            known.extend(walked);
            known.insert(place);
        }
        is_whole
    }
}

/// The records to append to a locked leaf.
pub(crate) struct NewPart<'a> {
    pub(crate) life: Life,
    pub(crate) items: SmallVec<[Item<'a>; 1]>,
    /// The part ends the leaf.
    pub(crate) is_superseded: bool,
}

/// The place of a record in the page, and its length.
pub(crate) type Place = (u32, u32);

/// The records of one leaf: mostly one.
pub(crate) type Places = SmallVec<[Place; 1]>;

impl Tree {
    /// Appends to each leaf its part, with a commit link: all of them count, or none. Durable when it returns if a
    /// fence is an instruction; otherwise [`Volume::cover`](crate::volume::Volume::cover) tells when. Returns the
    /// places of the records of each part.
    ///
    /// # Errors
    /// If the medium fails: no part counts then.
    pub(crate) fn append_commit(&self, parts: &[NewPart<'_>], version: u64) -> Result<Vec<Places>> {
        let mut names = Vec::with_capacity(parts.len());
        for part in parts {
            let page = part.life.page;
            let (published, _) =
                self.space.watermarks(page).ok_or_else(|| self.not_a_leaf(page))?;
            let len: usize = part.items.iter().map(Item::len).sum();
            names.push((part.life, published + len as u32));
        }
        let mut places = Vec::with_capacity(parts.len());
        let mut held = self.pen();
        let mut pen = held.take().unwrap_or_else(|| Pen::new(&self.space));
        for (part, (next, next_at)) in parts.iter().zip(names.iter().cycle().skip(1)) {
            let (next, next_at, is_superseded) = (*next, *next_at, part.is_superseded);
            let link = CommitLink { next, next_at, is_superseded };
            let (after, written) = self.append_part(pen, part, link, version)?;
            pen = after;
            places.push(written);
        }
        *held = Some(pen);
        if self.early.is_none() && !mutant!("bptree.commit.fence") {
            self.fence()?;
        }
        Ok(places)
    }

    fn append_part(
        &self,
        pen: Pen,
        part: &NewPart<'_>,
        link: CommitLink,
        version: u64,
    ) -> Result<(Pen, Places)> {
        let Life { page, birth } = part.life;
        let mut writer = pen.take_up(page).map_err(|_| self.not_a_leaf(page))?;
        let past_caches = self.space.append_mode() == WriteMode::NonTemporal;
        let (start, from) = (self.space.start_of(page), writer.next_offset());
        let is_proven = self.is_proven(page);
        let mut append = |item: &Item<'_>| {
            let offset = writer.next_offset();
            let follows = is_proven && offset == from;
            let header = Header { batched: true, follows, ..item.header };
            let encoded = self.encode(birth, offset, &header, item.key, item.value);
            let parts = [encoded.bytes(), item.key, item.value];
            let appended =
                if past_caches { writer.append_nt(&parts) } else { writer.append_in_words(&parts) };
            let place = ((offset - start) as u32, item.len() as u32);
            appended.map(|_| place).ok_or_else(|| self.not_a_leaf(page))
        };
        let places = part.items.iter().map(&mut append).collect::<Result<_>>()?;
        let header = Header { kind: Kind::Commit, ..Header::put(version) };
        append(&Item { header, key: &[], value: &link.to_value(), source: Source::Caller })?;
        if !past_caches && !mutant!("bptree.commit.flush") {
            writer.flush_from(from);
        }
        Ok((writer.finish_early(), places))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(page: u32) -> Life {
        Life { page, birth: 100 + u64::from(page) }
    }

    /// A commit in these pages, each part at 1000 and the number of its page.
    fn commit(pages: &[u32]) -> Vec<(Life, Part)> {
        let at = |page: u32| 1000 + page;
        let next = pages.iter().cycle().skip(1);
        let part = |(page, next): (&u32, &u32)| {
            let link = CommitLink { next: life(*next), next_at: at(*next), is_superseded: false };
            (life(*page), Part { start: 0, at: at(*page), link })
        };
        pages.iter().zip(next).map(part).collect()
    }

    #[test]
    fn a_commit_is_whole_if_nobody_in_it_lacks_a_part() {
        let commit = commit(&[3, 1, 2]);
        let count = |missing: Option<u32>, reborn: Option<u32>| {
            let mut commits = Commits::default();
            for (life, part) in &commit {
                let parts = if Some(life.page) == missing { vec![] } else { vec![*part] };
                let birth = life.birth + u64::from(Some(life.page) == reborn);
                commits.add(Life { birth, ..*life }, None, (&parts, 0));
            }
            let broken = commits.broken().len();
            3 - usize::from(missing.is_some()) - broken
        };
        assert_eq!(count(None, None), 3);
        for page in 1..=3 {
            assert_eq!(count(Some(page), None), 0, "{page} lacks its part");
        }
        assert_eq!(count(None, Some(2)), 3, "one was written anew since");
        let mut only = Commits::default();
        let (life, part) = self::commit(&[7])[0];
        only.add(life, None, (&[part], 0));
        assert!(only.broken().is_empty(), "a commit in one leaf names itself");
    }

    /// The remains of a power cut in the middle of a large batch, which must be found in linear and not in
    /// quadratic time.
    #[test]
    fn a_long_commit_that_lacks_a_part_is_broken_everywhere() {
        let pages: Vec<u32> = (1..=100_000).collect();
        for missing in [1, 40_000, 100_000] {
            let mut commits = Commits::default();
            for (life, part) in commit(&pages) {
                let parts = if life.page == missing { vec![] } else { vec![part] };
                commits.add(life, None, (&parts, 0));
            }
            assert_eq!(commits.broken().len(), pages.len() - 1);
        }
    }

    #[test]
    fn a_commit_of_which_one_part_was_durable_is_whole() {
        for proven in 1..=3 {
            let mut commits = Commits::default();
            for (life, part) in commit(&[1, 2, 3]) {
                // The commit link of the second is damaged.
                let parts = if life.page == 2 { vec![] } else { vec![part] };
                let proven = if life.page == proven { part.at + 8 } else { 0 };
                commits.add(life, None, (&parts, proven));
            }
            // The links of the first do not lead to the third; `prove` is there for that.
            assert_eq!(commits.broken().contains_key(&1), proven == 3, "{proven} is proven");
        }
    }

    #[test]
    fn what_is_behind_a_broken_part_is_broken_too() {
        let mut commits = Commits::default();
        // A batch in 1 and 2, of which 2 lacks its part; behind it in 1 a part of a batch in 1 and 3.
        let (first, _) = (self::commit(&[1, 2])[0], ());
        let behind: Vec<_> = self::commit(&[1, 3])
            .into_iter()
            .map(|(life, part)| {
                let shift = |at: u32| at + 1000;
                let link = CommitLink { next_at: shift(part.link.next_at), ..part.link };
                (life, Part { at: shift(part.at), start: 1500, link })
            })
            .collect();
        commits.add(life(1), None, (&[first.1, behind[0].1], 0));
        commits.add(life(2), None, (&[], 0));
        commits.add(life(3), None, (&[behind[1].1], 0));
        let broken = commits.broken();
        assert_eq!(broken.get(&1), Some(&first.1));
        assert_eq!(broken.get(&3), Some(&behind[1].1));
    }

    #[test]
    fn a_part_in_a_leaf_that_does_not_count_is_broken() {
        let parts = commit(&[1, 2]);
        let add_all = |predecessor_is_superseded: bool| {
            let mut commits = Commits::default();
            let (_, mut mark) = commit(&[9])[0];
            mark.link.is_superseded = true;
            let of_nine: &[Part] = if predecessor_is_superseded { &[mark] } else { &[] };
            commits.add(life(9), None, (of_nine, 0));
            commits.add(life(1), Some(life(9)), (&[parts[0].1], 0));
            commits.add(life(2), None, (&[parts[1].1], 0));
            commits.broken().len()
        };
        assert_eq!(add_all(true), 0);
        assert_eq!(add_all(false), 2, "neither it nor the others");
    }

    #[test]
    fn what_is_known_to_be_dead_keeps_its_superseded_mark() {
        let broken = |proven: u32| {
            let mut commits = Commits::default();
            let (_, mut mark) = commit(&[2])[0];
            mark.link.is_superseded = true;
            // The superseded mark of the first is lost.
            commits.add(life(1), None, (&[], 0));
            commits.add(life(2), Some(life(1)), (&[mark], proven));
            commits.add(life(3), Some(life(2)), (&[commit(&[3])[0].1], 0));
            commits.broken().len()
        };
        assert_eq!(broken(DEAD), 0);
        assert_eq!(broken(0), 2, "nobody knows");
    }

    #[test]
    fn a_commit_link_reads_as_it_was_written() {
        let link = CommitLink { next: life(77), next_at: 4088, is_superseded: true };
        let value = link.to_value();
        assert_eq!(value.len(), VALUE);
        assert_eq!(u64::from_le_bytes(value[..8].try_into().unwrap()), 177);
        assert_eq!((value[8], value[16]), (77, 1));
    }
}
