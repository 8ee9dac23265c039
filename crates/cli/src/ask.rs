//! Asking a server that runs, one command at a time.

use crate::failure::{FAILED, Failure, REFUSED};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A server that does not answer for so long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest answer that is believed.
const ANSWER_LEN_MAX: u64 = 1 << 24;

/// What the server at `address` answers to a command, in a text.
pub(crate) fn server(address: &str, words: &[&str]) -> Result<String, Failure> {
    let failed = |what: &dyn std::fmt::Display| Failure::new(FAILED, format!("{address}: {what}"));
    let mut stream = TcpStream::connect(address).map_err(|error| failed(&error))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| failed(&error))?;
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(command.as_bytes()).map_err(|error| failed(&error))?;
    let mut answer = BufReader::new(stream).take(ANSWER_LEN_MAX);
    let mut line = String::new();
    answer.read_line(&mut line).map_err(|error| failed(&error))?;
    let line = line.trim_end();
    match line.split_at_checked(1) {
        Some(("$", len)) => {
            let len: usize = len.parse().map_err(|_| failed(&"it speaks another protocol"))?;
            let mut text = vec![0; len.min(ANSWER_LEN_MAX as usize)];
            answer.read_exact(&mut text).map_err(|error| failed(&error))?;
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
        Some(("+", text)) => Ok(text.to_owned()),
        Some(("-", error)) => Err(Failure::new(REFUSED, format!("{address}: {error}"))),
        _ => Err(failed(&"it speaks another protocol")),
    }
}
