//! Writes points.
//!
//! ```text
//!   points ─▶ names: all known? ─no─▶ made, with one fence ─▶ rows of each queue set ─▶ logs ─ fence ─▶ heads
//! ```

use super::upkeep::Patience;
use super::{Shared, Store, place_of};
use crate::catalogue::{Catalogue, Measurement, PolicyId, Series, Shard, type_conflict};
use crate::error::{Error, Result};
use crate::names::interval_of_text;
use crate::point::{FieldValue, Point, check_time};
use crate::rows::{Batch, Place};
use crate::set::Set;
use crate::value::STRING_MAX;
use coreplane_pmem::epoch::{Writes, pin_in};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Points that are durable.
    pub written: u64,
    /// Points that were not written: their index in the input, and the reason in InfluxDB's words.
    pub rejected: Vec<(usize, String)>,
}

/// Points on the way to the logs of their queue sets.
struct Rows<'w, 'p> {
    store: &'w Shared,
    points: &'w [Point<'p>],
    database: u32,
    policy: PolicyId,
    /// Points before this time are refused: the policy no longer keeps them.
    oldest: i64,
    batches: Vec<Batch>,
    outcome: Outcome,
    /// The names of points before this place have been made, except those of refused points, which are listed with
    /// the reasons, ascending.
    named: usize,
    refused: Vec<(usize, String)>,
    /// The shard of the last point.
    shard: Option<Shard>,
}

/// The reason why a point cannot become a row now.
enum Stop {
    /// One of its names does not exist.
    Unknown,
    Rejected(String),
}

