//! redis-rs: a client that reads every reply into a type.

use super::Fresh;
use crate::session::Outcome;
use redis::{Client, Commands, Connection, ErrorKind, ServerErrorKind, Value, cmd, pipe};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A connection by TCP or by the Unix socket, with this version of the protocol.
fn connect(fresh: &Fresh, by_socket: bool, protocol: &str) -> Outcome<Connection> {
    let url = if by_socket {
        format!("unix://{}?protocol={protocol}", fresh.socket)
    } else {
        format!("redis://{}/?protocol={protocol}", fresh.served.address)
    };
    Ok(Client::open(url)?.get_connection()?)
}

/// The commands of one connection, which has the keyspace for itself.
pub(super) fn converse(redis: &mut Connection, is_resp3: bool) -> Outcome<()> {
    cmd("FLUSHALL").exec(redis)?;
    let () = redis.set("greeting", "hello")?;
    assert_eq!(redis.get::<_, String>("greeting")?, "hello");
    assert_eq!(redis.get::<_, Option<String>>("none")?, None);
    let null = cmd("GET").arg("none").query::<Value>(redis)?;
    assert_eq!(null, Value::Nil);
    assert_eq!(redis.incr::<_, _, i64>("n", 41)?, 41);
    assert_eq!(redis.append::<_, _, usize>("greeting", "!")?, 6);
    let every: Vec<u8> = (0..=255).collect();
    let () = redis.set(&every, &every)?;
    assert_eq!(redis.get::<_, Vec<u8>>(&every)?, every);
    let large = every.repeat(4 << 12);
    let () = redis.set("large", &large)?;
    assert!(redis.get::<_, Vec<u8>>("large")? == large);
    let () = redis.mset(&[("a", 1), ("b", 2)])?;
    assert_eq!(redis.mget::<_, Vec<Option<i64>>>(&["a", "none", "b"])?, [Some(1), None, Some(2)]);
    assert!(!redis.set_nx::<_, _, bool>("a", 3)?);
    let () = redis.set_ex("short", 1, 100)?;
    assert!((1..=100).contains(&redis.ttl::<_, i64>("short")?));
    let error = redis.incr::<_, _, i64>("greeting", 1).expect_err("a text was counted up");
    assert_eq!(error.kind(), ErrorKind::Server(ServerErrorKind::ResponseError));
    assert!(error.to_string().contains("not an integer"), "{error}");
    let mut keys = redis.scan_match::<_, String>("gr*")?.collect::<Result<Vec<_>, _>>()?;
    keys.sort();
    assert_eq!(keys, ["greeting"]);
    assert_eq!(redis.del::<_, i64>(&["a", "b", "none"])?, 2);
    let server: Value = cmd("HELLO").query(redis)?;
    assert_eq!(matches!(server, Value::Map(_)), is_resp3, "{server:?}");
    Ok(())
}

/// Transactions, one of which a rival's write makes fail.
pub(super) fn transact(redis: &mut Connection, rival: &mut Connection) -> Outcome<()> {
    let answers: (i64, i64) =
        pipe().atomic().set("x", 1).ignore().incr("x", 1).incr("x", 1).query(redis)?;
    assert_eq!(answers, (2, 3));
    let many: Vec<i64> = (0..2000).fold(&mut pipe(), |pipe, _| pipe.incr("x", 1)).query(redis)?;
    assert!(many.iter().copied().eq(4..2004));
    // The first attempt fails because of a rival's write, the second succeeds.
    let mut attempts = 0;
    let made: (i64,) = redis::transaction(redis, &["x"], |redis, pipe| {
        let value: i64 = redis.get("x")?;
        attempts += 1;
        if attempts == 1 {
            let () = rival.set("x", value + 100)?;
        }
        pipe.set("x", value + 1).ignore().get("x").query(redis)
    })?;
    assert_eq!((attempts, made.0), (2, 2104));
    Ok(())
}

#[test]
fn redis_rs_converses_in_both_protocols() -> Outcome<()> {
    let fresh = Fresh::start("256MiB")?;
    for protocol in ["resp2", "resp3"] {
        for by_socket in [false, true] {
            let mut redis = connect(&fresh, by_socket, protocol)?;
            let mut rival = connect(&fresh, by_socket, protocol)?;
            converse(&mut redis, protocol == "resp3")?;
            transact(&mut redis, &mut rival)?;
        }
    }
    fresh.finish()
}

