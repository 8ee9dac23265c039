//! What cannot be served, and what cannot be stored: each is told in words that name it, by every
//! subcommand and by the server, and nothing is changed or lost.

mod session;

use session::{Outcome, Reply, Served, coreplane, expect, text};
use std::path::Path;

fn place() -> Outcome<tempfile::TempDir> {
    Ok(tempfile::tempdir_in("/dev/shm")?)
}

/// Where the version is in a pool's header, and where its kind.
const VERSION: usize = 8;
const KIND: usize = 32;

/// The checksum of the static part, as `docs/media-format.md` has it.
fn reseal(bytes: &mut [u8]) {
    bytes[12..16].fill(0);
    let crc = crc32c::crc32c(&bytes[..512]);
    bytes[12..16].copy_from_slice(&crc.to_le_bytes());
}

/// Every subcommand that needs a pool, the server among them, refuses this file with a complaint
/// that holds `word`, and leaves it as it is.
fn is_refused(path: &Path, word: &str) -> Outcome<()> {
    let before = std::fs::read(path)?;
    let pool = text(path)?;
    let create: &[&str] = &["create", "--size", "64MiB"];
    for command in session::NEED_A_POOL.into_iter().chain([create]) {
        let output = coreplane(&[command, &["--pool", pool]].concat(), b"")?;
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?} on {pool}: {complaint}");
        assert!(!complaint.contains("panicked"), "{command:?}: {complaint}");
        let is_named = complaint.contains(word) || command[0] == "create";
        assert!(is_named, "{command:?} on {pool}: {complaint}");
    }
    assert!(std::fs::read(path)? == before, "{pool} was changed");
    Ok(())
}

#[test]
fn what_is_no_pool_of_ours_is_refused_by_everyone() -> Outcome<()> {
    let place = place()?;
    let path = place.path().join("sound");
    expect(0, &["create", "--pool", text(&path)?, "--size", "64MiB"])?;
    expect(0, &["put", "--pool", text(&path)?, "key", "value"])?;
    let sound = std::fs::read(&path)?;
    let other = place.path().join("other");
    let changed = |change: &dyn Fn(&mut Vec<u8>)| -> Outcome<()> {
        let mut bytes = sound.clone();
        change(&mut bytes);
        Ok(std::fs::write(&other, bytes)?)
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
    assert_eq!(expect(0, &["get", "--pool", text(&path)?, "key"])?, "value\n");
    Ok(())
}

#[test]
fn a_second_opener_is_told_who_it_is_not() -> Outcome<()> {
    let place = place()?;
    let pool = text(&place.path().join("pool"))?.to_owned();
    let served = Served::start(&["--pool", &pool, "--size", "64MiB"])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"SET", b"key", b"value"])?, Reply::Simple("OK".to_owned()));
    for command in [
        &["serve", "--port", "0"][..],
        &["verify"],
        &["verify", "--repair"],
        &["get", "key"],
        &["put", "key", "other"],
        &["grow", "--size", "128MiB"],
    ] {
        let output = coreplane(&[command, &["--pool", &pool]].concat(), b"")?;
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {complaint}");
        let is_named = ["locked", "in use", "open"].iter().any(|word| complaint.contains(word));
        assert!(is_named, "{command:?}: {complaint}");
    }
    // A link to the pool is the pool.
    let link = place.path().join("link");
    std::os::unix::fs::symlink(&pool, &link)?;
    expect(2, &["get", "--pool", text(&link)?, "key"])?;
    assert_eq!(client.call(&[b"GET", b"key"])?, Reply::Bulk(Some(b"value".to_vec())));
    served.kill()?;
    // A dead server holds nothing.
    assert_eq!(expect(0, &["get", "--pool", &pool, "key"])?, "value\n");
    Ok(())
}

#[test]
fn what_is_over_the_limits_is_an_error_and_nothing_else() -> Outcome<()> {
    let place = place()?;
    let pool = text(&place.path().join("pool"))?.to_owned();
    let served = Served::start(&["--pool", &pool, "--size", "64MiB"])?;
    let mut client = served.connect()?;
    let ok = Reply::Simple("OK".to_owned());
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
    // A value that the pool has no room for, and one that a client may not even send.
    let huge = vec![b'x'; 70 << 20];
    let reply = client.call(&[b"SET", b"huge", &huge])?;
    assert!(matches!(&reply, Reply::Failed(what) if what.contains("no space")), "{reply:?}");
    let reply = client.call(&[b"SETRANGE", b"huge", b"536870911", b"xx"])?;
    assert!(matches!(&reply, Reply::Failed(what) if what.contains("maximum")), "{reply:?}");
    let mut other = served.connect()?;
    std::io::Write::write_all(&mut other.stream, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870913\r\n")?;
    let reply = other.receive()?;
    assert_eq!(reply, Reply::Failed("ERR Protocol error: invalid bulk length".to_owned()));
    // Nothing of it is there, and small things still fit.
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(1));
    assert_eq!(client.call(&[b"SET", b"small", b"v"])?, ok);
    assert_eq!(served.terminate()?, Some(0));
    expect(0, &["verify", "--pool", &pool])?;
    Ok(())
}

#[test]
fn a_full_pool_refuses_and_keeps_what_it_has() -> Outcome<()> {
    let place = place()?;
    let pool = text(&place.path().join("pool"))?.to_owned();
    let served = Served::start(&["--pool", &pool, "--size", "64MiB"])?;
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
        assert_eq!(client.call(&[b"GET", &key(number)])?, Reply::Bulk(Some(value(number))));
    }
    served.kill()?;
    let served = Served::start(&["--pool", &pool])?;
    let mut client = served.connect()?;
    assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(i64::try_from(stored)?));
    assert_eq!(served.terminate()?, Some(0));
    expect(0, &["verify", "--pool", &pool])?;
    // More space, and all goes on.
    expect(0, &["grow", "--pool", &pool, "--size", "128MiB"])?;
    let served = Served::start(&["--pool", &pool])?;
    let mut client = served.connect()?;
    for number in 0..stored {
        assert_eq!(client.call(&[b"GET", &key(number)])?, Reply::Bulk(Some(value(number))));
        let again = client.call(&[b"SET", &key(stored + number / 2), &value(number)])?;
        assert_eq!(again, Reply::Simple("OK".to_owned()));
    }
    assert_eq!(served.terminate()?, Some(0));
    Ok(())
}
