//! Reads: load a name, read its block, and check the bytes.

use super::Volume;
use super::name::Name;
use crate::error::{Error, Result};
use coreplane_pmem::epoch::Guard;
use coreplane_pmem::mutant;
use coreplane_pmem::spin::Backoff;

impl Volume {
    /// Reads from an offset of the disk, within extents of this partition; bytes that were never written are zero.
    ///
    /// # Errors
    /// [`Error::Damaged`].
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let sector_len = self.geometry.sector_len as usize;
        let (mut at, mut out) = (offset, out);
        let mut part = Vec::new();
        while !out.is_empty() {
            let (sector, within) = (at / sector_len as u64, (at % sector_len as u64) as usize);
            let len = (sector_len - within).min(out.len());
            let (place, rest) = out.split_at_mut(len);
            if len == sector_len {
                self.read_sector(sector, place)?;
            } else {
                part.resize(sector_len, 0);
                self.read_sector(sector, &mut part)?;
                place.copy_from_slice(part.get(within..within + len).unwrap_or_default());
            }
            at += len as u64;
            out = rest;
        }
        Ok(())
    }

    fn read_sector(&self, sector: u64, out: &mut [u8]) -> Result<()> {
        let mut backoff = Backoff::new();
        let mut last = None;
        loop {
            // The name is loaded after the pin: its block is not reused as long as the guard is pinned.
            let guard = self.space().pin();
            let word = self.name_word(sector);
            if self.read_named(&guard, sector, word, out)? {
                return Ok(());
            }
            drop(guard);
            // The sector was rewritten meanwhile.
            if last == Some(word) && backoff.is_long() {
                return Err(Error::Damaged { sector, what: "its block is not there" });
            }
            last = Some(word);
            backoff.wait();
        }
    }

    /// Reads the whole sector with this name; false if its block has been freed.
    pub(super) fn read_named(
        &self,
        guard: &Guard,
        sector: u64,
        word: u64,
        out: &mut [u8],
    ) -> Result<bool> {
        let unsound = |_| Error::Damaged { sector, what: "its name is not sound" };
        let Some(name) = Name::of_word(word).map_err(unsound)? else {
            out.fill(0);
            return Ok(true);
        };
        if self.is_bad(name.block) && !mutant!("tio.read.bad") {
            return Err(Error::Damaged { sector, what: "its block cannot be read" });
        }
        let start = self.space().start_of(name.block);
        let Some(bytes) = self.space().bytes(guard, start, out.len() as u64) else {
            return Ok(false);
        };
        out.copy_from_slice(bytes);
        self.space().check_lost().map_err(std::io::Error::from)?;
        if name.is_of(sector, out) || mutant!("tio.read.unchecked") {
            return Ok(true);
        }
        Err(Error::Damaged { sector, what: "its bytes are not those that were written" })
    }
}
