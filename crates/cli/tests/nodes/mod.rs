//! Servers that are nodes of a cluster.

use crate::pool::Place;
use crate::session::Outcome;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// Ports that nobody has.
fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    let sockets =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
    Ok(sockets.iter().map(|it| it.local_addr().map(|it| it.port())).collect::<Result<_, _>>()?)
}

/// A node's server, while it runs.
pub(crate) struct Node {
    id: usize,
    pub(crate) port: u16,
    arguments: Vec<String>,
    child: Option<Child>,
}

impl Node {
    pub(crate) fn start(&mut self) -> Outcome<()> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_coreplane"))
            .args(&self.arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        self.child = Some(child);
        assert!(line.contains("ready on"), "node {} says {line:?}", self.id);
        Ok(())
    }

    pub(crate) fn signal(&self, name: &str) -> Outcome<()> {
        let id = self.child.as_ref().map_or(0, Child::id).to_string();
        assert!(Command::new("kill").args([name, &id]).status()?.success());
        Ok(())
    }

    /// SIGTERM, on which it ends in good order.
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
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _gone = self.kill().is_ok();
    }
}

/// So many nodes, the first `formed` of which form a cluster.
pub(crate) fn nodes(place: &Place, formed: usize, all: usize, more: &[&str]) -> Outcome<Vec<Node>> {
    let ports = free_ports(2 * all)?;
    let peer = |id: usize| format!("{id}=127.0.0.1:{}", ports[id - 1]);
    let mut nodes = Vec::new();
    for id in 1..=all {
        let known = if id <= formed { formed } else { all };
        let peers = (1..=known).map(peer).collect::<Vec<_>>().join(",");
        let port = ports[all + id - 1];
        let mut arguments: Vec<String> =
            ["serve", "--size", "32MiB"].into_iter().map(str::to_owned).collect();
        arguments.extend(more.iter().map(|it| (*it).to_owned()));
        for (name, value) in [
            ("--pool", place.argument(&format!("{id}.pool"))?),
            ("--port", port.to_string()),
            ("--cluster-id", id.to_string()),
            ("--cluster-peers", peers),
        ] {
            arguments.extend([name.to_owned(), value]);
        }
        if id > formed {
            arguments.push("--cluster-join".to_owned());
        }
        nodes.push(Node { id, port, arguments, child: None });
    }
    nodes.iter_mut().take(formed).try_for_each(Node::start)?;
    Ok(nodes)
}
