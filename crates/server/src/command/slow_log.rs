//! The slow log, as clients see it.

use super::{Answer, Call};
use crate::resp::number::parse_i64;

/// `SLOWLOG GET [count]`, the newest first; -1: all
pub(super) fn get(call: &mut Call<'_, '_>) -> Answer {
    const BAD: &str = "ERR count should be greater than or equal to -1";
    let count = match call.words.len() {
        2 => 10,
        3 => match parse_i64(call.word(2)).ok_or(BAD)? {
            -1 => usize::MAX,
            count => usize::try_from(count).map_err(|_| BAD)?,
        },
        _ => return Err(call.wrong_arity()),
    };
    let slow = call.host.slow_log.newest(count);
    let reply = &mut call.reply;
    let int = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    reply.array(slow.len());
    for one in slow {
        reply.array(6);
        for number in [one.id, one.at, one.micros] {
            reply.int(int(number));
        }
        reply.array(one.words.len());
        one.words.iter().for_each(|word| reply.bulk(word));
        reply.bulk(one.address.as_bytes());
        reply.bulk(one.name.as_bytes());
    }
    Ok(())
}

/// `SLOWLOG LEN`
pub(super) fn len(call: &mut Call<'_, '_>) -> Answer {
    call.reply.count(call.host.slow_log.len());
    Ok(())
}

/// `SLOWLOG RESET`
pub(super) fn reset(call: &mut Call<'_, '_>) -> Answer {
    call.host.slow_log.reset();
    call.reply.ok();
    Ok(())
}

/// `SLOWLOG HELP`
pub(super) fn help(call: &mut Call<'_, '_>) -> Answer {
    call.reply.help(
        "SLOWLOG",
        &[
            "GET [<count>]",
            "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
            "    Entries are made of:",
            "    id, timestamp, time in microseconds, arguments array, client IP and port,",
            "    client name",
            "LEN",
            "    Return the length of the slowlog.",
            "RESET",
            "    Reset the slowlog.",
        ],
    );
    Ok(())
}
