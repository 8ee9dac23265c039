//! The answers of Redis itself, byte for byte.
//!
//! `tests/scripts/*.txt` are conversations that were recorded from redis-server 7.0.15. Our server must answer with
//! the same bytes. Where redis-server is installed, the scripts are also played to it, to prove that the files hold
//! its answers. `RECORD=1 cargo test -p coreplane-server --test commands golden` writes the answers of the installed
//! Redis into the files.
//!
//! A line of a script:
//!
//! ```text
//! # a remark
//! > SET k "two words\r\n"     a command; quotes and escapes as in an inline command
//! ~ KEYS *                    the same; the elements of the answer may come in any order
//! ! 2 PING\r\nPING\r\n        raw bytes to send, and how many answers they have
//! @ b                         talk through connection b from now on (it begins with a)
//! sleep 20                    milliseconds
//! closed                      the connection must be closed by now
//! < +OK\r\n                   an answer
//! ```

use crate::wire::redis::Redis;
use crate::wire::{Running, Wire, config, shown};
use coreplane_conformance::model::ModelEngine;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Undoes the escapes of a line.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let (&escaped, tail) = rest.split_first().expect("something after the backslash");
        rest = tail;
        bytes.push(match escaped {
            b'r' => b'\r',
            b'n' => b'\n',
            b't' => b'\t',
            b'x' => {
                let hex = std::str::from_utf8(&rest[..2]).expect("two digits");
                rest = &rest[2..];
                u8::from_str_radix(hex, 16).expect("hexadecimal")
            }
            other => other,
        });
    }
    bytes
}

/// The words of a command.
fn words(text: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let mut end = 0;
                while quoted.as_bytes()[end] != b'"' {
                    end += 1 + usize::from(quoted.as_bytes()[end] == b'\\');
                }
                (&quoted[..end], &quoted[end + 1..])
            }
            None => rest.split_at(rest.find(' ').unwrap_or(rest.len())),
        };
        words.push(unescape(word));
        rest = after.trim_start();
    }
    words
}

/// The elements of an array in the order of their bytes.
fn sorted(reply: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = reply.split_inclusive(|byte| *byte == b'\n').collect();
    if reply.first() == Some(&b'*') {
        // Bulk strings of one line each.
        let mut pairs: Vec<Vec<u8>> = lines[1..].chunks(2).map(<[_]>::concat).collect();
        pairs.sort();
        let pairs = pairs.concat();
        return [lines.remove(0), &pairs].concat();
    }
    lines.concat()
}

/// Plays `script` over connections made by `connect`; the script with the answers received.
fn play(script: &str, connect: &dyn Fn() -> Wire) -> String {
    let mut played = String::new();
    let mut wires: BTreeMap<String, Wire> = BTreeMap::new();
    let mut current = "a".to_owned();
    for line in script.lines() {
        if line.starts_with('<') {
            continue;
        }
        played += line;
        played += "\n";
        let wire = wires.entry(current.clone()).or_insert_with(connect);
        let (kind, text) = line.split_once(' ').unwrap_or((line, ""));
        let mut replies = Vec::new();
        match kind {
            ">" | "~" => {
                let words = words(text);
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                let reply = wire.ask(&words);
                replies.push(if kind == "~" { sorted(&reply) } else { reply });
            }
            "!" => {
                let (count, raw) = text.split_once(' ').expect("a count and bytes");
                wire.send(&unescape(raw));
                let count: usize = count.parse().expect("a count");
                replies.extend((0..count).map(|_| wire.reply()));
            }
            "@" => current = text.to_owned(),
            "sleep" => {
                let millis = text.parse().expect("milliseconds");
                std::thread::sleep(Duration::from_millis(millis));
            }
            "closed" => assert!(wire.is_closed(), "not closed"),
            "" | "#" => {}
            other => panic!("what is {other:?}?"),
        }
        for reply in replies {
            played += &format!("< {}\n", shown(&reply));
        }
    }
    played
}

fn scripts() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("the directory of scripts")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

/// Compares line by line, for a message with the line number.
fn compare(who: &str, path: &Path, expected: &str, played: &str) -> usize {
    let mut differences = 0;
    let mut asked = "";
    for (index, (expected, played)) in expected.lines().zip(played.lines()).enumerate() {
        if !expected.starts_with('<') {
            asked = expected;
        }
        if expected != played {
            differences += 1;
            let name = path.file_name().unwrap_or_default().display();
            eprintln!("{name}:{}: {asked}\n  Redis: {expected}\n  {who}: {played}", index + 1);
        }
    }
    differences + usize::from(expected.lines().count() != played.lines().count())
}

#[test]
fn our_server_answers_as_redis_does() {
    let mut differences = 0;
    for path in scripts() {
        let server = Running::start(config(), Arc::new(ModelEngine::new()));
        let script = std::fs::read_to_string(&path).expect("a script");
        let played = play(&script, &|| server.connect());
        differences += compare("ours", &path, &script, &played);
    }
    assert_eq!(differences, 0);
}

#[test]
fn the_scripts_are_the_words_of_redis() {
    let Some(redis) = Redis::start("the scripts of conversations, played to redis-server") else {
        return;
    };
    let records = std::env::var_os("RECORD").is_some();
    let mut differences = 0;
    for path in scripts() {
        let script = std::fs::read_to_string(&path).expect("a script");
        Wire::unix(&redis.socket()).say("FLUSHALL");
        let played = play(&script, &|| Wire::unix(&redis.socket()));
        if records {
            std::fs::write(&path, &played).expect("write the script");
        } else {
            differences += compare("the installed Redis", &path, &script, &played);
        }
    }
    assert_eq!(differences, 0);
}
