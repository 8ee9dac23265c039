//! Bodies of requests: collected and decoded within bounds.
//!
//! ```text
//!   frames ──► collect: length, memory, progress, time ──► bytes ──► decode (gzip): length and memory again
//! ```
//!
//! A body takes memory for bytes that have arrived, never for a stated length. Its bytes are its share of the
//! budget, and decoded bytes count as well; so a small body that decodes to a large one ends at the same bound as a
//! large one.

use crate::host::Host;
use crate::limits::{NoRoom, Share};
use crate::metrics::add;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use std::convert::Infallible;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A body.
#[derive(Debug)]
pub(crate) struct Collected {
    pub(crate) bytes: Bytes,
    is_gzip: bool,
    share: Share,
}

/// The reason why a body could not be collected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The body is longer than allowed.
    TooLarge,
    /// The budget has no room for it.
    NoRoom,
    /// The body came too slowly.
    Late,
    /// The client ended the connection within the body.
    Cut,
    /// The body is not encoded as its head states.
    Encoding(String),
}

impl BodyError {
    /// The status, and the text, as in InfluxDB.
    pub(crate) fn answer(&self) -> (u16, String) {
        match self {
            Self::TooLarge => (413, "Request Entity Too Large".to_owned()),
            Self::NoRoom => (503, "no memory for this body: try again later".to_owned()),
            Self::Late => (408, "the body came too slowly".to_owned()),
            Self::Cut => (400, "unexpected EOF".to_owned()),
            Self::Encoding(what) => (400, what.clone()),
        }
    }
}

impl From<NoRoom> for BodyError {
    fn from(_: NoRoom) -> Self {
        Self::NoRoom
    }
}

/// Bytes of a body as they arrive: a single piece is kept as it is, several pieces are copied together.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    all: Vec<u8>,
}

impl Pieces {
    fn len(&self) -> usize {
        if self.all.is_empty() { self.first.len() } else { self.all.len() }
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.all.extend_from_slice(&piece);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}

/// The maximum length of a body that asks for something, and has no points: more than a query of the greatest
/// length, percent-encoded.
const QUESTION_MAX: usize = 1 << 20;

/// Collects and decodes a body that asks for something.
pub(crate) async fn question(
    host: &Host,
    headers: &HeaderMap,
    body: Body,
) -> Result<Collected, BodyError> {
    let max = host.options.body_max.min(QUESTION_MAX);
    let mut body = collect_within(host, headers, body, max).await?;
    body.decode(max)?;
    Ok(body)
}

/// Collects a body as it was sent.
pub(crate) async fn collect(
    host: &Host,
    headers: &HeaderMap,
    body: Body,
) -> Result<Collected, BodyError> {
    collect_within(host, headers, body, host.options.body_max).await
}

async fn collect_within(
    host: &Host,
    headers: &HeaderMap,
    mut body: Body,
    max: usize,
) -> Result<Collected, BodyError> {
    let options = &host.options;
    let said = headers.get(CONTENT_LENGTH).and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
    if said.is_some_and(|said| said > max as u64) {
        return Err(BodyError::TooLarge);
    }
    let is_gzip = is_gzip(headers)?;
    let mut share = host.memory.share();
    let mut pieces = Pieces::default();
    let begun = Instant::now();
    loop {
        let left = options.body_timeout.saturating_sub(begun.elapsed());
        let frame = tokio::time::timeout(left.min(options.stall_timeout), body.frame()).await;
        let Some(frame) = frame.map_err(|_| BodyError::Late)? else { break };
        let frame = frame.map_err(|_| BodyError::Cut)?;
        let Ok(piece) = frame.into_data() else { continue };
        if pieces.len() + piece.len() > max {
            return Err(BodyError::TooLarge);
        }
        // A vector that grows has up to twice its length.
        let held = (pieces.len() + piece.len()) * if pieces.len() == 0 { 1 } else { 2 };
        share.grow_to(held).inspect_err(|_| add(&host.metrics.no_room, 1))?;
        pieces.push(piece);
    }
    add(&host.metrics.bytes_in, pieces.len() as u64);
    Ok(Collected { bytes: pieces.into_bytes(), is_gzip, share })
}

fn is_gzip(headers: &HeaderMap) -> Result<bool, BodyError> {
    let Some(encoding) = headers.get(CONTENT_ENCODING) else { return Ok(false) };
    match encoding.as_bytes() {
        b"gzip" | b"x-gzip" => Ok(true),
        b"" | b"identity" => Ok(false),
        other => {
            let other = String::from_utf8_lossy(other);
            Err(BodyError::Encoding(format!(
                "content encoding {other:?} is not supported; gzip is"
            )))
        }
    }
}

impl Collected {
    /// Also holds memory for the data that is made of the body.
    pub(crate) fn reserve(&mut self, bytes: usize) -> Result<(), BodyError> {
        Ok(self.share.grow_to(self.bytes.len().saturating_add(bytes))?)
    }

