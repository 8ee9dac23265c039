//! SELECT: from a plan to tables.

use super::ast::{Cast, Fill, Select};
use super::budget::{Budget, Fallible};
use super::evaluate::{Place, cast};
use super::group::{Group, groups};
use super::inputs::Inputs;
use super::pipeline::Pipeline;
use super::plan::Plan;
use super::rows::{Answered, Row};
use super::stream::{Ahead, Context, Limited, Point};
use super::threads::ReadAhead;
use super::{Cell, Cells, Table};
use crate::value::{FieldType, Value};

/// The answer to a SELECT.
pub(super) fn select(
    select: &Select,
    inputs: &mut Inputs<'_>,
    budget: &Budget<'_>,
    now: i64,
) -> Fallible<Vec<Table>> {
    let plan = Plan::new(select, inputs, now)?;
    let context = Context { inputs: &*inputs, budget };
    let mut tables = Vec::new();
    each_group(&plan, context, &mut |group, rows| {
        let mut table = Table {
            name: Some(group.name.to_string()),
            tags: group.tags.iter().map(|(key, value)| (key.clone(), value.to_string())).collect(),
            columns: Vec::with_capacity(plan.columns.names.len() + 1),
            rows: Vec::new(),
        };
        table.columns.push(plan.time_name.clone());
        table.columns.extend(plan.columns.names.iter().cloned());
        while let Some(row) = rows.next()? {
            budget.row(held(&row))?;
            let mut cells = Cells::with_capacity(row.values.len() + 1);
            cells.push(Cell::Time(row.time));
            cells.extend(row.values.into_iter().map(cell));
            table.rows.push(cells);
        }
        if !table.rows.is_empty() {
            tables.push(table);
        }
        Ok(())
    })?;
    Ok(tables)
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
        // JSON has no word for what is no number, so InfluxDB says null.
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
    let mut all = Vec::new();
    each_group(plan, context, &mut |group, rows| {
        let mut table = Answered {
            name: std::sync::Arc::clone(&group.name),
            tags: group.tags.clone(),
            rows: Vec::new(),
        };
        while let Some(row) = rows.next()? {
            context.budget.tick()?;
            context.budget.hold(held(&row))?;
            table.rows.push(row);
        }
        if !table.rows.is_empty() {
            all.push(table);
        }
        Ok(())
    })?;
    Ok(all)
}

type Visit<'v> = &'v mut dyn FnMut(&Group<'_>, &mut Rows<'_>) -> Fallible<()>;

/// Gives the rows of each group to a visitor.
fn each_group(plan: &Plan, context: Context<'_, '_>, visit: Visit<'_>) -> Fallible<()> {
    let mut kinds = plan.columns.references.iter().map(|(_, kind)| *kind);
    if plan.calls().is_empty() && kinds.all(|kind| kind == Cast::None) {
        // Of nothing that is known there are no rows.
        return Ok(());
    }
    let answer = |inner| answered(inner, context);
    let groups = groups(plan, context, &answer)?;
    let mut slots = Slots::new(plan);
    let ahead = ReadAhead::new(context, plan, &groups);
    let mut members = 0;
    for group in &groups {
        context.budget.tick()?;
        slots.values.fill(None);
        let ahead = ahead.as_ref().map(|it| (it, members));
        members += group.members.len();
        let pipeline = Pipeline::new(context, plan, group, ahead);
        let mut streams = Vec::new();
        if plan.calls().is_empty() {
            streams.push(Ahead::new(Box::new(Limited::new(pipeline.raw()?, plan.rows))));
        }
        for call in plan.calls() {
            let points = pipeline.call(call)?;
            streams.push(Ahead::new(Box::new(Limited::new(points, plan.rows))));
        }
        let mut rows = Rows { plan, streams, slots: &mut slots };
        visit(group, &mut rows)?;
    }
    Ok(())
}

/// What the formulas of a row are of. With `fill(previous)` a value stays until there is another one.
struct Slots {
    values: Vec<Option<Value>>,
    empty: Option<Vec<Option<Value>>>,
}

impl Slots {
    fn new(plan: &Plan) -> Self {
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
        let empty: Vec<_> = of_calls.chain(of_references).map(filled).collect();
        Self {
            values: vec![None; empty.len()],
            empty: (plan.fill != Fill::Previous).then_some(empty),
        }
    }

    /// Puts a value, or what stands for none.
    fn put(&mut self, at: usize, value: Option<Value>) {
        let value = match (value, &self.empty) {
            (None, None) => return,
            (None, Some(empty)) => empty.get(at).cloned().flatten(),
            (value, _) => value,
        };
        if let Some(slot) = self.values.get_mut(at) {
            *slot = value;
        }
    }
}

/// The rows of a group: the points of all calls that are at one time make one.
struct Rows<'r> {
    plan: &'r Plan,
    streams: Vec<Ahead<'r>>,
    slots: &'r mut Slots,
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
        let formulas = self.plan.columns.formulas.iter();
        let values = formulas.map(|it| it.value(&self.slots.values, Place::Column)).collect();
        Ok(Some(Row { time, values }))
    }
}
