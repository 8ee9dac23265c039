//! InfluxQL queries, to a store or to a server.

use super::{failure_of, offline, open_there};
use crate::arguments::TsQuery;
use crate::failure::{FAILED, Failure, Outcome, REFUSED};
use crate::terms;
use coreplane_tsdb::influxql::{self, Limits, Request};
use serde::Deserialize;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bytes of the head of an answer.
const HEAD_MAX: u64 = 64 << 10;

pub(super) fn run(query: &TsQuery) -> Outcome {
    match (&query.url, &query.pool) {
        (Some(url), _) => ask(query, url),
        (None, Some(pool)) => look(query, pool),
        (None, None) => Err(Failure::new(REFUSED, "name a store by --pool, or a server by --url")),
    }
}

/// Queries the store itself.
fn look(query: &TsQuery, path: &Path) -> Outcome {
    let store = open_there(path, &offline(&query.media))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let request = Request {
        text: &query.query,
        database: query.database.as_deref(),
        policy: query.policy.as_deref(),
        now: i64::try_from(now).unwrap_or(i64::MAX),
        is_read_only: false,
        limits: Limits {
            rows_max: usize::MAX,
            buckets_max: usize::MAX,
            bytes_max: usize::try_from(query.memory_max).unwrap_or(usize::MAX),
            deadline: Instant::now() + query.within,
            cancel: None,
            threads_max: 0,
        },
    };
    let answers = influxql::run(&store, &request).map_err(|error| failure_of(&error, path))?;
    let errors: Vec<String> =
        answers.iter().filter_map(|answer| answer.outcome.as_ref().err().cloned()).collect();
    let mut out = io::stdout().lock();
    coreplane_http::write_answers(answers, query.json, &mut out)?;
    out.flush()?;
    match errors.first() {
        None => Ok(0),
        Some(error) => Err(Failure::new(REFUSED, error.clone())),
    }
}

/// Queries a server, in HTTP/1.0: the answer ends with the connection, and is whole if its length is the one in its
/// head, where it has one.
fn ask(query: &TsQuery, url: &str) -> Outcome {
    let wrong = || Failure::new(REFUSED, format!("{url}: http://HOST:PORT is a server"));
    let host = url.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    if host.is_empty() || host.contains('/') {
        return Err(wrong());
    }
    let address = if host.contains(':') { host.to_owned() } else { format!("{host}:8086") };
    let password = query.password_file.as_deref().map(terms::password_in).transpose()?;
    let mut of_url = form_urlencoded::Serializer::new(String::new());
    if let Some(password) = &password {
        of_url.append_pair("u", &query.user).append_pair("p", password);
    }
    let of_url = of_url.finish();
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("q", &query.query);
    let named = [("db", &query.database), ("rp", &query.policy)];
    for (name, value) in named.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))) {
        form.append_pair(name, value);
    }
    let form = form.finish();
    let accept = if query.json { "application/json" } else { "application/csv" };
    let head = format!(
        "POST /query?{of_url} HTTP/1.0\r\nHost: {host}\r\nAccept: {accept}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n",
        form.len()
    );
    let failed = |error: io::Error| Failure::new(FAILED, format!("{url}: {error}"));
    let mut stream = TcpStream::connect(&address).map_err(failed)?;
    let patience = Some(query.within + Duration::from_secs(10));
    stream.set_read_timeout(patience)?;
    stream.set_write_timeout(patience)?;
    stream.write_all([head.as_bytes(), form.as_bytes()].concat().as_slice()).map_err(failed)?;
    let mut answer = BufReader::new(stream);
    let (status, expected) = head_of(&mut answer).map_err(failed)?.ok_or_else(wrong)?;
    if status != 200 {
        let mut said = String::new();
        answer.take(64 << 10).read_to_string(&mut said).map_err(failed)?;
        let code = if status < 500 { REFUSED } else { FAILED };
        return Err(Failure::new(code, format!("{url}: {status}: {}", said.trim())));
    }
    let mut body = Body { answer, out: BufWriter::new(io::stdout().lock()), len: 0 };
    let error = if query.json { body.json_error() } else { body.csv_error() };
    // All of it is shown, whatever is wrong with it.
    io::copy(&mut body, &mut io::sink())?;
    body.out.flush()?;
    if let Some(expected) = expected.filter(|expected| *expected != body.len) {
        let message = format!("{url}: {} of {expected} bytes of the answer came", body.len);
        return Err(Failure::new(FAILED, message));
    }
    match error? {
        None => Ok(0),
        Some(error) => Err(Failure::new(REFUSED, error)),
    }
}

/// The head of an answer: the status, and the length of the body if it has one. None if it is no head of HTTP.
fn head_of(answer: &mut impl BufRead) -> io::Result<Option<(u16, Option<u64>)>> {
    let (mut lines, mut line, mut expected) = (answer.take(HEAD_MAX), String::new(), None);
    lines.read_line(&mut line)?;
    // A server of another protocol may wait for an answer.
    let Some(status) = line.split(' ').nth(1).and_then(|it| it.parse().ok()) else {
        return Ok(None);
    };
    while !line.trim_end().is_empty() {
        line.clear();
        if lines.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the head of the answer does not end"));
        }
        let (name, value) = line.split_once(':').unwrap_or_default();
        if name.eq_ignore_ascii_case("content-length") {
            expected = value.trim().parse().ok();
        }
    }
    Ok(Some((status, expected)))
}

/// The body of an answer, shown as it is read.
struct Body<R, W> {
    answer: R,
    out: W,
    /// Bytes that have been read.
    len: u64,
}

impl<R: Read, W: Write> Read for Body<R, W> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let filled = self.answer.read(buffer)?;
        self.out.write_all(&buffer[..filled])?;
        self.len += filled as u64;
        Ok(filled)
    }
}

/// A document of answers, as far as it has errors.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    results: Vec<Answered>,
    error: Option<String>,
}

/// The answer to a statement.
#[derive(Deserialize)]
struct Answered {
    error: Option<String>,
}

impl<R: Read, W: Write> Body<R, W> {
    /// The first error of a statement.
    fn json_error(&mut self) -> Result<Option<String>, Failure> {
        let mut documents = serde_json::Deserializer::from_reader(self);
        let Document { results, error } = Document::deserialize(&mut documents)?;
        Ok(error.or_else(|| results.into_iter().find_map(|answered| answered.error)))
    }

    /// The same, in comma-separated values: a table with the only column `error`. Tables are separated by an empty
    /// line.
    fn csv_error(&mut self) -> Result<Option<String>, Failure> {
        let (mut lines, mut line) = (BufReader::new(self), Vec::new());
        let (mut is_quoted, mut begins_table, mut is_error) = (false, true, false);
        while lines.read_until(b'\n', &mut line)? > 0 {
            if is_error {
                let error = String::from_utf8_lossy(&line);
                return Ok(Some(error.trim_end().trim_matches('"').replace("\"\"", "\"")));
            }
            is_error = begins_table && line == b"error\n";
            let quotes = line.iter().filter(|byte| **byte == b'"').count();
            // A string may have newlines.
            is_quoted ^= quotes % 2 == 1;
            begins_table = !is_quoted && line == b"\n";
            line.clear();
        }
        Ok(None)
    }
}
