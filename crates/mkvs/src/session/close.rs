//! The close of a matrix, which leaves nothing to compare when it is opened again.

use crate::matrix::Matrix;
use coreplane_engine::{Error, Result};
use std::sync::atomic::Ordering;

impl Matrix {
    /// Closes the matrix, and leaves it clean. Writes fail from now on.
    pub(super) fn leave_clean(&self) -> Result<()> {
        let failed = || {
            let what =
                "the matrix was not closed in good order: it is brought level when it is opened";
            Error::Unusable(what.to_owned())
        };
        if self.keyspace.closed.swap(true, Ordering::SeqCst) {
            let is_clean = self.is_clean.load(Ordering::Acquire);
            return if is_clean { Ok(()) } else { Err(failed()) };
        }
        self.keyspace.in_flight.wait_for_key_locks();
        while !self.failover.checkpoint(true)? {}
        let is_clean = self.keyspace.in_flight.indeterminate().is_empty()
            && self.failover.intents.lost().is_empty();
        if is_clean {
            // Valid only if nothing changes any more.
            self.filters.keep_filters(self.failover.membership.now().epoch + 1);
        }
        drop(self.failover.change(|record| record.is_clean = is_clean)?);
        self.stop();
        for group in self.keyspace.groups.iter() {
            // A device that hangs is not waited for.
            for device in group.devices().filter(|device| !device.is_given_up()) {
                let closed = device.engine.call(|it| it.close());
                // A failure of a device that is no member does not matter.
                if group.members() & 1 << device.number != 0 {
                    closed?;
                }
            }
        }
        if !is_clean {
            return Err(failed());
        }
        self.is_clean.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the processors, and the matrix's own thread.
    pub(crate) fn stop(&self) {
        self.keyspace.closed.store(true, Ordering::SeqCst);
        self.filters.stop();
        self.keyspace
            .groups
            .iter()
            .flat_map(|group| group.devices())
            .for_each(|device| device.stop());
        // Last: it releases a caller that waits for a device that hangs.
        self.keyspace.groups.iter().for_each(|group| group.watch.stop());
    }
}
