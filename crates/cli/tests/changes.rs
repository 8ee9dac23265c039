//! Changes that clients watch: every acknowledged write is pushed, once and in order, by any node, also when the
//! watched node is killed.

mod nodes;
mod pool;
mod session;

use nodes::{Node, nodes};
use pool::Place;
use session::{Client, Outcome, Reply};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longer than any step of the test takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A time without a message that is taken for silence.
const SILENCE: Duration = Duration::from_millis(1500);

/// A message of a server in RESP3.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Text(Vec<u8>),
    Number(u64),
    Nothing,
    Refusal(String),
    Parts(Vec<Said>),
    Pushed(Vec<Said>),
}

/// A connection that speaks RESP3.
struct Watcher(BufReader<TcpStream>);

impl Watcher {
    fn connect(port: u16) -> Outcome<Self> {
        Self::connect_for(port, PATIENCE)
    }

    /// A connection on which this time without a message is an error.
    fn connect_for(port: u16, silence: Duration) -> Outcome<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(silence))?;
        let mut watcher = Self(BufReader::new(stream));
        watcher.call("HELLO 3")?;
        Ok(watcher)
    }

    /// From now on a moment without a message is an error.
    fn with_silence(self) -> Outcome<Self> {
        self.0.get_ref().set_read_timeout(Some(SILENCE))?;
        Ok(self)
    }

    fn call(&mut self, words: &str) -> Outcome<Said> {
        self.0.get_mut().write_all(format!("{words}\r\n").as_bytes())?;
        loop {
            let said = self.hear()?;
            if !matches!(said, Said::Pushed(_)) {
                return Ok(said);
            }
        }
    }

    fn hear(&mut self) -> Outcome<Said> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or("the end")?;
        let parts = |watcher: &mut Self, count: usize| -> Outcome<Vec<Said>> {
            (0..count).map(|_| watcher.hear()).collect()
        };
        Ok(match kind {
            "+" => Said::Text(rest.as_bytes().to_vec()),
            ":" => Said::Number(rest.parse()?),
            "_" => Said::Nothing,
            "-" => Said::Refusal(rest.to_owned()),
            "*" => Said::Parts(parts(self, rest.parse()?)?),
            "%" => Said::Parts(parts(self, 2 * rest.parse::<usize>()?)?),
            ">" => Said::Pushed(parts(self, rest.parse()?)?),
            "$" | "=" => {
                let mut bytes = vec![0; rest.parse::<usize>()? + 2];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Said::Text(bytes)
            }
            _ => return Err(format!("{line:?}").into()),
        })
    }
}

