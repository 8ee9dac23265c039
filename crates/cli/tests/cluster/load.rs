//! Clients that write rising numbers and read them, through any server, while nodes are killed or moved.

use crate::nodes::Node;
use crate::session::{Client, Outcome, Reply};
use crate::{PATIENCE, ask, connect};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The answers that clients received about keys.
#[derive(Default)]
struct Told {
    newest: Mutex<BTreeMap<u64, u64>>,
    is_over: AtomicBool,
    written: AtomicU64,
    read: AtomicU64,
}

impl Told {
    fn of(&self, key: u64) -> u64 {
        self.newest.lock().expect("told").get(&key).copied().unwrap_or(0)
    }

    /// The acknowledged writes, and the answered reads.
    fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// True if the clients have got on.
    fn is_enough(&self) -> bool {
        let (written, read) = self.counts();
        written > 100 && read > 50
    }

    fn tell(&self, key: u64, number: u64) {
        let mut newest = self.newest.lock().expect("told");
        let known = newest.entry(key).or_default();
        *known = number.max(*known);
    }
}

pub(crate) fn name_of(key: u64) -> Vec<u8> {
    format!("key:{key}").into_bytes()
}

pub(crate) fn number_in(reply: &Reply) -> u64 {
    match reply {
        Reply::Bulk(Some(bytes)) => {
            std::str::from_utf8(bytes).ok().and_then(|it| it.parse().ok()).unwrap_or(u64::MAX)
        }
        _ => 0,
    }
}

/// Writes rising numbers to keys of its own, and reads those of others, through any server.
fn client(told: &Told, ports: &[u16], me: u64) -> Outcome<()> {
    const KEYS: u64 = 5;
    let (mut next, mut sent, mut at) = (0_u64, BTreeMap::new(), me as usize);
    let mut connection: Option<Client> = None;
    while !told.is_over.load(Ordering::Relaxed) {
        let mut client =
            match connection.take().map_or_else(|| connect(ports[at % ports.len()]), Ok) {
                Ok(client) => client,
                Err(_) => {
                    at += 1;
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
            };
        next += 1;
        let outcome = if next % 3 == 0 {
            let key = next % (3 * KEYS);
            let floor = told.of(key);
            client.call(&[b"GET", &name_of(key)]).map(|reply| {
                if !matches!(reply, Reply::Failed(_)) {
                    let found = number_in(&reply);
                    assert!(found >= floor, "key {key} is {found}, and {floor} was told before");
                    told.tell(key, found);
                    told.read.fetch_add(1, Ordering::Relaxed);
                }
                reply
            })
        } else {
            let key = me * KEYS + next % KEYS;
            let number: &mut u64 = sent.entry(key).or_default();
            *number += 1;
            client.call(&[b"SET", &name_of(key), number.to_string().as_bytes()]).map(|reply| {
                if reply == Reply::ok() {
                    told.tell(key, *number);
                    told.written.fetch_add(1, Ordering::Relaxed);
                }
                reply
            })
        };
        match outcome {
            // A refused write was not made, or its outcome is unknown: the next number is greater anyway.
            Ok(Reply::Failed(_)) | Err(_) => at += 1,
            Ok(_) => connection = Some(client),
        }
    }
    Ok(())
}

/// Runs three clients during `happens`; then every node must have all known numbers.
pub(crate) fn while_clients_work(
    nodes: &mut [Node],
    ports: &[u16],
    happens: impl FnOnce(&mut [Node]) -> Outcome<()>,
) -> Outcome<()> {
    let told = Told::default();
    ask(ports, &[b"GET", b"is somebody there?"])?;
    std::thread::scope(|scope| -> Outcome<()> {
        let clients: Vec<_> = (0..3)
            .map(|me| {
                scope.spawn({
                    let told = &told;
                    move || client(told, ports, me)
                })
            })
            .collect();
        let happened = happens(nodes);
        let (meanwhile, since) = (told.counts(), Instant::now());
        let is_well = || clients.iter().all(|client| !client.is_finished());
        while happened.is_ok() && !told.is_enough() && is_well() && since.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        told.is_over.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().map_err(|_| "a client has found what must not be")??;
        }
        happened?;
        assert!(meanwhile.0 > 20 && meanwhile.1 > 10, "writes and reads meanwhile: {meanwhile:?}");
        Ok(())
    })?;
    assert!(told.is_enough(), "writes and reads: {:?}", told.counts());
    for node in nodes.iter().filter(|node| node.runs()) {
        for (key, floor) in told.newest.lock().expect("told").iter() {
            let found = number_in(&ask(&[node.port], &[b"GET", &name_of(*key)])?);
            assert!(found >= *floor, "{}: key {key} is {found}, not {floor}", node.address());
        }
    }
    Ok(())
}
