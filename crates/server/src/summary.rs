//! What a server has done, for the line that is said when it ends.

use crate::server::Handle;
use std::time::Duration;

/// What a server has done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Commands that were run, since `CONFIG RESETSTAT` if there was one.
    pub commands: u64,
    /// Connections that were accepted, since `CONFIG RESETSTAT` if there was one.
    pub connections: u64,
    /// Since it was bound.
    pub uptime: Duration,
}

impl Handle {
    /// What the server has done so far; after its end, all that it has done.
    pub fn summary(&self) -> Summary {
        let host = &self.host;
        Summary {
            commands: host.sum(|counters| counters.commands.get()),
            connections: host.sum(|counters| counters.connections.get()),
            uptime: host.started.elapsed(),
        }
    }
}
