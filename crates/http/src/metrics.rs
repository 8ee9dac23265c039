//! Counters of the HTTP side, and their text for Prometheus.
//!
//! Every counter is one relaxed addition; a text is not a consistent snapshot of them, which is not needed.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The kind of a request in the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// InfluxDB's writes.
    Write,
    /// InfluxDB's queries.
    Query,
    /// OpenTSDB's points.
    Put,
    /// OpenTSDB's queries.
    OpenTsdb,
    /// All else.
    Other,
}

const ENDPOINTS: [(Endpoint, &str); 5] = [
    (Endpoint::Write, "write"),
    (Endpoint::Query, "query"),
    (Endpoint::Put, "opentsdb_put"),
    (Endpoint::OpenTsdb, "opentsdb_query"),
    (Endpoint::Other, "other"),
];

/// Upper bounds of the buckets of latencies, in microseconds.
const BOUNDS: [u64; 14] = [
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000,
    30_000_000,
];

/// Counters of one endpoint.
#[derive(Debug, Default)]
struct Counters {
    /// Answers whose status begins with 2, 4 and 5.
    answers: [AtomicU64; 3],
    buckets: [AtomicU64; BOUNDS.len()],
    microseconds: AtomicU64,
}

/// Counters of a server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    endpoints: [Counters; ENDPOINTS.len()],
    pub(crate) points_written: AtomicU64,
    pub(crate) points_dropped: AtomicU64,
    pub(crate) lines_refused: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) connections_refused: AtomicU64,
    pub(crate) no_room: AtomicU64,
    pub(crate) queries_refused: AtomicU64,
    pub(crate) queries_running: AtomicU64,
    pub(crate) unauthorized: AtomicU64,
    pub(crate) telnet_lines: AtomicU64,
    pub(crate) telnet_errors: AtomicU64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, number: u64) {
    counter.fetch_add(number, Ordering::Relaxed);
}

/// The value of a counter.
pub(crate) fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Metrics {
    /// The number of requests that were answered.
    pub(crate) fn count(&self, endpoint: Endpoint) -> u64 {
        let each = ENDPOINTS.iter().zip(&self.endpoints);
        each.filter(|((one, _), _)| *one == endpoint)
            .flat_map(|(_, counters)| counters.answers.iter().map(load))
            .sum()
    }

    /// Counts a request that was answered with this status.
    pub(crate) fn answered(&self, endpoint: Endpoint, status: u16, took: Duration) {
        let at = ENDPOINTS.iter().position(|(one, _)| *one == endpoint);
        let Some(counters) = at.and_then(|at| self.endpoints.get(at)) else { return };
        let class = match status {
            500.. => 2,
            400..=499 => 1,
            _ => 0,
        };
        add(&counters.answers[class], 1);
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        add(&counters.microseconds, took);
        let bucket = BOUNDS.iter().position(|bound| took <= *bound);
        if let Some(bucket) = bucket.and_then(|at| counters.buckets.get(at)) {
            add(bucket, 1);
        }
    }

    /// All counters in Prometheus's text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::with_capacity(8 << 10);
        // Writing to a string does not fail.
        let _written = self.write_all(&mut text).is_ok();
        text
    }

    fn write_all(&self, text: &mut String) -> std::fmt::Result {
        let plain = [
            ("points_written_total", "counter", "Points that are durable", &self.points_written),
            ("points_dropped_total", "counter", "Points that were refused", &self.points_dropped),
            ("lines_refused_total", "counter", "Lines that are no points", &self.lines_refused),
            ("received_bytes_total", "counter", "Bytes of bodies", &self.bytes_in),
            ("sent_bytes_total", "counter", "Bytes of answers to queries", &self.bytes_out),
            ("connections", "gauge", "Connections that are open", &self.connections),
            ("connections_refused_total", "counter", "Too many of them", &self.connections_refused),
            ("no_room_total", "counter", "Requests without room in memory", &self.no_room),
            ("queries_refused_total", "counter", "Waited too long", &self.queries_refused),
            ("queries_running", "gauge", "Queries that run", &self.queries_running),
            ("unauthorized_total", "counter", "Requests without the password", &self.unauthorized),
            ("telnet_lines_total", "counter", "Lines of OpenTSDB's", &self.telnet_lines),
            ("telnet_errors_total", "counter", "Those that were refused", &self.telnet_errors),
        ];
        for (name, kind, help, counter) in plain {
            writeln!(text, "# HELP coreplane_http_{name} {help}.")?;
            writeln!(text, "# TYPE coreplane_http_{name} {kind}")?;
            writeln!(text, "coreplane_http_{name} {}", load(counter))?;
        }
        writeln!(text, "# HELP coreplane_http_requests_total Requests that were answered.")?;
        writeln!(text, "# TYPE coreplane_http_requests_total counter")?;
        for ((_, name), counters) in ENDPOINTS.iter().zip(&self.endpoints) {
            for (class, count) in ["2xx", "4xx", "5xx"].iter().zip(&counters.answers) {
                let labels = format!("endpoint=\"{name}\",status=\"{class}\"");
                writeln!(text, "coreplane_http_requests_total{{{labels}}} {}", load(count))?;
            }
        }
        writeln!(text, "# HELP coreplane_http_request_seconds From the head to the answer.")?;
        writeln!(text, "# TYPE coreplane_http_request_seconds histogram")?;
        for ((_, name), counters) in ENDPOINTS.iter().zip(&self.endpoints) {
            counters.write_latencies(name, text)?;
        }
        Ok(())
    }
}

