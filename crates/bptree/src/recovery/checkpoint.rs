//! The checkpoint: the data that an open needs, so that it reads no leaf.
//!
//! ```text
//!   close   every leaf shut ─▶ the list of leaves in pages of its own ─▶ root: clean, and its place
//!   open    the list ─▶ inner nodes, free pages, counts      root: not clean, no checkpoint
//!   then    each leaf is read at its first use
//! ```
//!
//! It is taken only at a close, when no write is possible any more: every leaf is *shut* under its lock, until all
//! leaves of the tree are. The root names it only while it is clean, and an open makes it unclean, durably, before
//! anything is written. So it is never older than the leaves, and there is nothing to replay.
//!
//! Each of its pages holds a checksum and the birth that the root names. If they do not match, or the content is
//! impossible, the leaves are read as after a crash: they are authoritative.
//!
//! It also states where the records of each leaf end, which the leaf itself does not: a leaf that ends before that
//! is damaged, and reported as such.

use crate::inner::Bound;
use crate::leaf::Life;
use crate::recovery::Recovery;
use crate::tree::Tree;
use crate::volume::Volume;
use crate::volume::counters::Count;
use crate::volume::overflow::Row;
use coreplane_engine::{Error, Result};
use coreplane_pmem::{self as pmem, epoch};
use std::sync::atomic::Ordering;

// media-format: begin pool
const VERSION: u64 = 1;
const WORDS: usize = 7;
const LEAF: usize = 12;
// media-format: end

/// A leaf and the end of its records.
#[derive(Debug, PartialEq, Eq)]
struct Leaf {
    page: u32,
    end: u32,
    least: Box<[u8]>,
}

/// The content of a checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sheet {
    records: u64,
    live_bytes: u64,
    forgotten_tombstones: u64,
    /// In the order of keys.
    leaves: Vec<Leaf>,
    /// The pages of large values, and of the rests of long keys.
    overflow: Vec<u32>,
    /// There are rests of long keys.
    has_long: bool,
}

impl Sheet {
    /// The checkpoint of a tree whose leaves are shut.
    ///
    /// # Errors
    /// If one of them is no leaf.
    pub(crate) fn of(tree: &Tree, leaves: Vec<Bound>) -> Result<Self> {
        // Pages that wait for a sync are free by now.
        tree.pages.free_len();
        // Read once: the pool may grow meanwhile, and the new pages are free.
        let pages = tree.space.pages();
        let mut is_leaf = vec![false; pages as usize];
        let mut sheet = Self {
            records: tree.len(),
            live_bytes: tree.counters.get(Count::LiveBytes).max(0) as u64,
            forgotten_tombstones: tree.forgotten_tombstones.load(Ordering::Acquire),
            leaves: Vec::with_capacity(leaves.len()),
            overflow: Vec::new(),
            has_long: tree.pages.keeps_for_bounds(),
        };
        for (least, page) in leaves {
            let (end, _) = tree.space.watermarks(page).ok_or_else(|| tree.not_a_leaf(page))?;
            is_leaf[page as usize] = true;
            sheet.leaves.push(Leaf { page, end, least });
        }
        let guard = epoch::pin();
        let others = (0..pages).filter(|page| !is_leaf[*page as usize]);
        sheet.overflow = others.filter(|page| tree.is_overflow(&guard, *page)).collect();
        Ok(sheet)
    }

