//! JSON as Go writes it: InfluxDB's answers, byte for byte.
//!
//! An answer is encoded piece by piece while the client takes it, so that it is in memory once, as rows, and not
//! also as text. The encoder is a machine whose states are the places in the document:
//!
//! ```text
//!   Document ─► Result ─► Table ─► Rows ─► TableEnd ─► ResultEnd ─► DocumentEnd ─► Done
//!      ▲           ▲        ▲                 │            │             │
//!      │           │        └─ next table ────┘            │             │   without chunks
//!      │           └─────────── next statement ────────────┘             │
//!      └────────────────────────── next chunk ───────────────────────────┘   with chunks
//! ```

use super::time::{Unit, write_rfc3339};
use coreplane_tsdb::influxql::{Answer, Cell, Table};
use std::io::Write;

/// Bytes of a piece, about.
pub(super) const PIECE: usize = 64 << 10;

/// An encoder that writes an answer piece by piece.
pub(super) trait Encoder: Send {
    /// Appends a piece; false if it was the last one.
    fn fill(&mut self, out: &mut Vec<u8>) -> bool;
}

/// The form of an answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shape {
    /// Times are numbers of this unit; none: text.
    pub(super) epoch: Option<Unit>,
    pub(super) pretty: bool,
    /// The maximum number of rows of a chunk; none: one document.
    pub(super) chunk: Option<usize>,
    /// The maximum number of rows of a document without chunks; 0: all.
    pub(super) rows_max: usize,
}

/// JSON with commas and line breaks as Go writes them.
#[derive(Debug, Default)]
pub(crate) struct Json {
    pretty: bool,
    depth: usize,
    /// True if the innermost open object or array has elements.
    has_items: bool,
}

impl Json {
    pub(crate) fn new(pretty: bool) -> Self {
        Self { pretty, ..Self::default() }
    }

    fn line(&self, out: &mut Vec<u8>) {
        if self.pretty {
            out.push(b'\n');
            (0..self.depth).for_each(|_| out.extend_from_slice(b"    "));
        }
    }

    /// Begins an object or an array.
    pub(crate) fn open(&mut self, bracket: u8, out: &mut Vec<u8>) {
        out.push(bracket);
        self.depth += 1;
        self.has_items = false;
    }

    /// Ends an object or an array.
    pub(crate) fn close(&mut self, bracket: u8, out: &mut Vec<u8>) {
        self.depth = self.depth.saturating_sub(1);
        if self.has_items {
            self.line(out);
        }
        out.push(bracket);
        self.has_items = true;
    }

    /// Begins the next element of an array.
    pub(crate) fn item(&mut self, out: &mut Vec<u8>) {
        if self.has_items {
            out.push(b',');
        }
        self.line(out);
        self.has_items = true;
    }

    /// Begins the next member of an object.
    pub(crate) fn key(&mut self, name: &str, out: &mut Vec<u8>) {
        self.item(out);
        string(name, out);
        out.extend_from_slice(if self.pretty { b": " } else { b":" });
    }
}

/// Appends a string as Go does: `<`, `>` and `&` are escaped, too.
pub(crate) fn string(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut plain = 0;
    for (at, byte) in bytes.iter().enumerate() {
        let is_plain = !matches!(byte, 0..0x20 | b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2);
        if is_plain {
            continue;
        }
        // U+2028 and U+2029, which end lines in JavaScript.
        let line = (*byte == 0xe2).then(|| bytes.get(at + 1..at + 3)).flatten();
        let line = match line {
            Some([0x80, end @ (0xa8 | 0xa9)]) => Some(*end & 0xf),
            _ if *byte == 0xe2 => continue,
            _ => None,
        };
        out.extend_from_slice(bytes.get(plain..at).unwrap_or_default());
        plain = at + 1;
        match (line, byte) {
            (Some(end), _) => {
                out.extend_from_slice(if end == 8 { b"\\u2028" } else { b"\\u2029" });
                plain = at + 3;
            }
            (None, b'"') => out.extend_from_slice(b"\\\""),
            (None, b'\\') => out.extend_from_slice(b"\\\\"),
            (None, b'\n') => out.extend_from_slice(b"\\n"),
            (None, b'\r') => out.extend_from_slice(b"\\r"),
            (None, b'\t') => out.extend_from_slice(b"\\t"),
            (None, _) => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]);
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
    }
    out.extend_from_slice(bytes.get(plain..).unwrap_or_default());
    out.push(b'"');
}

