//! A node: calls in, an [`Output`] out, and the map below.

mod admission;
mod apply;
mod draft;
mod hold;
mod identity;
mod presence;
mod promise;
mod propose;
mod reads;
mod room;
mod settings;
mod start;
mod transfer;
mod turn;

use crate::codec::{Body, Envelope};
use crate::log_view::{LogView, SharedView};
use crate::map::{MapSnapshot, ReplicaMap};
use crate::members::{NodeId, Peer};
use crate::ring::Ring;
use coreplane_engine::{Error, Result, Ticket, UnixMillis};
use draft::Draft;
use parking_lot::{Mutex, MutexGuard};
use raft::eraftpb::{Entry, Message as RaftMessage, MessageType};
use raft::{RawNode, StateRole};
use room::Shortage;
pub use settings::{AppliedEntry, MemberProgress, Output, Proposal, Role, Settings, Status};
use start::{begin, consensus, damage, form};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use transfer::{Install, Transfer};

/// An open proposal or read.
#[derive(Debug, Clone, Copy)]
struct Open {
    term: u64,
    /// Of a change of members: the index of its entry, whose context has no room for a number.
    index: Option<u64>,
}

/// Messages that wait until the writes of a turn are durable.
struct Unpersisted {
    ready: u64,
    ticket: Ticket,
    messages: Vec<RaftMessage>,
    /// The writes include a term or a vote.
    is_term: bool,
    /// Ticks since it is the first that waits.
    ticks: usize,
}

/// Consensus over the map, or, while a snapshot is installed, no log at all.
enum State {
    Running(Box<RawNode<SharedView>>),
    /// The snapshot that is received, if any.
    Installing(Option<Install>),
}

/// A node of a cluster.
pub struct Node {
    settings: Settings,
    /// The number of this start, counted from the first, and its life.
    start: u64,
    life: u64,
    /// Nodes that have said hello: their identities, and whether they belong to a cluster.
    heard: BTreeMap<NodeId, (u64, bool)>,
    /// Members that have said hello: their identities, and the entries that made the members they know.
    members_at: BTreeMap<NodeId, (u64, u64)>,
    /// Nodes that others have named as the leader.
    told_of: BTreeSet<NodeId>,
    /// Nodes that know of this start.
    greeted: BTreeSet<NodeId>,
    hello_ticks: usize,
    /// Of a leader: its reads for followers that have asked for the committed index, with the followers' own numbers.
    asks: BTreeMap<u64, (NodeId, u64)>,
    /// Of a follower: its own questions that were answered, and the index up to which it has to apply.
    told: BTreeMap<u64, u64>,
    /// Of a leader: ticks since it has heard from each member.
    silence: BTreeMap<NodeId, usize>,
    /// The term in which it has named the cluster, if it has.
    named_in: u64,
    view: SharedView,
    state: State,
    unpersisted: VecDeque<Unpersisted>,
    next_number: u64,
    /// Bytes of proposals since the last turn.
    unwritten: u64,
    /// Ends before consensus is stepped.
    draft: Option<Draft>,
    proposals: BTreeMap<u64, Open>,
    /// Reads that are not begun, reads about which a majority is asked, and reads that wait for an index to be
    /// applied.
    reads_new: Vec<u64>,
    reads_asked: BTreeMap<u64, (Open, Vec<u64>)>,
    reads_confirmed: Vec<(u64, Open, Vec<u64>)>,
    transfers: BTreeMap<NodeId, Transfer>,
    /// Nodes that are being filled: the last entry that each has, or gets with its snapshot.
    holds: BTreeMap<NodeId, u64>,
    /// Nodes that have refused a snapshot as too large, and ticks until they are sent another.
    unfit: BTreeMap<NodeId, usize>,
    installed: u64,
    shortage: Shortage,
    /// Of a node that installs: ticks since it has heard from a leader.
    silent_ticks: usize,
    output: Output,
    /// The reason why the node has stopped.
    stopped: Option<String>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.settings.id).finish_non_exhaustive()
    }
}

