//! Expiry of records.

use super::{Answer, Call, Failure, is};
use coreplane_engine::{Mutation, UnixMillis};

/// `EXPIRE key seconds [NX|XX|GT|LT]`
pub(super) fn in_seconds(call: &mut Call<'_, '_>) -> Answer {
    expire(call, 1000, true)
}

/// `PEXPIRE key milliseconds [NX|XX|GT|LT]`
pub(super) fn in_millis(call: &mut Call<'_, '_>) -> Answer {
    expire(call, 1, true)
}

/// `EXPIREAT key unix-time-seconds [NX|XX|GT|LT]`
pub(super) fn at_second(call: &mut Call<'_, '_>) -> Answer {
    expire(call, 1000, false)
}

/// `PEXPIREAT key unix-time-milliseconds [NX|XX|GT|LT]`
pub(super) fn at_millis(call: &mut Call<'_, '_>) -> Answer {
    expire(call, 1, false)
}

/// The conditions for setting an expiry.
#[derive(Debug, Clone, Copy, Default)]
struct Conditions {
    if_none: bool,
    if_some: bool,
    if_later: bool,
    if_sooner: bool,
}

impl Conditions {
    fn read(call: &Call<'_, '_>) -> Result<Self, Failure> {
        let mut read = Self::default();
        for word in call.words.from(3) {
            match word {
                _ if is(word, "NX") => read.if_none = true,
                _ if is(word, "XX") => read.if_some = true,
                _ if is(word, "GT") => read.if_later = true,
                _ if is(word, "LT") => read.if_sooner = true,
                _ => {
                    let word = String::from_utf8_lossy(word);
                    return Err(format!("ERR Unsupported option {word}").into());
                }
            }
        }
        if read.if_none && (read.if_some || read.if_later || read.if_sooner) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into()
            );
        }
        if read.if_later && read.if_sooner {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(read)
    }

    /// True if the expiry of a record may be changed from `old` to `new`. No expiry counts as later than any.
    fn allow(self, old: Option<UnixMillis>, new: i64) -> bool {
        let old = old.map(|at| i64::try_from(at.0).unwrap_or(i64::MAX));
        !(self.if_none && old.is_some()
            || self.if_some && old.is_none()
            || self.if_later && old.is_none_or(|old| new <= old)
            || self.if_sooner && old.is_some_and(|old| new >= old))
    }
}

fn expire(call: &mut Call<'_, '_>, unit: i64, is_relative: bool) -> Answer {
    let bad = format!("ERR invalid expire time in '{}' command", call.name);
    let conditions = Conditions::read(call)?;
    let now = i64::try_from(call.store.now().0).unwrap_or(i64::MAX);
    let at = call
        .integer(2)?
        .checked_mul(unit)
        .and_then(|time| time.checked_add(if is_relative { now } else { 0 }))
        .ok_or(bad)?;
    let mut is_set = false;
    call.store.modify(call.word(1), &mut |record| {
        is_set = record.is_some_and(|record| conditions.allow(record.expires_at, at));
        match u64::try_from(at) {
            _ if !is_set => Mutation::Keep,
            Ok(millis) if at > now => Mutation::Expire(Some(UnixMillis(millis))),
            // An expiry in the past deletes the record now.
            _ => Mutation::Delete,
        }
    })?;
    call.reply.truth(is_set);
    Ok(())
}

/// `PERSIST key`
pub(super) fn persist(call: &mut Call<'_, '_>) -> Answer {
    let is_changed = call.store.modify(call.word(1), &mut |record| match record
        .and_then(|record| record.expires_at)
    {
        Some(_) => Mutation::Expire(None),
        None => Mutation::Keep,
    })?;
    call.reply.truth(is_changed);
    Ok(())
}

/// `TTL key`: -2 if there is no record, -1 if it has no expiry
pub(super) fn left_seconds(call: &mut Call<'_, '_>) -> Answer {
    answer_expiry(call, |at, now| (at - now).max(0).saturating_add(500) / 1000)
}

/// `PTTL key`
pub(super) fn left_millis(call: &mut Call<'_, '_>) -> Answer {
    answer_expiry(call, |at, now| (at - now).max(0))
}

/// `EXPIRETIME key`
pub(super) fn when_second(call: &mut Call<'_, '_>) -> Answer {
    answer_expiry(call, |at, _| at.saturating_add(500) / 1000)
}

/// `PEXPIRETIME key`
pub(super) fn when_millis(call: &mut Call<'_, '_>) -> Answer {
    answer_expiry(call, |at, _| at)
}

fn answer_expiry(call: &mut Call<'_, '_>, show: fn(i64, i64) -> i64) -> Answer {
    let now = i64::try_from(call.store.now().0).unwrap_or(i64::MAX);
    let mut answer = -2;
    call.store.read(call.word(1), &mut |record| {
        answer = match record.expires_at {
            Some(at) => show(i64::try_from(at.0).unwrap_or(i64::MAX), now),
            None => -1,
        };
    })?;
    call.reply.int(answer);
    Ok(())
}
