//! Records as JSON: strings where they are UTF-8, otherwise hexadecimal under another name.

use crate::failure::Failure;
use coreplane::{Entry, UnixMillis};
pub(crate) use coreplane_server::administration::put_bytes;
use serde_json::{Map, Value};
use std::io::Write;

/// A record that was read from a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) expires_at: Option<UnixMillis>,
}

/// An entry as an object; without its value if `keys_only`.
pub(crate) fn entry(entry: &Entry<'_>, keys_only: bool) -> Value {
    let mut object = Map::new();
    put_bytes(&mut object, "key", entry.key);
    put_record(&mut object, entry, keys_only);
    Value::Object(object)
}

/// An entry as an object, its key always in hexadecimal.
pub(crate) fn entry_in_hex(entry: &Entry<'_>, keys_only: bool) -> Value {
    let mut object = Map::new();
    object.insert("key_hex".to_owned(), hex(entry.key).into());
    put_record(&mut object, entry, keys_only);
    Value::Object(object)
}

fn put_record(object: &mut Map<String, Value>, entry: &Entry<'_>, keys_only: bool) {
    if let Some(record) = entry.record.filter(|_| !keys_only) {
        put_bytes(object, "value", &record.value.to_cow());
    }
    if let Some(UnixMillis(at)) = entry.record.and_then(|record| record.expires_at) {
        object.insert("expires_at_ms".to_owned(), at.into());
    }
}

/// The record of a line.
pub(crate) fn parse(line: &str) -> Result<Line, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let object = value.as_object().ok_or("it is no object")?;
    let expires_at = match object.get("expires_at_ms") {
        None | Some(Value::Null) => None,
        Some(at) => Some(UnixMillis(at.as_u64().ok_or("`expires_at_ms` is no whole number")?)),
    };
    Ok(Line { key: get_bytes(object, "key")?, value: get_bytes(object, "value")?, expires_at })
}

fn get_bytes(object: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    if let Some(text) = object.get(name).and_then(Value::as_str) {
        return Ok(text.as_bytes().to_vec());
    }
    let digits = object
        .get(&format!("{name}_hex"))
        .and_then(Value::as_str)
        .ok_or_else(|| format!("it has neither a string `{name}` nor `{name}_hex`"))?;
    unhex(digits).ok_or_else(|| format!("`{name}_hex` is not hexadecimal"))
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        let _written = write!(text, "{byte:02x}").is_ok();
        text
    })
}

/// The bytes of hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect::<Option<_>>()?;
    digits
        .len()
        .is_multiple_of(2)
        .then(|| digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Writes `value` on a line of its own.
pub(crate) fn write_line(out: &mut dyn Write, value: &Value) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive() {
        for bytes in [&b"plain"[..], b"", "gr\u{fc}n\n\"".as_bytes(), &[0, 255, 128, 10]] {
            let mut object = Map::new();
            put_bytes(&mut object, "key", bytes);
            put_bytes(&mut object, "value", bytes);
            let line = parse(&Value::Object(object).to_string());
            let expected = Line { key: bytes.to_vec(), value: bytes.to_vec(), expires_at: None };
            assert_eq!(line, Ok(expected));
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "",
            "[]",
            r#"{"key":"a"}"#,
            r#"{"key":1,"value":"b"}"#,
            r#"{"key_hex":"0","value":"b"}"#,
            r#"{"key_hex":"zz","value":"b"}"#,
            r#"{"key":"a","value":"b","expires_at_ms":-1}"#,
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
