//! Verification of all stored sectors.

use super::Volume;
use super::layout::WORD;
use super::name::Name;
use crate::error::{Error, Result};
use coreplane_pmem::Durable;
use std::sync::atomic::Ordering;

/// The result of a verification.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Sectors that were read.
    pub sectors: u64,
    /// Sectors that are damaged: their numbers.
    pub damaged: Vec<u64>,
    /// Sectors whose name in the pool differs from the one that readers see: the next write of the sector stores it
    /// anew.
    pub names: Vec<u64>,
    /// The number of directory bits that were corrected when the disk was opened.
    pub repaired: u64,
    /// The number of flushed writes whose entries in the journal could not be read when the disk was opened: their
    /// sectors are unknown, and may have earlier bytes. A later open does not find them any more.
    pub unnamed: u64,
}

impl Findings {
    /// True if nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.damaged.is_empty() && self.names.is_empty() && self.unnamed == 0
    }

    pub(crate) fn add(&mut self, other: Self) {
        let Self { sectors, damaged, names, repaired, unnamed } = other;
        self.sectors += sectors;
        self.damaged.extend(damaged);
        self.names.extend(names);
        self.repaired += repaired;
        self.unnamed += unnamed;
    }
}

impl Volume {
    /// Fails unless each page is the block of one sector, a map page, or free.
    pub(crate) fn check_blocks(&self) -> std::result::Result<(), String> {
        self.commit().map_err(|error| error.to_string())?;
        let space = self.space();
        let mut blocks = coreplane_pmem::spin::lock(&self.blocks);
        while space.retired_len() > 0 {
            blocks.reclaim(space);
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
    /// that wait for a commit.
    ///
    /// # Errors
    /// Only if it could not go on.
    pub(crate) fn verify_extent(&self, extent: u64) -> Result<Findings> {
        let mut findings = Findings::default();
        let per = self.geometry.extent_sectors();
        if !self.has(extent) {
            return Ok(findings);
        }
        let mut bytes = vec![0; self.geometry.sector_len as usize];
        for sector in extent * per..((extent + 1) * per).min(self.geometry.sectors) {
            let (before, is_readable) = self.probed(sector);
            if before != 0 {
                findings.sectors += 1;
                if !is_readable {
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
            let offset = extent_offset(self, extent) + sector % per * WORD;
            let stored = self.space().word::<Durable>(offset).map_or(0, |word| word.load());
            if Name::of_word(stored) != Name::of_word(before) && self.is_otherwise(sector, offset) {
                findings.names.push(sector);
            }
        }
        Ok(findings)
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

    /// True if the pool's name of a sector differs from the one that readers see and does not wait for a commit;
    /// checked while no thread stores names.
    fn is_otherwise(&self, sector: u64, offset: u64) -> bool {
        let _alone = coreplane_pmem::spin::lock(&self.naming);
        let pending = coreplane_pmem::spin::lock(&self.pending);
        let stored = self.space().word::<Durable>(offset).map_or(0, |word| word.load());
        let is_other = Name::of_word(stored) != Name::of_word(self.name_word(sector));
        is_other && !pending.names.contains_key(&sector)
    }
}

fn extent_offset(volume: &Volume, extent: u64) -> u64 {
    volume.extent(extent).map_or(0, |extent| volume.map_range(extent).0)
}
