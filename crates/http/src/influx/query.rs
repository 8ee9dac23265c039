//! `/query`: InfluxQL.
//!
//! ```text
//!   parameters ─► a permit ─► influxql::run, here or on a blocking thread ─► rows, with their share of memory
//!                                                                    │ piece by piece, as the client takes them
//!                                                               JSON or CSV
//! ```

use super::csv::Csv;
use super::json::{Document, Encoder, PIECE, Shape};
use super::time::Unit;
use super::{JSON, Refused, json_answer};
use crate::body;
use crate::host::{Host, NotRun, SHORT, Unwanted, now};
use crate::limits::Share;
use crate::metrics::add;
use crate::parameters::Parameters;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method, Response};
use bytes::Bytes;
use coreplane_tsdb::influxql::{self, Answer, Cell, Cells, Limits};
use hyper::body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Rows of a chunk, if the request states none.
const CHUNK: usize = 10_000;

/// The names of parameters.
const NAMES: [&str; 7] = ["q", "db", "rp", "epoch", "chunked", "chunk_size", "params"];

/// A request.
struct Asked {
    text: String,
    database: Option<String>,
    policy: Option<String>,
    is_read_only: bool,
    /// The memory of the form.
    _share: Share,
}

/// The parameters of a query, and the memory that they hold: those of a form come first, as in Go.
async fn parameters(host: &Host, request: Request) -> Result<(Parameters, Share), Refused> {
    let of_url = Parameters::of(request.uri().query());
    let none = || host.memory.share();
    let kind = request.headers().get(CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let kind = kind.unwrap_or_default();
    if request.method() != Method::POST {
        return Ok((of_url, none()));
    }
    if kind.starts_with("multipart/form-data") {
        let message = "multipart/form-data is not supported: send q as a parameter";
        return Err(Refused::new(400, message));
    }
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return Ok((of_url, none()));
    }
    let (parts, body) = request.into_parts();
    let mut body = body::question(host, &parts.headers, body).await?;
    // The values are held as well; a byte that is not UTF-8 becomes three.
    body.reserve(body.bytes.len() * 3)?;
    let all = of_url.behind(&body.bytes, &NAMES);
    Ok((all, body.into_share()))
}

/// The form of an answer.
fn shape(host: &Host, parameters: &Parameters, is_pretty: bool) -> Shape {
    let is_chunked = parameters.get("chunked") == "true";
    let size = parameters.get("chunk_size").parse().ok().filter(|size| *size > 0);
    Shape {
        epoch: parameters.some("epoch").map(|name| Unit::of(name.trim())),
        pretty: is_pretty,
        chunk: is_chunked.then_some(size.unwrap_or(CHUNK)),
        rows_max: host.options.rows_max,
    }
}

/// The refusal of a query.
fn not_parsed(error: coreplane_tsdb::Error) -> Refused {
    match error {
        coreplane_tsdb::Error::Input(message) => {
            const PREFIX: &str = "error parsing query: ";
            let prefix = if message.starts_with(PREFIX) { "" } else { PREFIX };
            Refused::new(400, format!("{prefix}{message}"))
        }
        error => error.into(),
    }
}

/// The answers, and their share of memory.
type Answered = Result<(Vec<Answer>, Share), Refused>;

fn run(host: &Host, asked: &Asked, within: Duration, unwanted: Option<&Unwanted>) -> Answered {
    let options = &host.options;
    let request = influxql::Request {
        text: &asked.text,
        database: asked.database.as_deref(),
        policy: asked.policy.as_deref(),
        now: now(),
        is_read_only: asked.is_read_only,
        limits: Limits {
            rows_max: usize::MAX,
            buckets_max: options.query_buckets_max,
            bytes_max: options.query_bytes_max,
            deadline: Instant::now() + within,
            cancel: unwanted.map(Unwanted::flag),
            // A query that is run here is short, and wakes no other thread.
            threads_max: if unwanted.is_none() { 1 } else { options.query_threads },
        },
    };
    let answers = influxql::run(&host.store, &request).map_err(not_parsed)?;
    let mut share = host.memory.share();
    share.grow_to(size_of_answers(&answers)).map_err(|_| {
        add(&host.metrics.no_room, 1);
        Refused::new(503, "no memory for this answer beside those of others: try again later")
    })?;
    Ok((answers, share))
}

