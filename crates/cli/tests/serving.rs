//! `coreplane serve`: what it says, what it does with signals, what is there afterwards.

mod pool;
mod session;

use pool::Place;
use session::{Client, Outcome, Reply};
use std::time::{Duration, Instant};

#[test]
fn what_was_acknowledged_is_there_after_sigterm() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("new/made.pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    for word in ["medium emulated:none", "durability strict", "a power cut loses everything"] {
        assert!(served.line.contains(word), "{word} is missing in {}", served.line);
    }
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"SET", b"key", b"value"])?, Reply::ok());
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::bulk(*b"value"));
    // While it serves nobody else has the pool.
    pool.expect(2, &["get", "key"])?;
    served.terminate()?;
    assert_eq!(pool.expect(0, &["get", "key"])?, "value\n");
    pool.expect(0, &["put", "key", "other"])?;

    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::bulk(*b"other"));
    // SHUTDOWN ends it too.
    assert!(client.call(&[b"SHUTDOWN"]).is_err());
    assert_eq!(served.ended()?, Some(0));
    pool.is_sound()?;
    Ok(())
}

#[test]
fn the_line_is_truthful_for_every_durability() -> Outcome<()> {
    let place = Place::on_disk()?;
    let (pool, socket) = (place.pool("a.pool")?, place.argument("s")?);
    for (durability, loses) in
        [("strict", "loses nothing"), ("group", "loses nothing"), ("relaxed", "the last 10 ms")]
    {
        let served = pool.serve(&[
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
        assert_eq!(client.call(&[b"SET", key, b"1"])?, Reply::ok());
        served.terminate()?;
    }
    assert_eq!(pool.expect(0, &["scan", "--media", "file"])?.lines().count(), 3);
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
    let place = Place::in_memory()?;
    for index in ["pmem", "dram"] {
        let pool = place.pool(index)?;
        let arguments = ["--size", "64MiB", "--index", index];
        let served = pool.serve(&arguments)?;
        let mut client = served.connect()?;
        for number in 0..1000 {
            let key = format!("key:{number}");
            let reply = client.call(&[b"SET", key.as_bytes(), b"value"])?;
            assert_eq!(reply, Reply::ok());
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
        let served = pool.serve(&arguments)?;
        let mut client = served.connect()?;
        wait_for_size(&mut client, 250)?;
        assert_eq!(client.call(&[b"GET", b"key:3"])?, Reply::bulk(*b"value"));
        assert_eq!(client.call(&[b"GET", b"key:1"])?, Reply::Bulk(None));
        served.terminate()?;
        pool.is_sound()?;
    }
    Ok(())
}