impl Store {
    /// Writes points to a policy of a database; none: the default policy. Points that are counted as written are
    /// durable when it returns, and every reader sees them. Of points of the same time the last one wins, in the
    /// order given.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::Upkeep`] before anything is written; [`Error::Full`] and [`Error::Sync`],
    /// after which some of the points may be written.
    pub fn write(
        &self,
        database: &str,
        policy: Option<&str>,
        points: &[Point<'_>],
    ) -> Result<Outcome> {
        self.write_within(database, policy, points, &mut Patience::default())
    }

    /// The same, for a caller who waits for room no longer than `patience` lasts: several writes of one request
    /// share it.
    ///
    /// # Errors
    /// As [`Store::write`].
    pub fn write_within(
        &self,
        database: &str,
        policy: Option<&str>,
        points: &[Point<'_>],
        patience: &mut Patience,
    ) -> Result<Outcome> {
        self.shared.check_upkeep()?;
        let mut outcome = self.shared.write(database, policy, points);
        // Where this thread seals, it tries again although it failed before: there may be room by now.
        let may_seal = || self.upkeep.is_none() || self.trouble().is_none();
        let is_short = || self.shared.sets.iter().any(Set::is_short) && may_seal();
        if matches!(outcome, Err(Error::Full(_))) && is_short() {
            // There is room once the points of heads are sealed. Those that are written already are written again.
            self.make_room(patience)?;
            outcome = self.shared.write(database, policy, points);
        }
        let outcome = outcome?;
        self.make_room(patience)?;
        Ok(outcome)
    }
}

impl<'w, 'p> Rows<'w, 'p> {
    fn new(
        store: &'w Shared,
        database: &str,
        policy: Option<&str>,
        points: &'w [Point<'p>],
    ) -> Result<Self> {
        let names = store.names.read();
        let (database, policy) = place_of(&names, database, policy)?;
        let duration = names.policy_by_id(policy).map_or(0, |policy| policy.duration_ns);
        let oldest = match i64::try_from(duration) {
            Ok(0) | Err(_) => i64::MIN,
            Ok(duration) => store.now().saturating_sub(duration),
        };
        Ok(Self {
            store,
            points,
            database,
            policy,
            oldest,
            batches: (0..store.sets.len()).map(|_| Batch::default()).collect(),
            outcome: Outcome::default(),
            named: 0,
            refused: Vec::new(),
            shard: None,
        })
    }

    /// Makes rows of points, up to a point with a missing name; returns the place of that point.
    fn gather(&mut self, from: usize, to: usize) -> usize {
        let names = self.store.names.read();
        for (at, point) in self.points.iter().enumerate().take(to).skip(from) {
            match self.row(&names, point) {
                Ok(()) => self.outcome.written += 1,
                Err(Stop::Rejected(why)) => self.outcome.rejected.push((at, why)),
                Err(Stop::Unknown) if at < self.named => {
                    // Its names could not be made, or are dropped again.
                    let refused = self.refused.binary_search_by_key(&at, |(place, _)| *place);
                    let refused = refused.ok().and_then(|it| self.refused.get(it));
                    let why = refused.map_or("its series was dropped", |(_, why)| why);
                    self.outcome.rejected.push((at, why.to_owned()));
                }
                Err(Stop::Unknown) => return at,
            }
        }
        to
    }

    fn row(&mut self, names: &Catalogue, point: &Point<'_>) -> std::result::Result<(), Stop> {
        if point.time < self.oldest {
            return Err(Stop::Rejected("points beyond retention policy".to_owned()));
        }
        check_time(point.time).map_err(Stop::Rejected)?;
        let key = point.series.as_str();
        let series: &Arc<Series> = names.series_of(self.database, key).ok_or(Stop::Unknown)?;
        if !series.keep() {
            return Err(Stop::Unknown);
        }
        let is_in = |it: &Shard| it.start <= point.time && point.time < it.end;
        if !self.shard.as_ref().is_some_and(is_in) {
            self.shard = names.shard_of(self.policy, point.time).copied();
        }
        let shard = self.shard.filter(|it| names.is_shard_live(it.id)).ok_or(Stop::Unknown)?;
        let mut fields: SmallVec<[(u32, &FieldValue<'_>); 16]> = SmallVec::new();
        let its = names.measurement_by_id(series.measurement).ok_or(Stop::Unknown)?;
        let mut hint = 0;
        for (name, value) in point.fields.iter().filter(|(name, _)| name != TIME) {
            fields.push((field_of(its, name, &mut hint, value)?, value));
        }
        if fields.is_empty() {
            let measurement = its.name();
            return Err(Stop::Rejected(format!(
                "invalid field name: input field \"{TIME}\" on measurement \"{measurement}\" is invalid"
            )));
        }
        let place = Place { series: series.id, shard: shard.id, time: point.time };
        let set =
            self.store.sets.get(series.set as usize).zip(self.batches.get_mut(series.set as usize));
        let (set, batch) =
            set.ok_or_else(|| Stop::Rejected("its queue set is missing".to_owned()))?;
        match batch.push(place, fields.into_iter(), set.record_max()) {
            true => Ok(()),
            false => Err(Stop::Rejected(format!(
                "a string is longer than {STRING_MAX} bytes, or than a page"
            ))),
        }
    }

    /// Makes the missing names of points, from this one on.
    fn name(&mut self, from: usize) -> Result<()> {
        let pages = &self.store.sets.first().ok_or_else(no_sets)?.pages;
        let (points, database, policy) = (self.points, self.database, self.policy);
        let (oldest, names) = (self.oldest, &self.store.names);
        let mut refused = Vec::new();
        names.change(pages, |draft| {
            for (at, point) in points.iter().enumerate().skip(from) {
                if point.time < oldest || check_time(point.time).is_err() {
                    continue;
                }
                let fields = point.fields.iter().filter(|(name, _)| name != TIME);
                let fields = fields.map(|(name, value)| (&**name, value.field_type()));
                let interval = self.store.interval_of(points, at);
                let drawn = draft
                    .point(database, &point.series, fields, interval)
                    .and_then(|()| draft.shard(policy, point.time));
                match drawn {
                    Ok(()) => {}
                    Err(Error::Input(why) | Error::Limit(why)) => refused.push((at, why)),
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })?;
        (self.named, self.refused) = (points.len(), refused);
        Ok(())
    }

    /// Makes the rows durable, and visible.
    fn commit(&mut self) -> Result<()> {
        let mut waiting: SmallVec<[(&Set, u64); 8]> = SmallVec::new();
        let mut outcome = Ok(());
        for (set, batch) in self.store.sets.iter().zip(&mut self.batches) {
            if outcome.is_ok() && !batch.is_empty() {
                match set.append(std::mem::take(batch)) {
                    Ok(generation) => waiting.push((set, generation)),
                    Err(error) => outcome = Err(error),
                }
            }
        }
        // All syncs are requested at once; also those of a write that has failed elsewhere.
        waiting.iter().for_each(|(set, generation)| set.request(*generation));
        for (set, generation) in waiting {
            outcome = outcome.and(set.finish(generation));
        }
        outcome
    }
}

/// The number of a field. Its place is mostly the one behind the field before.
#[inline]
fn field_of(
    measurement: &Measurement,
    name: &str,
    hint: &mut usize,
    value: &FieldValue<'_>,
) -> std::result::Result<u32, Stop> {
    let (place, field) = measurement.field(name, *hint).ok_or(Stop::Unknown)?;
    *hint = place + 1;
    let of = value.field_type();
    if field.field_type == of {
        return Ok(field.id);
    }
    Err(Stop::Rejected(type_conflict(measurement.name(), field, of).to_string()))
}

fn no_sets() -> Error {
    Error::Pools("the store has no queue set".to_owned())
}

impl Shared {
    /// Writes points; does not wait for room.
    fn write(&self, database: &str, policy: Option<&str>, points: &[Point<'_>]) -> Result<Outcome> {
        // No series that is used here is dropped for lack of points before they are there.
        let _begun = pin_in::<Writes>();
        let mut rows = Rows::new(self, database, policy, points)?;
        let mut from = 0;
        while from < points.len() {
            let to = points.len().min(from + GATHER);
            from = rows.gather(from, to);
            if from < to {
                // One of its names is missing, and maybe some names of later points.
                rows.name(from)?;
            }
        }
        rows.commit()?;
        Ok(rows.outcome)
    }

    /// The sampling interval that a point's device states, or that its points here have.
    fn interval_of(&self, points: &[Point<'_>], at: usize) -> Option<Duration> {
        let point = points.get(at)?;
        if let Some(tag) = &self.options.interval_tag {
            let stated = point.series.tags().find(|(key, _)| **key == **tag)?;
            return interval_of_text(&stated.1);
        }
        let next = points
            .get(at + 1..)?
            .iter()
            .take(LOOK_AHEAD)
            .find(|next| next.series == point.series)?;
        let gap = next.time.checked_sub(point.time)?.unsigned_abs();
        (gap > 0).then_some(Duration::from_nanos(gap))
    }
}

/// No field and no tag can have this name. Such a field is skipped, as InfluxDB does it.
const TIME: &str = "time";
/// The number of points that become rows under one lock of the names.
const GATHER: usize = 2048;
/// The number of following points in which the next point of the same series is looked for.
const LOOK_AHEAD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Policy, TagFilter};
    use crate::point::SeriesKey;
    use crate::store::Options;
    use coreplane_pmem::media::sim::{Sim, SimOptions};
    use std::time::Instant;

    const HOUR: i64 = 3_600_000_000_000;

    fn sim() -> Sim {
        let len = 4 << 20;
        let (spaces, page_size, own_epochs) = (1, 16 << 10, true);
        let options = SimOptions {
            spaces,
            len,
            max_len: len,
            page_size,
            own_epochs,
            ..SimOptions::default()
        };
        Sim::new(&options).expect("memory")
    }

    fn point(time: i64) -> Point<'static> {
        Point {
            series: SeriesKey::new("m", [("a", "1")]).expect("a key").into_owned(),
            fields: [("f".into(), FieldValue::Integer(1))].into_iter().collect(),
            time,
        }
    }

    /// A search in a head lets writers in between, and costs what the fewer of its series cost.
    #[test]
    fn a_search_for_points_holds_no_head() {
        let sim = sim();
        let store = store(&sim);
        let points: Vec<_> = (0..2_500)
            .map(|at| Point {
                series: SeriesKey::new("m", [("a", &*format!("b{at}"))])
                    .expect("a key")
                    .into_owned(),
                ..point(HOUR)
            })
            .collect();
        store.write("d", None, &points).expect("written");
        for set in &store.shared.sets {
            let view = set.view();
            for ids in [vec![0, 1], (0..3_000).collect::<Vec<_>>()] {
                let (breaths, few) = (std::cell::Cell::new(0), ids.len() == 2);
                let breath = || {
                    assert!(view.active.try_write().is_some(), "the head is locked");
                    breaths.set(breaths.get() + 1);
                    Ok(())
                };
                set.without_points(ids, &|_| true, &breath).expect("a search");
                assert!(!few || breaths.get() <= 1, "{} steps", breaths.get());
            }
        }
        let reader = store.reader("d", None).expect("a reader");
        let refused = reader.tag_values_within("m", "a", &|work| Err(work));
        assert_eq!(refused, Err(crate::catalogue::Work::List(2_501)));
    }

    /// A series, whose point is over at [`LATER`]; without a background thread.
    fn store(sim: &Sim) -> Store {
        let store = Store::simulated_create(sim.spaces(), &Options::default()).expect("a store");
        store.set_clock(HOUR);
        store.create_database("d").expect("a database");
        let (name, duration_ns, shard_ns) = ("autogen".to_owned(), HOUR as u64, HOUR as u64);
        let policy = Policy { name, duration_ns, shard_ns, is_default: true };
        store.put_policy("d", &policy).expect("a policy");
        store.write("d", None, &[point(HOUR)]).expect("written");
        store
    }

    const LATER: i64 = 10 * HOUR;

    /// The numbers of series and of points.
    fn counts(store: &Store) -> (usize, u64) {
        let reader = store.reader("d", None).expect("a reader");
        let all = reader.series("m", &TagFilter::All);
        let Some(field) = reader.fields("m").pop() else { return (all.len(), 0) };
        let sums = all
            .iter()
            .flat_map(|it| reader.summaries(it, &field, 0..=i64::MAX, None).expect("sums"));
        (all.len(), sums.map(|(_, it)| it.count).sum())
    }

    /// A write has found its series, and appends its rows after the series was seen to be without points.
    #[test]
    fn a_series_is_not_dropped_while_a_write_that_found_it_goes_on() {
        let sim = sim();
        let store = store(&sim);
        let points = [point(5 * LATER)];
        let begun = pin_in::<Writes>();
        let mut rows = Rows::new(&store.shared, "d", None, &points).expect("rows");
        // The shard is missing.
        assert_eq!(rows.gather(0, 1), 0);
        rows.name(0).expect("names");
        assert_eq!(rows.gather(0, 1), 1);
        store.set_clock(LATER);
        std::thread::scope(|scope| {
            let expiry = scope.spawn(|| store.expire());
            let since = Instant::now();
            while !expiry.is_finished() && since.elapsed() < Duration::from_millis(300) {
                std::thread::sleep(Duration::from_millis(1));
            }
            rows.commit().expect("written");
            drop(begun);
            expiry.join().expect("the expiry").expect("dropped");
        });
        assert_eq!(counts(&store), (1, 1));
        // Without another write it leaves.
        store.set_clock(9 * LATER);
        store.expire().expect("dropped");
        assert_eq!(counts(&store), (0, 0));
    }

    /// A write comes between the second look at a series without points, and its drop.
    #[test]
    fn a_write_keeps_a_series_that_was_found_without_points() {
        let sim = sim();
        let store = store(&sim);
        store.write("d", None, &[point(5 * LATER)]).expect("written");
        let series = store.reader("d", None).expect("a reader").series("m", &TagFilter::All);
        let its = series.first().expect("a series");
        for is_named in [false, true] {
            its.note_empty();
            let before = counts(&store).1;
            // A point that needs a shard makes names; the other does not.
            let time = if is_named { 6 * LATER } else { 5 * LATER + 1 };
            store.write("d", None, &[point(time)]).expect("written");
            store.shared.drop_doomed(&[its.id]).expect("none to drop");
            assert_eq!(counts(&store), (1, before + 1));
        }
        its.note_empty();
        store.shared.drop_doomed(&[its.id]).expect("dropped");
        assert_eq!(counts(&store), (0, 0));
    }

    /// A write finds a series whose drop is being logged, which then fails.
    #[test]
    fn a_write_revives_a_series_whose_drop_has_failed() {
        let sim = sim();
        let store = store(&sim);
        let series = store.reader("d", None).expect("a reader").series("m", &TagFilter::All);
        let its = series.first().expect("a series");
        its.note_empty();
        assert!(its.doom() && !its.keep());
        let outcome = store.write("d", None, &[point(HOUR + 1)]).expect("written");
        assert_eq!((outcome.written, counts(&store)), (1, (1, 2)));
    }
}
