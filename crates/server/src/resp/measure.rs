//! Finds the end of a reply of which only a piece may have arrived.

use super::number::parse_i64;

/// The maximal nesting of replies.
const DEPTH_MAX: usize = 32;

/// The maximal length of the header of a reply. The lines of texts and errors have no limit: one that is longer is
/// passed on in pieces.
const LINE_MAX: usize = 64 << 10;

/// The progress within a reply. Each byte is looked at once, however small the pieces are in which the reply arrives,
/// except in a line that is incomplete.
#[derive(Debug, Default)]
pub(crate) struct Measure {
    /// For each open reply the number of replies still to come within it; empty between two replies.
    left: Vec<usize>,
    /// Bytes of a string that are still to come, with its end of line.
    skip: usize,
    /// The end of a line of text is still to come, of which a piece was measured.
    is_in_line: bool,
}

/// The extent of a reply at the beginning of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// So many bytes are the end of a reply.
    Whole(usize),
    /// So many bytes, possibly none, are a piece of a reply that goes on. The bytes behind them must be passed again.
    Piece(usize),
}

impl Measure {
    /// True if a piece of a reply was measured, but not its end.
    pub(crate) fn is_within(&self) -> bool {
        !self.left.is_empty() || self.skip > 0
    }

    /// Continues to measure.
    ///
    /// # Errors
    /// If the bytes are no reply.
    pub(crate) fn advance(&mut self, data: &[u8]) -> Result<Extent, ()> {
        let mut at = 0;
        loop {
            let skipped = self.skip.min(data.len() - at);
            at += skipped;
            self.skip -= skipped;
            if self.skip > 0 {
                return Ok(Extent::Piece(at));
            }
            if !self.is_in_line {
                while self.left.pop_if(|open| *open == 0).is_some() {}
                if at > 0 && self.left.is_empty() {
                    return Ok(Extent::Whole(at));
                }
            }
            let rest = data.get(at..).unwrap_or_default();
            let Some(end) = rest.windows(2).position(|two| two == b"\r\n") else {
                let is_long = self.is_in_line || rest.len() > LINE_MAX;
                return Ok(Extent::Piece(if is_long {
                    at + self.piece_of_line(rest)?
                } else {
                    at
                }));
            };
            if !std::mem::take(&mut self.is_in_line) {
                self.open(rest.get(..end).unwrap_or_default())?;
            }
            at += end + 2;
        }
    }

    /// The length of the piece of a long line: without the first half of its end, if that has arrived.
    fn piece_of_line(&mut self, piece: &[u8]) -> Result<usize, ()> {
        if !self.is_in_line {
            if !piece.starts_with(b"+") && !piece.starts_with(b"-") {
                return Err(());
            }
            self.open(piece)?;
            self.is_in_line = true;
        }
        Ok(piece.len() - usize::from(piece.ends_with(b"\r")))
    }

    /// Reads the first line of a reply.
    fn open(&mut self, line: &[u8]) -> Result<(), ()> {
        let (kind, head) = line.split_first().ok_or(())?;
        let count = || parse_i64(head).ok_or(());
        let mut inner = 0;
        match kind {
            b'$' | b'=' | b'!' => self.skip = usize::try_from(count()?).map_or(0, |len| len + 2),
            b'*' | b'~' | b'>' => inner = usize::try_from(count()?).unwrap_or(0),
            b'%' => inner = usize::try_from(count()?).unwrap_or(0).checked_mul(2).ok_or(())?,
            // Attributes come before the reply that they belong to.
            b'|' => {
                let count = usize::try_from(count()?).unwrap_or(0);
                inner = count.checked_mul(2).and_then(|count| count.checked_add(1)).ok_or(())?;
            }
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
            _ => return Err(()),
        }
        if let Some(open) = self.left.last_mut() {
            *open -= 1;
        }
        if self.left.len() == DEPTH_MAX {
            return Err(());
        }
        // An empty reply is open until its bytes have arrived.
        self.left.push(inner);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&[u8]; 11] = [
        b"+OK\r\n",
        b":1\r\n",
        b"$3\r\na\r\n\r\n",
        b"$0\r\n\r\n",
        b"$-1\r\n",
        b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"*-1\r\n",
        b"%1\r\n+a\r\n*0\r\n",
        b"|1\r\n+a\r\n:1\r\n+b\r\n",
        b"_\r\n",
        b"=5\r\ntxt:a\r\n",
    ];

    #[test]
    fn replies_end_where_they_end() {
        for reply in REPLIES {
            let mut data = reply.to_vec();
            data.extend_from_slice(b"+next\r\n");
            assert_eq!(Measure::default().advance(&data), Ok(Extent::Whole(reply.len())));
            for cut in 0..reply.len() {
                let mut measure = Measure::default();
                let Ok(Extent::Piece(len)) = measure.advance(&data[..cut]) else {
                    panic!("{cut} bytes of {reply:?} are no whole reply")
                };
                assert_eq!(measure.is_within(), len > 0);
                assert_eq!(measure.advance(&data[len..]), Ok(Extent::Whole(reply.len() - len)));
                assert!(!measure.is_within());
            }
        }
        assert_eq!(Measure::default().advance(b"hello\r\n"), Err(()));
        assert_eq!(Measure::default().advance(b"\r\n"), Err(()));
        assert_eq!(Measure::default().advance("*1\r\n".repeat(40).as_bytes()), Err(()));
        assert_eq!(Measure::default().advance(&[b'*'; LINE_MAX + 1]), Err(()));
    }

    /// A text has no limit; a long one goes on from piece to piece, also where its end of line is cut.
    #[test]
    fn a_long_line_of_text_is_passed_on() {
        let line = [&b"-ERR "[..], &[b'\r'; 3 * LINE_MAX], b"x\r\n"].concat();
        for reply in [line.clone(), [&b"*2\r\n"[..], &line, b"+OK\r\n"].concat()] {
            let data = [reply.as_slice(), b"+next\r\n"].concat();
            assert_eq!(Measure::default().advance(&data), Ok(Extent::Whole(reply.len())));
            let cuts = (LINE_MAX - 8..LINE_MAX + 16).chain(reply.len() - 12..reply.len());
            for cut in cuts {
                let (mut measure, mut at) = (Measure::default(), 0);
                for end in [cut, data.len()] {
                    assert_eq!(measure.is_within(), at > 0);
                    let extent = measure.advance(&data[at..end]).expect("a reply");
                    let (Extent::Whole(len) | Extent::Piece(len)) = extent;
                    assert_eq!(extent == Extent::Whole(len), end > cut);
                    at += len;
                }
                assert!(at == reply.len() && !measure.is_within());
            }
        }
    }

    /// With pieces of any size, the bytes behind a piece are not looked at again.
    #[test]
    fn each_byte_is_measured_once() {
        let mut reply = b"*1000\r\n".to_vec();
        let string = [b"$100\r\n", &[b'\r'; 100][..], b"\r\n"].concat();
        (0..1000).for_each(|_| reply.extend_from_slice(&string));
        let end = reply.len();
        let (mut measure, mut measured, mut waiting) = (Measure::default(), 0, Vec::new());
        for (at, byte) in reply.iter().enumerate() {
            waiting.push(*byte);
            let extent = measure.advance(&waiting).expect("a reply");
            let len = match extent {
                Extent::Whole(len) => {
                    assert_eq!(at + 1, end);
                    len
                }
                Extent::Piece(len) => len,
            };
            waiting.drain(..len);
            measured += len;
            assert!(waiting.len() < 8, "{} bytes are kept", waiting.len());
        }
        assert_eq!((measured, measure.is_within()), (end, false));
    }
}
