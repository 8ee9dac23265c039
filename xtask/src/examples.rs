//! The example programs of the library: each is built, and run in a directory of its own.
//!
//! Newcomers copy them. Each checks its output, so that an outdated one ends with an error, and none may leave
//! anything behind in its directory.

use std::path::Path;
use std::process::Command;

use crate::tally::Tally;
use crate::{Outcome, cargo};
use coreplane_vm::programs::quiet;

/// The directory of the examples.
const DIRECTORY: &str = "crates/coreplane/examples";

/// Builds and runs all of them; one that fails does not hide the next. `selection` has cargo's arguments for packages
/// and features: those of the tests before, so that dependencies exist already.
pub(crate) fn run(root: &Path, selection: &[&str], tally: &mut Tally) -> Outcome<()> {
    tally.stage("example programs");
    let names = names(root)?;
    let mut command = Command::new(cargo());
    command.args(["build", "--profile", "test", "--examples"]).args(selection);
    command.env_remove("CARGO_TARGET_DIR").current_dir(root);
    if let Err(why) = quiet(&mut command) {
        tally.count("the build of the examples", Err(why));
        return Ok(());
    }
    for name in names {
        tally.count(&format!("example {name}"), one(root, &name));
    }
    Ok(())
}

/// Runs an example whose temporary files are in a directory of its own.
fn one(root: &Path, name: &str) -> Outcome<()> {
    let place = root.join("target").join(format!("example-{name}"));
    if place.exists() {
        std::fs::remove_dir_all(&place)?;
    }
    std::fs::create_dir_all(&place)?;
    let mut command = Command::new(root.join("target/debug/examples").join(name));
    quiet(command.env("TMPDIR", &place).current_dir(root))?;
    // This fails if the example left something there.
    std::fs::remove_dir(&place).map_err(|error| format!("{}: {error}", place.display()).into())
}

/// Their names, in order.
///
/// # Errors
/// If there is none.
fn names(root: &Path) -> Outcome<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root.join(DIRECTORY))? {
        let path = entry?.path();
        let is_program = path.extension().is_some_and(|extension| extension == "rs");
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        names.extend(stem.filter(|_| is_program).map(str::to_owned));
    }
    names.sort();
    match names.is_empty() {
        true => Err(format!("no program is in {DIRECTORY}").into()),
        false => Ok(names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_page_of_the_library_names_each() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let page = std::fs::read_to_string(root.join("crates/coreplane/src/lib.rs")).unwrap();
        for name in names(root).unwrap() {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn no_program_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        assert!(names(root.path()).is_err(), "no directory");
        let directory = root.path().join(DIRECTORY);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("notes.md"), "").unwrap();
        assert!(names(root.path()).is_err(), "no program");
        std::fs::write(directory.join("one.rs"), "").unwrap();
        assert_eq!(names(root.path()).unwrap(), ["one"]);
    }
}
