//! A turn of a connection: the requests that have arrived, executed as one batch, and their
//! replies, sent by one write.
//!
//! Requests, replies and their buffers are kept from turn to turn, so that in steady state nothing
//! is allocated. Read bytes are sent from the buffer that the disk has filled.

use crate::disk::{Disk, Errno, Extent, Op, Request, Source};
use crate::flush::Flushes;
use crate::protocol::state;
use crate::reply::Form;
use crate::request::Head;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

/// The most requests of a turn.
const REQUESTS_MAX: usize = 64;
/// The most bytes of the reads and writes of a turn, unless there is only one request.
const BYTES_MAX: usize = 4 << 20;
/// The most bytes of buffers that are kept for the next turn.
const KEPT_MAX: usize = 2 * BYTES_MAX;
/// The most extents of an answer. A client asks again for the rest.
const EXTENTS_MAX: usize = 4096;

/// A turn.
#[derive(Debug)]
pub(crate) struct Turn {
    form: Form,
    /// The first of them, as many as there are cookies, belong to this turn; the others keep buffers.
    requests: Vec<Request>,
    cookies: Vec<u64>,
    bytes: usize,
    queries: Vec<Query>,
    flushes: Vec<u64>,
    /// The number of requests that were answered at once.
    answered: usize,
    /// The replies without the read bytes.
    heads: Vec<u8>,
    /// The end of the part of `heads` before the bytes of a read, and the index of its request.
    reads: Vec<(usize, usize)>,
    extents: Vec<(u32, u32)>,
}

/// A query for extents.
#[derive(Debug)]
struct Query {
    cookie: u64,
    offset: u64,
    len: u32,
    is_one: bool,
}

impl Turn {
    pub(crate) fn new(form: Form) -> Self {
        Self {
            form,
            requests: Vec::new(),
            cookies: Vec::new(),
            bytes: 0,
            queries: Vec::new(),
            flushes: Vec::new(),
            answered: 0,
            heads: Vec::new(),
            reads: Vec::new(),
            extents: Vec::new(),
        }
    }

    /// True if there is room for a request that reads or writes `bytes` bytes.
    pub(crate) fn admits(&self, bytes: usize) -> bool {
        let others = self.queries.len() + self.flushes.len() + self.answered;
        let count = self.cookies.len() + others;
        count < REQUESTS_MAX && (self.cookies.is_empty() || self.bytes + bytes <= BYTES_MAX)
    }

    /// Adds a request for the disk. For a write it takes the payload and leaves an old buffer.
    pub(crate) fn push(&mut self, head: &Head, op: Op, payload: &mut Vec<u8>) {
        let index = self.cookies.len();
        if index == self.requests.len() {
            let (outcome, bytes) = (Err(Errno::Io), Vec::new());
            self.requests.push(Request { op, offset: 0, len: 0, bytes, outcome });
        }
        let request = &mut self.requests[index];
        (request.op, request.offset, request.len) = (op, head.offset, head.len);
        request.outcome = Err(Errno::Io);
        match op {
            Op::Read => request.bytes.resize(head.len as usize, 0),
            Op::Write { .. } => std::mem::swap(&mut request.bytes, payload),
            _ => request.bytes.clear(),
        }
        self.bytes += request.bytes.len();
        self.cookies.push(head.cookie);
    }

    /// Adds a query for extents.
    pub(crate) fn push_query(&mut self, head: &Head, is_one: bool) {
        let &Head { cookie, offset, len, .. } = head;
        self.queries.push(Query { cookie, offset, len, is_one });
    }

    /// Adds a flush.
    pub(crate) fn push_flush(&mut self, cookie: u64) {
        self.flushes.push(cookie);
    }

    /// Refuses a request.
    pub(crate) fn refuse(&mut self, cookie: u64, errno: Errno, message: &str) {
        self.answered += 1;
        self.form.failure(cookie, errno, message, &mut self.heads);
    }

    /// Answers a request of no bytes.
    pub(crate) fn answer_nothing(&mut self, cookie: u64, is_read: bool) {
        self.answered += 1;
        match is_read {
            true => self.form.no_data(cookie, &mut self.heads),
            false => self.form.success(cookie, &mut self.heads),
        }
    }

