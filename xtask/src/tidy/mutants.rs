//! Intentional mistakes are made only by `cargo xtask mutants`, and it makes all of them.
//!
//! The feature that enables them must not get into released programs: no feature of any crate and no dependency turns
//! it on, so that a command line is the only way. A mistake in the source that is not in the catalogue is never made;
//! one in the catalogue that is not in the source survives regardless of the tests.

use std::collections::BTreeSet;

use super::source::{Source, line_of};
use super::{Finding, Tree};
use crate::mutants::catalogue;

const FEATURE: &str = "mutants";
/// The crate that has the feature.
const HOME: &str = "coreplane-pmem";
const CATALOGUE: &str = "xtask/src/mutants/catalogue/mod.rs";
const CALL: &str = "mutant!(";
/// Files that mention mistakes, and make none.
const EXCEPT: [&str; 2] = ["crates/pmem/src/mutant.rs", "xtask/"];

/// Finds packages that turn the feature on.
pub(super) fn check_feature(metadata: &serde_json::Value, findings: &mut Vec<Finding>) {
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let is_it = |it: &serde_json::Value| {
        it.as_str().is_some_and(|it| it.rsplit('/').next() == Some(FEATURE))
    };
    for package in list(&metadata["packages"]) {
        let name = package["name"].as_str().unwrap_or_default();
        let mut report = |message: String| {
            let path = package["manifest_path"].as_str().unwrap_or_default().to_owned();
            findings.push(Finding { path, line: 0, rule: "mutants", message });
        };
        for (feature, turns_on) in package["features"].as_object().into_iter().flatten() {
            if (feature == FEATURE && name != HOME) || list(turns_on).iter().any(is_it) {
                report(format!("the feature `{feature}` of `{name}` turns `{FEATURE}` on"));
            }
        }
        for dependency in list(&package["dependencies"]) {
            if list(&dependency["features"]).iter().any(is_it) {
                report(format!("`{name}` depends on {} with `{FEATURE}`", dependency["name"]));
            }
        }
    }
}

/// Compares the source with the catalogue.
pub(super) fn check_names(tree: &Tree, findings: &mut Vec<Finding>) {
    let mut known: BTreeSet<&str> = catalogue::all().map(|mutant| mutant.name).collect();
    let mut met = BTreeSet::new();
    let is_made = |source: &&Source| !EXCEPT.iter().any(|it| source.path.starts_with(it));
    for source in tree.rust.iter().filter(is_made) {
        for (at, name) in names(&source.bare) {
            if !known.contains(name) {
                let message = format!("`{name}` is not in the catalogue");
                let (path, line) = (source.path.clone(), line_of(&source.bare, at));
                findings.push(Finding { path, line, rule: "mutants", message });
            }
            met.insert(name);
        }
    }
    known.retain(|name| !met.contains(name));
    for name in known {
        let message = format!("`{name}` is in the catalogue and not in the source");
        findings.push(Finding { path: CATALOGUE.to_owned(), line: 0, rule: "mutants", message });
    }
}

/// The mistakes in a text, and their places.
fn names(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.match_indices(CALL).filter_map(|(at, call)| {
        let name = text[at + call.len()..].trim_start().strip_prefix('"')?;
        Some((at, name.split('"').next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(metadata: &serde_json::Value) -> usize {
        let mut findings = Vec::new();
        check_feature(metadata, &mut findings);
        findings.len()
    }

    #[test]
    fn whoever_turns_the_feature_on_is_found() {
        let package = |name: &str, features: serde_json::Value, wanted: &[&str]| {
            serde_json::json!({"packages": [{
                "name": name,
                "manifest_path": "Cargo.toml",
                "features": features,
                "dependencies": [{"name": HOME, "features": wanted}],
            }]})
        };
        assert_eq!(found(&package(HOME, serde_json::json!({"mutants": []}), &[])), 0);
        let default = serde_json::json!({"mutants": [], "default": ["mutants"]});
        assert_eq!(found(&package(HOME, default, &[])), 1);
        let forwarded = serde_json::json!({"all": ["coreplane-pmem/mutants"]});
        assert_eq!(found(&package("other", forwarded, &[])), 1);
        assert_eq!(found(&package("other", serde_json::json!({}), &["mutants"])), 1);
        assert_eq!(found(&package("other", serde_json::json!({}), &["std"])), 0);
    }

    #[test]
    fn names_are_read_out_of_a_line() {
        let text = "if mutant!(\"a.b\") || !mutant!(\n    \"c\"\n) { x(\"d\") }";
        assert_eq!(names(text).map(|it| it.1).collect::<Vec<_>>(), ["a.b", "c"]);
    }

    #[test]
    fn names_that_one_side_alone_has_are_found() {
        let tree = Tree::of(&[("a.rs", "fn a() { if mutant!(\"nobody.knows\") {} }")]);
        let mut findings = Vec::new();
        check_names(&tree, &mut findings);
        assert_eq!(findings.len(), 1 + catalogue::all().count());
    }
}
