//! Transactions: commands that take effect together.
//!
//! After `MULTI` commands are checked and queued; `EXEC` runs them all, alone among the event loops. Their writes are
//! kept in an overlay of the store, which later commands of the same transaction read, and go to the engine as one
//! batch. So readers in other loops, and a recovery after a crash, see all of it or nothing. `WATCH` makes `EXEC`
//! refuse if a key has changed.

use super::dispatch::fail;
use super::table::COMMANDS;
use super::{Answer, Call, Failure, engine_error_text};
use crate::session::{Seen, Session};
use crate::watch::WatchedAbsences;
use coreplane_engine::Error;
use std::sync::atomic::Ordering;

/// `MULTI`
pub(super) fn multi(call: &mut Call<'_, '_>) -> Answer {
    if call.session.queue.is_some() {
        return Err("ERR MULTI calls can not be nested".into());
    }
    call.session.queue = Some(std::mem::take(&mut call.session.spare_queue));
    call.session.publish();
    call.reply.ok();
    Ok(())
}

/// `DISCARD`
pub(super) fn discard(call: &mut Call<'_, '_>) -> Answer {
    if call.session.queue.take().is_none() {
        return Err("ERR DISCARD without MULTI".into());
    }
    forget_watches(call.session, &call.host.watched);
    call.reply.ok();
    Ok(())
}

/// `WATCH key [key ...]`: a client that watches more than its input may have is disconnected
pub(super) fn watch(call: &mut Call<'_, '_>) -> Answer {
    if call.session.queue.is_some() {
        return Err("ERR WATCH inside MULTI is not allowed".into());
    }
    let memory_max = call.host.settings.query_buffer_max.load(Ordering::Relaxed);
    for key in call.words.from(1) {
        if call.session.watches.contains_key(key) {
            continue;
        }
        // Entered before the read, so that no write falls between.
        let writes = call.host.watched.enter(key);
        let absent = Seen::Absent(writes, call.host.engine.leaderships());
        let mut seen = absent;
        let result = call.store.read(key, &mut |record| {
            seen = Seen::Present(record.sequence);
        });
        if result.is_err() || seen != absent {
            call.host.watched.leave(key);
        }
        result?;
        call.session.watches.insert(key.to_vec(), seen);
        // An absent key is kept here and in the list of those.
        call.session.watched_bytes += 2 * (key.len() + size_of::<(Vec<u8>, Seen)>());
        if call.session.watched_bytes as u64 > memory_max {
            call.session.is_dropped = true;
            break;
        }
    }
    call.session.publish();
    call.reply.ok();
    Ok(())
}

/// `UNWATCH`
pub(super) fn unwatch(call: &mut Call<'_, '_>) -> Answer {
    forget_watches(call.session, &call.host.watched);
    call.reply.ok();
    Ok(())
}

/// Stops watching.
pub(crate) fn forget_watches(session: &mut Session, watched: &WatchedAbsences) {
    for (key, seen) in session.watches.drain() {
        if matches!(seen, Seen::Absent(..)) {
            watched.leave(&key);
        }
    }
    session.watched_bytes = 0;
    session.publish();
}

/// True if no watched key has changed. Stops watching.
fn watches_hold(call: &mut Call<'_, '_>) -> Result<bool, Failure> {
    let mut hold = Ok(true);
    let watches = std::mem::take(&mut call.session.watches);
    call.session.watched_bytes = 0;
    for (key, was) in watches {
        let now = match was {
            Seen::Absent(..) => {
                let writes = call.host.watched.leave(&key);
                Seen::Absent(writes, call.host.engine.leaderships())
            }
            Seen::Present(_) => Seen::Absent(0, 0),
        };
        let mut seen = now;
        let result = call.store.read(&key, &mut |record| {
            seen = Seen::Present(record.sequence);
        });
        hold = match (hold, result) {
            (Ok(hold), Ok(_)) => Ok(hold && seen == was),
            (Err(failure), _) => Err(failure),
            (Ok(_), Err(error)) => Err(error.into()),
        };
    }
    hold
}

/// `EXEC`, alone among the event loops
pub(super) fn exec(call: &mut Call<'_, '_>) -> Answer {
    let Some(queue) = call.session.queue.take() else {
        return Err("ERR EXEC without MULTI".into());
    };
    // Before any read that the changes depend on.
    call.store.begin(queue.len(), queue.bytes_len());
    let hold = watches_hold(call);
    call.session.publish();
    if queue.is_refused {
        return Err("EXECABORT Transaction discarded because of previous errors.".into());
    }
    if !hold.map_err(|failure| discarded(&failure.text()))? {
        call.reply.null_array();
        return Ok(());
    }
    // No command of others comes between: the transaction is one step, however long, and later commands wait for
    // another turn.
    call.slice.charge();
    call.reply.array(queue.len());
    // An engine that is too busy for one of them has executed none.
    let is_busy = queue.commands().any(|(index, words)| !run_queued(call, index, words));
    // Before the engine needs as much memory again.
    call.session.spare_queue = queue.emptied();
    let clears = call.store.clears();
    let finished = match is_busy {
        true => {
            call.store.discard();
            Err(Error::Busy)
        }
        false => call.store.finish(),
    };
    finished.map_err(|error| not_made(&error, clears))
}

/// The changes of a transaction were not made; `clears` if it was to remove every record.
fn not_made(error: &Error, clears: bool) -> Failure {
    let text = engine_error_text(error);
    let is_too_much = matches!(
        error,
        Error::BatchTooLarge { .. } | Error::BatchTooLong { .. } | Error::NoSpace { .. }
    );
    let remedy = match clears && is_too_much {
        true => "; nothing was removed: send FLUSHALL alone, outside of a transaction",
        false => "",
    };
    discarded(format!("{text}{remedy}").as_bytes())
}

fn discarded(why: &[u8]) -> Failure {
    Failure::Echoed([b"EXECABORT Transaction discarded because of: ", why].concat())
}

/// Runs one of the queued commands; false if the engine is busy.
fn run_queued(call: &mut Call<'_, '_>, index: usize, words: crate::resp::frame::Words<'_>) -> bool {
    let command = &COMMANDS[index];
    let command = command.part(words.at(1)).unwrap_or(command);
    let start = call.reply.out.len();
    if let Err(failure) = call.run(command, words) {
        if matches!(failure, Failure::Engine(Error::Busy)) {
            return false;
        }
        fail(&failure, start, call.reply.out);
    }
    if call.is_over_output_limit(0) {
        // Its changes are made all the same, as those of any command whose answer is not delivered.
        call.reply.out.truncate(start);
    }
    true
}
