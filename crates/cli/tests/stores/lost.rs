//! Devices of a matrix that are really lost, under a running server: the file of one is truncated under load, so that
//! the next load or store in its mapping is a SIGBUS. Acknowledged writes are there, reads are right, the other
//! devices carry on, and a new device takes the place of the lost one.

use crate::pool::{Place, Pool};
use crate::session::{self, Client, Outcome, Reply, Served};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WRITERS: usize = 3;

/// Approximate number of keys of a writer: after that it only increments its counter, however long the test takes, so
/// that no device gets full.
const KEYS_MAX: u64 = 6000;

fn key(writer: usize, number: u64) -> Vec<u8> {
    format!("key:{writer}:{number}").into_bytes()
}

/// A text that occurs nowhere else.
fn value(writer: usize, number: u64) -> Vec<u8> {
    format!("<{writer}:{number:08}>").repeat(12).into_bytes()
}

fn sequence(writer: usize) -> Vec<u8> {
    format!("sequence:{writer}").into_bytes()
}

/// The acknowledgements of every writer.
#[derive(Default)]
struct Acknowledged {
    /// The number of keys of its own that it has written.
    keys: [AtomicU64; WRITERS],
    /// The number of its increments.
    counted: [AtomicU64; WRITERS],
    stop: AtomicBool,
    /// A client may get an error that the outcome is not known.
    may_refuse: bool,
    /// The number of such errors.
    refused: AtomicU64,
}

impl Acknowledged {
    /// True if the client got an error, where that is allowed.
    fn is_refused(&self, reply: &Reply) -> bool {
        let is_refused = self.may_refuse && matches!(reply, Reply::Failed(_));
        self.refused.fetch_add(u64::from(is_refused), Ordering::SeqCst);
        is_refused
    }

    fn total(&self) -> u64 {
        self.keys.iter().map(|keys| keys.load(Ordering::SeqCst)).sum()
    }

    fn rounds(&self) -> u64 {
        self.counted.iter().map(|counted| counted.load(Ordering::SeqCst)).sum()
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits for so many more rounds of all writers together.
    fn wait_for(&self, more: u64) {
        let goal = self.rounds() + more;
        while self.rounds() < goal && !self.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes new keys, one by itself and two at once, and increments a counter, which depends on its stored value.
    fn write(&self, writer: usize, mut client: Client) -> Outcome<()> {
        while !self.is_over() {
            let number = self.keys[writer].load(Ordering::SeqCst);
            if number < KEYS_MAX && !self.write_three(writer, number, &mut client)? {
                return Ok(());
            }
            let counted = self.counted[writer].load(Ordering::SeqCst) + 1;
            let reply = client.call(&[b"INCR", &sequence(writer)])?;
            if self.is_refused(&reply) {
                return Ok(());
            }
            assert_eq!(reply, Reply::Number(i64::try_from(counted)?), "{writer}");
            self.counted[writer].store(counted, Ordering::SeqCst);
        }
        Ok(())
    }

    /// False if a write was refused.
    fn write_three(&self, writer: usize, number: u64, client: &mut Client) -> Outcome<bool> {
        let reply = client.call(&[b"SET", &key(writer, number), &value(writer, number)])?;
        if self.is_refused(&reply) {
            return Ok(false);
        }
        assert_eq!(reply, Reply::ok(), "{writer}: {number}");
        self.keys[writer].store(number + 1, Ordering::SeqCst);
        let both = [number + 1, number + 2].map(|it| (key(writer, it), value(writer, it)));
        let [(first, its), (second, seconds)] = &both;
        let reply = client.call(&[b"MSET", first, its, second, seconds])?;
        if self.is_refused(&reply) {
            return Ok(false);
        }
        assert_eq!(reply, Reply::ok(), "{writer}: {number}, a batch");
        self.keys[writer].store(number + 3, Ordering::SeqCst);
        Ok(true)
    }

    /// Reads acknowledged writes.
    fn read(&self, reader: usize, mut client: Client) -> Outcome<()> {
        for step in reader as u64.. {
            if self.is_over() {
                break;
            }
            let writer = step as usize % WRITERS;
            let known = self.keys[writer].load(Ordering::SeqCst);
            if known > 0 {
                let number = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) % known;
                let reply = client.call(&[b"GET", &key(writer, number)])?;
                let is_right = reply == Reply::bulk(value(writer, number));
                assert!(is_right || self.is_refused(&reply), "{writer}: {number}: {reply:?}");
            }
            let counted = self.counted[writer].load(Ordering::SeqCst);
            let reply = client.call(&[b"GET", &sequence(writer)])?;
            let is_right = counted == 0 || number_of(&reply).is_ok_and(|it| it >= counted);
            assert!(is_right || self.is_refused(&reply), "{writer}: {reply:?} of {counted}");
            if step % 64 == 0 {
                let known = self.total();
                let reply = client.call(&[b"DBSIZE"])?;
                let is_whole = matches!(reply, Reply::Number(found) if found as u64 >= known);
                assert!(is_whole || self.is_refused(&reply), "{reply:?} of {known}");
            }
        }
        Ok(())
    }

    /// Every acknowledged write must be there.
    fn check(&self, served: &Served) -> Outcome<()> {
        let mut client = served.connect()?;
        for writer in 0..WRITERS {
            for number in 0..self.keys[writer].load(Ordering::SeqCst) {
                let reply = client.call(&[b"GET", &key(writer, number)])?;
                assert_eq!(reply, Reply::bulk(value(writer, number)), "{writer}: {number}");
            }
            let counted = number_of(&client.call(&[b"GET", &sequence(writer)])?)?;
            // The last increment may have been made, and not answered.
            let known = self.counted[writer].load(Ordering::SeqCst);
            assert!((known..=known + 1).contains(&counted), "{writer}: {counted} of {known}");
        }
        Ok(())
    }

    /// Lets clients write and read during `act`.
    fn while_loaded(&self, served: &Served, act: impl FnOnce() -> Outcome<()>) -> Outcome<()> {
        self.stop.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let mut clients = Vec::new();
            for number in 0..2 * WRITERS {
                let client = served.connect()?;
                clients.push(scope.spawn(move || {
                    let done = match number.checked_sub(WRITERS) {
                        None => self.write(number, client),
                        Some(reader) => self.read(reader, client),
                    };
                    // A client has failed: the others stop.
                    self.stop.fetch_or(done.is_err(), Ordering::SeqCst);
                    done.map_err(|error| error.to_string())
                }));
            }
            let ends = Ends(&self.stop);
            let acted = act();
            drop(ends);
            for client in clients {
                client.join().expect("what a client is told is right")?;
            }
            acted
        })
    }
}

