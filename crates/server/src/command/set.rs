//! `SET` and its older and shorter forms: a value, a condition, an expiry, the old value.

use super::string::answer_old;
use super::{Answer, Call, Failure, NOT_INTEGER, SYNTAX, is};
use crate::resp::number::parse_i64;
use coreplane_engine::{Mutation, UnixMillis};

/// The expiry of a record, as the options say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expiry<'a> {
    /// No option given.
    Unsaid,
    /// The expiry that the record already has.
    Keep,
    /// No expiry.
    Persist,
    /// At a time, or after one, in this unit.
    Given { time: &'a [u8], unit: Unit, is_relative: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Millis,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition<'a> {
    Always,
    IfAbsent,
    IfPresent,
    /// If the value is this one.
    IfEqual(&'a [u8]),
}

#[derive(Debug)]
struct Options<'a> {
    expiry: Expiry<'a>,
    condition: Condition<'a>,
    wants_old: bool,
}

/// Reads the options that begin at word `from`. Some belong to `SET` alone, `PERSIST` to `GETEX`.
fn options<'a>(call: &Call<'a, '_>, from: usize, is_set: bool) -> Result<Options<'a>, Failure> {
    let mut options =
        Options { expiry: Expiry::Unsaid, condition: Condition::Always, wants_old: false };
    let mut words = call.words.from(from).peekable();
    while let Some(word) = words.next() {
        let is_unsaid = options.expiry == Expiry::Unsaid;
        let condition = if is_set { condition(word, &mut words)? } else { None };
        if let Some(condition) = condition {
            // The same condition may be repeated; a different one may not.
            if options.condition != Condition::Always && options.condition != condition {
                return Err(SYNTAX.into());
            }
            options.condition = condition;
        } else if is_set && is(word, "GET") {
            options.wants_old = true;
        } else if is_set && is(word, "KEEPTTL") && (is_unsaid || options.expiry == Expiry::Keep) {
            options.expiry = Expiry::Keep;
        } else if !is_set && is(word, "PERSIST") && (is_unsaid || options.expiry == Expiry::Persist)
        {
            options.expiry = Expiry::Persist;
        } else {
            let (unit, is_relative) = unit(word).ok_or(SYNTAX)?;
            // The same option may be repeated; a different one may not.
            let fits = match options.expiry {
                Expiry::Unsaid => true,
                Expiry::Given { unit: said, is_relative: relative, .. } => {
                    (said, relative) == (unit, is_relative)
                }
                Expiry::Keep | Expiry::Persist => false,
            };
            let time = words.next().filter(|_| fits).ok_or(SYNTAX)?;
            options.expiry = Expiry::Given { time, unit, is_relative };
        }
    }
    Ok(options)
}

/// The condition that this word begins, if any.
fn condition<'a>(
    word: &[u8],
    words: &mut impl Iterator<Item = &'a [u8]>,
) -> Result<Option<Condition<'a>>, Failure> {
    Ok(match word {
        _ if is(word, "NX") => Some(Condition::IfAbsent),
        _ if is(word, "XX") => Some(Condition::IfPresent),
        _ if is(word, "IFEQ") => Some(Condition::IfEqual(words.next().ok_or(SYNTAX)?)),
        _ => None,
    })
}

fn unit(word: &[u8]) -> Option<(Unit, bool)> {
    match word {
        _ if is(word, "EX") => Some((Unit::Seconds, true)),
        _ if is(word, "PX") => Some((Unit::Millis, true)),
        _ if is(word, "EXAT") => Some((Unit::Seconds, false)),
        _ if is(word, "PXAT") => Some((Unit::Millis, false)),
        _ => None,
    }
}

/// The time that `time` means.
fn moment(
    call: &Call<'_, '_>,
    time: &[u8],
    unit: Unit,
    is_relative: bool,
) -> Result<UnixMillis, Failure> {
    let bad = || Failure::from(format!("ERR invalid expire time in '{}' command", call.name));
    let time = parse_i64(time).ok_or(NOT_INTEGER)?;
    let now = i64::try_from(call.store.now().0).map_err(|_| bad())?;
    let millis = match unit {
        Unit::Seconds => time.checked_mul(1000),
        Unit::Millis => Some(time),
    };
    millis
        .filter(|millis| *millis > 0)
        .and_then(|millis| millis.checked_add(if is_relative { now } else { 0 }))
        .and_then(|millis| u64::try_from(millis).ok())
        .map(UnixMillis)
        .ok_or_else(bad)
}

