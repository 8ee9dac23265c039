//! The scrub: reads sealed points, piece by piece, so that damage is found while another copy may still exist.
//!
//! ```text
//!   round:  q0: shard 1: segments 4, 9 │ shard 2: segment 5 │ q1: … │    and again
//!   step:                 ──────▶ a number of bytes of chunks, in the order of their entries
//! ```
//!
//! # What holds
//!
//! - Between two steps the scrub keeps a place and no segment, so it never holds back a segment that is to be given
//!   back. During a step it keeps the segment that it reads, with its pages: one that is replaced or dropped
//!   meanwhile stays whole for the scrub.
//! - A segment that is gone at the next step is skipped; that is no damage.
//! - A round ends, however much is written and merged: segments that are begun after the round reached their queue
//!   set belong to the next round.
//! - Each damage is reported once: a segment's number is given once, and its content does not change.

use super::verify::{Look, look};
use super::{Shared, Store};
use crate::rows::ShardId;
use crate::segment::Segment;
use crate::set::{Set, View};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of chunks and entries in a step, about.
const PIECE: u64 = 256 << 10;

/// The numbers that scrubs have read and found since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) pages: AtomicU64,
    pub(super) rounds: AtomicU64,
    pub(super) damaged: AtomicU64,
}

/// A place within a queue set, from which reading goes on.
#[derive(Debug, Default)]
struct Place {
    shard: ShardId,
    segment: u32,
    entry: u32,
    /// Pages of the segment that are already counted.
    pages: u32,
}

/// The place of a scrub, and the damage that it has reported.
#[derive(Debug, Default)]
pub struct Scrub {
    set: usize,
    place: Place,
    /// Segments of the queue set with this number or a greater one belong to the next round.
    end: Option<u32>,
    /// The queue set, the segment and the entry of each reported damage.
    told: BTreeSet<(usize, u32, u32)>,
}

/// The first segment of a round at this place or behind it.
fn next_segment(view: &View, place: &Place, end: u32) -> Option<Arc<Segment>> {
    for (shard, segments) in view.segments.range(place.shard..) {
        let from = if *shard == place.shard { place.segment } else { 0 };
        let its = segments.iter().filter(|it| (from..end).contains(&it.info.number));
        if let Some(segment) = its.min_by_key(|it| it.info.number) {
            return Some(Arc::clone(segment));
        }
    }
    None
}

impl Scrub {
    /// Goes on to the next queue set.
    fn turn(&mut self, set: &Set) {
        if self.told.iter().any(|it| it.0 == self.set) {
            let view = set.view();
            let there = view.segments.values().flatten().map(|it| it.info.number);
            let there: BTreeSet<u32> = there.collect();
            self.told.retain(|it| it.0 != self.set || there.contains(&it.1));
        }
        *self = Self { set: self.set + 1, told: std::mem::take(&mut self.told), ..Self::default() };
    }
}

impl Shared {
    /// Reads a segment from the scrub's place on; returns how many of `bytes_max` bytes are left.
    fn scrub_segment(
        &self,
        (set, segment): (&Set, &Segment),
        scrub: &mut Scrub,
        bytes_max: u64,
        damage: &mut Vec<String>,
    ) -> u64 {
        let (number, place) = (scrub.set, &mut scrub.place);
        if (place.shard, place.segment) != (segment.info.shard, segment.info.number) {
            let (shard, segment) = (segment.info.shard, segment.info.number);
            *place = Place { shard, segment, entry: 0, pages: 0 };
        }
        let (mut pages, mut bytes) = (place.pages, 0);
        place.entry = look((set, segment), place.entry, bytes_max, &mut |look: Look| {
            bytes += look.bytes();
            // Chunks are in the order of their entries; the entries follow all chunks.
            pages = look.entry.map_or(pages, |entry| pages.max(entry.page.saturating_add(1)));
            let key = (number, segment.info.number, look.at);
            if let Err(error) = &look.points
                && scrub.told.insert(key)
            {
                damage.push(self.say((number, segment), look.entry.as_ref(), error));
            }
        });
        let is_read = place.entry >= segment.info.entries;
        pages = if is_read { segment.info.pages } else { pages.min(segment.info.pages) };
        let read = pages.saturating_sub(place.pages);
        self.scrubbed.pages.fetch_add(read.into(), Ordering::Relaxed);
        place.pages = pages;
        if is_read {
            let (shard, number) = (segment.info.shard, segment.info.number);
            *place = Place { shard, segment: number.saturating_add(1), entry: 0, pages: 0 };
        }
        bytes_max.saturating_sub(bytes)
    }
}

impl Store {
    /// Reads the next piece of the sealed points, about 256 KiB, and begins anew behind the last one. Returns the
    /// damage that was not reported to this scrub before. It takes about a millisecond, more where chunks are
    /// packed well; writes, sealing, merging and drops go on meanwhile.
    pub fn scrub_next(&self, scrub: &mut Scrub) -> Vec<String> {
        let (shared, mut damage, mut left) = (&*self.shared, Vec::new(), PIECE);
        while let Some(set) = shared.sets.get(scrub.set) {
            if left == 0 {
                break;
            }
            let end = *scrub.end.get_or_insert_with(|| set.next_segment());
            let next = next_segment(&set.view(), &scrub.place, end);
            match next {
                Some(segment) => {
                    left = shared.scrub_segment((set, &segment), scrub, left, &mut damage);
                }
                None => scrub.turn(set),
            }
        }
        if scrub.set >= shared.sets.len() {
            scrub.set = 0;
            shared.scrubbed.rounds.fetch_add(1, Ordering::Relaxed);
        }
        shared.scrubbed.damaged.fetch_add(damage.len() as u64, Ordering::Relaxed);
        damage
    }
}
