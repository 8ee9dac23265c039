//! Intents: a batch over several groups, recorded before it changes anything.
//!
//! ```text
//!   write: intent and its "go", one batch of the engine  ─▶ make it in each group ─▶ delete both
//!   refused on the way: delete "go" ─▶ take back what was made ─▶ delete the intent
//! ```
//!
//! An intent is on all members of one group. An open finds it and finishes the batch: makes all of it, or, if
//! one member has the intent without its *go*, takes all of it back. Each intent has two sequences, one for
//! making and one for taking back, drawn while the key locks of its keys were held. So every later write of
//! these keys is newer than both, and either step may be repeated.
//!
//! A refusal deletes a record, and writes none, because of full devices: deletes have a reserve.
//!
//! If an intent cannot be deleted, on a device that cannot be left out, its batch is made or taken back again
//! when the matrix is opened. While such an intent exists the stable watermark stays below it, so that later
//! deletes are known.

use crate::device::{Decided, Guarded, is_damage};
use crate::in_flight::Old;
use crate::shape::RESERVED;
use coreplane_engine::{
    Batch, Change, ChangeRef, Durability, Error, Result, UnixMillis, Visibility, WriteOptions,
};
use parking_lot::{Condvar, Mutex};

/// The greatest number of intents at a time.
const INTENTS: u32 = 64;

/// The free numbers of intents.
#[derive(Debug)]
pub(crate) struct Intents {
    numbers: Mutex<Numbers>,
    freed: Condvar,
    /// Held while lost intents are seen to, so that two threads do not see to the same one.
    pub(crate) seeing_to: Mutex<()>,
}

#[derive(Debug)]
struct Numbers {
    free: Vec<u32>,
    /// Lost intents: their numbers are not free until the devices have deleted them.
    lost: Vec<Lost>,
}

/// An intent that devices still have: an open finds it, and makes or takes back its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) number: u32,
    /// The group that has it.
    pub(crate) group: u16,
    /// The least sequence that such an open writes. While the intent exists all later writes must be known,
    /// deletes included.
    pub(crate) least: u64,
    /// Its batch was made or taken back, so that the intent need only be deleted. Otherwise the batch was neither.
    pub(crate) is_over: bool,
}

impl Intents {
    pub(crate) fn new() -> Self {
        let numbers = Numbers { free: (0..INTENTS).collect(), lost: Vec::new() };
        Self { numbers: Mutex::new(numbers), freed: Condvar::new(), seeing_to: Mutex::default() }
    }

    /// Waits for a free number.
    ///
    /// # Errors
    /// If all are lost.
    pub(crate) fn take(&self) -> Result<u32> {
        let mut numbers = self.numbers.lock();
        loop {
            if let Some(number) = numbers.free.pop() {
                return Ok(number);
            }
            if numbers.lost.len() == INTENTS as usize {
                let what = "too many batches could be neither ended nor taken back: scrub it, or open it again";
                return Err(Error::Unusable(what.to_owned()));
            }
            self.freed.wait(&mut numbers);
        }
    }

    pub(crate) fn give_back(&self, number: u32) {
        self.numbers.lock().free.push(number);
        self.freed.notify_one();
    }

    /// The lost intents.
    pub(crate) fn lost(&self) -> Vec<Lost> {
        self.numbers.lock().lost.clone()
    }

    /// The least sequence that a lost intent may write when the matrix is opened.
    pub(crate) fn least(&self) -> Option<u64> {
        self.numbers.lock().lost.iter().map(|lost| lost.least).min()
    }

    /// An intent whose number was taken stays on devices.
    pub(crate) fn lose(&self, lost: Lost) {
        self.numbers.lock().lost.push(lost);
        self.freed.notify_all();
    }

    /// A lost intent has been deleted: its number is free again.
    pub(crate) fn find(&self, number: u32) {
        self.numbers.lock().lost.retain(|lost| lost.number != number);
        self.give_back(number);
    }
}

/// A change of a batch, and the value before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) change: Change,
    pub(crate) old: Old,
}

/// A batch that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Intent {
    /// The sequence of the writes of the batch.
    pub(crate) made: u64,
    /// The sequence of the earlier values, if the batch is taken back: a greater one.
    pub(crate) undone: u64,
    pub(crate) steps: Vec<Step>,
}

