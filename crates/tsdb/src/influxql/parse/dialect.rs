//! The regular expressions of Go, which InfluxDB has, in the dialect of the `regex` crate.
//!
//! Nearly all of the syntax is common. The differences, in Go:
//!
//! - `\w`, `\d`, `\s` and `\b` know ASCII alone. Those of the crate are Unicode's: they let more names through, and
//!   are large when they are compiled.
//! - A `{` that begins no repetition is itself.
//! - In brackets `[`, `&&`, `--` and `~~` are themselves: there are no sets of sets.
//! - `\p{^Greek}` is `\P{Greek}`.
//! - A punctuation mark behind a backslash is itself, also in `\<`; `\Q…\E` quotes.
//!
//! So an expression is written anew, with the characters that mean different things by their numbers. What is wrong
//! in Go stays wrong, unless the crate gives it a meaning.

use std::str::Chars;

/// A regular expression of Go, in the dialect of the crate.
pub(super) fn of_go(text: &str) -> String {
    let mut copy = Copy { rest: text.chars(), to: String::with_capacity(text.len() * 2) };
    while let Some(found) = copy.rest.next() {
        match found {
            '\\' if copy.take_if('Q') => copy.quote(),
            '\\' => _ = copy.escape(false),
            '[' => copy.brackets(),
            '{' if !is_repetition(copy.rest.as_str()) => copy.literal('{'),
            found => copy.to.push(found),
        }
    }
    copy.to
}

/// True if a text begins with `n}`, `n,}` or `n,m}`.
fn is_repetition(text: &str) -> bool {
    let Some(rest) = behind_number(text) else { return false };
    let rest = rest.strip_prefix(',').map_or(rest, |rest| behind_number(rest).unwrap_or(rest));
    rest.starts_with('}')
}

/// The text behind a number without leading zeros.
fn behind_number(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(|it: char| it.is_ascii_digit());
    let digits = text.len() - rest.len();
    (digits == 1 || (digits > 1 && !text.starts_with('0'))).then_some(rest)
}

/// The length of a class like `[:alpha:]` at the beginning of a text.
fn named_class(text: &str) -> Option<usize> {
    let name = text.strip_prefix("[:")?;
    let rest = name.strip_prefix('^').unwrap_or(name);
    let rest = rest.trim_start_matches(|it: char| it.is_ascii_alphabetic()).strip_prefix(":]")?;
    Some(text.len() - rest.len())
}

/// An expression that is being copied.
struct Copy<'t> {
    rest: Chars<'t>,
    to: String,
}

