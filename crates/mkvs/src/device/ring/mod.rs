//! The submission ring for the writes that a device has yet to make: writes of one key, decided elsewhere and
//! copied into the ring, so that neither side allocates or locks anything.

mod kernel;

use crate::device::decision::Decided;
use coreplane_engine::{Completion, Durability, UnixMillis, WriteOptions};
use kernel::{Atomic, LINES_MAX, Reader, Writer, Written, lines_of};
use std::sync::atomic::AtomicU64;

/// Lines of a ring: 256 KiB, which is more than a thousand writes of 100 bytes.
const LINES: usize = 4096;

/// Bytes of a line, and of a ring.
pub(crate) const LINE_BYTES: u64 = 64;
pub(crate) const RING_BYTES: u64 = LINES as u64 * LINE_BYTES;

/// Lines of one write at most; longer writes are submitted as jobs.
const LINES_OF_ONE: usize = LINES / 16;

const _: () = assert!(LINES_OF_ONE <= LINES_MAX);

/// Words before key and value: the hash, the sequence, the lengths, the expiry.
const HEADER: usize = 4;

/// The bits of the third word: two lengths, and the kind of write.
const LEN_BITS: u32 = 24;
const LEN: u64 = (1 << LEN_BITS) - 1;
const PUT: u64 = 1 << 48;
const EXPIRES: u64 = 1 << 49;
const DURABILITY_BITS: u32 = 50;
const USE_RESERVE: u64 = 1 << 53;
const TOLD: u64 = 1 << 54;
/// A place that was reserved for a write that was not made.
const NOTHING: u64 = 1 << 55;

/// A write that was decided on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decision<'a> {
    pub(crate) hash: u64,
    pub(crate) decided: Decided<'a>,
    /// They contain its sequence.
    pub(crate) options: &'a WriteOptions,
}

/// A decision that was taken out of a ring, whose buffers are used again for the next one.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    hash: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    is_put: bool,
    /// True if the processor reports the write when it is made.
    pub(crate) is_told: bool,
    /// True if there is nothing to make.
    pub(crate) is_nothing: bool,
    expires_at: Option<UnixMillis>,
    options: WriteOptions,
}

impl Taken {
    pub(crate) fn decision(&self) -> Decision<'_> {
        let put = self.is_put.then_some((self.value.as_slice(), self.expires_at));
        let decided = Decided { key: &self.key, put };
        Decision { hash: self.hash, decided, options: &self.options }
    }
}

/// The durabilities that go into a ring, by their numbers.
const DURABILITIES: [Option<Durability>; 4] =
    [None, Some(Durability::Strict), Some(Durability::GROUP), Some(Durability::RELAXED)];

/// The ring.
#[derive(Debug)]
pub(crate) struct Decisions(kernel::Ring<AtomicU64>);

/// The result of a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// The decision lies in the ring, and ends at this place.
    Enough(u64),
    /// The same; and the ring should be emptied soon.
    Scarce(u64),
    /// There is no room now.
    None,
    /// The ring can never take it: it is too long, or of a kind that is not for a ring.
    Never,
}

impl Room {
    #[inline]
    fn of(Written { taken, end }: Written) -> Self {
        if taken > LINES / 4 { Self::Scarce(end) } else { Self::Enough(end) }
    }
}

/// A place in a ring for a decision that is about to be made.
#[derive(Debug)]
#[must_use = "the processor waits until it is published or given up"]
pub(crate) struct Reserved<'a> {
    place: kernel::Reserved<'a, AtomicU64>,
    kind: u64,
}

impl Reserved<'_> {
    /// The place at which the processor is past it.
    pub(crate) fn end(&self) -> u64 {
        self.place.end()
    }

    /// The write was made: writes the decision for which the place was reserved, and shows it to the processor. Once:
    /// the place may be another write's then.
    #[inline(always)]
    pub(crate) fn publish(&self, decision: &Decision<'_>) -> Room {
        debug_assert_eq!(form_of(decision, false).map(|(_, kind)| kind), Some(self.kind));
        fill(&mut self.place.writer(), decision, self.kind);
        Room::of(self.place.publish())
    }

    /// The write was not made: the place is published as empty.
    pub(crate) fn give_up(self) -> Room {
        let mut writer = self.place.writer();
        [0, 0, NOTHING].into_iter().for_each(|word| writer.push(word));
        Room::of(self.place.publish())
    }
}

impl Decisions {
    pub(crate) fn new() -> Self {
        Self(kernel::Ring::new(LINES))
    }

    /// Prefetches the lines that will be written next.
    #[inline]
    pub(crate) fn prefetch(&self) {
        self.0.prefetch();
    }

    /// Puts a decision into the ring, if there is room. With `is_told` the processor reports the write when it is
    /// made.
    #[inline]
    pub(crate) fn push(&self, decision: &Decision<'_>, is_told: bool) -> Room {
        let Some((words, kind)) = form_of(decision, is_told) else { return Room::Never };
        match self.0.write(words, |writer| fill(writer, decision, kind)) {
            None => Room::None,
            Some(written) => Room::of(written),
        }
    }

