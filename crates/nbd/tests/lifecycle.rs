//! The life of a server and its connections, from start to end.

mod memory;
mod wire;

use coreplane_nbd::{Config, Conversation, Error, Server, Source};
use memory::Memory;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Client, FLUSH, NAME, READ, Running, head, write};

fn start(config: Config) -> (Arc<Memory>, Running) {
    let disk = Arc::new(Memory::new(64));
    (disk.clone(), Running::start(config, disk))
}

/// Waits until the condition holds.
fn until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < Duration::from_secs(30), "it never happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn chosen(server: &Running) -> Client<TcpStream> {
    let mut client = server.connect();
    client.choose(NAME);
    client
}

#[test]
fn a_unix_socket_is_there_for_one_server() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("nbd");
    // A socket that a dead server left behind is replaced.
    drop(UnixListener::bind(&path).unwrap());
    let (port, unix_socket, unix_socket_mode) = (None, Some(path.clone()), Some(0o600));
    let config = Config { port, unix_socket, unix_socket_mode, ..Config::new(NAME) };
    let (_disk, server) = start(config.clone());
    assert_eq!(server.address, None);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = Client { stream: UnixStream::connect(&path).unwrap() };
    client.choose("");
    client.ask(&write(0, 1, 4000, b"over the end of a sector, and no more than that; rather more"));
    assert_eq!(client.read(4000, 8), b"over the");
    // A live one is not.
    let second = Server::bind(config, Arc::new(Memory::new(1)));
    assert!(matches!(second, Err(Error::Listen { .. })));
    assert_eq!(client.read(4000, 4), b"over");
    drop(server);
    assert!(!path.exists() && client.is_closed());
}

/// A connection to it fails, but not because nobody listens.
#[test]
fn a_socket_that_somebody_else_uses_is_not_removed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    let other = UnixDatagram::bind(&path).unwrap();
    let config = Config { unix_socket: Some(path.clone()), ..Config::new(NAME) };
    let refused = Server::bind(config, Arc::new(Memory::new(1)));
    assert!(matches!(refused, Err(Error::Listen { .. })));
    UnixDatagram::unbound().unwrap().send_to(b"mail", path).unwrap();
    assert_eq!(other.recv(&mut [0; 8]).unwrap(), 4);
}

#[test]
fn what_cannot_be_served_is_refused() {
    let disk = || Arc::new(Memory::new(1));
    let nowhere = Server::bind(Config { port: None, ..Config::new(NAME) }, disk());
    assert!(matches!(nowhere, Err(Error::NowhereToListen)));
    for name in ["", "a@b", &"x".repeat(2049)] {
        assert!(matches!(Server::bind(Config::new(name), disk()), Err(Error::Name(_))));
    }
    let odd = disk();
    odd.with(|state| state.bytes.push(0));
    assert!(matches!(Server::bind(Config::new(NAME), odd), Err(Error::Length(4097))));
}

#[test]
fn the_name_says_where_requests_come_from() {
    let (disk, server) = start(Config::new(NAME));
    let sources = [
        ("disk@device=7,interval=10ms", Some(7), Some(Duration::from_millis(10))),
        ("disk", None, None),
    ];
    for (name, device, interval) in sources {
        let mut client = server.connect();
        client.choose(name);
        client.read(0, 512);
        drop(client);
        until(|| disk.with(|state| state.left.len() == state.sources.len()));
        let last = disk.with(|state| *state.left.last().unwrap());
        let connection = last.connection;
        assert_eq!(last, Source { connection, device, interval });
        assert!(disk.with(|state| state.sources.contains(&last)));
    }
    let [first, second] = disk.with(|state| [state.left[0], state.left[1]]);
    assert_ne!(first.connection, second.connection);
    let mut other = server.connect();
    other.send(&wire::handshake("disk@speed=1", false));
    let refused = other.bytes(18 + 20);
    assert_eq!(refused[18 + 12..18 + 16], [0x80, 0, 0, 6]);
}

