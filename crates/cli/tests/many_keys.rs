//! `DEL` and `FLUSHALL` of more keys than fit an entry of a cluster's log.

mod nodes;
mod pool;
mod session;

use nodes::{Node, nodes};
use pool::Place;
use session::{Client, Outcome, Reply};
use std::time::{Duration, Instant};

/// Pairs of an `MSET` of keys of 100 bytes.
const PAIRS: usize = 10_000;

/// More than 64 MiB of keys: 38,000 long ones, or 700,000 at `COREPLANE_TEST_SCALE=full`.
fn keys() -> Vec<Vec<u8>> {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let (count, len) = if is_full { (700_000, 100) } else { (38_000, 1_900) };
    (0..count).map(|number| format!("{number:0len$}").into_bytes()).collect()
}

fn until(client: &mut Client, words: &[&[u8]]) -> Outcome<Reply> {
    let since = Instant::now();
    loop {
        match client.call(words)? {
            Reply::Failed(text) if since.elapsed() > Duration::from_secs(60) => {
                return Err(text.into());
            }
            Reply::Failed(_) => std::thread::sleep(Duration::from_millis(20)),
            reply => return Ok(reply),
        }
    }
}

fn fill(client: &mut Client, keys: &[Vec<u8>]) -> Outcome<()> {
    for keys in keys.chunks(PAIRS * 100 / keys[0].len()) {
        let words = keys.iter().flat_map(|key| [key.as_slice(), b"v"]);
        let words: Vec<&[u8]> = [&b"MSET"[..]].into_iter().chain(words).collect();
        assert_eq!(until(client, &words)?, Reply::ok());
    }
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(keys.len() as i64));
    Ok(())
}

/// Each key is counted once, and all are gone on all nodes, whichever node executes the command.
fn deletes(nodes: &[Node], at: usize, keys: &[Vec<u8>]) -> Outcome<()> {
    let mut client = Client::connect(&nodes[at].address())?;
    fill(&mut client, keys)?;
    let mut words: Vec<&[u8]> = vec![b"DEL", b"none"];
    // Some keys are named twice, far apart.
    words.extend(keys.iter().map(Vec::as_slice));
    words.extend(keys.iter().take(1000).map(Vec::as_slice));
    assert_eq!(client.call(&words)?, Reply::Number(keys.len() as i64));
    for node in nodes {
        let mut client = Client::connect(&node.address())?;
        assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(0));
        assert_eq!(client.call(&[b"GET", &keys[keys.len() - 1]])?, Reply::Bulk(None));
    }
    // A later command is answered after it.
    assert_eq!(client.call(&[b"SET", b"k", b"v"])?, Reply::ok());
    assert_eq!(client.call(&[b"DEL", b"k", b"none", b"k"])?, Reply::Number(1));
    Ok(())
}

#[test]
fn more_keys_than_an_entry_takes_are_deleted() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 3, 3, &["--size", "1GiB", "--cluster-tick", "500ms"])?;
    let keys = keys();
    until(&mut Client::connect(&nodes[0].address())?, &[b"GET", b"k"])?;
    // One of them leads, and one follows.
    for at in [0, 1] {
        deletes(&nodes, at, &keys)?;
    }
    let mut client = Client::connect(&nodes[0].address())?;
    fill(&mut client, &keys)?;
    for more in [false, true] {
        client.call(&[b"MULTI"])?;
        client.call(&[b"FLUSHALL"])?;
        if more {
            client.call(&[b"SET", b"k", b"v"])?;
        }
        let Reply::Failed(text) = client.call(&[b"EXEC"])? else {
            return Err("more than an entry was removed at once".into());
        };
        assert!(text.starts_with("EXECABORT"), "{text}");
        assert!(text.contains("nothing was removed: send FLUSHALL alone"), "{text}");
        assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(keys.len() as i64));
    }
    assert_eq!(client.call(&[b"FLUSHALL"])?, Reply::ok());
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(0));
    Ok(())
}
