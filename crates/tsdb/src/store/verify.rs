//! Checks that all stored data is what was written.
//!
//! Chunks are read in the same way by both users: [`Store::verify`] reads all of them on command, and the scrub
//! ([`Store::scrub_next`]) a piece at a time, in the background.

use super::{Shared, Store};
use crate::error::{Error, Result};
use crate::segment::{ENTRY, Entry, Segment};
use crate::set::Set;
use coreplane_pmem::epoch::Guard;

/// The result of a check of all data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Chunks that were read.
    pub chunks: u64,
    /// Values in these chunks.
    pub points: u64,
    /// The damage: the pool, the place, and the series and field, if known.
    pub damage: Vec<String>,
}

impl Findings {
    /// True if there is no damage.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

/// A chunk that was read.
pub(super) struct Look {
    /// The number of its entry.
    pub(super) at: u32,
    /// None if the entry is damaged.
    pub(super) entry: Option<Entry>,
    /// The number of its values, or the damage.
    pub(super) points: Result<u64>,
}

impl Look {
    fn of(set: &Set, segment: &Segment, guard: &Guard, at: u32) -> Self {
        let entry = match segment.entry(&set.pages, guard, at) {
            Ok(entry) => entry,
            Err(error) => return Self { at, entry: None, points: Err(error) },
        };
        let points = segment.chunk(&set.pages, guard, &entry).and_then(|block| {
            let (number, shard) = (segment.info.number, segment.info.shard);
            let other = || {
                let what = format!("entry {at} of segment {number} of shard {shard}");
                Error::Damage(format!("{what} says other than its chunk"))
            };
            if entry.is_of(&block) { Ok(block.len() as u64) } else { Err(other()) }
        });
        Self { at, entry: Some(entry), points }
    }

    /// Bytes that were read.
    pub(super) fn bytes(&self) -> u64 {
        ENTRY as u64 + self.entry.map_or(0, |entry| u64::from(entry.len))
    }
}

/// Reads the chunks of a segment from this entry on, until at least `bytes_max` bytes were read; returns the first
/// unread entry.
pub(super) fn look(
    (set, segment): (&Set, &Segment),
    from: u32,
    bytes_max: u64,
    found: &mut dyn FnMut(Look),
) -> u32 {
    // A guard of this call alone: the segment keeps its pages, and pages of others are given back meanwhile.
    let guard = set.pages.space().pin();
    let mut bytes = 0;
    for at in from..segment.info.entries {
        if bytes >= bytes_max {
            return at;
        }
        let look = Look::of(set, segment, &guard, at);
        bytes += look.bytes();
        found(look);
    }
    segment.info.entries
}

impl Shared {
    /// Describes damage: the pool, the place, and the series and field, as far as their names exist.
    pub(super) fn say(
        &self,
        (set, segment): (usize, &Segment),
        entry: Option<&Entry>,
        error: &Error,
    ) -> String {
        let names = self.names.read();
        let series = entry.and_then(|it| names.series(it.series));
        let measurement = series.and_then(|it| names.measurement_by_id(it.measurement));
        let field = measurement.into_iter().flat_map(|it| it.fields());
        let field = field.into_iter().find(|it| entry.is_some_and(|entry| entry.field == it.id));
        let policy = names.shard(segment.info.shard).map(|it| it.policy);
        let has_policy = |id: u32| names.policies(id).any(|(it, _)| Some(it) == policy);
        let database = names.databases().find(|(id, _)| has_policy(*id));
        let mut whose = Vec::new();
        whose.extend(field.map(|it| format!("field {:?}", it.name)));
        whose.extend(series.map(|it| format!("series {:?}", it.key)));
        whose.extend(
            policy.and_then(|id| Some(format!("policy {:?}", names.policy_by_id(id)?.name))),
        );
        whose.extend(database.map(|(_, name)| format!("database {name:?}")));
        match whose.is_empty() {
            true => format!("q{set}: {error}"),
            false => format!("q{set}: {error}: {}", whose.join(" of ")),
        }
    }
}

impl Store {
    /// Reads all chunks, and reports damage with the series and fields it affects. `progress` is called with the
    /// number of segments read and the total. The logs were read when the store was opened.
    ///
    /// # Errors
    /// Only if the check could not go on.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<Findings> {
        let mut findings = Findings::default();
        findings.damage.extend(self.damage().map(str::to_owned));
        let views: Vec<_> = self.shared.sets.iter().map(|set| (set, set.view())).collect();
        let total = views
            .iter()
            .flat_map(|(_, view)| view.segments.values())
            .map(|it| it.len() as u64)
            .sum();
        let mut done = 0;
        for (number, (set, view)) in views.iter().enumerate() {
            for segment in view.segments.values().flatten() {
                look((set, segment), 0, u64::MAX, &mut |look| match look.points {
                    Ok(points) => {
                        findings.chunks += 1;
                        findings.points += points;
                    }
                    Err(error) => {
                        let (place, entry) = ((number, &**segment), look.entry.as_ref());
                        findings.damage.push(self.shared.say(place, entry, &error));
                    }
                });
                done += 1;
                progress(done, total);
            }
        }
        Ok(findings)
    }

    /// Fails unless each page belongs to one log or segment, or is free.
    ///
    /// # Errors
    /// The page, and what is wrong with it.
    #[doc(hidden)]
    pub fn check_pages(&self) -> std::result::Result<(), String> {
        let catalogue = self.shared.names.pages();
        for (number, set) in self.shared.sets.iter().enumerate() {
            let others = if number == 0 { catalogue.clone() } else { Vec::new() };
            set.check_pages(others)?;
        }
        Ok(())
    }
}

impl Set {
    fn check_pages(&self, mut used: Vec<u32>) -> std::result::Result<(), String> {
        used.extend(self.log_pages());
        let view = self.view();
        used.extend(view.segments.values().flatten().flat_map(|it| it.pages.iter().copied()));
        self.pages.check(used)
    }
}
