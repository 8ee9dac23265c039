//! The check after the power cut: for every key, do the acknowledgements allow the value that it holds?
//!
//! A connection sends [`DEPTH`] commands and waits for all their replies before it sends more. So everything before
//! the round of the newest visible operation was acknowledged, even if the serial line did not deliver the report in
//! time. Let `A` be the last operation known in either way. A key must hold the value that the last operation at or
//! before `A` left there, or the value of a later operation that may have been pending. It must never hold an older
//! value or a mixture, and an `MSET` must be there for all of its keys or for none.

use crate::Outcome;
use crate::client::{Client, Reply};
use crate::drive::DEPTH;
use crate::script::{CONNECTIONS, Effect, KEYS, author, key_name};

/// The number of operations beyond `A` that may have been pending: a round that is visible in part, and after it one
/// that is not visible (all of its operations deletes, say).
const UNDER_WAY: u64 = 2 * DEPTH;

/// Checks every key of every connection against `acknowledged`: the numbers, by commas.
pub(crate) fn check(acknowledged: &str) -> Outcome<()> {
    let acknowledged = acknowledged.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    if acknowledged.len() as u64 != CONNECTIONS {
        return Err(format!("{} connections acknowledged", acknowledged.len()).into());
    }
    let mut client = Client::connect()?;
    let mut faults = Vec::new();
    for (connection, last) in (0..).zip(&acknowledged) {
        let stored = fetch(&mut client, connection)?;
        judge(connection, *last, &stored, &mut faults);
    }
    for fault in faults.iter().take(20) {
        println!("@@ fault {fault}");
    }
    println!(
        "@@ checked operations={} keys={} faults={}",
        acknowledged.iter().sum::<u64>(),
        CONNECTIONS * KEYS,
        faults.len()
    );
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("{} keys hold what they must not", faults.len()).into())
}

fn fetch(client: &mut Client, connection: u64) -> Outcome<Vec<Option<Vec<u8>>>> {
    let mut stored = Vec::new();
    for key in 0..KEYS {
        let name = key_name(connection, key);
        let mut wire = format!("*2\r\n$3\r\nGET\r\n${}\r\n", name.len()).into_bytes();
        wire.extend(name);
        wire.extend(b"\r\n");
        client.send(&wire)?;
        match client.receive()? {
            Reply::Bulk(value) => stored.push(value),
            other => return Err(format!("GET answered {other:?}").into()),
        }
    }
    Ok(stored)
}

/// Judges the values of the keys of `connection`, where `reported` was its last operation whose acknowledgement the
/// host saw.
fn judge(connection: u64, reported: u64, stored: &[Option<Vec<u8>>], faults: &mut Vec<String>) {
    let authors: Vec<Option<u64>> = stored
        .iter()
        .map(|value| value.as_deref().and_then(|value| author(connection, value)))
        .collect();
    let newest = authors.iter().flatten().max().copied().unwrap_or(0);
    let last = reported.max(newest.saturating_sub(1) / DEPTH * DEPTH);
    let mut expected: Vec<Option<u64>> = vec![None; stored.len()];
    for number in 1..=last {
        for key in Effect::of(connection, number).keys() {
            expected[*key as usize] = Some(number);
        }
    }
    let under_way: Vec<(u64, Effect)> = (last + 1..=last + UNDER_WAY)
        .map(|number| (number, Effect::of(connection, number)))
        .collect();
    for (key, (value, expected)) in (0..).zip(stored.iter().zip(&expected)) {
        let found = authors[key as usize];
        if value.is_some() && found.is_none() {
            faults.push(format!("c{connection}:k{key} torn or foreign"));
        } else if !allowed(connection, key, found, *expected, &under_way) {
            faults.push(format!(
                "c{connection}:k{key} at {found:?}, acknowledged {expected:?} (of {last})"
            ));
        }
    }
    judge_batches(connection, &authors, &under_way, faults);
}

