//! Line protocol: points as InfluxDB's clients write them, read and written.
//!
//! # The problem
//!
//! Every point comes through here, so a line is gone through once, and what it says is borrowed from it: only names and
//! strings with escapes, and keys whose tags do not ascend, are copied. And what InfluxDB 1.6 takes is taken, with the same
//! meaning, and what it refuses is refused in its words, since clients look for them.
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
//! - A line is a point or an error that says why. Behind a broken line the next one is found as InfluxDB finds it: at the
//!   first newline that is neither escaped nor within quotes, so that the text of a string is never taken for a line.
//! - Whatever bytes come, nothing panics, and a line is gone through twice at most.
//! - What [`write_point`] has written is read as the same point, bit by bit.
//!
//! # Departures from InfluxDB 1.6
//!
//! - A carriage return before a newline belongs to the line's end; a comment ends at its newline, whatever quotes it has.
//! - Lines must be UTF-8. Names have no newlines and do not begin with a tab or a zero byte; a string has
//!   [`STRING_MAX`](crate::value::STRING_MAX) bytes at most.
//! - What stands between the quote that ends a string and the next comma or space is an error, where the last byte of it was
//!   taken for the quote; and so is an equals sign at the beginning of a tag's value.
//! - A backslash in front of what it escapes escapes it even if another backslash stands before both, in names of fields as in
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

/// Bytes of a broken line that its error has at most.
const QUOTE_MAX: usize = 256;

/// Why a line is no point.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct LineError {
    /// Its number, from 1.
    pub line: usize,
    /// InfluxDB's words for it.
    pub message: String,
}

/// What is wrong with a line.
type Fault = Cow<'static, str>;

/// The points of a text. A line without a time has `now` (nanoseconds since 1970), cut to the precision.
#[must_use]
pub fn points(text: &[u8], precision: Precision, now: i64) -> Lines<'_> {
    let now = now.saturating_sub(now.rem_euclid(precision.nanoseconds()));
    Lines { text: Cursor::new(text), line: 1, precision, now }
}

/// The points of a text, with the number of the line (from 1) that each begins in.
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
    /// The point that the text goes on with.
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
