//! A time-series store behind `coreplane ts serve`, and requests to it.
#![allow(dead_code, reason = "each test takes what it needs")]

use crate::pool::Place;
use crate::session::{Outcome, Served, expect};
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A store in a place, existing or not.
pub(crate) struct Series {
    pub(crate) place: Place,
    pub(crate) pool: String,
    pub(crate) media: &'static str,
    /// Bytes of each of its two pools.
    pub(crate) size: &'static str,
}

impl Series {
    pub(crate) fn new(place: Place, media: &'static str) -> Outcome<Self> {
        Ok(Self { pool: place.argument("series")?, place, media, size: "32MiB" })
    }

    /// On memory, and on a file.
    pub(crate) fn both() -> Outcome<[Self; 2]> {
        Ok([Self::new(Place::in_memory()?, "auto")?, Self::new(Place::on_disk()?, "file")?])
    }

    pub(crate) fn serve(&self, arguments: &[&str]) -> Outcome<Served> {
        let complaints =
            File::options().create(true).append(true).open(self.place.path("complaints"))?;
        let pool = ["ts", "serve", "--http-port", "0", "--media", self.media, "--pool", &self.pool];
        let made = ["--size", self.size, "--sets", "2"];
        Served::start_as(&pool, complaints, &[&made[..], arguments].concat())
    }

    pub(crate) fn with<'a>(&'a self, command: &'a str, arguments: &[&'a str]) -> Vec<&'a str> {
        let pool = ["ts", command, "--media", self.media, "--pool", &self.pool];
        [&pool[..], arguments].concat()
    }

    pub(crate) fn expect(&self, code: i32, command: &str, arguments: &[&str]) -> Outcome<String> {
        expect(code, &self.with(command, arguments))
    }

    /// Creates the store, empty.
    pub(crate) fn make(&self) -> Outcome<()> {
        self.serve(&[])?.terminate()
    }

    /// Ends the server in an orderly way; the store must be sound.
    pub(crate) fn finish(&self, served: Served) -> Outcome<()> {
        served.terminate()?;
        let verified = self.expect(0, "verify", &["--json"])?;
        assert!(verified.contains("\"sound\":true"), "{verified}");
        let complaints = std::fs::read_to_string(self.place.path("complaints"))?;
        assert!(!complaints.contains("panicked"), "{complaints}");
        Ok(())
    }
}

/// Sends a request to a server over HTTP; the status, and the body.
pub(crate) fn ask(address: &str, method: &str, path: &str, body: &str) -> Outcome<(u16, String)> {
    ask_with(address, method, path, "", body)
}

/// As [`ask`], with further lines of the head.
pub(crate) fn ask_with(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> Outcome<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let len = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\n{headers}Content-Length: {len}\r\n\r\n{body}");
    stream.write_all(head.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).ok_or("no status")?.parse()?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok((status, body.unwrap_or_default()))
}

/// Sends an InfluxQL query to a server, about OpenTSDB's database if the statement names none.
pub(crate) fn query(address: &str, text: &str) -> Outcome<String> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("db", "opentsdb").append_pair("epoch", "ns").append_pair("q", text);
    let (status, body) = ask(address, "POST", &format!("/query?{}", form.finish()), "")?;
    if status != 200 || body.contains("\"error\"") {
        return Err(format!("{text}: {status}: {body}").into());
    }
    Ok(body)
}
