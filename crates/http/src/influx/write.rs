//! `POST /write`: points in line protocol.
//!
//! ```text
//!   body ─► decode ─► lines ─► points, some thousands ─► store.write ─► … ─► 204, or the dropped points
//! ```
//!
//! A body is written in batches of bounded numbers of points and of fields, so that these take bounded memory
//! whatever the length of the body: less than 20 MiB. Broken lines are reported and the others are written, as in InfluxDB; so an answer of 400 says `partial write` if something was
//! written.

use super::{Refused, json_answer};
use crate::body;
use crate::host::{Host, now};
use crate::metrics::add;
use crate::parameters::Parameters;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use coreplane_tsdb::line::{self, Precision};
use coreplane_tsdb::{Error, FIELDS_MAX, Patience, Point};
use std::sync::Arc;

/// Points of a batch: many if the store waits for a sync, otherwise as many as the caches hold.
const BATCH: usize = 5_000;
const BATCH_AT_ONCE: usize = 256;

/// Points that are written together.
struct Batch<'t> {
    points: Vec<Point<'t>>,
    /// Fields of its points.
    fields: usize,
    points_max: usize,
}

impl<'t> Batch<'t> {
    /// Adds a point; true if the batch is full.
    fn push(&mut self, point: Point<'t>) -> bool {
        self.fields += point.fields.len();
        self.points.push(point);
        self.points.len() >= self.points_max || self.fields >= FIELDS_MAX
    }

    fn clear(&mut self) {
        self.points.clear();
        self.fields = 0;
    }
}

/// The maximum length of the messages about broken lines, in bytes.
const COMPLAINTS_MAX: usize = 8 << 10;

/// The database and the policy to write to.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) database: String,
    pub(super) policy: Option<String>,
    pub(super) precision: Precision,
}

/// The result of writing a body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// Points that are durable.
    pub(crate) written: u64,
    /// Points that the store refused.
    pub(crate) dropped: u64,
    /// The reason for the first refusal.
    pub(crate) reason: Option<String>,
    /// The messages about lines that are not points.
    complaints: String,
    /// The number of such lines that are not reported.
    untold: u64,
}

impl Written {
    fn complain(&mut self, complaint: &str) {
        if self.complaints.len() + complaint.len() > COMPLAINTS_MAX && !self.complaints.is_empty() {
            self.untold += 1;
            return;
        }
        if !self.complaints.is_empty() {
            self.complaints.push('\n');
        }
        self.complaints.push_str(complaint);
    }

    /// The refusal in InfluxDB's words; none if everything was written.
    fn refusal(mut self) -> Result<(), Refused> {
        if let Some(reason) = &self.reason {
            let message = format!("partial write: {reason} dropped={}", self.dropped);
            return Err(Refused::new(400, message));
        }
        if self.complaints.is_empty() {
            return Ok(());
        }
        if self.untold > 0 {
            self.complaints += &format!("\nand {} more lines", self.untold);
        }
        if self.written == 0 {
            return Err(Refused::new(400, self.complaints));
        }
        let message = format!("partial write: {} dropped=0", self.complaints);
        Err(Refused::new(400, message))
    }
}

