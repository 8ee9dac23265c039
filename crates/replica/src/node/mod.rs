//! A node: calls in, an [`Output`] out, and the map below.

mod admission;
mod apply;
mod reads;
mod settings;
mod transfer;

use crate::codec::{Body, Envelope};
use crate::entry::{CONTEXT_MAX, Header, Kind, encode_changes};
use crate::log_view::{LogView, SharedView};
use crate::members::{MemberChange, Members, NodeId, encode_change, to_conf_change};
use coreplane_engine::{Batch, Error, Result, Ticket};
use coreplane_mvcc::{LogMap, LogSnapshot};
use coreplane_pmem::mutant;
use parking_lot::{Mutex, MutexGuard};
use raft::eraftpb::{Entry, EntryType, Message as RaftMessage, MessageType};
use raft::{Config, RawNode, StateRole};
pub use settings::{Output, Role, Settings, Status};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use transfer::{Install, Transfer};

/// A proposal that is open, or a read.
#[derive(Debug, Clone, Copy)]
struct Open {
    term: u64,
    /// Of a change of members: where its entry is. It has no room for a number.
    index: Option<u64>,
}

/// What waits until it is durable.
struct Unpersisted {
    ready: u64,
    ticket: Ticket,
    messages: Vec<RaftMessage>,
}

/// Who speaks for the map: consensus, or, while a snapshot is installed, nobody.
enum State {
    Running(Box<RawNode<SharedView>>),
    /// Who sends it, if anybody does.
    Installing(Option<Install>),
}

/// A node of a cluster.
pub struct Node {
    settings: Settings,
    view: SharedView,
    state: State,
    unpersisted: VecDeque<Unpersisted>,
    next_number: u64,
    proposals: BTreeMap<u64, Open>,
    /// Reads that were not begun, those that a majority is asked for, and those that wait for an index to be applied.
    reads_new: Vec<u64>,
    reads_asked: BTreeMap<u64, (Open, Vec<u64>)>,
    reads_confirmed: Vec<(u64, Open, Vec<u64>)>,
    transfers: BTreeMap<NodeId, Transfer>,
    installed: u64,
    /// Ticks since somebody who leads was heard, of a node that installs.
    silent_ticks: usize,
    output: Output,
    /// Why it has stopped.
    stopped: Option<String>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("id", &self.settings.id).finish_non_exhaustive()
    }
}

impl Node {
    /// A node over its map. A map in which nothing was ever done is made one of a node of a cluster of the
    /// [peers](Settings::peers), all of which do so; that is durable when this returns.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] of settings that cannot be; [`Error::Corrupt`] of a map that is no node's; if the medium fails.
    pub fn open(map: LogMap, settings: Settings) -> Result<Self> {
        if settings.id == 0 || settings.peers.contains(&0) {
            return Err(Error::OutOfRange { what: "a node", given: 0, from: 1, to: u64::MAX });
        }
        let mut view = LogView::new(map, settings.ring_bytes)?;
        if view.control().newest == 0 && !view.control().is_installing && !settings.peers.is_empty()
        {
            form(&mut view, &settings)?;
        }
        let is_installing = view.control().is_installing;
        let view = SharedView(Arc::new(Mutex::new(view)));
        let state = match is_installing {
            true => State::Installing(None),
            false => State::Running(Box::new(consensus(&view, &settings)?)),
        };
        let mut node = Self {
            settings,
            view,
            state,
            unpersisted: VecDeque::new(),
            next_number: 1,
            proposals: BTreeMap::new(),
            reads_new: Vec::new(),
            reads_asked: BTreeMap::new(),
            reads_confirmed: Vec::new(),
            transfers: BTreeMap::new(),
            installed: 0,
            silent_ticks: 0,
            output: Output::default(),
            stopped: None,
        };
        node.draw_timeout();
        Ok(node)
    }

