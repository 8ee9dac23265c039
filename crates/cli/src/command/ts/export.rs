//! Points as line protocol: of a policy, or of all databases with the statements that create them, as InfluxDB
//! exports them.

use super::{failure_of, open};
use crate::arguments::TsExport;
use crate::failure::{self, FAILED, Failure, Outcome, REFUSED};
use crate::output::{Output, is_open_file};
use coreplane_tsdb::influxql::creation;
use coreplane_tsdb::{Block, Field, Reader, Result, Series, Store, TagFilter, Value, line};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;

/// Bytes that are written at a time.
const PIECE: usize = 1 << 20;

/// The values of a field of a series, one by one.
struct Values<'r> {
    blocks: Box<dyn Iterator<Item = Result<Block>> + 'r>,
    block: Option<Block>,
    at: usize,
}

impl<'r> Values<'r> {
    fn of(reader: &'r Reader<'_>, series: &Series, field: &Field) -> Result<Self> {
        let blocks = reader.points(series, field, i64::MIN..=i64::MAX, false);
        let mut values = Self { blocks: Box::new(blocks), block: None, at: 0 };
        values.settle()?;
        Ok(values)
    }

    /// Moves to the next block if this one is at its end.
    fn settle(&mut self) -> Result<()> {
        while self.block.as_ref().is_none_or(|block| self.at >= block.times.len()) {
            let Some(next) = self.blocks.next() else {
                self.block = None;
                return Ok(());
            };
            (self.block, self.at) = (Some(next?), 0);
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

/// Writes the points of a series; their number.
fn write_series(
    reader: &Reader<'_>,
    series: &Series,
    fields: &[Field],
    out: &mut dyn Write,
) -> std::result::Result<u64, Failure> {
    let failed = |error: coreplane_tsdb::Error| Failure::new(FAILED, error.to_string());
    let values = fields.iter().map(|field| Values::of(reader, series, field));
    let mut values = values.collect::<Result<Vec<_>>>().map_err(failed)?;
    let (mut lines, mut written, mut found) = (Vec::new(), 0, Vec::new());
    while let Some(time) = values.iter().filter_map(Values::time).min() {
        found.clear();
        for (field, values) in fields.iter().zip(&mut values) {
            let value = values.take(time).map_err(failed)?;
            found.extend(value.map(|value| (field, value)));
        }
        let fields = found.iter().map(|(field, value)| (&*field.name, value));
        line::write_point(&mut lines, &series.key, fields, time);
        written += 1;
        if lines.len() > PIECE {
            out.write_all(&lines)?;
            lines.clear();
        }
    }
    out.write_all(&lines)?;
    Ok(written)
}

fn write_policy(
    export: &TsExport,
    store: &Store,
    (database, policy): (&str, Option<&str>),
    out: &mut dyn Write,
) -> std::result::Result<u64, Failure> {
    let path = &export.pool.pool;
    let reader = store.reader(database, policy).map_err(|error| failure_of(&error, path))?;
    let mut written = 0;
    for measurement in reader.measurements() {
        let fields = reader.fields(&measurement);
        for series in reader.series(&measurement, &TagFilter::All) {
            written += write_series(&reader, &series, &fields, out)?;
        }
    }
    Ok(written)
}

/// Writes all databases with the statements that create them.
fn write_databases(
    export: &TsExport,
    store: &Store,
    out: &mut dyn Write,
) -> std::result::Result<u64, Failure> {
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
    writeln!(out, "# DDL")?;
    for (name, policies) in &databases {
        for statement in creation(name, policies) {
            writeln!(out, "{statement}")?;
        }
    }
    writeln!(out, "# DML")?;
    let mut written = 0;
    for (name, policies) in &databases {
        for policy in policies {
            writeln!(out, "# CONTEXT-DATABASE:{name}")?;
            writeln!(out, "# CONTEXT-RETENTION-POLICY:{}", policy.name)?;
            written += write_policy(export, store, (name, Some(&policy.name)), out)?;
        }
    }
    Ok(written)
}

fn write_all(
    export: &TsExport,
    store: &Store,
    out: &mut dyn Write,
) -> std::result::Result<u64, Failure> {
    match &export.database {
        Some(name) => write_policy(export, store, (name, export.policy.as_deref()), out),
        None => write_databases(export, store, out),
    }
}

pub(super) fn export(export: &TsExport) -> Outcome {
    let store = open(&export.pool)?;
    if let Some(path) = export.output.as_deref().filter(|it| it.is_file())
        && !is_open_file(path)
        && store.damage().next().is_some()
    {
        let path = path.display();
        let what =
            format!("{path} is there, and may be a better export: what is damaged is left out now");
        return Err(Failure::new(failure::REFUSED, what));
    }
    let mut plain = Output::to(export.output.as_deref())?;
    let written = if export.gzip {
        let mut packed = GzEncoder::new(&mut plain, Compression::fast());
        let written = write_all(export, &store, &mut packed)?;
        packed.finish()?;
        written
    } else {
        write_all(export, &store, &mut plain)?
    };
    plain.finish()?;
    eprintln!("coreplane: {written} points written");
    if store.damage().next().is_some() {
        eprintln!("coreplane: what is damaged is not among them");
        return Ok(failure::NO);
    }
    Ok(0)
}
