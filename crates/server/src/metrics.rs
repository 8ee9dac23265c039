//! The counters for Prometheus: `GET /metrics` on a port of its own.
//!
//! Scrapes are rare and small, so one thread answers them one after another, each within a time
//! limit, and never touches an event loop: it only reads counters. The limit is that of the whole
//! exchange: the next client, and the end of the server, wait no longer for the present one.

use crate::counters::{Counter, Histogram, LoopCounters, Totals};
use crate::host::Host;
use crate::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod engines;

/// A client that has not sent its request and taken the answer within this time gets no more.
const PATIENCE: Duration = Duration::from_secs(2);
const REQUEST_LEN_MAX: usize = 8 << 10;

/// The socket for scrapes.
#[derive(Debug)]
pub(crate) struct Metrics {
    listener: TcpListener,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Metrics {
    /// Listens at `place`.
    pub(crate) fn bind(place: &str) -> Result<Self> {
        let context = |source| Error::Listen { place: place.to_owned(), source };
        let listener = TcpListener::bind(place).map_err(context)?;
        let address = listener.local_addr().map_err(context)?;
        Ok(Self { listener, address })
    }

    /// Answers in a thread of its own until [`Scraped::end`].
    pub(crate) fn serve(self, host: Arc<Host>) -> std::io::Result<Scraped> {
        let address = self.address;
        let thread =
            std::thread::Builder::new().name("coreplane-metrics".to_owned()).spawn(move || {
                for stream in self.listener.incoming() {
                    if host.is_ending.load(Ordering::SeqCst) {
                        return;
                    }
                    match stream {
                        // A client that went away gets no answer.
                        Ok(stream) => drop(answer(stream, &host)),
                        // No descriptor is left, perhaps: one may be free later.
                        Err(_) => std::thread::sleep(PATIENCE / 20),
                    }
                }
            })?;
        Ok(Scraped { address, thread })
    }
}

/// The thread that answers scrapes.
#[derive(Debug)]
pub(crate) struct Scraped {
    address: SocketAddr,
    thread: JoinHandle<()>,
}

impl Scraped {
    /// Ends the thread, after the server has been told to end.
    pub(crate) fn end(self) {
        // A connection wakes it; if none can be made it keeps sleeping and ends with the process.
        if TcpStream::connect_timeout(&self.address, PATIENCE).is_ok() {
            drop(self.thread.join());
        }
    }
}

/// The connection of a client. Calls fail when its time is over, or the server ends.
struct Client<'a> {
    stream: TcpStream,
    until: Instant,
    host: &'a Host,
}

impl Client<'_> {
    fn time_left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() || self.host.is_ending.load(Ordering::SeqCst) {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(Some(left))
    }
}

impl Read for Client<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.time_left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Client<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.time_left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

