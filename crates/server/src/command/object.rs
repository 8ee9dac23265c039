//! How a record would be kept in Redis.
//!
//! Everything here is one log record. What `OBJECT` says is what the same value would be in Redis
//! after a plain `SET`; times of access are not recorded, so nothing is ever called idle.

use super::{Answer, Call};
use crate::resp::number::parse_i64;

/// `OBJECT` alone.
pub(super) fn part_missing(call: &mut Call<'_, '_>) -> Answer {
    Err(call.unknown_subcommand())
}

/// `OBJECT ENCODING key`
pub(super) fn encoding(call: &mut Call<'_, '_>) -> Answer {
    const EMBEDDED_LEN_MAX: usize = 44;
    const INTEGER_LEN_MAX: usize = 20;
    let mut name = None;
    call.store.read(call.word(2), &mut |record| {
        let len = record.value.len();
        let is_integer = len <= INTEGER_LEN_MAX && parse_i64(&record.value.to_cow()).is_some();
        name = Some(match len {
            _ if is_integer => "int",
            0..=EMBEDDED_LEN_MAX => "embstr",
            _ => "raw",
        });
    })?;
    match name {
        Some(name) => call.reply.bulk(name.as_bytes()),
        None => call.reply.null(),
    }
    Ok(())
}

/// `OBJECT REFCOUNT key`
pub(super) fn reference_count(call: &mut Call<'_, '_>) -> Answer {
    answer_if_there(call, 1)
}

/// `OBJECT IDLETIME key`
pub(super) fn idle_time(call: &mut Call<'_, '_>) -> Answer {
    answer_if_there(call, 0)
}

/// `OBJECT FREQ key`
pub(super) fn frequency(call: &mut Call<'_, '_>) -> Answer {
    if !call.store.contains(call.word(2))? {
        call.reply.null();
        return Ok(());
    }
    Err("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
         that when switching between policies at runtime LRU and LFU data will take some time to \
         adjust."
        .into())
}

fn answer_if_there(call: &mut Call<'_, '_>, answer: i64) -> Answer {
    if call.store.contains(call.word(2))? {
        call.reply.int(answer);
    } else {
        call.reply.null();
    }
    Ok(())
}

/// `OBJECT HELP`
pub(super) fn help(call: &mut Call<'_, '_>) -> Answer {
    call.reply.help(
        "OBJECT",
        &[
            "ENCODING <key>",
            "    Return the kind of internal representation used in order to store the value",
            "    associated with a <key>.",
            "FREQ <key>",
            "    Return the access frequency index of the <key>. The returned integer is",
            "    proportional to the logarithm of the recent access frequency of the key.",
            "IDLETIME <key>",
            "    Return the idle time of the <key>, that is the approximated number of",
            "    seconds elapsed since the last access to the key.",
            "REFCOUNT <key>",
            "    Return the number of references of the value associated with the specified",
            "    <key>.",
        ],
    );
    Ok(())
}
