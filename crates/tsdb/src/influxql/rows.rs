//! The rows of a sub-query, as points for the SELECT around it.

use super::ast::{Cast, Expr};
use super::budget::{Budget, Fallible};
use super::evaluate::{self, Formula, cast};
use super::plan::{Plan, Range};
use super::stream::{Beside, Point, Points};
use crate::value::{FieldType, Value};
use smallvec::SmallVec;
use std::sync::Arc;

/// A row.
#[derive(Debug, Clone)]
pub(super) struct Row {
    /// Its time.
    pub(super) time: i64,
    /// The values of its columns, mostly one.
    pub(super) values: SmallVec<[Option<Value>; 1]>,
}

/// The rows of a group of a sub-query.
#[derive(Debug)]
pub(super) struct Answered {
    /// The measurement.
    pub(super) name: Arc<str>,
    /// The values of the dimensions of its plan.
    pub(super) tags: Vec<Arc<str>>,
    /// In the direction of the SELECT around it.
    pub(super) rows: Vec<Row>,
}

impl Answered {
    /// A tag of the group, which is one of this plan; empty if there is none.
    pub(super) fn tag(&self, plan: &Plan, key: &str) -> Arc<str> {
        let place = plan.dimensions.binary_search_by(|name| (**name).cmp(key));
        let found = place.ok().and_then(|place| self.tags.get(place));
        found.map_or_else(|| "".into(), Arc::clone)
    }
}

/// The place from which a value of a row comes.
enum Place {
    Column(usize, Option<FieldType>),
    Same(Option<Value>),
}

impl Place {
    /// Columns come first, then the tags by which the sub-query groups.
    fn find(plan: &Plan, of: &Answered, name: &str, kind: Cast) -> Self {
        match plan.columns.bases.iter().position(|it| it == name) {
            Some(at) => Self::Column(
                at,
                match kind {
                    Cast::Type(it) => Some(it),
                    _ => None,
                },
            ),
            None if plan.own_dimensions.contains(name) => {
                Self::Same(Some(Value::String(of.tag(plan, name))))
            }
            None => Self::Same(None),
        }
    }

    fn value(&self, row: &Row) -> Option<Value> {
        match self {
            Self::Same(value) => value.clone(),
            Self::Column(at, to) => {
                let value = row.values.get(*at).cloned().flatten()?;
                Some(to.map_or_else(|| value.clone(), |to| cast(value.clone(), to)))
            }
        }
    }
}

/// The points of the rows of a group.
pub(super) struct RowPoints<'a> {
    budget: &'a Budget<'a>,
    of: &'a Answered,
    at: usize,
    member: u32,
    driver: Option<Place>,
    beside: Vec<Place>,
    filter: Option<(Formula, Vec<Place>)>,
    /// The times of rows that are skipped.
    others: Option<Range>,
    row: Vec<Option<Value>>,
}

impl<'a> RowPoints<'a> {
    /// None if nothing has the name of the driver.
    pub(super) fn open(
        budget: &'a Budget<'a>,
        (plan, of): (&Plan, &'a Answered),
        filter: Option<&Expr>,
        member: u32,
        driver: Option<(&str, Cast)>,
        beside: &[(String, Cast)],
    ) -> Option<Self> {
        let driver = match driver {
            None => None,
            Some((name, kind)) => match Place::find(plan, of, name, kind) {
                Place::Same(None) => return None,
                place => Some(place),
            },
        };
        let beside = beside.iter().map(|(name, kind)| Place::find(plan, of, name, *kind)).collect();
        let filter = filter.map(|filter| {
            let mut places = Vec::new();
            let formula = Formula::new(filter, &mut |it| match it {
                Expr::Reference(name, kind) => {
                    // A name that is not a column is a tag, which is empty if it does not exist.
                    places.push(match Place::find(plan, of, name, *kind) {
                        Place::Same(None) => Place::Same(Some(Value::String(of.tag(plan, name)))),
                        place => place,
                    });
                    Formula::Slot(places.len() - 1)
                }
                _ => Formula::Literal(None),
            });
            (formula, places)
        });
        let (others, row) = (None, Vec::new());
        Some(Self { budget, of, at: 0, member, driver, beside, filter, others, row })
    }

    /// The same points without those of a range.
    pub(super) fn without(self, others: Option<Range>) -> Self {
        Self { others, ..self }
    }

    /// The number of the row of the next point, or a later one.
    pub(super) fn place(&self) -> usize {
        self.at
    }
}

/// The values beside a point, in one row.
pub(super) fn beside_in(
    (plan, of): (&Plan, &Answered),
    beside: &[(String, Cast)],
    row: usize,
) -> Beside {
    let Some(row) = of.rows.get(row) else { return Beside::new() };
    beside.iter().map(|(name, kind)| Place::find(plan, of, name, *kind).value(row)).collect()
}

impl Points for RowPoints<'_> {
    fn next(&mut self) -> Fallible<Option<Point>> {
        while let Some(row) = self.of.rows.get(self.at) {
            self.at += 1;
            self.budget.tick()?;
            if self.others.is_some_and(|it| it.start <= row.time && row.time <= it.end) {
                continue;
            }
            if let Some((formula, places)) = &self.filter {
                self.row.clear();
                self.row.extend(places.iter().map(|it| it.value(row)));
                if !formula.is_true(&self.row, evaluate::Place::Rows, self.budget)? {
                    continue;
                }
            }
            let value = self.driver.as_ref().and_then(|it| it.value(row));
            let beside = self.beside.iter().map(|it| it.value(row)).collect();
            return Ok(Some(Point { time: row.time, member: self.member, value, beside }));
        }
        Ok(None)
    }
}