/// Appends a number as Go does: the shortest text that reads the same, with an exponent below 1e-6 and from 1e21
/// on.
pub(crate) fn float(value: f64, out: &mut Vec<u8>) {
    let size = value.abs();
    // Writing to a vector does not fail.
    let _written = if !value.is_finite() {
        out.write_all(b"null")
    } else if size != 0.0 && !(1e-6..1e21).contains(&size) {
        let text = format!("{value:e}");
        out.write_all(text.replace('e', if size < 1.0 { "e" } else { "e+" }).as_bytes())
    } else {
        let mut buffer = ryu::Buffer::new();
        let text = buffer.format_finite(value);
        if text.contains('e') {
            write!(out, "{value}")
        } else {
            out.write_all(text.strip_suffix(".0").unwrap_or(text).as_bytes())
        }
    }
    .is_ok();
}

fn integer(value: impl itoa::Integer, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn cell(value: &Cell, epoch: Option<Unit>, out: &mut Vec<u8>) {
    match value {
        Cell::Null => out.extend_from_slice(b"null"),
        Cell::Time(time) => match epoch {
            Some(unit) => integer(unit.count(*time), out),
            None => {
                out.push(b'"');
                write_rfc3339(*time, out);
                out.push(b'"');
            }
        },
        Cell::Float(value) => float(*value, out),
        Cell::Integer(value) => integer(*value, out),
        Cell::Unsigned(value) => integer(*value, out),
        Cell::Boolean(true) => out.extend_from_slice(b"true"),
        Cell::Boolean(false) => out.extend_from_slice(b"false"),
        Cell::String(text) => string(text, out),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Document,
    Result,
    Table,
    Rows,
    TableEnd,
    ResultEnd,
    DocumentEnd,
    Done,
}

/// Answers to statements as JSON.
#[derive(Debug)]
pub(super) struct Document {
    answers: Vec<Answer>,
    shape: Shape,
    json: Json,
    state: State,
    answer: usize,
    table: usize,
    row: usize,
    /// Rows of this chunk, or of all tables so far if there are no chunks.
    rows: usize,
}

impl Document {
    pub(super) fn new(answers: Vec<Answer>, shape: Shape) -> Self {
        let json = Json::new(shape.pretty);
        Self { answers, shape, json, state: State::Document, answer: 0, table: 0, row: 0, rows: 0 }
    }

    fn tables(&self) -> &[Table] {
        match self.answers.get(self.answer).map(|answer| &answer.outcome) {
            Some(Ok(tables)) => tables,
            _ => &[],
        }
    }

    /// Rows of the table that may still be in this document.
    fn room(&self) -> usize {
        match self.shape.chunk {
            Some(chunk) => chunk.saturating_sub(self.rows),
            None if self.shape.rows_max > 0 => self.shape.rows_max.saturating_sub(self.rows),
            None => usize::MAX,
        }
    }

    /// True if rows of the table remain to be written.
    fn is_cut(&self) -> bool {
        self.tables().get(self.table).is_some_and(|table| self.row < table.rows.len())
    }

    fn step(&mut self, out: &mut Vec<u8>) {
        self.state = match self.state {
            State::Document => self.begin_document(out),
            State::Result => self.begin_result(out),
            State::Table => self.begin_table(out),
            State::Rows => self.rows(out),
            State::TableEnd => self.end_table(out),
            State::ResultEnd => self.end_result(out),
            State::DocumentEnd => self.end_document(out),
            State::Done => State::Done,
        }
    }

    fn begin_document(&mut self, out: &mut Vec<u8>) -> State {
        self.json = Json::new(self.shape.pretty);
        self.json.open(b'{', out);
        if self.answers.is_empty() {
            return State::DocumentEnd;
        }
        self.json.key("results", out);
        self.json.open(b'[', out);
        State::Result
    }

    fn begin_result(&mut self, out: &mut Vec<u8>) -> State {
        let Some(answer) = self.answers.get(self.answer) else { return State::DocumentEnd };
        self.json.item(out);
        self.json.open(b'{', out);
        self.json.key("statement_id", out);
        integer(answer.statement, out);
        match &answer.outcome {
            Err(error) => {
                self.json.key("error", out);
                string(error, out);
                State::ResultEnd
            }
            Ok(tables) if tables.is_empty() => State::ResultEnd,
            Ok(_) => {
                self.json.key("series", out);
                self.json.open(b'[', out);
                State::Table
            }
        }
    }

    fn begin_table(&mut self, out: &mut Vec<u8>) -> State {
        if self.shape.chunk.is_some() {
            self.rows = 0;
        }
        let json = &mut self.json;
        json.item(out);
        json.open(b'{', out);
        let Some(Ok(tables)) = self.answers.get(self.answer).map(|it| &it.outcome) else {
            return State::TableEnd;
        };
        let Some(table) = tables.get(self.table) else { return State::TableEnd };
        if let Some(name) = table.name.as_ref().filter(|name| !name.is_empty()) {
            json.key("name", out);
            string(name, out);
        }
        if !table.tags.is_empty() {
            json.key("tags", out);
            json.open(b'{', out);
            for (key, value) in &table.tags {
                json.key(key, out);
                string(value, out);
            }
            json.close(b'}', out);
        }
        if !table.columns.is_empty() {
            json.key("columns", out);
            json.open(b'[', out);
            for column in &table.columns {
                json.item(out);
                string(column, out);
            }
            json.close(b']', out);
        }
        if table.rows.len() == self.row || self.room() == 0 {
            return State::TableEnd;
        }
        self.json.key("values", out);
        self.json.open(b'[', out);
        State::Rows
    }

    fn rows(&mut self, out: &mut Vec<u8>) -> State {
        let room = self.room();
        let Self { answers, shape, json, answer, table, row, rows, .. } = self;
        let found = answers.get(*answer).and_then(|it| it.outcome.as_ref().ok()?.get(*table));
        let left = found.and_then(|table| table.rows.get(*row..)).unwrap_or_default();
        let mut done = 0;
        for cells in left.iter().take(room) {
            json.item(out);
            json.open(b'[', out);
            for value in cells {
                json.item(out);
                cell(value, shape.epoch, out);
            }
            json.close(b']', out);
            done += 1;
            if out.len() >= PIECE {
                break;
            }
        }
        let is_end = done == left.len().min(room);
        *row += done;
        *rows += done;
        if !is_end {
            return State::Rows;
        }
        json.close(b']', out);
        State::TableEnd
    }

    fn end_table(&mut self, out: &mut Vec<u8>) -> State {
        let is_cut = self.is_cut();
        if is_cut {
            self.json.key("partial", out);
            out.extend_from_slice(b"true");
        }
        self.json.close(b'}', out);
        let is_full = self.shape.rows_max > 0 && self.rows >= self.shape.rows_max;
        if self.shape.chunk.is_none() {
            let is_last = self.table + 1 >= self.tables().len();
            if !is_last && !is_full {
                self.table += 1;
                self.row = 0;
                return State::Table;
            }
        } else if !is_cut {
            self.table += 1;
            self.row = 0;
        }
        self.json.close(b']', out);
        State::ResultEnd
    }

    fn end_result(&mut self, out: &mut Vec<u8>) -> State {
        let is_chunked = self.shape.chunk.is_some();
        let has_more = is_chunked && self.table < self.tables().len();
        if has_more {
            self.json.key("partial", out);
            out.extend_from_slice(b"true");
        }
        self.json.close(b'}', out);
        if !has_more {
            self.answer += 1;
            (self.table, self.row) = (0, 0);
        }
        let is_full = !is_chunked && self.shape.rows_max > 0 && self.rows >= self.shape.rows_max;
        if is_full {
            self.answer = self.answers.len();
        }
        if is_chunked { State::DocumentEnd } else { State::Result }
    }

    fn end_document(&mut self, out: &mut Vec<u8>) -> State {
        if !self.answers.is_empty() {
            self.json.close(b']', out);
        }
        self.json.close(b'}', out);
        out.push(b'\n');
        if self.answer < self.answers.len() { State::Document } else { State::Done }
    }
}

impl Encoder for Document {
    fn fill(&mut self, out: &mut Vec<u8>) -> bool {
        while self.state != State::Done && out.len() < PIECE {
            self.step(out);
        }
        self.state != State::Done
    }
}

#[cfg(test)]
mod tests;
