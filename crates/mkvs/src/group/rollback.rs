//! Taking back writes that were refused on the way: on all devices, so that they have the same records again.

use super::{Group, NotMade, Tried};
use crate::device::{Decided, Device, is_damage};
use crate::in_flight::{Old, Torn};
use crate::shape::{Devices, numbers};
use coreplane_engine::{Durability, Error, Record, Result, Visibility, WriteOptions};
use coreplane_pmem::mutant;
use std::sync::Arc;

/// The record of a key on a device, and its sequence.
///
/// # Errors
/// As the engine, and if the record is damaged.
pub(crate) fn sound_of(device: &Device, key: &[u8]) -> Result<(Old, u64)> {
    let (mut old, mut known) = (None, 0);
    let mut note = |record: Record<'_>| {
        old = Some((record.value.to_vec(), record.expires_at));
        known = record.sequence;
    };
    device.engine.call(|it| it.get_with(key, Visibility::Durable, &mut note))?;
    device.engine.call(|it| it.check(key))?;
    Ok((old, known))
}

/// The error for a write that was taken back. The restored record has a newer sequence than the one that was
/// `given`: a retry with that sequence would be refused as older, as if the write had been made once.
pub(crate) fn taken_back(given: Option<u64>, error: Error) -> Error {
    match given {
        None => error,
        Some(given) => Error::Unusable(format!(
            "the write with the sequence {given} was made on some devices and taken back ({error}): what \
             was there is newer now, so that it can be made with a later sequence only"
        )),
    }
}

/// The options with which a write is taken back. It may be a part of a batch, whose intent is deleted next: a power
/// cut must not leave that part then, at any durability level. The record takes the place of an earlier one: a full
/// device must not be left out for that.
pub(crate) fn undo_options(sequence: u64) -> WriteOptions {
    let durability = (!mutant!("mkvs.undo.relaxed")).then_some(Durability::Strict);
    let (sequence, options) = (Some(sequence), WriteOptions::default());
    WriteOptions { sequence, durability, use_reserve: true, ..options }
}

impl Group {
    /// Ends a write that was refused on the way: readers find the record before it again; or they fail, as long as
    /// the write is `torn`.
    pub(crate) fn refuse(&self, hash: u64, key: &[u8], torn: Option<Torn>) {
        match torn {
            None => self.in_flight.refuse((hash, key), self.followers()),
            Some(torn) => self.in_flight.fail(self.number, (hash, key), torn),
        }
    }

    /// Takes back a write that was not made on as many devices as it waits for.
    ///
    /// # Errors
    /// If that is impossible: then the key is in doubt.
    #[cold]
    pub(super) fn unmake(
        self: &Arc<Self>,
        hash: u64,
        asked: u8,
        decided: &Decided<'_>,
        NotMade { made, device, error }: NotMade,
    ) -> Result<Tried> {
        let mut torn = Torn { made, asked, old: None, known: 0 };
        let taken_back = match mutant!("mkvs.refuse.not_taken_back") {
            true => Ok(()),
            false => self.take_back(&mut torn, decided.key),
        };
        // A delete may have been seen on another device, by a thread that fills the filter.
        if made & 1 << asked != 0 || decided.put.is_none() {
            self.in_flight.count_taken_back();
        }
        self.refuse(hash, decided.key, taken_back.is_err().then_some(torn));
        taken_back.map(|()| Tried::TakenBack(device, error))
    }

    /// Takes back a write that was made on some devices: all get the record before it. If that is not known it is
    /// read from a device on which the write was not made: from the one that readers were `asked` to read, if
    /// possible.
    ///
    /// # Errors
    /// If there is no such device, or the record cannot be read; the known state is noted in `torn`.
    pub(crate) fn take_back(&self, torn: &mut Torn, key: &[u8]) -> Result<()> {
        if torn.old.is_none() {
            let (old, known) = self.old_of(torn.made, torn.asked, key)?;
            (torn.old, torn.known) = (Some(old), known);
        }
        self.write_anew(key, (torn.old.as_ref().unwrap_or(&None), torn.known), torn.made)
    }

    /// Makes a record, whose sequence was `known`, anew on all devices, in place of a write that was `made` on some.
    ///
    /// # Errors
    /// As [`Self::renew`] and [`Self::restore`].
    pub(crate) fn write_anew(
        &self,
        key: &[u8],
        (old, known): (&Old, u64),
        made: Devices,
    ) -> Result<()> {
        let (old, sequence) = (Decided::to(key, old), self.draw(None));
        if old.put.is_some() {
            self.renew(key, known, sequence)?;
        }
        let options = undo_options(sequence);
        self.restore(made, |device, is_spared| {
            old.restore(&device.engine, &options, is_spared).map(drop)
        })
    }

    /// The record of a key is about to be written anew, with another sequence than the `known` one: if it was
    /// unknown whether the record is the last write, it must not seem so afterwards. The caller has the key lock.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub(super) fn renew(&self, key: &[u8], known: u64, sequence: u64) -> Result<()> {
        self.superior()?.renew((self.number, key), known, sequence)
    }

    /// The record before a write that was made on some devices, and its sequence, from a member on which the write
    /// was not made and the record is not damaged: a record that is written anew gets a new checksum. The caller
    /// has the key lock.
    fn old_of(&self, made: Devices, asked: u8, key: &[u8]) -> Result<(Old, u64)> {
        let sure = self.in_flight.sure_of(self.number, self.members(), |it| it == key);
        let of_asked = std::iter::once(asked).chain(numbers(self.members()));
        let mut why = self.lost();
        for number in of_asked.filter(|number| made & 1 << number == 0) {
            let device = self.device(number)?;
            device.drain();
            // Another device may be in the place of one that has failed by now, and is no member yet.
            let is_member = self.members() & 1 << number != 0 && self.is_there(device);
            if is_member && (number == asked || sure & 1 << number != 0) {
                match sound_of(device, key) {
                    Err(error) if is_damage(&error) => why = error,
                    old => return old,
                }
            }
        }
        Err(why)
    }

    /// Restores the record before a refused write on all devices: where the write was made, where it was copied
    /// from there, and on the others, so that all have the same. Members that did not have the write are spared
    /// changes without effect; they come last, so that a power cut before finds the whole write still, or the whole
    /// record before it. A device without space even for that is left out.
    ///
    /// # Errors
    /// If a device that may have the refused write cannot be left out.
    pub(crate) fn restore(
        &self,
        made: Devices,
        make: impl Fn(&Device, bool) -> Result<()>,
    ) -> Result<()> {
        self.in_flight.keep_tombstones(1);
        let (followers, first) =
            (self.followers(), if mutant!("mkvs.undo.others_first") { 0 } else { made });
        for device in self.of(followers & first).chain(self.of(followers & !first)) {
            // A device that is being filled may still get the write.
            let is_needed = (made | !self.members()) & 1 << device.number != 0;
            if !is_needed {
                // The write may be in its ring: then the device lacks the key only for the moment.
                device.drain();
            }
            if let Err(error) = make(device, !is_needed) {
                device.note_failure(&error);
                let left = self.drop_member(device);
                // Otherwise the device has the same value as the others, and an older sequence.
                if is_needed {
                    left?;
                }
            }
        }
        Ok(())
    }
}
