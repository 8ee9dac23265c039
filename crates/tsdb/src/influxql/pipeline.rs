//! The way from the points of a group to its rows.
//!
//! ```text
//!   series ─┬─▶ summaries ─▶ tallies ───▶ count, sum, mean, min, max, first, last, spread ─┐
//!           │      (no filter; chunks within a bucket are not decoded)                     ├▶ fill ─▶ steps ─▶ limit
//!           └─▶ points ─▶ merge by time ─▶ bucket ─▶ median, percentile, distinct, top, …  ┘
//!                                        └─▶ derivative, moving average, … of raw points
//! ```
//!
//! Tallies are made of one series at a time, so they need one block in memory, whatever the number of series.
//! Functions that need all points of a bucket, or their order, need a block of each series of the group.

use super::ast::{Cast, Fill};
use super::budget::Fallible;
use super::cursor::Wanted;
use super::fill::Filled;
use super::function::{Call, Function, Simple, Step, Whole};
use super::group::{Group, Member};
use super::latest::{is_latest, latest};
use super::members::ReadAhead;
use super::merge::merged;
use super::plan::{Plan, Range};
use super::series::{Direct, Fields, HELD, Reading, Tallies, bytes_of, direct, fields_of};
use super::step::{Integral, Steps};
use super::stream::{Beside, Context, Point, Points, Stream};
use super::tally::{Tally, Winner, add_all};
use super::time::TIME_MIN;
use super::whole::Wholes;
use crate::value::{FieldType, Value};
use hashbrown::HashMap;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Buckets of points, and bytes of their texts, between two checks whether there may be so many.
const ASKED: usize = 256;
const TEXT_ASKED: usize = 256 << 10;

/// A field, the kind as which it is read, and the times.
type TallyKey<'a> = (&'a str, Cast, Range);

/// A group that is being processed.
pub(super) struct Pipeline<'a, 's, 'r> {
    context: Context<'a, 's>,
    plan: &'a Plan,
    group: &'a Group<'a>,
    /// The tallies that are read ahead, and the number of the group's first member there.
    ahead: Option<(&'r ReadAhead<'a>, usize)>,
    tallies: RefCell<HashMap<TallyKey<'a>, Rc<Tallies>>>,
    held: Cell<usize>,
}

/// Releases the bytes that are held for the group.
impl Drop for Pipeline<'_, '_, '_> {
    fn drop(&mut self) {
        self.context.budget.release(self.held.get());
    }
}

