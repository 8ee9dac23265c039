//! Verification of all stored sectors.

use super::Volume;
use super::name::Name;
use crate::error::{Error, Result};
use coreplane_pmem::{Durable, mutant};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Sectors that were read.
    pub sectors: u64,
    /// Sectors that are damaged: their numbers.
    pub damaged: Vec<u64>,
    /// Sectors whose name in the pool was damaged while readers have it: it was stored anew.
    pub names: Vec<u64>,
    /// Sectors whose names the medium cannot read any more. Readers have the names, and the next open will not.
    pub unreadable_maps: Vec<Range<u64>>,
    /// The number of directory bits that were corrected when the disk was opened.
    pub repaired: u64,
    /// The number of flushed writes whose entries in the journal could not be read when the disk was opened: their
    /// sectors are unknown, and may have earlier bytes. A later open does not find them any more.
    pub unnamed: u64,
}

impl Findings {
    /// True if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        let Self { damaged, names, unreadable_maps, .. } = self;
        damaged.is_empty() && names.is_empty() && unreadable_maps.is_empty() && self.unnamed == 0
    }

    pub(crate) fn add(&mut self, other: Self) {
        let Self { sectors, damaged, names, unreadable_maps, repaired, unnamed } = other;
        self.sectors += sectors;
        self.damaged.extend(damaged);
        self.names.extend(names);
        self.unreadable_maps.extend(unreadable_maps);
        self.repaired += repaired;
        self.unnamed += unnamed;
    }
}

impl Volume {
    /// Fails unless each page is the block of one sector, a map page, or free.
    pub(crate) fn check_blocks(&self) -> std::result::Result<(), String> {
        self.commit().map_err(|error| error.to_string())?;
        let mut blocks = coreplane_pmem::spin::lock(&self.blocks);
        while self.space().retired_len() > 0 {
            blocks.reclaim(&self.pool);
            std::thread::yield_now();
        }
        let extents = self.extents.iter().filter_map(std::sync::OnceLock::get);
        let words = |extent: &super::Extent| -> Vec<u32> {
            let words = extent.names.iter().map(|name| name.load(Ordering::Relaxed));
            words.filter_map(Name::block_of).chain([extent.map_page]).collect()
        };
        let mut all: Vec<u32> =
            extents.flat_map(words).chain(blocks.free.iter().copied()).collect();
        all.sort_unstable();
        // Those of which sectors have names are there already.
        let bad = blocks.bad.iter().filter(|page| all.binary_search(page).is_err());
        all.extend(bad.copied().collect::<Vec<u32>>());
        all.sort_unstable();
        let expected: Vec<u32> = self.block_pages().collect();
        match all == expected {
            true => Ok(()),
            false => {
                let twice = all.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
                let lost = expected.iter().find(|page| all.binary_search(page).is_err());
                Err(format!("page {twice:?} is used twice, page {lost:?} by nobody"))
            }
        }
    }

    /// Reads all sectors of an extent, and compares their names in the pool with those that readers see, except names
    /// that wait for a commit. Names that are damaged in the pool are stored anew, durably: only a start needs them,
    /// and it would have nothing else.
    ///
    /// # Errors
    /// Only if it could not go on.
    pub(crate) fn verify_extent(&self, extent: u64) -> Result<Findings> {
        let mut findings = Findings::default();
        let per = self.geometry.extent_sectors();
        let Some(map_page) = self.extent(extent).map(|extent| extent.map_page) else {
            return Ok(findings);
        };
        let sectors = extent * per..((extent + 1) * per).min(self.geometry.sectors);
        // A load from a page that the medium has lost would end the process.
        let is_readable = self.space().probe(map_page).is_ok();
        if !is_readable {
            findings.unreadable_maps.push(sectors.clone());
        }
        let mut bytes = vec![0; self.geometry.sector_len as usize];
        for sector in sectors {
            let (before, has_block) = self.probed(sector);
            if before != 0 {
                findings.sectors += 1;
                if !has_block {
                    findings.damaged.push(sector);
                    continue;
                }
                match self.read(sector * u64::from(self.geometry.sector_len), &mut bytes) {
                    Ok(()) => {}
                    Err(Error::Damaged { .. }) => {
                        findings.damaged.push(sector);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            if is_readable
                && Name::of_word(self.stored_word(sector)) != Name::of_word(before)
                && self.mend_name(sector)
            {
                findings.names.push(sector);
            }
        }
        if !findings.names.is_empty() && !mutant!("tio.mend.fence") {
            self.space().fence()?;
        }
        Ok(findings)
    }

    /// The name of a sector in the pool.
    fn stored_word(&self, sector: u64) -> u64 {
        let word = self.name_offset(sector).and_then(|at| self.space().word::<Durable>(at));
        word.map_or(0, |word| word.load())
    }

    /// The name of a sector, and whether its block can be read: a load from one that the medium has lost would end the
    /// process. Reads know of such a block from then on.
    fn probed(&self, sector: u64) -> (u64, bool) {
        // The block is not reused as long as this is pinned.
        let _guard = self.space().pin();
        let word = self.name_word(sector);
        let block = Name::block_of(word).filter(|block| self.space().probe(*block).is_err());
        block.into_iter().for_each(|block| self.note_bad(block));
        (word, block.is_none())
    }

    /// Stores the name of a sector anew if that in the pool differs from the one that readers see, which is sound and
    /// does not wait for a commit; durable with the next fence. True if it did.
    fn mend_name(&self, sector: u64) -> bool {
        // No thread stores names meanwhile, and none comes to wait for a commit.
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        let pending = coreplane_pmem::spin::lock(&self.pending);
        let (stored, word) = (self.stored_word(sector), self.name_word(sector));
        let waits = pending.names.contains_key(&sector) && !mutant!("tio.mend.waiting");
        // A commit that failed has left names that do not wait any more, and are not durable.
        let has_failed = self.space().has_failed() && !mutant!("tio.mend.failed");
        let is_sound = Name::of_word(word).is_ok();
        if !is_sound || waits || has_failed || Name::of_word(stored) == Name::of_word(word) {
            return false;
        }
        self.store_names([(sector, word)].into_iter(), &[]);
        true
    }
}
