//! A record of a group, made on all of its devices.

use super::Group;
use crate::device::{Decided, Guarded, is_failure};
use crate::group::rollback::sound_of;
use crate::shape::Devices;
use coreplane_engine::{Outcome, Record, Result, UnixMillis, Visibility, WriteOptions};

/// A record, or a tombstone.
pub(crate) struct Item {
    pub(crate) key: Vec<u8>,
    pub(crate) put: Option<(Vec<u8>, Option<UnixMillis>)>,
    pub(crate) sequence: u64,
}

impl Item {
    /// Makes it on an engine, unless the engine has a newer record.
    pub(crate) fn give_to(&self, engine: &Guarded) -> Result<Outcome> {
        let options = WriteOptions { sequence: Some(self.sequence), ..WriteOptions::default() };
        Decided::to(&self.key, &self.put).make_told(engine, &options)
    }
}

impl Group {
    /// The record that the group has of a key, to be made elsewhere.
    ///
    /// # Errors
    /// As the devices, and if the record is damaged.
    pub(crate) fn item_of(&self, key: &[u8]) -> Result<Option<Item>> {
        let (put, sequence) = self.ask(Self::primary, |device| sound_of(device, key))?;
        Ok(put.map(|put| Item { key: key.to_vec(), put: Some(put), sequence }))
    }

    /// Makes a record on all devices, and counts it in the group's filter; true if the group has a record of the
    /// key then. The caller has the key lock.
    pub(crate) fn give(&self, hash: u64, item: &Item) -> Result<bool> {
        self.give_by(hash, &item.key, |engine| item.give_to(engine).map(|_| ()))
    }

    /// The same for a record that takes the place of another one: it may use the reserve, and a tombstone comes only
    /// to devices that have the key.
    pub(crate) fn give_instead(&self, hash: u64, item: &Item) -> Result<bool> {
        let (sequence, options) = (Some(item.sequence), WriteOptions::default());
        let options = WriteOptions { sequence, use_reserve: true, ..options };
        let record = Decided::to(&item.key, &item.put);
        self.give_by(hash, &item.key, |engine| record.restore(engine, &options, true).map(|_| ()))
    }

    /// Makes the record of a key anew on all devices, with a sequence above all of theirs; returns it. The caller has
    /// the key lock.
    pub(crate) fn give_anew(&self, hash: u64, key: &[u8]) -> Result<Item> {
        let (known, sequence) = (self.item_of(key)?, self.draw(None));
        if let Some(item) = &known {
            self.renew(key, item.sequence, sequence)?;
        }
        let item = Item { key: key.to_vec(), put: known.and_then(|item| item.put), sequence };
        self.give_instead(hash, &item).map(|_| item)
    }

    fn give_by(
        &self,
        hash: u64,
        key: &[u8],
        give_to: impl Fn(&Guarded) -> Result<()>,
    ) -> Result<bool> {
        let change = self.filter.change();
        let had = self.sequence_of(key)?.is_some();
        let inserted = change.insert(hash);
        let given = self.make_on_each(self.followers(), give_to);
        let has = given.and_then(|()| Ok(self.sequence_of(key)?.is_some()));
        // If the result is unknown the key is counted: the filter says "perhaps".
        let is_new = *has.as_ref().unwrap_or(&true) && !had;
        if !is_new {
            inserted.undo();
        }
        if had && matches!(has, Ok(false)) {
            change.remove(hash);
        }
        has
    }

    /// Makes a record on each of some devices. One that fails is left out, be it a member or about to become one: it
    /// lacks what the others have.
    ///
    /// # Errors
    /// As a device that has not failed, but has no space for example, or that is the last one.
    pub(crate) fn make_on_each(
        &self,
        devices: Devices,
        make: impl Fn(&Guarded) -> Result<()>,
    ) -> Result<()> {
        self.of(devices).try_for_each(|device| match make(&device.engine) {
            Err(error) if is_failure(&error) && self.members() & 1 << device.number == 0 => {
                device.note_failure(&error);
                self.drop_member(device)
            }
            made => made.or_else(|error| self.go_on_without(device, error)),
        })
    }

    /// The sequence of the record that the group has of a key.
    pub(crate) fn sequence_of(&self, key: &[u8]) -> Result<Option<u64>> {
        self.ask(Self::primary, |device| sequence_on(&device.engine, key))
    }
}

/// The sequence of the record that an engine has of a key.
pub(crate) fn sequence_on(engine: &Guarded, key: &[u8]) -> Result<Option<u64>> {
    let mut sequence = None;
    let mut note = |record: Record<'_>| sequence = Some(record.sequence);
    engine.call(|it| it.get_with(key, Visibility::Durable, &mut note))?;
    Ok(sequence)
}
