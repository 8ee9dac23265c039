//! Pools that cannot be served, and records that cannot be stored: every subcommand and the server report them by
//! name, and nothing is changed or lost.

use crate::pool::{Place, Pool};
use crate::session::{self, Outcome, Reply};

/// The offsets of the version and of the kind in a pool's header.
const VERSION: usize = 8;
const KIND: usize = 32;

/// The checksum of the static part, as defined in `docs/media-format.md`.
fn reseal(bytes: &mut [u8]) {
    bytes[12..16].fill(0);
    let crc = crc32c::crc32c(&bytes[..512]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Every subcommand that needs a pool, including the server, must refuse this file with a message that contains
/// `word`, and leave it unchanged.
fn is_refused(pool: &Pool, word: &str) -> Outcome<()> {
    let before = pool.bytes()?;
    for command in session::NEED_A_POOL {
        pool.says(2, &[word], command)?;
    }
    pool.says(2, &[""], &["create", "--size", "64MiB"])?;
    assert!(pool.bytes()? == before, "{} was changed", pool.name);
    Ok(())
}

#[test]
fn what_is_no_pool_of_ours_is_refused_by_everyone() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("sound", &["--size", "64MiB"])?;
    pool.expect(0, &["put", "key", "value"])?;
    let sound = pool.bytes()?;
    let other = place.pool("other")?;
    let changed = |change: &dyn Fn(&mut Vec<u8>)| -> Outcome<()> {
        let mut bytes = sound.clone();
        change(&mut bytes);
        other.put_bytes(&bytes)
    };
    changed(&|bytes| *bytes = b"a text, not a pool\n".repeat(1000))?;
    is_refused(&other, "not a")?;
    changed(&|bytes| bytes.clear())?;
    is_refused(&other, "0 bytes")?;
    changed(&|bytes| {
        bytes[VERSION] = 77;
        reseal(bytes);
    })?;
    is_refused(&other, "77")?;
    changed(&|bytes| {
        bytes[KIND..KIND + 8].copy_from_slice(b"foreign\0");
        reseal(bytes);
    })?;
    is_refused(&other, "foreign")?;
    changed(&|bytes| bytes.truncate(bytes.len() / 2))?;
    is_refused(&other, "67108864")?;
    changed(&|bytes| bytes.truncate(100))?;
    is_refused(&other, "100")?;
    changed(&|bytes| bytes[600] ^= 4)?;
    is_refused(&other, "checksum")?;
    assert_eq!(pool.expect(0, &["get", "key"])?, "value\n");
    Ok(())
}

#[test]
fn a_second_opener_is_told_who_it_is_not() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"SET", b"key", b"value"])?, Reply::ok());
    for command in [
        &["serve", "--port", "0"][..],
        &["verify"],
        &["verify", "--repair"],
        &["get", "key"],
        &["put", "key", "other"],
        &["grow", "--size", "128MiB"],
    ] {
        pool.says(2, &["locked", "in use", "open"], command)?;
    }
    // A link to the pool is the pool.
    let link = place.pool("link")?;
    std::os::unix::fs::symlink(&pool.path, &link.path)?;
    link.expect(2, &["get", "key"])?;
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::bulk(*b"value"));
    served.kill()?;
    // A dead server holds no lock.
    assert_eq!(pool.expect(0, &["get", "key"])?, "value\n");
    Ok(())
}

#[test]
fn what_is_over_the_limits_is_an_error_and_nothing_else() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    let ok = Reply::ok();
    let longest = vec![b'k'; 64 << 10];
    let too_long = vec![b'k'; (64 << 10) + 1];
    assert_eq!(client.call(&[b"SET", &longest, b"v"])?, ok);
    for command in [
        &[&b"SET"[..], &too_long, b"v"][..],
        &[b"SETNX", &too_long, b"v"],
        &[b"INCR", &too_long],
        &[b"APPEND", &too_long, b"v"],
        &[b"MSET", b"a", b"v", &too_long, b"v"],
        &[b"RENAME", &longest, &too_long],
        &[b"COPY", &longest, &too_long],
    ] {
        let reply = client.call(command)?;
        let told = matches!(&reply, Reply::Failed(what) if what.contains("over the limit"));
        assert!(told, "{}: {reply:?}", String::from_utf8_lossy(command[0]));
    }
    assert_eq!(client.call(&[b"GET", &too_long])?, Reply::Bulk(None));
    // A value that does not fit the pool, and one that a client may not even send.
    let huge = vec![b'x'; 70 << 20];
    let reply = client.call(&[b"SET", b"huge", &huge])?;
    assert!(matches!(&reply, Reply::Failed(what) if what.contains("no space")), "{reply:?}");
    let reply = client.call(&[b"SETRANGE", b"huge", b"536870911", b"xx"])?;
    assert!(matches!(&reply, Reply::Failed(what) if what.contains("maximum")), "{reply:?}");
    let mut other = served.connect()?;
    std::io::Write::write_all(&mut other.stream, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n")?;
    let reply = other.receive()?;
    assert_eq!(reply, Reply::Failed("ERR Protocol error: invalid bulk length".to_owned()));
    // No part of it is stored, and small values still fit.
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(1));
    assert_eq!(client.call(&[b"SET", b"small", b"v"])?, ok);
    served.terminate()?;
    pool.is_sound()?;
    Ok(())
}

#[test]
fn a_full_pool_refuses_and_keeps_what_it_has() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("pool")?;
    let served = pool.serve(&["--size", "64MiB"])?;
    let mut client = served.connect()?;
    let value = |number: usize| format!("{number:08}").repeat(2500).into_bytes();
    let key = |number: usize| format!("key:{number}").into_bytes();
    let mut stored = 0;
    let complaint = loop {
        match client.call(&[b"SET", &key(stored), &value(stored)])? {
            Reply::Simple(_) => stored += 1,
            Reply::Failed(complaint) => break complaint,
            other => return Err(format!("SET was answered with {other:?}").into()),
        }
        assert!(stored < (64 << 20) / 20_000, "more than the pool can hold");
    };
    assert!(complaint.contains("no space"), "{complaint}");
    assert!(stored > 2000, "{stored} values of 20,000 bytes");
    for number in 0..stored {
        assert_eq!(client.call(&[b"GET", &key(number)])?, Reply::bulk(value(number)));
    }
    served.kill()?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(i64::try_from(stored)?));
    served.terminate()?;
    pool.is_sound()?;
    // With more space all goes on.
    pool.expect(0, &["grow", "--size", "128MiB"])?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    for number in 0..stored {
        assert_eq!(client.call(&[b"GET", &key(number)])?, Reply::bulk(value(number)));
        let again = client.call(&[b"SET", &key(stored + number / 2), &value(number)])?;
        assert_eq!(again, Reply::ok());
    }
    served.terminate()?;
    Ok(())
}
