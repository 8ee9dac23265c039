//! The beginning of a connection between nodes that have a password: each side proves that it has it.
//!
//! ```text
//!   dialler ── opening: magic, its number, the number it looks for, its cluster, nonce ─▶ acceptor
//!           ◀─ challenge: its cluster, nonce ────────────────────────────────────────────
//!           ── proof of the dialler ────────────────────────────────────────────────────▶
//!           ◀─ proof of the acceptor ────────────────────────────────────────────────────
//!           ── hello, and all other frames, each with a seal ───────────────────────────▶
//! ```
//!
//! The transcript is the opening and the challenge as they were sent. A proof is a code over the name of the side and
//! the transcript, so it is of no use in another connection, for the other side, or for other nodes. The key of the
//! seals is another code over the transcript. The dialler proves first: a stranger that connects gets a random
//! number, and no code on which it could try passwords.
//!
//! A session is in one direction, as the connection is: the acceptor sends nothing after its proof.

use crate::frame::{self, Frame};
use crate::refusal::Fault;
use crate::secret::{PROOF_LEN, Secret, Session, Side};
use coreplane_replica::NodeId;
use rand::TryRng;
use rand::rngs::SysRng;
use std::io;

/// The first word of an opening.
const MAGIC: u64 = u64::from_le_bytes(*b"CPPROOF1");
const NONCE_LEN: usize = 32;
const OPENING_LEN: usize = 4 * 8 + NONCE_LEN;
const CHALLENGE_LEN: usize = 8 + NONCE_LEN;
/// The most bytes of a frame for the dialler, without those of its length.
const ANSWER_MAX: usize = 64;

type Nonce = [u8; NONCE_LEN];
type Opening = [u8; OPENING_LEN];
type Transcript = [u8; OPENING_LEN + CHALLENGE_LEN];

/// A node that takes part in a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Party {
    pub(crate) id: NodeId,
    /// Its cluster; 0 before that has a name.
    pub(crate) cluster: u64,
}

fn draw() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_LEN];
    SysRng.try_fill_bytes(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// These parts one behind the other. Their lengths add up to `N`.
fn joined<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let mut all = [0; N];
    let bytes = parts.iter().copied().flatten();
    all.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    all
}

/// The numbers in an opening: the sender's, and that of the node it looks for.
pub(crate) fn numbers_in(opening: &[u8]) -> Option<(NodeId, NodeId)> {
    let opening: &Opening = opening.try_into().ok()?;
    let (words, _) = opening.as_chunks::<8>();
    let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
    (words.next()? == MAGIC).then_some((words.next()?, words.next()?))
}

/// The side that connects.
#[derive(Debug)]
pub(crate) struct Dialler {
    secret: Secret,
    opening: Opening,
    /// There was a challenge.
    transcript: Option<Transcript>,
    input: Vec<u8>,
}

impl Dialler {
    /// Begins a handshake with the node with this number: appends the opening.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn new(
        secret: &Secret,
        own: Party,
        peer: NodeId,
        out: &mut Vec<u8>,
    ) -> io::Result<Self> {
        let words = [MAGIC, own.id, peer, own.cluster].map(u64::to_le_bytes);
        let opening = joined(&[words.as_flattened(), &draw()?]);
        frame::append(out, frame::OPENING, &opening);
        Ok(Self { secret: secret.clone(), opening, transcript: None, input: Vec::new() })
    }

    /// Takes bytes of the peer, and appends the answer; the session, once the peer has proved that it has the
    /// password.
    ///
    /// # Errors
    /// Why the peer is refused.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Fault> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while let Some(len) = frame::extent(rest, ANSWER_MAX).map_err(|()| Fault::Form)? {
            let Some((whole, behind)) = rest.split_at_checked(len) else { break };
            rest = behind;
            let taken = frame::parse(whole).map_err(|()| Fault::Form)?;
            if let Some(session) = self.take(&taken, out)? {
                return Ok(Some(session));
            }
        }
        self.input = rest.to_vec();
        Ok(None)
    }

    fn take(&mut self, frame: &Frame<'_>, out: &mut Vec<u8>) -> Result<Option<Session>, Fault> {
        match (frame, &self.transcript) {
            (Frame::Challenge(challenge), None) if challenge.len() == CHALLENGE_LEN => {
                let transcript = joined(&[&self.opening, challenge]);
                frame::append(out, frame::PROOF, &self.secret.proof(Side::Dialler, &transcript));
                self.transcript = Some(transcript);
                Ok(None)
            }
            (Frame::Proof(proof), Some(transcript)) if proof.len() == PROOF_LEN => {
                let is_right = self.secret.is_proof(Side::Acceptor, transcript, proof);
                let session = is_right.then(|| self.secret.session(transcript));
                session.ok_or(Fault::Proof).map(Some)
            }
            _ => Err(Fault::Form),
        }
    }
}

/// The side that is connected to.
#[derive(Debug)]
pub(crate) struct Acceptor {
    secret: Secret,
    own: Party,
    nonce: Nonce,
    /// There was an opening, of the node with this number.
    begun: Option<(NodeId, Transcript)>,
}

