//! SELECT: from a plan to tables.

use super::ahead::{Held, ITEMS_MIN, InOrder, Make, threads_of};
use super::ast::{Cast, Fill, Select};
use super::budget::{Budget, Cost, Fallible};
use super::evaluate::{Formula, Place, cast};
use super::group::{Group, groups};
use super::inputs::Inputs;
use super::members::ReadAhead;
use super::pipeline::Pipeline;
use super::plan::Plan;
use super::rows::{Answered, Row};
use super::stream::{Ahead, Context, Limited, Point};
use super::{Cell, Cells, Limits, Table};
use crate::value::{FieldType, Value};
use std::fmt::Debug;
use std::sync::Arc;

/// The answer to a SELECT.
pub(super) fn select(
    select: &Select,
    inputs: &mut Inputs<'_>,
    budget: &Budget<'_>,
    now: i64,
) -> Fallible<Vec<Table>> {
    let plan = Plan::new(select, inputs, budget, now)?;
    let context = Context { inputs: &*inputs, budget };
    let names: usize = plan.columns.names.iter().map(|it| size_of::<String>() + it.len()).sum();
    of_groups(&plan, context, &|group, rows| {
        let (budget, mut of_table) = (rows.budget, Vec::new());
        while let Some(row) = rows.next()? {
            if of_table.is_empty() {
                let of_tag = |(key, value): (&String, &Arc<str>)| {
                    2 * size_of::<String>() + key.len() + value.len()
                };
                budget.table(
                    names + plan.dimensions.iter().zip(&group.tags).map(of_tag).sum::<usize>(),
                )?;
            }
            budget.row(held(&row))?;
            let mut cells = Cells::with_capacity(row.values.len() + 1);
            cells.push(Cell::Time(row.time));
            cells.extend(row.values.into_iter().map(cell));
            of_table.push(cells);
        }
        Ok((!of_table.is_empty()).then(|| table(&plan, group, of_table)))
    })
}

fn table(plan: &Plan, group: &Group<'_>, rows: Vec<Cells>) -> Table {
    let tag = |(key, value): (&String, &Arc<str>)| (key.clone(), value.to_string());
    Table {
        name: Some(group.name.to_string()),
        tags: plan.dimensions.iter().zip(&group.tags).map(tag).collect(),
        columns: std::iter::once(&plan.time_name).chain(&plan.columns.names).cloned().collect(),
        rows,
    }
}

/// Bytes of a row, about.
fn held(row: &Row) -> usize {
    let texts = row.values.iter().map(|it| match it {
        Some(Value::String(text)) => text.len(),
        _ => 0,
    });
    48 + row.values.len() * size_of::<Cell>() + texts.sum::<usize>()
}

fn cell(value: Option<Value>) -> Cell {
    match value {
        None => Cell::Null,
        // JSON has no word for infinities and for values that are not a number, so InfluxDB answers null.
        Some(Value::Float(it)) if !it.is_finite() => Cell::Null,
        Some(Value::Float(it)) => Cell::Float(it),
        Some(Value::Integer(it)) => Cell::Integer(it),
        Some(Value::Unsigned(it)) => Cell::Unsigned(it),
        Some(Value::Boolean(it)) => Cell::Boolean(it),
        Some(Value::String(it)) => Cell::String(it),
    }
}

/// The groups of a sub-query, with their rows.
fn answered(plan: &Plan, context: Context<'_, '_>) -> Fallible<Vec<Answered>> {
    of_groups(plan, context, &|group, rows| {
        let budget = rows.budget;
        let mut table =
            Answered { name: Arc::clone(&group.name), tags: group.tags.clone(), rows: Vec::new() };
        while let Some(row) = rows.next()? {
            budget.tick()?;
            budget.hold(held(&row))?;
            table.rows.push(row);
        }
        Ok((!table.rows.is_empty()).then_some(table))
    })
}

