//! A server that runs beside a measurement.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;

/// A server that is killed when it is dropped.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pub(super) child: Child,
    pub(super) port: u16,
}

/// What a server is asked whether it is there, and how its answer begins.
pub(super) type Greeting = (&'static [u8], &'static [u8]);

/// The Redis protocol.
pub(super) const REDIS: Greeting = (b"PING\r\n", b"+PONG\r\n");
/// The text protocol of memcached.
pub(super) const MEMCACHED: Greeting = (b"version\r\n", b"VERSION");

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.child.kill().is_ok();
        let _ended = self.child.wait().is_ok();
    }
}

/// A port that is free now, and nobody else here takes ports.
pub(super) fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl ServerProcess {
    /// Starts the server that `command` says, which listens on `port`, and waits until it answers.
    pub(super) fn start(command: &mut Command, port: u16, greeting: Greeting) -> Outcome<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Self { child: command.spawn()?, port };
        let begun = Instant::now();
        while !answers(port, greeting) {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server has ended: {status}").into());
            }
            if begun.elapsed() > Duration::from_secs(30) {
                return Err("the server does not answer".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

/// True if a server gives the right answer there.
fn answers(port: u16, (question, wanted): Greeting) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(question)?;
        let mut answer = vec![0; wanted.len()];
        stream.read_exact(&mut answer)?;
        Ok(answer == wanted)
    };
    ask().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_answers_where_nobody_listens() {
        assert!(!answers(free_port().unwrap(), REDIS));
    }

    #[test]
    fn a_server_that_ends_is_no_server() {
        let started = ServerProcess::start(&mut Command::new("false"), free_port().unwrap(), REDIS);
        assert!(started.unwrap_err().to_string().contains("has ended"));
    }
}
