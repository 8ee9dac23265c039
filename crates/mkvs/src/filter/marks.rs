//! The line and the counters of a key.
//!
//! ```text
//!   hash   bits 2..0   the first word
//!          bits 10..3  which of the other seven is the second
//!          bits 34..11 six places of four bits each, three in each word
//!   hash x an odd number, modulo 2^64
//!          bits 63..   the line: its share of all lines, from the top
//! ```
//!
//! The topmost bits of the hash are the key's slot, and a group owns some slots: taken from these bits, the lines of
//! all other slots would stay empty. The product's topmost bits depend on all bits of the hash. With up to 2^29 lines
//! (32 GiB of them) the line is independent of the rest: with any low 35 bits of the hash, the other 29 lead to all
//! lines equally often.

/// 2^64 divided by the golden ratio: hashes that differ in some neighbouring bits alone are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

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
    ((u128::from(hash.wrapping_mul(SPREAD)) * lines as u128) >> 64) as usize
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

    /// Filters on media rest on these: with others, the version of the snapshot is another one
    /// ([`filter_snapshot`](crate::rebuild::filter_snapshot)).
    #[test]
    fn the_counters_of_a_hash_stay_where_they_are() {
        let hash = 0x0123_4567_89ab_cdef;
        assert_eq!([hash, !hash, 1].map(|hash| line_of(hash, 1000)), [49, 332, 618]);
        assert_eq!(Marks::of(hash).words, [(7, 0x1010100000), (5, 0x1000000000001010)]);
    }

    /// The keys of a few slots, whose hashes begin alike, are in all lines: at ten keys a line on average, none
    /// has many more than with any other keys.
    #[test]
    fn keys_of_any_slots_use_all_lines() {
        const LINES: usize = 4096;
        for owns in [|slot: u64| slot == 5, |slot: u64| slot.is_multiple_of(8), |slot| slot < 512] {
            let hashes = (0_u64..).map(|it| xxhash_rust::xxh3::xxh3_64(&it.to_le_bytes()));
            let mut keys = [0_u32; LINES];
            let own = hashes.filter(|hash| owns(hash >> 54)).take(10 * LINES);
            own.for_each(|hash| keys[line_of(hash, LINES)] += 1);
            let empty = keys.iter().filter(|keys| **keys == 0).count();
            let most = keys.iter().max().expect("a line");
            assert!(empty < 5 && *most <= 26, "{empty} empty, {most} at most");
        }
    }
}
