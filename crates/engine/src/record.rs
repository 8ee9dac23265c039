//! Records, values and times.

use crate::Ticket;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// Milliseconds since 1970-01-01 00:00 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

/// Returns the time; tests provide their own.
pub type TimeSource = Arc<dyn Fn() -> UnixMillis + Send + Sync>;

impl UnixMillis {
    /// Now, by the system's clock.
    pub fn now() -> Self {
        let since =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }

    /// The time later by `delay`; the greatest time if that overflows.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(delay))
    }
}

/// A record as the engine holds it: borrowed, valid only in the closure that receives it.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The value.
    pub value: Value<'a>,
    /// The sequence of the write that made it.
    pub sequence: u64,
    /// When it ceases to exist.
    pub expires_at: Option<UnixMillis>,
    /// The ticket that the record depends on; [`Ticket::DURABLE`] unless it was read with
    /// [`Visibility::Early`](crate::Visibility::Early) or by an iteration.
    pub ticket: Ticket,
}

/// The bytes of a value: in one piece, or in several if it is large.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// All in one place.
    Whole(&'a [u8]),
    /// One after the other.
    Pieces(&'a [&'a [u8]]),
}

impl<'a> Value<'a> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
        }
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (whole, pieces) = match *self {
            Self::Whole(bytes) => (Some(bytes), &[][..]),
            Self::Pieces(pieces) => (None, pieces),
        };
        whole.into_iter().chain(pieces.iter().copied())
    }

    /// The bytes in one piece; copies only if they are in several.
    pub fn to_cow(&self) -> Cow<'a, [u8]> {
        match *self {
            Self::Whole(bytes) => Cow::Borrowed(bytes),
            Self::Pieces(pieces) => Cow::Owned(pieces.concat()),
        }
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        self.to_cow().into_owned()
    }

    /// Appends the bytes to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        for piece in self.pieces() {
            out.extend_from_slice(piece);
        }
    }

    /// True if the bytes are these.
    pub fn equals(&self, other: &[u8]) -> bool {
        match *self {
            Self::Whole(bytes) => bytes == other,
            Self::Pieces(_) => {
                let mut rest = other;
                self.pieces().all(|piece| match rest.split_at_checked(piece.len()) {
                    Some((head, tail)) => {
                        rest = tail;
                        head == piece
                    }
                    None => false,
                }) && rest.is_empty()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_time_has_an_end() {
        assert_eq!(UnixMillis(7).after(Duration::from_secs(1)), UnixMillis(1007));
        assert_eq!(UnixMillis(7).after(Duration::MAX), UnixMillis(u64::MAX));
        assert_eq!(UnixMillis(u64::MAX).after(Duration::from_millis(1)), UnixMillis(u64::MAX));
    }
}
