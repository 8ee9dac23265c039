//! Where a write is decided: on the first device that it waits for, or on a peer if the record there is damaged.

use super::{Group, NotMade};
use crate::device::Device;
use crate::device::decision::is_damage;
use crate::device::write::Write;
use crate::shape::order::Order;
use crate::shape::position::Devices;
use coreplane_engine::{Error, Outcome, Result, WriteOptions};
use std::sync::Arc;

/// The result of a decision.
pub(super) enum Decision {
    /// It was made on these devices, and perhaps could not be made on one that it waits for; or the outcome is that
    /// nothing is written.
    Made(Outcome, std::result::Result<Devices, NotMade>),
    /// It was refused by this device, and was made nowhere.
    Refused(Arc<Device>, Error),
}

impl Group {
    /// Has the first device that a write waits for decide it. If the record there is damaged, or in doubt, the
    /// peers have it: the next of them decides, and the first gets the outcome like the others. The caller has the
    /// key lock.
    pub(super) fn decide(
        self: &Arc<Self>,
        order: &Order,
        options: &WriteOptions,
        write: &mut Write<'_>,
    ) -> Result<Decision> {
        let first = self.device(order.awaited()[0])?;
        match first.pace.puts.of(|| write.decide(&*first.engine, options)) {
            Ok(outcome) => Ok(Decision::Made(outcome, Ok(1 << first.number))),
            Err(error) if is_damage(&error) => self.decide_around(order, error, options, write),
            Err(error) => Ok(Decision::Refused(Arc::clone(first), error)),
        }
    }

    #[cold]
    fn decide_around(
        self: &Arc<Self>,
        order: &Order,
        error: Error,
        options: &WriteOptions,
        write: &mut Write<'_>,
    ) -> Result<Decision> {
        let awaited = order.awaited();
        for number in awaited[1..].iter().chain(order.others()) {
            let Ok(device) = self.device(*number) else { continue };
            device.drain();
            // A follower has the newest record now, unless it has failed to make it.
            let key = write.decided().key.to_vec();
            if !self.is_member(device) || !self.is_sure(device, |it| it == key) {
                continue;
            }
            let outcome = match write.decide(&*device.engine, options) {
                Ok(outcome) => outcome,
                Err(error) if is_damage(&error) => continue,
                Err(error) => return Ok(Decision::Refused(Arc::clone(device), error)),
            };
            let made = 1 << number;
            if awaited.contains(number) || outcome.written().is_none() {
                return Ok(Decision::Made(outcome, Ok(made)));
            }
            // The write may have enough copies without the device that readers ask: so that device gets it now.
            let asked = self.device(order.asked())?;
            let of_asked = match write.decided().make(&*asked.engine, options) {
                Ok(()) => Ok(made | 1 << asked.number),
                Err(error) => Err(NotMade { made, device: Some(Arc::clone(asked)), error }),
            };
            return Ok(Decision::Made(outcome, of_asked));
        }
        // The record is damaged on every device that has it.
        Ok(Decision::Refused(Arc::clone(self.device(awaited[0])?), error))
    }
}