impl Node {
    /// A node over its map. An empty map becomes that of a node of a cluster of the [peers](Settings::peers), all of
    /// which do the same; that is durable when this returns.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] of invalid settings; [`Error::Corrupt`] of a map that no node has written; if the medium
    /// fails.
    pub fn open(map: Box<dyn ReplicaMap>, settings: Settings) -> Result<Self> {
        if settings.id == 0 || settings.peers.contains(&0) {
            return Err(Error::OutOfRange { what: "a node", given: 0, from: 1, to: u64::MAX });
        }
        let control = map.control();
        if control.applied == 0 && control.newest > 0 && !control.is_installing {
            // The power failed while the cluster was formed.
            map.roll_back(0)?;
        }
        let mut view = LogView::new(map, Ring::new(settings.ring_bytes, settings.held_bytes))?;
        if view.control().newest == 0 && !view.control().is_installing && !settings.peers.is_empty()
        {
            form(&mut view, &settings)?;
        }
        let start = begin(&mut view, &settings)?;
        let is_blank = view.control().is_installing || view.notes().is_blank;
        let has_log = !is_blank && !damage(&mut view)?;
        let view = SharedView(Arc::new(Mutex::new(view)));
        let state = match has_log {
            true => State::Running(Box::new(consensus(&view, &settings)?)),
            false => State::Installing(None),
        };
        let mut node = Self {
            start,
            life: settings.life,
            heard: BTreeMap::new(),
            members_at: BTreeMap::new(),
            told_of: BTreeSet::new(),
            greeted: BTreeSet::new(),
            // The first hello is sent with the first tick.
            hello_ticks: settings.heartbeat_ticks,
            asks: BTreeMap::new(),
            told: BTreeMap::new(),
            silence: BTreeMap::new(),
            named_in: 0,
            settings,
            view,
            state,
            unpersisted: VecDeque::new(),
            // Lower numbers are never given out.
            next_number: 2,
            unwritten: 0,
            draft: None,
            proposals: BTreeMap::new(),
            reads_new: Vec::new(),
            reads_asked: BTreeMap::new(),
            reads_confirmed: Vec::new(),
            transfers: BTreeMap::new(),
            holds: BTreeMap::new(),
            unfit: BTreeMap::new(),
            installed: 0,
            shortage: Shortage::default(),
            silent_ticks: 0,
            output: Output::default(),
            stopped: None,
        };
        node.draw_timeout();
        node.bind()?;
        Ok(node)
    }

