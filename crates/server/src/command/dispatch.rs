//! From the words of a command to its answer.

use super::account::{self, Done};
use super::deletion::cut_short;
use super::route::{Route, route, route_refused};
use super::table::{
    ALONE, ALONE_IF_MANY, AT_ONCE, COMMANDS, COUNTED, Command, NO_AUTH, NO_MULTI, WRITE, find,
    number,
};
use super::transaction::forget_watches;
use super::{Answer, Call, Failure, quoted, specification, unknown_subcommand, wrong_arity};
use crate::ClusterInfo;
use crate::continuation::Continuation;
use crate::counters::LoopCounters;
use crate::host::Host;
use crate::pause::Paused;
use crate::resp::frame::Words;
use crate::resp::reply::Reply;
use crate::session::{Answers, Forwarded, Session};
use crate::slice::Slice;
use crate::store::Store;
use coreplane_engine::{Error, Horizon};
use coreplane_pmem::mutant;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Why a command that takes memory is refused.
pub(super) const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
/// How long a command waits for a busy engine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The state that the commands of one turn of one event loop share.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub host: &'a Host,
    member: usize,
    pub counters: &'a LoopCounters,
    /// The writes that the answers of the turn depend on.
    horizon: &'a mut Horizon,
    /// The time that long commands have left.
    pub slice: &'a mut Slice,
    /// An output of more bytes exceeds the limit.
    output_max: usize,
    /// None of its commands has run yet.
    is_new: bool,
}

impl<'a> Turn<'a> {
    /// A turn of loop `member`, for one connection, whose output may have so many bytes.
    pub(crate) fn new(
        host: &'a Host,
        member: usize,
        (horizon, slice): (&'a mut Horizon, &'a mut Slice),
        output_max: usize,
    ) -> Self {
        let counters = &host.ports[member].counters;
        Self { host, member, counters, horizon, slice, output_max, is_new: true }
    }
}

/// Runs the command of these words; the answer is appended to `out`. True if it depends on a write that is not
/// durable yet. A command that needs the number of records is postponed until they are counted, and so is an `EXEC`
/// of one; the commands of other clients run meanwhile. A command whose slice is over ([`slice`](crate::slice)) is
/// postponed, too, and then a part of its answer may be in `out`.
pub(crate) fn run(
    turn: &mut Turn<'_>,
    session: &mut Session,
    words: Words<'_>,
    out: &mut Vec<u8>,
) -> bool {
    let start = out.len();
    let Some(place) = place_here(turn.host, session, words) else { return false };
    if session.continuation.is_none() {
        session.took_before = Duration::ZERO;
    }
    let was_queued = session.queue.is_some();
    if std::mem::take(&mut turn.is_new) {
        session.stopwatch.restart();
    }
    let follower = follower_of(turn.host, session);
    let mut store = Store::new(
        follower.and_then(ClusterInfo::follower_reads).unwrap_or(&*turn.host.engine),
        &turn.host.watched,
        turn.horizon,
        turn.host.config.withholds(),
    );
    let mut ran = None;
    let answer = place.and_then(|(index, command)| {
        let number = number(index, command);
        session.info.command.store(number, Ordering::Relaxed);
        if session.queue.is_some() && !command.has(AT_ONCE) {
            let memory_max = turn.host.settings.query_buffer_max.load(Ordering::Relaxed);
            queue(session, (index, words), memory_max, out);
            return Ok(());
        }
        let began = account::begin(turn.host, turn.member, &mut session.stopwatch, number);
        ran = Some((number, command, began));
        let mut call = Call {
            words,
            name: command.name,
            reply: Reply { proto: session.proto, out },
            session,
            store: &mut store,
            host: turn.host,
            member: turn.member,
            slice: turn.slice,
            may_slice: follower.is_none(),
            output_max: turn.output_max,
        };
        call_alone_if_needed(&mut call, command)
    });
    let (may_wait, rests) = (!store.has_written && !was_queued, store.rests);
    if is_postponed(turn.counters, session, &answer, may_wait) {
        if let Some((_, _, began)) = ran {
            session.took_before = account::end(session, began).unwrap_or_default();
        }
        let begun = session.continuation.as_ref();
        let has_begun = begun.is_some_and(Continuation::has_begun_to_answer);
        if !has_begun {
            out.truncate(start);
        }
        // The part read before depends on the same writes as the last slice.
        return rests && has_begun;
    }
    session.postponed_since = None;
    if let Some((number, command, began)) = ran {
        let (took, has_failed) = (account::end(session, began), answer.is_err());
        let done = Done { command, number, words, took, has_failed };
        account::keep(turn.host, turn.member, &session.info, &done);
    }
    if let Err(failure) = answer {
        let failure = complaint(turn, session, words, ran.is_some(), failure);
        fail(&failure, start, out);
    }
    session.continuation = None;
    mute(session, start, out);
    rests
}

