//! The floor: a server that moves the bytes between socket and memory, and does nothing else: no names, no checksums, nothing
//! durable. What it answers in a second is what socket, client and a copy allow on this machine.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::wire::{self, Head, REQUEST_LEN};
use crate::Outcome;
use crate::sector::SECTOR;

/// Bytes that are taken from a socket at once.
const INPUT: usize = 256 << 10;

type Sectors = Arc<Vec<Mutex<Box<[u8]>>>>;

/// The work of `measure floor-disk SOCKET BYTES`, which the measurement starts: serves until it is killed.
pub(super) fn serve(socket: &Path, len: u64) -> Outcome<()> {
    let listener = UnixListener::bind(socket)?;
    let sector = || Mutex::new(vec![0; SECTOR].into_boxed_slice());
    let sectors: Sectors = Arc::new((0..len / SECTOR as u64).map(|_| sector()).collect());
    for stream in listener.incoming() {
        let (stream, sectors) = (stream?, Arc::clone(&sectors));
        std::thread::spawn(move || {
            if let Err(error) = converse(stream, &sectors) {
                eprintln!("measure: a client of the floor: {error}");
            }
        });
    }
    Ok(())
}

fn greet(input: &mut impl Read, out: &mut UnixStream, len: u64) -> Outcome<()> {
    let mut hello = wire::MAGIC.to_be_bytes().to_vec();
    hello.extend_from_slice(&wire::OPTIONS.to_be_bytes());
    hello.extend_from_slice(&wire::HANDSHAKE_FLAGS.to_be_bytes());
    out.write_all(&hello)?;
    let mut flags = [0; 4];
    input.read_exact(&mut flags)?;
    loop {
        let mut head = [0; 16];
        input.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
        let (option, option_len) = (word(8), word(12));
        std::io::copy(&mut input.take(u64::from(option_len)), &mut std::io::sink())?;
        let mut answer = Vec::new();
        let mut reply = |kind: u32, bytes: &[u8]| {
            answer.extend_from_slice(&wire::OPTION_REPLY.to_be_bytes());
            for word in [option, kind, bytes.len() as u32] {
                answer.extend_from_slice(&word.to_be_bytes());
            }
            answer.extend_from_slice(bytes);
        };
        if option != wire::GO {
            reply(wire::UNSUPPORTED, &[]);
            out.write_all(&answer)?;
            continue;
        }
        // Of kind 0: length, and flags that say no more than that they are there.
        let mut export = vec![0, 0];
        export.extend_from_slice(&len.to_be_bytes());
        export.extend_from_slice(&1_u16.to_be_bytes());
        reply(wire::INFO, &export);
        reply(wire::ACK, &[]);
        return Ok(out.write_all(&answer)?);
    }
}

fn converse(mut out: UnixStream, sectors: &Sectors) -> Outcome<()> {
    let mut input = BufReader::with_capacity(INPUT, out.try_clone()?);
    greet(&mut input, &mut out, (sectors.len() * SECTOR) as u64)?;
    let (mut answers, mut head) = (Vec::with_capacity(INPUT), [0; REQUEST_LEN]);
    loop {
        if input.buffer().len() < REQUEST_LEN {
            out.write_all(&answers)?;
            answers.clear();
        }
        input.read_exact(&mut head)?;
        let head = Head::read(&head).ok_or("no request")?;
        if head.command == wire::DISCONNECT {
            return Ok(());
        }
        let at = usize::try_from(head.place)? / SECTOR;
        let sector = sectors.get(at).filter(|_| head.len as usize == SECTOR);
        let sector = sector.ok_or("a request that is no sector")?;
        answers.extend_from_slice(&wire::REPLY.to_be_bytes());
        answers.extend_from_slice(&[0; 4]);
        answers.extend_from_slice(&head.cookie.to_be_bytes());
        let mut sector = sector.lock().unwrap_or_else(PoisonError::into_inner);
        match head.command {
            wire::READ => answers.extend_from_slice(&sector),
            wire::WRITE => {
                if input.buffer().len() < SECTOR {
                    // The rest must be waited for, and what is done already is not to wait for that.
                    out.write_all(&answers[..answers.len() - wire::REPLY_LEN])?;
                    answers.drain(..answers.len() - wire::REPLY_LEN);
                }
                input.read_exact(&mut sector)?;
            }
            _ => return Err("a command that the floor does not know".into()),
        }
    }
}
