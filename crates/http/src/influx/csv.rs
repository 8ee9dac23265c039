//! Answers as comma-separated values, as InfluxDB writes them with Go's `encoding/csv`.
//!
//! Times are nanoseconds, whatever the epoch; each line has a name, its tags, and the columns. A statement without
//! series has no lines. An empty line separates statements, and tables whose columns differ. An answer ends where
//! one in JSON would be cut off; the format has no mark for that.

use super::json::{Encoder, PIECE, Shape};
use super::time::Unit;
use coreplane_tsdb::influxql::{Answer, Cell, Table};
use std::io::Write;

/// Answers to statements as comma-separated values.
pub(super) struct Csv {
    answers: Vec<Answer>,
    epoch: Option<Unit>,
    /// Rows that may still be written.
    left: usize,
    answer: usize,
    table: usize,
    row: usize,
    /// True if a line with column names was written.
    has_head: bool,
}

impl Csv {
    pub(super) fn new(answers: Vec<Answer>, shape: Shape) -> Self {
        let is_bounded = shape.chunk.is_none() && shape.rows_max > 0;
        let left = if is_bounded { shape.rows_max } else { usize::MAX };
        Self { answers, epoch: shape.epoch, left, answer: 0, table: 0, row: 0, has_head: false }
    }

    /// Writes the lines before the rows of a table.
    fn begin_table(&mut self, out: &mut Vec<u8>) {
        let Some(Ok(tables)) = self.answers.get(self.answer).map(|it| &it.outcome) else { return };
        let Some(table) = tables.get(self.table) else { return };
        let previous = self.table.checked_sub(1).and_then(|at| tables.get(at));
        if previous.is_some_and(|previous| previous.columns == table.columns) {
            return;
        }
        if std::mem::replace(&mut self.has_head, true) {
            out.push(b'\n');
        }
        out.extend_from_slice(b"name,tags");
        for column in &table.columns {
            out.push(b',');
            field(column.as_bytes(), out);
        }
        out.push(b'\n');
    }

    /// Writes rows of a table until there are enough for now; false if none is left.
    fn rows(&mut self, out: &mut Vec<u8>) -> bool {
        let Self { answers, epoch, left, answer, table, row, .. } = self;
        let found = answers.get(*answer).and_then(|it| it.outcome.as_ref().ok()?.get(*table));
        let Some(table) = found else { return false };
        let begin = begin_of(table);
        for cells in table.rows.get(*row..).unwrap_or_default() {
            if *left == 0 {
                return false;
            }
            out.extend_from_slice(&begin);
            for cell in cells {
                out.push(b',');
                write_cell(cell, *epoch, out);
            }
            out.push(b'\n');
            *row += 1;
            *left -= 1;
            // Behind a row: before the first one, the next call would begin the table again.
            if out.len() >= PIECE {
                return true;
            }
        }
        false
    }
}

/// The name and the tags of a table, with which each of its lines begins.
fn begin_of(table: &Table) -> Vec<u8> {
    let mut begin = Vec::new();
    field(table.name.as_deref().unwrap_or_default().as_bytes(), &mut begin);
    begin.push(b',');
    let mut tags = Vec::new();
    // In a series' key there are no tags without a value.
    for (key, value) in table.tags.iter().filter(|(_, value)| !value.is_empty()) {
        if !tags.is_empty() {
            tags.push(b',');
        }
        escape(key, &mut tags);
        tags.push(b'=');
        escape(value, &mut tags);
    }
    field(&tags, &mut begin);
    begin
}

