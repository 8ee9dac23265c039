//! Several strings at once.

use super::{Answer, Call};
use crate::continuation::{Continuation, Kind, ManyKeys, Pieces};
use coreplane_engine::Batch;

/// Reads of more keys go in slices.
pub(super) const AT_ONCE_KEYS: usize = 512;

/// `MGET key [key ...]`: very many keys, or very long answers, in slices
pub(super) fn get(call: &mut Call<'_, '_>) -> Answer {
    let kind = Kind::Values(call.reply.proto);
    let at_once = if call.session.reads_much { 1 } else { AT_ONCE_KEYS };
    if goes_in_slices(call, at_once) {
        return read_in_slices(call, kind);
    }
    if call.words.len() > 64 {
        call.slice.charge();
    }
    let start = call.reply.out.len();
    let most = match call.may_slice {
        true => start.saturating_add(Pieces::OUTPUT_MAX),
        false => call.output_max,
    };
    let keys: Vec<&[u8]> = call.words.from(1).collect();
    let Call { store, reply, .. } = call;
    reply.array(keys.len());
    // The records may come in any order; early ones are copied and kept.
    let mut next = 0;
    let mut early: Vec<(usize, Option<Vec<u8>>)> = Vec::new();
    let mut bytes = 0;
    store.read_many(&keys, &mut |index, record| {
        if start.saturating_add(bytes) > most {
            return;
        }
        bytes += record.as_ref().map_or(0, |record| record.value.len());
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
    if next == keys.len() {
        return Ok(());
    }
    // The answer was not completed.
    call.reply.out.truncate(start);
    if !call.may_slice {
        call.is_over_output_limit(bytes);
        return Ok(());
    }
    call.session.reads_much = true;
    read_in_slices(call, kind)
}

/// True if a command that reads more keys than `at_once` does so in slices, or has begun to.
pub(super) fn goes_in_slices(call: &Call<'_, '_>, at_once: usize) -> bool {
    call.may_slice && (call.session.continuation.is_some() || call.words.len() > at_once + 1)
}

/// Reads the keys, which are the words from the second on, as they are at one moment.
pub(super) fn read_in_slices(call: &mut Call<'_, '_>, kind: Kind) -> Answer {
    let keys = call.words.len().saturating_sub(1);
    let mut many = match call.session.continuation.take() {
        Some(Continuation::ManyKeys(many)) => many,
        _ => Box::new(ManyKeys::begin(kind, keys, call.host, call.member)),
    };
    let Call { store, words, host, member, slice, .. } = call;
    let is_complete = match many.read_on((store, *words), (host, *member), slice) {
        Ok(is_complete) => is_complete,
        Err(error) => return Err(call.keep(Continuation::ManyKeys(many), error)),
    };
    if is_complete && kind != Kind::Count {
        call.session.reads_much = many.is_much();
    }
    let is_over =
        is_complete && (call.session.is_muted() || many.answer(&mut call.reply, call.slice));
    if is_over { Ok(()) } else { call.suspend(Continuation::ManyKeys(many)) }
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
    // Before the reads: the keys are absent when they are written, or the command is run again.
    let leadership = call.store.leaderships();
    for change in batch.changes() {
        if call.store.contains(change.key())? {
            call.reply.truth(false);
            return Ok(());
        }
    }
    call.store.apply_within(leadership, batch)?;
    call.reply.truth(true);
    Ok(())
}

fn pairs(call: &mut Call<'_, '_>) -> Result<Batch, super::Failure> {
    if call.words.len().is_multiple_of(2) {
        return Err(call.wrong_arity());
    }
    if call.words.len() > 64 {
        call.slice.charge();
    }
    let bytes = call.words.from(1).map(<[u8]>::len).sum();
    let mut batch = Batch::with_capacity(call.words.len() / 2, bytes);
    let mut words = call.words.from(1);
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        batch.put(key, value);
    }
    Ok(batch)
}
