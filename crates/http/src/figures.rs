//! Figures of a server and its store: for Prometheus, for OpenTSDB's `stats`, and for callers that show them
//! elsewhere, as the `INFO` of a Redis side does.

use crate::host::Host;
use crate::metrics::Endpoint;
use std::fmt::Write;
use std::sync::{Arc, Weak};

/// A figure of the store: its name, whether it only rises, its description, and its value.
type Row = (&'static str, bool, &'static str, u64);

/// The figures of a server, as long as it runs. They keep neither the server nor the store alive.
#[derive(Debug, Clone)]
pub struct Figures(Weak<Host>);

impl Figures {
    pub(crate) fn of(host: &Arc<Host>) -> Self {
        Self(Arc::downgrade(host))
    }

    /// All figures: names of small letters and underscores, and values. None once the server has ended.
    #[must_use]
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        let Some(host) = self.0.upgrade() else { return Vec::new() };
        let metrics = &host.metrics;
        let queries = metrics.count(Endpoint::Query) + metrics.count(Endpoint::OpenTsdb);
        let mut all = vec![
            ("points_written", crate::metrics::load(&metrics.points_written)),
            ("points_dropped", crate::metrics::load(&metrics.points_dropped)),
            ("queries", queries),
            ("queries_running", crate::metrics::load(&metrics.queries_running)),
            ("connections", crate::metrics::load(&metrics.connections)),
        ];
        all.extend(rows(&host).iter().map(|(name, _, _, value)| (*name, *value)));
        all
    }

    /// Why sealing failed the last time; none if it did not.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.0.upgrade()?.store.trouble()
    }
}

fn rows(host: &Host) -> [Row; 19] {
    let stats = host.store.stats();
    let is_in_trouble = u64::from(host.store.trouble().is_some());
    [
        ("request_bytes", false, "Bytes that bodies and answers hold", host.memory.held_bytes()),
        ("series", false, "Series", stats.series),
        ("measurements", false, "Measurements", stats.measurements),
        ("names_bytes", false, "Bytes of DRAM of names, about", stats.names_bytes),
        ("head_points", false, "Values that are not sealed", stats.head_points),
        ("head_bytes", false, "Bytes of their records", stats.head_bytes),
        ("segments", false, "Segments of sealed chunks", stats.segments),
        ("sealed_points", false, "Values in segments", stats.sealed_points),
        ("sealed_bytes", false, "Bytes of chunks", stats.sealed_bytes),
        ("last_values", false, "Last values of sealed points that are known", stats.last_values),
        ("last_bytes", false, "Bytes of DRAM that they take", stats.last_bytes),
        ("used_bytes", false, "Bytes of the pools that are in use", stats.used_bytes),
        ("total_bytes", false, "Bytes of the pools", stats.total_bytes),
        ("flushes", true, "Lines flushed", stats.flushes),
        ("fences", true, "Fences, or syncs", stats.fences),
        ("scrub_pages", true, "Pages of segments that the scrub has read", stats.scrub_pages),
        ("scrub_rounds", true, "Times that it has read all segments", stats.scrub_rounds),
        ("scrub_damaged", true, "Damaged chunks that it has found", stats.scrub_damaged),
        ("in_trouble", false, "1 if points could not be sealed the last time", is_in_trouble),
    ]
}

/// The counters of the server and the figures of its store in Prometheus's text format.
pub(crate) fn text(host: &Host) -> String {
    let mut text = host.metrics.text();
    // Writing to a string does not fail.
    let _written = rows(host)
        .iter()
        .try_for_each(|(name, is_counter, help, value)| {
            let (kind, end) = if *is_counter { ("counter", "_total") } else { ("gauge", "") };
            let family = format!("coreplane_ts_{name}{end}");
            writeln!(text, "# HELP {family} {help}.\n# TYPE {family} {kind}\n{family} {value}")
        })
        .is_ok();
    text
}
