//! No unfinished work is left behind: no marks for later in comments, no disabled test, no place-holder that panics.
//!
//! A mark shows a known gap for which no person is responsible. Missing work is either done now or described in the
//! documents.

use super::source::{line_of, words};
use super::{Finding, Tree};

/// Marks, spelt in two so that this file is not its own first finding.
const MARKS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

const PLACE_HOLDERS: [&str; 2] = ["todo", "unimplemented"];

/// Finds leftovers.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut report = |path: &str, line, message: String| {
        findings.push(Finding { path: path.to_owned(), line, rule: "leftovers", message });
    };
    for source in &tree.rust {
        for (line, _, word) in words(&source.comments) {
            if MARKS.contains(&word) {
                report(&source.path, line, format!("a mark: {word}"));
            }
        }
        for (line, at, word) in source.words() {
            let macro_call = source.code[at + word.len()..].starts_with('!');
            if macro_call && PLACE_HOLDERS.contains(&word) {
                report(&source.path, line, format!("a place-holder: {word}!"));
            }
        }
        for at in ignored_tests(&source.code) {
            let message = "a test that is switched off tests nothing".to_owned();
            report(&source.path, line_of(&source.code, at), message);
        }
    }
    for file in &tree.other {
        for (line, _, word) in words(&file.text) {
            if MARKS.contains(&word) {
                report(&file.path, line, format!("a mark: {word}"));
            }
        }
    }
}

/// The places of attributes `ignore`, bare or inside `cfg_attr`.
fn ignored_tests(code: &str) -> Vec<usize> {
    code.match_indices("#[")
        .filter(|(at, _)| {
            let attribute = &code[at + 2..];
            let attribute = &attribute[..attribute.find(']').unwrap_or(attribute.len())];
            let words: Vec<&str> = words(attribute).map(|(_, _, word)| word).collect();
            words.first() == Some(&"ignore")
                || (words.first() == Some(&"cfg_attr") && words.contains(&"ignore"))
        })
        .map(|(at, _)| at)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(&Tree::of(&[(path, text)]), &mut findings);
        findings.len()
    }

    #[test]
    fn marks_fire_in_comments_and_scripts() {
        for mark in MARKS {
            assert_eq!(count("a.rs", &format!("// {mark}: later")), 1);
            assert_eq!(count("a.sh", &format!("# {mark} later")), 1);
            assert_eq!(count("a.rs", &format!("let a = \"{mark}\";")), 0);
        }
    }

    #[test]
    fn place_holders_fire() {
        assert_eq!(count("a.rs", &format!("fn f() {{ {}!() }}", PLACE_HOLDERS[0])), 1);
        assert_eq!(count("a.rs", &format!("{}!(\"x\")", PLACE_HOLDERS[1])), 1);
        assert_eq!(count("a.rs", "let todo = 1;"), 0);
    }

    #[test]
    fn switched_off_tests_fire() {
        assert_eq!(count("a.rs", "#[test]\n#[ignore]\nfn a() {}"), 1);
        assert_eq!(count("a.rs", "#[ignore = \"slow\"]"), 1);
        assert_eq!(count("a.rs", "#[cfg_attr(debug_assertions, ignore)]"), 1);
        assert_eq!(count("a.rs", "#[test]\nfn ignore() {}"), 0);
    }
}