/// Makes a result from the rows of a group, if there are any; called by several threads.
type MakeTable<'m, T> = &'m (dyn Fn(&Group<'_>, &mut Rows<'_>) -> Fallible<Option<T>> + Sync);

/// The result of a group that a thread with a budget of its own has made, and its cost.
#[derive(Debug)]
struct Made<T> {
    table: Option<T>,
    cost: Cost,
}

impl<T: Debug + Send + 'static> Held for Made<T> {
    fn bytes(&self) -> usize {
        self.cost.bytes.saturating_add(size_of::<Self>())
    }
}

/// The results of all groups that have rows, in the order of the groups.
fn of_groups<T: Debug + Send + 'static>(
    plan: &Plan,
    context: Context<'_, '_>,
    make: MakeTable<'_, T>,
) -> Fallible<Vec<T>> {
    let mut kinds = plan.columns.references.iter().map(|(_, kind)| *kind);
    if plan.calls().is_empty() && kinds.all(|kind| kind == Cast::None) {
        // There are no rows if no name is known.
        return Ok(Vec::new());
    }
    let answer = |inner| answered(inner, context);
    let groups = groups(plan, context, &answer)?;
    let empty = empty(plan);
    let Context { inputs, budget } = context;
    let members: usize = groups.iter().map(|it| it.members.len()).sum();
    let threads = if members < ITEMS_MIN { 1 } else { threads_of(budget.limits()) };
    if threads > 1 && is_even(&groups, members, threads) {
        let make_ahead = |group: &&Group<'_>, part: &Limits| {
            let budget = Budget::new(part);
            let context = Context { inputs, budget: &budget };
            let table = of_group((plan, &empty), context, group, None, make);
            table.ok().map(|table| Made { table, cost: budget.cost() })
        };
        return each_ahead((plan, &empty), context, &groups, Box::new(make_ahead), make);
    }
    let ahead = if threads > 1 { ReadAhead::new(context, plan, &groups) } else { None };
    let (mut all, mut members) = (Vec::new(), 0);
    for group in &groups {
        budget.tick()?;
        let ahead = ahead.as_ref().map(|it| (it, members));
        members += group.members.len();
        all.extend(of_group((plan, &empty), context, group, ahead, make)?);
    }
    Ok(all)
}

/// True if each group is made by one thread: there are many groups, and none has more than a thread's share of the
/// series. Otherwise several threads read the series of a group.
fn is_even(groups: &[Group<'_>], series: usize, threads: usize) -> bool {
    let largest = groups.iter().map(|it| it.members.len()).max().unwrap_or(0);
    groups.len() >= ITEMS_MIN && largest.saturating_mul(threads) <= series
}

/// The same, with groups made ahead.
fn each_ahead<'a, T: Debug + Send + 'static>(
    of: (&Plan, &Empty),
    context: Context<'_, '_>,
    groups: &'a [Group<'a>],
    make_ahead: Make<'_, &'a Group<'a>, Made<T>>,
    make: MakeTable<'_, T>,
) -> Fallible<Vec<T>> {
    let budget = context.budget;
    let ahead = InOrder::new(budget, groups.iter().collect(), make_ahead);
    let mut all = Vec::new();
    for (at, group) in groups.iter().enumerate() {
        budget.tick()?;
        // A result that the budget refuses is made again here, where the error is reported.
        match ahead.take(at)?.filter(|it| budget.charge(&it.cost)) {
            Some(made) => all.extend(made.table),
            None => all.extend(of_group(of, context, group, None, make)?),
        }
    }
    Ok(all)
}

