//! Clients that pause others.

use super::{Answer, Call, is};
use crate::pause::Paused;
use crate::resp::number::parse_i64;
use std::time::{Duration, Instant};

/// The longest pause; longer ones are cut to it.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// `CLIENT PAUSE timeout [WRITE|ALL]`, in milliseconds, alone among the event loops: when it is answered no command
/// that it holds runs in another loop. A follower sends none to the leader any more, which may still run what was sent
/// before.
pub(super) fn pause(call: &mut Call<'_, '_>) -> Answer {
    let what = match call.words.get(3) {
        None => Paused::All,
        Some(word) if is(word, "ALL") && call.words.len() == 4 => Paused::All,
        Some(word) if is(word, "WRITE") && call.words.len() == 4 => Paused::Writes,
        Some(_) => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".into()),
    };
    let millis = parse_i64(call.word(2)).ok_or("ERR timeout is not an integer or out of range")?;
    let millis = u64::try_from(millis).map_err(|_| "ERR timeout is negative")?;
    let length = Duration::from_millis(millis).min(LONGEST);
    call.host.pause.begin(Instant::now() + length, what);
    call.reply.ok();
    Ok(())
}

/// `CLIENT UNPAUSE`
pub(super) fn unpause(call: &mut Call<'_, '_>) -> Answer {
    call.host.pause.end();
    call.reply.ok();
    Ok(())
}
