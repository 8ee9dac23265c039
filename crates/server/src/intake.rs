//! The input of a connection: read once in a turn, and run as far as it is complete.
//!
//! A connection takes no more than its fair part of a turn. Its commands are stopped behind one that goes on later,
//! behind one that has used up the slice of the turn, and when there is much output: the rest of its input is kept
//! and run in the next turn, or when the client has received its pending output.

use crate::command::{self, Turn};
use crate::connection::{Connection, Input};
use crate::continuation::Pieces;
use crate::event_loop::{EventLoop, SCRATCH_LEN, write_error};
use crate::host::Host;
use crate::resp::frame::{Bounds, ProtocolError, Step, peek_key};
use crate::upstream::pass_on;
use coreplane_pmem::mutant;
use std::io::{self, Read};
use std::sync::atomic::Ordering;

/// The answer to a held command of a client that sends no more.
const GIVEN_UP: &str =
    "TRYAGAIN the connection was ended while the command was held: it was not run";

/// The next step after a command.
#[derive(PartialEq, Eq)]
enum Next {
    /// The same command, in a later turn.
    Same,
    /// The next command.
    Command,
    /// A later turn.
    Turn,
    /// Nothing: the connection ends.
    Nothing,
}

/// Limits of the output of a connection.
#[derive(Clone, Copy)]
struct OutputBounds {
    /// Pending bytes from which on no more commands are run in this turn.
    pause: u64,
    /// The length of the output's buffer above which it exceeds the limit.
    max: usize,
}

impl OutputBounds {
    fn new(host: &Host, connection: &Connection) -> Self {
        let settings = &host.settings;
        let of_turn = connection.output.len().saturating_add(Pieces::OUTPUT_MAX) as u64;
        let pause = settings.output_pause_bytes.load(Ordering::Relaxed);
        let pause = match connection.session.is_authenticated {
            true => pause.min(of_turn),
            false => connection.output_pause(pause),
        };
        let mut max = usize::MAX;
        if settings.limits_output.load(Ordering::Relaxed) {
            let hard = settings.output_limit.lock().hard_bytes;
            if let Some(hard) = usize::try_from(hard).ok().filter(|hard| *hard > 0) {
                max = connection.output.sent_len().saturating_add(hard);
            }
        }
        Self { pause, max }
    }
}

impl EventLoop {
    /// Reads once, and runs the commands that have arrived.
    pub(crate) fn serve(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.is_closing() || connection.is_paused(&self.host.settings) {
            return;
        }
        self.touch(key);
        if self.connections[key].is_stalled {
            self.run_kept(key);
        } else {
            match self.read(key) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.connections[key].is_readable = false;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.drop_connection(key),
            }
        }
        self.note_feed(key);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if connection.is_half_closed && connection.session.is_held() {
            give_up(connection, &mut self.scratch);
        }
        let has_more = connection.is_readable || connection.is_stalled;
        let is_paused = connection.is_paused(&self.host.settings);
        if has_more && !connection.is_closing() && !is_paused && !connection.is_queued {
            connection.is_queued = true;
            self.again.push(key);
        }
    }

    /// Reads once and runs the commands that are complete.
    fn read(&mut self, key: usize) -> io::Result<()> {
        let connection = &mut self.connections[key];
        let (len, is_full);
        if connection.input.is_empty() {
            let mut scratch = std::mem::take(&mut self.scratch);
            let result = connection.stream.read(&mut scratch);
            if let Ok(len) = result {
                let consumed = self.execute(key, &scratch[..len]);
                let connection = &mut self.connections[key];
                connection.input.keep(&scratch[consumed..len]);
            }
            self.scratch = scratch;
            len = result?;
            is_full = len == SCRATCH_LEN;
        } else {
            let needed = connection.parser.needed();
            (len, is_full) = connection.input.fill(&mut connection.stream, needed)?;
            self.run_kept(key);
        }
        self.is_waiting &= len == 0;
        let counters = &self.host.ports[self.member].counters;
        counters.bytes_in.add(len as u64);
        let connection = &mut self.connections[key];
        if len == 0 {
            connection.is_ended = true;
        }
        // A short read means that the socket is empty; new bytes come with a new event. Only the end of the stream
        // may have been announced already.
        connection.is_readable = (is_full || connection.is_half_closed) && len > 0;
        let kept = connection.publish_input();
        let is_too_long = kept as u64 > self.host.settings.query_buffer_max.load(Ordering::Relaxed);
        if is_too_long && !connection.is_stalled {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(())
    }

    /// Runs the complete commands of the connection's input.
    fn run_kept(&mut self, key: usize) {
        let mut input: Input = std::mem::take(&mut self.connections[key].input);
        let consumed = self.execute(key, input.bytes());
        input.consume(consumed);
        self.connections[key].input = input;
    }

    /// Runs the complete commands at the beginning of `data`, as long as it is the connection's turn; the number of
    /// their bytes.
    fn execute(&mut self, key: usize, data: &[u8]) -> usize {
        let host = &*self.host;
        let Some(connection) = self.connections.get_mut(key) else {
            return 0;
        };
        let bulk_len_max = host.settings.bulk_len_max.load(Ordering::Relaxed);
        if !connection.session.is_authenticated {
            // The password may have been removed since it connected.
            let has_password = host.settings.has_password.load(Ordering::Acquire);
            connection.session.is_authenticated = !has_password;
        }
        let output = OutputBounds::new(host, connection);
        self.slice.turn_to_next();
        let shared = (&mut self.horizon, &mut self.slice);
        let mut turn = Turn::new(host, self.member, shared, output.max);
        connection.is_stalled = false;
        connection.session.upstream = connection.upstream_state();
        if connection.upstream.as_ref().is_some_and(|upstream| upstream.is_full()) {
            connection.is_stalled = true;
            return 0;
        }
        let beside = host.isolation.enter(self.member);
        let mut consumed = 0;
        loop {
            let bounds = Bounds {
                bulk_len_max: i64::try_from(bulk_len_max).unwrap_or(i64::MAX),
                authenticated: connection.session.is_authenticated,
            };
            let rest = data.get(consumed..).unwrap_or_default();
            match connection.parser.step(rest, bounds) {
                Ok(Step::Command(len)) => {
                    let next = run(connection, &mut turn, (rest, len), output);
                    if next == Next::Same {
                        self.is_waiting &= !connection.session.has_progressed;
                        connection.is_stalled = true;
                        break;
                    }
                    self.is_waiting = false;
                    consumed += len;
                    if next == Next::Nothing {
                        consumed = data.len();
                    } else if next == Next::Turn {
                        connection.is_stalled = consumed < data.len();
                    }
                    if next != Next::Command {
                        break;
                    }
                }
                Ok(Step::Nothing(len)) => consumed += len,
                Ok(Step::Incomplete) => break,
                // The error is answered after the earlier commands.
                Err(_) if connection.session.upstream.is_awaited => {
                    connection.is_stalled = true;
                    break;
                }
                Err(complaint) => {
                    refuse(connection, &complaint);
                    consumed = data.len();
                    break;
                }
            }
        }
        drop(beside);
        connection.note_activity(self.now);
        consumed
    }
}

