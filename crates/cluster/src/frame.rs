//! The frames on a connection between nodes.
//!
//! ```text
//!   length of the rest (u32)   kind   bytes
//! ```

use coreplane_replica::{ENTRY_BYTES_MAX, NodeId};
use std::net::SocketAddr;

/// Most bytes of a frame: an entry, or a record of a snapshot, and its headers.
const FRAME_MAX: usize = 2 * ENTRY_BYTES_MAX + (1 << 20);
/// The most nodes that a hello names.
const KNOWN_MAX: usize = 64;
const HEAD: usize = 5;
const HELLO: u8 = 0;
const ENVELOPE: u8 = 1;
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

/// Appends a message of consensus as a frame.
pub(crate) fn envelope(out: &mut Vec<u8>, envelope: &coreplane_replica::Envelope) {
    frame(out, ENVELOPE, |out| envelope.encode(out));
}

/// A frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'b> {
    Hello(Hello),
    Envelope(&'b [u8]),
}

/// The frame at the beginning of `bytes`, and its length; none if it is incomplete.
///
/// # Errors
/// If there is no frame: the connection has to be closed.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, ()> {
    let Some((len, _)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_le_bytes(*len) as usize;
    if !(1..=FRAME_MAX).contains(&len) {
        return Err(());
    }
    let Some(body) = bytes.get(HEAD..len + 4) else { return Ok(None) };
    let frame = match bytes.get(4) {
        Some(&HELLO) => Frame::Hello(Hello::decode(body).ok_or(())?),
        Some(&ENVELOPE) => Frame::Envelope(body),
        _ => return Err(()),
    };
    Ok(Some((frame, len + 4)))
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
        bytes.push(7);
        assert_eq!(parse(&bytes), Ok(Some((Frame::Hello(hello), len))));
        (0..len).for_each(|cut| assert_eq!(parse(&bytes[..cut]), Ok(None)));
        bytes[5] ^= 1;
        assert_eq!(parse(&bytes), Err(()));
        assert_eq!(parse(&[0; 5]), Err(()));
        assert_eq!(parse(&[255; 5]), Err(()));
    }
}
