//! Numbers that are counted up and down.

use super::long_double::LongDouble;
use super::{Answer, Call, Failure, NOT_INTEGER};
use crate::resp::number::parse_i64;
use coreplane_engine::{Mutation, Record};

/// `INCR key`
pub(super) fn increment(call: &mut Call<'_, '_>) -> Answer {
    add(call, 1)
}

/// `DECR key`
pub(super) fn decrement(call: &mut Call<'_, '_>) -> Answer {
    add(call, -1)
}

/// `INCRBY key increment`
pub(super) fn increment_by(call: &mut Call<'_, '_>) -> Answer {
    let more = call.integer(2)?;
    add(call, more)
}

/// `DECRBY key decrement`
pub(super) fn decrement_by(call: &mut Call<'_, '_>) -> Answer {
    let less = call.integer(2)?;
    let more = less.checked_neg().ok_or("ERR decrement would overflow")?;
    add(call, more)
}

fn add(call: &mut Call<'_, '_>, more: i64) -> Answer {
    let mut outcome: Result<i64, &'static str> = Ok(0);
    call.store.modify(call.word(1), &mut |record| {
        outcome = integer(&record).and_then(|value| {
            value.checked_add(more).ok_or("ERR increment or decrement would overflow")
        });
        match outcome {
            Ok(sum) => Mutation::Put {
                value: itoa::Buffer::new().format(sum).as_bytes().to_vec(),
                expires_at: record.and_then(|record| record.expires_at),
            },
            Err(_) => Mutation::Keep,
        }
    })?;
    call.reply.int(outcome?);
    Ok(())
}

/// The record's value as an integer; 0 if there is none.
fn integer(record: &Option<Record<'_>>) -> Result<i64, &'static str> {
    match record {
        Some(record) => parse_i64(&record.value.to_cow()).ok_or(NOT_INTEGER),
        None => Ok(0),
    }
}

const NOT_FLOAT: &str = "ERR value is not a valid float";

/// `INCRBYFLOAT key increment`
pub(super) fn increment_by_float(call: &mut Call<'_, '_>) -> Answer {
    let by = call.word(2);
    let mut outcome: Result<Vec<u8>, Failure> = Err(NOT_FLOAT.into());
    call.store.modify(call.word(1), &mut |record| {
        outcome = sum(&record, by);
        match &outcome {
            Ok(text) => Mutation::Put {
                value: text.clone(),
                expires_at: record.and_then(|record| record.expires_at),
            },
            Err(_) => Mutation::Keep,
        }
    })?;
    call.reply.bulk(&outcome?);
    Ok(())
}

/// The record's value plus `by`, in digits. The value is looked at first, as Redis does.
fn sum(record: &Option<Record<'_>>, by: &[u8]) -> Result<Vec<u8>, Failure> {
    let value = match record {
        Some(record) => LongDouble::parse(&record.value.to_cow()).ok_or(NOT_FLOAT)?,
        None => LongDouble::ZERO,
    };
    let by = LongDouble::parse(by).ok_or(NOT_FLOAT)?;
    let sum = value.add(&by).ok_or("ERR increment would produce NaN or Infinity")?;
    Ok(sum.to_text().into_bytes())
}
