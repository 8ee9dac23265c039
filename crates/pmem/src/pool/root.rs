//! The root: a few words that change all together or not at all.
//!
//! Two alternating slots with a generation and a checksum are enough to survive a torn write, but
//! not to tell it from damage: if the newer slot does not match its checksum, was the write
//! interrupted (then the older root is right), or did a bit flip after the write had been
//! acknowledged (then falling back would silently undo it)? So the root is kept twice, and a
//! *state* word records whether a write is under way:
//!
//! ```text
//!   at rest     state = (g, rest)        A = g      B = g
//!   1. fence    state = (g+1, writing)
//!   2. fence                             A = g+1                 the new root counts from here
//!   3. fence                                        B = g+1
//!   4. fence    state = (g+1, rest)                              acknowledged
//! ```
//!
//! - *At rest* both copies must be sound, of the state's generation and equal. Anything else is
//!   damage and an error; a damaged copy can be repaired from the other one ([`Decoded::repairs`]).
//! - *Writing*: A counts if it is sound and of generation g+1; else B counts, and must be sound and of generation g.
//!   A slot that does not match is torn, which is legitimate here, and opening completes the write (with the same
//!   generation, so that a power cut within the completion changes nothing).
//!
//! The state is one aligned word, which cannot tear; its upper half is a checksum of its lower
//! half, so that a flip in it is an error too. Checksums are seeded with the pool's uuid.

use super::error::PoolError;
use super::header::{self, Words};
use super::types::ROOT_WORDS;
use crate::mutant;
use crate::space::Space;

// media-format: begin pool
/// Word at which slot A, slot B and the state start.
const SLOT_A: usize = 64;
const SLOT_B: usize = 128;
const STATE: usize = 192;

/// Words of a slot: generation, size, flags, count of unsafe shutdowns, eight root words, three
/// reserved, checksum.
const SLOT_WORDS: usize = 16;
const GENERATION: usize = 0;
const SIZE: usize = 1;
const FLAGS: usize = 2;
const UNSAFE_SHUTDOWNS: usize = 3;
const ROOT: usize = 4;
const CHECKSUM: usize = SLOT_WORDS - 1;

/// Flag: the count of unsafe shutdowns is known.
const COUNTS_SHUTDOWNS: u64 = 1;
// media-format: end

/// The contents of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Root {
    /// The acknowledged size of the pool, in bytes.
    pub(super) size: u64,
    pub(super) unsafe_shutdowns: Option<u64>,
    /// The words of the engine.
    pub(super) words: [u64; ROOT_WORDS],
}

type Slot = [u64; SLOT_WORDS];

impl Root {
    // media-format: begin pool
    fn encode(&self, uuid: [u8; 16], generation: u64) -> Slot {
        let mut slot = [0; SLOT_WORDS];
        slot[GENERATION] = generation;
        slot[SIZE] = self.size;
        if let Some(count) = self.unsafe_shutdowns {
            slot[FLAGS] = COUNTS_SHUTDOWNS;
            slot[UNSAFE_SHUTDOWNS] = count;
        }
        slot[ROOT..ROOT + ROOT_WORDS].copy_from_slice(&self.words);
        slot[CHECKSUM] = u64::from(checksum(uuid, &slot[..CHECKSUM]));
        slot
    }
    // media-format: end

    fn decode(slot: &Slot) -> Self {
        let mut words = [0; ROOT_WORDS];
        words.copy_from_slice(&slot[ROOT..ROOT + ROOT_WORDS]);
        let counts = slot[FLAGS] & COUNTS_SHUTDOWNS != 0;
        Self { size: slot[SIZE], unsafe_shutdowns: counts.then_some(slot[UNSAFE_SHUTDOWNS]), words }
    }
}

// media-format: begin pool
fn checksum(uuid: [u8; 16], words: &[u64]) -> u32 {
    words
        .iter()
        .fold(crc32c::crc32c(&uuid), |crc, word| crc32c::crc32c_append(crc, &word.to_le_bytes()))
}
// media-format: end

/// Whether a write is under way, and the generation (its low 31 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    generation: u32,
    writing: bool,
}

const GENERATION_MASK: u64 = (1 << 31) - 1;

impl State {
    fn of(generation: u64, writing: bool) -> Self {
        Self { generation: (generation & GENERATION_MASK) as u32, writing }
    }

    // media-format: begin pool
    fn encode(self, uuid: [u8; 16]) -> u64 {
        let low = u64::from(self.generation) << 1 | u64::from(self.writing);
        low | u64::from(checksum(uuid, &[low])) << 32
    }
    // media-format: end

