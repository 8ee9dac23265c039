//! A cluster with a password: nodes find each other, and strangers get nothing, change nothing and delay nobody.

mod node;

use node::{Node, Outcome, PATIENCE, frame_of, free_address, hello_of, listen};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const OPENING: u8 = 2;
const CHALLENGE: u8 = 3;
const PROOF: u8 = 4;
/// The bytes of a challenge as a frame.
const CHALLENGE_LEN: usize = 45;

/// Nodes 1 and 2 with these passwords.
fn two(passwords: [Option<&str>; 2]) -> Outcome<[Node; 2]> {
    let at = [free_address()?, free_address()?];
    Ok([Node::start(1, at[0], at[1], passwords[0])?, Node::start(2, at[1], at[0], passwords[1])?])
}

/// Turns until `is_so`; `between` is called in each turn.
fn turn_until(
    nodes: &mut [Node],
    mut between: impl FnMut() -> Outcome,
    is_so: impl Fn(&[Node]) -> bool,
) -> Outcome {
    let since = Instant::now();
    while !is_so(nodes) {
        nodes.iter_mut().try_for_each(Node::turn)?;
        between()?;
        if since.elapsed() > PATIENCE {
            return Err("it does not come".into());
        }
    }
    Ok(())
}

fn have_leader(nodes: &[Node]) -> bool {
    nodes.iter().all(|node| node.replica.leader().is_some())
}

/// The opening of a node that looks for node 1.
fn opening_of(id: u64) -> Vec<u8> {
    let words = [u64::from_le_bytes(*b"CPPROOF1"), id, 1, 0].map(u64::to_le_bytes);
    frame_of(OPENING, &[words.as_flattened(), &[7; 32]].concat())
}

/// All bytes that a node sends on this connection until it closes it.
fn bytes_until_end(node: &mut Node, stream: &mut TcpStream) -> Outcome<Vec<u8>> {
    stream.set_nonblocking(true)?;
    let (mut all, mut piece) = (Vec::new(), [0; 4096]);
    node.until(|| match stream.read(&mut piece) {
        Ok(0) => Some(()),
        Ok(len) => {
            all.extend_from_slice(&piece[..len]);
            None
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(_) => Some(()),
    })?;
    Ok(all)
}

#[test]
fn nodes_with_the_same_password_find_each_other() -> Outcome {
    let mut nodes = two([Some("secret"); 2])?;
    turn_until(&mut nodes, || Ok(()), have_leader)?;
    assert_eq!(nodes.each_ref().map(|node| node.refusals().len()), [0, 0]);
    Ok(())
}

#[test]
fn nodes_with_different_passwords_refuse_each_other() -> Outcome {
    for (passwords, words) in [
        ([Some("secret"), Some("other")], ["it has another password", "it has another password"]),
        ([Some("secret"), None], ["it has no password", "it has a password"]),
    ] {
        let mut nodes = two(passwords)?;
        let is_told = |(node, words): (&Node, &str)| {
            let reason = format!("at 127.0.0.1 is refused: {words}");
            node.refusals().iter().any(|it| it.contains(&reason))
        };
        let are_told = |nodes: &[Node]| nodes.iter().zip(words).all(is_told);
        turn_until(&mut nodes, || Ok(()), are_told)?;
        for _ in 0..100 {
            nodes.iter_mut().try_for_each(Node::turn)?;
        }
        assert!(nodes.iter().all(|node| node.replica.leader().is_none()));
    }
    Ok(())
}

#[test]
fn a_stranger_is_told_nothing() -> Outcome {
    let mut node = Node::start(1, free_address()?, free_address()?, Some("secret"))?;
    let proof = frame_of(PROOF, &[7; 32]);
    let too_long = (9_u32 << 10).to_le_bytes().to_vec();
    for (sent, answered) in [
        (hello_of(2, 1, 1), 0),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), 0),
        (too_long, 0),
        (frame_of(OPENING, &[7; 64]), 0),
        (proof.clone(), 0),
        (opening_of(1), 0),
        ([opening_of(2), proof].concat(), CHALLENGE_LEN),
        ([opening_of(2), hello_of(2, 1, 1)].concat(), CHALLENGE_LEN),
    ] {
        let mut stream = TcpStream::connect(node.at)?;
        stream.write_all(&sent)?;
        let told = bytes_until_end(&mut node, &mut stream)?;
        assert_eq!(told.len(), answered, "{sent:?}");
        assert!(told.is_empty() || told[4] == CHALLENGE);
    }
    let all = node.refusals();
    assert!(all.iter().all(|it| !it.contains("secret")), "{all:?}");
    Ok(())
}

