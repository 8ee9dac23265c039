//! Commands that are sent again and again until they are answered, and run only once, whichever server answers and
//! whichever is killed meanwhile.

mod nodes;
mod pool;
mod session;

use nodes::nodes;
use pool::Place;
use session::{Client, Outcome, Reply};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longer than any step of the test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends the words to one server after the other until one has executed them.
fn insist(ports: &[u16], words: &[&[u8]]) -> Outcome<(Reply, u64)> {
    let (since, mut tries) = (Instant::now(), 0);
    loop {
        let port = ports[tries as usize % ports.len()];
        tries += 1;
        let client = Client::connect(&format!("127.0.0.1:{port}"));
        match client.and_then(|mut client| client.call(words)) {
            Ok(Reply::Failed(text)) if text.starts_with("ERR") => return Err(text.into()),
            Ok(Reply::Failed(_)) | Err(_) => std::thread::sleep(Duration::from_millis(2)),
            Ok(reply) => return Ok((reply, tries)),
        }
        assert!(since.elapsed() < PATIENCE, "nobody answers {words:?}");
    }
}

/// Adds one again and again; the number of additions.
fn teller(ports: &[u16], name: &str, is_over: &AtomicBool) -> Outcome<(i64, u64)> {
    let (mut count, mut again) = (0_i64, 0);
    let client = name.as_bytes();
    let account = format!("account:{name}");
    while !is_over.load(Ordering::Relaxed) {
        count += 1;
        let number = count.to_string();
        let words: [&[u8]; 5] = [b"ONCE", client, number.as_bytes(), b"INCR", account.as_bytes()];
        let (reply, tries) = insist(ports, &words)?;
        assert_eq!(reply, Reply::Number(count), "{name}, after {tries} tries");
        again += tries - 1;
        if count % 16 == 0 {
            // As if its answer had been lost.
            assert_eq!(insist(ports, &words)?.0, Reply::Number(count), "{name} again");
        }
    }
    Ok((count, again))
}

#[test]
fn what_is_sent_again_is_run_once() -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, &[])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    let is_over = AtomicBool::new(false);
    let told = std::thread::scope(|scope| -> Outcome<Vec<(i64, u64)>> {
        let tellers: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                let (ports, is_over) = (&ports, &is_over);
                scope.spawn(move || teller(ports, name, is_over))
            })
            .into_iter()
            .collect();
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(700));
            let killed = round % 3;
            nodes[killed].kill()?;
            std::thread::sleep(Duration::from_millis(700));
            nodes[killed].start()?;
        }
        is_over.store(true, Ordering::Relaxed);
        tellers.into_iter().map(|teller| teller.join().expect("a teller")).collect()
    })?;
    for ((count, again), name) in told.into_iter().zip(["a", "b", "c"]) {
        let account = format!("account:{name}");
        let (reply, _) = insist(&ports, &[b"GET", account.as_bytes()])?;
        assert_eq!(reply, Reply::bulk(count.to_string()), "{name}");
        println!("{name}: {count} commands, {again} sent again");
    }
    Ok(())
}

#[test]
fn the_last_answer_is_remembered_across_a_kill_and_an_older_number_is_refused() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("once.pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    let once = |client: &mut Client, number: &str, words: &[&[u8]]| {
        let head: [&[u8]; 3] = [b"ONCE", b"c", number.as_bytes()];
        client.call(&[&head[..], words].concat())
    };
    assert_eq!(once(&mut client, "5", &[b"INCR", b"k"])?, Reply::Number(1));
    assert_eq!(once(&mut client, "5", &[b"INCR", b"k"])?, Reply::Number(1));
    assert_eq!(once(&mut client, "6", &[b"SET", b"s", b"v"])?, Reply::ok());
    assert_eq!(once(&mut client, "7", &[b"SETNX", b"s", b"w"])?, Reply::Number(0));
    assert_eq!(once(&mut client, "8", &[b"GETDEL", b"s"])?, Reply::bulk("v"));
    served.kill()?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    assert_eq!(once(&mut client, "8", &[b"GETDEL", b"s"])?, Reply::bulk("v"), "as before");
    let refusals: [(&str, &[&[u8]], &str); 9] = [
        ("7", &[b"INCR", b"k"], "ERR 8 was run since"),
        ("-1", &[b"INCR", b"k"], "ERR value is not an integer"),
        ("9", &[b"GET", b"k"], "ERR ONCE runs a command that writes"),
        ("8", &[b"GETDEL", b"k"], "ERR 8 was another command"),
        ("9", &[b"FLUSHALL"], "ERR FLUSHALL and FLUSHDB may be sent again as they are"),
        ("9", &[b"EXEC"], "ERR ONCE runs a command that writes"),
        ("9", &[b"ONCE", b"d", b"1", b"INCR", b"k"], "ERR ONCE runs a command that writes"),
        ("9", &[b"INCR"], "ERR wrong number of arguments for 'incr' command"),
        ("9", &[b"INCRBY", b"k", b"x"], "ERR value is not an integer"),
    ];
    for (number, words, refusal) in refusals {
        let reply = once(&mut client, number, words)?;
        let is_it = matches!(&reply, Reply::Failed(text) if text.starts_with(refusal));
        assert!(is_it, "{words:?}: {reply:?}");
    }
    // A refused command was not run, and is not remembered.
    assert_eq!(once(&mut client, "9", &[b"INCRBY", b"k", b"4"])?, Reply::Number(5));
    assert_eq!(once(&mut client, "9", &[b"INCRBY", b"k", b"4"])?, Reply::Number(5));
    assert_eq!(client.call(&[b"SET", b"coreplane:once:e", b"mine"])?, Reply::ok());
    let reply = client.call(&[b"ONCE", b"e", b"1", b"INCR", b"k"])?;
    assert!(matches!(reply, Reply::Failed(_)), "{reply:?}");
    assert_eq!(client.call(&[b"GET", b"k"])?, Reply::bulk("5"));
    Ok(())
}
