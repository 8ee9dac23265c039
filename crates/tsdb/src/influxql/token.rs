//! Tokens of InfluxQL, and the lexer.
//!
//! The problem: only the parser knows whether a slash begins a regular expression or divides, and errors must state
//! the same line and character as InfluxDB's. So the parser asks the lexer for one token at a time, and for a
//! regular expression where one may stand ([`Lexer::regex`]). The lexer is a small value that the parser copies to
//! look ahead. Positions count characters from 0; the end of the text counts as a character once a word or a run of
//! spaces has touched it, as in InfluxDB.

use super::keyword::keyword;

/// The place where a token begins; both numbers count from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    /// The line.
    pub(super) line: u32,
    /// The character of the line.
    pub(super) character: u32,
}

/// An operator of two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Modulo,
    /// `&`
    BitAnd,
    /// `|`
    BitOr,
    /// `^`
    BitXor,
    /// `AND`
    And,
    /// `OR`
    Or,
    /// `=`
    Equal,
    /// `!=` and `<>`
    NotEqual,
    /// `=~`
    Match,
    /// `!~`
    NotMatch,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
}

impl Operator {
    /// Its text.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Modulo => "%",
            Self::BitAnd => "&",
            Self::BitOr => "|",
            Self::BitXor => "^",
            Self::And => "AND",
            Self::Or => "OR",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Match => "=~",
            Self::NotMatch => "!~",
            Self::Less => "<",
            Self::LessEqual => "<=",
            Self::Greater => ">",
            Self::GreaterEqual => ">=",
        }
    }

    /// How strongly it binds: a greater number is stronger.
    pub(super) fn precedence(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            Self::Equal | Self::NotEqual | Self::Match | Self::NotMatch => 3,
            Self::Less | Self::LessEqual | Self::Greater | Self::GreaterEqual => 3,
            Self::Add | Self::Subtract | Self::BitOr | Self::BitXor => 4,
            Self::Multiply | Self::Divide | Self::Modulo | Self::BitAnd => 5,
        }
    }

    /// True for `=~` and `!~`, whose right side is a regular expression.
    pub(super) fn is_of_regex(self) -> bool {
        matches!(self, Self::Match | Self::NotMatch)
    }

    /// True if it may not stand in a SELECT clause.
    pub(super) fn is_comparison(self) -> bool {
        self.precedence() <= 3
    }
}

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// A character that begins no token.
    Illegal(String),
    /// The end of the text.
    End,
    /// Spaces, or a comment.
    Space,
    /// A name, with quotes or without.
    Name(String),
    /// A keyword in capitals.
    Keyword(&'static str),
    /// A number with a fraction.
    Number(String),
    /// Digits.
    Integer(String),
    /// Digits with units.
    Duration(String),
    /// Text in single quotes.
    String(String),
    /// Text in quotes that does not end.
    BadString(String),
    /// Text in quotes with an unknown escape.
    BadEscape(String),
    /// `$name`
    Parameter(String),
    /// An operator.
    Operator(Operator),
    /// A regular expression, and whether it ends.
    Regex(String, bool),
    /// `(`, `)`, `,`, `;`, `:`, `::` and `.`
    Mark(&'static str),
}

impl Token {
    /// The token as an error quotes it.
    pub(super) fn found(&self) -> &str {
        match self {
            Self::Illegal(text) if text.is_empty() => "ILLEGAL",
            Self::End => "EOF",
            Self::Space => "WS",
            Self::Name(text) if text.is_empty() => "IDENT",
            Self::String(text) if text.is_empty() => "STRING",
            Self::BadString(text) if text.is_empty() => "BADSTRING",
            Self::Operator(operator) => operator.text(),
            Self::Regex(_, false) => "BADREGEX",
            Self::Keyword(word) | Self::Mark(word) => word,
            Self::Illegal(text)
            | Self::Name(text)
            | Self::Number(text)
            | Self::Integer(text)
            | Self::Duration(text)
            | Self::String(text)
            | Self::BadString(text)
            | Self::BadEscape(text)
            | Self::Parameter(text)
            | Self::Regex(text, true) => text,
        }
    }
}

/// Reads tokens. Copied to look ahead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lexer<'a> {
    rest: &'a str,
    place: Place,
    is_ended: bool,
}

impl<'a> Lexer<'a> {
    /// A lexer at the beginning of the text.
    pub(super) fn new(text: &'a str) -> Self {
        // InfluxDB treats a zero character as the end.
        let rest = text.split('\0').next().unwrap_or_default();
        Self { rest, place: Place::default(), is_ended: false }
    }