fn answer(stream: TcpStream, host: &Host) -> std::io::Result<()> {
    let mut client = Client { stream, until: Instant::now() + PATIENCE, host };
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        let len = client.read(&mut piece)?;
        request.extend_from_slice(&piece[..len]);
        if len == 0 || request.len() > REQUEST_LEN_MAX {
            return Ok(());
        }
    }
    let is_known = request.starts_with(b"GET /metrics ") || request.starts_with(b"GET /metrics?");
    let (status, body) = if is_known {
        ("200 OK", text(host))
    } else {
        ("404 Not Found", "see /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    client.write_all(body.as_bytes())
}

fn text(host: &Host) -> String {
    let mut text = String::new();
    let sum = |of: fn(&LoopCounters) -> &Counter| host.sum(|counters| of(counters).get());
    let engine = host.engine.stats();
    for (name, help, value) in [
        ("connections_total", "Connections accepted.", sum(|counters| &counters.connections)),
        (
            "rejected_connections_total",
            "Connections turned away.",
            sum(|counters| &counters.rejected),
        ),
        ("commands_total", "Commands run.", sum(|counters| &counters.commands)),
        (
            "error_replies_total",
            "Commands answered with an error.",
            sum(|counters| &counters.errors),
        ),
        ("read_bytes_total", "Bytes read from clients.", sum(|counters| &counters.bytes_in)),
        ("written_bytes_total", "Bytes written to clients.", sum(|counters| &counters.bytes_out)),
        (
            "durable_turns_total",
            "Turns that asked for durability.",
            sum(|counters| &counters.commits),
        ),
        (
            "withheld_turns_total",
            "Turns whose answers waited for it.",
            sum(|counters| &counters.waits),
        ),
        (
            "loop_handovers_total",
            "Syncs so long that another thread took the loop up.",
            sum(|counters| &counters.handovers),
        ),
        ("engine_hits_total", "Reads that found a record.", engine.hits),
        ("engine_misses_total", "Reads that found none.", engine.misses),
        ("engine_puts_total", "Records written.", engine.puts),
        ("engine_deletes_total", "Records deleted.", engine.deletes),
        ("engine_batches_total", "Batches applied.", engine.batches),
        ("engine_expired_total", "Records that expired.", engine.expired),
        ("engine_user_bytes_total", "Bytes of keys and values written.", engine.user_bytes_written),
        ("engine_log_bytes_total", "Bytes appended to logs for them.", engine.log_bytes_written),
        (
            "engine_cleaned_bytes_total",
            "Bytes that the cleaner copied.",
            engine.cleaner_bytes_copied,
        ),
        ("engine_cleaned_pages_total", "Pages that the cleaner freed.", engine.cleaner_pages_freed),
        ("engine_flushes_total", "Lines flushed.", engine.flushes),
        ("engine_fences_total", "Fences, or syncs.", engine.fences),
    ] {
        number(&mut text, name, "counter", help, value);
    }
    for (name, help, value) in [
        ("connected_clients", "Connections now.", host.clients.count() as u64),
        ("engine_records", "Live records.", engine.records),
        ("engine_live_bytes", "Bytes of live records.", engine.live_bytes),
        ("engine_pool_bytes", "Bytes of the pool.", engine.pool_bytes),
        ("engine_free_bytes", "Bytes free without cleaning.", engine.free_bytes),
        ("engine_dram_bytes", "Bytes of DRAM for tables.", engine.dram_bytes),
        ("uptime_seconds", "Seconds since the start.", host.started.elapsed().as_secs()),
    ] {
        number(&mut text, name, "gauge", help, value);
    }
    engines::families(&mut text, host, &engine);
    let turns = host.total(|counters| &counters.turn_time);
    histogram(&mut text, "turn_seconds", "From waking to the last answer of a turn.", &turns);
    let waits = host.total(|counters| &counters.wait_time);
    histogram(&mut text, "durable_wait_seconds", "How long answers were withheld.", &waits);
    text
}

fn number(text: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    *text += &format!("# HELP coreplane_{name} {help}\n# TYPE coreplane_{name} {kind}\n");
    *text += &format!("coreplane_{name} {value}\n");
}

fn histogram(text: &mut String, name: &str, help: &str, total: &Totals) {
    *text += &format!("# HELP coreplane_{name} {help}\n# TYPE coreplane_{name} histogram\n");
    let mut below = 0;
    for (bucket, held) in total.buckets.iter().enumerate().take(Histogram::BUCKETS - 1) {
        below += held;
        let bound = (1u64 << bucket) as f64 / 1e6;
        *text += &format!("coreplane_{name}_bucket{{le=\"{bound}\"}} {below}\n");
    }
    let (count, sum) = (total.count(), total.sum_micros as f64 / 1e6);
    *text += &format!("coreplane_{name}_bucket{{le=\"+Inf\"}} {count}\n");
    *text += &format!("coreplane_{name}_sum {sum}\ncoreplane_{name}_count {count}\n");
}
