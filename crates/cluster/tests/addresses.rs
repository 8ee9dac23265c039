//! A peer that comes back at another address is reached there at once, whatever is at its old one.

mod node;

use node::{Node, Outcome, PATIENCE, frame_of, free_address, hello_of, listen};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

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
    let mut node = Node::start(1, free_address()?, silence.at, None)?;
    node.turn()?;
    let elsewhere = listen()?;
    let _hello = say_hello(node.at, 7, elsewhere.local_addr()?.port())?;
    node.reaches(&elsewhere)?;
    Ok(())
}

#[test]
fn a_peer_is_reached_at_once_although_somebody_is_at_its_old_address() -> Outcome {
    let old = listen()?;
    let mut node = Node::start(1, free_address()?, old.local_addr()?, None)?;
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
    let mut node = Node::start(1, free_address()?, old.local_addr()?, None)?;
    let _first = node.reaches(&old)?;
    let _hello = say_hello(node.at, 7, free_address()?.port())?;
    let (_second, bytes) = node.reaches(&old)?;
    // Its hello; the length and the ports are its own.
    let expected = hello_of(1, 1, node.at.port());
    assert_eq!(bytes.get(4..37), expected.get(4..37));
    Ok(())
}

/// A peer names many nodes, all at one address: connections are made to a few dozen of them.
#[test]
fn a_peer_may_not_name_any_number_of_nodes() -> Outcome {
    let (named, own) = (listen()?, listen()?);
    let mut node = Node::start(1, free_address()?, own.local_addr()?, None)?;
    named.set_nonblocking(true)?;
    let mut connections = Vec::new();
    for round in 0..4 {
        let numbers = (0..60).map(|number| 100 + 60 * round + number);
        let names: Vec<String> = numbers
            .map(|number| Ok(format!("{number}={}", named.local_addr()?)))
            .collect::<Outcome<_>>()?;
        let hello = hello_of(2, 7, own.local_addr()?.port());
        let body = [&hello[5..], names.join(",").as_bytes()].concat();
        let mut stream = TcpStream::connect(node.at)?;
        stream.write_all(&frame_of(hello[4], &body))?;
        // The next hello of this node ends the connection of the one before.
        let least = if round == 0 { 60 } else { 0 };
        let since = Instant::now();
        let mut quiet = 0;
        while connections.len() < least || quiet < 100 {
            node.turn()?;
            quiet += 1;
            while let Ok((stream, _)) = named.accept() {
                connections.push(stream);
                quiet = 0;
            }
            assert!(since.elapsed() < PATIENCE, "they are not reached");
        }
    }
    assert!(connections.len() < 64, "{} connections", connections.len());
    Ok(())
}

/// One process says hello with many numbers: only a few dozen of them are taken for nodes.
#[test]
fn a_process_may_not_be_any_number_of_nodes() -> Outcome {
    let own = listen()?;
    let mut node = Node::start(1, free_address()?, own.local_addr()?, None)?;
    let mut streams = Vec::new();
    for id in 2..=100 {
        let mut stream = TcpStream::connect(node.at)?;
        stream.write_all(&hello_of(id, 7, own.local_addr()?.port()))?;
        stream.set_nonblocking(true)?;
        streams.push(stream);
        node.turn()?;
    }
    let is_open = |mut stream: &TcpStream| match stream.read(&mut [0]) {
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    node.until(|| {
        streams.retain(|stream| is_open(stream));
        (streams.len() <= 64).then_some(())
    })?;
    for _ in 0..100 {
        node.turn()?;
    }
    streams.retain(|stream| is_open(stream));
    assert_eq!(streams.len(), 64);
    Ok(())
}