    /// What others have said. Of what cannot be believed nothing is done.
    ///
    /// # Errors
    /// If the medium fails, or is damaged: the node has stopped.
    pub fn step(&mut self, envelope: Envelope) -> Result<()> {
        self.check_running()?;
        let Envelope { cluster, from, to, body, .. } = envelope;
        if cluster != self.settings.cluster || to != self.settings.id || from == to {
            return Ok(());
        }
        let stepped = match body {
            Body::Raft(message) => self.step_raft(message),
            Body::Page(page) => self.take_page(from, page),
            Body::Receipt(receipt) => self.take_receipt(from, receipt),
        };
        let turned = stepped.and_then(|()| self.turn());
        self.stop_if(turned)
    }

    /// A tick of time has passed.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn tick(&mut self) -> Result<()> {
        self.check_running()?;
        if let State::Running(raw) = &mut self.state {
            let _is_ready = raw.tick();
        }
        self.silent_ticks += 1;
        self.draw_timeout();
        let turned = self.tick_transfers().and_then(|()| self.turn());
        self.stop_if(turned)
    }

    /// Proposes changes that are made together: the number by which the output calls them.
    ///
    /// # Errors
    /// [`Error::NotLeader`]; [`Error::Busy`] if too much is under way; if the node has stopped.
    pub fn propose(&mut self, changes: &Batch) -> Result<u64> {
        let number = self.next_number;
        let mut context = Vec::with_capacity(24);
        for word in [self.settings.id, self.settings.start, number] {
            context.extend_from_slice(&word.to_le_bytes());
        }
        let data = encode_changes(changes.changes());
        self.propose_with(|raw| raw.propose(context, data))
    }

    /// Proposes that members change: the number by which the output calls it.
    ///
    /// # Errors
    /// As [`Node::propose`]; [`Error::NotLeader`] also of the leader that is to be a voter no more: it sees to it that
    /// another one leads, to which the same is to be proposed. [`Error::OutOfRange`] of too many changes at once.
    pub fn propose_members(&mut self, changes: &[MemberChange]) -> Result<u64> {
        let context = encode_change(changes);
        if context.len() > CONTEXT_MAX {
            let (given, to) = (changes.len() as u64, CONTEXT_MAX as u64 / 9);
            return Err(Error::OutOfRange { what: "changes of members", given, from: 0, to });
        }
        let conf = to_conf_change(changes);
        if let State::Running(raw) = &mut self.state
            && raw.raft.state == StateRole::Leader
            && changes.iter().any(|it| it.ends(self.settings.id))
        {
            // A leader that is none any more would go on as one. Another one is to lead first.
            let others = raw.raft.prs().iter().filter(|(id, _)| **id != self.settings.id);
            let voters = raw.raft.prs().conf().voters();
            let next =
                others.filter(|(id, _)| voters.contains(**id)).max_by_key(|(_, it)| it.matched);
            if let Some((next, _)) = next.map(|(id, _)| (*id, ())) {
                raw.transfer_leader(next);
            }
            return Err(Error::NotLeader { leader: None });
        }
        if let State::Running(raw) = &self.state
            && (raw.raft.has_pending_conf()
                || !raw.raft.prs().conf().to_conf_state().voters_outgoing.is_empty())
        {
            // Consensus would put nothing in its place, and not say so.
            return Err(Error::Busy);
        }
        let number = self.propose_with(|raw| raw.propose_conf_change(context, conf))?;
        if let (State::Running(raw), Some(open)) = (&self.state, self.proposals.get_mut(&number)) {
            open.index = Some(raw.raft.raft_log.last_index());
        }
        Ok(number)
    }

    fn propose_with(
        &mut self,
        propose: impl FnOnce(&mut RawNode<SharedView>) -> raft::Result<()>,
    ) -> Result<u64> {
        self.check_running()?;
        let leader = self.leader();
        let State::Running(raw) = &mut self.state else { return Err(Error::Installing) };
        if raw.raft.state != StateRole::Leader {
            return Err(Error::NotLeader { leader });
        }
        match propose(raw) {
            Ok(()) => {}
            Err(raft::Error::ProposalDropped) => return Err(Error::Busy),
            Err(error) => return Err(Error::Unusable(error.to_string())),
        }
        let (term, number) = (raw.raft.term, self.next_number);
        self.next_number += 1;
        self.proposals.insert(number, Open { term, index: None });
        Ok(number)
    }

    /// Does what proposals and reads have made to be done; [`Node::step`] and [`Node::tick`] do so by themselves.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn flush(&mut self) -> Result<()> {
        self.check_running()?;
        let turned = self.turn();
        self.stop_if(turned)
    }

    /// What the tickets of outputs stand for has become durable, as far as it has.
    ///
    /// # Errors
    /// As [`Node::step`].
    pub fn persisted(&mut self) -> Result<()> {
        self.flush()
    }

    /// Gives the leadership to another node, if it has all entries in time.
    pub fn transfer_leadership(&mut self, to: NodeId) {
        if let State::Running(raw) = &mut self.state {
            raw.transfer_leader(to);
        }
    }

    /// What there is to be done and told since it was asked last.
    pub fn take_output(&mut self) -> Output {
        std::mem::take(&mut self.output)
    }

    /// Calls `read` with the map, of which readers see what is applied.
    pub fn with_map<R>(&self, read: impl FnOnce(&LogMap) -> R) -> R {
        read(&self.view.0.lock().map)
    }

    /// How it stands.
    pub fn status(&self) -> Status {
        let view = self.view();
        let control = view.control();
        let members = view.members().unwrap_or_default();
        let (newest, applied) = (control.newest, control.applied);
        let (term, committed) = match &self.state {
            State::Running(raw) => (raw.raft.term, raw.raft.raft_log.committed),
            State::Installing(_) => (control.term, 0),
        };
        drop(view);
        let (role, leader) = (self.status_role(), self.leader());
        Status { role, term, leader, newest, committed, applied, members }
    }

    /// Snapshots that were installed since it was opened.
    pub fn installed(&self) -> u64 {
        self.installed
    }

    fn status_role(&self) -> Role {
        match &self.state {
            State::Installing(_) => Role::Installing,
            State::Running(raw) => match raw.raft.state {
                StateRole::Leader => Role::Leader,
                StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
        }
    }

    fn leader(&self) -> Option<NodeId> {
        match &self.state {
            State::Running(raw) => Some(raw.raft.leader_id).filter(|leader| *leader != 0),
            State::Installing(install) => install.as_ref().map(|install| install.from),
        }
    }

    fn view(&self) -> MutexGuard<'_, LogView> {
        self.view.0.lock()
    }

    fn check_running(&self) -> Result<()> {
        match &self.stopped {
            None => Ok(()),
            Some(why) => Err(Error::Unusable(format!("the node has stopped: {why}"))),
        }
    }

    fn stop_if(&mut self, done: Result<()>) -> Result<()> {
        // What could not be read is told to consensus as an error of another kind.
        let failed = self.view().failed.borrow_mut().take();
        let done = failed.map_or(done, Err);
        if let Err(error) = &done {
            self.stopped = Some(error.to_string());
        }
        done
    }

    fn step_raft(&mut self, message: RaftMessage) -> Result<()> {
        let State::Running(raw) = &mut self.state else { return self.answer_without_log(&message) };
        let newest = raw.raft.raft_log.last_index();
        let is_admitted = admission::is_possible(raw, newest, &self.view.0.lock(), &message);
        if is_admitted {
            // What it refuses is nothing that has to be done about.
            let _refused = raw.step(message).is_err();
            self.draw_timeout();
        }
        Ok(())
    }

    /// One turn: all that consensus wants written is written, with one commit; what may be said is said.
    fn turn(&mut self) -> Result<()> {
        loop {
            self.say_persisted()?;
            self.begin_reads();
            let State::Running(raw) = &mut self.state else { return Ok(()) };
            if !raw.has_ready() {
                break;
            }
            let mut ready = raw.ready();
            let messages = ready.take_messages();
            let read_states = ready.take_read_states();
            let (committed, entries) = (ready.take_committed_entries(), ready.take_entries());
            let vote = ready.hs().map(|state| (state.term, state.vote));
            let later = ready.take_persisted_messages();
            self.send_all(messages)?;
            let ticket = {
                let mut view = self.view.0.lock();
                view.append(entries)?;
                if let Some((term, vote)) = vote.filter(|_| !mutant!("replica.vote.forgotten")) {
                    view.set_vote(term, vote)?;
                }
                if mutant!("replica.ack.early") { Ticket::DURABLE } else { view.commit()? }
            };
            self.apply(committed)?;
            let number = ready.number();
            if let State::Running(raw) = &mut self.state {
                raw.advance_append_async(ready);
            }
            self.unpersisted.push_back(Unpersisted { ready: number, ticket, messages: later });
            for state in read_states {
                self.confirm_read(&state.request_ctx, state.index);
            }
        }
        self.end_leadership();
        self.answer_reads();
        let ticket = self.unpersisted.back().map(|it| it.ticket);
        self.output.ticket = ticket.filter(|ticket| !ticket.is_durable());
        Ok(())
    }

    /// Says what is durable by now.
    fn say_persisted(&mut self) -> Result<()> {
        while let Some(first) = self.unpersisted.front() {
            let is_durable =
                first.ticket.is_durable() || self.view().map.is_durable(first.ticket)?;
            if !is_durable {
                break;
            }
            let Some(Unpersisted { ready, messages, .. }) = self.unpersisted.pop_front() else {
                break;
            };
            if let State::Running(raw) = &mut self.state {
                raw.on_persist_ready(ready);
            }
            self.send_all(messages)?;
        }
        Ok(())
    }

    fn send_all(&mut self, messages: Vec<RaftMessage>) -> Result<()> {
        for message in messages {
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.begin_transfer(message.to)?;
            } else {
                self.send(message.to, Body::Raft(message));
            }
        }
        Ok(())
    }

    fn send(&mut self, to: NodeId, body: Body) {
        let Settings { cluster, start, id, .. } = self.settings;
        self.output.envelopes.push(Envelope { cluster, start, from: id, to, body });
    }

    /// What was begun in a leadership that has ended is lost to its caller.
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
            self.output.reads_lost.append(&mut self.reads_new);
            self.transfers.clear();
        }
    }

    /// How long it waits for a leader is drawn from the seed: consensus draws by itself, which nobody could repeat.
    fn draw_timeout(&mut self) {
        let Settings { id, seed, election_ticks, .. } = self.settings;
        if let State::Running(raw) = &mut self.state {
            let drawn = mix(seed ^ mix(id) ^ mix(raw.raft.term.wrapping_mul(3)));
            let timeout = election_ticks + (drawn % election_ticks as u64) as usize;
            raw.raft.set_randomized_election_timeout(timeout);
        }
    }

    fn snapshot(&self) -> Result<LogSnapshot> {
        self.view().map.snapshot()
    }
}

