//! A client that sees every byte, and a server to talk to.

#![allow(dead_code)]

pub(crate) mod many;
pub(crate) mod redis;

use coreplane_engine::Deferred;
use coreplane_server::{Config, Handle, Server};
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// No step of a test takes longer than this unless it hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    handle: Handle,
    thread: Option<JoinHandle<coreplane_server::Result<()>>>,
}

impl Running {
    pub(crate) fn start(config: Config, engine: Arc<dyn Deferred>) -> Self {
        Self::of(Server::bind(config, engine).expect("bind"))
    }

    pub(crate) fn of(server: Server) -> Self {
        let address = server.local_addr().expect("an address");
        let handle = server.handle();
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { address, handle, thread }
    }

    pub(crate) fn connect(&self) -> Wire {
        Wire::tcp(self.address)
    }

    /// Waits until the server has ended by itself.
    pub(crate) fn wait(mut self) -> coreplane_server::Result<()> {
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("no panic").expect("no error");
        }
    }
}

/// Any free port on this machine, two loops.
pub(crate) fn config() -> Config {
    Config { port: Some(0), threads: 2, ..Config::default() }
}

trait Both: Read + Write + Send {}
impl<T: Read + Write + Send> Both for T {}

/// One connection.
pub(crate) struct Wire {
    stream: BufReader<Box<dyn Both>>,
}

impl Wire {
    pub(crate) fn tcp(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        stream.set_nodelay(true).expect("nodelay");
        Self { stream: BufReader::new(Box::new(stream)) }
    }

    pub(crate) fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        Self { stream: BufReader::new(Box::new(stream)) }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("send");
    }

    /// Sends as much as the other end accepts.
    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.get_mut().write_all(bytes).is_ok()
    }

    /// One reply, byte for byte; the received part of it if the connection ends.
    pub(crate) fn reply(&mut self) -> Vec<u8> {
        let mut raw = Vec::new();
        self.read_value(&mut raw);
        raw
    }

    fn read_line(&mut self, raw: &mut Vec<u8>) -> Option<usize> {
        let start = raw.len();
        let mut byte = [0];
        while !raw[start..].ends_with(b"\r\n") {
            match self.stream.read(&mut byte) {
                Ok(1) => raw.push(byte[0]),
                Ok(_) => return None,
                Err(error) if is_end(&error) => return None,
                Err(error) => panic!("read: {error}; so far {:?}", shown(raw)),
            }
        }
        Some(start)
    }

    fn read_value(&mut self, raw: &mut Vec<u8>) -> Option<()> {
        let start = self.read_line(raw)?;
        let kind = raw[start];
        let number: i64 = std::str::from_utf8(&raw[start + 1..raw.len() - 2])
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        let count = usize::try_from(number).unwrap_or(0);
        match kind {
            b'$' | b'=' if number >= 0 => {
                let mut text = vec![0; count + 2];
                self.stream.read_exact(&mut text).ok()?;
                raw.extend_from_slice(&text);
            }
            b'*' | b'~' | b'>' => (0..count).try_for_each(|_| self.read_value(raw))?,
            b'%' => (0..count * 2).try_for_each(|_| self.read_value(raw))?,
            _ => {}
        }
        Some(())
    }

    /// Sends a command and reads its reply.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.send(&command(words));
        self.reply()
    }

    /// As `ask`, with words and reply as text.
    pub(crate) fn say(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        shown(&self.ask(&words))
    }

    /// True if the other end closes the connection and sends nothing more.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty(),
            Err(error) => is_end(&error) && rest.is_empty(),
        }
    }

    /// Reads so many bytes; false if the other end has closed before.
    pub(crate) fn part(&mut self, len: usize) -> bool {
        self.stream.read_exact(&mut vec![0; len]).is_ok()
    }

    /// Everything until the other end closes.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) if is_end(&error) => {}
            Err(error) => panic!("read: {error}; so far {:?}", shown(&rest)),
        }
        rest
    }
}

fn is_end(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// A command as an array of bulk strings.
pub(crate) fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Bytes as text on one line.
pub(crate) fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

/// Ends the other threads of a test when it is dropped, also where a test fails.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
