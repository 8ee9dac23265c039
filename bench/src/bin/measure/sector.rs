//! What is in a sector, or in a part of one: words that follow from its number and from how often it was written, so that
//! each reader can tell whether it is that one, of that time, and whole.

use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a sector.
pub(super) const SECTOR: usize = 4096;

/// How often each sector was written so far.
#[derive(Debug)]
pub(super) struct Sectors {
    versions: Vec<AtomicU32>,
}

/// Spreads a number over a word.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The words of a sector, of which a part has the first.
fn words(sector: u64, version: u32) -> impl Iterator<Item = u64> {
    let first = mix(sector << 32 | u64::from(version));
    (0..SECTOR as u64 / 8).map(move |at| first.wrapping_add(at.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

impl Sectors {
    /// Of a disk with so many sectors, or parts of sectors, on which nothing was written.
    pub(super) fn new(count: u64) -> Self {
        Self { versions: (0..count).map(|_| AtomicU32::new(0)).collect() }
    }

    pub(super) fn len(&self) -> u64 {
        self.versions.len() as u64
    }

    fn version(&self, sector: u64) -> u32 {
        let version = self.versions.get(sector as usize);
        version.map_or(0, |version| version.load(Ordering::Relaxed))
    }

    /// What the next write of a sector has to write. One at a time writes a sector, and nobody reads it meanwhile.
    pub(super) fn next(&self, sector: u64, bytes: &mut [u8]) {
        let version = self.version(sector) + 1;
        if let Some(place) = self.versions.get(sector as usize) {
            place.store(version, Ordering::Relaxed);
        }
        let (places, _) = bytes.as_chunks_mut::<8>();
        places
            .iter_mut()
            .zip(words(sector, version))
            .for_each(|(place, it)| *place = it.to_le_bytes());
    }

    /// True if these are the bytes that were written last; zeroes, if none were.
    pub(super) fn is_right(&self, sector: u64, bytes: &[u8]) -> bool {
        let version = self.version(sector);
        if version == 0 {
            return bytes.iter().all(|byte| *byte == 0);
        }
        let (found, _) = bytes.as_chunks::<8>();
        // All of them are looked at: this has no branches, and is quick.
        let wrong = found.iter().zip(words(sector, version));
        wrong.fold(0, |wrong, (found, it)| wrong | (u64::from_le_bytes(*found) ^ it)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_sector_another_time_and_a_torn_one_are_wrong() {
        let sectors = Sectors::new(256);
        let (mut old, mut new, mut other) = (vec![0; SECTOR], vec![0; SECTOR], vec![0; SECTOR]);
        assert!(sectors.is_right(7, &old));
        sectors.next(7, &mut old);
        assert!(sectors.is_right(7, &old));
        sectors.next(7, &mut new);
        sectors.next(8, &mut other);
        assert!(sectors.is_right(7, &new) && sectors.is_right(8, &other));
        assert!(!sectors.is_right(7, &old) && !sectors.is_right(7, &other));
        new[SECTOR - 1] = old[SECTOR - 1];
        new[SECTOR - 8..].copy_from_slice(&old[SECTOR - 8..]);
        assert!(!sectors.is_right(7, &new));
    }
}
