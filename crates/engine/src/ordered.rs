//! Access in the order of keys.

use crate::{Entry, Result};

/// Access in key order.
pub trait Ordered {
    /// Shows up to `limit` records with `start <= key` (and `key < end`, if given) in ascending
    /// order of their bytes, or descending from `end` if `reverse`. `visit` returns false to
    /// stop. A cluster may show an expired record as an entry without one, which counts, too.
    ///
    /// # Errors
    /// As [`Engine`](crate::Engine)'s.
    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        reverse: bool,
        limit: usize,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()>;
}

/// The smallest key above all keys that begin with `prefix`; none if there is none. `prefix` and
/// this key are the bounds of a scan of all keys with the prefix.
pub fn end_of_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let len = prefix.iter().rposition(|byte| *byte < u8::MAX)? + 1;
    let mut end = prefix[..len].to_vec();
    end[len - 1] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_no_key_begins_with_it() {
        assert_eq!(end_of_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(end_of_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(end_of_prefix(b"\xff"), None);
        assert_eq!(end_of_prefix(b""), None);
        for key in [&b"a\xff"[..], b"a\xff\0", b"a\xff\xff\xff"] {
            assert!(key < end_of_prefix(b"a\xff").unwrap().as_slice() && key >= b"a\xff");
        }
    }
}
