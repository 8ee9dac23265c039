//! A key in DRAM: in place if it is short, so that a search of a node stays in the node.

use std::borrow::Borrow;
use std::cmp::Ordering;

/// The most bytes of a key that is in place.
const SHORT: usize = 22;

/// The bytes of a key.
#[derive(Clone)]
pub(crate) enum Key {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

impl Key {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        Self::short(bytes).unwrap_or_else(|| Self::Long(bytes.into()))
    }

    /// A key in place, if it is short enough.
    #[inline]
    pub(crate) fn short(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > SHORT {
            return None;
        }
        let mut short = [0; SHORT];
        // Eight bytes at a time, the last eight overlapping those before: without a call.
        if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            short[..8].copy_from_slice(first);
            if let Some(second) = bytes.get(8..16) {
                short[8..16].copy_from_slice(second);
            }
            short[bytes.len() - 8..bytes.len()].copy_from_slice(last);
        } else {
            short.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
        }
        Some(Self::Short(bytes.len() as u8, short))
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(len, bytes) => &bytes[..usize::from(*len)],
            Self::Long(bytes) => bytes,
        }
    }

    /// Bytes that it takes outside the node that it is in.
    pub(crate) fn heap_bytes(&self) -> u64 {
        match self {
            Self::Short(..) => 0,
            Self::Long(bytes) => bytes.len() as u64 + 16,
        }
    }
}

impl std::ops::Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes()
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self::new(bytes)
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self.bytes()
    }
}

impl PartialEq for Key {
    /// Short keys are compared in place, without a call.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Short(len, bytes), Self::Short(other_len, other)) => {
                len == other_len && words(bytes) == words(other)
            }
            _ => self.bytes() == other.bytes(),
        }
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    /// The order of their bytes. Short keys are compared by words, without a call: zeros stand behind a key, and of
    /// two keys that differ only in trailing zeros the shorter comes first.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Short(len, bytes), Self::Short(other_len, other)) => {
                words(bytes).cmp(&words(other)).then(len.cmp(other_len))
            }
            _ => self.bytes().cmp(other.bytes()),
        }
    }
}

/// The bytes as numbers, of which the first difference decides; the last overlaps the one before.
#[inline]
fn words(bytes: &[u8; SHORT]) -> [u64; 3] {
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |it| u64::from_be_bytes(*it));
    [word(0), word(8), word(SHORT - 8)]
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
                all.push([vec![byte; len], vec![0]].concat());
                all.push([vec![byte; len], vec![7; 9]].concat());
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
