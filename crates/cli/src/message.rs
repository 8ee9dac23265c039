//! Messages for persons, on the standard error, and the lines of a server about itself, on the standard output.
//!
//! Nobody may read them: a pipe may be closed, or full. That changes nothing, so errors are ignored; and while a server
//! runs, two threads for which nothing waits write what all others hand to them, one for each stream.

use coreplane_pmem::background;
use std::convert::Infallible;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

/// Lines that wait for a thread at most; more are left out, and counted.
const WAITING_MAX: usize = 1000;

/// How long a line of a server, or its end, waits for what was told before.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
enum Stream {
    Output,
    Error,
}

/// A line, and what is dropped once it is written.
type Line = (String, Option<Sender<Infallible>>);

/// The threads that write: one for each stream.
static WRITERS: OnceLock<[SyncSender<Line>; 2]> = OnceLock::new();
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Tells a person something.
pub(crate) fn tell(what: impl Display) {
    put(Stream::Error, format!("coreplane: {what}\n"));
}

/// Says that this server is ready, or has ended, behind what was told before.
pub(crate) fn say(what: impl Display) {
    wait(Stream::Error);
    put(Stream::Output, format!("coreplane {}: {what}\n", env!("CARGO_PKG_VERSION")));
}

/// From now on threads write.
pub(crate) fn detach() -> io::Result<()> {
    let start = |stream| {
        let (lines, waiting) = sync_channel(WAITING_MAX);
        // Whoever has started a server waits for the line that says it is ready.
        background::spawn_in_time("coreplane-messages", move || write_all(stream, &waiting))?;
        io::Result::Ok(lines)
    };
    let writers = [start(Stream::Output)?, start(Stream::Error)?];
    WRITERS.set(writers).map_err(|_| io::Error::other("there is a server already"))
}

/// Waits until all lines are written, but not for long.
pub(crate) fn finish() {
    wait(Stream::Output);
    wait(Stream::Error);
}

fn wait(stream: Stream) {
    let Some(writers) = WRITERS.get() else { return };
    let (end, written) = channel();
    // In a full queue it is dropped at once.
    let _is_taken = writers[stream as usize].try_send((String::new(), Some(end))).is_ok();
    let _is_written = written.recv_timeout(PATIENCE).is_ok();
}

fn put(stream: Stream, line: String) {
    let Some(writers) = WRITERS.get() else { return write(stream, &line) };
    let is_taken = writers[stream as usize].try_send((line, None)).is_ok();
    LEFT_OUT.fetch_add(u64::from(!is_taken), Ordering::Relaxed);
}

fn write_all(stream: Stream, lines: &Receiver<Line>) {
    for (line, _end) in lines {
        write(stream, &line);
        if let (Stream::Error, left_out @ 1..) = (stream, LEFT_OUT.load(Ordering::Relaxed)) {
            LEFT_OUT.fetch_sub(left_out, Ordering::Relaxed);
            write(stream, &format!("coreplane: {left_out} messages were left out\n"));
        }
    }
}

fn write(stream: Stream, line: &str) {
    let written = match stream {
        Stream::Output => {
            let mut out = io::stdout().lock();
            out.write_all(line.as_bytes()).and_then(|()| out.flush())
        }
        Stream::Error => io::stderr().write_all(line.as_bytes()),
    };
    let _is_written = written.is_ok();
}
