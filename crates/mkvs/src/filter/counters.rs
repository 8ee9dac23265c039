//! Sixteen counters of four bits in a word; any of them are raised, lowered or tested together.
//!
//! `marks` has the low bit of each of these counters, and no other bit.

/// The low bit of every counter.
pub(super) const LOW: u64 = 0x1111_1111_1111_1111;

/// The low bit of each counter that is at 15.
#[inline]
fn full(word: u64) -> u64 {
    let pairs = word & word >> 1;
    pairs & pairs >> 2 & LOW
}

/// The low bit of each counter that is above 0.
#[inline]
fn counted(word: u64) -> u64 {
    let pairs = word | word >> 1;
    (pairs | pairs >> 2) & LOW
}

/// One more in each marked counter; one that is at 15 stays.
#[inline]
pub(super) fn raised(word: u64, marks: u64) -> u64 {
    word + (marks & !full(word))
}

/// One less in each marked counter. A counter at 15 stays, since it may count any number of keys; so does a counter
/// at 0, since a subtraction would borrow from its neighbour.
#[inline]
pub(super) fn lowered(word: u64, marks: u64) -> u64 {
    word - (marks & counted(word) & !full(word))
}

/// True if all marked counters are above 0.
#[inline]
pub(super) fn has_all(word: u64, marks: u64) -> bool {
    marks & !counted(word) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, a counter at a time.
    fn each(word: u64, marks: u64, change: impl Fn(u64) -> u64) -> u64 {
        let counter = |at: u64| {
            let value = word >> (4 * at) & 15;
            if marks >> (4 * at) & 1 == 1 { change(value) } else { value }
        };
        (0..16).map(|at| counter(at) << (4 * at)).sum()
    }

    /// Words with many counters at their ends.
    fn words() -> impl Strategy<Value = u64> {
        let counter = prop_oneof![Just(0_u64), Just(15), Just(14), Just(1), 0_u64..16];
        proptest::collection::vec(counter, 16)
            .prop_map(|counters| counters.iter().fold(0, |word, counter| word << 4 | counter))
    }

    proptest! {
        #[test]
        fn all_at_once_is_as_one_by_one(word in words(), chosen in any::<u64>()) {
            let marks = chosen & LOW;
            let up = |value| if value == 15 { 15 } else { value + 1 };
            let down = |value| if value == 15 || value == 0 { value } else { value - 1 };
            prop_assert_eq!(raised(word, marks), each(word, marks, up));
            prop_assert_eq!(lowered(word, marks), each(word, marks, down));
            let has_all_twin = (0..16).all(|at| {
                marks >> (4 * at) & 1 == 0 || word >> (4 * at) & 15 > 0
            });
            prop_assert_eq!(has_all(word, marks), has_all_twin);
        }
    }

    #[test]
    fn the_ends_of_a_counter_stay_where_they_are() {
        assert_eq!(raised(u64::MAX, LOW), u64::MAX);
        assert_eq!(lowered(u64::MAX, LOW), u64::MAX);
        assert_eq!(lowered(0, LOW), 0);
        assert_eq!(raised(0xeeee_eeee_eeee_eeee, LOW), u64::MAX);
    }
}
