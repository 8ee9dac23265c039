//! Peers that were refused, for operators.

use coreplane_replica::NodeId;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The most peers that are listed.
const LISTED_MAX: usize = 64;
/// A peer is listed for this long after it was last refused.
const LISTED_FOR: Duration = Duration::from_secs(60);

/// Why a peer was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It has no password.
    NoPassword,
    /// It asks for a password.
    Password,
    /// Its proof is wrong.
    Proof,
    /// It has ended the connection during the handshake.
    Ended,
    /// It does not keep to the handshake.
    Form,
    /// It claims to be this node.
    Own,
    /// It looks for another node.
    Sought(NodeId),
    /// The seal of a frame is wrong.
    Seal,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPassword => {
                f.write_str("it has no password of the cluster (--cluster-password-file)")
            }
            Self::Password => f.write_str(
                "it has a password of the cluster, and this node has none (--cluster-password-file)",
            ),
            Self::Proof => f.write_str("it has another password of the cluster"),
            Self::Ended => f.write_str(
                "it ended the connection during the handshake: it may have no password of the cluster, or another",
            ),
            Self::Form => f.write_str("it does not keep to the handshake"),
            Self::Own => f.write_str("it claims to be this node"),
            Self::Sought(node) => write!(f, "it looks for node {node} here"),
            Self::Seal => f.write_str("a frame was changed on the way, or is out of order"),
        }
    }
}

/// The peers that were refused lately. None of them has proved its number.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    listed: BTreeMap<(NodeId, IpAddr), (Fault, Instant)>,
    count: u64,
}

impl Refusals {
    /// Notes a refusal; what is to be reported, if it is a new one. That a peer has ended a connection is the least
    /// precise reason, and does not take the place of another one.
    pub(crate) fn note(
        &mut self,
        (id, ip): (NodeId, IpAddr),
        fault: Fault,
        now: Instant,
    ) -> Option<String> {
        self.count += 1;
        let is_full = self.listed.len() >= LISTED_MAX;
        if is_full && !self.listed.contains_key(&(id, ip)) {
            return None;
        }
        let before = self.listed.get(&(id, ip)).map(|(fault, _)| *fault);
        let told =
            before.filter(|before| *before != Fault::Ended).filter(|_| fault == Fault::Ended);
        self.listed.insert((id, ip), (told.unwrap_or(fault), now));
        let is_new = match before {
            None => true,
            Some(before) => before == Fault::Ended && fault != before,
        };
        is_new.then(|| format!("node {id} at {ip} is refused: {fault}"))
    }

    /// A peer has proved its number.
    pub(crate) fn forget(&mut self, id: NodeId, ip: IpAddr) {
        self.listed.remove(&(id, ip));
    }

    /// Drops old refusals.
    pub(crate) fn tend(&mut self, now: Instant) {
        self.listed.retain(|_, (_, last)| now.duration_since(*last) < LISTED_FOR);
    }

    /// The number of refusals since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The peers, one on a line.
    pub(crate) fn text(&self) -> String {
        let line = |((id, ip), (fault, _)): (&(NodeId, IpAddr), &(Fault, Instant))| {
            format!("refused:{id} at {ip}: {fault}\n")
        };
        self.listed.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_reported_once_and_listed_for_a_while() {
        let (mut refusals, ip, now) =
            (Refusals::default(), IpAddr::from([10, 0, 0, 1]), Instant::now());
        let said = refusals.note((2, ip), Fault::Proof, now);
        assert_eq!(
            said.as_deref(),
            Some("node 2 at 10.0.0.1 is refused: it has another password of the cluster")
        );
        assert_eq!(refusals.note((2, ip), Fault::NoPassword, now), None);
        assert_eq!(refusals.count(), 2);
        assert!(refusals.text().starts_with("refused:2 at 10.0.0.1: it has no password"));
        refusals.tend(now + LISTED_FOR / 2);
        assert!(!refusals.text().is_empty());
        refusals.tend(now + LISTED_FOR);
        assert!(refusals.text().is_empty());
    }

    #[test]
    fn the_more_precise_reason_is_kept() {
        let (mut refusals, ip, now) =
            (Refusals::default(), IpAddr::from([10, 0, 0, 1]), Instant::now());
        assert!(refusals.note((2, ip), Fault::Ended, now).is_some());
        assert!(refusals.note((2, ip), Fault::Ended, now).is_none());
        assert!(refusals.note((2, ip), Fault::Proof, now).is_some_and(|it| it.contains("another")));
        assert!(refusals.note((2, ip), Fault::Ended, now + LISTED_FOR / 2).is_none());
        refusals.tend(now + LISTED_FOR);
        assert!(refusals.text().contains("it has another password"));
    }

    #[test]
    fn strangers_do_not_fill_the_memory() {
        let (mut refusals, ip, now) =
            (Refusals::default(), IpAddr::from([10, 0, 0, 1]), Instant::now());
        let said = (1..1000).filter_map(|id| refusals.note((id, ip), Fault::Proof, now)).count();
        assert_eq!((said, refusals.listed.len()), (LISTED_MAX, LISTED_MAX));
        refusals.forget(1, ip);
        assert_eq!(refusals.listed.len(), LISTED_MAX - 1);
    }
}
