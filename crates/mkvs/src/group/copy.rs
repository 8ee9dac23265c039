//! Copies of a write that one device has decided, on as many other devices as the write waits for.

use super::{Group, NotMade};
use crate::device::{Decided, Device, is_failure};
use crate::membership::{Moment, unproven};
use crate::shape::{Devices, Order, numbers};
use coreplane_engine::{Result, WriteOptions};
use coreplane_pmem::spin::Backoff;
use std::sync::Arc;

/// The devices that have a write, and the member states under which they are enough.
pub(crate) type Copied = (Devices, Moment);

impl Group {
    /// As [`Self::copy`], for one key.
    pub(super) fn copy_of(
        self: &Arc<Self>,
        order: &Order,
        made: Devices,
        decided: &Decided<'_>,
        options: &WriteOptions,
    ) -> std::result::Result<Copied, NotMade> {
        self.copy(order, made, |device| {
            device.pace.puts.of(|| decided.make(&device.engine, options))
        })
    }

    /// Makes a write on further devices until as many current members have it as a write waits for, the primary
    /// among them; devices that fail meanwhile are left out. Returns the devices that have it then. Refuses it while
    /// no device is known to have the record of the members.
    pub(crate) fn copy(
        &self,
        order: &Order,
        made: Devices,
        make: impl Fn(&Arc<Device>) -> Result<()>,
    ) -> std::result::Result<Copied, NotMade> {
        let not_made = |made, device: &Arc<Device>, error| {
            Err(NotMade { made, device: Some(Arc::clone(device)), error })
        };
        let (mut made, mut asked) = (made, made);
        loop {
            let now = self.states.now();
            if now.is_changing() {
                self.await_change();
                continue;
            }
            if now.is_unproven() {
                return Err(NotMade { made, device: None, error: unproven() });
            }
            let members = now.members();
            let has = (made & members).count_ones();
            let is_enough = has > 0 && has >= self.rules.ack.copies(members.count_ones());
            if is_enough && made & now.primary_set() != 0 {
                // Candidates may be members by the time of the answer.
                for device in self.of(now.candidates() & !made) {
                    if make(device).is_ok() {
                        made |= 1 << device.number;
                    } else if let Err(error) = self.drop_member(device) {
                        return not_made(made, device, error);
                    }
                }
                if self.states.now() == now {
                    return Ok((made, now));
                }
                continue;
            }
            // One may have become a member since the order was made.
            let listed = order.awaited().iter().chain(order.others()).copied();
            let rest = if is_enough { now.primary_set() } else { members } & !asked;
            let mut next = listed.chain(numbers(members)).filter(|number| rest & 1 << number != 0);
            let Some(number) = next.next() else { break };
            asked |= 1 << number;
            let Some(device) = self.at(number) else { continue };
            match make(device) {
                Ok(()) => made |= 1 << number,
                Err(error) if is_failure(&error) => {
                    if let Err(error) = self.go_on_without(device, error) {
                        return not_made(made, device, error);
                    }
                }
                // The device that readers ask has the write, so it cannot be taken back unseen: this device cannot
                // follow, like one without space for the writes in its ring.
                Err(error) if made & 1 << order.asked() != 0 => {
                    device.note_failure(&error);
                    if self.drop_member(device).is_err() {
                        return not_made(made, device, error);
                    }
                }
                Err(error) => return not_made(made, device, error),
            }
        }
        Err(NotMade { made, device: None, error: self.lost() })
    }

    /// Waits until a change of the members is durable.
    #[cold]
    pub(crate) fn await_change(&self) {
        let mut backoff = Backoff::new();
        while self.states.now().is_changing() {
            backoff.wait();
        }
    }
}
