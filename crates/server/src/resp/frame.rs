//! A parser of requests that leaves them where they lie.
//!
//! The parser receives the bytes of a connection as they arrive, in pieces of any size. It keeps its state within an
//! unfinished command (the number of missing words, the length of the next one, the spans of the finished ones), so
//! that a command of a million words that trickles in is parsed once and not a million times. Positions count from
//! the command's first byte, so the bytes may be moved between two calls. Limits and error messages are those of
//! Redis 7.

use super::inline;
use super::number::parse_i64;

/// The first byte of a word, and the byte behind it.
pub(crate) type Span = (usize, usize);

/// The longest line: an inline command, or the header of an array or of a bulk string.
const LINE_LEN_MAX: usize = 64 << 10;

/// Limits for a client that has not given its password yet.
const UNAUTHENTICATED_WORDS_MAX: i64 = 10;
const UNAUTHENTICATED_BULK_LEN_MAX: i64 = 16 << 10;

/// Limits of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// The longest bulk string.
    pub bulk_len_max: i64,
    /// The client has authenticated, if it must.
    pub authenticated: bool,
}

/// The words of one command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Words<'a> {
    /// The words of `bytes` at `spans`.
    pub(crate) fn new(bytes: &'a [u8], spans: &'a [Span]) -> Self {
        Self { bytes, spans }
    }

    /// The number of words.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    /// The word at `index`; empty past the end.
    pub(crate) fn at(&self, index: usize) -> &'a [u8] {
        self.get(index).unwrap_or_default()
    }

    /// The word at `index`, if there is one.
    pub(crate) fn get(&self, index: usize) -> Option<&'a [u8]> {
        let &(start, end) = self.spans.get(index)?;
        self.bytes.get(start..end)
    }

    /// The command that begins with the word at `index`.
    pub(crate) fn tail(&self, index: usize) -> Self {
        Self { bytes: self.bytes, spans: self.spans.get(index..).unwrap_or_default() }
    }

    /// The words from `index` on.
    pub(crate) fn from(&self, index: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let bytes = self.bytes;
        self.spans
            .get(index..)
            .unwrap_or_default()
            .iter()
            .map(move |&(start, end)| bytes.get(start..end).unwrap_or_default())
    }
}

/// The result of parsing the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A command of so many bytes; its words are in [`Parser::words`].
    Command(usize),
    /// So many bytes that request nothing (an empty line or array).
    Nothing(usize),
    /// More bytes are needed.
    Incomplete,
}

/// An invalid request; the connection is closed after this error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProtocolError(pub(crate) std::borrow::Cow<'static, str>);

impl From<&'static str> for ProtocolError {
    fn from(complaint: &'static str) -> Self {
        Self(complaint.into())
    }
}

/// Reads commands.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// Words still missing; zero between commands.
    missing: usize,
    /// Length of the word that is being read, once known.
    bulk_len: Option<usize>,
    /// The bytes of the command parsed so far.
    position: usize,
    spans: Vec<Span>,
    /// The words of an inline command, unquoted.
    inline: Vec<u8>,
    is_inline: bool,
    /// The last command must be returned again.
    is_kept: bool,
}

impl Parser {
    /// Looks for one command at the beginning of `data`, which starts at the command's first byte and holds at least
    /// as many bytes as in the last call.
    pub(crate) fn step(&mut self, data: &[u8], bounds: Bounds) -> Result<Step, ProtocolError> {
        if std::mem::take(&mut self.is_kept) {
            return Ok(Step::Command(self.position));
        }
        if self.missing == 0 {
            self.position = 0;
            self.spans.clear();
            match data.first() {
                None => return Ok(Step::Incomplete),
                Some(b'*') => {
                    self.is_inline = false;
                    if let Some(step) = self.array_header(data, bounds)? {
                        return Ok(step);
                    }
                }
                Some(_) => return self.line(data),
            }
        }
        while self.missing > 0 {
            let len = match self.bulk_len {
                Some(len) => len,
                None => match self.bulk_header(data, bounds)? {
                    Some(len) => len,
                    None => return Ok(Step::Incomplete),
                },
            };
            let end = self.position + len;
            if data.len() < end + 2 {
                self.bulk_len = Some(len);
                return Ok(Step::Incomplete);
            }
            self.spans.push((self.position, end));
            self.position = end + 2;
            self.bulk_len = None;
            self.missing -= 1;
        }
        Ok(Step::Command(self.position))
    }

    /// The words of the command that was found at the beginning of `data`.
    pub(crate) fn words<'a>(&'a self, data: &'a [u8]) -> Words<'a> {
        let bytes = if self.is_inline { &self.inline } else { data };
        Words::new(bytes, &self.spans)
    }