/// An intent that a device has.
pub(crate) struct Open {
    pub(crate) number: u32,
    pub(crate) intent: Intent,
    /// The batch is to be made.
    pub(crate) is_go: bool,
}

fn key(number: u32) -> Vec<u8> {
    [RESERVED, format!("intent/{number:02}").as_bytes()].concat()
}

fn go_key(number: u32) -> Vec<u8> {
    [RESERVED, format!("intent/{number:02}/go").as_bytes()].concat()
}

fn durable() -> WriteOptions {
    WriteOptions { durability: Some(Durability::Strict), ..WriteOptions::default() }
}

impl Intent {
    /// Writes an encoded intent and its *go* to a device; durable when it returns.
    ///
    /// # Errors
    /// As the engine; [`Error::BatchTooLong`] if the batch and what it replaces are too long for one record.
    pub(crate) fn write(engine: &Guarded, number: u32, encoded: &[u8]) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(&key(number), encoded);
        batch.put(&go_key(number), &[]);
        engine.call(|it| it.apply(&batch, &durable())).map(drop).map_err(|error| match error {
            Error::ValueTooLong { len, max } => Error::BatchTooLong { bytes: len, max },
            error => error,
        })
    }

    /// Deletes the *go* of an intent, so that its batch is not made; durable when it returns.
    pub(crate) fn refuse(engine: &Guarded, number: u32) -> Result<()> {
        // A batch, because a leaf without room for the delete is then rewritten together with it. If the leaf
        // were rewritten before, a power cut between the two would leave the room that the user's batch had
        // lacked, and the next recovery would make the batch that this one refuses.
        let mut batch = Batch::new();
        batch.delete(&go_key(number));
        engine.call(|it| it.apply(&batch, &durable())).map(drop)
    }

    /// Deletes an intent; durable when it returns.
    pub(crate) fn drop(engine: &Guarded, number: u32) -> Result<()> {
        // The *go* last: an intent without it would be taken back.
        let _outcome = engine.call(|it| it.delete(&key(number), &durable()))?;
        engine.call(|it| it.delete(&go_key(number), &durable())).map(|_| ())
    }

    /// The intents on a device.
    ///
    /// # Errors
    /// As the engine, and if an intent cannot be decoded.
    pub(crate) fn all_on(engine: &Guarded) -> Result<Vec<Open>> {
        let mut all = Vec::new();
        for number in 0..INTENTS {
            if let Some(bytes) = engine.call(|it| it.get(&key(number)))? {
                let what = format!("intent {number} makes no sense");
                let intent = Self::decode(&bytes).ok_or(Error::Corrupt { offset: 0, what })?;
                let is_go = engine.call(|it| it.get(&go_key(number)))?.is_some();
                all.push(Open { number, intent, is_go });
            }
        }
        Ok(all)
    }

    /// Deletes all intents on a device.
    pub(crate) fn drop_all(engine: &Guarded) -> Result<()> {
        (0..INTENTS).try_for_each(|number| {
            let is_there = has(engine, &key(number))? || has(engine, &go_key(number))?;
            if is_there { Self::drop(engine, number) } else { Ok(()) }
        })
    }

    /// The bytes of an intent: its sequences, and each change with the record before it.
    pub(crate) fn encode<'s>(
        (made, undone): (u64, u64),
        steps: impl Iterator<Item = (ChangeRef<'s>, &'s Old)>,
    ) -> Vec<u8> {
        let mut bytes = [made.to_le_bytes(), undone.to_le_bytes()].concat();
        for (change, old) in steps {
            encode_bytes(&mut bytes, change.key());
            encode_put(&mut bytes, Decided::of(change).put);
            encode_put(&mut bytes, Decided::to(change.key(), old).put);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (made, rest) = bytes.split_first_chunk()?;
        let (undone, mut rest) = rest.split_first_chunk()?;
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let key = decode_bytes(&mut rest)?.to_vec();
            let change = match decode_put(&mut rest)? {
                Some((value, expires_at)) => Change::Put { key, value, expires_at },
                None => Change::Delete { key },
            };
            steps.push(Step { change, old: decode_put(&mut rest)? });
        }
        let (made, undone) = (u64::from_le_bytes(*made), u64::from_le_bytes(*undone));
        Some(Self { made, undone, steps })
    }
}

