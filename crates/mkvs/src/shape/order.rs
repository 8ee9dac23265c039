//! The order in which a write comes to the devices of a group.

use crate::shape::position::{DEVICES_MAX, Devices};
use coreplane_pmem::mutant;

/// The members in the order in which a write comes to them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    devices: [u8; DEVICES_MAX],
    len: usize,
    /// The number of devices that the write waits for; they come first.
    copies: usize,
}

impl Order {
    /// The devices that the write waits for.
    pub(crate) fn awaited(&self) -> &[u8] {
        &self.devices[..self.copies]
    }

    /// The devices that follow.
    pub(crate) fn others(&self) -> &[u8] {
        &self.devices[self.copies..self.len]
    }

    /// The order of these members, with the `current` ones first, and the primary the last of those that the write
    /// waits for.
    pub(crate) fn new(
        hash: u64,
        members: Devices,
        current: Devices,
        (copies, primary): (usize, u8),
    ) -> Self {
        let mut order = Self { devices: [primary; DEVICES_MAX], len: 0, copies };
        let mut rest = current & !(1 << primary);
        let mut push = |number| {
            order.devices[order.len] = number;
            order.len += 1;
        };
        for _ in 1..copies {
            // A different device for each key.
            if let Some(number) = choose(hash, rest) {
                rest &= !(1 << number);
                push(number);
            }
        }
        push(primary);
        numbers(rest | members & !current).for_each(push);
        if mutant!("mkvs.order.primary_first") {
            order.devices.swap(0, copies - 1);
        }
        order
    }

    /// The last awaited device: all awaited devices have the writes that it has.
    pub(crate) fn asked(&self) -> u8 {
        if mutant!("mkvs.order.primary_first") {
            return self.devices[0];
        }
        self.devices[self.copies - 1]
    }
}

/// The numbers in a set.
#[inline]
pub(crate) fn numbers(set: Devices) -> impl Iterator<Item = u8> {
    let mut rest = set;
    std::iter::from_fn(move || {
        let number = (rest != 0).then(|| rest.trailing_zeros() as u8);
        rest &= rest.wrapping_sub(1);
        number
    })
}

/// A device of a set: mostly the same one for one key, so that each device's caches have their share of the keys.
#[inline]
pub(crate) fn choose(hash: u64, set: Devices) -> Option<u8> {
    nth(set, (hash >> 32) as u32)
}

/// The device at this place in a set, going round; none if the set is empty.
#[inline]
pub(crate) fn nth(set: Devices, place: u32) -> Option<u8> {
    let mut rest = set;
    for _ in 0..place.checked_rem(set.count_ones())? {
        rest &= rest - 1;
    }
    Some(rest.trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_primary_is_the_last_that_is_waited_for() {
        for copies in 1..=3 {
            for hash in [0, 1 << 32, 2 << 32, 7 << 32] {
                let order = Order::new(hash, 0b111, 0b111, (copies, 2));
                assert_eq!((order.awaited().len(), order.asked()), (copies, 2));
                let all = order.awaited().iter().chain(order.others());
                assert_eq!(all.fold(0, |set, number| set | 1 << number), 0b111);
                assert_eq!(order.awaited().len() + order.others().len(), 3);
            }
        }
    }

    #[test]
    fn who_is_not_current_is_not_waited_for() {
        let order = Order::new(0, 0b1111, 0b1010, (2, 3));
        assert_eq!((order.awaited(), order.others()), (&[1, 3][..], &[0, 2][..]));
    }
}
