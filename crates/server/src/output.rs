//! Answers to be sent, some of which must wait.
//!
//! ```text
//!   sent        free              held by turn 7    held by turn 9     being written
//! ├───────────┼─────────────────┼─────────────────┼──────────────────┼ ─ ─ ─
//! ```
//!
//! An answer may report a write, or show a value that was written a moment ago. It may leave the process only when
//! that write is durable: otherwise a power cut could undo a write that the client was told of. So at the end of a
//! turn the answers of the turn are either *free* or *held* until the turn's horizon is durable. They never overtake
//! each other: answers behind a held answer wait with it.

use coreplane_pmem::mutant;
use std::collections::VecDeque;

/// Pending answers of one connection.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    sent: usize,
    free: usize,
    /// Ends of held parts, with the turns that they wait for.
    held: VecDeque<(usize, u64)>,
}

impl Output {
    const KEPT: usize = 64 << 10;
    const COMPACT_ABOVE: usize = 1 << 20;

    /// The buffer for answers.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The number of bytes to be sent.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Bytes at the beginning of the buffer that were sent.
    pub(crate) fn sent_len(&self) -> usize {
        self.sent
    }

    /// The length of the buffer.
    pub(crate) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// The capacity of its memory, in bytes.
    pub(crate) fn room(&self) -> usize {
        self.bytes.capacity()
    }

    /// True if some are held.
    pub(crate) fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// The turn is over: the bytes written in it wait for `turn`, or for no turn of their own.
    pub(crate) fn seal(&mut self, turn: Option<u64>) {
        let end = self.bytes.len();
        match (turn, self.held.back_mut()) {
            (Some(turn), _) => self.held.push_back((end, turn)),
            (None, Some(last)) => last.0 = end,
            (None, None) => self.free = end,
        }
    }

    /// All turns up to `turn` are durable.
    pub(crate) fn release(&mut self, turn: u64) {
        while let Some(&(end, waits_for)) = self.held.front() {
            if waits_for > turn {
                return;
            }
            self.free = end;
            self.held.pop_front();
        }
    }

    /// Removes all bytes that are not free.
    pub(crate) fn discard_held(&mut self) {
        self.bytes.truncate(self.free);
        self.held.clear();
    }

    /// The bytes that may be sent.
    pub(crate) fn ready(&self) -> &[u8] {
        &self.bytes[self.sent..self.free]
    }

    /// So many bytes have been sent.
    pub(crate) fn sent(&mut self, len: usize) {
        self.sent += len;
        if self.sent == self.bytes.len() {
            (self.sent, self.free) = (0, 0);
            self.bytes.clear();
            // Held parts without bytes: their turns' answers were muted, or are still to come.
            if !mutant!("server.output.place") {
                self.held.iter_mut().for_each(|(end, _)| *end = 0);
            }
            if self.bytes.capacity() > Self::KEPT {
                self.bytes = Vec::new();
            }
        } else if self.sent > Self::COMPACT_ABOVE && self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.free -= self.sent;
            for (end, _) in &mut self.held {
                *end -= self.sent;
            }
            self.sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(output: &mut Output, bytes: &[u8], turn: Option<u64>) {
        output.buffer().extend_from_slice(bytes);
        output.seal(turn);
    }

    #[test]
    fn answers_wait_for_their_turn_and_for_those_before() {
        let mut output = Output::default();
        write(&mut output, b"a", None);
        write(&mut output, b"b", Some(7));
        write(&mut output, b"c", None);
        write(&mut output, b"d", Some(9));
        assert_eq!(output.ready(), b"a");
        output.release(6);
        assert_eq!(output.ready(), b"a");
        output.release(7);
        assert_eq!(output.ready(), b"abc");
        output.sent(2);
        assert_eq!(output.ready(), b"c");
        output.release(100);
        assert_eq!(output.ready(), b"cd");
        output.sent(2);
        assert!(output.len() == 0 && !output.is_held());
    }

    #[test]
    fn what_is_held_can_be_taken_back() {
        let mut output = Output::default();
        write(&mut output, b"a", None);
        write(&mut output, b"b", Some(1));
        output.discard_held();
        write(&mut output, b"c", None);
        assert_eq!(output.ready(), b"ac");
    }

    #[test]
    fn parts_without_bytes_are_held_at_their_place() {
        let mut output = Output::default();
        write(&mut output, b"abc", None);
        output.seal(Some(1));
        output.sent(3);
        output.release(1);
        assert!(output.ready().is_empty() && !output.is_held());
        write(&mut output, b"abcdef", None);
        output.seal(Some(1));
        output.sent(6);
        write(&mut output, b"of turn 2", Some(2));
        output.release(1);
        assert_eq!(output.ready(), b"");
        output.release(2);
        assert_eq!(output.ready(), b"of turn 2");
    }

    #[test]
    fn compaction_moves_the_marks() {
        let mut output = Output::default();
        let long = vec![1u8; 3 << 20];
        write(&mut output, &long, None);
        write(&mut output, b"held", Some(1));
        write(&mut output, b"later", Some(2));
        output.sent(2 << 20);
        assert_eq!(output.ready().len(), 1 << 20);
        output.release(1);
        assert!(output.ready().ends_with(b"held"));
        output.release(2);
        assert!(output.ready().ends_with(b"heldlater"));
    }
}
