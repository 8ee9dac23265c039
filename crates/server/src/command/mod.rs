//! Commands: one file for each concept, one table for all.
//!
//! A handler gets a [`Call`]: the words as they lie in the read buffer, the store, and the output buffer. It writes
//! its answer there, or returns a [`Failure`], in which case its output is removed and the error is the answer.

mod account;
mod client;
mod client_kill;
mod cluster;
mod commands;
mod config;
mod connection;
mod counter;
mod deletion;
mod dispatch;
mod durability;
mod expire;
mod function;
mod info;
mod key;
mod keyspace;
mod long_double;
mod many;
mod matrix;
mod memory;
mod monitor;
mod object;
mod once;
mod pause;
mod range;
mod route;
mod scan;
mod secret;
mod server;
mod set;
mod slow_log;
mod specification;
mod store;
mod string;
mod table;
mod transaction;

use cluster::key_slot;
pub(crate) use dispatch::{Turn, run};
pub(crate) use monitor::stop as stop_monitor;
pub(crate) use table::NUMBERS;
pub(crate) use transaction::forget_watches;

use crate::continuation::{Continuation, Pieces};
use crate::host::Host;
use crate::resp::frame::Words;
use crate::resp::number::parse_i64;
use crate::resp::reply::Reply;
use crate::session::Session;
use crate::slice::Slice;
use crate::store::Store;
use coreplane_engine::Error;
use std::borrow::Cow;

/// Why a command is answered with an error.
#[derive(Debug)]
pub(crate) enum Failure {
    /// In the words of the protocol, from the code on.
    Refused(Cow<'static, str>),
    /// The same, with bytes that the client sent.
    Echoed(Vec<u8>),
    /// In those of the engine.
    Engine(Error),
    /// To be run again: a pause or the end of its client came before its beginning, or it waits for a save or for
    /// the answers before it.
    Held,
    /// Not finished yet: its slice is over, and the state for going on is in the session.
    Unfinished,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

impl From<&'static str> for Failure {
    fn from(text: &'static str) -> Self {
        Self::Refused(text.into())
    }
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Refused(text.into())
    }
}

impl Failure {
    /// The error as it is sent, from the code on.
    pub(crate) fn text(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Refused(text) => Cow::Borrowed(text.as_bytes()),
            Self::Echoed(text) => Cow::Borrowed(text),
            Self::Engine(error) => Cow::Owned(engine_error_text(error).into_bytes()),
            Self::Held | Self::Unfinished => {
                Cow::Owned(engine_error_text(&Error::Busy).into_bytes())
            }
        }
    }
}

/// The error as it is sent. The code is that of the Redis error that asks the caller for the same reaction.
pub fn engine_error_text(error: &Error) -> String {
    let code = match error {
        Error::NoSpace { .. } => "OOM",
        Error::ReadOnly => "READONLY",
        Error::SyncFailed(_) | Error::Closed => "MISCONF",
        Error::NotLeader { .. } | Error::Busy | Error::Installing => "TRYAGAIN",
        Error::Indeterminate => "INDETERMINATE",
        _ => "ERR",
    };
    format!("{code} {error}")
}

/// The result of a handler.
pub(crate) type Answer = Result<(), Failure>;

const SYNTAX: &str = "ERR syntax error";
const NOT_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_SUCH_KEY: &str = "ERR no such key";

/// One command being run.
pub(crate) struct Call<'a, 's> {
    /// Its words, the name first.
    pub words: Words<'a>,
    /// Its name, `client|list` for a part of a command.
    pub name: &'static str,
    /// Where the answer goes.
    pub reply: Reply<'a>,
    /// The connection that it came through.
    pub session: &'a mut Session,
    /// The records.
    pub store: &'a mut Store<'s>,
    /// The server.
    pub host: &'a Host,
    /// The event loop that runs it.
    pub member: usize,
    /// The time that long commands have in this turn.
    pub slice: &'a mut Slice,
    /// It may be finished in a later turn; not within a transaction, nor in a read from a follower.
    pub may_slice: bool,
    /// An output of more bytes exceeds the limit.
    pub output_max: usize,
}

