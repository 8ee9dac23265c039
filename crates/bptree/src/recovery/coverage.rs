//! Checks that leaves tile the whole range of keys: exactly one leaf serves each key.

use crate::inner::word_at;
use crate::leaf::Life;
use crate::tree::leaf_page::Found;
use std::collections::BTreeMap;

/// True if exactly one leaf serves each key.
pub(crate) fn is_tiled(leaves: &[Found]) -> bool {
    let mut expected: Option<&[u8]> = Some(&[]);
    let mut order = in_order(leaves).into_iter().map(|at| &leaves[at as usize].head);
    order.all(|head| {
        let is_next = expected == Some(&*head.least);
        expected = head.bound.as_deref();
        is_next
    }) && expected.is_none()
}

/// Drops leaves that serve keys that a younger leaf serves too; returns the dropped ones.
pub(crate) fn drop_older(leaves: &mut Vec<Found>) -> Vec<Life> {
    leaves.sort_unstable_by_key(|found| std::cmp::Reverse(found.head.birth));
    let mut taken: BTreeMap<Box<[u8]>, Option<Box<[u8]>>> = BTreeMap::new();
    let mut dropped = Vec::new();
    leaves.retain(|found| {
        let head = &found.head;
        let is_above = |bound: &Option<Box<[u8]>>| bound.as_ref().is_none_or(|it| *it > head.least);
        let below = taken.range(..=head.least.clone()).next_back();
        let mut above = taken.range(head.least.clone()..);
        let is_older = below.is_some_and(|(_, bound)| is_above(bound))
            || above
                .next()
                .is_some_and(|(least, _)| head.bound.as_ref().is_none_or(|it| least < it));
        if is_older {
            dropped.push(found.life());
        } else {
            taken.insert(head.least.clone(), head.bound.clone());
        }
        !is_older
    });
    dropped
}

/// The places of leaves in the order of their least keys. Most of those differ in the eight bytes behind their
/// common prefix.
pub(crate) fn in_order(leaves: &[Found]) -> Vec<u32> {
    let least = |at: u32| &*leaves[at as usize].head.least;
    let mut bounded = leaves.iter().map(|found| &*found.head.least).filter(|it| !it.is_empty());
    let first = bounded.next().unwrap_or_default();
    let common = bounded.fold(first.len(), |common, other| {
        first[..common].iter().zip(other).take_while(|(a, b)| a == b).count()
    });
    let mut order: Vec<(u64, u32)> =
        (0..leaves.len() as u32).map(|at| (word_at(least(at), common), at)).collect();
    order.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| least(a.1).cmp(least(b.1))));
    order.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leaf::Head;

    #[test]
    fn leaves_are_put_in_the_order_of_their_least_keys() {
        let keys: [&[u8]; 9] = [
            b"key-2",
            b"key-10",
            b"",
            b"key-",
            b"key-1",
            b"key-1\0",
            b"key-10\0\0\0\0\0\0",
            b"l",
            b"key-100000",
        ];
        for common in [0, 1] {
            let leaves: Vec<Found> = keys
                .iter()
                .filter(|key| common == 0 || **key != b"l")
                .map(|key| {
                    let head = Head { birth: 1, least: (*key).into(), ..Head::default() };
                    Found::new(0, head)
                })
                .collect();
            let order = in_order(&leaves).into_iter().map(|at| &*leaves[at as usize].head.least);
            assert!(order.is_sorted(), "{common}");
        }
    }
}
