//! The information that the server reports about itself.

use super::connection::REDIS_VERSION;
use super::table::all;
use super::{Answer, Call};
use crate::command_counters::CommandTotals;
use crate::counters::{Counter, LoopCounters, Totals};
use crate::glob::Pattern;
use crate::host::Host;
use crate::{ClusterInfo, Standing};
use coreplane_engine::{DeviceStats, Stats};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sources of the sections.
struct Facts<'h> {
    host: &'h Host,
    stats: OnceCell<Stats>,
}

impl Facts<'_> {
    /// The engine's counters, requested once for all sections, since that asks all devices.
    fn stats(&self) -> &Stats {
        self.stats.get_or_init(|| self.host.engine.stats())
    }
}

impl Deref for Facts<'_> {
    type Target = Host;

    fn deref(&self) -> &Host {
        self.host
    }
}

/// A section: its name, whether it is shown by default, and the function that writes its text.
type Section = (&'static str, bool, fn(&Facts<'_>, &mut String));

const SECTIONS: &[Section] = &[
    ("Server", true, server),
    ("Clients", true, clients),
    ("Memory", true, memory),
    ("Persistence", true, persistence),
    ("Stats", true, statistics),
    ("Replication", true, replication),
    ("CPU", true, cpu),
    ("Modules", true, |_, _| {}),
    ("Commandstats", false, command_statistics),
    ("Errorstats", true, error_statistics),
    ("Latencystats", false, latency_statistics),
    ("Engine", true, engine),
    ("Matrix", true, matrix),
    ("Durability", true, durability),
    ("Latency", true, latency),
    ("Cluster", true, cluster),
    ("Timeseries", true, time_series),
    ("Keyspace", true, keyspace),
];

/// `INFO [section ...]`
pub(super) fn info(call: &mut Call<'_, '_>) -> Answer {
    let text = info_text(call.host, call.names(1)?);
    call.reply.verbatim(&text);
    Ok(())
}

/// The sections of these names; without names the default sections.
pub(crate) fn info_text<'a>(host: &Host, names: impl ExactSizeIterator<Item = &'a [u8]>) -> String {
    let mut wanted: Vec<bool> =
        SECTIONS.iter().map(|(_, by_default, _)| *by_default && names.len() == 0).collect();
    for name in names {
        let is_all =
            ["all", "everything"].iter().any(|all| name.eq_ignore_ascii_case(all.as_bytes()));
        let is_default = name.eq_ignore_ascii_case(b"default");
        for ((section, by_default, _), wanted) in SECTIONS.iter().zip(&mut wanted) {
            *wanted |= is_all
                || is_default && *by_default
                || Pattern::new(name).is_ok_and(|name| name.matches(section.as_bytes(), true));
        }
    }
    let mut text = String::new();
    let facts = Facts { host, stats: OnceCell::new() };
    for ((name, _, write), _) in SECTIONS.iter().zip(&wanted).filter(|(_, wanted)| **wanted) {
        if !text.is_empty() {
            text += "\r\n";
        }
        text += &format!("# {name}\r\n");
        write(&facts, &mut text);
    }
    text
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    *text += &format!("{name}:{value}\r\n");
}

