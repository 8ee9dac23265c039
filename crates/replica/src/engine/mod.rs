//! The cluster as an engine: what a server serves.
//!
//! ```text
//!   write ─▶ what is newest here? ─▶ a proposal of its effect ─▶ ticket: committed and applied
//!   read  ─▶ what is newest here? ─▶ shown ────────────────────▶ ticket: a majority confirms the term, and what was seen
//! ```
//!
//! Calls see at once what was proposed before them, and are answered when that is committed. So a ticket stands for a
//! proposal, or for a read, and one write is one round trip to a majority. A command is one entry of its effect: no node
//! decides a condition again, or reads its clock.
//!
//! # Who drives it
//!
//! A [`Replica`] has no thread. The owner of the sockets calls [`Replica::receive`], [`Replica::tick`] and
//! [`Replica::persisted`], and sends what [`Replica::take_envelopes`] gives. A cluster of one node needs ticks alone.
//!
//! # Time
//!
//! Records expire by the leader's clock. The answer that a record has expired waits for an entry that carries the time of its
//! expiry, and deletes it, or some of those that it is about. No later leader takes its own clock to be before such a time.

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
pub use feed::ChangeFeed;
pub use follower::FollowerReads;
use parking_lot::{Condvar, Mutex, RwLock};
use std::sync::Arc;
use std::time::Duration;

/// Changes of an entry at most.
const BATCH_LEN_MAX: usize = 1 << 20;

/// How long a wait sleeps before it looks again.
const LOOK: Duration = Duration::from_millis(1);

/// The options with which the map of a replica is opened: nothing in it expires by itself.
#[must_use]
pub fn map_options(options: &Options) -> Options {
    Options { time: Some(Arc::new(|| UnixMillis(0))), ..options.clone() }
}

/// A node of a cluster, as an engine. Any thread may call it.
pub struct Replica {
    core: Mutex<Core>,
    /// Something has settled.
    changed: Condvar,
    listeners: RwLock<Vec<DurableListener>>,
    /// Of what is durable here, whatever others say.
    listeners_here: Arc<RwLock<Vec<DurableListener>>>,
    /// Of what is applied here.
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
    /// A node over its map, which was opened with [`map_options`]. `time` tells the time that expiries are held against;
    /// none: the system's clock.
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

    /// Calls the node, and tells those who wait what came of it.
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

    /// What another node has said.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn receive(&self, envelope: Envelope) -> Result<()> {
        self.drive(|node| node.step(envelope))
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

    /// More has become durable here: the listener was called.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn persisted(&self) -> Result<()> {
        self.drive(Node::persisted)
    }

    /// What is to be sent; any of it may be lost.
    pub fn take_envelopes(&self) -> Vec<Envelope> {
        std::mem::take(&mut self.core.lock().envelopes)
    }

    /// How the node stands.
    pub fn status(&self) -> Status {
        self.core.lock().node.status()
    }

    /// Who leads, if it knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.core.lock().node.leader()
    }

    /// How far the members have come, of a leader; nothing of others.
    pub fn progress(&self) -> Vec<MemberProgress> {
        self.core.lock().node.progress()
    }

    /// Registers who is called, from any thread, whenever more has become durable here: [`Replica::persisted`] is to be
    /// called then.
    pub fn on_durable_here(&self, listener: DurableListener) {
        self.listeners_here.write().push(listener);
    }

    /// True if it leads, and knows all that was acknowledged.
    pub fn leads(&self) -> bool {
        self.core.lock().check_leads().is_ok()
    }

    /// Reads all that is here and holds it against its checksums.
    ///
    /// # Errors
    /// Only if it could not go on.
    pub fn verify(&self, progress: &mut dyn FnMut(Progress)) -> Result<VerifyReport> {
        self.core.lock().node.with_map(|map| map.verify(progress))
    }

    /// For tests: the map below.
    #[doc(hidden)]
    pub fn with_map<R>(&self, read: impl FnOnce(&dyn ReplicaMap) -> R) -> R {
        self.core.lock().node.with_map(read)
    }

    /// Pins what is applied here. Durable with a majority.
    ///
    /// # Errors
    /// As [`ReplicaMap::snapshot`].
    pub fn snapshot(&self) -> Result<Box<dyn MapSnapshot>> {
        self.core.lock().node.snapshot()
    }

    /// The cluster that the node is of; 0 before that has a name.
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

    /// Proposes that members change: what to wait for.
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

    /// The time that expiries are held against.
    fn now(&self, core: &Core) -> UnixMillis {
        (self.time)().max(core.node.passed())
    }

    /// True if all of the horizon is done.
    fn is_done(&self, horizon: &Horizon) -> Result<bool> {
        let core = self.core.lock();
        for ticket in horizon.tickets() {
            if !core.open.is_done(*ticket)? {
                // Of one that has stopped it never will be.
                core.node.check_running()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all of the horizon is done. What comes from the network somebody else has to see to.
    fn wait_done(&self, horizon: &Horizon) -> Result<()> {
        loop {
            self.persisted()?;
            if self.is_done(horizon)? {
                return Ok(());
            }
            self.wait_for_news()?;
        }
    }

    /// Waits a moment for something to settle.
    fn wait_for_news(&self) -> Result<()> {
        let mut core = self.core.lock();
        if core.is_closed {
            return Err(Error::Indeterminate);
        }
        self.changed.wait_for(&mut core, LOOK);
        Ok(())
    }
}