/// The result of a group; none if it has no rows.
fn of_group<'a, 's: 'a, T>(
    (plan, empty): (&'a Plan, &Empty),
    context: Context<'a, 's>,
    group: &'a Group<'a>,
    ahead: Option<(&ReadAhead<'a>, usize)>,
    make: MakeTable<'_, T>,
) -> Fallible<Option<T>> {
    let pipeline = Pipeline::new(context, plan, group, ahead);
    let mut streams = Vec::with_capacity(plan.calls().len().max(1));
    if plan.calls().is_empty() {
        streams.push(Ahead::new(Box::new(Limited::new(pipeline.raw()?, plan.rows))));
    }
    for call in plan.calls() {
        let points = pipeline.call(call)?;
        streams.push(Ahead::new(Box::new(Limited::new(points, plan.rows))));
    }
    make(group, &mut Rows { plan, streams, slots: Slots::new(empty), budget: context.budget })
}

/// The content of slots that have no value, and the number of slots; with `fill(previous)` there is no such
/// content.
struct Empty {
    slots: Option<Vec<Option<Value>>>,
    count: usize,
}

/// The empty slots of a plan.
fn empty(plan: &Plan) -> Empty {
    let of_calls = plan.calls().iter().map(|it| it.result());
    let of_references = plan.columns.references.iter().map(|(_, kind)| match kind {
        Cast::Type(it) => Some(*it),
        _ => None,
    });
    let number = match plan.fill {
        Fill::Integer(it) => Some(Value::Integer(it)),
        Fill::Number(it) => Some(Value::Float(it)),
        _ => None,
    };
    let filled = |of: Option<FieldType>| match (number.clone(), of) {
        (Some(number), Some(of)) => Some(cast(number, of)),
        (number, _) => number,
    };
    let slots: Vec<_> = of_calls.chain(of_references).map(filled).collect();
    Empty { count: slots.len(), slots: (plan.fill != Fill::Previous).then_some(slots) }
}

/// The values that the formulas of a row use. With `fill(previous)` a value stays until there is another one.
struct Slots<'r> {
    values: Vec<Option<Value>>,
    empty: &'r Empty,
}

impl<'r> Slots<'r> {
    fn new(empty: &'r Empty) -> Self {
        Self { values: vec![None; empty.count], empty }
    }

    /// Puts a value, or the substitute for none, into a slot.
    fn put(&mut self, at: usize, value: Option<Value>) {
        let value = match (value, &self.empty.slots) {
            (None, None) => return,
            (None, Some(empty)) => empty.get(at).cloned().flatten(),
            (value, _) => value,
        };
        if let Some(slot) = self.values.get_mut(at) {
            *slot = value;
        }
    }
}

/// The rows of a group: the points of all calls at one time make one row.
struct Rows<'r> {
    plan: &'r Plan,
    streams: Vec<Ahead<'r>>,
    slots: Slots<'r>,
    budget: &'r Budget<'r>,
}

impl Rows<'_> {
    fn next(&mut self) -> Fallible<Option<Row>> {
        let mut next: Option<i64> = None;
        for stream in &mut self.streams {
            if let Some(time) = stream.peek()?.map(|it| it.time) {
                let is_sooner = next.is_none_or(|it| (time < it) != self.plan.is_descending);
                next = if is_sooner && next != Some(time) { Some(time) } else { next };
            }
        }
        let Some(time) = next else { return Ok(None) };
        let calls = self.plan.calls().len();
        for at in 0..self.streams.len() {
            let Some(stream) = self.streams.get_mut(at) else { continue };
            let is_now = stream.peek()?.is_some_and(|it| it.time == time);
            let point = if is_now { stream.take()? } else { None };
            let Point { value, beside, .. } = point.unwrap_or_default();
            if calls > 0 {
                self.slots.put(at, value);
            }
            let mut beside = beside.into_iter();
            for at in 0..self.plan.columns.references.len() {
                self.slots.put(calls + at, beside.next().flatten());
            }
        }
        let value = |it: &Formula| it.value(&self.slots.values, Place::Column, self.budget);
        let values = self.plan.columns.formulas.iter().map(value).collect::<Fallible<_>>()?;
        Ok(Some(Row { time, values }))
    }
}
