//! InfluxDB's endpoints, as its version 1.6.7 answers them.
//!
//! | endpoint | content |
//! |---|---|
//! | `POST /write` | points in line protocol |
//! | `GET, POST /query` | InfluxQL |
//! | `/ping`, `/status` | 204; 200 with `verbose=true` |
//! | `POST /api/v2/write` | points of clients of version 2 |
//! | `/health`, `/ready` | of version 2 |
//!
//! # Departures from InfluxDB 1.6.7
//!
//! - **Version.** `X-Influxdb-Version` is `1.6.7`, since some clients read it as three numbers and choose their
//!   requests by it; `X-Influxdb-Build` says that it is Coreplane.
//! - **Units.** `us` is a microsecond, where InfluxDB 1.6 uses nanoseconds; an unknown precision is an error, where
//!   InfluxDB uses nanoseconds.
//! - **Statements that change something** are refused by `GET` and `HEAD`, which InfluxDB runs with a warning.
//! - **Consistency** is ignored, even if it is misspelled.
//! - **URLs** must have `"`, `<` and `>` percent-encoded, as clients and Grafana send them. Unencoded, as from a
//!   shell, they get a 400 from hyper, which does not accept such a URL; InfluxDB accepts it.
//! - **Bound parameters** (`params`) and queries in files (`multipart/form-data`) are refused.
//! - **MessagePack** is not supported: a client that accepts only that gets JSON, as with any type that InfluxDB
//!   does not know.
//! - **Errors of statements in CSV** are a table with the column `error`; InfluxDB omits them.
//! - **Chunks.** Answers of `SHOW DATABASES` and the like have chunks as all others; InfluxDB sends them whole.
//! - **Types of fields.** A field has one type in a database, whatever the retention policy; in InfluxDB it has one
//!   in each shard. So means of integers cannot go to another policy under the same names.
//! - **Pages of other sites.** Without a password, in protected mode, a `POST` that a browser marks as one of another
//!   site is refused. There is no CORS.
//! - A body of points is written in parts of some thousands: the points of a part stay, even if a later part fails.

mod csv;
mod json;
mod query;
mod time;
mod v2;
mod write;

pub(crate) use json::{Json, float, string};
pub(crate) use query::query;
pub use query::write_answers;
pub(crate) use v2::{error as v2_error, health, ready, v2_query, v2_write};
pub(crate) use write::{Written, write, write_points};

use crate::auth::Denied;
use crate::body::BodyError;
use crate::host::NotRun;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};

/// The version that clients are told.
pub(crate) const VERSION: &str = "1.6.7";

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// An answer with a body of JSON.
pub(crate) fn json_answer(status: u16, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// A text as the value of a header, without characters that are not allowed there.
fn header(text: &str) -> HeaderValue {
    let plain: String =
        text.chars().map(|it| if it.is_ascii_control() { ' ' } else { it }).take(1000).collect();
    HeaderValue::from_bytes(plain.as_bytes()).unwrap_or(HeaderValue::from_static("error"))
}

/// The error answer of version 1.
pub(crate) fn error(status: u16, message: &str) -> Response<Body> {
    let mut body = b"{\"error\":".to_vec();
    string(message, &mut body);
    body.extend_from_slice(b"}\n");
    let mut response = json_answer(status, body);
    let headers = response.headers_mut();
    headers.insert(HeaderName::from_static("x-influxdb-error"), header(message));
    if status == 401 {
        let realm = HeaderValue::from_static("Basic realm=\"InfluxDB\"");
        headers.insert(WWW_AUTHENTICATE, realm);
    }
    response
}

/// A refusal, independent of the form in which the endpoint reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) message: String,
}

impl Refused {
    pub(crate) fn new(status: u16, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// The answer of version 1.
    fn answer(&self) -> Response<Body> {
        error(self.status, &self.message)
    }
}

impl From<BodyError> for Refused {
    fn from(error: BodyError) -> Self {
        let (status, message) = error.answer();
        Self { status, message }
    }
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        let status = match denied {
            Denied::Protected | Denied::OtherSite => 403,
            Denied::Missing | Denied::Wrong => 401,
        };
        Self::new(status, denied.text())
    }
}

impl From<NotRun> for Refused {
    fn from(not_run: NotRun) -> Self {
        match not_run {
            NotRun::Busy => Self::new(503, "too many queries run: try again later"),
            NotRun::Failed => Self::new(500, "internal error: see the server's standard error"),
        }
    }
}

impl From<coreplane_tsdb::Error> for Refused {
    fn from(error: coreplane_tsdb::Error) -> Self {
        use coreplane_tsdb::Error as E;
        let message = error.to_string();
        let status = match error {
            E::NotFound(_) if message.starts_with("database not found") => 404,
            E::Input(_) | E::Limit(_) => 400,
            _ => 500,
        };
        Self { status, message }
    }
}

/// `/ping` and `/status`.
pub(crate) async fn ping(request: Request) -> Response<Body> {
    let parameters = crate::parameters::Parameters::of(request.uri().query());
    match parameters.get("verbose") {
        "" | "0" | "false" => json_answer(204, Body::empty()),
        _ => json_answer(200, format!("{{\"version\":\"{VERSION}\"}}\n")),
    }
}

/// The answer for an unknown path.
pub(crate) fn not_found() -> Response<Body> {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// The answer for a wrong method.
pub(crate) fn wrong_method() -> Response<Body> {
    plain(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n")
}

fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(
        HeaderName::from_static("x-content-type-options"),
        HeaderValue::from_static("nosniff"),
    );
    response
}