impl Acceptor {
    /// Waits for an opening.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub(crate) fn new(secret: &Secret, own: Party) -> io::Result<Self> {
        Ok(Self { secret: secret.clone(), own, nonce: draw()?, begun: None })
    }

    /// The number that the peer claims, if it has named one.
    pub(crate) fn claimed(&self) -> Option<NodeId> {
        self.begun.as_ref().map(|(id, _)| *id)
    }

    /// Takes a frame of the peer, and appends the answer; the peer's number and the session, once it has proved that
    /// it has the password.
    ///
    /// # Errors
    /// Why the peer is refused.
    pub(crate) fn take(
        &mut self,
        frame: &Frame<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<(NodeId, Session)>, Fault> {
        match (frame, &self.begun) {
            (Frame::Opening(opening), None) => {
                let (dialler, sought) = numbers_in(opening).ok_or(Fault::Form)?;
                let challenge: [u8; CHALLENGE_LEN] =
                    joined(&[&self.own.cluster.to_le_bytes(), &self.nonce]);
                self.begun = Some((dialler, joined(&[opening, &challenge])));
                if dialler == self.own.id {
                    return Err(Fault::Own);
                }
                if sought != self.own.id {
                    return Err(Fault::Sought(sought));
                }
                frame::append(out, frame::CHALLENGE, &challenge);
                Ok(None)
            }
            (Frame::Proof(proof), Some((dialler, transcript))) => {
                if !self.secret.is_proof(Side::Dialler, transcript, proof) {
                    return Err(Fault::Proof);
                }
                frame::append(out, frame::PROOF, &self.secret.proof(Side::Acceptor, transcript));
                Ok(Some((*dialler, self.secret.session(transcript))))
            }
            (Frame::Hello(_), None) => Err(Fault::NoPassword),
            _ => Err(Fault::Form),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Party = Party { id: 1, cluster: 9 };
    const TWO: Party = Party { id: 2, cluster: 0 };

    /// Node 1, which connects to node 2, and its opening.
    fn dialler(password: &str) -> (Dialler, Vec<u8>) {
        let mut opening = Vec::new();
        let dialler = Dialler::new(&Secret::new(password), ONE, TWO.id, &mut opening);
        (dialler.expect("random numbers"), opening)
    }

    fn acceptor(password: &str) -> Acceptor {
        Acceptor::new(&Secret::new(password), TWO).expect("random numbers")
    }

    /// What a side says to these bytes.
    fn answer(acceptor: &mut Acceptor, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        if frame::extent(bytes, frame::HELLO_MAX) != Ok(Some(bytes.len())) {
            return Err(Fault::Form);
        }
        let mut out = Vec::new();
        acceptor.take(&frame::parse(bytes).map_err(|()| Fault::Form)?, &mut out).map(|_| out)
    }

    fn reply(dialler: &mut Dialler, bytes: &[u8]) -> Result<Vec<u8>, Fault> {
        let mut out = Vec::new();
        dialler.receive(bytes, &mut out).map(|_| out)
    }

    /// The messages of a handshake that succeeds: opening, challenge and both proofs.
    fn messages() -> [Vec<u8>; 4] {
        let ((mut dialler, opening), mut acceptor) = (dialler("secret"), acceptor("secret"));
        let challenge = answer(&mut acceptor, &opening).expect("a challenge");
        let proof = reply(&mut dialler, &challenge).expect("a proof");
        let last = answer(&mut acceptor, &proof).expect("the other proof");
        [opening, challenge, proof, last]
    }

    #[test]
    fn two_nodes_with_the_same_password_agree() {
        let ((mut dialler, opening), mut acceptor) = (dialler("secret"), acceptor("secret"));
        let challenge = answer(&mut acceptor, &opening).expect("a challenge");
        let proof = reply(&mut dialler, &challenge).expect("a proof");
        let mut last = Vec::new();
        let taken = acceptor.take(&frame::parse(&proof).expect("a frame"), &mut last);
        let (id, mut receiver) = taken.expect("a proof").expect("a session");
        // The bytes may come one by one.
        let mut sender = None;
        for byte in last {
            assert!(sender.is_none(), "a session before the whole proof");
            sender = dialler.receive(&[byte], &mut Vec::new()).expect("a part of a proof");
        }
        let seal = sender.expect("a session").seal(b"frame");
        assert!(id == 1 && receiver.is_sealed(b"frame", &seal));
    }

    #[test]
    fn another_password_is_refused_by_both_sides() {
        let ((mut one, opening), mut two) = (dialler("secret"), acceptor("other"));
        let challenge = answer(&mut two, &opening).expect("a challenge");
        let proof = reply(&mut one, &challenge).expect("a proof");
        assert_eq!(answer(&mut two, &proof), Err(Fault::Proof));
        // One that takes any proof cannot give one.
        let transcript: Transcript = joined(&[&opening[5..], &challenge[5..]]);
        let mut forged = Vec::new();
        let other = Secret::new("other").proof(Side::Acceptor, &transcript);
        frame::append(&mut forged, frame::PROOF, &other);
        assert_eq!(reply(&mut one, &forged), Err(Fault::Proof));
    }

    #[test]
    fn what_a_node_has_said_is_of_no_use_when_it_is_sent_back() {
        // The acceptor gets its own messages.
        let ((mut one, opening), mut two) = (dialler("secret"), acceptor("secret"));
        let challenge = answer(&mut two, &opening).expect("a challenge");
        assert_eq!(answer(&mut two, &challenge), Err(Fault::Form));
        // The dialler gets its nonce as the challenge, and then its proof.
        let mut reflected = Vec::new();
        let nonce = &opening[opening.len() - NONCE_LEN..];
        frame::append(&mut reflected, frame::CHALLENGE, &[&[0; 8], nonce].concat());
        let proof = reply(&mut one, &reflected).expect("a proof");
        assert_eq!(reply(&mut one, &proof), Err(Fault::Proof));
        // A node that is connected to gets the opening of its own link.
        let mut own = Acceptor::new(&Secret::new("secret"), ONE).expect("random numbers");
        assert_eq!(answer(&mut own, &opening), Err(Fault::Own));
        // The proof of an acceptor is none of a dialler.
        let [opening, _, _, last] = messages();
        let mut two = acceptor("secret");
        answer(&mut two, &opening).expect("a challenge");
        assert_eq!(answer(&mut two, &last), Err(Fault::Proof));
    }

    #[test]
    fn a_node_that_is_looked_for_elsewhere_does_not_answer() {
        let (_, opening) = dialler("secret");
        let three = Party { id: 3, cluster: 9 };
        let mut three = Acceptor::new(&Secret::new("secret"), three).expect("random numbers");
        assert_eq!(answer(&mut three, &opening), Err(Fault::Sought(2)));
        assert_eq!(three.claimed(), Some(1));
    }

    #[test]
    fn an_earlier_handshake_cannot_be_repeated() {
        let [opening, challenge, proof, last] = messages();
        let mut two = acceptor("secret");
        assert_ne!(answer(&mut two, &opening), Ok(challenge.clone()), "a nonce is there twice");
        assert_eq!(answer(&mut two, &proof), Err(Fault::Proof));
        let (mut one, again) = dialler("secret");
        assert_ne!(again, opening, "a nonce is there twice");
        assert_ne!(reply(&mut one, &challenge), Ok(proof));
        assert_eq!(reply(&mut one, &last), Err(Fault::Proof));
    }

    #[test]
    fn messages_out_of_order_are_refused() {
        let [opening, challenge, proof, last] = messages();
        for first in [&challenge, &proof, &last] {
            assert_eq!(answer(&mut acceptor("secret"), first), Err(Fault::Form));
        }
        for first in [&opening, &proof, &last] {
            assert!(reply(&mut dialler("secret").0, first).is_err());
        }
        let mut two = acceptor("secret");
        answer(&mut two, &opening).expect("a challenge");
        assert_eq!(answer(&mut two, &opening), Err(Fault::Form));
    }

    /// A part of a message is no message, and a shorter one is refused.
    #[test]
    fn truncated_messages_prove_nothing() {
        let [opening, challenge, ..] = messages();
        for len in 0..challenge.len() {
            let mut one = dialler("secret").0;
            assert_eq!(reply(&mut one, &challenge[..len]), Ok(Vec::new()), "{len} bytes");
        }
        let shorter = |message: &[u8], len: usize| {
            let mut shorter = Vec::new();
            frame::append(&mut shorter, message[4], &message[5..5 + len]);
            shorter
        };
        for len in 0..OPENING_LEN {
            let bytes = shorter(&opening, len);
            assert_eq!(answer(&mut acceptor("secret"), &bytes), Err(Fault::Form), "{len} bytes");
        }
        for len in 0..PROOF_LEN {
            let ((mut one, opening), mut two) = (dialler("secret"), acceptor("secret"));
            let challenge = answer(&mut two, &opening).expect("a challenge");
            let proof = reply(&mut one, &challenge).expect("a proof");
            assert_eq!(answer(&mut two, &shorter(&proof, len)), Err(Fault::Proof), "{len} bytes");
        }
    }

    #[test]
    fn a_flipped_bit_in_any_message_ends_the_handshake() {
        let lens = messages().map(|message| message.len());
        for (message, len) in lens.into_iter().enumerate() {
            for bit in 0..len * 8 {
                let ((mut one, opening), mut two) = (dialler("secret"), acceptor("secret"));
                let flip = |at: usize, mut bytes: Vec<u8>| {
                    if let Some(byte) = bytes.get_mut(bit / 8).filter(|_| at == message) {
                        *byte ^= 1 << (bit % 8);
                    }
                    bytes
                };
                let mut meet = || -> Result<bool, Fault> {
                    let challenge = flip(1, answer(&mut two, &flip(0, opening.clone()))?);
                    let proof = flip(2, reply(&mut one, &challenge)?);
                    let last = flip(3, answer(&mut two, &proof)?);
                    Ok(one.receive(&last, &mut Vec::new())?.is_some())
                };
                assert_ne!(meet(), Ok(true), "message {message}, bit {bit}");
            }
        }
    }
}
