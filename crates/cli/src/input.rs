//! The file that a command reads: a dump, a backup, an import.

use crate::failure::{Failure, REFUSED, at};
use coreplane_engine::{KEY_LEN_MAX, VALUE_LEN_MAX};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// The longest line of a record: each byte may be written as `\u0000`, beside names and a time.
const LINE_MAX: u64 = 6 * (KEY_LEN_MAX + VALUE_LEN_MAX) as u64 + 256;

/// Bytes of a line that are read before it is looked at: bytes that are no text may have no end of line.
const START: u64 = 64 << 10;

/// The file at `path` and its bytes, or the standard input and 0.
pub(crate) fn input(path: Option<&Path>) -> Result<(Box<dyn BufRead>, u64), Failure> {
    let Some(path) = path else { return Ok((Box::new(io::stdin().lock()), 0)) };
    let file = File::open(path).map_err(at(path))?;
    let len = file.metadata().map_err(at(path))?.len();
    Ok((Box::new(BufReader::new(file)), len))
}

/// The lines of records in an input, with their numbers; those without any are left out.
pub(crate) fn lines(
    mut input: impl BufRead,
) -> impl Iterator<Item = (u64, Result<String, Failure>)> {
    let all = std::iter::from_fn(move || line(&mut input, LINE_MAX).transpose());
    let is_blank = |line: &Result<String, _>| line.as_ref().is_ok_and(|it| it.trim().is_empty());
    (1..).zip(all).filter(move |(_, line)| !is_blank(line))
}

/// The next line, none at the end.
fn line(input: &mut impl BufRead, most: u64) -> Result<Option<String>, Failure> {
    let mut line = Vec::new();
    input.by_ref().take(START.min(most)).read_until(b'\n', &mut line)?;
    let is_object = line.trim_ascii_start().starts_with(b"{");
    if is_object && !line.ends_with(b"\n") {
        input.by_ref().take(most - line.len() as u64).read_until(b'\n', &mut line)?;
    }
    let is_whole = line.ends_with(b"\n") || input.fill_buf()?.is_empty();
    if !is_whole {
        return Err(Failure::new(REFUSED, "it does not end as a record does"));
    }
    let text = String::from_utf8(line).map_err(|error| Failure::new(REFUSED, error.to_string()))?;
    Ok(Some(text).filter(|line| !line.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded() {
        for (text, most, whole) in [
            ("{}\n{}", 3, Some("{}\n")),
            ("{}", 2, Some("{}")),
            ("{ }\n", 3, None),
            ("\n{}", 3, Some("\n")),
            ("", 3, None),
        ] {
            let read = line(&mut text.as_bytes(), most);
            assert_eq!(read.is_err(), whole.is_none() && !text.is_empty(), "{text:?}");
            assert_eq!(read.ok().flatten().as_deref(), whole, "{text:?}");
        }
        assert!(line(&mut BufReader::new(io::repeat(0)), LINE_MAX).is_err());
    }

    #[test]
    fn numbers_are_those_of_all_lines() {
        let found: Vec<_> = lines(&b"{1}\n\n \r\n{4}\r\n\xff"[..]).collect();
        let numbers: Vec<_> = found.iter().map(|(number, line)| (*number, line.is_ok())).collect();
        assert_eq!(numbers, [(1, true), (4, true), (5, false)]);
    }
}