    /// The memory that it holds, for the data that was made of it.
    pub(crate) fn into_share(self) -> Share {
        self.share
    }

    /// True if its points are written in the thread of its connection: the body is short as sent and decoded. It is
    /// then decoded.
    pub(crate) fn is_written_here(&mut self, host: &Host) -> bool {
        host.writes_here(self.bytes.len()) && self.decode_short(host.options.inline_max)
    }

    /// True if the body has at most `max` bytes, also when decoded; it is then decoded. No more than that is read
    /// to decide it.
    fn decode_short(&mut self, max: usize) -> bool {
        self.bytes.len() <= max && self.decode(max).is_ok()
    }

    /// Decodes the body, if its head states an encoding; this takes time. `body_max` is that of the options. If
    /// decoding fails the body stays as it was.
    pub(crate) fn decode(&mut self, body_max: usize) -> Result<(), BodyError> {
        if !self.is_gzip {
            return Ok(());
        }
        let encoded = self.bytes.clone();
        let mut decoder = MultiGzDecoder::new(&encoded[..]);
        let mut piece = vec![0; 64 << 10];
        let mut decoded = Vec::new();
        loop {
            let len = match decoder.read(&mut piece) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) => return Err(BodyError::Encoding(format!("gzip: {error}"))),
            };
            if decoded.len() + len > body_max {
                return Err(BodyError::TooLarge);
            }
            self.share.grow_to(encoded.len() + (decoded.len() + len) * 2)?;
            decoded.extend_from_slice(piece.get(..len).unwrap_or_default());
        }
        self.bytes = decoded.into();
        self.is_gzip = false;
        Ok(())
    }
}

/// The body of an answer, which holds its memory until the client has taken it.
pub(crate) fn held(bytes: Vec<u8>, share: Share) -> Body {
    Body::new(Held { bytes: bytes.into(), _share: share })
}

struct Held {
    bytes: Bytes,
    _share: Share,
}

/// Bytes of a piece of an answer.
const PIECE: usize = 256 << 10;

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.bytes.is_empty() {
            return Poll::Ready(None);
        }
        let len = self.bytes.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.bytes.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Budget;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn decoded(encoded: Vec<u8>, max: usize, memory: usize) -> Result<Bytes, BodyError> {
        let share = Budget::new(memory).share();
        let mut body = Collected { bytes: encoded.into(), is_gzip: true, share };
        body.decode(max)?;
        Ok(body.bytes)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn what_decodes_to_too_much_is_refused() {
        let body = gzip(&vec![b'x'; 1 << 20]);
        assert!(body.len() < 4096);
        assert_eq!(decoded(body.clone(), 1 << 20, 4 << 20).unwrap().len(), 1 << 20);
        assert_eq!(decoded(body.clone(), (1 << 20) - 1, 4 << 20), Err(BodyError::TooLarge));
        assert_eq!(decoded(body.clone(), 1 << 20, 1 << 20), Err(BodyError::NoRoom));
        // Two gzip members are one text.
        assert_eq!(decoded([gzip(b"a "), gzip(b"b")].concat(), 9, 1 << 20).unwrap(), &b"a b"[..]);
    }

    #[test]
    fn what_is_short_is_so_decoded() {
        let body = |bytes: Vec<u8>, is_gzip| {
            let share = Budget::new(4 << 20).share();
            Collected { bytes: bytes.into(), is_gzip, share }
        };
        let mut large = body(gzip(&vec![b'x'; 1 << 20]), true);
        assert!(large.bytes.len() < 4096 && !large.decode_short(4096));
        large.decode(1 << 20).unwrap();
        assert_eq!(large.bytes.len(), 1 << 20);
        let mut small = body(gzip(&vec![b'x'; 4096]), true);
        assert!(small.decode_short(4096) && small.bytes.len() == 4096);
        assert!(body(vec![b'x'; 4096], false).decode_short(4096));
        assert!(!body(vec![b'x'; 4097], false).decode_short(4096));
        assert!(!body(b"no gzip".to_vec(), true).decode_short(4096));
    }

    #[test]
    fn what_is_no_gzip_is_refused() {
        for body in [b"cpu value=1".to_vec(), gzip(b"cpu value=1")[..15].to_vec(), Vec::new()] {
            let found = decoded(body, 1 << 20, 1 << 20);
            assert!(matches!(found, Err(BodyError::Encoding(_))), "{found:?}");
        }
    }

    #[test]
    fn pieces_are_put_together() {
        let mut pieces = Pieces::default();
        for piece in ["", "one ", "", "two ", "three"] {
            pieces.push(Bytes::from_static(piece.as_bytes()));
        }
        assert_eq!(pieces.into_bytes(), "one two three");
    }
}
