//! The steps of a node before it sends anything.

use super::Settings;
use crate::log_view::{LogView, SharedView};
use crate::members::Members;
use coreplane_engine::{Error, Result};
use coreplane_pmem::mutant;
use raft::eraftpb::{Entry, EntryType};
use raft::{Config, RawNode};

/// Counts one more start, and gives the pool its identity, if it has none; durable when it returns.
pub(super) fn begin(view: &mut LogView, settings: &Settings) -> Result<u64> {
    let start = view.notes().start + 1;
    let is_to_join = view.control().newest == 0 && !view.control().is_installing;
    view.change_notes(|notes| {
        notes.start = start;
        if notes.identity == 0 {
            notes.identity = settings.identity;
            notes.is_blank = is_to_join;
        }
    })?;
    if !mutant!("replica.start.early") {
        let ticket = view.commit()?;
        view.map.wait_durable(ticket)?;
    }
    Ok(start)
}

/// Turns an empty map into that of a node of a new cluster. The first entry, which each of the nodes writes for
/// itself, names the members: so a node that comes later has less than these, and is sent a snapshot with the
/// members.
pub(super) fn form(view: &mut LogView, settings: &Settings) -> Result<()> {
    let mut voters = settings.peers.clone();
    voters.sort_unstable();
    voters.dedup();
    let members = Members::first(&voters);
    let mut entry = Entry { index: 1, term: 1, ..Entry::default() };
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    view.append(vec![entry])?;
    view.change_notes(|notes| notes.members = members)?;
    view.set_vote(1, 0)?;
    view.apply(1)?;
    let ticket = view.commit()?;
    view.map.wait_durable(ticket)?;
    // A node that was absent learns the members from a snapshot: this entry is never sent.
    view.begin_again()
}

pub(super) fn consensus(view: &SharedView, settings: &Settings) -> Result<RawNode<SharedView>> {
    let applied = view.0.lock().control().applied;
    let config = Config {
        id: settings.id,
        election_tick: settings.election_ticks,
        heartbeat_tick: settings.heartbeat_ticks,
        applied,
        max_size_per_msg: settings.message_bytes,
        max_inflight_msgs: settings.in_flight,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: settings.uncommitted_bytes.max(settings.message_bytes),
        ..Config::default()
    };
    let logger = slog::Logger::root(slog::Discard, slog::o!());
    let made = RawNode::new(&config, view.clone(), &logger);
    made.map_err(|error| Error::Unusable(error.to_string()))
}

/// True if entries that were written here cannot be read. The end of the log is noted, and durable when this returns:
/// the node votes for no candidate that has less, and does not count until a leader has sent it what it lost.
///
/// # Errors
/// [`Error::Corrupt`] if this is the only voter: no other node can send the entries.
pub(super) fn damage(view: &mut LogView) -> Result<bool> {
    if !view.is_damaged {
        return Ok(false);
    }
    let newest = view.control().newest;
    // If that header cannot be read either, its term is no newer than the newest term.
    let term = view.header_term(newest).unwrap_or(view.control().term);
    if view.members().voters.len() < 2 {
        let what = format!("an entry up to {newest} that was not applied yet, and no other voter");
        return Err(Error::Corrupt { offset: 0, what });
    }
    if !mutant!("replica.damage.forgotten") {
        view.change_notes(|notes| notes.last = notes.last.max((term, newest)))?;
    }
    let ticket = view.commit()?;
    view.map.wait_durable(ticket)?;
    Ok(true)
}
