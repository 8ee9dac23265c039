//! A server on any port, and raw connections to it.
#![allow(dead_code, reason = "each test takes what it needs")]

use coreplane_http::{Options, Server, listen};
use coreplane_tsdb::Store;
use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The maximum number of series of its store.
pub(crate) const SERIES_MAX: u64 = 1_000;

/// A server of a new store.
pub(crate) struct Served {
    server: Server,
    pub(crate) store: Arc<Store>,
    _directory: tempfile::TempDir,
}

impl Served {
    pub(crate) fn start(options: Options) -> Outcome<Self> {
        Self::start_with(options, 1 << 20)
    }

    /// The store seals points from `head_bytes` bytes on.
    pub(crate) fn start_with(options: Options, head_bytes: u64) -> Outcome<Self> {
        let directory = tempfile::tempdir_in("/dev/shm")?;
        let of_store = coreplane_tsdb::Options {
            sets: 2,
            size: 64 << 20,
            series_max: SERIES_MAX,
            head_bytes,
            ..coreplane_tsdb::Options::default()
        };
        let store = Arc::new(Store::open(&directory.path().join("ts"), &of_store)?);
        let listeners = listen(&["127.0.0.1".to_owned()], 0)?;
        let server = Server::start(listeners, Arc::clone(&store), options)?;
        Ok(Self { server, store, _directory: directory })
    }

    pub(crate) fn address(&self) -> Outcome<SocketAddr> {
        Ok(*self.server.addresses().first().ok_or("it listens nowhere")?)
    }

    pub(crate) fn connect(&self) -> Outcome<Client> {
        let stream = TcpStream::connect(self.address()?)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.set_nodelay(true)?;
        Ok(Client { reader: BufReader::new(stream.try_clone()?), stream })
    }

    /// Sends one request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &[u8]) -> Outcome<Answer> {
        self.connect()?.ask(method, path, &[], body)
    }

    pub(crate) fn stop(self) {
        self.server.stop();
    }
}

/// The answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in small letters.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(one, _)| one == name).map_or("", |(_, value)| value)
    }
}

/// A raw connection.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Outcome<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    pub(crate) fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Outcome<Answer> {
        self.send_request(method, path, headers, body)?;
        self.answer(method == "HEAD")
    }

    /// Sends a request, and reads nothing.
    pub(crate) fn send_request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Outcome<()> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        self.send(&[head.as_bytes(), b"\r\n", body].concat())
    }

    /// Reads a line, without its end.
    pub(crate) fn line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err("the connection has ended".into());
        }
        Ok(line.trim_end().to_owned())
    }

    /// Reads an answer.
    pub(crate) fn answer(&mut self, is_head: bool) -> Outcome<Answer> {
        let status = self.line()?.split(' ').nth(1).ok_or("no status")?.parse()?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut answer = Answer { status, headers, body: String::new() };
        let mut body = Vec::new();
        if answer.header("transfer-encoding") == "chunked" {
            loop {
                let len = usize::from_str_radix(&self.line()?, 16)?;
                let mut chunk = vec![0; len + 2];
                self.reader.read_exact(&mut chunk)?;
                body.extend_from_slice(&chunk[..len]);
                if len == 0 {
                    break;
                }
            }
        } else if let (Ok(len), false) = (answer.header("content-length").parse(), is_head) {
            body = vec![0; len];
            self.reader.read_exact(&mut body)?;
        }
        answer.body = String::from_utf8(body)?;
        Ok(answer)
    }

    /// True once the server has ended the connection.
    pub(crate) fn is_ended(&mut self) -> Outcome<bool> {
        let mut rest = Vec::new();
        match self.reader.read_to_end(&mut rest) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}