/// Appends a tag as it is written in a series' key.
fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        if matches!(byte, b',' | b'=' | b' ') {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

fn write_cell(cell: &Cell, epoch: Option<Unit>, out: &mut Vec<u8>) {
    // Writing to a vector does not fail.
    let _written = match cell {
        Cell::Null => Ok(()),
        Cell::Time(time) => write!(out, "{}", epoch.map_or(*time, |unit| unit.count(*time))),
        Cell::Float(value) => write!(out, "{value}"),
        Cell::Integer(value) => write!(out, "{value}"),
        Cell::Unsigned(value) => write!(out, "{value}"),
        Cell::Boolean(value) => write!(out, "{value}"),
        Cell::String(value) => {
            field(value.as_bytes(), out);
            Ok(())
        }
    }
    .is_ok();
}

/// Appends a field, in quotes where Go puts them.
pub(super) fn field(text: &[u8], out: &mut Vec<u8>) {
    let is_quoted = match text {
        b"" => false,
        b"\\." => true,
        [first, ..] => {
            first.is_ascii_whitespace()
                || text.iter().any(|byte| matches!(byte, b',' | b'"' | b'\r' | b'\n'))
        }
    };
    if !is_quoted {
        out.extend_from_slice(text);
        return;
    }
    out.push(b'"');
    for byte in text {
        if *byte == b'"' {
            out.push(b'"');
        }
        out.push(*byte);
    }
    out.push(b'"');
}

impl Encoder for Csv {
    fn fill(&mut self, out: &mut Vec<u8>) -> bool {
        while let Some(answer) = self.answers.get(self.answer) {
            let tables = match &answer.outcome {
                Ok(tables) => tables.len(),
                Err(error) => {
                    if std::mem::replace(&mut self.has_head, true) {
                        out.push(b'\n');
                    }
                    out.extend_from_slice(b"error\n");
                    field(error.as_bytes(), out);
                    out.push(b'\n');
                    0
                }
            };
            while self.table < tables && self.left > 0 {
                if self.row == 0 {
                    self.begin_table(out);
                }
                if self.rows(out) {
                    return true;
                }
                self.table += 1;
                self.row = 0;
            }
            self.answer += 1;
            if self.left == 0 {
                self.answer = self.answers.len();
            }
            self.table = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn text_of(answers: Vec<Answer>) -> String {
        let (mut csv, mut out) = (Csv::new(answers, Shape::default()), Vec::new());
        assert!(!csv.fill(&mut out));
        String::from_utf8(out).unwrap()
    }

    fn table(tags: &[(&str, &str)], columns: &[&str], rows: Vec<Vec<Cell>>) -> Table {
        Table {
            name: Some("m".to_owned()),
            tags: tags.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            columns: columns.iter().map(|it| (*it).to_owned()).collect(),
            rows: rows.into_iter().map(Into::into).collect(),
        }
    }

    #[test]
    fn lines_have_name_tags_and_columns() {
        let row =
            vec![Cell::Time(7), Cell::Float(1e21), Cell::Null, Cell::String(Arc::from("a,\"b"))];
        let first = table(&[("t", "a b"), ("u", "")], &["time", "x", "y", "z"], vec![row]);
        let second =
            table(&[("t", "c")], &["time", "x"], vec![vec![Cell::Time(8), Cell::Boolean(true)]]);
        let answers = vec![
            Answer { statement: 0, outcome: Ok(vec![first, second.clone(), second.clone()]) },
            Answer { statement: 1, outcome: Ok(Vec::new()) },
            Answer { statement: 2, outcome: Ok(vec![second]) },
        ];
        let expected = "name,tags,time,x,y,z\nm,t=a\\ b,7,1000000000000000000000,,\"a,\"\"b\"\n\n\
            name,tags,time,x\nm,t=c,8,true\nm,t=c,8,true\n\nname,tags,time,x\nm,t=c,8,true\n";
        assert_eq!(text_of(answers), expected);
    }

    #[test]
    fn long_answers_come_in_pieces() {
        let rows = (0..20_000).map(|at| vec![Cell::Time(at)]).collect();
        let (text, pieces) = in_pieces(vec![vec![table(&[], &["time"], rows)]]);
        assert!(pieces > 2 && text.lines().count() == 20_001 && text.ends_with("m,,19999\n"));
    }

    /// The text of answers, and the number of its pieces.
    fn in_pieces(tables: Vec<Vec<Table>>) -> (String, usize) {
        let answer = |(statement, tables)| Answer { statement, outcome: Ok(tables) };
        let answers = tables.into_iter().enumerate().map(answer).collect();
        let mut csv = Csv::new(answers, Shape::default());
        let mut out = Vec::new();
        for pieces in 1..1000 {
            let mut piece = Vec::new();
            let more = csv.fill(&mut piece);
            out.extend_from_slice(&piece);
            if !more {
                return (String::from_utf8(out).unwrap(), pieces);
            }
        }
        panic!("{} bytes, and no end", out.len());
    }

    #[test]
    fn column_names_of_more_than_a_piece_are_written_once() {
        let name = "x".repeat(PIECE);
        let rows = (0..3).map(|at| vec![Cell::Time(at)]).collect();
        let (text, _) = in_pieces(vec![vec![table(&[], &[&name], rows)]]);
        assert!(text == format!("name,tags,{name}\nm,,0\nm,,1\nm,,2\n"));
    }

    #[test]
    fn column_names_behind_a_piece_are_written_once() {
        let cell = |len: usize| vec![Cell::String("x".repeat(len).into())];
        for len in PIECE - 40..PIECE + 10 {
            let first = table(&[], &["a"], vec![cell(len)]);
            let second = table(&[], &["b"], vec![cell(1)]);
            let (text, _) = in_pieces(vec![vec![first], vec![second]]);
            let row = "x".repeat(len);
            assert!(text == format!("name,tags,a\nm,,{row}\n\nname,tags,b\nm,,x\n"), "{len}");
        }
    }
}
