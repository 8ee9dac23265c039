//! Who is connected: what `CLIENT LIST`, `CLIENT KILL` and `INFO` know of connections that belong
//! to other event loops.

use crate::connection::Stream;
use crate::resp::reply::Proto;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// What a client called itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names {
    /// `CLIENT SETNAME`.
    pub name: String,
    /// `CLIENT SETINFO LIB-NAME`.
    pub lib_name: String,
    /// `CLIENT SETINFO LIB-VER`.
    pub lib_version: String,
}

/// One connection, as others see it. Its loop writes, everybody reads.
#[derive(Debug)]
pub(crate) struct ClientInfo {
    /// Counts up, never used again.
    pub id: u64,
    /// The event loop that it belongs to.
    pub member: usize,
    /// Its place in that loop.
    pub key: usize,
    /// The other end.
    pub address: String,
    /// This end.
    pub local_address: String,
    /// Came through the Unix socket.
    pub is_unix: bool,
    /// The file descriptor.
    pub fd: i32,
    /// When it came.
    pub since: Instant,
    /// Milliseconds after `since` at which it last asked for something.
    pub active_after: AtomicU64,
    /// Its latest command, as the table numbers them.
    pub command: AtomicUsize,
    /// It speaks RESP3.
    pub is_resp3: AtomicBool,
    /// It is to be dropped.
    pub is_killed: AtomicBool,
    /// `CLIENT NO-EVICT`.
    pub no_evict: AtomicBool,
    /// `CLIENT NO-TOUCH`.
    pub no_touch: AtomicBool,
    /// Commands queued by `MULTI`, plus one; 0 outside.
    pub queued: AtomicUsize,
    /// Keys watched.
    pub watched: AtomicUsize,
    /// Bytes of an unfinished command.
    pub input: AtomicUsize,
    /// Bytes of output that wait.
    pub output: AtomicUsize,
    /// What it called itself.
    pub names: Mutex<Names>,
}

impl ClientInfo {
    /// Of a client that just came through `stream`, with its address and ours.
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
            input: AtomicUsize::new(0),
            output: AtomicUsize::new(0),
            names: Mutex::default(),
        }
    }

    /// Remembers in which version it is spoken to.
    pub(crate) fn set_proto(&self, proto: Proto) {
        self.is_resp3.store(proto == Proto::Three, Ordering::Relaxed);
    }

    /// Seconds since it came, and since it last asked for something.
    pub(crate) fn age_and_idle(&self) -> (u64, u64) {
        let age = self.since.elapsed();
        let active = std::time::Duration::from_millis(self.active_after.load(Ordering::Relaxed));
        (age.as_secs(), age.saturating_sub(active).as_secs())
    }

    /// Its line in `CLIENT LIST`, without an end of line.
    pub(crate) fn line(&self, command: &str) -> String {
        let (age, idle) = self.age_and_idle();
        let names = self.names.lock().clone();
        let load = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        let queued = load(&self.queued);
        let multi = i64::try_from(queued).unwrap_or(0) - 1;
        let mut flags = String::new();
        for (set, letter) in [
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
        let (input, output) = (load(&self.input), load(&self.output));
        let resp = if self.is_resp3.load(Ordering::Relaxed) { 3 } else { 2 };
        format!(
            "id={} addr={} laddr={} fd={} name={} age={age} idle={idle} flags={flags} db=0 \
             sub=0 psub=0 ssub=0 multi={multi} qbuf={input} qbuf-free=0 argv-mem=0 multi-mem=0 \
             rbs={output} rbp=0 obl={output} oll=0 omem={output} tot-mem={} events=r cmd={command} user=default \
             redir=-1 resp={resp} lib-name={} lib-ver={}",
            self.id,
            self.address,
            self.local_address,
            self.fd,
            names.name,
            input + output,
            names.lib_name,
            names.lib_version,
        )
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
    /// An id that nobody had.
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

    /// How many places are taken.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// A client came.
    pub(crate) fn add(&self, client: Arc<ClientInfo>) {
        self.by_id.lock().insert(client.id, client);
    }

    /// A client went.
    pub(crate) fn remove(&self, id: u64) {
        self.by_id.lock().remove(&id);
    }

    /// All of them, by age.
    pub(crate) fn all(&self) -> Vec<Arc<ClientInfo>> {
        self.by_id.lock().values().cloned().collect()
    }
}