/// `SET key value [NX|XX|IFEQ old] [GET] [EX s|PX ms|EXAT s|PXAT ms|KEEPTTL]`
pub(super) fn set(call: &mut Call<'_, '_>) -> Answer {
    let (key, value) = (call.word(1), call.word(2));
    if call.words.len() == 3 {
        call.store.put(key, value, None)?;
        call.reply.ok();
        return Ok(());
    }
    let options = options(call, 3, true)?;
    let expires_at = match options.expiry {
        Expiry::Given { time, unit, is_relative } => Some(moment(call, time, unit, is_relative)?),
        Expiry::Unsaid | Expiry::Keep | Expiry::Persist => None,
    };
    let compares = matches!(options.condition, Condition::IfEqual(_));
    if options.wants_old || options.expiry == Expiry::Keep || compares {
        return set_by_old(call, &options, expires_at);
    }
    let is_written = match options.condition {
        Condition::Always | Condition::IfEqual(_) => {
            call.store.put(key, value, expires_at)?;
            true
        }
        Condition::IfAbsent => call.store.put_if(key, false, value, expires_at)?,
        Condition::IfPresent => call.store.put_if(key, true, value, expires_at)?,
    };
    if is_written {
        call.reply.ok();
    } else {
        call.reply.null();
    }
    Ok(())
}

/// `SET` with an option for which the old record must be seen.
fn set_by_old(
    call: &mut Call<'_, '_>,
    options: &Options<'_>,
    expires_at: Option<UnixMillis>,
) -> Answer {
    let (key, value) = (call.word(1), call.word(2));
    let Call { store, reply, .. } = call;
    let start = reply.out.len();
    let keeps = options.expiry == Expiry::Keep;
    let is_written = store.modify(key, &mut |record| {
        if options.wants_old {
            answer_old(reply, start, record);
        }
        let fits = match options.condition {
            Condition::Always => true,
            Condition::IfAbsent => record.is_none(),
            Condition::IfPresent => record.is_some(),
            Condition::IfEqual(old) => record.is_some_and(|record| record.value.equals(old)),
        };
        if !fits {
            return Mutation::Keep;
        }
        let old_expiry = record.and_then(|record| record.expires_at);
        Mutation::Put {
            value: value.to_vec(),
            expires_at: if keeps { old_expiry } else { expires_at },
        }
    })?;
    if !options.wants_old {
        if is_written {
            call.reply.ok();
        } else {
            call.reply.null();
        }
    }
    Ok(())
}

/// `SETNX key value`
pub(super) fn set_if_absent(call: &mut Call<'_, '_>) -> Answer {
    let is_written = call.store.put_if(call.word(1), false, call.word(2), None)?;
    call.reply.truth(is_written);
    Ok(())
}

/// `SETEX key seconds value`
pub(super) fn set_seconds(call: &mut Call<'_, '_>) -> Answer {
    set_for(call, Unit::Seconds)
}

/// `PSETEX key milliseconds value`
pub(super) fn set_millis(call: &mut Call<'_, '_>) -> Answer {
    set_for(call, Unit::Millis)
}

fn set_for(call: &mut Call<'_, '_>, unit: Unit) -> Answer {
    let expires_at = moment(call, call.word(2), unit, true)?;
    call.store.put(call.word(1), call.word(3), Some(expires_at))?;
    call.reply.ok();
    Ok(())
}

/// `GETSET key value`
pub(super) fn get_set(call: &mut Call<'_, '_>) -> Answer {
    let options = Options { expiry: Expiry::Unsaid, condition: Condition::Always, wants_old: true };
    set_by_old(call, &options, None)
}

/// `GETEX key [EX s|PX ms|EXAT s|PXAT ms|PERSIST]`
pub(super) fn get_expire(call: &mut Call<'_, '_>) -> Answer {
    let key = call.word(1);
    let options = options(call, 2, false)?;
    if options.expiry == Expiry::Unsaid {
        return call.answer_value(key).map(drop);
    }
    // An invalid time does not matter where there is no record.
    let expires_at = match options.expiry {
        Expiry::Given { time, unit, is_relative } => {
            moment(call, time, unit, is_relative).map(Some)
        }
        _ => Ok(None),
    };
    let now = call.store.now();
    let Call { store, reply, .. } = call;
    let start = reply.out.len();
    let mut is_hit = false;
    store.modify(key, &mut |record| {
        is_hit = record.is_some();
        let Some(old) = record else {
            answer_old(reply, start, None);
            return Mutation::Keep;
        };
        answer_old(reply, start, Some(old));
        match &expires_at {
            Err(_) => Mutation::Keep,
            Ok(Some(at)) if *at <= now => Mutation::Delete,
            Ok(expiry) if *expiry == old.expires_at => Mutation::Keep,
            Ok(expiry) => Mutation::Expire(*expiry),
        }
    })?;
    match expires_at {
        Err(failure) if is_hit => Err(failure),
        _ => Ok(()),
    }
}
