//! Several changes that count together or not at all: one group of the stream, all of one version.

use super::durable::Writing;
use super::patience::Patience;
use super::write::{Prepared, purpose_of};
use super::{Count, Store};
use crate::map::{Group, Purpose, Space};
use crate::volume::Volume;
use crate::volume::overflow::NAME;
use coreplane_engine::{
    Batch, ChangeRef, Error, Result, Ticket, UnixMillis, WriteOptions, Written,
};
use coreplane_pmem::epoch::{self, Guard};
use coreplane_record::{Header, Kind, sync_failed};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// The most changes of a batch.
pub(super) const BATCH_LEN_MAX: usize = 1 << 20;

/// One change of a batch, the last of its key.
struct Part<'b> {
    change: ChangeRef<'b>,
    prepared: Option<Prepared>,
    is_due: bool,
    is_overwrite: bool,
    /// Bytes of its record in the stream; 0 if it needs none.
    len: usize,
}

enum Attempt {
    Done(Written),
    Expired(UnixMillis),
    Wait(Space),
    /// The pages of the group were given lives, which this generation makes durable.
    Begun(u64),
}

/// How often other writers may take the pages that were begun for a batch, before it keeps the map until it is done.
const BEGUN_MAX: u32 = 2;

impl Store {
    /// Makes all changes of a batch, or none.
    pub(super) fn apply(&self, batch: &Batch, options: &WriteOptions) -> Result<Written> {
        if batch.len() > BATCH_LEN_MAX {
            return Err(Error::BatchTooLarge { len: batch.len(), max: BATCH_LEN_MAX });
        }
        Volume::check_sequence(options.sequence)?;
        let mut last: BTreeMap<&[u8], ChangeRef<'_>> = BTreeMap::new();
        for change in batch.changes() {
            self.check_lengths(change.key(), change.value().map_or(0, <[u8]>::len))?;
            last.insert(change.key(), change);
        }
        let mut parts: Vec<Part<'_>> = Vec::with_capacity(last.len());
        for change in last.into_values() {
            parts.push(Part { change, prepared: None, is_due: true, is_overwrite: false, len: 0 });
        }
        let applied = self.apply_parts(&mut parts, options);
        parts.iter_mut().for_each(|part| self.drop_prepared(&mut part.prepared));
        let written = applied?;
        let ticket = self.wait(written.ticket, options)?;
        Ok(Written { ticket, ..written })
    }

    fn apply_parts(&self, parts: &mut [Part<'_>], options: &WriteOptions) -> Result<Written> {
        for part in parts.iter_mut() {
            if let Some(value) = part.change.value()
                && value.len() > self.inline_max(part.change.key())
            {
                let is_overwrite = self.is_live(part.change.key())?;
                let purpose = purpose_of(Kind::Put, is_overwrite, options.use_reserve);
                part.prepared = Some(self.prepare(value, purpose)?);
            }
        }
        let (mut patience, mut begun) = (Patience::default(), 0);
        loop {
            match self.attempt_batch(parts, options, begun >= BEGUN_MAX)? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Expired(at) => drop(self.volume.has_passed(at)?),
                Attempt::Wait(space) => patience.wait(self, space)?,
                Attempt::Begun(generation) => {
                    begun += 1;
                    patience.wait(self, Space::Wait(generation))?;
                }
            }
        }
    }

    /// True if a put of this key would replace a live record.
    fn is_live(&self, key: &[u8]) -> Result<bool> {
        let mut map = self.writing()?;
        let guard = epoch::pin();
        Ok(self.look(&mut map, &guard, key)?.is_ok_and(|standing| standing.is_live))
    }

