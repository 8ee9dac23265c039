//! The answers of `COMMAND INFO` and `COMMAND DOCS`.
//!
//! `specification.resp3` holds, for each command and each part of one, its name and the answers of Redis 7.0.15 about
//! it (recorded with `tests/record_specification.py`; the few younger commands were written by hand), as RESP3 values
//! one after the other. Answers to clients that speak RESP2 are translated while they are written.

use crate::resp::number::parse_i64;
use crate::resp::reply::Proto;
use std::collections::HashMap;
use std::sync::LazyLock;

static RECORDED: &[u8] = include_bytes!("specification.resp3");

/// The specification of one command.
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

/// The specification of the command of this name in lower case.
pub(super) fn find(name: &[u8]) -> Option<Specification> {
    BY_NAME.get(name).copied()
}

/// True if the command of this name has this flag, in lower case.
pub(super) fn has_flag(name: &str, flag: &str) -> bool {
    let flags = find(name.as_bytes()).and_then(|found| element(found.info, 2));
    flags.is_some_and(|flags| statuses(flags).any(|status| status == flag.as_bytes()))
}

/// The keys of a command: where they are, and the flags of their use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyFlags {
    /// The first of these keys, and the distance from there to the last (negative: from the end).
    pub first: usize,
    pub last: i64,
    pub flags: Vec<&'static [u8]>,
}

/// The keys of the command of this name.
pub(super) fn key_flags(name: &str) -> Vec<KeyFlags> {
    let keys = find(name.as_bytes()).and_then(|found| element(found.info, 8));
    let Some(keys) = keys else { return Vec::new() };
    (0..).map_while(|index| element(keys, index)).filter_map(key_flags_of).collect()
}

fn key_flags_of(keys: &'static [u8]) -> Option<KeyFlags> {
    let begin = field(field(keys, "begin_search")?, "spec")?;
    let find = field(field(keys, "find_keys")?, "spec")?;
    Some(KeyFlags {
        first: usize::try_from(integer(field(begin, "index")?)?).ok()?,
        last: integer(field(find, "lastkey")?)?,
        flags: statuses(field(keys, "flags")?).collect(),
    })
}

/// An element of an aggregate.
fn element(aggregate: &'static [u8], index: usize) -> Option<&'static [u8]> {
    let (header, mut rest) = split_header(aggregate)?;
    if index >= parts(header)? {
        return None;
    }
    for _ in 0..index {
        rest = split_value(rest)?.1;
    }
    split_value(rest).map(|(value, _)| value)
}

/// The value of this name in a map.
fn field(map: &'static [u8], name: &str) -> Option<&'static [u8]> {
    let named = |index: &usize| element(map, *index).and_then(text) == Some(name.as_bytes());
    let index = (0..parts(split_header(map)?.0)?).step_by(2).find(named)?;
    element(map, index + 1)
}

/// A string of either kind.
fn text(value: &'static [u8]) -> Option<&'static [u8]> {
    let (header, rest) = split_header(value)?;
    match header.first()? {
        b'$' => rest.get(..length(header)?),
        _ => header.get(1..),
    }
}

fn integer(value: &'static [u8]) -> Option<i64> {
    parse_i64(split_header(value)?.0.get(1..)?)
}

/// The strings of an aggregate.
fn statuses(aggregate: &'static [u8]) -> impl Iterator<Item = &'static [u8]> {
    (0..).map_while(move |index| element(aggregate, index)).filter_map(text)
}

/// Splits a header line from the rest.
fn split_header(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\r')?;
    Some((&data[..end], data.get(end + 2..)?))
}

/// The length in a header line, if it has one.
fn length(header: &[u8]) -> Option<usize> {
    usize::try_from(parse_i64(header.get(1..)?)?).ok()
}

/// The number of values that make up the aggregate with this header.
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
    fn flags_are_those_that_were_recorded() {
        assert!(has_flag("exec", "skip_slowlog") && has_flag("config|set", "admin"));
        assert!(!has_flag("exec", "skip") && !has_flag("nonsense", "admin"));
        let flags: Vec<&[u8]> = vec![b"OW", b"update"];
        assert_eq!(key_flags("mset"), [KeyFlags { first: 1, last: -1, flags }]);
        let copy = key_flags("copy");
        assert_eq!(
            copy.iter().map(|keys| (keys.first, keys.last)).collect::<Vec<_>>(),
            [(1, 0), (2, 0)]
        );
        assert!(key_flags("ping").is_empty());
    }

    #[test]
    fn older_clients_get_arrays() {
        let mut out = Vec::new();
        write(b"%1\r\n$1\r\na\r\n~2\r\n+x\r\n_\r\n", Proto::Two, &mut out);
        assert_eq!(out, b"*2\r\n$1\r\na\r\n*2\r\n+x\r\n$-1\r\n");
    }
}
