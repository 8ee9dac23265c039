//! Where a reply ends.

use super::number::parse_i64;

/// Replies in replies at most.
const DEPTH_MAX: usize = 32;

/// The length of the reply at the beginning of `data`; none if it is not there as a whole.
///
/// # Errors
/// If it is no reply.
pub(crate) fn reply_len(data: &[u8]) -> Result<Option<usize>, ()> {
    let mut at = 0;
    // Of each that is open how many are to come.
    let mut left = vec![1_usize];
    while let Some(open) = left.last_mut() {
        if *open == 0 {
            left.pop();
            continue;
        }
        let rest = data.get(at..).unwrap_or_default();
        let Some(end) = rest.iter().position(|byte| *byte == b'\r') else { return Ok(None) };
        let (Some(kind), head) = (rest.first(), rest.get(1..end).unwrap_or_default()) else {
            return Ok(None);
        };
        at += end + 2;
        let count = || parse_i64(head).ok_or(());
        let mut inner = 0;
        match kind {
            b'$' | b'=' | b'!' => at += usize::try_from(count()?).map_or(0, |len| len + 2),
            b'*' | b'~' | b'>' => inner = usize::try_from(count()?).unwrap_or(0),
            b'%' => inner = 2 * usize::try_from(count()?).unwrap_or(0),
            // Attributes stand before what they are of.
            b'|' => inner = 2 * usize::try_from(count()?).unwrap_or(0) + 1,
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => {}
            _ => return Err(()),
        }
        *open -= 1;
        if inner > 0 {
            if left.len() == DEPTH_MAX {
                return Err(());
            }
            left.push(inner);
        }
    }
    Ok((at <= data.len()).then_some(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_end_where_they_end() {
        for reply in [
            &b"+OK\r\n"[..],
            b":1\r\n",
            b"$3\r\na\r\n\r\n",
            b"$-1\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"*-1\r\n",
            b"%1\r\n+a\r\n*0\r\n",
            b"|1\r\n+a\r\n:1\r\n+b\r\n",
            b"_\r\n",
            b"=5\r\ntxt:a\r\n",
        ] {
            let mut data = reply.to_vec();
            data.extend_from_slice(b"+next\r\n");
            assert_eq!(reply_len(&data), Ok(Some(reply.len())));
            (0..reply.len()).for_each(|cut| assert_eq!(reply_len(&reply[..cut]), Ok(None)));
        }
        assert_eq!(reply_len(b"hello\r\n"), Err(()));
        assert_eq!(reply_len("*1\r\n".repeat(40).as_bytes()), Err(()));
    }
}
