//! From the words of a command to its answer.

use super::deletion::cut_short;
use super::route::{Route, route, route_refused};
use super::table::{
    ALONE, ALONE_IF_MANY, AT_ONCE, COMMANDS, COUNTED, Command, NO_AUTH, NO_MULTI, find, number,
};
use super::{Answer, Call, Failure, quoted, unknown_subcommand, wrong_arity};
use crate::ClusterInfo;
use crate::counters::LoopCounters;
use crate::host::Host;
use crate::resp::frame::Words;
use crate::resp::reply::Reply;
use crate::session::{Answers, Session};
use crate::store::Store;
use coreplane_engine::{Clear, Error, Horizon, UnixMillis};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So long a command waits that the engine has too much of.
const PATIENCE: Duration = Duration::from_secs(30);

/// What commands of one turn of one event loop share.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub host: &'a Host,
    pub member: usize,
    pub counters: &'a LoopCounters,
    pub now: UnixMillis,
    /// What the answers of the turn rest on.
    pub horizon: &'a mut Horizon,
}

/// Runs the command of these words; the answer is appended to `out`. True if it rests on
/// something that is not durable yet. One that needs the number of records is postponed until they
/// are counted, unless it is part of a transaction: what others ask for goes on meanwhile.
pub(crate) fn run(
    turn: &mut Turn<'_>,
    session: &mut Session,
    words: Words<'_>,
    out: &mut Vec<u8>,
) -> bool {
    let start = out.len();
    let Some(place) = place_here(turn.host, session, words) else { return false };
    turn.counters.commands.add(1);
    let was_queued = session.queue.is_some();
    let cluster = turn.host.config.cluster.as_deref();
    let follower = cluster.filter(|_| std::mem::take(&mut session.shows_follower));
    let mut store = Store::new(
        follower.and_then(ClusterInfo::follower_reads).unwrap_or(&*turn.host.engine),
        &turn.host.watched,
        turn.horizon,
        turn.host.config.withholds(),
        turn.now,
    );
    let answer = match place {
        Ok((index, command)) => {
            turn.counters.calls[index].add(1);
            let number = number(index, command);
            session.info.command.store(number, Ordering::Relaxed);
            if session.queue.is_some() && !command.has(AT_ONCE) {
                queue(session, index, words, out);
                Ok(())
            } else {
                let mut call = Call {
                    words,
                    name: command.name,
                    reply: Reply { proto: session.proto, out },
                    session,
                    store: &mut store,
                    host: turn.host,
                    member: turn.member,
                };
                call_alone_if_needed(&mut call, command)
            }
        }
        Err(failure) => {
            if let Some(queue) = &mut session.queue {
                queue.is_refused = true;
            }
            Err(failure)
        }
    };
    if let Err(Failure::Engine(Error::Busy)) = &answer
        && !store.has_written
        && !was_queued
        && is_patient(session)
    {
        // Nothing was done, or what was begun goes on when it is asked for again.
        out.truncate(start);
        session.is_postponed = true;
        return false;
    }
    session.postponed_since = None;
    if session.clear.until.is_some() {
        session.clear = Clear::default();
    }
    if let Err(mut failure) = answer {
        if let Some(deletion) = session.deletion.take() {
            failure = cut_short(&deletion, failure);
        }
        turn.counters.errors.add(1);
        if let Ok((index, _)) = place_index(words) {
            turn.counters.failures[index].add(1);
        }
        fail(&failure, start, out);
    }
    session.deletion = None;
    let rests = store.rests;
    mute(session, start, out);
    rests
}

