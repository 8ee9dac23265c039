//! OpenTSDB's endpoints and its lines, as its version 2.4 answers them.
//!
//! | endpoint | content |
//! |---|---|
//! | `POST /api/put` | points in JSON |
//! | `GET, POST /api/query` | points: filtered, grouped, downsampled, aggregated |
//! | `/api/suggest` | names of metrics and tags |
//! | `/api/aggregators`, `/api/config/filters`, `/api/version` | the supported functions, filters and version |
//! | lines | `put METRIC TIME VALUE TAG=VALUE…`, `version`, `stats`, `exit` |
//!
//! A metric is a measurement of one database ([`Options::opentsdb_database`](crate::Options::opentsdb_database)),
//! and its values are the field `value`, a float: OpenTSDB allows integers and floats in one series. Any other
//! measurement with such a field there is read as well, by whichever protocol it was written.
//!
//! # Departures from OpenTSDB 2.4
//!
//! - Integers beyond 2^53 lose their last digits, and averages of integers are not rounded down.
//! - Whole numbers in answers have no `.0`.
//! - Of the points of a second the last one is in the answer, unless it has milliseconds or arrays: OpenTSDB writes
//!   an object with equal names.
//! - Percentiles are estimated by: there is no `ep50r3` and the like.
//! - A series of rates counts from its first rate on. In OpenTSDB it counts before that as well, with its first
//!   value divided by the seconds since 1970.
//! - `/api/query` supports the options `start`, `end`, `msResolution` and `arrays`, and in a sub-query aggregator,
//!   metric, tags, filters, rate and downsampling. Calendars, time zones, `tsuids`, histograms, pre-aggregates and
//!   `delete` are refused; annotations are left out.
//! - The details of `/api/put` have a thousand wrong points and about 1 MiB at most, and long names are cut.
//! - The filters of a query take about 8 MiB at most, where each value of a list counts with its tag's key, and have
//!   32 expressions at most.
//! - The message of an error has a thousand bytes at most.
//! - A request that finds no room ends with the status 500, and without the number of points that were written
//!   before: a client repeats it.

mod aggregate;
mod downsample;
mod filter;
mod list;
mod meter;
mod moment;
mod point;
mod put;
mod query;
mod request;
mod series;
mod suggest;
mod telnet;

pub(crate) use put::put;
pub(crate) use query::query;
pub(crate) use suggest::suggest;
pub(crate) use telnet::telnet;

use crate::influx::{Refused, json_answer, string};
use aggregate::NAMES;
use axum::body::Body;
use axum::http::Response;
use point::{WHY_MAX, cut};

/// The name of the field of a metric's values.
const FIELD: &str = "value";

/// The version that clients are told.
const VERSION: &str = "2.4.0";

/// The error answer of OpenTSDB; what it says is cut if it is long.
pub(crate) fn error(status: u16, message: &str, details: &str) -> Response<Body> {
    let mut body = format!("{{\"error\":{{\"code\":{status},\"message\":").into_bytes();
    string(&cut(message, WHY_MAX), &mut body);
    if !details.is_empty() {
        body.extend_from_slice(b",\"details\":");
        string(details, &mut body);
    }
    body.extend_from_slice(b"}}");
    let mut response = json_answer(status, body);
    if status == 401 {
        let realm = axum::http::HeaderValue::from_static("Basic realm=\"OpenTSDB\"");
        response.headers_mut().insert(axum::http::header::WWW_AUTHENTICATE, realm);
    }
    response
}

/// The answer, or the refusal.
fn answered(answer: Result<Response<Body>, Refused>) -> Response<Body> {
    answer.unwrap_or_else(|refused| error(refused.status, &refused.message, ""))
}

/// `/api/aggregators`
pub(crate) async fn aggregators() -> Response<Body> {
    let names: Vec<String> = NAMES.iter().map(|name| format!("\"{name}\"")).collect();
    json_answer(200, format!("[{}]", names.join(",")))
}

/// `/api/config/filters`
pub(crate) async fn filters() -> Response<Body> {
    let kinds: Vec<String> = filter::KINDS
        .iter()
        .map(|(name, what)| format!("\"{name}\":{{\"examples\":\"\",\"description\":\"{what}\"}}"))
        .collect();
    json_answer(200, format!("{{{}}}", kinds.join(",")))
}

/// `/api/version`
pub(crate) async fn version() -> Response<Body> {
    json_answer(
        200,
        format!(
            "{{\"version\":\"{VERSION}\",\"short_revision\":\"\",\"full_revision\":\"\",\"repo\":\"coreplane\",\
             \"repo_status\":\"MINT\",\"branch\":\"\",\"host\":\"\",\"user\":\"\",\"timestamp\":\"0\"}}"
        ),
    )
}
