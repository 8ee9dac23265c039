//! Commands that a follower forwards to the leader of the cluster for its clients.
//!
//! A follower's client whose commands need the records has a connection of its own to the leader, so that its state
//! (a transaction, watched keys) is between it and the leader. The bytes of a command are forwarded as they arrived,
//! and those of its answer are passed back as they arrive. Commands that this node answers itself wait until all
//! commands forwarded before them are answered.
//!
//! When another node becomes the leader, or the connection breaks, it is unknown whether the pending commands were
//! run: the client receives an error that says so, and its connection is closed. A client without pending commands
//! notices nothing, nor does one whose commands have reached no leader yet: they wait for one, and for the end of a
//! pause that holds them. If a pause has held them at a leader that was reached, the error says that they were not run.

use crate::connection::Connection;
use crate::event_loop::{EventLoop, write_error};
use crate::host::Host;
use crate::output::Output;
use crate::pause::Paused;
use crate::resp::measure::{Extent, Measure};
use crate::resp::reply::Proto;
use crate::session::{Answers, Forwarded};
use crate::{ClusterInfo, Standing};
use delivery::Unsent;
use mio::net::TcpStream;
use mio::{Interest, Registry, Token};
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

mod delivery;

/// Tokens from here on, up to those of the service, are of upstreams; the rest is the connection's key.
pub(crate) const FIRST_UPSTREAM: usize = usize::MAX >> 3;

/// Bytes pending for a leader above which nothing more is read from the client.
const WAITING_MAX: usize = 1 << 20;
/// The time between two attempts to reach a leader, and the time after which it is given up.
const PAUSE: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(5);

const UNREACHED: &str = "CLUSTERDOWN the leader cannot be reached: the command was not run";
const INDETERMINATE: &str = "INDETERMINATE nobody knows whether the command was run: the leader has changed, or cannot be reached";

/// A connection to the leader.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) leader: SocketAddr,
    stream: Option<TcpStream>,
    /// It has accepted some bytes.
    is_reached: bool,
    /// The time of the next attempt to reach it, and of the first.
    next_attempt: Instant,
    since: Instant,
    output: Vec<u8>,
    input: Vec<u8>,
    /// The position within the answer at the beginning of `input`.
    measure: Measure,
    /// Bytes of `output` that were sent.
    sent: usize,
    /// The number of commands that this node sends first and whose answers are not for the client, and of the answers
    /// to come.
    greetings: usize,
    greetings_left: usize,
    /// There may be unread answers, since the client receives none.
    is_readable: bool,
    /// For each pending command whether its answer is wanted.
    awaited: VecDeque<bool>,
    /// The commands of `output`.
    unsent: Unsent,
    is_in_multi: bool,
    /// The transaction has writes.
    queues_writes: bool,
    watches: bool,
}

/// Commands without an answer must not run after this: what the leader has not received yet is not sent, and it learns
/// of the end at once.
impl Drop for Upstream {
    fn drop(&mut self) {
        self.close();
    }
}

impl Upstream {
    fn new(leader: SocketAddr, password: Option<&str>, proto: Proto) -> Self {
        let now = Instant::now();
        let mut upstream = Self {
            leader,
            stream: None,
            is_reached: false,
            next_attempt: now,
            since: now,
            output: Vec::new(),
            input: Vec::new(),
            measure: Measure::default(),
            sent: 0,
            greetings: 0,
            greetings_left: 0,
            is_readable: false,
            awaited: VecDeque::new(),
            unsent: Unsent::default(),
            is_in_multi: false,
            queues_writes: false,
            watches: false,
        };
        if let Some(password) = password {
            upstream.greet(&["AUTH", password]);
        }
        if proto == Proto::Three {
            upstream.greet(&["HELLO", "3"]);
        }
        upstream.greet(&["CLUSTER", "FORWARDED"]);
        upstream
    }

