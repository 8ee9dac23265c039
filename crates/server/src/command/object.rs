//! The representation that a record would have in Redis.
//!
//! Every record here is a log record. `OBJECT` answers the representation that the same value would have in Redis
//! after a plain `SET`. Neither the frequency of reads nor their times are recorded: that would be a write in every
//! read. Redis records one of the two and refuses to report the other; here both are refused.

use super::{Answer, Call};
use crate::resp::number::parse_i64;

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
    if call.store.contains(call.word(2))? {
        call.reply.int(1);
    } else {
        call.reply.null();
    }
    Ok(())
}

/// `OBJECT IDLETIME key`
pub(super) fn idle_time(call: &mut Call<'_, '_>) -> Answer {
    refuse_if_there(call, "ERR Idle time not tracked: times of access are not recorded.")
}

/// `OBJECT FREQ key`
pub(super) fn frequency(call: &mut Call<'_, '_>) -> Answer {
    const TEXT: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. \
        Please note that when switching between policies at runtime LRU and LFU data will take \
        some time to adjust.";
    refuse_if_there(call, TEXT)
}

fn refuse_if_there(call: &mut Call<'_, '_>, text: &'static str) -> Answer {
    if call.store.contains(call.word(2))? {
        return Err(text.into());
    }
    call.reply.null();
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
            "    Refused: accesses are not counted.",
            "IDLETIME <key>",
            "    Refused: times of access are not recorded.",
            "REFCOUNT <key>",
            "    Return the number of references of the value associated with the specified",
            "    <key>.",
        ],
    );
    Ok(())
}
