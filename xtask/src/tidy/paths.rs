//! The paths in a file's code, each as seen from the root of its crate.
//!
//! `use crate::{a::X, b::{self, Y as Z}}` is three paths: `a::X`, `b` and `b::Y`. A path that begins with `super` or
//! `self` is relative to its module, inline modules included. A path that begins with any other name is taken as one
//! of a child module: the caller knows the existing modules, and drops other paths (`Vec::new`).

use super::source::line_of;

/// How a path begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begin {
    /// `crate::`
    Crate,
    /// `super::` or `self::`
    Super,
    /// Any other name.
    Name,
}

/// A path in the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Path {
    /// From 1.
    pub(super) line: usize,
    pub(super) begin: Begin,
    /// From the root of the crate; `*` is the last one of a glob.
    pub(super) segments: Vec<String>,
    /// True if it is the call of a macro.
    pub(super) is_macro: bool,
    /// The name that a `use` of the file's own module binds.
    pub(super) bound: Option<Bound>,
}

/// The name that a `use` gives to a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) name: String,
    /// True for `pub use`, with or without a restriction.
    pub(super) public: bool,
}

/// The paths in `code` (a [`Source`](super::source::Source)'s view of that name), the text of the
/// file of `module`.
pub(super) fn paths(code: &str, module: &[String]) -> Vec<Path> {
    let reader =
        Reader { code, tokens: tokens(code), file: module, inline: Vec::new(), found: Vec::new() };
    reader.read()
}

/// The place of a word, of `::`, or of one other character.
type Token<'a> = (usize, &'a str);

