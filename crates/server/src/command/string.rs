//! Whole strings and parts of them.

use super::{Answer, Call};
use crate::resp::reply::Reply;
use coreplane_engine::{Mutation, Record, Value};
use std::sync::atomic::Ordering;

/// `GET key`
pub(super) fn get(call: &mut Call<'_, '_>) -> Answer {
    call.answer_value(call.word(1)).map(drop)
}

/// `STRLEN key`
pub(super) fn length(call: &mut Call<'_, '_>) -> Answer {
    let mut len = 0;
    call.store.read(call.word(1), &mut |record| len = record.value.len())?;
    call.reply.count(len);
    Ok(())
}

/// `GETDEL key`
pub(super) fn get_delete(call: &mut Call<'_, '_>) -> Answer {
    let key = call.word(1);
    let Call { store, reply, .. } = call;
    let start = reply.out.len();
    store.modify(key, &mut |record| {
        answer_old(reply, start, record);
        Mutation::Delete
    })?;
    Ok(())
}

/// Writes the value of `record` or null at `start`, in place of the output of an earlier run of the same decision.
pub(super) fn answer_old(reply: &mut Reply<'_>, start: usize, record: Option<Record<'_>>) {
    reply.out.truncate(start);
    match record {
        Some(record) => reply.value(&record.value),
        None => reply.null(),
    }
}

/// `APPEND key value`
pub(super) fn append(call: &mut Call<'_, '_>) -> Answer {
    let tail = call.word(2);
    rewrite(call, &|len| len.saturating_add(tail.len()), &|value| value.extend_from_slice(tail))
}

/// `SETRANGE key offset value`
pub(super) fn set_range(call: &mut Call<'_, '_>) -> Answer {
    let offset = call.integer(2)?;
    let patch = call.word(3);
    let Ok(offset) = usize::try_from(offset) else {
        return Err("ERR offset is out of range".into());
    };
    if patch.is_empty() {
        return length(call);
    }
    let end = offset.saturating_add(patch.len());
    rewrite(call, &|_| end, &|value| {
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(patch);
    })
}

/// Writes a copy of the value of the key as `change` makes it, and answers with its length. The change needs as many
/// bytes as `needed` says for a value of so many. A string that is too long is refused before it is made.
fn rewrite(
    call: &mut Call<'_, '_>,
    needed: &dyn Fn(usize) -> usize,
    change: &dyn Fn(&mut Vec<u8>),
) -> Answer {
    // Other clients wait while a copy of so many bytes is made.
    const CHARGED: usize = 64 << 10;
    let (key, host) = (call.word(1), call.host);
    let bulk_len_max = host.settings.bulk_len_max.load(Ordering::Relaxed);
    let value_len_max = host.engine.limits().value_len_max;
    let Call { store, slice, .. } = call;
    let mut outcome = Ok(0);
    store.modify(key, &mut |record| {
        let len = record.as_ref().map_or(0, |record| record.value.len());
        let needed = needed(len);
        if needed as u64 > bulk_len_max {
            outcome = Err("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
            return Mutation::Keep;
        } else if needed > value_len_max {
            outcome = Err("ERR string exceeds maximum allowed size (of a value in this store)");
            return Mutation::Keep;
        }
        if len.max(needed) > CHARGED {
            slice.charge();
        }
        let mut value = Vec::with_capacity(len.max(needed));
        let expires_at = record.and_then(|record| {
            record.value.append_to(&mut value);
            record.expires_at
        });
        change(&mut value);
        outcome = Ok(value.len());
        Mutation::Put { value, expires_at }
    })?;
    call.reply.count(outcome?);
    Ok(())
}

/// `GETRANGE key start end`, `SUBSTR key start end`
pub(super) fn get_range(call: &mut Call<'_, '_>) -> Answer {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let key = call.word(1);
    let Call { store, reply, .. } = call;
    let hit = store.read(key, &mut |record| match range(start, end, record.value.len()) {
        Some((first, last)) => answer_part(reply, &record.value, first, last),
        None => reply.bulk(b""),
    })?;
    if !hit {
        reply.bulk(b"");
    }
    Ok(())
}

/// The first byte and the one after the last of `start..=end` in a string of `len` bytes, where
/// negative numbers count from its end; none if nothing is left.
fn range(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    let len = i64::try_from(len).ok()?;
    if start < 0 && end < 0 && start > end {
        return None;
    }
    let from_end = |index: i64| {
        if index < 0 { (index.saturating_add(len)).max(0) } else { index }
    };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    if start > end || len == 0 {
        return None;
    }
    Some((usize::try_from(start).ok()?, usize::try_from(end).ok()? + 1))
}

fn answer_part(reply: &mut Reply<'_>, value: &Value<'_>, first: usize, last: usize) {
    if let Value::Whole(bytes) = value {
        return reply.bulk(&bytes[first..last]);
    }
    let mut part = Vec::with_capacity(last - first);
    let mut at = 0;
    for piece in value.pieces() {
        let (from, to) = (first.max(at), last.min(at + piece.len()));
        if from < to {
            part.extend_from_slice(&piece[from - at..to - at]);
        }
        at += piece.len();
    }
    reply.bulk(&part);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resp::reply::Proto;

    #[test]
    fn ranges_count_from_both_ends() {
        assert_eq!(range(0, -1, 5), Some((0, 5)));
        assert_eq!(range(-3, -1, 5), Some((2, 5)));
        assert_eq!(range(1, 100, 5), Some((1, 5)));
        assert_eq!(range(-100, 1, 5), Some((0, 2)));
        assert_eq!(range(3, 2, 5), None);
        assert_eq!(range(5, 10, 5), None);
        assert_eq!(range(-1, -3, 5), None);
        assert_eq!(range(0, -1, 0), None);
        assert_eq!(range(i64::MIN, i64::MAX, 5), Some((0, 5)));
    }

    #[test]
    fn parts_of_values_in_pieces() {
        let pieces: [&[u8]; 3] = [b"abc", b"", b"defg"];
        let mut out = Vec::new();
        let mut reply = Reply { out: &mut out, proto: Proto::Two };
        answer_part(&mut reply, &Value::Pieces(&pieces), 2, 5);
        assert_eq!(out, b"$3\r\ncde\r\n");
    }
}
