//! Flipped bits of a word in the table of pages: the uses that the word may have stated.

use crate::pages::{Role, Use};
use coreplane_pmem::mutant;

/// The use that a damaged word may have stated. None if no page has that use: pages of logs have numbers below
/// `numbers`.
fn possible(page: u32, word: u64, numbers: u64) -> Option<Option<Use>> {
    let found = Use::of_word(page, word).ok()?;
    let is_possible = |it: Use| it.role == Role::Segment || it.number < numbers;
    (found.is_none_or(is_possible) || mutant!("tsdb.page.impossible")).then_some(found)
}

/// The use that a word states after one flipped bit is corrected; none unless exactly one is possible.
pub(crate) fn corrected(page: u32, word: u64, numbers: u64) -> Option<Option<Use>> {
    let mut all = (0..64).filter_map(|bit| possible(page, word ^ 1 << bit, numbers));
    let found = all.next()?;
    all.next().is_none().then_some(found)
}

/// True if a word that cannot be corrected may be that of a page of names or of the list of segments. A word that two
/// flipped bits lead to another use is that one's; with more damage it may be anything.
pub(crate) fn may_be_vital(page: u32, word: u64, numbers: u64) -> bool {
    let pairs = (0..64).flat_map(|one| (0..64).map(move |other| 1 << one | 1 << other));
    let mut found = pairs.filter_map(|bits: u64| possible(page, word ^ bits, numbers)).peekable();
    let is_vital = |it: Use| matches!(it.role, Role::Manifest | Role::Catalogue);
    found.peek().is_none() || found.flatten().any(is_vital)
}
