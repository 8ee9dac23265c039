//! Inline commands: a line of words, as a person types it into a terminal.
//!
//! Words are split at spaces. A word in double quotes may hold `\n`, `\r`, `\t`, `\b`, `\a`,
//! `\xHH` and escaped quotes; in single quotes only `\'` is special. A closing quote must be
//! followed by a space or the end.

use super::frame::Span;

/// The quotes of a line do not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnbalancedQuotes;

/// Splits `line` into words, which are appended to `text`; their places are added to `spans`.
pub(crate) fn split(
    line: &[u8],
    text: &mut Vec<u8>,
    spans: &mut Vec<Span>,
) -> Result<(), UnbalancedQuotes> {
    let mut rest = line;
    loop {
        while let [first, tail @ ..] = rest {
            if !is_space(*first) {
                break;
            }
            rest = tail;
        }
        if rest.is_empty() || rest[0] == 0 {
            return Ok(());
        }
        let start = text.len();
        rest = word(rest, text)?;
        spans.push((start, text.len()));
    }
}

/// Reads one word; returns the rest.
fn word<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        match rest {
            [] | [0, ..] => return Ok(rest),
            [byte, tail @ ..] if is_space(*byte) => return Ok(tail),
            [b'"', tail @ ..] => return closed(double_quoted(tail, text)?),
            [b'\'', tail @ ..] => return closed(single_quoted(tail, text)?),
            [byte, tail @ ..] => {
                text.push(*byte);
                rest = tail;
            }
        }
    }
}

/// A closing quote must end its word.
fn closed(rest: &[u8]) -> Result<&[u8], UnbalancedQuotes> {
    match rest {
        [] => Ok(rest),
        [byte, ..] if is_space(*byte) || *byte == 0 => Ok(rest),
        _ => Err(UnbalancedQuotes),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        rest = match rest {
            [] | [0, ..] => return Err(UnbalancedQuotes),
            [b'"', tail @ ..] => return Ok(tail),
            [b'\\', b'x', high, low, tail @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                text.push(hex(*high) << 4 | hex(*low));
                tail
            }
            [b'\\', escaped, tail @ ..] => {
                text.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 0x08,
                    b'a' => 0x07,
                    other => *other,
                });
                tail
            }
            [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
        };
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], text: &mut Vec<u8>) -> Result<&'a [u8], UnbalancedQuotes> {
    loop {
        rest = match rest {
            [] | [0, ..] => return Err(UnbalancedQuotes),
            [b'\\', b'\'', tail @ ..] => {
                text.push(b'\'');
                tail
            }
            [b'\'', tail @ ..] => return Ok(tail),
            [byte, tail @ ..] => {
                text.push(*byte);
                tail
            }
        };
    }
}

/// `isspace` of the C locale.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, UnbalancedQuotes> {
        let (mut text, mut spans) = (Vec::new(), Vec::new());
        split(line, &mut text, &mut spans)?;
        Ok(spans.iter().map(|&(start, end)| text[start..end].to_vec()).collect())
    }

    #[test]
    fn words_are_split_at_spaces() {
        assert_eq!(words(b"  set  a\tb "), Ok(vec![b"set".to_vec(), b"a".to_vec(), b"b".to_vec()]));
        assert_eq!(words(b"   "), Ok(vec![]));
    }

    #[test]
    fn quotes_and_escapes() {
        assert_eq!(
            words(br#""a b\n\x41\q" 'it\'s'"#),
            Ok(vec![b"a b\nAq".to_vec(), b"it's".to_vec()])
        );
        assert_eq!(words(br#""""#), Ok(vec![vec![]]));
        assert_eq!(words(br#"pre"fix""#), Ok(vec![b"prefix".to_vec()]));
    }

    #[test]
    fn quotes_must_match() {
        for bad in [&br#""abc"#[..], b"'abc", br#""a"b"#, b"'a'b", br#"a "b\"#] {
            assert_eq!(words(bad), Err(UnbalancedQuotes), "{bad:?}");
        }
    }
}
