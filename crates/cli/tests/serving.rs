//! `coreplane serve`: what it says, what it does with signals, what is there afterwards.

mod session;

use session::{Client, Outcome, Reply, Served, expect, text};
use std::time::{Duration, Instant};

#[test]
fn what_was_acknowledged_is_there_after_sigterm() -> Outcome<()> {
    let place = tempfile::tempdir_in("/dev/shm")?;
    let pool = text(&place.path().join("new/made.pool"))?.to_owned();
    let arguments = ["--pool", &pool, "--size", "64MiB"];
    let served = Served::start(&arguments)?;
    for word in ["medium emulated:none", "durability strict", "a power cut loses everything"] {
        assert!(served.line.contains(word), "{word} is missing in {}", served.line);
    }
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"SET", b"key", b"value"])?, Reply::Simple("OK".to_owned()));
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::Bulk(Some(b"value".to_vec())));
    // While it serves nobody else has the pool.
    expect(2, &["get", "--pool", &pool, "key"])?;
    assert_eq!(served.terminate()?, Some(0));
    assert_eq!(expect(0, &["get", "--pool", &pool, "key"])?, "value\n");
    expect(0, &["put", "--pool", &pool, "key", "other"])?;

    let served = Served::start(&arguments)?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::Bulk(Some(b"other".to_vec())));
    // SHUTDOWN ends it too.
    assert!(client.call(&[b"SHUTDOWN"]).is_err());
    assert_eq!(served.ended()?, Some(0));
    expect(0, &["verify", "--pool", &pool])?;
    Ok(())
}

#[test]
fn the_line_is_truthful_for_every_durability() -> Outcome<()> {
    // The workspace lies on an ordinary disk, or at least not in memory.
    let place = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
    let pool = text(&place.path().join("a.pool"))?.to_owned();
    let socket = text(&place.path().join("s"))?.to_owned();
    for (durability, loses) in
        [("strict", "loses nothing"), ("group", "loses nothing"), ("relaxed", "the last 10 ms")]
    {
        let served = Served::start(&[
            "--pool",
            &pool,
            "--size",
            "64MiB",
            "--media",
            "file",
            "--durability",
            durability,
            "--unixsocket",
            &socket,
        ])?;
        assert!(served.line.contains("medium file"), "{}", served.line);
        assert!(served.line.contains(loses), "{}", served.line);
        assert!(served.line.contains(&socket), "{}", served.line);
        let mut client = served.connect()?;
        let key = durability.as_bytes();
        assert_eq!(client.call(&[b"SET", key, b"1"])?, Reply::Simple("OK".to_owned()));
        assert_eq!(served.terminate()?, Some(0));
    }
    assert_eq!(expect(0, &["scan", "--pool", &pool, "--media", "file"])?.lines().count(), 3);
    Ok(())
}

/// Waits until DBSIZE says so, however slow the machine is.
fn wait_for_size(client: &mut Client, size: i64) -> Outcome<()> {
    let start = Instant::now();
    loop {
        let reply = client.call(&[b"DBSIZE"])?;
        if reply == Reply::Number(size) {
            return Ok(());
        }
        if start.elapsed() > Duration::from_secs(120) {
            return Err(format!("DBSIZE is {reply:?}, not {size}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_has_expired_leaves_dbsize_although_nobody_asks_for_it() -> Outcome<()> {
    let place = tempfile::tempdir_in("/dev/shm")?;
    for index in ["pmem", "dram"] {
        let pool = text(&place.path().join(index))?.to_owned();
        let arguments = ["--pool", &pool, "--size", "64MiB", "--index", index];
        let served = Served::start(&arguments)?;
        let mut client = served.connect()?;
        for number in 0..1000 {
            let key = format!("key:{number}");
            let reply = client.call(&[b"SET", key.as_bytes(), b"value"])?;
            assert_eq!(reply, Reply::Simple("OK".to_owned()));
            if number % 2 == 0 {
                let reply = client.call(&[b"PEXPIRE", key.as_bytes(), b"300"])?;
                assert_eq!(reply, Reply::Number(1));
            }
        }
        wait_for_size(&mut client, 500)?;
        // Those that expire while no server runs too.
        for number in (1..1000).step_by(4) {
            let key = format!("key:{number}");
            assert_eq!(client.call(&[b"PEXPIRE", key.as_bytes(), b"1500"])?, Reply::Number(1));
        }
        served.kill()?;
        std::thread::sleep(Duration::from_millis(1500));
        let served = Served::start(&arguments)?;
        let mut client = served.connect()?;
        wait_for_size(&mut client, 250)?;
        assert_eq!(client.call(&[b"GET", b"key:3"])?, Reply::Bulk(Some(b"value".to_vec())));
        assert_eq!(client.call(&[b"GET", b"key:1"])?, Reply::Bulk(None));
        assert_eq!(served.terminate()?, Some(0));
        expect(0, &["verify", "--pool", &pool])?;
    }
    Ok(())
}
