//! `MONITOR`: clients that receive a line about every command.
//!
//! Without such a client this costs a command one read of a word that is not written. Otherwise the command is
//! formatted as a line and sent to the loop of each such client, which appends it to that client's output: so lines
//! of one loop come in the order of its commands. A client that does not receive its lines is disconnected once
//! `client-output-pause` bytes are pending for it, or a line for it would be more than 64 MiB with those that are
//! pending for all loops.

use crate::event_loop::EventLoop;
use crate::host::{Host, Message};
use coreplane_pmem::mutant;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The clients that monitor.
#[derive(Debug, Default)]
pub(crate) struct Monitors {
    count: AtomicUsize,
    all: Mutex<Vec<Monitor>>,
    /// Bytes of lines that no loop has taken yet.
    sent: AtomicUsize,
}

/// Bytes of lines on the way to loops, at most.
const SENT_MAX: usize = 64 << 20;

/// One of them: its loop, its place there, its id.
#[derive(Debug, Clone, Copy)]
struct Monitor {
    member: usize,
    key: usize,
    id: u64,
}

impl Monitors {
    /// A client begins to monitor.
    pub(crate) fn add(&self, member: usize, key: usize, id: u64) {
        let mut all = self.all.lock();
        all.push(Monitor { member, key, id });
        self.count.store(all.len(), Ordering::Release);
    }

    /// A client stops monitoring.
    pub(crate) fn remove(&self, id: u64) {
        let mut all = self.all.lock();
        all.retain(|monitor| monitor.id != id);
        self.count.store(all.len(), Ordering::Release);
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// Sends a line about a command from `address` to the monitoring clients.
pub(crate) fn tell<'a>(host: &Host, address: &str, words: impl Iterator<Item = &'a [u8]>) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, micros) = (since.as_secs(), since.subsec_micros());
    let mut line = format!("+{seconds}.{micros:06} [0 {address}]").into_bytes();
    for word in words {
        line.push(b' ');
        quote(word, &mut line);
    }
    line.extend_from_slice(b"\r\n");
    let line: Arc<[u8]> = line.into();
    let Monitors { all, count, sent } = &host.monitors;
    let mut all = all.lock();
    all.retain(|monitor| {
        let Some(port) = host.ports.get(monitor.member) else { return false };
        let has_room = sent.load(Ordering::Relaxed) + line.len() <= SENT_MAX;
        port.send(if has_room {
            sent.fetch_add(line.len(), Ordering::Relaxed);
            Message::Push(monitor.key, monitor.id, line.clone())
        } else {
            Message::Kill(monitor.key, monitor.id)
        });
        has_room
    });
    count.store(all.len(), Ordering::Release);
}

/// Appends `word` in quotes, with escapes for unprintable bytes; not all of it if the line is too long to be sent.
fn quote(word: &[u8], line: &mut Vec<u8>) {
    line.push(b'"');
    for byte in word {
        if line.len() > SENT_MAX {
            return;
        }
        match byte {
            b'\\' | b'"' => line.extend_from_slice(&[b'\\', *byte]),
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\t' => line.extend_from_slice(b"\\t"),
            7 => line.extend_from_slice(b"\\a"),
            8 => line.extend_from_slice(b"\\b"),
            b' '..=b'~' => line.push(*byte),
            _ => {
                let digit = |half: u8| b"0123456789abcdef"[usize::from(half)];
                line.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    line.push(b'"');
}

impl EventLoop {
    /// Appends a line to the output of the client at `key`, if it still monitors.
    pub(crate) fn push_line(&mut self, key: usize, id: u64, line: &[u8]) {
        self.host.monitors.sent.fetch_sub(line.len(), Ordering::Relaxed);
        let bound = self.host.settings.output_pause_bytes.load(Ordering::Relaxed);
        let Some(connection) = self.connections.get_mut(key) else { return };
        let is_closing = connection.is_closing();
        let session = &mut connection.session;
        if session.info.id != id || !session.is_monitor || is_closing {
            return;
        }
        let waiting = connection.output.len() + session.monitor_lines.len();
        if waiting as u64 >= bound {
            return self.drop_connection(key);
        }
        // Nothing is pushed into an unfinished answer. The line of the unfinished command itself comes after its end.
        session.monitor_lines.extend_from_slice(line);
        if connection.is_within_answer() && !mutant!("server.monitor.within") {
            return;
        }
        connection.output.buffer().append(&mut connection.session.monitor_lines);
        self.touch(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, server};
    use coreplane_conformance::model::ModelEngine;

    #[test]
    fn words_are_quoted_as_redis_does() {
        let mut line = Vec::new();
        quote(b"a \"b\"\\\r\n\t\x07\x08\0\xff~", &mut line);
        assert_eq!(line, br#""a \"b\"\\\r\n\t\a\b\x00\xff~""#);
    }

    #[test]
    fn who_misses_a_line_for_which_there_is_no_room_is_disconnected() {
        let (_poll, port) = server::port().expect("a port");
        let engine = Arc::new(ModelEngine::new());
        let host = Host::new(Config::default(), engine, vec![port], Vec::new());
        for id in [7, 8] {
            host.monitors.add(0, 1, id);
        }
        // Each byte is four of the line.
        let word = vec![0; SENT_MAX / 4];
        let told = |word: &[u8]| -> Vec<_> {
            tell(&host, "", [word].into_iter());
            let messages = std::mem::take(&mut *host.ports[0].inbox.lock());
            let ids = messages.iter().map(|message| match message {
                Message::Push(_, id, line) => (*id, line.len() / word.len()),
                Message::Kill(_, id) => (*id, 0),
                Message::Serve(_) => unreachable!("no connection came"),
            });
            ids.collect()
        };
        assert_eq!(told(&word[..SENT_MAX / 6]), [(7, 4), (8, 0)]);
        assert_eq!(told(&word[..SENT_MAX / 6]), [(7, 0)]);
        assert!(host.monitors.is_empty() && told(b"x").is_empty());
        host.monitors.sent.store(0, Ordering::Relaxed);
        host.monitors.add(0, 1, 9);
        assert_eq!(told(&word), [(9, 0)]);
    }

    #[test]
    fn those_who_watch_are_counted() {
        let monitors = Monitors::default();
        assert!(monitors.is_empty());
        monitors.add(0, 1, 7);
        monitors.add(1, 1, 8);
        monitors.remove(7);
        monitors.remove(7);
        assert!(!monitors.is_empty());
        monitors.remove(8);
        assert!(monitors.is_empty());
    }
}
