//! Replies as bytes: simple ones, and chunks of structured ones.

use crate::disk::Errno;
use crate::handshake::CONTEXT_ID;
use crate::protocol::{SIMPLE_REPLY, STRUCTURED_REPLY, chunk};

/// The form of a connection's replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Form {
    /// Structured replies were negotiated. A reply without data and without an error is simple nevertheless.
    pub(crate) is_structured: bool,
}

impl Form {
    /// A success without data.
    pub(crate) fn success(self, cookie: u64, out: &mut Vec<u8>) {
        simple(cookie, 0, out);
    }

    /// The outcome of a request that has no data.
    pub(crate) fn outcome(self, cookie: u64, outcome: Result<(), Errno>, out: &mut Vec<u8>) {
        match outcome {
            Ok(()) => self.success(cookie, out),
            Err(errno) => self.failure(cookie, errno, "", out),
        }
    }

    /// An error; `message`, if not empty, gives details.
    pub(crate) fn failure(self, cookie: u64, errno: Errno, message: &str, out: &mut Vec<u8>) {
        if !self.is_structured {
            return simple(cookie, errno.code(), out);
        }
        let own = errno.to_string();
        let message = if message.is_empty() { &own } else { message };
        // All messages are our own, and short.
        let len = u16::try_from(message.len()).unwrap_or(0);
        let message = &message.as_bytes()[..usize::from(len)];
        head(cookie, chunk::ERROR, 6 + u32::from(len), out);
        out.extend(errno.code().to_be_bytes());
        out.extend(len.to_be_bytes());
        out.extend(message);
    }

    /// The head before the `len` bytes read at `offset`.
    pub(crate) fn data(self, cookie: u64, offset: u64, len: u32, out: &mut Vec<u8>) {
        if !self.is_structured {
            return simple(cookie, 0, out);
        }
        head(cookie, chunk::OFFSET_DATA, 8 + len, out);
        out.extend(offset.to_be_bytes());
    }

    /// A read of no bytes.
    pub(crate) fn no_data(self, cookie: u64, out: &mut Vec<u8>) {
        match self.is_structured {
            true => head(cookie, chunk::NONE, 0, out),
            false => simple(cookie, 0, out),
        }
    }

    /// Extents, each a length and its state.
    pub(crate) fn extents(self, cookie: u64, extents: &[(u32, u32)], out: &mut Vec<u8>) {
        // Their number is bounded by a few thousand.
        let len = u32::try_from(extents.len() * 8).unwrap_or(u32::MAX);
        head(cookie, chunk::BLOCK_STATUS, 4 + len, out);
        out.extend(CONTEXT_ID.to_be_bytes());
        for (len, state) in extents {
            out.extend(len.to_be_bytes());
            out.extend(state.to_be_bytes());
        }
    }
}

fn simple(cookie: u64, error: u32, out: &mut Vec<u8>) {
    out.extend(SIMPLE_REPLY.to_be_bytes());
    out.extend(error.to_be_bytes());
    out.extend(cookie.to_be_bytes());
}

/// The head of a chunk that is a complete reply.
fn head(cookie: u64, kind: u16, len: u32, out: &mut Vec<u8>) {
    out.extend(STRUCTURED_REPLY.to_be_bytes());
    out.extend(chunk::DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(len.to_be_bytes());
}
