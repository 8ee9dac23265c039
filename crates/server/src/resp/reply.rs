//! Answers, written straight into the output buffer of a connection.

use coreplane_engine::Value;

/// The version of the protocol that a connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Proto {
    /// RESP2, until the client asks for more.
    #[default]
    Two,
    /// RESP3.
    Three,
}

impl Proto {
    /// 2 or 3.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }
}

/// Writes answers to `out`.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    /// The output buffer.
    pub out: &'a mut Vec<u8>,
    /// The protocol version.
    pub proto: Proto,
}

impl Reply<'_> {
    /// A status: `+OK`.
    pub(crate) fn status(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `+OK`.
    pub(crate) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// An error, from its code on; line breaks become spaces.
    pub(crate) fn error(&mut self, text: &[u8]) {
        let end = text.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n'));
        self.out.push(b'-');
        let start = self.out.len();
        self.out.extend_from_slice(&text[..end.map_or(0, |end| end + 1)]);
        for byte in &mut self.out[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer.
    pub(crate) fn int(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// A count.
    pub(crate) fn count(&mut self, value: usize) {
        self.int(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// 1 or 0.
    pub(crate) fn truth(&mut self, value: bool) {
        self.out.extend_from_slice(if value { b":1\r\n" } else { b":0\r\n" });
    }

    /// A string.
    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.len_header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A string that is a record's value.
    pub(crate) fn value(&mut self, value: &Value<'_>) {
        if let Value::Whole(bytes) = value {
            return self.bulk(bytes);
        }
        self.len_header(b'$', value.len());
        value.append_to(self.out);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Nothing, where a string might be.
    pub(crate) fn null(&mut self) {
        self.out.extend_from_slice(match self.proto {
            Proto::Two => b"$-1\r\n",
            Proto::Three => b"_\r\n",
        });
    }

    /// Nothing, where an array might be.
    pub(crate) fn null_array(&mut self) {
        self.out.extend_from_slice(match self.proto {
            Proto::Two => b"*-1\r\n",
            Proto::Three => b"_\r\n",
        });
    }

    /// The head of an array of `len` answers.
    pub(crate) fn array(&mut self, len: usize) {
        self.len_header(b'*', len);
    }

    /// The head of a push of `len` parts, to a client that speaks RESP3.
    pub(crate) fn push(&mut self, len: usize) {
        self.len_header(b'>', len);
    }

    /// The head of a map of `len` pairs.
    pub(crate) fn map(&mut self, len: usize) {
        match self.proto {
            Proto::Two => self.len_header(b'*', len * 2),
            Proto::Three => self.len_header(b'%', len),
        }
    }

    /// Text for people.
    pub(crate) fn verbatim(&mut self, text: &str) {
        if self.proto == Proto::Two {
            return self.bulk(text.as_bytes());
        }
        self.len_header(b'=', text.len() + 4);
        self.out.extend_from_slice(b"txt:");
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Lines of help, each a status.
    pub(crate) fn help(&mut self, command: &str, lines: &[&str]) {
        self.array(lines.len() + 3);
        let text = format!("{command} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
        self.status(&text);
        for line in lines {
            self.status(line);
        }
        self.status("HELP");
        self.status("    Prints this help.");
    }

    fn len_header(&mut self, kind: u8, len: usize) {
        // Most strings are short.
        if let Ok(len @ 0..=9) = u8::try_from(len) {
            return self.out.extend_from_slice(&[kind, b'0' + len, b'\r', b'\n']);
        }
        self.header(kind, i64::try_from(len).unwrap_or(i64::MAX));
    }

    fn header(&mut self, kind: u8, value: i64) {
        self.line(kind, itoa::Buffer::new().format(value).as_bytes());
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(proto: Proto, write: impl Fn(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply { out: &mut out, proto });
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn versions_differ_where_they_must() {
        assert_eq!(written(Proto::Two, |reply| reply.null()), "$-1\r\n");
        assert_eq!(written(Proto::Three, |reply| reply.null()), "_\r\n");
        assert_eq!(written(Proto::Two, |reply| reply.map(2)), "*4\r\n");
        assert_eq!(written(Proto::Three, |reply| reply.map(2)), "%2\r\n");
        assert_eq!(written(Proto::Two, |reply| reply.verbatim("a")), "$1\r\na\r\n");
        assert_eq!(written(Proto::Three, |reply| reply.verbatim("a")), "=5\r\ntxt:a\r\n");
    }

    #[test]
    fn an_error_stays_on_one_line() {
        assert_eq!(written(Proto::Two, |reply| reply.error(b"ERR a\r\nb\n")), "-ERR a  b\r\n");
    }

    #[test]
    fn values_in_pieces_are_one_string() {
        let pieces: [&[u8]; 3] = [b"ab", b"", b"cdefghijkl"];
        let text = written(Proto::Two, |reply| reply.value(&Value::Pieces(&pieces)));
        assert_eq!(text, "$12\r\nabcdefghijkl\r\n");
    }
}
