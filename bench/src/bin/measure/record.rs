//! What a measurement leaves: every line as it came, a page to read, charts.

use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::machine;
use crate::Outcome;

/// A record being written. Its raw lines are there even if the run breaks off.
#[derive(Debug)]
pub(super) struct Record {
    directory: PathBuf,
    raw: File,
    page: String,
    failures: Vec<String>,
}

impl Record {
    /// Begins a record in `directory`: command line, machine, versions.
    pub(super) fn begin(
        root: &Path,
        directory: PathBuf,
        title: &str,
        quick: bool,
    ) -> Outcome<Self> {
        fs::create_dir_all(&directory)?;
        let raw = File::create(directory.join("raw.jsonl"))?;
        let command: Vec<String> = std::env::args().skip(1).collect();
        let mut page = format!("# {title}\n\n    cargo xtask measure {}\n\n", command.join(" "));
        if quick {
            page +=
                "**A quick run: it shows that the command works. Its figures mean nothing.**\n\n";
        }
        page += "Every line as it came is in [raw.jsonl](raw.jsonl).\n\n";
        for (what, value) in machine::describe(root) {
            page += &format!("- {what}: {value}\n");
        }
        Ok(Self { directory, raw, page, failures: Vec::new() })
    }

    /// Keeps a line.
    pub(super) fn keep(&mut self, line: &Value) -> Outcome<()> {
        Ok(writeln!(self.raw, "{line}")?)
    }

    /// Keeps what failed, for the end of the page; the run goes on.
    pub(super) fn failed(&mut self, what: &str, why: &dyn std::fmt::Display) {
        println!("  {what}: FAILED: {why}");
        self.failures.push(format!("{what}: {why}"));
    }

    /// A line of the list at the top.
    pub(super) fn note(&mut self, what: &str, value: &str) {
        self.page += &format!("- {what}: {value}\n");
    }

    /// A section.
    pub(super) fn section(&mut self, heading: &str, text: &str) {
        self.page += &format!("\n## {heading}\n\n{}\n", text.trim_end());
    }

    /// A chart beside the page, and shown in it.
    pub(super) fn chart(&mut self, name: &str, caption: &str, svg: &str) -> Outcome<()> {
        fs::write(self.directory.join(name), svg)?;
        self.page += &format!("\n![{caption}]({name})\n");
        Ok(())
    }

    /// Writes the page and prints it; an error if nothing could be measured at all.
    pub(super) fn finish(mut self) -> Outcome<()> {
        if !self.failures.is_empty() {
            let list: Vec<String> = self.failures.iter().map(|line| format!("- {line}")).collect();
            self.section("What failed", &list.join("\n"));
        }
        let path = self.directory.join("README.md");
        fs::write(&path, &self.page)?;
        println!("\n{}\n{}", self.page, path.display());
        match self.failures.len() {
            0 => Ok(()),
            count => Err(format!("{count} runs failed").into()),
        }
    }
}
