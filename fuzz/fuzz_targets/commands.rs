//! A connection that sends arbitrary bytes: it is answered in the protocol's types, closed if it must be, and other
//! connections are not affected.
#![no_main]

use coreplane_conformance::model::ModelEngine;
use coreplane_server::{Config, Server};
use libfuzzer_sys::fuzz_target;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The socket of this process's server.
fn socket() -> &'static PathBuf {
    static SOCKET: OnceLock<PathBuf> = OnceLock::new();
    SOCKET.get_or_init(|| {
        let place = tempfile::tempdir().expect("a directory").keep();
        let path = place.join("socket");
        let config =
            Config { port: None, unix_socket: Some(path.clone()), threads: 1, ..Config::default() };
        let server = Server::bind(config, Arc::new(ModelEngine::new())).expect("bind");
        std::thread::spawn(move || {
            server.run().expect("no error");
            panic!("the server ended by itself");
        });
        path
    })
}

fn say(bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket()).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(50))).expect("timeout");
    // The server may close before it has read all.
    let _all = stream.write_all(bytes).is_ok() && stream.shutdown(Shutdown::Write).is_ok();
    let mut answers = Vec::new();
    match stream.read_to_end(&mut answers) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer"),
        _ => answers,
    }
}

/// True if a command in the data would be executed and end the server, let it sleep or shut us out.
fn is_obeyed(data: &[u8]) -> bool {
    let text = data.to_ascii_lowercase();
    ["shutdown", "sleep", "requirepass", "maxclients", "timeout", "bind", "reply"]
        .iter()
        .any(|word| text.windows(word.len()).any(|window| window == word.as_bytes()))
}

fuzz_target!(|data: &[u8]| {
    if is_obeyed(data) {
        return;
    }
    let answers = say(data);
    if let Some(first) = answers.first() {
        assert!(b"+-:$*_%=~#,(>".contains(first), "{}", answers.escape_ascii());
        assert!(answers.ends_with(b"\r\n"), "{}", answers.escape_ascii());
    }
    // Leaves nothing behind for the next input.
    let empty = say(b"FLUSHALL\r\nDBSIZE\r\nCONFIG SET proto-max-bulk-len 512mb\r\n");
    assert!(empty.starts_with(b"+OK\r\n:0\r\n"), "{}", empty.escape_ascii());
});
