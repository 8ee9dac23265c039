//! Files have at most [`LIMIT`] lines: one concept, read at one sitting.
//!
//! Files that were longer when the rule was introduced are listed in `xtask/long-files.txt` with their length. The
//! list is a ratchet: a file in it may get shorter (and then its entry must), never longer. `tidy --bless` lowers and
//! removes entries; it never adds or raises one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::{Finding, Tree};
use crate::Outcome;

const LIMIT: usize = 500;
const LIST: &str = "xtask/long-files.txt";
const HEADING: &str = "\
# Files over the limit of `tidy` and the lengths that they may not exceed: `PATH LINES`.
# A ratchet: entries are only ever lowered or removed (`cargo xtask tidy --bless` does both).
";

/// Paths and the lengths allowed to them.
pub(super) type Allowed = BTreeMap<String, usize>;

/// Reads the list.
pub(super) fn read_allowed(root: &Path) -> Outcome<Allowed> {
    parse(&fs::read_to_string(root.join(LIST))?)
}

fn parse(list: &str) -> Outcome<Allowed> {
    list.lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        .map(|line| {
            let (path, lines) =
                line.rsplit_once(' ').ok_or_else(|| format!("{LIST}: no length in {line:?}"))?;
            Ok((path.trim().to_owned(), lines.parse()?))
        })
        .collect()
}

/// Finds files that are too long, and entries that are too high.
pub(super) fn check(allowed: &Allowed, tree: &Tree, findings: &mut Vec<Finding>) {
    let mut report = |path: &str, message: String| {
        findings.push(Finding { path: path.to_owned(), line: 0, rule: "length", message });
    };
    let lengths = lengths(tree);
    for (path, length) in &lengths {
        match allowed.get(*path) {
            None if *length > LIMIT => {
                report(path, format!("{length} lines; split by concept below {LIMIT}"));
            }
            Some(ceiling) if length > ceiling => {
                report(path, format!("{length} lines; it may only shrink from {ceiling}"));
            }
            Some(ceiling) if length < ceiling || *length <= LIMIT => {
                report(path, format!("{length} lines; lower its entry in {LIST} (--bless)"));
            }
            _ => {}
        }
    }
    for path in allowed.keys().filter(|path| !lengths.contains_key(path.as_str())) {
        report(path, format!("is gone; remove its entry in {LIST} (--bless)"));
    }
}

/// Lowers and removes entries.
pub(super) fn bless(root: &Path, tree: &Tree) -> Outcome<()> {
    let allowed = lowered(&read_allowed(root)?, tree);
    let mut list = HEADING.to_owned();
    for (path, lines) in allowed {
        writeln!(list, "{path} {lines}")?;
    }
    Ok(fs::write(root.join(LIST), list)?)
}

fn lowered(allowed: &Allowed, tree: &Tree) -> Allowed {
    let lengths = lengths(tree);
    allowed
        .iter()
        .filter_map(|(path, ceiling)| {
            let length = *lengths.get(path.as_str())?;
            (length > LIMIT).then(|| (path.clone(), length.min(*ceiling)))
        })
        .collect()
}

fn lengths(tree: &Tree) -> BTreeMap<&str, usize> {
    tree.rust.iter().map(|source| (source.path.as_str(), source.text.lines().count())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(lines: usize) -> Tree {
        Tree::of(&[("a.rs", "x\n".repeat(lines).as_str())])
    }

    fn count(list: &str, lines: usize) -> usize {
        let mut findings = Vec::new();
        check(&parse(list).unwrap(), &tree(lines), &mut findings);
        findings.len()
    }

    #[test]
    fn a_long_file_fires() {
        assert_eq!(count("", LIMIT), 0);
        assert_eq!(count("", LIMIT + 1), 1);
    }

    #[test]
    fn a_listed_file_may_not_grow_and_its_entry_must_shrink_with_it() {
        assert_eq!(count("a.rs 600", 600), 0);
        assert_eq!(count("a.rs 600", 601), 1);
        assert_eq!(count("a.rs 600", 599), 1);
        assert_eq!(count("a.rs 600", 400), 1);
        assert_eq!(count("gone.rs 600", 400), 1);
    }

    #[test]
    fn blessing_never_raises_or_adds() {
        let allowed = parse("# note\na.rs 600\nb.rs 700").unwrap();
        assert_eq!(lowered(&allowed, &tree(650)), parse("a.rs 600").unwrap());
        assert_eq!(lowered(&allowed, &tree(550)), parse("a.rs 550").unwrap());
        assert!(lowered(&allowed, &tree(LIMIT)).is_empty());
        assert!(lowered(&Allowed::new(), &tree(900)).is_empty());
    }
}
