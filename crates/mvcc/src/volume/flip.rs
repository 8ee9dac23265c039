//! A record one bit of which is flipped.

use coreplane_record::{Header, View};

/// CRC-32C, the least power last.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A record one bit of which is flipped.
#[derive(Debug, Clone)]
pub(crate) struct Hurt {
    pub(crate) header: Header,
    pub(crate) key: Box<[u8]>,
}

/// The record that flipping one bit makes of these bytes, or of the first of them; and its bytes in the stream.
pub(crate) fn one_bit_off(bytes: &[u8], seed: u32, offset: u64) -> Option<(Hurt, u64)> {
    let mut copy = bytes.to_vec();
    let mut flipped = |bit: usize| {
        *copy.get_mut(bit / 8)? ^= 1 << (bit % 8);
        let view = View::of_bytes(&copy, offset).filter(|view| view.check(seed).is_ok());
        let hurt = view.map(|view| {
            let hurt = Hurt { header: view.header, key: view.key().into() };
            (hurt, u64::from(view.len()))
        });
        *copy.get_mut(bit / 8)? ^= 1 << (bit % 8);
        hurt
    };
    // Of the lengths: if one of these is flipped, the end of the record is unknown.
    if let Some(hurt) = (32..96).find_map(&mut flipped) {
        return Some(hurt);
    }
    let view = View::of_bytes(bytes, offset)?;
    let (stored, computed) = view.checksums(seed);
    let bytes = view.header.len() + view.key().len() + view.value().len();
    flipped(bit_of(stored ^ computed, 8 * bytes)?)
}

/// The position of the bit, among so many, whose flip makes this difference to the checksum in the first 32 bits.
fn bit_of(difference: u32, bits: usize) -> Option<usize> {
    if difference.is_power_of_two() {
        return Some(difference.trailing_zeros() as usize);
    }
    let mut made = POLYNOMIAL;
    for bit in (32..bits).rev() {
        if made == difference {
            return Some(bit);
        }
        made = made >> 1 ^ if made & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    None
}