#[test]
fn redis_rs_survives_dropped_connections() -> Outcome<()> {
    let fresh = Fresh::start("64MiB")?;
    let mut other = connect(&fresh, false, "resp3")?;
    for round in 0..50 {
        let mut redis = connect(&fresh, round % 2 == 0, "resp3")?;
        let () = redis.set("round", round)?;
        if round % 5 == 0 {
            // Closed by the server, in the middle of a transaction.
            let id: i64 = cmd("CLIENT").arg("ID").query(&mut redis)?;
            cmd("MULTI").exec(&mut redis)?;
            cmd("SET").arg("round").arg("never").exec(&mut redis)?;
            let killed: i64 = cmd("CLIENT").arg("KILL").arg("ID").arg(id).query(&mut other)?;
            assert_eq!(killed, 1);
            let error = cmd("EXEC").exec(&mut redis).expect_err("a dead connection");
            // An end of the stream, or a reset if EXEC had arrived before it.
            assert!(error.is_connection_dropped(), "{error}");
            assert!(cmd("PING").exec(&mut redis).is_err(), "the connection is alive");
        }
        // Otherwise closed by the client, with answers pending.
        let _sent = redis.send_packed_command(&cmd("GET").arg("round").get_packed_command());
    }
    assert_eq!(other.get::<_, i64>("round")?, 49);
    fresh.finish()
}

/// Values of the load below: from a few bytes to some pages.
fn value(number: usize) -> Vec<u8> {
    let len = if number.is_multiple_of(50) { 20_000 } else { 10 + number % 200 };
    (0..len).map(|at| (number * 7 + at) as u8).collect()
}

/// Pipelines of SETs and INCRs until the server is gone; `acknowledged` counts the SETs.
fn load(mut redis: Connection, client: usize, acknowledged: &AtomicUsize) -> Outcome<()> {
    const DEPTH: usize = 32;
    loop {
        let first = acknowledged.load(Ordering::Relaxed);
        let mut pipeline = pipe();
        for number in first..first + DEPTH {
            pipeline.set(format!("{client}:{number}"), value(number)).ignore();
            pipeline.incr(format!("{client}:count"), 1).ignore();
        }
        match pipeline.exec(&mut redis) {
            Ok(()) => acknowledged.fetch_add(DEPTH, Ordering::Relaxed),
            Err(error) if error.is_io_error() || error.is_connection_dropped() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
    }
}

#[test]
fn what_redis_rs_was_told_is_there_after_a_kill() -> Outcome<()> {
    const CLIENTS: usize = 3;
    let mut fresh = Fresh::start("1GiB")?;
    let counts: [AtomicUsize; CLIENTS] = Default::default();
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        connections.push(connect(&fresh, false, "resp3")?);
    }
    std::thread::scope(|scope| -> Outcome<()> {
        let loads: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(client, redis)| {
                let acknowledged = &counts[client];
                scope.spawn(move || load(redis, client, acknowledged))
            })
            .collect();
        let is_enough = || counts.iter().all(|count| count.load(Ordering::Relaxed) >= 3000);
        while !is_enough() && !loads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        fresh.served.kill()?;
        for load in loads {
            load.join().map_err(|_| "a client panicked")??;
        }
        assert!(is_enough(), "a client ended before the server did");
        Ok(())
    })?;
    fresh.served = fresh.pool.serve(&["--unixsocket", &fresh.socket])?;
    let mut redis = connect(&fresh, false, "resp3")?;
    for (client, count) in counts.iter().enumerate() {
        let acknowledged = count.load(Ordering::Relaxed);
        for number in 0..acknowledged {
            let found: Option<Vec<u8>> = redis.get(format!("{client}:{number}"))?;
            assert!(found.as_ref() == Some(&value(number)), "{client}:{number} of {acknowledged}");
        }
        // As many as were acknowledged, and possibly some of those in flight.
        let counted: usize = redis.get(format!("{client}:count"))?;
        assert!((acknowledged..=acknowledged + 32).contains(&counted), "{counted}");
    }
    drop(redis);
    fresh.finish()
}
