//! SHOW: names in the store.

use super::ast::{Counted, Expr, Keys, Measurement, Name, Scope, Window};
use super::budget::{Budget, Fallible};
use super::condition::{Said, Settled, of_measurement, settle, split};
use super::inputs::{Inputs, named};
use super::time::go_duration;
use super::token::Operator;
use super::{Cell, Cells, Table};
use crate::catalogue::{Series, TagFilter};
use crate::read::Reader;
use crate::store::Store;
use smallvec::smallvec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Bytes of a row of one name, and of a table, about.
const ROW_BYTES: usize = 64;
const TABLE_BYTES: usize = 256;

fn text(of: &str) -> Cell {
    Cell::String(of.into())
}

fn table(name: Option<&str>, columns: &[&str], rows: Vec<Cells>) -> Table {
    Table {
        name: name.map(str::to_owned),
        tags: Vec::new(),
        columns: columns.iter().map(|it| (*it).to_owned()).collect(),
        rows,
    }
}

/// The items of a window.
fn windowed<T>(of: impl Iterator<Item = T>, window: Window) -> impl Iterator<Item = T> {
    let limit = if window.limit == 0 { usize::MAX } else { window.limit };
    of.skip(window.offset).take(limit)
}

/// The inputs of a SHOW statement.
pub(super) struct Show<'q, 's> {
    /// The store.
    pub(super) store: &'s Store,
    /// The readers.
    pub(super) inputs: Inputs<'s>,
    /// The database of the request.
    pub(super) database: Option<&'q str>,
    /// The limits.
    pub(super) budget: &'q Budget<'q>,
    /// The time.
    pub(super) now: i64,
}

/// A measurement, and the series of it that the statement is about.
struct About<'r, 's> {
    reader: &'r Reader<'s>,
    name: Arc<str>,
    filter: TagFilter,
    /// The condition, if the filter lets series through for which it does not hold.
    condition: Option<Expr>,
    /// Only series with points in shards of this time, if it is stated.
    said: Said,
}

/// The rows of a measurement.
type RowsOf<'f, 's> = &'f dyn Fn(&About<'_, 's>, &Budget<'_>) -> Fallible<Vec<Cells>>;

impl About<'_, '_> {
    /// The series.
    fn series(&self, budget: &Budget<'_>) -> Fallible<Vec<Arc<Series>>> {
        let may = |work| budget.may_list(work);
        let mut found = self.reader.series_within(&self.name, &self.filter, &may)?;
        budget.hold(found.len().saturating_mul(16))?;
        if let Some(condition) = &self.condition {
            let mut kept = Vec::new();
            for series in found {
                budget.tick()?;
                if settle(condition, &|name| series.tag(name), budget)? != Settled::Never {
                    kept.push(series);
                }
            }
            found = kept;
        }
        if self.said != Said::default() {
            let range = self.said.min.unwrap_or(i64::MIN)..=self.said.max.unwrap_or(i64::MAX);
            let found = self.reader.with_points(found, &range, budget.limits());
            return found.map_err(|it| it.to_string());
        }
        Ok(found)
    }

    /// True if there is a condition.
    fn is_some(&self) -> bool {
        let is_all = matches!((&self.filter, &self.condition), (TagFilter::All, None));
        !is_all || self.said != Said::default()
    }

    /// The values of some tags of all series of the measurement, with their keys.
    fn all_values(&self, keys: &Keys, budget: &Budget<'_>) -> Fallible<Vec<Cells>> {
        let mut rows = Vec::new();
        for key in &self.reader.tag_keys(&self.name) {
            if !is_among(keys, key, budget)? {
                continue;
            }
            // Sorting takes as long as grouping does.
            let may = |work| budget.may_group(work);
            for value in self.reader.tag_values_within(&self.name, key, &may)? {
                budget.tick()?;
                budget.hold(64 + value.len())?;
                rows.push(smallvec![Cell::String(Arc::clone(key)), Cell::String(value)]);
            }
        }
        Ok(rows)
    }

    /// The tag keys of the series.
    fn keys(&self, budget: &Budget<'_>) -> Fallible<BTreeSet<Arc<str>>> {
        if !self.is_some() {
            return Ok(self.reader.tag_keys(&self.name).into_iter().collect());
        }
        let series = self.series(budget)?;
        let keys: BTreeSet<&str> =
            series.iter().flat_map(|it| it.tags().map(|(key, _)| key)).collect();
        Ok(keys.into_iter().map(Arc::from).collect())
    }
}