/// The node that leads, and the index that it has applied.
fn leader(nodes: &[Node]) -> Outcome<(usize, u64)> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        for (at, node) in nodes.iter().enumerate().filter(|(_, node)| node.runs()) {
            let watcher = Watcher::connect_for(node.port, SILENCE);
            let said = watcher.and_then(|mut it| it.call("CLUSTER SNAPSHOT"));
            if let Ok(Said::Parts(parts)) = said
                && let [Said::Number(_), Said::Number(index)] = parts[..]
            {
                return Ok((at, index));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("nobody leads".into())
}

/// The pushes that a watcher has received.
#[derive(Default)]
struct Seen {
    /// The index of the last push.
    index: u64,
    /// All values of each key, in order.
    values: BTreeMap<Vec<u8>, Vec<Option<Vec<u8>>>>,
    pushes: u64,
}

impl Seen {
    fn take(&mut self, parts: &[Said]) {
        let [Said::Text(kind), Said::Number(index), changes @ ..] = parts else {
            panic!("{parts:?}");
        };
        assert_eq!(kind, b"changes", "{parts:?}");
        assert!(*index > self.index, "{index} comes behind {}", self.index);
        self.index = *index;
        self.pushes += u64::from(!changes.is_empty());
        for change in changes.chunks(3) {
            let [Said::Text(key), value, Said::Nothing] = change else { panic!("{change:?}") };
            assert!(key.starts_with(b"a:"), "{key:?}");
            let value = if let Said::Text(value) = value { Some(value.clone()) } else { None };
            self.values.entry(key.clone()).or_default().push(value);
        }
    }
}

/// Watches one node after the other until the last write has been pushed.
fn watch(ports: &[u16], since: u64) -> Outcome<Seen> {
    let (mut seen, began, mut at) = (Seen { index: since, ..Seen::default() }, Instant::now(), 0);
    loop {
        assert!(began.elapsed() < 2 * PATIENCE, "{} pushes", seen.pushes);
        at += 1;
        let watcher = Watcher::connect_for(ports[at % ports.len()], SILENCE);
        let Ok(mut watcher) = watcher else { continue };
        match watcher.call(&format!("CLUSTER WATCH {} PREFIX a:", seen.index)) {
            Ok(Said::Number(_)) => {}
            // A node that was filled from a snapshot has no history; another one has.
            Ok(Said::Refusal(text)) if text.contains("are gone") => continue,
            Ok(other) => panic!("{other:?}"),
            Err(_) => continue,
        }
        let pushes = seen.pushes;
        // Some pushes from this node, and then from the next.
        while seen.pushes < pushes + 300
            && let Ok(said) = watcher.hear()
        {
            let Said::Pushed(parts) = said else { panic!("{said:?}") };
            seen.take(&parts);
            if seen.values.contains_key(&b"a:end"[..]) {
                return Ok(seen);
            }
        }
    }
}

/// Writes rising numbers; the acknowledged ones, by key.
fn write(ports: &[u16], is_over: &AtomicBool) -> Outcome<BTreeMap<Vec<u8>, BTreeSet<u64>>> {
    let (mut told, mut at, mut number) = (BTreeMap::<_, BTreeSet<u64>>::new(), 0, 0_u64);
    let mut client: Option<Client> = None;
    while !is_over.load(Ordering::Relaxed) {
        let Ok(mut connection) = client
            .take()
            .map_or_else(|| Client::connect(&format!("127.0.0.1:{}", ports[at % ports.len()])), Ok)
        else {
            at += 1;
            continue;
        };
        number += 1;
        let (key, text) = (format!("a:{}", number % 5), number.to_string());
        let (key, text) = (key.as_bytes(), text.as_bytes());
        let words: &[&[u8]] = match number % 7 {
            0 => &[b"MSET", key, text, b"b:0", text, b"a:pair", text],
            1 => &[b"MSET", b"b:1", text, key, text],
            _ => &[b"SET", key, text],
        };
        match connection.call(words) {
            Ok(reply) if reply == Reply::ok() => {
                told.entry(key.to_vec()).or_default().insert(number);
                client = Some(connection);
            }
            _ => at += 1,
        }
        if number % 50 == 0 {
            // Changes of keys that are not watched.
            let _deleted = client.as_mut().map(|it| it.call(&[b"DEL", b"b:0", b"b:1"]));
        }
    }
    Ok(told)
}

#[test]
fn every_acknowledged_change_is_pushed_once_and_in_its_order() -> Outcome<()> {
    let place = Place::in_memory()?;
    let mut nodes = nodes(&place, 3, 3, &["--cluster-tick", "100ms"])?;
    let ports: Vec<u16> = nodes.iter().map(|node| node.port).collect();
    let (_, since) = leader(&nodes)?;
    let is_over = AtomicBool::new(false);
    let told = Mutex::new(BTreeMap::new());
    let seen = std::thread::scope(|scope| -> Outcome<Vec<Seen>> {
        let writer = scope.spawn(|| write(&ports, &is_over));
        let watchers: Vec<_> = (0..2).map(|_| scope.spawn(|| watch(&ports, since))).collect();
        for _ in 0..3 {
            std::thread::sleep(Duration::from_secs(1));
            let (first, _) = leader(&nodes)?;
            nodes[first].kill()?;
            leader(&nodes)?;
            nodes[first].start()?;
        }
        is_over.store(true, Ordering::Relaxed);
        *told.lock().expect("told") = writer.join().expect("writer")?;
        let (first, _) = leader(&nodes)?;
        let mut client = Client::connect(&nodes[first].address())?;
        assert_eq!(client.call(&[b"SET", b"a:end", b"1"])?, Reply::ok());
        watchers.into_iter().map(|watcher| watcher.join().expect("watcher")).collect()
    })?;
    let told = told.into_inner()?;
    let (first, _) = leader(&nodes)?;
    let mut client = Client::connect(&nodes[first].address())?;
    for seen in seen {
        for (key, numbers) in &told {
            let values = seen.values.get(key).ok_or("a key of which nothing was pushed")?;
            let pushed = values.iter().flatten().map(|value| {
                std::str::from_utf8(value).expect("a number").parse::<u64>().expect("a number")
            });
            let pushed: Vec<u64> = pushed.collect();
            assert!(pushed.is_sorted_by(|one, next| one < next), "{pushed:?}");
            let pushed: BTreeSet<u64> = pushed.into_iter().collect();
            let lost: Vec<_> = numbers.difference(&pushed).collect();
            assert!(lost.is_empty(), "{lost:?} were acknowledged, and not pushed");
            let newest = values.last().cloned().flatten();
            assert_eq!(client.call(&[b"GET", key])?, Reply::Bulk(newest));
        }
        println!("{} pushes", seen.pushes);
    }
    Ok(())
}

#[test]
fn a_watch_that_has_lost_its_history_is_told_so() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 1, 1, &[])?;
    let (_, since) = leader(&nodes)?;
    let mut client = Client::connect(&nodes[0].address())?;
    let index = since.to_string();
    let refused = client.call(&[b"CLUSTER", b"WATCH", index.as_bytes()])?;
    assert!(matches!(&refused, Reply::Failed(text) if text.contains("HELLO 3")), "{refused:?}");
    // The watcher receives nothing, until there is more than a node keeps.
    let mut watcher = Watcher::connect(nodes[0].port)?;
    assert!(matches!(watcher.call(&format!("CLUSTER WATCH {index}"))?, Said::Number(_)));
    let value = vec![b'v'; 256 << 10];
    for _ in 0..300 {
        assert_eq!(client.call(&[b"SET", b"large", &value])?, Reply::ok());
    }
    let (mut pushes, mut last) = (0, since);
    let horizon = loop {
        let heard = watcher.hear().map_err(|error| format!("{pushes} pushes, {last}: {error}"))?;
        let Said::Pushed(parts) = heard else { panic!("no push") };
        match &parts[..] {
            [Said::Text(kind), Said::Number(horizon)] if kind == b"changes-gone" => break *horizon,
            [_, Said::Number(index), _, Said::Text(pushed), _] => {
                assert!(*index > last && *pushed == value);
                (pushes, last) = (pushes + 1, *index);
            }
            other => panic!("{other:?}"),
        }
    };
    assert!(pushes > 0 && horizon > last, "{pushes} pushes, gone up to {horizon}");
    let refused = watcher.call(&format!("CLUSTER WATCH {last}"))?;
    assert!(matches!(&refused, Said::Refusal(text) if text.contains("are gone")), "{refused:?}");
    // A state as of an index, and the entries behind that index.
    let (_, index) = leader(&nodes)?;
    assert!(matches!(watcher.call(&format!("CLUSTER WATCH {index}"))?, Said::Number(_)));
    assert_eq!(client.call(&[b"SET", b"next", b"1"])?, Reply::ok());
    let next = watcher.hear()?;
    assert!(
        matches!(&next, Said::Pushed(parts) if parts[1] == Said::Number(index + 1)),
        "{next:?}"
    );
    assert_eq!(watcher.call("CLUSTER UNWATCH")?, Said::Text(b"OK".to_vec()));
    // Nothing is pushed any more, and the connection goes on.
    assert_eq!(client.call(&[b"SET", b"small", b"1"])?, Reply::ok());
    assert_eq!(watcher.call("PING")?, Said::Text(b"PONG".to_vec()));
    assert!(watcher.with_silence()?.hear().is_err(), "it is pushed something");
    Ok(())
}

