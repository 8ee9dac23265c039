//! A client of a running server, for one command at a time.

use crate::arguments::Behind;
use crate::failure::{Cause, FAILED, Failure, NO_SPACE, REFUSED, UNUSABLE, USAGE};
use coreplane::{Entry, Record, UnixMillis, Value};
use coreplane_engine::Ticket;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A server that neither answers nor reads within this time has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The bytes that an answer may take in memory: it may have several records that are as long as the protocol allows.
const ANSWER_BYTES_MAX: usize = 4 << 30;

/// The longest line of an answer, which is an error, or a length.
const LINE_MAX: u64 = 64 << 10;

/// How deep lists may be within lists.
const DEPTH_MAX: usize = 8;

/// An answer of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Bytes(Vec<u8>),
    Number(i64),
    Nothing,
    List(Vec<Answer>),
}

impl Answer {
    /// Its bytes, if it has any.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A record as a server shows it: the time at which it expires is -1 if it has none.
pub(crate) fn entry<'r>(key: &'r [u8], value: &'r [u8], expires_at: i64) -> Entry<'r> {
    let expires_at = u64::try_from(expires_at).ok().map(UnixMillis);
    let value = Value::Whole(value);
    let record = Record { value, sequence: 0, expires_at, ticket: Ticket::DURABLE };
    Entry { key, record: Some(record), sequence: 0 }
}

/// An error with which a server refuses a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The first word, by which programs distinguish errors.
    pub(crate) code: String,
    /// The rest, for persons.
    pub(crate) text: String,
}

impl Refusal {
    fn of(line: &str) -> Self {
        let (code, text) = line.split_once(' ').unwrap_or((line, ""));
        Self { code: code.to_owned(), text: text.to_owned() }
    }
}

/// A connection to a server.
pub(crate) struct Asked {
    /// The address, as it was given.
    place: String,
    reader: BufReader<Box<dyn Read>>,
    writer: Box<dyn Write>,
}

impl std::fmt::Debug for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asked").field("place", &self.place).finish_non_exhaustive()
    }
}

type Halves = (Box<dyn Read>, Box<dyn Write>);

fn connect(place: &str, patience: Duration) -> io::Result<Halves> {
    if place.contains('/') {
        let stream = UnixStream::connect(place)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        return Ok((Box::new(stream.try_clone()?), Box::new(stream)));
    }
    let stream = TcpStream::connect(place)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    stream.set_nodelay(true)?;
    Ok((Box::new(stream.try_clone()?), Box::new(stream)))
}

impl Asked {
    /// Connects, and sends the password if there is one; none if no server is named.
    pub(crate) fn connect(behind: &Behind) -> Result<Option<Self>, Failure> {
        let Some(place) = &behind.server else { return Ok(None) };
        let failed = |error| Failure::new(FAILED, format!("{place}: {error}"));
        let (reader, writer) = connect(place, PATIENCE).map_err(failed)?;
        let mut asked = Self { place: place.clone(), reader: BufReader::new(reader), writer };
        if let Some(password) = behind.password()? {
            asked.ask(&[b"AUTH", password.as_bytes()])?;
        }
        Ok(Some(asked))
    }

    /// A failure of this connection.
    pub(crate) fn failed(&self, what: &dyn std::fmt::Display) -> Failure {
        Failure::new(FAILED, format!("{}: {what}", self.place))
    }

    /// The answer to a command. An error has the same exit code as without a server.
    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> Result<Answer, Failure> {
        let mut command = Vec::new();
        encode(words.iter().copied(), words.len(), &mut command);
        self.writer.write_all(&command).map_err(|error| self.failed(&error))?;
        self.take_answer()
    }

    /// Sends commands at once, and reads their answers; adds those before the first failure to `answered`.
    pub(crate) fn ask_all(
        &mut self,
        commands: &[Vec<Vec<u8>>],
        answered: &mut u64,
    ) -> Result<(), Failure> {
        let mut wire = Vec::new();
        for words in commands {
            encode(words.iter().map(Vec::as_slice), words.len(), &mut wire);
        }
        self.writer.write_all(&wire).map_err(|error| self.failed(&error))?;
        for _ in commands {
            self.take_answer()?;
            *answered += 1;
        }
        Ok(())
    }

