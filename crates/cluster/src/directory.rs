//! The leader and the addresses of the nodes, for the loops of the server.

use crate::backup::Pins;
use crate::refusal::Refusals;
use coreplane_engine::{Deferred, DurableListener};
use coreplane_replica::{FollowerReads, MemberChange, NodeId, Replica, Role, Status};
use coreplane_server::{
    AppliedEntry, ClusterInfo, MemberInfo, SnapshotPage, Standing, engine_error_text,
};
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

    /// Refuses a node to which the leadership cannot be transferred: meanwhile nothing would be written.
    fn check_successor(&self, node: NodeId) -> Result<(), String> {
        if !self.replica.status().members.voters.contains(&node) {
            return Err(format!("ERR node {node} is no voter"));
        }
        match self.replica.progress().iter().any(|it| it.node == node && it.is_active) {
            true => Ok(()),
            false => Err(format!("TRYAGAIN node {node} does not answer")),
        }
    }

    /// The reason why no change was begun; or the address to ask instead, if another node leads.
    fn refusal(&self, error: &coreplane_engine::Error) -> String {
        match *self.standing.lock() {
            Standing::Follows(leader) => format!("MOVED 0 {leader}"),
            _ => engine_error_text(error),
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
                self.check_successor(node)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use coreplane_engine::{Completion, Engine, WriteOptions};
    use coreplane_replica::{Settings, WalBaseline, WalOptions};
    use std::time::Instant;

    /// A cluster in one thread.
    struct Table {
        replicas: Vec<Arc<Replica>>,
        _place: tempfile::TempDir,
    }

    impl Table {
        /// So many nodes, the first of which form the cluster.
        fn new(first: NodeId, all: NodeId) -> Self {
            let place = tempfile::tempdir().expect("a directory");
            let open = |id: NodeId| {
                let path = place.path().join(id.to_string());
                let map = WalBaseline::open(&path, &WalOptions::default()).expect("a map");
                let contacts: Vec<NodeId> = (1..=first).collect();
                let peers = if id <= first { contacts.clone() } else { Vec::new() };
                let settings =
                    Settings { id, identity: id, peers, contacts, ..Settings::default() };
                Arc::new(Replica::open(Box::new(map), settings, None).expect("a replica"))
            };
            let replicas = (1..=all).map(open).collect();
            Self { replicas, _place: place }
        }

        /// Ticks the nodes without this one, and delivers their messages, until there is a result.
        fn until<T>(&self, cut: NodeId, look: impl Fn(&Replica) -> Option<T>) -> T {
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(60) {
                let beside = self.replicas.iter().zip(1..).filter(|(_, id)| *id != cut);
                for (replica, _) in beside.clone() {
                    replica.persisted().expect("a sync");
                    replica.tick().expect("a tick");
                }
                for (replica, _) in beside.clone() {
                    for letter in replica.take_envelopes() {
                        if letter.to != cut {
                            let to = &self.replicas[letter.to as usize - 1];
                            to.receive(letter).expect("a message");
                        }
                    }
                }
                let found = beside.clone().find_map(|(it, _)| look(it));
                match found {
                    Some(found) => return found,
                    None => std::thread::sleep(Duration::from_millis(1)),
                }
            }
            panic!("it does not come");
        }

        /// The directory of the leader.
        fn leader(&self) -> Directory {
            let id = self.until(0, |it| it.leads().then(|| it.status().leader)?);
            let replica = Arc::clone(&self.replicas[id as usize - 1]);
            let directory = Directory::new(id, replica, false, Duration::from_secs(1));
            directory.refresh();
            directory
        }
    }

    fn refusal_of(directory: &Directory, words: [&str; 2]) -> String {
        directory.run(&words).expect_err("a refusal")
    }

    #[test]
    fn changes_that_are_never_possible_are_errors() {
        let leader = Table::new(1, 1).leader();
        let refused = refusal_of(&leader, ["REMOVE", "1"]);
        assert!(refused.starts_with("ERR "), "{refused}");
        let table = Table::new(7, 7);
        let leader = table.leader();
        for words in [["ADD", "8"], ["TRANSFER", "9"]] {
            let refused = refusal_of(&leader, words);
            assert!(refused.starts_with("ERR "), "{words:?}: {refused}");
        }
        // The command may be sent again, and to the next leader.
        assert!(leader.run(&["TRANSFER", &leader.id.to_string()]).is_ok());
    }

    #[test]
    fn changes_that_another_one_makes_possible_are_to_be_tried_again() {
        let is_later = |leader: &Directory, words| {
            let refused = refusal_of(leader, words);
            assert!(refused.starts_with("TRYAGAIN "), "{words:?}: {refused}");
        };
        let table = Table::new(1, 2);
        let leader = table.leader();
        // It says hello before.
        table.until(0, |_| leader.run(&["ADD", "2"]).ok());
        is_later(&leader, ["REMOVE", "1"]);
        table.until(2, |it| it.status().members.joining.contains(&2).then_some(()));
        is_later(&leader, ["REMOVE", "1"]);
        table.until(0, |it| it.status().members.voters.contains(&2).then_some(()));
        let table = Table::new(7, 7);
        let leader = table.leader();
        let leaving = (leader.id % 7 + 1).to_string();
        assert!(leader.run(&["REMOVE", &leaving]).is_ok());
        is_later(&leader, ["ADD", "8"]);
    }

    #[test]
    fn the_leadership_does_not_go_to_a_node_that_does_not_answer() {
        let table = Table::new(3, 3);
        let leader = table.leader();
        let silent = leader.id % 3 + 1;
        let is_silent =
            |it: &Replica| it.progress().iter().any(|it| it.node == silent && !it.is_active);
        table.until(silent, |it| is_silent(it).then_some(()));
        let refused = refusal_of(&leader, ["TRANSFER", &silent.to_string()]);
        assert!(refused.starts_with("TRYAGAIN "), "{refused}");
        let early = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
        let put = leader.replica.put(b"key", b"value", &early).expect("no pause of writes");
        assert!(put.written().is_some());
    }
}
