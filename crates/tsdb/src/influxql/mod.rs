//! InfluxQL: the language of InfluxDB 1.x.
//!
//! ```text
//!   text ─▶ token ─▶ parse ─▶ ast ─▶ validate ─▶ plan ─▶ pipeline, group by group ─▶ tables
//!                                       │                    │
//!                           columns, condition       summaries of chunks, or points of series merged by time
//! ```
//!
//! The grammar is `grammar.ebnf`. Answers are those of InfluxDB 1.6.7, and so are most errors. The work of every
//! loop is counted against a budget of rows, buckets, bytes and time, and ends when the client has disconnected.
//!
//! # Departures
//!
//! - `mode`, and the row that `percentile` chooses among equal values, may differ: InfluxDB's choice depends on an
//!   unstable sort. InfluxDB's `percentile` ends the whole answer at the first bucket with too few points.
//! - A cardinality counts a series once, not once for each shard. Comparisons that tags do not have are an error
//!   there, too.
//! - Regular expressions are Go's, except that escapes by octal digits (`\012`) are refused, that what only the
//!   `regex` crate has is accepted (`(?x)`, `\u{e9}`, `x**`), and that errors are worded differently.
//! - A call beside one that looks at the bucket before the range (`mean(a), difference(mean(b))`) gets, of a
//!   sub-query with buckets, the first bucket as a whole, even if the range begins within it; and of a sub-query with
//!   `derivative` or the like, rows that are computed with points before the range.
//! - After an error later statements are neither run nor answered. Infinities are null.
//! - Refused: time zones other than UTC, `sample`, `holt_winters`, INTO, EXPLAIN, DELETE, GROUP BY in cardinalities,
//!   sub-queries of sub-queries.
//!
//! # Modules
//!
//! | file | content |
//! |---|---|
//! | `token`, `keyword`, `parse/`, `ast`, `text` | from text to a tree, and back to text for errors |
//! | `fold`, `validate`, `function` | constants, and the columns that may stand together |
//! | `time`, `interval` | times and durations as text; buckets |
//! | `condition`, `columns`, `kinds`, `slots`, `plan`, `inputs`, `group` | inputs and columns of a SELECT, with names resolved |
//! | `cursor`, `merge`, `stream`, `rows` | points in the order of time: of a series, of several, of a sub-query |
//! | `tally`, `whole`, `step`, `fill`, `evaluate` | functions of buckets, and from point to point; expressions |
//! | `series`, `members` | tallies of a series; those of many series, read by several threads |
//! | `ahead`, `threads` | work that several threads do ahead of the query's own thread; the pool of these threads |
//! | `latest` | the latest row of a series, if no other row is asked for |
//! | `pipeline`, `select` | from a group to its table |
//! | `show`, `change`, `creation` | SHOW, statements that change something, statements that recreate a database |
//! | `budget` | the remaining budget of a query |

mod ahead;
mod ast;
mod budget;
mod change;
mod columns;
mod condition;
mod creation;
mod cursor;
mod evaluate;
mod fill;
mod fold;
mod function;
mod group;
mod inputs;
mod interval;
mod keyword;
mod kinds;
mod latest;
mod members;
mod merge;
mod parse;
mod pipeline;
mod plan;
mod rows;
mod select;
mod series;
mod show;
mod slots;
mod step;
mod stream;
mod tally;
mod text;
mod threads;
mod time;
mod token;
mod validate;
mod whole;

pub use creation::creation;

use crate::error::{Error, Result};
use crate::store::Store;
use ast::Statement;
use budget::{Budget, Fallible};
use inputs::Inputs;
use show::Show;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// A query, which may have several statements.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// Its text.
    pub text: &'a str,
    /// The database of statements that name none.
    pub database: Option<&'a str>,
    /// The policy of statements that name none.
    pub policy: Option<&'a str>,
    /// The value of `now()`, in nanoseconds since 1970.
    pub now: i64,
    /// Statements that change something are refused.
    pub is_read_only: bool,
    /// The limits of its cost.
    pub limits: Limits,
}