    /// True if there are requests for the disk to execute.
    pub(crate) fn has_requests(&self) -> bool {
        !self.cookies.is_empty()
    }

    /// Executes the requests, and prepares the replies. Flushes begin last, so that they cover the
    /// others.
    pub(crate) fn run(&mut self, disk: &dyn Disk, source: &Source, flushes: &Arc<Flushes>) {
        let batch = &mut self.requests[..self.cookies.len()];
        if !batch.is_empty() {
            disk.run(source, batch);
        }
        for (index, (cookie, request)) in self.cookies.iter().zip(batch).enumerate() {
            let whole = request.bytes.len() == request.len as usize;
            match (request.op, request.outcome) {
                (Op::Read, Ok(())) if whole => {
                    self.form.data(*cookie, request.offset, request.len, &mut self.heads);
                    self.reads.push((self.heads.len(), index));
                }
                (Op::Read, Ok(())) => {
                    self.form.outcome(*cookie, Err(Errno::Io), &mut self.heads);
                }
                (_, outcome) => self.form.outcome(*cookie, outcome, &mut self.heads),
            }
        }
        for query in &self.queries {
            let form = self.form;
            match query.run(disk, &mut self.extents) {
                Ok(()) => form.extents(query.cookie, &self.extents, &mut self.heads),
                Err(errno) => form.failure(query.cookie, errno, "", &mut self.heads),
            }
        }
        if !self.flushes.is_empty() {
            let pending = flushes.begin(std::mem::take(&mut self.flushes));
            disk.flush(Box::new(move |outcome| pending.finish(outcome)));
        }
        self.take_flushes(flushes);
    }

    /// Prepares the replies of finished flushes.
    pub(crate) fn take_flushes(&mut self, flushes: &Flushes) {
        flushes.take(|cookie, outcome| self.form.outcome(cookie, outcome, &mut self.heads));
    }

    /// Sends the replies, and resets the turn for the next requests.
    pub(crate) fn send(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); 2 * REQUESTS_MAX + 1];
        let (mut count, mut begin) = (0, 0);
        for &(end, index) in &self.reads {
            slices[count] = IoSlice::new(&self.heads[begin..end]);
            slices[count + 1] = IoSlice::new(&self.requests[index].bytes);
            (count, begin) = (count + 2, end);
        }
        slices[count] = IoSlice::new(&self.heads[begin..]);
        let sent = write_all(out, &mut slices[..=count]);
        self.clear();
        sent
    }

    fn clear(&mut self) {
        self.cookies.clear();
        self.bytes = 0;
        self.queries.clear();
        self.answered = 0;
        self.heads.clear();
        self.reads.clear();
        let mut kept = 0;
        for request in &mut self.requests {
            kept += request.bytes.capacity();
            if kept > KEPT_MAX {
                kept -= request.bytes.capacity();
                request.bytes = Vec::new();
            }
        }
    }

    /// Bytes of its buffers.
    pub(crate) fn memory(&self) -> usize {
        let bytes: usize = self.requests.iter().map(|request| request.bytes.capacity()).sum();
        bytes + self.heads.capacity() + self.extents.capacity() * size_of::<(u32, u32)>()
    }
}

impl Query {
    /// Asks the disk, and merges successive extents with the same state.
    fn run(&self, disk: &dyn Disk, extents: &mut Vec<(u32, u32)>) -> Result<(), Errno> {
        extents.clear();
        let mut left = self.len;
        let most = if self.is_one { 1 } else { EXTENTS_MAX };
        disk.status(self.offset, self.len.into(), &mut |len, extent| {
            let len = u32::try_from(len).unwrap_or(u32::MAX).min(left);
            let state = match extent {
                Extent::Data => 0,
                Extent::Hole => state::HOLE | state::ZERO,
            };
            let count = extents.len();
            match extents.last_mut() {
                Some(last) if last.1 == state => last.0 += len,
                _ if count == most => return false,
                _ if len > 0 => extents.push((len, state)),
                _ => {}
            }
            left -= len;
            left > 0
        })?;
        if extents.is_empty() { Err(Errno::Io) } else { Ok(()) }
    }
}

/// Writes all slices, with as few calls as the socket allows.
fn write_all(out: &mut impl Write, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    // Removes empty slices at the front.
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match out.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut slices, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
