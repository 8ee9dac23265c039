//! The line and the counters of a key.
//!
//! ```text
//!   hash   bits 63..  the line: its share of all lines, from the top
//!          bits 2..0  the first word
//!          bits 10..3 which of the other seven is the second
//!          bits 34..11 six places of four bits each, three in each word
//! ```
//!
//! With up to 2^29 lines (32 GiB of them) the line comes from other bits than the rest.

/// Words in a line.
pub(super) const WORDS: usize = 8;

/// The counters of a key within its line: a set, in which no place occurs twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Marks {
    /// Two different words, and the low bits of the key's counters in each.
    pub(super) words: [(usize, u64); 2],
}

impl Marks {
    #[inline]
    pub(super) fn of(hash: u64) -> Self {
        let first = hash as usize & 7;
        let other = (((hash >> 3 & 0xff) * 7) >> 8) as usize;
        let second = (first + 1 + other) & 7;
        Self { words: [(first, places(hash >> 11)), (second, places(hash >> 23))] }
    }
}

/// Three places by the low twelve bits.
#[inline]
fn places(bits: u64) -> u64 {
    let place = |at: u32| 1_u64 << ((bits >> at & 15) * 4);
    place(0) | place(4) | place(8)
}

/// The line of a key among `lines`.
#[inline]
pub(super) fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::counters::LOW;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_key_has_one_to_three_counters_in_each_of_two_words(
            hash in any::<u64>(), lines in 1_usize..1 << 29,
        ) {
            let [(first, marks), (second, others)] = Marks::of(hash).words;
            prop_assert!(first < WORDS && second < WORDS && first != second);
            for marks in [marks, others] {
                prop_assert!(marks & !LOW == 0 && (1..=3).contains(&marks.count_ones()));
            }
            prop_assert!(line_of(hash, lines) < lines);
        }
    }

    /// Counts, not a statistical test: each of 2^17 hashes is one step of a generator.
    #[test]
    fn words_and_places_are_evenly_used() {
        let mut used = [[0_u32; 16]; WORDS];
        for number in 0_u64..1 << 17 {
            let hash = xxhash_rust::xxh3::xxh3_64(&number.to_le_bytes());
            for (word, marks) in Marks::of(hash).words {
                for (place, count) in used[word].iter_mut().enumerate() {
                    *count += (marks >> (4 * place) & 1) as u32;
                }
            }
        }
        let (least, most) = used
            .iter()
            .flatten()
            .fold((u32::MAX, 0), |(least, most), count| (least.min(*count), most.max(*count)));
        // Six of 128 places less what coincides: about 5,780 each.
        assert!(least > 5_400 && most < 6_150, "{least} to {most}");
    }
}
