//! All records at once.

use super::{Answer, Call, SYNTAX, is};
use coreplane_engine::Error;

/// `DBSIZE`
pub(super) fn count(call: &mut Call<'_, '_>) -> Answer {
    let count = call.store.len()?;
    call.reply.int(i64::try_from(count).unwrap_or(i64::MAX));
    Ok(())
}

/// `FLUSHDB [ASYNC|SYNC]`, `FLUSHALL [ASYNC|SYNC]`, alone among the event loops. There is one
/// database, and nothing is gained by doing it later.
pub(super) fn flush(call: &mut Call<'_, '_>) -> Answer {
    let is_known = match call.words.len() {
        1 => true,
        2 => is(call.word(1), "ASYNC") || is(call.word(1), "SYNC"),
        _ => false,
    };
    if !is_known {
        return Err(SYNTAX.into());
    }
    if !call.store.clear_step(&mut call.session.clear)? {
        // It has come further, and goes on in the next turn.
        call.session.postponed_since = None;
        return Err(Error::Busy.into());
    }
    call.reply.ok();
    Ok(())
}
