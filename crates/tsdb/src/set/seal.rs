//! Seals points: from the head to segments.

use super::{HeadLog, Set, View};
use crate::error::{Error, Result};
use crate::head::Head;
use crate::manifest::Edit;
use crate::rows::ShardId;
use crate::segment::{Fresh, Garbage, NUMBERS_MAX, Segment, SegmentWriter};
use coreplane_pmem::{mutant, spin};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether points of a series in a shard still count.
pub(crate) type IsLive<'l> = &'l dyn Fn(ShardId, u32) -> bool;

impl Set {
    /// Seals the points of the head, unless it has fewer than `bytes_min` bytes; true if there was
    /// anything to seal.
    ///
    /// # Errors
    /// [`Error::Full`] and [`Error::Limit`], after which the points are still in the head; [`Error::Sync`].
    pub(crate) fn seal(&self, bytes_min: u64, is_live: IsLive<'_>) -> Result<bool> {
        let _alone = spin::lock(&self.sealing);
        self.pages.space().check_sync()?;
        // A head that could not be sealed the last time comes first.
        let left = self.view().frozen.clone();
        if let Some(left) = &left {
            self.seal_head(left, is_live)?;
        }
        let Some(frozen) = self.freeze(bytes_min)? else { return Ok(left.is_some()) };
        self.seal_head(&frozen, is_live)?;
        Ok(true)
    }

    fn seal_head(&self, (head, cut): &(Arc<RwLock<Head>>, u64), is_live: IsLive<'_>) -> Result<()> {
        let cut = *cut;
        self.publish_all(head)?;
        let drops = self.series_drops();
        let fresh = self.write_segments(head, is_live)?;
        if !mutant!("tsdb.seal.fence") {
            self.pages.space().fence()?;
        }
        let edit = Edit {
            log_from: cut,
            removed: Vec::new(),
            added: fresh.iter().map(|fresh| fresh.info).collect(),
        };
        if mutant!("tsdb.seal.early") {
            // The log is given back before the chunks count.
            self.trim(cut);
        }
        let (fresh, outcome) = self.commit(&edit, fresh);
        let segments: Vec<Arc<Segment>> =
            fresh.into_iter().map(|it| self.segment_of(it, drops)).collect();
        self.set_view(|view: &mut View| {
            if outcome.is_ok() {
                view.frozen = None;
            }
            for segment in segments {
                view.segments.entry(segment.info.shard).or_default().push(segment);
            }
        });
        outcome?;
        self.trim(cut);
        Ok(())
    }

    /// Commits a change of the manifest, and returns those segments that it now names. The pages of the others are
    /// given back, except after a failed sync: then the record is written, and an opening may find it. The words of
    /// the pages stay, so that the segments of that record are whole; an opening without the record frees them.
    pub(super) fn commit(&self, edit: &Edit, fresh: Vec<Fresh>) -> (Vec<Fresh>, Result<()>) {
        let mut manifest = spin::lock(&self.manifest);
        let outcome = manifest.commit(&self.pages, edit);
        let is_named = |it: &Fresh| manifest.segments.contains_key(&it.info.number);
        let (named, left): (Vec<Fresh>, Vec<Fresh>) = fresh.into_iter().partition(is_named);
        if !matches!(outcome, Err(Error::Sync(_))) || mutant!("tsdb.seal.abandon") {
            left.into_iter().for_each(|fresh| fresh.abandon(&self.pages));
        }
        (named, outcome)
    }

    fn trim(&self, cut: u64) {
        let mut log = spin::lock(&self.log);
        let HeadLog { log, .. } = &mut *log;
        log.trim(&self.pages, cut);
        self.note_room(log, false);
    }

    /// A segment without points of series that were gone after so many drops.
    pub(super) fn segment_of(&self, fresh: Fresh, drops: u64) -> Arc<Segment> {
        let info = fresh.info;
        let segment = Segment::new(&self.pages, info, fresh.finish());
        let drops = if mutant!("tsdb.garbage.unseen") { u64::MAX } else { drops };
        segment.note_garbage(drops, Garbage::default());
        Arc::new(segment)
    }

    /// Freezes the active head for sealing: a new one takes points in from now on.
    fn freeze(&self, bytes_min: u64) -> Result<Option<(Arc<RwLock<Head>>, u64)>> {
        let mut log = spin::lock(&self.log);
        if self.head_bytes() < bytes_min.max(1) {
            return Ok(None);
        }
        let head = Arc::clone(&self.view().active);
        let cut = log.log.cut(&self.pages)?;
        self.set_view(|view| {
            view.frozen = Some((Arc::clone(&head), cut));
            view.active = Arc::default();
        });
        self.head_bytes.store(0, Ordering::Relaxed);
        Ok(Some((head, cut)))
    }

    /// Publishes the points that were appended to a head and wait for a sync.
    fn publish_all(&self, head: &Arc<RwLock<Head>>) -> Result<()> {
        while !mutant!("tsdb.seal.waiting") {
            let log = spin::lock(&self.log);
            let its = log.waiting.iter().rfind(|it| Arc::ptr_eq(&it.head, head));
            let Some(generation) = its.map(|it| it.generation) else { break };
            drop(log);
            self.request(generation);
            self.finish(generation)?;
        }
        Ok(())
    }

