//! A cluster whose network is cut in any direction; the histories of its clients are judged.
//!
//! Each node has a network namespace of its own. A cut drops packets at the receiver, so that a node may receive from
//! all nodes while none receives from it, or the other way round. Clients write, compare and read a few keys through
//! any node, and record the answers. A round has keys of its own: a write with an unknown outcome may be made at any
//! time later, and a history with many of them could not be judged.
//!
//! The test needs root, `ip` and `nft`. `cargo xtask test` installs them, and names `namespaces` in
//! `COREPLANE_CLIENTS_LEFT_OUT` if they are not available; without that this fails, rather than seem to have passed.
//!
//! Seven rounds, or as many as `COREPLANE_KILL_ROUNDS` says; seventy at `COREPLANE_TEST_SCALE=full`.
//! `COREPLANE_HISTORY_FILE` names a file for the histories, as JSON lines, for another judge.

mod nodes;
mod pool;
mod session;

use coreplane_conformance::history::{Call, Event, Sequences, Wish, is_linearizable};
use nodes::{Node, Site, nodes_at};
use pool::Place;
use session::{Client, Outcome, Reply};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest time that a client waits: after that the outcome of its command is unknown.
const ANSWER_MAX: Duration = Duration::from_millis(120);
/// Some clients write, too, and go to another node when one does not answer; the others read, each from its own node.
const CLIENTS: u64 = 6;
const WRITERS: u64 = 3;
/// The keys of a round: with more unanswered writes of one key its history could not be judged.
const KEYS: usize = 6;
/// The duration of a cut, and of the time without a cut after it.
const CUT: Duration = Duration::from_millis(1500);
const WHOLE: Duration = Duration::from_millis(700);
/// A cut that ends the leadership lasts until another node leads, but no longer than this: the writes that nobody
/// answers meanwhile would make a history that cannot be judged.
const ELECTION_MAX: Duration = Duration::from_secs(5);

