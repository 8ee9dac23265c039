//! The `coreplane` command inside the machine: its one-shot commands and its server.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;

use crate::Outcome;
use crate::client::Client;

/// The pool on the DAX file system.
pub(crate) const POOL: &str = "/mnt/pool";
/// The address on which the server listens.
pub(crate) const ADDRESS: &str = "127.0.0.1:6379";

/// Runs `coreplane ARGUMENTS`, whose lines go to the host.
pub(crate) fn coreplane(arguments: &[&str]) -> Outcome<()> {
    let output = Command::new("/bin/coreplane").args(arguments).output()?;
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        println!("@@ {} {line}", arguments[0]);
    }
    if output.status.success() {
        return Ok(());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(format!("coreplane {arguments:?}: {}: {complaint}", output.status).into())
}

/// A running server.
pub(crate) struct Server {
    child: Child,
}

/// Starts `coreplane serve` and returns when it reports that it is ready.
pub(crate) fn start() -> Outcome<Server> {
    let mut child = Command::new("/bin/coreplane")
        .args(["serve", "--pool", POOL, "--bind", "127.0.0.1"])
        .args(["--port", "6379", "--durability", "strict"])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().ok_or("the server has no output")?;
    let mut lines = BufReader::new(output).lines();
    for line in lines.by_ref() {
        let line = line?;
        println!("@@ serve {line}");
        if line.contains("ready") {
            thread::spawn(move || lines.for_each(drop));
            return Ok(Server { child });
        }
    }
    Err(format!("the server ended before it was ready: {}", child.wait()?).into())
}

impl Server {
    /// Asks the server to end and waits until it has ended.
    pub(crate) fn shut_down(&mut self) -> Outcome<()> {
        let mut client = Client::connect()?;
        client.send(b"*1\r\n$8\r\nSHUTDOWN\r\n")?;
        // A server that shuts down closes the connection without a reply.
        if let Ok(reply) = client.receive() {
            return Err(format!("SHUTDOWN was answered with {reply:?}").into());
        }
        let status = self.child.wait()?;
        if !status.success() {
            return Err(format!("the server ended with {status}").into());
        }
        Ok(())
    }
}
