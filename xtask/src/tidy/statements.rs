//! `matches!(…);` as a statement looks like an assertion and is none: its result is dropped.

use super::source::line_of;
use super::{Finding, Tree};

const NEEDLE: &str = "matches!";

/// Finds such statements.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for source in &tree.rust {
        for (at, _) in source.code.match_indices(NEEDLE) {
            let before = source.code[..at].trim_end();
            let begins = before.is_empty() || before.ends_with([';', '{', '}']);
            if begins && ends_as_statement(&source.code[at + NEEDLE.len()..]) {
                findings.push(Finding {
                    path: source.path.clone(),
                    line: line_of(&source.code, at),
                    rule: "statements",
                    message: "the answer of this `matches!` falls away".to_owned(),
                });
            }
        }
    }
}

/// True if a `;` follows the arguments at the beginning of `rest`.
fn ends_as_statement(rest: &str) -> bool {
    let mut depth = 0_u32;
    for (at, character) in rest.char_indices() {
        match character {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return rest[at + 1..].trim_start().starts_with(';');
                }
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let mut findings = Vec::new();
        check(&Tree::of(&[("a.rs", text)]), &mut findings);
        findings.len()
    }

    #[test]
    fn a_bare_statement_fires() {
        assert_eq!(count("fn a() { matches!(b(), Some((_, 1))); }"), 1);
        assert_eq!(count("b();\n    matches!(c, D { .. });"), 1);
    }

    #[test]
    fn an_answer_that_is_used_passes() {
        assert_eq!(count("fn a() -> bool { matches!(b, C) }"), 0);
        assert_eq!(count("assert!(matches!(b, C));"), 0);
        assert_eq!(count("let a = matches!(b, C);"), 0);
        assert_eq!(count("fn a() -> bool { matches!(b, C) && d; }"), 0);
    }
}
