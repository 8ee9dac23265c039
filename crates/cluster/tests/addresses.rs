//! A peer that comes back at another address is reached there at once, whatever is at its old one.

mod node;

use node::{Node, Outcome, free_address, hello_of, listen};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::time::Duration;

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
