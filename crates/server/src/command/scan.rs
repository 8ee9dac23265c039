//! Iteration over the keys.

use super::{Answer, Call, Failure, SYNTAX, is};
use crate::continuation::{Continuation, Listing, Wanted};
use crate::resp::number::{parse_cursor, parse_i64};
use crate::resp::reply::Reply;
use crate::store::Drawn;

/// `KEYS pattern`, in slices. As long as it takes only one slice it is alone among the event loops; a longer one may
/// show what others write meanwhile, as `SCAN` does
pub(super) fn keys(call: &mut Call<'_, '_>) -> Answer {
    let wanted = Wanted::new(Some(call.word(1)), true)?;
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
    let wanted = Wanted::new(pattern, is_kind)?;
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

/// `RANDOMKEY`, in slices where hardly any place has a record
pub(super) fn random_key(call: &mut Call<'_, '_>) -> Answer {
    call.slice.charge();
    let drawn = match call.session.continuation.take() {
        Some(Continuation::Walk(walk)) => Drawn::Walk(walk),
        _ => call.store.draw()?,
    };
    let key = match drawn {
        Drawn::Key(key) => key,
        Drawn::Walk(mut walk) => loop {
            if call.is_out_of_time() {
                return call.suspend(Continuation::Walk(walk));
            }
            match call.store.walk_on(&mut walk) {
                Ok(Some(key)) => break key,
                Ok(None) => {}
                Err(error) => return Err(call.keep(Continuation::Walk(walk), error)),
            }
        },
    };
    call.store.rest_on_all();
    match key {
        Some(key) => call.reply.bulk(&key),
        None => call.reply.null(),
    }
    Ok(())
}
