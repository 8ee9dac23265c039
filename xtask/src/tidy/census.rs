//! `cargo xtask tidy --rooms [CRATE…]`: how large the crates with rooms are, and how entangled.
//!
//! It is a measurement, not a rule. Lines and imports are those of the program: modules for tests alone are left out.
//! Modules that import each other, directly or through others, are a circle: none of them can be read, tested or
//! changed without all of them. A name that a module only re-exports counts as an import of the module that defines
//! it, since otherwise a front door (`pub use` in `mod.rs`) would hide every circle behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use super::Tree;
use super::paths::{self, Begin, Path, tokens};
use super::rooms::{module, rooms};
use crate::Outcome;

/// The name of a module, behind those of its parents.
type Module = Vec<String>;

/// The measurements of a crate.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Census {
    name: String,
    rooms: usize,
    files: usize,
    lines: usize,
    /// The largest circle of imports; empty if there is none.
    circle: Vec<String>,
}

impl fmt::Display for Census {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, rooms, files, lines, circle } = self;
        writeln!(out, "{name}: {rooms} rooms, {files} files, {lines} lines without tests")?;
        match circle.len() {
            0 => write!(out, "  no circle of imports"),
            count => {
                write!(out, "  largest circle of imports: {count} files\n  {}", circle.join(" "))
            }
        }
    }
}

/// Counts the crates in `names`, or otherwise those with rooms.
pub(super) fn take(tree: &Tree, names: &[String]) -> Outcome<Vec<Census>> {
    let mut found = Vec::new();
    for root in &tree.rust {
        let Some(home) =
            root.path.strip_suffix("src/lib.rs").or_else(|| root.path.strip_suffix("src/main.rs"))
        else {
            continue;
        };
        let name = home.trim_end_matches('/').rsplit('/').next().unwrap_or(home);
        let rooms = rooms(root).map_or(0, |rooms| rooms.len());
        let wanted = if names.is_empty() { rooms > 0 } else { names.iter().any(|it| it == name) };
        if wanted {
            found.push(count(tree, name, &format!("{home}src/"), rooms));
        }
    }
    match names.iter().find(|name| !found.iter().any(|census| census.name == **name)) {
        Some(name) => Err(format!("no crate is called {name}").into()),
        None => Ok(found),
    }
}

/// Counts the crate whose sources are in `directory`.
fn count(tree: &Tree, name: &str, directory: &str, rooms: usize) -> Census {
    let mut files = BTreeMap::new();
    let mut tests = Vec::new();
    for source in &tree.rust {
        let Some(below) = source.path.strip_prefix(directory) else { continue };
        let module = module(below);
        let (ranges, elsewhere) = test_modules(&source.code);
        tests.extend(elsewhere.into_iter().map(|name| [&module[..], &[name]].concat()));
        let paths = paths::paths(&without(&source.code, &ranges), &module);
        let of_tests = ranges.into_iter().map(|range| source.code[range].lines().count());
        let lines = source.text.lines().count() - of_tests.sum::<usize>();
        files.insert(module, (lines, paths));
    }
    files.retain(|module, _| {
        let is_test = tests.iter().any(|test| module.starts_with(test));
        !is_test && !module.iter().any(|part| part == "tests")
    });
    let count = files.len();
    let lines = files.values().map(|file| file.0).sum();
    let graph = Graph(files.into_iter().map(|(module, file)| (module, file.1)).collect());
    let circle = largest_circle(&graph.imports());
    let shown = |module: Module| match &module[..] {
        [] => "lib".to_owned(),
        names => names.join("::"),
    };
    let circle = circle.into_iter().map(shown).collect();
    Census { name: name.to_owned(), rooms, files: count, lines, circle }
}

/// The modules behind `#[cfg(test)]`: the ranges of those in this file, and the names of those in files of their own.
fn test_modules(code: &str) -> (Vec<Range<usize>>, Vec<String>) {
    const MARK: &str = "#[cfg(test)]";
    let (mut ranges, mut elsewhere) = (Vec::new(), Vec::new());
    for (begin, _) in code.match_indices(MARK) {
        if ranges.last().is_some_and(|last: &Range<usize>| begin < last.end) {
            continue;
        }
        let mut at = begin + MARK.len();
        // Other attributes may come between.
        while code[at..].trim_start().starts_with("#[") {
            at = closed(code, at, ['[', ']']);
        }
        let Some(head) = code[at..].find(['{', ';']).map(|end| at..at + end) else { continue };
        let words: Vec<&str> = tokens(&code[head.clone()]).into_iter().map(|it| it.1).collect();
        if let [.., "mod", name] = words[..] {
            if code[head.end..].starts_with('{') {
                ranges.push(begin..closed(code, head.end, ['{', '}']));
            } else {
                elsewhere.push(name.to_owned());
            }
        }
    }
    (ranges, elsewhere)
}

/// The end of the first pair of `brackets` after `from`.
fn closed(code: &str, from: usize, brackets: [char; 2]) -> usize {
    let mut depth = 0;
    for (at, bracket) in code[from..].match_indices(brackets) {
        if bracket.starts_with(brackets[0]) {
            depth += 1;
        } else {
            depth -= 1;
            if depth == 0 {
                return from + at + 1;
            }
        }
    }
    code.len()
}

/// `code` without `ranges`, with its lines where they are.
fn without(code: &str, ranges: &[Range<usize>]) -> String {
    let kept = |at: usize| !ranges.iter().any(|range| range.contains(&at));
    code.char_indices().map(|(at, c)| if kept(at) || c == '\n' { c } else { ' ' }).collect()
}

/// The paths that each file of a crate names.
struct Graph(BTreeMap<Module, Vec<Path>>);

