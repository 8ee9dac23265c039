//! Words that only the server may see: `MONITOR` and `SLOWLOG` show a placeholder instead.

use super::is;
use crate::resp::frame::Words;

const HIDDEN: &[u8] = b"(redacted)";
/// Parameters with secrets.
const SECRET_PARAMETERS: [&str; 2] = ["requirepass", "masterauth"];

/// The words of a command of this name, with a placeholder for its secrets.
pub(super) fn shown<'a>(
    name: &'static str,
    words: Words<'a>,
) -> impl ExactSizeIterator<Item = &'a [u8]> {
    let mut left = 0;
    words.from(0).enumerate().map(move |(index, word)| {
        let is_secret = left > 0;
        left = match name {
            "auth" => 1,
            // It may also be the name of a client or a user. Then a word too many is hidden, and never one too few.
            "hello" if index > 0 && is(word, "AUTH") => 2,
            "config|set" if index > 1 && index.is_multiple_of(2) => {
                usize::from(SECRET_PARAMETERS.iter().any(|parameter| is(word, parameter)))
            }
            _ => left.saturating_sub(1),
        };
        if is_secret { HIDDEN } else { word }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown_of(name: &'static str, line: &str) -> String {
        let mut spans = Vec::new();
        let mut start = 0;
        for word in line.split(' ') {
            spans.push((start, start + word.len()));
            start += word.len() + 1;
        }
        let words = Words::new(line.as_bytes(), &spans);
        let words: Vec<_> = shown(name, words).map(String::from_utf8_lossy).collect();
        words.join(" ")
    }

    #[test]
    fn secrets_are_not_shown() {
        for (name, line, expected) in [
            ("auth", "auth user secret", "auth (redacted) (redacted)"),
            ("hello", "HELLO 3 auth u p setname n", "HELLO 3 auth (redacted) (redacted) setname n"),
            ("hello", "HELLO 3 auth auth auth", "HELLO 3 auth (redacted) (redacted)"),
            (
                "hello",
                "HELLO 3 SETNAME auth AUTH u p",
                "HELLO 3 SETNAME auth (redacted) (redacted) (redacted)",
            ),
            ("hello", "HELLO 3 setname AUTH u p", "HELLO 3 setname AUTH (redacted) (redacted)"),
            (
                "config|set",
                "config set timeout 1 RequirePass p maxclients 2",
                "config set timeout 1 RequirePass (redacted) maxclients 2",
            ),
            ("set", "set auth requirepass", "set auth requirepass"),
        ] {
            assert_eq!(shown_of(name, line), expected);
        }
    }
}
