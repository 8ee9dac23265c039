//! The parser: recursive descent, one function a rule of `grammar.ebnf`.
//!
//! The parser must not run out of stack. The depth of its calls and of every tree that it makes is at most the
//! number of operators, calls and parentheses of a statement, which is bounded ([`PARTS_MAX`]); a SELECT within a
//! SELECT within a SELECT is refused. The length of the text is bounded, too ([`TEXT_MAX`]), and so are number and
//! size of the regular expressions. These are compiled here, but for one that may take longer than the query has.
//! The words and the places of errors are those of InfluxDB.

mod change;
mod dialect;
mod expression;
#[cfg(test)]
mod scripts;
mod select;
mod show;

use super::ast::{Expr, Measurement, Name, Pattern, Statement, Window};
use super::text::quoted_name;
use super::token::{Lexer, Place, Token};
use regex::{Error as PatternError, RegexBuilder};
use std::time::{Duration, Instant};

/// The maximum length of a query, in bytes.
const TEXT_MAX: usize = 256 * 1024;
/// The maximum number of operators, calls, parentheses, sources and dimensions of a statement.
const PARTS_MAX: usize = 1000;
/// The maximum number of regular expressions of a query, and the maximum size of each when it is compiled, in bytes.
const PATTERNS_MAX: usize = 128;
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Nanoseconds to compile a byte of a regular expression, as it is written and as it is compiled, about.
const PATTERN_TEXT_NS: u64 = 1000;
const PATTERN_NS: u64 = 10;

/// The parsed item, or an error.
pub(super) type Parsed<T> = Result<T, String>;

/// # Errors
/// If a query is too long.
pub(super) fn check_length(text: &str) -> Parsed<()> {
    if text.len() > TEXT_MAX {
        return Err(format!("the query has {} bytes, and may have {TEXT_MAX}", text.len()));
    }
    Ok(())
}

/// Reads a query, whose regular expressions have to be compiled by a deadline.
pub(super) fn query(text: &str, deadline: Instant) -> Parsed<Vec<Statement>> {
    check_length(text)?;
    let mut parser = Parser { lexer: Lexer::new(text), deadline, parts: 0, patterns: 0 };
    let mut statements = Vec::new();
    let mut is_apart = true;
    loop {
        let before = parser.lexer;
        match parser.next() {
            (Token::End, _) => return Ok(statements),
            (Token::Mark(";"), _) => is_apart = true,
            (token, place) if !is_apart => return Err(unexpected(&token, ";", place)),
            _ => {
                parser.lexer = before;
                parser.parts = 0;
                statements.push(parser.statement()?);
                is_apart = false;
            }
        }
    }
}

/// A message with its place.
fn at(message: &str, place: Place) -> String {
    let (line, character) = (u64::from(place.line) + 1, u64::from(place.character) + 1);
    format!("{message} at line {line}, char {character}")
}

/// The error for a token that may not stand at its place.
fn unexpected(token: &Token, expected: &str, place: Place) -> String {
    at(&format!("found {}, expected {expected}", token.found()), place)
}

/// The rest of a query.
struct Parser<'a> {
    lexer: Lexer<'a>,
    deadline: Instant,
    /// Of the statement.
    parts: usize,
    /// Of the query.
    patterns: usize,
}

