//! A lookup of a key that devices compete for.
//!
//! Only devices that have the newest record of the key take part ([`in_flight`](crate::in_flight)).
//!
//! A thread uses its hedged reads again, unless a late device still has one in its ring: then that read stays there
//! until the device takes it.

use super::{HedgedRead, run};
use crate::device::Device;
use crate::group::Group;
use coreplane_engine::{Found, Record, Result, Ticket};
use coreplane_pmem::spin;
use std::cell::RefCell;
use std::sync::Arc;

/// Hedged reads that a thread keeps.
const KEPT: usize = 8;

thread_local! {
    static RACES: RefCell<Vec<Arc<HedgedRead>>> = const { RefCell::new(Vec::new()) };
}

/// A hedged read of this thread, for a key.
fn begin(group: &Arc<Group>, hash: u64, key: &[u8]) -> Arc<HedgedRead> {
    let mut race = RACES.with_borrow_mut(|races| {
        let at = races.iter_mut().position(|race| Arc::get_mut(race).is_some());
        at.map(|at| races.swap_remove(at))
    });
    match race.as_mut().and_then(Arc::get_mut) {
        Some(free) => {
            free.group = Arc::downgrade(group);
            free.hash = hash;
            free.key.clear();
            free.key.extend_from_slice(key);
            let finish = free.finish.get_mut();
            finish.answer.is_hit = false;
            finish.void.clear();
            (*free.is_over.get_mut(), *free.news.get_mut()) = (false, 0);
        }
        None => race = None,
    }
    race.unwrap_or_else(|| Arc::new(HedgedRead::new(hash, key, group)))
}

/// Reads a key through the rings: on `first`, and, if it is late and `is_hedged`, on others; returns the result and
/// the number of the device. None if the device must be chosen anew.
///
/// # Errors
/// As the engine, and if the group has no member left.
pub(crate) fn read(
    group: &Arc<Group>,
    first: &Arc<Device>,
    (hash, key): (u64, &[u8]),
    is_hedged: bool,
    visit: &mut dyn FnMut(Record<'_>),
) -> Result<Option<(Found, u8)>> {
    let race = begin(group, hash, key);
    let is_answered = run(group, first, &race, is_hedged);
    // Shown without the lock: a processor that comes second takes it.
    let mut answer = std::mem::take(&mut race.end().answer);
    let found = is_answered.map(|is_answered| {
        is_answered.then(|| {
            if answer.is_hit {
                visit(answer.record());
            }
            (Found { hit: answer.is_hit, ticket: Ticket::DURABLE }, answer.device)
        })
    });
    answer.keep_if_small();
    spin::lock(&race.finish).answer = answer;
    RACES.with_borrow_mut(|races| {
        if races.len() < KEPT {
            races.push(race);
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Asked;
    use crate::device::record_copy::RecordCopy;
    use crate::filter::hash_of;
    use crate::group::tests::pair::{directory, engine, pair};
    use crate::in_flight::InFlight;
    use coreplane_engine::{Value, WriteOptions};
    use std::time::Instant;

    const LARGE: &[u8] = &[7; 100 << 10];

    #[test]
    fn neither_a_thread_nor_a_processor_keeps_a_large_buffer() {
        let directory = directory();
        let engines = [0, 1].map(|number| engine(&directory, number));
        let group = pair(engines, &Arc::new(InFlight::new()), true);
        let primary = group.device(1).expect("it is there");
        let options = WriteOptions { sequence: Some(1), ..WriteOptions::default() };
        assert!(primary.engine.put(b"key", LARGE, &options).expect("put").written().is_some());
        let mut len = 0;
        let mut visit = |record: Record<'_>| len = record.value.to_vec().len();
        let key = (hash_of(b"key"), b"key".as_slice());
        let found = read(&group, primary, key, false, &mut visit).expect("read");
        assert_eq!((found.map(|(found, _)| found.hit), len), (Some(true), LARGE.len()));
        RACES.with_borrow(|races| {
            assert_eq!(races.len(), 1);
            assert!(races.iter().all(|race| race.finish.lock().answer.is_small()));
        });
        // The processor gets the buffer of the thread's last answer for its own.
        let race = HedgedRead::new(key.0, key.1, &group);
        let (value, ticket) = (Value::Whole(LARGE), Ticket::DURABLE);
        let last = Record { value, sequence: 1, expires_at: None, ticket };
        race.finish.lock().answer.keep(&last);
        let mut found = RecordCopy::default();
        race.run(primary, Instant::now(), &mut found);
        assert!(race.finish.lock().answer.is_hit && found.is_small());
        group.devices().for_each(|device| device.stop());
    }
}
