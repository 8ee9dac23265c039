//! A crate of many files is divided into rooms, and a room uses only itself and the rooms below.
//!
//! Within a crate the compiler lets every module import every other, and after some years they do: then none can be
//! read or tested without the rest. So a crate may have a table in the module docs of its `lib.rs`, from the bottom
//! to the top:
//!
//! ```text
//! //! | room | what it is |
//! //! |---|---|
//! //! | `shape` | how many groups and devices there are |
//! //! | `write` | a write to the devices of a group |
//! ```
//!
//! Each entry of `src` except `lib.rs` is one of these rooms. The names that `lib.rs` re-exports are for the crate's
//! users: a file that uses `crate::Matrix` does not show which room it depends on. Items that only the root can
//! define, a macro or a constant of `lib.rs`, may be used by all.

use std::collections::BTreeSet;

use super::floors::{cells, quoted};
use super::paths::{self, Begin, Path, tokens};
use super::source::Source;
use super::{Finding, Tree};

const RULE: &str = "rooms";
const HEADING: [&str; 2] = ["room", "what it is"];
const ROOT: &str = "src/lib.rs";

/// A crate that has rooms.
#[derive(Debug)]
struct Crate<'a> {
    root: &'a Source,
    /// The directory `src`, with a `/` at its end.
    directory: &'a str,
    /// From the bottom to the top.
    rooms: Vec<String>,
}

/// The rooms of a crate whose `lib.rs` is `root`, from the bottom to the top, if it has a table.
pub(super) fn rooms(root: &Source) -> Option<Vec<String>> {
    let docs = root.text.lines().map_while(|line| line.strip_prefix("//!"));
    let mut rows = docs.map(cells).skip_while(|cells| *cells != HEADING);
    rows.next()?;
    Some(
        rows.skip(1)
            .take_while(|cells| !cells.is_empty())
            .filter_map(|cells| quoted(cells[0]).into_iter().next())
            .collect(),
    )
}

/// The name of a file's module, behind those of its parents; none for the root.
pub(super) fn module(below_src: &str) -> Vec<String> {
    let mut names: Vec<String> =
        below_src.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    let is_root = matches!(below_src, "lib.rs" | "main.rs");
    if is_root || names.last().is_some_and(|name| name == "mod") {
        names.pop();
    }
    names
}

/// Finds paths from a room to one above it, and disagreements with a table.
pub(super) fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for root in &tree.rust {
        let Some(directory) = root.path.strip_suffix(ROOT) else { continue };
        let Some(rooms) = rooms(root) else { continue };
        let directory = &root.path[..directory.len() + "src/".len()];
        let of_rooms = Crate { root, directory, rooms };
        of_rooms.check_entries(tree, findings);
        of_rooms.check_paths(tree, findings);
    }
}

fn finding(path: &str, line: usize, message: String) -> Finding {
    Finding { path: path.to_owned(), line, rule: RULE, message }
}

