//! redis-rs in a cluster: its cluster client, which follows the leader, and its plain one, for which a follower
//! forwards.

use super::rust::{converse, transact};
use super::wait_for_leader;
use crate::nodes::{Node, nodes};
use crate::pool::Place;
use crate::session::Outcome;
use redis::cluster::{ClusterClient, ClusterConnection, cluster_pipe};
use redis::{Commands, ErrorKind, ProtocolVersion, ServerErrorKind, Value, cmd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The longest time without an answer, as the machine may be busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);

fn url(node: &Node) -> String {
    format!("redis://{}/", node.address())
}

/// A cluster client that knows these nodes from the start.
fn client(urls: Vec<String>, protocol: ProtocolVersion) -> Outcome<ClusterClient> {
    let client = ClusterClient::builder(urls)
        .use_protocol(protocol)
        .connection_timeout(Duration::from_secs(10))
        .response_timeout(Duration::from_secs(30));
    Ok(client.build()?)
}

fn connect(urls: Vec<String>, protocol: ProtocolVersion) -> Outcome<ClusterConnection> {
    Ok(client(urls, protocol)?.get_connection()?)
}

/// The position in `nodes` of the node that leads.
fn leader(nodes: &[Node]) -> Outcome<usize> {
    let since = Instant::now();
    loop {
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.runs()) {
            let mut redis = redis::Client::open(url(node))?.get_connection()?;
            let role: Vec<Value> = cmd("ROLE").query(&mut redis)?;
            if role.first() == Some(&Value::BulkString(b"master".to_vec())) {
                return Ok(at);
            }
        }
        assert!(since.elapsed() < PATIENCE, "nobody leads");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn redis_rs_finds_its_way_from_any_node() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 3, 3, &["--redirect", "--cluster-tick", "100ms"])?;
    wait_for_leader(&nodes[0])?;
    let mut moved = 0;
    for (number, node) in nodes.iter().enumerate() {
        for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
            let mut redis = connect(vec![url(node)], protocol)?;
            for key in 0..100 {
                let () = redis.set(format!("{number}:{key}"), key)?;
            }
            for key in 0..100 {
                assert_eq!(redis.get::<_, i64>(format!("{number}:{key}"))?, key);
            }
            let () = redis.del("{n}n")?;
            let counts: Vec<i64> = (0..50)
                .fold(&mut cluster_pipe(), |pipe, _| pipe.incr("{n}n", 1))
                .query(&mut redis)?;
            assert!(counts.into_iter().eq(1..51));
        }
        // A client without cluster support would have to follow the redirection itself.
        let mut plain = redis::Client::open(url(node))?.get_connection()?;
        match plain.get::<_, i64>("0:7") {
            Ok(found) => assert_eq!(found, 7),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Server(ServerErrorKind::Moved), "{error}");
                moved += 1;
            }
        }
    }
    assert_eq!(moved, 2, "one leads");
    // Every node finds the writes of all clients.
    let mut redis = connect(nodes.iter().map(url).collect(), ProtocolVersion::RESP3)?;
    for number in 0..nodes.len() {
        assert_eq!(redis.get::<_, i64>(format!("{number}:99"))?, 99);
    }
    Ok(())
}

/// Writes one key after the other until `until` are acknowledged, repeating each until it is. The number of refusals.
///
/// A connection of redis-rs 1.8 without an asynchronous runtime asks a node that is gone again and again, and asks no
/// other node for the leader. So after an error its user takes another connection, which asks all nodes that the
/// client knows.
fn write(
    client: &ClusterClient,
    writer: usize,
    acknowledged: &AtomicU64,
    until: &AtomicU64,
) -> Outcome<u64> {
    let (mut refused, mut since) = (0, Instant::now());
    let mut connection: Option<ClusterConnection> = None;
    loop {
        let number = acknowledged.load(Ordering::Relaxed);
        if number >= until.load(Ordering::Relaxed) {
            return Ok(refused);
        }
        let redis = connection.take().map_or_else(|| client.get_connection(), Ok);
        let written = redis.and_then(|mut redis| {
            redis.set::<_, _, ()>(format!("{writer}:{number}"), number)?;
            Ok(redis)
        });
        match written {
            Ok(redis) => {
                connection = Some(redis);
                acknowledged.fetch_add(1, Ordering::Relaxed);
                since = Instant::now();
            }
            Err(error) if since.elapsed() > PATIENCE => return Err(error.into()),
            // The write was not made, or its outcome is unknown: it is repeated.
            Err(_) => refused += 1,
        }
    }
}

