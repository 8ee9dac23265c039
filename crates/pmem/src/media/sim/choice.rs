//! Choice of the pending stores that survive a power cut; each choice gives a crash image.
//!
//! In each unit a prefix of the ordered groups persists; any atoms of the group after it, if that
//! is a copy; any atoms of the unordered groups. Units are independent. The product over the units
//! is enumerated while it is small, and sampled by seed beyond that.

use super::machine::{Group, Machine, word_at, word_hash};
use super::rng::Rng;
use std::fmt::Write;
use std::ops::ControlFlow;

/// The stores of one unit that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Kept {
    /// The number of ordered groups that are kept as a whole.
    plain: u32,
    /// The atoms that are kept of the next ordered group.
    torn: u128,
    /// The atoms that are kept of the unordered groups; the last bit stands for all atoms from the 128th on.
    unordered: u128,
}

/// A unit with pending stores at a cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pending<'a> {
    pub(super) offset: u64,
    pub(super) groups: &'a [Group],
    plain: u32,
    unordered: u32,
}

/// All units with pending stores, in ascending order of offset.
pub(super) fn pending(machine: &Machine) -> Vec<Pending<'_>> {
    machine
        .pending
        .iter()
        .map(|(offset, unit)| {
            let unordered: usize =
                unit.groups.iter().filter(|group| group.unordered).map(|it| it.atoms.len()).sum();
            Pending {
                offset: *offset,
                groups: &unit.groups,
                plain: unit.groups.iter().filter(|group| !group.unordered).count() as u32,
                unordered: unordered as u32,
            }
        })
        .collect()
}

fn low_bits(count: u32) -> u128 {
    if count >= 128 { u128::MAX } else { (1 << count) - 1 }
}

impl Pending<'_> {
    pub(super) fn everything(&self) -> Kept {
        Kept { plain: self.plain, torn: 0, unordered: low_bits(self.unordered) }
    }

    /// Atoms of the ordered group at `number`.
    fn atoms(&self, number: u32) -> u32 {
        let group = self.groups.iter().filter(|group| !group.unordered).nth(number as usize);
        group.map_or(0, |group| group.atoms.len() as u32)
    }

    /// The number of possible choices for the unit; saturates.
    fn ways(&self) -> u64 {
        let tearing: u64 = self
            .groups
            .iter()
            .filter(|group| !group.unordered)
            .map(|group| 1_u64.checked_shl(group.atoms.len() as u32).map_or(1 << 40, |it| it - 1))
            .fold(1, u64::saturating_add);
        tearing.saturating_mul(1_u64.checked_shl(self.unordered).unwrap_or(u64::MAX))
    }

    /// All possible choices.
    fn all_ways(&self) -> Vec<Kept> {
        let mut all = Vec::new();
        for plain in 0..=self.plain {
            for torn in 0..low_bits(self.atoms(plain)).max(1) {
                for unordered in 0..=low_bits(self.unordered) {
                    all.push(Kept { plain, torn, unordered });
                }
            }
        }
        all
    }

    fn random(&self, rng: &mut Rng) -> Kept {
        let plain = rng.below(self.plain as usize + 1) as u32;
        let atoms = self.atoms(plain);
        let torn = if atoms > 1 { rng.bits128() & low_bits(atoms) } else { 0 };
        let torn = if torn == low_bits(atoms) { 0 } else { torn };
        let unordered = match rng.below(4) {
            0 => 0,
            1 => low_bits(self.unordered),
            _ => rng.bits128() & low_bits(self.unordered),
        };
        Kept { plain, torn, unordered }
    }

    /// The words of the unit that `kept` changes: offset, old and new value.
    pub(super) fn patch(&self, base: &[u8], kept: Kept, mut to: impl FnMut(u64, u64, u64)) {
        if kept == Kept::default() {
            return;
        }
        let mut words = [None; 64];
        let mut end = 0;
        let mut plain = 0;
        let mut unordered = 0_u32;
        for group in self.groups {
            for (number, atom) in group.atoms.iter().enumerate() {
                let keep = if group.unordered {
                    unordered += 1;
                    kept.unordered >> (unordered - 1).min(127) & 1 == 1
                } else {
                    plain < kept.plain || plain == kept.plain && kept.torn >> number & 1 == 1
                };
                if keep {
                    let old = word_at(base, self.offset + u64::from(atom.word) * 8);
                    let word = words[atom.word as usize].get_or_insert(old);
                    *word = *word & !atom.mask | atom.value & atom.mask;
                    end = end.max(usize::from(atom.word) + 1);
                }
            }
            plain += u32::from(!group.unordered);
        }
        for (at, word) in words[..end].iter().enumerate() {
            let Some(new) = *word else { continue };
            let offset = self.offset + at as u64 * 8;
            let old = word_at(base, offset);
            if new != old {
                to(offset, old, new);
            }
        }
    }

    /// Describes which stores of the unit are kept and which are lost.
    pub(super) fn tell(&self, kept: Kept, out: &mut String) {
        let everything = self.everything();
        if kept == everything {
            return;
        }
        let ordered = || self.groups.iter().filter(|group| !group.unordered);
        let mut parts = Vec::new();
        let plain = kept.plain as usize;
        if plain > 0 {
            parts.push(format!("kept {}", numbers(ordered().take(plain))));
        }
        if kept.torn != 0 {
            parts.push(format!("torn {}", numbers(ordered().skip(plain).take(1))));
        }
        let lost = plain + usize::from(kept.torn != 0);
        if ordered().count() > lost {
            parts.push(format!("lost {}", numbers(ordered().skip(lost))));
        }
        if self.unordered > 0 {
            let streamed = numbers(self.groups.iter().filter(|group| group.unordered));
            let some = match kept.unordered {
                0 => "lost",
                all if all == everything.unordered => "kept",
                _ => "kept in part",
            };
            parts.push(format!("non-temporal {streamed} {some}"));
        }
        // Writing to a string cannot fail.
        let _written = writeln!(out, "  {:#x}: {}", self.offset, parts.join(", ")).is_ok();
    }
}

