//! The leader and the addresses of the nodes, for the loops of the server.

use crate::backup::Pins;
use crate::refusal::Refusals;
use coreplane_engine::{Deferred, DurableListener};
use coreplane_replica::{FollowerReads, MemberChange, NodeId, Replica, Role, Status};
use coreplane_server::{AppliedEntry, ClusterInfo, MemberInfo, SnapshotPage, Standing};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The addresses of the nodes.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    /// The addresses for clients.
    pub(crate) clients: BTreeMap<NodeId, SocketAddr>,
    /// Nodes of another cluster that have connected: one of them was started with the wrong peers.
    pub(crate) strangers: BTreeMap<SocketAddr, NodeId>,
    /// Nodes that were refused.
    pub(crate) refusals: Refusals,
    /// The reason why the node has stopped.
    pub(crate) failure: Option<String>,
}

/// The leader and the addresses of the nodes, for the loops of the server, and an operator's changes of the members.
#[derive(Debug)]
pub struct Directory {
    id: NodeId,
    pub(crate) replica: Arc<Replica>,
    redirects: bool,
    follower_reads: FollowerReads,
    /// The greatest age of the state that a follower serves.
    follower_age_max: Duration,
    standing: Mutex<Standing>,
    pins: Mutex<Pins>,
    pub(crate) nodes: Mutex<Nodes>,
}

impl Directory {
    pub(crate) fn new(
        id: NodeId,
        replica: Arc<Replica>,
        redirects: bool,
        follower_age_max: Duration,
    ) -> Self {
        let follower_reads = FollowerReads::of(Arc::clone(&replica));
        let standing = Mutex::new(Standing::Unknown);
        let (pins, nodes) = (Mutex::default(), Mutex::default());
        Self { id, replica, redirects, follower_reads, follower_age_max, standing, pins, nodes }
    }

    /// Finds out which node leads.
    pub(crate) fn refresh(&self) {
        let known = self.nodes.lock();
        let standing = match (self.replica.leads(), self.replica.leader()) {
            _ if known.failure.is_some() => Standing::Unknown,
            (true, _) => Standing::Leads,
            (false, Some(leader)) if leader != self.id => {
                known.clients.get(&leader).map_or(Standing::Unknown, |it| Standing::Follows(*it))
            }
            _ => Standing::Unknown,
        };
        *self.standing.lock() = standing;
        self.pins.lock().tend();
    }

    fn status_text(&self) -> String {
        let status = self.replica.status();
        let (known, progress) = (self.nodes.lock(), self.replica.progress());
        let Status { role, term, leader, newest, committed, applied, members } = status;
        let leader = leader.map_or("none".to_owned(), |leader| leader.to_string());
        let mut text = format!(
            "id:{}\nrole:{}\nterm:{term}\nleader:{leader}\nnewest:{newest}\ncommitted:{committed}\napplied:{applied}\n",
            self.id,
            role_name(role)
        );
        for id in members.all() {
            let part = match (members.voters.contains(&id), members.voters_outgoing.contains(&id)) {
                (true, _) => "voter",
                (false, true) => "leaving",
                (false, false) => "learner",
            };
            let address = known.clients.get(&id).map_or("unknown".to_owned(), ToString::to_string);
            let matched = progress.iter().find(|it| it.node == id);
            let index = matched.map_or("unknown".to_owned(), |it| it.matched.to_string());
            let heard = matched.map_or("unknown", |it| if it.is_active { "yes" } else { "no" });
            text += &format!("node:{id} {part} clients={address} index={index} heard={heard}\n");
        }
        for (address, id) in &known.strangers {
            text += &format!("stranger:{id} of another cluster, at {address}\n");
        }
        text += &known.refusals.text();
        if let Some(failure) = &known.failure {
            text += &format!("failure:{failure}\n");
        } else if self.replica.lacks_room() {
            text += "failure:the pool has no room for what the leader sends: grow it\n";
        }
        text
    }

    /// The leader proposes a change of members.
    fn change(&self, change: MemberChange) -> Result<String, String> {
        let begun = self.replica.change_members(&[change]);
        let told = "begun; CLUSTER STATUS tells when it is done";
        begun.map(|_| told.to_owned()).map_err(|error| self.refusal(&error))
    }

    /// The reason why no change was begun; or the address to ask instead, if another node leads.
    fn refusal(&self, error: &coreplane_engine::Error) -> String {
        match *self.standing.lock() {
            Standing::Follows(leader) => format!("MOVED 0 {leader}"),
            _ => format!("TRYAGAIN {error}"),
        }
    }
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Installing => "installing",
    }
}

fn node_of(word: &str) -> Result<NodeId, String> {
    match word.parse() {
        Ok(0) | Err(_) => Err(format!("ERR '{word}' is no node: they are numbered from 1 on")),
        Ok(id) => Ok(id),
    }
}

impl ClusterInfo for Directory {
    fn standing(&self) -> Standing {
        *self.standing.lock()
    }

    fn followers(&self) -> Vec<(SocketAddr, u64)> {
        let (progress, known) = (self.replica.progress(), self.nodes.lock());
        let others = progress.iter().filter(|it| it.node != self.id && it.is_active);
        others.filter_map(|it| Some((*known.clients.get(&it.node)?, it.matched))).collect()
    }

