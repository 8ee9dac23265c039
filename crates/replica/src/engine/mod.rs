//! The cluster as an engine, for a server.
//!
//! ```text
//!   write ─▶ the newest of the key? ─▶ a proposal of its effect ─▶ ticket: committed and applied
//!   read  ─▶ the newest of the key? ─▶ shown ─▶ ticket: the term is confirmed, and the seen change is applied
//! ```
//!
//! A call sees at once everything that was proposed before it, and is answered when that is committed. So a ticket
//! stands for a proposal or a read, and one write is one round trip to a majority. A command is one entry with its
//! effect: no node evaluates a condition again, or reads its clock.
//!
//! # Threads
//!
//! A [`Replica`] has no thread. The owner of the sockets calls [`Replica::receive`], [`Replica::tick`] and
//! [`Replica::persisted`], and sends the envelopes of [`Replica::take_envelopes`]. A cluster of one node needs only
//! ticks.
//!
//! # Time
//!
//! Records expire by the leader's clock. The answer that a record has expired waits for an entry that carries the
//! time of its expiry, and that deletes the record, or some of the records in question. No later leader takes its own
//! clock to be before such a time.

mod core;
mod effects;
mod face;
mod feed;
mod follower;
mod read;
mod settlement;
mod walk;
mod write;

use crate::codec::Envelope;
use crate::entry::ENTRY_BYTES_MAX;
use crate::map::{MapSnapshot, ReplicaMap};
use crate::members::{MemberChange, NodeId};
use crate::node::{MemberProgress, Node, Settings, Status};
use core::Core;
use coreplane_engine::{
    Cursors, DurableListener, Error, Horizon, Limits, Progress, Result, Ticket, TimeSource,
    UnixMillis, VerifyReport,
};
use coreplane_mvcc::Options;
use coreplane_pmem::mutant;
pub use feed::ChangeFeed;
pub use follower::FollowerReads;
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::time::Duration;

/// Most changes of an entry.
const BATCH_LEN_MAX: usize = 1 << 20;

/// The sleep between two looks of a wait.
const LOOK: Duration = Duration::from_millis(1);

/// The options with which the map of a replica is opened: no record in it expires by itself.
#[must_use]
pub fn map_options(options: &Options) -> Options {
    Options { time: Some(Arc::new(|| UnixMillis(0))), ..options.clone() }
}

/// A node of a cluster, as an engine. Any thread may call it.
pub struct Replica {
    core: Mutex<Core>,
    /// A proposal or a read has settled.
    changed: Condvar,
    listeners: RwLock<Vec<DurableListener>>,
    /// Called for writes that are durable here, whatever the other nodes have.
    listeners_here: Arc<RwLock<Vec<DurableListener>>>,
    /// Called for entries that are applied here.
    listeners_applied: RwLock<Vec<DurableListener>>,
    cursors: Mutex<Cursors<Box<[u8]>>>,
    time: TimeSource,
    limits: Limits,
    map_name: &'static str,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").finish_non_exhaustive()
    }
}