/// Writes points, and adds the result. An error that concerns all points is returned.
pub(crate) fn write_points(
    host: &Host,
    database: &str,
    policy: Option<&str>,
    points: &[Point<'_>],
    written: &mut Written,
    patience: &mut Patience,
) -> Result<Vec<(usize, String)>, Refused> {
    if points.is_empty() {
        return Ok(Vec::new());
    }
    let rejected = match host.store.write_within(database, policy, points, patience) {
        Ok(outcome) => {
            written.written += outcome.written;
            add(&host.metrics.points_written, outcome.written);
            outcome.rejected
        }
        // The limit may concern all of the points.
        Err(Error::Limit(why)) => (0..points.len()).map(|at| (at, why.clone())).collect(),
        Err(error @ Error::Full(_)) => return Err(Refused::new(500, format!("engine: {error}"))),
        Err(error) => return Err(error.into()),
    };
    let dropped = rejected.len() as u64;
    written.dropped += dropped;
    add(&host.metrics.points_dropped, dropped);
    if written.reason.is_none() {
        written.reason = rejected.first().map(|(_, why)| why.clone());
    }
    Ok(rejected)
}

/// Writes the points of a text.
fn write_text(
    host: &Host,
    target: &Target,
    text: &[u8],
    mut patience: Patience,
) -> Result<(), Refused> {
    let Target { database, policy, precision } = target;
    let policy = policy.as_deref();
    let mut written = Written::default();
    let mut refused = 0;
    let points_max = if host.store.is_durable_at_once() { BATCH_AT_ONCE } else { BATCH };
    let points = Vec::with_capacity(points_max.min(text.len() / 32 + 1));
    let mut batch = Batch { points, fields: 0, points_max };
    for point in line::points(text, *precision, now()) {
        let is_full = match point {
            Ok((_, point)) => batch.push(point),
            Err(error) => {
                refused += 1;
                written.complain(&error.to_string());
                false
            }
        };
        if is_full {
            write_points(host, database, policy, &batch.points, &mut written, &mut patience)?;
            batch.clear();
        }
    }
    write_points(host, database, policy, &batch.points, &mut written, &mut patience)?;
    add(&host.metrics.lines_refused, refused);
    // A store that got no points has not reported whether the database exists.
    if written.written + written.dropped == 0 {
        host.store.policies(database)?;
    }
    written.refusal()
}

/// Collects the body of a request and writes its points.
pub(super) async fn write_body(
    host: &Arc<Host>,
    request: Request,
    target: Target,
) -> Result<(), Refused> {
    let (parts, body) = request.into_parts();
    let mut body = body::collect(host, &parts.headers, body).await?;
    let (is_here, shared) = (body.is_written_here(host), Arc::clone(host));
    let mut call = move |patience| {
        body.decode(shared.options.body_max)?;
        write_text(&shared, &target, &body.bytes, patience)
    };
    match is_here {
        true => call(Patience::none()),
        false => host.run_write(move || call(Patience::default())).await?,
    }
}

async fn answer(host: &Arc<Host>, request: Request) -> Result<(), Refused> {
    let parameters = Parameters::of(request.uri().query());
    let database =
        parameters.some("db").ok_or_else(|| Refused::new(400, "database is required"))?;
    let target = Target {
        database: database.to_owned(),
        policy: parameters.some("rp").map(str::to_owned),
        precision: precision(parameters.get("precision"))?,
    };
    write_body(host, request, target).await
}

/// The precision with this name; nanoseconds if it is empty.
pub(super) fn precision(name: &str) -> Result<Precision, Refused> {
    if name.is_empty() {
        return Ok(Precision::default());
    }
    Precision::of_name(name).ok_or_else(|| {
        let message = format!("invalid precision {name:?} (use n, ns, u, us, ms, s, m or h)");
        Refused::new(400, message)
    })
}

/// `POST /write`
pub(crate) async fn write(State(host): State<Arc<Host>>, request: Request) -> Response<Body> {
    match answer(&host, request).await {
        Ok(()) => json_answer(204, Body::empty()),
        Err(refused) => refused.answer(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(written: Written) -> String {
        written.refusal().map_or_else(|refused| refused.message, |()| String::new())
    }

    #[test]
    fn refusals_are_those_of_influxdb() {
        assert_eq!(message(Written { written: 3, ..Written::default() }), "");
        let mut some = Written { written: 3, ..Written::default() };
        some.complain("unable to parse 'x': missing fields");
        some.complain("unable to parse 'y z': invalid field format");
        let lines =
            "unable to parse 'x': missing fields\nunable to parse 'y z': invalid field format";
        assert_eq!(message(some.clone()), format!("partial write: {lines} dropped=0"));
        assert_eq!(message(Written { written: 0, ..some.clone() }), lines);
        let reason = Some("max-series-per-database limit exceeded: (20)".to_owned());
        let dropped = Written { dropped: 30, reason, ..some };
        let expected = "partial write: max-series-per-database limit exceeded: (20) dropped=30";
        assert_eq!(message(dropped), expected);
    }

    #[test]
    fn a_batch_has_so_many_points_and_fields() {
        for (fields, before) in [(1, 8), (FIELDS_MAX / 8 + 1, 7)] {
            let text = format!("m {}\n", vec!["a=1"; fields].join(",")).repeat(20);
            let mut points = line::points(text.as_bytes(), Precision::default(), 0);
            let mut batch = Batch { points: Vec::new(), fields: 0, points_max: 9 };
            for _ in 0..2 {
                let mut push = || batch.push(points.next().expect("a line").expect("a point").1);
                assert_eq!((0..9).find(|_| push()), Some(before));
                batch.clear();
            }
        }
    }

    #[test]
    fn complaints_are_bounded() {
        let mut written = Written::default();
        let long = "x".repeat(1000);
        (0..100).for_each(|_| written.complain(&long));
        let said = message(written);
        assert!(
            said.len() < COMPLAINTS_MAX + 100 && said.ends_with("\nand 92 more lines"),
            "{said}"
        );
    }
}