impl<'s> Show<'_, 's> {
    /// The measurements that a statement is about, ascending, one at a time: the condition of each is a copy.
    fn about(&mut self, scope: &Scope) -> Fallible<impl Iterator<Item = Fallible<About<'_, 's>>>> {
        let database = scope.database.as_deref();
        let at = self.inputs.open_names(database)?;
        let (condition, said) = split(scope.condition.as_ref(), self.now)?;
        condition.as_ref().map_or(Ok(()), check_operators)?;
        let (budget, reader) = (self.budget, self.inputs.reader(at));
        // Beside it there are that of a measurement, and a filter.
        budget.hold(3 * condition.as_ref().map_or(0, Expr::bytes))?;
        let all = reader
            .into_iter()
            .flat_map(|it| it.measurements().into_iter().map(move |name| (it, name)));
        let about = all.map(move |(reader, name)| -> Fallible<_> {
            budget.check()?;
            if !is_source(&scope.sources, &name, budget)? {
                return Ok(None);
            }
            let (filter, condition) = of_measurement(reader, &name, condition.as_ref());
            Ok(Some(About { reader, name, filter, condition, said }))
        });
        Ok(about.filter_map(Result::transpose))
    }

    /// SHOW DATABASES
    pub(super) fn databases(&self) -> Fallible<Vec<Table>> {
        let names = self.store.databases();
        names.iter().try_for_each(|_| self.budget.row(ROW_BYTES))?;
        let rows = names.iter().map(|it| smallvec![text(it)]).collect();
        Ok(vec![table(Some("databases"), &["name"], rows)])
    }

    /// SHOW of something that does not exist here, answered as clients expect it.
    pub(super) fn nothing(&self, words: &str) -> Fallible<Vec<Table>> {
        let columns: &[&str] = match words {
            "USERS" => &["user", "admin"],
            "QUERIES" => &["qid", "query", "database", "duration", "status"],
            "SUBSCRIPTIONS" => return Ok(Vec::new()),
            "CONTINUOUS QUERIES" => {
                let names = self.store.databases();
                names.iter().try_for_each(|_| self.budget.row(TABLE_BYTES))?;
                let empty = |it: &Arc<str>| table(Some(it), &["name", "query"], Vec::new());
                return Ok(names.iter().map(empty).collect());
            }
            _ => return Err(format!("SHOW {words} is not supported")),
        };
        Ok(vec![table(None, columns, Vec::new())])
    }

    /// SHOW RETENTION POLICIES
    pub(super) fn policies(&self, on: Option<&str>) -> Fallible<Vec<Table>> {
        let database = named(self.store, on.or(self.database))?;
        let policies = self.store.policies(database).map_err(|it| it.to_string())?;
        policies.iter().try_for_each(|_| self.budget.row(5 * ROW_BYTES))?;
        let rows = policies.iter().map(|it| {
            smallvec![
                text(&it.name),
                text(&go_duration(it.duration_ns)),
                text(&go_duration(it.shard_ns)),
                Cell::Integer(1),
                Cell::Boolean(it.is_default),
            ]
        });
        let columns = ["name", "duration", "shardGroupDuration", "replicaN", "default"];
        Ok(vec![table(None, &columns, rows.collect())])
    }

    /// SHOW MEASUREMENTS
    pub(super) fn measurements(&mut self, scope: &Scope) -> Fallible<Vec<Table>> {
        let database = scope.database.as_deref().or(self.database);
        if database.is_some() && named(self.store, database).is_err() {
            return Ok(Vec::new());
        }
        let budget = self.budget;
        let plain = Scope { condition: None, ..scope.clone() };
        let (condition, said) = split(scope.condition.as_ref(), self.now)?;
        check_without_time("MEASUREMENTS", said)?;
        condition.as_ref().map_or(Ok(()), check_operators)?;
        let mut names = Vec::new();
        for about in self.about(&plain)? {
            let about = about?;
            let is_wanted = match &condition {
                None => true,
                Some(condition) => has_tags(&about, condition, budget)?,
            };
            if is_wanted {
                names.push(about.name);
            }
        }
        let rows: Vec<_> =
            windowed(names.iter(), scope.rows).map(|it| smallvec![text(it)]).collect();
        rows.iter().try_for_each(|_| budget.row(ROW_BYTES))?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![table(Some("measurements"), &["name"], rows)])
    }

    /// One table for each measurement, of the rows that `of` makes; none for measurements without rows.
    fn each(
        &mut self,
        scope: &Scope,
        columns: &[&str],
        of: RowsOf<'_, 's>,
    ) -> Fallible<Vec<Table>> {
        let budget = self.budget;
        let mut tables = Vec::new();
        for about in self.about(scope)? {
            let about = about?;
            let rows: Vec<_> = windowed(of(&about, budget)?.into_iter(), scope.rows).collect();
            rows.iter().try_for_each(|_| budget.row(ROW_BYTES))?;
            if !rows.is_empty() {
                tables.push(table(Some(&about.name), columns, rows));
            }
        }
        Ok(windowed(tables.into_iter(), scope.series).collect())
    }

    /// SHOW TAG KEYS
    pub(super) fn tag_keys(&mut self, scope: &Scope) -> Fallible<Vec<Table>> {
        self.each(scope, &["tagKey"], &|about, budget| {
            Ok(about.keys(budget)?.iter().map(|it| smallvec![text(it)]).collect())
        })
    }

    /// SHOW FIELD KEYS
    pub(super) fn field_keys(&mut self, scope: &Scope) -> Fallible<Vec<Table>> {
        self.each(scope, &["fieldKey", "fieldType"], &|about, _| {
            let fields = about.reader.fields(&about.name);
            let row = |it: &crate::catalogue::Field| {
                smallvec![text(&it.name), text(it.field_type.name())]
            };
            Ok(fields.iter().map(row).collect())
        })
    }

    /// SHOW TAG VALUES
    pub(super) fn tag_values(&mut self, scope: &Scope, keys: &Keys) -> Fallible<Vec<Table>> {
        self.each(scope, &["key", "value"], &|about, budget| {
            if !about.is_some() {
                return about.all_values(keys, budget);
            }
            let series = about.series(budget)?;
            let found = tags(&series, Some(keys), budget)?;
            budget.hold(found.iter().map(|(_, value)| 16 + value.len()).sum())?;
            Ok(found.into_iter().map(|(key, value)| smallvec![text(key), text(value)]).collect())
        })
    }

    /// SHOW SERIES
    pub(super) fn series(&mut self, scope: &Scope) -> Fallible<Vec<Table>> {
        let budget = self.budget;
        let mut all: Vec<Arc<Series>> = Vec::new();
        for about in self.about(scope)? {
            let series = about?.series(budget)?;
            budget.hold(series.len().saturating_mul(16))?;
            all.extend(series);
        }
        all.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        let mut rows = Vec::new();
        for series in windowed(all.iter(), scope.rows) {
            budget.row(ROW_BYTES + series.key.len())?;
            rows.push(smallvec![text(&series.key)]);
        }
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        Ok(vec![table(None, &["key"], rows)])
    }

    /// SHOW … CARDINALITY
    pub(super) fn cardinality(
        &mut self,
        counted: Counted,
        is_exact: bool,
        scope: &Scope,
        keys: Option<&Keys>,
    ) -> Fallible<Vec<Table>> {
        if !scope.dimensions.is_empty() {
            return Err("GROUP BY is not supported in a cardinality statement".to_owned());
        }
        let (_, said) = split(scope.condition.as_ref(), self.now)?;
        match counted {
            Counted::Series => check_without_time("SERIES EXACT CARDINALITY", said)?,
            Counted::Measurement => check_without_time("MEASUREMENT EXACT CARDINALITY", said)?,
            Counted::TagKey => check_without_time("TAG KEY EXACT CARDINALITY", said)?,
            Counted::FieldKey => check_without_time("FIELD KEY CARDINALITY", said)?,
            Counted::TagValues => {}
        }
        let budget = self.budget;
        let mut total = 0_i64;
        let mut tables = Vec::new();
        let is_plain = scope.sources.is_empty() && scope.condition.is_none();
        let is_estimate =
            is_plain && !is_exact && matches!(counted, Counted::Series | Counted::Measurement);
        for about in self.about(scope)? {
            let about = about?;
            let count = match counted {
                Counted::Measurement | Counted::FieldKey
                    if about.is_some() && about.series(budget)?.is_empty() =>
                {
                    0
                }
                Counted::Measurement => 1,
                Counted::FieldKey => about.reader.fields(&about.name).len(),
                Counted::TagKey => about.keys(budget)?.len(),
                Counted::Series => about.series(budget)?.len(),
                Counted::TagValues => {
                    let series = about.series(budget)?;
                    let found = tags(&series, keys, budget)?;
                    found.iter().map(|tag| tag.1).collect::<BTreeSet<_>>().len()
                }
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            total = total.saturating_add(count);
            if count > 0 && counted != Counted::Measurement {
                let rows = vec![smallvec![Cell::Integer(count)]];
                tables.push(table(Some(&about.name), &["count"], rows));
            }
        }
        Ok(match (is_estimate, counted) {
            (true, _) => {
                vec![table(
                    None,
                    &["cardinality estimation"],
                    vec![smallvec![Cell::Integer(total)]],
                )]
            }
            (false, Counted::Measurement) if total == 0 => Vec::new(),
            (false, Counted::Measurement) => {
                vec![table(None, &["count"], vec![smallvec![Cell::Integer(total)]])]
            }
            (false, _) => tables,
        })
    }
}

