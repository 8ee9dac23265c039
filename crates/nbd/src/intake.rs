//! Parses the bytes of a connection, in pieces of any length, into requests.
//!
//! ```text
//!   head ─► payload of a write ─► head …
//!      └─► payload of a write that is refused, which is discarded ─► head …
//! ```

use crate::disk::{Errno, Op};
use crate::export::REQUEST_MAX;
use crate::protocol::command;
use crate::request::{Bounds, HEAD, Head, Nonsense, Verdict};
use crate::turn::Turn;

/// The longest payload that is skipped to reach the next request, in bytes.
const SKIP_MAX: u32 = 2 * REQUEST_MAX;

/// The place of the next bytes.
#[derive(Debug)]
enum State {
    Head,
    Payload {
        head: Head,
        op: Op,
    },
    Skip {
        cookie: u64,
        errno: Errno,
        message: &'static str,
        left: u32,
    },
    /// The client has disconnected.
    End,
}

/// The parser of requests.
#[derive(Debug)]
pub(crate) struct Intake {
    bounds: Bounds,
    state: State,
    /// The bytes of a write that have arrived. It grows as they arrive, so that a length alone takes no memory.
    payload: Vec<u8>,
}

impl Intake {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, state: State::Head, payload: Vec::new() }
    }

    /// Puts requests at the front of `input` into `turn` until it is full or the rest of `input` is
    /// too short. Returns the number of bytes taken.
    ///
    /// # Errors
    /// [`Nonsense`], after which the connection cannot be used any more.
    pub(crate) fn feed(&mut self, input: &[u8], turn: &mut Turn) -> Result<usize, Nonsense> {
        let mut taken = 0;
        loop {
            let input = &input[taken..];
            let left = match &mut self.state {
                State::End => return Ok(taken),
                State::Head => match Head::parse(input)? {
                    Some(head) if turn.admits(weight(&head)) => {
                        taken += HEAD;
                        self.begin(&head, turn)?;
                        continue;
                    }
                    _ => return Ok(taken),
                },
                State::Payload { head, .. } => {
                    let missing = head.len as usize - self.payload.len();
                    let some = input.len().min(missing);
                    reserve(&mut self.payload, some, missing);
                    self.payload.extend_from_slice(&input[..some]);
                    taken += some;
                    missing - some
                }
                State::Skip { left, .. } => {
                    let some = u32::try_from(input.len()).unwrap_or(u32::MAX).min(*left);
                    taken += some as usize;
                    *left -= some;
                    *left as usize
                }
            };
            if left > 0 {
                return Ok(taken);
            }
            self.complete(turn);
        }
    }

    /// True if the client has sent a disconnect.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state, State::End)
    }

    /// Bytes of its buffer.
    pub(crate) fn memory(&self) -> usize {
        self.payload.capacity()
    }

    fn begin(&mut self, head: &Head, turn: &mut Turn) -> Result<(), Nonsense> {
        let cookie = head.cookie;
        match head.verdict(&self.bounds) {
            Verdict::Run(op @ Op::Write { .. }) => {
                self.payload.clear();
                self.state = State::Payload { head: *head, op };
            }
            Verdict::Run(op) => turn.push(head, op, &mut self.payload),
            Verdict::Flush => turn.push_flush(cookie),
            Verdict::Status { is_one } => turn.push_query(head, is_one),
            Verdict::Nothing => turn.answer_nothing(cookie, head.command == command::READ),
            Verdict::Disconnect => self.state = State::End,
            Verdict::Refuse(..) if head.payload() > SKIP_MAX => return Err(Nonsense),
            Verdict::Refuse(errno, message) if head.payload() > 0 => {
                self.state = State::Skip { cookie, errno, message, left: head.payload() };
            }
            Verdict::Refuse(errno, message) => turn.refuse(cookie, errno, message),
        }
        Ok(())
    }

    /// Called when all bytes of a write have arrived or been skipped.
    fn complete(&mut self, turn: &mut Turn) {
        match std::mem::replace(&mut self.state, State::Head) {
            State::Payload { head, op } => turn.push(&head, op, &mut self.payload),
            State::Skip { cookie, errno, message, .. } => turn.refuse(cookie, errno, message),
            State::Head | State::End => {}
        }
    }
}

/// Makes room for `some` bytes: by doubling the present bytes, but never for more than will come.
fn reserve(payload: &mut Vec<u8>, some: usize, missing: usize) {
    if payload.capacity() - payload.len() < some {
        payload.reserve_exact(some.max(payload.len()).min(missing));
    }
}

/// The bytes of a turn that a request takes.
fn weight(head: &Head) -> usize {
    match head.command {
        command::READ | command::WRITE => head.len.min(REQUEST_MAX) as usize,
        _ => 0,
    }
}