impl<'a> Call<'a, '_> {
    /// Runs another command within this one and appends its answer; an error of it is an answer, too.
    fn run(&mut self, command: &'static table::Command, words: Words<'_>) -> Answer {
        let answer = self.run_part(command, words);
        if let Err(failure) = &answer
            && let Some(port) = self.host.ports.get(self.member)
        {
            port.counters.count_error(&failure.text());
        }
        answer
    }

    /// The same, for a command whose error becomes the error of this one.
    fn run_part(&mut self, command: &'static table::Command, words: Words<'_>) -> Answer {
        let number = table::number_of(command).unwrap_or_default();
        let watch = &mut self.session.stopwatch;
        let began = account::begin(self.host, self.member, watch, number);
        let mut inner = Call {
            words,
            name: command.name,
            reply: Reply { proto: self.session.proto, out: self.reply.out },
            session: self.session,
            store: self.store,
            host: self.host,
            member: self.member,
            slice: self.slice,
            may_slice: false,
            output_max: self.output_max,
        };
        let answer = (command.run)(&mut inner);
        let took = began.end(&mut self.session.stopwatch);
        if matches!(answer, Err(Failure::Engine(Error::Busy))) {
            // It is run again.
            return answer;
        }
        let done = account::Done { command, number, words, took, has_failed: answer.is_err() };
        account::keep(self.host, self.member, &self.session.info, &done);
        answer
    }

    /// True if the command is to go on in a later turn, before its next step.
    fn is_out_of_time(&mut self) -> bool {
        self.may_slice && !self.slice.has_time()
    }

    /// Suspends the command; it goes on from here in a later turn.
    fn suspend(&mut self, continuation: Continuation) -> Answer {
        self.session.continuation = Some(continuation);
        Err(Failure::Unfinished)
    }

    /// A step of the command has failed: its progress is kept if it may be run again, for an engine that is busy for
    /// now.
    fn keep(&mut self, continuation: Continuation, error: Error) -> Failure {
        if self.may_slice {
            self.session.continuation = Some(continuation);
        }
        Failure::Engine(error)
    }

    /// True if so many bytes more, of an answer that is made at once, exceed the output limit: the answer need not be
    /// completed, since no client will receive it.
    fn is_over_output_limit(&mut self, more: usize) -> bool {
        let is_over = self.reply.out.len().saturating_add(more) > self.output_max;
        self.session.exceeds_output_limit |= is_over;
        is_over
    }

    /// Answers with an answer that may be very long.
    fn answer_in_pieces(&mut self, mut pieces: Pieces) -> Answer {
        if self.session.is_muted() || self.is_over_output_limit(pieces.len()) {
            return Ok(());
        }
        if !self.may_slice {
            pieces.move_all_to(self.reply.out);
            return Ok(());
        }
        match pieces.move_to(self.reply.out, self.slice) {
            true => Ok(()),
            false => self.suspend(Continuation::Answer(pieces)),
        }
    }

    /// The words behind the first one, as text.
    fn texts(&self) -> Result<Vec<&'a str>, Failure> {
        let texts: Result<_, _> = self.words.from(1).map(std::str::from_utf8).collect();
        texts.map_err(|_| "ERR words must be text in UTF-8".into())
    }

    /// The word at `index`; the arity was checked.
    fn word(&self, index: usize) -> &'a [u8] {
        self.words.at(index)
    }

    /// The words from `index` on, as names of what the server has few of: the answer to very many is very long.
    fn names(
        &self,
        index: usize,
    ) -> Result<impl ExactSizeIterator<Item = &'a [u8]> + use<'a>, Failure> {
        let names = self.words.from(index);
        if names.len() > NUMBERS { Err("ERR too many names".into()) } else { Ok(names) }
    }

    /// The integer at `index`.
    fn integer(&self, index: usize) -> Result<i64, Failure> {
        parse_i64(self.word(index)).ok_or_else(|| NOT_INTEGER.into())
    }

    /// The complaint that there are too many or too few words.
    fn wrong_arity(&self) -> Failure {
        wrong_arity(self.name)
    }

    /// The complaint about a part that does not exist.
    fn unknown_subcommand(&self) -> Failure {
        let container = self.name.split('|').next().unwrap_or_default();
        unknown_subcommand(self.word(1), container)
    }

    /// Answers with the record's value or with null.
    fn answer_value(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let Self { store, reply, .. } = self;
        let hit = store.read(key, &mut |record| reply.value(&record.value))?;
        if !hit {
            reply.null();
        }
        Ok(hit)
    }
}

fn wrong_arity(name: &str) -> Failure {
    format!("ERR wrong number of arguments for '{name}' command").into()
}

fn unknown_subcommand(word: &[u8], container: &str) -> Failure {
    let container = container.to_ascii_uppercase();
    let word = quoted(word, 128);
    Failure::Echoed(
        [b"ERR unknown subcommand '", word, b"'. Try ", container.as_bytes(), b" HELP."].concat(),
    )
}

/// At most `len_max` bytes of a word from a client, up to a zero byte, as C would print it.
fn quoted(word: &[u8], len_max: usize) -> &[u8] {
    let end = word.iter().take(len_max).position(|byte| *byte == 0);
    &word[..end.unwrap_or(word.len().min(len_max))]
}

/// True if `word` is `name`, which is in upper case.
fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}
