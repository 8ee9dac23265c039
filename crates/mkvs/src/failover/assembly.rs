//! Assembles a group that informs the matrix of failed devices.

use super::Failover;
use crate::device::Device;
use crate::filter::{CAPACITY_MIN, Filter};
use crate::group::{Demote, Group, Parts, Renew, Rules};
use crate::in_flight::InFlight;
use coreplane_engine::{Error, Result};
use crossbeam_utils::CachePadded;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

/// Assembles a group whose filter has no keys yet.
pub(crate) fn assemble_group(
    failover: &Weak<Failover>,
    number: u16,
    (devices, primary): (Vec<Arc<Device>>, u8),
    (in_flight, sequence, rules): (Arc<InFlight>, Arc<CachePadded<AtomicU64>>, Rules),
) -> Result<Arc<Group>> {
    let members = devices.iter().fold(0, |set, device| set | 1 << device.number);
    let (failover, of_renew) = (failover.clone(), failover.clone());
    let demote: Demote = Box::new(move |position, device| match failover.upgrade() {
        Some(failover) => failover.demote(position, device),
        None => Err(Error::Closed),
    });
    let renew: Renew = Box::new(move |whose, known, sequence| match of_renew.upgrade() {
        Some(failover) => failover.keep_lost_range(whose, known, sequence),
        None => Err(Error::Closed),
    });
    let filter = Filter::with_capacity(CAPACITY_MIN);
    let filter = filter.map_err(|error| Error::Unusable(error.to_string()))?;
    let of_group = Parts {
        number,
        devices,
        members,
        primary,
        filter,
        in_flight,
        sequence,
        rules,
        demote,
        renew,
    };
    Ok(Arc::new(Group::new(of_group)))
}