#[test]
fn what_has_come_together_is_run_together() {
    let disk = Arc::new(Memory::new(1024));
    let export = Config::new(NAME).export;
    let mut conversation = Conversation::new(export, disk.clone(), 1);
    let hello = wire::handshake("", false);
    wire::converse(&mut conversation, &hello, &[hello.len()]);
    let run = |conversation: &mut Conversation, input: Vec<u8>| {
        wire::converse(conversation, &input, &[input.len()]);
        disk.with(|state| std::mem::take(&mut state.batches))
    };
    let many: Vec<u8> = (0..150).flat_map(|n| write(0, n, n * 4096, &[1; 4096])).collect();
    assert_eq!(run(&mut conversation, many), [64, 64, 22]);
    // A batch has up to 4 MiB; a longer request is a batch of its own.
    let mut large = write(0, 1, 0, &[2; 3 << 20]);
    large.extend(write(0, 2, 0, &[3; 1 << 20]));
    large.extend(head(READ, 0, 3, 0, 4 << 20));
    large.extend(head(READ, 0, 4, 0, 512));
    assert_eq!(run(&mut conversation, large), [2, 1, 1]);
    let kept = conversation.memory();
    assert!(kept <= 16 << 20, "{kept}");
    // In steady state nothing grows.
    for round in 0..20 {
        let some: Vec<u8> = (0..64).flat_map(|n| write(0, n, n * 4096, &[round; 4096])).collect();
        run(&mut conversation, some);
        assert!(conversation.memory() <= kept + (64 * 4096));
    }
}

#[test]
fn a_flush_stops_nobody() {
    let (disk, server) = start(Config::new(NAME));
    disk.with(|state| state.holds = true);
    let (mut client, mut other) = (chosen(&server), chosen(&server));
    client.send(&[write(0, 1, 0, b"here"), head(FLUSH, 0, 2, 0, 0)].concat());
    assert_eq!(client.reply(), (1, 0));
    until(|| disk.with(|state| state.held.len() == 1));
    assert_eq!(client.read(0, 4), b"here");
    assert_eq!(other.read(0, 4), b"here");
    let done = disk.with(|state| state.held.pop()).unwrap();
    done(Ok(()));
    assert_eq!(client.reply(), (2, 0));
    // A flush that fails, and one that is dropped without an outcome.
    for (cookie, error) in [(3, 28), (4, 5)] {
        client.send(&head(FLUSH, 0, cookie, 0, 0));
        until(|| disk.with(|state| state.held.len() == 1));
        let done = disk.with(|state| state.held.pop()).unwrap();
        match error {
            28 => done(Err(coreplane_nbd::Errno::NoSpace)),
            _ => drop(done),
        }
        assert_eq!(client.reply(), (cookie, error));
    }
}

#[test]
fn a_client_that_goes_is_answered_first() {
    let (disk, server) = start(Config::new(NAME));
    disk.with(|state| state.holds = true);
    let mut client = chosen(&server);
    client.send(&[write(0, 1, 0, b"x"), head(FLUSH, 0, 2, 0, 0)].concat());
    assert_eq!(client.reply(), (1, 0));
    client.stream.shutdown(Shutdown::Write).unwrap();
    until(|| disk.with(|state| state.held.len() == 1));
    std::thread::sleep(Duration::from_millis(20));
    assert!(disk.with(|state| state.left.is_empty()), "its flush is under way");
    disk.with(|state| state.held.pop()).unwrap()(Ok(()));
    assert_eq!(client.reply(), (2, 0));
    assert!(client.is_closed());
    until(|| disk.with(|state| state.left.len() == 1));
}