/// Ends the load in any case.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn number_of(reply: &Reply) -> Outcome<u64> {
    match reply {
        Reply::Bulk(Some(text)) => Ok(std::str::from_utf8(text)?.parse()?),
        other => Err(format!("no number: {other:?}").into()),
    }
}

/// Cuts the file of a device short.
fn cut(matrix: &Pool, device: &str, len: u64) -> Outcome<()> {
    let file = File::options().write(true).open(matrix.path.join(device))?;
    Ok(file.set_len(len)?)
}

/// A server whose error output goes to a file.
fn serve(matrix: &Pool) -> Outcome<Served> {
    let complaints = File::options().append(true).create(true).open(complaints(matrix))?;
    Served::start_complaining_to(complaints, &["--pool", &matrix.name])
}

fn complaints(matrix: &Pool) -> std::path::PathBuf {
    matrix.path.with_extension("complaints")
}

/// Asks a server about its matrix.
fn ask(served: &Served, code: i32, words: &[&str]) -> Outcome<String> {
    session::expect(code, &[&["matrix"], words, &["--server", &served.address]].concat())
}

fn state_of(served: &Served, device: &str) -> Outcome<String> {
    let status = ask(served, 0, &["status", "--json"])?;
    let told: serde_json::Value = serde_json::from_str(&status)?;
    let mut devices = told["devices"].as_array().into_iter().flatten();
    let state = devices.find(|it| it["device"] == device).map(|it| &it["state"]);
    Ok(state.and_then(|it| it.as_str()).ok_or(status)?.to_owned())
}

/// The status must name the device as absent, with the reason; so must the server's error output.
fn is_told(served: &Served, matrix: &Pool, device: &str) -> Outcome<()> {
    let status = ask(served, 0, &["status", "--json"])?;
    assert_eq!(state_of(served, device)?, "absent");
    let reason = format!("{device}: pool {}/{device}: the medium is gone", matrix.name);
    assert!(status.contains(&reason), "{status}");
    let line = format!("pool {}/{device}: its medium is gone", matrix.name);
    let complaints = || std::fs::read_to_string(complaints(matrix));
    // The thread that met the fault writes the line last; another one may have left the device out by then.
    let since = Instant::now();
    while !complaints()?.contains(&line) && since.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let complaints = complaints()?;
    assert_eq!(complaints.matches(&line).count(), 1, "{complaints}");
    assert!(!complaints.contains("panicked"), "{complaints}");
    Ok(())
}

fn is_whole(status: &str) {
    assert!(status.contains("\"degraded\":false") && status.contains("\"damaged\":[]"), "{status}");
}

