//! Lines of a text, and the headings that InfluxDB's exports have between them.
//!
//! ```text
//!   # DDL
//!   CREATE DATABASE d WITH …            statements
//!   # DML
//!   # CONTEXT-DATABASE:d
//!   # CONTEXT-RETENTION-POLICY:autogen
//!   cpu,host=a v=1 1700000000000000000  points
//! ```
//!
//! `influx_inspect export` writes such a text, and `influx -import` reads it.

/// The ends of the lines of a text, in order. A line does not end within a string, which may have newlines. A string
/// is the value of a field: a quote in a name or in a tag begins none. A statement ends with its line.
pub(super) struct Ends<'t> {
    text: &'t [u8],
    at: usize,
    is_statements: bool,
}

impl<'t> Ends<'t> {
    /// Those of a text that begins with statements, or with points.
    pub(super) fn of(text: &'t [u8], is_statements: bool) -> Self {
        Self { text, at: 0, is_statements }
    }
}

impl Iterator for Ends<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let rest = self.text.get(self.at..)?;
        let is_comment = rest.first() == Some(&b'#');
        let is_one_line = is_comment || self.is_statements;
        let (mut is_quoted, mut is_escaped) = (false, false);
        let (mut is_begun, mut has_fields, mut is_value) = (false, false, false);
        for (at, byte) in rest.iter().enumerate() {
            if *byte == b'\n' && (is_one_line || !(is_quoted || is_escaped)) {
                match Heading::of(&rest[..=at]) {
                    Some(Heading::Statements) => self.is_statements = true,
                    Some(Heading::Points) => self.is_statements = false,
                    _ => {}
                }
                self.at += at + 1;
                return Some(self.at);
            }
            let is_blank = matches!(byte, b' ' | b'\t' | b'\0');
            has_fields |= is_begun && *byte == b' ' && !is_escaped;
            is_begun |= !is_blank;
            if *byte == b'"' && !is_escaped {
                is_quoted = !is_quoted && is_value;
            }
            is_value = *byte == b'=' && has_fields && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
        }
        None
    }
}

/// The statement of a heading about the lines behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heading<'t> {
    /// They are statements.
    Statements,
    /// They are points.
    Points,
    /// They are of this database.
    Database(&'t str),
    /// They are of this policy of it.
    Policy(&'t str),
}

impl<'t> Heading<'t> {
    /// The heading in a line, if it is one.
    pub(super) fn of(line: &'t [u8]) -> Option<Self> {
        let comment = line.strip_prefix(b"# ")?;
        let comment = std::str::from_utf8(comment).ok()?.trim_end();
        match comment {
            "DDL" => return Some(Self::Statements),
            "DML" => return Some(Self::Points),
            _ => {}
        }
        let (word, name) = comment.split_once(':')?;
        match word {
            "CONTEXT-DATABASE" => Some(Self::Database(name.trim())),
            "CONTEXT-RETENTION-POLICY" => Some(Self::Policy(name.trim())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_end(text: &[u8]) -> usize {
        Ends::of(text, false).last().unwrap_or(0)
    }

    #[test]
    fn headings_are_whole_comments() {
        for (line, heading) in [
            ("# DDL\n", Some(Heading::Statements)),
            ("# DML\r\n", Some(Heading::Points)),
            ("# CONTEXT-DATABASE: a b\n", Some(Heading::Database("a b"))),
            ("# CONTEXT-RETENTION-POLICY:autogen\n", Some(Heading::Policy("autogen"))),
            ("# writing tsm data\n", None),
            ("#DDL\n", None),
            (" # DDL\n", None),
        ] {
            assert_eq!(Heading::of(line.as_bytes()), heading, "{line:?}");
        }
    }

    #[test]
    fn texts_are_cut_where_lines_end() {
        for (text, end) in [
            ("", 0),
            ("m v=1", 0),
            ("m v=1\n", 6),
            ("m v=1\nm v=2", 6),
            ("m v=\"a\nb\"\nm", 10),
            ("m v=\"a\\\"\nb\"", 0),
            ("m v=\"a\n", 0),
            ("# it's \"so\n# \"x\"\nm", 17),
            ("m,a=b\\\nc v=1\nm", 13),
            ("m v=\"\\\\\"\nm", 9),
            ("m,size=3.5\" v=1\nm v=2\n", 22),
            (" m,a=\" v=1\nm\"\nm", 14),
            ("m,a=\\ =\" v\\=\"=\"\n\"\nm", 18),
            ("m v=\"=\"\nm", 8),
            ("# DDL\nCREATE DATABASE \"a=\"\nx", 27),
            ("# DDL\nx y=\"\n# DML\nm v=\"\n", 18),
        ] {
            assert_eq!(last_end(text.as_bytes()), end, "{text:?}");
        }
    }
}
