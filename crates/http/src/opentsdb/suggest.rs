//! `/api/suggest`: names of metrics, and keys and values of tags, with a given beginning.

use super::answered;
use super::meter::Meter;
use super::point::wrong_json;
use super::query::no_room;
use crate::body;
use crate::host::{Host, Unwanted};
use crate::influx::{Json, Refused, json_answer, string};
use crate::limits::Share;
use crate::parameters::Parameters;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, Response};
use coreplane_tsdb::TagFilter;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The number of names of an answer, if the request states none.
const NAMES: usize = 25;
/// The maximum number of names of an answer.
const NAMES_MAX: usize = 100_000;

#[derive(Debug, Deserialize)]
struct Asked {
    #[serde(rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    q: String,
    max: Option<usize>,
}

/// Bytes of a name beside its text, about: in the set, and in the answer.
const NAME: usize = 64;

/// The least names with this beginning, at most `max`.
struct Names {
    begin: String,
    max: usize,
    found: BTreeSet<Arc<str>>,
    meter: Meter,
}

impl Names {
    fn offer(&mut self, name: &str) -> Result<(), Refused> {
        let is_full = self.found.len() >= self.max;
        if is_full && self.found.last().is_some_and(|last| name > &**last) {
            return Ok(());
        }
        if !name.starts_with(&self.begin) || self.found.contains(name) {
            return Ok(());
        }
        // Once in the set, and once in the answer.
        self.meter.take_bytes(NAME + 2 * name.len())?;
        self.found.insert(Arc::from(name));
        if self.found.len() > self.max
            && let Some(last) = self.found.pop_last()
        {
            self.meter.give_bytes(NAME + 2 * last.len());
        }
        Ok(())
    }
}

/// The answer, and its share of memory.
fn run(host: &Host, asked: Asked, unwanted: &Unwanted) -> Result<(Vec<u8>, Share), Refused> {
    let options = &host.options;
    let meter = Meter::new(options.query_bytes_max, 0, options.query_time_max, unwanted);
    let max = asked.max.unwrap_or(NAMES).min(NAMES_MAX);
    let mut names = Names { begin: asked.q, max, found: BTreeSet::new(), meter };
    let reader = host.store.reader(&options.opentsdb_database, None)?;
    let kind = asked.kind.unwrap_or_default();
    for metric in reader.measurements() {
        names.meter.check()?;
        if kind == "metrics" {
            names.offer(&metric)?;
            continue;
        }
        let may = |work| names.meter.may_search(work);
        for series in reader.series_within(&metric, &TagFilter::All, &may)? {
            names.meter.check()?;
            for (key, value) in series.tags() {
                names.offer(if kind == "tagk" { key } else { value })?;
            }
        }
    }
    let (mut json, mut out) = (Json::default(), Vec::new());
    json.open(b'[', &mut out);
    for name in &names.found {
        json.item(&mut out);
        string(name, &mut out);
    }
    json.close(b']', &mut out);
    let mut share = host.memory.share();
    share.grow_to(out.capacity()).map_err(|_| no_room(host))?;
    Ok((out, share))
}

async fn answer(host: &Arc<Host>, request: Request) -> Result<Response<Body>, Refused> {
    let mut share = host.memory.share();
    let asked = if request.method() == Method::POST {
        let (parts, body) = request.into_parts();
        let mut body = body::question(host, &parts.headers, body).await?;
        body.reserve(body.bytes.len())?;
        let asked = serde_json::from_slice::<Asked>(&body.bytes);
        let asked = asked.map_err(|error| Refused::new(400, wrong_json(&error)))?;
        share = body.into_share();
        asked
    } else {
        let url = Parameters::of(request.uri().query());
        let max = url.some("max").map(str::parse).transpose();
        let max = max.map_err(|_| Refused::new(400, "Unable to parse 'max' as a number"))?;
        Asked { kind: url.some("type").map(str::to_owned), q: url.get("q").to_owned(), max }
    };
    match asked.kind.as_deref() {
        Some("metrics" | "tagk" | "tagv") => {}
        Some(other) => return Err(Refused::new(400, format!("Invalid 'type' parameter:{other}"))),
        None => return Err(Refused::new(400, "Missing 'type' parameter")),
    }
    let call = move |host: &Host, unwanted: &Unwanted| {
        let _share = share;
        run(host, asked, unwanted)
    };
    let (names, share) = host.run_query(call).await??;
    Ok(json_answer(200, body::held(names, share)))
}

/// `/api/suggest`
pub(crate) async fn suggest(State(host): State<Arc<Host>>, request: Request) -> Response<Body> {
    answered(answer(&host, request).await)
}
