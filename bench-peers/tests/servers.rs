//! What is said to servers, byte by byte, and what becomes of their answers.

use coreplane_bench::Result;
use coreplane_bench_peers::server;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

/// A server that expects a request and sends an answer in pieces, again and again.
fn scripted(script: Vec<(Vec<u8>, Vec<Vec<u8>>)>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        stream.set_nodelay(true).expect("no delay");
        for (request, pieces) in script {
            let mut heard = vec![0; request.len()];
            stream.read_exact(&mut heard).expect("a request");
            assert_eq!(heard, request, "{}", String::from_utf8_lossy(&heard));
            for piece in pieces {
                stream.write_all(&piece).expect("an answer");
                // So that it arrives by itself.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    (address, server)
}

fn pieces(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    parts.iter().map(|part| part.to_vec()).collect()
}

#[test]
fn the_redis_protocol_is_spoken() -> Result<()> {
    let get = b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n".to_vec();
    let set = b"*3\r\n$3\r\nSET\r\n$3\r\na b\r\n$4\r\n1\r\n2\r\n".to_vec();
    let (address, spoken) = scripted(vec![
        (get.clone(), pieces(&[b"$-1\r\n"])),
        (set.clone(), pieces(&[b"+O", b"K\r", b"\n"])),
        (get.clone(), pieces(&[b"$4", b"\r\n1\r\n", b"2\r", b"\n"])),
        (get, pieces(&[b"-ERR no\r\n"])),
        (set, pieces(&[b"-OOM full\r\n"])),
    ]);
    let store = server("resp", address)?;
    let mut session = store.session()?;
    assert!(!session.get(b"a b", &mut |_| panic!("nothing is there"))?);
    session.put(b"a b", b"1\r\n2")?;
    let mut value = Vec::new();
    assert!(session.get(b"a b", &mut |shown| value = shown.to_vec())?);
    assert_eq!(value, b"1\r\n2");
    let refused = session.get(b"a b", &mut |_| ()).expect_err("an error");
    assert!(refused.to_string().contains("ERR no"), "{refused}");
    let refused = session.put(b"a b", b"1\r\n2").expect_err("an error");
    assert!(refused.to_string().contains("OOM full"), "{refused}");
    spoken.join().expect("all was said");
    assert!(session.put(b"a b", b"").is_err(), "the server is gone");
    Ok(())
}

/// A message of memcached's binary protocol.
fn message(
    magic: u8,
    operation: u8,
    status: u16,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
) -> Vec<u8> {
    let mut bytes = vec![magic, operation];
    bytes.extend((key.len() as u16).to_be_bytes());
    bytes.extend([extras.len() as u8, 0]);
    bytes.extend(status.to_be_bytes());
    bytes.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
    bytes.extend([0; 12]);
    [extras, key, value].iter().for_each(|part| bytes.extend(*part));
    bytes
}

#[test]
fn the_protocol_of_memcached_is_spoken() -> Result<()> {
    let key = b"\0 \r\n";
    let get = message(0x80, 0, 0, b"", key, b"");
    let set = message(0x80, 1, 0, &[0; 8], key, b"value");
    let found = message(0x81, 0, 0, b"mark", b"", b"value");
    let (address, spoken) = scripted(vec![
        (get.clone(), vec![message(0x81, 0, 1, b"", b"", b"Not found")]),
        (set.clone(), vec![message(0x81, 1, 0, b"", b"", b"")]),
        (get.clone(), pieces(&[&found[..5], &found[5..30], &found[30..]])),
        (set, vec![message(0x81, 1, 0x82, b"", b"", b"Out of memory")]),
        (get, vec![b"VALUE of the text protocol\r\nEND\r\n".to_vec()]),
    ]);
    let store = server("memcached", address)?;
    let mut session = store.session()?;
    assert!(!session.get(key, &mut |_| panic!("nothing is there"))?);
    session.put(key, b"value")?;
    let mut value = Vec::new();
    assert!(session.get(key, &mut |shown| value = shown.to_vec())?);
    assert_eq!(value, b"value");
    let refused = session.put(key, b"value").expect_err("an error");
    assert!(refused.to_string().contains("Out of memory"), "{refused}");
    assert!(session.get(key, &mut |_| ()).is_err(), "that is no answer");
    spoken.join().expect("all was said");
    Ok(())
}

#[test]
fn strangers_are_refused() {
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let nobody = nobody.expect("a port that is free again");
    assert!(server("http", nobody).is_err());
    let store = server("resp", nobody).expect("it is asked later");
    assert!(store.session().is_err());
}