/// Counts a failure, and adds details for the client.
#[cold]
fn complaint(
    turn: &Turn<'_>,
    session: &mut Session,
    words: Words<'_>,
    was_run: bool,
    mut failure: Failure,
) -> Failure {
    if let Some(Continuation::Deletion(deletion)) = session.continuation.take() {
        failure = cut_short(&deletion, failure);
    }
    turn.counters.count_error(&failure.text());
    if !was_run {
        if let Some(queue) = &mut session.queue {
            queue.is_refused = true;
        }
        if let Ok((index, command)) = place_index(words)
            && let Some(counters) = turn.counters.by_command.get(number(index, command))
        {
            counters.rejected.add(1);
        }
    }
    failure
}

/// The command, if it runs here and now. None if it is postponed, or another node runs it.
fn place_here(
    host: &Host,
    session: &mut Session,
    words: Words<'_>,
) -> Option<Result<(usize, &'static Command), Failure>> {
    let place = resolve(words, session);
    session.has_progressed = false;
    let leadership = session.continuation.as_ref().and_then(Continuation::leadership);
    if leadership.is_some_and(|began_in| began_in != host.engine.leaderships()) {
        let begun = session.continuation.take();
        // A deletion that has deleted keys is not restarted in another leadership, which would count them again.
        if matches!(begun, Some(Continuation::Deletion(it)) if it.deleted > 0) {
            session.is_postponed = false;
            return Some(Err(Error::Indeterminate.into()));
        }
    }
    match &session.continuation {
        // The client has a part of the answer already, no matter which node leads by now.
        Some(begun) if begun.has_begun_to_answer() => {
            session.is_postponed = false;
            return Some(place);
        }
        _ => {}
    }
    session.is_postponed = place.as_ref().is_ok_and(|(_, command)| is_counted(session, command))
        // The command itself reports an error.
        && matches!(host.engine.try_len(), Ok(None));
    if session.is_postponed {
        return None;
    }
    let (index, command) = match place {
        Ok(place) => place,
        Err(failure) => {
            return match route_refused(session) {
                Route::Forward(leader) => {
                    session.forwards = Some(Forwarded { name: "", leader, held_by: None });
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
    if is_held_by_pause(host, session, command) {
        session.is_postponed = true;
        session.set_paused(true);
        return None;
    }
    session.set_paused(false);
    match route(host, session, command, words) {
        Route::Here if host.is_over_memory.load(Ordering::Relaxed) => {
            let failure = refused_for_memory(host, session, command);
            Some(failure.map_or(Ok((index, command)), Err))
        }
        Route::Here => Some(Ok((index, command))),
        Route::Nowhere(failure) => Some(Err(failure)),
        Route::Later => {
            session.is_postponed = true;
            None
        }
        Route::Forward(leader) => {
            // It starts from the beginning there.
            session.continuation = None;
            let held_by = least_pause(session, command);
            session.forwards = Some(Forwarded { name: command.name, leader, held_by });
            None
        }
    }
}

/// True if the command needs the number of records to run now.
fn is_counted(session: &Session, command: &Command) -> bool {
    match &session.queue {
        None => command.has(COUNTED),
        Some(queue) => {
            let is_counted = |index: usize| COMMANDS.get(index).is_some_and(|it| it.has(COUNTED));
            command.name == "exec" && queue.any(is_counted)
        }
    }
}

/// The node, if the command reads its state as a follower.
fn follower_of<'a>(host: &'a Host, session: &mut Session) -> Option<&'a dyn ClusterInfo> {
    let cluster = host.config.cluster.as_deref();
    let follower = cluster.filter(|_| std::mem::take(&mut session.shows_follower));
    if follower.is_some() {
        // The part that it has read as the leader is no part of an answer of a follower.
        session.continuation = None;
    }
    follower
}

/// True if the command is run again in a later turn: it is not finished, or the engine is busy. In the second case
/// nothing was done, or the work begun so far is kept.
fn is_postponed(
    counters: &LoopCounters,
    session: &mut Session,
    answer: &Answer,
    may_wait: bool,
) -> bool {
    let is_postponed = match answer {
        Err(Failure::Unfinished) => {
            counters.slices.add(1);
            session.has_progressed = true;
            session.postponed_since = None;
            true
        }
        Err(Failure::Engine(Error::Busy)) => may_wait && is_patient(session),
        Err(Failure::Held) => true,
        _ => false,
    };
    session.is_postponed = is_postponed;
    is_postponed
}

/// Why a command is refused while memory use is above the limit; it aborts a transaction.
#[cold]
fn refused_for_memory(host: &Host, session: &mut Session, command: &Command) -> Option<Failure> {
    let needs_more = |command: &Command| specification::has_flag(command.name, "denyoom");
    if needs_more(command) {
        return Some(OUT_OF_MEMORY.into());
    }
    let queued = session.queue.as_ref().filter(|_| command.name == "exec")?;
    if !queued.any(|index| COMMANDS.get(index).is_some_and(needs_more)) {
        return None;
    }
    session.queue = None;
    forget_watches(session, &host.watched);
    Some(format!("EXECABORT Transaction discarded because of: {OUT_OF_MEMORY}").into())
}

/// True if the command waits for the end of a pause.
fn is_held_by_pause(host: &Host, session: &Session, command: &Command) -> bool {
    // This is quick where there is no pause.
    let Some(paused) = host.pause.now() else { return false };
    least_pause(session, command).is_some_and(|least| paused >= least)
}

/// The least pause that holds the command. None holds one that has begun, nor one that ends the pause.
fn least_pause(session: &Session, command: &Command) -> Option<Paused> {
    if session.continuation.is_some() || ["client|unpause", "shutdown"].contains(&command.name) {
        return None;
    }
    let writes = |index: usize| COMMANDS.get(index).is_some_and(|command| command.has(WRITE));
    let queue = session.queue.as_ref();
    // The queue is at the node that runs the transaction.
    let queues_writes = queue.map_or(session.upstream.queues_writes, |queue| queue.any(writes));
    let is_write = command.has(WRITE) || command.name == "exec" && queues_writes;
    Some(if is_write { Paused::Writes } else { Paused::All })
}

/// True if the command, which was allowed to run, was stopped while it waited until its loop was alone:
/// `CLIENT PAUSE` and `CLIENT KILL` run alone as well, and may have come first.
fn is_held_by_now(call: &mut Call<'_, '_>, command: &Command) -> bool {
    let is_paused = is_held_by_pause(call.host, call.session, command);
    call.session.set_paused(is_paused);
    is_paused || call.session.is_killed()
}

/// True if a command that found the engine busy waits for a later turn.
fn is_patient(session: &mut Session) -> bool {
    let since = *session.postponed_since.get_or_insert_with(Instant::now);
    since.elapsed() < PATIENCE
}

/// Removes the output since `start` and writes the error instead.
pub(super) fn fail(failure: &Failure, start: usize, out: &mut Vec<u8>) {
    out.truncate(start);
    let mut reply = Reply { proto: crate::resp::reply::Proto::Two, out };
    reply.error(&failure.text());
}

/// Removes the answer to a client that wants none.
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

/// Adds a command to those that wait for `EXEC`. If all of them take more memory than a client's input may take, the
/// client is disconnected.
fn queue(
    session: &mut Session,
    (index, words): (usize, Words<'_>),
    memory_max: u64,
    out: &mut Vec<u8>,
) {
    if let Some(queue) = &mut session.queue {
        queue.push(index, &words);
        out.extend_from_slice(b"+QUEUED\r\n");
        session.is_dropped |= queue.memory() as u64 > memory_max;
    }
    session.publish();
}

fn call_alone_if_needed(call: &mut Call<'_, '_>, command: &Command) -> Answer {
    if let Some(Continuation::Answer(pieces)) = &mut call.session.continuation {
        let pieces = std::mem::take(pieces);
        return call.answer_in_pieces(pieces);
    }
    let many = command.has(ALONE_IF_MANY) && call.words.len() > 2;
    if command.has(ALONE) || many {
        let isolation = &call.host.isolation;
        let alone = isolation.alone(call.member);
        if is_held_by_now(call, command) && !mutant!("server.isolation.again") {
            return Err(Failure::Held);
        }
        let answer = (command.run)(call);
        drop(alone);
        return answer;
    }
    (command.run)(call)
}

/// The command's index in the table, and the command, or the part of it that the words name.
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
    // A change of protocol or of replies would apply here, but not at the node that the client is connected to.
    let is_of_client = session.is_forwarded && matches!(command.name, "client|reply" | "hello");
    if session.queue.is_some() && (command.has(NO_MULTI) || is_of_client) {
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
