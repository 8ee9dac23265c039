//! The load: [`CONNECTIONS`] connections, each with [`DEPTH`] commands in flight, that report the server's
//! acknowledgements on the serial line, until the host pulls the plug.

use std::thread;

use crate::Outcome;
use crate::client::{Client, Reply};
use crate::script::{CONNECTIONS, Effect};

/// Commands in flight on each connection.
pub(crate) const DEPTH: u64 = 16;

/// Writes until the machine is killed; returns only with an error.
pub(crate) fn drive() -> Outcome<()> {
    let workers: Vec<_> =
        (0..CONNECTIONS).map(|connection| thread::spawn(move || work(connection))).collect();
    for worker in workers {
        worker.join().map_err(|_| "a connection panicked")??;
    }
    Ok(())
}

fn work(connection: u64) -> Outcome<()> {
    let mut client = Client::connect()?;
    let mut wire = Vec::new();
    for round in 0.. {
        let numbers = round * DEPTH + 1..=(round + 1) * DEPTH;
        wire.clear();
        for number in numbers.clone() {
            Effect::of(connection, number).encode(connection, number, &mut wire);
        }
        client.send(&wire)?;
        for number in numbers {
            match client.receive()? {
                Reply::Bulk(_) => return Err(format!("write {number} answered in bulk").into()),
                Reply::Simple(_) | Reply::Integer(_) => {}
            }
        }
        println!("@@ ack {connection} {}", (round + 1) * DEPTH);
    }
    Ok(())
}
