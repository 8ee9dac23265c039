//! Crates stand on floors, and a dependency leads only to a lower floor, never sideways.
//!
//! The table in ARCHITECTURE.md is the plan: for every crate its floor and the crates of this workspace that it may
//! depend on. `cargo metadata` reports the real dependencies. A new dependency must be added to the plan first, where
//! a reader sees it.

use std::collections::BTreeMap;

use super::Finding;

const PLAN: &str = "ARCHITECTURE.md";
const HEADING: [&str; 3] = ["crate", "floor", "may depend on"];

/// A member of the workspace and the members that it depends on, for any purpose.
#[derive(Debug, Default)]
pub(super) struct Package {
    name: String,
    depends_on: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Row {
    floor: u32,
    may_depend_on: Vec<String>,
}

/// The packages in the output of `cargo metadata`.
pub(super) fn packages(metadata: &serde_json::Value) -> Vec<Package> {
    metadata["packages"].as_array().into_iter().flatten().map(package).collect()
}

fn package(value: &serde_json::Value) -> Package {
    let dependencies = value["dependencies"].as_array();
    Package {
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        depends_on: dependencies
            .into_iter()
            .flatten()
            .filter(|dependency| dependency["path"].is_string())
            .filter_map(|dependency| dependency["name"].as_str())
            .map(str::to_owned)
            .collect(),
    }
}

/// Compares the dependencies with the plan.
pub(super) fn check(plan: &str, packages: &[Package], findings: &mut Vec<Finding>) {
    let mut report = |message: String| {
        findings.push(Finding { path: PLAN.to_owned(), line: 0, rule: "floors", message });
    };
    let rows = parse(plan);
    for (name, row) in &rows {
        if !packages.iter().any(|package| package.name == *name) {
            report(format!("`{name}` is in the table and not in the workspace"));
        }
        for below in &row.may_depend_on {
            match rows.get(below) {
                None => report(format!("`{name}` may depend on `{below}`, which has no row")),
                Some(other) if other.floor >= row.floor => {
                    report(format!("`{name}` → `{below}` does not lead to a lower floor"));
                }
                Some(_) => {}
            }
        }
    }
    for package in packages {
        let name = &package.name;
        let Some(row) = rows.get(name) else {
            report(format!("`{name}` has no row in the table"));
            continue;
        };
        for below in &package.depends_on {
            if !row.may_depend_on.contains(below) {
                report(format!("`{name}` depends on `{below}`, which the table does not allow"));
            }
        }
    }
}

/// The rows of the table.
fn parse(plan: &str) -> BTreeMap<String, Row> {
    plan.lines()
        .map(cells)
        .skip_while(|cells| *cells != HEADING)
        .skip(2)
        .take_while(|cells| cells.len() == HEADING.len())
        .filter_map(|cells| {
            let row = Row { floor: cells[1].parse().ok()?, may_depend_on: quoted(cells[2]) };
            Some((quoted(cells[0]).into_iter().next()?, row))
        })
        .collect()
}

/// The cells of a row, or none if the line is no row.
pub(super) fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().strip_prefix('|').and_then(|l| l.strip_suffix('|'));
    inner.map_or_else(Vec::new, |inner| inner.split('|').map(str::trim).collect())
}

/// The parts of a cell between back-ticks.
pub(super) fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "text\n\n| crate | floor | may depend on |\n|---|---|---|\n\
        | `low` | 0 | nothing |\n| `side` | 0 | nothing |\n| `high` | 1 | `low`, `side` |\n\nmore";

    fn found(plan: &str, building: &[(&str, &[&str])]) -> Vec<String> {
        let packages: Vec<Package> = building
            .iter()
            .map(|(name, depends_on)| Package {
                name: (*name).to_owned(),
                depends_on: depends_on.iter().map(|name| (*name).to_owned()).collect(),
            })
            .collect();
        let mut findings = Vec::new();
        check(plan, &packages, &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn a_building_like_its_plan_passes() {
        let building: [(&str, &[&str]); 3] = [("low", &[]), ("side", &[]), ("high", &["low"])];
        assert_eq!(found(TABLE, &building), [""; 0]);
    }

    #[test]
    fn arrows_that_are_not_in_the_plan_fire() {
        let sideways: [(&str, &[&str]); 3] = [("low", &["side"]), ("side", &[]), ("high", &[])];
        assert_eq!(found(TABLE, &sideways).len(), 1);
        let up: [(&str, &[&str]); 3] = [("low", &["high"]), ("side", &[]), ("high", &[])];
        assert_eq!(found(TABLE, &up).len(), 1);
    }

    #[test]
    fn a_plan_with_arrows_that_do_not_lead_down_fires() {
        let building: [(&str, &[&str]); 3] = [("low", &[]), ("side", &[]), ("high", &[])];
        let sideways = TABLE.replace("| `low` | 0 | nothing |", "| `low` | 0 | `side` |");
        assert_eq!(found(&sideways, &building).len(), 1);
        let up = TABLE.replace("| `low` | 0 | nothing |", "| `low` | 0 | `high` |");
        assert_eq!(found(&up, &building).len(), 1);
        let unknown = TABLE.replace("`low`, `side`", "`low`, `lost`");
        assert_eq!(found(&unknown, &building).len(), 1);
    }

    #[test]
    fn crates_without_a_row_and_rows_without_a_crate_fire() {
        let more: [(&str, &[&str]); 4] = [("low", &[]), ("side", &[]), ("high", &[]), ("new", &[])];
        assert_eq!(found(TABLE, &more).len(), 1);
        let fewer: [(&str, &[&str]); 2] = [("low", &[]), ("high", &[])];
        assert_eq!(found(TABLE, &fewer).len(), 1);
        assert_eq!(found("no table", &fewer).len(), 2);
    }

    #[test]
    fn metadata_is_read() {
        let value = serde_json::json!({"name": "a", "dependencies": [
            {"name": "b", "path": "/x/b"}, {"name": "serde"}]});
        let package = package(&value);
        assert_eq!((package.name.as_str(), package.depends_on), ("a", vec!["b".to_owned()]));
    }
}