/// The limits of the cost of a query.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Rows of all answers together.
    pub rows_max: usize,
    /// Buckets of time of a statement, of all of its series together.
    pub buckets_max: usize,
    /// Bytes that the query holds at a time, about.
    pub bytes_max: usize,
    /// The time at which the query is ended.
    pub deadline: Instant,
    /// Ends the query at any time, once it is true: the client has disconnected. None: it cannot be ended so.
    pub cancel: Option<Arc<AtomicBool>>,
    /// Threads that read for it at a time, its own included; 0: as many as there are cores. The answer does not
    /// depend on it.
    pub threads_max: usize,
}

/// The answer to a statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Its number in the query, from 0.
    pub statement: usize,
    /// The series of the answer, or an error as InfluxDB words it. Statements after an error are not run.
    pub outcome: std::result::Result<Vec<Table>, String>,
}

/// A series of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// The measurement, or the name that InfluxDB uses in its place.
    pub name: Option<String>,
    /// The tags by which it was grouped.
    pub tags: Vec<(String, String)>,
    /// Names of columns.
    pub columns: Vec<String>,
    /// Rows, as long as the columns.
    pub rows: Vec<Cells>,
}

/// The cells of a row: mostly a time and one value.
pub type Cells = SmallVec<[Cell; 2]>;

/// A value of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// Nanoseconds since 1970.
    Time(i64),
    /// Of a float.
    Float(f64),
    /// Of an integer.
    Integer(i64),
    /// Of an unsigned integer.
    Unsigned(u64),
    /// Of a boolean.
    Boolean(bool),
    /// Of a string.
    String(Arc<str>),
}

/// # Errors
/// [`Error::Input`] if a text is too long for a query, as [`run`] would say.
pub fn check_length(text: &str) -> Result<()> {
    parse::check_length(text).map_err(not_a_query)
}

fn not_a_query(why: String) -> Error {
    Error::Input(format!("error parsing query: {why}"))
}

/// Runs the statements of a query, one after the other.
///
/// # Errors
/// [`Error::Input`] if the text is not a query; then nothing was run.
pub fn run(store: &Store, request: &Request<'_>) -> Result<Vec<Answer>> {
    let statements = parse::query(request.text, request.limits.deadline).map_err(not_a_query)?;
    let budget = Budget::new(&request.limits);
    let mut answers = Vec::with_capacity(statements.len());
    for (number, statement) in statements.iter().enumerate() {
        budget.begin_statement();
        let outcome = execute(store, request, statement, &budget);
        let is_last = outcome.is_err();
        answers.push(Answer { statement: number, outcome });
        if is_last {
            break;
        }
    }
    Ok(answers)
}

fn execute(
    store: &Store,
    request: &Request<'_>,
    statement: &Statement,
    budget: &Budget<'_>,
) -> Fallible<Vec<Table>> {
    let mut inputs = Inputs::new(store, request.database, request.policy);
    let database = request.database;
    if let Statement::Select(it) = statement {
        return select::select(it, &mut inputs, budget, request.now);
    }
    let inputs = Inputs::new(store, database, None);
    let mut show = Show { store, inputs, database, budget, now: request.now };
    match statement {
        Statement::ShowDatabases => show.databases(),
        Statement::ShowPolicies(on) => show.policies(on.as_deref()),
        Statement::ShowMeasurements(scope) => show.measurements(scope),
        Statement::ShowTagKeys(scope) => show.tag_keys(scope),
        Statement::ShowTagValues(scope, keys) => show.tag_values(scope, keys),
        Statement::ShowFieldKeys(scope) => show.field_keys(scope),
        Statement::ShowSeries(scope) => show.series(scope),
        Statement::ShowCardinality(counted, is_exact, scope, keys) => {
            show.cardinality(*counted, *is_exact, scope, keys.as_ref())
        }
        Statement::ShowNothing(words) => show.nothing(words),
        Statement::Explain(..) => Err("EXPLAIN is not supported".to_owned()),
        Statement::Delete(_) => Err("DELETE is not supported: points are dropped with their \
             series, measurement, retention policy or database"
            .to_owned()),
        other if request.is_read_only => Err(format!(
            "'{other}' is not allowed in a read only context, please use a POST request instead"
        )),
        other => change::change(store, other, database).map(|()| Vec::new()),
    }
}
