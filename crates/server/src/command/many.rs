//! Several strings at once.

use super::{Answer, Call};
use coreplane_engine::Batch;

/// `MGET key [key ...]`
pub(super) fn get(call: &mut Call<'_, '_>) -> Answer {
    let keys: Vec<&[u8]> = call.words.from(1).collect();
    let Call { store, reply, .. } = call;
    reply.array(keys.len());
    // The records may come in any order; whatever comes early is copied and kept.
    let mut next = 0;
    let mut early: Vec<(usize, Option<Vec<u8>>)> = Vec::new();
    store.read_many(&keys, &mut |index, record| {
        if index != next {
            early.push((index, record.map(|record| record.value.to_vec())));
            return;
        }
        match record {
            Some(record) => reply.value(&record.value),
            None => reply.null(),
        }
        next += 1;
        while let Some(place) = early.iter().position(|(index, _)| *index == next) {
            match early.swap_remove(place).1 {
                Some(value) => reply.bulk(&value),
                None => reply.null(),
            }
            next += 1;
        }
    })?;
    Ok(())
}

/// `MSET key value [key value ...]`
pub(super) fn set(call: &mut Call<'_, '_>) -> Answer {
    let batch = pairs(call)?;
    call.store.apply(batch)?;
    call.reply.ok();
    Ok(())
}

/// `MSETNX key value [key value ...]`, alone among the event loops
pub(super) fn set_if_absent(call: &mut Call<'_, '_>) -> Answer {
    let batch = pairs(call)?;
    for change in batch.changes() {
        if call.store.contains(change.key())? {
            call.reply.truth(false);
            return Ok(());
        }
    }
    call.store.apply(batch)?;
    call.reply.truth(true);
    Ok(())
}

fn pairs(call: &Call<'_, '_>) -> Result<Batch, super::Failure> {
    if call.words.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    let bytes = call.words.from(1).map(<[u8]>::len).sum();
    let mut batch = Batch::with_capacity(call.words.len() / 2, bytes);
    let mut words = call.words.from(1);
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        batch.put(key, value);
    }
    Ok(batch)
}
