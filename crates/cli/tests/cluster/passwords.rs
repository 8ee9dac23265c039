//! A cluster with passwords, one of its nodes and one of its clients: nodes without the first, or with another one,
//! are refused and change nothing.

use crate::PATIENCE;
use crate::nodes::{Node, nodes};
use crate::pool::Place;
use crate::session::{Client, Outcome, Reply, coreplane, expect};
use std::time::{Duration, Instant};

/// The files of the passwords: of the nodes, of the clients, and another one.
struct Passwords {
    nodes: String,
    clients: String,
    other: String,
}

impl Passwords {
    fn new(place: &Place) -> Outcome<Self> {
        let file = |name: &str, text: &str| -> Outcome<String> {
            std::fs::write(place.path(name), text)?;
            place.argument(name)
        };
        Ok(Self {
            nodes: file("nodes.password", "of the nodes\n")?,
            clients: file("clients.password", "of the clients\n")?,
            other: file("other.password", "another one\n")?,
        })
    }

    /// A client that has given the password.
    fn connect(&self, node: &Node) -> Outcome<Client> {
        let mut client = Client::connect(&node.address())?;
        assert_eq!(client.call(&[b"AUTH", b"of the clients"])?, Reply::ok());
        Ok(client)
    }

    /// Runs a command of `coreplane cluster` by way of this node.
    fn run(&self, node: &Node, words: &[&str]) -> Outcome<String> {
        let server = ["--server", &node.address(), "--password-file", &self.clients];
        expect(0, &[&["cluster"], words, &server[..]].concat())
    }

    fn status(&self, node: &Node) -> Outcome<String> {
        self.run(node, &["status"])
    }