/// Refuses comparisons that tags do not have.
fn check_operators(condition: &Expr) -> Fallible<()> {
    let mut is_wrong = false;
    condition.walk(&mut |it| {
        if let Expr::Binary(operator, ..) = it {
            is_wrong |= !matches!(
                operator,
                Operator::And
                    | Operator::Or
                    | Operator::Equal
                    | Operator::NotEqual
                    | Operator::Match
                    | Operator::NotMatch
            );
        }
    });
    if is_wrong { Err("invalid tag comparison operator".to_owned()) } else { Ok(()) }
}

/// Refuses a time in a statement that has no use for it.
fn check_without_time(statement: &str, said: Said) -> Fallible<()> {
    if said == Said::default() {
        return Ok(());
    }
    Err(format!("SHOW {statement} doesn't support time in WHERE clause"))
}

/// True if a measurement is among the sources of a statement.
fn is_source(sources: &[Measurement], name: &str, budget: &Budget<'_>) -> Fallible<bool> {
    for source in sources {
        let is_it = match &source.name {
            Name::Is(wanted) => *wanted == *name,
            Name::Match(pattern) => budget.finds(&pattern.0, name)?,
        };
        if is_it {
            return Ok(true);
        }
    }
    Ok(sources.is_empty())
}

/// True if a key is among the chosen ones.
fn is_among(keys: &Keys, key: &str, budget: &Budget<'_>) -> Fallible<bool> {
    Ok(match keys {
        Keys::In(names) => names.iter().any(|it| it == key),
        Keys::Is(name, is_wanted) => (name == key) == *is_wanted,
        Keys::Match(pattern, is_wanted) => budget.finds(&pattern.0, key)? == *is_wanted,
    })
}