#[test]
fn redis_rs_goes_on_after_a_failover() -> Outcome<()> {
    const WRITERS: usize = 2;
    const MORE: u64 = 500;
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, &["--redirect"])?;
    wait_for_leader(&nodes[0])?;
    let urls: Vec<String> = nodes.iter().map(url).collect();
    let acknowledged: [AtomicU64; WRITERS] = Default::default();
    let until = AtomicU64::new(u64::MAX);
    let mut clients = Vec::new();
    for protocol in [ProtocolVersion::RESP2, ProtocolVersion::RESP3] {
        clients.push(client(urls.clone(), protocol)?);
    }
    let all_have = |count: u64| {
        let since = Instant::now();
        while acknowledged.iter().any(|it| it.load(Ordering::Relaxed) < count) {
            assert!(since.elapsed() < 2 * PATIENCE, "{acknowledged:?} of {count}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let newest = || acknowledged.iter().map(|it| it.load(Ordering::Relaxed)).max().unwrap_or(0);
    std::thread::scope(|scope| -> Outcome<()> {
        let (acknowledged, until) = (&acknowledged, &until);
        let writers: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(writer, client)| {
                scope.spawn(move || write(client, writer, &acknowledged[writer], until))
            })
            .collect();
        all_have(MORE);
        for _ in 0..2 {
            let victim = leader(&nodes)?;
            nodes[victim].kill()?;
            all_have(newest() + MORE);
            assert_ne!(leader(&nodes)?, victim);
            nodes[victim].start()?;
        }
        until.store(newest(), Ordering::Relaxed);
        for writer in writers {
            let refused = writer.join().map_err(|_| "a writer panicked")??;
            assert!(refused > 0, "no writer has noticed that the leader was gone");
        }
        Ok(())
    })?;
    for client in clients {
        let mut redis = client.get_connection()?;
        for (writer, count) in acknowledged.iter().enumerate() {
            for number in 0..count.load(Ordering::Relaxed) {
                let found: Option<u64> = redis.get(format!("{writer}:{number}"))?;
                assert_eq!(found, Some(number), "{writer}:{number} of {count:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_plain_redis_rs_converses_with_followers() -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, &["--cluster-tick", "100ms"])?;
    wait_for_leader(&nodes[0])?;
    for (node, other) in nodes.iter().zip(nodes.iter().cycle().skip(1)) {
        for protocol in ["resp2", "resp3"] {
            let url = |node| format!("{}?protocol={protocol}", url(node));
            let mut redis = redis::Client::open(url(node))?.get_connection()?;
            let mut rival = redis::Client::open(url(other))?.get_connection()?;
            converse(&mut redis, protocol == "resp3")?;
            transact(&mut redis, &mut rival)?;
            let () = redis.set("of", node.port)?;
            assert_eq!(rival.get::<_, u16>("of")?, node.port);
        }
    }
    // A follower's connection stays when the leader is gone, and the follower finds the next one.
    let victim = leader(&nodes)?;
    let follower = (victim + 1) % nodes.len();
    let mut redis = redis::Client::open(url(&nodes[follower]))?.get_connection()?;
    for number in 0..100 {
        let () = redis.set(format!("before:{number}"), number)?;
    }
    nodes[victim].kill()?;
    let since = Instant::now();
    while let Err(error) = redis.set::<_, _, ()>("after", 1) {
        assert!(since.elapsed() < PATIENCE && !error.is_connection_dropped(), "{error}");
    }
    for number in 0..100 {
        assert_eq!(redis.get::<_, i64>(format!("before:{number}"))?, number);
    }
    assert_eq!(redis.get::<_, i64>("after")?, 1);
    Ok(())
}
