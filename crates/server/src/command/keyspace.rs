//! All records at once.

use super::{Answer, Call, SYNTAX, is};
use crate::continuation::Continuation;
use coreplane_engine::Clear;

/// `DBSIZE`
pub(super) fn count(call: &mut Call<'_, '_>) -> Answer {
    let count = call.store.len()?;
    call.reply.int(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// `FLUSHDB [ASYNC|SYNC]`, `FLUSHALL [ASYNC|SYNC]`, alone among the event loops. There is one database, and deferring
/// the work gains nothing.
pub(super) fn flush(call: &mut Call<'_, '_>) -> Answer {
    let is_known = match call.words.len() {
        1 => true,
        2 => is(call.word(1), "ASYNC") || is(call.word(1), "SYNC"),
        _ => false,
    };
    if !is_known {
        return Err(SYNTAX.into());
    }
    let mut clear = match call.session.continuation.take() {
        Some(Continuation::Clear(clear)) => clear,
        _ => Clear::default(),
    };
    if call.is_out_of_time() {
        return call.suspend(Continuation::Clear(clear));
    }
    let step = call.store.clear_step(&mut clear);
    match step {
        Ok(true) => {
            call.reply.ok();
            Ok(())
        }
        Ok(false) => call.suspend(Continuation::Clear(clear)),
        Err(error) => {
            // If the engine is busy, the command goes on later.
            call.session.continuation = Some(Continuation::Clear(clear));
            Err(error.into())
        }
    }
}
