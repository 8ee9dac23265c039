//! Patterns as in `KEYS h?ll*`, with the corner cases of Redis's own matcher.

/// A pattern of `*`, `?`, `[abc]`, `[a-c]`, `[^a]`, and `\` before a byte that is meant literally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pattern<'a>(&'a [u8]);

impl<'a> Pattern<'a> {
    const LEN_MAX: usize = 1024;

    /// A pattern, unless it is so long that one match with a long key would keep other clients waiting.
    pub(crate) fn new(pattern: &'a [u8]) -> Result<Self, &'static str> {
        const TOO_LONG: &str = "ERR pattern has more than 1024 bytes";
        if pattern.len() > Self::LEN_MAX { Err(TOO_LONG) } else { Ok(Self(pattern)) }
    }

    /// The number of comparisons that a match with a text of `len` bytes takes at most.
    pub(crate) fn comparisons(self, len: usize) -> usize {
        self.0.len() * len
    }

    /// True if `text` matches.
    pub(crate) fn matches(self, text: &[u8], ignore_case: bool) -> bool {
        matches(self.0, text, ignore_case)
    }
}

fn matches(pattern: &[u8], text: &[u8], ignore_case: bool) -> bool {
    let fold = |byte: u8| {
        if ignore_case { byte.to_ascii_lowercase() } else { byte }
    };
    // Where to go on after the last star: only the last one ever needs another try, which keeps the work at
    // |pattern| x |text|.
    let mut retry: Option<(usize, usize)> = None;
    let (mut at, mut seen) = (0, 0);
    loop {
        let step = match pattern.get(at) {
            None if seen == text.len() => return true,
            None => None,
            Some(b'*') => {
                retry = Some((at + 1, seen));
                at += 1;
                continue;
            }
            // The part of the pattern behind the last star is longer than the rest of the text.
            Some(_) if seen == text.len() => return false,
            Some(b'?') => Some(at + 1),
            Some(b'[') => class(pattern, at + 1, text[seen], fold),
            Some(b'\\') if at + 1 < pattern.len() => {
                (fold(pattern[at + 1]) == fold(text[seen])).then_some(at + 2)
            }
            Some(&literal) => (fold(literal) == fold(text[seen])).then_some(at + 1),
        };
        match (step, &mut retry) {
            (Some(next), _) => {
                at = next;
                seen += 1;
            }
            (None, Some((after_star, from))) if *from < text.len() => {
                *from += 1;
                (at, seen) = (*after_star, *from);
            }
            (None, _) => return false,
        }
    }
}

/// Matches `byte` against the class that begins at `at`; where the pattern goes on if it does.
fn class(pattern: &[u8], mut at: usize, byte: u8, fold: impl Fn(u8) -> u8) -> Option<usize> {
    let negated = pattern.get(at) == Some(&b'^');
    if negated {
        at += 1;
    }
    let byte = fold(byte);
    let mut found = false;
    loop {
        match pattern.get(at..) {
            // An unclosed class ends with the pattern.
            None | Some([]) => break,
            Some([b']', ..]) => {
                at += 1;
                break;
            }
            Some([b'\\', escaped, ..]) => {
                found |= fold(*escaped) == byte;
                at += 2;
            }
            Some([low, b'-', high, ..]) => {
                let (low, high) = (fold(*low), fold(*high));
                found |= (low.min(high)..=low.max(high)).contains(&byte);
                at += 3;
            }
            Some([literal, ..]) => {
                found |= fold(*literal) == byte;
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let yes: [(&[u8], &[u8]); 15] = [
            (b"*", b""),
            (b"h?llo", b"hello"),
            (b"h*llo", b"heeeello"),
            (b"h[ae]llo", b"hallo"),
            (b"h[^e]llo", b"hallo"),
            (b"h[a-c]llo", b"hbllo"),
            (b"h[c-a]llo", b"hbllo"),
            (b"\\*", b"*"),
            (b"a*b*c", b"aXbYbZc"),
            (b"[\\]]", b"]"),
            (b"**a", b"ba"),
            (b"user:*:name", b"user:1:name"),
            (b"a[b", b"ab"),
            (b"a\\", b"a\\"),
            (b"", b""),
        ];
        for (pattern, text) in yes {
            assert!(matches(pattern, text, false), "{pattern:?} {text:?}");
        }
        let no: [(&[u8], &[u8]); 8] = [
            (b"", b"a"),
            (b"h?llo", b"hllo"),
            (b"h[^e]llo", b"hello"),
            (b"h[a-c]llo", b"hdllo"),
            (b"\\*", b"a"),
            (b"a*b*c", b"aXbYbZ"),
            (b"A", b"a"),
            (b"a?", b"a"),
        ];
        for (pattern, text) in no {
            assert!(!matches(pattern, text, false), "{pattern:?} {text:?}");
        }
        assert!(matches(b"MAX[C-D]*", b"maxclients", true));
    }

    #[test]
    fn many_stars_stay_cheap() {
        let pattern = b"a*".repeat(50);
        let text = b"a".repeat(20_000);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text, false));
    }
}
