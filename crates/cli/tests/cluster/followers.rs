//! Reads from a follower: on request, and never older than the server allows.

use crate::nodes::nodes;
use crate::pool::Place;
use crate::session::{Client, Outcome, Reply};
use crate::{ask, connect};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longer than any step of the test takes.
const PATIENCE: Duration = Duration::from_secs(20);
/// The default of `--follower-age-max`.
const AGE_MAX: Duration = Duration::from_secs(1);

/// True if the client is told to ask the leader.
fn is_moved(reply: &Reply) -> bool {
    matches!(reply, Reply::Failed(text) if text.starts_with("MOVED "))
}

/// Sleeps; the longest time for which this thread, and perhaps the whole machine, stood still.
fn sleep_in_steps(time: Duration) -> Duration {
    let start = Instant::now();
    let (mut before, mut longest) = (start, Duration::ZERO);
    while start.elapsed() < time {
        std::thread::sleep(Duration::from_millis(10));
        longest = longest.max(before.elapsed());
        before = Instant::now();
    }
    longest
}

/// The answer of a follower to a read once it knows that its state is new enough.
fn shown(reader: &mut Client, words: &[&[u8]]) -> Outcome<Reply> {
    let since = Instant::now();
    loop {
        let reply = reader.call(words)?;
        if !is_moved(&reply) {
            return Ok(reply);
        }
        assert!(since.elapsed() < PATIENCE, "it shows nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_follower_shows_what_is_not_too_old() -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, &["--redirect", "--cluster-tick", "100ms"])?;
    let mut leader = None;
    let since = Instant::now();
    while leader.is_none() {
        assert!(since.elapsed() < PATIENCE, "nobody leads");
        for (at, node) in nodes.iter().enumerate() {
            if connect(node.port)?.call(&[b"SET", b"k", b"0"])? == Reply::ok() {
                leader = Some(at);
            }
        }
    }
    let first = leader.unwrap_or_default();
    let (mut writer, at) = (connect(nodes[first].port)?, (first + 1) % 3);
    let mut reader = connect(nodes[at].port)?;
    assert!(is_moved(&reader.call(&[b"GET", b"k"])?));
    assert_eq!(reader.call(&[b"READONLY"])?, Reply::ok());
    // It does not know the age of its state at once.
    shown(&mut reader, &[b"GET", b"k"])?;
    for number in 1..4_u8 {
        assert_eq!(writer.call(&[b"SET", b"k", &[number]])?, Reply::ok());
        // A machine that stood still has a follower whose state is too old for a moment.
        let stood_still = sleep_in_steps(AGE_MAX) > AGE_MAX / 2;
        let reply = match stood_still {
            true => shown(&mut reader, &[b"GET", b"k"])?,
            false => reader.call(&[b"GET", b"k"])?,
        };
        assert_eq!(reply, Reply::bulk([number]));
    }
    assert_eq!(shown(&mut reader, &[b"EXISTS", b"k", b"none"])?, Reply::Number(1));
    assert!(is_moved(&reader.call(&[b"SET", b"k", b"x"])?), "a write");
    assert!(is_moved(&reader.call(&[b"SCAN", b"0"])?), "a cursor is one node's");
    assert_eq!(reader.call(&[b"READWRITE"])?, Reply::ok());
    assert!(is_moved(&reader.call(&[b"GET", b"k"])?));
    assert_eq!(reader.call(&[b"READONLY"])?, Reply::ok());
    assert_eq!(shown(&mut reader, &[b"GET", b"k"])?, Reply::bulk([3]));
    assert_eq!(reader.call(&[b"RESET"])?, Reply::Simple("RESET".to_owned()));
    assert!(is_moved(&reader.call(&[b"GET", b"k"])?));
    // It is alone, and its state grows older.
    assert_eq!(reader.call(&[b"READONLY"])?, Reply::ok());
    assert_eq!(shown(&mut reader, &[b"GET", b"k"])?, Reply::bulk([3]));
    nodes[first].kill()?;
    nodes[(first + 2) % 3].kill()?;
    std::thread::sleep(AGE_MAX);
    let reply = reader.call(&[b"GET", b"k"])?;
    assert!(matches!(reply, Reply::Failed(_)), "{reply:?} is too old");
    Ok(())
}

/// An answer of a follower depends on no write of its own pool: not on records that its cleaner moves, whose sync is
/// pending.
#[test]
fn a_follower_on_a_disk_answers_while_its_pool_is_cleaned() -> Outcome<()> {
    let place = Place::on_disk()?;
    // Beside other programs a node may be slow: that is no reason for an election here.
    let usual = ["--media", "file", "--cluster-tick", "400ms", "--follower-age-max", "60s"];
    let nodes = nodes(&place, 3, 3, &usual)?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    ask(&ports, &[b"SET", b"k", b"0"])?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| -> Outcome<()> {
        let writer = scope.spawn(|| -> Outcome<()> {
            let mut client = connect(ports[0])?;
            let (mut wire, value) = (Vec::new(), [b'v'; 900]);
            // Most records are overwritten, and some stay: the cleaner moves those.
            for number in 0..100_000_u32 {
                let key =
                    if number % 10 == 0 { number % 50_000 / 10 } else { number % 97 + 10_000 };
                wire.clear();
                Client::encode(&[b"SET", &key.to_be_bytes(), &value], &mut wire);
                client.send_bytes(&wire)?;
                if number % 50 == 49 {
                    for _ in 0..50 {
                        assert_eq!(client.receive()?, Reply::ok());
                    }
                }
                if is_over.load(Ordering::Relaxed) && number % 50 == 49 {
                    break;
                }
            }
            Ok(())
        });
        let readers: Vec<_> = ports
            .iter()
            .map(|port| {
                let is_over = &is_over;
                scope.spawn(move || -> Outcome<u64> {
                    let (mut client, mut count) = (connect(*port)?, 0);
                    assert_eq!(client.call(&[b"READONLY"])?, Reply::ok());
                    while !is_over.load(Ordering::Relaxed) {
                        let key = u32::to_be_bytes(count as u32 % 5_000);
                        let reply = client.call(&[b"GET", &key])?;
                        assert!(matches!(reply, Reply::Bulk(_)), "{reply:?}");
                        count += 1;
                    }
                    Ok(count)
                })
            })
            .collect();
        let since = Instant::now();
        while !writer.is_finished() && since.elapsed() < Duration::from_secs(8) {
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| "the writer has panicked")??;
        for reader in readers {
            assert!(reader.join().map_err(|_| "a reader has panicked")?? > 100);
        }
        Ok(())
    })
}

/// The requests of cluster clients: the addresses of the leader and of its followers.
#[test]
fn cluster_clients_are_told_of_all_nodes() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 3, 3, &["--redirect", "--cluster-tick", "100ms"])?;
    let mut clients = Vec::new();
    for node in &nodes {
        clients.push(connect(node.port)?);
    }
    let since = Instant::now();
    while clients.iter_mut().any(|it| {
        it.call(&[b"SET", b"k", b"0"]).is_ok_and(|it| !is_moved(&it) && it != Reply::ok())
    }) {
        assert!(since.elapsed() < PATIENCE, "nobody leads");
    }
    for client in &mut clients {
        let mut told = Vec::new();
        for (word, lines) in [(&b"SLOTS"[..], 22), (b"SHARDS", 91)] {
            client.send(&[b"CLUSTER", word])?;
            for _ in 0..lines {
                told.push(client.line()?);
            }
        }
        for node in &nodes {
            let port = format!(":{}", node.port);
            assert_eq!(told.iter().filter(|line| **line == port).count(), 2, "{told:?}");
        }
        let count = |what: &str| told.iter().filter(|line| *line == what).count();
        assert_eq!((count("master"), count("replica"), count("online")), (1, 2, 3), "{told:?}");
        // No part of the answer is left over.
        assert_eq!(client.call(&[b"PING"])?, Reply::Simple("PONG".to_owned()));
    }
    Ok(())
}
