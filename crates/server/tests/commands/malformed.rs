//! Bytes that are no requests, and requests that arrive in pieces.

use crate::wire::{self, Running, Wire, command, config};
use coreplane_conformance::model::ModelEngine;
use std::path::Path;
use std::sync::Arc;

fn start() -> Running {
    Running::start(config(), Arc::new(ModelEngine::new()))
}

/// The files of `tests/corpus`, each a stream of bytes that is worth keeping.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .expect("the corpus")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a file");
            (path.display().to_string(), bytes)
        })
        .collect();
    files.sort();
    assert!(files.len() > 20);
    files
}

/// Sends `bytes`, ends the request, and reads all answers of the server.
fn provoke(server: &Running, bytes: &[u8]) -> Vec<u8> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.address).expect("connect");
    // The server may close before it has read all.
    drop(stream.write_all(bytes));
    drop(stream.shutdown(std::net::Shutdown::Write));
    let mut answers = Vec::new();
    drop(stream.read_to_end(&mut answers));
    answers
}

#[test]
fn the_corpus_harms_nobody() {
    let server = start();
    let mut bystander = server.connect();
    for (name, bytes) in corpus() {
        let answers = provoke(&server, &bytes);
        let first = answers.first().copied().unwrap_or(b'+');
        assert!(b"+-:$*_%=".contains(&first), "{name}: {}", wire::shown(&answers));
        assert_eq!(bystander.say("PING"), "+PONG\\r\\n", "{name}");
    }
}

/// Otherwise it would be another password than the one that was given.
#[test]
fn a_parameter_that_is_no_text_is_refused() {
    let server = start();
    let mut wire = server.connect();
    let answer = wire.ask(&[b"CONFIG", b"SET", b"requirepass", b"a\xff"]);
    let complaint = "argument 'requirepass') - argument must be text in UTF-8\\r\\n";
    assert!(wire::shown(&answer).ends_with(complaint), "{}", wire::shown(&answer));
    assert_eq!(server.connect().say("PING"), "+PONG\\r\\n");
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

#[test]
fn mutations_of_the_corpus_harm_nobody() {
    const ROUNDS: usize = 1500;
    let server = start();
    let corpus = corpus();
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    for round in 0..ROUNDS {
        let mut bytes = corpus[numbers.below(corpus.len())].1.clone();
        bytes.truncate(4096);
        for _ in 0..=numbers.below(4) {
            let at = numbers.below(bytes.len() + 1);
            match numbers.below(4) {
                0 => bytes.insert(at, numbers.below(256) as u8),
                1 => bytes.truncate(at),
                2 if at < bytes.len() => bytes[at] = numbers.below(256) as u8,
                _ => {
                    let other = &corpus[numbers.below(corpus.len())].1;
                    let piece = &other[..numbers.below(other.len().min(200) + 1)];
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
        }
        // A command that ends the server or lets it sleep would be executed.
        let text = bytes.to_ascii_lowercase();
        let has = |word: &[u8]| text.windows(word.len()).any(|window| window == word);
        if has(b"shutdown") || has(b"sleep") {
            continue;
        }
        provoke(&server, &bytes);
        if round % 50 == 0 {
            server.connect().say("FLUSHALL");
        }
    }
    assert_eq!(server.connect().say("PING"), "+PONG\\r\\n");
}

/// A conversation with every form of request, and its answers.
fn conversation() -> (Vec<u8>, Vec<u8>) {
    let mut request = Vec::new();
    request.extend(command(&[b"SET", b"k", b"a\r\nb"]));
    request.extend(b"\r\n*0\r\nPING \"hello world\"\r\n");
    request.extend(command(&[b"GET", b"k"]));
    request.extend(command(&[b"MSET", b"a", b"", b"b", b"$3\r\n*1\r\n"]));
    request.extend(b"MGET a b none\n");
    request.extend(command(&[b"NONSENSE", b"x"]));
    request.extend(command(&[b"INCR", b"n"]));
    let answers = b"+OK\r\n$11\r\nhello world\r\n$4\r\na\r\nb\r\n+OK\r\n\
        *3\r\n$0\r\n\r\n$8\r\n$3\r\n*1\r\n\r\n$-1\r\n\
        -ERR unknown command 'NONSENSE', with args beginning with: 'x' \r\n:1\r\n";
    (request, answers.to_vec())
}

/// Sends `pieces` one by one, each after the server has had the chance to see those before.
fn converse(server: &Running, pieces: &[&[u8]]) -> Vec<u8> {
    let mut wire = server.connect();
    for piece in pieces {
        wire.send(piece);
        if pieces.len() > 1 {
            std::thread::sleep(std::time::Duration::from_micros(300));
        }
    }
    wire.send(b"QUIT\r\n");
    let mut answers = wire.rest();
    assert!(answers.ends_with(b"+OK\r\n"));
    answers.truncate(answers.len() - 5);
    answers
}

#[test]
fn a_pipeline_may_be_cut_at_every_byte() {
    let server = start();
    let (request, answers) = conversation();
    for cut in 0..=request.len() {
        server.connect().say("FLUSHALL");
        let (head, tail) = request.split_at(cut);
        let got = converse(&server, &[head, tail]);
        assert_eq!(wire::shown(&got), wire::shown(&answers), "cut at {cut}");
    }
    server.connect().say("FLUSHALL");
    let bytes: Vec<&[u8]> = request.chunks(1).collect();
    assert_eq!(wire::shown(&converse(&server, &bytes)), wire::shown(&answers));
}

#[test]
fn large_values_arrive_in_many_pieces() {
    let server = start();
    let value: Vec<u8> = (0..5_000_000u32).map(|index| (index % 251) as u8).collect();
    let mut wire = server.connect();
    let mut request = command(&[b"SET", b"k", &value]);
    request.extend(command(&[b"GET", b"k"]));
    let mut numbers = Numbers(7);
    let mut rest = &request[..];
    let sender = std::thread::spawn({
        let address = server.address;
        move || Wire::tcp(address).say("PING")
    });
    while !rest.is_empty() {
        let (head, tail) = rest.split_at(numbers.below(200_000).max(1).min(rest.len()));
        wire.send(head);
        rest = tail;
    }
    assert_eq!(sender.join().unwrap(), "+PONG\\r\\n");
    assert_eq!(wire.reply(), b"+OK\r\n");
    let reply = wire.reply();
    assert!(reply.ends_with(b"\r\n") && reply[10..reply.len() - 2] == value[..]);
}

#[test]
fn a_long_pipeline_is_answered_in_order() {
    const COUNT: usize = 50_000;
    let server = start();
    let mut wire = server.connect();
    let request: Vec<u8> =
        (0..COUNT).flat_map(|index| command(&[b"ECHO", index.to_string().as_bytes()])).collect();
    let sent = std::thread::spawn({
        let mut writer = server.connect();
        move || {
            writer.send(&request);
            writer
        }
    });
    let mut reader = sent.join().unwrap();
    for index in 0..COUNT {
        let text = index.to_string();
        assert_eq!(reader.reply(), format!("${}\r\n{text}\r\n", text.len()).into_bytes());
    }
    assert_eq!(wire.say("PING"), "+PONG\\r\\n");
}
