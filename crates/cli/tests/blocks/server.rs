//! The start and the end of a server of a block device.

use crate::pool::{Place, Pool};
use crate::session::Outcome;
use coreplane_tio::{Disk, Options};
use std::io::{self, BufRead, BufReader, Lines, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A server, its output, and its address.
struct Server {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// Lines that were read and not asked for.
    passed: Vec<String>,
    address: String,
}

impl Server {
    /// Starts a server on any port, after this command of the shell.
    fn start(before: &str, pool: &Pool, arguments: &[&str]) -> Outcome<Self> {
        Self::start_as("nbd serve --port 0", before, pool, arguments)
    }

    /// As [`Server::start`], with this subcommand.
    fn start_as(command: &str, before: &str, pool: &Pool, arguments: &[&str]) -> Outcome<Self> {
        let script = format!("{before}; exec \"$0\" {command} --pool \"$@\" 2>&1");
        let mut child = Command::new("sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_coreplane"), &pool.name])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let lines = BufReader::new(output).lines();
        Ok(Self { child, lines, passed: Vec::new(), address: String::new() })
    }

    /// The first line with this word that was not asked for yet: the two outputs have no order.
    fn line_with(&mut self, word: &str) -> Outcome<String> {
        if let Some(at) = self.passed.iter().position(|line| line.contains(word)) {
            return Ok(self.passed.remove(at));
        }
        for line in &mut self.lines {
            let line = line?;
            if line.contains(word) {
                return Ok(line);
            }
            self.passed.push(line);
        }
        Err(format!("no {word} in {:?}", self.passed).into())
    }

    /// Waits for the line that says it is ready; the line.
    fn wait_until_ready(&mut self) -> Outcome<String> {
        let line = self.line_with("ready on ")?;
        let address = line.split("ready on ").nth(1).ok_or("no address")?;
        self.address = address.trim().to_owned();
        Ok(line)
    }

    /// A client that has chosen the export; none if it is closed at once.
    fn client(&self) -> Outcome<Option<TcpStream>> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut greeting = [0; 18];
        if stream.read_exact(&mut greeting).is_err() {
            return Ok(None);
        }
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0")?;
        let mut answer = [0; (20 + 12) + (20 + 14) + 20];
        stream.read_exact(&mut answer)?;
        assert!(answer.ends_with(&[0, 0, 0, 1, 0, 0, 0, 0]), "{answer:?}");
        Ok(Some(stream))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.child.kill().is_ok() && self.child.wait().is_ok();
    }
}

/// The names of what was written are stored at the end.
#[test]
fn a_disk_that_is_said_to_be_closed_can_be_opened() -> Outcome<()> {
    let place = Place::on_disk()?;
    let pool = place.pool("disk")?;
    let file = ["--size", "256MiB", "--queues", "1", "--media", "file"];
    for _ in 0..3 {
        let mut server = Server::start("true", &pool, &file)?;
        server.wait_until_ready()?;
        let mut client = server.client()?.ok_or("refused")?;
        for number in 0..500_u64 {
            let mut request = b"\x25\x60\x95\x13\0\0\0\x01".to_vec();
            request.extend_from_slice(&number.to_be_bytes());
            request.extend_from_slice(&(number * 8192).to_be_bytes());
            request.extend_from_slice(&4096_u32.to_be_bytes());
            request.extend_from_slice(&[7; 4096]);
            client.write_all(&request)?;
            let mut reply = [0; 16];
            client.read_exact(&mut reply)?;
            assert_eq!(reply[4..8], [0; 4]);
        }
        let id = server.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status()?.success());
        server.line_with("is closed")?;
        drop(Disk::open(&pool.path, &Options { media: "file".parse()?, ..Options::default() })?);
        assert_eq!(server.child.wait()?.code(), Some(0));
    }
    Ok(())
}

#[test]
fn no_more_clients_are_admitted_than_find_descriptors() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.pool("disk")?;
    let few = ["--size", "16MiB", "--maxclients", "100"];
    let mut server = Server::start("ulimit -n 128", &pool, &few)?;
    let line = server.line_with("clients at a time, not 100")?;
    let count = line.split(' ').find_map(|word| word.parse::<usize>().ok()).ok_or("no number")?;
    assert!((1..64).contains(&count), "{line}");
    server.wait_until_ready()?;
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(server.client()?.ok_or("refused")?);
    }
    assert!(server.client()?.is_none());
    Ok(())
}

/// A connection for which there is no descriptor would stay unanswered.
#[test]
fn time_series_leave_descriptors_to_those_who_are_refused_and_to_redis_clients() -> Outcome<()> {
    let place = Place::in_memory()?;
    let idle = |address: &str| {
        (0..200).map(|_| TcpStream::connect(address)).collect::<io::Result<Vec<_>>>()
    };
    let answer = |mut stream: TcpStream, request: &[u8]| -> Outcome<Vec<u8>> {
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(request)?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer[..7])?;
        Ok(answer.to_vec())
    };
    let few = "ulimit -n 128";
    let most = ["--http-connections-max", "1000"];
    let (series, size) = (place.pool("series")?, ["--size", "32MiB", "--sets", "1"]);
    let command = "ts serve --http-port 0";
    let mut server = Server::start_as(command, few, &series, &[&size[..], &most].concat())?;
    server.wait_until_ready()?;
    let mut clients = idle(&server.address)?;
    let last = clients.pop().ok_or("no client")?;
    assert!(answer(last, b"")?.starts_with(b"HTTP/1."));
    drop(server);
    let (pool, size) =
        (place.pool("pool")?, ["--size", "64MiB", "--ts-size", "32MiB", "--ts-sets", "1"]);
    let command = "serve --port 0 --http-port 0";
    let mut server = Server::start_as(command, few, &pool, &[&size[..], &most].concat())?;
    let line = server.wait_until_ready()?;
    let http = line.split("http on ").nth(1).and_then(|rest| rest.split(';').next());
    let _clients = idle(http.ok_or("no address")?)?;
    let redis = TcpStream::connect(&server.address)?;
    assert!(answer(redis, b"PING\r\n")?.starts_with(b"+PONG\r\n"));
    Ok(())
}
