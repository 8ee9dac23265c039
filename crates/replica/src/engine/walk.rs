//! Reads of many keys: applied records, with pending changes in their place.

use super::Replica;
use super::core::{Core, EXPIRED_MAX};
use super::effects::Newest;
use coreplane_engine::{Entry, Record, Result, Ticket, UnixMillis, Value};

/// Receives the entries of a walk: a key, and its record, which may have expired.
type Visit<'v> = &'v mut dyn FnMut(&[u8], Record<'_>) -> bool;

/// Receives the entries of a scan of the map.
type VisitEntry<'v> = &'v mut dyn FnMut(Entry<'_>) -> bool;

/// Keys that a sweep examines in a step.
const SWEPT: usize = 64;

/// The number of unapplied keys beyond which a sweep pauses, so that it is no faster than the followers.
const SWEPT_OPEN: usize = 4096;

/// A change that takes its place in a walk.
struct Place<'p> {
    key: &'p [u8],
    newest: &'p Newest,
}

impl Place<'_> {
    /// Shows the record, if the change makes one; true if the walk goes on.
    fn show(&self, visit: Visit<'_>) -> bool {
        let Newest { value, index, expires_at, .. } = self.newest;
        let Some(value) = value else { return true };
        let (value, ticket) = (Value::Whole(value), Ticket::DURABLE);
        visit(self.key, Record { value, sequence: *index, expires_at: *expires_at, ticket })
    }
}

impl Core {
    /// Shows the records of a range in order, until `visit` says no.
    pub(super) fn walk(
        &self,
        (start, end): (&[u8], Option<&[u8]>),
        reverse: bool,
        visit: Visit<'_>,
    ) -> Result<()> {
        let places = self.effects.range(start, end).map(|(key, newest)| Place { key, newest });
        let scan =
            |visit: VisitEntry<'_>| self.node.with_map(|map| map.scan(start, end, reverse, visit));
        match reverse {
            false => merge(places, |place, key| place < key, scan, visit),
            true => merge(places.rev(), |place, key| place > key, scan, visit),
        }
    }
}

/// Shows the records of a scan, with pending changes in their place; both in one order.
fn merge<'p>(
    places: impl Iterator<Item = Place<'p>>,
    is_before: impl Fn(&[u8], &[u8]) -> bool,
    scan: impl FnOnce(VisitEntry<'_>) -> Result<()>,
    visit: Visit<'_>,
) -> Result<()> {
    let (mut places, mut goes_on) = (places.peekable(), true);
    scan(&mut |entry| {
        while let Some(place) = places.next_if(|place| is_before(place.key, entry.key)) {
            goes_on = place.show(visit);
            if !goes_on {
                return false;
            }
        }
        goes_on = match (places.next_if(|place| place.key == entry.key), entry.record) {
            (Some(place), _) => place.show(visit),
            (None, Some(record)) => visit(entry.key, record),
            (None, None) => true,
        };
        goes_on
    })?;
    while goes_on && let Some(place) = places.next() {
        goes_on = place.show(visit);
    }
    Ok(())
}

