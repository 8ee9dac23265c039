//! Keys, independent of their values: existence, deletion, renaming, copying.
//!
//! A command that reads some keys and then writes others does both in one leadership of a cluster's node. Otherwise
//! the write is refused, and the command is run again.

use super::connection::check_database;
use super::{Answer, Call, Failure, NO_SUCH_KEY, SYNTAX, is, many};
use crate::continuation::Kind;
use coreplane_engine::Batch;

/// `EXISTS key [key ...]`, `TOUCH key [key ...]`: a key named twice counts twice; of very many keys in slices
pub(super) fn exists(call: &mut Call<'_, '_>) -> Answer {
    let mut count = 0;
    if call.words.len() == 2 {
        count = usize::from(call.store.contains(call.word(1))?);
    } else if many::goes_in_slices(call, many::AT_ONCE_KEYS) {
        return many::read_in_slices(call, Kind::Count);
    } else {
        let keys: Vec<&[u8]> = call.words.from(1).collect();
        call.store.read_many(&keys, &mut |_, record| count += usize::from(record.is_some()))?;
    }
    call.reply.count(count);
    Ok(())
}

/// `TYPE key`
pub(super) fn kind(call: &mut Call<'_, '_>) -> Answer {
    let is_there = call.store.contains(call.word(1))?;
    call.reply.status(if is_there { "string" } else { "none" });
    Ok(())
}

/// `RENAME key newkey`, alone among the event loops
pub(super) fn rename(call: &mut Call<'_, '_>) -> Answer {
    if call.word(1) == call.word(2) {
        if !call.store.contains(call.word(1))? {
            return Err(NO_SUCH_KEY.into());
        }
    } else {
        let leadership = call.store.leaderships();
        let batch = transfer(call, true)?.ok_or(NO_SUCH_KEY)?;
        call.store.apply_within(leadership, batch)?;
    }
    call.reply.ok();
    Ok(())
}

/// `RENAMENX key newkey`, alone among the event loops
pub(super) fn rename_if_absent(call: &mut Call<'_, '_>) -> Answer {
    let leadership = call.store.leaderships();
    let batch = transfer(call, true)?.ok_or(NO_SUCH_KEY)?;
    let is_free = !call.store.contains(call.word(2))?;
    if is_free {
        call.store.apply_within(leadership, batch)?;
    }
    call.reply.truth(is_free);
    Ok(())
}

/// `COPY source destination [DB destination-db] [REPLACE]`, alone among the event loops
pub(super) fn copy(call: &mut Call<'_, '_>) -> Answer {
    let mut replaces = false;
    let mut words = call.words.from(3);
    while let Some(word) = words.next() {
        if is(word, "REPLACE") {
            replaces = true;
        } else if is(word, "DB") {
            check_database(words.next().ok_or(SYNTAX)?)?;
        } else {
            return Err(SYNTAX.into());
        }
    }
    if call.word(1) == call.word(2) {
        return Err("ERR source and destination objects are the same".into());
    }
    let leadership = call.store.leaderships();
    let batch = transfer(call, false)?;
    let is_free = replaces || !call.store.contains(call.word(2))?;
    let batch = batch.filter(|_| is_free);
    call.reply.truth(batch.is_some());
    if let Some(batch) = batch {
        call.store.apply_within(leadership, batch)?;
    }
    Ok(())
}

/// The changes that write the record of word 1, with its expiry, under word 2 and, for a move, delete the original;
/// none if there is no record.
fn transfer(call: &mut Call<'_, '_>, moves: bool) -> Result<Option<Batch>, Failure> {
    let (from, to) = (call.word(1), call.word(2));
    let mut batch = Batch::new();
    let is_there = call.store.read(from, &mut |record| {
        batch.put_until(to, &record.value.to_vec(), record.expires_at);
    })?;
    if moves && from != to {
        batch.delete(from);
    }
    Ok(is_there.then_some(batch))
}
