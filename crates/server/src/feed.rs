//! Changes that clients watch: this node of a cluster pushes the entries that it applies to them, one by one.
//!
//! ```text
//!   CLUSTER WATCH 41 PREFIX user: ─▶ 44                        applied here by now
//!     > changes 42  user:1 value -     user:2 - -              key, value (none: deleted), expiry
//!     > changes 44                                             no change of these keys up to there
//!     > changes-gone 97                                        entries up to 97 are gone: the watch has ended
//! ```
//!
//! An entry is pushed when a majority has it, whole and once, in the order of indices. While a client receives
//! nothing, nothing is pushed to it; if entries that it lacks are gone by then, it is told so.

use crate::connection::Connection;
use crate::event_loop::EventLoop;
use crate::resp::reply::{Proto, Reply};
use crate::{AppliedEntry, ClusterInfo};
use coreplane_engine::{ChangeRef, Error, Result, UnixMillis};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of entries that are read at once.
const PIECE_BYTES: usize = 64 << 10;
/// Pending bytes of a client above which nothing is pushed to it: the entries that it lacks are kept once for all
/// watchers.
const WAITING_MAX: usize = 1 << 20;
/// The longest time without a push while new entries change none of the client's keys.
const SILENCE: Duration = Duration::from_secs(1);

/// The watch of a client.
#[derive(Debug)]
pub(crate) struct Feed {
    /// The last entry that was read, and the last that the client was told of.
    index: u64,
    told: u64,
    told_at: Instant,
    /// The prefix of the keys.
    prefix: Vec<u8>,
    /// The client has not received all changes yet.
    is_behind: bool,
}

impl Feed {
    /// A watch of changes behind this index, of keys with this prefix.
    pub(crate) fn new(index: u64, prefix: &[u8]) -> Self {
        Self {
            index,
            told: index,
            told_at: Instant::now(),
            prefix: prefix.to_vec(),
            is_behind: false,
        }
    }

    /// True if there is more for the client once it has received its pending output.
    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Pushes an entry, if it changes any of the keys.
    fn push(&mut self, entry: &AppliedEntry, out: &mut Vec<u8>) {
        self.index = entry.index;
        let is_of_keys = |change: &ChangeRef<'_>| change.key().starts_with(&self.prefix);
        let count = entry.changes.changes().filter(is_of_keys).count();
        if count == 0 {
            return;
        }
        let mut reply = Reply { out, proto: Proto::Three };
        reply.push(2 + 3 * count);
        head(&mut reply, "changes", entry.index);
        for change in entry.changes.changes().filter(is_of_keys) {
            reply.bulk(change.key());
            let (value, expires_at) = match change {
                ChangeRef::Put { value, expires_at, .. } => (Some(value), expires_at),
                ChangeRef::Delete { .. } => (None, None),
            };
            match value {
                Some(value) => reply.bulk(value),
                None => reply.null(),
            }
            match expires_at {
                Some(UnixMillis(at)) => reply.int(i64::try_from(at).unwrap_or(i64::MAX)),
                None => reply.null(),
            }
        }
        (self.told, self.told_at) = (entry.index, Instant::now());
    }

    /// Reports the index read so far, if nothing was pushed for a while.
    fn tell_progress(&mut self, out: &mut Vec<u8>) {
        if self.told < self.index && self.told_at.elapsed() >= SILENCE {
            let mut reply = Reply { out, proto: Proto::Three };
            reply.push(2);
            head(&mut reply, "changes", self.index);
            (self.told, self.told_at) = (self.index, Instant::now());
        }
    }
}

fn head(reply: &mut Reply<'_>, kind: &str, index: u64) {
    reply.bulk(kind.as_bytes());
    reply.int(i64::try_from(index).unwrap_or(i64::MAX));
}

/// The entries that were read last, by the index before them: watchers are mostly at the same index.
#[derive(Debug, Default)]
struct Piece {
    behind: Option<u64>,
    entries: Vec<AppliedEntry>,
}

impl Piece {
    fn behind(&mut self, cluster: &dyn ClusterInfo, index: u64) -> Result<&[AppliedEntry]> {
        if self.behind != Some(index) {
            self.behind = None;
            self.entries = cluster.changes_since(index, PIECE_BYTES)?;
            self.behind = Some(index);
        }
        Ok(&self.entries)
    }
}

/// Pushes the new entries to a client that can receive them; false if its watch has ended.
fn serve(cluster: &dyn ClusterInfo, connection: &mut Connection, piece: &mut Piece) -> bool {
    if connection.is_closing() {
        // A push behind its last answer would keep the connection open.
        connection.session.feed = None;
    }
    let is_within_answer = connection.is_within_answer();
    let session = &mut connection.session;
    let Some(feed) = &mut session.feed else { return false };
    loop {
        // Nothing is pushed into an unfinished answer.
        feed.is_behind = is_within_answer || connection.output.len() >= WAITING_MAX;
        if feed.is_behind {
            return true;
        }
        let out = connection.output.buffer();
        match piece.behind(cluster, feed.index) {
            Ok([]) => {
                feed.tell_progress(out);
                return true;
            }
            Ok(entries) => entries.iter().for_each(|entry| feed.push(entry, out)),
            Err(Error::HistoryGone { horizon, .. }) => {
                let mut reply = Reply { out, proto: Proto::Three };
                reply.push(2);
                head(&mut reply, "changes-gone", horizon);
                session.feed = None;
                return false;
            }
            Err(_) => {
                // The node has stopped: the client goes on with another one.
                (session.feed, session.is_closing) = (None, true);
                return false;
            }
        }
    }
}

impl EventLoop {
    /// Registers a connection that has begun to watch.
    pub(crate) fn note_feed(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if connection.session.feed.is_some() && !connection.is_fed {
            connection.is_fed = true;
            self.feeds.push(key);
            // Entries applied from now on wake the loop; earlier ones are read in this turn.
            self.port().has_feeds.store(true, Ordering::SeqCst);
        }
    }

    /// Pushes the applied entries to the connections that watch.
    pub(crate) fn push_changes(&mut self) {
        if self.feeds.is_empty() {
            return;
        }
        let host = Arc::clone(&self.host);
        let Some(cluster) = host.config.cluster.as_deref() else { return };
        let (mut feeds, mut piece) = (std::mem::take(&mut self.feeds), Piece::default());
        feeds.retain(|key| {
            let Some(connection) = self.connections.get_mut(*key) else { return false };
            let len = connection.output.len();
            // A connection that has taken the place of another one is not fed.
            let goes_on = connection.is_fed && serve(cluster, connection, &mut piece);
            connection.is_fed &= goes_on;
            if connection.output.len() != len || connection.is_closing() {
                self.touch(*key);
            }
            goes_on
        });
        self.feeds = feeds;
        if self.feeds.is_empty() {
            self.port().has_feeds.store(false, Ordering::SeqCst);
        }
    }
}
