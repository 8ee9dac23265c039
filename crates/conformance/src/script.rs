//! Stories: text scripts with recorded answers.
//!
//! A script is read top to bottom. A line that begins with `>` is a command; the lines after it
//! are its answer, as recorded. Empty lines and lines that begin with `#` are kept as they are.
//!
//! ```text
//! # A record is there until it is deleted.
//! > put a=1
//! written
//! > get a
//! 1
//! > delete a
//! written, replaced
//! ```
//!
//! Commands: `put`, `insert`, `update` with `KEY=VALUE`; `delete KEY`; `get KEY…`;
//! `cas KEY=VALUE if absent|value:V|sequence:S`; `append KEY=VALUE` and `expire KEY ttl=MS|never`
//! (by `modify`); `batch put:KEY=VALUE delete:KEY …`; `list` (by `iterate`); `scan START END`;
//! `mark NAME` (draws a sequence and gives it a name); `changes NAME`; `hold NAME`; `len`;
//! `clear`; `sync`; `wait MS` (puts the clock forward); `close`; `verify`.
//! Writes take `ttl=MS`, `seq=NAME+N`, `early`, and `strict`, `group` or `relaxed`.
//! Values never show a sequence, so a script reads the same on every engine. `''` is the empty
//! key or value, `x*1000` a value of so many bytes.
//!
//! [`STORIES`] are run by the suite on every engine whose clock can be set; set
//! `UPDATE_STORIES=1` when running `cargo test -p coreplane-conformance --test stories` to record anew.

use super::probe::{self, all};
use super::{Factory, Fixture};
use crate::model::ManualClock;
use coreplane_engine::{
    Batch, Completion, Durability, Error, Expected, Mutation, Outcome, StorageEngine, UnixMillis,
    Visibility, WriteOptions,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The recorded stories: name and text.
pub const STORIES: &[(&str, &str)] = &[
    ("records", include_str!("../tests/scripts/records.txt")),
    ("conditions", include_str!("../tests/scripts/conditions.txt")),
    ("expiry", include_str!("../tests/scripts/expiry.txt")),
    ("batches", include_str!("../tests/scripts/batches.txt")),
    ("replication", include_str!("../tests/scripts/replication.txt")),
    ("durability", include_str!("../tests/scripts/durability.txt")),
];

/// Runs the commands of `text` on an empty store and returns the text with the answers that it
/// gave; equal to `text` if all are as recorded. Without a `clock` the command `wait` is an error.
pub fn run(engine: &dyn StorageEngine, clock: Option<&ManualClock>, text: &str) -> String {
    let mut story = Story { engine, clock, marks: BTreeMap::new() };
    let mut told = String::new();
    for line in text.lines() {
        let command = line.strip_prefix('>');
        if command.is_some() || line.is_empty() || line.starts_with('#') {
            told.push_str(line);
            told.push('\n');
        }
        if let Some(command) = command {
            let answer = story.command(command).unwrap_or_else(|error| format!("error: {error}"));
            told.push_str(answer.trim_end());
            told.push('\n');
        }
    }
    told
}

/// The reason why a command was not run.
#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error("{}", name(.0))]
    Engine(#[from] Error),
    #[error("cannot read `{0}`")]
    Syntax(String),
    #[error("{0}")]
    Missing(&'static str),
}

/// An error without its numbers, which differ between engines.
fn name(error: &Error) -> &'static str {
    match error {
        Error::KeyTooLong { .. } => "key too long",
        Error::ValueTooLong { .. } => "value too long",
        Error::BatchTooLarge { .. } | Error::BatchTooLong { .. } => "batch too large",
        Error::NoSpace { .. } => "no space",
        Error::HistoryGone { .. } => "history gone",
        Error::Closed => "closed",
        Error::ReadOnly => "read only",
        Error::SyncFailed(_) => "sync failed",
        _ => "another error",
    }
}

type Told = Result<String, Wrong>;

struct Story<'a> {
    engine: &'a dyn StorageEngine,
    clock: Option<&'a ManualClock>,
    marks: BTreeMap<String, u64>,
}

fn wrong(what: &str) -> Wrong {
    Wrong::Syntax(what.to_owned())
}

/// The bytes that a word denotes.
fn bytes(word: &str) -> Vec<u8> {
    if word == "''" {
        return Vec::new();
    }
    match word.split_once('*').and_then(|(unit, times)| Some((unit, times.parse().ok()?))) {
        Some((unit, times)) => unit.repeat(times).into_bytes(),
        None => word.as_bytes().to_vec(),
    }
}