impl Parser<'_> {
    /// The next token, which may be spaces.
    fn raw(&mut self) -> (Token, Place) {
        self.lexer.token()
    }

    /// The next token that is not a space.
    fn next(&mut self) -> (Token, Place) {
        loop {
            match self.lexer.token() {
                (Token::Space, _) => {}
                found => return found,
            }
        }
    }

    /// The next token, without taking it.
    fn ahead(&self) -> (Token, Place) {
        Self { lexer: self.lexer, deadline: self.deadline, parts: 0, patterns: 0 }.next()
    }

    /// Counts a part of the statement.
    fn part(&mut self) -> Parsed<()> {
        self.parts += 1;
        if self.parts > PARTS_MAX {
            let message = format!(
                "a statement may have {PARTS_MAX} operators, calls, parentheses, sources and dimensions, and there \
                 are more"
            );
            return Err(at(&message, self.ahead().1));
        }
        Ok(())
    }

    /// Takes the next token if it is this one.
    fn take_if(&mut self, wanted: &Token) -> bool {
        let before = self.lexer;
        let is_so = self.next().0 == *wanted;
        if !is_so {
            self.lexer = before;
        }
        is_so
    }

    /// Takes the next token if it is this keyword.
    fn take_word(&mut self, word: &'static str) -> bool {
        self.take_if(&Token::Keyword(word))
    }

    /// Takes the next token, which must be this one.
    fn expect(&mut self, wanted: &Token) -> Parsed<()> {
        match self.next() {
            (token, _) if token == *wanted => Ok(()),
            (token, place) => Err(unexpected(&token, wanted.found(), place)),
        }
    }

    /// Takes the next token, which must be this keyword.
    fn expect_word(&mut self, word: &'static str) -> Parsed<()> {
        self.expect(&Token::Keyword(word))
    }

    /// A name.
    fn name(&mut self) -> Parsed<String> {
        match self.next() {
            (Token::Name(name), _) => Ok(name),
            (token, place) => Err(unexpected(&token, "identifier", place)),
        }
    }

    /// Names with commas between them.
    fn names(&mut self) -> Parsed<Vec<String>> {
        let mut names = vec![self.name()?];
        while self.take_if(&Token::Mark(",")) {
            names.push(self.name()?);
        }
        Ok(names)
    }

    /// Names with points between them: of a database, a policy and a measurement, or fewer. A name between two
    /// points may be empty; the last one is missing before a regular expression.
    fn segments(&mut self) -> Parsed<Vec<String>> {
        let mut names = vec![self.name()?];
        loop {
            let before = self.lexer;
            if self.raw().0 != Token::Mark(".") {
                self.lexer = before;
                break;
            }
            match self.lexer.peek() {
                Some('/' | ':') => break,
                Some('.') => names.push(String::new()),
                _ => names.push(self.name()?),
            }
        }
        if names.len() > 3 {
            let last = names.pop().unwrap_or_default();
            let mut joined: String = names.iter().map(|it| format!("\"{it}\".")).collect();
            joined.push_str(&quoted_name(&last));
            return Err(at(&format!("too many segments in {joined}"), Place::default()));
        }
        Ok(names)
    }

    /// A regular expression, if one comes next.
    fn regex(&mut self) -> Parsed<Option<Pattern>> {
        let before = self.lexer;
        match self.lexer.regex() {
            Some((Token::Regex(text, true), place)) => {
                self.patterns += 1;
                if self.patterns > PATTERNS_MAX {
                    let message = format!(
                        "a query may have {PATTERNS_MAX} regular expressions, and there are more"
                    );
                    return Err(at(&message, place));
                }
                let left = self.deadline.saturating_duration_since(Instant::now());
                pattern(&text, left, place).map(Some)
            }
            Some((_, place)) => Err(at("bad regex: ", place)),
            None => {
                self.lexer = before;
                Ok(None)
            }
        }
    }

    /// Digits within bounds.
    fn integer(&mut self, least: i64, most: i64) -> Parsed<i64> {
        match self.next() {
            (Token::Integer(text), place) => {
                let value: i64 = text
                    .parse()
                    .map_err(|_| at(&format!("invalid value {text}: out of range"), place))?;
                if value < least || value > most {
                    let message = format!("invalid value {value}: must be {least} <= n <= {most}");
                    return Err(at(&message, place));
                }
                Ok(value)
            }
            (token, place) => Err(unexpected(&token, "integer", place)),
        }
    }

    /// A duration; INF is 0.
    fn duration(&mut self) -> Parsed<i64> {
        match self.next() {
            (Token::Keyword("INF"), _) => Ok(0),
            (Token::Duration(text), place) => {
                super::time::duration(&text).map_err(|message| at(&message, place))
            }
            (token, place) => Err(unexpected(&token, "duration", place)),
        }
    }

    /// A keyword and a number, if the keyword comes next.
    fn count_after(&mut self, word: &'static str) -> Parsed<usize> {
        if !self.take_word(word) {
            return Ok(0);
        }
        match self.next() {
            (Token::Integer(text), place) => {
                let value = text.parse::<i64>().ok().and_then(|it| usize::try_from(it).ok());
                value.ok_or_else(|| at(&format!("{word} {text} is out of range"), place))
            }
            (token, place) => Err(unexpected(&token, "integer", place)),
        }
    }

    /// `LIMIT n OFFSET n`
    fn rows(&mut self) -> Parsed<Window> {
        Ok(Window { limit: self.count_after("LIMIT")?, offset: self.count_after("OFFSET")? })
    }

    /// `SLIMIT n SOFFSET n`
    fn series(&mut self) -> Parsed<Window> {
        Ok(Window { limit: self.count_after("SLIMIT")?, offset: self.count_after("SOFFSET")? })
    }

    /// `WHERE condition`
    fn condition(&mut self) -> Parsed<Option<Expr>> {
        if self.take_word("WHERE") { self.expression().map(Some) } else { Ok(None) }
    }

    /// A measurement.
    fn measurement(&mut self) -> Parsed<Measurement> {
        if let Some(pattern) = self.regex()? {
            return Ok(Measurement { database: None, policy: None, name: Name::Match(pattern) });
        }
        let mut segments = self.segments()?;
        let name = match (segments.len(), self.regex_after_point(segments.len())?) {
            (_, Some(pattern)) => Name::Match(pattern),
            (_, None) => Name::Is(segments.pop().unwrap_or_default()),
        };
        let policy = segments.pop().filter(|it| !it.is_empty());
        let database = segments.pop().filter(|it| !it.is_empty());
        Ok(Measurement { database, policy, name })
    }

    /// A regular expression behind one or two names and a point.
    fn regex_after_point(&mut self, segments: usize) -> Parsed<Option<Pattern>> {
        if segments < 3 && self.lexer.peek() == Some('/') { self.regex() } else { Ok(None) }
    }

    /// A statement.
    fn statement(&mut self) -> Parsed<Statement> {
        let (token, place) = self.next();
        let Token::Keyword(word) = token else {
            return Err(unexpected(&token, STATEMENTS, place));
        };
        match word {
            "SELECT" => Ok(Statement::Select(Box::new(self.select(false)?))),
            "DELETE" => Ok(Statement::Delete(self.deletion()?)),
            "SHOW" => self.show(),
            "CREATE" => self.create(),
            "DROP" => self.drop_statement(),
            "ALTER" => self.alter(),
            "EXPLAIN" => {
                let is_run = self.take_word("ANALYZE");
                self.expect_word("SELECT")?;
                Ok(Statement::Explain(is_run, Box::new(self.select(false)?)))
            }
            "GRANT" | "REVOKE" | "SET" | "KILL" => {
                Err(at(&format!("{word} is not supported"), place))
            }
            _ => Err(unexpected(&token, STATEMENTS, place)),
        }
    }
}