    /// The last command has not been run to its end: the next step returns it again, without parsing the bytes, which
    /// are the same.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// The least number of bytes, from the command's first byte on, that are needed, as far as known.
    pub(crate) fn needed(&self) -> usize {
        self.bulk_len.map_or(0, |len| self.position + len + 2)
    }

    /// Frees the memory that an uncommonly long command took.
    pub(crate) fn shrink(&mut self) {
        const WORDS_KEPT: usize = 64;
        if self.is_kept {
            return;
        }
        if self.missing == 0 && self.spans.capacity() > WORDS_KEPT {
            self.spans = Vec::new();
        }
        if self.inline.capacity() > 0 {
            self.inline = Vec::new();
        }
    }

    /// Reads `*<words>\r\n`. Returns a step if this line decides it.
    fn array_header(&mut self, data: &[u8], bounds: Bounds) -> Result<Option<Step>, ProtocolError> {
        let Some((text, next)) = header(data, 1) else {
            if data.len() > LINE_LEN_MAX {
                return Err("too big mbulk count string".into());
            }
            return Ok(Some(Step::Incomplete));
        };
        let words = parse_i64(text)
            .filter(|words| *words <= i64::from(i32::MAX))
            .ok_or("invalid multibulk length")?;
        if words > UNAUTHENTICATED_WORDS_MAX && !bounds.authenticated {
            return Err("unauthenticated multibulk length".into());
        }
        if words <= 0 {
            return Ok(Some(Step::Nothing(next)));
        }
        self.missing = usize::try_from(words).unwrap_or(0);
        self.position = next;
        Ok(None)
    }

    /// Reads `$<length>\r\n`; none if it is incomplete.
    fn bulk_header(&mut self, data: &[u8], bounds: Bounds) -> Result<Option<usize>, ProtocolError> {
        let Some(&first) = data.get(self.position) else {
            return Ok(None);
        };
        let Some((text, next)) = header(data, self.position + 1) else {
            if data.len() - self.position > LINE_LEN_MAX {
                return Err("too big bulk count string".into());
            }
            return Ok(None);
        };
        if first != b'$' {
            let found = char::from(first);
            return Err(ProtocolError(format!("expected '$', got '{found}'").into()));
        }
        let len = parse_i64(text)
            .filter(|len| (0..=bounds.bulk_len_max).contains(len))
            .ok_or("invalid bulk length")?;
        if len > UNAUTHENTICATED_BULK_LEN_MAX && !bounds.authenticated {
            return Err("unauthenticated bulk length".into());
        }
        self.position = next;
        usize::try_from(len).map(Some).map_err(|_| "invalid bulk length".into())
    }

    /// Reads an inline command.
    fn line(&mut self, data: &[u8]) -> Result<Step, ProtocolError> {
        let Some(end) = data.iter().position(|byte| *byte == b'\n') else {
            if data.len() > LINE_LEN_MAX {
                return Err("too big inline request".into());
            }
            return Ok(Step::Incomplete);
        };
        let text = &data[..end];
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        self.is_inline = true;
        self.inline.clear();
        inline::split(text, &mut self.inline, &mut self.spans)
            .map_err(|_| "unbalanced quotes in request")?;
        if self.spans.is_empty() {
            return Ok(Step::Nothing(end + 1));
        }
        self.position = end + 1;
        Ok(Step::Command(self.position))
    }
}

/// Keys up to this length are prefetched before their command.
const PREFETCH_LEN_MAX: usize = 1024;

/// The second word of the command at the beginning of `data`, mostly its key, if it is complete: a hint for a
/// prefetch before the command runs.
pub(crate) fn peek_key(data: &[u8]) -> Option<&[u8]> {
    data.strip_prefix(b"*")?;
    let (_words, mut at) = header(data, 1)?;
    for word in 0..2 {
        let is_bulk = data.get(at) == Some(&b'$');
        let (text, next) = header(data, at + 1).filter(|_| is_bulk)?;
        let len = usize::try_from(parse_i64(text)?).ok().filter(|len| *len <= PREFETCH_LEN_MAX)?;
        if word == 1 {
            return data.get(next..next + len);
        }
        at = next + len + 2;
    }
    None
}

