//! The delivery of commands to a leader.
//!
//! A command waits here while the leader is not reached, or does not read fast enough. Meanwhile a pause may begin, or
//! the client may be killed: then the command must not begin at the leader. Both begin while their loop is alone
//! ([`isolation`](crate::isolation)), and a loop looks at both, and sends, in one turn beside the others. So what is
//! sent was sent before them, and the leader may run it later; but nothing is sent behind their answer.
//!
//! A pause that holds a command holds all that has not been sent, before and behind it, so that the order is kept. The loop looks again at such
//! a connection each millisecond.

use super::{PATIENCE, Upstream};
use crate::event_loop::EventLoop;
use crate::intake::give_up;
use crate::pause::Paused;
use crate::upstream::FIRST_UPSTREAM;
use coreplane_pmem::mutant;
use mio::Token;
use std::time::Instant;

/// Commands that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    /// The number of those that were added since sent bytes were last dropped.
    count: usize,
    /// The least pause that holds one of them.
    held_by: Option<Paused>,
}

impl Unsent {
    /// Adds a command, and the least pause that holds it.
    pub(super) fn add(&mut self, held_by: Option<Paused>) {
        self.count += 1;
        self.held_by = self.held_by.into_iter().chain(held_by).min();
    }
}

impl Upstream {
    /// True if nothing is sent in this pause.
    fn is_held_by(&self, paused: Option<Paused>) -> bool {
        let least = self.unsent.held_by;
        least.is_some_and(|least| paused >= Some(least)) && !mutant!("server.upstream.paused")
    }

    /// True if nothing of the pending commands has been sent.
    pub(super) fn is_unsent(&self) -> bool {
        self.sent == 0 && self.awaited.len() == self.unsent.count
    }

    /// Drops the sent bytes when they are more than the others, so that no more bytes are moved than were sent. The
    /// commands behind them count as sent.
    pub(super) fn drop_sent(&mut self) {
        if self.sent <= self.output.len() / 2 {
            return;
        }
        self.output.drain(..self.sent);
        self.sent = 0;
        self.unsent.count = 0;
        if self.output.is_empty() {
            self.unsent.held_by = None;
        }
    }
}

impl EventLoop {
    /// Sends the bytes for the leader of a connection.
    pub(crate) fn flush_upstream(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(upstream) = &mut connection.upstream else { return };
        let is_alone = mutant!("server.upstream.alone");
        let beside = (!is_alone).then(|| self.host.isolation.enter(self.member));
        if connection.session.is_killed() {
            drop(beside);
            // Its commands that have not been sent are not to run.
            return self.drop_connection(key);
        }
        if upstream.is_held_by(self.host.pause.now()) {
            drop(beside);
            return self.hold(key);
        }
        let connected = upstream.connect(self.poll.registry(), Token(FIRST_UPSTREAM + key));
        let is_late = !upstream.is_reached && upstream.since.elapsed() > PATIENCE;
        let is_over = is_late || connected.and_then(|()| upstream.send()).is_err();
        drop(beside);
        if is_over {
            return self.drop_upstream(key);
        }
        if !upstream.is_reached {
            self.send_later(key);
        }
    }

    /// A pause holds the commands of a connection. Those of a client that sends no more end with it, as where they
    /// are held before they are forwarded.
    fn hold(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        let Some(upstream) = &mut connection.upstream else { return };
        // The time for reaching a leader begins with the end of the pause.
        upstream.since = Instant::now();
        let is_first = upstream.is_unsent() && !connection.rests && !connection.output.is_held();
        if !(connection.is_half_closed && is_first) {
            return self.send_later(key);
        }
        connection.upstream = None;
        give_up(connection, &mut self.scratch);
        self.touch(key);
        // This may be the end of a turn: the next one sends it.
        self.port().wake();
    }

    /// Tries to send again in the next turn.
    pub(super) fn send_later(&mut self, key: usize) {
        self.unsent.insert(key);
    }