impl Replica {
    /// A node over its map, which was opened with [`map_options`]. `time` is the clock for expiries; none: the
    /// system's clock.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn open(
        map: Box<dyn ReplicaMap>,
        settings: Settings,
        time: Option<TimeSource>,
    ) -> Result<Self> {
        let listeners_here: Arc<RwLock<Vec<DurableListener>>> = Arc::default();
        let told = Arc::clone(&listeners_here);
        map.on_durable(Arc::new(move || told.read().iter().for_each(|listener| listener())));
        let life = settings.life;
        let (map_name, key_len_max) = (map.name(), map.key_len_max());
        let limits = Limits {
            key_len_max,
            value_len_max: ENTRY_BYTES_MAX / 2,
            batch_len_max: BATCH_LEN_MAX,
            batch_bytes_max: ENTRY_BYTES_MAX,
        };
        Ok(Self {
            limits,
            map_name,
            core: Mutex::new(Core::new(Node::open(map, settings)?)),
            changed: Condvar::new(),
            listeners: RwLock::default(),
            listeners_here,
            listeners_applied: RwLock::default(),
            cursors: Mutex::new(Cursors::behind(life >> 2 & !0xffff_ffff)),
            time: time.unwrap_or_else(|| Arc::new(UnixMillis::now)),
        })
    }

    /// Calls the node, and tells waiting callers the results.
    fn drive<R>(&self, call: impl FnOnce(&mut Node) -> R) -> R {
        let mut core = self.core.lock();
        let called = call(&mut core.node);
        let is_news = core.take_output();
        let is_applied = core.note_applied();
        drop(core);
        if is_news || is_applied {
            self.changed.notify_all();
        }
        if is_news {
            self.listeners.read().iter().for_each(|listener| listener());
        }
        if is_applied {
            self.listeners_applied.read().iter().for_each(|listener| listener());
        }
        called
    }

    /// Takes a message of another node.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn receive(&self, envelope: Envelope) -> Result<()> {
        self.drive(|node| node.step(envelope))
    }

    /// As [`Node::hear_part`].
    pub fn hear_part(&self, from: NodeId) {
        self.drive(|node| node.hear_part(from));
    }

    /// A tick of time has passed.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn tick(&self) -> Result<()> {
        self.drive(Node::tick)?;
        self.core.lock().tend_age();
        Ok(())
    }

    /// More is durable here: the listener was called.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn persisted(&self) -> Result<()> {
        self.drive(Node::flush)
    }

    /// The messages to send; any of them may be lost.
    pub fn take_envelopes(&self) -> Vec<Envelope> {
        std::mem::take(&mut self.core.lock().envelopes)
    }

    /// The status of the node.
    pub fn status(&self) -> Status {
        self.core.lock().node.status()
    }

    /// The leader, if it is known.
    pub fn leader(&self) -> Option<NodeId> {
        self.core.lock().node.leader()
    }

    /// Of a leader: how far the members have come; empty for other nodes.
    pub fn progress(&self) -> Vec<MemberProgress> {
        self.core.lock().node.progress()
    }

    /// Registers a listener that is called, from any thread, whenever more is durable here: [`Replica::persisted`]
    /// has to be called then.
    pub fn on_durable_here(&self, listener: DurableListener) {
        self.listeners_here.write().push(listener);
    }

    /// True if it leads, and knows everything that was acknowledged.
    pub fn leads(&self) -> bool {
        self.core.lock().check_leads().is_ok()
    }

    /// Reads everything on this node and compares it with its checksums.
    ///
    /// # Errors
    /// Only if it could not continue.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.core.lock().node.with_map(|map| map.verify(progress))
    }

    /// For tests: the map below.
    #[doc(hidden)]
    pub fn with_map<R>(&self, read: impl FnOnce(&dyn ReplicaMap) -> R) -> R {
        self.core.lock().node.with_map(read)
    }

    /// Pins the state that is applied here. Durable with a majority.
    ///
    /// # Errors
    /// As [`ReplicaMap::snapshot`].
    pub fn snapshot(&self) -> Result<Box<dyn MapSnapshot>> {
        self.core.lock().node.snapshot()
    }

    /// The cluster of the node; 0 before it has a name.
    pub fn cluster(&self) -> u64 {
        self.core.lock().node.cluster()
    }

    /// Snapshots that were installed since it was opened.
    pub fn installed(&self) -> u64 {
        self.core.lock().node.installed()
    }

    /// As [`Node::lacks_room`].
    pub fn lacks_room(&self) -> bool {
        self.core.lock().node.lacks_room()
    }

    /// As [`Node::left_out`].
    pub fn left_out(&self) -> u64 {
        self.core.lock().node.left_out()
    }

    /// Proposes a change of members: the ticket to wait for.
    ///
    /// # Errors
    /// As [`Node::propose_members`].
    pub fn change_members(&self, changes: &[MemberChange]) -> Result<Ticket> {
        let ticket = {
            let mut core = self.core.lock();
            let proposal = core.node.propose_members(changes)?;
            core.open.ticket_of_proposal(proposal.number)
        };
        self.persisted()?;
        Ok(ticket)
    }

    /// Gives the leadership to another node, if it has all entries in time.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn transfer_leadership(&self, to: NodeId) -> Result<()> {
        self.drive(|node| {
            node.transfer_leadership(to);
            node.flush()
        })
    }

    /// The time against which expiries are compared.
    fn now(&self, core: &Core) -> UnixMillis {
        (self.time)().max(core.node.passed())
    }

    /// True if all tickets of the horizon are done. Those that a stopped node has left open may become done on other
    /// nodes: [`Error::Indeterminate`].
    fn is_done(&self, horizon: &Horizon) -> Result<bool> {
        let core = self.core.lock();
        for ticket in horizon.tickets() {
            if !core.open.is_done(*ticket)? {
                // A node that has stopped will never know.
                let is_running = core.node.check_running().is_ok() || mutant!("replica.stop.told");
                return if is_running { Ok(false) } else { Err(Error::Indeterminate) };
            }
        }
        Ok(true)
    }

    /// Waits until all tickets of the horizon are done. Another thread has to deliver messages meanwhile.
    fn wait_done(&self, horizon: &Horizon) -> Result<()> {
        loop {
            // If the node stops, what it leaves open is told by the next line.
            let _has_stopped = self.persisted().is_err();
            if self.is_done(horizon)? {
                return Ok(());
            }
            self.wait_for_news()?;
        }
    }

    /// Waits a moment for a proposal or a read to settle.
    fn wait_for_news(&self) -> Result<()> {
        let mut core = self.core.lock();
        if core.is_closed {
            return Err(Error::Indeterminate);
        }
        self.changed.wait_for(&mut core, LOOK);
        Ok(())
    }
}
