//! `POST /api/put`: a point, or a list of them.
//!
//! A list is parsed twice: first for its syntax, so that nothing of a broken list is written, then point by point,
//! in batches. Neither pass keeps more of it than a batch.

use super::point::{Datapoint, WHY_MAX, cut, no_text, wrong_json};
use super::{answered, error};
use crate::body;
use crate::host::Host;
use crate::influx::{Refused, Written, json_answer, string, write_points};
use crate::limits::Share;
use crate::parameters::Parameters;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use coreplane_tsdb::{Patience, Point};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer as _, Error as _, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::sync::Arc;

/// Points of a batch.
const BATCH: usize = 5_000;

/// The maximum number of wrong points that are reported in detail.
const DETAILS_MAX: usize = 1_000;

/// No more of them are reported from so many bytes on.
const DETAILS_BYTES_MAX: usize = 1 << 20;

/// Calls a function with each point of a text.
struct Each<'f>(&'f mut dyn FnMut(Datapoint<'_>) -> Result<(), Refused>, &'f mut Option<Refused>);

impl<'de> Visitor<'de> for Each<'_> {
    type Value = ();

    fn expecting(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str("a data point or a list of them")
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<(), E> {
        Err(no_text(&self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self(call, refused) = self;
        while let Some(point) = list.next_element::<Datapoint<'de>>()? {
            if let Err(why) = call(point) {
                *refused = Some(why);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<(), A::Error> {
        let Self(call, refused) = self;
        let point = Datapoint::deserialize(MapAccessDeserializer::new(object))?;
        call(point).map_err(|why| {
            *refused = Some(why);
            A::Error::custom("refused")
        })
    }
}

fn each(
    text: &[u8],
    call: &mut dyn FnMut(Datapoint<'_>) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let mut refused = None;
    let read = json.deserialize_any(Each(call, &mut refused)).and_then(|()| json.end());
    read.map_err(|error| refused.unwrap_or_else(|| Refused::new(400, wrong_json(&error))))
}

/// The wrong points, and what is wrong with them: as many as are few and short, and as there is memory for.
struct Details {
    /// The beginning of a JSON object.
    text: Vec<u8>,
    count: usize,
    share: Share,
}

impl Details {
    fn new(share: Share) -> Self {
        Self { text: b"{\"errors\":[".to_vec(), count: 0, share }
    }

    fn push(&mut self, point: &Datapoint<'_>, why: &str) {
        let before = self.text.len();
        if self.count >= DETAILS_MAX || before >= DETAILS_BYTES_MAX {
            return;
        }
        if self.count > 0 {
            self.text.push(b',');
        }
        self.text.extend_from_slice(b"{\"datapoint\":");
        point.write(&mut self.text);
        self.text.extend_from_slice(b",\"error\":");
        string(&cut(why, WHY_MAX), &mut self.text);
        self.text.push(b'}');
        match self.share.grow_to(self.text.capacity()) {
            Ok(()) => self.count += 1,
            Err(_) => self.text.truncate(before),
        }
    }
}

/// The result of writing points.
#[derive(Default)]
struct Outcome {
    written: Written,
    failed: u64,
    /// None if they are not asked for.
    details: Option<Details>,
}

impl Outcome {
    fn fail(&mut self, point: &Datapoint<'_>, why: &str) {
        self.failed += 1;
        if let Some(details) = &mut self.details {
            details.push(point, why);
        }
    }
}

/// Points that are collected for the store.
struct Batch<'h> {
    host: &'h Host,
    patience: Patience,
    outcome: Outcome,
    points: Vec<Point<'static>>,
}

impl Batch<'_> {
    fn push(&mut self, datapoint: &Datapoint<'_>) -> Result<(), Refused> {
        match datapoint.point(self.host.options.opentsdb_strings_as_numbers) {
            Ok(point) => self.points.push(point),
            Err(why) => self.outcome.fail(datapoint, &why),
        }
        if self.points.len() >= BATCH { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<(), Refused> {
        let Self { host, patience, outcome, points } = self;
        let database = &host.options.opentsdb_database;
        let written = &mut outcome.written;
        let rejected = write_points(host, database, None, points, written, patience)?;
        for (at, why) in rejected {
            if let Some(point) = points.get(at) {
                outcome.fail(&told(point), &why);
            }
        }
        points.clear();
        Ok(())
    }
}

/// A point that the store refused, about as it was sent.
fn told<'p>(point: &'p Point<'_>) -> Datapoint<'p> {
    use super::point::{Scalar, Tags};
    let value = match point.fields.first() {
        Some((_, coreplane_tsdb::FieldValue::Float(value))) => Scalar::Float(*value),
        _ => Scalar::Absent,
    };
    let tags = point.series.tags().map(|(key, value)| (key, Scalar::Text(value))).collect();
    Datapoint {
        metric: Scalar::Text(point.series.measurement()),
        timestamp: Scalar::Integer(point.time / 1_000_000),
        value,
        tags: Tags(tags),
    }
}

fn write_text(
    host: &Host,
    text: &[u8],
    has_details: bool,
    patience: Patience,
) -> Result<Outcome, Refused> {
    each(text, &mut |_| Ok(()))?;
    let details = has_details.then(|| Details::new(host.memory.share()));
    let outcome = Outcome { details, ..Outcome::default() };
    let mut batch = Batch { host, patience, outcome, points: Vec::new() };
    each(text, &mut |datapoint| batch.push(&datapoint))?;
    batch.write()?;
    Ok(batch.outcome)
}

async fn answer(host: &Arc<Host>, request: Request) -> Result<Response<Body>, Refused> {
    let (parts, body) = request.into_parts();
    let parameters = Parameters::of(parts.uri.query());
    let (has_details, has_summary) = (parameters.has("details"), parameters.has("summary"));
    let mut body = body::collect(host, &parts.headers, body).await?;
    let (is_here, shared) = (body.is_written_here(host), Arc::clone(host));
    let mut call = move |patience| {
        body.decode(shared.options.body_max)?;
        write_text(&shared, &body.bytes, has_details, patience)
    };
    let outcome = match is_here {
        true => call(Patience::none()),
        false => host.run_write(move || call(Patience::default())).await?,
    }?;
    let (written, failed) = (outcome.written.written, outcome.failed);
    let status = if failed > 0 { 400 } else { 200 };
    if let Some(Details { mut text, share, .. }) = outcome.details {
        text.extend_from_slice(format!("],\"failed\":{failed},\"success\":{written}}}").as_bytes());
        return Ok(json_answer(status, body::held(text, share)));
    }
    if has_summary {
        return Ok(json_answer(status, format!("{{\"failed\":{failed},\"success\":{written}}}")));
    }
    if failed > 0 {
        let details = "Please see the TSD logs or append \"details\" to the put request";
        return Ok(error(400, "One or more data points had errors", details));
    }
    Ok(json_answer(204, Body::empty()))
}

/// `POST /api/put`
pub(crate) async fn put(State(host): State<Arc<Host>>, request: Request) -> Response<Body> {
    answered(answer(&host, request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> Result<usize, Refused> {
        let mut count = 0;
        each(text.as_bytes(), &mut |_| {
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    #[test]
    fn a_point_or_a_list_is_taken() {
        assert_eq!(count(r#"{"metric":"m","unknown":[{}]}"#), Ok(1));
        assert_eq!(count(r#"[{"metric":"a"}, {}, {"tags":null}]"#), Ok(3));
        assert_eq!(count("[]"), Ok(0));
    }

    #[test]
    fn what_is_no_list_of_points_is_refused_whole() {
        for text in ["", "[", "7", "\"x\"", "[{},7]", "[{}]x", "{\"tags\":7}", "[[[[[["] {
            assert_eq!(count(text).unwrap_err().status, 400, "{text}");
        }
        let deep = "[".repeat(100_000);
        assert_eq!(count(&format!("{{\"value\":{deep}")).unwrap_err().status, 400);
    }
}
