//! File descriptors for the clients: the process's limit of open files.
//!
//! Without a descriptor a connection stays in the backlog, unanswered. So the limit is raised as far as the system
//! lets it, and no more clients are admitted than find a descriptor: one too many is told so.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors beyond those that are open at the start: for files that are opened later, and for connections that are
/// accepted to be refused.
const RESERVE: u64 = 64;

/// Makes room for `max_clients` clients, of which `clients` are connected, with `each` descriptors at most; the number
/// of clients that there is room for: at least one, and `max_clients` at most.
#[must_use]
pub fn make_room(max_clients: u32, clients: usize, each: u64) -> u32 {
    let others = open().saturating_sub(clients as u64) + RESERVE;
    let wanted = others + u64::from(max_clients) * each;
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = limit.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        let before = limit.current.replace(raised);
        if setrlimit(Resource::Nofile, limit).is_err() {
            limit.current = before;
        }
    }
    let places = limit.current.map_or(u64::MAX, |current| current.saturating_sub(others) / each);
    max_clients.min(u32::try_from(places).unwrap_or(u32::MAX)).max(1)
}

/// The number of open descriptors, as far as the system tells.
fn open() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |descriptors| descriptors.count() as u64)
}