    /// Waits until the status of this node has such a line.
    fn wait_for(&self, node: &Node, what: &str) -> Outcome<()> {
        let since = Instant::now();
        loop {
            let status = self.status(node)?;
            if status.lines().any(|line| line.starts_with(what)) {
                return Ok(());
            }
            if since.elapsed() > PATIENCE {
                return Err(format!("no {what:?} in {status}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Writes by way of this node, until there is a leader.
    fn set(&self, node: &Node, key: &[u8], value: &[u8]) -> Outcome<()> {
        let since = Instant::now();
        loop {
            match self.connect(node)?.call(&[b"SET", key, value]) {
                Ok(reply) if reply == Reply::ok() => return Ok(()),
                _ if since.elapsed() > PATIENCE => return Err("no answer".into()),
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// The term and the leader, as a node tells them.
fn standing(status: &str) -> Vec<&str> {
    let lines = status.lines();
    lines.filter(|it| it.starts_with("term:") || it.starts_with("leader:")).collect()
}

#[test]
fn nodes_with_a_password_are_a_cluster() -> Outcome<()> {
    let place = Place::in_memory()?;
    let passwords = Passwords::new(&place)?;
    let more = [
        ["--cluster-password-file", &passwords.nodes],
        ["--requirepass-file", &passwords.clients],
        ["--cluster-tick", "100ms"],
    ];
    let mut nodes = nodes(&place, 3, 4, more.as_flattened())?;
    // Followers pass commands on to a leader that asks for a password.
    for (node, key) in nodes[..3].iter().zip([b"a", b"b", b"c"]) {
        passwords.set(node, key, b"1")?;
    }
    for node in &nodes[..3] {
        let mut client = Client::connect(&node.address())?;
        let refused = client.call(&[b"GET", b"a"])?;
        assert!(
            matches!(&refused, Reply::Failed(text) if text.starts_with("NOAUTH")),
            "{refused:?}"
        );
        for key in [b"a", b"b", b"c"] {
            assert_eq!(passwords.connect(node)?.call(&[b"GET", key])?, Reply::bulk(*b"1"));
        }
    }
    // A node comes back, and one is added.
    nodes[1].kill()?;
    passwords.set(&nodes[0], b"d", b"1")?;
    nodes[1].start()?;
    nodes[3].start()?;
    passwords.run(&nodes[0], &["add", "4"])?;
    passwords.wait_for(&nodes[3], "node:4 voter")?;
    assert_eq!(passwords.connect(&nodes[3])?.call(&[b"DBSIZE"])?, Reply::Number(4));
    let backup = place.argument("backup.jsonl")?;
    passwords.run(&nodes[3], &["backup", &backup])?;
    assert_eq!(passwords.connect(&nodes[1])?.call(&[b"FLUSHALL"])?, Reply::ok());
    assert_eq!(passwords.run(&nodes[1], &["restore", &backup])?, "4 restored\n");
    assert_eq!(passwords.connect(&nodes[2])?.call(&[b"DBSIZE"])?, Reply::Number(4));
    Ok(())
}

/// A process that claims to be node 2, and has these arguments, is refused by the others, and changes nothing.
fn is_refused(
    instead: &[(&str, &str)],
    passwords: &Passwords,
    nodes: &[Node],
    why: &str,
) -> Outcome<()> {
    let place = Place::in_memory()?;
    let before = passwords.status(&nodes[0])?;
    let mut impostor = nodes[1].impostor(&place, instead)?;
    impostor.start()?;
    for node in [&nodes[0], &nodes[2]] {
        passwords.wait_for(node, &format!("refused:2 at 127.0.0.1: {why}"))?;
    }
    // The real node 2 serves as before, and so do the others.
    for (node, key) in nodes.iter().zip([b"x", b"y", b"z"]) {
        assert_eq!(passwords.connect(node)?.call(&[b"SET", key, b"1"])?, Reply::ok());
        assert_eq!(passwords.connect(node)?.call(&[b"GET", b"k"])?, Reply::bulk(*b"1"));
    }
    // It was told nothing: it has the first entry, which each node makes itself.
    let told = passwords.status(&impostor)?;
    assert!(told.contains("\nleader:none\n") && told.contains("\nnewest:1\n"), "{told}");
    let after = passwords.status(&nodes[0])?;
    assert_eq!(standing(&before), standing(&after));
    Ok(())
}

#[test]
fn a_process_that_claims_to_be_a_node_changes_nothing() -> Outcome<()> {
    let place = Place::in_memory()?;
    let passwords = Passwords::new(&place)?;
    let more = [
        ["--cluster-password-file", &passwords.nodes],
        ["--requirepass-file", &passwords.clients],
        ["--cluster-tick", "200ms"],
    ];
    let nodes = nodes(&place, 3, 3, more.as_flattened())?;
    passwords.set(&nodes[0], b"k", b"1")?;
    let option = "--cluster-password-file";
    is_refused(&[(option, "")], &passwords, &nodes, "it has no password")?;
    is_refused(&[(option, &passwords.other)], &passwords, &nodes, "it has another password")?;
    let figures = passwords.connect(&nodes[0])?.call(&[b"INFO", b"cluster"])?;
    let figures = figures.text().ok_or("no figures")?;
    let count = figures.lines().find_map(|line| line.strip_prefix("cluster_peers_refused:"));
    assert!(count.ok_or("no count")?.trim().parse::<u64>()? > 1, "{figures}");
    Ok(())
}

/// The other way round: a node with a password is told of by nodes that have none.
#[test]
fn nodes_without_a_password_refuse_one_that_has_one() -> Outcome<()> {
    let (place, own) = (Place::in_memory()?, Place::in_memory()?);
    let passwords = Passwords::new(&place)?;
    let more = ["--requirepass-file", &passwords.clients, "--cluster-tick", "200ms"];
    let nodes = nodes(&place, 3, 3, &more)?;
    passwords.set(&nodes[0], b"k", b"1")?;
    let instead = [("--cluster-password-file", passwords.nodes.as_str())];
    let mut impostor = nodes[1].impostor(&own, &instead)?;
    impostor.start()?;
    passwords.wait_for(&nodes[0], "refused:2 at 127.0.0.1: it has a password")?;
    passwords.wait_for(&impostor, "refused:1 at 127.0.0.1: it ")?;
    assert_eq!(passwords.connect(&nodes[1])?.call(&[b"GET", b"k"])?, Reply::bulk(*b"1"));
    Ok(())
}

#[test]
fn a_file_without_a_password_is_refused() -> Outcome<()> {
    let place = Place::in_memory()?;
    std::fs::write(place.path("empty"), "\n")?;
    let (pool, empty) = (place.argument("1.pool")?, place.argument("empty")?);
    let absent = place.argument("absent")?;
    for (file, code) in [(&empty, 64), (&absent, 5)] {
        let output = coreplane(
            &[
                "serve",
                "--pool",
                &pool,
                "--cluster-id",
                "1",
                "--cluster-peers",
                "1=127.0.0.1:1",
                "--cluster-password-file",
                file,
            ],
            b"",
        )?;
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(file.as_str()), "{output:?}");
    }
    assert!(!place.path("1.pool").exists());
    Ok(())
}
