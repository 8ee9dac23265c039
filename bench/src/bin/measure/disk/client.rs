//! A client of NBD that keeps several requests under way, and costs as little as it can: what has come is read by one
//! call, and what is to go is sent by one.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::wire::{self, Head, REPLY_LEN};
use crate::Outcome;

/// Bytes that are taken from the socket at once.
const INPUT: usize = 256 << 10;
/// A server that says nothing for so long hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    stream: UnixStream,
    out: Vec<u8>,
    input: Vec<u8>,
    from: usize,
    to: usize,
    /// Bytes of the export.
    pub(super) len: u64,
}

impl Client {
    /// Connects, and asks for the export of this name.
    pub(super) fn connect(socket: &Path, export: &str) -> Outcome<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (out, input) = (Vec::with_capacity(INPUT), vec![0; INPUT]);
        let mut client = Self { stream, out, input, from: 0, to: 0, len: 0 };
        client.greet(export)?;
        Ok(client)
    }

    fn greet(&mut self, export: &str) -> Outcome<()> {
        let (magic, options) = (self.number(8)?, self.number(8)?);
        let flags = self.number(2)?;
        if (magic, options) != (wire::MAGIC, wire::OPTIONS) || flags & 1 == 0 {
            return Err("the server speaks no fixed newstyle NBD".into());
        }
        let flags = u32::from(wire::HANDSHAKE_FLAGS) & flags as u32;
        self.out.extend_from_slice(&flags.to_be_bytes());
        self.out.extend_from_slice(&wire::OPTIONS.to_be_bytes());
        self.out.extend_from_slice(&wire::GO.to_be_bytes());
        self.out.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
        self.out.extend_from_slice(&(export.len() as u32).to_be_bytes());
        self.out.extend_from_slice(export.as_bytes());
        self.out.extend_from_slice(&0_u16.to_be_bytes());
        self.send()?;
        loop {
            let (magic, _option) = (self.number(8)?, self.number(4)?);
            let (kind, len) = (self.number(4)? as u32, self.number(4)? as usize);
            if magic != wire::OPTION_REPLY {
                return Err("the server's answer is none".into());
            }
            match kind {
                wire::ACK => return Ok(()),
                wire::INFO if len == 12 && self.number(2)? == 0 => {
                    self.len = self.number(8)?;
                    self.number(2)?;
                }
                // Of another kind, whose first two bytes are read.
                wire::INFO => self.skip(len.saturating_sub(if len == 12 { 2 } else { 0 }))?,
                _ => return Err(format!("the server refuses the export: {kind:#x}").into()),
            }
        }
    }

    /// Sees to it that so many bytes are there.
    fn fill(&mut self, len: usize) -> Outcome<()> {
        if self.input.len() - self.from < len {
            self.input.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        while self.to - self.from < len {
            let read = self.stream.read(&mut self.input[self.to..])?;
            if read == 0 {
                return Err("the server has hung up".into());
            }
            self.to += read;
        }
        Ok(())
    }

    /// A number of so many bytes, of the handshake.
    fn number(&mut self, len: usize) -> Outcome<u64> {
        self.fill(len)?;
        let bytes = &self.input[self.from..self.from + len];
        let number = bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        self.from += len;
        Ok(number)
    }

    fn skip(&mut self, len: usize) -> Outcome<()> {
        (0..len).try_for_each(|_| self.number(1).map(drop))
    }

    /// A request that is sent with the others.
    pub(super) fn push(&mut self, head: Head, bytes: &[u8]) {
        head.write(&mut self.out);
        self.out.extend_from_slice(bytes);
    }

    /// Sends what is to go.
    pub(super) fn send(&mut self) -> Outcome<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// True if an answer with so many bytes has come already.
    pub(super) fn has_answer(&self, len: usize) -> bool {
        self.to - self.from >= REPLY_LEN + len
    }

    /// The next answer, which has so many bytes: its cookie, and they.
    pub(super) fn answer(&mut self, len: usize) -> Outcome<(u64, &[u8])> {
        self.fill(REPLY_LEN)?;
        let (magic, error) = (self.number(4)? as u32, self.number(4)?);
        let cookie = self.number(8)?;
        if magic != wire::REPLY || error != 0 {
            return Err(format!("a request has failed: {magic:#x}, error {error}").into());
        }
        self.fill(len)?;
        let bytes = self.from..self.from + len;
        self.from += len;
        Ok((cookie, &self.input[bytes]))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let end = Head { flags: 0, command: wire::DISCONNECT, cookie: 0, place: 0, len: 0 };
        self.out.clear();
        self.push(end, &[]);
        // It may have gone.
        let _sent = self.send().is_ok();
    }
}
