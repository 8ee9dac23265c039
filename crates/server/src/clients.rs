//! Connected clients: what `CLIENT LIST`, `CLIENT KILL` and `INFO` know of connections that belong to other event
//! loops.

use crate::connection::{Connection, Stream};
use crate::resp::reply::Proto;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// The names that a client gave itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names {
    /// `CLIENT SETNAME`.
    pub name: String,
    /// `CLIENT SETINFO LIB-NAME`.
    pub lib_name: String,
    /// `CLIENT SETINFO LIB-VER`.
    pub lib_version: String,
}

/// One connection, as others see it. Only its event loop writes; any thread reads.
#[derive(Debug)]
pub(crate) struct ClientInfo {
    /// Counts up and is never reused.
    pub id: u64,
    /// The event loop that it belongs to.
    pub member: usize,
    /// Its place in that loop.
    pub key: usize,
    /// The other end.
    pub address: String,
    /// This end.
    pub local_address: String,
    /// It came through the Unix socket.
    pub is_unix: bool,
    /// The file descriptor.
    pub fd: i32,
    /// When it connected.
    pub since: Instant,
    /// Milliseconds after `since` at which it last sent a request, or received bytes of an answer.
    pub active_after: AtomicU64,
    /// Its latest command, by its number in the table.
    pub command: AtomicUsize,
    /// It speaks RESP3.
    pub is_resp3: AtomicBool,
    /// It is to be disconnected, and nothing more is run for it, or sent to a leader. Set while a loop is alone.
    pub is_killed: AtomicBool,
    /// `CLIENT NO-EVICT`.
    pub no_evict: AtomicBool,
    /// `CLIENT NO-TOUCH`.
    pub no_touch: AtomicBool,
    /// Commands queued by `MULTI`, plus one; 0 outside.
    pub queued: AtomicUsize,
    /// Keys watched.
    pub watched: AtomicUsize,
    /// Bytes of memory for the commands queued by `MULTI`.
    pub queued_bytes: AtomicUsize,
    /// It receives every command (`MONITOR`).
    pub is_monitor: AtomicBool,
    /// Its command waits for the end of a pause.
    pub is_paused: AtomicBool,
    /// Bytes of an unfinished command, and of the memory that holds it.
    pub input: AtomicUsize,
    pub input_room: AtomicUsize,
    /// Bytes of pending output, and of the memory that holds them.
    pub output: AtomicUsize,
    pub output_room: AtomicUsize,
    /// The names that it gave itself.
    pub names: Mutex<Names>,
}

impl ClientInfo {
    /// A client that just connected through `stream`, with its address and ours.
    pub(crate) fn new(
        id: u64,
        member: usize,
        key: usize,
        (address, local_address): (String, String),
        stream: &Stream,
    ) -> Self {
        Self {
            id,
            member,
            key,
            address,
            local_address,
            is_unix: stream.is_unix(),
            fd: stream.fd(),
            since: Instant::now(),
            active_after: AtomicU64::new(0),
            command: AtomicUsize::new(usize::MAX),
            is_resp3: AtomicBool::new(false),
            is_killed: AtomicBool::new(false),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            queued: AtomicUsize::new(0),
            watched: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            is_monitor: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            input: AtomicUsize::new(0),
            input_room: AtomicUsize::new(0),
            output: AtomicUsize::new(0),
            output_room: AtomicUsize::new(0),
            names: Mutex::default(),
        }
    }

    /// Stores the protocol version in which the client is answered.
    pub(crate) fn set_proto(&self, proto: Proto) {
        self.is_resp3.store(proto == Proto::Three, Ordering::Relaxed);
    }

