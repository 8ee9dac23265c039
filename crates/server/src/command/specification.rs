//! What `COMMAND INFO` and `COMMAND DOCS` say.
//!
//! `specification.resp3` holds, for each command and each part of one, its name and Redis 7.0.15's
//! own answers about it (recorded with `tests/record_specification.py`; the few commands that are
//! younger were written by hand), as RESP3 values one after the other. Answers to clients that
//! speak RESP2 are translated while they are written.

use crate::resp::number::parse_i64;
use crate::resp::reply::Proto;
use std::collections::HashMap;
use std::sync::LazyLock;

static RECORDED: &[u8] = include_bytes!("specification.resp3");

/// What is said of one command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Specification {
    /// The answer of `COMMAND INFO`, in RESP3.
    pub info: &'static [u8],
    /// The answer of `COMMAND DOCS`, in RESP3.
    pub docs: &'static [u8],
}

static BY_NAME: LazyLock<HashMap<&'static [u8], Specification>> = LazyLock::new(|| {
    let mut by_name = HashMap::new();
    let mut rest = RECORDED;
    while let Some((name, after)) = split_value(rest) {
        let Some((info, after)) = split_value(after) else {
            break;
        };
        let Some((docs, after)) = split_value(after) else {
            break;
        };
        let (head, _) = split_header(name).unwrap_or_default();
        let text = name.get(head.len() + 2..name.len() - 2).unwrap_or_default();
        by_name.insert(text, Specification { info, docs });
        rest = after;
    }
    by_name
});

/// What is said of the command of this name in lower case.
pub(super) fn find(name: &[u8]) -> Option<Specification> {
    BY_NAME.get(name).copied()
}

/// Splits a header line from what follows it.
fn split_header(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\r')?;
    Some((&data[..end], data.get(end + 2..)?))
}

/// The length in a header line, if it has one.
fn length(header: &[u8]) -> Option<usize> {
    usize::try_from(parse_i64(header.get(1..)?)?).ok()
}

/// How many values make up the aggregate with this header.
fn parts(header: &[u8]) -> Option<usize> {
    match header.first()? {
        b'*' | b'~' => length(header),
        b'%' => length(header).map(|pairs| pairs * 2),
        _ => Some(0),
    }
}

/// Splits the first value from the rest.
fn split_value(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = data;
    let mut missing = 1;
    while missing > 0 {
        let (header, after) = split_header(rest)?;
        rest = after;
        if header.first() == Some(&b'$') {
            rest = rest.get(length(header)? + 2..)?;
        }
        missing = missing - 1 + parts(header)?;
    }
    Some(data.split_at(data.len() - rest.len()))
}

/// Writes a RESP3 value in version `proto`.
pub(super) fn write(value: &[u8], proto: Proto, out: &mut Vec<u8>) {
    if proto == Proto::Three {
        return out.extend_from_slice(value);
    }
    let mut rest = value;
    while let Some((header, after)) = split_header(rest) {
        let text_len = match header.first() {
            Some(b'$') => length(header).map_or(0, |len| len + 2),
            _ => 0,
        };
        let kind = header.first().copied().unwrap_or_default();
        match (kind, parts(header)) {
            (b'%' | b'~', Some(parts)) => {
                out.extend_from_slice(format!("*{parts}\r\n").as_bytes());
            }
            (b'_', _) => out.extend_from_slice(b"$-1\r\n"),
            _ => out.extend_from_slice(&rest[..header.len() + 2 + text_len]),
        }
        rest = after.get(text_len..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{COMMANDS, Command};
    use super::*;

    /// The number at `index` of the answer of `COMMAND INFO`.
    fn number(specification: &Specification, index: usize) -> i64 {
        let (_, mut rest) = split_header(specification.info).unwrap();
        for _ in 0..index {
            rest = split_value(rest).unwrap().1;
        }
        parse_i64(&split_header(rest).unwrap().0[1..]).unwrap()
    }

    fn check(command: &Command) {
        let specification = find(command.name.as_bytes()).expect(command.name);
        assert_eq!(number(&specification, 1), i64::from(command.arity), "{}", command.name);
        if !command.name.contains('|') {
            assert_eq!(number(&specification, 3), i64::from(command.keys.first));
            assert_eq!(number(&specification, 4), i64::from(command.keys.last));
            assert_eq!(number(&specification, 5), i64::from(command.keys.step));
        }
        command.parts.iter().for_each(check);
    }

    #[test]
    fn the_table_says_what_was_recorded() {
        let listed = COMMANDS.iter().filter(|command| super::super::commands::is_listed(command));
        listed.for_each(check);
    }

    #[test]
    fn older_clients_get_arrays() {
        let mut out = Vec::new();
        write(b"%1\r\n$1\r\na\r\n~2\r\n+x\r\n_\r\n", Proto::Two, &mut out);
        assert_eq!(out, b"*2\r\n$1\r\na\r\n*2\r\n+x\r\n$-1\r\n");
    }
}