/// A number from which nothing can be told of `number`.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Makes an empty map one of a node of a new cluster. The first entry, which each of the nodes writes for itself, says who
/// they are: so a node that comes later has less than they, and is sent a snapshot that says it.
fn form(view: &mut LogView, settings: &Settings) -> Result<()> {
    let mut voters = settings.peers.clone();
    voters.sort_unstable();
    voters.dedup();
    let members = Members::first(&voters);
    let header = Header { kind: Kind::Members, term: 1, context: bytes::Bytes::new() };
    let mut entry = Entry { index: 1, term: 1, ..Entry::default() };
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    debug_assert!(Header::decode(&header.encode()).is_some());
    view.append(vec![entry])?;
    view.set_members(&members, (0, 0))?;
    view.set_vote(1, 0)?;
    view.apply(1)?;
    let ticket = view.commit()?;
    view.map.wait_durable(ticket)
}

fn consensus(view: &SharedView, settings: &Settings) -> Result<RawNode<SharedView>> {
    let applied = view.0.lock().control().applied;
    let config = Config {
        id: settings.id,
        election_tick: settings.election_ticks,
        heartbeat_tick: settings.heartbeat_ticks,
        applied,
        max_size_per_msg: settings.message_bytes,
        max_inflight_msgs: settings.in_flight,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: settings.uncommitted_bytes.max(settings.message_bytes),
        ..Config::default()
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let made = RawNode::new(&config, view.clone(), &logger);
    made.map_err(|error| Error::Unusable(error.to_string()))
}
