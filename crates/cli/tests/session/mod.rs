//! The command as a user runs it: processes, their output, their exit codes, and raw sockets.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const BINARY: &str = env!("CARGO_BIN_EXE_coreplane");

/// Every subcommand that opens a pool, the server among them.
pub(crate) const NEED_A_POOL: [&[&str]; 11] = [
    &["serve", "--port", "0"],
    &["verify"],
    &["info"],
    &["stats"],
    &["dump"],
    &["scan"],
    &["get", "key:0"],
    &["put", "new", "value"],
    &["del", "key:0"],
    &["load"],
    &["grow", "--size", "1GiB"],
];

/// A free port for a server that is started later: below the range of `ip_local_port_range`, so that no connection
/// takes it meanwhile, and given once by this process.
pub(crate) fn free_port() -> Outcome<u16> {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + (std::process::id() % 10_000) as u16;
    let ports = std::iter::repeat_with(|| first + TAKEN.fetch_add(1, Ordering::Relaxed));
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    ports.take(2000).find(is_free).ok_or_else(|| "no port is free".into())
}

/// Runs the command with this input.
pub(crate) fn coreplane(arguments: &[&str], input: &[u8]) -> Outcome<Output> {
    let mut child = Command::new(BINARY)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // A command that does not read its input may have ended already.
    let _read = child.stdin.take().map(|mut stdin| stdin.write_all(input).is_ok());
    Ok(child.wait_with_output()?)
}

/// Runs the command and expects this exit code; its output.
pub(crate) fn expect(code: i32, arguments: &[&str]) -> Outcome<String> {
    expect_with(code, arguments, b"")
}

/// As [`expect`], with input.
pub(crate) fn expect_with(code: i32, arguments: &[&str], input: &[u8]) -> Outcome<String> {
    let output = coreplane(arguments, input)?;
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {complaint}");
    assert!(!complaint.contains("panicked"), "{arguments:?}: {complaint}");
    // Every failure reports its reason.
    assert!(code == 0 || !complaint.is_empty() || !output.stdout.is_empty(), "{arguments:?}");
    Ok(String::from_utf8(output.stdout)?)
}

/// The path as an argument.
pub(crate) fn text(path: &Path) -> Outcome<&str> {
    path.to_str().ok_or_else(|| "a path that is no text".into())
}

/// A server, ended when it is dropped.
pub(crate) struct Served {
    child: Child,
    pub(crate) line: String,
    pub(crate) address: String,
}

impl Served {
    /// Starts `coreplane serve` on any port and waits until it reports that it is ready.
    pub(crate) fn start(arguments: &[&str]) -> Outcome<Self> {
        Self::start_complaining_to(Stdio::null(), arguments)
    }

    /// As [`Served::start`], with this standard error.
    pub(crate) fn start_complaining_to(
        complaints: impl Into<Stdio>,
        arguments: &[&str],
    ) -> Outcome<Self> {
        Self::start_as(&["serve", "--port", "0"], complaints, arguments)
    }

    /// As [`Served::start_complaining_to`], with this subcommand.
    pub(crate) fn start_as(
        subcommand: &[&str],
        complaints: impl Into<Stdio>,
        arguments: &[&str],
    ) -> Outcome<Self> {
        let mut child = Command::new(BINARY)
            .args(subcommand)
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(complaints)
            .spawn()?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let address = line.split("ready on ").nth(1).and_then(|rest| rest.split(' ').next());
        let address = address.map(|address| address.trim().to_owned());
        let mut served = Self { child, line, address: String::new() };
        served.address = address.ok_or_else(|| format!("not ready: {}", served.line))?;
        Ok(served)
    }

    pub(crate) fn connect(&self) -> Outcome<Client> {
        Client::connect(&self.address)
    }

    /// Sends SIGTERM, after which the server must end in an orderly way.
    pub(crate) fn terminate(self) -> Outcome<()> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status()?.success());
        assert_eq!(self.ended()?, Some(0));
        Ok(())
    }

    /// Waits until it has ended by itself; the exit code.
    pub(crate) fn ended(mut self) -> Outcome<Option<i32>> {
        Ok(self.child.wait()?.code())
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.child.kill().is_ok() && self.child.wait().is_ok();
    }
}

/// An answer of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(String),
    Failed(String),
    Number(i64),
    Bulk(Option<Vec<u8>>),
}

impl Reply {
    /// `+OK`.
    pub(crate) fn ok() -> Self {
        Self::Simple("OK".to_owned())
    }

    /// Its text, if it has any.
    pub(crate) fn text(&self) -> Option<String> {
        match self {
            Self::Simple(text) | Self::Failed(text) => Some(text.clone()),
            Self::Bulk(Some(bytes)) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        }
    }

    /// A bulk string of these bytes.
    pub(crate) fn bulk(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bulk(Some(bytes.into()))
    }
}

/// A raw connection.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    pub(crate) stream: TcpStream,
}

impl Client {
    /// A connection to a server at this address.
    pub(crate) fn connect(address: &str) -> Outcome<Self> {
        Self::of(TcpStream::connect(address)?, Duration::from_secs(60))
    }

    /// A client on this connection, with a time limit for answers.
    pub(crate) fn of(stream: TcpStream, answer_max: Duration) -> Outcome<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(answer_max))?;
        Ok(Self { reader: BufReader::new(stream.try_clone()?), stream })
    }

    /// Appends a command as an array of bulk strings.
    pub(crate) fn encode(words: &[&[u8]], wire: &mut Vec<u8>) {
        wire.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            wire.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            wire.extend_from_slice(word);
            wire.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn call(&mut self, words: &[&[u8]]) -> Outcome<Reply> {
        self.send(words)?;
        self.receive()
    }

    pub(crate) fn send(&mut self, words: &[&[u8]]) -> Outcome<()> {
        let mut wire = Vec::new();
        Self::encode(words, &mut wire);
        self.send_bytes(&wire)
    }

    pub(crate) fn send_bytes(&mut self, wire: &[u8]) -> Outcome<()> {
        Ok(self.stream.write_all(wire)?)
    }

    /// A line of a reply, unparsed.
    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    pub(crate) fn receive(&mut self) -> Outcome<Reply> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err("the server has closed the connection".into());
        }
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or("an empty reply")?;
        Ok(match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Failed(rest.to_owned()),
            ":" => Reply::Number(rest.parse()?),
            "$" if rest == "-1" => Reply::Bulk(None),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.reader.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(Some(bytes))
            }
            _ => return Err(format!("no reply that is expected here: {line:?}").into()),
        })
    }
}
