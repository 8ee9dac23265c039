//! The binary protocol of memcached.
//!
//! ```text
//!   magic, operation, key length (2), extras length, type, status (2), body length (4),
//!   opaque (4), version (8); then the body: extras, key, value. Numbers are big-endian.
//! ```

use super::Connection;
use coreplane_bench::{Error, Result, Session};

const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const GET: u8 = 0x00;
const SET: u8 = 0x01;
const HEADER: usize = 24;

/// What a header says of an answer.
struct Answer {
    status: u16,
    /// Bytes of extras and key, which come before the value.
    before_value: usize,
    body: usize,
}

const OK: u16 = 0;
const ABSENT: u16 = 1;

pub(super) struct Client(pub(super) Connection);

impl Client {
    fn ask(&mut self, operation: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Result<Answer> {
        let too_long = |_| Error::Plan("a key or a value is too long".to_owned());
        let key_len = u16::try_from(key.len()).map_err(too_long)?;
        let body = u32::try_from(extras.len() + key.len() + value.len()).map_err(too_long)?;
        let request = &mut self.0.request;
        request.extend_from_slice(&[REQUEST, operation]);
        request.extend_from_slice(&key_len.to_be_bytes());
        request.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
        request.extend_from_slice(&body.to_be_bytes());
        request.extend_from_slice(&[0; 12]);
        for part in [extras, key, value] {
            request.extend_from_slice(part);
        }
        self.0.send()?;
        let header = self.0.take(HEADER)?;
        if header[..2] != [RESPONSE, operation] {
            return Err(Error::Target(format!("no answer of memcached begins {header:x?}")));
        }
        let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
        let before_value = usize::from(header[4]) + usize::from(short(2));
        if before_value > body {
            return Err(Error::Target("an answer of memcached is shorter than it says".to_owned()));
        }
        Ok(Answer { status: short(6), before_value, body })
    }
}

impl Session for Client {
    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let Answer { status, before_value, body } = self.ask(GET, &[], key, &[])?;
        let body = self.0.take(body)?;
        match status {
            OK => visit(&body[before_value..]),
            ABSENT => {}
            _ => return Err(refused(status, body)),
        }
        Ok(status == OK)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        // Neither marks nor an end.
        let Answer { status, body, .. } = self.ask(SET, &[0; 8], key, value)?;
        let body = self.0.take(body)?;
        if status == OK { Ok(()) } else { Err(refused(status, body)) }
    }
}

fn refused(status: u16, body: &[u8]) -> Error {
    let said = String::from_utf8_lossy(body);
    Error::Target(format!("memcached has refused, status {status}: {said}"))
}
