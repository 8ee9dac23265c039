//! `--name value` and `--switch`, and what they mean if they are not given.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::Outcome;

/// Options that every measurement has.
const SHARED: [&str; 4] = ["mount", "mount-size", "rounds", "out"];
const SWITCHES: [&str; 2] = ["quick", "no-build"];

/// The options of a command line.
#[derive(Debug)]
pub(super) struct Flags {
    values: BTreeMap<String, String>,
}

impl Flags {
    /// Reads `arguments`, of which `own` take a value beside the shared ones.
    pub(super) fn parse(arguments: &[String], own: &[&str]) -> Outcome<Self> {
        let mut values = BTreeMap::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let name = argument.strip_prefix("--").unwrap_or_default();
            let value = if SWITCHES.contains(&name) {
                "yes"
            } else if own.contains(&name) || SHARED.contains(&name) {
                rest.next().ok_or_else(|| format!("{argument} needs a value"))?
            } else {
                return Err(format!("no such option: {argument}\n{}", super::USAGE).into());
            };
            values.insert(name.to_owned(), value.to_owned());
        }
        Ok(Self { values })
    }

    /// True if a switch is given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// True for a run that only shows that it works.
    pub(super) fn quick(&self) -> bool {
        self.has("quick")
    }

    /// The value, or what it is in a full or in a quick run.
    pub(super) fn get<T: FromStr>(&self, name: &str, full: T, quick: T) -> Outcome<T>
    where
        T::Err: std::fmt::Display,
    {
        match self.values.get(name) {
            None => Ok(if self.quick() { quick } else { full }),
            Some(text) => text.parse().map_err(|error| format!("--{name} {text}: {error}").into()),
        }
    }

    /// The values between commas.
    pub(super) fn list<T: FromStr>(&self, name: &str, full: &str, quick: &str) -> Outcome<Vec<T>>
    where
        T::Err: std::fmt::Display,
    {
        let text: String = self.get(name, full.to_owned(), quick.to_owned())?;
        text.split(',')
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().map_err(|error| format!("--{name} {part}: {error}").into()))
            .collect()
    }

    /// Rounds.
    pub(super) fn rounds(&self) -> Outcome<usize> {
        self.get("rounds", 3, 1).map(|rounds: usize| rounds.max(1))
    }

    /// Where the record goes.
    pub(super) fn out(&self, root: &Path, command: &str) -> PathBuf {
        match self.values.get("out") {
            Some(out) => out.into(),
            None => root.join("target/measure").join(command),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Outcome<Flags> {
        let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Flags::parse(&arguments, &["keys"])
    }

    #[test]
    fn options_are_read() {
        let given = flags("--keys 1,2 --rounds 5").unwrap();
        assert_eq!(given.list::<u64>("keys", "9", "8").unwrap(), [1, 2]);
        assert_eq!(given.rounds().unwrap(), 5);
        assert!(!given.quick() && !given.has("no-build"));
        let quick = flags("--quick").unwrap();
        assert_eq!(quick.list::<u64>("keys", "9", "8").unwrap(), [8]);
        assert_eq!(quick.rounds().unwrap(), 1);
    }

    #[test]
    fn wrong_ones_are_refused() {
        for wrong in ["--key 1", "keys 1", "--keys", "--rounds x"] {
            let refused = flags(wrong).and_then(|flags| flags.rounds());
            assert!(refused.is_err(), "{wrong}");
        }
    }
}
