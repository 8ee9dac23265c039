//! The scrub of an engine: reads stored data page by page, so that damage is found while another
//! copy may still exist. The engine provides the pages, the thread and the counters.

use std::collections::BTreeSet;
use std::time::Duration;

/// The shortest interval between two looks, each at [`SCRUB_BYTES`].
pub const SCRUB_PACE: Duration = Duration::from_millis(100);

/// A scrub rests this many times as long as a look took. It then takes a hundredth of a core, which does
/// not slow a writer on the same core noticeably, not even beside the scrubs of several devices.
const SCRUB_REST: u32 = 100;

/// The longest rest, so that the scrub of a medium that stalls now and then still makes progress.
const SCRUB_REST_MAX: Duration = Duration::from_mins(1);

/// Bytes of pages that one look reads, or one page if that is longer.
pub const SCRUB_BYTES: u32 = 1 << 20;

/// The most pages that one step skips, so that a step is short in a store with few pages to look at, too.
const PASSED_MAX: usize = 1024;

/// How long a scrub rests after a look at [`SCRUB_BYTES`] that took `look`.
pub fn scrub_rest(look: Duration) -> Duration {
    look.saturating_mul(SCRUB_REST).clamp(SCRUB_PACE, SCRUB_REST_MAX)
}

/// Where a scrub is, and what it has found.
#[derive(Debug, Default)]
pub struct Scrub {
    next: u32,
    /// Page and life of each damaged page.
    damaged: BTreeSet<(u32, u64)>,
}

/// A page that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scrubbed {
    /// Its number.
    pub page: u32,
    /// True if it is damaged and this was not known before.
    pub is_new_damage: bool,
}

impl Scrub {
    /// Goes on to the next of `pages` pages that `look` does not skip. `look` returns the life of the
    /// page (no two uses of a page have the same) and whether it is sound; none if there is nothing to
    /// read. The step returns none if `look` skipped all pages of this step; the next step goes on
    /// behind them.
    pub fn step(
        &mut self,
        pages: u32,
        mut look: impl FnMut(u32) -> Option<(u64, bool)>,
    ) -> Option<Scrubbed> {
        let round = (self.next..pages).chain(0..self.next.min(pages));
        for page in round.take(PASSED_MAX) {
            self.next = page + 1;
            if let Some((life, is_sound)) = look(page) {
                let is_new_damage = !is_sound && self.damaged.insert((page, life));
                return Some(Scrubbed { page, is_new_damage });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_a_hundredth_of_a_core_at_most() {
        let rests = [0, 1, 20].map(|it| scrub_rest(Duration::from_millis(it)).as_millis());
        assert_eq!(rests, [100, 100, 2000]);
        assert_eq!(scrub_rest(Duration::from_hours(1)), SCRUB_REST_MAX);
    }

    #[test]
    fn it_goes_round_and_tells_each_damage_once() {
        let mut scrub = Scrub::default();
        let looks = |scrub: &mut Scrub, life| {
            // Page 0 is skipped, page 2 is damaged.
            let look = |page: u32| (page > 0).then_some((life, page != 2));
            scrub.step(4, look).map(|it| (it.page, it.is_new_damage))
        };
        let first: Vec<_> = (0..5).map(|_| looks(&mut scrub, 7).unwrap()).collect();
        assert_eq!(first, [(1, false), (2, true), (3, false), (1, false), (2, false)]);
        assert_eq!(looks(&mut scrub, 7), Some((3, false)));
        assert_eq!(looks(&mut scrub, 8), Some((1, false)));
        assert_eq!(looks(&mut scrub, 8), Some((2, true)), "the page was used again");
        assert_eq!(scrub.step(4, |_| None), None);
        assert_eq!(scrub.step(2, |_| Some((0, true))).map(|it| it.page), Some(0), "it is shorter");
    }

    #[test]
    fn a_step_over_pages_that_are_nothing_ends_and_the_next_goes_on() {
        let pages = 3 * PASSED_MAX as u32;
        let (mut scrub, mut passed, mut steps) = (Scrub::default(), 0, 0);
        let found = loop {
            let look = |page: u32| {
                passed += 1;
                (page == pages - 1).then_some((1, true))
            };
            if let Some(found) = scrub.step(pages, look) {
                break found.page;
            }
            steps += 1;
        };
        assert_eq!((found, passed, steps), (pages - 1, pages, 2));
    }
}