type Imports = BTreeMap<Module, BTreeSet<Module>>;

impl Graph {
    /// The modules that each module imports.
    fn imports(&self) -> Imports {
        let of = |(module, paths): (&Module, &Vec<Path>)| {
            let used = paths.iter().filter(|path| !is_handed_on(path));
            let homes = used.filter_map(|path| self.home(module, path, 0));
            (module.clone(), homes.filter(|home| home != module).collect())
        };
        self.0.iter().map(of).collect()
    }

    /// The file that defines the item of a `path` in the file of `from`; none if the item belongs to another crate.
    fn home(&self, from: &[String], path: &Path, hops: usize) -> Option<Module> {
        let segments = &path.segments;
        let length =
            (0..=segments.len()).rev().find(|length| self.0.contains_key(&segments[..*length]))?;
        let home = &segments[..length];
        let Some(name) = segments.get(length) else { return Some(home.to_vec()) };
        let is_name = |path: &&Path| {
            path.bound.as_ref().is_some_and(|bound| bound.name == *name && name != "*")
        };
        match self.0[home].iter().find(is_name) {
            // A `use` of a crate that has the same name as an item leads back to itself.
            Some(_) if hops == HOPS_MAX => None,
            Some(next) => self.home(home, next, hops + 1),
            None if path.begin == Begin::Name && home == from => None,
            None => Some(home.to_vec()),
        }
    }
}

/// The longest chain of re-exports that is followed.
const HOPS_MAX: usize = 8;

/// True if the file only re-exports what the path names.
fn is_handed_on(path: &Path) -> bool {
    path.bound.as_ref().is_some_and(|bound| bound.public && bound.name != "*")
}

/// The most modules that all import each other, directly or through others.
fn largest_circle(imports: &Imports) -> Vec<Module> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|module| (module, reach(imports, module))).collect();
    let circle = |module: &Module| -> Vec<Module> {
        let back = |other: &&&Module| reached[**other].contains(module);
        reached[module].iter().filter(back).map(|other| (*other).clone()).collect()
    };
    imports.keys().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

/// The modules that a module imports, directly or through others.
fn reach<'a>(imports: &'a Imports, module: &Module) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&Module> = imports[module].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(&imports[module]);
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(files: &[(&str, &str)]) -> Census {
        let files: Vec<(String, &str)> =
            files.iter().map(|(path, text)| (format!("crates/a/src/{path}"), *text)).collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, *text)).collect();
        take(&Tree::of(&files), &["a".to_owned()]).unwrap().remove(0)
    }

    fn circle(files: &[(&str, &str)]) -> String {
        census(files).circle.join(" ")
    }

    #[test]
    fn lines_are_those_of_the_program() {
        let text = "fn f() {}\n\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n    fn f() { \"}\" }\n}\n";
        let found = census(&[
            ("lib.rs", "mod x;\nmod y;\n#[cfg(test)]\nmod pair;\n"),
            ("x.rs", text),
            ("pair.rs", "fn g() {}\n"),
            ("x/tests.rs", "fn h() {}\n"),
            ("x/tests/deep.rs", "fn h() {}\n"),
            ("y/mod.rs", "#[cfg(test)]\nuse z::Z;\nmod inner { }\n"),
        ]);
        assert_eq!((found.files, found.lines, found.rooms), (3, 4 + 2 + 3, 0));
    }

    #[test]
    fn the_largest_circle_is_found() {
        let mut files = vec![
            ("lib.rs", "mod x;"),
            ("x.rs", "use crate::y::Y;"),
            ("y.rs", "use crate::{z::Z, v::V};"),
            ("z.rs", "fn f() { crate::x::f() }"),
            ("v.rs", "use crate::w;"),
            ("w.rs", "use super::v::V;"),
        ];
        assert_eq!(circle(&files), "x y z");
        files[3].1 = "#[cfg(test)] mod tests { use crate::x; }";
        assert_eq!(circle(&files), "v w");
        files[5].1 = "use std::v::V;";
        assert_eq!(circle(&files), "");
    }

    #[test]
    fn a_front_door_hides_no_circle_and_makes_none() {
        let mut files = vec![
            ("lib.rs", "pub use x::inner::X;"),
            ("x/mod.rs", "mod inner; mod side; pub(crate) use inner::X; pub use std::fmt;"),
            ("x/inner.rs", "use crate::y::Y;"),
            ("x/side.rs", "use super::X; use super::fmt;"),
            ("y.rs", "use crate::x::X;"),
        ];
        assert_eq!(circle(&files), "x::inner y");
        files[4].1 = "use crate::X;";
        assert_eq!(circle(&files), "x::inner y");
        files[4].1 = "use crate::x::Other;";
        assert_eq!(circle(&files), "");
        // The parent uses its child itself, and the child its parent.
        files[1].1 = "mod inner; use inner::X; fn f() { inner::f() } ";
        files[2].1 = "use super::f;";
        assert_eq!(circle(&files), "x x::inner");
    }

    #[test]
    fn crates_are_named_or_have_rooms() {
        let table = "//! | room | what it is |\n//! |---|---|\n//! | `x` | all |\n";
        let tree = Tree::of(&[("a/src/lib.rs", table), ("b/src/main.rs", "fn main() {}")]);
        let names = |names: &[&str]| -> Vec<String> {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            take(&tree, &names).unwrap().into_iter().map(|census| census.name).collect()
        };
        assert_eq!(names(&[]), ["a"]);
        assert_eq!(names(&["b"]), ["b"]);
        assert!(take(&tree, &["c".to_owned()]).is_err());
        let text = take(&tree, &[]).unwrap()[0].to_string();
        assert_eq!(text, "a: 1 rooms, 1 files, 3 lines without tests\n  no circle of imports");
    }
}
