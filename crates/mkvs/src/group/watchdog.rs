//! A device that hangs: a call of its processor does not return, and there is no error either.
//!
//! A thread checks now and then whether each processor is still in the same call as before. A device whose
//! processor has been in one for too long is left out like a failed device, durably, and only then given up: no
//! thread waits for it any more, neither for an answer, nor for the writes in its ring, nor for its end. If the
//! call returns after all, its effects do not count, as on any device that was left out.
//!
//! Callers that call a device in their own threads are not watched: they cannot be taken out of it. They keep the
//! key locks of their keys, too. A caller that makes a fast put ([`fast_put`](super::fast_put)) has a place in the
//! ring of the first follower, which does not get past it meanwhile: no later write of the group comes to that
//! follower, whatever its key, and a thread that waits for its ring to be empty, as a sync does, waits as well. The
//! membership record is written to each device by a thread of its own, with the same time to answer
//! ([`change`](crate::failover::change)).

use super::Group;
use crate::device::Device;
use coreplane_engine::Error;
use coreplane_pmem::{background, spin};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread: started with the first processor.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    is_over: AtomicBool,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Watch {
    /// Has the group watched, if its processors are to answer within some time.
    #[cold]
    pub(crate) fn start(&self, group: &Arc<Group>) {
        let Some(within) = group.rules.answers_within else { return };
        let mut handle = spin::lock(&self.handle);
        if handle.is_none() && !self.is_over.load(Ordering::SeqCst) {
            let group = Arc::downgrade(group);
            let watch = move || run(&group, within);
            // If the system gives no thread, the next processor that starts tries again.
            *handle = background::spawn_in_time("coreplane-watch", watch).ok();
        }
    }

    /// Ends it.
    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        let handle = spin::lock(&self.handle).take();
        if let Some(handle) = handle {
            handle.thread().unpark();
            // A panic there has been reported by its thread.
            let _ended = handle.join().is_ok();
        }
    }
}

fn run(group: &Weak<Group>, within: Duration) {
    loop {
        std::thread::park_timeout(within / 2);
        let Some(group) = group.upgrade() else { return };
        if group.watch.is_over.load(Ordering::SeqCst) {
            return;
        }
        // Devices that have left are included: giving up such a device releases the threads that wait for it.
        for device in group.devices().filter(|device| device.hangs(within)) {
            group.leave_hanging(device, within);
        }
    }
}

impl Group {
    /// Gives up a device that is in the same call for too long.
    fn leave_hanging(&self, device: &Device, within: Duration) {
        let members = self.members();
        if members & 1 << device.number != 0 && members.count_ones() < 2 {
            // There is no device to go on with.
            return;
        }
        let context = format!("it has not answered for {} s", within.as_secs_f32());
        device.note_failure(&Error::Io { context, source: io::ErrorKind::TimedOut.into() });
        let is_out = self.drop_member(device).is_ok();
        if is_out && self.followers() & 1 << device.number == 0 {
            device.give_up();
        }
    }
}
