//! The protocol from the client's side, byte by byte, and recorded conversations.

#![allow(dead_code)]

use crate::memory::Memory;
use coreplane_nbd::{Config, Conversation, Handle, Server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const CACHE: u16 = 5;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;
pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;

/// The name of the export in all tests.
pub(crate) const NAME: &str = "disk";

/// An option.
pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let len = (data.len() as u32).to_be_bytes();
    [b"IHAVEOPT", &number.to_be_bytes()[..], &len, data].concat()
}

/// The client's part of a handshake that chooses `name`; if `is_structured`, replies are
/// structured, with `base:allocation`.
pub(crate) fn handshake(name: &str, is_structured: bool) -> Vec<u8> {
    let name = [&(name.len() as u32).to_be_bytes()[..], name.as_bytes()].concat();
    let mut bytes = vec![0, 0, 0, 3];
    if is_structured {
        bytes.extend(option(8, b""));
        let query = b"\0\0\0\x01\0\0\0\x0fbase:allocation";
        bytes.extend(option(10, &[&name[..], query].concat()));
    }
    bytes.extend(option(7, &[&name[..], &[0, 0]].concat()));
    bytes
}

/// A request without the bytes of a write.
pub(crate) fn head(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// A write.
pub(crate) fn write(flags: u16, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let mut request = head(WRITE, flags, cookie, offset, bytes.len() as u32);
    request.extend(bytes);
    request
}

/// Feeds `input` to a conversation in pieces of these lengths, in turn; returns its answers.
pub(crate) fn converse(conversation: &mut Conversation, input: &[u8], pieces: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    conversation.send(&mut out).expect("a Vec takes all");
    let (mut begin, mut end) = (0, 0);
    let mut pieces = pieces.iter().cycle();
    loop {
        let taken = conversation.receive(&input[begin..end]).expect("no error");
        begin += taken;
        conversation.send(&mut out).expect("a Vec takes all");
        let needs_more = taken == 0 || begin == end;
        if conversation.is_over() || (needs_more && end == input.len()) {
            break;
        }
        if needs_more {
            end = (end + pieces.next().map_or(1, |piece| (*piece).max(1))).min(input.len());
        }
    }
    conversation.wait(&mut out).expect("a Vec takes all");
    out
}

/// A conversation of `tests/conversations`: lines of hexadecimal digits, `C` the client's, `S` the
/// server's, `#` a comment; `name*N` repeats a byte.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) lines: Vec<(char, Vec<u8>)>,
}

impl Recorded {
    pub(crate) fn all() -> Vec<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conversations");
        let mut all: Vec<Self> = std::fs::read_dir(directory)
            .expect("the conversations")
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let text = std::fs::read_to_string(&path).expect("a file");
                let lines = text.lines().filter_map(line).collect();
                Self { name: path.display().to_string(), lines }
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all.len() > 2);
        all
    }

    /// All bytes of the client.
    pub(crate) fn client(&self) -> Vec<u8> {
        let said = self.lines.iter().filter(|line| line.0 == 'C');
        said.flat_map(|line| line.1.clone()).collect()
    }
}

fn line(text: &str) -> Option<(char, Vec<u8>)> {
    let text = text.split('#').next().unwrap_or_default();
    let (who, words) = text.split_once(' ')?;
    let mut bytes = Vec::new();
    for word in words.split_whitespace() {
        if let Some(text) = word.strip_prefix('\'') {
            bytes.extend(text.replace('_', " ").into_bytes());
            continue;
        }
        let (digits, count) = word.split_once('*').unwrap_or((word, "1"));
        let piece: Vec<u8> = (0..digits.len() / 2)
            .map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("digits"))
            .collect();
        bytes.extend(piece.repeat(count.parse().expect("a count")));
    }
    Some((who.chars().next().expect("a letter"), bytes))
}

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: Option<SocketAddr>,
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<coreplane_nbd::Result<()>>>,
}

impl Running {
    pub(crate) fn start(config: Config, disk: Arc<Memory>) -> Self {
        let server = Server::bind(config, disk).expect("bind");
        let (address, handle) = (server.local_addr(), server.handle());
        let thread = Some(std::thread::spawn(move || server.run()));
        Self { address, handle, thread }
    }

    pub(crate) fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address.expect("an address")).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        stream.set_nodelay(true).expect("nodelay");
        Client { stream }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("no panic").expect("no error");
            }
        }
    }
}

/// One connection, with simple replies.
pub(crate) struct Client<S> {
    pub(crate) stream: S,
}

impl<S: Read + Write> Client<S> {
    /// Chooses `name`.
    pub(crate) fn choose(&mut self, name: &str) {
        self.send(&handshake(name, false));
        // Greeting, two infos, the end.
        let answer = self.bytes(18 + (20 + 12) + (20 + 14) + 20);
        assert_eq!(answer[answer.len() - 8..], [0, 0, 0, 1, 0, 0, 0, 0]);
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("bytes");
        bytes
    }

    /// The next simple reply: cookie and error.
    pub(crate) fn reply(&mut self) -> (u64, u32) {
        let reply = self.bytes(16);
        assert_eq!(reply[..4], [0x67, 0x44, 0x66, 0x98]);
        let number = |from: usize, to: usize| {
            reply[from..to].iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        (number(8, 16), number(4, 8) as u32)
    }

    /// Sends a request, and waits for its success.
    pub(crate) fn ask(&mut self, request: &[u8]) {
        self.send(request);
        assert_eq!(self.reply().1, 0);
    }

    /// Reads.
    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Vec<u8> {
        self.ask(&head(READ, 0, 77, offset, len));
        self.bytes(len as usize)
    }

    /// True if the server has closed the connection.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}
