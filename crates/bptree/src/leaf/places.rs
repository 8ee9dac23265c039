//! Sets of places of a leaf.

/// Places in a leaf.
pub(crate) const PLACES: usize = 128;

/// The most records that a leaf has while pages abound: a look at it touches fewer lines then, and its page has
/// room for overwrites.
pub(crate) const FEW: usize = 64;

/// Places in a word of a set.
pub(super) const WORD: usize = 64;

/// A set of places, iterated from the least on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaceSet(pub(super) [u64; PLACES / WORD]);

impl PlaceSet {
    /// The first `count` of all.
    pub(crate) fn first(count: usize) -> Self {
        let bits = |count: usize| u64::MAX.unbounded_shr((WORD - count.min(WORD)) as u32);
        Self([bits(count), bits(count.saturating_sub(WORD))])
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == [0; PLACES / WORD]
    }

    /// The number of places.
    #[inline]
    pub(crate) fn count(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    #[cfg(test)]
    pub(crate) fn contains(self, place: usize) -> bool {
        self.0[place / WORD % self.0.len()] >> (place % WORD) & 1 == 1
    }

    /// The places that are not in `others`.
    #[inline]
    pub(crate) fn without(self, others: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] & !others.0[at]))
    }

    /// The least place that is not in the set; none if all are.
    #[inline]
    pub(crate) fn vacancy(self) -> Option<usize> {
        let [low, high] = self.0;
        let low = low.trailing_ones() as usize;
        let place = if low < WORD { low } else { WORD + high.trailing_ones() as usize };
        (place < PLACES).then_some(place)
    }
}

impl Iterator for PlaceSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let [low, high] = &mut self.0;
        let (word, base) = if *low != 0 { (low, 0) } else { (high, WORD) };
        if *word == 0 {
            return None;
        }
        let place = base + word.trailing_zeros() as usize;
        *word &= *word - 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_gives_its_places_from_the_least_on() {
        let set = PlaceSet([1 << 3 | 1 << 63, 1 | 1 << 63]);
        assert_eq!(set.collect::<Vec<_>>(), [3, 63, 64, 127]);
        assert_eq!((set.count(), set.vacancy(), set.is_empty()), (4, Some(0), false));
        assert!(set.contains(64) && !set.contains(65));
        for count in [0, 1, 63, 64, 65, 127, 128] {
            let first = PlaceSet::first(count);
            assert!(first.eq(0..count), "{count}");
            assert_eq!(first.vacancy(), (count < PLACES).then_some(count));
            assert!(set.without(first).eq(set.filter(|place| *place >= count)));
        }
    }
}
