//! A stretch of a scan that devices compete for.
//!
//! The primary is asked first: it has the record of every key that a reader is shown. Another member may answer in
//! its place if there is no difference: when it begins, every write of the group that is under way has come to it,
//! and when it ends, no write has begun since. So while the primary stalls, a scan goes on unless there is a
//! writer, which waits for the primary too.

use super::{Answer, HedgedRead, Question, run};
use crate::device::stretch::{Bounds, Stretch};
use crate::device::{Device, Scratch};
use crate::group::Group;
use crate::membership::states::Moment;
use crate::shape::owners::Owners;
use crate::shape::position::Devices;
use crate::stats::hedge_delay::Pace;
use coreplane_engine::Result;
use std::sync::Arc;

/// Tries of a member while there are writers.
const READS: u32 = 4;

/// The question: a stretch of a scan.
#[derive(Debug)]
struct Span {
    owners: Arc<Owners>,
    start: Vec<u8>,
    end: Option<Vec<u8>>,
    reverse: bool,
    count: usize,
    primary: u8,
    /// The states under which it was the primary.
    settled: Moment,
}

impl Span {
    fn fetch(&self, (group, device): (&Group, &Device), found: &mut Stretch) -> Result<()> {
        let bounds = (self.start.as_slice(), self.end.as_deref(), self.reverse);
        let is_shown = |key: &[u8]| self.owners.shows(group.number, key);
        found.by = device.number;
        found.fetch(&*device.engine, bounds, self.count, is_shown)
    }
}

impl Answer for Stretch {
    fn is_small(&self) -> bool {
        Stretch::is_small(self)
    }
}

impl Question for Span {
    type Answer = Stretch;

    fn look(&self, (group, device): (&Group, &Device), found: &mut Stretch) -> Result<bool> {
        let is_member = |now: Moment| now.members() & 1 << device.number != 0;
        if device.number == self.primary {
            if group.states.now() != self.settled || !group.is_there(device) {
                return Ok(false);
            }
            return self.fetch((group, device), found).map(|()| true);
        }
        let of_group = |hash| self.owners.of(hash).owner() == usize::from(group.number);
        for _ in 0..READS {
            let now = group.states.now();
            if !is_member(now) || !group.is_there(device) {
                return Ok(false);
            }
            let Some(level) = group.in_flight.level(device.number, of_group) else { continue };
            self.fetch((group, device), found)?;
            if group.in_flight.is_level_since(&level) && group.states.now() == now {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn candidates(&self, group: &Group) -> Devices {
        group.members()
    }

    fn pace(device: &Device) -> &Pace {
        &device.scan_pace
    }

    fn scratch(scratch: &mut Scratch) -> &mut Stretch {
        &mut scratch.stretch
    }
}

/// Reads a stretch through the rings: on the primary, and, if it is late and devices compete, on others. A primary
/// that is known to be late is asked last. False if the device must be chosen anew.
///
/// # Errors
/// As the engine, and if the group has no member left.
pub(crate) fn read(
    group: &Arc<Group>,
    (primary, settled): (&Arc<Device>, Moment),
    owners: &Arc<Owners>,
    ((start, end, reverse), count): (Bounds<'_>, usize),
    found: &mut Stretch,
) -> Result<bool> {
    let ask = |first: &Arc<Device>, found: &mut Stretch| {
        let (start, end) = (start.to_vec(), end.map(<[u8]>::to_vec));
        let (owners, primary) = (Arc::clone(owners), primary.number);
        let race =
            HedgedRead::new(Span { owners, start, end, reverse, count, primary, settled }, group);
        let race = Arc::new(race);
        let is_answered = run(group, first, &race, group.competes());
        std::mem::swap(found, &mut race.end().answer);
        is_answered
    };
    if group.competes() && (primary.scan_pace.is_late() || primary.pace.is_late()) {
        let others = settled.members() & !(1 << primary.number);
        if let Some(other) = group.fastest(others)
            && ask(group.device(other)?, found)?
        {
            return Ok(true);
        }
    }
    ask(primary, found)
}