/// Appends a length, and then that many bytes.
fn encode_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    to.extend_from_slice(bytes);
}

fn decode_bytes<'b>(from: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (len, rest) = from.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    *from = rest;
    Some(bytes)
}

/// Appends a kind (0: none, 1: a value, 2: one that expires), the expiry, and the value.
fn encode_put(to: &mut Vec<u8>, put: Option<(&[u8], Option<UnixMillis>)>) {
    match put {
        None => to.push(0),
        Some((value, None)) => {
            to.push(1);
            encode_bytes(to, value);
        }
        Some((value, Some(at))) => {
            to.push(2);
            to.extend_from_slice(&at.0.to_le_bytes());
            encode_bytes(to, value);
        }
    }
}

fn decode_put(from: &mut &[u8]) -> Option<Old> {
    let (kind, rest) = from.split_first()?;
    *from = rest;
    match kind {
        0 => Some(None),
        1 => Some(Some((decode_bytes(from)?.to_vec(), None))),
        2 => {
            let (at, rest) = from.split_first_chunk()?;
            *from = rest;
            let at = UnixMillis(u64::from_le_bytes(*at));
            Some(Some((decode_bytes(from)?.to_vec(), Some(at))))
        }
        _ => None,
    }
}

/// The key of the description of a kept filter.
pub(crate) fn filter_key() -> Vec<u8> {
    [RESERVED, b"filter"].concat()
}

/// The key of a part of a kept filter.
pub(crate) fn filter_part_key(number: u64) -> Vec<u8> {
    [RESERVED, format!("filter/{number:06}").as_bytes()].concat()
}

/// The number of the matrix's own records on a device.
pub(crate) fn own_records(engine: &Guarded) -> Result<u64> {
    let intents = (0..INTENTS).flat_map(|number| [key(number), go_key(number)]);
    let mut keys = std::iter::once([RESERVED, b"membership"].concat()).chain(intents);
    let count = keys.try_fold(0, |count, key| Ok(count + u64::from(has(engine, &key)?)))?;
    Ok(count + kept_records(engine)?)
}

/// The number of records of a kept filter on a device. Of damaged ones it is not known whether they are there: they
/// end the count.
pub(crate) fn kept_records(engine: &Guarded) -> Result<u64> {
    let has_whole = |key: &[u8]| match has(engine, key) {
        Err(error) if is_damage(&error) => Ok(false),
        found => found,
    };
    let mut parts = 0;
    while has_whole(&filter_part_key(parts))? {
        parts += 1;
    }
    // A damaged description is one, too.
    let has_head = parts > 0 || has_whole(&filter_key())?;
    Ok(u64::from(has_head) + parts)
}

/// True if an engine has a record.
fn has(engine: &Guarded, key: &[u8]) -> Result<bool> {
    Ok(engine.call(|it| it.get_with(key, Visibility::Durable, &mut |_| {}))?.hit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_reads_as_it_was_written() {
        let put = |key: &[u8], value: &[u8], expires_at| Change::Put {
            key: key.to_vec(),
            value: value.to_vec(),
            expires_at,
        };
        let steps = vec![
            Step { change: put(b"a", b"one", None), old: None },
            Step { change: Change::Delete { key: vec![] }, old: Some((vec![1], None)) },
            Step {
                change: put(&[7; 300], b"", Some(UnixMillis(5))),
                old: Some((vec![2; 70], Some(UnixMillis(9)))),
            },
        ];
        let intent = Intent { made: 77, undone: 78, steps };
        let all = intent.steps.iter().map(|step| (step.change.as_ref(), &step.old));
        let bytes = Intent::encode((77, 78), all);
        assert_eq!(Intent::decode(&bytes), Some(intent));
        for len in 0..bytes.len() {
            // Bytes that are cut short are no intent, or end where a change ends.
            let cut = Intent::decode(&bytes[..len]);
            assert!(cut.is_none_or(|intent| intent.steps.len() < 3));
        }
    }
}
