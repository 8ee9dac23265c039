//! The ring: how changes in several leaves count all together or not at all, with one fence.
//!
//! ```text
//!     leaf A   … │ record │ record │ closing ─┐
//!     leaf B   … │ record │ closing ─┐ ◀──────┘
//!     leaf C   … │ closing: farewell ─┐ ◀─┘
//!                              └──────────────▶ A's closing
//! ```
//!
//! A batch appends its records to each leaf that it changes, marked as *batched*, and behind them a
//! *closing*, which names the next leaf's closing; the last names the first. All of them are made
//! durable by one fence, while all the leaves are locked. A leaf that has too little room is
//! written anew with the changes in it, before that fence, and its closing is a farewell.
//!
//! **In recovery** the batch counts if the whole ring is there. Who walks along it from any of its
//! closings comes
//!
//! - back to where it began: the batch is whole;
//! - to a page that is no longer the leaf that was named: it was written anew since. That can only
//!   have come after the fence, so that the batch is whole;
//! - to a leaf that is the one named, and has no closing there: the power went before the fence,
//!   and nobody was told of the batch. What there is of it is struck out durably before anything
//!   else is written, for the next walk would find the leaves that lack it written anew.
//!
//! A closing behind which there is another record needs no walk: the leaf was unlocked since.

use crate::leaf::Life;
use coreplane_record::{HEADER, View};
use std::collections::HashMap;

/// Bytes of the record of a closing.
pub(crate) const LEN: usize = (HEADER + VALUE).next_multiple_of(8);
const VALUE: usize = 20;
const _: () = assert!(LEN <= crate::store::FAREWELL, "a leaf has room for its farewell");

/// What stands behind the changes of a batch in one leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closing {
    /// The next leaf of the ring.
    pub(crate) next: Life,
    /// Where in its page its closing is.
    pub(crate) next_at: u32,
    /// There is no record before it: the leaf is dead, and its heirs have what is in the batch.
    pub(crate) is_farewell: bool,
}

impl Closing {
    // media-format: begin pool
    pub(crate) fn to_value(self) -> [u8; VALUE] {
        let mut value = [0; VALUE];
        value[..8].copy_from_slice(&self.next.birth.to_le_bytes());
        value[8..12].copy_from_slice(&self.next.page.to_le_bytes());
        value[12..16].copy_from_slice(&self.next_at.to_le_bytes());
        value[16..].copy_from_slice(&u32::from(self.is_farewell).to_le_bytes());
        value
    }
    // media-format: end

    /// Of a sound record that is a batched commit; none if it is anything else.
    pub(crate) fn of(view: &View<'_>) -> Option<Self> {
        let [birth, place] = [view.value_word(0)?, view.value_word(1)?];
        let last: [u8; 4] = view.value().get(16..)?.try_into().ok()?;
        Some(Self {
            next: Life { page: place as u32, birth },
            next_at: (place >> 32) as u32,
            is_farewell: u32::from_le_bytes(last) != 0,
        })
    }
}

/// What one leaf has of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where in the page its first record begins.
    pub(crate) start: u32,
    /// Where in the page the closing is.
    pub(crate) at: u32,
    pub(crate) closing: Closing,
}

/// What was found of batches in all leaves.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// By page: the birth, and the parts in the order of their places.
    leaves: HashMap<u32, (u64, Vec<Part>)>,
}

impl Rings {
    /// Adds a leaf, be there a part in it or not.
    pub(crate) fn add(&mut self, life: Life, parts: &[Part]) {
        self.leaves.insert(life.page, (life.birth, parts.to_vec()));
    }

    /// True if the batch of which a leaf has `part` is whole.
    pub(crate) fn is_whole(&self, life: Life, part: &Part) -> bool {
        let mut closing = part.closing;
        loop {
            let Closing { next, next_at, .. } = closing;
            if (next, next_at) == (life, part.at) {
                return true;
            }
            let Some((_, parts)) =
                self.leaves.get(&next.page).filter(|(birth, _)| *birth == next.birth)
            else {
                return true;
            };
            match parts.binary_search_by_key(&next_at, |part| part.at) {
                Ok(at) => closing = parts[at].closing,
                Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(page: u32) -> Life {
        Life { page, birth: 100 + u64::from(page) }
    }

    /// A ring of these pages, each part at 1000 and the number of its page.
    fn ring(pages: &[u32]) -> Vec<(Life, Part)> {
        let at = |page: u32| 1000 + page;
        let next = pages.iter().cycle().skip(1);
        let part = |(page, next): (&u32, &u32)| {
            let closing = Closing { next: life(*next), next_at: at(*next), is_farewell: false };
            (life(*page), Part { start: 0, at: at(*page), closing })
        };
        pages.iter().zip(next).map(part).collect()
    }

    #[test]
    fn a_ring_is_whole_if_nobody_in_it_lacks_a_part() {
        let ring = ring(&[3, 1, 2]);
        let all = |missing: Option<u32>, reborn: Option<u32>| {
            let mut rings = Rings::default();
            for (life, part) in &ring {
                let parts = if Some(life.page) == missing { vec![] } else { vec![*part] };
                let birth = life.birth + u64::from(Some(life.page) == reborn);
                rings.add(Life { birth, ..*life }, &parts);
            }
            let whole = |(life, part): &&(Life, Part)| rings.is_whole(*life, part);
            ring.iter().filter(|(life, _)| Some(life.page) != missing).filter(whole).count()
        };
        assert_eq!(all(None, None), 3);
        for page in 1..=3 {
            assert_eq!(all(Some(page), None), 0, "{page} lacks its part");
        }
        assert_eq!(all(None, Some(2)), 3, "one was written anew since");
        let (only, part) = self::ring(&[7])[0];
        assert!(Rings::default().is_whole(only, &part), "a ring of one names itself");
    }

    #[test]
    fn a_closing_reads_as_it_was_written() {
        let closing = Closing { next: life(77), next_at: 4088, is_farewell: true };
        let value = closing.to_value();
        assert_eq!(value.len(), VALUE);
        assert_eq!(u64::from_le_bytes(value[..8].try_into().unwrap()), 177);
        assert_eq!((value[8], value[16]), (77, 1));
    }
}
