//! Files and modules are named for a concept.
//!
//! A file called "helpers" is a collection without a concept: no rule says what does not belong there, so it only
//! grows. A file called "reading" names an activity, and not the thing that performs it: a file is named for its type
//! or its part of the system.

use super::{Finding, Tree};

const RULE: &str = "names";

/// Refused as a part of a name: `string_utils` is no better than `utils`.
const REFUSED_PARTS: [&str; 8] =
    ["util", "utils", "utility", "utilities", "helper", "helpers", "manager", "managers"];
/// Refused as a whole name.
const REFUSED_WHOLE: [&str; 3] = ["common", "misc", "stuff"];
/// Nouns that look like participles.
const NOUNS: [&str; 3] = ["accounting", "ring", "string"];

/// Finds refused names of files, directories and inline modules.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for path in &tree.paths {
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.split('.').next().unwrap_or(name);
        if refused(stem) {
            findings.push(finding(path, 0, stem));
        }
        if let Some(name) = concept(path).filter(|name| is_participle(name)) {
            let message = format!("`{name}` is a participle: name the file for a thing");
            findings.push(Finding { path: path.clone(), line: 0, rule: RULE, message });
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

/// The name of a Rust file; of its directory, if it is the file of a directory's module.
fn concept(path: &str) -> Option<&str> {
    let stem = path.strip_suffix(".rs")?;
    stem.strip_suffix("/mod").unwrap_or(stem).rsplit('/').next()
}

fn is_participle(name: &str) -> bool {
    let word = name.rsplit('_').next().unwrap_or(name);
    word.ends_with("ing") && !NOUNS.contains(&word)
}

fn finding(path: &str, line: usize, name: &str) -> Finding {
    Finding {
        path: path.to_owned(),
        line,
        rule: RULE,
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
    fn participles_fire() {
        for path in ["src/reading.rs", "tests/closing.rs", "src/filling/mod.rs", "a/dry_running.rs"]
        {
            assert_eq!(count(path, ""), 1, "{path}");
        }
    }

    #[test]
    fn nouns_that_look_like_participles_pass() {
        for path in ["src/ring.rs", "src/ring/mod.rs", "src/lock_ring.rs", "src/command/string.rs"]
        {
            assert_eq!(count(path, ""), 0, "{path}");
        }
        assert_eq!(count("src/closing_line.rs", ""), 0);
        assert_eq!(count("docs/testing.md", ""), 0);
    }

    #[test]
    fn names_of_concepts_pass() {
        assert_eq!(count("src/page.rs", "mod record; fn helpers() {}"), 0);
        assert_eq!(count("src/common_prefix.rs", ""), 0);
    }
}