/// The text that shows bytes.
fn shown(bytes: &[u8]) -> String {
    match bytes.len() {
        0 => "''".to_owned(),
        41.. => format!("{}* ({} bytes)", String::from_utf8_lossy(&bytes[..1]), bytes.len()),
        _ => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn pair(word: &str) -> Result<(Vec<u8>, Vec<u8>), Wrong> {
    let (key, value) = word.split_once('=').ok_or_else(|| wrong(word))?;
    Ok((bytes(key), bytes(value)))
}

fn tell(outcome: Outcome) -> String {
    match outcome {
        Outcome::Written(made) if made.replaced => "written, replaced",
        Outcome::Written(_) => "written",
        Outcome::Exists(_) => "exists",
        Outcome::Missing(_) => "missing",
        Outcome::Mismatch(_) => "mismatch",
        Outcome::NotNewer(..) => "not newer",
        Outcome::Kept(_) => "kept",
    }
    .to_owned()
}

impl Story<'_> {
    fn command(&mut self, line: &str) -> Told {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((command, arguments)) = words.split_first() else {
            return Err(wrong(line));
        };
        let (options, rest) = self.options(arguments)?;
        match (*command, rest.as_slice()) {
            ("mark", [name]) => {
                let sequence = self.engine.advance_sequence()?;
                self.marks.insert((*name).to_owned(), sequence);
                Ok("ok".to_owned())
            }
            ("wait", [millis]) => {
                let clock = self.clock.ok_or(Wrong::Missing("no clock"))?;
                clock.advance(millis.parse().map_err(|_| wrong(millis))?);
                Ok("ok".to_owned())
            }
            ("put" | "insert" | "update" | "delete" | "cas" | "append" | "expire", rest) => {
                self.write(command, rest, &options).map(tell)
            }
            ("batch", changes) => self.batch(changes, &options),
            (command, rest) => self.look(command, rest),
        }
    }

    fn now(&self) -> UnixMillis {
        self.clock.map_or_else(UnixMillis::now, ManualClock::now)
    }

    /// A sequence: `NAME`, `NAME+N` or `NAME-N`.
    fn sequence(&self, word: &str) -> Result<u64, Wrong> {
        let place = word.find(['+', '-']).unwrap_or(word.len());
        let (name, offset) = word.split_at(place);
        let mark = self.marks.get(name).ok_or_else(|| wrong(word))?;
        let offset: i64 = match offset {
            "" => 0,
            offset => offset.parse().map_err(|_| wrong(word))?,
        };
        Ok(mark.saturating_add_signed(offset))
    }

    /// Takes the options out of the arguments.
    fn options<'w>(&self, words: &[&'w str]) -> Result<(WriteOptions, Vec<&'w str>), Wrong> {
        let mut options = WriteOptions::default();
        let mut rest = Vec::new();
        for word in words {
            match (*word, word.split_once('=')) {
                ("early", _) => options.completion = Completion::Early,
                ("strict", _) => options.durability = Some(Durability::Strict),
                ("group", _) => options.durability = Some(Durability::GROUP),
                ("relaxed", _) => options.durability = Some(Durability::RELAXED),
                (_, Some(("ttl", "never"))) => options.expires_at = None,
                (_, Some(("ttl", millis))) => {
                    let millis: u64 = millis.parse().map_err(|_| wrong(word))?;
                    options.expires_at = Some(UnixMillis(self.now().0 + millis));
                }
                (_, Some(("seq", sequence))) => options.sequence = Some(self.sequence(sequence)?),
                _ => rest.push(*word),
            }
        }
        Ok((options, rest))
    }

    fn write(
        &self,
        command: &str,
        rest: &[&str],
        options: &WriteOptions,
    ) -> Result<Outcome, Wrong> {
        let engine = self.engine;
        let (word, condition) = rest.split_first().ok_or_else(|| wrong(command))?;
        if command == "delete" || command == "expire" {
            let key = bytes(word);
            let expire =
                &mut |_: Option<coreplane_engine::Record<'_>>| Mutation::Expire(options.expires_at);
            return Ok(match command {
                "delete" => engine.delete(&key, options)?,
                _ => engine.modify(&key, options, expire)?,
            });
        }
        let (key, value) = pair(word)?;
        Ok(match command {
            "put" => engine.put(&key, &value, options)?,
            "insert" => engine.insert(&key, &value, options)?,
            "update" => engine.update(&key, &value, options)?,
            "append" => engine.modify(&key, options, &mut |record| {
                let mut whole = record.map_or_else(Vec::new, |record| record.value.to_vec());
                whole.extend_from_slice(&value);
                let expires_at = record.and_then(|record| record.expires_at);
                Mutation::Put { value: whole, expires_at }
            })?,
            _ => {
                let condition = condition.last().copied().unwrap_or_default();
                let old;
                let expected = match condition.split_once(':') {
                    Some(("value", word)) => {
                        old = bytes(word);
                        Expected::Value(&old)
                    }
                    Some(("sequence", word)) => Expected::Sequence(self.sequence(word)?),
                    _ if condition == "absent" => Expected::Absent,
                    _ => return Err(wrong(condition)),
                };
                engine.compare_and_set(&key, expected, &value, options)?
            }
        })
    }

    fn batch(&self, changes: &[&str], options: &WriteOptions) -> Told {
        let mut batch = Batch::new();
        for change in changes {
            match change.split_once(':') {
                Some(("put", word)) => {
                    let (key, value) = pair(word)?;
                    batch.put(&key, &value);
                }
                Some(("delete", word)) => {
                    batch.delete(&bytes(word));
                }
                _ => return Err(wrong(change)),
            }
        }
        Ok(tell(Outcome::Written(self.engine.apply(&batch, options)?)))
    }

    fn look(&self, command: &str, rest: &[&str]) -> Told {
        let engine = self.engine;
        let done = |()| "ok".to_owned();
        match (command, rest) {
            ("get", []) => Err(wrong(command)),
            ("get", keys) => {
                let keys: Vec<_> = keys.iter().map(|key| bytes(key)).collect();
                let (answers, _) = probe::records(engine, &keys, Visibility::Durable);
                Ok(answers.iter().fold(String::new(), |mut told, seen| {
                    let value = seen.as_ref().map(|seen| shown(&seen.value));
                    let line = value.as_deref().unwrap_or("nothing");
                    told.push_str(line);
                    told.push('\n');
                    told
                }))
            }
            ("list", []) => {
                Ok(list(all(engine, 2).into_iter().map(|(key, seen)| (key, seen.value))))
            }
            ("scan", [start, end]) => {
                let ordered = engine.ordered().ok_or(Wrong::Missing("not ordered"))?;
                let mut found = Vec::new();
                let (start, end) = (bytes(start), bytes(end));
                ordered.scan(&start, Some(&end), false, usize::MAX, &mut |entry| {
                    let value = entry.record.map(|record| record.value.to_vec());
                    found.push((entry.key.to_vec(), value.unwrap_or_default()));
                    true
                })?;
                Ok(list(found.into_iter()))
            }
            ("changes", [mark]) => {
                let since = self.sequence(mark)?;
                let changes = probe::changes(engine, since)?;
                let changes = changes.into_iter().filter(|(_, (sequence, _))| *sequence > since);
                Ok(list(changes.map(|(key, (_, value))| (key, value.unwrap_or(b"deleted".into())))))
            }
            ("hold", [mark]) => Ok(engine.hold_tombstones(self.sequence(mark)?).map(done)?),
            ("len", []) => Ok(engine.len()?.to_string()),
            ("clear", []) => Ok(engine.clear().map(done)?),
            ("sync", []) => Ok(engine.sync().map(done)?),
            ("close", []) => Ok(engine.close().map(done)?),
            ("verify", []) => {
                let report = engine.verify(&mut |_| ())?;
                let sound = if report.is_sound() { "sound" } else { "damaged" };
                Ok(format!("{sound}, {} records", report.records))
            }
            _ => Err(wrong(command)),
        }
    }
}