/// A client whose answers are lost with a leadership receives no pushes behind the gap.
#[test]
fn a_watch_ends_where_answers_are_lost() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 3, 3, &["--cluster-tick", "100ms"])?;
    let (first, since) = leader(&nodes)?;
    let followers = || nodes.iter().enumerate().filter(|(at, _)| *at != first).map(|it| it.1);
    let mut watcher = Watcher::connect(nodes[first].port)?;
    assert!(matches!(watcher.call(&format!("CLUSTER WATCH {since}"))?, Said::Number(_)));
    let mut client = Client::connect(&nodes[first].address())?;
    let value = vec![b'v'; 64 << 10];
    // The watcher receives nothing, until its socket is full, too.
    for _ in 0..200 {
        assert_eq!(client.call(&[b"SET", b"large", &value])?, Reply::ok());
    }
    followers().try_for_each(|node| node.signal("-STOP"))?;
    let mut other = TcpStream::connect(("127.0.0.1", nodes[first].port))?;
    for number in 0..50 {
        // The connection ends if its answers are lost.
        let _sent =
            watcher.0.get_mut().write_all(format!("SET own {number}\r\n").as_bytes()).is_ok();
        let _sent = other.write_all(format!("SET other {number}\r\n").as_bytes()).is_ok();
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    followers().try_for_each(|node| node.signal("-CONT"))?;
    leader(&nodes)?;
    let (mut last, mut watcher) = (since, watcher.with_silence()?);
    let is_refused = loop {
        match watcher.hear() {
            Ok(Said::Pushed(parts)) => {
                let [Said::Text(kind), Said::Number(index), ..] = &parts[..] else {
                    panic!("{parts:?}");
                };
                assert_eq!(kind, b"changes");
                assert!(*index > last);
                last = *index;
            }
            Ok(Said::Refusal(_)) => break true,
            Ok(_) => {}
            Err(_) => break false,
        }
    };
    // Some of the pushes behind a refusal would be missing.
    while let Ok(said) = watcher.hear() {
        assert!(!matches!(said, Said::Pushed(_)), "a push behind {last}, refused: {is_refused}");
    }
    Ok(())
}

