//! The answers that clients got, and whether they were true.
//!
//! Each key has one writer, which writes rising numbers, and waits for an answer, or for the failure of its node,
//! before the next. So a read is right if the number that it finds was written, and is not below any number that was
//! acknowledged, or read, before the read began.
//!
//! Values of some keys expire. A read of such a key may find nothing; from then on no read finds the number that it
//! had to find, or an earlier one.

use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct History {
    /// The newest number that was proposed for a key, and the newest that a client was told of.
    proposed: BTreeMap<u8, u64>,
    told: BTreeMap<u8, u64>,
    /// The newest number of a key that a client was told has expired.
    gone: BTreeMap<u8, u64>,
    pub(crate) acknowledged: u64,
    pub(crate) reads: u64,
}

impl History {
    /// The next number for a key.
    pub(crate) fn propose(&mut self, key: u8) -> u64 {
        let number = self.proposed.entry(key).or_default();
        *number += 1;
        *number
    }

    pub(crate) fn acknowledge(&mut self, key: u8, number: u64) {
        self.acknowledged += 1;
        let told = self.told.entry(key).or_default();
        *told = number.max(*told);
    }

    /// The least number that a read that begins now has to find.
    pub(crate) fn floor(&self, key: u8) -> u64 {
        self.told.get(&key).copied().unwrap_or(0)
    }

    /// The newest number that a read that begins now must not find.
    pub(crate) fn gone(&self, key: u8) -> u64 {
        self.gone.get(&key).copied().unwrap_or(0)
    }

    /// A read of a key whose records expire.
    pub(crate) fn read_mortal(
        &mut self,
        key: u8,
        (floor, gone): (u64, u64),
        found: u64,
    ) -> Result<(), String> {
        if found == 0 {
            self.reads += 1;
            let known = self.gone.entry(key).or_default();
            *known = floor.max(*known);
            return Ok(());
        }
        if found <= gone {
            return Err(format!("key {key}: {found} was read, and {gone} had expired"));
        }
        self.read(key, floor, found)
    }

    pub(crate) fn read(&mut self, key: u8, floor: u64, found: u64) -> Result<(), String> {
        self.reads += 1;
        let newest = self.proposed.get(&key).copied().unwrap_or(0);
        if found < floor || found > newest {
            return Err(format!("key {key}: {found} was read, and not {floor} to {newest}"));
        }
        let told = self.told.entry(key).or_default();
        *told = found.max(*told);
        Ok(())
    }

    /// The final value is at least the newest that a client was told of.
    pub(crate) fn check_end(&self, key: u8, found: u64) -> Result<(), String> {
        let (floor, newest) = (self.floor(key), self.proposed.get(&key).copied().unwrap_or(0));
        if found < floor || found > newest {
            return Err(format!("key {key}: {found} is left, and not {floor} to {newest}"));
        }
        Ok(())
    }
}
