//! A peer that comes back at another address is reached there at once, whatever is at its old one.

use coreplane_cluster::{PeerSocket, Service, Settings};
use coreplane_replica::{Replica, WalBaseline, WalOptions};
use coreplane_server::PolledService;
use mio::{Events, Poll};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// The longest time that something may take, as the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(30);
const HELLO: u8 = 0;

/// The first message of a node, as it is on the wire.
fn hello_of(id: u64, run: u64, peer_port: u16) -> Vec<u8> {
    let mut body = vec![HELLO];
    for word in [u64::from_le_bytes(*b"CPNODE02"), 0, id, run] {
        body.extend_from_slice(&word.to_le_bytes());
    }
    body.extend_from_slice(&6379_u16.to_le_bytes());
    body.extend_from_slice(&peer_port.to_le_bytes());
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

/// Node 1, with its event loop.
struct Node {
    service: Service,
    poll: Poll,
    at: SocketAddr,
    _place: tempfile::TempDir,
}

impl Node {
    fn start(peer: SocketAddr) -> Outcome<Self> {
        let place = tempfile::tempdir()?;
        let map = WalBaseline::open(&place.path().join("log"), &WalOptions::default())?;
        let settings = coreplane_replica::Settings { peers: vec![1, 2], ..Default::default() };
        let replica = Arc::new(Replica::open(Box::new(map), settings, None)?);
        let at = free_address()?;
        let settings = Settings {
            id: 1,
            listen: at,
            peers: BTreeMap::from([(2, peer)]),
            run: 1,
            client_port: 1,
            tick: Duration::from_millis(25),
            redirects: false,
            follower_age_max: Duration::from_secs(1),
        };
        let mut service = Service::on(PeerSocket::bind(at)?, settings, replica, |_| ());
        let poll = Poll::new()?;
        service.start(poll.registry(), 0..1 << 20, Arc::new(|| ()))?;
        Ok(Self { service, poll, at, _place: place })
    }

    fn turn(&mut self) -> Outcome {
        let mut events = Events::with_capacity(64);
        self.poll.poll(&mut events, Some(Duration::from_millis(5)))?;
        events.iter().for_each(|event| self.service.ready(self.poll.registry(), event));
        self.service.begin_turn(self.poll.registry(), Instant::now());
        self.service.end_turn(self.poll.registry());
        Ok(())
    }

    /// Turns until there is a result.
    fn until<T>(&mut self, mut look: impl FnMut() -> Option<T>) -> Outcome<T> {
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
    fn reaches(&mut self, listener: &TcpListener) -> Outcome<(TcpStream, Vec<u8>)> {
        listener.set_nonblocking(true)?;
        let mut stream = self.until(|| listener.accept().ok())?.0;
        stream.set_nonblocking(true)?;
        let mut bytes = vec![0; 256];
        let len = self.until(|| stream.read(&mut bytes).ok().filter(|len| *len > 0))?;
        bytes.truncate(len);
        Ok((stream, bytes))
    }
}

fn free_address() -> Outcome<SocketAddr> {
    Ok(listen()?.local_addr()?)
}

fn listen() -> Outcome<TcpListener> {
    Ok(TcpListener::bind("127.0.0.1:0")?)
}

/// An address at which attempts to connect get no answer: so many wait already that no more are taken.
struct Silence {
    at: SocketAddr,
    _socket: std::os::fd::OwnedFd,
    _waiting: Vec<TcpStream>,
}

impl Silence {
    fn new() -> Outcome<Self> {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        listen(&socket, 0)?;
        let at = SocketAddr::try_from(getsockname(&socket)?)?;
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&at, Duration::from_millis(200)) {
            waiting.push(stream);
            assert!(waiting.len() < 100, "connections are taken without end");
        }
        Ok(Self { at, _socket: socket, _waiting: waiting })
    }
}

/// Says hello as node 2, whose peers reach it at `port`.
fn say_hello(to: SocketAddr, run: u64, port: u16) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(&hello_of(2, run, port))?;
    Ok(stream)
}

#[test]
fn a_peer_is_reached_at_once_while_an_attempt_at_its_silent_address_goes_on() -> Outcome {
    let silence = Silence::new()?;
    let mut node = Node::start(silence.at)?;
    node.turn()?;
    let elsewhere = listen()?;
    let _hello = say_hello(node.at, 7, elsewhere.local_addr()?.port())?;
    node.reaches(&elsewhere)?;
    Ok(())
}

#[test]
fn a_peer_is_reached_at_once_although_somebody_is_at_its_old_address() -> Outcome {
    let old = listen()?;
    let mut node = Node::start(old.local_addr()?)?;
    let _somebody = node.reaches(&old)?;
    let elsewhere = listen()?;
    let _hello = say_hello(node.at, 7, elsewhere.local_addr()?.port())?;
    let _first = node.reaches(&elsewhere)?;
    // It says hello again: the connection is right, and stays.
    let _again = say_hello(node.at, 7, old.local_addr()?.port())?;
    for _ in 0..100 {
        node.turn()?;
    }
    assert!(old.accept().is_err(), "a connection that is right was given up");
    Ok(())
}

/// The peer says hello from an address at which it does not listen: the address of the settings is tried again.
#[test]
fn a_peer_that_is_not_at_the_address_of_its_hello_is_reached_at_the_earlier_one() -> Outcome {
    let old = listen()?;
    let mut node = Node::start(old.local_addr()?)?;
    let _first = node.reaches(&old)?;
    let _hello = say_hello(node.at, 7, free_address()?.port())?;
    let (_second, bytes) = node.reaches(&old)?;
    // Its hello; the length and the ports are its own.
    let expected = hello_of(1, 1, node.at.port());
    assert_eq!(bytes.get(4..37), expected.get(4..37));
    Ok(())
}
