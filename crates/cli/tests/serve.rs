//! `coreplane serve`: its output, its reaction to signals, and the pool afterwards.

mod pool;
mod session;

use pool::Place;
use session::{Client, Outcome, Reply};
use std::time::{Duration, Instant};

#[test]
fn what_was_acknowledged_is_there_after_sigterm() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("made.pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    for word in ["medium emulated:none", "durability strict", "a power cut loses everything"] {
        assert!(served.line.contains(word), "{word} is missing in {}", served.line);
    }
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"SET", b"key", b"value"])?, Reply::ok());
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::bulk(*b"value"));
    // While it serves, no other process can open the pool.
    pool.expect(2, &["get", "key"])?;
    served.terminate()?;
    assert_eq!(pool.expect(0, &["get", "key"])?, "value\n");
    pool.expect(0, &["put", "key", "other"])?;

    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::bulk(*b"other"));
    // SHUTDOWN ends it, too.
    assert!(client.call(&[b"SHUTDOWN"]).is_err());
    assert_eq!(served.ended()?, Some(0));
    pool.is_sound()?;
    Ok(())
}

/// scmkv clears record by record: within a transaction all records are one batch, which a crash cannot split.
#[test]
fn flushall_in_a_transaction_is_one_batch() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("made.pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    for number in 0..100_u32 {
        client.call(&[b"SET", &number.to_be_bytes(), b"value"])?;
    }
    let batches = |client: &mut Client| -> Outcome<u64> {
        let info = client.call(&[b"INFO"])?.text().unwrap_or_default();
        let figure = info.lines().find_map(|line| line.strip_prefix("engine_batches:"));
        Ok(figure.ok_or("no engine_batches")?.parse()?)
    };
    let before = batches(&mut client)?;
    assert_eq!(client.call(&[b"MULTI"])?, Reply::ok());
    client.call(&[b"FLUSHALL"])?;
    client.send(&[b"EXEC"])?;
    assert_eq!((client.line()?, client.line()?), ("*1".to_owned(), "+OK".to_owned()));
    assert_eq!(batches(&mut client)?, before + 1);
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(0));
    served.terminate()
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

/// Waits until DBSIZE answers `size`, however slow the machine is.
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
        // Also records that expire while no server runs.
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

#[test]
fn damage_at_rest_is_answered_by_an_error_and_never_shown() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("a.pool", &["--size", "64MiB"])?;
    let marker = "a value that is looked for in the file";
    pool.expect(0, &["put", "key", marker])?;
    pool.expect(0, &["put", "other", "sound"])?;
    let mut bytes = pool.bytes()?;
    let found = bytes.windows(marker.len()).position(|bytes| bytes == marker.as_bytes());
    bytes[found.ok_or("the value is not in the file")?] ^= 2;
    pool.put_bytes(&bytes)?;
    let refused = pool.run(&["get", "key"], b"")?;
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");

    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    for command in [&[&b"GET"[..], b"key"][..], &[b"MGET", b"other", b"key"], &[b"STRLEN", b"key"]]
    {
        let Reply::Failed(said) = client.call(command)? else {
            return Err("shown".into());
        };
        assert!(said.contains("checksum"), "{said}");
    }
    assert!(matches!(client.call(&[b"APPEND", b"key", b"!"])?, Reply::Failed(_)));
    assert_eq!(client.call(&[b"GET", b"other"])?, Reply::bulk(*b"sound"));
    served.terminate()?;

    // A user who prefers the stored bytes gets them, but nothing is derived from them.
    let served = pool.serve(&["--no-check-reads"])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::bulk(marker.replacen('a', "c", 1)));
    assert!(matches!(client.call(&[b"APPEND", b"key", b"!"])?, Reply::Failed(_)));
    // The remedy is to write it again.
    assert_eq!(client.call(&[b"SET", b"key", b"again"])?, Reply::ok());
    served.terminate()?;
    assert_eq!(pool.expect(0, &["get", "key"])?, "again\n");
    Ok(())
}

/// Neither the transaction nor a part of it is written, but smaller writes still are.
#[test]
fn a_transaction_for_which_the_pool_has_no_space_writes_nothing() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("small.pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    let value = vec![7; 100_000];
    assert_eq!(client.call(&[b"SET", b"before", b"value"])?, Reply::ok());
    assert_eq!(client.call(&[b"MULTI"])?, Reply::ok());
    for number in 0..1000 {
        let key = format!("key {number}");
        client.call(&[b"SET", key.as_bytes(), &value])?;
    }
    let answer = format!("{:?}", client.call(&[b"EXEC"]));
    assert!(answer.contains("EXECABORT Transaction discarded because of: OOM"), "{answer}");
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(1));
    assert_eq!(client.call(&[b"SET", b"after", &value])?, Reply::ok());
    assert_eq!(client.call(&[b"GET", b"before"])?, Reply::bulk(*b"value"));
    served.terminate()?;
    pool.is_sound()?;
    Ok(())
}
