//! The operations of a story.

use coreplane_engine::{
    Batch, Completion, Deferred, Engine, Horizon, Result, Ticket, UnixMillis, WriteOptions,
};
use coreplane_pmem::media::sim::Run;
use coreplane_scmkv::{Geometry, Options, Placement, Scmkv};
use std::ops::Range;
use std::sync::Arc;

/// A new value of a key; none: a delete.
pub(crate) type Change = (u8, Option<Vec<u8>>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    /// More than one change are a batch.
    Write(Vec<Change>),
    /// Writes that share a fence: each by itself, all acknowledged together.
    Group(Vec<Change>),
    /// A record that has expired when it is written.
    PutExpired(u8, Vec<u8>),
    /// A record that expires much later.
    PutExpiring(u8, Vec<u8>),
    /// A reader saw this state of the key: the write that made it must be there.
    Seen(Change),
    /// To this many bytes.
    Grow(u64),
    /// The cleaner, the sweep of expired records, free pages made ready: change nothing that a
    /// reader sees.
    Upkeep,
    Checkpoint,
    Sync,
    Close,
}

/// The time, all the time.
const NOW: UnixMillis = UnixMillis(1_800_000_000_000);

/// A store whose clock stands still.
pub(crate) fn options() -> Options {
    Options { background: false, time: Some(Arc::new(|| NOW)), ..Options::default() }
}

/// A new store with the medium's page size: every story begins with one.
pub(crate) fn created(run: &Run<'_, Op>, placement: Placement, options: Options) -> Scmkv {
    run.acknowledged(Op::Create, || {
        let space = run.space().clone();
        // Segments of 1 KiB: so small that they are split, and so large that a page of 64 KiB has room for all headers.
        let geometry = match space.page_size() {
            4096 => Geometry::TINY,
            page_size => Geometry { page_size, groups: 16, buckets: 1, depth: 0 },
        };
        Scmkv::simulated_create(space, geometry, placement, options).expect("create")
    })
}

pub(crate) fn key(number: u8) -> Vec<u8> {
    format!("key-{number:03}").into_bytes()
}

fn perform_change(store: &Scmkv, change: &Change, write: &WriteOptions) -> Result<Ticket> {
    let (number, value) = change;
    let outcome = match value {
        Some(value) => store.put(&key(*number), value, write)?,
        None => store.delete(&key(*number), write)?,
    };
    Ok(outcome.ticket())
}

impl Op {
    /// Performs the operation; returns the horizon that must be durable before it is acknowledged.
    pub(crate) fn perform(&self, store: &Scmkv, write: &WriteOptions) -> Result<Horizon> {
        let expiring = |milliseconds: i64| WriteOptions {
            expires_at: Some(UnixMillis(NOW.0.saturating_add_signed(milliseconds))),
            ..*write
        };
        let ticket = match self {
            Self::Write(changes) if changes.len() == 1 => {
                perform_change(store, &changes[0], write)?
            }
            Self::Write(changes) => {
                let mut batch = Batch::new();
                for (number, value) in changes {
                    match value {
                        Some(value) => batch.put(&key(*number), value),
                        None => batch.delete(&key(*number)),
                    };
                }
                store.apply(&batch, write)?.ticket
            }
            Self::Group(changes) => {
                let write = WriteOptions { completion: Completion::Early, ..*write };
                let mut horizon = Horizon::new();
                for change in changes {
                    horizon.include(perform_change(store, change, &write)?);
                }
                store.wait_durable(&horizon)?;
                Ticket::DURABLE
            }
            Self::PutExpired(number, value) => {
                store.put(&key(*number), value, &expiring(-1))?.ticket()
            }
            Self::PutExpiring(number, value) => {
                store.put(&key(*number), value, &expiring(86_400_000))?.ticket()
            }
            _ => {
                self.perform_upkeep(store)?;
                Ticket::DURABLE
            }
        };
        Ok(Horizon::from(ticket))
    }

    fn perform_upkeep(&self, store: &Scmkv) -> Result<()> {
        match self {
            Self::Grow(len) => store.grow(*len),
            Self::Upkeep => {
                store.clean()?;
                store.prepare_pages()?;
                store.sweep_expired().map(drop)
            }
            Self::Checkpoint => store.checkpoint().map(drop),
            Self::Sync => store.sync(),
            Self::Close => store.close(),
            _ => Ok(()),
        }
    }
}

/// The source of a story's choices.
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    /// A value like no other of the same keys.
    pub(crate) fn value(&mut self, serial: usize) -> Vec<u8> {
        // Some are large enough (over an eighth of a page) to be stored as overflow records.
        let len = if self.next(12) == 0 { 700 + self.next(900) } else { 8 + self.next(120) };
        (0..len).map(|at| (serial as u64 * 31 + at) as u8).collect()
    }

    pub(crate) fn key(&mut self, of: &Range<u8>) -> u8 {
        of.start + self.next(u64::from(of.end - of.start)) as u8
    }

    /// A change, `deletes` of ten times a delete.
    pub(crate) fn change(&mut self, of: &Range<u8>, serial: usize, deletes: u64) -> Change {
        let number = self.key(of);
        let value = (self.next(10) >= deletes).then(|| self.value(serial));
        (number, value)
    }

    /// So many changes.
    pub(crate) fn changes(&mut self, count: u64, of: &Range<u8>, serial: usize) -> Vec<Change> {
        (0..count).map(|_| self.change(of, serial, 3)).collect()
    }
}