    /// One attempt: the batch, if nothing is missing. A batch that `is_starved` waits for its pages while it holds
    /// the map.
    fn attempt_batch(
        &self,
        parts: &mut [Part<'_>],
        options: &WriteOptions,
        is_starved: bool,
    ) -> Result<Attempt> {
        let mut map = self.writing()?;
        self.check_writable()?;
        let guard = epoch::pin();
        let mut replaced = false;
        for part in parts.iter_mut() {
            let standing = match self.look(&mut map, &guard, part.change.key())? {
                Ok(standing) => standing,
                Err(at) => return Ok(Attempt::Expired(at)),
            };
            let key = part.change.key();
            let is_late = self.newer(&guard, &standing, key, options.sequence).is_some();
            let is_idle =
                options.sequence.is_none() && part.change.value().is_none() && !standing.is_live;
            let is_idle = is_idle && standing.sure.is_ok();
            part.is_due = !is_late && !is_idle;
            part.is_overwrite = standing.is_live;
            replaced |= part.is_due && standing.is_live;
            let (header, value_len) = (part.header(options), part.value_len());
            part.len = self.len_of(&map, &header, part.change.key(), value_len);
        }
        let due = || parts.iter().filter(|part| part.is_due);
        let lengths: Vec<usize> = due().map(|part| part.len).filter(|len| *len > 0).collect();
        let purpose = due().map(|part| part.purpose(options)).max().unwrap_or(Purpose::Delete);
        let keys: Vec<&[u8]> = due().map(|part| part.change.key()).collect();
        let (group, is_idle) =
            (Group { lengths: &lengths, keys: &keys, apart: 0 }, keys.is_empty());
        let space = self.space_for(&mut map, &guard, group, purpose)?;
        if space != Space::Found {
            return Ok(Attempt::Wait(space));
        }
        while let Some(generation) = map.begin_group(&lengths)? {
            if !is_starved {
                return Ok(Attempt::Begun(generation));
            }
            self.volume.space.sync_wait(generation).map_err(sync_failed)?;
        }
        let version = self.draw_version(options.sequence)?;
        if let Err(error) = self.append_batch(&mut map, &guard, parts, version, options) {
            // The next record would end an incomplete group. There were enough pages: the medium has failed.
            map.stream_mut().is_broken = true;
            self.volume.closed.store(true, Ordering::Release);
            return Err(error);
        }
        map.tidy()?;
        self.add(Count::Batches, 1);
        let sequence = options.sequence.unwrap_or(version);
        let ticket = match is_idle {
            true => self.rests_on_nothing(),
            false => self.end_group(&mut map, lengths.iter().sum(), options)?,
        };
        Ok(Attempt::Done(Written { sequence, ticket, replaced }))
    }

    /// A batch that changes nothing depends on everything that it has seen.
    fn rests_on_nothing(&self) -> Ticket {
        self.visible_ticket()
    }

    fn append_batch(
        &self,
        map: &mut Writing<'_>,
        guard: &Guard,
        parts: &mut [Part<'_>],
        version: u64,
        options: &WriteOptions,
    ) -> Result<()> {
        let last = parts.iter().rposition(|part| part.is_due);
        let (mut links, mut removals) = (Vec::with_capacity(parts.len()), Vec::new());
        for (at, part) in parts.iter_mut().enumerate().filter(|(_, part)| part.is_due) {
            let header = Header { version, batched: last != Some(at), ..part.header(options) };
            let value = part.change.value().unwrap_or_default();
            let key = part.change.key();
            self.count(header.kind, key.len() + value.len());
            if part.len == 0 {
                removals.push((key, header));
                continue;
            }
            let name = part.prepared.take();
            let body = name.as_ref().map_or(value, |it| &it.name);
            links.push((key, self.append(map, guard, header, key, body)?));
            if let Some(it) = name {
                map.stream_mut().adopt_chain(&it.pages);
            }
        }
        links.into_iter().try_for_each(|(key, new)| map.link(guard, key, new))?;
        removals
            .into_iter()
            .try_for_each(|(key, header)| self.remove(map, guard, &header, key).map(drop))
    }
}

impl Part<'_> {
    fn header(&self, options: &WriteOptions) -> Header {
        let (kind, expires_at) = match self.change {
            ChangeRef::Put { expires_at, .. } => (Kind::Put, expires_at),
            ChangeRef::Delete { .. } => (Kind::Delete, None),
        };
        let large = self.prepared.is_some();
        Header { kind, large, expires_at, sequence: options.sequence, ..Header::put(0) }
    }

    /// Bytes of the value in its record.
    fn value_len(&self) -> usize {
        match self.prepared {
            Some(_) => NAME,
            None => self.change.value().map_or(8, <[u8]>::len),
        }
    }

    fn purpose(&self, options: &WriteOptions) -> Purpose {
        purpose_of(self.header(options).kind, self.is_overwrite, options.use_reserve)
    }
}