    /// Calls the node, unless it has stopped. Consensus panics at a state that is impossible: this ends the node, and
    /// not the process.
    fn run(&mut self, call: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.check_running()?;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            self.end_draft();
            call(self).and_then(|()| self.turn())
        }));
        let ran = ran.unwrap_or_else(|panic| {
            let what = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            Err(Error::Unusable(format!("consensus has found what cannot be: {what}")))
        });
        let ran = self.stop_if(ran);
        if ran.is_err() {
            // No message of a failed turn is sent.
            self.output.envelopes.clear();
        }
        ran
    }

    /// Takes a message of another node. One that cannot be true is ignored.
    ///
    /// # Errors
    /// If the medium fails, or is damaged: the node has stopped.
    pub fn step(&mut self, envelope: Envelope) -> Result<()> {
        self.check_running()?;
        let Envelope { from, to, identity, start, life, .. } = envelope;
        if to != self.settings.id || from == to {
            return Ok(());
        }
        self.run(|node| {
            if !node.is_heard(&envelope)? {
                return Ok(());
            }
            let known = node.view().control().term;
            if !admission::has_possible_term(&envelope.body, known) {
                return Ok(());
            }
            match envelope.body {
                Body::Raft(message) => node.step_raft(message),
                Body::Page(page) => {
                    node.take_page(Peer { node: from, identity, start, life }, page)
                }
                Body::Receipt(receipt) => node.take_receipt(from, receipt),
                Body::Hello(_) => Ok(()),
                Body::Ask(number) => {
                    node.take_ask(from, number);
                    Ok(())
                }
                Body::Told(number, index) => {
                    node.told.insert(number, index);
                    Ok(())
                }
                Body::Keepalive => {
                    node.take_keepalive(from);
                    Ok(())
                }
            }
        })
    }

    /// A tick of time has passed.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn tick(&mut self) -> Result<()> {
        self.run(|node| {
            node.view().tick();
            node.view().map.release_in_time()?;
            node.shortage.asked_at = None;
            node.tick_identity();
            node.tick_writes()?;
            let (waits, may_stand) = (node.is_waiting(), node.may_stand());
            if let State::Running(raw) = &mut node.state
                && !waits
            {
                if !may_stand && raw.raft.state != StateRole::Leader {
                    // It still has to notice that it hears no leader.
                    raw.raft.election_elapsed += 1;
                    if raw.raft.pass_election_timeout() {
                        raw.raft.leader_id = raft::INVALID_ID;
                    }
                } else {
                    let _is_ready = raw.tick();
                }
            }
            node.tend_members();
            node.silent_ticks += 1;
            node.draw_timeout();
            node.tick_transfers()
        })
    }

    /// Does the work that proposals and reads have caused, and sends the messages that waited for tickets which are
    /// durable by now; [`Node::step`] and [`Node::tick`] do so by themselves.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn flush(&mut self) -> Result<()> {
        self.run(|_| Ok(()))
    }

    /// Gives the leadership to another node, if it has all entries in time.
    pub fn transfer_leadership(&mut self, to: NodeId) {
        self.end_draft();
        if let State::Running(raw) = &mut self.state {
            raw.transfer_leader(to);
        }
    }

    /// The messages and results since the last call.
    pub fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.output)
    }

    /// Calls `read` with the map, in which readers see the applied entries.
    pub fn with_map<R>(&self, read: impl FnOnce(&dyn ReplicaMap) -> R) -> R {
        read(self.view.0.lock().map.as_ref())
    }

    /// The state of the node.
    pub fn status(&self) -> Status {
        let view = self.view();
        let control = view.control();
        let members = view.members().clone();
        let (newest, applied) = (control.newest, control.applied);
        let (term, committed) = match &self.state {
            State::Running(raw) => (raw.raft.term, raw.raft.raft_log.committed),
            State::Installing(_) => (control.term, 0),
        };
        drop(view);
        let (role, leader) = (self.role(), self.leader());
        Status { role, term, leader, newest, committed, applied, members }
    }

    /// The term in which this node leads, once it has applied an entry of that term: by then everything acknowledged
    /// before is applied, and every pending entry was proposed here.
    pub fn leads_in(&self) -> Option<u64> {
        let State::Running(raw) = &self.state else { return None };
        let term = raw.raft.term;
        let leads = raw.raft.state == StateRole::Leader;
        (leads && self.view().applied_term() == term).then_some(term)
    }

    /// The newest entry that readers see.
    pub fn applied(&self) -> u64 {
        self.view().control().applied
    }

    /// Applied entries behind this index, up to so many bytes, but at least one.
    ///
    /// # Errors
    /// [`Error::HistoryGone`] if not all of them are in DRAM any more.
    pub(crate) fn applied_since(&self, index: u64, bytes_max: usize) -> Result<Vec<Entry>> {
        self.check_running()?;
        self.view().applied_since(index, bytes_max)
    }

    /// Of a leader: how far the members have come; empty for other nodes.
    pub fn progress(&self) -> Vec<MemberProgress> {
        let State::Running(raw) = &self.state else { return Vec::new() };
        if raw.raft.state != StateRole::Leader {
            return Vec::new();
        }
        let of = |(node, it): (&NodeId, &raft::Progress)| {
            let is_active = it.recent_active || *node == self.settings.id;
            MemberProgress { node: *node, matched: it.matched, is_active }
        };
        raw.raft.prs().iter().map(of).collect()
    }

    /// The latest time that an applied entry reports as passed.
    pub fn passed(&self) -> UnixMillis {
        UnixMillis(self.view().notes().passed)
    }

    /// The newest entry of this node, written or not.
    pub fn newest(&self) -> u64 {
        match &self.state {
            State::Running(raw) => raw.raft.raft_log.last_index(),
            State::Installing(_) => self.view().control().newest,
        }
    }

    /// The cluster of this node; 0 before it has a name.
    pub fn cluster(&self) -> u64 {
        self.view().notes().cluster
    }

    /// Snapshots that were installed since it was opened.
    pub fn installed(&self) -> u64 {
        self.installed
    }

    /// The role of this node.
    pub(crate) fn role(&self) -> Role {
        match &self.state {
            State::Installing(_) => Role::Installing,
            State::Running(raw) => match raw.raft.state {
                StateRole::Leader => Role::Leader,
                StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
        }
    }

    /// The leader, if it is known.
    pub fn leader(&self) -> Option<NodeId> {
        match &self.state {
            State::Running(raw) => Some(raw.raft.leader_id).filter(|leader| *leader != 0),
            State::Installing(install) => install.as_ref().map(|install| install.from),
        }
    }

    fn view(&self) -> MutexGuard<'_, LogView> {
        self.view.0.lock()
    }

    pub(crate) fn check_running(&self) -> Result<()> {
        match &self.stopped {
            None => Ok(()),
            Some(why) => Err(Error::Unusable(format!("the node has stopped: {why}"))),
        }
    }

    fn stop_if(&mut self, done: Result<()>) -> Result<()> {
        // Consensus was told of a failed read as an error of another kind.
        let failed = self.view().failed.borrow_mut().take();
        let done = failed.map_or(done, Err);
        if let Err(error) = &done {
            self.stopped = Some(error.to_string());
        }
        done
    }

    fn step_raft(&mut self, mut message: RaftMessage) -> Result<()> {
        let State::Running(raw) = &self.state else { return self.answer_without_log(&message) };
        let newest = raw.raft.raft_log.last_index();
        let is_admitted = admission::is_possible(raw, newest, &self.view.0.lock(), &message);
        let is_named = message.get_msg_type() == MessageType::MsgTimeoutNow;
        if is_admitted && (!is_named || self.may_stand()) {
            promise::refuse_less(&self.view.0.lock(), &mut message);
            self.step_append(message)?;
            self.draw_timeout();
        }
        Ok(())
    }

    /// Reports proposals and reads as lost that were begun in a leadership that has ended.
    fn end_leadership(&mut self) {
        let term = match &self.state {
            State::Running(raw) if raw.raft.state == StateRole::Leader => raw.raft.term,
            _ => 0,
        };
        let is_over = |open: &Open| open.term != term;
        let over = self.proposals.extract_if(.., |_, open| is_over(open));
        self.output.lost.extend(over.map(|(number, _)| number));
        let over = self.reads_asked.extract_if(.., |_, (open, _)| is_over(open));
        self.output.reads_lost.extend(over.flat_map(|(_, (_, reads))| reads));
        if term == 0 {
            self.asks.clear();
            self.output.reads_lost.append(&mut self.reads_new);
            self.transfers.clear();
        }
    }

    /// Draws the election timeout from the seed: consensus draws its own, which could not be repeated.
    fn draw_timeout(&mut self) {
        let Settings { id, seed, election_ticks, .. } = self.settings;
        if let State::Running(raw) = &mut self.state {
            let drawn = mix(seed ^ mix(id) ^ mix(raw.raft.term.wrapping_mul(3)));
            let timeout = election_ticks + (drawn % election_ticks as u64) as usize;
            raw.raft.set_randomized_election_timeout(timeout);
        }
    }

    /// Pins the applied state.
    ///
    /// # Errors
    /// As [`ReplicaMap::snapshot`].
    pub fn snapshot(&self) -> Result<Box<dyn MapSnapshot>> {
        self.view().map.snapshot()
    }
}

/// A number from which `number` cannot be guessed.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