    /// Reserves a place for a decision that is about to be made; none if there is no room, or never will be. The
    /// processor does not go past it before it is published or given up.
    // Inlined, so that the place is returned in registers (see `write_bytes`).
    #[inline(always)]
    pub(crate) fn reserve(&self, decision: &Decision<'_>) -> Option<Reserved<'_>> {
        let (words, kind) = form_of(decision, false)?;
        self.0.reserve(words).map(|place| Reserved { place, kind })
    }

    /// Takes the decision at the head into `taken`; none if the ring is empty, else how many lines were taken out
    /// so far. For the device's processor alone.
    #[inline]
    pub(crate) fn pop(&self, taken: &mut Taken) -> Option<u64> {
        let mut reader = self.0.front()?;
        taken.hash = reader.pop();
        let sequence = Some(reader.pop());
        let kind = reader.pop();
        let expires_at = reader.pop();
        taken.is_put = kind & PUT != 0;
        taken.is_told = kind & TOLD != 0;
        taken.is_nothing = kind & NOTHING != 0;
        taken.expires_at = (kind & EXPIRES != 0).then_some(UnixMillis(expires_at));
        let durability = (kind & (USE_RESERVE - 1)) >> DURABILITY_BITS;
        let durability = DURABILITIES[durability as usize % DURABILITIES.len()];
        let (completion, use_reserve) = (Completion::Wait, kind & USE_RESERVE != 0);
        taken.options =
            WriteOptions { sequence, durability, completion, expires_at: None, use_reserve };
        read_bytes(&mut reader, (kind & LEN) as usize, &mut taken.key);
        read_bytes(&mut reader, (kind >> LEN_BITS & LEN) as usize, &mut taken.value);
        Some(reader.free())
    }

    /// True if no decision is at the head. For the device's processor alone.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.front().is_none()
    }

    /// Lines that were reserved so far.
    pub(crate) fn submitted(&self) -> u64 {
        self.0.tail()
    }

    /// True if a decision is published in the ring from a place on, and not only reserved.
    pub(crate) fn has_published(&self, from: u64) -> bool {
        self.0.has_published(from)
    }
}

/// The number of words of a decision, and the third of them; none if the decision is not for a ring.
#[inline]
fn form_of(decision: &Decision<'_>, is_told: bool) -> Option<(usize, u64)> {
    let Decision { decided: Decided { key, put }, options, .. } = decision;
    let durability = match options.durability {
        None => 0,
        named => DURABILITIES.iter().position(|known| *known == named)?,
    };
    let (value, expires_at) = put.unwrap_or((&[], None));
    let words = HEADER + key.len().div_ceil(8) + value.len().div_ceil(8);
    let kind = if put.is_some() { PUT } else { 0 }
        | if expires_at.is_some() { EXPIRES } else { 0 }
        | if options.use_reserve { USE_RESERVE } else { 0 }
        | if is_told { TOLD } else { 0 }
        | (durability as u64) << DURABILITY_BITS
        | (value.len() as u64) << LEN_BITS
        | key.len() as u64;
    (lines_of(words) <= LINES_OF_ONE).then_some((words, kind))
}

#[inline(always)]
fn fill<A: Atomic>(writer: &mut Writer<'_, A>, decision: &Decision<'_>, kind: u64) {
    let Decision { hash, decided: Decided { key, put }, options } = *decision;
    let (value, expires_at) = put.unwrap_or((&[], None));
    writer.push(hash);
    writer.push(options.sequence.unwrap_or(0));
    writer.push(kind);
    writer.push(expires_at.map_or(0, |at| at.0));
    write_bytes(writer, key);
    write_bytes(writer, value);
}

#[inline(always)]
fn write_bytes<A: Atomic>(writer: &mut Writer<'_, A>, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    writer.push_all(whole);
    if !rest.is_empty() {
        // In a register: a word that is put together in memory is loaded only when all stores before it have left
        // the store buffer, those to the lines of the ring included, which the processor has.
        writer.push(match bytes.last_chunk::<8>() {
            Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
            None => rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        });
    }
}

