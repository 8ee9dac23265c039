//! Servers that are nodes of a cluster.
#![allow(dead_code, reason = "each test takes what it needs")]

use crate::pool::Place;
use crate::session::{Outcome, free_port};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// The place of a node.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    pub(crate) host: String,
    /// The program that starts its server, with its arguments; none: the server itself.
    pub(crate) within: Vec<String>,
    pub(crate) port: u16,
    pub(crate) peer_port: u16,
}

/// A node's server, while it runs.
#[derive(Debug)]
pub(crate) struct Node {
    id: usize,
    site: Site,
    pub(crate) port: u16,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Node {
    pub(crate) fn start(&mut self) -> Outcome<()> {
        let binary = env!("CARGO_BIN_EXE_coreplane");
        let mut command = match self.site.within.split_first() {
            None => Command::new(binary),
            Some((program, before)) => {
                let mut command = Command::new(program);
                command.args(before).arg(binary);
                command
            }
        };
        let mut child =
            command.args(&self.arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        self.child = Some(child);
        assert!(line.contains("ready on"), "node {} says {line:?}", self.id);
        Ok(())
    }

    /// Another server, on ports and a pool of its own, that is started with the number and the peers of this one.
    /// `instead` are arguments with other values, which are left out if they are empty.
    pub(crate) fn impostor(&self, place: &Place, instead: &[(&str, &str)]) -> Outcome<Self> {
        let (port, peer_port) = (free_port()?, free_port()?);
        let own = |port: u16| format!("{}={}:{port}", self.id, self.site.host);
        let mut arguments = self.arguments.clone();
        let mut put = |name: &str, value: Option<String>| {
            if let Some(at) = arguments.iter().position(|it| it == name) {
                arguments.drain(at..at + 2);
            }
            if let Some(value) = value {
                arguments.extend([name.to_owned(), value]);
            }
        };
        put("--pool", Some(place.argument("impostor.pool")?));
        put("--port", Some(port.to_string()));
        for (name, value) in instead {
            put(name, Some((*value).to_owned()).filter(|value| !value.is_empty()));
        }
        let of_itself = own(self.site.peer_port);
        arguments.iter_mut().for_each(|it| *it = it.replace(&of_itself, &own(peer_port)));
        let site = Site { port, peer_port, ..self.site.clone() };
        Ok(Self { id: self.id, site, port, arguments, child: None })
    }

    pub(crate) fn signal(&self, name: &str) -> Outcome<()> {
        let id = self.child.as_ref().map_or(0, Child::id).to_string();
        assert!(Command::new("kill").args([name, &id]).status()?.success());
        Ok(())
    }

    /// Sends SIGTERM, after which the node ends in an orderly way.
    pub(crate) fn terminate(&mut self) -> Outcome<()> {
        self.signal("-TERM")?;
        let ended = self.child.take().map(|mut child| child.wait()).transpose()?;
        assert_eq!(ended.and_then(|status| status.code()), Some(0));
        Ok(())
    }

    pub(crate) fn kill(&mut self) -> Outcome<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    pub(crate) fn runs(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.site.host, self.port)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _gone = self.kill().is_ok();
    }
}

/// So many nodes, the first `formed` of which form a cluster.
pub(crate) fn nodes(place: &Place, formed: usize, all: usize, more: &[&str]) -> Outcome<Vec<Node>> {
    let ports = (0..2 * all).map(|_| free_port()).collect::<Outcome<Vec<_>>>()?;
    let sites = ports.chunks(2).map(|ports| Site {
        host: "127.0.0.1".to_owned(),
        within: Vec::new(),
        port: ports[0],
        peer_port: ports[1],
    });
    nodes_at(place, &sites.collect::<Vec<_>>(), formed, more)
}

/// Nodes at these places, the first `formed` of which form a cluster.
pub(crate) fn nodes_at(
    place: &Place,
    sites: &[Site],
    formed: usize,
    more: &[&str],
) -> Outcome<Vec<Node>> {
    let mut nodes = Vec::new();
    for (id, site) in (1..).zip(sites) {
        let known = if id <= formed { formed } else { sites.len() };
        let peers = (1..).zip(&sites[..known]);
        let peers = peers.map(|(id, it)| format!("{id}={}:{}", it.host, it.peer_port));
        let peers = peers.collect::<Vec<_>>().join(",");
        let size: &[&str] = if more.contains(&"--size") { &[] } else { &["--size", "32MiB"] };
        let mut arguments: Vec<String> =
            ["serve"].iter().chain(size).map(|it| (*it).to_owned()).collect();
        arguments.extend(more.iter().map(|it| (*it).to_owned()));
        for (name, value) in [
            ("--pool", place.argument(&format!("{id}.pool"))?),
            ("--bind", site.host.clone()),
            ("--port", site.port.to_string()),
            ("--cluster-id", id.to_string()),
            ("--cluster-peers", peers),
        ] {
            arguments.extend([name.to_owned(), value]);
        }
        if id > formed {
            arguments.push("--cluster-join".to_owned());
        }
        nodes.push(Node { id, site: site.clone(), port: site.port, arguments, child: None });
    }
    nodes.iter_mut().take(formed).try_for_each(Node::start)?;
    Ok(nodes)
}