    /// It has sent a request, or received a part of an answer.
    pub(crate) fn note_activity(&self, now: Instant) {
        let active = now.saturating_duration_since(self.since).as_millis();
        self.active_after.store(u64::try_from(active).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Seconds since it connected, and since it was last active.
    pub(crate) fn age_and_idle(&self) -> (u64, u64) {
        let age = self.since.elapsed();
        let active = std::time::Duration::from_millis(self.active_after.load(Ordering::Relaxed));
        (age.as_secs(), age.saturating_sub(active).as_secs())
    }

    /// Its line in `CLIENT LIST`, without an end of line. For the client that asks, the command that it runs counts
    /// as input, and the words of that command count as memory; other clients are shown between two commands.
    pub(crate) fn line(&self, command: &str, running: Running) -> String {
        let (age, idle) = self.age_and_idle();
        let names = self.names.lock().clone();
        let load = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        let queued = load(&self.queued);
        let multi = i64::try_from(queued).unwrap_or(0) - 1;
        let mut flags = String::new();
        for (set, letter) in [
            (self.is_monitor.load(Ordering::Relaxed), 'O'),
            (self.is_paused.load(Ordering::Relaxed), 'b'),
            (self.is_killed.load(Ordering::Relaxed), 'A'),
            (queued > 0, 'x'),
            (self.is_unix, 'U'),
            (self.no_evict.load(Ordering::Relaxed), 'e'),
            (self.no_touch.load(Ordering::Relaxed), 'T'),
        ] {
            if set {
                flags.push(letter);
            }
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let (kept, output) = (load(&self.input), load(&self.output));
        let (input_room, output_room) = (load(&self.input_room), load(&self.output_room));
        let (input, free) = (kept + running.input, input_room.saturating_sub(kept));
        let queue_memory = load(&self.queued_bytes);
        let words = running.words;
        let text = names.name.len() + names.lib_name.len() + names.lib_version.len();
        let memory = size_of::<Connection>() + size_of::<Self>() + text;
        let memory = memory + running.input + input_room + output_room + words + queue_memory;
        let resp = if self.is_resp3.load(Ordering::Relaxed) { 3 } else { 2 };
        format!(
            "id={} addr={} laddr={} fd={} name={} age={age} idle={idle} flags={flags} db=0 \
             sub=0 psub=0 ssub=0 multi={multi} qbuf={input} qbuf-free={free} argv-mem={words} \
             multi-mem={queue_memory} rbs={output_room} rbp={output_room} obl={output} oll=0 omem=0 \
             tot-mem={memory} events=r cmd={command} user=default redir=-1 resp={resp} \
             lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            self.fd,
            names.name,
            names.lib_name,
            names.lib_version,
        )
    }
}

/// Bytes of the command that a client runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Running {
    /// As it was sent, or as it would be as an array.
    pub input: usize,
    /// Of its words.
    pub words: usize,
}

impl Running {
    /// Of these words.
    pub(crate) fn of<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>) -> Self {
        let digits = |number: usize| number.checked_ilog10().map_or(1, |log| log as usize + 1);
        let mut running = Self { input: 3 + digits(words.len()), words: 0 };
        for word in words {
            running.input += 5 + digits(word.len()) + word.len();
            running.words += word.len();
        }
        running
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    next_id: AtomicU64,
    count: AtomicUsize,
    by_id: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
}

impl Clients {
    /// An id that no client had.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Takes one of `max` places; false if there is none.
    pub(crate) fn take_place(&self, max: usize) -> bool {
        self.count
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < max).then_some(count + 1)
            })
            .is_ok()
    }

    /// Gives a place back.
    pub(crate) fn give_place(&self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of places taken.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds a client that connected.
    pub(crate) fn add(&self, client: Arc<ClientInfo>) {
        self.by_id.lock().insert(client.id, client);
    }

    /// Removes a client that disconnected.
    pub(crate) fn remove(&self, id: u64) {
        self.by_id.lock().remove(&id);
    }

    /// All of them, by age.
    pub(crate) fn all(&self) -> Vec<Arc<ClientInfo>> {
        self.by_id.lock().values().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_as_long_as_its_array() {
        for command in
            [&b"*2\r\n$6\r\nclient\r\n$4\r\nlist\r\n"[..], b"*1\r\n$10\r\nabcdefghij\r\n"]
        {
            let words = command.split(|byte| *byte == b'\n').skip(2).step_by(2);
            let words: Vec<&[u8]> = words.map(|word| word.trim_ascii_end()).collect();
            let running = Running::of(words.iter().copied());
            assert_eq!((running.input, running.words), (command.len(), words.concat().len()));
        }
    }
}