    fn write_segments(&self, head: &RwLock<Head>, is_live: IsLive<'_>) -> Result<Vec<Fresh>> {
        let (mut done, mut current): (Vec<Fresh>, Option<(ShardId, SegmentWriter<'_>)>) =
            Default::default();
        let head = spin::read(head);
        let mut outcome = head.each(|(shard, series, field), block| {
            if !is_live(shard, series) {
                return Ok(());
            }
            if current.as_ref().is_none_or(|(it, _)| *it != shard) {
                if let Some((_, writer)) = current.take() {
                    done.extend(self.end_segment(writer)?);
                }
                current = Some((shard, self.begin_segment(shard)?));
            }
            current.as_mut().map_or(Ok(()), |(_, writer)| writer.push(series, field, &block))
        });
        if let Some((_, writer)) = current {
            match outcome {
                Ok(()) => outcome = self.end_segment(writer).map(|fresh| done.extend(fresh)),
                Err(_) => writer.abandon(),
            }
        }
        match outcome {
            Ok(()) => Ok(done),
            Err(error) => {
                done.into_iter().for_each(|fresh| fresh.abandon(&self.pages));
                Err(error)
            }
        }
    }

    /// Begins a segment with the next number.
    ///
    /// # Errors
    /// [`Error::Limit`] if all numbers are used up.
    pub(super) fn begin_segment(&self, shard: ShardId) -> Result<SegmentWriter<'_>> {
        let is_left = |number| number < NUMBERS_MAX || mutant!("tsdb.segment.number");
        let next = |number: u32| is_left(number).then(|| number.wrapping_add(1));
        let number = self.next_segment.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let none = |_| Error::Limit("all numbers of segments are used up".to_owned());
        Ok(SegmentWriter::new(&self.pages, number.map_err(none)?, shard))
    }

    /// Its age makes it the newest segment of its shard.
    fn end_segment(&self, writer: SegmentWriter<'_>) -> Result<Option<Fresh>> {
        let age = u64::from(writer.number());
        writer.finish(age)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;
    use crate::point::FieldValue;
    use crate::rows::{Batch, Place};
    use crate::set::Opening;
    use coreplane_pmem::{MediaChoice, OpenOptions, Pool};

    fn opened(pool: Pool, is_new: bool) -> Set {
        let opening = Opening::new(pool, is_new).expect("pages");
        opening.finish(&|_, _| true, 0).expect("a set")
    }

    fn write(set: &Set, series: u32, time: i64) {
        let (mut batch, value) = (Batch::default(), FieldValue::Float(0.5));
        let place = Place { series, shard: 0, time };
        assert!(batch.push(place, [(0, &value)].into_iter(), set.record_max()));
        let generation = set.append(batch).expect("room");
        set.request(generation);
        set.finish(generation).expect("a sync");
    }

    /// The segment was not looked at for such points: they are given back later.
    #[test]
    fn points_of_a_series_that_is_dropped_while_they_are_sealed_are_given_back() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = Pages::options((1, 0, 1), 1 << 20, 4096, MediaChoice::Auto);
        let pool = Pool::create(&directory.path().join("pool"), &options).expect("a pool");
        let set = opened(pool, true);
        let points =
            || set.view().segments.values().flatten().map(|it| it.info.points).sum::<u64>();
        write(&set, 0, 1);
        write(&set, 1, 1);
        set.note_dropped_series();
        let is_dropped_now = |_, _| {
            set.note_dropped_series();
            true
        };
        assert!(set.seal(0, &is_dropped_now).expect("sealed"));
        assert_eq!(points(), 2);
        let is_live = |_, series| series == 0;
        assert!(set.collect_garbage(&is_live, &|| Ok(())).expect("given back"));
        assert_eq!(points(), 1);
        // It has been looked at.
        let unseen = |_, _| panic!("nothing was dropped since");
        assert!(!set.collect_garbage(&unseen, &|| Ok(())).expect("nothing to do"));
    }

    #[test]
    fn the_last_number_of_a_segment_is_not_the_first_one_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pool");
        let options = Pages::options((1, 0, 1), 1 << 20, 4096, MediaChoice::Auto);
        let pool = Pool::create(&path, &options).expect("a pool");
        let set = opened(pool, true);
        let seals = |time: i64| {
            write(&set, 0, time);
            set.seal(0, &|_, _| true)
        };
        set.next_segment.store((1 << 28) - 1, Ordering::Relaxed);
        assert!(seals(1).expect("sealed"));
        for time in [2, 3] {
            let refused = seals(time);
            assert!(matches!(refused, Err(Error::Limit(_))), "{refused:?}");
        }
        drop(set);
        let options = OpenOptions { media: MediaChoice::Auto };
        let set = opened(Pool::open(&path, &options).expect("the pool"), false);
        let view = set.view();
        let sealed: u64 = view.segments.values().flatten().map(|it| it.info.points).sum();
        assert_eq!((sealed, spin::read(&view.active).points), (1, 2));
        assert_eq!(set.damage, [""; 0]);
    }
}
