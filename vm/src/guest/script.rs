//! The writes of one connection, as a function of its number and the operation's. From the number of acknowledged
//! operations follows what every key must hold, without a log of the writes.
//!
//! A connection has [`KEYS`] keys of its own. A value begins with the operation's number and is computed from it to
//! the last byte, so that a torn or foreign value is detected.

/// Connections of a run.
pub(crate) const CONNECTIONS: u64 = 4;
/// Keys of each connection.
pub(crate) const KEYS: u64 = 400;
/// Keys of one MSET.
const MSET_KEYS: u64 = 4;

/// The effect of one operation on its keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effect {
    /// `SET`, with an expiry an hour away if `expiring`.
    Set { key: u64, len: usize, expiring: bool },
    /// `DEL`.
    Delete { key: u64 },
    /// `MSET` of these keys: all or none.
    SetAll { keys: Vec<u64>, len: usize },
}

impl Effect {
    /// Operation `number` (from 1) of `connection`.
    pub(crate) fn of(connection: u64, number: u64) -> Self {
        let dice = mix(connection << 48 ^ number);
        let key = (dice >> 8) % KEYS;
        let small = 16 + (dice >> 24) as usize % 200;
        match dice % 100 {
            0..10 => Self::Delete { key },
            10..20 => Self::SetAll {
                keys: (0..MSET_KEYS).map(|step| (key + step * (KEYS / MSET_KEYS)) % KEYS).collect(),
                len: small,
            },
            20..22 => {
                Self::Set { key, len: 20_000 + (dice >> 24) as usize % 20_000, expiring: false }
            }
            22..30 => Self::Set { key, len: small, expiring: true },
            _ => Self::Set { key, len: small, expiring: false },
        }
    }

    /// The keys that the operation writes or deletes.
    pub(crate) fn keys(&self) -> &[u64] {
        match self {
            Self::Set { key, .. } | Self::Delete { key } => std::slice::from_ref(key),
            Self::SetAll { keys, .. } => keys,
        }
    }

    /// The length of the value that the operation writes; none for a delete.
    pub(crate) fn value_len(&self) -> Option<usize> {
        match self {
            Self::Set { len, .. } | Self::SetAll { len, .. } => Some(*len),
            Self::Delete { .. } => None,
        }
    }

    /// The command as RESP, appended to `wire`.
    pub(crate) fn encode(&self, connection: u64, number: u64, wire: &mut Vec<u8>) {
        let words: Vec<Vec<u8>> = match self {
            Self::Delete { key } => vec![b"DEL".to_vec(), key_name(connection, *key)],
            Self::Set { key, len, expiring } => {
                let mut words = vec![
                    b"SET".to_vec(),
                    key_name(connection, *key),
                    value(connection, number, *len),
                ];
                if *expiring {
                    words.extend([b"EX".to_vec(), b"3600".to_vec()]);
                }
                words
            }
            Self::SetAll { keys, len } => {
                let mut words = vec![b"MSET".to_vec()];
                for key in keys {
                    words.push(key_name(connection, *key));
                    words.push(value(connection, number, *len));
                }
                words
            }
        };
        wire.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            wire.extend(format!("${}\r\n", word.len()).bytes());
            wire.extend(word);
            wire.extend(b"\r\n");
        }
    }
}

/// The name of a key.
pub(crate) fn key_name(connection: u64, key: u64) -> Vec<u8> {
    format!("c{connection}:k{key:04}").into_bytes()
}

/// The value that operation `number` writes: its number, a colon, then bytes computed from it.
pub(crate) fn value(connection: u64, number: u64, len: usize) -> Vec<u8> {
    let mut value = format!("{number}:").into_bytes();
    let mut state = mix(connection ^ number << 8);
    while value.len() < len {
        value.extend(state.to_le_bytes());
        state = mix(state);
    }
    value.truncate(len);
    value
}

/// The number of the operation that wrote `value`, if every byte of the value is as that operation wrote it.
pub(crate) fn author(connection: u64, stored: &[u8]) -> Option<u64> {
    let colon = stored.iter().position(|byte| *byte == b':')?;
    let number = std::str::from_utf8(&stored[..colon]).ok()?.parse().ok()?;
    let len = Effect::of(connection, number).value_len()?;
    (value(connection, number, len) == stored).then_some(number)
}

/// SplitMix64's output function.
fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_names_its_author() {
        let number = (1..).find(|number| Effect::of(2, *number).value_len().is_some()).unwrap();
        let len = Effect::of(2, number).value_len().unwrap();
        let mut stored = value(2, number, len);
        assert_eq!(author(2, &stored), Some(number));
        *stored.last_mut().unwrap() ^= 1;
        assert_eq!(author(2, &stored), None, "a flipped bit must show");
        stored.pop();
        assert_eq!(author(2, &stored), None, "a short value must show");
    }

    #[test]
    fn every_kind_of_write_occurs() {
        let effects: Vec<_> = (1..2000).map(|number| Effect::of(0, number)).collect();
        assert!(effects.iter().any(|e| e.value_len().is_none()));
        assert!(effects.iter().any(|e| matches!(e, Effect::SetAll { .. })));
        assert!(effects.iter().any(|e| e.value_len() > Some(20_000)));
        assert!(effects.iter().any(|e| matches!(e, Effect::Set { expiring: true, .. })));
    }

    #[test]
    fn the_wire_form_is_resp() {
        let mut wire = Vec::new();
        Effect::Delete { key: 7 }.encode(1, 9, &mut wire);
        assert_eq!(wire, b"*2\r\n$3\r\nDEL\r\n$8\r\nc1:k0007\r\n");
    }
}