impl Counters {
    fn write_latencies(&self, name: &str, text: &mut String) -> std::fmt::Result {
        let metric = "coreplane_http_request_seconds";
        let mut below = 0;
        for (bound, bucket) in BOUNDS.iter().zip(&self.buckets) {
            below += load(bucket);
            let seconds = Duration::from_micros(*bound).as_secs_f64();
            writeln!(text, "{metric}_bucket{{endpoint=\"{name}\",le=\"{seconds}\"}} {below}")?;
        }
        let count: u64 = self.answers.iter().map(load).sum();
        let seconds = Duration::from_micros(load(&self.microseconds)).as_secs_f64();
        // Counters move while they are read: the last bucket is never below the one before.
        let count = count.max(below);
        writeln!(text, "{metric}_bucket{{endpoint=\"{name}\",le=\"+Inf\"}} {count}")?;
        writeln!(text, "{metric}_sum{{endpoint=\"{name}\"}} {seconds}")?;
        writeln!(text, "{metric}_count{{endpoint=\"{name}\"}} {count}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_by_endpoint_status_and_time() {
        let metrics = Metrics::default();
        metrics.answered(Endpoint::Write, 204, Duration::from_micros(70));
        metrics.answered(Endpoint::Write, 400, Duration::from_micros(200));
        metrics.answered(Endpoint::Query, 503, Duration::from_secs(90));
        add(&metrics.points_written, 7);
        let text = metrics.text();
        for line in [
            "coreplane_http_points_written_total 7",
            "coreplane_http_requests_total{endpoint=\"write\",status=\"2xx\"} 1",
            "coreplane_http_requests_total{endpoint=\"write\",status=\"4xx\"} 1",
            "coreplane_http_requests_total{endpoint=\"query\",status=\"5xx\"} 1",
            "coreplane_http_request_seconds_bucket{endpoint=\"write\",le=\"0.0001\"} 1",
            "coreplane_http_request_seconds_bucket{endpoint=\"write\",le=\"0.0002\"} 2",
            "coreplane_http_request_seconds_bucket{endpoint=\"query\",le=\"30\"} 0",
            "coreplane_http_request_seconds_bucket{endpoint=\"query\",le=\"+Inf\"} 1",
            "coreplane_http_request_seconds_sum{endpoint=\"query\"} 90",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
    }
}
