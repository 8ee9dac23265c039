//! Points written as lines.

use crate::point::is_special_in_field;
use crate::value::Value;
use std::io::Write as _;

/// Magnitudes of floats that are written without an exponent: the first is included, the second is not.
const PLAIN_FLOATS: std::ops::Range<f64> = 1e-5..1e16;

/// Appends a point as a line, with its newline; nothing if it has no fields. `key` is the text of a
/// [`SeriesKey`](crate::SeriesKey), `time` is in nanoseconds since 1970. [`points`](super::points) reads the same
/// point from the line, if floats are finite and the field names are ones that it can return.
pub fn write_point<'v>(
    out: &mut Vec<u8>,
    key: &str,
    fields: impl IntoIterator<Item = (&'v str, &'v Value)>,
    time: i64,
) {
    let start = out.len();
    out.extend_from_slice(key.as_bytes());
    let mut separator = b' ';
    for (name, value) in fields {
        out.push(separator);
        separator = b',';
        push_escaped(out, name, is_special_in_field);
        out.push(b'=');
        push_value(out, value);
    }
    if separator == b' ' {
        out.truncate(start);
        return;
    }
    out.push(b' ');
    out.extend_from_slice(itoa::Buffer::new().format(time).as_bytes());
    out.push(b'\n');
}

fn push_escaped(out: &mut Vec<u8>, text: &str, is_special: impl Fn(u8) -> bool) {
    for byte in text.bytes() {
        if is_special(byte) {
            out.push(b'\\');
        }
        out.push(byte);
    }
}

fn push_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Float(value) => push_float(out, *value),
        Value::Integer(value) => {
            out.extend_from_slice(itoa::Buffer::new().format(*value).as_bytes());
            out.push(b'i');
        }
        Value::Unsigned(value) => {
            out.extend_from_slice(itoa::Buffer::new().format(*value).as_bytes());
            out.push(b'u');
        }
        Value::Boolean(value) => out.extend_from_slice(if *value { b"true" } else { b"false" }),
        Value::String(value) => {
            out.push(b'"');
            push_escaped(out, value, |byte| matches!(byte, b'"' | b'\\'));
            out.push(b'"');
        }
    }
}

/// Writes the fewest digits that are read as the same float.
fn push_float(out: &mut Vec<u8>, value: f64) {
    let is_plain = value == 0.0 || PLAIN_FLOATS.contains(&value.abs());
    let written = if is_plain { write!(out, "{value}") } else { write!(out, "{value:e}") };
    debug_assert!(written.is_ok(), "memory takes what is written");
}