impl Copy<'_> {
    fn take_if(&mut self, wanted: char) -> bool {
        let is_next = self.rest.as_str().starts_with(wanted);
        if is_next {
            self.rest.next();
        }
        is_next
    }

    /// Appends a character that is itself, wherever it stands.
    fn literal(&mut self, of: char) {
        match of.is_alphanumeric() {
            true => self.to.push(of),
            false => self.to.push_str(&format!("\\x{{{:x}}}", u32::from(of))),
        }
    }

    /// The text behind `\Q`, up to `\E` or to the end.
    fn quote(&mut self) {
        while let Some(found) = self.rest.next() {
            if found == '\\' && self.take_if('E') {
                break;
            }
            self.literal(found);
        }
    }

    /// What stands behind a backslash; true if it is one character.
    fn escape(&mut self, is_in_brackets: bool) -> bool {
        let Some(found) = self.rest.next() else {
            self.to.push('\\');
            return false;
        };
        match found {
            'd' => self.to.push_str("[0-9]"),
            'D' => self.to.push_str("[^0-9]"),
            'w' => self.to.push_str("[0-9A-Za-z_]"),
            'W' => self.to.push_str("[^0-9A-Za-z_]"),
            's' => self.to.push_str(r"[\t\n\x0c\r\x20]"),
            'S' => self.to.push_str(r"[^\t\n\x0c\r\x20]"),
            'b' | 'B' if !is_in_brackets => self.to.push_str(&format!("(?-u:\\{found})")),
            'p' | 'P' | 'x' => {
                let is_other = found != 'x' && self.rest.as_str().starts_with("{^");
                let class = match found {
                    'p' if is_other => 'P',
                    'P' if is_other => 'p',
                    found => found,
                };
                self.to.extend(['\\', class]);
                self.braces(if is_other { "{^" } else { "{" });
                return found == 'x';
            }
            found if found.is_ascii_punctuation() => {
                self.literal(found);
                return true;
            }
            found => {
                self.to.extend(['\\', found]);
                return true;
            }
        }
        false
    }

    /// The braces that come next, if any, which begin so.
    fn braces(&mut self, begin: &str) {
        let Some(rest) = self.rest.as_str().strip_prefix(begin) else { return };
        self.rest = rest.chars();
        self.to.push('{');
        for found in self.rest.by_ref() {
            self.to.push(found);
            if found == '}' {
                break;
            }
        }
    }

    /// A class in brackets, behind its `[`.
    fn brackets(&mut self) {
        self.to.push('[');
        if self.take_if('^') {
            self.to.push('^');
        }
        let mut is_first = true;
        while !self.rest.as_str().is_empty() {
            // As the first one it is itself.
            if !is_first && self.take_if(']') {
                self.to.push(']');
                break;
            }
            is_first = false;
            let is_range = self.element() && !self.rest.as_str().starts_with("-]");
            if is_range && self.take_if('-') {
                self.to.push('-');
                self.element();
            }
        }
    }

    /// A character or a class in brackets; true if it is a character.
    fn element(&mut self) -> bool {
        if let Some(class) = named_class(self.rest.as_str()) {
            self.to.extend(self.rest.by_ref().take(class));
            return false;
        }
        match self.rest.next() {
            Some('\\') => self.escape(true),
            Some(found) => {
                self.literal(found);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::of_go;
    use regex::Regex;

    /// Expressions, a text that each finds in Go, and one that it does not find.
    const FOUND: [(&str, &str, &str); 26] = [
        (r"^\w+$", "zurich_9", "zürich"),
        (r"^\W$", "ü", "u"),
        (r"^\d+$", "09", "٣"),
        (r"^\D$", "٣", "3"),
        (r"^\s$", "\u{c}", "\u{b}"),
        (r"^\S$", "\u{a0}", " "),
        (r"é\b", "éa", "é"),
        (r"^é\B$", "é", "e"),
        (r"^\w{1,64}$", "a", "-"),
        (r"^/users/{id}$", "/users/{id}", "/users/id"),
        (r"^a{2}{x{,3}{01}{1,02}{$", "aa{x{,3}{01}{1,02}{", "a"),
        (r"^a{2,}b{1,2}$", "aaabb", "ab"),
        (r"^[\w-]+$", "a-b", "ü"),
        (r"^[^\W\d]$", "a", "1"),
        (r"^[\d-z]+$", "1-z", "a"),
        (r"^[[&&a]+$", "[&a", "b"),
        (r"^[a~~b+--c]+$", "a~b,c-", "d"),
        (r"^[]a]+[^]a]$", "]ab", "]a"),
        (r"^[[:alpha:][:^digit:]x]$", "é", "1"),
        (r"^[[:alpha]+$", "[:alph", "b"),
        (r"^[a\-z\]\x41-\x{43}]+$", "a-z]B", "b"),
        (r"^\<\_\-\{\.$", "<_-{.", "_-{."),
        (r"^\Qa.b[\E.$", "a.b[x", "axb[x"),
        (r"(?i)^\w\pL\p{Greek}$", "\u{17f}éα", "éée"),
        (r"^\p{^Greek}\P{^Greek}[\p{^Lu}]$", "aαb", "ααb"),
        (r"^(?P<n>a|b{)$", "b{", "c"),
    ];

    #[test]
    fn expressions_find_what_they_find_in_go() {
        for (text, found, not) in FOUND {
            let regex = Regex::new(&of_go(text)).unwrap_or_else(|it| panic!("{text}: {it}"));
            assert!(regex.is_match(found), "{text} finds {found}");
            assert!(!regex.is_match(not), "{text} does not find {not}");
        }
    }

    #[test]
    fn what_is_wrong_stays_wrong() {
        let wrong = [
            "\\",
            "[",
            "[]",
            "[^]",
            "[a-",
            r"[a-\d]",
            "[z-a]",
            r"[\b]",
            "(",
            "a)",
            "{2}",
            "*",
            r"\x{",
            r"\p{",
            r"\p{^",
            r"\x{^41}",
            r"\1",
            r"\Qa\E\",
            "a{2,1}",
            "[[:alpha:]",
        ];
        for text in wrong {
            assert!(Regex::new(&of_go(text)).is_err(), "{text} becomes {}", of_go(text));
        }
    }
}
