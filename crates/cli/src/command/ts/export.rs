//! Points as line protocol: of a policy, or of all databases with the statements that create them, as InfluxDB
//! exports them.

use super::{failure_of, open};
use crate::arguments::TsExport;
use crate::failure::{self, FAILED, Failure, Outcome, REFUSED};
use crate::message;
use crate::output::{Output, is_open_file};
use coreplane_tsdb::influxql::creation;
use coreplane_tsdb::{
    Block, Error, Field, Points, Reader, Result, Series, Store, TagFilter, Value, line,
};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::Path;

/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

/// An export, and what it has written and left out.
struct Told<'o> {
    out: &'o mut dyn Write,
    points: u64,
    /// Damaged chunks, and damaged entries of chunks.
    damaged: u64,
}

/// The values of a field of a series, one by one.
struct Values<'r> {
    blocks: Points<'r>,
    block: Option<Block>,
    at: usize,
    damaged: Vec<String>,
}

impl<'r> Values<'r> {
    fn of(reader: &'r Reader<'_>, series: &Series, field: &Field) -> Result<Self> {
        let blocks = reader.points(series, field, i64::MIN..=i64::MAX, false);
        let mut values = Self { blocks, block: None, at: 0, damaged: Vec::new() };
        values.settle()?;
        Ok(values)
    }

    /// Moves to the next block if this one is at its end; what is damaged is left out.
    fn settle(&mut self) -> Result<()> {
        while self.block.as_ref().is_none_or(|block| self.at >= block.times.len()) {
            match self.blocks.next() {
                Some(Ok(block)) => (self.block, self.at) = (Some(block), 0),
                Some(Err(Error::Damage(what))) => self.damaged.push(what),
                Some(Err(error)) => return Err(error),
                None => {
                    self.block = None;
                    break;
                }
            }
        }
        Ok(())
    }

    fn time(&self) -> Option<i64> {
        self.block.as_ref()?.times.get(self.at).copied()
    }

    /// The value at a time, if there is one; then moves on to the next value.
    fn take(&mut self, time: i64) -> Result<Option<Value>> {
        if self.time() != Some(time) {
            return Ok(None);
        }
        let value = self.block.as_ref().and_then(|block| block.values.get(self.at));
        self.at += 1;
        self.settle()?;
        Ok(value)
    }
}

/// Writes the points of a series.
fn write_series(
    (reader, database): (&Reader<'_>, &str),
    series: &Series,
    fields: &[Field],
    told: &mut Told<'_>,
) -> std::result::Result<(), Failure> {
    let failed = |error: coreplane_tsdb::Error| Failure::new(FAILED, error.to_string());
    let values = fields.iter().map(|field| Values::of(reader, series, field));
    let mut values = values.collect::<Result<Vec<_>>>().map_err(failed)?;
    let (mut lines, mut found) = (Vec::new(), Vec::new());
    while let Some(time) = values.iter().filter_map(Values::time).min() {
        found.clear();
        for (field, values) in fields.iter().zip(&mut values) {
            let value = values.take(time).map_err(failed)?;
            found.extend(value.map(|value| (field, value)));
        }
        let fields = found.iter().map(|(field, value)| (&*field.name, value));
        line::write_point(&mut lines, &series.key, fields, time);
        told.points += 1;
        if lines.len() > PIECE {
            told.out.write_all(&lines)?;
            lines.clear();
        }
    }
    told.out.write_all(&lines)?;
    for (field, values) in fields.iter().zip(&values) {
        for what in &values.damaged {
            let (field, series) = (&field.name, &series.key);
            let place = format!("field {field} of {series} in the database {database}");
            message::tell(format_args!("{place}: damaged: {what}"));
        }
        told.damaged += values.damaged.len() as u64;
    }
    Ok(())
}

fn write_policy(
    export: &TsExport,
    store: &Store,
    (database, policy): (&str, Option<&str>),
    told: &mut Told<'_>,
) -> std::result::Result<(), Failure> {
    let path = &export.pool.pool;
    let reader = store.reader(database, policy).map_err(|error| failure_of(&error, path))?;
    for measurement in reader.measurements() {
        let fields = reader.fields(&measurement);
        for series in reader.series(&measurement, &TagFilter::All) {
            write_series((&reader, database), &series, &fields, told)?;
        }
    }
    Ok(())
}

/// Writes all databases with the statements that create them.
fn write_databases(
    export: &TsExport,
    store: &Store,
    told: &mut Told<'_>,
) -> std::result::Result<(), Failure> {
    let failed = |error: coreplane_tsdb::Error| failure_of(&error, &export.pool.pool);
    let mut databases = Vec::new();
    for name in store.databases() {
        let mut policies = store.policies(&name).map_err(failed)?;
        policies.sort_by(|one, other| one.name.cmp(&other.name));
        databases.push((name, policies));
    }
    let policies = databases.iter().flat_map(|(_, policies)| policies).map(|it| it.name.as_str());
    let mut names = databases.iter().map(|(name, _)| &**name).chain(policies);
    if let Some(name) = names.find(|name| name.trim() != *name || name.contains(['\n', '\r'])) {
        let message = format!(
            "{name:?}: there is no way to write this name; export its database by --database"
        );
        return Err(Failure::new(REFUSED, message));
    }
    writeln!(told.out, "# DDL")?;
    for (name, policies) in &databases {
        for statement in creation(name, policies) {
            writeln!(told.out, "{statement}")?;
        }
    }
    writeln!(told.out, "# DML")?;
    for (name, policies) in &databases {
        for policy in policies {
            writeln!(told.out, "# CONTEXT-DATABASE:{name}")?;
            writeln!(told.out, "# CONTEXT-RETENTION-POLICY:{}", policy.name)?;
            write_policy(export, store, (name, Some(&policy.name)), told)?;
        }
    }
    Ok(())
}

/// Writes all that is asked for; the numbers of points, and of damaged chunks and entries.
fn write_all(
    export: &TsExport,
    store: &Store,
    out: &mut dyn Write,
) -> std::result::Result<(u64, u64), Failure> {
    let mut told = Told { out, points: 0, damaged: 0 };
    match &export.database {
        Some(name) => write_policy(export, store, (name, export.policy.as_deref()), &mut told)?,
        None => write_databases(export, store, &mut told)?,
    }
    Ok((told.points, told.damaged))
}

/// Refuses to replace a file by an export that lacks what is damaged.
fn keep_file(path: Option<&Path>) -> std::result::Result<(), Failure> {
    let Some(path) = path.filter(|it| it.is_file() && !is_open_file(it)) else { return Ok(()) };
    let path = path.display();
    let what =
        format!("{path} is there, and may be a better export: what is damaged is left out now");
    Err(Failure::new(REFUSED, what))
}

pub(super) fn export(export: &TsExport) -> Outcome {
    let store = open(&export.pool)?;
    let (path, is_damaged) = (export.output.as_deref(), store.damage().next().is_some());
    if is_damaged {
        keep_file(path)?;
    }
    let mut plain = Output::to(path)?;
    let (points, damaged) = if export.gzip {
        let mut packed = GzEncoder::new(&mut plain, Compression::fast());
        let written = write_all(export, &store, &mut packed)?;
        packed.finish()?;
        written
    } else {
        write_all(export, &store, &mut plain)?
    };
    let is_damaged = is_damaged || damaged > 0;
    if is_damaged {
        keep_file(path)?;
    }
    plain.finish()?;
    message::tell(format_args!("{points} points written"));
    if is_damaged {
        message::tell("what is damaged is not among them");
        return Ok(failure::NO);
    }
    Ok(0)
}