    fn decode(uuid: [u8; 16], word: u64) -> Result<Self, Mismatch> {
        let low = word & u64::from(u32::MAX);
        Mismatch::check((word >> 32) as u32, checksum(uuid, &[low]))?;
        Ok(Self { generation: (low >> 1) as u32, writing: low & 1 == 1 })
    }

    fn is_of(self, generation: u64) -> bool {
        u64::from(self.generation) == generation & GENERATION_MASK
    }
}

/// A checksum that is wrong.
#[derive(Debug, Clone, Copy)]
struct Mismatch {
    stored: u32,
    computed: u32,
}

impl Mismatch {
    fn check(stored: u32, computed: u32) -> Result<(), Self> {
        if stored == computed || mutant!("pmem.root.checksum") {
            Ok(())
        } else {
            Err(Self { stored, computed })
        }
    }

    fn at(self, what: &str, word: usize) -> PoolError {
        PoolError::ChecksumMismatch {
            what: what.to_owned(),
            offset: 8 * word as u64,
            stored: self.stored,
            computed: self.computed,
        }
    }
}

/// A slot as it was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    name: &'static str,
    at: usize,
    words: Slot,
    sound: Result<(), Mismatch>,
}

impl Found {
    fn new(name: &'static str, at: usize, uuid: [u8; 16], header: &Words) -> Self {
        let mut words = [0; SLOT_WORDS];
        words.copy_from_slice(&header[at..at + SLOT_WORDS]);
        let stored = words[CHECKSUM];
        let computed = checksum(uuid, &words[..CHECKSUM]);
        let sound = if stored >> 32 == 0 {
            Mismatch::check(stored as u32, computed)
        } else {
            Err(Mismatch { stored: stored as u32, computed })
        };
        Self { name, at, words, sound }
    }

    fn generation(&self) -> u64 {
        self.words[GENERATION]
    }

    fn is_sound_of(&self, state: State) -> bool {
        self.sound.is_ok() && state.is_of(self.generation())
    }

    /// Fails unless the slot is sound and of the generation of `state`.
    fn expect(&self, state: State) -> Result<(), PoolError> {
        self.sound.map_err(|mismatch| mismatch.at(self.name, self.at))?;
        if state.is_of(self.generation()) {
            return Ok(());
        }
        Err(PoolError::Damaged {
            what: format!(
                "{} has generation {}, acknowledged is {}",
                self.name,
                self.generation(),
                state.generation
            ),
            offset: 8 * self.at as u64,
        })
    }
}

/// Something that can be restored.
#[derive(Debug)]
pub(super) struct Repair {
    /// Word of the header at which it starts.
    pub(super) at: usize,
    pub(super) words: Vec<u64>,
    /// For a person.
    pub(super) what: String,
}

/// Both slots and the state as they were found.
#[derive(Debug)]
pub(super) struct Decoded {
    uuid: [u8; 16],
    a: Found,
    b: Found,
    state: State,
    state_sound: Result<(), Mismatch>,
}

/// Decodes the root part of a header whose static part is sound.
pub(super) fn decode(words: &Words, uuid: [u8; 16]) -> Result<Decoded, PoolError> {
    let a = Found::new("root slot A", SLOT_A, uuid, words);
    let b = Found::new("root slot B", SLOT_B, uuid, words);
    let state = State::decode(uuid, words[STATE]);
    Ok(Decoded {
        uuid,
        a,
        b,
        state: state.unwrap_or(State { generation: 0, writing: false }),
        state_sound: state.map(|_| ()),
    })
}

impl Decoded {
    /// The root that counts.
    pub(super) fn current(&self) -> Result<Root, PoolError> {
        self.state_sound.map_err(|mismatch| mismatch.at("the root state", STATE))?;
        if self.state.writing {
            if self.a.is_sound_of(self.state) {
                return Ok(Root::decode(&self.a.words));
            }
            self.b.expect(State::of(u64::from(self.state.generation).wrapping_sub(1), false))?;
            return Ok(Root::decode(&self.b.words));
        }
        self.a.expect(self.state)?;
        self.b.expect(self.state)?;
        if self.a.words == self.b.words {
            return Ok(Root::decode(&self.a.words));
        }
        let what = "the two copies of the root differ".to_owned();
        Err(PoolError::Damaged { what, offset: 8 * SLOT_A as u64 })
    }

