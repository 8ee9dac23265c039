//! A store that is served: info, stats, verify, dump and grow report the same about it, and do the same to it, as
//! with a closed store, and no other client waits for them.

use crate::pool::{Place, Pool};
use crate::session::{self, Client, Outcome, Reply, Served, expect, free_port};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

/// Every engine, and a matrix.
const STORES: [&[&str]; 5] = [
    &["--engine", "scmkv"],
    &["--engine", "bptree"],
    &["--engine", "list"],
    &["--engine", "cow-tree"],
    &["--matrix", "2x2"],
];

/// Records of all kinds: text and binary, large, with an expiry.
fn records() -> String {
    let mut lines: String = (0..2000)
        .map(|number| format!("{{\"key\":\"k{number}\",\"value\":\"v{number}\"}}\n"))
        .collect();
    lines += "{\"key_hex\":\"ff00\",\"value_hex\":\"80\",\"expires_at_ms\":9999999999999}\n";
    lines + &format!("{{\"key\":\"large\",\"value\":\"{}\"}}\n", "x".repeat(3 << 20))
}

fn filled(place: &Place, name: &str, store: &[&str]) -> Outcome<Pool> {
    let pool = place.created(name, &[&["--size", "64MiB"], store].concat())?;
    pool.expect_with(0, &["load"], records().as_bytes())?;
    Ok(pool)
}

fn json(text: &str) -> Outcome<Value> {
    Ok(serde_json::from_str(text)?)
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn names(object: &Value) -> Vec<String> {
    object.as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// Sends the command to the server.
fn ask(server: &str, code: i32, command: &[&str]) -> Outcome<String> {
    expect(code, &[command, &["--server", server]].concat())
}

#[test]
fn what_is_told_of_a_served_store_is_what_is_told_of_its_pool() -> Outcome<()> {
    for (number, store) in STORES.iter().enumerate() {
        let place = Place::in_memory()?;
        let pool = filled(&place, "pool", store)?;
        let commands: [&[&str]; 4] =
            [&["info", "--json"], &["stats", "--json"], &["verify", "--json"], &["dump"]];
        let before: Vec<String> =
            commands.iter().map(|command| pool.expect(0, command)).collect::<Outcome<_>>()?;
        // By TCP, and by a Unix socket.
        let socket = place.argument("socket")?;
        let served = pool.serve(&["--unixsocket", &socket])?;
        let server = if number % 2 == 0 { &served.address } else { &socket };
        let told: Vec<String> =
            commands.iter().map(|command| ask(server, 0, command)).collect::<Outcome<_>>()?;
        for name in
            ["pool", "engine", "index", "medium", "records", "pool_bytes", "power_cut_loses"]
        {
            assert_eq!(json(&told[0])?[name], json(&before[0])?[name], "{store:?} {name}");
        }
        assert_eq!(names(&json(&told[0])?), names(&json(&before[0])?), "{store:?}");
        assert_eq!(names(&json(&told[1])?), names(&json(&before[1])?), "{store:?}");
        assert_eq!(json(&told[1])?["records"], 2002, "{store:?}");
        assert_eq!(json(&told[2])?["records"], json(&before[2])?["records"], "{store:?}");
        assert_eq!(json(&told[2])?["sound"], true, "{store:?}");
        assert!(
            sorted(&told[3]) == sorted(&before[3]) && told[3].lines().count() == 2002,
            "{store:?}"
        );
        assert!(ask(server, 0, &["verify"])?.starts_with("sound: 2002 records, "), "{store:?}");
        assert!(
            ask(server, 0, &["info"])?.contains("\nrecords                2002\n"),
            "{store:?}"
        );
        served.terminate()?;
        pool.is_sound()?;
    }
    Ok(())
}

#[test]
fn damage_of_a_served_store_is_told_as_that_of_its_pool() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "64MiB"])?;
    let marker = "a value that is looked for in the file";
    pool.expect(0, &["put", "key", marker])?;
    pool.expect(0, &["put", "other", "sound"])?;
    let mut bytes = pool.bytes()?;
    let found = bytes.windows(marker.len()).position(|bytes| bytes == marker.as_bytes());
    bytes[found.ok_or("the value is not in the file")?] ^= 2;
    pool.put_bytes(&bytes)?;
    let alone = pool.expect(1, &["verify", "--json"])?;
    let served = pool.serve(&[])?;
    assert_eq!(json(&ask(&served.address, 1, &["verify", "--json"])?)?, json(&alone)?);
    let said = ask(&served.address, 1, &["verify"])?;
    assert!(said.contains("DAMAGED") && said.contains("verify --repair"), "{said}");
    // Only a closed pool can be repaired.
    ask(&served.address, 64, &["verify", "--repair"])?;
    // A command that opens the pool nevertheless is refused with a hint.
    pool.says(2, &["`--server`"], &["info"])?;
    served.terminate()
}

