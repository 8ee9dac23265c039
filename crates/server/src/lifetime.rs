//! The beginning and the end of connections.
//!
//! In a turn of a loop connections begin in one place: behind its events, since one of these may be of a connection
//! that the loop has dropped in the same turn, whose place is free again; and before its end, which sends their first
//! answers.

use crate::clients::ClientInfo;
use crate::command::{forget_watches, stop_monitor};
use crate::connection::{Connection, Stream};
use crate::event_loop::EventLoop;
use crate::host::Message;
use crate::session::Session;
use mio::Token;
use rustix::net::sockopt;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";
const PROTECTED: &[u8] = b"-DENIED the server is running in protected mode: no password is set, \
    so connections are only accepted from this machine. Set a password (requirepass), or switch \
    the protection off with 'CONFIG SET protected-mode no' from this machine, if only friends can \
    reach it.\r\n";

impl EventLoop {
    /// Accepts the connections that have arrived at these listeners; from time to time at all of them, since the rest
    /// behind a failed accept is not reported again.
    pub(crate) fn accept(&mut self, mut ready: Vec<usize>) {
        let (is_due, members) = (self.is_tick_due(), self.host.ports.len());
        let Some(listeners) = &mut self.listeners else {
            return;
        };
        if is_due {
            ready = (0..listeners.len()).collect();
        }
        let accept_all = |index| listeners.accept_all(index, members);
        let arrived: Vec<_> = ready.into_iter().flat_map(accept_all).collect();
        for (member, stream) in arrived {
            if member == self.member {
                self.add_connection(stream);
            } else {
                self.host.ports[member].send(Message::Serve(stream));
            }
        }
    }

    /// Begins to serve `stream`, if it is admitted.
    pub(crate) fn add_connection(&mut self, mut stream: Stream) {
        let host = self.host.clone();
        let settings = &host.settings;
        let counters = &host.ports[self.member].counters;
        let max = settings.max_clients.load(Ordering::Relaxed);
        if !host.clients.take_place(usize::try_from(max).unwrap_or(usize::MAX)) {
            counters.rejected.add(1);
            // A courtesy; a client that cannot receive it goes without.
            drop(stream.write(TOO_MANY));
            return;
        }
        let has_password = settings.has_password.load(Ordering::Acquire);
        let is_protected = settings.protected_mode.load(Ordering::Relaxed) && !has_password;
        if is_protected && !is_local(&stream) {
            host.clients.give_place();
            counters.rejected.add(1);
            drop(stream.write(PROTECTED));
            return;
        }
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let registered = stream.register(self.poll.registry(), Token(key));
        if registered.is_err() {
            host.clients.give_place();
            return;
        }
        let keepalive = settings.tcp_keepalive_secs.load(Ordering::Relaxed);
        prepare(&stream, Duration::from_secs(keepalive));
        let info = Arc::new(info(&stream, host.clients.new_id(), self.member, key, &host.config));
        host.clients.add(info.clone());
        counters.connections.add(1);
        entry.insert(Connection::new(stream, Session::new(info, !has_password)));
        // Its first command may have arrived with it.
        self.serve(key);
    }

    /// Closes the connection at once.
    pub(crate) fn drop_connection(&mut self, key: usize) {
        let Some(mut connection) = self.connections.try_remove(key) else {
            return;
        };
        if connection.is_fed {
            self.feeds.retain(|fed| *fed != key);
        }
        // Closing the socket does it as well.
        drop(connection.stream.deregister(self.poll.registry()));
        forget_watches(&mut connection.session, &self.host.watched);
        stop_monitor(&mut connection.session, &self.host);
        self.host.clients.remove(connection.session.info.id);
        self.host.clients.give_place();
    }

    /// Disconnects the client if its output, pending or in the making, exceeds the limit.
    pub(crate) fn check_output_limit(&mut self, key: usize) {
        let limit = *self.host.settings.output_limit.lock();
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.session.is_dropped {
            // It was counted where that was decided.
            return;
        }
        let waiting = connection.answer_bytes() as u64;
        let is_over = |bytes: u64| bytes > 0 && waiting > bytes;
        let mut is_to_go = is_over(limit.hard_bytes);
        if is_over(limit.soft_bytes) {
            let since = *connection.over_soft_limit_since.get_or_insert(self.now);
            is_to_go |= self.now.saturating_duration_since(since) >= limit.soft_time;
        } else {
            connection.over_soft_limit_since = None;
        }
        if is_to_go {
            self.port().counters.output_limit_drops.add(1);
            self.drop_connection(key);
        }
    }

    /// Disconnects clients that have been idle, or over the soft limit, for too long.
    pub(crate) fn check_ages(&mut self) {
        let settings = &self.host.settings;
        let idle_max = settings.idle_timeout_ms.load(Ordering::Relaxed);
        let limits_output = settings.limits_output.load(Ordering::Relaxed);
        let keys: Vec<usize> = self.connections.iter().map(|(key, _)| key).collect();
        for key in keys {
            if limits_output {
                self.check_output_limit(key);
            }
            let Some(connection) = self.connections.get(key) else {
                continue;
            };
            let info = &connection.session.info;
            let age = self.now.saturating_duration_since(info.since).as_millis();
            let idle = age.saturating_sub(info.active_after.load(Ordering::Relaxed).into());
            // A connection that waits for the server is not idle; one that does not receive its answer is.
            let waits = connection.output.is_held()
                || (connection.is_stalled && !connection.is_paused(&self.host.settings))
                || connection.is_fed
                || connection.session.is_monitor
                || connection.upstream_state().is_awaited;
            if idle_max > 0 && idle >= idle_max.into() && !waits {
                self.drop_connection(key);
            }
        }
    }

