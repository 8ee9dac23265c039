//! Figures of a matrix and its devices.

use crate::device::Device;
use crate::failover::Departure;
use crate::group::Group;
use crate::matrix::Matrix;
use crate::membership::MemberState;
use crate::shape::{Ack, Position, Prototype};
use coreplane_engine::{DeviceStats, GroupStats, Stats};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Figures whose sum over all devices is reported too.
const SUMS: [(&str, &str); 5] = [
    ("ring_reads", "matrix_ring_reads"),
    ("hedge_wins", "matrix_hedge_wins"),
    ("hedge_losses", "matrix_hedge_losses"),
    ("hedge_cancelled", "matrix_hedge_cancelled"),
    ("hedges", "matrix_hedges"),
];

impl Matrix {
    /// The prototype of the paper that it is.
    pub fn prototype(&self) -> Prototype {
        self.failover.membership.now().prototype
    }

    /// The engine of each present device.
    pub fn engines(&self) -> Vec<(Position, &'static str)> {
        let groups = self.keyspace.groups.iter();
        let devices = groups.flat_map(|group| group.devices()).filter(|it| !it.has_gone());
        devices.map(|device| (device.at, device.engine.tell(|it| it.name()))).collect()
    }

    /// The number of copies that a write waits for.
    pub fn ack(&self) -> Ack {
        self.failover.membership.now().ack
    }

    /// The epoch of the membership.
    ///
    /// Every change of the members raises it, and every open except one of a copy, so that what a close has
    /// kept is used only once.
    pub fn epoch(&self) -> u64 {
        self.failover.membership.now().epoch
    }

    /// The devices that left since the matrix was opened and have not come back, in the order in which they left.
    pub fn departures(&self) -> Vec<Departure> {
        self.failover.departures.lock().clone()
    }
}

impl Matrix {
    /// The counters of all devices. The number of records is the sum over the groups, as far as devices have
    /// counted them; records on their way to another group count in both. The load is that of the fullest
    /// filter.
    pub(super) fn figures(&self) -> Stats {
        let (mut sum, mut fullest) = (Stats::default(), 0.0_f64);
        let (mut devices, lost) = (BTreeMap::new(), self.failover.intents.lost());
        for group in self.keyspace.groups.iter() {
            let now = group.states.now();
            let (members, mut records) = (now.members(), 0);
            for device in group.devices() {
                let stats = device.engine.tell(|it| it.stats());
                if members & 1 << device.number != 0 {
                    add(&mut sum, &stats);
                    if device.number == now.primary() {
                        // Without the matrix's own records, for which no device is called.
                        let intents = lost.iter().filter(|it| it.group == group.number).count();
                        let kept = group.kept_records.load(Ordering::Relaxed);
                        records = stats.records.saturating_sub(1 + intents as u64 + kept);
                    }
                }
                devices.insert(device.at, told_of(device, group.rules.queue_bytes_max, stats));
            }
            sum.records += records;
            sum.dram_bytes += group.filter.dram_bytes();
            fullest = fullest.max(group.filter.load());
            add_group(group, &mut sum);
        }
        for name in ["filter_denied", "filter_false_hits", "filter_unasked_misses"] {
            let figures = sum.groups.iter().flat_map(|group| &group.figures);
            sum.more.push((name, total_of(name, figures)));
        }
        sum.more.push(("filter_load_percent", (100.0 * fullest) as u64));
        sum.dram_bytes += self.keyspace.in_flight.dram_bytes();
        self.keyspace.counters.add_to(&mut sum);
        for (position, state) in self.failover.member_states() {
            let mut told = devices.remove(&position).unwrap_or_default();
            told.name = position.to_string();
            told.figures.insert(0, ("current", u64::from(state == MemberState::Current)));
            sum.devices.push(told);
        }
        for (of_one, of_all) in SUMS {
            let figures = sum.devices.iter().flat_map(|device| &device.figures);
            sum.more.push((of_all, total_of(of_one, figures)));
        }
        sum
    }
}

/// The sum of the figures of this name.
fn total_of<'a>(name: &str, figures: impl Iterator<Item = &'a (&'static str, u64)>) -> u64 {
    figures.filter(|(known, _)| *known == name).map(|(_, figure)| figure).sum()
}

/// Adds the figures of a group.
fn add_group(group: &Group, sum: &mut Stats) {
    let [hits, denied, false_hits, unasked] = group.asked.answered();
    sum.hits += hits;
    sum.misses += denied + false_hits + unasked;
    let figures = vec![
        ("devices_current", u64::from(group.members().count_ones())),
        ("hits", hits),
        ("filter_denied", denied),
        ("filter_false_hits", false_hits),
        ("filter_unasked_misses", unasked),
        ("filter_keys", group.filter.len()),
        ("filter_capacity", group.filter.capacity()),
        ("filter_bytes", group.filter.dram_bytes()),
    ];
    sum.groups.push(GroupStats { name: format!("g{}", group.number), figures });
}

fn add(sum: &mut Stats, stats: &Stats) {
    for (to, from) in [
        (&mut sum.user_bytes_written, stats.user_bytes_written),
        (&mut sum.log_bytes_written, stats.log_bytes_written),
        (&mut sum.cleaner_bytes_copied, stats.cleaner_bytes_copied),
        (&mut sum.cleaner_pages_freed, stats.cleaner_pages_freed),
        (&mut sum.flushes, stats.flushes),
        (&mut sum.fences, stats.fences),
        (&mut sum.live_bytes, stats.live_bytes),
        (&mut sum.pool_bytes, stats.pool_bytes),
        (&mut sum.free_bytes, stats.free_bytes),
        (&mut sum.dram_bytes, stats.dram_bytes),
        (&mut sum.expired, stats.expired),
    ] {
        *to += from;
    }
}

/// The figures of a present device and its engine.
fn told_of(device: &Device, queue_bytes_max: u64, stats: Stats) -> DeviceStats {
    let (bytes, waits) = device.backlog();
    let mut figures = vec![
        ("queue", device.queued()),
        ("queue_bytes", bytes),
        ("queue_bytes_max", queue_bytes_max),
        ("queue_waits", waits),
    ];
    figures.extend(device.pace.figures());
    figures.extend([
        ("records", stats.records),
        ("live_bytes", stats.live_bytes),
        ("pool_bytes", stats.pool_bytes),
        ("free_bytes", stats.free_bytes),
        ("dram_bytes", stats.dram_bytes),
        ("log_bytes_written", stats.log_bytes_written),
        ("cleaner_bytes_copied", stats.cleaner_bytes_copied),
        ("flushes", stats.flushes),
        ("fences", stats.fences),
    ]);
    figures.extend(stats.more);
    DeviceStats { figures, latencies: device.pace.latencies(), ..DeviceStats::default() }
}
