//! Messages for persons, on the standard error, and the lines of a server about itself, on the standard output.
//!
//! Nobody may read them: a pipe may be closed, or full. That changes nothing, so errors are ignored; and while a server
//! runs, two threads for which nothing waits write what all others hand to them, one for each stream.

use coreplane_pmem::background;
use std::convert::Infallible;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Lines that wait for a thread at most; more are left out, and counted.
const WAITING_MAX: usize = 1000;

/// How long the end of the process waits for the last lines to be written.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
enum Stream {
    Output,
    Error,
}

/// The threads that write.
struct Writers {
    /// One for each stream.
    lines: [SyncSender<String>; 2],
    /// It is disconnected when the threads have ended.
    ended: Receiver<Infallible>,
}

static WRITERS: Mutex<Option<Writers>> = Mutex::new(None);
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Tells a person something.
pub(crate) fn tell(what: impl Display) {
    put(Stream::Error, format!("coreplane: {what}\n"));
}

/// Says that this server is ready, or has ended.
pub(crate) fn say(what: impl Display) {
    put(Stream::Output, format!("coreplane {}: {what}\n", env!("CARGO_PKG_VERSION")));
}

/// From now on threads write, until [`finish`].
pub(crate) fn detach() -> io::Result<()> {
    let (is_running, ended) = channel();
    let start = |stream| {
        let (lines, waiting) = sync_channel(WAITING_MAX);
        let is_running = is_running.clone();
        // Whoever has started a server waits for the line that says it is ready.
        background::spawn_in_time("coreplane-messages", move || {
            write_all(stream, &waiting);
            drop(is_running);
        })?;
        io::Result::Ok(lines)
    };
    let lines = [start(Stream::Output)?, start(Stream::Error)?];
    *writers() = Some(Writers { lines, ended });
    Ok(())
}

/// Waits until all lines are written, but not for long.
pub(crate) fn finish() {
    let ended = writers().take().map(|Writers { ended, .. }| ended);
    let _is_over = ended.map(|ended| ended.recv_timeout(PATIENCE).is_ok());
}

fn writers() -> MutexGuard<'static, Option<Writers>> {
    WRITERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn put(stream: Stream, line: String) {
    if let Some(writers) = &*writers() {
        let is_taken = writers.lines[stream as usize].try_send(line).is_ok();
        LEFT_OUT.fetch_add(u64::from(!is_taken), Ordering::Relaxed);
        return;
    }
    write(stream, &line);
}

fn write_all(stream: Stream, lines: &Receiver<String>) {
    for line in lines {
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
