//! `cargo xtask tidy`: the rules of this workspace that no compiler checks.
//!
//! Each rule is a module with the reason for it, and with tests that show it firing. CONTRIBUTING explains the rules.

mod census;
mod confined;
mod floors;
mod format_lock;
mod leftovers;
mod length;
mod links;
mod mutants;
mod names;
mod paths;
mod rooms;
mod source;
mod statements;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::Outcome;
use source::Source;

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    path: String,
    /// From 1; 0 if it is about the whole file.
    line: usize,
    rule: &'static str,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, message } = self;
        match line {
            0 => write!(out, "{path}: [{rule}] {message}"),
            line => write!(out, "{path}:{line}: [{rule}] {message}"),
        }
    }
}

/// The workspace's own files, read once.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    rust: Vec<Source>,
    markdown: Vec<Text>,
    /// Scripts and settings.
    other: Vec<Text>,
    /// Every file and directory.
    paths: Vec<String>,
}

/// A file that is not Rust.
#[derive(Debug)]
pub(crate) struct Text {
    path: String,
    text: String,
}

/// Directories that are not ours, or not source.
const OUTSIDE: [&str; 6] = ["target", ".git", "artifacts", "corpus", "__pycache__", "node_modules"];

impl Tree {
    fn read(root: &Path) -> Outcome<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, "")?;
        tree.paths.sort();
        tree.rust.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn read_directory(&mut self, directory: &Path, prefix: &str) -> Outcome<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if OUTSIDE.contains(&name.as_str()) {
                continue;
            }
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() {
                self.read_directory(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                self.take(&path, &fs::read(entry.path())?);
            }
            self.paths.push(path);
        }
        Ok(())
    }

    fn take(&mut self, path: &str, content: &[u8]) {
        let text = String::from_utf8_lossy(content);
        let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
        let file = || Text { path: path.to_owned(), text: text.clone().into_owned() };
        match extension {
            "rs" => self.rust.push(Source::new(path, &text)),
            "md" => self.markdown.push(file()),
            "sh" | "py" | "toml" | "yml" | "yaml" => self.other.push(file()),
            _ if path.starts_with(".ci/") => self.other.push(file()),
            _ => {}
        }
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.take(path, text.as_bytes());
            tree.paths.push((*path).to_owned());
        }
        tree
    }
}

/// `cargo xtask tidy [--bless | --rooms [CRATE…]]`.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Outcome<()> {
    let bless = match arguments {
        [] => false,
        [only] if only == "--bless" => true,
        [first, crates @ ..] if first == "--rooms" => return print_rooms(root, crates),
        _ => return Err("tidy takes no argument but --bless, or --rooms and crates".into()),
    };
    let tree = Tree::read(root)?;
    if bless {
        length::bless(root, &tree)?;
        format_lock::bless(root, &tree)?;
    }
    let mut findings = find(root, &tree)?;
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => {
            println!("tidy: {} Rust files, nothing found", tree.rust.len());
            Ok(())
        }
        count => Err(format!("tidy: {count} findings").into()),
    }
}

fn print_rooms(root: &Path, crates: &[String]) -> Outcome<()> {
    let found = census::take(&Tree::read(root)?, crates)?;
    if found.is_empty() {
        println!("no crate has a table of rooms; name one: --rooms mkvs");
    }
    for census in found {
        println!("{census}");
    }
    Ok(())
}

fn find(root: &Path, tree: &Tree) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    confined::check(tree, &mut findings);
    leftovers::check(tree, &mut findings);
    links::check(tree, &mut findings);
    names::check(tree, &mut findings);
    rooms::check(tree, &mut findings);
    statements::check(tree, &mut findings);
    length::check(&length::read_allowed(root)?, tree, &mut findings);
    format_lock::check(&format_lock::read_lock(root)?, tree, &mut findings);
    let table = fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    let metadata = read_metadata(root)?;
    mutants::check_feature(&metadata, &mut findings);
    mutants::check_names(tree, &mut findings);
    floors::check(&table, &floors::packages(&metadata), &mut findings);
    Ok(findings)
}

/// The output of `cargo metadata`.
fn read_metadata(root: &Path) -> Outcome<serde_json::Value> {
    let mut command = Command::new(crate::cargo());
    command.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(root);
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_leaves_out_what_is_not_ours() {
        let place = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("a.rs", "fn a() {}"),
            ("docs/b.md", "# b"),
            ("target/c.rs", "fn c() {}"),
            (".ci/run", "true"),
        ] {
            let path = place.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let tree = Tree::read(place.path()).unwrap();
        assert_eq!(tree.rust.len(), 1);
        assert_eq!(tree.markdown[0].path, "docs/b.md");
        assert_eq!(tree.other[0].path, ".ci/run");
        assert!(!tree.paths.iter().any(|path| path.contains("target")));
    }

    #[test]
    fn a_finding_names_its_place() {
        let finding =
            Finding { path: "a.rs".to_owned(), line: 3, rule: "names", message: "no".to_owned() };
        assert_eq!(finding.to_string(), "a.rs:3: [names] no");
    }
}
