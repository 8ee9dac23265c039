//! A Rust file in several views: its code, its code with literals, its comments.
//!
//! The rules of `tidy` apply to code ("no inline assembly here") or to comments ("no marks left behind"); a word in a
//! string or a doc comment must not trigger a rule for code. So each byte of a file is classified once, and a view
//! replaces the omitted bytes by spaces: lines stay where they are.

/// A Rust file.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// The path below the workspace, with `/`.
    pub(crate) path: String,
    /// The whole text.
    pub(crate) text: String,
    /// Without comments and without the insides of literals.
    pub(crate) code: String,
    /// Without comments.
    pub(crate) bare: String,
    /// Nothing but comments.
    pub(crate) comments: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Code,
    Literal,
    Comment,
}

impl Source {
    /// Classifies `text`.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let classes = classify(text.as_bytes());
        let view = |keep: &[Class]| -> String {
            let kept = text.bytes().zip(&classes).map(|(byte, class)| {
                if keep.contains(class) || byte == b'\n' { byte } else { b' ' }
            });
            String::from_utf8_lossy(&kept.collect::<Vec<u8>>()).into_owned()
        };
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: view(&[Class::Code]),
            bare: view(&[Class::Code, Class::Literal]),
            comments: view(&[Class::Comment]),
        }
    }

    /// The words (identifiers and keywords) of the code, each with the line it is on (from 1) and
    /// the byte it begins at.
    pub(crate) fn words(&self) -> impl Iterator<Item = (usize, usize, &str)> {
        words(&self.code)
    }
}

/// The words of `text`, each with its line (from 1) and its first byte.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (usize, usize, &str)> {
    let mut line = 1;
    let mut at = 0;
    text.split_inclusive(|c: char| !is_word(c)).filter_map(move |piece| {
        let (start, here) = (at, line);
        at += piece.len();
        line += piece.matches('\n').count();
        let word = piece.trim_end_matches(|c: char| !is_word(c));
        (!word.is_empty()).then_some((here, start, word))
    })
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The line (from 1) on which byte `at` of `text` is.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

fn classify(text: &[u8]) -> Vec<Class> {
    let mut classes = Vec::with_capacity(text.len());
    while classes.len() < text.len() {
        let at = classes.len();
        let (class, len) = token(text, at);
        classes.resize((at + len.max(1)).min(text.len()), class);
    }
    classes
}

/// The class of the token at `at`, and its length.
fn token(text: &[u8], at: usize) -> (Class, usize) {
    let rest = &text[at..];
    if rest.starts_with(b"//") {
        let end = rest.iter().position(|byte| *byte == b'\n');
        return (Class::Comment, end.unwrap_or(rest.len()));
    }
    if rest.starts_with(b"/*") {
        return (Class::Comment, block_comment(rest));
    }
    match rest[0] {
        b'"' => (Class::Literal, quoted(rest, b'"')),
        b'\'' => apostrophe(rest),
        first if is_word(first as char) => word_or_prefix(rest),
        _ => (Class::Code, 1),
    }
}

/// A word, or the prefix of a literal together with the literal: `r"`, `br#"`, `c"`, `b'`.
fn word_or_prefix(rest: &[u8]) -> (Class, usize) {
    let word = rest
        .iter()
        .take_while(|byte| **byte == b'_' || byte.is_ascii_alphanumeric() || **byte >= 0x80)
        .count();
    let after = &rest[word..];
    match &rest[..word] {
        b"r" | b"br" | b"cr" => {
            let hashes = after.iter().take_while(|byte| **byte == b'#').count();
            if after.get(hashes) == Some(&b'"') {
                return (Class::Literal, word + raw(after, hashes));
            }
        }
        b"b" | b"c" if after.first() == Some(&b'"') => {
            return (Class::Literal, word + quoted(after, b'"'));
        }
        b"b" if after.first() == Some(&b'\'') => {
            return (Class::Literal, word + quoted(after, b'\''));
        }
        _ => {}
    }
    (Class::Code, word)
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        if rest[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw(rest: &[u8], hashes: usize) -> usize {
    let mut close = vec![b'"'];
    close.resize(hashes + 1, b'#');
    rest[hashes + 1..]
        .windows(close.len())
        .position(|window| window == close)
        .map_or(rest.len(), |end| hashes + 1 + end + close.len())
}

/// A character literal, or the apostrophe of a lifetime.
fn apostrophe(rest: &[u8]) -> (Class, usize) {
    let escaped = rest.get(1) == Some(&b'\\');
    let character = rest.get(1).map_or(1, |byte| match byte.leading_ones() {
        0 => 1,
        length => length as usize,
    });
    if escaped || rest.get(1 + character) == Some(&b'\'') {
        (Class::Literal, quoted(rest, b'\''))
    } else {
        (Class::Code, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_and_comments_are_not_code() {
        let source = Source::new(
            "a.rs",
            "let a = \"asm! \\\" x\"; // asm! here\nlet b = r#\"un\"safe\"#; /* a /* b */ c */ f();",
        );
        assert!(!source.code.contains("asm"));
        assert!(!source.code.contains("safe"));
        assert!(source.code.contains("f();"));
        assert!(source.comments.contains("asm! here"));
        assert!(source.comments.contains("a /* b */ c"));
        assert!(source.bare.contains("un\"safe") && !source.bare.contains("here"));
        assert_eq!(source.code.len(), source.text.len());
    }

    #[test]
    fn lifetimes_are_code_and_characters_are_not() {
        let source = Source::new("a.rs", "fn f<'a>(x: &'a str) { g('\"', b'\\'', 'ä', '\\n') }");
        assert!(source.code.contains("'a str"));
        assert!(source.code.contains("g("));
        assert!(!source.code.contains('ä') && !source.code.contains("\\n"));
        assert!(source.code.ends_with(" }"));
    }

    #[test]
    fn words_come_with_their_lines() {
        let source = Source::new("a.rs", "one two_2\n\nthree::four!");
        let words: Vec<_> = source.words().map(|(line, _, word)| (line, word)).collect();
        assert_eq!(words, [(1, "one"), (1, "two_2"), (3, "three"), (3, "four")]);
    }
}
