//! A minimal Redis client: requests are written as bytes, replies are read one by one.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use crate::Outcome;

/// A reply of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// `+…`
    Simple(String),
    /// `:…`
    Integer(i64),
    /// `$…`; none: nil.
    Bulk(Option<Vec<u8>>),
}

/// A connection to the server.
pub(crate) struct Client {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
}

impl Client {
    /// Connects to the server of this machine.
    pub(crate) fn connect() -> Outcome<Self> {
        let writer = TcpStream::connect(crate::server::ADDRESS)?;
        writer.set_nodelay(true)?;
        Ok(Self { reader: BufReader::new(writer.try_clone()?), writer })
    }

    /// Sends requests that are already encoded.
    pub(crate) fn send(&mut self, wire: &[u8]) -> Outcome<()> {
        Ok(self.writer.write_all(wire)?)
    }

    /// Reads one reply; an error reply is an error.
    pub(crate) fn receive(&mut self) -> Outcome<Reply> {
        read_reply(&mut self.reader)
    }
}

fn read_reply(reader: &mut impl BufRead) -> Outcome<Reply> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n") else {
        return Err(format!("the server closed the connection after {line:?}").into());
    };
    let rest = line.get(1..).unwrap_or("");
    match line.as_bytes().first() {
        Some(b'+') => Ok(Reply::Simple(rest.to_owned())),
        Some(b':') => Ok(Reply::Integer(rest.parse()?)),
        Some(b'$') if rest == "-1" => Ok(Reply::Bulk(None)),
        Some(b'$') => {
            let mut body = vec![0; rest.parse::<usize>()? + 2];
            reader.read_exact(&mut body)?;
            body.truncate(body.len() - 2);
            Ok(Reply::Bulk(Some(body)))
        }
        _ => Err(format!("the server answered {line:?}").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut wire: &[u8]) -> Outcome<Reply> {
        read_reply(&mut wire)
    }

    #[test]
    fn replies_are_read() {
        assert_eq!(read(b"+OK\r\n").unwrap(), Reply::Simple("OK".to_owned()));
        assert_eq!(read(b":-3\r\n").unwrap(), Reply::Integer(-3));
        assert_eq!(read(b"$-1\r\n").unwrap(), Reply::Bulk(None));
        assert_eq!(read(b"$4\r\na\r\nb\r\n").unwrap(), Reply::Bulk(Some(b"a\r\nb".to_vec())));
    }

    #[test]
    fn errors_and_broken_replies_are_errors() {
        assert!(read(b"-ERR no\r\n").is_err());
        assert!(read(b"+O").is_err());
        assert!(read(b"$9\r\nshort\r\n").is_err());
        assert!(read(b"").is_err());
    }
}
