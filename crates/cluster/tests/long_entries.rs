//! An entry that is longer on its way than an election timeout ends no leadership.

mod node;

use coreplane_engine::{Completion, Deferred, Engine, Horizon, Visibility, WriteOptions};
use node::{Node, Outcome, PATIENCE, free_address, listen};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The bytes that a slow network takes in a turn, and the time between two such turns: the entry takes longer than
/// two election timeouts.
const TURN: usize = 512 << 10;
const PAUSE: Duration = Duration::from_millis(20);
const ENTRY: usize = 32 << 20;
/// The most time that passes between two turns of the nodes.
const STEP_MAX: Duration = Duration::from_millis(5);

/// A slow network on the way to a node.
struct Relay {
    listener: TcpListener,
    to: SocketAddr,
    connections: Vec<Connection>,
}

struct Connection {
    ends: [TcpStream; 2],
    /// Bytes that each end has still to be sent.
    waiting: [Vec<u8>; 2],
    is_closed: bool,
}

impl Connection {
    /// Moves so many bytes at most from each end to the other one.
    fn turn(&mut self, buffer: &mut [u8]) {
        for (from, to) in [(0, 1), (1, 0)] {
            if self.waiting[to].is_empty() {
                match self.ends[from].read(buffer) {
                    Ok(0) => self.is_closed = true,
                    Ok(len) => self.waiting[to].extend_from_slice(&buffer[..len]),
                    Err(error) => self.is_closed |= error.kind() != ErrorKind::WouldBlock,
                }
            }
            match self.ends[to].write(&self.waiting[to]) {
                Ok(len) => drop(self.waiting[to].drain(..len)),
                Err(error) => self.is_closed |= error.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

impl Relay {
    fn new(to: SocketAddr) -> Outcome<Self> {
        let listener = listen()?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, to, connections: Vec::new() })
    }

    fn turn(&mut self, buffer: &mut [u8]) -> Outcome {
        while let Ok((one, _)) = self.listener.accept() {
            let ends = [one, TcpStream::connect(self.to)?];
            ends.iter().try_for_each(|end| end.set_nonblocking(true))?;
            let (waiting, is_closed) = ([Vec::new(), Vec::new()], false);
            self.connections.push(Connection { ends, waiting, is_closed });
        }
        self.connections.iter_mut().for_each(|it| it.turn(buffer));
        self.connections.retain(|it| !it.is_closed);
        Ok(())
    }
}

/// Two nodes that reach each other by way of a slow network. The sockets before it have room for most of an entry.
struct Pair {
    nodes: [Node; 2],
    relays: [Relay; 2],
    /// The time of both. It passes with that of the machine, but for the moments in which this thread does not run.
    now: Instant,
    looked: Instant,
    moved: Instant,
    buffer: Vec<u8>,
}

impl Pair {
    fn new() -> Outcome<Self> {
        let at = [free_address()?, free_address()?];
        let relays = [Relay::new(at[0])?, Relay::new(at[1])?];
        let told = [relays[0].listener.local_addr()?, relays[1].listener.local_addr()?];
        let nodes = [
            Node::start_behind(1, (at[0], told[0]), told[1], None)?,
            Node::start_behind(2, (at[1], told[1]), told[0], None)?,
        ];
        let now = Instant::now();
        Ok(Self { nodes, relays, now, looked: now, moved: now, buffer: vec![0; TURN] })
    }

    fn until(&mut self, is_so: impl Fn(&[Node; 2]) -> Outcome<bool>) -> Outcome {
        let since = Instant::now();
        while !is_so(&self.nodes)? {
            let looked = std::mem::replace(&mut self.looked, Instant::now());
            self.now += (self.looked - looked).min(STEP_MAX);
            if self.now - self.moved >= PAUSE {
                self.moved = self.now;
                self.relays.iter_mut().try_for_each(|it| it.turn(&mut self.buffer))?;
            }
            self.nodes.iter_mut().try_for_each(|node| node.turn_at(self.now))?;
            if since.elapsed() > PATIENCE {
                return Err("it does not come".into());
            }
        }
        Ok(())
    }
}

#[test]
fn an_entry_that_is_long_on_its_way_ends_no_leadership() -> Outcome {
    let mut pair = Pair::new()?;
    pair.until(|nodes| Ok(nodes.iter().any(|it| it.replica.leads())))?;
    let leader = usize::from(pair.nodes[1].replica.leads());
    let term = pair.nodes[leader].replica.status().term;
    let value = vec![7; ENTRY];
    let options = WriteOptions { completion: Completion::Early, ..WriteOptions::default() };
    let ticket = pair.nodes[leader].replica.put(b"long", &value, &options)?.ticket();
    pair.until(|nodes| {
        // It is an error once the leadership has ended.
        Ok(nodes[leader].replica.is_durable(&Horizon::from(ticket))?)
    })?;
    assert_eq!(pair.nodes[leader].replica.status().term, term);
    let mut len = 0;
    let mut look = |record: coreplane_engine::Record<'_>| len = record.value.to_vec().len();
    pair.nodes[leader].replica.get_with(b"long", Visibility::Early, &mut look)?;
    assert_eq!(len, ENTRY);
    Ok(())
}