    fn applied(&self) -> u64 {
        self.replica.applied()
    }

    fn copies(&self) -> usize {
        let committed = self.replica.status().committed;
        self.replica.progress().iter().filter(|it| it.matched >= committed).count()
    }

    fn run(&self, words: &[&str]) -> Result<String, String> {
        let name = words.first().map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        match (name.as_str(), words.get(1..).unwrap_or_default()) {
            ("MYID", []) => Ok(self.id.to_string()),
            ("STATUS", []) => Ok(self.status_text()),
            ("INFO", []) => {
                let nodes = self.replica.status().members.all().len();
                let is_ok = self.standing() != Standing::Unknown;
                let state = if is_ok { "ok" } else { "fail" };
                Ok(format!(
                    "cluster_state:{state}\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\n\
                     cluster_known_nodes:{nodes}\r\ncluster_size:1\r\n"
                ))
            }
            ("ADD", [node]) => {
                let node = node_of(node)?;
                let members = self.replica.status().members;
                if !self.replica.leads() {
                    return Err(self.refusal(&coreplane_engine::Error::Busy));
                }
                if !members.has(node) {
                    self.change(MemberChange::Join(node))?;
                }
                Ok("begun; CLUSTER STATUS tells when it is a voter".to_owned())
            }
            ("REMOVE", [node]) => self.change(MemberChange::Remove(node_of(node)?)),
            ("TRANSFER", [node]) => {
                let node = node_of(node)?;
                if !self.replica.leads() {
                    return Err(self.refusal(&coreplane_engine::Error::Busy));
                }
                let begun = self.replica.transfer_leadership(node);
                begun.map(|()| "begun".to_owned()).map_err(|error| self.refusal(&error))
            }
            _ => Err(
                "ERR CLUSTER has STATUS, INFO, MYID, SLOTS, SHARDS, KEYSLOT key, ADD node, REMOVE node, \
                 TRANSFER node, WATCH index and UNWATCH"
                    .to_owned(),
            ),
        }
    }

    fn figures(&self) -> Vec<(String, String)> {
        let Status { role, term, leader, newest, committed, applied, members } =
            self.replica.status();
        let (progress, installed) = (self.replica.progress(), self.replica.installed());
        let behind = progress.iter().map(|it| newest.saturating_sub(it.matched)).max();
        [
            ("node", self.id),
            ("term", term),
            ("leader", leader.unwrap_or(0)),
            ("leads", u64::from(role == Role::Leader)),
            ("voters", members.voters.len() as u64),
            ("learners", members.learners.len() as u64),
            ("newest", newest),
            ("committed", committed),
            ("applied", applied),
            ("lag_entries_max", behind.unwrap_or(0)),
            ("snapshots_installed", installed),
            ("entries_without_room", self.replica.left_out()),
            ("peers_refused", self.nodes.lock().refusals.count()),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string()))
        .collect()
    }

    fn members(&self) -> Vec<MemberInfo> {
        let Status { applied, members, leader, .. } = self.replica.status();
        let leader = if self.replica.leads() { Some(self.id) } else { leader };
        let (progress, known) = (self.replica.progress(), self.nodes.lock());
        let info = |node: NodeId| {
            let (is_own, leads) = (node == self.id, leader == Some(node));
            let address = known.clients.get(&node).copied();
            let progress = progress.iter().find(|it| it.node == node);
            let index = if is_own { applied } else { progress.map_or(0, |it| it.matched) };
            let is_online = progress.is_none_or(|it| it.is_active);
            let info = MemberInfo { node, address, leads, index, is_online };
            (is_own || address.is_some()).then_some(info)
        };
        let mut all: Vec<MemberInfo> = members.all().into_iter().filter_map(info).collect();
        all.sort_by_key(|it| !it.leads);
        all
    }

    fn pin(&self) -> Result<(u64, u64), String> {
        if !self.replica.leads() {
            return Err(self.refusal(&coreplane_engine::Error::Busy));
        }
        let snapshot = self.replica.snapshot().map_err(|error| format!("ERR {error}"))?;
        let index = snapshot.timestamp();
        Ok((self.pins.lock().add(snapshot)?, index))
    }

    fn page(&self, pin: u64, start: &[u8]) -> Result<SnapshotPage, String> {
        self.pins.lock().page(pin, start)
    }

    fn unpin(&self, pin: u64) {
        self.pins.lock().remove(pin);
    }

    fn changes_since(
        &self,
        index: u64,
        bytes_max: usize,
    ) -> coreplane_engine::Result<Vec<AppliedEntry>> {
        let entries = self.replica.changes_since(index, bytes_max)?.into_iter();
        Ok(entries.map(|it| AppliedEntry { index: it.index, changes: it.changes }).collect())
    }

    fn on_applied(&self, listener: DurableListener) {
        self.replica.on_applied(listener);
    }

    fn follower_reads(&self) -> Option<&dyn Deferred> {
        let is_fresh = self.replica.age().is_some_and(|age| age <= self.follower_age_max);
        is_fresh.then_some(&self.follower_reads as &dyn Deferred)
    }

    fn redirects(&self) -> bool {
        self.redirects
    }
}
