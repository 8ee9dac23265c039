//! A long answer in pieces, so that none of its bytes is moved more than once on the way to the output, and its
//! memory is freed as it is sent.

use crate::slice::Slice;
use std::collections::VecDeque;

/// A long answer in pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    list: VecDeque<Vec<u8>>,
    len: usize,
}

impl Pieces {
    /// Nothing is appended to a piece of this length.
    pub(crate) const PIECE: usize = 64 << 10;

    /// Bytes that a slice moves to the output, and pending bytes above which the next slice waits for the client.
    pub(crate) const OUTPUT_MAX: usize = 1 << 20;

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lets `write` append bytes.
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.list.back().is_none_or(|last| last.len() >= Self::PIECE) {
            self.list.push_back(Vec::new());
        }
        if let Some(last) = self.list.back_mut() {
            let before = last.len();
            write(last);
            self.len += last.len() - before;
        }
    }

    /// Puts `head` before the first byte.
    pub(crate) fn put_before(&mut self, head: Vec<u8>) {
        self.len += head.len();
        self.list.push_front(head);
    }

    /// Moves as much to `out` as a slice may; true if all is moved.
    pub(crate) fn move_to(&mut self, out: &mut Vec<u8>, slice: &mut Slice) -> bool {
        let start = out.len();
        while let Some(piece) = self.list.front() {
            if out.len() - start >= Self::OUTPUT_MAX || !slice.has_time() {
                return false;
            }
            out.extend_from_slice(piece);
            self.len -= piece.len();
            self.list.pop_front();
        }
        true
    }

    /// Moves all of it to `out`.
    pub(crate) fn move_all_to(&mut self, out: &mut Vec<u8>) {
        out.reserve(self.len);
        self.list.drain(..).for_each(|piece| out.extend_from_slice(&piece));
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_leave_in_their_order_and_no_more_than_fits_a_slice() {
        let mut pieces = Pieces::default();
        let mut expected = b"*3\r\n".to_vec();
        for round in 0..100_u8 {
            let some = vec![round; 40_000];
            expected.extend_from_slice(&some);
            pieces.append(|out| out.extend_from_slice(&some));
        }
        pieces.put_before(b"*3\r\n".to_vec());
        assert_eq!(pieces.len(), expected.len());
        let (mut all, mut slices) = (Vec::new(), 0);
        loop {
            let mut out = b"before".to_vec();
            let is_over = pieces.move_to(&mut out, &mut Slice::default());
            assert!(out.len() <= 6 + Pieces::OUTPUT_MAX + 2 * Pieces::PIECE);
            all.extend_from_slice(&out[6..]);
            slices += 1;
            if is_over {
                break;
            }
        }
        assert!(all == expected && pieces.len() == 0 && slices >= 4, "{slices}");
    }
}