impl<'a, 's: 'a, 'r> Pipeline<'a, 's, 'r> {
    /// A pipeline that has read nothing yet.
    pub(super) fn new(
        context: Context<'a, 's>,
        plan: &'a Plan,
        group: &'a Group<'a>,
        ahead: Option<(&'r ReadAhead<'a>, usize)>,
    ) -> Self {
        let (tallies, held) = (RefCell::new(HashMap::new()), Cell::new(0));
        Self { context, plan, group, ahead, tallies, held }
    }

    /// The points of a SELECT without functions.
    pub(super) fn raw(&self) -> Fallible<Stream<'a>> {
        self.points(None, self.plan.range)
    }

    /// The points of a call.
    pub(super) fn call(&self, call: &'a Call) -> Fallible<Stream<'a>> {
        self.check(call)?;
        let range = self.plan.range_before(call.buckets_before());
        match &call.function {
            Function::StepOf(step, inner) => {
                Ok(self.stepped(call, *step, self.filled(inner, range)?))
            }
            _ => self.filled(call, range),
        }
    }

    /// Refuses a field whose type the function does not accept.
    fn check(&self, call: &Call) -> Fallible<()> {
        let Cast::Type(of) = call.kind else { return Ok(()) };
        let has_field = self.group.members.iter().any(|it| match it {
            Member::Stored(of, ..) => of.fields.contains_key(call.field.as_str()),
            Member::Inner(..) => true,
        });
        if has_field { call.check(of) } else { Ok(()) }
    }

    /// The points of a call, with those of empty buckets.
    fn filled(&self, call: &'a Call, range: Range) -> Fallible<Stream<'a>> {
        let plan = self.plan;
        let points: Stream<'a> = match &call.function {
            Function::Simple(simple) => Box::new(Chosen {
                context: self.context,
                plan,
                group: self.group,
                tallies: self.tallies(call, range)?,
                of: *simple,
                is_own_time: plan.is_selector() && plan.interval.is_none(),
                at: 0,
            }),
            Function::Whole(whole) => self.whole(call, whole, range)?,
            Function::Step(step) => {
                let points = self.points(Some((&call.field, call.kind)), range)?;
                return Ok(self.stepped(call, *step, points));
            }
            Function::StepOf(..) => return self.call(call),
        };
        let is_filled = match &call.function {
            Function::Whole(Whole::Distinct | Whole::Rank(..)) => false,
            _ => plan.fill != Fill::None,
        };
        let (Some(interval), true) = (plan.interval, is_filled) else { return Ok(points) };
        let is_count = matches!(
            call.function,
            Function::Simple(Simple::Count) | Function::Whole(Whole::CountDistinct)
        );
        let fill = match plan.fill {
            Fill::Null if is_count => Fill::Integer(0),
            fill => fill,
        };
        Ok(Box::new(Filled::new(
            self.context.budget,
            points,
            (fill, call.result()),
            (interval, range),
            plan.is_descending,
            plan.columns.references.len(),
        )))
    }

    fn stepped(&self, call: &Call, step: Step, points: Stream<'a>) -> Stream<'a> {
        let (interval, is_descending) = (self.plan.interval, self.plan.is_descending);
        match step {
            Step::Integral(unit) => {
                // In InfluxDB the area of floats has no time, and the area of integers begins at the end of the
                // range that comes first.
                let range = self.plan.range;
                let time = match call.kind {
                    Cast::Type(FieldType::Float) => 0,
                    _ if is_descending => range.end.saturating_add(1),
                    _ => self.plan.time_of_all(range),
                };
                Box::new(Integral::new(points, unit, interval, time, is_descending))
            }
            step => {
                let budget = self.context.budget;
                Box::new(Steps::new(budget, points, step, interval, is_descending))
            }
        }
    }

    fn whole(&self, call: &Call, whole: &'a Whole, range: Range) -> Fallible<Stream<'a>> {
        let plan = self.plan;
        let points = self.points(Some((&call.field, call.kind)), range)?;
        let sets = match whole {
            Whole::Rank(_, _, tags) if !tags.is_empty() => self.sets(tags),
            _ => Vec::new(),
        };
        let is_bucket_time = match whole {
            Whole::Rank(..) => false,
            _ => !plan.is_selector() || plan.interval.is_some(),
        };
        let times = (plan.time_of_all(range), is_bucket_time);
        let budget = self.context.budget;
        let points = (points, plan.columns.references.as_slice());
        Ok(Box::new(Wholes::new(budget, points, whole, sets, plan.interval, times)))
    }

    /// The number of the tag set of each member.
    fn sets(&self, tags: &[String]) -> Vec<u32> {
        let mut known: BTreeMap<Vec<_>, u32> = BTreeMap::new();
        let set = |it: &Member<'_>| tags.iter().map(|tag| it.tag(tag)).collect::<Vec<_>>();
        let mut number = |it| {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            *known.entry(set(it)).or_insert(next)
        };
        self.group.members.iter().map(&mut number).collect()
    }

    /// The points of all members, merged.
    fn points(&self, driver: Option<(&str, Cast)>, range: Range) -> Fallible<Stream<'a>> {
        let plan = self.plan;
        let beside = &plan.columns.references;
        let wanted = Wanted { driver, beside, range, is_descending: plan.is_descending };
        let is_latest = driver.is_none() && is_latest(plan);
        // A value beside the next point, and where the values come from.
        let values = beside.len() * 2 * size_of::<Option<Value>>();
        let mut streams = Vec::new();
        for (at, member) in self.group.members.iter().enumerate() {
            let latest = if is_latest { latest(self.context, member, at, plan)? } else { None };
            match latest {
                Some(latest) => streams.push(Box::new(latest) as Stream<'a>),
                None => streams.extend(member.points(self.context, at, plan, wanted)?),
            }
            self.hold(256 + values)?;
        }
        Ok(merged(streams, plan.is_descending))
    }

    /// The tallies of a field in buckets. They are made once, together with those of other calls.
    fn tallies(&self, call: &'a Call, range: Range) -> Fallible<Rc<Tallies>> {
        let wanted = (call.field.as_str(), call.kind, range);
        let find = || self.tallies.borrow().get(&wanted).map(Rc::clone);
        if let Some(known) = find() {
            return Ok(known);
        }
        let mut fields = fields_of(self.plan, range);
        if !fields.contains(&(wanted.0, wanted.1)) {
            fields = vec![(wanted.0, wanted.1)];
        }
        let mut all: Vec<Tallies> = vec![Tallies::new(); fields.len()];
        for (at, member) in self.group.members.iter().enumerate() {
            self.context.budget.tick()?;
            for (all, more) in all.iter_mut().zip(self.of_member(member, at, &fields, range)?) {
                let before = bytes_of(all);
                if all.is_empty() {
                    *all = more;
                } else {
                    add_all(all, more);
                }
                self.hold_instead(before, bytes_of(all))?;
            }
        }
        for ((name, kind), tallies) in fields.into_iter().zip(all) {
            // Tallies that are filled are counted by the fill, together with the empty buckets between them.
            if self.plan.interval.is_some() && self.plan.fill == Fill::None {
                self.context.budget.buckets(tallies.len())?;
            }
            self.tallies.borrow_mut().insert((name, kind, range), Rc::new(tallies));
        }
        Ok(find().unwrap_or_default())
    }

    /// Counts bytes that are held as long as the group.
    fn hold(&self, bytes: usize) -> Fallible<()> {
        self.context.budget.hold(bytes)?;
        self.held.set(self.held.get() + bytes);
        Ok(())
    }

    /// Counts the bytes of what is held in place of something else.
    fn hold_instead(&self, before: usize, after: usize) -> Fallible<()> {
        let less = before.saturating_sub(after).min(self.held.get());
        self.context.budget.release(less);
        self.held.set(self.held.get() - less);
        self.hold(after.saturating_sub(before))
    }

    /// The tallies of a member, by fields.
    fn of_member(
        &self,
        member: &'a Member<'a>,
        at: usize,
        fields: &Fields<'_>,
        range: Range,
    ) -> Fallible<Vec<Tallies>> {
        if range.start > range.end {
            return Ok(vec![Tallies::new(); fields.len()]);
        }
        let made = match self.ahead {
            Some((ahead, first)) => ahead.take(first + at, range)?,
            None => None,
        };
        // Tallies that the budget refuses are made again below, where the error is reported.
        if let Some(made) = made.filter(|it| self.most(it.buckets, it.texts).is_ok()) {
            return Ok(made.tallies);
        }
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        if let Some(direct) = direct(member, fields) {
            return self.direct(&direct, number, range);
        }
        let of_field = |field: &(&str, Cast)| match direct(member, &[*field]) {
            Some(direct) => {
                Ok(self.direct(&direct, number, range)?.into_iter().next().unwrap_or_default())
            }
            None => self.one_by_one(member, number, (field.0, field.1, range)),
        };
        fields.iter().map(of_field).collect()
    }

    fn direct(&self, direct: &Direct<'_>, number: u32, range: Range) -> Fallible<Vec<Tallies>> {
        let Some(reader) = self.context.inputs.reader(direct.of.reader) else {
            return Ok(Vec::new());
        };
        let (scope, limits) = (reader.scope(), self.context.budget.limits());
        let (interval, is_last) = (self.plan.interval, self.plan.is_last());
        let is_count = self.plan.is_count();
        if is_last {
            // A field may be looked for in each shard.
            self.context.budget.tick_by(direct.field_count() * scope.shard_count())?;
        } else {
            // A series may have many points, though fewer than are read between two checks.
            self.context.budget.check()?;
        }
        let reading = Reading { scope, range, interval, is_last, is_count, limits };
        direct.tallies(reading, number, &|buckets, texts| self.most(buckets, texts))
    }

    /// Makes tallies from single points.
    fn one_by_one(
        &self,
        member: &'a Member<'a>,
        at: u32,
        (name, kind, range): (&str, Cast, Range),
    ) -> Fallible<Tallies> {
        let plan = self.plan;
        let driver = Some((name, kind));
        let wanted = Wanted { driver, beside: &[], range, is_descending: false };
        let is_count = plan.is_count();
        let mut tallies = Tallies::new();
        let (mut texts, mut asked) = (0_usize, 0_usize);
        let mut add = |time: i64, value, row| {
            let start = plan.interval.map_or(range.start, |it| it.start(time));
            let value = match value {
                Value::String(_) if is_count => Value::Integer(0),
                value => value,
            };
            let tally = Tally::of(Winner { time, value, member: at, row });
            match tallies.last_mut() {
                Some(last) if last.0 == start => {
                    texts = texts.saturating_sub(last.1.text_bytes());
                    last.1.add(tally);
                    texts += last.1.text_bytes();
                }
                _ => {
                    texts += tally.text_bytes();
                    tallies.push((start, tally));
                }
            }
            let is_due =
                tallies.len().is_multiple_of(ASKED) || texts.saturating_sub(asked) >= TEXT_ASKED;
            if !is_due {
                return Ok(());
            }
            asked = texts;
            self.most(tallies.len(), texts)
        };
        if let Some(mut rows) = member.rows(self.context, at, plan, wanted) {
            while let Some(point) = rows.next()? {
                let row = rows.place() - 1;
                point.value.map_or(Ok(()), |value| add(point.time, value, row))?;
            }
            return Ok(by_start(tallies));
        }
        if let Some(mut points) = member.points(self.context, at as usize, plan, wanted)? {
            while let Some(point) = points.next()? {
                let Some(value) = point.value else { continue };
                add(point.time, value, 0)?;
            }
        }
        Ok(tallies)
    }

    /// Refuses so many buckets of a member, by their number and by their bytes, while they are made.
    fn most(&self, buckets: usize, texts: usize) -> Fallible<()> {
        let budget = self.context.budget;
        if self.plan.interval.is_some() {
            budget.may_have_buckets(buckets)?;
        }
        let bytes = buckets.saturating_mul(HELD).saturating_add(texts);
        budget.hold(bytes)?;
        budget.release(bytes);
        Ok(())
    }
}

/// Tallies in the order of their buckets, one for each bucket.
fn by_start(mut tallies: Vec<(i64, Tally)>) -> Vec<(i64, Tally)> {
    tallies.sort_by_key(|it| it.0);
    let mut whole: Vec<(i64, Tally)> = Vec::with_capacity(tallies.len());
    for (start, tally) in tallies {
        match whole.last_mut() {
            Some(last) if last.0 == start => last.1.add(tally),
            _ => whole.push((start, tally)),
        }
    }
    whole
}

/// The values of a function of tallies.
struct Chosen<'a, 's> {
    context: Context<'a, 's>,
    plan: &'a Plan,
    group: &'a Group<'a>,
    tallies: Rc<Tallies>,
    of: Simple,
    is_own_time: bool,
    at: usize,
}

impl Points for Chosen<'_, '_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        let at = if self.plan.is_descending {
            self.tallies.len().checked_sub(self.at + 1)
        } else {
            Some(self.at)
        };
        let Some((start, tally)) = at.and_then(|it| self.tallies.get(it)) else { return Ok(None) };
        self.at += 1;
        let (value, chosen) = tally.value(self.of);
        let start = if *start == TIME_MIN { 0 } else { *start };
        let mut point = Point { time: start, member: 0, value, beside: Beside::new() };
        if let Some(chosen) = chosen {
            if self.is_own_time {
                point.time = chosen.time;
            }
            let member = self.group.members.get(chosen.member as usize);
            if let (Some(member), false) = (member, self.plan.columns.references.is_empty()) {
                point.beside = member.beside(self.context, self.plan, chosen)?;
            }
        }
        Ok(Some(point))
    }
}