/// True if the text is a SELECT and nothing else, which clients also send by POST.
fn is_select(text: &str) -> bool {
    let word = text.trim_start().as_bytes().get(..7).unwrap_or_default();
    word.eq_ignore_ascii_case(b"select ") && !text.contains(';')
}

/// Runs a query here, if it succeeds in short time. It changes nothing, so it may be run twice. After an error it
/// is run again, since the short time may be the cause, even before that time is over: work that would take too
/// long is not begun.
fn run_short(host: &Host, asked: &Asked) -> Option<Result<Answered, NotRun>> {
    let within = SHORT.min(host.options.query_time_max);
    let run = host.run_short(|| run(host, asked, within, None))?;
    let is_whole = match &run {
        Ok(Ok((answers, _))) => answers.iter().all(|answer| answer.outcome.is_ok()),
        Ok(Err(_)) => false,
        Err(_) => true,
    };
    is_whole.then_some(run)
}

async fn answers(host: &Arc<Host>, asked: Asked) -> Answered {
    if (asked.is_read_only || is_select(&asked.text))
        && let Some(answered) = run_short(host, &asked)
    {
        return answered?;
    }
    let run = move |host: &Host, unwanted: &Unwanted| {
        run(host, &asked, host.options.query_time_max, Some(unwanted))
    };
    host.run_query(run).await?
}

/// Bytes of answers, about: their rows, and the texts in them, which series share.
fn size_of_answers(answers: &[Answer]) -> usize {
    let tables = answers.iter().filter_map(|answer| answer.outcome.as_ref().ok()).flatten();
    tables
        .map(|table| {
            let columns = table.columns.len();
            let is_inline = columns <= Cells::new().inline_size();
            let apart = if is_inline { 0 } else { columns * size_of::<Cell>() };
            let row = size_of::<Cells>() + apart;
            let names: usize = table.columns.iter().map(|name| name.len() + 24).sum();
            let tags: usize =
                table.tags.iter().map(|(key, value)| key.len() + value.len() + 48).sum();
            let texts: usize = table.rows.iter().flatten().map(text_len).sum();
            size_of_val(table) + names + tags + texts + table.rows.len() * row
        })
        .sum()
}

fn text_len(cell: &Cell) -> usize {
    match cell {
        Cell::String(text) => text.len(),
        _ => 0,
    }
}

/// An answer that is encoded while the client takes it.
struct Stream {
    /// The first piece, if it is encoded already.
    first: Option<Vec<u8>>,
    encoder: Option<Box<dyn Encoder>>,
    /// Bytes of the previous piece.
    before: usize,
    host: Arc<Host>,
    _share: Share,
}

impl Stream {
    fn piece(&mut self) -> Option<Vec<u8>> {
        if self.first.is_some() {
            return self.first.take();
        }
        let encoder = self.encoder.as_mut()?;
        // Most answers are short; an answer with a second piece mostly has more.
        let mut piece = Vec::with_capacity((self.before + PIECE / 16).min(PIECE + PIECE / 8));
        if !encoder.fill(&mut piece) {
            self.encoder = None;
        }
        self.before = piece.len();
        add(&self.host.metrics.bytes_out, piece.len() as u64);
        Some(piece)
    }
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // An empty piece would be taken for the end.
        while let Some(piece) = self.piece() {
            if !piece.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(piece.into()))));
            }
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.encoder.is_none() && self.first.is_none()
    }
}