/// The tokens of `code`.
pub(super) fn tokens(code: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = code[at..].chars().next() {
        let rest = &code[at..];
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        if !first.is_whitespace() {
            tokens.push((at, &rest[..length]));
        }
        at += length;
    }
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

struct Reader<'a> {
    code: &'a str,
    tokens: Vec<Token<'a>>,
    file: &'a [String],
    /// The enclosing inline modules, each with the depth of braces outside of it.
    inline: Vec<(usize, &'a str)>,
    found: Vec<Path>,
}

impl<'a> Reader<'a> {
    fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |token| token.1)
    }

    fn is_name(&self, at: usize) -> bool {
        self.text(at).starts_with(is_word)
    }

    fn read(mut self) -> Vec<Path> {
        let (mut at, mut depth) = (0, 0_usize);
        // Inside a `use`: whether it is a public one.
        let mut import = None;
        while at < self.tokens.len() {
            match self.text(at) {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    self.inline.pop_if(|outer| outer.0 == depth);
                }
                "mod" if self.text(at + 2) == "{" => {
                    self.inline.push((depth, self.text(at + 1)));
                }
                "use" if self.text(at + 1) != "<" => {
                    import = Some(at > 0 && ["pub", ")"].contains(&self.text(at - 1)));
                }
                ";" => import = None,
                _ if self.begins_path(at) => {
                    at = self.follow(at, &[], import);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        self.found
    }

    fn begins_path(&self, at: usize) -> bool {
        let continues = at > 0 && self.text(at - 1) == "::";
        self.is_name(at) && self.text(at + 1) == "::" && !continues
    }

    /// Reads the rest behind `prefix`, possibly a group, and returns the place after it.
    fn follow(&mut self, mut at: usize, prefix: &[&'a str], import: Option<bool>) -> usize {
        let mut path = prefix.to_vec();
        loop {
            if self.text(at) == "{" {
                at += 1;
                while at < self.tokens.len() && self.text(at) != "}" {
                    at = self.follow(at, &path, import);
                }
                return at + 1;
            }
            if !self.is_name(at) && self.text(at) != "*" {
                return at + 1;
            }
            path.push(self.text(at));
            let goes_on = self.is_name(at + 2) || ["{", "*"].contains(&self.text(at + 2));
            if self.text(at + 1) != "::" || !goes_on {
                break;
            }
            at += 2;
        }
        let renamed = import.is_some() && self.text(at + 1) == "as";
        let name = renamed.then(|| self.text(at + 2));
        self.add(at, &path, name, import);
        if renamed { at + 3 } else { at + 1 }
    }

    fn add(&mut self, at: usize, path: &[&str], name: Option<&str>, import: Option<bool>) {
        let begin = match path[0] {
            "crate" => Begin::Crate,
            "super" | "self" => Begin::Super,
            _ => Begin::Name,
        };
        let mut segments = self.file.to_vec();
        segments.extend(self.inline.iter().map(|(_, name)| (*name).to_owned()));
        for segment in path {
            match *segment {
                "crate" => segments.clear(),
                "super" => drop(segments.pop()),
                "self" => {}
                name => segments.push(name.to_owned()),
            }
        }
        let public = import.filter(|_| self.inline.is_empty());
        let bound = public
            .zip(name.or(segments.last().map(String::as_str)))
            .map(|(public, name)| Bound { name: name.to_owned(), public });
        let is_macro = self.text(at + 1) == "!" && self.text(at + 2) != "=";
        let line = line_of(self.code, self.tokens[at].0);
        self.found.push(Path { line, begin, segments, is_macro, bound });
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::Source;
    use super::*;

    fn found(text: &str, module: &[&str]) -> Vec<Path> {
        let module: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
        paths(&Source::new("a.rs", text).code, &module)
    }

    fn names(text: &str, module: &[&str]) -> Vec<String> {
        let not_other = |path: &Path| path.begin != Begin::Name;
        found(text, module).into_iter().filter(not_other).map(|it| it.segments.join("::")).collect()
    }

    #[test]
    fn groups_are_taken_apart() {
        let text = "use crate::{a::X, b::{self, Y as Z, c::*},};\nuse crate::d;";
        assert_eq!(names(text, &["m"]), ["a::X", "b", "b::Y", "b::c::*", "d"]);
        assert_eq!(names("use {crate::a::X, crate::b::Y};", &[]), ["a::X", "b::Y"]);
        assert_eq!(names("use crate::{\n a::X\n};", &[]), ["a::X"]);
    }

    #[test]
    fn paths_inside_expressions_and_types_are_found() {
        let text = "fn f(x: &crate::a::A) -> Vec<crate::b::B> { crate::c::f::<crate::d::D>(x as crate::e::E) }";
        assert_eq!(names(text, &[]), ["a::A", "b::B", "c::f", "d::D", "e::E"]);
        assert_eq!(names("let x = crate::N as u64; crate::a::S { y: 1 };", &[]), ["N", "a::S"]);
        assert_eq!(names("macro_rules! m { () => { $crate::a::f() } }", &[]), ["a::f"]);
    }

    #[test]
    fn comments_strings_and_visibilities_are_no_paths() {
        let text = "/// [`crate::a::A`]\npub(crate) fn f() { g(\"crate::b::B\") } // crate::c\n\
            /* use crate::d::D; */ pub(super) struct S;";
        assert_eq!(names(text, &["m"]), [""; 0]);
    }

    #[test]
    fn relative_paths_are_seen_from_the_root() {
        let text = "use super::x::X; mod tests { use super::*; use super::super::y; \
            fn f() { if true {} } mod deep { use self::z::Z; } } use super::super::w;";
        let wanted = ["a::x::X", "a::b::*", "a::y", "a::b::tests::deep::z::Z", "w"];
        assert_eq!(names(text, &["a", "b"]), wanted);
        assert_eq!(names("use super::{x, super::y::Y};", &["a", "b"]), ["a::x", "y::Y"]);
    }

    #[test]
    fn a_use_binds_a_name() {
        let bound = |text: &str| -> Vec<Option<(String, bool)>> {
            let pair = |bound: Bound| (bound.name, bound.public);
            found(text, &[]).into_iter().map(|path| path.bound.map(pair)).collect()
        };
        let some = |name: &str, public| Some((name.to_owned(), public));
        assert_eq!(bound("pub use a::{X, Y as Z};"), [some("X", true), some("Z", true)]);
        assert_eq!(bound("pub(crate) use a::b::{self};"), [some("b", true)]);
        assert_eq!(bound("use a::X; fn f() { a::g() }"), [some("X", false), None]);
        assert_eq!(bound("mod m { pub use super::a::X; }"), [None]);
        assert_eq!(bound("fn f() -> impl Iterator + use<'_> { a::g() }"), [None]);
    }

    #[test]
    fn lines_and_macros_are_known() {
        let found = found("crate::m!();\ncrate::a::N != 3;\n", &[]);
        assert_eq!(
            found.iter().map(|it| (it.line, it.is_macro)).collect::<Vec<_>>(),
            [(1, true), (2, false)]
        );
    }
}
