//! A key in the index: in place if it is short, so that a search of a node need not leave the node.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// Bytes that are in place.
const SHORT: usize = 22;

/// The bytes of a key.
#[derive(Clone)]
pub(super) enum Key {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl Key {
    pub(super) fn new(bytes: &[u8]) -> Self {
        if bytes.len() > SHORT {
            return Self::Long(bytes.into());
        }
        let mut short = [0; SHORT];
        short[..bytes.len()].copy_from_slice(bytes);
        Self::Short(bytes.len() as u8, short)
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }

    /// Bytes that it takes beside those of the node that it is in.
    pub(super) fn heap_bytes(&self) -> u64 {
        match self {
            Self::Short(..) => 0,
            Self::Long(bytes) => bytes.len() as u64 + 16,
        }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes().cmp(other.bytes())
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn keys_are_in_the_order_of_their_bytes_whatever_their_length() {
        assert_eq!(size_of::<Key>(), 24);
        let mut all: Vec<Vec<u8>> = Vec::new();
        for len in [0, 1, 21, 22, 23, 40] {
            for byte in [0, 1, 255] {
                all.push(vec![byte; len]);
            }
        }
        for one in &all {
            for other in &all {
                let (a, b) = (Key::new(one), Key::new(other));
                assert_eq!(a.cmp(&b), one.cmp(other));
                assert_eq!(a == b, one == other);
            }
        }
    }
}
