//! Servers: a blocking connection for each thread, one request under way at a time.
//!
//! A server is measured by the same driver as a library, over its own protocol and the loopback
//! interface, so that servers compare with each other. What a request costs is mostly the way there
//! and back, for all of them.
//!
//! - `resp`: the Redis protocol, `GET` and `SET`: redis-server, `coreplane serve`
//! - `memcached`: its binary protocol, since keys are any bytes; the text protocol has none with
//!   spaces

mod memcached;
mod resp;

use coreplane_bench::{Costs, Error, Result, Session, Target};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::{Peer, failed};

/// A server that does not answer for so long is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Resp,
    Memcached,
}

/// A server that runs already.
#[derive(Debug)]
pub(crate) struct Server {
    protocol: Protocol,
    address: SocketAddr,
}

impl Server {
    /// The server of that protocol at `address`; it is asked when a thread begins.
    pub(crate) fn at(protocol: &str, address: SocketAddr) -> Result<Self> {
        let protocol = match protocol {
            "resp" => Protocol::Resp,
            "memcached" => Protocol::Memcached,
            _ => return Err(Error::Plan(format!("`{protocol}` is neither resp nor memcached"))),
        };
        Ok(Self { protocol, address })
    }
}

impl Target for Server {
    fn name(&self) -> String {
        match self.protocol {
            Protocol::Resp => "resp",
            Protocol::Memcached => "memcached",
        }
        .to_owned()
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let connection = Connection::to(self.address)?;
        Ok(match self.protocol {
            Protocol::Resp => Box::new(resp::Client(connection)),
            Protocol::Memcached => Box::new(memcached::Client(connection)),
        })
    }

    fn costs(&self) -> Costs {
        Costs::default()
    }
}

impl Peer for Server {
    fn settings(&self) -> Value {
        json!({"transport": "TCP", "connections": "one a thread", "pipeline": 1})
    }
}

/// A connection, and what has come over it that nobody has read.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// What is to be sent.
    request: Vec<u8>,
    received: Vec<u8>,
    /// Of those, so many bytes have been read.
    read: usize,
}

impl Connection {
    fn to(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Self { stream, request: Vec::new(), received: Vec::new(), read: 0 })
    }

    /// Sends the request; nothing of an earlier answer is left.
    fn send(&mut self) -> Result<()> {
        self.received.clear();
        self.read = 0;
        self.stream.write_all(&self.request).map_err(failed)?;
        self.request.clear();
        Ok(())
    }

    /// Waits for more bytes.
    fn receive(&mut self) -> Result<()> {
        let mut more = [0; 16 << 10];
        match self.stream.read(&mut more).map_err(failed)? {
            0 => Err(Error::Target("the server has closed the connection".to_owned())),
            count => {
                self.received.extend_from_slice(&more[..count]);
                Ok(())
            }
        }
    }

    /// The next `count` bytes.
    fn take(&mut self, count: usize) -> Result<&[u8]> {
        while self.received.len() - self.read < count {
            self.receive()?;
        }
        let from = self.read;
        self.read += count;
        Ok(&self.received[from..self.read])
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<&[u8]> {
        let mut looked_at = self.read;
        loop {
            let fresh = &self.received[looked_at..];
            if let Some(at) = fresh.iter().position(|byte| *byte == b'\n') {
                let (from, end) = (self.read, looked_at + at);
                self.read = end + 1;
                let line = &self.received[from..end];
                return Ok(line.strip_suffix(b"\r").unwrap_or(line));
            }
            looked_at = self.received.len();
            self.receive()?;
        }
    }
}
