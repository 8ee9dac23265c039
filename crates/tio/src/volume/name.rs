//! Names: words that denote the block of a sector.
//!
//! ```text
//!   63  60 59              32 31                0
//!   ├ seal ┼──── block ───────┼──── checksum ────┤     0: there is no block, the sector reads as zeroes
//! ```
//!
//! The checksum is the CRC-32C of the sector's number, the block's number and the bytes: it distinguishes the right
//! block from one of another sector, or an older one of this sector. The seal covers the other sixty bits, each of
//! which changes it: a flipped bit is detected when the disk is opened, before a block is wrongly taken for free.

use coreplane_pmem::checksum::crc32c_append;

/// The most blocks of a partition.
pub(crate) const BLOCKS_MAX: u32 = 1 << 28;

/// The block of a sector, and its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) block: u32,
    crc: u32,
}

/// A word that is not a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unsound;

/// Replaces a name that is lost.
pub(crate) const DAMAGED: u64 = u64::MAX;

// media-format: begin pool
const SEAL_SHIFT: u32 = 60;

/// The seal of a zero word. No single bit has this seal, so that a zero word with one flipped bit is not a name.
const NOTHING: u64 = 0b0101;

/// For each bit of the seal, the mask of the bits of which it is the parity. Each of the sixty bits is in at least
/// one mask.
const PARITIES: [u64; 4] = {
    let (mut masks, mut bit) = ([0; 4], 0);
    while bit < SEAL_SHIFT {
        let of_14 = bit % 14 + 1;
        let syndrome = if of_14 >= NOTHING as u32 { of_14 + 1 } else { of_14 };
        let mut at = 0;
        while at < 4 {
            if syndrome >> at & 1 == 1 {
                masks[at] |= 1 << bit;
            }
            at += 1;
        }
        bit += 1;
    }
    masks
};

fn seal(word: u64) -> u64 {
    let bits = PARITIES.iter().enumerate();
    bits.map(|(at, mask)| u64::from((word & mask).count_ones() & 1) << at).sum::<u64>() ^ NOTHING
}

fn checksum(sector: u64, block: u32, bytes: &[u8]) -> u32 {
    let mut place = [0; 12];
    place[..8].copy_from_slice(&sector.to_le_bytes());
    place[8..].copy_from_slice(&block.to_le_bytes());
    crc32c_append(crc32c_append(0, &place), bytes)
}

// media-format: end

impl Name {
    /// The name of a sector with these bytes in this block.
    pub(crate) fn new(sector: u64, block: u32, bytes: &[u8]) -> Self {
        Self { block, crc: checksum(sector, block, bytes) }
    }

    // media-format: begin pool
    pub(crate) fn word(self) -> u64 {
        let word = u64::from(self.block) << 32 | u64::from(self.crc);
        word | seal(word) << SEAL_SHIFT
    }
    // media-format: end

    /// The name in a word; none for a sector without a block.
    ///
    /// # Errors
    /// [`Unsound`].
    pub(crate) fn of_word(word: u64) -> Result<Option<Self>, Unsound> {
        if word == 0 {
            return Ok(None);
        }
        let rest = word & ((1 << SEAL_SHIFT) - 1);
        let name = Self { block: (rest >> 32) as u32, crc: rest as u32 };
        match word >> SEAL_SHIFT == seal(rest) && name.block > 0 {
            true => Ok(Some(name)),
            false => Err(Unsound),
        }
    }

    /// The block in a word that is a name.
    pub(crate) fn block_of(word: u64) -> Option<u32> {
        Self::of_word(word).ok().flatten().map(|name| name.block)
    }

    /// True if these are the sector's bytes.
    pub(crate) fn is_of(self, sector: u64, bytes: &[u8]) -> bool {
        checksum(sector, self.block, bytes) == self.crc
    }
}

// media-format: begin pool
/// The word by which a directory names the map page of an extent.
pub(crate) fn directory_word(extent: u64, page: u32) -> u64 {
    u64::from(page) | u64::from(checksum(extent, page, b"extent")) << 32
}
// media-format: end

/// The map page that a word of the directory denotes, none if there is none, and whether one of its bits had to be
/// corrected.
///
/// # Errors
/// [`Unsound`].
pub(crate) fn map_page_of(extent: u64, word: u64) -> Result<(Option<u32>, bool), Unsound> {
    if word == 0 {
        return Ok((None, false));
    }
    let page_in = |word: u64| {
        let page = word as u32;
        (page > 0 && word == directory_word(extent, page)).then_some(page)
    };
    if let Some(page) = page_in(word) {
        return Ok((Some(page), false));
    }
    if word.is_power_of_two() {
        return Ok((None, true));
    }
    let flipped = (0..64).find_map(|bit| page_in(word ^ 1 << bit));
    flipped.map(|page| (Some(page), true)).ok_or(Unsound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_it_was_and_every_flipped_bit_is_seen() {
        let bytes = [7; 4096];
        for block in [1, 2, 77, BLOCKS_MAX - 1] {
            let name = Name::new(9, block, &bytes);
            let word = name.word();
            assert_eq!(Name::of_word(word), Ok(Some(name)));
            assert_eq!(Name::block_of(word), Some(block));
            assert!(name.is_of(9, &bytes) && !name.is_of(8, &bytes) && !name.is_of(9, &[6; 4096]));
            for bit in 0..64 {
                assert_eq!(Name::of_word(word ^ 1 << bit), Err(Unsound), "bit {bit}");
            }
        }
        assert_eq!(Name::of_word(0), Ok(None));
        assert_eq!(Name::of_word(DAMAGED), Err(Unsound));
        for bit in 0..64 {
            assert_eq!(Name::of_word(1 << bit), Err(Unsound), "bit {bit} of nothing");
        }
    }

    #[test]
    fn a_flipped_bit_of_the_directory_is_set_right() {
        for (extent, page) in [(0, 1), (5, 900), (1 << 20, BLOCKS_MAX - 1)] {
            let word = directory_word(extent, page);
            assert_eq!(map_page_of(extent, word), Ok((Some(page), false)));
            assert_eq!(map_page_of(extent + 1, word), Err(Unsound));
            for bit in 0..64 {
                assert_eq!(map_page_of(extent, word ^ 1 << bit), Ok((Some(page), true)));
            }
        }
        assert_eq!(map_page_of(3, 0), Ok((None, false)));
        assert!((0..64).all(|bit| map_page_of(3, 1 << bit) == Ok((None, true))));
        assert!((1..64).all(|bit| map_page_of(3, 1 | 1 << bit) == Err(Unsound)));
    }
}
