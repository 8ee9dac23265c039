//! Relative links in the documents lead somewhere, and their anchors name a heading there.

use std::collections::BTreeSet;

use super::source::line_of;
use super::{Finding, Text, Tree};

/// Finds dead links.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let paths: BTreeSet<&str> = tree.paths.iter().map(String::as_str).collect();
    for file in &tree.markdown {
        let prose = prose(&file.text);
        for (at, target) in targets(&prose) {
            if let Some(message) = fault(tree, &paths, file, target) {
                findings.push(Finding {
                    path: file.path.clone(),
                    line: line_of(&prose, at),
                    rule: "links",
                    message,
                });
            }
        }
    }
}

fn fault(tree: &Tree, paths: &BTreeSet<&str>, file: &Text, target: &str) -> Option<String> {
    let foreign = target.contains("://") || target.starts_with("mailto:");
    if foreign || target.is_empty() {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() {
        file.path.clone()
    } else {
        match resolve(&file.path, path) {
            Some(path) if path.is_empty() || paths.contains(path.as_str()) => path,
            _ => return Some(format!("dead link: {target}")),
        }
    };
    let goal = tree.markdown.iter().find(|other| other.path == path)?;
    let dead = !anchor.is_empty() && !headings(&goal.text).any(|heading| heading == anchor);
    dead.then(|| format!("dead anchor: {target}"))
}

/// The target of `link` in the file `from`, below the workspace; none if it leads outside.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The text with code, fenced and inline, replaced by spaces.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut prose = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let fence = line.trim_start().starts_with("```");
        let mut inline = false;
        prose.extend(line.chars().map(|character| {
            if character == '`' {
                inline = !inline;
            }
            let code = fenced || fence || inline || character == '`';
            if code && character != '\n' { ' ' } else { character }
        }));
        fenced ^= fence;
    }
    prose
}

/// The targets of links: `](target)` and `[name]: target`.
fn targets(prose: &str) -> Vec<(usize, &str)> {
    let inline = prose.match_indices("](").filter_map(|(at, _)| {
        let rest = &prose[at + 2..];
        let target = &rest[..rest.find(')')?];
        Some((at, target.split_whitespace().next().unwrap_or("")))
    });
    let defined = prose.match_indices("\n[").filter_map(|(at, _)| {
        let line = prose[at + 1..].lines().next()?;
        let (_, target) = line.split_once("]:")?;
        Some((at + 1, target.split_whitespace().next().unwrap_or("")))
    });
    inline.chain(defined).collect()
}

/// The anchors of the headings.
fn headings(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        line.trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let files = [
            ("docs/a.md", text),
            ("docs/b.md", "# One `two`, three"),
            ("README.md", "# R"),
            ("crates/pmem", ""),
        ];
        let mut findings = Vec::new();
        check(&Tree::of(&files), &mut findings);
        findings.len()
    }

    #[test]
    fn live_links_pass() {
        assert_eq!(count("[b](b.md) [r](../README.md#r) [c](../crates/pmem/)"), 0);
        assert_eq!(count("[x](https://example.org/nothing) [m](mailto:a@b)"), 0);
        assert_eq!(count("[b](b.md#one-two-three)"), 0);
        assert_eq!(count("# Here\n[h](#here)"), 0);
        assert_eq!(count("```\n[x](gone.md)\n```\n`[y](gone.md)`"), 0);
    }

    #[test]
    fn dead_links_fire() {
        assert_eq!(count("[x](gone.md)"), 1);
        assert_eq!(count("[x](../../outside.md)"), 1);
        assert_eq!(count("text\n[x]: gone.md"), 1);
        assert_eq!(count("[b](b.md#two)"), 1);
        assert_eq!(count("[h](#nowhere)"), 1);
    }
}
