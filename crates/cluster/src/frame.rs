//! The frames on a connection between nodes.
//!
//! ```text
//!   length of the rest (u32)   kind   bytes
//! ```
//!
//! In a cluster with a password the frames of the handshake come first, and each later frame is followed by its seal.

use coreplane_replica::{ENTRY_BYTES_MAX, NodeId};
use std::net::SocketAddr;

/// Most bytes of a frame: an entry, or a record of a snapshot, and its headers.
pub(crate) const FRAME_MAX: usize = 2 * ENTRY_BYTES_MAX + (1 << 20);
/// So many bytes of a longer frame are a sign of life: heartbeats wait behind it.
pub(crate) const PART: usize = 256 << 10;
/// Most bytes of a hello. A connection has no larger frame before it.
pub(crate) const HELLO_MAX: usize = 8 << 10;
/// The most nodes that a hello names.
const KNOWN_MAX: usize = 64;
const HELLO: u8 = 0;
const ENVELOPE: u8 = 1;
/// The kinds of frames of a handshake.
pub(crate) const OPENING: u8 = 2;
pub(crate) const CHALLENGE: u8 = 3;
pub(crate) const PROOF: u8 = 4;
/// The first word of a hello.
const MAGIC: u64 = u64::from_le_bytes(*b"CPNODE02");

/// The first message of a sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The sender's cluster; 0 before it has a name.
    pub(crate) cluster: u64,
    pub(crate) id: NodeId,
    /// Different for each process.
    pub(crate) run: u64,
    /// The port of its clients, at the sender's address.
    pub(crate) client_port: u16,
    /// The port of its peers.
    pub(crate) peer_port: u16,
    /// Other nodes, and their addresses for peers.
    pub(crate) known: Vec<(NodeId, SocketAddr)>,
}

impl Hello {
    /// Appends it as a frame.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        frame(out, HELLO, |out| {
            for word in [MAGIC, self.cluster, self.id, self.run] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(&self.client_port.to_le_bytes());
            out.extend_from_slice(&self.peer_port.to_le_bytes());
            let text = |(id, address): &(NodeId, SocketAddr)| format!("{id}={address}");
            let known: Vec<String> = self.known.iter().take(KNOWN_MAX).map(text).collect();
            out.extend_from_slice(known.join(",").as_bytes());
        });
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(32)?;
        let (words, _) = head.as_chunks::<8>();
        let word = |at: usize| words.get(at).map(|word| u64::from_le_bytes(*word));
        let (ports, known) = rest.split_at_checked(4)?;
        let (ports, _) = ports.as_chunks::<2>();
        let port = |at: usize| ports.get(at).map(|port| u16::from_le_bytes(*port));
        if word(0)? != MAGIC {
            return None;
        }
        let known = std::str::from_utf8(known).ok()?;
        let known = known.split(',').filter(|it| !it.is_empty()).take(KNOWN_MAX).map(|it| {
            let (id, address) = it.split_once('=')?;
            Some((id.parse().ok()?, address.parse().ok()?))
        });
        let known = known.collect::<Option<_>>()?;
        let (cluster, id, run) = (word(1)?, word(2)?, word(3)?);
        Some(Self { cluster, id, run, client_port: port(0)?, peer_port: port(1)?, known })
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.push(kind);
    write(out);
    let len = (out.len() - start - 4) as u32;
    if let Some(to) = out.get_mut(start..start + 4) {
        to.copy_from_slice(&len.to_le_bytes());
    }
}

/// Appends a frame of this kind.
pub(crate) fn append(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    frame(out, kind, |out| out.extend_from_slice(body));
}

/// Appends a message of consensus as a frame.
pub(crate) fn envelope(out: &mut Vec<u8>, envelope: &coreplane_replica::Envelope) {
    frame(out, ENVELOPE, |out| envelope.encode(out));
}

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'b> {
    Hello(Hello),
    Envelope(&'b [u8]),
    Opening(&'b [u8]),
    Challenge(&'b [u8]),
    Proof(&'b [u8]),
}

/// The length of the frame at the beginning of `bytes`, as far as it is known; the frame may be incomplete.
///
/// # Errors
/// If there is no frame, or it has more than `max` bytes without its length: the connection has to be closed.
pub(crate) fn extent(bytes: &[u8], max: usize) -> Result<Option<usize>, ()> {
    let Some((len, _)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*len) as usize;
    if (1..=max).contains(&len) { Ok(Some(len + 4)) } else { Err(()) }
}

/// The frame that these bytes are, which are as many as [`extent`] says.
///
/// # Errors
/// If they are no frame: the connection has to be closed.
pub(crate) fn parse(bytes: &[u8]) -> Result<Frame<'_>, ()> {
    let (kind, body) = bytes.get(4..).and_then(<[u8]>::split_first).ok_or(())?;
    match *kind {
        HELLO => Hello::decode(body).map(Frame::Hello).ok_or(()),
        ENVELOPE => Ok(Frame::Envelope(body)),
        OPENING => Ok(Frame::Opening(body)),
        CHALLENGE => Ok(Frame::Challenge(body)),
        PROOF => Ok(Frame::Proof(body)),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_what_it_was() {
        let known = vec![(3, "[::1]:7".parse().unwrap()), (4, "10.0.0.1:70".parse().unwrap())];
        let hello = Hello { cluster: 9, id: 2, run: 5, client_port: 6379, peer_port: 7000, known };
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        let len = bytes.len();
        assert_eq!(parse(&bytes), Ok(Frame::Hello(hello)));
        bytes.push(7);
        assert_eq!(extent(&bytes, HELLO_MAX), Ok(Some(len)));
        (0..4).for_each(|cut| assert_eq!(extent(&bytes[..cut], HELLO_MAX), Ok(None)));
        assert_eq!(extent(&bytes, len - 5), Err(()));
        bytes[5] ^= 1;
        assert_eq!(parse(&bytes), Err(()));
        assert_eq!(extent(&[0; 5], FRAME_MAX), Err(()));
        assert_eq!(extent(&[255; 5], FRAME_MAX), Err(()));
    }

    #[test]
    fn the_longest_hello_is_taken() {
        let address = std::net::SocketAddrV6::new([0xffff; 8].into(), u16::MAX, 0, 0).into();
        let known = vec![(u64::MAX, address); 2 * KNOWN_MAX];
        let hello = Hello { cluster: 9, id: 2, run: 5, client_port: 1, peer_port: 2, known };
        let mut bytes = Vec::new();
        hello.encode(&mut bytes);
        assert_eq!(extent(&bytes, HELLO_MAX), Ok(Some(bytes.len())));
    }
}
