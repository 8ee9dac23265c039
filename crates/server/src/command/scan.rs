//! Iteration over the keys.

use super::{Answer, Call, Failure, SYNTAX, is};
use crate::continuation::{Continuation, Listing, Wanted};
use crate::resp::number::{parse_cursor, parse_i64};
use crate::resp::reply::Reply;
use crate::store::Store;
use std::hash::{BuildHasher, RandomState};

/// `KEYS pattern`, in slices. As long as it takes only one slice it is alone among the event loops; a longer one may
/// show what others write meanwhile, as `SCAN` does
pub(super) fn keys(call: &mut Call<'_, '_>) -> Answer {
    let wanted = Wanted::new(Some(call.word(1)), true);
    let listing = match call.session.continuation.take() {
        Some(Continuation::Listing(listing)) => listing,
        _ => Box::new(Listing::of_all(call.store.leaderships())),
    };
    let is_first = call.may_slice && !listing.has_begun();
    if is_first && call.is_out_of_time() {
        return call.suspend(Continuation::Listing(listing));
    }
    let alone = is_first.then(|| call.host.isolation.alone(call.member));
    let listed = list(call, listing, wanted, is_first);
    drop(alone);
    match listed? {
        Some(listing) => call.answer_in_pieces(listing.into_answer(Vec::new())),
        None => Ok(()),
    }
}

