//! What a batch over several groups is about to do, written down before it does anything.
//!
//! ```text
//!   write: intent and its "go", one batch of the engine  ─▶ make it in each group ─▶ delete both
//!   refused on the way: delete "go" ─▶ take back what was made ─▶ delete the intent
//! ```
//!
//! An intent is on all members of one group. Opening finds it and finishes what was begun: makes the
//! whole of it, or, where one member has an intent without its *go*, takes the whole of it back. Each
//! intent has two sequences, for the one and for the other, which were drawn within the key locks of its
//! keys: so what was written to them since is newer than both, and either may be done twice.
//!
//! That a refusal deletes something, and does not write, is for a full device: deletes have a reserve.
//!
//! One that cannot be deleted, on a device that cannot be left out, is made or taken back once more when the
//! matrix is opened. As long as it is there the mark stays below it, so that what was deleted since is known.

use crate::in_flight::Old;
use crate::shape::position::RESERVED;
use coreplane_engine::{
    Batch, Change, Durability, Error, Result, StorageEngine, UnixMillis, WriteOptions,
};
use parking_lot::{Condvar, Mutex};

/// Intents at most at a time.
const INTENTS: u32 = 64;

/// The numbers of intents that are free.
#[derive(Debug)]
pub(crate) struct Intents {
    numbers: Mutex<Numbers>,
    freed: Condvar,
    /// Held by whoever sees to those that are lost: one that another has found meanwhile is not his.
    pub(crate) seeing_to: Mutex<()>,
}

#[derive(Debug)]
struct Numbers {
    free: Vec<u32>,
    /// Those that are not free until their devices have forgotten them.
    lost: Vec<Lost>,
}

/// One that devices still have: whoever opens the matrix finds it, and makes or takes back its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) number: u32,
    /// The group that has it.
    pub(crate) group: u16,
    /// The least sequence that is written then: what is above that must be known as long as it is there,
    /// deletes too.
    pub(crate) least: u64,
    /// Its batch was made or taken back: it is to be deleted, and no more. Else that was neither.
    pub(crate) is_over: bool,
}

impl Intents {
    pub(crate) fn new() -> Self {
        let numbers = Numbers { free: (0..INTENTS).collect(), lost: Vec::new() };
        Self { numbers: Mutex::new(numbers), freed: Condvar::new(), seeing_to: Mutex::default() }
    }

    /// Waits for a number that is free.
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

    /// Those that devices still have, and that nobody sees to.
    pub(crate) fn lost(&self) -> Vec<Lost> {
        self.numbers.lock().lost.clone()
    }

    /// The least sequence that one of those may write when the matrix is opened.
    pub(crate) fn least(&self) -> Option<u64> {
        self.numbers.lock().lost.iter().map(|lost| lost.least).min()
    }

    /// One that was taken stays.
    pub(crate) fn lose(&self, lost: Lost) {
        self.numbers.lock().lost.push(lost);
        self.freed.notify_all();
    }

    /// One that was lost is free again.
    pub(crate) fn find(&self, number: u32) {
        self.numbers.lock().lost.retain(|lost| lost.number != number);
        self.give_back(number);
    }
}

/// A change of a batch, and what there was before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) change: Change,
    pub(crate) old: Old,
}

/// A batch that is about to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Intent {
    /// The sequence of what it writes.
    pub(crate) made: u64,
    /// The sequence of what was there before, if it is taken back: a greater one.
    pub(crate) undone: u64,
    pub(crate) steps: Vec<Step>,
}

/// An intent that a device has.
pub(crate) struct Open {
    pub(crate) number: u32,
    pub(crate) intent: Intent,
    /// It is to be made.
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
    /// Writes it to a device, to be made; durable when it returns.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn write(&self, engine: &dyn StorageEngine, number: u32) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(&key(number), &self.encode());
        batch.put(&go_key(number), &[]);
        engine.apply(&batch, &durable()).map(|_| ())
    }

    /// It is not to be made; durable when it returns.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn refuse(engine: &dyn StorageEngine, number: u32) -> Result<()> {
        // As a batch: where a leaf has no room for it, that is written anew together with it. If it were
        // before, a power cut between the two would leave the room that the batch had lacked, and the
        // next recovery would make what this one refuses.
        let mut batch = Batch::new();
        batch.delete(&go_key(number));
        engine.apply(&batch, &durable()).map(drop)
    }

    /// Deletes it; durable when it returns.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn drop(engine: &dyn StorageEngine, number: u32) -> Result<()> {
        // Without its go it would be taken back.
        let _outcome = engine.delete(&key(number), &durable())?;
        engine.delete(&go_key(number), &durable()).map(|_| ())
    }

    /// What a device has of them.
    ///
    /// # Errors
    /// As the engine, and if one makes no sense.
    pub(crate) fn all_on(engine: &dyn StorageEngine) -> Result<Vec<Open>> {
        let mut all = Vec::new();
        for number in 0..INTENTS {
            if let Some(bytes) = engine.get(&key(number))? {
                let what = format!("intent {number} makes no sense");
                let intent = Self::decode(&bytes).ok_or(Error::Corrupt { offset: 0, what })?;
                let is_go = engine.get(&go_key(number))?.is_some();
                all.push(Open { number, intent, is_go });
            }
        }
        Ok(all)
    }

    /// Drops all that a device has of them.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn drop_all(engine: &dyn StorageEngine) -> Result<()> {
        (0..INTENTS).try_for_each(|number| {
            let is_there =
                engine.get(&key(number))?.is_some() || engine.get(&go_key(number))?.is_some();
            if is_there { Self::drop(engine, number) } else { Ok(()) }
        })
    }

    /// How many records a device has of them.
    ///
    /// # Errors
    /// As the engine.
    pub(crate) fn records_on(engine: &dyn StorageEngine) -> Result<u64> {
        let mut records = 0;
        for number in 0..INTENTS {
            records += u64::from(engine.get(&key(number))?.is_some());
            records += u64::from(engine.get(&go_key(number))?.is_some());
        }
        Ok(records)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.made.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.undone.to_le_bytes());
        for Step { change, old } in &self.steps {
            let put = match change {
                Change::Put { value, expires_at, .. } => Some((value.as_slice(), *expires_at)),
                Change::Delete { .. } => None,
            };
            encode_bytes(&mut bytes, change.key());
            encode_put(&mut bytes, put);
            encode_put(&mut bytes, old.as_ref().map(|(value, at)| (value.as_slice(), *at)));
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

/// A length, and so many bytes.
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

/// A kind (0: none, 1: a value, 2: one that expires), the expiry, and the value.
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

/// The matrix's own records in a device.
///
/// # Errors
/// As the engine.
pub(crate) fn own_records(engine: &dyn StorageEngine) -> Result<u64> {
    let record = u64::from(engine.get(&[RESERVED, b"membership"].concat())?.is_some());
    Ok(record + Intent::records_on(engine)?)
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
        let bytes = intent.encode();
        assert_eq!(Intent::decode(&bytes), Some(intent));
        for len in 0..bytes.len() {
            // Cut short it is none, or ends where a change does.
            let cut = Intent::decode(&bytes[..len]);
            assert!(cut.is_none_or(|intent| intent.steps.len() < 3));
        }
    }
}