    /// The next character, without taking it.
    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next().map(|it| if it == '\r' { '\n' } else { it })
    }

    /// Takes a character.
    fn take(&mut self) -> Option<char> {
        let Some(found) = self.peek() else {
            self.touch_end();
            return None;
        };
        let mut rest = self.rest.chars();
        if rest.next() == Some('\r') && rest.as_str().starts_with('\n') {
            rest.next();
        }
        self.rest = rest.as_str();
        if found == '\n' {
            self.place = Place { line: self.place.line.saturating_add(1), character: 0 };
        } else {
            self.place.character = self.place.character.saturating_add(1);
        }
        Some(found)
    }

    /// Takes the next character if it is this one.
    fn take_if(&mut self, wanted: char) -> bool {
        let is_so = self.peek() == Some(wanted);
        if is_so {
            self.take();
        }
        is_so
    }

    /// Counts the end of the text as a character, once.
    fn touch_end(&mut self) {
        if self.rest.is_empty() && !self.is_ended {
            self.is_ended = true;
            self.place.character = self.place.character.saturating_add(1);
        }
    }

    /// Moves characters to `into` while they satisfy `is_such`.
    fn take_while(&mut self, into: &mut String, is_such: impl Fn(char) -> bool) {
        while let Some(found) = self.peek().filter(|it| is_such(*it)) {
            into.push(found);
            self.take();
        }
    }

    /// The next token, and the place where it begins.
    pub(super) fn token(&mut self) -> (Token, Place) {
        let place = self.place;
        let Some(first) = self.peek() else {
            self.touch_end();
            return (Token::End, place);
        };
        let token = match first {
            ' ' | '\t' | '\n' => {
                while self.peek().is_some_and(is_space) {
                    self.take();
                }
                self.touch_end();
                Token::Space
            }
            'a'..='z' | 'A'..='Z' | '_' => self.word(),
            '0'..='9' => self.number(),
            '"' => match self.quoted() {
                Token::String(name) => Token::Name(name),
                bad => bad,
            },
            '\'' => match self.quoted() {
                bad @ Token::BadEscape(_) => return (bad, before(self.place)),
                token => return (token, before(place)),
            },
            '$' => {
                self.take();
                let mut name = String::from("$");
                self.take_while(&mut name, is_of_word);
                Token::Parameter(name)
            }
            _ => {
                self.take();
                self.symbol(first)
            }
        };
        (token, place)
    }

    /// A token that begins with `first`, which was taken.
    fn symbol(&mut self, first: char) -> Token {
        let operator = match first {
            '.' if self.peek().is_some_and(|it| it.is_ascii_digit()) => {
                return self.fraction(String::from("."));
            }
            '-' if self.take_if('-') => {
                while self.take().is_some_and(|it| it != '\n') {}
                return Token::Space;
            }
            '/' if self.take_if('*') => return self.comment(),
            '+' => Operator::Add,
            '-' => Operator::Subtract,
            '*' => Operator::Multiply,
            '/' => Operator::Divide,
            '%' => Operator::Modulo,
            '&' => Operator::BitAnd,
            '|' => Operator::BitOr,
            '^' => Operator::BitXor,
            '=' if self.take_if('~') => Operator::Match,
            '=' => Operator::Equal,
            '!' if self.take_if('=') => Operator::NotEqual,
            '!' if self.take_if('~') => Operator::NotMatch,
            '>' if self.take_if('=') => Operator::GreaterEqual,
            '>' => Operator::Greater,
            '<' if self.take_if('=') => Operator::LessEqual,
            '<' if self.take_if('>') => Operator::NotEqual,
            '<' => Operator::Less,
            '(' => return Token::Mark("("),
            ')' => return Token::Mark(")"),
            ',' => return Token::Mark(","),
            ';' => return Token::Mark(";"),
            '.' => return Token::Mark("."),
            ':' if self.take_if(':') => return Token::Mark("::"),
            ':' => return Token::Mark(":"),
            other => return Token::Illegal(other.to_string()),
        };
        Token::Operator(operator)
    }

    /// The rest of a comment that ends with `*/`.
    fn comment(&mut self) -> Token {
        let mut before = ' ';
        while let Some(found) = self.take() {
            if before == '*' && found == '/' {
                return Token::Space;
            }
            before = found;
        }
        Token::Illegal(String::new())
    }

    /// A keyword, or a name without quotes.
    fn word(&mut self) -> Token {
        let mut word = String::new();
        self.take_while(&mut word, is_of_word);
        self.touch_end();
        match keyword(&word) {
            Some(known) => Token::Keyword(known),
            None if word.eq_ignore_ascii_case("and") => Token::Operator(Operator::And),
            None if word.eq_ignore_ascii_case("or") => Token::Operator(Operator::Or),
            None => Token::Name(word),
        }
    }

    /// A number or a duration.
    fn number(&mut self) -> Token {
        let mut text = String::new();
        self.take_while(&mut text, |it| it.is_ascii_digit());
        if self.take_if('.') {
            text.push('.');
            return self.fraction(text);
        }
        if self.peek().is_some_and(|it| it.is_ascii_alphabetic() || it == 'µ') {
            self.take_while(&mut text, |it| it.is_ascii_alphanumeric() || it == 'µ');
            return Token::Duration(text);
        }
        Token::Integer(text)
    }

    /// A number whose decimal point was taken.
    fn fraction(&mut self, mut text: String) -> Token {
        self.take_while(&mut text, |it| it.is_ascii_digit());
        if text.ends_with('.') {
            text.pop();
        }
        Token::Number(text)
    }

    /// Text in quotes, which comes next.
    fn quoted(&mut self) -> Token {
        let Some(quote) = self.take() else { return Token::End };
        let mut text = String::new();
        loop {
            match self.take() {
                Some(found) if found == quote => return Token::String(text),
                None | Some('\n') => return Token::BadString(text),
                Some('\\') => match self.take() {
                    Some('n') => text.push('\n'),
                    Some(found @ ('\\' | '"' | '\'')) => text.push(found),
                    other => {
                        let escape: String = ['\\'].into_iter().chain(other).collect();
                        return Token::BadEscape(escape);
                    }
                },
                Some(found) => text.push(found),
            }
        }
    }

    /// A regular expression between slashes, if one comes next; spaces before it are taken in any case.
    pub(super) fn regex(&mut self) -> Option<(Token, Place)> {
        while self.peek().is_some_and(is_space) {
            self.take();
        }
        let place = before(self.place);
        if self.rest.starts_with("/*") || !self.take_if('/') {
            return None;
        }
        let mut text = String::new();
        loop {
            match self.take() {
                Some('/') => return Some((Token::Regex(text, true), place)),
                None | Some('\n') => return Some((Token::Regex(text, false), place)),
                Some('\\') if self.take_if('/') => text.push('/'),
                Some(found) => text.push(found),
            }
        }
    }
}