/// The number of writes that are answered during a verification, whose progress is reported.
fn written_meanwhile(served: &Served, rounds: usize) -> Outcome<u64> {
    let mut client = served.connect()?;
    let status = |client: &mut Client| -> Outcome<Value> {
        let reply = client.call(&[b"STORE", b"STATUS"])?;
        json(&reply.text().ok_or("no text")?)
    };
    let mut written = 0;
    // A verification may end before any write: then another one is started.
    for number in 1..=rounds {
        if written > 3 {
            break;
        }
        let begun = Reply::bulk(format!("begun {number}"));
        assert_eq!(client.call(&[b"STORE", b"VERIFY"])?, begun);
        loop {
            assert_eq!(client.call(&[b"SET", b"beside", b"value"])?, Reply::ok());
            let work = &status(&mut client)?["work"];
            assert_eq!((&work["work"], &work["number"]), (&"verify".into(), &number.into()));
            if work["going_on"] == false {
                assert_eq!(work["outcome"]["sound"], true, "{work}");
                break;
            }
            // It was still going on when the write was answered.
            written += u64::from(work["done"].as_u64() > Some(0));
        }
    }
    Ok(written)
}

#[test]
fn nobody_waits_for_a_verification() -> Outcome<()> {
    for store in STORES {
        let place = Place::in_memory()?;
        let pool = place.created("pool", &[&["--size", "256MiB"], store].concat())?;
        let bench = ["bench", "--workload", "load", "--records", "200000", "--json"];
        pool.expect(0, &bench)?;
        let served = pool.serve(&[])?;
        let written = written_meanwhile(&served, 50)?;
        assert!(written > 3, "{store:?}: {written} writes while verifications went on");
        served.terminate()?;
        pool.is_sound()?;
    }
    Ok(())
}

/// A server that gives these answers to one client, whatever it is asked; its address.
fn scripted(answers: &[&str]) -> Outcome<(String, JoinHandle<std::io::Result<()>>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let answers: Vec<String> = answers.iter().map(|it| (*it).to_owned()).collect();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        for answer in answers {
            let head = lines.next().transpose()?.unwrap_or_default();
            let words = head.trim_start_matches('*').parse().unwrap_or(0_usize);
            // The length of each word, and the word.
            lines.by_ref().take(2 * words).try_for_each(|line| line.map(drop))?;
            write!(stream, "${}\r\n{answer}\r\n", answer.len())?;
        }
        Ok(())
    });
    Ok((address, thread))
}

/// Between two questions of a client its work may end, and the work of another client begin and end.
#[test]
fn the_work_of_another_client_is_not_told_as_its_own() -> Outcome<()> {
    let state = "{\"engine\":\"scmkv\",\"work\":null}";
    let begun = "begun 7";
    let other = |outcome: &str| {
        format!("{{\"work\":{{\"number\":8,\"going_on\":false,\"outcome\":{outcome}}}}}")
    };
    let grown = other("{\"pool\":\"p\",\"bytes_before\":1,\"pool_bytes\":1}");
    let verified = other("{\"sound\":true,\"records\":3,\"bytes\":4}");
    let scrubbed = other("{\"records\":3,\"lost\":[]}");
    let replace = ["matrix", "replace", "--device", "g0d1"];
    let scripts: [(&[&str], &[&str]); 3] = [
        (&["verify"], &[state, begun, &grown]),
        (&["grow", "--size", "64MiB"], &[begun, &verified]),
        (&replace, &[begun, &scrubbed]),
    ];
    for (command, answers) in scripts {
        let (server, thread) = scripted(answers)?;
        let output = session::coreplane(&[command, &["--server", &server]].concat(), b"")?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(5), "{command:?}: {said}");
        assert!(said.contains("not known") && !said.contains("records"), "{command:?}: {said}");
        thread.join().map_err(|_| "panicked")??;
    }
    let (server, thread) = scripted(&["begun 8", &grown])?;
    assert!(ask(&server, 0, &["grow", "--size", "64MiB"])?.contains("bytes_before"));
    thread.join().map_err(|_| "panicked")??;
    Ok(())
}