/// The words that begin a statement.
const STATEMENTS: &str =
    "SELECT, DELETE, SHOW, CREATE, DROP, EXPLAIN, GRANT, REVOKE, ALTER, SET, KILL";

/// The bytes that a regular expression may have once it is compiled, so that it takes no longer than `left`. None if
/// its text takes longer already.
fn bytes_within(left: Duration, text: &str) -> Option<usize> {
    let of_text = Duration::from_nanos(PATTERN_TEXT_NS.saturating_mul(text.len() as u64));
    let bytes = left.checked_sub(of_text)?.as_nanos() / u128::from(PATTERN_NS);
    Some(usize::try_from(bytes).map_or(PATTERN_BYTES_MAX, |it| it.min(PATTERN_BYTES_MAX)))
}

/// Compiles a regular expression within a time.
fn pattern(text: &str, left: Duration, place: Place) -> Parsed<Pattern> {
    let late = || "query-timeout limit exceeded".to_owned();
    let bytes_max = bytes_within(left, text).ok_or_else(late)?;
    let compiled = RegexBuilder::new(&dialect::of_go(text)).size_limit(bytes_max).build();
    compiled.map(|it| Pattern(it, text.to_owned())).map_err(|it| {
        if matches!(it, PatternError::CompiledTooBig(max) if max < PATTERN_BYTES_MAX) {
            return late();
        }
        let reason = it.to_string();
        let last = reason.lines().last().unwrap_or_default().trim_start_matches("error: ");
        at(&format!("error parsing regexp: {last}: `{text}`"), place)
    })
}
