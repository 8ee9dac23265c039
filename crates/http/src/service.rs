//! The router, and the common part of all answers.

use crate::auth::{self, Denied};
use crate::host::Host;
use crate::metrics::{Endpoint, add};
use crate::parameters::Parameters;
use crate::remainder::{Remainder, expects};
use crate::{figures, influx, opentsdb};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, HeaderName};
use axum::http::{HeaderValue, Response};
use axum::routing::{any, get, post};
use std::sync::Arc;
use std::time::Instant;
use tower_service::Service;

/// Answers requests.
#[derive(Clone)]
pub(crate) struct Answerer {
    host: Arc<Host>,
    router: Router,
}

impl Answerer {
    pub(crate) fn new(host: Arc<Host>) -> Self {
        let router = Router::new()
            .route("/ping", get(influx::ping))
            .route("/status", get(influx::ping))
            .route("/health", get(influx::health))
            .route("/ready", get(influx::ready))
            .route("/write", post(influx::write))
            .route("/query", get(influx::query).post(influx::query))
            .route("/metrics", get(metrics))
            .route("/api/v2/write", post(influx::v2_write))
            .route("/api/v2/query", any(influx::v2_query))
            .route("/api/put", post(opentsdb::put))
            .route("/api/query", get(opentsdb::query).post(opentsdb::query))
            .route("/api/suggest", get(opentsdb::suggest).post(opentsdb::suggest))
            .route("/api/aggregators", get(opentsdb::aggregators))
            .route("/api/config/filters", get(opentsdb::filters))
            .route("/api/version", any(opentsdb::version))
            .route("/version", any(opentsdb::version))
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method)
            .with_state(Arc::clone(&host));
        Self { host, router }
    }

    /// Answers a request; `is_refused` is true if the client is refused.
    pub(crate) async fn answer(&self, request: Request, is_refused: bool) -> Response<Body> {
        let begun = Instant::now();
        let (parts, body) = request.into_parts();
        let (remainder, body) = Remainder::lend(body);
        let expects = expects(&parts.headers);
        let request = Request::from_parts(parts, body);
        let path = request.uri().path();
        let (endpoint, is_open) = (endpoint(path), is_open(path));
        let denied = match is_refused {
            _ if is_open => Ok(()),
            true => Err(Denied::Protected),
            _ if auth::is_of_other_site(
                &self.host.options,
                request.method(),
                request.headers(),
            ) =>
            {
                Err(Denied::OtherSite)
            }
            false => {
                let parameters = Parameters::of(request.uri().query());
                auth::check(&self.host.options, request.headers(), &parameters)
            }
        };
        let mut response = match denied {
            Ok(()) => {
                let mut router = self.router.clone();
                match router.call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
            Err(denied) => {
                add(&self.host.metrics.unauthorized, 1);
                let refusal = refuse(path, denied);
                drop(request);
                refusal
            }
        };
        let id = self.host.request_id();
        let headers = response.headers_mut();
        if let Ok(id) = HeaderValue::from_str(&id) {
            headers.insert(HeaderName::from_static("request-id"), id.clone());
            headers.insert(HeaderName::from_static("x-request-id"), id);
        }
        let version = HeaderValue::from_static(influx::VERSION);
        headers.insert(HeaderName::from_static("x-influxdb-version"), version);
        let build = HeaderValue::from_static("Coreplane");
        headers.insert(HeaderName::from_static("x-influxdb-build"), build);
        if !remainder.read(expects).await {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let status = response.status().as_u16();
        self.host.metrics.answered(endpoint, status, begun.elapsed());
        response
    }
}

/// The paths that need no authentication: whether the server is there.
fn is_open(path: &str) -> bool {
    matches!(path, "/ping" | "/status" | "/health" | "/ready")
}

fn endpoint(path: &str) -> Endpoint {
    match path {
        "/write" | "/api/v2/write" => Endpoint::Write,
        "/query" => Endpoint::Query,
        "/api/put" => Endpoint::Put,
        "/api/query" => Endpoint::OpenTsdb,
        _ => Endpoint::Other,
    }
}

fn is_opentsdb(path: &str) -> bool {
    path.starts_with("/api/") && !path.starts_with("/api/v2/")
}

/// A refusal in the form of the protocol to which the path belongs.
fn refuse(path: &str, denied: Denied) -> Response<Body> {
    let refused = influx::Refused::from(denied);
    if is_opentsdb(path) {
        return opentsdb::error(refused.status, &refused.message, "");
    }
    if path.starts_with("/api/v2/") {
        return influx::v2_error(refused.status, &refused.message);
    }
    influx::error(refused.status, &refused.message)
}

async fn not_found(request: Request) -> Response<Body> {
    if is_opentsdb(request.uri().path()) {
        return opentsdb::error(404, "Endpoint not found", "The requested endpoint was not found");
    }
    influx::not_found()
}

async fn wrong_method(request: Request) -> Response<Body> {
    if is_opentsdb(request.uri().path()) {
        let details =
            format!("The HTTP method [{}] is not permitted for this endpoint", request.method());
        return opentsdb::error(405, "Method not allowed", &details);
    }
    influx::wrong_method()
}

/// `GET /metrics`
async fn metrics(State(host): State<Arc<Host>>) -> Response<Body> {
    let mut response = Response::new(Body::from(figures::text(&host)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
