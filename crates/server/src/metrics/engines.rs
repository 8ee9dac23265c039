//! Figures of engines, their groups and their devices as families of Prometheus: all samples of one name together,
//! counters with `_total`, times in seconds.

use crate::figures::{Kind, told_of};
use crate::host::Host;
use coreplane_engine::{DeviceStats, Stats};

/// Times below the first of these powers of two, in nanoseconds, are not distinguished.
const BUCKETS: std::ops::Range<usize> = 7..33;

/// The label of a figure, its name, and its value.
type Sample<'a> = (String, &'a str, u64);

pub(super) fn families(text: &mut String, host: &Host, stats: &Stats) {
    let own = stats.more.iter().map(|(name, value)| (String::new(), *name, *value));
    for of in [true, false] {
        // The matrix's own figures have its prefix; others are the engine's.
        let of_matrix = own.clone().filter(|(_, name, _)| name.starts_with("matrix_") == of);
        write(text, if of { "" } else { "engine_" }, of_matrix.collect());
    }
    let config = &host.config;
    for (prefix, figures) in [
        ("matrix_", config.store.as_ref().and_then(|it| it.matrix_figures())),
        ("cluster_", config.cluster.as_ref().map(|it| it.figures())),
        ("ts_", config.time_series.as_ref().map(|it| it.figures())),
    ] {
        let named = figures.into_iter().flatten();
        let named = named
            .filter_map(|(name, value)| Some((format!("{prefix}{name}"), value.parse().ok()?)));
        let named: Vec<(String, u64)> = named.collect();
        let own = named.iter().map(|(name, value)| (String::new(), name.as_str(), *value));
        write(text, "", own.collect());
    }
    let groups = stats.groups.iter().flat_map(|group| {
        let label = format!("{{group=\"{}\"}}", group.name);
        group.figures.iter().map(move |(name, value)| (label.clone(), *name, *value))
    });
    write(text, "group_", groups.collect());
    let devices = stats.devices.iter().flat_map(|device| {
        let label = format!("{{device=\"{}\"}}", device.name);
        device.figures.iter().map(move |(name, value)| (label.clone(), *name, *value))
    });
    write(text, "device_", devices.collect());
    latencies(text, &stats.devices);
}

/// Writes one family after the other, in the order in which their names first occur.
fn write(text: &mut String, prefix: &str, samples: Vec<Sample<'_>>) {
    let mut names: Vec<&str> = Vec::new();
    for (_, name, _) in &samples {
        if !names.contains(name) {
            names.push(name);
        }
    }
    for name in names {
        let (kind, help) = told_of(name);
        let (stem, is_time) = match name.strip_suffix("_ns") {
            Some(stem) => (format!("{stem}_seconds"), true),
            None => (name.to_owned(), false),
        };
        let end = if kind == Kind::Counter { "_total" } else { "" };
        let family = format!("coreplane_{prefix}{stem}{end}");
        *text += &format!("# HELP {family} {help}\n# TYPE {family} {}\n", kind.name());
        for (label, _, value) in samples.iter().filter(|(_, other, _)| *other == name) {
            if is_time {
                *text += &format!("{family}{label} {}\n", *value as f64 / 1e9);
            } else {
                *text += &format!("{family}{label} {value}\n");
            }
        }
    }
}

/// Latencies of the devices, of the calls that were timed.
fn latencies(text: &mut String, devices: &[DeviceStats]) {
    for name in ["get", "put"] {
        let family = format!("coreplane_device_{name}_seconds");
        let mut is_told = false;
        for device in devices {
            let Some(latency) = device.latencies.iter().find(|it| it.name == name) else {
                continue;
            };
            if !is_told {
                *text += &format!(
                    "# HELP {family} Time of a {name} on the device, of those that were timed.\n"
                );
                *text += &format!("# TYPE {family} histogram\n");
                is_told = true;
            }
            let device = &device.name;
            for bucket in BUCKETS {
                let below: u64 = latency.buckets.iter().take(bucket + 1).sum();
                let bound = (1_u64 << bucket) as f64 / 1e9;
                *text +=
                    &format!("{family}_bucket{{device=\"{device}\",le=\"{bound}\"}} {below}\n");
            }
            let (count, sum) = (latency.count(), latency.sum_ns as f64 / 1e9);
            *text += &format!("{family}_bucket{{device=\"{device}\",le=\"+Inf\"}} {count}\n");
            *text += &format!("{family}_sum{{device=\"{device}\"}} {sum}\n");
            *text += &format!("{family}_count{{device=\"{device}\"}} {count}\n");
        }
    }
}
