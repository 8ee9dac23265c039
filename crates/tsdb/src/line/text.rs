//! The text of lines, and a place in it.

use super::Fault;
use crate::point::{self, KEY_MAX, SeriesKey};

/// A place in a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The beginning of a text.
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// The next byte.
    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// The byte behind the next one.
    pub(super) fn peek_second(&self) -> Option<u8> {
        self.text.get(self.at + 1).copied()
    }

    /// Moves forward by some bytes.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes).min(self.text.len());
    }

    /// The bytes that have not been scanned.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    /// Moves forward by some bytes, and returns them.
    #[inline]
    pub(super) fn take(&mut self, bytes: usize) -> &'a [u8] {
        let taken = self.rest().get(..bytes).unwrap_or_else(|| self.rest());
        self.advance(bytes);
        taken
    }

    /// True at the end of the line: at the end, at a newline, or at the carriage return before one of them.
    #[inline]
    pub(super) fn is_end(&self) -> bool {
        match self.peek() {
            None | Some(b'\n') => true,
            Some(b'\r') => matches!(self.peek_second(), None | Some(b'\n')),
            Some(_) => false,
        }
    }

    /// True behind a value: at a comma, a space, or the end of the line.
    #[inline]
    pub(super) fn is_value_end(&self) -> bool {
        matches!(self.peek(), Some(b',' | b' ')) || self.is_end()
    }

    /// Moves past spaces, tabs and zero bytes.
    #[inline]
    pub(super) fn skip_whitespace(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\0')) {
            self.advance(1);
        }
    }

    /// Moves to the next line that is neither blank nor a comment; returns the number of newlines passed.
    pub(super) fn skip_blank_lines(&mut self) -> usize {
        let mut newlines = 0;
        loop {
            self.skip_whitespace();
            match self.peek() {
                Some(b'\n') => newlines += 1,
                Some(b'\r') if self.is_end() => {}
                Some(b'#') => {
                    let rest = self.rest();
                    let length = rest.iter().position(|byte| *byte == b'\n');
                    self.advance(length.unwrap_or(rest.len()));
                    continue;
                }
                _ => return newlines,
            }
            self.advance(1);
        }
    }

    /// Moves past a broken line, to the place where InfluxDB goes on. Returns the line without its end, and the
    /// number of newlines within it. Behind the first space a quote counts only if there are more equals signs than
    /// commas.
    pub(super) fn take_line(&mut self) -> (&'a [u8], usize) {
        let rest = self.rest();
        let (mut length, mut newlines) = (0, 0);
        let (mut has_fields, mut is_quoted) = (false, false);
        let (mut equals, mut commas) = (0_usize, 0_usize);
        while let Some(byte) = rest.get(length) {
            match byte {
                b'\\' if length + 2 < rest.len() => {
                    length += 1;
                    newlines += usize::from(rest.get(length) == Some(&b'\n'));
                }
                b'\n' if !is_quoted => break,
                b'\n' => newlines += 1,
                b' ' => has_fields = true,
                b'=' if has_fields && !is_quoted => equals += 1,
                b',' if has_fields && !is_quoted => commas += 1,
                b'"' if has_fields && equals > commas => is_quoted = !is_quoted,
                _ => {}
            }
            length += 1;
        }
        let line = self.take(length);
        (line.strip_suffix(b"\r").unwrap_or(line), newlines)
    }
}

/// The key at the beginning of a line.
pub(super) fn series<'a>(text: &mut Cursor<'a>) -> Result<SeriesKey<'a>, Fault> {
    let extent = point::scan(text.rest())?;
    if extent.length > KEY_MAX {
        return Err(point::too_long(extent.length).into());
    }
    let key = utf8(text.take(extent.length))?;
    if text.peek() != Some(b' ') {
        return Err("missing fields".into());
    }
    Ok(SeriesKey::of_extent(key, extent)?)
}

/// Some bytes of a line as text.
#[inline]
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|_| Fault::Borrowed("invalid UTF-8"))
}
