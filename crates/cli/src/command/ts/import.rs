//! Points from line protocol, and from the exports of InfluxDB, whose headings name the database.
//!
//! A text is cut at an end of line, and not within a string, which may have newlines; so it is read in pieces of some
//! megabytes, however long it is.

use super::lines::{Ends, Heading};
use super::{failure_of, offline, open_there};
use crate::arguments::TsImport;
use crate::failure::{Failure, Outcome, REFUSED};
use crate::input::input;
use crate::message;
use coreplane_tsdb::influxql::{self, Limits, Request};
use coreplane_tsdb::line::{self, Precision};
use coreplane_tsdb::{Options, Point, Result, Store};
use flate2::read::MultiGzDecoder;
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of a piece.
const PIECE: usize = 4 << 20;
/// The longest line, in bytes.
const LINE_MAX: usize = 64 << 20;
/// Points of a write.
const BATCH: usize = 5_000;
/// The number of complaints that are shown.
const COMPLAINTS: u64 = 10;

/// The time limit of a statement.
const STATEMENT_TIME_MAX: Duration = Duration::from_secs(60);

/// An import, and its progress.
struct Imported<'a> {
    store: &'a Store,
    /// The parameters of the command, which override headings.
    given: &'a TsImport,
    precision: Precision,
    now: i64,
    /// The names in the last headings.
    database: Option<String>,
    policy: Option<String>,
    /// Lines are statements.
    is_statements: bool,
    written: u64,
    refused: u64,
    /// The number of lines before the current one.
    lines: usize,
}

impl Imported<'_> {
    fn complain(&mut self, complaint: &str) {
        self.refused += 1;
        if self.refused <= COMPLAINTS {
            message::tell(complaint);
        }
    }

    fn write(&mut self, batch: &mut Vec<Point<'_>>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let given = self.given;
        let Some(database) = given.database.as_ref().or(self.database.as_ref()) else {
            let message = "points of no database: name one by --database";
            return Err(coreplane_tsdb::Error::Input(message.to_owned()));
        };
        let heading = self.policy.as_ref().filter(|it| !it.is_empty() && given.database.is_none());
        let policy = given.policy.as_ref().or(heading);
        let outcome = self.store.write(database, policy.map(String::as_str), batch)?;
        self.written += outcome.written;
        for (_, why) in &outcome.rejected {
            self.complain(why);
        }
        batch.clear();
        Ok(())
    }

    fn points(&mut self, text: &[u8]) -> Result<()> {
        let mut batch = Vec::with_capacity(BATCH);
        for point in line::points(text, self.precision, self.now) {
            match point {
                Ok((_, point)) => batch.push(point),
                Err(error) => {
                    let line = self.lines + error.line;
                    self.complain(&format!("line {line}: {error}"));
                }
            }
            if batch.len() >= BATCH {
                self.write(&mut batch)?;
            }
        }
        self.write(&mut batch)
    }

    /// Runs statements, one a line, unless the database is given.
    fn statements(&mut self, text: &[u8]) {
        for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = String::from_utf8_lossy(line);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || self.given.database.is_some() {
                continue;
            }
            let deadline = Instant::now() + STATEMENT_TIME_MAX;
            let all = usize::MAX;
            let limits = Limits {
                rows_max: 0,
                buckets_max: all,
                bytes_max: all,
                deadline,
                cancel: None,
                threads_max: 1,
            };
            let (database, policy) = (None, None);
            let now = self.now;
            let request =
                Request { text: line, database, policy, now, is_read_only: false, limits };
            let failed = match influxql::run(self.store, &request) {
                Ok(answers) => answers.into_iter().find_map(|answer| answer.outcome.err()),
                Err(error) => Some(error.to_string()),
            };
            if let Some(error) = failed {
                self.complain(&format!("line {}: {error}", self.lines + at + 1));
            }
        }
    }

    /// Imports a text of whole lines.
    fn piece(&mut self, text: &[u8]) -> Result<()> {
        let (mut from, mut begin) = (0, 0);
        for end in Ends::of(text, self.is_statements) {
            let heading = Heading::of(text.get(begin..end).unwrap_or_default());
            if let Some(heading) = heading {
                self.part(text.get(from..begin).unwrap_or_default())?;
                self.lines += 1;
                self.turn_to(heading)?;
                from = end;
            }
            begin = end;
        }
        self.part(text.get(from..).unwrap_or_default())
    }

    fn part(&mut self, text: &[u8]) -> Result<()> {
        match self.is_statements {
            true => self.statements(text),
            false => self.points(text)?,
        }
        self.lines += text.iter().filter(|byte| **byte == b'\n').count();
        Ok(())
    }

    fn turn_to(&mut self, heading: Heading<'_>) -> Result<()> {
        match heading {
            Heading::Statements => self.is_statements = true,
            Heading::Points => self.is_statements = false,
            Heading::Policy(name) => self.policy = Some(name.to_owned()),
            Heading::Database(name) => {
                if self.given.database.is_none() {
                    self.store.create_database(name)?;
                }
                (self.database, self.policy) = (Some(name.to_owned()), None);
            }
        }
        Ok(())
    }
}

fn source(path: Option<&Path>) -> std::result::Result<Box<dyn Read>, Failure> {
    let (mut plain, _) = input(path)?;
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
    let options = Options {
        policy: import.balance,
        interval_tag: import.interval_tag.clone(),
        upkeep: true,
        ..offline(&import.pool.media)
    };
    let store = open_there(path, &options)?;
    let failed = |error: coreplane_tsdb::Error| failure_of(&error, path);
    if let Some(database) = &import.database {
        store.create_database(database).map_err(failed)?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let mut imported = Imported {
        store: &store,
        given: import,
        precision,
        now: i64::try_from(now).unwrap_or(i64::MAX),
        database: None,
        policy: None,
        is_statements: false,
        written: 0,
        refused: 0,
        lines: 0,
    };
    let mut text = Vec::new();
    loop {
        let wanted = PIECE as u64;
        let came = input.by_ref().take(wanted).read_to_end(&mut text)?;
        let is_end = came == 0;
        let ends = Ends::of(&text, imported.is_statements);
        let end = if is_end { text.len() } else { ends.last().unwrap_or(0) };
        if end == 0 && text.len() > LINE_MAX {
            let message = format!("line {}: it does not end", imported.lines + 1);
            return Err(Failure::new(REFUSED, message));
        }
        let whole = text.get(..end).unwrap_or_default();
        imported.piece(whole).map_err(failed)?;
        text.drain(..end);
        if is_end {
            break;
        }
    }
    let Imported { written, refused, .. } = imported;
    if import.json {
        writeln!(io::stdout(), "{{\"written\":{written},\"refused\":{refused}}}")?;
    } else {
        writeln!(io::stdout(), "{written} points written, {refused} refused")?;
    }
    if refused > 0 {
        return Err(Failure::new(REFUSED, format!("{refused} lines or points were refused")));
    }
    Ok(0)
}
