//! Three servers are one store: any may be killed or stopped, nodes come and go, nothing acknowledged is lost, no
//! read is stale.
//!
//! Each key has one writer, which writes rising numbers. A number counts as known when its write was acknowledged, or
//! when a client has read it. A read that begins after that must find it, or a later one. A writer may use any
//! server: followers forward commands.
//!
//! Three rounds, or as many as `COREPLANE_KILL_ROUNDS` says; sixty at `COREPLANE_TEST_SCALE=full`.

#[path = "cluster/backups.rs"]
mod backups;
#[path = "cluster/followers.rs"]
mod followers;
#[path = "cluster/load.rs"]
mod load;
#[path = "cluster/node_pools.rs"]
mod node_pools;
mod nodes;
#[path = "cluster/passwords.rs"]
mod passwords;
mod pool;
mod session;
#[path = "cluster/wipes.rs"]
mod wipes;

use load::{name_of, number_in, while_clients_work};
use nodes::{Node, nodes};
use pool::Place;
use session::{Client, Outcome, Reply, expect};
use std::time::{Duration, Instant};

/// The longest time without a leader, as the machine may be busy with something else.
const PATIENCE: Duration = Duration::from_secs(60);

fn rounds() -> u64 {
    let is_full = std::env::var("COREPLANE_TEST_SCALE").is_ok_and(|scale| scale == "full");
    let asked = std::env::var("COREPLANE_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    asked.unwrap_or(if is_full { 60 } else { 3 })
}

fn connect(port: u16) -> Outcome<Client> {
    Client::connect(&format!("127.0.0.1:{port}"))
}

/// The answer to these words, from any server that answers in time.
fn ask(ports: &[u16], words: &[&[u8]]) -> Outcome<Reply> {
    let since = Instant::now();
    loop {
        for port in ports {
            let reply = connect(*port).and_then(|mut client| client.call(words));
            match reply {
                Ok(Reply::Failed(_)) | Err(_) => {}
                Ok(reply) => return Ok(reply),
            }
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("nobody answers {words:?}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait_for(node: &Node, line: &str) -> Outcome<()> {
    let since = Instant::now();
    loop {
        let status = expect(0, &["cluster", "status", "--server", &node.address()])?;
        if status.lines().any(|it| it.starts_with(line)) {
            return Ok(());
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("no {line:?} in {status}").into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kills(place: &Place, more: &[&str]) -> Outcome<()> {
    let mut nodes = nodes(place, 3, 3, more)?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    while_clients_work(&mut nodes, &ports, |nodes| {
        for round in 0..rounds() {
            let victim = &mut nodes[(round * 7 % 3) as usize];
            std::thread::sleep(Duration::from_millis(700));
            if round % 3 == 2 {
                // It does not know that time has passed.
                victim.signal("-STOP")?;
                std::thread::sleep(Duration::from_millis(900));
                victim.signal("-CONT")?;
            } else {
                victim.kill()?;
                std::thread::sleep(Duration::from_millis(600));
                victim.start()?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_list_that_is_killed_and_stopped_loses_nothing() -> Outcome<()> {
    kills(&Place::in_memory()?, &[])
}

#[test]
fn a_tree_that_is_killed_and_stopped_loses_nothing() -> Outcome<()> {
    kills(&Place::in_memory()?, &["--replica-map", "cow-tree"])
}

#[test]
fn a_cluster_on_disks_loses_nothing() -> Outcome<()> {
    kills(&Place::on_disk()?, &["--media", "file"])?;
    kills(&Place::on_disk()?, &["--replica-map", "wal"])
}

#[test]
fn all_at_once_are_killed_and_elect_again() -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, &[])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    for number in 0..200_u64 {
        assert_eq!(ask(&ports, &[b"SET", &name_of(number), b"7"])?, Reply::ok());
    }
    nodes.iter_mut().try_for_each(Node::kill)?;
    nodes.iter_mut().try_for_each(Node::start)?;
    for port in &ports {
        assert_eq!(ask(&[*port], &[b"DBSIZE"])?, Reply::Number(200));
    }
    Ok(())
}

#[test]
fn nodes_come_and_go_under_load() -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 4, &[])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    while_clients_work(&mut nodes, &ports, |nodes| {
        std::thread::sleep(Duration::from_millis(300));
        nodes[3].start()?;
        let any = nodes[1].address();
        expect(0, &["cluster", "add", "4", "--server", &any])?;
        wait_for(&nodes[3], "node:4 voter")?;
        expect(0, &["cluster", "transfer", "4", "--server", &any])?;
        expect(0, &["cluster", "remove", "1", "--server", &any])?;
        nodes[0].kill()?;
        std::thread::sleep(Duration::from_millis(300));
        // Three are left, one of which may be killed.
        nodes[1].kill()?;
        std::thread::sleep(Duration::from_millis(1500));
        nodes[1].start()?;
        Ok(())
    })
}

/// A command that a forwarded transaction cannot contain is refused in its turn, and aborts the transaction.
fn refused_in_its_turn(client: &mut Client) -> Outcome<()> {
    let Reply::Bulk(Some(role)) = client.call(&[b"INFO", b"replication"])? else {
        return Err("no INFO".into());
    };
    if !String::from_utf8_lossy(&role).contains("role:slave") {
        return Ok(());
    }
    for refused in [&[&b"HELLO"[..], b"3"][..], &[b"CLIENT", b"REPLY", b"OFF"]] {
        let mut wire = Vec::new();
        for words in [&[&b"MULTI"[..]][..], &[b"SET", b"n", b"1"], refused, &[b"EXEC"]] {
            Client::encode(words, &mut wire);
        }
        client.send_bytes(&wire)?;
        assert_eq!(client.receive()?, Reply::ok());
        assert_eq!(client.receive()?, Reply::Simple("QUEUED".to_owned()));
        assert!(matches!(client.receive()?, Reply::Failed(text) if text.contains("not allowed")));
        assert!(matches!(client.receive()?, Reply::Failed(text) if text.starts_with("EXECABORT")));
        assert_eq!(client.call(&[b"GET", b"n"])?, Reply::Bulk(None));
    }
    Ok(())
}

#[test]
fn a_follower_answers_as_the_leader_does() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 3, 3, &["--cluster-tick", "100ms"])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    ask(&ports, &[b"SET", b"k", b"1"])?;
    for port in ports {
        let mut client = connect(port)?;
        let before = number(&mut client)?;
        assert_eq!(client.call(&[b"INCR", b"k"])?, Reply::Number(before + 1));
        assert_eq!(client.call(&[b"PING"])?, Reply::Simple("PONG".to_owned()));
        // A transaction that contains a command which does not need the leader.
        assert_eq!(client.call(&[b"WATCH", b"k"])?, Reply::ok());
        assert_eq!(client.call(&[b"MULTI"])?, Reply::ok());
        for words in [&[&b"SET"[..], b"t", b"x"][..], &[b"PING"], &[b"GET", b"t"]] {
            assert_eq!(client.call(words)?, Reply::Simple("QUEUED".to_owned()));
        }
        client.send(&[b"EXEC"])?;
        assert_eq!(client.line()?, "*3");
        assert_eq!(client.receive()?, Reply::ok());
        assert_eq!(client.receive()?, Reply::Simple("PONG".to_owned()));
        assert_eq!(client.receive()?, Reply::bulk(*b"x"));
        // Commands that arrive in one piece are answered in order.
        let mut wire = Vec::new();
        for number in 0..50_u8 {
            Client::encode(&[b"SET", b"p", &[b'a' + number % 26]], &mut wire);
            Client::encode(&[b"ECHO", &[number]], &mut wire);
            Client::encode(&[b"GET", b"p"], &mut wire);
        }
        client.send_bytes(&wire)?;
        for number in 0..50_u8 {
            assert_eq!(client.receive()?, Reply::ok());
            assert_eq!(client.receive()?, Reply::bulk([number]));
            assert_eq!(client.receive()?, Reply::bulk([b'a' + number % 26]));
        }
        // An invalid command is refused in its turn, and counts as a part of its transaction.
        let mut wire = Vec::new();
        for words in [&[&b"GET"[..], b"t"][..], &[b"NOSUCH"], &[b"PING"]] {
            Client::encode(words, &mut wire);
        }
        client.send_bytes(&wire)?;
        assert_eq!(client.receive()?, Reply::bulk(*b"x"));
        assert!(matches!(client.receive()?, Reply::Failed(_)));
        assert_eq!(client.receive()?, Reply::Simple("PONG".to_owned()));
        assert_eq!(client.call(&[b"MULTI"])?, Reply::ok());
        client.call(&[b"SET", b"n", b"1"])?;
        assert!(matches!(client.call(&[b"SET", b"n"])?, Reply::Failed(_)));
        let aborted = client.call(&[b"EXEC"])?;
        assert!(matches!(aborted, Reply::Failed(text) if text.starts_with("EXECABORT")));
        assert_eq!(client.call(&[b"GET", b"n"])?, Reply::Bulk(None));
        refused_in_its_turn(&mut client)?;
        // A change of protocol applies to the leader's answers, too.
        client.send(&[b"HELLO", b"3"])?;
        client.send(&[b"ECHO", b"over"])?;
        while client.line()? != "over" {}
        client.send(&[b"GET", b"none"])?;
        assert_eq!(client.line()?, "_");
        assert_eq!(client.call(&[b"RESET"])?, Reply::Simple("RESET".to_owned()));
        assert_eq!(client.call(&[b"GET", b"none"])?, Reply::Bulk(None));
        let Reply::Failed(text) = client.call(&[b"INCR", b"t"])? else {
            return Err("no error".into());
        };
        assert!(text.contains("not an integer"), "{text}");
        compare_and_set(&mut client)?;
        remove_all(&mut client)?;
        assert_eq!(client.call(&[b"SET", b"e", b"1", b"PX", b"30"])?, Reply::ok());
        std::thread::sleep(Duration::from_millis(40));
        assert_eq!(client.call(&[b"GET", b"e"])?, Reply::Bulk(None));
    }
    Ok(())
}

/// Removes all records: at once within a transaction, and in steps without one.
fn remove_all(client: &mut Client) -> Outcome<()> {
    for is_at_once in [true, false] {
        let mut wire = Vec::new();
        for number in 0..5000_u32 {
            Client::encode(&[b"SET", &number.to_be_bytes(), b"v"], &mut wire);
        }
        client.send_bytes(&wire)?;
        for _ in 0..5000 {
            assert_eq!(client.receive()?, Reply::ok());
        }
        if is_at_once {
            assert_eq!(client.call(&[b"MULTI"])?, Reply::ok());
            assert_eq!(client.call(&[b"FLUSHALL"])?, Reply::Simple("QUEUED".to_owned()));
            client.send(&[b"EXEC"])?;
            assert_eq!(client.line()?, "*1");
            assert_eq!(client.receive()?, Reply::ok());
        } else {
            assert_eq!(client.call(&[b"FLUSHALL"])?, Reply::ok());
        }
        assert_eq!(client.call(&[b"DBSIZE"])?, Reply::Number(0));
    }
    assert_eq!(client.call(&[b"SET", b"k", b"1"])?, Reply::ok());
    assert_eq!(client.call(&[b"SET", b"t", b"x"])?, Reply::ok());
    Ok(())
}

fn compare_and_set(client: &mut Client) -> Outcome<()> {
    assert_eq!(client.call(&[b"SET", b"c", b"old"])?, Reply::ok());
    let new = [&b"SET"[..], b"c", b"new", b"IFEQ"];
    assert_eq!(client.call(&[&new[..], &[b"other"]].concat())?, Reply::Bulk(None));
    assert_eq!(client.call(&[&new[..], &[b"old"]].concat())?, Reply::ok());
    assert_eq!(client.call(&[&new[..], &[b"old"]].concat())?, Reply::Bulk(None));
    assert_eq!(client.call(&[b"GET", b"c"])?, Reply::bulk(*b"new"));
    assert!(matches!(client.call(&[&new[..], &[b"new", b"NX"]].concat())?, Reply::Failed(_)));
    assert!(matches!(client.call(&new)?, Reply::Failed(_)));
    assert_eq!(client.call(&[b"DEL", b"c"])?, Reply::Number(1));
    assert_eq!(client.call(&[&new[..], &[b"new"]].concat())?, Reply::Bulk(None));
    Ok(())
}

/// The value of `k`.
fn number(client: &mut Client) -> Outcome<i64> {
    Ok(number_in(&client.call(&[b"GET", b"k"])?) as i64)
}

#[test]
fn a_server_that_redirects_says_where_the_leader_is() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 3, 3, &["--redirect", "--cluster-tick", "100ms"])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    ask(&ports, &[b"SET", b"foo", b"1"])?;
    let (mut moved, mut served) = (0, 0);
    for port in &ports {
        match connect(*port)?.call(&[b"GET", b"foo"])? {
            Reply::Failed(text) => {
                let to = text.strip_prefix("MOVED 12182 127.0.0.1:").ok_or(text.clone())?;
                assert!(ports.contains(&to.parse()?), "{text}");
                moved += 1;
            }
            reply => {
                assert_eq!(reply, Reply::bulk(*b"1"));
                served += 1;
            }
        }
    }
    assert_eq!((moved, served), (2, 1));
    Ok(())
}

/// A client that closes its sending side still gets its answers; and a bulk load waits for a leader that is slower.
#[test]
fn a_client_that_has_no_more_to_ask_is_answered() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 3, 3, &["--cluster-tick", "100ms"])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    ask(&ports, &[b"SET", b"k", b"v"])?;
    for port in ports {
        let mut client = connect(port)?;
        let mut wire = Vec::new();
        for number in 0..20_000_u32 {
            Client::encode(&[b"SET", b"bulk", number.to_string().as_bytes()], &mut wire);
        }
        Client::encode(&[b"GET", b"bulk"], &mut wire);
        Client::encode(&[b"ECHO", b"end"], &mut wire);
        let stream = client.stream.try_clone()?;
        let sender = std::thread::spawn(move || -> std::io::Result<()> {
            let mut stream = stream;
            std::io::Write::write_all(&mut stream, &wire)?;
            stream.shutdown(std::net::Shutdown::Write)
        });
        for _ in 0..20_000 {
            assert_eq!(client.receive()?, Reply::ok());
        }
        assert_eq!(client.receive()?, Reply::bulk(*b"19999"));
        assert_eq!(client.receive()?, Reply::bulk(*b"end"));
        sender.join().map_err(|_| "the sender")??;
    }
    Ok(())
}

/// The index up to which a node has applied all entries.
fn applied(node: &Node) -> Outcome<u64> {
    let status = expect(0, &["cluster", "status", "--server", &node.address()])?;
    let line = status.lines().find_map(|line| line.strip_prefix("applied:")).ok_or("no status")?;
    Ok(line.parse()?)
}

/// A leader that is told to end transfers the leadership first: no client waits for an election.
#[test]
fn servers_are_restarted_one_after_the_other() -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, &[])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    while_clients_work(&mut nodes, &ports, |nodes| {
        for at in [0, 1, 2, 0] {
            std::thread::sleep(Duration::from_millis(400));
            nodes[at].terminate()?;
            nodes[at].start()?;
            std::thread::sleep(Duration::from_millis(400));
        }
        Ok(())
    })
}