/// Keys and values, one a line.
fn list(entries: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> String {
    let mut told = String::new();
    for (key, value) in entries {
        // Writing to a string cannot fail.
        writeln!(told, "{}={}", shown(&key), shown(&value)).unwrap_or_default();
    }
    if told.is_empty() { "nothing".to_owned() } else { told }
}

/// The first line that is not as recorded.
fn difference(recorded: &str, told: &str) -> Option<String> {
    let pairs = recorded.lines().zip(told.lines()).enumerate();
    let mut differing = pairs.filter(|(_, (recorded, told))| recorded != told);
    let line = differing.next().map(|(number, (recorded, told))| {
        format!("line {}: recorded `{recorded}`, told `{told}`", number + 1)
    });
    line.or_else(|| (recorded != told).then(|| "one is longer than the other".to_owned()))
}

pub(super) fn stories_read_as_recorded(factory: Factory<'_>) {
    for (name, text) in STORIES {
        let Fixture { engine, clock, keep, .. } = factory();
        let needs = |word: &str| text.lines().any(|line| line.starts_with(word));
        if clock.is_none() && needs("> wait") {
            continue;
        }
        let told = run(&*engine, clock.as_ref(), text);
        if let Some(difference) = difference(text, &told) {
            panic!("the story `{name}`, {difference}");
        }
        drop((engine, keep));
    }
}