    /// The generation that is current, or is being written.
    fn generation(&self) -> u64 {
        let newer = if self.a.is_sound_of(self.state) { self.a } else { self.b };
        newer.generation() + u64::from(!self.state.is_of(newer.generation()))
    }

    /// The repairs that are possible; none if nothing is wrong.
    pub(super) fn repairs(&self) -> Result<Vec<Repair>, PoolError> {
        let both_sound = self.a.sound.is_ok() && self.b.sound.is_ok();
        if self.state_sound.is_err() && both_sound && self.a.words == self.b.words {
            let words = vec![State::of(self.a.generation(), false).encode(self.uuid)];
            let what = "the root state, from two equal root slots".to_owned();
            return Ok(vec![Repair { at: STATE, words, what }]);
        }
        let error = match self.current() {
            Ok(_) => return Ok(Vec::new()),
            Err(error) => error,
        };
        let (damaged, sound) = match (&self.a, &self.b) {
            _ if self.state_sound.is_err() || self.state.writing => return Err(error),
            (a, b) if b.is_sound_of(self.state) && !a.is_sound_of(self.state) => (a, b),
            (a, b) if a.is_sound_of(self.state) && !b.is_sound_of(self.state) => (b, a),
            _ => return Err(error),
        };
        let what = format!("{}, from {}", damaged.name, sound.name);
        Ok(vec![Repair { at: damaged.at, words: sound.words.to_vec(), what }])
    }
}

/// The root in memory, and the way to replace it.
#[derive(Debug)]
pub(super) struct Roots {
    uuid: [u8; 16],
    generation: u64,
    root: Root,
}

impl Roots {
    /// Writes the first root.
    pub(super) fn format(space: &Space, uuid: [u8; 16], root: Root) -> Result<Self, PoolError> {
        let roots = Self { uuid, generation: 1, root };
        roots.write_slots(space)?;
        roots.write_state(space, false)?;
        Ok(roots)
    }

    /// Finds the root that counts, and completes an interrupted write.
    pub(super) fn recover(space: &Space, uuid: [u8; 16]) -> Result<Self, PoolError> {
        let decoded = decode(&header::words_of(space)?, uuid)?;
        let root = decoded.current()?;
        let roots = Self { uuid, generation: decoded.generation(), root };
        if decoded.state.writing && !mutant!("pmem.root.uncompleted") {
            // The word may have been left in the caches by a process that was killed: a cut would then show a write at
            // rest, with copies that differ.
            if !mutant!("pmem.root.inherited") {
                roots.write_state(space, true)?;
            }
            roots.write_slots(space)?;
            roots.write_state(space, false)?;
        }
        Ok(roots)
    }

    pub(super) fn root(&self) -> Root {
        self.root
    }

    /// Replaces the root; durable when it returns.
    pub(super) fn replace(&mut self, space: &Space, root: Root) -> Result<(), PoolError> {
        let next = Self { uuid: self.uuid, generation: self.generation + 1, root };
        if !mutant!("pmem.root.unannounced") {
            next.write_state(space, true)?;
        }
        if mutant!("pmem.root.state_first") {
            next.write_state(space, false)?;
        }
        next.write_slots(space)?;
        next.write_state(space, false)?;
        *self = next;
        Ok(())
    }

    fn write_slots(&self, space: &Space) -> Result<(), PoolError> {
        let slot = self.root.encode(self.uuid, self.generation);
        for start in [SLOT_A, SLOT_B] {
            for (at, value) in slot.iter().enumerate() {
                header::word(space, start + at)?.store(*value);
            }
            if !mutant!("pmem.root.flush") {
                space.flush(8 * start as u64, 8 * SLOT_WORDS as u64);
            }
            if !mutant!("pmem.root.fence") {
                space.fence()?;
            }
        }
        Ok(())
    }

    fn write_state(&self, space: &Space, writing: bool) -> Result<(), PoolError> {
        header::word(space, STATE)?.store(State::of(self.generation, writing).encode(self.uuid));
        if !mutant!("pmem.root.state_flush") {
            space.flush(8 * STATE as u64, 8);
        }
        if !mutant!("pmem.root.state_fence") {
            space.fence()?;
        }
        Ok(())
    }

    /// The error for a root on the medium that is sound but not the acknowledged one.
    pub(super) fn not_as_acknowledged(&self) -> PoolError {
        PoolError::Damaged {
            what: format!("root generation {} is not the acknowledged one", self.generation),
            offset: 8 * SLOT_A as u64,
        }
    }
}
