//! A record of a group, made on all of its devices.

use super::Group;
use crate::device::decision::is_failure;
use coreplane_engine::{Outcome, Result, StorageEngine, UnixMillis, Visibility, WriteOptions};

/// A record, or a tombstone.
pub(crate) struct Item {
    pub(crate) key: Vec<u8>,
    pub(crate) put: Option<(Vec<u8>, Option<UnixMillis>)>,
    pub(crate) sequence: u64,
}

/// A record as it is read: its sequence, its value and its expiry.
type Seen = Option<(u64, Vec<u8>, Option<UnixMillis>)>;

impl Item {
    /// Makes it on an engine, unless the engine has a newer record.
    pub(crate) fn give_to(&self, engine: &dyn StorageEngine) -> Result<Outcome> {
        let sequence = Some(self.sequence);
        let options = WriteOptions { sequence, ..WriteOptions::default() };
        match &self.put {
            Some((value, expires_at)) => {
                let options = WriteOptions { expires_at: *expires_at, ..options };
                engine.put(&self.key, value, &options)
            }
            None => engine.delete(&self.key, &options),
        }
    }
}

impl Group {
    /// The record that the group has of a key, to be made elsewhere.
    ///
    /// # Errors
    /// As the devices, and if the record is damaged.
    pub(crate) fn item_of(&self, key: &[u8]) -> Result<Option<Item>> {
        let mut item = None;
        self.ask_primary(|device| {
            // A record that a failed try has shown is discarded.
            item = None;
            device.engine.get_with(key, Visibility::Durable, &mut |record| {
                let put = Some((record.value.to_vec(), record.expires_at));
                item = Some(Item { key: key.to_vec(), put, sequence: record.sequence });
            })?;
            device.engine.check(key)
        })?;
        Ok(item)
    }

    /// Makes a record on all devices, and counts it in the group's filter; true if the group has a record of the
    /// key then. The caller has the key lock.
    pub(crate) fn give(&self, hash: u64, item: &Item) -> Result<bool> {
        let change = self.filter.change();
        let had = self.seen(&item.key)?.is_some();
        let inserted = change.insert(hash);
        let given =
            self.of(self.followers()).try_for_each(|device| match item.give_to(&*device.engine) {
                Err(error) if is_failure(&error) => self.go_on_without(device, error),
                other => other.map(|_| ()),
            });
        let has = given.and_then(|()| Ok(self.seen(&item.key)?.is_some()));
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

    /// The record that the group has of a key.
    pub(crate) fn seen(&self, key: &[u8]) -> Result<Seen> {
        let mut seen = None;
        self.ask_primary(|device| {
            // A record that a failed try has shown is discarded.
            seen = None;
            device.engine.get_with(key, Visibility::Durable, &mut |record| {
                seen = Some((record.sequence, record.value.to_vec(), record.expires_at));
            })
        })?;
        Ok(seen)
    }
}
