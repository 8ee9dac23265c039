//! Routing: a command is run here, or by the leader of the cluster that this server is a node of.

use super::table::{COUNTED, Command, RECORDS, WRITE};
use super::{Failure, key_slot};
use crate::Standing;
use crate::host::Host;
use crate::resp::frame::Words;
use crate::session::{Session, UpstreamState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long a command waits for a leader.
const PATIENCE: Duration = Duration::from_secs(5);

/// The place where a command is run.
pub(super) enum Route {
    Here,
    Forward(SocketAddr),
    /// In a later turn, perhaps.
    Later,
    Nowhere(Failure),
}

/// True if the command needs the records.
fn needs_records(command: &Command) -> bool {
    command.keys.first != 0 || command.has(WRITE | COUNTED | RECORDS)
}

/// True if the client has asked for reads from a follower, and the command reads keys that it names.
fn is_follower_read(session: &Session, command: &Command) -> bool {
    session.is_read_only
        && !session.is_forwarded
        && !command.has(WRITE)
        && command.keys.first != 0
        && command.name != "watch"
        && session.queue.is_none()
        && session.watches.is_empty()
}

/// Where the command is run. A command that needs no records is run here, in its turn.
pub(super) fn route(
    host: &Host,
    session: &mut Session,
    command: &Command,
    words: Words<'_>,
) -> Route {
    let Some(cluster) = &host.config.cluster else { return Route::Here };
    let upstream = session.upstream;
    let begins_anew = matches!(command.name, "reset" | "quit");
    if !needs_records(command) && (!upstream.is_in_multi || begins_anew) {
        if upstream.leader.is_some() && !upstream.is_awaited && command.name == "hello" {
            return Route::Nowhere("ERR HELLO is not allowed while keys are watched".into());
        }
        // Commands run in the order in which they came.
        return if upstream.is_awaited { Route::Later } else { Route::Here };
    }
    if let Some(leader) = upstream.leader {
        // A transaction or watch that began with a leader goes on with it.
        return Route::Forward(leader);
    }
    match cluster.standing() {
        Standing::Leads => Route::Here,
        _ if is_follower_read(session, command) && cluster.follower_reads().is_some() => {
            session.postponed_since = None;
            session.shows_follower = true;
            Route::Here
        }
        // A transaction or watch that began with this node cannot go on elsewhere.
        _ if session.queue.is_some() || !session.watches.is_empty() => {
            session.is_closing = true;
            Route::Nowhere("TRYAGAIN another node leads now; the transaction is discarded".into())
        }
        Standing::Follows(leader) if cluster.redirects() => {
            let first = usize::try_from(command.keys.first).unwrap_or(0);
            let key = if first > 0 && first < words.len() { words.at(first) } else { &[] };
            Route::Nowhere(format!("MOVED {} {leader}", key_slot(key)).into())
        }
        Standing::Follows(leader) if !session.is_forwarded => {
            session.postponed_since = None;
            Route::Forward(leader)
        }
        Standing::Follows(_) | Standing::Unknown => wait(session),
    }
}

/// Where a refused command is answered: not before its turn, and within a transaction at the node that has it.
pub(super) fn route_refused(session: &Session) -> Route {
    match session.upstream {
        UpstreamState { is_in_multi: true, leader: Some(leader), .. } => Route::Forward(leader),
        UpstreamState { is_awaited: true, .. } => Route::Later,
        _ => Route::Here,
    }
}

fn wait(session: &mut Session) -> Route {
    let since = *session.postponed_since.get_or_insert_with(Instant::now);
    if since.elapsed() < PATIENCE {
        return Route::Later;
    }
    session.postponed_since = None;
    Route::Nowhere("CLUSTERDOWN no node leads, or the leader cannot be reached".into())
}