    /// Connects, if it is time for an attempt.
    fn connect(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let now = Instant::now();
        if self.stream.is_some() || now < self.next_attempt {
            return Ok(());
        }
        self.next_attempt = now + PAUSE;
        let mut stream = TcpStream::connect(self.leader)?;
        registry.register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        self.stream = Some(stream);
        self.greetings_left = self.greetings;
        self.input.clear();
        self.measure = Measure::default();
        Ok(())
    }

    /// Takes its socket, which is reset when it is closed if commands are pending.
    fn close(&mut self) -> Option<TcpStream> {
        let stream = self.stream.take()?;
        if self.is_awaited() {
            // Without the option the socket ends as well, only later.
            let _set = sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).is_ok();
        }
        Some(stream)
    }

    fn greet(&mut self, words: &[&str]) {
        self.output.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            self.output.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        self.greetings += 1;
    }

    /// True if the client has state with the leader, or waits for it.
    pub(crate) fn is_needed(&self) -> bool {
        !self.awaited.is_empty() || self.is_in_multi || self.watches
    }

    /// True if so many bytes are pending for the leader that the client has to wait.
    pub(crate) fn is_full(&self) -> bool {
        self.output.len() - self.sent > WAITING_MAX
    }

    /// True if commands are pending.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// True if the client is within a transaction; then every command is a part of it.
    pub(crate) fn is_in_multi(&self) -> bool {
        self.is_in_multi
    }

    /// True if the transaction has writes.
    pub(crate) fn queues_writes(&self) -> bool {
        self.queues_writes
    }

    /// True if the client has received a part of an answer, but not its end.
    pub(crate) fn is_within_answer(&self) -> bool {
        let is_wanted = self.greetings_left == 0 && self.awaited.front() == Some(&true);
        is_wanted && self.measure.is_within()
    }

    /// Sends the bytes that can be sent.
    fn send(&mut self) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        while self.sent < self.output.len() {
            match stream.write(self.output.get(self.sent..).unwrap_or_default()) {
                Ok(len) => {
                    if !self.is_reached {
                        self.is_reached = true;
                        // Without the option the connection works as well.
                        let _set = stream.set_nodelay(true).is_ok();
                    }
                    self.sent += len;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // It is still connecting.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => break,
                Err(error) => return Err(error),
            }
        }
        self.drop_sent();
        Ok(())
    }

    /// Reads some of the bytes that have arrived.
    fn receive(&mut self) -> io::Result<Received> {
        let Some(stream) = &mut self.stream else { return Ok(Received::All) };
        let mut piece = [0; 16 << 10];
        loop {
            match stream.read(&mut piece) {
                // Bytes that arrive before anything was sent are a refusal.
                Ok(0) => return Ok(Received::End),
                Ok(_) if !self.is_reached => return Ok(Received::End),
                Ok(len) => {
                    self.input.extend_from_slice(&piece[..len]);
                    return Ok(Received::Some);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected
                    ) =>
                {
                    return Ok(Received::All);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves the available parts of the answers to `out`.
    fn take_answers(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        let mut at = 0;
        while let Some(rest) = self.input.get(at..).filter(|rest| !rest.is_empty()) {
            let is_nobodys = self.greetings_left > 0;
            let awaited = self.awaited.front().copied();
            let extent = self.measure.advance(rest).map_err(|()| io::ErrorKind::InvalidData)?;
            let (Extent::Whole(len) | Extent::Piece(len)) = extent;
            if !is_nobodys && awaited.ok_or(io::ErrorKind::InvalidData)? {
                out.extend_from_slice(rest.get(..len).unwrap_or_default());
            }
            at += len;
            match extent {
                Extent::Piece(_) => break,
                Extent::Whole(_) if is_nobodys => self.greetings_left -= 1,
                Extent::Whole(_) => drop(self.awaited.pop_front()),
            }
        }
        self.input.drain(..at);
        Ok(())
    }

    /// Moves the answers that have arrived to `out`, until `out` has so many bytes; false if the connection is of no
    /// more use.
    fn relay(&mut self, out: &mut Output, pause: u64) -> bool {
        self.is_readable = false;
        loop {
            if out.len() as u64 >= pause {
                self.is_readable = true;
                return true;
            }
            let received = self.receive();
            let answered = self.take_answers(out.buffer());
            match received {
                Ok(Received::Some) if answered.is_ok() => {}
                Ok(Received::All) => return answered.is_ok(),
                Ok(Received::Some | Received::End) | Err(_) => return false,
            }
        }
    }
}

/// The result of a read from a connection.
enum Received {
    /// There may be more.
    Some,
    /// All that has arrived so far was read.
    All,
    /// Nothing more will arrive.
    End,
}

/// Queues a command for the leader.
fn forward(connection: &mut Connection, command: Forwarded, password: Option<&str>, bytes: &[u8]) {
    let proto = connection.session.proto;
    let Forwarded { name, leader, held_by } = command;
    let upstream =
        connection.upstream.get_or_insert_with(|| Upstream::new(leader, password, proto));
    upstream.output.extend_from_slice(bytes);
    upstream.unsent.add(held_by);
    let answers = &mut connection.session.answers;
    upstream.awaited.push_back(*answers == Answers::On || *answers == Answers::SkipNext);
    *answers = match *answers {
        Answers::SkipNext => Answers::Skip,
        Answers::Skip => Answers::On,
        answers => answers,
    };
    match name {
        "multi" => upstream.is_in_multi = true,
        "watch" => upstream.watches = true,
        "exec" | "discard" => (upstream.is_in_multi, upstream.watches) = (false, false),
        "unwatch" => upstream.watches = false,
        _ => {}
    }
    let is_write = held_by == Some(Paused::Writes);
    upstream.queues_writes = upstream.is_in_multi && (upstream.queues_writes || is_write);
}

/// After a command at the beginning of `rest`: queues it for the leader, if the leader is to run it.
pub(crate) fn pass_on(host: &Host, connection: &mut Connection, rest: &[u8], len: usize) {
    if std::mem::take(&mut connection.session.begins_anew) {
        // The session has changed: it begins anew with the leader, from which no answer is pending.
        connection.upstream = None;
        connection.session.upstream = connection.upstream_state();
    }
    let Some(command) = connection.session.forwards.take() else { return };
    let password = host.settings.password.lock();
    forward(connection, command, password.as_deref(), rest.get(..len).unwrap_or_default());
    connection.session.upstream = connection.upstream_state();
}

impl EventLoop {
    /// The connection's upstream is ready. If the client receives nothing, its answers stay where they are.
    pub(crate) fn on_upstream(&mut self, key: usize) {
        let pause = self.host.settings.output_pause_bytes.load(Ordering::Relaxed);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(upstream) = &mut connection.upstream else { return };
        let goes_on = upstream.relay(&mut connection.output, pause);
        let is_awaited = upstream.is_awaited();
        if !connection.is_within_answer() {
            // Lines that could not be pushed into an unfinished answer.
            connection.output.buffer().append(&mut connection.session.monitor_lines);
        }
        if connection.is_stalled && !is_awaited && !connection.is_queued {
            connection.is_queued = true;
            self.again.push(key);
        }
        self.touch(key);
        if !goes_on {
            self.drop_upstream(key);
        }
    }

    /// The client has received some bytes: answers that were not read before are read now.
    pub(crate) fn resume_upstream(&mut self, key: usize) {
        let connection = self.connections.get(key);
        let upstream = connection.and_then(|connection| connection.upstream.as_ref());
        if upstream.is_some_and(|upstream| upstream.is_readable) {
            self.on_upstream(key);
            // This may be the end of a turn: the next one sends it.
            self.port().wake();
        }
    }

    /// The leader is no longer reached. A client with pending commands at it is told so, and its connection is
    /// closed. Commands that were not sent are sent to the next leader.
    fn drop_upstream(&mut self, key: usize) {
        let own = self.own_address();
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(mut upstream) = connection.upstream.take() else { return };
        if let Some(mut stream) = upstream.close() {
            // Closing the socket does it as well.
            let _closed = self.poll.registry().deregister(&mut stream).is_ok();
        }
        let is_fresh = !upstream.is_reached && upstream.is_awaited();
        if is_fresh && upstream.since.elapsed() < PATIENCE {
            upstream.sent = 0;
            upstream.leader = match self.standing {
                Standing::Follows(leader) => leader,
                // Through this server's own listener: the state of the client is with that connection.
                Standing::Leads => own.unwrap_or(upstream.leader),
                Standing::Unknown => upstream.leader,
            };
            connection.upstream = Some(upstream);
            return self.send_later(key);
        }
        if upstream.is_needed() {
            let may_have_run = upstream.is_reached && !upstream.is_unsent();
            let text = if may_have_run { INDETERMINATE } else { UNREACHED };
            // If a part of an answer has been passed on, the end of the connection shows the failure.
            if !upstream.is_within_answer() {
                write_error(connection, text);
            }
            connection.session.is_closing = true;
        }
        self.touch(key);
        // This may be the end of a turn: the next one sends it.
        self.port().wake();
    }

    /// The address of this server for clients.
    fn own_address(&self) -> Option<SocketAddr> {
        let address = *self.host.addresses.first()?;
        let ip = match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        Some(SocketAddr::new(ip, address.port()))
    }

    /// Drops upstreams to nodes that do not lead any more.
    pub(crate) fn check_upstreams(&mut self) {
        let Some(cluster) = &self.host.config.cluster else { return };
        let standing = cluster.standing();
        if standing == self.standing {
            return self.send_again();
        }
        self.standing = standing;
        let is_over = |connection: &Connection| {
            let leader = connection.upstream.as_ref().map(|upstream| upstream.leader);
            leader.is_some_and(|leader| standing != Standing::Follows(leader))
        };
        let over = self.connections.iter().filter(|(_, it)| is_over(it)).map(|(key, _)| key);
        for key in over.collect::<Vec<_>>() {
            self.drop_upstream(key);
        }
    }
}

/// The standing at the start of a loop.
pub(crate) fn standing_of(cluster: Option<&dyn ClusterInfo>) -> Standing {
    cluster.map_or(Standing::Leads, ClusterInfo::standing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_before_anything_was_sent_is_no_answer() {
        let leader = "127.0.0.1:1".parse().expect("an address");
        let mut upstream = Upstream::new(leader, None, Proto::Three);
        upstream.awaited.push_back(true);
        upstream.greetings_left = upstream.greetings;
        let mut out = Vec::new();
        upstream.input.extend_from_slice(b"-ERR max number of clients reached\r\n");
        upstream.take_answers(&mut out).expect("an answer");
        // It connects again.
        upstream.greetings_left = upstream.greetings;
        upstream.input.clear();
        upstream.input.extend_from_slice(b"%0\r\n+OK\r\n$5\r\nvalue\r\n");
        upstream.take_answers(&mut out).expect("answers");
        assert_eq!(out, b"$5\r\nvalue\r\n");
        assert!(!upstream.is_awaited());
    }

    #[test]
    fn a_piece_of_an_answer_is_passed_on_before_the_rest_has_come() {
        let leader = "127.0.0.1:1".parse().expect("an address");
        let mut upstream = Upstream::new(leader, None, Proto::Two);
        upstream.awaited.extend([true, false, true]);
        let mut out = Vec::new();
        for (piece, shown, is_within) in [
            (&b"*2\r\n$10\r\n0123"[..], &b"*2\r\n$10\r\n0123"[..], true),
            (b"456789\r", b"456789\r", true),
            (b"\n$1\r", b"\n", true),
            // The second answer is not wanted.
            (b"\na\r\n$3\r\nb", b"$1\r\na\r\n", false),
            (b"cd\r\n+O", b"", false),
            (b"K\r\n", b"+OK\r\n", false),
        ] {
            upstream.input.extend_from_slice(piece);
            out.clear();
            upstream.take_answers(&mut out).expect("answers");
            assert_eq!((&*out, upstream.is_within_answer()), (shown, is_within));
        }
        assert!(!upstream.is_awaited());
        upstream.input.extend_from_slice(b"+more\r\n");
        assert!(upstream.take_answers(&mut out).is_err());
    }
}
