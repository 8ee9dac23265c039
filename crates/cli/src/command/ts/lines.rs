//! Points from line protocol, and as line protocol.
//!
//! A text is cut where a line ends, and not within a string, which may have newlines; so it is read in pieces of some
//! megabytes whatever its length.

use super::{failure_of, open};
use crate::arguments::{TsExport, TsImport};
use crate::failure::{FAILED, Failure, Outcome, REFUSED};
use coreplane_tsdb::line::{self, Precision};
use coreplane_tsdb::{Block, Field, Point, Reader, Result, Series, Store, TagFilter, Value};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a piece.
const PIECE: usize = 4 << 20;
/// Bytes of a line at most.
const LINE_MAX: usize = 64 << 20;
/// Points of a write.
const BATCH: usize = 5_000;
/// Complaints that are shown.
const COMPLAINTS: u64 = 10;

/// Where the last line of a text ends; nothing if none does.
fn last_end(text: &[u8]) -> usize {
    let (mut end, mut is_begin, mut is_comment) = (0, true, false);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in text.iter().enumerate() {
        if is_begin {
            (is_comment, is_quoted, is_escaped) = (*byte == b'#', false, false);
        }
        is_begin = *byte == b'\n' && (is_comment || !(is_quoted || is_escaped));
        if is_begin {
            end = at + 1;
        }
        if *byte == b'"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = *byte == b'\\' && !is_escaped;
    }
    end
}

/// What came of an import.
#[derive(Debug, Default)]
struct Imported {
    written: u64,
    refused: u64,
    /// Lines before the piece that is written.
    lines: usize,
}

impl Imported {
    fn complain(&mut self, complaint: &str) {
        self.refused += 1;
        if self.refused <= COMPLAINTS {
            eprintln!("coreplane: {complaint}");
        }
    }

    fn write(
        &mut self,
        store: &Store,
        import: &TsImport,
        batch: &mut Vec<Point<'_>>,
    ) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let outcome = store.write(&import.database, import.policy.as_deref(), batch)?;
        self.written += outcome.written;
        for (_, why) in &outcome.rejected {
            self.complain(why);
        }
        batch.clear();
        Ok(())
    }

    fn piece(
        &mut self,
        store: &Store,
        import: &TsImport,
        text: &[u8],
        (precision, now): (Precision, i64),
    ) -> Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        for point in line::points(text, precision, now) {
            match point {
                Ok((_, point)) => batch.push(point),
                Err(error) => {
                    let line = self.lines + error.line;
                    self.complain(&format!("line {line}: {error}"));
                }
            }
            if batch.len() >= BATCH {
                self.write(store, import, &mut batch)?;
            }
        }
        self.write(store, import, &mut batch)?;
        self.lines += text.iter().filter(|byte| **byte == b'\n').count();
        Ok(())
    }
}

fn source(path: Option<&Path>) -> std::result::Result<Box<dyn Read>, Failure> {
    let plain: Box<dyn Read> = match path {
        None => Box::new(io::stdin().lock()),
        Some(path) => {
            let at = |error| Failure::new(FAILED, format!("{}: {error}", path.display()));
            Box::new(File::open(path).map_err(at)?)
        }
    };
    let mut plain = BufReader::new(plain);
    let is_gzip = plain.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if is_gzip { Box::new(MultiGzDecoder::new(plain)) } else { Box::new(plain) })
}

pub(super) fn import(import: &TsImport) -> Outcome {
    let Some(precision) = Precision::of_name(&import.precision) else {
        let message = format!("`{}` is no precision; n, u, ms, s, m, h are", import.precision);
        return Err(Failure::new(REFUSED, message));
    };
    let path = &import.pool.pool;
    let mut input = source(import.input.as_deref())?;
    let store = open(&import.pool)?;
    let failed = |error: coreplane_tsdb::Error| failure_of(&error, path);
    store.create_database(&import.database).map_err(failed)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let when = (precision, i64::try_from(now).unwrap_or(i64::MAX));
    let (mut imported, mut text) = (Imported::default(), Vec::new());
    loop {
        let wanted = PIECE as u64;
        let came = input.by_ref().take(wanted).read_to_end(&mut text)?;
        let is_end = came == 0;
        let end = if is_end { text.len() } else { last_end(&text) };
        if end == 0 && text.len() > LINE_MAX {
            let message = format!("line {}: it does not end", imported.lines + 1);
            return Err(Failure::new(REFUSED, message));
        }
        let whole = text.get(..end).unwrap_or_default();
        imported.piece(&store, import, whole, when).map_err(failed)?;
        text.drain(..end);
        if is_end {
            break;
        }
    }
    let Imported { written, refused, .. } = imported;
    if import.pool.json {
        writeln!(io::stdout(), "{{\"written\":{written},\"refused\":{refused}}}")?;
    } else {
        writeln!(io::stdout(), "{written} points written, {refused} refused")?;
    }
    if refused > 0 {
        return Err(Failure::new(REFUSED, format!("{refused} lines or points were refused")));
    }
    Ok(0)
}

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

    /// Goes to the next block if this one is at its end.
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

    /// The value at a time, if it has one, after which it is at the next one.
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

/// Writes the points of a series; how many.
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
        if lines.len() > PIECE / 4 {
            out.write_all(&lines)?;
            lines.clear();
        }
    }
    out.write_all(&lines)?;
    Ok(written)
}

fn write_all(
    export: &TsExport,
    store: &Store,
    out: &mut dyn Write,
) -> std::result::Result<u64, Failure> {
    let path = &export.pool.pool;
    let reader = store
        .reader(&export.database, export.policy.as_deref())
        .map_err(|error| failure_of(&error, path))?;
    let mut written = 0;
    for measurement in reader.measurements() {
        let fields = reader.fields(&measurement);
        for series in reader.series(&measurement, &TagFilter::All) {
            written += write_series(&reader, &series, &fields, out)?;
        }
    }
    Ok(written)
}

pub(super) fn export(export: &TsExport) -> Outcome {
    let store = open(&export.pool)?;
    let plain: Box<dyn Write> = match &export.output {
        None => Box::new(io::stdout().lock()),
        Some(path) => {
            let at = |error| Failure::new(FAILED, format!("{}: {error}", path.display()));
            Box::new(File::create(path).map_err(at)?)
        }
    };
    let mut plain = BufWriter::with_capacity(1 << 20, plain);
    let written = if export.gzip {
        let mut packed = GzEncoder::new(&mut plain, Compression::fast());
        let written = write_all(export, &store, &mut packed)?;
        packed.finish()?;
        written
    } else {
        write_all(export, &store, &mut plain)?
    };
    plain.flush()?;
    eprintln!("coreplane: {written} points written");
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_where_lines_end() {
        for (text, end) in [
            ("", 0),
            ("m v=1", 0),
            ("m v=1\n", 6),
            ("m v=1\nm v=2", 6),
            ("m v=\"a\nb\"\nm", 10),
            ("m v=\"a\\\"\nb\"", 0),
            ("m v=\"a\n", 0),
            ("# it's \"so\n# \"x\"\nm", 17),
            ("m,a=b\\\nc v=1\nm", 13),
            ("m v=\"\\\\\"\nm", 9),
        ] {
            assert_eq!(last_end(text.as_bytes()), end, "{text:?}");
        }
    }
}