/// Receives the entries of a scan: a key, and its record, unless that has expired; false if it does not take this one.
type VisitLive<'v> = &'v mut dyn FnMut(&[u8], Option<Record<'_>>) -> bool;

impl Replica {
    /// Shows the live records of a range; the ticket for them, and for the keys that were absent.
    fn scan_live(
        &self,
        range: (&[u8], Option<&[u8]>),
        reverse: bool,
        visit: VisitLive<'_>,
    ) -> Result<Ticket> {
        let mut core = self.core.lock();
        core.check_leads()?;
        let (now, ticket) = (self.now(&core), core.visible_ticket()?);
        let (mut expired, mut latest) = (Vec::new(), UnixMillis(0));
        core.walk(range, reverse, &mut |key, record| {
            let Some(at) = record.expires_at.filter(|at| *at <= now) else {
                return visit(key, Some(Record { ticket, ..record }));
            };
            if !visit(key, None) {
                return false;
            }
            latest = latest.max(at);
            // One entry states for all of them that the time has passed. A sweep deletes those that this entry does
            // not.
            if expired.len() < EXPIRED_MAX {
                expired.push(key.to_vec());
            }
            true
        })?;
        let proposal = core.expire(&expired, latest)?;
        core.read_ticket(proposal)
    }

    pub(super) fn scan_range(
        &self,
        range: (&[u8], Option<&[u8]>),
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let mut left = limit;
        self.scan_live(range, reverse, &mut |key, record| {
            if left == 0 {
                return false;
            }
            // An expired record is a step, too: there may be many in a row.
            let sequence = record.as_ref().map_or(0, |record| record.sequence);
            let goes_on = visit(Entry { key, sequence, record });
            left = if goes_on { left - 1 } else { 0 };
            true
        })?;
        Ok(())
    }

    pub(super) fn iterate_from(
        &self,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(Entry<'_>),
    ) -> Result<u64> {
        let from = self.cursors.lock().place_of(cursor);
        let (mut left, mut next) = (count.max(1), None);
        self.scan_live((&from, None), false, &mut |key, record| {
            if left == 0 {
                next = Some(Box::<[u8]>::from(key));
                return false;
            }
            left -= 1;
            if let Some(record) = record {
                visit(Entry { key, sequence: record.sequence, record: Some(record) });
            }
            true
        })?;
        let mut cursors = self.cursors.lock();
        Ok(match next {
            Some(key) => cursors.remember(cursor, key),
            None => {
                cursors.end(cursor);
                0
            }
        })
    }

    /// Deletes the expired records among some keys from `from` on; their number, and the key to continue with.
    ///
    /// # Errors
    /// [`Error::NotLeader`](coreplane_engine::Error::NotLeader); as
    /// [`Node::propose`](crate::Node::propose).
    pub fn sweep_some(&self, from: &[u8], most: usize) -> Result<(u64, Option<Vec<u8>>)> {
        let mut core = self.core.lock();
        core.check_leads()?;
        if !core.may_expire {
            return Ok((0, None));
        }
        let now = self.now(&core);
        let (mut seen, mut next) = (0, None);
        let (mut expired, mut latest, mut may_expire) = (Vec::new(), UnixMillis(0), false);
        core.walk((from, None), false, &mut |key, record| {
            if seen == most {
                next = Some(key.to_vec());
                return false;
            }
            seen += 1;
            may_expire |= record.expires_at.is_some();
            if let Some(at) = record.expires_at.filter(|at| *at <= now) {
                expired.push(key.to_vec());
                latest = latest.max(at);
            }
            true
        })?;
        core.expire(&expired, latest)?;
        if from.is_empty() && next.is_none() && !may_expire {
            core.may_expire = false;
        }
        Ok((expired.len() as u64, next))
    }

    /// Deletes the expired records among some keys from `from` on, and sets it to the key to continue with. Goes on
    /// as long as many keys have expired, there is time, and not too much is under way. The number of deleted
    /// records.
    ///
    /// # Errors
    /// As [`Replica::sweep_some`].
    pub fn sweep_on(&self, from: &mut Vec<u8>, has_time: &mut dyn FnMut() -> bool) -> Result<u64> {
        let mut swept = 0;
        loop {
            let (some, next) = self.sweep_some(from, SWEPT)?;
            let is_end = next.is_none();
            *from = next.unwrap_or_default();
            swept += some;
            let is_worth_it = some >= SWEPT as u64 / 4 && !is_end;
            if !is_worth_it || self.core.lock().effects.len() >= SWEPT_OPEN || !has_time() {
                return Ok(swept);
            }
        }
    }

    /// The number of records, those that have expired included.
    pub(super) fn count_records(&self) -> Result<u64> {
        let core = self.core.lock();
        core.check_leads()?;
        let mut count = core.node.with_map(|map| map.len());
        for (key, newest) in core.effects.all() {
            let early = coreplane_engine::Visibility::Early;
            let was = core.node.with_map(|map| map.get_with(key, early, &mut |_| {}))?.hit;
            count = count + u64::from(newest.value.is_some()) - u64::from(was);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::super::effects::Effects;
    use super::*;
    use coreplane_engine::Batch;

    #[test]
    fn a_walk_looks_at_no_more_changes_than_it_needs() {
        let mut effects = Effects::default();
        let mut batch = Batch::new();
        (0..1000_u32).for_each(|number| _ = batch.put(&number.to_be_bytes(), b"1"));
        effects.add((1, 10), batch.changes());
        let (mut looked, mut shown) = (0, Vec::new());
        let places = effects.range(b"", None).inspect(|_| looked += 1);
        let places = places.map(|(key, newest)| Place { key, newest });
        let scan = |visit: VisitEntry<'_>| {
            let (key, ticket) = (2_u32.to_be_bytes(), Ticket::DURABLE);
            let record =
                Record { value: Value::Whole(b"2"), sequence: 1, expires_at: None, ticket };
            visit(Entry { key: &key, sequence: 1, record: Some(record) });
            Ok(())
        };
        merge(places, |place, key| place < key, scan, &mut |key, record| {
            shown.push((key.to_vec(), record.value.to_vec()));
            shown.len() < 4
        })
        .expect("a walk");
        let expected = (0..4_u32).map(|number| (number.to_be_bytes().to_vec(), b"1".to_vec()));
        assert_eq!(shown, expected.collect::<Vec<_>>());
        assert!(looked <= 5, "it looked at {looked} changes");
    }
}
