//! Random conversations with Redis and with this server: every answer must be the same.
//!
//! Few keys and few values, so that commands meet each other's effects. The values include those at which behaviour
//! changes (the ends of the integers, numbers with a space, empty strings). No record expires meanwhile: the moment
//! at which Redis notices that is not compared.

use crate::wire::redis::Redis;
use crate::wire::{Running, Wire, config, shown};
use coreplane_conformance::model::ModelEngine;
use std::sync::Arc;

/// The values that a word of a template stands for.
const KEYS: &[&str] = &["a", "b", "c", "d"];
const VALUES: &[&str] = &[
    "1",
    "-5",
    "abc",
    "10.5",
    "",
    "9223372036854775807",
    " 7",
    "1e3",
    "-0",
    "3.14159",
    "0x1A",
    "00",
    "a value that is somewhat longer than the others are, by a good deal",
];
const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "5",
    "10",
    "-7",
    "9223372036854775807",
    "-9223372036854775808",
    "abc",
    "1.5",
    "",
    "100",
];
const FRACTIONS: &[&str] = &[
    "1",
    "0.1",
    "-2.5",
    "1e10",
    "1e-5",
    "abc",
    "3.0",
    "inf",
    "nan",
    "123456789.987654321",
    "5e300",
    "",
];
const OFFSETS: &[&str] = &["0", "3", "10", "-1", "abc", "536870912"];
const TIMES: &[&str] = &["100", "1000", "0", "-1", "abc", "9223372036854775807", "33000000000"];
const SET_OPTIONS: &[&str] = &[
    "",
    "",
    "NX",
    "XX",
    "GET",
    "KEEPTTL",
    "EX 1000",
    "EX 0",
    "EX abc",
    "EXAT 33000000000",
    "PERSIST",
    "PX",
];
const EXPIRE_OPTIONS: &[&str] = &["", "", "NX", "XX", "GT", "LT", "nonsense"];
const COPY_OPTIONS: &[&str] = &["", "REPLACE", "DB 0", "DB 3", "DB abc"];

const TEMPLATES: &[&str] = &[
    "SET K V",
    "SET K V S",
    "SET K V S S",
    "SET K V S S S",
    "GET K",
    "GETSET K V",
    "GETDEL K",
    "GETEX K S",
    "GETEX K S S",
    "SETNX K V",
    "SETEX K T V",
    "MGET K K K",
    "MSET K V K V",
    "MSET K V K",
    "MSETNX K V K V",
    "INCR K",
    "DECR K",
    "INCRBY K N",
    "DECRBY K N",
    "INCRBYFLOAT K F",
    "APPEND K V",
    "STRLEN K",
    "GETRANGE K N N",
    "SUBSTR K N N",
    "SETRANGE K O V",
    "DEL K",
    "DEL K K K",
    "UNLINK K K",
    "EXISTS K K",
    "TYPE K",
    "RENAME K K",
    "RENAMENX K K",
    "COPY K K C",
    "COPY K K C C",
    "EXPIRE K T X",
    "EXPIRE K T X X",
    "EXPIREAT K T X",
    "PEXPIREAT K T",
    "PERSIST K",
    "TOUCH K K",
    "DBSIZE",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH K",
    "UNWATCH",
    "ECHO V",
    "PING V",
    "NONSENSE V V",
    "get",
    "SELECT N",
    "HELLO N9",
    "COMMAND GETKEYS MSET V V",
    "CLIENT NONSENSE",
    "CONFIG GET timeout",
];

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        from[(self.0 % from.len() as u64) as usize]
    }

    /// The words of a random command.
    fn command(&mut self) -> Vec<&'static str> {
        let mut words = Vec::new();
        for word in self.pick(TEMPLATES).split(' ') {
            let options = match word {
                "K" => Some(KEYS),
                "V" => Some(VALUES),
                "N" => Some(NUMBERS),
                "F" => Some(FRACTIONS),
                "O" => Some(OFFSETS),
                "T" => Some(TIMES),
                _ => None,
            };
            let optional = match word {
                "S" => Some(SET_OPTIONS),
                "X" => Some(EXPIRE_OPTIONS),
                "C" => Some(COPY_OPTIONS),
                _ => None,
            };
            match (options, optional) {
                (Some(options), _) => words.push(self.pick(options)),
                (_, Some(options)) => words.extend(self.pick(options).split_terminator(' ')),
                _ => words.push(word),
            }
        }
        words
    }
}

#[test]
fn random_conversations_are_the_same() {
    const COMMANDS: usize = 20_000;
    let Some(redis) = Redis::start("random conversations, held beside redis-server") else {
        return;
    };
    let server = Running::start(config(), Arc::new(ModelEngine::new()));
    let (mut theirs, mut ours) = (Wire::unix(&redis.socket()), server.connect());
    let mut numbers = Numbers(0x2545_f491_4f6c_dd1d);
    let mut errors = 0;
    for index in 0..COMMANDS {
        let words = numbers.command();
        let request: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let expected = theirs.ask(&request);
        errors += usize::from(expected.starts_with(b"-"));
        assert_eq!(shown(&ours.ask(&request)), shown(&expected), "{index}: {words:?}");
    }
    // A conversation that consists of errors proves little.
    assert!(errors < COMMANDS / 2, "{errors}");
}