#[test]
fn flushes_under_way_are_bounded() {
    const COUNT: usize = 5000;
    let (disk, server) = start(Config::new(NAME));
    disk.with(|state| state.holds = true);
    let mut client = chosen(&server);
    let mut flushes: Vec<u8> =
        (0..COUNT as u64).flat_map(|cookie| head(FLUSH, 0, cookie, 0, 0)).collect();
    flushes.extend(head(READ, 0, 9999, 0, 1));
    client.send(&flushes);
    until(|| disk.with(|state| !state.held.is_empty()));
    // The server does not read up to the last request, which it would answer.
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(client.stream.read(&mut [0; 1]).is_err());
    client.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    disk.with(|state| {
        state.holds = false;
        std::mem::take(&mut state.held)
    })
    .into_iter()
    .for_each(|done| done(Ok(())));
    let mut seen = vec![false; COUNT];
    for _ in 0..=COUNT {
        match client.reply() {
            (9999, 0) => assert_eq!(client.bytes(1), [0]),
            (cookie, 0) => assert!(!std::mem::replace(&mut seen[cookie as usize], true)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn connections_are_bounded() {
    let (_disk, server) = start(Config { connections_max: 2, ..Config::new(NAME) });
    let (first, mut second) = (chosen(&server), chosen(&server));
    assert!(server.connect().is_closed());
    assert_eq!(second.read(0, 1), [0]);
    drop(first);
    until(|| server.handle.connections() == 1);
    assert_eq!(chosen(&server).read(0, 1), [0]);
}

#[test]
fn a_handshake_has_its_time() {
    let handshake_timeout = Duration::from_secs(2);
    let (_disk, server) = start(Config { handshake_timeout, ..Config::new(NAME) });
    let mut silent = server.connect();
    let mut slow = server.connect();
    let mut quick = chosen(&server);
    // A byte now and then does not extend the time.
    slow.bytes(18);
    let hello = wire::handshake(NAME, false);
    let refused = hello.iter().any(|byte| {
        std::thread::sleep(handshake_timeout / 8);
        slow.stream.write_all(&[*byte]).is_err()
    });
    assert!(refused && slow.is_closed());
    silent.bytes(18);
    assert!(silent.is_closed());
    // After the handshake there is no time limit.
    assert_eq!(quick.read(0, 1), [0]);
}

#[test]
fn nonsense_harms_nobody_else() {
    let (disk, server) = start(Config::new(NAME));
    let mut bystander = chosen(&server);
    let mut hostile = chosen(&server);
    hostile.send(&[write(0, 1, 0, b"done"), vec![0xff; 1000]].concat());
    assert_eq!(hostile.reply(), (1, 0));
    assert!(hostile.is_closed());
    let mut stranger = server.connect();
    stranger.send(b"GET / HTTP/1.1\r\n\r\n");
    stranger.bytes(18);
    assert!(stranger.is_closed());
    assert_eq!(bystander.read(0, 4), b"done");
    disk.with(|state| state.panics = true);
    let mut unlucky = chosen(&server);
    unlucky.send(&head(READ, 0, 1, 0, 1));
    assert!(unlucky.is_closed());
    assert_eq!(bystander.read(0, 4), b"done");
    until(|| server.handle.connections() == 1);
    assert_eq!(disk.with(|state| state.left.len()), 2);
}

#[test]
fn the_end_waits_for_no_reader() {
    let shutdown_timeout = Duration::from_millis(50);
    let disk = Arc::new(Memory::new(8192));
    let config = Config { shutdown_timeout, ..Config::new(NAME) };
    let server = Running::start(config, disk.clone());
    let mut deaf = chosen(&server);
    // More bytes than fit in the buffers between client and server.
    deaf.send(&head(READ, 0, 1, 0, 32 << 20));
    until(|| disk.with(|state| state.batches.len() == 1));
    drop(server);
    assert_eq!(disk.with(|state| state.left.len()), 1);
    let mut rest = Vec::new();
    drop(deaf.stream.read_to_end(&mut rest));
    assert!(rest.len() < 32 << 20);
}

/// So that its owner can close it.
#[test]
fn a_server_that_has_ended_has_no_disk() {
    for _ in 0..50 {
        let (disk, server) = start(Config::new(NAME));
        let handle = server.handle.clone();
        let clients = [(); 4].map(|()| chosen(&server));
        drop(server);
        assert_eq!(Arc::strong_count(&disk), 1);
        drop((clients, handle));
    }
}

#[test]
fn the_end_waits_for_no_request() {
    let shutdown_timeout = Duration::from_secs(3600);
    let (disk, server) = start(Config { shutdown_timeout, ..Config::new(NAME) });
    let idle = chosen(&server);
    let mut busy = chosen(&server);
    let mut replies = busy.stream.try_clone().unwrap();
    let requests = head(READ, 0, 1, 0, 1).repeat(10_000);
    // A client that never stops sending requests.
    let asking = std::thread::spawn(move || while busy.stream.write_all(&requests).is_ok() {});
    let reading = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while replies.read(&mut buffer).is_ok_and(|len| len > 0) {}
    });
    until(|| disk.with(|state| state.batches.len() > 10));
    drop(server);
    // The idle one has never joined.
    assert_eq!(disk.with(|state| state.left.len()), 1);
    asking.join().unwrap();
    reading.join().unwrap();
    drop(idle);
}