/// The tags of some series whose keys are among the chosen ones.
fn tags<'t>(
    series: &'t [Arc<Series>],
    keys: Option<&Keys>,
    budget: &Budget<'_>,
) -> Fallible<BTreeSet<(&'t str, &'t str)>> {
    let mut found = BTreeSet::new();
    for (key, value) in series.iter().flat_map(|it| it.tags()) {
        budget.tick()?;
        let is_chosen = keys.map_or(Ok(true), |keys| is_among(keys, key, budget))?;
        if is_chosen && found.insert((key, value)) {
            budget.hold(48)?;
        }
    }
    Ok(found)
}

/// True if a measurement has tags that fulfil a condition; a negative condition holds if no series has such a tag,
/// as in InfluxDB.
fn has_tags(about: &About<'_, '_>, condition: &Expr, budget: &Budget<'_>) -> Fallible<bool> {
    let has_tags = |of: &Expr| has_tags(about, of, budget);
    match condition {
        Expr::Group(inner) => has_tags(inner),
        Expr::Binary(Operator::And, left, right) => Ok(has_tags(left)? && has_tags(right)?),
        Expr::Binary(Operator::Or, left, right) => Ok(has_tags(left)? || has_tags(right)?),
        Expr::Binary(operator, left, right) => {
            let Expr::Reference(key, _) = &**left else { return Ok(false) };
            let may = |work| budget.may_list(work);
            let has = |filter: TagFilter| about.reader.has_series(&about.name, &filter, &may);
            if !has(TagFilter::NotEqual(key.clone(), String::new()))? {
                return Ok(false);
            }
            match (operator, &**right) {
                (Operator::Equal, Expr::String(it)) => {
                    has(TagFilter::Equal(key.clone(), it.clone()))
                }
                (Operator::NotEqual, Expr::String(it)) => {
                    Ok(!has(TagFilter::Equal(key.clone(), it.clone()))?)
                }
                (Operator::Match, Expr::Regex(it)) => {
                    has(TagFilter::Match(key.clone(), it.0.clone()))
                }
                (Operator::NotMatch, Expr::Regex(it)) => {
                    Ok(!has(TagFilter::Match(key.clone(), it.0.clone()))?)
                }
                _ => Ok(false),
            }
        }
        Expr::Boolean(it) => Ok(*it),
        _ => Ok(false),
    }
}