impl Crate<'_> {
    fn level(&self, name: &str) -> Option<usize> {
        self.rooms.iter().position(|room| room == name)
    }

    /// The Rust files of the crate except its root, each with its path below `src`.
    fn files<'t>(&self, tree: &'t Tree) -> impl Iterator<Item = (&'t str, &'t Source)> {
        let below = |source: &'t Source| Some((source.path.strip_prefix(self.directory)?, source));
        tree.rust.iter().filter_map(below).filter(|(path, _)| *path != "lib.rs")
    }

    fn check_entries(&self, tree: &Tree, findings: &mut Vec<Finding>) {
        let entries: BTreeSet<&str> = tree
            .paths
            .iter()
            .filter_map(|path| path.strip_prefix(self.directory)?.split('/').next())
            .filter(|entry| *entry != "lib.rs")
            .collect();
        for entry in &entries {
            if self.level(entry.trim_end_matches(".rs")).is_none() {
                let path = format!("{}{entry}", self.directory);
                let message = format!("`{entry}` is no room of the table in {}", self.root.path);
                findings.push(finding(&path, 0, message));
            }
        }
        for (level, room) in self.rooms.iter().enumerate() {
            if self.level(room) != Some(level) {
                let message = format!("the room `{room}` has two rows in the table");
                findings.push(finding(&self.root.path, 0, message));
            }
            let holds = |path: &str| path.split(['/', '.']).next() == Some(room);
            if !self.files(tree).any(|(path, _)| holds(path)) {
                let message = format!("the room `{room}` is in the table and not in the source");
                findings.push(finding(&self.root.path, 0, message));
            }
        }
    }

    fn check_paths(&self, tree: &Tree, findings: &mut Vec<Finding>) {
        let free = self.names_of_the_root(tree);
        for (below_src, source) in self.files(tree) {
            let module = module(below_src);
            let level = module.first().and_then(|room| self.level(room));
            let Some(level) = level else { continue };
            for path in paths::paths(&source.code, &module) {
                if let Some(message) = self.judge(level, &path, &free) {
                    findings.push(finding(&source.path, path.line, message));
                }
            }
        }
    }

    /// The fault of a path in a file of the room at `level`.
    fn judge(&self, level: usize, path: &Path, free: &BTreeSet<&str>) -> Option<String> {
        let first = path.segments.first()?;
        if path.begin == Begin::Name {
            return None;
        }
        let (room, full) = (&self.rooms[level], path.segments.join("::"));
        match self.level(first) {
            Some(other) if other <= level => None,
            Some(other) => Some(format!(
                "the room `{room}` names `crate::{full}`, and the room `{}` is above it (further down \
                 in the table)",
                self.rooms[other]
            )),
            None if path.is_macro && path.segments.len() == 1 => None,
            None if free.contains(first.as_str()) => None,
            None => Some(format!(
                "the room `{room}` names `crate::{full}`, which is no path of a room: name it by \
                 its room"
            )),
        }
    }

    /// The constants that the root defines, and the macros of the crate.
    fn names_of_the_root<'t>(&'t self, tree: &'t Tree) -> BTreeSet<&'t str> {
        let mut free = BTreeSet::new();
        for pair in tokens(&self.root.code).windows(2) {
            if matches!(pair[0].1, "const" | "static") {
                free.insert(pair[1].1);
            }
        }
        for (_, source) in self.files(tree).chain([("lib.rs", self.root)]) {
            for triple in tokens(&source.code).windows(3) {
                if triple[0].1 == "macro_rules" {
                    free.insert(triple[2].1);
                }
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "//! A crate.\n//!\n//! | room | what it is |\n//! |---|---|\n\
        //! | `low` | the bottom |\n//! | `middle` | in between, with a `name` |\n\
        //! | `high` | the top |\n//!\n//! More.\n\npub use high::Top;\npub const NAME: &str = \"\";\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![("a/src/lib.rs", TABLE)];
        all.extend(files);
        let mut findings = Vec::new();
        check(&Tree::of(&all), &mut findings);
        findings.iter().map(ToString::to_string).collect()
    }

    /// The findings in a file of the middle room.
    fn in_the_middle(text: &str) -> Vec<String> {
        let files = [("a/src/low.rs", ""), ("a/src/high/mod.rs", ""), ("a/src/middle/x.rs", text)];
        found(&files)
    }

    #[test]
    fn a_table_is_read_from_the_bottom() {
        assert_eq!(rooms(&Source::new("lib.rs", TABLE)).unwrap(), ["low", "middle", "high"]);
        assert_eq!(rooms(&Source::new("lib.rs", "//! Docs.\n\nmod a;")), None);
        let elsewhere = "//! Docs.\n\nmod a;\n//! | room | what it is |\n";
        assert_eq!(rooms(&Source::new("lib.rs", elsewhere)), None);
    }

    #[test]
    fn files_are_modules() {
        assert_eq!(module("a/b.rs"), ["a", "b"]);
        assert_eq!(module("a/mod.rs"), ["a"]);
        assert_eq!(module("lib.rs"), [""; 0]);
    }

    #[test]
    fn names_of_the_room_and_of_those_below_pass() {
        let text = "use crate::{low::A, middle::y::B};\nfn f() { crate::low::g() }\n\
            use super::y::C; use super::super::low::D; // crate::high::E\n\
            const S: &str = \"crate::high::F\"; use std::fmt; use high::Own;";
        assert_eq!(in_the_middle(text), [""; 0]);
    }

    #[test]
    fn a_name_of_a_room_above_fires() {
        let above = |text: &str| {
            let found = in_the_middle(text);
            found.iter().filter(|it| it.contains("`middle`") && it.contains("room `high`")).count()
        };
        assert_eq!(above("use crate::high::A;"), 1);
        assert_eq!(above("use crate::{low::A, high::{B, c::C}};"), 2);
        assert_eq!(above("fn f() { crate::high::b::f() }"), 1);
        assert_eq!(above("#[cfg(test)]\nmod tests { use crate::high; }"), 1);
        assert_eq!(above("use super::super::high::A;"), 1);
        assert_eq!(
            in_the_middle("\nuse crate::high::A;"),
            [
                "a/src/middle/x.rs:2: [rooms] the room `middle` names `crate::high::A`, and the room \
             `high` is above it (further down in the table)"
            ]
        );
    }

    #[test]
    fn a_name_of_the_root_fires_unless_only_the_root_can_have_it() {
        assert_eq!(in_the_middle("use crate::Top;").len(), 1);
        assert_eq!(in_the_middle("use crate::*;").len(), 1);
        assert!(in_the_middle("fn f(_: crate::Top) {}")[0].contains("name it by its room"));
        assert_eq!(in_the_middle("use crate::NAME; fn f() { crate::note!() }"), [""; 0]);
        assert_eq!(in_the_middle("macro_rules! m { () => {} } use crate::m;"), [""; 0]);
    }

    #[test]
    fn entries_without_a_row_and_rows_without_an_entry_fire() {
        let whole = [("a/src/low.rs", ""), ("a/src/middle.rs", ""), ("a/src/high/x.rs", "")];
        assert_eq!(found(&whole), [""; 0]);
        assert_eq!(found(&whole[..2]).len(), 1);
        for more in ["a/src/other.rs", "a/src/other/x.rs", "a/src/notes.txt"] {
            assert_eq!(found(&[&whole[..], &[(more, "")]].concat()).len(), 1, "{more}");
        }
        // The sources of another crate do not count.
        assert_eq!(found(&[&whole[..], &[("b/src/other.rs", "use crate::x;")]].concat()).len(), 0);
    }

    #[test]
    fn two_rows_for_a_room_fire() {
        let twice = TABLE.replace("`middle`", "`low`");
        let files = [("a/src/lib.rs", &*twice), ("a/src/low.rs", ""), ("a/src/high/mod.rs", "")];
        let mut findings = Vec::new();
        check(&Tree::of(&files), &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
