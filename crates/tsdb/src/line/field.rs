//! The fields of a line.

use super::Fault;
use super::number;
use super::text::{Cursor, utf8};
use crate::point::{
    FIELDS_MAX, FieldValue, KEY_MAX, is_special, is_special_in_field, name_end, too_long, unescape,
};
use crate::value::STRING_MAX;
use smallvec::SmallVec;
use std::borrow::Cow;

const MISSING_VALUE: Fault = Fault::Borrowed("missing field value");
const INVALID_FORMAT: Fault = Fault::Borrowed("invalid field format");
const INVALID_BOOLEAN: Fault = Fault::Borrowed("invalid boolean");

/// InfluxDB puts this between a key and the name of a field when it counts the length of both.
const SEPARATOR: &str = "#!~#";

/// Names and values.
type Fields<'a> = SmallVec<[(Cow<'a, str>, FieldValue<'a>); 8]>;

/// The fields of a line whose series key has `key_length` bytes; adds newlines within strings to `line`. A field of
/// four bytes takes twelve times as many here: so their number is bounded.
pub(super) fn fields<'a>(
    text: &mut Cursor<'a>,
    key_length: usize,
    line: &mut usize,
) -> Result<Fields<'a>, Fault> {
    let mut fields = SmallVec::new();
    loop {
        let name = name(text)?;
        let length = key_length + SEPARATOR.len() + name.len();
        if length > KEY_MAX {
            return Err(too_long(length).into());
        }
        if fields.len() >= FIELDS_MAX {
            return Err(format!("max fields per line exceeded: {FIELDS_MAX}").into());
        }
        fields.push((name, value(text, line)?));
        match text.peek() {
            Some(b',') => text.advance(1),
            _ => return Ok(fields),
        }
    }
}

/// The name of a field; moves past its equals sign.
fn name<'a>(text: &mut Cursor<'a>) -> Result<Cow<'a, str>, Fault> {
    let length = name_end(text.rest(), 0, is_special);
    let name = text.take(length);
    if text.peek() != Some(b'=') || matches!(name.first(), Some(b'\t' | b'\0')) {
        return Err(INVALID_FORMAT);
    }
    if name.is_empty() {
        return Err("missing field key".into());
    }
    text.advance(1);
    Ok(unescape(utf8(name)?, is_special_in_field))
}

/// The value of a field, up to a comma, a space or the end of the line.
fn value<'a>(text: &mut Cursor<'a>, line: &mut usize) -> Result<FieldValue<'a>, Fault> {
    let (value, fault) = match text.peek() {
        Some(b'0'..=b'9' | b'.' | b'-' | b'N' | b'n') => {
            (number::number(text)?, number::INVALID_NUMBER)
        }
        Some(b'"') => (FieldValue::String(string(text, line)?), INVALID_FORMAT),
        _ if text.is_value_end() => return Err(MISSING_VALUE),
        _ => (FieldValue::Boolean(boolean(text)?), INVALID_BOOLEAN),
    };
    if text.is_value_end() { Ok(value) } else { Err(fault) }
}

fn boolean(text: &mut Cursor<'_>) -> Result<bool, Fault> {
    let rest = text.rest();
    let word = rest.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    match text.take(word) {
        b"t" | b"T" | b"true" | b"True" | b"TRUE" => Ok(true),
        b"f" | b"F" | b"false" | b"False" | b"FALSE" => Ok(false),
        _ => Err(INVALID_BOOLEAN),
    }
}

/// A string, without its quotes; moves past the closing quote.
fn string<'a>(text: &mut Cursor<'a>, line: &mut usize) -> Result<Cow<'a, str>, Fault> {
    text.advance(1);
    let rest = text.rest();
    let mut length = 0;
    let (mut newlines, mut has_escapes) = (0, false);
    loop {
        match rest.get(length) {
            None => return Err("unbalanced quotes".into()),
            Some(b'"') => break,
            Some(b'\\') => {
                has_escapes = true;
                length += 1;
                newlines += usize::from(rest.get(length) == Some(&b'\n'));
            }
            Some(b'\n') => newlines += 1,
            Some(_) => {}
        }
        length += 1;
    }
    let string = utf8(text.take(length))?;
    text.advance(1);
    let string = if has_escapes { plain_string(string) } else { Cow::Borrowed(string) };
    if string.len() > STRING_MAX {
        let length = string.len();
        return Err(format!("max string length exceeded: {length} > {STRING_MAX}").into());
    }
    *line += newlines;
    Ok(string)
}

/// A string without the backslashes that escape a quote or a backslash.
fn plain_string(string: &str) -> Cow<'_, str> {
    let mut plain = String::with_capacity(string.len());
    let mut rest = string;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let mut characters = after.chars();
        match characters.next() {
            Some(escaped @ ('"' | '\\')) => {
                plain.push(escaped);
                rest = characters.as_str();
            }
            _ => {
                plain.push('\\');
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    Cow::Owned(plain)
}