    /// The longest time that the loop may sleep for the sake of its connections' ages.
    pub(crate) fn tick_length(&self) -> Duration {
        let idle_max = self.host.settings.idle_timeout_ms.load(Ordering::Relaxed);
        match idle_max {
            0 => Duration::from_secs(1),
            _ => Duration::from_millis((idle_max / 4).clamp(10, 1000)),
        }
    }
}

/// True if the other end is on this machine.
fn is_local(stream: &Stream) -> bool {
    match stream {
        Stream::Tcp(stream) => {
            stream.peer_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
        }
        Stream::Unix(_) => true,
    }
}

/// Sets the options of the socket; the server works without them, too.
fn prepare(stream: &Stream, keepalive: Duration) {
    let Stream::Tcp(tcp) = stream else {
        return;
    };
    drop(tcp.set_nodelay(true));
    if !keepalive.is_zero() {
        let third = (keepalive / 3).max(Duration::from_secs(1));
        sockopt::set_socket_keepalive(tcp, true).ok();
        sockopt::set_tcp_keepidle(tcp, keepalive).ok();
        sockopt::set_tcp_keepintvl(tcp, third).ok();
        sockopt::set_tcp_keepcnt(tcp, 3).ok();
    }
}

fn info(stream: &Stream, id: u64, member: usize, key: usize, config: &crate::Config) -> ClientInfo {
    let unix_name = || {
        let path = config.unix_socket.as_deref();
        path.map_or_else(|| "unix".to_owned(), |path| format!("{}:0", path.display()))
    };
    let shown = |address: std::io::Result<std::net::SocketAddr>| {
        address.map_or_else(|_| "?:0".to_owned(), |address| address.to_string())
    };
    let (address, local_address) = match stream {
        Stream::Tcp(stream) => (shown(stream.peer_addr()), shown(stream.local_addr())),
        Stream::Unix(_) => (unix_name(), unix_name()),
    };
    ClientInfo::new(id, member, key, (address, local_address), stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event_loop::SCRATCH_LEN;
    use crate::host::Host;
    use crate::listener::Listeners;
    use crate::{Config, server};
    use coreplane_conformance::model::ModelEngine;
    use mio::Events;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::path::PathBuf;

    /// A loop that listens on a Unix socket, which passes everything on at once. A test makes its turns.
    struct Served {
        event_loop: EventLoop,
        events: Events,
        path: PathBuf,
        _place: tempfile::TempDir,
    }

    impl Served {
        /// With `is_told` the poll reports that connections have arrived.
        fn new(is_told: bool) -> Self {
            let place = tempfile::tempdir().expect("a directory");
            let path = place.path().join("socket");
            let config =
                Config { port: None, unix_socket: Some(path.clone()), ..Config::default() };
            let mut listeners = Listeners::bind(&config).expect("bind");
            let (poll, port) = server::port().expect("a port");
            if is_told {
                listeners.register(poll.registry()).expect("registered");
            }
            let host = Host::new(config, Arc::new(ModelEngine::new()), vec![port], Vec::new());
            let event_loop = EventLoop::new(host, 0, poll, Some(listeners));
            Self { event_loop, events: Events::with_capacity(64), path, _place: place }
        }

        /// A client that has sent this.
        fn client(&self, bytes: &[u8]) -> UnixStream {
            let mut client = UnixStream::connect(&self.path).expect("connect");
            client.set_nonblocking(true).expect("nonblocking");
            client.write_all(bytes).expect("sent");
            client
        }

        fn turn(&mut self) {
            self.event_loop.port().wake();
            self.event_loop.turn(&mut self.events).expect("a turn");
        }
    }

    /// Also if it is found by the look from time to time.
    #[test]
    fn a_connection_is_answered_in_the_turn_that_finds_it() {
        let mut served = Served::new(false);
        let mut client = served.client(b"PING\r\n");
        served.event_loop.last_tick -= Duration::from_secs(2);
        served.turn();
        let mut told = [0; 7];
        client.read_exact(&mut told).expect("an answer");
        assert_eq!(&told, b"+PONG\r\n");
    }

    /// The events of a turn are of the connections at its beginning, also after the loop has dropped one.
    #[test]
    fn a_connection_gets_no_event_of_the_one_before_it() {
        let mut served = Served::new(true);
        let mut first = served.client(b"");
        served.turn();
        let mut input = b"PING\r\n".to_vec();
        input.resize(SCRATCH_LEN, b'\n');
        first.write_all(&input).expect("sent");
        served.turn();
        let ids = |served: &Served| -> Vec<u64> {
            let connections = served.event_loop.connections.iter();
            connections.map(|(_, connection)| connection.session.info.id).collect()
        };
        assert_eq!(ids(&served), [1]);
        assert_eq!(served.event_loop.again, [0], "there may be more input");
        let _second = served.client(b"");
        // With an answer that it has not read: it breaks off.
        drop(first);
        served.turn();
        assert_eq!(ids(&served), [2]);
        assert!(!served.event_loop.connections[0].is_half_closed);
    }
}
