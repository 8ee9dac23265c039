//! A format on the medium changes only together with its version number.
//!
//! The source regions that define a format stand between comments,
//!
//! ```text
//! // media-format: version pool          the next line holds the version, `… = 1;`
//! // media-format: begin pool
//! …
//! // media-format: end
//! ```
//!
//! and `docs/media-format.lock` holds, for each format, its version and a hash of its regions without comments and
//! spacing, so that only a change of the code counts. When the hash changes, the version must: an older program must
//! refuse a pool that it would misread.
//!
//! A version that no release contains yet may still change freely: its line says `unreleased`, and `tidy --bless`
//! accepts the new hash. At a release the word is changed to `released`; from then on `--bless` requires a greater
//! version, which it starts as `unreleased`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::source::Source;
use super::{Finding, Tree};
use crate::Outcome;

const LOCK: &str = "docs/media-format.lock";
const MARK: &str = "// media-format: ";
const HEADING: &str = "\
# The versions of what is written on the medium, and hashes of the source that defines it:
# `FORMAT VERSION released|unreleased HASH`. Kept by `cargo xtask tidy --bless`; a release turns
# `unreleased` into `released`, and then a change of the hash needs a greater version.
";

/// Formats by name.
pub(super) type Lock = BTreeMap<String, Locked>;

/// A format in the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Locked {
    version: u64,
    released: bool,
    hash: String,
}

/// A format in the source.
#[derive(Debug, Default, PartialEq, Eq)]
struct Defined {
    version: Option<u64>,
    /// The regions, one after the other, without comments and with single spaces.
    text: String,
}

impl Defined {
    fn hash(&self) -> String {
        format!("{:032x}", xxh3_128(self.text.as_bytes()))
    }
}

/// Reads the lock; a missing one is empty.
pub(super) fn read_lock(root: &Path) -> Outcome<Lock> {
    match fs::read_to_string(root.join(LOCK)) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Lock::new()),
        Err(error) => Err(error.into()),
    }
}

fn parse(text: &str) -> Outcome<Lock> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, version, state @ ("released" | "unreleased"), hash] = words[..] else {
                return Err(format!("{LOCK}: cannot read {line:?}").into());
            };
            let locked = Locked {
                version: version.parse()?,
                released: state == "released",
                hash: hash.to_owned(),
            };
            Ok((name.to_owned(), locked))
        })
        .collect()
}

/// Compares the source with the lock.
pub(super) fn check(lock: &Lock, tree: &Tree, findings: &mut Vec<Finding>) {
    let mut report = |message: String| {
        findings.push(Finding { path: LOCK.to_owned(), line: 0, rule: "media-format", message });
    };
    let formats = match collect(tree) {
        Ok(formats) => formats,
        Err(why) => return report(why),
    };
    for (name, defined) in &formats {
        match next(name, defined, lock.get(name)) {
            Err(why) => report(why),
            Ok(locked) if lock.get(name) != Some(&locked) => {
                report(format!("`{name}` changed: run `cargo xtask tidy --bless`"));
            }
            Ok(_) => {}
        }
    }
    for name in lock.keys().filter(|name| !formats.contains_key(*name)) {
        report(format!("`{name}` has lost its regions in the source"));
    }
}

/// Rewrites the lock where the rules allow it.
pub(super) fn bless(root: &Path, tree: &Tree) -> Outcome<()> {
    let lock = read_lock(root)?;
    let formats = collect(tree)?;
    let mut text = HEADING.to_owned();
    for (name, defined) in &formats {
        let Locked { version, released, hash } = next(name, defined, lock.get(name))?;
        let state = if released { "released" } else { "unreleased" };
        writeln!(text, "{name} {version} {state} {hash}")?;
    }
    if let Some(lost) = lock.keys().find(|name| !formats.contains_key(*name)) {
        return Err(format!("`{lost}` has lost its regions in the source").into());
    }
    if formats.is_empty() {
        return Ok(());
    }
    Ok(fs::write(root.join(LOCK), text)?)
}

/// The entry of the lock for `defined`, or why there can be none.
fn next(name: &str, defined: &Defined, locked: Option<&Locked>) -> Result<Locked, String> {
    let version = defined.version.ok_or_else(|| format!("`{name}` has no version line"))?;
    let hash = defined.hash();
    let fresh = Locked { version, released: false, hash };
    match locked {
        Some(locked) if version < locked.version => {
            Err(format!("`{name}` went back from version {} to {version}", locked.version))
        }
        Some(locked) if version > locked.version => Ok(fresh),
        Some(locked) if fresh.hash == locked.hash => Ok(locked.clone()),
        Some(locked) if locked.released => Err(format!(
            "`{name}` changed, and version {version} is released: give it a greater version"
        )),
        _ => Ok(fresh),
    }
}

/// All formats of the source.
fn collect(tree: &Tree) -> Result<BTreeMap<String, Defined>, String> {
    let mut formats: BTreeMap<String, Defined> = BTreeMap::new();
    for source in &tree.rust {
        read_marks(source, &mut formats)
            .map_err(|(line, why)| format!("{}:{line}: {why}", source.path))?;
    }
    Ok(formats)
}