/// Runs the command in the first `len` bytes of `rest`; the next step.
#[inline]
fn run(
    connection: &mut Connection,
    turn: &mut Turn<'_>,
    (rest, len): (&[u8], usize),
    output: OutputBounds,
) -> Next {
    if connection.session.is_killed() && !mutant!("server.kill.next") {
        // Also what was held, or is left of a long command.
        connection.session.is_dropped = true;
        return Next::Nothing;
    }
    // While this command runs, the data that the next one reads first are being fetched.
    if let Some(key) = rest.get(len..).and_then(peek_key) {
        turn.host.engine.prefetch(key);
    }
    let words = connection.parser.words(rest);
    let was_forwarded = connection.session.is_forwarded;
    connection.session.awaits_durable = connection.rests || connection.output.is_held();
    let out = connection.output.buffer();
    connection.rests |= command::run(turn, &mut connection.session, words, out);
    if connection.session.is_postponed {
        connection.parser.keep();
        return Next::Same;
    }
    pass_on(turn.host, connection, rest, len);
    let session = &mut connection.session;
    if session.exceeds_output_limit || connection.output.end() > output.max {
        turn.counters.output_limit_drops.add(1);
        session.is_dropped = true;
    }
    if session.is_closing || session.is_dropped {
        return Next::Nothing;
    }
    let is_full = connection.output.len() as u64 >= output.pause
        || connection.upstream.as_ref().is_some_and(|it| it.is_full());
    // The end of the connection may have arrived together with the first commands.
    let is_new_node = session.is_forwarded && !was_forwarded;
    if is_full || is_new_node || turn.slice.is_used_up() { Next::Turn } else { Next::Command }
}

/// Ends a connection that will send no more and whose command is held: its client has probably gone, and may have sent
/// the command again elsewhere. Not before all earlier commands are answered: the engine may be busy with these.
#[cold]
pub(crate) fn give_up(connection: &mut Connection, scratch: &mut [u8]) {
    let is_behind_others = connection.rests || connection.output.is_held();
    if is_behind_others || connection.upstream_state().is_awaited {
        return;
    }
    if !connection.session.is_muted() {
        write_error(connection, GIVEN_UP);
    }
    connection.session.is_closing = true;
    // A socket that is closed with unread input takes back what it has not sent. All of it has arrived, with its end.
    while connection.stream.read(scratch).is_ok_and(|len| len > 0) {}
}

/// Answers with a protocol error, and closes the connection.
fn refuse(connection: &mut Connection, complaint: &ProtocolError) {
    write_error(connection, &format!("ERR Protocol error: {}", complaint.0));
    connection.session.is_closing = true;
}