    /// Tries again to send what could not be sent.
    pub(super) fn send_again(&mut self) {
        for key in std::mem::take(&mut self.unsent) {
            self.flush_upstream(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::forward;
    use super::*;
    use crate::clients::ClientInfo;
    use crate::connection::{Connection, Stream};
    use crate::host::Host;
    use crate::session::{Forwarded, Session};
    use crate::{Config, server};
    use coreplane_conformance::model::ModelEngine;
    use std::collections::BTreeSet;
    use std::io::{ErrorKind, Read};
    use std::net::{SocketAddr, TcpListener};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    /// The first of two loops, with a connection, and its other end.
    fn event_loop() -> (EventLoop, UnixStream) {
        let [(poll, first), (_, second)] = [(); 2].map(|()| server::port().expect("a port"));
        let engine = Arc::new(ModelEngine::new());
        let host = Host::new(Config::default(), engine, vec![first, second], Vec::new());
        let mut event_loop = EventLoop::new(host, 0, poll, None);
        let (stream, client) = UnixStream::pair().expect("a pair");
        stream.set_nonblocking(true).expect("nonblocking");
        let stream = Stream::Unix(mio::net::UnixStream::from_std(stream));
        let info = ClientInfo::new(1, 0, 0, Default::default(), &stream);
        let connection = Connection::new(stream, Session::new(Arc::new(info), true));
        assert_eq!(event_loop.connections.insert(connection), 0);
        (event_loop, client)
    }

    fn forward_a_write(event_loop: &mut EventLoop, leader: SocketAddr) {
        let command = Forwarded { name: "set", leader, held_by: Some(Paused::Writes) };
        forward(&mut event_loop.connections[0], command, None, b"write");
    }

    fn upstream(event_loop: &mut EventLoop) -> &mut Upstream {
        event_loop.connections[0].upstream.as_mut().expect("an upstream")
    }

    fn pause_writes(host: &Host) {
        host.pause.begin(Instant::now() + Duration::from_secs(3600), Paused::Writes);
    }

    /// Another loop runs `stop` alone, while this one is about to send a write to the leader.
    fn send_behind(stop: impl Fn(&Host, &ClientInfo)) {
        let leader = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = leader.local_addr().expect("an address");
        let (mut event_loop, _client) = event_loop();
        let greeting = Upstream::new(address, None, crate::resp::reply::Proto::Two);
        let mut greeted = vec![0; greeting.output.len()];
        event_loop.connections[0].upstream = Some(greeting);
        while !upstream(&mut event_loop).output.is_empty() {
            event_loop.flush_upstream(0);
        }
        let (mut leader, _) = leader.accept().expect("a follower");
        leader.read_exact(&mut greeted).expect("the greeting");
        forward_a_write(&mut event_loop, address);
        let (host, info) =
            (event_loop.host.clone(), event_loop.connections[0].session.info.clone());
        std::thread::scope(|scope| {
            let beside = host.isolation.enter(1);
            let alone = host.isolation.alone(1);
            scope.spawn(|| event_loop.flush_upstream(0));
            // Meanwhile the loop gets as far as it can.
            std::thread::sleep(Duration::from_millis(50));
            stop(&host, &info);
            drop(alone);
            drop(beside);
        });
        leader.set_nonblocking(true).expect("nonblocking");
        match leader.read(&mut [0; 64]) {
            Ok(len) => assert_eq!(len, 0, "it was sent"),
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::ConnectionReset));
            }
        }
    }

    #[test]
    fn nothing_is_sent_behind_a_kill() {
        send_behind(|_, info| info.is_killed.store(true, Ordering::Relaxed));
    }

    #[test]
    fn nothing_is_sent_behind_a_pause() {
        send_behind(|host, _| pause_writes(host));
    }

    /// The leader changes in the pause.
    #[test]
    fn a_command_that_a_pause_has_held_was_not_run() {
        let (mut event_loop, mut client) = event_loop();
        let leader = "127.0.0.1:1".parse().expect("an address");
        let reached = Upstream::new(leader, None, crate::resp::reply::Proto::Two);
        event_loop.connections[0].upstream = Some(reached);
        upstream(&mut event_loop).output.clear();
        upstream(&mut event_loop).is_reached = true;
        forward_a_write(&mut event_loop, leader);
        pause_writes(&event_loop.host.clone());
        event_loop.flush_upstream(0);
        event_loop.drop_upstream(0);
        event_loop.end_turn();
        let mut told = String::new();
        client.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
        client.read_to_string(&mut told).expect("an answer, and the end");
        assert!(told.starts_with("-CLUSTERDOWN"), "{told}");
    }

    #[test]
    fn the_time_for_reaching_a_leader_begins_with_the_end_of_a_pause() {
        let (mut event_loop, _client) = event_loop();
        forward_a_write(&mut event_loop, "127.0.0.1:1".parse().expect("an address"));
        upstream(&mut event_loop).since -= 2 * PATIENCE;
        let host = event_loop.host.clone();
        pause_writes(&host);
        event_loop.flush_upstream(0);
        host.pause.end();
        assert_eq!(event_loop.unsent, BTreeSet::from([0]));
        event_loop.send_again();
        assert!(event_loop.connections[0].upstream.is_some(), "it is given up");
        assert_eq!(event_loop.unsent, BTreeSet::from([0]));
        upstream(&mut event_loop).since -= 2 * PATIENCE;
        event_loop.send_again();
        assert!(event_loop.connections[0].upstream.is_none());
    }

    #[test]
    fn a_leader_that_reads_slowly_does_not_make_sent_bytes_stay() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("an address");
        let (mut event_loop, _client) = event_loop();
        let command = Forwarded { name: "set", leader: address, held_by: None };
        forward(&mut event_loop.connections[0], command, None, b"");
        event_loop.flush_upstream(0);
        let (mut leader, _) = listener.accept().expect("a follower");
        let (mut left, mut piece) = (64 << 20, vec![0; 64 << 10]);
        while left > 0 {
            while !upstream(&mut event_loop).is_full() {
                let command = Forwarded { name: "set", leader: address, held_by: None };
                forward(&mut event_loop.connections[0], command, None, &piece[..16 << 10]);
                left -= 16 << 10;
            }
            event_loop.flush_upstream(0);
            let upstream = upstream(&mut event_loop);
            let (kept, pending) = (upstream.output.len(), upstream.output.len() - upstream.sent);
            assert!(kept <= 4 << 20, "{kept} bytes are kept, of which {pending} are pending");
            assert!(!upstream.is_unsent());
            leader.read_exact(&mut piece).expect("commands");
        }
    }

    #[test]
    fn the_least_pause_that_holds_a_command_holds_all_that_is_unsent() {
        let leader = "127.0.0.1:1".parse().expect("an address");
        let mut upstream = Upstream::new(leader, None, crate::resp::reply::Proto::Two);
        for (held_by, is_held) in [
            (None, [false, false, false]),
            (Some(Paused::All), [false, false, true]),
            (Some(Paused::Writes), [false, true, true]),
            (Some(Paused::All), [false, true, true]),
        ] {
            upstream.unsent.add(held_by);
            let paused = [None, Some(Paused::Writes), Some(Paused::All)];
            assert_eq!(paused.map(|paused| upstream.is_held_by(paused)), is_held);
        }
    }
}