fn get(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn server(host: &Facts<'_>, text: &mut String) {
    let uptime = host.started.elapsed().as_secs();
    line(text, "redis_version", REDIS_VERSION);
    line(text, "redis_mode", host.mode());
    line(text, "coreplane_version", env!("CARGO_PKG_VERSION"));
    line(text, "os", format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    line(text, "arch_bits", usize::BITS);
    line(text, "multiplexing_api", "epoll");
    line(text, "process_id", std::process::id());
    line(text, "run_id", &host.run_id);
    line(text, "tcp_port", host.tcp_port());
    line(text, "server_time_usec", coreplane_engine::UnixMillis::now().0 * 1000);
    line(text, "uptime_in_seconds", uptime);
    line(text, "uptime_in_days", uptime / 86_400);
    line(text, "event_loops", host.ports.len());
    line(text, "config_file", "");
    line(text, "io_threads_active", u8::from(host.ports.len() > 1));
}

fn clients(host: &Facts<'_>, text: &mut String) {
    let connected = host.clients.all();
    let blocked = connected.iter().filter(|client| client.is_paused.load(Ordering::Relaxed));
    let largest = |of: fn(&crate::clients::ClientInfo) -> usize| {
        connected.iter().map(|client| of(client)).max().unwrap_or(0)
    };
    line(text, "connected_clients", host.clients.count());
    line(text, "cluster_connections", 0);
    line(text, "maxclients", get(&host.settings.max_clients));
    let input = largest(|client| client.input.load(Ordering::Relaxed));
    let output = largest(|client| client.output.load(Ordering::Relaxed));
    line(text, "client_recent_max_input_buffer", input);
    line(text, "client_recent_max_output_buffer", output);
    line(text, "blocked_clients", blocked.count());
    line(text, "tracking_clients", 0);
    line(text, "clients_in_timeout_table", 0);
}

fn memory(host: &Facts<'_>, text: &mut String) {
    let stats = host.stats();
    let resident = resident_bytes();
    line(text, "used_memory", stats.dram_bytes);
    line(text, "used_memory_rss", resident);
    line(text, "used_memory_dataset", stats.live_bytes);
    line(text, "maxmemory", get(&host.settings.max_memory));
    line(text, "maxmemory_policy", "noeviction");
}

/// Bytes of this process that are in memory, mapped pools included; 0 where unknown.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = field.and_then(|field| field.trim().trim_end_matches("kB").trim().parse().ok());
    kib.map_or(0, |kib: u64| kib * 1024)
}

fn persistence(host: &Facts<'_>, text: &mut String) {
    let saves = host.saves.lock();
    let status = if saves.error.is_none() { "ok" } else { "err" };
    line(text, "loading", 0);
    line(text, "async_loading", 0);
    line(text, "rdb_changes_since_last_save", 0);
    line(text, "rdb_bgsave_in_progress", u8::from(saves.is_running()));
    line(text, "rdb_last_save_time", saves.last);
    line(text, "rdb_last_bgsave_status", status);
    line(text, "rdb_saves", saves.ended);
    line(text, "aof_enabled", 0);
    line(text, "aof_rewrite_in_progress", 0);
    line(text, "aof_last_write_status", "ok");
}

fn statistics(host: &Facts<'_>, text: &mut String) {
    let (stats, base) = (host.stats(), &host.engine_base);
    let sum = |of: fn(&LoopCounters) -> &Counter| host.sum(|counters| of(counters).get());
    line(text, "total_connections_received", sum(|counters| &counters.connections));
    line(text, "total_commands_processed", sum(|counters| &counters.commands));
    line(text, "command_slices", sum(|counters| &counters.slices));
    line(text, "instantaneous_ops_per_sec", get(&host.rate.per_second));
    line(text, "total_net_input_bytes", sum(|counters| &counters.bytes_in));
    line(text, "total_net_output_bytes", sum(|counters| &counters.bytes_out));
    line(text, "rejected_connections", sum(|counters| &counters.rejected));
    line(text, "expired_keys", stats.expired.saturating_sub(get(&base.expired)));
    line(text, "evicted_keys", 0);
    line(text, "keyspace_hits", stats.hits.saturating_sub(get(&base.hits)));
    line(text, "keyspace_misses", stats.misses.saturating_sub(get(&base.misses)));
    line(text, "pubsub_channels", 0);
    line(text, "pubsub_patterns", 0);
    line(text, "latest_fork_usec", 0);
    line(text, "total_forks", 0);
    line(text, "total_error_replies", sum(|counters| &counters.errors));
    let drops = sum(|counters| &counters.output_limit_drops);
    line(text, "client_output_buffer_limit_disconnections", drops);
}

fn replication(host: &Facts<'_>, text: &mut String) {
    let cluster = host.config.cluster.as_deref();
    let followers = cluster.map(|it| it.followers()).unwrap_or_default();
    match cluster.map(ClusterInfo::standing) {
        None | Some(Standing::Leads) => line(text, "role", "master"),
        Some(Standing::Unknown) => line(text, "role", "slave"),
        Some(Standing::Follows(leader)) => {
            line(text, "role", "slave");
            line(text, "master_host", leader.ip());
            line(text, "master_port", leader.port());
            line(text, "master_link_status", "up");
        }
    }
    line(text, "connected_slaves", followers.len());
    for (at, (address, index)) in followers.iter().enumerate() {
        let (ip, port) = (address.ip(), address.port());
        let what = format!("ip={ip},port={port},state=online,offset={index},lag=0");
        line(text, &format!("slave{at}"), what);
    }
    let applied = cluster.map_or(0, ClusterInfo::applied);
    line(text, "master_failover_state", "no-failover");
    line(text, "master_replid", "0".repeat(40));
    line(text, "master_repl_offset", applied);
    line(text, "second_repl_offset", -1);
    line(text, "repl_backlog_active", 0);
}

fn cpu(_: &Facts<'_>, text: &mut String) {
    // Fields 14 and 15 of the line, the 12th and 13th after the name in parentheses, in ticks of
    // a hundredth of a second.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11);
    let mut seconds = || {
        let ticks = fields.next().and_then(|field| field.parse::<f64>().ok());
        ticks.unwrap_or(0.0) / 100.0
    };
    let (user, system) = (seconds(), seconds());
    line(text, "used_cpu_sys", format!("{system:.6}"));
    line(text, "used_cpu_user", format!("{user:.6}"));
}

/// The counters of each command that was sent, by its name.
fn commands(host: &Host) -> impl Iterator<Item = (&'static str, CommandTotals)> {
    let totals = all().enumerate().map(|(number, command)| {
        let counters = host.ports.iter().filter_map(move |it| it.counters.by_command.get(number));
        (command.name, CommandTotals::of(counters))
    });
    totals.filter(|(_, totals)| !totals.is_empty())
}

fn command_statistics(host: &Facts<'_>, text: &mut String) {
    for (name, totals) in commands(host) {
        let (micros, CommandTotals { calls, failed, rejected, .. }) = (totals.micros(), totals);
        let mean = micros as f64 / calls.max(1) as f64;
        let figures = format!("calls={calls},usec={micros},usec_per_call={mean:.2}");
        let failures = format!("rejected_calls={rejected},failed_calls={failed}");
        line(text, &format!("cmdstat_{name}"), format!("{figures},{failures}"));
    }
}

fn error_statistics(host: &Facts<'_>, text: &mut String) {
    let mut by_code = BTreeMap::new();
    for port in &host.ports {
        for (code, count) in port.counters.errors_by_code.lock().iter() {
            *by_code.entry(code.clone()).or_insert(0) += count;
        }
    }
    for (code, count) in by_code {
        line(text, &format!("errorstat_{code}"), format!("count={count}"));
    }
}

fn latency_statistics(host: &Facts<'_>, text: &mut String) {
    let percentiles = host.settings.latency_percentiles.lock().clone();
    for (name, totals) in commands(host) {
        let found = percentiles.iter().filter_map(|percent| {
            let nanos = totals.percentile(*percent)?;
            Some(format!("p{percent}={}.{:03}", nanos / 1000, nanos % 1000))
        });
        let found: Vec<String> = found.collect();
        if !found.is_empty() {
            line(text, &format!("latency_percentiles_usec_{name}"), found.join(","));
        }
    }
}

fn engine(host: &Facts<'_>, text: &mut String) {
    let stats = host.stats();
    line(text, "engine", host.engine.name());
    for (name, value) in [
        ("engine_hits", stats.hits),
        ("engine_misses", stats.misses),
        ("engine_puts", stats.puts),
        ("engine_deletes", stats.deletes),
        ("engine_batches", stats.batches),
        ("engine_user_bytes_written", stats.user_bytes_written),
        ("engine_log_bytes_written", stats.log_bytes_written),
        ("engine_cleaner_bytes_copied", stats.cleaner_bytes_copied),
        ("engine_cleaner_pages_freed", stats.cleaner_pages_freed),
        ("engine_flushes", stats.flushes),
        ("engine_fences", stats.fences),
        ("engine_records", stats.records),
        ("engine_live_bytes", stats.live_bytes),
        ("engine_pool_bytes", stats.pool_bytes),
        ("engine_free_bytes", stats.free_bytes),
        ("engine_dram_bytes", stats.dram_bytes),
        ("engine_expired", stats.expired),
    ] {
        line(text, name, value);
    }
    for (name, value) in &stats.more {
        line(text, &format!("engine_{name}"), value);
    }
    for group in &stats.groups {
        line(text, &format!("group_{}", group.name), pairs(&group.figures).join(","));
    }
    for device in &stats.devices {
        line(text, &format!("device_{}", device.name), device_figures(device).join(","));
    }
}

fn pairs(figures: &[(&str, u64)]) -> Vec<String> {
    figures.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// The figures of a device; for each latency the number of samples, and bounds below which 50 %, 99 % and 99.9 % of
/// them lie.
fn device_figures(device: &DeviceStats) -> Vec<String> {
    let mut shown = pairs(&device.figures);
    for latency in &device.latencies {
        let name = latency.name;
        shown.push(format!("{name}s_timed={}", latency.count()));
        for (suffix, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            shown.push(format!("{name}_{suffix}_ns_below={}", latency.below_ns(share)));
        }
    }
    shown
}

fn matrix(host: &Facts<'_>, text: &mut String) {
    let figures = host.config.store.as_ref().and_then(|it| it.matrix_figures());
    line(text, "matrix_enabled", u8::from(figures.is_some()));
    for (name, value) in figures.into_iter().flatten() {
        line(text, &format!("matrix_{name}"), value);
    }
}

fn cluster(host: &Facts<'_>, text: &mut String) {
    let cluster = host.config.cluster.as_deref();
    // Clients that read 1 here ask for slots; only redirected clients need to.
    line(text, "cluster_enabled", u8::from(cluster.is_some_and(ClusterInfo::redirects)));
    for (name, value) in cluster.map(ClusterInfo::figures).into_iter().flatten() {
        line(text, &format!("cluster_{name}"), value);
    }
}

fn time_series(host: &Facts<'_>, text: &mut String) {
    let figures = host.config.time_series.as_ref().map(|it| it.figures());
    line(text, "ts_enabled", u8::from(figures.is_some()));
    for (name, value) in figures.into_iter().flatten() {
        line(text, &format!("ts_{name}"), value);
    }
}

fn durability(host: &Facts<'_>, text: &mut String) {
    let config = &host.config;
    line(text, "medium", &config.medium);
    line(text, "durability", config.durability_name());
    line(text, "power_cut_loses", &config.power_cut_loses);
    line(text, "power_safe", u8::from(config.power_safe));
    line(text, "durable_turns", host.sum(|counters| counters.commits.get()));
    line(text, "withheld_turns", host.sum(|counters| counters.waits.get()));
    line(text, "loop_handovers", host.sum(|counters| counters.handovers.get()));
}

fn latency(host: &Facts<'_>, text: &mut String) {
    let mut show = |name: &str, total: &Totals| {
        line(text, &format!("{name}_count"), total.count());
        for (suffix, share) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            let micros = total.quantile_micros(share);
            line(text, &format!("{name}_{suffix}_usec_below"), micros);
        }
    };
    show("turn", &host.total(|counters| &counters.turn_time));
    show("durable_wait", &host.total(|counters| &counters.wait_time));
}

fn keyspace(host: &Facts<'_>, text: &mut String) {
    // As far as counted: counting here would stop all clients after a crash.
    let keys = host.stats().records;
    if keys > 0 {
        // Two figures that are not counted: clients take the line apart by its commas.
        line(text, "db0", format!("keys={keys},expires=0,avg_ttl=0"));
    }
}