    /// Writes it to pages of its own; returns the first, for the root to name. It is durable after a fence, and the
    /// first of the four fences of a root comes before any of its words. None if there are no pages for it.
    ///
    /// # Errors
    /// If the medium fails.
    pub(crate) fn write(&self, volume: &Volume) -> Result<Option<Life>> {
        match volume.write_row(Row::Checkpoint, &self.to_bytes(), 0) {
            Ok(written) => {
                let first = written.first();
                written.own();
                Ok(Some(first))
            }
            Err(Error::NoSpace { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    // media-format: begin pool
    fn to_bytes(&self) -> Vec<u8> {
        let keys: usize = self.leaves.iter().map(|leaf| leaf.least.len()).sum();
        let len = 8 * WORDS + LEAF * self.leaves.len() + keys + 4 * self.overflow.len();
        let mut bytes = Vec::with_capacity(len);
        let Self { records, live_bytes, forgotten_tombstones, .. } = self;
        let counts =
            [self.leaves.len() as u64, self.overflow.len() as u64, u64::from(self.has_long)];
        for word in [VERSION, *records, *live_bytes, *forgotten_tombstones].iter().chain(&counts) {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        for leaf in &self.leaves {
            for word in [leaf.page, leaf.end, leaf.least.len() as u32] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes.extend_from_slice(&leaf.least);
        }
        self.overflow.iter().for_each(|page| bytes.extend_from_slice(&page.to_le_bytes()));
        bytes
    }
    // media-format: end

    /// None if the bytes are not from [`Sheet::to_bytes`].
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let mut words = [0; WORDS];
        for word in &mut words {
            *word = u64::from_le_bytes(*take(&mut rest)?);
        }
        let [version, records, live_bytes, forgotten_tombstones, leaf_count, overflow_count, long] =
            words;
        // Each entry takes some bytes, so that a count that is too great allocates no memory.
        let least_len = leaf_count.checked_mul(LEAF as u64)?;
        if version != VERSION
            || long > 1
            || least_len.checked_add(overflow_count.checked_mul(4)?)? > rest.len() as u64
        {
            return None;
        }
        let mut leaves = Vec::with_capacity(leaf_count as usize);
        for _ in 0..leaf_count {
            let [page, end, len] = [take(&mut rest)?, take(&mut rest)?, take(&mut rest)?];
            let [page, end, len] = [page, end, len].map(|it: &[u8; 4]| u32::from_le_bytes(*it));
            let (least, after) = rest.split_at_checked(len as usize)?;
            leaves.push(Leaf { page, end, least: least.into() });
            rest = after;
        }
        let (overflow, after) = rest.as_chunks();
        let overflow: Vec<u32> = overflow.iter().map(|page| u32::from_le_bytes(*page)).collect();
        let is_whole = after.is_empty() && overflow.len() as u64 == overflow_count;
        let has_long = long == 1;
        is_whole.then_some(Self {
            records,
            live_bytes,
            forgotten_tombstones,
            leaves,
            overflow,
            has_long,
        })
    }

    /// Which of `pages` pages of `page_size` bytes are free; none if the content of the sheet is impossible. `own`
    /// are its own pages.
    fn free(&self, pages: u32, page_size: u32, own: &[u32]) -> Option<Vec<bool>> {
        let mut free = vec![true; pages as usize];
        let leaves = self.leaves.iter().map(|leaf| leaf.page);
        for page in leaves.chain(self.overflow.iter().chain(own).copied()).chain([0]) {
            let is_free = free.get_mut(page as usize)?;
            if !std::mem::take(is_free) {
                return None;
            }
        }
        let is_first = self.leaves.first()?.least.is_empty();
        let is_sorted = self.leaves.is_sorted_by(|a, b| a.least < b.least);
        let are_short = self.leaves.iter().all(|leaf| leaf.end <= page_size);
        (is_first && is_sorted && are_short).then_some(free)
    }
}

/// Takes the first `N` bytes off `rest`.
fn take<'b, const N: usize>(rest: &mut &'b [u8]) -> Option<&'b [u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(first)
}

impl Recovery<'_> {
    /// Loads the checkpoint that the root has named, and frees its pages; returns whether there are overflow pages.
    /// None if it is not complete.
    ///
    /// # Errors
    /// If it contradicts the state in memory.
    pub(crate) fn load_checkpoint(
        &self,
        recovery: &pmem::Recovery,
        first: Life,
    ) -> Result<Option<bool>> {
        let (own, bytes) = self.read_checkpoint(recovery, first);
        let Some(sheet) = bytes.and_then(|bytes| Sheet::from_bytes(&bytes)) else {
            return Ok(None);
        };
        let (pages, page_size) = (self.space.pages(), self.space.page_size());
        let Some(free) = sheet.free(pages, page_size, &own) else { return Ok(None) };
        let adopt = |page: u32, published: u32| {
            let is_adopted = self.space.adopt_log(page, published);
            is_adopted.then_some(()).ok_or_else(|| self.not_a_leaf(page))
        };
        sheet.overflow.iter().try_for_each(|page| adopt(*page, page_size))?;
        sheet.leaves.iter().try_for_each(|leaf| adopt(leaf.page, leaf.end))?;
        self.pages.offer((0..pages).filter(|page| free[*page as usize]));
        own.into_iter().try_for_each(|page| self.retire(page))?;
        self.counters.add(Count::Records, sheet.records as i64);
        self.counters.add(Count::LiveBytes, sheet.live_bytes as i64);
        self.forgotten_tombstones.store(sheet.forgotten_tombstones, Ordering::Release);
        self.opened.unloaded.store(sheet.leaves.len() as u64, Ordering::Release);
        let leaves = sheet.leaves.into_iter().map(|leaf| (leaf.least, leaf.page));
        self.inner.build_all(leaves.collect());
        if sheet.has_long {
            self.expect_long_keys();
        }
        Ok(Some(!sheet.overflow.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let leaf = |page, least: &[u8]| Leaf { page, end: 64, least: least.into() };
        Sheet {
            records: 7,
            live_bytes: 900,
            forgotten_tombstones: 3,
            leaves: vec![leaf(4, b""), leaf(2, b"k"), leaf(9, b"key")],
            overflow: vec![1, 6],
            has_long: true,
        }
    }

    #[test]
    fn a_sheet_reads_as_it_was_written_and_no_shorter() {
        let bytes = sheet().to_bytes();
        assert_eq!(Sheet::from_bytes(&bytes), Some(sheet()));
        for len in 0..bytes.len() {
            assert_eq!(Sheet::from_bytes(&bytes[..len]), None, "{len} bytes");
        }
        assert_eq!(Sheet::from_bytes(&[bytes.as_slice(), &[0; 4]].concat()), None);
        for at in [0, 32, 40, 48] {
            let mut other = bytes.clone();
            other[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert_eq!(Sheet::from_bytes(&other), None, "the word at {at}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let free = |sheet: &Sheet| sheet.free(11, 4096, &[7]);
        let is_free = free(&sheet()).unwrap();
        let free_pages: Vec<usize> = (0..11).filter(|page| is_free[*page]).collect();
        assert_eq!(free_pages, [3, 5, 8, 10]);
        let changes: [fn(&mut Sheet); 8] = [
            |it| it.leaves[1].page = 4,
            |it| it.leaves[1].page = 11,
            |it| it.leaves[1].page = 0,
            |it| it.leaves[1].end = 4097,
            |it| it.overflow[0] = 7,
            |it| it.leaves[0].least = b"a".as_slice().into(),
            |it| it.leaves[2].least = b"k".as_slice().into(),
            |it| it.leaves.clear(),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut sheet = sheet();
            change(&mut sheet);
            assert_eq!(free(&sheet), None, "change {at}");
        }
    }
}
