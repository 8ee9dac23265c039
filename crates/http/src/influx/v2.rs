//! Endpoints of InfluxDB 2: points by `/api/v2/write`, and the endpoints that its clients check before.
//!
//! A bucket is a database and a policy, `points/autogen`, or a database alone; an organization is ignored. Flux is
//! not supported.

use super::write::{Target, precision, write_body};
use super::{Refused, json_answer, string};
use crate::host::Host;
use crate::parameters::Parameters;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use std::sync::Arc;

/// The error answer of version 2.
pub(crate) fn error(status: u16, message: &str) -> Response<Body> {
    let code = match status {
        401 => "unauthorized",
        403 => "forbidden",
        404 => "not found",
        413 => "request too large",
        400..=499 => "invalid",
        501 => "not implemented",
        503 => "unavailable",
        _ => "internal error",
    };
    let mut body = format!("{{\"code\":\"{code}\",\"message\":").into_bytes();
    string(message, &mut body);
    body.push(b'}');
    json_answer(status, body)
}

/// The database and the policy of a bucket.
fn bucket(name: &str) -> Result<(String, Option<String>), Refused> {
    let (database, policy) = match name.split_once('/') {
        Some((database, policy)) => (database, Some(policy).filter(|policy| !policy.is_empty())),
        None => (name, None),
    };
    if database.is_empty() {
        return Err(Refused::new(400, "bucket is required: DATABASE or DATABASE/POLICY"));
    }
    Ok((database.to_owned(), policy.map(str::to_owned)))
}

async fn write(host: &Arc<Host>, request: Request) -> Result<(), Refused> {
    let parameters = Parameters::of(request.uri().query());
    let (database, policy) = bucket(parameters.get("bucket"))?;
    let precision = precision(parameters.get("precision"))?;
    write_body(host, request, Target { database, policy, precision }).await
}

/// `POST /api/v2/write`
pub(crate) async fn v2_write(State(host): State<Arc<Host>>, request: Request) -> Response<Body> {
    match write(&host, request).await {
        Ok(()) => json_answer(204, Body::empty()),
        Err(refused) => error(refused.status, &refused.message),
    }
}

/// `POST /api/v2/query`
pub(crate) async fn v2_query() -> Response<Body> {
    error(501, "Flux is not supported: ask in InfluxQL, by /query")
}

/// `GET /health`
pub(crate) async fn health(State(host): State<Arc<Host>>) -> Response<Body> {
    let (status, word, message) = match host.store.failure() {
        None => (200, "pass", "ready for queries and writes"),
        Some(why) => (503, "fail", why),
    };
    let mut body = b"{\"checks\":[],\"message\":".to_vec();
    string(message, &mut body);
    let version = super::VERSION;
    body.extend_from_slice(
        format!(",\"name\":\"influxdb\",\"status\":\"{word}\",\"version\":\"{version}\"}}")
            .as_bytes(),
    );
    json_answer(status, body)
}

/// `GET /ready`
pub(crate) async fn ready(State(host): State<Arc<Host>>) -> Response<Body> {
    let up = host.begun.elapsed();
    let began = crate::host::now().saturating_sub(i64::try_from(up.as_nanos()).unwrap_or(i64::MAX));
    let mut body = b"{\"status\":\"ready\",\"started\":\"".to_vec();
    super::time::write_rfc3339(began, &mut body);
    body.extend_from_slice(format!("\",\"up\":\"{}s\"}}", up.as_secs_f64()).as_bytes());
    json_answer(200, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_databases_and_policies() {
        assert_eq!(bucket("d"), Ok(("d".to_owned(), None)));
        assert_eq!(bucket("d/"), Ok(("d".to_owned(), None)));
        assert_eq!(bucket("d/p/q"), Ok(("d".to_owned(), Some("p/q".to_owned()))));
        assert!(bucket("").is_err() && bucket("/p").is_err());
    }
}
