//! Commands about durability, answered for this medium.
//!
//! In Redis data are safe after a snapshot or an append to a file. Here a write is durable before its answer is sent
//! (`strict`, `group`), or within a stated window (`relaxed`). On a medium that forgets when the power goes nothing
//! is durable, and no answer says otherwise.

use super::{Answer, Call, Failure, SYNTAX, is};
use crate::continuation::Continuation;
use crate::host::SavesOf;
use crate::resp::number::parse_i64;
use std::time::{Duration, Instant};

/// `LASTSAVE`: when a save last made all writes durable, or when the server started
pub(super) fn last_save(call: &mut Call<'_, '_>) -> Answer {
    let last = call.host.saves.lock().last;
    call.reply.int(i64::try_from(last).unwrap_or(i64::MAX));
    Ok(())
}

/// `SAVE`: makes all earlier writes durable
pub(super) fn save(call: &mut Call<'_, '_>) -> Answer {
    until_saved(call, |host| &host.saves, None)?;
    call.reply.ok();
    Ok(())
}

/// Goes on when all earlier writes have been made durable, by a save that begins after them, while the event loop
/// serves others; or, with false, when this has taken so long.
pub(super) fn until_saved(
    call: &mut Call<'_, '_>,
    of: SavesOf,
    timeout: Option<Duration>,
) -> Result<bool, Failure> {
    let (number, deadline) = match call.session.continuation.take() {
        Some(Continuation::Save(number, deadline)) => (number, deadline),
        _ => {
            (of(call.host).lock().begun + 1, timeout.and_then(|it| Instant::now().checked_add(it)))
        }
    };
    let saves = of(call.host).lock();
    if saves.ended >= number {
        return saves.error.clone().map_or(Ok(true), |error| Err(error.into()));
    }
    drop(saves);
    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        return Ok(false);
    }
    call.host.begin(of)?;
    call.session.continuation = Some(Continuation::Save(number, deadline));
    Err(Failure::Held)
}

/// `BGSAVE [SCHEDULE]`: begins a save
pub(super) fn background_save(call: &mut Call<'_, '_>) -> Answer {
    let is_known = match call.words.len() {
        1 => true,
        2 => is(call.word(1), "SCHEDULE"),
        _ => false,
    };
    if !is_known {
        return Err(SYNTAX.into());
    }
    if !call.host.begin(|host| &host.saves)? {
        return Err("ERR Background save already in progress".into());
    }
    call.reply.status("Background saving started");
    Ok(())
}

/// `BGREWRITEAOF`: there is no such file
pub(super) fn rewrite_log(_: &mut Call<'_, '_>) -> Answer {
    Err("ERR there is no append-only file to rewrite: the log is cleaned in the background".into())
}

/// `WAIT numreplicas timeout`: the number of nodes beside the leader that have everything acknowledged so far, counted
/// when all earlier commands of the connection are: in the turn of a write nobody has it yet. An answer of a cluster
/// waits for a majority anyway, so this does not wait for more; without a cluster there are no such nodes.
pub(super) fn wait(call: &mut Call<'_, '_>) -> Answer {
    call.integer(1)?;
    timeout(call.word(2))?;
    let copies = match &call.host.config.cluster {
        // A transaction waits for nothing, and no node has its own writes yet.
        Some(_) if !call.may_slice => 0,
        Some(_) if call.session.awaits_durable => return Err(Failure::Held),
        Some(cluster) => cluster.copies().saturating_sub(1),
        None => 0,
    };
    call.reply.count(copies);
    Ok(())
}

/// `WAITAOF numlocal numreplicas timeout`
///
/// Its answer comes after those of all earlier commands of the connection. So when it is sent, they are durable: the
/// answer is 1 if a power cut cannot undo that. `relaxed` data are made durable first; the answer is 0 if this takes
/// longer than the timeout, for a `numlocal` of 0, and in a transaction, which does not wait.
pub(super) fn wait_local(call: &mut Call<'_, '_>) -> Answer {
    let local = call.integer(1)?;
    if !(0..=1).contains(&local) {
        return Err("ERR value is out of range, value must between 0 and 1".into());
    }
    if call.integer(2)? < 0 {
        return Err("ERR value is out of range, must be positive".into());
    }
    let timeout = timeout(call.word(3))?;
    let waits = local > 0 && call.may_slice;
    let is_durable =
        call.host.config.withholds() || waits && until_saved(call, |host| &host.syncs, timeout)?;
    call.reply.array(2);
    call.reply.truth(call.host.config.power_safe && is_durable);
    call.reply.int(0);
    Ok(())
}

/// A timeout in milliseconds; 0: none.
fn timeout(word: &[u8]) -> Result<Option<Duration>, Failure> {
    match parse_i64(word) {
        None => Err("ERR timeout is not an integer or out of range".into()),
        Some(..0) => Err("ERR timeout is negative".into()),
        Some(0) => Ok(None),
        Some(timeout) => Ok(Some(Duration::from_millis(timeout.unsigned_abs()))),
    }
}
