//! The totals of a server, for the line that is printed when it ends.

use crate::server::Handle;
use std::time::Duration;

/// The totals of a server so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Commands run, since `CONFIG RESETSTAT` if there was one.
    pub commands: u64,
    /// Connections accepted, since `CONFIG RESETSTAT` if there was one.
    pub connections: u64,
    /// Since it was bound.
    pub uptime: Duration,
}

impl Handle {
    /// The totals so far; after the end of the server, the final totals.
    pub fn summary(&self) -> Summary {
        let host = &self.host;
        Summary {
            commands: host.sum(|counters| counters.commands.get()),
            connections: host.sum(|counters| counters.connections.get()),
            uptime: host.started.elapsed(),
        }
    }
}
