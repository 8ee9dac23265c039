//! `/api/query`.

use super::answered;
use super::meter::Meter;
use super::request::Query;
use super::series::{Group, groups};
use crate::body;
use crate::host::{Host, Unwanted, now};
use crate::influx::{Json, Refused, float, json_answer, string};
use crate::limits::Share;
use crate::metrics::add;
use crate::parameters::Parameters;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response};
use std::io::Write;
use std::sync::Arc;

/// Appends a series of the answer.
fn write_group(group: &Group, query: &Query, out: &mut Vec<u8>) {
    let mut json = Json::default();
    json.open(b'{', out);
    json.key("metric", out);
    string(&group.metric, out);
    json.key("tags", out);
    json.open(b'{', out);
    for (key, value) in &group.tags {
        json.key(key, out);
        string(value, out);
    }
    json.close(b'}', out);
    json.key("aggregateTags", out);
    json.open(b'[', out);
    for key in &group.aggregated {
        json.item(out);
        string(key, out);
    }
    json.close(b']', out);
    json.key("dps", out);
    let (open, close) = if query.has_arrays { (b'[', b']') } else { (b'{', b'}') };
    json.open(open, out);
    let unit = if query.is_in_milliseconds { 1 } else { 1000 };
    let mut samples = group.samples.iter().peekable();
    while let Some((time, value)) = samples.next() {
        let time = time / unit;
        // Of the points of a second only the last is written in an object, where a name is unique.
        let is_last = samples.peek().is_none_or(|(next, _)| next / unit != time);
        if !is_last && !query.has_arrays {
            continue;
        }
        json.item(out);
        // Writing to a vector does not fail.
        let _written = match query.has_arrays {
            true => write!(out, "[{time},"),
            false => write!(out, "\"{time}\":"),
        }
        .is_ok();
        match value.is_nan() && !group.has_nulls {
            true => out.extend_from_slice(b"\"NaN\""),
            false => float(*value, out),
        }
        if query.has_arrays {
            out.push(b']');
        }
    }
    json.close(close, out);
    json.close(b'}', out);
}

/// The refusal of an answer for which there is no memory.
pub(super) fn no_room(host: &Host) -> Refused {
    add(&host.metrics.no_room, 1);
    Refused::new(503, "no memory for this answer beside those of others")
}

fn run(host: &Host, query: &Query, unwanted: &Unwanted) -> Result<(Vec<u8>, Share), Refused> {
    let options = &host.options;
    let intervals = options.query_buckets_max as u64;
    let within = options.query_time_max;
    let mut meter = Meter::new(options.query_bytes_max, intervals, within, unwanted);
    let mut share = host.memory.share();
    let reader = host.store.reader(&options.opentsdb_database, None)?;
    let (mut json, mut out) = (Json::default(), Vec::new());
    json.open(b'[', &mut out);
    for sub in &query.subs {
        for group in groups(&reader, query, sub, &mut meter)? {
            json.item(&mut out);
            write_group(&group, query, &mut out);
            share.grow_to(out.capacity()).map_err(|_| no_room(host))?;
        }
    }
    json.close(b']', &mut out);
    add(&host.metrics.bytes_out, out.len() as u64);
    Ok((out, share))
}

async fn answer(host: &Arc<Host>, request: Request) -> Result<Response<Body>, Refused> {
    let url = Parameters::of(request.uri().query());
    let now = now() / 1_000_000;
    let mut share = host.memory.share();
    let body = if request.method() == Method::POST {
        let (parts, body) = request.into_parts();
        let mut body = body::question(host, &parts.headers, body).await?;
        // A tag takes about so many times the bytes of its text; other lists are bounded.
        body.reserve(body.bytes.len() * 16)?;
        let bytes = body.bytes.clone();
        share = body.into_share();
        Some(bytes)
    } else {
        None
    };
    let call = move |host: &Host, unwanted: &Unwanted| {
        let query = match &body {
            Some(body) => Query::of_json(body, &url, now),
            None => Query::of_url(&url, now),
        };
        let query = query.map_err(|wrong| Refused::new(400, wrong))?;
        // What is made of the body is held until the end.
        let body = body.map_or(0, |body| body.len() * 17);
        share.grow_to(body + query.bytes()).map_err(|_| no_room(host))?;
        run(host, &query, unwanted)
    };
    let (text, share) = host.run_query(call).await??;
    Ok(json_answer(200, body::held(text, share)))
}

/// `/api/query`
pub(crate) async fn query(State(host): State<Arc<Host>>, request: Request) -> Response<Body> {
    answered(answer(&host, request).await)
}
