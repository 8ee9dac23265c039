//! A command that may be sent again, and runs only once.
//!
//! A client that received `INDETERMINATE`, or no answer, does not know whether its command was run. It gives its
//! commands rising numbers, and sends the same command again:
//!
//! ```text
//!   ONCE teller-4 17 INCRBY balance 5 ─▶ 105
//!   ONCE teller-4 17 INCRBY balance 5 ─▶ 105     it was run before: its answer, and nothing else
//!   ONCE teller-4 16 …                ─▶ an error: 17 was run since, and of 16 nothing is remembered
//!   ONCE teller-4 17 DEL balance      ─▶ an error: 17 was another command
//! ```
//!
//! So a client has one such command pending at a time, and a refused command takes the next number.
//!
//! The changes of the command, its number and its answer are one batch. The number and the answer are a record beside
//! the others, `coreplane:once:CLIENT`, which expires a day after the last command. So a cluster's next leader, a
//! backup and a pool that is opened again know of them.

use super::dispatch::OUT_OF_MEMORY;
use super::table::{AT_ONCE, COMMANDS, NO_MULTI, WRITE, find};
use super::{Answer, Call, NOT_INTEGER, specification, wrong_arity};
use crate::resp::frame::Words;
use crate::resp::number::parse_i64;
use coreplane_engine::UnixMillis;
use std::sync::atomic::Ordering;

const PREFIX: &[u8] = b"coreplane:once:";
/// How long the last command of a client is remembered.
const MEMORY_MS: u64 = 24 * 60 * 60 * 1000;
/// The longest answer that is remembered, in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// The last command of a client.
struct Last {
    sequence: i64,
    /// CRC-32C of the command's words.
    words: u32,
    proto: u8,
    answer: Vec<u8>,
}

impl Last {
    fn encode(&self) -> Vec<u8> {
        let Self { sequence, words, proto, answer } = self;
        [format!("{sequence} {words} {proto} ").as_bytes(), answer].concat()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut parts = bytes.splitn(4, |byte| *byte == b' ');
        let sequence = parse_i64(parts.next()?)?;
        let words = u32::try_from(parse_i64(parts.next()?)?).ok()?;
        let proto = u8::try_from(parse_i64(parts.next()?)?).ok()?;
        Some(Self { sequence, words, proto, answer: parts.next()?.to_vec() })
    }
}

/// `ONCE client sequence command [arg ...]`, alone among the event loops
pub(super) fn once(call: &mut Call<'_, '_>) -> Answer {
    let sequence = parse_i64(call.word(2)).filter(|it| *it >= 0).ok_or(NOT_INTEGER)?;
    let words = call.words.tail(3);
    let command = find(words.at(0)).map(|index| &COMMANDS[index]);
    let command = command.filter(|it| it.has(WRITE) && !it.has(NO_MULTI | AT_ONCE));
    let command = command.ok_or("ERR ONCE runs a command that writes")?;
    if command.name.starts_with("flush") {
        return Err("ERR FLUSHALL and FLUSHDB may be sent again as they are".into());
    }
    if !command.accepts(words.len()) {
        return Err(wrong_arity(command.name));
    }
    let key = [PREFIX, call.word(1)].concat();
    let checksum = checksum_of(words);
    // Before any read that the changes depend on.
    call.store.begin(2, words.from(0).map(<[u8]>::len).sum());
    let mut last = None;
    call.store.read(&key, &mut |record| last = Some(Last::decode(&record.value.to_vec())))?;
    if let Some(last) = last {
        let last = last.ok_or("ERR the record of the client's last command is none of ONCE's")?;
        if last.sequence > sequence {
            let since = last.sequence;
            let text = format!("ERR {since} was run since: nothing is remembered of {sequence}");
            return Err(text.into());
        }
        if last.sequence == sequence && last.words != checksum {
            return Err(format!("ERR {sequence} was another command").into());
        }
        if last.sequence == sequence {
            return answer_again(call, &last);
        }
    }
    // A command that was run before is answered regardless of memory use.
    if call.host.is_over_memory.load(Ordering::Relaxed)
        && specification::has_flag(command.name, "denyoom")
    {
        return Err(OUT_OF_MEMORY.into());
    }
    let start = call.reply.out.len();
    call.run_part(command, words)?;
    let answer = call.reply.out.get(start..).unwrap_or_default().to_vec();
    if answer.len() > ANSWER_MAX {
        return Err("ERR the answer is too long to be remembered: nothing was done".into());
    }
    let proto = call.session.proto.number();
    let until = UnixMillis(call.store.now().0.saturating_add(MEMORY_MS));
    let last = Last { sequence, words: checksum, proto, answer };
    call.store.put(&key, &last.encode(), Some(until))?;
    call.store.finish()?;
    Ok(())
}

/// The checksum of all words, each with its length.
fn checksum_of(words: Words<'_>) -> u32 {
    words.from(0).fold(0, |crc, word| {
        let len = (word.len() as u64).to_le_bytes();
        crc32c::crc32c_append(crc32c::crc32c_append(crc, &len), word)
    })
}

fn answer_again(call: &mut Call<'_, '_>, last: &Last) -> Answer {
    if last.proto != call.session.proto.number() {
        return Err(format!("ERR it was answered in RESP{}: send HELLO {0}", last.proto).into());
    }
    call.reply.out.extend_from_slice(&last.answer);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_it_was() {
        let last = Last { sequence: 7, words: 9, proto: 3, answer: b"$3\r\n  1\r\n".to_vec() };
        let again = Last::decode(&last.encode()).expect("one");
        assert_eq!(
            (again.sequence, again.words, again.proto, again.answer),
            (7, 9, 3, last.answer)
        );
        for none in [&b""[..], b"7", b"7 9 3", b"x 9 3 +OK", b"7 9 300 +OK", b"7 -9 3 +OK"] {
            assert!(Last::decode(none).is_none());
        }
    }
}
