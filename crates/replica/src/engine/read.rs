//! Reads of single keys.

use super::Replica;
use super::core::{Core, Seen};
use coreplane_engine::{Found, Horizon, Record, Result, Ticket, UnixMillis, Value, Visibility};

/// A copied record.
struct Copied {
    value: Vec<u8>,
    sequence: u64,
    expires_at: Option<UnixMillis>,
}

impl Copied {
    fn of(record: &Record<'_>) -> Self {
        let Record { value, sequence, expires_at, .. } = record;
        Self { value: value.to_vec(), sequence: *sequence, expires_at: *expires_at }
    }

    fn show(&self, visit: &mut dyn FnMut(Record<'_>)) {
        let Self { value, sequence, expires_at } = self;
        let (value, ticket) = (Value::Whole(value), Ticket::DURABLE);
        visit(Record { value, sequence: *sequence, expires_at: *expires_at, ticket });
    }
}

/// Shows the record of a key with its ticket; if there is one, and the ticket of the answer.
fn show(
    core: &mut Core,
    key: &[u8],
    now: UnixMillis,
    visit: &mut dyn FnMut(Record<'_>),
) -> Result<Found> {
    // The ticket is taken first: the majority is asked after the read has seen the record.
    let ticket = core.read_ticket(0)?;
    let (mut hit, mut expired) = (false, None);
    let mut proposal = core.look(key, now, &mut |seen| match seen {
        Seen::Absent => {}
        Seen::Live(record) => {
            hit = true;
            visit(Record { ticket, ..record });
        }
        Seen::Expired(at) => expired = Some(at),
    })?;
    match hit {
        true => core.counts.hits += 1,
        false => core.counts.misses += 1,
    }
    if let Some(at) = expired {
        proposal = proposal.max(core.expire(&[key.to_vec()], at)?);
    }
    Ok(Found { hit, ticket: core.read_ticket(proposal)? })
}

impl Replica {
    pub(super) fn get_record(
        &self,
        key: &[u8],
        visibility: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        let mut copied = None;
        let found = {
            let mut core = self.core.lock();
            core.check_leads()?;
            let now = self.now(&core);
            match visibility {
                Visibility::Early => return show(&mut core, key, now, visit),
                Visibility::Durable => {
                    show(&mut core, key, now, &mut |record| copied = Some(Copied::of(&record)))?
                }
            }
        };
        self.wait_done(&Horizon::from(found.ticket))?;
        if let Some(copied) = &copied {
            copied.show(visit);
        }
        Ok(Found { ticket: Ticket::DURABLE, ..found })
    }

    pub(super) fn get_records(
        &self,
        keys: &[&[u8]],
        visibility: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        let mut horizon = Horizon::new();
        let mut copied: Vec<Option<Copied>> = Vec::new();
        {
            let mut core = self.core.lock();
            core.check_leads()?;
            let now = self.now(&core);
            for (index, key) in keys.iter().enumerate() {
                let mut copy = None;
                let found = show(&mut core, key, now, &mut |record| match visibility {
                    Visibility::Early => visit(index, Some(record)),
                    Visibility::Durable => copy = Some(Copied::of(&record)),
                })?;
                horizon.include(found.ticket);
                match visibility {
                    Visibility::Early if !found.hit => visit(index, None),
                    Visibility::Early => {}
                    Visibility::Durable => copied.push(copy),
                }
            }
        }
        if visibility == Visibility::Early {
            return Ok(horizon);
        }
        self.wait_done(&horizon)?;
        for (index, copy) in copied.iter().enumerate() {
            match copy {
                None => visit(index, None),
                Some(copy) => copy.show(&mut |record| visit(index, Some(record))),
            }
        }
        Ok(Horizon::new())
    }
}
