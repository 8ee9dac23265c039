//! The pages of each part, in DRAM: found at a start from the headers of the pages.
//!
//! ```text
//!   log 5:   page 9        page 4        page 17 …          of life 1, up to the end that a start has found
//!                                    └──▶ page 2  page 6 …  of life 2: bytes of life 1 behind that point are void
//! ```

use super::page_header::PageHeader;
use super::storage::Part;
use std::collections::BTreeMap;

/// The bytes of a part in a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) page: u32,
    pub(super) life: u64,
    pub(super) offset: u64,
    /// Bytes at most.
    pub(super) len: u64,
}

impl Extent {
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// The pages of all parts.
#[derive(Debug, Default)]
pub(super) struct Index {
    pub(super) parts: BTreeMap<Part, Vec<Extent>>,
}

impl Index {
    /// Adds a page with `len` bytes beside its header.
    pub(super) fn add(&mut self, page: u32, header: PageHeader, len: u64) {
        let PageHeader { part, life, offset } = header;
        self.parts.entry(part).or_default().push(Extent { page, life, offset, len });
    }

    /// Puts the pages of each part in order, and returns those that hold nothing of it. Fails with the part if one is
    /// missing in the middle of it.
    pub(super) fn settle(&mut self) -> Result<Vec<u32>, Part> {
        let mut free = Vec::new();
        for (part, extents) in &mut self.parts {
            let mut found = std::mem::take(extents);
            found.sort_by_key(|it| (it.life, it.offset));
            let mut life = None;
            for extent in found {
                if life != Some(extent.life) {
                    free.extend(cut(extents, extent.offset));
                    life = Some(extent.life);
                    if extents.last().map_or(0, Extent::end) != extent.offset {
                        return Err(*part);
                    }
                }
                match extents.last().map_or(0, Extent::end) == extent.offset {
                    true => extents.push(extent),
                    // The page before it was never durable, so the bytes of this one were never reported as durable.
                    false => free.push(extent.page),
                }
            }
        }
        Ok(free)
    }

    /// Cuts the part to so many bytes: the pages that it does not need any more.
    pub(super) fn cut(&mut self, part: Part, len: u64) -> Vec<u32> {
        self.parts.get_mut(&part).map(|extents| cut(extents, len)).unwrap_or_default()
    }

    /// Removes a part: its pages.
    pub(super) fn remove(&mut self, part: Part) -> Vec<u32> {
        let extents = self.parts.remove(&part).unwrap_or_default();
        extents.into_iter().map(|it| it.page).collect()
    }
}

fn cut(extents: &mut Vec<Extent>, len: u64) -> Vec<u32> {
    let kept = extents.partition_point(|it| it.offset < len);
    let cut = extents.drain(kept..).map(|it| it.page).collect();
    if let Some(last) = extents.last_mut() {
        last.len = last.len.min(len - last.offset);
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(found: &[(u32, u64, u64)]) -> Result<(Vec<u32>, Vec<u32>), Part> {
        let (mut index, part) = (Index::default(), Part::Log(1));
        for (page, life, offset) in found.iter().copied() {
            index.add(page, PageHeader { part, life, offset }, 100);
        }
        let free = index.settle()?;
        Ok((index.remove(part), free))
    }

    #[test]
    fn what_a_later_life_has_takes_the_place_of_what_was_there() {
        let pages = |pages: &[u32]| pages.to_vec();
        let ok = |part: &[u32], free: &[u32]| Ok((pages(part), pages(free)));
        assert_eq!(settled(&[(2, 1, 100), (1, 1, 0)]), ok(&[1, 2], &[]));
        assert_eq!(settled(&[(3, 1, 200), (1, 1, 0)]), ok(&[1], &[3]));
        let first = [(1, 1, 0), (2, 1, 100), (3, 1, 200)];
        assert_eq!(settled(&[&first[..], &[(4, 2, 104)]].concat()), ok(&[1, 2, 4], &[3]));
        assert_eq!(settled(&[&first[..], &[(4, 2, 100)]].concat()), ok(&[1, 4], &[2, 3]));
        assert_eq!(settled(&[&first[..], &[(4, 2, 0)]].concat()), ok(&[4], &[1, 2, 3]));
        let three = [(4, 2, 104), (5, 2, 204), (6, 3, 304)];
        assert_eq!(settled(&[&first[..], &three].concat()), ok(&[1, 2, 4, 5, 6], &[3]));
        assert_eq!(settled(&[(4, 1, 100)]), Err(Part::Log(1)));
        assert_eq!(settled(&[(1, 1, 0), (2, 2, 104)]), Err(Part::Log(1)));
    }
}
