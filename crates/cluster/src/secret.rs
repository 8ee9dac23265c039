//! The password of a cluster: proofs that a node has it, and seals of frames.
//!
//! All codes are HMAC-SHA256. The key of proofs is the hash of the password. The key of seals is different for each
//! connection, since it is derived from the random numbers of both sides.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

type Code = Hmac<Sha256>;

/// The bytes of a proof.
pub(crate) const PROOF_LEN: usize = 32;
/// The bytes of a seal, which follows its frame.
pub(crate) const SEAL_LEN: usize = 16;

/// The beginnings of what is hashed, so that no code can stand for another one.
const PASSWORD: &[u8] = b"coreplane cluster, password 1\0";
const DIALLER: &[u8] = b"coreplane cluster, dialler 1\0";
const ACCEPTOR: &[u8] = b"coreplane cluster, acceptor 1\0";
const SESSION: &[u8] = b"coreplane cluster, session 1\0";

/// A side of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// The node that has connected, and that sends.
    Dialler,
    /// The node that was connected to.
    Acceptor,
}

/// The password of a cluster, which all its nodes have.
#[derive(Clone)]
pub struct Secret(Code);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

fn keyed(key: [u8; 32]) -> Code {
    let mut block = [0; 64];
    let (begin, _) = block.split_at_mut(key.len());
    begin.copy_from_slice(&key);
    Code::new(&block.into())
}

impl Secret {
    /// This password.
    #[must_use]
    pub fn new(password: &str) -> Self {
        let hash = Sha256::new().chain_update(PASSWORD).chain_update(password);
        Self(keyed(hash.finalize().into()))
    }

    fn code(&self, label: &[u8], transcript: &[u8]) -> Code {
        self.0.clone().chain_update(label).chain_update(transcript)
    }

    /// The proof of a side that it has the password, for the messages of this handshake.
    pub(crate) fn proof(&self, side: Side, transcript: &[u8]) -> [u8; PROOF_LEN] {
        self.code(label(side), transcript).finalize().into_bytes().into()
    }

    /// True if this is that proof. The time that it takes does not depend on the bytes.
    pub(crate) fn is_proof(&self, side: Side, transcript: &[u8], given: &[u8]) -> bool {
        self.code(label(side), transcript).verify_slice(given).is_ok()
    }

    /// The seals of the frames of a connection.
    pub(crate) fn session(&self, transcript: &[u8]) -> Session {
        let key = self.code(SESSION, transcript).finalize().into_bytes();
        Session { code: keyed(key.into()), count: 0 }
    }
}

fn label(side: Side) -> &'static [u8] {
    match side {
        Side::Dialler => DIALLER,
        Side::Acceptor => ACCEPTOR,
    }
}

/// The seals of the frames of a connection. Each side has its own, and counts the frames.
#[derive(Clone)]
pub(crate) struct Session {
    code: Code,
    count: u64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Session {
    fn next(&mut self, frame: &[u8]) -> Code {
        let code = self.code.clone().chain_update(self.count.to_le_bytes()).chain_update(frame);
        self.count += 1;
        code
    }

    /// The seal of the next frame.
    pub(crate) fn seal(&mut self, frame: &[u8]) -> [u8; SEAL_LEN] {
        let whole: [u8; 32] = self.next(frame).finalize().into_bytes().into();
        whole.first_chunk().copied().unwrap_or_default()
    }

    /// True if this is the seal of the next frame.
    pub(crate) fn is_sealed(&mut self, frame: &[u8], seal: &[u8]) -> bool {
        seal.len() == SEAL_LEN && self.next(frame).verify_truncated_left(seal).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> (Session, Session) {
        let secret = Secret::new("secret");
        (secret.session(b"a transcript"), secret.session(b"a transcript"))
    }

    #[test]
    fn frames_are_taken_in_their_order() {
        let (mut sender, mut receiver) = sessions();
        for frame in [&b"first"[..], b"second", b"", b"second"] {
            let seal = sender.seal(frame);
            assert!(receiver.is_sealed(frame, &seal));
        }
    }

    #[test]
    fn a_frame_with_a_flipped_bit_is_not_taken() {
        let (mut sender, receiver) = sessions();
        let frame = *b"a frame";
        let seal = sender.seal(&frame);
        for bit in 0..(frame.len() + seal.len()) * 8 {
            let mut bytes = [&frame[..], &seal].concat();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (frame, seal) = bytes.split_at(frame.len());
            assert!(!receiver.clone().is_sealed(frame, seal), "bit {bit}");
        }
        for len in 0..SEAL_LEN {
            assert!(!receiver.clone().is_sealed(&frame, &seal[..len]), "a seal of {len} bytes");
        }
    }

    #[test]
    fn a_frame_is_not_taken_twice_nor_before_another_nor_without_it() {
        let (mut sender, receiver) = sessions();
        let (one, two) = (sender.seal(b"one"), sender.seal(b"two"));
        assert!(!receiver.clone().is_sealed(b"two", &two), "the first is left out");
        let mut again = receiver;
        assert!(again.is_sealed(b"one", &one));
        assert!(!again.is_sealed(b"one", &one), "the first is there twice");
    }

    #[test]
    fn a_frame_of_another_connection_is_not_taken() {
        let secret = Secret::new("secret");
        let seal = secret.session(b"a transcript").seal(b"frame");
        assert!(!secret.session(b"another one").is_sealed(b"frame", &seal));
        assert!(!Secret::new("other").session(b"a transcript").is_sealed(b"frame", &seal));
    }

    #[test]
    fn the_proofs_of_the_two_sides_differ() {
        let secret = Secret::new("secret");
        let proof = secret.proof(Side::Dialler, b"t");
        assert!(secret.is_proof(Side::Dialler, b"t", &proof));
        assert!(!secret.is_proof(Side::Acceptor, b"t", &proof));
        assert!(!secret.is_proof(Side::Dialler, b"t", &proof[..31]));
        assert!(!Secret::new("secret ").is_proof(Side::Dialler, b"t", &proof));
    }

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::new("hidden")), "Secret");
    }
}
