//! Line protocol: points as InfluxDB's clients write them, read and written.
//!
//! # The problem
//!
//! Every point comes through here, so a line is scanned once, and its point borrows from it: only names and strings
//! with escapes, and keys whose tags do not ascend, are copied. Lines that InfluxDB 1.6 accepts are accepted with
//! the same meaning; lines that it refuses are refused with its messages, since clients look for them.
//!
//! # The picture
//!
//! ```text
//!   cpu,host=a,region=eu usage=12i,idle=3.5,note="a \"b\", c" 1465839830100400200⏎
//!   └────── key ───────┘ └─────────── fields ──────────────┘ └── time, optional ─┘
//!     point::scan          fields: number, text                time
//! ```
//!
//! # What holds
//!
//! - A line gives a point, or an error with the reason. Behind a broken line the next one is found as in InfluxDB:
//!   at the first newline that is neither escaped nor within quotes, so that the text of a string is never taken
//!   for a line.
//! - No input causes a panic, and a line is scanned twice at most.
//! - The output of [`write_point`] is read as the same point, bit by bit.
//!
//! # Departures from InfluxDB 1.6
//!
//! - A carriage return before a newline belongs to the line's end; a comment ends at its newline, whatever quotes it
//!   has.
//! - Lines must be UTF-8. Names have no newlines and do not begin with a tab or a zero byte; a string has
//!   [`STRING_MAX`](crate::value::STRING_MAX) bytes at most.
//! - A line has [`FIELDS_MAX`](crate::point::FIELDS_MAX) fields at most, those that come twice included.
//! - Text between the closing quote of a string and the next comma or space is an error; InfluxDB takes its last
//!   byte for the quote. An equals sign at the beginning of a tag's value is an error, too.
//! - A backslash escapes the next character even if another backslash stands before both, in field names as in
//!   tags.
//! - Unsigned integers are taken, as by a build of InfluxDB that has them.

mod export;
mod field;
mod number;
mod text;
mod time;

pub use export::write_point;
pub use time::Precision;

use crate::point::Point;
use std::borrow::Cow;
use text::Cursor;

/// The maximum length of the part of a broken line that an error quotes, in bytes.
const QUOTE_MAX: usize = 256;

/// The error for a line that is no point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LineError {
    /// Its number, from 1.
    pub line: usize,
    /// The message, in InfluxDB's words.
    pub message: String,
}

/// The fault of a line.
type Fault = Cow<'static, str>;

/// The points of a text. A line without a time gets `now` (nanoseconds since 1970), cut to the precision.
#[must_use]
pub fn points(text: &[u8], precision: Precision, now: i64) -> Lines<'_> {
    let now = now.saturating_sub(now.rem_euclid(precision.nanoseconds()));
    Lines { text: Cursor::new(text), line: 1, precision, now }
}

/// The points of a text, each with the number of the line (from 1) in which it begins.
#[derive(Debug, Clone)]
pub struct Lines<'a> {
    text: Cursor<'a>,
    line: usize,
    precision: Precision,
    now: i64,
}

impl<'a> Iterator for Lines<'a> {
    type Item = std::result::Result<(usize, Point<'a>), LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.line += self.text.skip_blank_lines();
        self.text.peek()?;
        let line = self.line;
        let start = self.text;
        match self.point() {
            Ok(point) => Some(Ok((line, point))),
            Err(fault) => {
                self.text = start;
                let (broken, newlines) = self.text.take_line();
                self.line = line + newlines;
                let quote = broken.get(..QUOTE_MAX).unwrap_or(broken);
                let quote = String::from_utf8_lossy(quote);
                let message = format!("unable to parse '{quote}': {fault}");
                Some(Err(LineError { line, message }))
            }
        }
    }
}

impl<'a> Lines<'a> {
    /// The next point of the text.
    fn point(&mut self) -> std::result::Result<Point<'a>, Fault> {
        let series = text::series(&mut self.text)?;
        self.text.skip_whitespace();
        let fields = field::fields(&mut self.text, series.as_str().len(), &mut self.line)?;
        self.text.skip_whitespace();
        let time = match time::time(&mut self.text, self.precision)? {
            Some(time) => time,
            None => self.now,
        };
        Ok(Point { series, fields, time })
    }
}

#[cfg(test)]
mod tests;
