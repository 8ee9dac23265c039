//! The choice of cuts where an operation has very many.

use super::log::Event;
use super::options::SimOptions;
use super::rng::mix;
use std::collections::HashSet;

/// True if the power may be cut before the event, or, without one, at the end.
pub(super) fn is_cut(event: Option<&Event>, at_stores: bool) -> bool {
    match event {
        None | Some(Event::Fence { at_once: true, .. } | Event::Covered { .. }) => true,
        Some(Event::Recovered) => true,
        Some(Event::Requested { .. } | Event::SyncBegan { .. } | Event::SyncEnded { .. }) => true,
        Some(Event::Store { .. }) => at_stores,
        _ => false,
    }
}

/// The cuts of an operation that [`SimOptions::cut_in`] does not thin out: so many of the first, and of the last.
pub(super) const CUTS_AT_ENDS: usize = 64;

/// The cuts that are not checked.
pub(super) fn left_out(options: &SimOptions, events: &[Event]) -> HashSet<usize> {
    let mut all = HashSet::new();
    if options.cut_in <= 1 {
        return all;
    }
    let is_chosen =
        |cut: usize| mix(options.seed ^ mix(cut as u64)).is_multiple_of(options.cut_in as u64);
    let mut span = Vec::new();
    for (at, event) in events.iter().enumerate() {
        if is_cut(Some(event), options.cut_at_stores) {
            span.push(at);
        }
        if matches!(event, Event::Mark { .. }) || at + 1 == events.len() {
            let middle = CUTS_AT_ENDS..span.len().saturating_sub(CUTS_AT_ENDS);
            let middle = span.get(middle).unwrap_or_default();
            all.extend(middle.iter().filter(|cut| !is_chosen(**cut)));
            span.clear();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_long_operation_is_thinned_out() {
        let fence = || Event::Fence { thread: 0, at_once: true };
        let mut events: Vec<Event> = (0..100).map(|_| fence()).collect();
        events.push(Event::Mark { marks: 1, cut: true });
        events.extend((0..1000).map(|_| fence()));
        let of =
            |cut_in, seed| left_out(&SimOptions { cut_in, seed, ..SimOptions::default() }, &events);
        assert!(of(1, 1).is_empty());
        let four = of(4, 1);
        // Of the first operation no cut is left out, of the other one three quarters of the middle.
        assert!((600..700).contains(&four.len()), "{}", four.len());
        assert!(four.iter().all(|cut| (101 + CUTS_AT_ENDS..1101 - CUTS_AT_ENDS).contains(cut)));
        assert_eq!(of(4, 1), four);
        assert_ne!(of(4, 2), four);
    }
}
