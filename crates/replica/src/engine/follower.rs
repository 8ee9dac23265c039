//! Reads from the state of a follower: stale by choice, with a known bound on their age.
//!
//! ```text
//!   ask (by this clock: t) ─▶ leader: committed up to i ─▶ applied here up to i ─▶ as fresh as t
//! ```
//!
//! The leader answers once a majority has confirmed its term after the question ([`Node::ask`](crate::Node::ask)). So
//! no clock matters but this node's own. The node asks with each tick while there are readers, and not otherwise.

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

/// Ticks for which it goes on asking after the last read.
const WANTED_TICKS: u32 = 80;
/// Questions that are kept.
const ASKED_MAX: usize = 64;

/// An upper bound for the age of the applied state.
#[derive(Debug, Default)]
pub(super) struct Age {
    wanted_ticks: u32,
    /// The open questions, and when they were asked.
    asked: BTreeMap<u64, Instant>,
    /// Everything acknowledged before this moment is applied here.
    since: Option<Instant>,
}

impl Age {
    /// The question with this number is answered, and its index is applied.
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
    /// Asks the leader, if a reader wants to know the age.
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
    /// An upper bound for the age of a follower's state: everything acknowledged longer ago is applied here. None if
    /// the node is not a follower, or if it is not known; then the node asks for it from now on, for some seconds.
    pub fn age(&self) -> Option<Duration> {
        let mut core = self.core.lock();
        core.age.wanted_ticks = WANTED_TICKS;
        core.node.check_running().ok()?;
        let is_follower = core.node.role() == Role::Follower;
        core.age.since.filter(|_| is_follower).map(|since| since.elapsed())
    }
}

/// Reads of the entries that a node has applied, whether it leads or not. Writes are refused.
#[derive(Debug, Clone)]
pub struct FollowerReads(Arc<Replica>);

impl FollowerReads {
    /// The reads of this node.
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
        // Applied entries are durable with a majority, even if this pool has not synced them: the map's tickets are
        // not those of a replica.
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

/// Calls that only the leader takes.
macro_rules! refusals {
    ($($name:ident($($given:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $(_: $given),*) -> Result<$answer> {
            self.refuse()
        })*
    };
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
    refusals! {
        put(&[u8], &[u8], &WriteOptions) -> Outcome;
        insert(&[u8], &[u8], &WriteOptions) -> Outcome;
        update(&[u8], &[u8], &WriteOptions) -> Outcome;
        delete(&[u8], &WriteOptions) -> Outcome;
        compare_and_set(&[u8], Expected<'_>, &[u8], &WriteOptions) -> Outcome;
        modify(&[u8], &WriteOptions, &mut dyn FnMut(Option<Record<'_>>) -> Mutation) -> Outcome;
        apply(&Batch, &WriteOptions) -> Written;
        // A cursor belongs to one node.
        iterate(u64, usize, &mut dyn FnMut(Entry<'_>)) -> u64;
        clear() -> ();
        sweep_expired() -> u64;
        close() -> ();
    }
    fn len(&self) -> Result<u64> {
        Ok(self.0.core.lock().node.with_map(|map| map.len()))
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
}

/// Applied entries are durable with a majority.
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
