//! One fence for a put on several devices, where a fence is an instruction.
//!
//! It orders all that its thread has flushed, whichever device that went to. So the put takes the locks of
//! all devices first, then each gets its record, and one fence is waited for; a copy more costs a record, and
//! not a fence. Each device's engine is called from within the one before it ([`Beside`]):
//!
//! ```text
//!   primary  locks ─▶ …………………………………………………………… its record ─▶ ………………………………… published
//!   another            locks ─▶ its record ─▶ ………………………………… fence ─▶ published
//! ```
//!
//! The primary is published last, as in any write: what a reader finds there, all devices have that the write
//! waits for. Before the fence nobody sees any of it, and a power cut leaves it on some of them or on none,
//! as one between two fences does.
//!
//! The devices are always locked in one order, the primary and then from the greatest number down, so that no two puts wait for
//! each other (a device joins when all that began before have ended); and no engine waits for anything but such locks meanwhile: what has no room or is not where a
//! fence is an instruction declines, and nothing was made anywhere. Then, as after any error, the write
//! begins anew, on one device after the other ([`Group::write`]). A caller that hangs in a device holds the
//! locks of those before it, too.

use super::Group;
use crate::device::Device;
use crate::device::decision::Decided;
use crate::device::ring::Decision;
use crate::shape::position::Devices;
#[cfg(doc)]
use coreplane_engine::Beside;
use coreplane_engine::{Brief, Error, Outcome};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What a put has come to on the devices that it waits for.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Those that have it.
    pub(super) made: Devices,
    /// A live record was replaced on the last of them.
    pub(super) replaced: bool,
    /// The first that has failed.
    pub(super) failed: Option<(Arc<Device>, Error)>,
}

fn panicked() -> Error {
    Error::Unusable("a device's engine has panicked".to_owned())
}

/// Puts a value on one device, whatever was there: true if it is durable there, and if it has replaced
/// another. What else comes of it is noted.
// Inlined, so that what is said in registers goes through no memory behind the fence.
#[inline(always)]
pub(super) fn put_alone(
    device: &Arc<Device>,
    decision: &Decision<'_>,
    copies: &mut Copies,
) -> (bool, bool) {
    let Decision { decided: Decided { key, put: Some((value, _)) }, options, .. } = decision else {
        return (false, false);
    };
    let put = || caught_briefly(|| device.engine.put_briefly(key, value, options, None));
    match device.pace.puts.of(put) {
        Brief::New => (true, false),
        Brief::Replaced => (true, true),
        brief => (copies.note(device, brief), copies.replaced),
    }
}

/// Makes a put of a device's engine. One that panics has failed.
#[inline(always)]
fn caught_briefly(put: impl FnOnce() -> Brief) -> Brief {
    catch_unwind(AssertUnwindSafe(put)).unwrap_or_else(|_| Brief::of(Err(panicked())))
}

impl Copies {
    #[inline]
    fn note_made(&mut self, number: u8, replaced: bool) {
        (self.made, self.replaced) = (self.made | 1 << number, replaced);
    }

    /// Notes what a device has answered; true if the put is durable there.
    #[inline]
    fn note(&mut self, device: &Arc<Device>, brief: Brief) -> bool {
        let number = device.number;
        match brief {
            Brief::New => self.note_made(number, false),
            Brief::Replaced => self.note_made(number, true),
            Brief::Declined => return false,
            Brief::Else(outcome) => {
                match *outcome {
                    // It is there, and its device does not say yet that it is durable.
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

    /// True if nothing was made, and surely so: after most errors a key may be there.
    pub(super) fn is_nothing(&self) -> bool {
        let is_sure = |(_, error): &(Arc<Device>, Error)| matches!(error, Error::NoSpace { .. });
        self.made == 0 && self.failed.as_ref().is_none_or(is_sure)
    }
}

impl Group {
    /// Puts a value on all of these devices and their primary, whatever was there, with one fence; true if it is durable on
    /// all. What else comes of it is noted.
    pub(super) fn put_with_one_fence(
        &self,
        devices: (Devices, u8),
        decision: &Decision<'_>,
        copies: &mut Copies,
    ) -> bool {
        self.put_within(devices, decision, copies, &mut || true)
    }

    /// The same, with what is to follow once all of these have their records, and before the fence.
    fn put_within(
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
        // Whose the write is as its entry has it: behind a change the write is looked at again.
        let first = if devices & 1 << primary != 0 { 1 << primary } else { devices };
        let Some(number) = first.checked_ilog2().map(|it| it as u8) else { return false };
        let Some(device) = self.at(number) else { return false };
        let rest = devices & !(1 << number);
        let mut has_panicked = false;
        let mut beside = |record: &mut dyn FnMut() -> bool| {
            let mut records = || {
                // Called by the engines of other devices, which are not to blame if it panics.
                let recorded = catch_unwind(AssertUnwindSafe(&mut *record));
                has_panicked |= recorded.is_err();
                recorded.unwrap_or(false) && others()
            };
            match rest {
                0 => records(),
                _ => self.put_within((rest, primary), decision, copies, &mut records),
            }
        };
        let put = || device.engine.put_briefly(key, value, options, Some(&mut beside));
        let brief = device.pace.puts.of(|| caught_briefly(put));
        copies.note(device, if has_panicked { Brief::of(Err(panicked())) } else { brief })
    }
}