/// A leader that hears from no other node may have been replaced, and a new leader may have acknowledged writes that
/// it does not have. Its pinned state is answered only when the others have confirmed its leadership.
#[test]
fn a_snapshot_rests_on_the_word_of_the_others() -> Outcome<()> {
    let place = Place::in_memory()?;
    // Elections are far apart: the node believes itself the leader for a while.
    let nodes = nodes(&place, 3, 3, &["--cluster-tick", "500ms"])?;
    let (first, _) = leader(&nodes)?;
    let followers = || nodes.iter().enumerate().filter(|(at, _)| *at != first).map(|it| it.1);
    followers().try_for_each(|node| node.signal("-STOP"))?;
    // The others have stopped when a read gets no answer.
    let connect = || Watcher::connect(nodes[first].port)?.with_silence();
    while connect()?.call("GET k").is_ok() {}
    let told = connect()?.call("CLUSTER SNAPSHOT");
    followers().try_for_each(|node| node.signal("-CONT"))?;
    assert!(!matches!(told, Ok(Said::Parts(_))), "{told:?}, and nobody was there");
    leader(&nodes)?;
    Ok(())
}

#[test]
fn a_watch_ends_with_what_the_connection_has_agreed_upon() -> Outcome<()> {
    let place = Place::in_memory()?;
    let nodes = nodes(&place, 1, 1, &[])?;
    let mut client = Client::connect(&nodes[0].address())?;
    for words in ["RESET\r\nHELLO 3\r\n", "HELLO 2\r\nHELLO 3\r\n"] {
        let (_, since) = leader(&nodes)?;
        let mut watcher = Watcher::connect(nodes[0].port)?;
        assert!(matches!(watcher.call(&format!("CLUSTER WATCH {since}"))?, Said::Number(_)));
        watcher.0.get_mut().write_all(words.as_bytes())?;
        let _answers = (watcher.hear()?, watcher.hear()?);
        assert_eq!(client.call(&[b"SET", b"k", b"1"])?, Reply::ok());
        let mut watcher = watcher.with_silence()?;
        while let Ok(said) = watcher.hear() {
            assert!(!matches!(said, Said::Pushed(_)), "{words:?}: {said:?}");
        }
    }
    // A connection that does not receive its pushes is closed all the same.
    let (_, since) = leader(&nodes)?;
    let mut watcher = Watcher::connect(nodes[0].port)?;
    assert!(matches!(watcher.call(&format!("CLUSTER WATCH {since}"))?, Said::Number(_)));
    let value = vec![b'v'; 64 << 10];
    for round in 0..200 {
        assert_eq!(client.call(&[b"SET", b"large", &value])?, Reply::ok());
        if round == 150 {
            watcher.0.get_mut().write_all(b"QUIT\r\n")?;
        }
    }
    let mut is_over = false;
    let since = Instant::now();
    while let Ok(said) = watcher.hear() {
        assert!(!is_over || !matches!(said, Said::Pushed(_)), "it has said QUIT");
        is_over |= said == Said::Text(b"OK".to_vec());
    }
    assert!(is_over && since.elapsed() < PATIENCE, "it is not closed");
    Ok(())
}