/// The text of a header line from `start` to its `\r`, and the position behind the line. The byte after the `\r` must
/// be there; as in Redis, its value is not checked.
fn header(data: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let rest = data.get(start..)?;
    let len = rest.iter().position(|byte| *byte == b'\r')?;
    (len + 1 < rest.len()).then(|| (&rest[..len], start + len + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { bulk_len_max: 512 << 20, authenticated: true };

    fn commands(mut data: &[u8]) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        loop {
            match parser.step(data, BOUNDS)? {
                Step::Incomplete => return Ok(found),
                Step::Nothing(len) => data = &data[len..],
                Step::Command(len) => {
                    let words = parser.words(data);
                    found.push(words.from(0).map(<[u8]>::to_vec).collect());
                    data = &data[len..];
                }
            }
        }
    }

    #[test]
    fn the_key_of_the_next_command_is_seen_if_it_is_all_there() {
        let set = b"*3\r\n$3\r\nSET\r\n$5\r\nkey:1\r\n$1\r\nv\r\n";
        let end_of_key = set.len() - 9;
        for len in 0..set.len() {
            let seen = (len >= end_of_key).then_some(&b"key:1"[..]);
            assert_eq!(super::peek_key(&set[..len]), seen, "of {len} bytes");
        }
        for other in [&b"*1\r\n$4\r\nPING\r\n"[..], b"GET key\r\n", b"*2\r\n$3\r\nGET\r\n$-1\r\n"] {
            assert_eq!(super::peek_key(other), None);
        }
        let long = [b"*2\r\n$3\r\nGET\r\n$9223372036854775807\r\n".as_slice(), &[b'k'; 99]];
        assert_eq!(super::peek_key(&long.concat()), None);
    }

    #[test]
    fn arrays_lines_and_empty_requests() {
        let found = commands(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n\r\n*0\r\n*-1\r\nPING x\r\nQUIT\n");
        let expected: Vec<Vec<Vec<u8>>> = vec![
            vec![b"GET".to_vec(), b"k".to_vec()],
            vec![b"PING".to_vec(), b"x".to_vec()],
            vec![b"QUIT".to_vec()],
        ];
        assert_eq!(found, Ok(expected));
    }

    #[test]
    fn a_command_in_pieces_is_found_at_its_last_byte() {
        let data = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$12\r\na\r\nb\r\n$5\r\n*2\r\n";
        let mut parser = Parser::default();
        for end in 0..data.len() {
            assert_eq!(parser.step(&data[..end], BOUNDS), Ok(Step::Incomplete), "{end}");
        }
        assert_eq!(parser.step(data, BOUNDS), Ok(Step::Command(data.len())));
        assert_eq!(parser.words(data).at(2), b"a\r\nb\r\n$5\r\n*2");
    }

    #[test]
    fn a_command_that_is_kept_is_found_again() {
        for data in [&b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\nPING\r\n"[..], b"GET 'k'\r\nPING\r\n"] {
            let mut parser = Parser::default();
            let Ok(Step::Command(len)) = parser.step(data, BOUNDS) else { panic!("{data:?}") };
            for _ in 0..2 {
                parser.keep();
                parser.shrink();
                assert_eq!(parser.step(data, BOUNDS), Ok(Step::Command(len)));
                assert_eq!(parser.words(data).at(1), b"k");
            }
            let Ok(Step::Command(_)) = parser.step(&data[len..], BOUNDS) else {
                panic!("{data:?}")
            };
            assert_eq!(parser.words(&data[len..]).at(0), b"PING");
        }
    }

    #[test]
    fn complaints_are_those_of_redis() {
        let complaint = |data: &[u8]| commands(data).unwrap_err().0.into_owned();
        assert_eq!(complaint(b"*abc\r\n"), "invalid multibulk length");
        assert_eq!(complaint(b"*2147483648\r\n"), "invalid multibulk length");
        assert_eq!(complaint(b"*1\r\n:3\r\n"), "expected '$', got ':'");
        assert_eq!(complaint(b"*1\r\n$-1\r\n"), "invalid bulk length");
        assert_eq!(complaint(b"*1\r\n$536870913\r\n"), "invalid bulk length");
        assert_eq!(complaint(b"get \"k\r\n"), "unbalanced quotes in request");
        assert_eq!(complaint(&[b'x'; 70_000]), "too big inline request");
        let mut long = b"*".to_vec();
        long.resize(70_000, b'1');
        assert_eq!(complaint(&long), "too big mbulk count string");
        let mut long = b"*1\r\n$".to_vec();
        long.resize(70_000, b'1');
        assert_eq!(complaint(&long), "too big bulk count string");
    }

    #[test]
    fn strangers_may_send_little() {
        let bounds = Bounds { authenticated: false, ..BOUNDS };
        let complaint = |data: &[u8]| Parser::default().step(data, bounds).unwrap_err().0;
        assert_eq!(complaint(b"*11\r\n"), "unauthenticated multibulk length");
        assert_eq!(complaint(b"*1\r\n$16385\r\n"), "unauthenticated bulk length");
    }
}