/// The place of the character before: InfluxDB reports it for text in quotes and for expressions.
fn before(place: Place) -> Place {
    Place { character: place.character.saturating_sub(1), ..place }
}

fn is_space(found: char) -> bool {
    matches!(found, ' ' | '\t' | '\n')
}

fn is_of_word(found: char) -> bool {
    found.is_ascii_alphanumeric() || found == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        let mut lexer = Lexer::new(text);
        let mut found = Vec::new();
        loop {
            match lexer.token().0 {
                Token::End => return found,
                Token::Space => {}
                token => found.push(token),
            }
        }
    }

    #[test]
    fn numbers_and_durations() {
        let expected = [
            Token::Integer("10".into()),
            Token::Number("10.5".into()),
            Token::Number(".5".into()),
            Token::Duration("1h30m".into()),
            Token::Duration("7µ".into()),
        ];
        assert_eq!(tokens("10 10.5 .5 1h30m 7µ"), expected);
    }

    #[test]
    fn quotes_and_escapes() {
        assert_eq!(tokens(r#""a b""#), [Token::Name("a b".into())]);
        assert_eq!(tokens(r"'it\'s'"), [Token::String("it's".into())]);
        assert_eq!(tokens(r"'a\q'").first(), Some(&Token::BadEscape(r"\q".into())));
        assert_eq!(tokens("'a"), [Token::BadString("a".into())]);
    }

    #[test]
    fn comments_are_spaces() {
        assert_eq!(
            tokens("a -- b\n/* c * / **/ d"),
            [Token::Name("a".into()), Token::Name("d".into())]
        );
        assert_eq!(tokens("/* a").len(), 1);
    }

    #[test]
    fn the_end_counts_once() {
        let mut lexer = Lexer::new("SELECT");
        lexer.token();
        assert_eq!(lexer.token(), (Token::End, Place { line: 0, character: 7 }));
        let mut lexer = Lexer::new("a\r\n,");
        lexer.token();
        lexer.token();
        lexer.token();
        assert_eq!(lexer.token().1, Place { line: 1, character: 1 });
    }

    #[test]
    fn a_regex_where_one_may_stand() {
        let mut lexer = Lexer::new(r" /a\/b\.c/x");
        assert_eq!(lexer.regex().map(|it| it.0), Some(Token::Regex(r"a/b\.c".into(), true)));
        assert_eq!(lexer.regex(), None);
        assert_eq!(Lexer::new("/a").regex().map(|it| it.0), Some(Token::Regex("a".into(), false)));
    }
}