/// True if `key` may hold the value of operation `found` (none: absent).
fn allowed(
    connection: u64,
    key: u64,
    found: Option<u64>,
    expected: Option<u64>,
    under_way: &[(u64, Effect)],
) -> bool {
    let deletes = |effect: &Effect| effect.value_len().is_none();
    match (found, expected) {
        (Some(found), _) if Some(found) == expected => true,
        (Some(found), _) => under_way
            .iter()
            .any(|(number, effect)| *number == found && effect.keys().contains(&key)),
        (None, None) => true,
        (None, Some(expected)) => {
            deletes(&Effect::of(connection, expected))
                || under_way
                    .iter()
                    .any(|(_, effect)| deletes(effect) && effect.keys().contains(&key))
        }
    }
}

/// Finds an MSET of which one key has its value, while another key of it has an older one.
fn judge_batches(
    connection: u64,
    authors: &[Option<u64>],
    under_way: &[(u64, Effect)],
    faults: &mut Vec<String>,
) {
    for (number, effect) in under_way {
        let Effect::SetAll { keys, .. } = effect else {
            continue;
        };
        let at = |key: &u64| authors[*key as usize];
        let seen = keys.iter().any(|key| at(key) == Some(*number));
        // An absent key is not judged here: a later delete may be pending.
        let behind = keys.iter().find(|key| at(key) < Some(*number) && at(key).is_some());
        if let (true, Some(key)) = (seen, behind) {
            faults.push(format!(
                "c{connection}: MSET {number} is there in part: k{key} is at {:?}",
                at(key)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::value;

    /// The values of the keys after the first `count` operations.
    fn state_after(connection: u64, count: u64) -> Vec<Option<Vec<u8>>> {
        let mut stored = vec![None; KEYS as usize];
        for number in 1..=count {
            let effect = Effect::of(connection, number);
            for key in effect.keys() {
                stored[*key as usize] =
                    effect.value_len().map(|len| value(connection, number, len));
            }
        }
        stored
    }

    fn faults(last: u64, stored: &[Option<Vec<u8>>]) -> usize {
        let mut faults = Vec::new();
        judge(1, last, stored, &mut faults);
        faults.len()
    }

    #[test]
    fn what_was_acknowledged_and_what_was_under_way_are_sound() {
        assert_eq!(faults(5_000, &state_after(1, 5_000)), 0);
        assert_eq!(faults(5_000, &state_after(1, 5_016)), 0);
        assert_eq!(faults(0, &state_after(1, 3)), 0);
    }

    #[test]
    fn a_lost_acknowledged_write_shows() {
        let (mut seen, mut lost) = (0, 0);
        for last in 5_000..5_100 {
            let without = state_after(1, last - 1);
            if without != state_after(1, last) {
                lost += 1;
                seen += usize::from(faults(last, &without) > 0);
            }
        }
        // The rest are new keys that are deleted right afterwards; the delete may have been pending.
        assert!(lost > 75 && seen * 100 > lost * 95, "{seen} of {lost} seen");
    }

    #[test]
    fn a_lost_write_of_an_earlier_round_shows_although_it_was_not_reported() {
        let stored = state_after(1, 5_600);
        let mut lossy = stored.clone();
        let victim = (1..=5_500).rev().map(|number| (number, Effect::of(1, number))).find(
            |(number, effect)| {
                let key = effect.keys()[0] as usize;
                let holds = stored[key].as_deref().and_then(|value| author(1, value));
                holds == Some(*number)
            },
        );
        lossy[victim.unwrap().1.keys()[0] as usize] = None;
        assert_eq!(faults(5_000, &stored), 0);
        assert_ne!(faults(5_000, &lossy), 0);
    }

    #[test]
    fn a_torn_value_shows() {
        let mut stored = state_after(1, 5_000);
        let key = stored.iter().position(Option::is_some).unwrap();
        stored[key].as_mut().unwrap()[0] ^= 0x20;
        assert_eq!(faults(5_000, &stored), 1);
    }

    #[test]
    fn half_a_batch_shows() {
        let (number, keys, len) = (5_000..)
            .find_map(|number| match Effect::of(1, number) {
                Effect::SetAll { keys, len } => Some((number, keys, len)),
                _ => None,
            })
            .unwrap();
        let last = number - 1;
        let mut stored = state_after(1, last);
        assert!(stored[keys[1] as usize].is_some(), "the other key is older");
        stored[keys[0] as usize] = Some(value(1, number, len));
        assert_eq!(faults(last, &stored), 1);
    }
}