/// The numbers of the stores; if there are many, only the first few and the last.
fn numbers<'a>(mut groups: impl Iterator<Item = &'a Group>) -> String {
    let mut text: Vec<String> =
        groups.by_ref().take(6).map(|it| format!("#{}", it.store)).collect();
    text.extend(groups.last().map(|last| format!("… #{}", last.store)));
    text.join(" ")
}

/// The hash of the image that `kept` leaves.
pub(super) fn hash(machine: &Machine, pending: &[Pending<'_>], kept: &[Kept]) -> u64 {
    let mut hash = machine.hash.wrapping_add(machine.base.len() as u64);
    for (unit, kept) in pending.iter().zip(kept) {
        unit.patch(&machine.base, *kept, |offset, old, new| {
            hash = hash.wrapping_sub(word_hash(offset, old)).wrapping_add(word_hash(offset, new));
        });
    }
    hash
}

/// The bytes of that image.
pub(super) fn bytes(machine: &Machine, pending: &[Pending<'_>], kept: &[Kept]) -> Vec<u8> {
    let mut image = machine.base.clone();
    for (unit, kept) in pending.iter().zip(kept) {
        unit.patch(&machine.base, *kept, |offset, _, new| {
            let at = offset as usize;
            if let Some(word) = image.get_mut(at..at + 8) {
                word.copy_from_slice(&new.to_le_bytes());
            }
        });
    }
    image
}

/// Visits the images of one cut: all if there are at most `limit`, else `limit` chosen by seed,
/// beginning with nothing kept and everything kept.
pub(super) fn visit(
    pending: &[Pending<'_>],
    rng: &mut Rng,
    limit: usize,
    mut to: impl FnMut(&[Kept]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let ways = pending.iter().fold(1_u64, |all, unit| all.saturating_mul(unit.ways()));
    if ways <= limit as u64 {
        return enumerate(pending, &mut to);
    }
    let mut kept = vec![Kept::default(); pending.len()];
    to(&kept)?;
    let everything: Vec<Kept> = pending.iter().map(Pending::everything).collect();
    to(&everything)?;
    singles(pending, rng, limit / 2, &mut kept, &mut to)?;
    let left = limit.saturating_sub(2 + (2 * pending.len()).min(limit / 2));
    for number in 0..left {
        sample(pending, rng, number, &mut kept);
        to(&kept)?;
    }
    ControlFlow::Continue(())
}

fn enumerate(
    pending: &[Pending<'_>],
    to: &mut impl FnMut(&[Kept]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let ways: Vec<Vec<Kept>> = pending.iter().map(Pending::all_ways).collect();
    let mut digits = vec![0; ways.len()];
    loop {
        let kept: Vec<Kept> =
            ways.iter().zip(&digits).map(|(ways, at): (_, &usize)| ways[*at]).collect();
        to(&kept)?;
        let mut place = 0;
        loop {
            if place == digits.len() {
                return ControlFlow::Continue(());
            }
            digits[place] += 1;
            if digits[place] < ways[place].len() {
                break;
            }
            digits[place] = 0;
            place += 1;
        }
    }
}

/// Visits images with one unit kept and images with one unit lost; if there are more than `limit`,
/// chooses `limit` of them by seed.
fn singles(
    pending: &[Pending<'_>],
    rng: &mut Rng,
    limit: usize,
    kept: &mut [Kept],
    to: &mut impl FnMut(&[Kept]) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let all = 2 * pending.len();
    for number in 0..all.min(limit) {
        let number = if all <= limit { number } else { rng.below(all) };
        let (single, alone) = (number / 2, number % 2 == 0);
        for (at, unit) in pending.iter().enumerate() {
            let keep = (at == single) == alone;
            kept[at] = if keep { unit.everything() } else { Kept::default() };
        }
        to(kept)?;
    }
    ControlFlow::Continue(())
}

/// One random image, in turn with: whole units, parts of units, a few units kept or lost in part.
fn sample(pending: &[Pending<'_>], rng: &mut Rng, number: usize, kept: &mut [Kept]) {
    let few = 1 + rng.below(3);
    for (kept, unit) in kept.iter_mut().zip(pending) {
        let odd_one = rng.below(pending.len()) < few;
        *kept = match number % 4 {
            0 if rng.one_in(2) => Kept::default(),
            0 => unit.everything(),
            1 => unit.random(rng),
            _ if odd_one => unit.random(rng),
            2 => Kept::default(),
            _ => unit.everything(),
        };
    }
}

/// The choice as text: `N` (nothing) or `E` (everything) kept, and the units that differ.
pub(super) fn to_text(pending: &[Pending<'_>], kept: &[Kept]) -> String {
    let kept_units = || pending.iter().zip(kept);
    let unlike_nothing = kept_units().filter(|(_, it)| **it != Kept::default()).count();
    let unlike_everything = kept_units().filter(|(unit, it)| **it != unit.everything()).count();
    let nothing = unlike_nothing <= unlike_everything;
    let mut text = String::from(if nothing { "N" } else { "E" });
    for (unit, kept) in kept_units() {
        let usual = if nothing { Kept::default() } else { unit.everything() };
        if *kept != usual {
            let Kept { plain, torn, unordered } = kept;
            // Writing to a string cannot fail.
            let _written =
                write!(text, "+{:x},{plain:x},{torn:x},{unordered:x}", unit.offset).is_ok();
        }
    }
    text
}

/// Parses the text of [`to_text`]; none if it does not fit the pending units.
pub(super) fn from_text(pending: &[Pending<'_>], text: &str) -> Option<Vec<Kept>> {
    let mut parts = text.split('+');
    let mut kept: Vec<Kept> = match parts.next()? {
        "N" => vec![Kept::default(); pending.len()],
        "E" => pending.iter().map(Pending::everything).collect(),
        _ => return None,
    };
    for part in parts {
        let mut numbers = part.split(',');
        let mut number = || u128::from_str_radix(numbers.next()?, 16).ok();
        let offset = u64::try_from(number()?).ok()?;
        let at = pending.binary_search_by_key(&offset, |unit| unit.offset).ok()?;
        let plain = u32::try_from(number()?).ok()?.min(pending[at].plain);
        kept[at] = Kept { plain, torn: number()?, unordered: number()? };
    }
    Some(kept)
}

/// One random image.
pub(super) fn seeded(pending: &[Pending<'_>], rng: &mut Rng) -> Vec<Kept> {
    let mut kept = vec![Kept::default(); pending.len()];
    let number = rng.below(4);
    sample(pending, rng, number, &mut kept);
    kept
}