#[inline]
fn read_bytes<A: Atomic>(reader: &mut Reader<'_, A>, len: usize, bytes: &mut Vec<u8>) {
    bytes.resize(len.next_multiple_of(8), 0);
    bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = reader.pop().to_le_bytes());
    bytes.truncate(len);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(sequence: u64, durability: Option<Durability>) -> WriteOptions {
        WriteOptions { sequence: Some(sequence), durability, ..WriteOptions::default() }
    }

    #[test]
    fn what_comes_out_is_what_went_in() {
        let ring = Decisions::new();
        let mut taken = Taken::default();
        assert!(ring.is_empty() && ring.pop(&mut taken).is_none());
        let long = vec![7; 3000];
        let at = Some(UnixMillis(1234));
        type Write<'a> = (&'a [u8], Option<(&'a [u8], Option<UnixMillis>)>);
        let writes: [Write<'_>; 6] = [
            (b"key", Some((b"value", None))),
            (b"", Some((b"", at))),
            (b"12345678", None),
            (b"123456789", Some((b"12345678", at))),
            (&long, Some((&long, None))),
            (b"a", Some((b"", None))),
        ];
        // Many times round the ring.
        for round in 0..400 {
            for (number, (key, put)) in writes.iter().enumerate() {
                let durability = DURABILITIES[(round + number) % DURABILITIES.len()];
                let use_reserve = number % 2 == 0;
                let options = WriteOptions { use_reserve, ..options(round as u64, durability) };
                let decided = Decided { key, put: *put };
                let decision = Decision { hash: number as u64, decided, options: &options };
                assert!(matches!(ring.push(&decision, use_reserve), Room::Enough(_)));
            }
            for (number, (key, put)) in writes.iter().enumerate() {
                assert!(ring.pop(&mut taken).is_some());
                let found = taken.decision();
                let durability = DURABILITIES[(round + number) % DURABILITIES.len()];
                assert_eq!((found.hash, found.decided.key), (number as u64, *key));
                assert_eq!(found.decided.put, *put);
                let use_reserve = number % 2 == 0;
                let expected = WriteOptions { use_reserve, ..options(round as u64, durability) };
                assert_eq!((*found.options, taken.is_told), (expected, use_reserve));
            }
            assert!(ring.is_empty());
        }
    }

    #[test]
    fn keys_and_values_of_every_length_come_out_as_they_went_in() {
        let ring = Decisions::new();
        let mut taken = Taken::default();
        let bytes: Vec<u8> = (1..=40).collect();
        for (key, value) in (0..20).flat_map(|key| (0..20).map(move |value| (key, value))) {
            let (key, value) = (&bytes[..key], &bytes[20..20 + value]);
            let options = options(1, None);
            let decided = Decided { key, put: Some((value, None)) };
            let decision = Decision { hash: 1, decided, options: &options };
            ring.reserve(&decision).expect("room").publish(&decision);
            assert!(ring.pop(&mut taken).is_some());
            let found = taken.decision().decided;
            assert_eq!((found.key, found.put), (key, Some((value, None))));
        }
    }

    #[test]
    fn what_was_reserved_is_there_when_it_is_published_and_nothing_if_it_is_given_up() {
        let ring = Decisions::new();
        let mut taken = Taken::default();
        let options = options(7, None);
        let decided = Decided { key: b"key", put: Some((b"value", None)) };
        let decision = |hash| Decision { hash, decided, options: &options };
        // Also where the lines were used before.
        for round in 0..LINES as u64 {
            let reserved = [1, 2].map(|hash| ring.reserve(&decision(hash)).expect("room"));
            let ends = reserved.each_ref().map(Reserved::end);
            assert!(matches!(ring.push(&decision(3), true), Room::Enough(_)));
            assert!(ring.is_empty() && ring.pop(&mut taken).is_none(), "it waits");
            let [first, second] = reserved;
            second.give_up();
            assert!(ring.is_empty());
            assert_eq!(first.publish(&decision(1)), Room::Enough(ends[0]), "round {round}");
            let mut pop = || {
                let end = ring.pop(&mut taken);
                (end, taken.decision().hash, taken.is_nothing)
            };
            assert_eq!(pop(), (Some(ends[0]), 1, false));
            let (end, _, is_nothing) = pop();
            assert_eq!((end, is_nothing), (Some(ends[1]), true));
            let (_, hash, is_nothing) = pop();
            assert_eq!((hash, is_nothing, ring.is_empty()), (3, false, true));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ring = Decisions::new();
        let huge = vec![0; LINES_OF_ONE * 64];
        let value: &[u8] = &[0; 1000];
        let push = |value: &[u8], durability| {
            let options = options(1, durability);
            let decided = Decided { key: b"key", put: Some((value, None)) };
            ring.push(&Decision { hash: 1, decided, options: &options }, false)
        };
        assert_eq!(push(&huge, None), Room::Never);
        let odd = Durability::Relaxed { window_bytes: 5, window: std::time::Duration::ZERO };
        assert_eq!(push(value, Some(odd)), Room::Never);
        let mut pushed = 0;
        let mut is_scarce = false;
        loop {
            match push(value, None) {
                Room::None => break,
                room => is_scarce |= matches!(room, Room::Scarce(_)),
            }
            pushed += 1;
        }
        assert!(is_scarce && pushed > 100, "{pushed}");
        let mut taken = Taken::default();
        while let Some(out) = ring.pop(&mut taken) {
            pushed -= 1;
            assert!(out <= ring.submitted());
        }
        assert_eq!(pushed, 0);
    }
}
