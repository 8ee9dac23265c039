//! The smallest crash image that still fails.
//!
//! A failing image differs in many units from the image with everything kept, and from the one with nothing kept.
//! Delta debugging undoes the differences, halves first and then ever smaller parts, as long as the check still
//! fails. This is done towards both images, and the result with fewer differences is used.

use super::choice::{Kept, Pending};

/// The most recoveries for each of the two directions.
const ATTEMPTS: usize = 200;

/// The smallest choice found that still fails, and its message.
pub(super) fn smallest(
    pending: &[Pending<'_>],
    kept: &[Kept],
    message: String,
    fails: impl Fn(&[Kept]) -> Option<String>,
) -> (Vec<Kept>, String) {
    let nothing = vec![Kept::default(); pending.len()];
    let everything: Vec<Kept> = pending.iter().map(Pending::everything).collect();
    [everything, nothing]
        .iter()
        .map(|target| towards(target, kept, message.clone(), &fails))
        .min_by_key(|(differences, _, _)| *differences)
        .map_or((kept.to_vec(), message.clone()), |(_, kept, message)| (kept, message))
}

fn towards(
    target: &[Kept],
    kept: &[Kept],
    mut message: String,
    fails: &impl Fn(&[Kept]) -> Option<String>,
) -> (usize, Vec<Kept>, String) {
    let mut best = kept.to_vec();
    let mut different: Vec<usize> = (0..best.len()).filter(|at| best[*at] != target[*at]).collect();
    let mut part = different.len();
    let mut attempts = 0;
    while part > 0 {
        let mut from = 0;
        while from < different.len() && attempts < ATTEMPTS {
            attempts += 1;
            let undone: Vec<usize> = different[from..].iter().take(part).copied().collect();
            let mut candidate = best.clone();
            undone.iter().for_each(|at| candidate[*at] = target[*at]);
            if let Some(other) = fails(&candidate) {
                best = candidate;
                message = other;
                different.retain(|at| !undone.contains(at));
            } else {
                from += part;
            }
        }
        part /= 2;
    }
    (different.len(), best, message)
}

/// The kept and the lost stores, with a line for each unit that differs from memory.
pub(super) fn tell(pending: &[Pending<'_>], kept: &[Kept]) -> String {
    let mut story = String::new();
    let whole = pending.iter().zip(kept).filter(|(unit, kept)| unit.everything() == **kept).count();
    story.push_str(&format!("  {whole} of {} pending units kept wholly\n", pending.len()));
    for (unit, kept) in pending.iter().zip(kept) {
        unit.tell(*kept, &mut story);
    }
    story
}
