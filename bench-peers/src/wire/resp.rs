//! The Redis protocol.

use super::Connection;
use coreplane_bench::{Error, Result, Session};
use std::io::Write;

pub(super) struct Client(pub(super) Connection);

impl Client {
    fn ask(&mut self, parts: &[&[u8]]) -> Result<()> {
        // Writing to a vector does not fail.
        let _written = write!(self.0.request, "*{}\r\n", parts.len()).is_ok();
        for part in parts {
            let request = &mut self.0.request;
            let _written = write!(request, "${}\r\n", part.len()).is_ok();
            request.extend_from_slice(part);
            request.extend_from_slice(b"\r\n");
        }
        self.0.send()
    }
}

fn unexpected(line: &[u8]) -> Error {
    Error::Target(format!("the server has answered {}", String::from_utf8_lossy(line)))
}

impl Session for Client {
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.ask(&[b"GET", key])?;
        let line = self.0.line()?;
        if line == b"$-1" {
            return Ok(false);
        }
        let len = line
            .strip_prefix(b"$")
            .and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<usize>().ok())
            .ok_or_else(|| unexpected(line))?;
        let value = self.0.take(len + 2)?;
        visit(&value[..len]);
        Ok(true)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.ask(&[b"SET", key, value])?;
        let line = self.0.line()?;
        if line == b"+OK" { Ok(()) } else { Err(unexpected(line)) }
    }
}