/// Reads records until the listing is complete; none if no client will receive it. `has_time`: for a first step, for
/// which the time was checked already.
fn list(
    call: &mut Call<'_, '_>,
    mut listing: Box<Listing>,
    wanted: Wanted<'_>,
    mut has_time: bool,
) -> Result<Option<Box<Listing>>, Failure> {
    loop {
        if !std::mem::take(&mut has_time) && call.is_out_of_time() {
            call.suspend(Continuation::Listing(listing))?;
            return Ok(None);
        }
        match listing.step(call.store, wanted) {
            Ok(true) => return Ok(Some(listing)),
            Ok(false) => {}
            Err(error) => return Err(call.keep(Continuation::Listing(listing), error)),
        }
        if call.is_over_output_limit(listing.bytes()) {
            return Ok(None);
        }
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`, in slices if it reads many records
pub(super) fn scan(call: &mut Call<'_, '_>) -> Answer {
    let cursor = parse_cursor(call.word(1)).ok_or("ERR invalid cursor")?;
    let (mut pattern, mut count, mut is_kind) = (None, 10, true);
    let mut words = call.words.from(2);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(SYNTAX)?;
        if is(word, "COUNT") {
            count = scan_count(value)?;
        } else if is(word, "MATCH") {
            pattern = Some(value);
        } else if is(word, "TYPE") {
            // All records are strings.
            is_kind = is(value, "STRING");
        } else {
            return Err(SYNTAX.into());
        }
    }
    let listing = match call.session.continuation.take() {
        Some(Continuation::Listing(listing)) => listing,
        _ => Box::new(Listing::from(cursor, count, call.store.leaderships())),
    };
    let wanted = Wanted::new(pattern, is_kind);
    let Some(listing) = list(call, listing, wanted, false)? else { return Ok(()) };
    let mut head = Vec::new();
    let mut reply = Reply { out: &mut head, proto: call.reply.proto };
    reply.array(2);
    reply.bulk(itoa::Buffer::new().format(listing.cursor()).as_bytes());
    call.answer_in_pieces(listing.into_answer(head))
}

fn scan_count(value: &[u8]) -> Result<usize, Failure> {
    let count = parse_i64(value).ok_or(super::NOT_INTEGER)?;
    if count < 1 {
        return Err(SYNTAX.into());
    }
    Ok(usize::try_from(count).unwrap_or(usize::MAX))
}

/// `RANDOMKEY`
pub(super) fn random_key(call: &mut Call<'_, '_>) -> Answer {
    let random = RandomState::new().hash_one(call.store.now().0);
    let drawn = match call.store.is_ordered() {
        true => draw_of_ordered(call.store)?,
        false => draw_by_cursor(call.store, random)?,
    };
    call.store.rest_on_all();
    match drawn {
        Some(key) => call.reply.bulk(&key),
        None => call.reply.null(),
    }
    Ok(())
}

/// Draws a key byte by byte. Each step draws a value between the least and the greatest byte that follow the prefix
/// drawn so far, and takes the next byte that exists. Every key may be drawn; where all values of a byte exist,
/// equally often.
fn draw_of_ordered(store: &mut Store<'_>) -> Result<Option<Vec<u8>>, Failure> {
    let draw = RandomState::new();
    let mut prefix = Vec::new();
    loop {
        let end = coreplane_engine::end_of_prefix(&prefix);
        let first = store.end_of_range((&prefix, end.as_deref()), false)?;
        let last = store.end_of_range((&prefix, end.as_deref()), true)?;
        let (Some(first), Some(last)) = (first, last) else { return Ok(None) };
        let shared = first.iter().zip(&last).take_while(|(a, b)| a == b).count();
        let Some(greatest) = last.get(shared) else { return Ok(Some(first)) };
        // The first key may be the shared prefix itself, which is one more choice.
        let (is_one, least) = first.get(shared).map_or((true, 0), |least| (false, *least));
        let choices = u64::from(greatest.saturating_sub(least)) + 1 + u64::from(is_one);
        let drawn = draw.hash_one(prefix.as_slice()) % choices;
        let Some(above) = drawn.checked_sub(u64::from(is_one)) else { return Ok(Some(first)) };
        let value = least.saturating_add(u8::try_from(above).unwrap_or(u8::MAX));
        let start = [last.get(..shared).unwrap_or_default(), &[value]].concat();
        let next = store.end_of_range((&start, end.as_deref()), false)?;
        // Others may write meanwhile.
        let Some(next) = next.filter(|next| next.len() > shared) else { return Ok(Some(first)) };
        prefix = next;
        prefix.truncate(shared + 1);
    }
}

/// Draws one of the keys behind a random cursor.
fn draw_by_cursor(store: &mut Store<'_>, random: u64) -> Result<Option<Vec<u8>>, Failure> {
    const CHOICE: usize = 16;
    // An engine's cursors may end far below the largest number: try shorter and shorter ones.
    let starts = (0..u64::BITS).map(|bits| random >> bits).chain([0]);
    let mut keys = Vec::new();
    for start in starts {
        let mut cursor = start;
        while keys.is_empty() {
            cursor = store.iterate(cursor, CHOICE, &mut |entry| {
                if entry.record.is_some() {
                    keys.push(entry.key.to_vec());
                }
            })?;
            if cursor == 0 {
                break;
            }
        }
        if !keys.is_empty() {
            break;
        }
    }
    let choice = random.rotate_left(32).checked_rem(keys.len() as u64);
    let chosen = choice.and_then(|index| usize::try_from(index).ok());
    Ok(chosen.filter(|index| *index < keys.len()).map(|index| keys.swap_remove(index)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::WatchedAbsences;
    use coreplane_conformance::model::ModelEngine;
    use coreplane_engine::{Engine, Horizon, WriteOptions};
    use std::collections::BTreeMap;

    fn draws(keys: &[Vec<u8>], times: usize) -> BTreeMap<Vec<u8>, usize> {
        let engine = ModelEngine::new();
        for key in keys {
            let put = engine.put(key, b"v", &WriteOptions::default()).expect("put");
            assert!(put.is_written());
        }
        let (watched, mut horizon) = (WatchedAbsences::default(), Horizon::new());
        let mut store = Store::new(&engine, &watched, &mut horizon, true);
        let mut drawn = BTreeMap::new();
        for _ in 0..times {
            if let Ok(Some(key)) = draw_of_ordered(&mut store) {
                *drawn.entry(key).or_default() += 1;
            }
        }
        drawn
    }

    #[test]
    fn any_key_of_an_ordered_engine_is_drawn() {
        let numbers: Vec<_> = (0..1000).map(|at| format!("key:{at:06}").into_bytes()).collect();
        let drawn = draws(&numbers, 10_000);
        assert!(drawn.len() > 990 && drawn.values().all(|times| *times < 40), "{}", drawn.len());
        let nested: Vec<_> = ["", "a", "aa", "aaa", "aab", "b"].map(Vec::from).to_vec();
        assert_eq!(draws(&nested, 1_000).len(), nested.len());
        assert!(draws(&[], 10).is_empty());
        assert_eq!(draws(&[vec![255; 100]], 10).len(), 1);
    }
}
