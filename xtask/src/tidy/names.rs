//! Files and modules are named for a concept.
//!
//! A file called "helpers" is a place where things end up, not a thing; nobody can say what does
//! not belong there, so it only grows.

use super::{Finding, Tree};

/// Refused as a part of a name: `string_utils` is no better than `utils`.
const REFUSED_PARTS: [&str; 8] =
    ["util", "utils", "utility", "utilities", "helper", "helpers", "manager", "managers"];
/// Refused as a whole name.
const REFUSED_WHOLE: [&str; 3] = ["common", "misc", "stuff"];

/// Finds refused names of files, directories and inline modules.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for path in &tree.paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.split('.').next().unwrap_or(name);
        if refused(stem) {
            findings.push(finding(path, 0, stem));
        }
    }
    for source in &tree.rust {
        let words: Vec<_> = source.words().collect();
        for pair in words.windows(2) {
            let ((_, _, keyword), (line, _, name)) = (pair[0], pair[1]);
            if keyword == "mod" && refused(name) {
                findings.push(finding(&source.path, line, name));
            }
        }
    }
}

fn refused(name: &str) -> bool {
    let name = name.to_lowercase();
    REFUSED_WHOLE.contains(&name.as_str())
        || name.split(['_', '-']).any(|part| REFUSED_PARTS.contains(&part))
}

fn finding(path: &str, line: usize, name: &str) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        rule: "names",
        message: format!("`{name}` names no concept"),
    }
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
    fn names_without_a_concept_fire() {
        assert_eq!(count("src/utils.rs", ""), 1);
        assert_eq!(count("src/string_utils.rs", ""), 1);
        assert_eq!(count("tests/common", ""), 1);
        assert_eq!(count("src/page_manager.rs", ""), 1);
        assert_eq!(count("src/a.rs", "mod helpers { }"), 1);
        assert_eq!(count("src/a.rs", "pub mod common;"), 1);
    }

    #[test]
    fn names_of_concepts_pass() {
        assert_eq!(count("src/page.rs", "mod record; fn helpers() {}"), 0);
        assert_eq!(count("src/common_prefix.rs", ""), 0);
    }
}
