//! `RANGE`: keys in their order, some at a time.

use crate::wire::{Running, Wire, config, shown};
use coreplane_conformance::model::ModelEngine;
use std::sync::Arc;

/// The bound to go on with, and the elements, of an answer whose texts have no line breaks.
fn answered(wire: &mut Wire, words: &[&str]) -> (Option<String>, Vec<String>) {
    let words: Vec<&[u8]> = [&["RANGE"], words].concat().iter().map(|it| it.as_bytes()).collect();
    let raw = String::from_utf8(wire.ask(&words)).expect("text");
    let mut lines = raw.split_terminator("\r\n");
    assert_eq!(lines.next(), Some("*2"), "{raw}");
    let text = |head: &str, lines: &mut std::str::SplitTerminator<'_, &str>| match head {
        "$-1" | "_" => None,
        head if head.starts_with(':') => Some(head[1..].to_owned()),
        head => {
            assert!(head.starts_with('$'), "{raw}");
            lines.next().map(str::to_owned)
        }
    };
    let head = lines.next().expect("a bound");
    let next = text(head, &mut lines);
    let len = lines.next().and_then(|head| head.strip_prefix('*')?.parse().ok());
    let mut elements = Vec::new();
    while let Some(head) = lines.next() {
        elements.extend(text(head, &mut lines));
    }
    assert_eq!(len, Some(elements.len()), "{raw}");
    (next, elements)
}

fn keys(wire: &mut Wire, words: &[&str]) -> Vec<String> {
    let (next, keys) = answered(wire, words);
    assert_eq!(next, None, "{words:?}");
    keys
}

#[test]
fn bounds_are_those_of_redis_and_a_prefix_narrows_them() {
    let server = Running::start(config(), Arc::new(ModelEngine::new()));
    let mut wire = server.connect();
    wire.say("MSET b 2 a 1 ab 12 c 3 ba 21");
    assert_eq!(keys(&mut wire, &["-", "+"]), ["a", "ab", "b", "ba", "c"]);
    assert_eq!(keys(&mut wire, &["[ab", "[ba"]), ["ab", "b", "ba"]);
    assert_eq!(keys(&mut wire, &["(ab", "(ba"]), ["b"]);
    assert_eq!(keys(&mut wire, &["(ab", "+", "REV"]), ["c", "ba", "b"]);
    assert_eq!(keys(&mut wire, &["-", "+", "PREFIX", "b"]), ["b", "ba"]);
    assert_eq!(keys(&mut wire, &["(b", "+", "prefix", "b", "rev"]), ["ba"]);
    assert_eq!(keys(&mut wire, &["-", "(b", "PREFIX", "b"]), [""; 0]);
    for empty in [["+", "-"], ["+", "+"], ["-", "-"], ["[c", "[a"], ["(a", "(ab"]] {
        assert_eq!(keys(&mut wire, &empty), [""; 0], "{empty:?}");
    }
    assert_eq!(keys(&mut wire, &["[a", "[a", "WITHVALUES"]), ["a", "1"]);
    wire.say("PEXPIREAT ab 9999999999999");
    let all = keys(&mut wire, &["-", "(b", "WITHEXPIRIES", "WITHVALUES"]);
    assert_eq!(all, ["a", "1", "-1", "ab", "12", "9999999999999"]);
    wire.say("HELLO 3");
    assert_eq!(shown(&wire.ask(&[b"RANGE", b"-", b"-"])), "*2\\r\\n_\\r\\n*0\\r\\n");
}

#[test]
fn an_answer_says_where_to_go_on() {
    let server = Running::start(config(), Arc::new(ModelEngine::new()));
    let mut wire = server.connect();
    for number in 0..2500 {
        wire.say(&format!("SET key:{number:04} {number}"));
    }
    wire.say("SET other 1");
    for (limit, answers) in [("7", 358), ("1000", 3), ("5000", 3)] {
        for reverse in [false, true] {
            let (mut min, mut max) = ("-".to_owned(), "+".to_owned());
            let (mut seen, mut asked) = (Vec::new(), 0);
            loop {
                let mut words = vec![&*min, &*max, "PREFIX", "key:", "LIMIT", limit];
                words.extend(reverse.then_some("REV"));
                let (next, keys) = answered(&mut wire, &words);
                assert!(keys.len() <= 1024);
                seen.extend(keys);
                asked += 1;
                let Some(next) = next else { break };
                *if reverse { &mut max } else { &mut min } = next;
            }
            if reverse {
                seen.reverse();
            }
            let expected: Vec<String> =
                (0..2500).map(|number| format!("key:{number:04}")).collect();
            assert_eq!((seen == expected, asked), (true, answers), "{limit} {reverse}");
        }
    }
    // Long values end an answer early, and a single value that is too long is shown nevertheless.
    let long = vec![b'x'; 3 << 20];
    for key in ["x1", "x2"] {
        wire.ask(&[b"SET", key.as_bytes(), &long]);
    }
    let (next, shown) = answered(&mut wire, &["[x", "+", "WITHVALUES"]);
    assert_eq!((next.as_deref(), shown.len(), shown[1].len()), (Some("(x1"), 2, long.len()));
}

#[test]
fn what_is_wrong_is_refused() {
    let server = Running::start(config(), Arc::new(ModelEngine::new()));
    let mut wire = server.connect();
    for (words, why) in [
        ("RANGE a b", "not valid string range item"),
        ("RANGE -", "wrong number of arguments"),
        ("RANGE - + LIMIT", "syntax error"),
        ("RANGE - + LIMIT 0", "must be positive"),
        ("RANGE - + LIMIT x", "not an integer"),
        ("RANGE - + BYSCORE", "syntax error"),
    ] {
        let said = wire.say(words);
        assert!(said.starts_with("-ERR") && said.contains(why), "{words}: {said}");
    }
    wire.say("MULTI");
    assert!(wire.say("RANGE - +").contains("not allowed inside a transaction"));
    wire.say("DISCARD");
    let docs = wire.say("COMMAND DOCS range");
    assert!(docs.contains("WITHVALUES") && docs.contains("the bound to go on with"), "{docs}");
    assert!(wire.say("COMMAND LIST FILTERBY PATTERN range").contains("range"));
}