/// The body of an answer: whole if it is one piece, so that its length is known.
fn body_of(mut stream: Stream, is_chunked: bool) -> Body {
    if is_chunked {
        return Body::new(stream);
    }
    let first = stream.piece().unwrap_or_default();
    if stream.encoder.is_none() {
        return Body::from(first);
    }
    stream.first = Some(first);
    Body::new(stream)
}

/// Writes answers as `/query` does: as JSON, or as comma-separated values.
///
/// # Errors
/// The errors of `out`.
pub fn write_answers(
    answers: Vec<Answer>,
    is_json: bool,
    out: &mut dyn std::io::Write,
) -> std::io::Result<()> {
    let mut encoder: Box<dyn Encoder> = match is_json {
        true => Box::new(Document::new(answers, Shape::default())),
        false => Box::new(Csv::new(answers, Shape::default())),
    };
    let mut piece = Vec::new();
    loop {
        piece.clear();
        let has_more = encoder.fill(&mut piece);
        out.write_all(&piece)?;
        if !has_more {
            return Ok(());
        }
    }
}

fn accepts_csv(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).map(HeaderValue::as_bytes);
    matches!(accept, Some(b"application/csv" | b"text/csv"))
}

async fn answer(
    host: &Arc<Host>,
    request: Request,
    is_pretty: bool,
) -> Result<Response<Body>, Refused> {
    let is_csv = accepts_csv(request.headers());
    // All methods but POST, that is, GET and HEAD.
    let is_read_only = request.method() != Method::POST;
    let (mut parameters, share) = parameters(host, request).await?;
    let shape = shape(host, &parameters, is_pretty);
    // InfluxDB's client for Go sends this for no parameters.
    if !matches!(parameters.get("params").trim(), "" | "null" | "{}") {
        let message =
            "bound parameters (params) are not supported: write the values into the query";
        return Err(Refused::new(400, message));
    }
    let text = parameters.take("q");
    let text = text.ok_or_else(|| Refused::new(400, "missing required parameter \"q\""))?;
    // Before it waits for its place.
    influxql::check_length(&text).map_err(not_parsed)?;
    let (database, policy) = (parameters.take("db"), parameters.take("rp"));
    // What nobody reads any more does not wait with it.
    drop(parameters);
    let asked = Asked { text, database, policy, is_read_only, _share: share };
    let (answers, share) = answers(host, asked).await?;
    let encoder: Box<dyn Encoder> = match is_csv {
        true => Box::new(Csv::new(answers, shape)),
        false => Box::new(Document::new(answers, shape)),
    };
    let stream = Stream {
        first: None,
        encoder: Some(encoder),
        before: 0,
        host: Arc::clone(host),
        _share: share,
    };
    let mut response = Response::new(body_of(stream, shape.chunk.is_some()));
    let kind = if is_csv { HeaderValue::from_static("text/csv") } else { JSON };
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// `/query`
pub(crate) async fn query(State(host): State<Arc<Host>>, request: Request) -> Response<Body> {
    let is_pretty = Parameters::of(request.uri().query()).get("pretty") == "true";
    let is_csv = accepts_csv(request.headers());
    match answer(&host, request, is_pretty).await {
        Ok(response) => response,
        Err(refused) if is_csv => {
            let mut response = refused.answer();
            let mut text = b"error\n".to_vec();
            super::csv::field(refused.message.as_bytes(), &mut text);
            text.push(b'\n');
            *response.body_mut() = Body::from(text);
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/csv"));
            response
        }
        Err(refused) if is_pretty => {
            let mut body = b"{\n    \"error\": ".to_vec();
            super::string(&refused.message, &mut body);
            body.extend_from_slice(b"\n}\n");
            let headers = refused.answer().headers().clone();
            let mut response = json_answer(refused.status, body);
            *response.headers_mut() = headers;
            response
        }
        Err(refused) => refused.answer(),
    }
}