/// The command, if it is to be run here and now. None if it is postponed, or another node runs it.
fn place_here(
    host: &Host,
    session: &mut Session,
    words: Words<'_>,
) -> Option<Result<(usize, &'static Command), Failure>> {
    let place = resolve(words, session);
    if session.deletion.as_ref().is_some_and(|it| it.leadership != host.engine.leaderships())
        && session.deletion.take().is_some_and(|it| it.deleted > 0)
    {
        // What was begun in one leadership is not begun anew in another, which would count again.
        session.is_postponed = false;
        return Some(Err(Error::Indeterminate.into()));
    }
    session.is_postponed = session.queue.is_none()
        && place.as_ref().is_ok_and(|(_, command)| command.has(COUNTED))
        // An error is left to the command.
        && matches!(host.engine.try_len(), Ok(None));
    if session.is_postponed {
        return None;
    }
    let (index, command) = match place {
        Ok(place) => place,
        Err(failure) => {
            return match route_refused(session) {
                Route::Forward(leader) => {
                    session.forwards = Some(("", leader));
                    None
                }
                Route::Later => {
                    session.is_postponed = true;
                    None
                }
                Route::Here | Route::Nowhere(_) => Some(Err(failure)),
            };
        }
    };
    match route(host, session, command, words) {
        Route::Here => Some(Ok((index, command))),
        Route::Nowhere(failure) => Some(Err(failure)),
        Route::Later => {
            session.is_postponed = true;
            None
        }
        Route::Forward(leader) => {
            session.forwards = Some((command.name, leader));
            None
        }
    }
}

/// True if a command of which the engine has too much waits for a later turn.
fn is_patient(session: &mut Session) -> bool {
    let since = *session.postponed_since.get_or_insert_with(Instant::now);
    since.elapsed() < PATIENCE
}

/// Takes back what was written since `start` and writes the error instead.
pub(super) fn fail(failure: &Failure, start: usize, out: &mut Vec<u8>) {
    out.truncate(start);
    let mut reply = Reply { proto: crate::resp::reply::Proto::Two, out };
    reply.error(&failure.text());
}

/// Takes back the answer to a client that wants none.
fn mute(session: &mut Session, start: usize, out: &mut Vec<u8>) {
    match session.answers {
        Answers::On => {}
        Answers::Off => out.truncate(start),
        Answers::SkipNext => session.answers = Answers::Skip,
        Answers::Skip => {
            out.truncate(start);
            session.answers = Answers::On;
        }
    }
}

fn queue(session: &mut Session, index: usize, words: Words<'_>, out: &mut Vec<u8>) {
    if let Some(queue) = &mut session.queue {
        queue.push(index, &words);
        out.extend_from_slice(b"+QUEUED\r\n");
    }
    session.publish();
}

fn call_alone_if_needed(call: &mut Call<'_, '_>, command: &Command) -> Answer {
    let many = command.has(ALONE_IF_MANY) && call.words.len() > 2;
    if command.has(ALONE) || many {
        let isolation = &call.host.isolation;
        let alone = isolation.alone(call.member);
        let answer = (command.run)(call);
        drop(alone);
        return answer;
    }
    (command.run)(call)
}

/// The command's index in the table, and the command or the part of it that is meant.
fn place_index(words: Words<'_>) -> Result<(usize, &'static Command), Failure> {
    let Some(index) = find(words.at(0)) else {
        return Err(unknown(words));
    };
    let command = &COMMANDS[index];
    if command.parts.is_empty() || words.len() < 2 {
        return Ok((index, command));
    }
    let part = command.part(words.at(1));
    part.map(|part| (index, part)).ok_or_else(|| unknown_subcommand(words.at(1), command.name))
}

/// Finds the command and checks whether it may run now.
fn resolve(words: Words<'_>, session: &Session) -> Result<(usize, &'static Command), Failure> {
    let (index, command) = place_index(words)?;
    if !command.accepts(words.len()) {
        return Err(wrong_arity(command.name));
    }
    if !session.is_authenticated && !command.has(NO_AUTH) {
        return Err("NOAUTH Authentication required.".into());
    }
    if session.queue.is_some() && command.has(NO_MULTI) {
        return Err("ERR Command not allowed inside a transaction".into());
    }
    Ok((index, command))
}

/// The complaint about a command that does not exist.
fn unknown(words: Words<'_>) -> Failure {
    const SHOWN: usize = 128;
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(quoted(words.at(0), SHOWN));
    text.extend_from_slice(b"', with args beginning with: ");
    let start = text.len();
    for word in words.from(1) {
        let shown = text.len() - start;
        if shown >= SHOWN {
            break;
        }
        text.push(b'\'');
        text.extend_from_slice(quoted(word, SHOWN - shown));
        text.extend_from_slice(b"' ");
    }
    Failure::Echoed(text)
}
