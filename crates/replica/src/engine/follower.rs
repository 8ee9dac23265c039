//! What a follower shows of what it has: stale by choice, and how stale at most it knows.
//!
//! ```text
//!   ask (by this clock: t) ─▶ leader: committed up to i ─▶ applied here up to i ─▶ as fresh as t
//! ```
//!
//! The leader answers when a majority has confirmed its term after it was asked ([`Node::ask`](crate::Node::ask)). So no
//! clock but this node's own has a part in it. It asks with each tick while somebody reads, and not when nobody does.

use super::Replica;
use super::core::Core;
use crate::node::Role;
use coreplane_engine::{
    Batch, Deferred, DurableListener, Engine, Entry, Error, Expected, Found, Horizon, Limits,
    Mutation, Outcome, Record, Result, Stats, Ticket, UnixMillis, Visibility, WriteOptions,
    Written,
};
use coreplane_pmem::mutant;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ticks for which it goes on asking after somebody has read.
const WANTED_TICKS: u32 = 80;
/// Questions that are kept.
const ASKED_MAX: usize = 64;

/// How old at most it is what is applied here.
#[derive(Debug, Default)]
pub(super) struct Age {
    wanted_ticks: u32,
    /// What was asked, and when.
    asked: BTreeMap<u64, Instant>,
    /// All is here that was acknowledged before.
    since: Option<Instant>,
}

impl Age {
    /// What was asked by this number is applied.
    pub(super) fn told(&mut self, number: u64) {
        if let Some(asked) = self.asked.remove(&number) {
            let told = mutant!("replica.age.told").then(Instant::now);
            self.since = self.since.max(Some(told.unwrap_or(asked)));
        }
        let since = self.since;
        self.asked.retain(|_, asked| Some(*asked) > since);
    }
}

impl Core {
    /// Asks the leader, if somebody wants to know.
    pub(super) fn tend_age(&mut self) {
        if self.age.wanted_ticks == 0 {
            return;
        }
        self.age.wanted_ticks -= 1;
        if self.age.asked.len() >= ASKED_MAX {
            self.age.asked.clear();
        }
        let now = Instant::now();
        if let Some(number) = self.node.ask() {
            self.age.asked.insert(number, now);
        }
        self.take_output();
    }
}

impl Replica {
    /// How old at most it is what a follower shows: all is applied here that was acknowledged so long ago. None of a node
    /// that is no follower, and if it is not known; it is asked for from now on, for some seconds.
    pub fn age(&self) -> Option<Duration> {
        let mut core = self.core.lock();
        core.age.wanted_ticks = WANTED_TICKS;
        core.node.check_running().ok()?;
        let is_follower = core.node.role() == Role::Follower;
        core.age.since.filter(|_| is_follower).map(|since| since.elapsed())
    }
}

/// Reads of what a node has applied, whether it leads or not. Writes are refused.
#[derive(Debug, Clone)]
pub struct FollowerReads(Arc<Replica>);

impl FollowerReads {
    /// Those of this node.
    pub fn of(replica: Arc<Replica>) -> Self {
        Self(replica)
    }

    fn refuse<R>(&self) -> Result<R> {
        Err(Error::NotLeader { leader: self.0.leader() })
    }

    /// Shows a record, unless it has expired.
    fn show(&self, core: &Core, key: &[u8], visit: &mut dyn FnMut(Record<'_>)) -> Result<Found> {
        let now = self.0.now(core);
        let (mut hit, ticket) = (false, Ticket::DURABLE);
        // What is applied is durable with a majority, whatever this pool has still to sync: its tickets are no replica's.
        core.node.with_map(|map| {
            map.get_with(key, Visibility::Early, &mut |record| {
                if record.expires_at.is_none_or(|at| at > now) {
                    hit = true;
                    visit(Record { ticket, ..record });
                }
            })
        })?;
        Ok(Found { hit, ticket })
    }
}

impl Engine for FollowerReads {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn limits(&self) -> Limits {
        self.0.limits()
    }
    fn get_with(
        &self,
        key: &[u8],
        _: Visibility,
        visit: &mut dyn FnMut(Record<'_>),
    ) -> Result<Found> {
        self.show(&self.0.core.lock(), key, visit)
    }
    fn multi_get(
        &self,
        keys: &[&[u8]],
        _: Visibility,
        visit: &mut dyn FnMut(usize, Option<Record<'_>>),
    ) -> Result<Horizon> {
        let core = self.0.core.lock();
        for (index, key) in keys.iter().enumerate() {
            if !self.show(&core, key, &mut |record| visit(index, Some(record)))?.hit {
                visit(index, None);
            }
        }
        Ok(Horizon::new())
    }
    fn put(&self, _: &[u8], _: &[u8], _: &WriteOptions) -> Result<Outcome> {
        self.refuse()
    }
    fn insert(&self, _: &[u8], _: &[u8], _: &WriteOptions) -> Result<Outcome> {
        self.refuse()
    }
    fn update(&self, _: &[u8], _: &[u8], _: &WriteOptions) -> Result<Outcome> {
        self.refuse()
    }
    fn delete(&self, _: &[u8], _: &WriteOptions) -> Result<Outcome> {
        self.refuse()
    }
    fn compare_and_set(
        &self,
        _: &[u8],
        _: Expected<'_>,
        _: &[u8],
        _: &WriteOptions,
    ) -> Result<Outcome> {
        self.refuse()
    }
    fn modify(
        &self,
        _: &[u8],
        _: &WriteOptions,
        _: &mut dyn FnMut(Option<Record<'_>>) -> Mutation,
    ) -> Result<Outcome> {
        self.refuse()
    }
    fn apply(&self, _: &Batch, _: &WriteOptions) -> Result<Written> {
        self.refuse()
    }
    fn iterate(&self, _: u64, _: usize, _: &mut dyn FnMut(Entry<'_>)) -> Result<u64> {
        // A cursor is one node's.
        self.refuse()
    }
    fn len(&self) -> Result<u64> {
        Ok(self.0.core.lock().node.with_map(|map| map.len()))
    }
    fn clear(&self) -> Result<()> {
        self.refuse()
    }
    fn sweep_expired(&self) -> Result<u64> {
        self.refuse()
    }
    fn now(&self) -> UnixMillis {
        Engine::now(&*self.0)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
    fn stats(&self) -> Stats {
        self.0.stats()
    }
    fn close(&self) -> Result<()> {
        self.refuse()
    }
}

/// What is applied is durable with a majority.
impl Deferred for FollowerReads {
    fn commit(&self, _: &Horizon) -> Result<bool> {
        Ok(true)
    }
    fn is_durable(&self, _: &Horizon) -> Result<bool> {
        Ok(true)
    }
    fn wait_durable(&self, _: &Horizon) -> Result<()> {
        Ok(())
    }
    fn on_durable(&self, listener: DurableListener) {
        self.0.on_durable_here(listener);
    }
}
