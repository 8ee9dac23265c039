//! Backup and restore of all records of a cluster, as of one moment.

use super::cluster::ask_leader;
use crate::arguments::{Behind, ClusterBackup, ClusterRestore};
use crate::ask::{self, Answer, Asked};
use crate::failure::{Failure, Outcome, REFUSED};
use crate::input::{input, lines};
use crate::json;
use crate::output::Output;
use coreplane::UnixMillis;
use std::io::{self, Write};

/// Records that are written together.
const AT_ONCE: usize = 200;
/// And their bytes.
const BYTES_AT_ONCE: usize = 4 << 20;

/// Pins a state at the leader: the connection, and the number of the pin. It contains everything acknowledged before.
fn pin(behind: &Behind) -> Result<(Asked, Vec<u8>), Failure> {
    let (mut asked, first) = ask_leader(behind, &["CLUSTER", "SNAPSHOT"])?;
    // A majority confirms the leadership; a state pinned after that has everything acknowledged before.
    asked.ask(&[b"GET", b""])?;
    let second = asked.ask(&[b"CLUSTER", b"SNAPSHOT"])?;
    let first = number_of(&asked, &first)?;
    unpin(&mut asked, &first)?;
    let number = number_of(&asked, &second)?;
    Ok((asked, number))
}

fn number_of(asked: &Asked, pinned: &Answer) -> Result<Vec<u8>, Failure> {
    match pinned {
        Answer::List(list) => match list.first() {
            Some(Answer::Number(number)) => Ok(number.to_string().into_bytes()),
            _ => Err(asked.failed(&"no number of a state")),
        },
        _ => Err(asked.failed(&"no number of a state")),
    }
}

fn unpin(asked: &mut Asked, number: &[u8]) -> Result<(), Failure> {
    asked.ask(&[b"CLUSTER", b"SNAPSHOT", number])?;
    Ok(())
}

pub(super) fn write(backup: &ClusterBackup) -> Outcome {
    let (mut asked, number) = pin(&backup.behind)?;
    let mut out = Output::to(backup.output.as_deref())?;
    let mut start = Vec::new();
    loop {
        let page = asked.ask(&[b"CLUSTER", b"SNAPSHOT", &number, &start])?;
        let Answer::List(page) = page else { return Err(asked.failed(&"no page of a state")) };
        let (next, records) = page.split_first().ok_or_else(|| asked.failed(&"an empty page"))?;
        let (records, rest) = records.as_chunks::<3>();
        if !rest.is_empty() {
            return Err(asked.failed(&"half a record"));
        }
        for [key, value, expires_at] in records {
            let (Answer::Bytes(key), Answer::Bytes(value)) = (key, value) else {
                return Err(asked.failed(&"a record without a key or a value"));
            };
            let at = if let Answer::Number(at) = expires_at { *at } else { -1 };
            json::write_line(&mut out, &json::entry(&ask::entry(key, value, at), false))?;
        }
        match next.bytes() {
            Some(key) => start = key.to_vec(),
            None => break,
        }
    }
    out.finish()?;
    unpin(&mut asked, &number)?;
    Ok(0)
}

/// Records that are written together.
#[derive(Default)]
struct Group {
    commands: Vec<Vec<Vec<u8>>>,
    /// The number of the line of each.
    numbers: Vec<u64>,
}

impl Group {
    /// Writes them, and counts in `restored` those that are acknowledged.
    fn send(self, asked: &mut Asked, restored: &mut u64) -> Result<(), Failure> {
        let mut answered = 0;
        let done = asked.ask_all(&self.commands, &mut answered);
        *restored += answered;
        done.map_err(|failure| match self.numbers.get(answered as usize) {
            Some(number) => failure.at_line(*number, *restored, "restored"),
            None => failure,
        })
    }
}

pub(super) fn restore(restore: &ClusterRestore) -> Outcome {
    let (input, _) = input(restore.input.as_deref())?;
    let (mut asked, count) = ask_leader(&restore.behind, &["DBSIZE"])?;
    if count != Answer::Number(0) {
        let message = "there are records in the cluster; a backup is restored to an empty one";
        return Err(Failure::new(REFUSED, message));
    }
    let (mut group, mut bytes, mut restored) = (Group::default(), 0, 0_u64);
    for (number, line) in lines(input) {
        let at_line = |failure: Failure| failure.at_line(number, restored, "restored");
        let line = line.map_err(at_line)?;
        let refused = |what| at_line(Failure::new(REFUSED, what));
        let record = json::parse(&line).map_err(refused)?;
        bytes += line.len();
        let mut command = vec![b"SET".to_vec(), record.key, record.value];
        if let Some(UnixMillis(at)) = record.expires_at {
            command.extend([b"PXAT".to_vec(), at.to_string().into_bytes()]);
        }
        group.numbers.push(number);
        group.commands.push(command);
        if group.commands.len() >= AT_ONCE || bytes >= BYTES_AT_ONCE {
            std::mem::take(&mut group).send(&mut asked, &mut restored)?;
            bytes = 0;
        }
    }
    group.send(&mut asked, &mut restored)?;
    writeln!(io::stdout().lock(), "{restored} restored")?;
    Ok(0)
}
