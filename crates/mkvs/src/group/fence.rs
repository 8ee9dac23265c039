//! One fence for a put on several devices, where a fence is an instruction.
//!
//! A fence orders all data that its thread has flushed, on any device. So the put takes the locks of all devices
//! first, then each device gets its record, and the put waits for one fence: a further copy costs a record, and not
//! a fence. Each device's engine is called from within the one before it ([`Beside`]):
//!
//! ```text
//!   primary  locks ─▶ …………………………………………………………… its record ─▶ ………………………………… published
//!   another            locks ─▶ its record ─▶ ………………………………… fence ─▶ published
//! ```
//!
//! The primary publishes last, as in any write: all awaited devices have a record that a reader finds there. Before
//! the fence no reader sees any of the records, and a power cut leaves them on some of the devices or on none, as a
//! power cut between two fences does.
//!
//! The devices are always locked in one order, the primary and then from the greatest number down, so that no two
//! puts wait for each other (a device joins when all puts that began before have ended). No engine waits for
//! anything but such locks meanwhile: an engine without room, or on media where a fence is not an instruction,
//! declines, and nothing is made on any device. Then, as after any error, the write begins anew, on one device
//! after the other ([`Group::write`]). A caller that hangs in a device also holds the locks of the devices before
//! it.

use super::Group;
use crate::device::{Decided, Decision, Device, panicked};
use crate::shape::Devices;
#[cfg(doc)]
use coreplane_engine::Beside;
use coreplane_engine::{Brief, Error, Outcome};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The result of a put on the devices that it waits for.
#[derive(Default)]
pub(super) struct Copies {
    /// The devices that have it.
    pub(super) made: Devices,
    /// True if a live record was replaced on the last of them.
    pub(super) replaced: bool,
    /// The first device that has failed, and its error.
    pub(super) failed: Option<(Arc<Device>, Error)>,
}

/// Puts a value on one device, unconditionally: true if it is durable there, and true if it has replaced another.
/// Any other result is noted in `copies`.
// Inlined, so that results in registers go through no memory after the fence.
#[inline(always)]
pub(super) fn put_alone(
    device: &Arc<Device>,
    decision: &Decision<'_>,
    copies: &mut Copies,
) -> (bool, bool) {
    let Decision { decided: Decided { key, put: Some((value, _)) }, options, .. } = decision else {
        return (false, false);
    };
    let put = || device.engine.put_briefly(key, value, options, None);
    match device.pace.puts.of(put) {
        Brief::New => (true, false),
        Brief::Replaced => (true, true),
        brief => (copies.note(device, brief), copies.replaced),
    }
}

impl Copies {
    #[inline]
    fn note_made(&mut self, number: u8, replaced: bool) {
        (self.made, self.replaced) = (self.made | 1 << number, replaced);
    }

    /// Notes the answer of a device; true if the put is durable there.
    #[inline]
    fn note(&mut self, device: &Arc<Device>, brief: Brief) -> bool {
        let number = device.number;
        match brief {
            Brief::New => self.note_made(number, false),
            Brief::Replaced => self.note_made(number, true),
            Brief::Declined => return false,
            Brief::Else(outcome) => {
                match *outcome {
                    // The record is there, and its device does not report yet that it is durable.
                    Ok(Outcome::Written(written)) => self.note_made(number, written.replaced),
                    Ok(_) => {}
                    Err(error) => {
                        self.failed.get_or_insert_with(|| (Arc::clone(device), error));
                    }
                }
                return false;
            }
        }
        true
    }

    /// True if nothing was made for certain: after most errors a record may be there.
    pub(super) fn is_nothing(&self) -> bool {
        let is_sure = |(_, error): &(Arc<Device>, Error)| matches!(error, Error::NoSpace { .. });
        self.made == 0 && self.failed.as_ref().is_none_or(is_sure)
    }
}

impl Group {
    /// Puts a value unconditionally on all of these devices, given with their primary, with one fence; true if it
    /// is durable on all. Whether it has replaced another, and any other result, is noted in `copies`. `others` is
    /// called once all of these devices have their records, before the fence.
    pub(super) fn put_with_one_fence(
        &self,
        (devices, primary): (Devices, u8),
        decision: &Decision<'_>,
        copies: &mut Copies,
        others: &mut dyn FnMut() -> bool,
    ) -> bool {
        let Decision { decided: Decided { key, put: Some((value, _)) }, options, .. } = decision
        else {
            return false;
        };
        // The primary is the one of the write's entry: after a change of the members the write is checked again.
        let first = if devices & 1 << primary != 0 { 1 << primary } else { devices };
        let Some(number) = first.checked_ilog2().map(|it| it as u8) else { return false };
        let Some(device) = self.at(number) else { return false };
        let rest = devices & !(1 << number);
        let mut has_panicked = false;
        let mut beside = |record: &mut dyn FnMut() -> bool| {
            let mut records = || {
                // Called by the engines of other devices, which have not failed if it panics.
                let recorded = catch_unwind(AssertUnwindSafe(&mut *record));
                has_panicked |= recorded.is_err();
                recorded.unwrap_or(false) && others()
            };
            match rest {
                0 => records(),
                _ => self.put_with_one_fence((rest, primary), decision, copies, &mut records),
            }
        };
        let put = || device.engine.put_briefly(key, value, options, Some(&mut beside));
        let brief = device.pace.puts.of(put);
        copies.note(device, if has_panicked { Brief::of(Err(panicked())) } else { brief })
    }
}