#[test]
fn a_device_that_goes_under_load_costs_nothing_and_is_replaced() -> Outcome<()> {
    let place = Place::in_memory()?;
    for (engine, left) in [("bptree", 0), ("scmkv", 1 << 20)] {
        let arguments = ["--matrix", "2x2", "--engine", engine, "--size", "32MiB"];
        let matrix = place.created(engine, &arguments)?;
        let served = serve(&matrix)?;
        let acknowledged = Acknowledged::default();
        acknowledged.while_loaded(&served, || {
            acknowledged.wait_for(1000);
            cut(&matrix, "g0d1", left)?;
            acknowledged.wait_for(1000);
            is_told(&served, &matrix, "g0d1")?;
            // The truncated rest of it is not made a device again.
            ask(&served, 2, &["replace", "--device", "g0d1"])?;
            assert_eq!(std::fs::metadata(matrix.path.join("g0d1"))?.len(), left);
            ask(&served, 0, &["replace", "--device", "g0d1", "--fresh"])?;
            is_whole(&ask(&served, 0, &["status", "--json"])?);
            acknowledged.wait_for(400);
            Ok(())
        })?;
        acknowledged.check(&served)?;
        served.kill()?;
        let served = serve(&matrix)?;
        acknowledged.check(&served)?;
        served.terminate()?;
        matrix.is_sound()?;
        // The new device has all records, too.
        std::fs::remove_file(matrix.path.join("g0d0"))?;
        let served = serve(&matrix)?;
        acknowledged.check(&served)?;
        served.terminate()?;
        matrix.remove()?;
    }
    Ok(())
}

/// The device from which others are filled is lost: they are filled from the remaining one.
#[test]
fn a_copy_goes_on_when_the_device_that_it_is_made_from_goes() -> Outcome<()> {
    let place = Place::in_memory()?;
    let arguments = ["--matrix", "2x3", "--engine", "bptree", "--size", "32MiB"];
    let matrix = place.created("copied", &arguments)?;
    let acknowledged = Acknowledged::default();
    let served = serve(&matrix)?;
    acknowledged.while_loaded(&served, || {
        acknowledged.wait_for(2000);
        Ok(())
    })?;
    served.terminate()?;
    std::fs::remove_file(matrix.path.join("g0d0"))?;
    let served = serve(&matrix)?;
    acknowledged.while_loaded(&served, || {
        let replace = ["replace", "--device", "g0d0", "--limit", "128KiB"];
        std::thread::scope(|scope| {
            let replaced = scope.spawn(|| ask(&served, 0, &replace).map_err(|it| it.to_string()));
            while !ask(&served, 0, &["status", "--json"])?.contains("\"stage\":\"filling\"") {
                assert!(!replaced.is_finished(), "it was cut too late");
            }
            // The copy is being made from the last device.
            cut(&matrix, "g0d2", 0)?;
            replaced.join().expect("it ends")?;
            Ok(())
        })
    })?;
    assert_eq!(state_of(&served, "g0d0")?, "current");
    is_told(&served, &matrix, "g0d2")?;
    served.kill()?;
    std::fs::remove_file(matrix.path.join("g0d1"))?;
    // The device that was filled is the only one left of its group.
    let served = serve(&matrix)?;
    acknowledged.check(&served)?;
    served.terminate()
}

/// The records of the last device of a group are lost: a client that asks for them gets an error, and never anything
/// else. The other group goes on.
#[test]
fn the_last_device_of_a_group_takes_its_keys_with_it_and_nothing_else() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix = place.created("alone", &["--matrix", "2x1", "--size", "32MiB"])?;
    let served = serve(&matrix)?;
    let acknowledged = Acknowledged { may_refuse: true, ..Acknowledged::default() };
    acknowledged.while_loaded(&served, || {
        acknowledged.wait_for(1000);
        cut(&matrix, "g0d0", 0)?;
        // Until each writer has reached keys of the group.
        while acknowledged.refused.load(Ordering::SeqCst) < 200 && !acknowledged.is_over() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })?;
    let mut client = served.connect()?;
    let (mut kept, mut refused) = (0, 0);
    for number in 0..acknowledged.keys[0].load(Ordering::SeqCst) {
        let reply = client.call(&[b"GET", &key(0, number)])?;
        match reply {
            Reply::Failed(_) => refused += 1,
            reply => {
                assert_eq!(reply, Reply::bulk(value(0, number)), "{number}");
                kept += 1;
            }
        }
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused");
    Ok(())
}

/// If a write waits for one device only, writes that only this device had are lost with it: a client that reads them
/// gets an error that the value is not known, and never an older one.
#[test]
fn where_a_write_waits_for_one_device_nothing_older_is_shown() -> Outcome<()> {
    let place = Place::in_memory()?;
    let matrix =
        place.created("first", &["--matrix", "2x2", "--ack", "first", "--size", "32MiB"])?;
    let served = serve(&matrix)?;
    let acknowledged = Acknowledged { may_refuse: true, ..Acknowledged::default() };
    acknowledged.while_loaded(&served, || {
        acknowledged.wait_for(1000);
        cut(&matrix, "g0d1", 1 << 16)?;
        // Readers access it sooner or later.
        while !ask(&served, 0, &["status", "--json"])?.contains("absent") && !acknowledged.is_over()
        {
        }
        is_told(&served, &matrix, "g0d1")
    })?;
    let mut client = served.connect()?;
    for writer in 0..WRITERS {
        for number in 0..acknowledged.keys[writer].load(Ordering::SeqCst) {
            let reply = client.call(&[b"GET", &key(writer, number)])?;
            let is_right = reply == Reply::bulk(value(writer, number));
            assert!(is_right || acknowledged.is_refused(&reply), "{writer}: {number}: {reply:?}");
        }
    }
    Ok(())
}