/// Nothing is taken for an answer that is only promised, and lists have their depth.
#[test]
fn an_answer_that_cannot_be_is_refused() -> Outcome<()> {
    let deep = "*1\r\n".repeat(100_000);
    let wide = "*1000000000000\r\n".to_owned();
    let long = "*2\r\n$5000000000\r\n".to_owned();
    let line = format!("+{}\r\n", "x".repeat(1 << 20));
    for answer in [deep, wide, long, line] {
        let start = answer[..answer.len().min(20)].to_owned();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = listener.local_addr()?.to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            // The client may leave before the end of it.
            let _taken = stream.write_all(answer.as_bytes()).is_ok();
            std::io::copy(&mut stream, &mut std::io::sink())
        });
        let output = session::coreplane(&["info", "--server", &server], b"")?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{start:?}: {said}");
        assert!(said.contains("another protocol"), "{start:?}: {said}");
        // It may have been reset.
        let _ended = thread.join().map_err(|_| "panicked")?.is_ok();
    }
    Ok(())
}

#[test]
fn a_served_store_grows() -> Outcome<()> {
    for store in STORES {
        let place = Place::in_memory()?;
        let pool = place.created("pool", &[&["--size", "32MiB"], store].concat())?;
        let served = pool.serve(&[])?;
        let before = json(&ask(&served.address, 0, &["info", "--json"])?)?["pool_bytes"].clone();
        let grown = json(&ask(&served.address, 0, &["grow", "--size", "128MiB", "--json"])?)?;
        assert_eq!(grown["bytes_before"], before, "{store:?}");
        let bytes = grown["pool_bytes"].as_u64().ok_or("no bytes")?;
        assert!(bytes >= 4 * before.as_u64().ok_or("no bytes")?, "{store:?}: {grown}");
        // More than the space before.
        let mut client = served.connect()?;
        let value = vec![7; 1 << 20];
        for number in 0..40 {
            let key = format!("key:{number}");
            assert_eq!(client.call(&[b"SET", key.as_bytes(), &value])?, Reply::ok(), "{store:?}");
        }
        let again =
            session::coreplane(&["grow", "--size", "100MiB", "--server", &served.address], b"")?;
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.success() && said.contains("nothing was done"), "{store:?}: {said}");
        // The system has no space for it, or the open pool cannot be extended so far.
        let huge = ["grow", "--size", "2TiB", "--server", &served.address];
        let code = session::coreplane(&huge, b"")?.status.code();
        assert!(matches!(code, Some(3 | 4)), "{store:?}: {code:?}");
        served.terminate()?;
        let after = json(&pool.expect(0, &["info", "--json"])?)?;
        assert_eq!(
            (&after["pool_bytes"], &after["records"]),
            (&bytes.into(), &40.into()),
            "{store:?}"
        );
        pool.is_sound()?;
    }
    Ok(())
}

#[test]
fn a_server_without_a_store_of_its_own_says_so() -> Outcome<()> {
    let place = Place::in_memory()?;
    let pool = place.created("pool", &["--size", "64MiB"])?;
    let served = pool.serve(&[])?;
    let mut client = served.connect()?;
    for wrong in [&[&b"STORE"[..], b"NONSENSE"][..], &[b"STORE", b"GROW", b"much"]] {
        assert!(matches!(client.call(wrong)?, Reply::Failed(_)));
    }
    served.terminate()?;
    // A node of a cluster.
    let (port, peer) = (free_port()?.to_string(), free_port()?);
    let node = place.argument("node")?;
    let peers = format!("1=127.0.0.1:{peer}");
    let serve = ["serve", "--port", &port, "--cluster-id", "1", "--cluster-peers", &peers];
    let served = Served::start_as(
        &serve,
        std::process::Stdio::null(),
        &["--pool", &node, "--size", "64MiB"],
    )?;
    for command in [&["info"][..], &["stats"], &["verify"], &["grow", "--size", "1GiB"]] {
        ask(&served.address, 64, command)?;
    }
    served.terminate()
}