/// One that says nothing, or not enough, is waited for no longer than the deadline.
#[test]
fn a_stranger_that_says_nothing_is_dropped() -> Outcome {
    for password in [Some("secret"), None] {
        let mut node = Node::start(1, free_address()?, free_address()?, password)?;
        let mut silent = TcpStream::connect(node.at)?;
        let mut slow = TcpStream::connect(node.at)?;
        slow.write_all(&hello_of(2, 1, 1)[..20])?;
        (0..20).try_for_each(|_| node.turn())?;
        silent.set_nonblocking(true)?;
        let early = silent.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(early, Err(ErrorKind::WouldBlock), "it has time");
        node.ahead = Duration::from_secs(6);
        assert_eq!(bytes_until_end(&mut node, &mut silent)?, b"");
        assert_eq!(bytes_until_end(&mut node, &mut slow)?, b"");
    }
    Ok(())
}

#[test]
fn many_strangers_do_not_keep_nodes_from_each_other() -> Outcome {
    let mut nodes = two([Some("secret"); 2])?;
    let at = [nodes[0].at, nodes[1].at];
    let mut strangers: Vec<TcpStream> = Vec::new();
    let come = || {
        if strangers.len() < 1000 {
            for at in at {
                let mut stranger = TcpStream::connect(at)?;
                stranger.write_all(&opening_of(2)[..50])?;
                strangers.push(stranger);
            }
        }
        Ok(())
    };
    turn_until(&mut nodes, come, have_leader)?;
    let begun = Instant::now();
    let mut crowd = (0..100).map(|_| TcpStream::connect(at[0])).collect::<Result<Vec<_>, _>>()?;
    assert_eq!(bytes_until_end(&mut nodes[0], &mut crowd[0])?, b"");
    assert!(begun.elapsed() < Duration::from_secs(5), "it ended at its deadline");
    Ok(())
}

/// A connection between a listener and a node, which changes one bit of what passes.
struct Wire {
    ends: [TcpStream; 2],
    passed: usize,
    /// The byte of which a bit is changed.
    changed: usize,
}

impl Wire {
    /// Passes on what has arrived; false if an end has closed the connection.
    fn pass(&mut self) -> bool {
        let mut piece = [0; 4096];
        for from in 0..2 {
            match self.ends[from].read(&mut piece) {
                Ok(0) => return false,
                Ok(len) => {
                    // The acceptor's bytes are those of the handshake.
                    if from == 0 {
                        let at = self.changed.checked_sub(self.passed);
                        if let Some(byte) = at.and_then(|at| piece[..len].get_mut(at)) {
                            *byte ^= 4;
                        }
                        self.passed += len;
                    }
                    if self.ends[1 - from].write_all(&piece[..len]).is_err() {
                        return false;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// Somebody on the way changes a bit of a late frame: the connection ends, and the next one serves.
#[test]
fn a_frame_that_is_changed_on_the_way_is_not_taken() -> Outcome {
    let (first, second, way) = (free_address()?, free_address()?, listen()?);
    way.set_nonblocking(true)?;
    let on_the_way = way.local_addr()?;
    let mut nodes = [
        Node::start(1, first, on_the_way, Some("secret"))?,
        Node::start_behind(2, (second, on_the_way), first, Some("secret"))?,
    ];
    let mut wires: Vec<Wire> = Vec::new();
    let mut connections = 0;
    let mut between = || -> Outcome {
        if let Some(near) = accepted(&way)? {
            let far = TcpStream::connect(second)?;
            far.set_nonblocking(true)?;
            // The handshake has 106 bytes of the dialler, and the hello less than 300. A changed byte of a length may
            // make a frame that is too long, which ends the connection without a report.
            let changed = if connections < 10 { 106 + 300 + connections } else { usize::MAX };
            connections += 1;
            wires.push(Wire { ends: [near, far], passed: 0, changed });
        }
        wires.retain_mut(Wire::pass);
        Ok(())
    };
    let is_told = |nodes: &[Node]| {
        nodes[1].refusals().iter().any(|it| it.contains("a frame was changed on the way"))
    };
    turn_until(&mut nodes, &mut between, is_told)?;
    // The frame was not taken, and what follows comes by another connection.
    turn_until(&mut nodes, &mut between, have_leader)?;
    assert!(connections > 1);
    Ok(())
}

fn accepted(listener: &TcpListener) -> Outcome<Option<TcpStream>> {
    match listener.accept() {
        Ok((stream, _)) => {
            stream.set_nonblocking(true)?;
            Ok(Some(stream))
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error.into()),
    }
}