fn read_marks(
    source: &Source,
    formats: &mut BTreeMap<String, Defined>,
) -> Result<(), (usize, String)> {
    let mut open: Option<(usize, String)> = None;
    let mut versioned: Option<String> = None;
    let lines = source.bare.lines().zip(source.comments.lines());
    for (line, (bare, comment)) in (1..).zip(lines) {
        let mark = comment.trim_start().strip_prefix(MARK).map(|mark| {
            let (verb, name) = mark.trim().split_once(' ').unwrap_or((mark.trim(), ""));
            (verb, name.trim())
        });
        match mark {
            Some(("begin", name)) if open.is_none() && !name.is_empty() => {
                open = Some((line, name.to_owned()));
                formats.entry(name.to_owned()).or_default();
                continue;
            }
            Some(("end", "")) if open.is_some() => {
                open = None;
                continue;
            }
            Some(("version", name)) if !name.is_empty() => {
                versioned = Some(name.to_owned());
                continue;
            }
            Some((verb, _)) => return Err((line, format!("a misplaced mark: {verb}"))),
            None => {}
        }
        if let Some(name) = versioned.take_if(|_| !bare.trim().is_empty()) {
            let version = number(bare).ok_or((line, format!("no version of `{name}`")))?;
            formats.entry(name).or_default().version = Some(version);
        } else if let Some((_, name)) = &open {
            let text = &mut formats.entry(name.clone()).or_default().text;
            for word in bare.split_whitespace() {
                text.push_str(word);
                text.push(' ');
            }
        }
    }
    match open {
        Some((line, name)) => Err((line, format!("the region of `{name}` has no end"))),
        None => Ok(()),
    }
}

/// The number after the last `=` of a line.
fn number(line: &str) -> Option<u64> {
    let (_, value) = line.rsplit_once('=')?;
    value.trim().trim_end_matches(';').replace('_', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(version: u64, field: &str) -> Tree {
        let text = format!(
            "// media-format: version pool\npub const VERSION: u32 = {version};\n\
             // media-format: begin pool\n/// Doc.\nconst A: u64 = {field}; // note\n\
             // media-format: end\nfn other() {{}}\n"
        );
        Tree::of(&[("src/layout.rs", text.as_str())])
    }

    /// The lock that belongs to `tree(version, field)`.
    fn lock(version: u64, field: &str, released: bool) -> Lock {
        let formats = collect(&tree(version, field)).unwrap();
        let mut locked = next("pool", &formats["pool"], None).unwrap();
        locked.released = released;
        Lock::from([("pool".to_owned(), locked)])
    }

    fn found(lock: &Lock, tree: &Tree) -> Vec<String> {
        let mut findings = Vec::new();
        check(lock, tree, &mut findings);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn the_same_format_passes_whatever_its_comments() {
        let lock = lock(1, "8", true);
        assert_eq!(found(&lock, &tree(1, "8")), [""; 0]);
        let mut other = tree(1, "8");
        let text =
            other.rust[0].text.replace("Doc.", "Other words.").replace("const A", "const  A");
        other.rust[0] = Source::new("src/layout.rs", &text);
        assert_eq!(found(&lock, &other), [""; 0]);
    }

    #[test]
    fn a_change_of_a_released_format_needs_a_greater_version() {
        let lock = lock(1, "8", true);
        let changed = found(&lock, &tree(1, "16"));
        assert!(changed[0].contains("greater version"), "{changed:?}");
        let bumped = found(&lock, &tree(2, "16"));
        assert!(bumped[0].contains("--bless"), "{bumped:?}");
        let back = found(&self::lock(2, "8", false), &tree(1, "8"));
        assert!(back[0].contains("went back"), "{back:?}");
    }

    #[test]
    fn a_change_of_an_unreleased_format_needs_a_blessing() {
        let changed = found(&lock(1, "8", false), &tree(1, "16"));
        assert!(changed[0].contains("--bless"), "{changed:?}");
        assert_eq!(found(&lock(1, "16", false), &tree(1, "16")), [""; 0]);
    }

    #[test]
    fn blessing_writes_what_then_passes_and_refuses_what_must_not() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("docs")).unwrap();
        bless(place.path(), &tree(1, "8")).unwrap();
        assert_eq!(read_lock(place.path()).unwrap(), lock(1, "8", false));
        bless(place.path(), &tree(1, "9")).unwrap();
        assert_eq!(read_lock(place.path()).unwrap(), lock(1, "9", false));
        let path = place.path().join(LOCK);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(" unreleased", " released")).unwrap();
        assert!(bless(place.path(), &tree(1, "10")).is_err());
        bless(place.path(), &tree(2, "10")).unwrap();
        assert_eq!(read_lock(place.path()).unwrap(), lock(2, "10", false));
        assert!(bless(place.path(), &Tree::of(&[])).is_err());
    }

    #[test]
    fn broken_marks_fire() {
        for text in [
            "// media-format: begin pool\n",
            "// media-format: end\n",
            "// media-format: start pool\n",
            "// media-format: version pool\nconst A: u8 = B;\n",
            "// media-format: begin pool\n// media-format: end\n",
        ] {
            assert_eq!(found(&Lock::new(), &Tree::of(&[("a.rs", text)])).len(), 1, "{text}");
        }
        let lost = found(&lock(1, "8", false), &Tree::of(&[]));
        assert!(lost[0].contains("lost its regions"));
    }
}