fn run(words: &str) -> Outcome<()> {
    let mut words_of = words.split_whitespace();
    let mut command = Command::new(words_of.next().unwrap_or_default());
    let output = command.args(words_of).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(format!("{words}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(())
}

/// Three namespaces on a bridge, on which the clients are, too.
struct Network {
    name: String,
}

impl Network {
    fn new() -> Outcome<Self> {
        let name = format!("cp{}", std::process::id() % 100_000);
        let it = Self { name };
        let name = &it.name;
        run(&format!("ip link add {name} type bridge"))?;
        run(&format!("ip addr add 10.232.7.100/24 dev {name}"))?;
        run(&format!("ip link set {name} up"))?;
        for id in 1..=3 {
            run(&format!("ip netns add {name}n{id}"))?;
            run(&format!("ip link add {name}v{id} type veth peer name eth0 netns {name}n{id}"))?;
            run(&format!("ip link set {name}v{id} master {name} up"))?;
            run(&format!("ip -n {name}n{id} addr add 10.232.7.{id}/24 dev eth0"))?;
            run(&format!("ip -n {name}n{id} link set eth0 up"))?;
            run(&format!("ip -n {name}n{id} link set lo up"))?;
            it.nft(id, "add table inet cut")?;
            it.nft(id, "add chain inet cut input { type filter hook input priority 0 ; }")?;
        }
        Ok(it)
    }

    fn site(&self, id: usize) -> Site {
        let within = ["ip", "netns", "exec"].map(str::to_owned).into_iter();
        let within = within.chain([format!("{}n{id}", self.name)]).collect();
        Site { host: format!("10.232.7.{id}"), within, port: 7379, peer_port: 7479 }
    }

    fn nft(&self, id: usize, words: &str) -> Outcome<()> {
        run(&format!("ip netns exec {}n{id} nft {words}", self.name))
    }

    /// Drops all packets from `from` at `to`.
    fn cut(&self, from: usize, to: usize) -> Outcome<()> {
        self.nft(to, &format!("add rule inet cut input ip saddr 10.232.7.{from} drop"))
    }

    fn heal(&self) -> Outcome<()> {
        (1..=3).try_for_each(|id| self.nft(id, "flush chain inet cut input"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let name = &self.name;
        // Missing parts need not be removed.
        let _removed: Vec<bool> = (1..=3)
            .map(|id| run(&format!("ip netns del {name}n{id}")))
            .chain([run(&format!("ip link del {name}"))])
            .map(|done| done.is_ok())
            .collect();
    }
}

/// A command of a client, and its answer.
struct Told {
    client: u64,
    key: usize,
    begin: u64,
    /// None: no answer.
    end: Option<u64>,
    call: Call,
}

impl Told {
    /// As a line of JSON: `expected` and `value` are null if they do not apply, `end` if there was no answer.
    fn line(&self) -> String {
        let null = |number: Option<u64>| number.map_or("null".to_owned(), |it| it.to_string());
        let (op, expected, value, made) = match self.call {
            Call::Shown(value) => ("get", None, value, true),
            Call::Answered(wish, made) => words_of(wish, made),
            Call::CutOff(wish) => words_of(wish, false),
            _ => ("none", None, None, false),
        };
        format!(
            "{{\"client\":{},\"key\":{},\"op\":\"{op}\",\"expected\":{},\"value\":{},\"made\":{made},\"begin\":{},\"end\":{}}}",
            self.client,
            self.key,
            null(expected),
            null(value),
            self.begin,
            null(self.end),
        )
    }
}

fn words_of(wish: Wish, made: bool) -> (&'static str, Option<u64>, Option<u64>, bool) {
    match wish {
        Wish::Put(value) => ("put", None, Some(value), made),
        Wish::Swap(expected, value) => ("swap", Some(expected), Some(value), made),
        Wish::Delete => ("delete", None, None, made),
        Wish::Insert(value) => ("insert", None, Some(value), made),
        Wish::Update(value) => ("update", None, Some(value), made),
    }
}

/// The common state of the clients of a round.
struct Round<'r> {
    addresses: &'r [String],
    clock: &'r AtomicU64,
    is_over: &'r AtomicBool,
    first_key: usize,
    /// Read-only clients read the state of their node. Writers ask the leader, which goes on: so that all commands
    /// are answered, and a history without an order is soon detected.
    reads_followers: bool,
    leader: usize,
}

fn number_in(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Executes one command; its result, or none if the outcome is unknown.
fn ask(client: &mut Client, key: &str, wish: Option<Wish>) -> Option<Call> {
    let key = key.as_bytes();
    let number = |value: u64| value.to_string();
    let reply = match wish {
        None => client.call(&[b"GET", key]),
        Some(Wish::Swap(expected, value)) => {
            let (expected, value) = (number(expected), number(value));
            client.call(&[b"SET", key, value.as_bytes(), b"IFEQ", expected.as_bytes()])
        }
        Some(Wish::Delete) => client.call(&[b"DEL", key]),
        Some(Wish::Put(value) | Wish::Insert(value) | Wish::Update(value)) => {
            client.call(&[b"SET", key, number(value).as_bytes()])
        }
    };
    match (wish, reply.ok()?) {
        (None, Reply::Bulk(value)) => {
            let value = value.map(|bytes| number_in(&bytes).expect("a number that was written"));
            Some(Call::Shown(value))
        }
        (Some(wish), Reply::Simple(_) | Reply::Number(1)) => Some(Call::Answered(wish, true)),
        (Some(wish), Reply::Bulk(None) | Reply::Number(0)) => Some(Call::Answered(wish, false)),
        _ => None,
    }
}

fn connect(address: &str) -> Option<Client> {
    let socket = std::net::TcpStream::connect_timeout(&address.parse().ok()?, ANSWER_MAX).ok()?;
    Client::of(socket, ANSWER_MAX).ok()
}

/// Writes, compares and reads, until the round is over.
fn client(round: &Round<'_>, me: u64, seed: u64) -> Vec<Told> {
    let (mut told, mut drawn, mut at) = (Vec::new(), seed, me as usize);
    let mut draw = |most: u64| {
        drawn =
            drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 33) % most
    };
    let (mut connection, mut seen) = (None, 0);
    while !round.is_over.load(Ordering::Relaxed) {
        if round.reads_followers && me < WRITERS {
            at = round.leader - 1;
        }
        let address = &round.addresses[at % round.addresses.len()];
        let Some(mut asked) = connection.take().or_else(|| connect(address)) else {
            at += usize::from(me < WRITERS);
            continue;
        };
        if round.reads_followers && me >= WRITERS && asked.call(&[b"READONLY"]).is_err() {
            continue;
        }
        let key = round.first_key + draw(KEYS as u64) as usize;
        let begin = round.clock.fetch_add(1, Ordering::SeqCst);
        // No two writes write the same value.
        let value = begin * CLIENTS + me + 1;
        let wish = match draw(8) {
            _ if me >= WRITERS => None,
            0..3 => None,
            3..5 => Some(Wish::Put(value)),
            5 | 6 => Some(Wish::Swap(seen, value)),
            _ => Some(Wish::Delete),
        };
        let answer = ask(&mut asked, &format!("k{key}"), wish);
        let end = round.clock.fetch_add(1, Ordering::SeqCst);
        let said = |end, call| Told { client: me, key, begin, end, call };
        match (answer, wish) {
            (Some(call), _) => {
                if let Call::Shown(Some(value)) = call {
                    seen = value;
                }
                told.push(said(Some(end), call));
                connection = Some(asked);
            }
            // A refused write was not made, or its outcome is unknown: it is treated as the latter.
            (None, Some(wish)) => {
                told.push(said(None, Call::CutOff(wish)));
                at += 1;
            }
            (None, None) => at += usize::from(me < WRITERS),
        }
    }
    told
}

/// A leader that is not heard by a majority, does not hear one, or stands still, loses the leadership.
fn ends_leadership(round: u64) -> bool {
    matches!(round % 7, 0..=2) || stands_still(round)
}

/// A round in which a follower is alone.
const ALONE: u64 = 5;

/// The leader stands still in such a round, and does not know for how long.
fn stands_still(round: u64) -> bool {
    round % 7 == 6
}

/// The cuts of a round: pairs of a node and one that does not hear it. The leader is one of three.
fn cuts(round: u64, leader: usize) -> Vec<(usize, usize)> {
    let (one, other) = (1 + leader % 3, 1 + (leader + 1) % 3);
    match round % 7 {
        _ if stands_still(round) => Vec::new(),
        // The leader is alone.
        0 => vec![(leader, one), (leader, other), (one, leader), (other, leader)],
        // It is not heard, but hears the others.
        1 => vec![(leader, one), (leader, other)],
        // It is heard, but does not hear the others.
        2 => vec![(one, leader), (other, leader)],
        // The leader and one follower do not hear each other; the third node hears both.
        3 => vec![(leader, one), (one, leader)],
        // A follower is alone.
        ALONE => vec![(one, leader), (one, other), (leader, one), (other, one)],
        // In a ring each hears one other.
        _ => vec![(leader, one), (one, other), (other, leader)],
    }
}

/// The term in which a node leads, by its own account.
fn term_of(node: &Node) -> Option<u64> {
    let status = session::coreplane(&["cluster", "status", "--server", &node.address()], b"");
    let text = String::from_utf8_lossy(&status.ok()?.stdout).into_owned();
    let term = text.lines().find_map(|line| line.strip_prefix("term:"))?;
    text.contains("role:leader").then(|| term.parse().ok())?
}

/// The leader, and its term.
fn leader_of(nodes: &[Node]) -> (usize, u64) {
    for _ in 0..500 {
        let leader = |(id, node)| term_of(node).map(|term| (id, term));
        if let Some(leader) = (1..).zip(nodes).find_map(leader) {
            return leader;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("nobody leads");
}

/// A key whose history has no linearization, if there is one.
fn judge(all: &[Told], keys: std::ops::Range<usize>) -> Option<usize> {
    let is_wrong = |key: &usize| {
        let mut threads: Vec<Vec<Event>> = Vec::new();
        for client in 0..=CLIENTS {
            let mut thread = Vec::new();
            for told in all.iter().filter(|it| it.key == *key && it.client == client) {
                let Told { begin, end, call, .. } = *told;
                let event = Event { key: *key, begin, end: end.unwrap_or(u64::MAX), call };
                match end {
                    Some(_) => thread.push(event),
                    // The write may be made while its client goes on.
                    None => threads.push(vec![event]),
                }
            }
            threads.push(thread);
        }
        let count: usize = threads.iter().map(Vec::len).sum();
        assert!(count > 20, "key {key} has {count} calls");
        !is_linearizable(&threads, Sequences::Kept)
    };
    keys.into_iter().find(is_wrong)
}

/// A cluster on a network that is cut.
struct Cluster {
    nodes: Vec<Node>,
    network: Network,
    clock: AtomicU64,
    _place: Place,
}

impl Cluster {
    fn new() -> Outcome<Self> {
        let (network, place) = (Network::new()?, Place::in_memory()?);
        let sites: Vec<Site> = (1..=3).map(|id| network.site(id)).collect();
        let nodes = nodes_at(&place, &sites, 3, &["--no-protected-mode"])?;
        Ok(Self { nodes, network, clock: AtomicU64::new(0), _place: place })
    }

    /// The answers of clients while the network was cut, and at the end.
    fn round(&self, number: u64, cut: u64, reads_followers: bool) -> Outcome<Vec<Told>> {
        let addresses: Vec<String> = self.nodes.iter().map(Node::address).collect();
        let (is_over, clock) = (AtomicBool::new(false), &self.clock);
        let first_key = number as usize * KEYS;
        let ((leader, term), mut all) = (leader_of(&self.nodes), Vec::new());
        let (addresses, is_over) = (&addresses, &is_over);
        let round = Round { addresses, clock, is_over, first_key, reads_followers, leader };
        std::thread::scope(|scope| -> Outcome<()> {
            let round = &round;
            let clients: Vec<_> = (0..CLIENTS)
                .map(|me| scope.spawn(move || client(round, me, number * 100 + me)))
                .collect();
            std::thread::sleep(WHOLE / 2);
            let happened = self.disturb(cut, leader, term);
            std::thread::sleep(WHOLE);
            is_over.store(true, Ordering::Relaxed);
            for client in clients {
                all.extend(client.join().map_err(|_| "a client has panicked")?);
            }
            happened
        })?;
        // The final values count, too.
        for key in first_key..first_key + KEYS {
            let since = Instant::now();
            let begin = clock.fetch_add(1, Ordering::SeqCst);
            let call = loop {
                let mut asked = addresses.iter().filter_map(|it| connect(it));
                if let Some(call) = asked.find_map(|mut it| ask(&mut it, &format!("k{key}"), None))
                {
                    break call;
                }
                assert!(since.elapsed() < Duration::from_secs(30), "nobody answers");
            };
            let end = Some(clock.fetch_add(1, Ordering::SeqCst));
            all.push(Told { client: CLIENTS, key, begin, end, call });
        }
        Ok(all)
    }

    /// Cuts the network for a while; if that ends the leadership, at least until another node leads.
    fn disturb(&self, cut: u64, leader: usize, term: u64) -> Outcome<()> {
        let (ends_leadership, stands_still) = (ends_leadership(cut), stands_still(cut));
        let cut = cuts(cut, leader).into_iter().try_for_each(|it| self.network.cut(it.0, it.1));
        if stands_still {
            self.nodes[leader - 1].signal("-STOP")?;
        }
        std::thread::sleep(CUT);
        let since = Instant::now();
        let mut others = (1..).zip(&self.nodes).filter(|(id, _)| *id != leader).cycle();
        let leads = |(_, node): (usize, &Node)| term_of(node).is_some_and(|later| later > term);
        let mut is_replaced = !ends_leadership;
        while cut.is_ok() && !is_replaced && since.elapsed() < ELECTION_MAX {
            std::thread::sleep(Duration::from_millis(20));
            is_replaced = others.next().is_some_and(leads);
        }
        if stands_still {
            self.nodes[leader - 1].signal("-CONT")?;
        }
        cut.and(self.network.heal())?;
        if is_replaced { Ok(()) } else { Err("the leader goes on as before".into()) }
    }
}

#[test]
fn histories_over_a_network_that_is_cut_are_linearizable() -> Outcome<()> {
    let left_out = std::env::var("COREPLANE_CLIENTS_LEFT_OUT").unwrap_or_default();
    if left_out.split(',').any(|name| name == "namespaces") {
        return Ok(());
    }
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let asked = std::env::var("COREPLANE_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let rounds: u64 = asked.unwrap_or(if is_full { 70 } else { 7 });
    let cluster = Cluster::new()?;
    let mut all: Vec<Told> = Vec::new();
    for number in 0..rounds {
        all.extend(cluster.round(number, number, false)?);
    }
    if let Some(path) = std::env::var_os("COREPLANE_HISTORY_FILE") {
        let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
        all.iter().try_for_each(|told| writeln!(file, "{}", told.line()))?;
    }
    let unknown = all.iter().filter(|it| it.end.is_none()).count();
    println!("{} calls, of which {unknown} were not answered", all.len());
    let is_swap = |it: &&Told| matches!(it.call, Call::Answered(Wish::Swap(..), true));
    let swaps = all.iter().filter(is_swap).count();
    assert!(unknown > 0 && swaps > 100, "{unknown} calls were not answered, {swaps} compared");
    assert_eq!(judge(&all, 0..rounds as usize * KEYS), None, "a key has no linearization");
    // Reads that may be stale are found to be so: this judge would find unwanted stale reads.
    let stale = cluster.round(rounds, ALONE, true)?;
    let keys = rounds as usize * KEYS;
    assert_ne!(
        judge(&stale, keys..keys + KEYS),
        None,
        "nothing is stale of a follower that is alone"
    );
    Ok(())
}
