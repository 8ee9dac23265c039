//! The memory that a key takes.

use super::{Answer, Call, NOT_INTEGER, SYNTAX, is};
use crate::resp::number::parse_i64;

/// Bytes of a record before the key and the value, of an expiry, and of an entry in an index.
const HEAD_BYTES: usize = 20;
const EXPIRY_BYTES: usize = 8;
const INDEX_BYTES: usize = 8;

/// `MEMORY USAGE key [SAMPLES count]`: approximate bytes of its record in the pool and of its entry in the index
pub(super) fn usage(call: &mut Call<'_, '_>) -> Answer {
    match call.words.len() {
        3 => {}
        5 if is(call.word(3), "SAMPLES") => {
            // A value has no parts to sample.
            let samples = parse_i64(call.word(4)).ok_or(NOT_INTEGER)?;
            u64::try_from(samples).map_err(|_| SYNTAX)?;
        }
        _ => return Err(SYNTAX.into()),
    }
    let key = call.word(2);
    let mut len = HEAD_BYTES + key.len();
    let is_there = call.store.read(key, &mut |record| {
        let expiry = record.expires_at.map_or(0, |_| EXPIRY_BYTES);
        len += record.value.len() + expiry;
    })?;
    if is_there {
        call.reply.count(len.next_multiple_of(8) + INDEX_BYTES);
    } else {
        call.reply.null();
    }
    Ok(())
}

/// `MEMORY HELP`
pub(super) fn help(call: &mut Call<'_, '_>) -> Answer {
    call.reply.help(
        "MEMORY",
        &[
            "USAGE <key> [SAMPLES <count>]",
            "    Return the bytes that <key> and its value take in the pool and in the index,",
            "    about.",
        ],
    );
    Ok(())
}