    fn take_answer(&mut self) -> Result<Answer, Failure> {
        match self.receive(DEPTH_MAX, &mut { ANSWER_BYTES_MAX }) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refused)) => {
                let message = format!("{}: {refused}", self.place);
                let refusal = Refusal::of(&refused);
                Err(Failure::new(code_of(&refusal), message).because(Cause::Refused(refusal)))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The answer, or the error that the server answers with; with lists of this depth at most, and of so many bytes.
    fn receive(&mut self, depth: usize, left: &mut usize) -> io::Result<Result<Answer, String>> {
        let strange = || io::Error::other("it speaks another protocol");
        let mut take = |bytes: Option<usize>| {
            *left = bytes.and_then(|bytes| left.checked_sub(bytes)).ok_or_else(strange)?;
            io::Result::Ok(())
        };
        let mut line = String::new();
        (&mut self.reader).take(LINE_MAX).read_line(&mut line)?;
        let line = line.strip_suffix('\n').ok_or_else(strange)?.trim_end();
        let (kind, rest) = line.split_at_checked(1).ok_or_else(strange)?;
        let number = || rest.parse::<i64>().map_err(|_| strange());
        let len = || number().map(usize::try_from);
        Ok(Ok(match kind {
            "+" => {
                take(Some(rest.len()))?;
                Answer::Bytes(rest.as_bytes().to_vec())
            }
            "-" => return Ok(Err(rest.to_owned())),
            ":" => Answer::Number(number()?),
            "$" => match len()? {
                Ok(len) => {
                    take(Some(len))?;
                    let (mut bytes, wanted) = (Vec::new(), len + 2);
                    (&mut self.reader).take(wanted as u64).read_to_end(&mut bytes)?;
                    if bytes.len() < wanted {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    bytes.truncate(len);
                    Answer::Bytes(bytes)
                }
                Err(_) => Answer::Nothing,
            },
            "*" if depth > 0 => match len()? {
                Ok(len) => {
                    take(len.checked_mul(size_of::<Answer>()))?;
                    let mut list = Vec::new();
                    for _ in 0..len {
                        let element = self.receive(depth - 1, left)?;
                        list.push(element.map_err(io::Error::other)?);
                    }
                    Answer::List(list)
                }
                Err(_) => Answer::Nothing,
            },
            _ => return Err(strange()),
        }))
    }

    /// The answer to a command, as text.
    pub(crate) fn text(&mut self, words: &[&str]) -> Result<String, Failure> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let answer = self.ask(&words)?;
        let bytes = answer.bytes().ok_or_else(|| self.failed(&"no text"))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// Appends a command as an array of bulk strings.
fn encode<'w>(words: impl Iterator<Item = &'w [u8]>, count: usize, wire: &mut Vec<u8>) {
    wire.extend_from_slice(format!("*{count}\r\n").as_bytes());
    for word in words {
        wire.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        wire.extend_from_slice(word);
        wire.extend_from_slice(b"\r\n");
    }
}

/// The exit code for an error of a server, by the code that it begins with.
fn code_of(refusal: &Refusal) -> u8 {
    match &*refusal.code {
        "NOMATRIX" | "NOSTORE" => USAGE,
        "UNUSABLE" => UNUSABLE,
        "OOM" => NO_SPACE,
        "MISCONF" => FAILED,
        _ => REFUSED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::sync::mpsc::channel;

    #[test]
    fn a_server_that_does_not_read_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let (_, mut writer) = connect(&place, Duration::from_millis(20)).unwrap();
        let (has_ended, ended) = channel::<()>();
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _waited = ended.recv_timeout(Duration::from_secs(60)).is_err();
            drop(stream);
        });
        let written = writer.write_all(&vec![0; 64 << 20]);
        drop(has_ended);
        server.join().unwrap();
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
    }
}
