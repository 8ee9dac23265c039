//! A node with an event loop, of a cluster of the nodes 1 and 2.
#![allow(dead_code, reason = "each test takes what it needs")]

use coreplane_cluster::{Notice, PeerSocket, Secret, Service, Settings};
use coreplane_replica::{Replica, WalBaseline, WalOptions};
use coreplane_server::PolledService;
use mio::{Events, Poll};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The longest time that something may take, as the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const HELLO: u8 = 0;

/// A frame with this kind and content.
pub(crate) fn frame_of(kind: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 1).to_le_bytes()[..], &[kind], body].concat()
}

/// The first message of a node without a password, as it is on the wire.
pub(crate) fn hello_of(id: u64, run: u64, peer_port: u16) -> Vec<u8> {
    let words = [u64::from_le_bytes(*b"CPNODE02"), 0, id, run].map(u64::to_le_bytes);
    let ports = [6379, peer_port].map(u16::to_le_bytes);
    frame_of(HELLO, &[words.as_flattened(), ports.as_flattened()].concat())
}

/// A node, with its event loop.
pub(crate) struct Node {
    service: Service,
    poll: Poll,
    pub(crate) replica: Arc<Replica>,
    pub(crate) at: SocketAddr,
    /// The refusals that it has reported.
    pub(crate) refusals: Arc<Mutex<Vec<String>>>,
    /// How far its clock is ahead.
    pub(crate) ahead: Duration,
    _place: tempfile::TempDir,
}

impl Node {
    /// Node 1 or 2. It looks for the other one at `peer`.
    pub(crate) fn start(
        id: u64,
        at: SocketAddr,
        peer: SocketAddr,
        password: Option<&str>,
    ) -> Outcome<Self> {
        Self::start_behind(id, (at, at), peer, password)
    }

    /// As [`Node::start`]; it listens at the first address, and its peers are told the second one.
    pub(crate) fn start_behind(
        id: u64,
        (at, told): (SocketAddr, SocketAddr),
        peer: SocketAddr,
        password: Option<&str>,
    ) -> Outcome<Self> {
        let place = tempfile::tempdir()?;
        let map = WalBaseline::open(&place.path().join("log"), &WalOptions::default())?;
        let settings = coreplane_replica::Settings {
            id,
            peers: vec![1, 2],
            contacts: vec![1, 2],
            identity: id,
            life: id,
            seed: id,
            ..coreplane_replica::Settings::default()
        };
        let replica = Arc::new(Replica::open(Box::new(map), settings, None)?);
        let settings = Settings {
            id,
            listen: told,
            peers: BTreeMap::from([(3 - id, peer)]),
            run: id,
            client_port: 1,
            tick: Duration::from_millis(25),
            redirects: false,
            follower_age_max: Duration::from_secs(1),
            secret: password.map(Secret::new),
        };
        let refusals: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = Arc::clone(&refusals);
        let on_notice = move |notice: Notice<'_>| match notice {
            Notice::Refused(text) => noted.lock().expect("refusals").push(text.to_owned()),
            Notice::Stopped(text) => panic!("the node has stopped: {text}"),
        };
        let socket = PeerSocket::bind(at)?;
        let mut service = Service::on(socket, settings, Arc::clone(&replica), on_notice);
        let poll = Poll::new()?;
        service.start(poll.registry(), 0..1 << 20, Arc::new(|| ()))?;
        let ahead = Duration::ZERO;
        Ok(Self { service, poll, replica, at, refusals, ahead, _place: place })
    }

    pub(crate) fn turn(&mut self) -> Outcome {
        self.turn_at(Instant::now() + self.ahead)
    }

    /// A turn of its loop at a time that the test says.
    pub(crate) fn turn_at(&mut self, now: Instant) -> Outcome {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(2)))?;
        events.iter().for_each(|event| self.service.ready(self.poll.registry(), event));
        self.service.begin_turn(self.poll.registry(), now);
        self.service.end_turn(self.poll.registry());
        Ok(())
    }

    /// Turns until there is a result.
    pub(crate) fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Outcome<T> {
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            self.turn()?;
            if let Some(found) = look() {
                return Ok(found);
            }
        }
        Err("it does not come".into())
    }

    /// Its connection to this address, and the first bytes on it.
    pub(crate) fn reaches(&mut self, listener: &TcpListener) -> Outcome<(TcpStream, Vec<u8>)> {
        listener.set_nonblocking(true)?;
        let mut stream = self.until(|| listener.accept().ok())?.0;
        stream.set_nonblocking(true)?;
        let mut bytes = vec![0; 256];
        let len = self.until(|| stream.read(&mut bytes).ok().filter(|len| *len > 0))?;
        bytes.truncate(len);
        Ok((stream, bytes))
    }

    pub(crate) fn refusals(&self) -> Vec<String> {
        self.refusals.lock().expect("refusals").clone()
    }
}

pub(crate) fn free_address() -> Outcome<SocketAddr> {
    Ok(listen()?.local_addr()?)
}

pub(crate) fn listen() -> Outcome<TcpListener> {
    Ok(TcpListener::bind("127.0.0.1:0")?)
}
