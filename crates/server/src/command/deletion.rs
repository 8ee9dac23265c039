//! `DEL` and `UNLINK`, of any number of keys.
//!
//! Where a write is made durable by a call, keys that exceed one batch go in several batches, one after the other in
//! the same turn, and no other command comes between. In a cluster a batch is an entry, only a limited amount may
//! be pending, and an entry of very many keys delays the heartbeats of the leader. So more keys than fit one step go
//! in several turns there, with the command postponed between them, and other clients see the deletion step by step.
//! The command is answered once, when the last step is committed. All steps belong to one leadership, or the answer
//! is `INDETERMINATE`.

use super::{Answer, Call, Failure, engine_error_text};
use crate::continuation::{Continuation, Deletion};
use coreplane_engine::{Batch, Error, Limits};

/// Limits of a step, in keys and bytes: it delays a heartbeat by no more than a large value does.
const STEP_KEYS: usize = 8 << 10;
const STEP_BYTES: usize = 2 << 20;

/// `DEL key [key ...]`, `UNLINK key [key ...]`: several keys alone among the event loops; in a cluster more than 8192
/// of them, or 2 MiB, go in several steps, which other clients may see
pub(super) fn delete(call: &mut Call<'_, '_>) -> Answer {
    if call.words.len() == 2 {
        let was_there = call.store.delete(call.word(1))?;
        call.reply.truth(was_there);
        return Ok(());
    }
    if let Some(Continuation::Deletion(deletion)) = call.session.continuation.take() {
        return go_on(call, deletion);
    }
    call.slice.charge();
    let limits = call.host.engine.limits();
    let step = step_of(&limits);
    let goes_in_steps = call.host.engine.settles_by_itself() && !call.store.keeps_back();
    let is_one = call.words.len() - 1 <= step.0
        && call.words.from(1).map(<[u8]>::len).sum::<usize>() <= step.1;
    if is_one || !goes_in_steps {
        let keys: Vec<&[u8]> = call.words.from(1).collect();
        match delete_at_once(call, &keys, &limits) {
            // As many records as are deleted need space until the entry is applied.
            Err(Error::NoSpace { .. }) if goes_in_steps => {}
            deleted => {
                call.reply.count(deleted?);
                return Ok(());
            }
        }
    }
    let leadership = call.host.engine.leaderships();
    go_on(call, Deletion { next: 1, deleted: 0, leadership })
}

/// Keys of a step, and their bytes, at most.
fn step_of(limits: &Limits) -> (usize, usize) {
    (limits.batch_len_max.min(STEP_KEYS), limits.batch_bytes_max.min(STEP_BYTES))
}

/// Deletes the keys that exist, in this turn; their number.
fn delete_at_once(
    call: &mut Call<'_, '_>,
    keys: &[&[u8]],
    limits: &Limits,
) -> coreplane_engine::Result<usize> {
    let leadership = call.store.leaderships();
    let mut is_there = vec![false; keys.len()];
    call.store.read_many(keys, &mut |index, record| {
        if let Some(place) = is_there.get_mut(index) {
            *place = record.is_some();
        }
    })?;
    let mut found: Vec<&[u8]> =
        keys.iter().zip(&is_there).filter_map(|(key, is_there)| is_there.then_some(*key)).collect();
    found.sort_unstable();
    found.dedup();
    let mut rest = &found[..];
    while !rest.is_empty() {
        let (keys, others) =
            rest.split_at(fitting(rest, limits.batch_len_max, limits.batch_bytes_max));
        let mut batch = Batch::with_capacity(keys.len(), bytes_of(keys));
        for key in keys {
            batch.delete(key);
        }
        call.store.apply_within(leadership, batch)?;
        rest = others;
    }
    Ok(found.len())
}

/// Executes the next steps.
fn go_on(call: &mut Call<'_, '_>, mut deletion: Deletion) -> Answer {
    while deletion.next < call.words.len() {
        if !call.slice.has_time() {
            return call.suspend(Continuation::Deletion(deletion));
        }
        let step = make_step(call, &mut deletion);
        if step.is_err() {
            if deletion.deleted > 0 {
                // The failure reports how many keys were deleted before.
                call.store.rest_on_all();
            }
            // Otherwise the command waits for the engine.
            call.session.continuation = Some(Continuation::Deletion(deletion));
            return step;
        }
    }
    call.store.rest_on_all();
    call.reply.count(deletion.deleted);
    Ok(())
}

fn make_step(call: &mut Call<'_, '_>, deletion: &mut Deletion) -> Answer {
    let Call { store, host, words, .. } = call;
    if deletion.leadership != host.engine.leaderships() {
        return Err(Error::Indeterminate.into());
    }
    let most = step_of(&host.engine.limits());
    let keys: Vec<&[u8]> = words.from(deletion.next).take(most.0).collect();
    let mut count = fitting(&keys, most.0, most.1);
    let deleted = loop {
        // A key of an earlier step is absent by now, unless another client has made it again.
        let mut keys = keys.get(..count).unwrap_or_default().to_vec();
        keys.sort_unstable();
        keys.dedup();
        match store.delete_step(deletion.leadership, &keys) {
            Err(Error::NoSpace { .. }) if count > 1 => count = (count / 8).max(1),
            deleted => break deleted?,
        }
    };
    deletion.deleted += deleted;
    deletion.next += count;
    Ok(())
}

/// Why a deletion ended halfway.
pub(super) fn cut_short(deletion: &Deletion, failure: Failure) -> Failure {
    match failure {
        // The outcome of the proposed keys is as uncertain as this error says.
        Failure::Engine(error)
            if deletion.deleted > 0 && !matches!(error, Error::Indeterminate) =>
        {
            let text = engine_error_text(&error);
            format!("{text}; {} keys were deleted before", deletion.deleted).into()
        }
        failure => failure,
    }
}

fn bytes_of(keys: &[&[u8]]) -> usize {
    keys.iter().map(|key| key.len()).sum()
}

/// The number of leading keys that fit a batch of so many changes and bytes; at least one, which the engine refuses
/// if it is too long.
fn fitting(keys: &[&[u8]], len_max: usize, bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |key: &&&[u8]| {
        bytes += key.len();
        bytes <= bytes_max
    };
    keys.iter().take(len_max).take_while(fits).count().max(1)
}
