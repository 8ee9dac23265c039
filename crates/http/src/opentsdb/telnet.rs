//! OpenTSDB's lines: `put METRIC TIME VALUE TAG=VALUE…`, as collectd and others send them.
//!
//! Lines that arrive together are written together. A line that is written is not answered; a client that needs an
//! answer uses `/api/put`. Errors of lines are answered as in OpenTSDB, in the order of the lines; the points that
//! the store refuses follow.

use super::{VERSION, point};
use crate::figures;
use crate::host::{Host, stopped};
use crate::influx::{Refused, Written, write_points};
use crate::metrics::add;
use coreplane_tsdb::{Patience, Point};
use std::fmt::Write;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// The maximum length of a line, in bytes.
const LINE_MAX: usize = 8 << 10;

/// Bytes that are read at a time.
const READ: usize = 16 << 10;

/// The length of the answers of one turn, in bytes, beyond which lines that are not written are not answered.
const REPLY_MAX: usize = 64 << 10;

/// The result of the lines of a turn.
#[derive(Default)]
struct Turn {
    points: Vec<Point<'static>>,
    reply: String,
    errors: u64,
    /// It contains the statistics, which are collected once a turn.
    has_stats: bool,
    is_end: bool,
}

impl Turn {
    fn line(&mut self, host: &Host, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = String::from_utf8_lossy(line);
        // Writing to a string does not fail.
        let _written = match line.split(' ').next().unwrap_or_default() {
            "" if line.trim().is_empty() => Ok(()),
            "put" => match point::of_line(&line) {
                Ok(point) => {
                    self.points.push(point);
                    Ok(())
                }
                Err(why) => self.error(&format!("put: {why}")),
            },
            "version" | "stats" | "help" if self.reply.len() > REPLY_MAX => Ok(()),
            "version" => writeln!(self.reply, "net.opentsdb.tools {VERSION} built by coreplane"),
            "stats" if std::mem::replace(&mut self.has_stats, true) => Ok(()),
            "stats" => self.reply.write_str(&stats(host)),
            "help" => writeln!(self.reply, "available commands: put stats version exit help"),
            "exit" | "quit" => {
                self.is_end = true;
                Ok(())
            }
            other => {
                let name: String = other.chars().take(32).collect();
                self.error(&format!("unknown command: {name}.  Try `help'."))
            }
        }
        .is_ok();
    }

    fn error(&mut self, text: &str) -> std::fmt::Result {
        self.errors += 1;
        if self.reply.len() > REPLY_MAX { Ok(()) } else { writeln!(self.reply, "{text}") }
    }

    /// Writes the points.
    fn write(mut self, host: &Host, mut patience: Patience) -> Self {
        let points = std::mem::take(&mut self.points);
        let mut written = Written::default();
        let database = &host.options.opentsdb_database;
        let told = match write_points(host, database, None, &points, &mut written, &mut patience) {
            Ok(rejected) => rejected
                .iter()
                .try_for_each(|(_, why)| self.error(&format!("put: illegal argument: {why}"))),
            Err(Refused { message, .. }) => self.error(&format!("put: {message}")),
        };
        // Writing to a string does not fail.
        let _told = told.is_ok();
        add(&host.metrics.telnet_errors, self.errors);
        self
    }
}

/// Counters in the form of OpenTSDB's `stats`: one line each, which could be put.
fn stats(host: &Host) -> String {
    let now = crate::host::now() / 1_000_000_000;
    let mut text = String::new();
    for line in figures::text(host).lines().filter(|line| !line.starts_with('#')) {
        // Figures with labels are for Prometheus alone.
        if let Some((name, value)) = line.split_once(' ').filter(|(name, _)| !name.contains('{')) {
            let _written = writeln!(text, "tsd.{name} {now} {value} host=localhost").is_ok();
        }
    }
    text
}

/// Serves a connection until its client ends it, or the server does.
pub(crate) async fn telnet(
    host: &Arc<Host>,
    mut stream: TcpStream,
    mut stop: watch::Receiver<bool>,
    is_refused: bool,
) {
    let stall = host.options.stall_timeout;
    if is_refused {
        let text = b"error: lines have no password: use /api/put\n";
        let _told = timeout(stall, stream.write_all(text)).await.is_ok();
        return;
    }
    let mut buffer = Vec::with_capacity(READ);
    loop {
        let read = tokio::select! {
            read = timeout(host.options.idle_timeout, stream.read_buf(&mut buffer)) => read,
            () = stopped(&mut stop) => return,
        };
        let Ok(Ok(1..)) = read else { return };
        let mut turn = Turn::default();
        let whole = buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = buffer.get(..whole).unwrap_or_default();
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            if turn.is_end {
                break;
            }
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            turn.line(host, line);
            add(&host.metrics.telnet_lines, 1);
        }
        buffer.drain(..whole);
        let is_too_long = buffer.len() > LINE_MAX;
        if is_too_long {
            let _told = turn.error("error: the line is too long").is_ok();
        }
        let is_here = turn.points.is_empty() || host.writes_here(whole);
        let shared = Arc::clone(host);
        let turn = match is_here {
            true => turn.write(host, Patience::none()),
            false => match host.run_write(move || turn.write(&shared, Patience::default())).await {
                Ok(turn) => turn,
                Err(_) => return,
            },
        };
        if !turn.reply.is_empty() {
            let told = timeout(stall, stream.write_all(turn.reply.as_bytes())).await;
            if !matches!(told, Ok(Ok(()))) {
                return;
            }
        }
        if turn.is_end || is_too_long {
            return;
        }
    }
}
