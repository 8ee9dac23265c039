//! Descriptions of the figures of engines: those that engines report under names of their own, for themselves, their
//! groups and their devices.

/// How a figure changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It rises until the store is opened again.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Not described.
    Unknown,
}

impl Kind {
    /// As Prometheus calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Unknown => "untyped",
        }
    }
}

use Kind::{Counter, Gauge};

/// Name, kind, and description for people.
type Row = (&'static str, Kind, &'static str);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Of a device, as its matrix sees it.
    ("current", Gauge, "1 if the device is a current member of its group, 0 if it is absent or being filled."),
    ("queue", Gauge, "What waits for the device: lines of its ring, batches and reads."),
    ("queue_bytes", Gauge, "Bytes of the writes that wait for the device."),
    ("queue_bytes_max", Gauge, "Bytes of writes that may wait for the device."),
    ("queue_waits", Counter, "Writes that waited since too much waited for the device."),
    ("ring_reads", Counter, "Reads that the device took from its ring."),
    ("hedge_wins", Counter, "Reads in which the device was first to answer."),
    ("hedge_losses", Counter, "Reads in which another device was first to answer."),
    ("hedge_cancelled", Counter, "Reads that another device answered before this one had begun."),
    ("hedges", Counter, "Reads that came to the device because another one was late."),
    ("ring_read_mean_ns", Gauge, "Mean time of the reads through the ring, their wait in it included."),
    ("hedge_delay_ns", Gauge, "Time after which a read on the device is late."),
    ("unsteady", Gauge, "1 if the device stalls so often that its reads go through the ring."),
    // Of a group.
    ("devices_current", Gauge, "Current members of the group."),
    ("hits", Counter, "Reads that found a record."),
    ("filter_denied", Counter, "Reads of absent keys that the filter answered."),
    ("filter_false_hits", Counter, "Reads of absent keys that the filter let through to the devices."),
    (
        "filter_unasked_misses",
        Counter,
        "Reads of absent keys by threads that found nearly all they read, and asked no filter.",
    ),
    ("filter_keys", Gauge, "Keys that the filter has."),
    ("filter_capacity", Gauge, "Keys that the filter is made for."),
    ("filter_bytes", Gauge, "Bytes of DRAM of the filter."),
    ("filter_load_percent", Gauge, "Keys that the fullest filter has, in percent of what it is made for."),
    ("filter_growths", Counter, "Filters that were made anew with more room."),
    // Of a matrix.
    ("damaged_reads", Counter, "Reads that met a damaged record and went to a peer."),
    ("matrix_ring_reads", Counter, "Reads that devices took from their rings."),
    ("matrix_hedge_wins", Counter, "Reads that were answered first by the device that was asked."),
    ("matrix_hedge_losses", Counter, "Reads that another device had answered."),
    ("matrix_hedge_cancelled", Counter, "Reads that another device answered before one had begun."),
    ("matrix_hedges", Counter, "Reads that went to another device because one was late."),
    ("matrix_groups", Gauge, "Groups of the matrix."),
    ("matrix_degraded", Gauge, "1 if a device is absent, out of date or being filled."),
    ("matrix_slots_moving", Gauge, "Slots of keys that are still to move to a group that was added."),
    ("matrix_epoch", Gauge, "The epoch of the membership record: every change, open, close and checkpoint raises it."),
    ("matrix_work_going_on", Gauge, "1 while a device is filled, a group added or a scrub made."),
    // Of a node of a cluster.
    ("cluster_node", Gauge, "The node's number."),
    ("cluster_term", Gauge, "The newest term that the node knows."),
    ("cluster_leader", Gauge, "The number of the node that leads; 0 if none is known."),
    ("cluster_leads", Gauge, "1 if this node leads."),
    ("cluster_voters", Gauge, "Voters of the cluster."),
    ("cluster_learners", Gauge, "Learners of the cluster."),
    ("cluster_newest", Gauge, "The newest entry that the node has."),
    ("cluster_committed", Gauge, "The newest entry that the node knows to be committed."),
    ("cluster_applied", Gauge, "The newest entry that the node's readers see."),
    ("cluster_lag_entries_max", Gauge, "Entries that the slowest member lacks, of the leader."),
    ("cluster_snapshots_installed", Counter, "Snapshots that the node was filled from."),
    ("cluster_entries_without_room", Counter, "Entries that were sent to the node, and that its pool had no room for."),
    ("cluster_peers_refused", Counter, "Connections that were refused in the handshake of nodes, or behind it."),
    ("raft_term", Gauge, "The newest term that the node knows."),
    ("raft_newest", Gauge, "The newest entry that the node has."),
    ("raft_committed", Gauge, "The newest entry that the node knows to be committed."),
    ("raft_applied", Gauge, "The newest entry that the node's readers see."),
    ("raft_leaderships", Counter, "Leaderships of the node that have begun or ended."),
    ("raft_snapshots_installed", Counter, "Snapshots that the node was filled from."),
    ("raft_entries_without_room", Counter, "Entries that were sent to the node, and that its pool had no room for."),
    // Of time series beside the records.
    ("ts_points_written", Counter, "Points that were written by HTTP."),
    ("ts_points_dropped", Counter, "Points that were refused."),
    ("ts_queries", Counter, "Queries that were answered."),
    ("ts_queries_running", Gauge, "Queries that run."),
    ("ts_connections", Gauge, "Connections of HTTP."),
    ("ts_request_bytes", Gauge, "Bytes that bodies and answers of HTTP hold."),
    ("ts_series", Gauge, "Series."),
    ("ts_measurements", Gauge, "Measurements."),
    ("ts_names_bytes", Gauge, "Bytes of DRAM of names, about."),
    ("ts_head_points", Gauge, "Values that are not sealed."),
    ("ts_head_bytes", Gauge, "Bytes of their records."),
    ("ts_segments", Gauge, "Segments of sealed chunks."),
    ("ts_sealed_points", Gauge, "Values in segments."),
    ("ts_sealed_bytes", Gauge, "Bytes of chunks."),
    ("ts_last_values", Gauge, "Last values of sealed points that are known."),
    ("ts_last_bytes", Gauge, "Bytes of DRAM that they take."),
    ("ts_used_bytes", Gauge, "Bytes of the pools that are in use."),
    ("ts_total_bytes", Gauge, "Bytes of the pools."),
    ("ts_flushes", Counter, "Lines flushed."),
    ("ts_fences", Counter, "Fences, or syncs."),
    ("ts_scrub_pages", Counter, "Pages of segments that the scrub has read."),
    ("ts_scrub_rounds", Counter, "Times that it has read all segments."),
    ("ts_scrub_damaged", Counter, "Damaged chunks that it has found."),
    ("ts_in_trouble", Gauge, "1 if points could not be sealed the last time."),
    // Of an engine.
    ("records", Gauge, "Live records, as far as counted."),
    ("live_bytes", Gauge, "Bytes of live records."),
    ("pool_bytes", Gauge, "Bytes of the pool."),
    ("free_bytes", Gauge, "Bytes of the pool that are free without cleaning."),
    ("dram_bytes", Gauge, "Bytes of DRAM for index and tables."),
    ("log_bytes_written", Counter, "Bytes appended to logs."),
    ("cleaner_bytes_copied", Counter, "Bytes that the cleaner copied."),
    ("flushes", Counter, "Lines flushed."),
    ("fences", Counter, "Fences, or syncs."),
    ("scrubbed_pages", Counter, "Pages that the scrubber has read."),
    ("damaged_pages", Counter, "Pages that were found damaged."),
    ("repaired_slots", Counter, "Slots of the index that were made again from the logs, or taken out."),
    ("background_failures", Counter, "Work in the background that failed."),
    ("index_splits", Counter, "Groups of the index that were split."),
    ("records_are_counted", Gauge, "1 once all records have been counted after an open."),
    ("bytes_are_counted", Gauge, "1 once it is counted what they take in each page."),
    ("checkpoint", Gauge, "The number of the last checkpoint."),
    ("checkpoint_replay_bytes", Gauge, "Bytes of log that an open would have to read."),
    ("checkpoints_taken", Counter, "Checkpoints that were taken."),
    ("checkpoints_skipped", Counter, "Checkpoints that were not worth taking."),
    ("checkpoints_damaged", Gauge, "Checkpoints that the open found damaged."),
    ("leaves_split", Counter, "Leaves that were split."),
    ("leaves_rewritten", Counter, "Leaves that were written anew."),
    ("leaves_merged", Counter, "Leaves that were merged with a neighbour."),
    ("leaves_unloaded", Gauge, "Leaves that nobody has come to since the open."),
    ("opened_with_checkpoint", Gauge, "1 if the store was opened with its checkpoint."),
];

/// The description of the figure of this name.
pub(crate) fn told_of(name: &str) -> (Kind, &'static str) {
    let row = ROWS.iter().find(|(known, ..)| *known == name);
    row.map_or((Kind::Unknown, "Nobody has said what this is."), |(_, kind, help)| (*kind, *help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once_in_a_sentence() {
        for (at, (name, _, help)) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|(other, ..)| other != name), "{name}");
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}");
        }
        assert_eq!(told_of("nonsense").0, Kind::Unknown);
    }
}
