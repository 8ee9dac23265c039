//! A block device in a user's setup: `coreplane nbd serve` on memory and on an ordinary file, and unmodified clients.
//!
//! `cargo xtask test` installs missing clients. Those that it could not install it names in
//! `COREPLANE_CLIENTS_LEFT_OUT`; without that a missing client is a failure here.

use crate::disk::{Disk, lack, python_runs, run, succeeds};
use crate::pool::{Place, Pool};
use crate::session::{self, Outcome, Served, expect, text};
use coreplane_tio::{Options, Source, Tio};
use std::io::Write;
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;

/// On memory, in four pools; and on a file, in one.
fn disks() -> Outcome<[Disk; 2]> {
    let memory = Disk::new(Place::in_memory()?, &["--size", "64MiB"])?;
    let file = ["--size", "64MiB", "--queues", "1", "--media", "file"];
    Ok([memory, Disk::new(Place::on_disk()?, &file)?])
}

/// Bytes that look random.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut word = seed ^ 0x9e37_79b9_7f4a_7c15;
    let words = (0..len / 8).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.collect()
}

#[test]
fn nbdinfo_and_nbdcopy_find_a_disk_that_keeps_what_it_is_given() -> Outcome<()> {
    if lack(&["nbdinfo", "nbdcopy"])? {
        return Ok(());
    }
    for disk in disks()? {
        let served = disk.serve()?;
        let info = succeeds("nbdinfo", &[&disk.uri("@device=7,interval=10ms")])?;
        for line in ["export-size: 67108864", "can_fua: true", "can_multi_conn: true"] {
            assert!(info.contains(line), "{line}: {info}");
        }
        let bytes = noise(1, 40 * MIB);
        let (from, to) = (disk.place.argument("from")?, disk.place.argument("to")?);
        std::fs::write(&from, &bytes)?;
        let tcp = format!("nbd://{}/disk@device=8", served.address);
        succeeds("nbdcopy", &["--connections=4", "--flush", &from, &tcp])?;
        let map = succeeds("nbdinfo", &["--map", "--totals", &disk.uri("")])?;
        assert!(map.contains("data") && map.contains("hole,zero"), "{map}");
        disk.finish(served)?;

        let served = disk.serve()?;
        succeeds("nbdcopy", &[&disk.uri(""), &to])?;
        let copied = std::fs::read(&to)?;
        assert!(copied.len() == 64 * MIB && copied[..bytes.len()] == bytes);
        assert!(copied[bytes.len()..].iter().all(|byte| *byte == 0));
        disk.finish(served)?;
        let verified = disk.verify(0)?;
        assert!(verified.contains("\"sectors\":10240") && verified.contains("\"sound\":true"));
    }
    Ok(())
}

/// Runs commands of qemu-io, which prints differences from the expected pattern.
fn qemu_io(disk: &Disk, commands: &[&str]) -> Outcome<()> {
    let uri = disk.uri("@device=3,interval=1s");
    let mut arguments = vec!["-f", "raw", "-t", "none", "-d", "unmap"];
    arguments.extend(commands.iter().flat_map(|command| ["-c", command]));
    arguments.push(&uri);
    let said = succeeds("qemu-io", &arguments)?;
    assert!(!said.contains("failed") && !said.contains("rror"), "{said}");
    Ok(())
}

#[test]
fn qemu_io_finds_its_patterns_after_a_restart() -> Outcome<()> {
    if lack(&["qemu-io"])? {
        return Ok(());
    }
    for disk in disks()? {
        let served = disk.serve()?;
        qemu_io(&disk, &["write -P 0xab 0 1M", "flush", "read -P 0xab 0 1M", "read -P 0 1M 1M"])?;
        // Parts of sectors, and a write across a sector boundary.
        qemu_io(
            &disk,
            &["write -f -P 0xcd 1000 3000", "write -P 0xef 8000 500", "discard 64k 64k"],
        )?;
        qemu_io(
            &disk,
            &["write -z 128k 64k", "write -P 7 63M 1M", "aio_write -P 9 2M 8M", "aio_flush"],
        )?;
        disk.finish(served)?;
        let served = disk.serve()?;
        qemu_io(
            &disk,
            &["read -P 0xab 0 1000", "read -P 0xcd 1000 3000", "read -P 0xab 4000 4000"],
        )?;
        qemu_io(&disk, &["read -P 0xef 8000 500", "read -P 0xab 8500 4000", "read -P 0 64k 128k"])?;
        qemu_io(&disk, &["read -P 0xab 192k 832k", "read -P 9 2M 8M", "read -P 7 63M 1M"])?;
        disk.finish(served)?;
    }
    Ok(())
}

#[test]
fn fio_verifies_what_it_has_written() -> Outcome<()> {
    if lack(&["fio"])? {
        return Ok(());
    }
    if !succeeds("fio", &["--enghelp"])?.contains("nbd") {
        return Ok(writeln!(std::io::stdout(), "\nSKIPPED: fio: it has no engine for NBD")?);
    }
    for disk in disks()? {
        let served = disk.serve()?;
        let uri = format!("--uri={}", disk.uri("@device=4,interval=100ms"));
        let job = ["--name=job", "--ioengine=nbd", "--thread=1", "--output-format=terse", &uri];
        for work in [
            &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--fsync=64", "--size=24M"][..],
            &["--rw=randrw", "--bsrange=4k-64k", "--iodepth=8", "--size=16M"],
            &["--rw=write", "--bs=1M", "--iodepth=4", "--offset=32M", "--size=32M"],
        ] {
            let verify = [
                "--verify=crc32c",
                "--verify_fatal=1",
                "--do_verify=1",
                "--randseed=5",
                "--verify_state_save=0",
            ];
            let said = succeeds("fio", &[&job[..], work, &verify].concat())?;
            assert!(!said.contains("rror") && !said.contains("verify:"), "{said}");
        }
        disk.finish(served)?;
    }
    Ok(())
}

/// The file and offset of these bytes in the pools of a disk. They occur once.
fn find(disk: &Disk, bytes: &[u8]) -> Outcome<(Pool, usize)> {
    let mut pools = vec![disk.pool.path.clone()];
    if disk.pool.path.is_dir() {
        pools = (0..4).map(|partition| disk.pool.path.join(format!("q{partition}"))).collect();
    }
    let mut found = Vec::new();
    for path in pools {
        let pool = Pool::at(&path)?;
        let all = pool.bytes()?;
        let places = (0..all.len()).step_by(64).filter(|at| all[*at..].starts_with(bytes));
        found.extend(places.map(|place| (pool.clone(), place)));
    }
    assert_eq!(found.len(), 1, "{found:?}");
    found.pop().ok_or_else(|| "nowhere".into())
}

#[test]
fn a_flipped_byte_is_an_error_of_its_sector_until_that_is_written_anew() -> Outcome<()> {
    if lack(&["nbdsh", "nbdcopy"])? {
        return Ok(());
    }
    for disk in disks()? {
        let served = disk.serve()?;
        let (bytes, from) = (noise(2, 8 * MIB), disk.place.argument("from")?);
        std::fs::write(&from, &bytes)?;
        succeeds("nbdcopy", &[&from, &disk.uri("")])?;
        disk.finish(served)?;
        let (sector, within) = (777, 1234);
        let start = sector * 4096;
        let (pool, place) = find(&disk, &bytes[start..start + 4096])?;
        let mut all = pool.bytes()?;
        all[place + within] ^= 1;
        pool.put_bytes(&all)?;

        let said = disk.verify(1)?;
        assert!(said.contains("\"damaged\":[777]") && said.contains("\"sound\":false"), "{said}");
        let plain = expect(1, &["nbd", "verify", "--pool", &disk.pool.name])?;
        assert!(plain.contains("sector 777 (byte 3182592)"), "{plain}");
        let served = disk.serve()?;
        let script = format!(
            "bytes = open({from:?}, 'rb').read()
# Requests that libnbd would refuse by itself are to reach the server.
disk.set_strict_mode(0)
start = {start}
def fails(call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == errno.EIO, error
        return
    raise AssertionError('no error')
for offset, length in [(start, 4096), (start + 4000, 10), (start - 4096, 12288), (0, {len})]:
    fails(disk.pread, length, offset)
# Of a part of it nobody knows the rest.
fails(disk.pwrite, b'x' * 512, start)
fails(disk.pread, 4096, start)
for offset in range(0, len(bytes), 4096):
    if offset != start:
        assert disk.pread(4096, offset) == bytes[offset:offset + 4096], offset
disk.pwrite(bytes[start:start + 4096], start, nbd.CMD_FLAG_FUA)
assert disk.pread(len(bytes), 0) == bytes
print('mended')",
            len = bytes.len(),
        );
        assert!(python_runs(&disk.uri(""), &script)?.contains("mended"));
        disk.finish(served)?;
    }
    Ok(())
}

#[test]
fn a_disk_grows_and_keeps_its_bytes() -> Outcome<()> {
    if lack(&["nbdsh"])? {
        return Ok(());
    }
    for disk in disks()? {
        let grow =
            |code, size| expect(code, &["nbd", "grow", "--pool", &disk.pool.name, "--size", size]);
        let served = disk.serve()?;
        python_runs(&disk.uri(""), "disk.pwrite(b'end!' * 1024, (64 << 20) - 4096)")?;
        grow(2, "128MiB")?;
        disk.finish(served)?;
        grow(2, "64TiB")?;
        assert!(grow(0, "1MiB")?.contains("64.00 MiB"), "it is not made smaller");
        assert!(grow(0, "200MiB")?.contains("200.00 MiB"));
        let served = disk.serve()?;
        let script = "assert disk.get_size() == 200 << 20
assert disk.pread(8192, (64 << 20) - 4096) == b'end!' * 1024 + bytes(4096)
disk.pwrite(b'more' * 1024, (200 << 20) - 4096)
assert disk.pread(4096, (200 << 20) - 4096) == b'more' * 1024";
        python_runs(&disk.uri(""), script)?;
        disk.finish(served)?;
    }
    Ok(())
}

/// The entry of a flushed write is damaged after a kill: whoever opens the disk first tells, since nobody can later.
#[test]
fn whoever_opens_a_disk_first_tells_what_is_lost() -> Outcome<()> {
    let place = Place::on_disk()?;
    let (alive, killed) = (place.path("alive"), place.pool("killed")?);
    let media = "file".parse()?;
    let options = Options { size: 1 << 20, partitions: 1, media, ..Options::default() };
    let disk = coreplane_tio::Disk::create(&alive, &options)?;
    let mut tios = [Tio { fua: true, ..Tio::write(77 * 4096, noise(3, 4096)) }];
    disk.run(&Source::of_connection(0), &mut tios);
    // What a killed process leaves.
    let mut bytes = std::fs::read(&alive)?;
    let words = |at: usize, word: u64| bytes[at..].starts_with(&word.to_le_bytes());
    let is_entry = |at: &usize| words(*at, 77) && words(at + 16, 1);
    let entry = (0..bytes.len() - 32).step_by(8).find(is_entry).ok_or("no entry")?;
    bytes[entry] ^= 3;
    let lost = "up to 1 writes that were flushed";
    for (code, word, size) in [(2, "is more than the", "64TiB"), (0, "2.00 MiB", "2MiB")] {
        std::fs::write(&killed.path, &bytes)?;
        let grow = ["nbd", "grow", "--media", "file", "--size", size];
        let (ended, said) = killed.ask(&grow, b"")?;
        assert!(ended == code && said.contains(word) && said.contains(lost), "{ended}: {said}");
        let (_, said) = killed.ask(&["nbd", "verify", "--media", "file"], b"")?;
        assert!(!said.contains(lost), "{said}");
    }
    // Before the disk is read, which may take hours.
    std::fs::write(&killed.path, &bytes)?;
    let mut verify = Command::new(env!("CARGO_BIN_EXE_coreplane"));
    verify.args(["nbd", "verify", "--media", "file", "--pool", &killed.name]);
    let (_, nobody) = std::io::pipe()?;
    let output = verify.stdout(nobody).stderr(Stdio::piped()).spawn()?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(5) && said.contains(lost), "{said}");
    Ok(())
}

#[test]
fn a_read_only_disk_and_a_full_house_refuse() -> Outcome<()> {
    if lack(&["nbdsh", "nbdinfo"])? {
        return Ok(());
    }
    let disk =
        Disk::new(Place::in_memory()?, &["--size", "4MiB", "--read-only", "--maxclients", "1"])?;
    let served = disk.serve()?;
    let script = "assert disk.is_read_only()
disk.set_strict_mode(0)
for call in (lambda: disk.pwrite(b'x' * 4096, 0), lambda: disk.zero(4096, 0), lambda: disk.trim(4096, 0)):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == errno.EPERM, error
    else:
        raise AssertionError('written')
assert disk.pread(4096, 0) == bytes(4096)
other = nbd.NBD()
try:
    other.connect_uri(disk.get_uri())
except nbd.Error:
    print('refused')";
    assert!(python_runs(&disk.uri(""), script)?.contains("refused"));
    for wrong in ["nbd+unix:///other?socket=", "nbd+unix:///disk@speed=1?socket="] {
        let (is_good, said) = run("nbdinfo", &[&format!("{wrong}{}", disk.socket)])?;
        assert!(!is_good, "{said}");
    }
    disk.finish(served)
}

/// Runs `coreplane nbd …` on a pool; it must end with this code and print this word.
fn refused(code: i32, word: &str, pool: &Pool, command: &[&str]) -> Outcome<()> {
    pool.says(code, &[word], &[&["nbd"], command].concat())
}

const SERVE: [&str; 3] = ["serve", "--port", "0"];

#[test]
fn what_somebody_has_open_is_not_opened_again() -> Outcome<()> {
    let disk = Disk::new(Place::in_memory()?, &["--size", "16MiB", "--queues", "2"])?;
    let served = disk.serve()?;
    for command in [&SERVE[..], &["verify"], &["grow", "--size", "32MiB"]] {
        refused(2, "is locked: another process", &disk.pool, command)?;
    }
    let other = disk.place.pool("other")?;
    let port = served.address.rsplit(':').next().unwrap_or_default();
    let size = ["serve", "--size", "16MiB", "--queues", "2"];
    let there = [&size[..], &["--port", port]].concat();
    refused(3, "Address already in use", &other, &there)?;
    let there = [&size[..], &["--unixsocket", &disk.socket]].concat();
    refused(3, "Address already in use", &other, &there)?;
    disk.finish(served)
}

#[test]
fn pools_that_are_no_disk_are_refused_and_a_disk_is_no_store() -> Outcome<()> {
    let disk = Disk::new(Place::in_memory()?, &["--size", "16MiB", "--queues", "2"])?;
    disk.finish(disk.serve()?)?;
    let all = [&SERVE[..], &["verify"], &["grow", "--size", "32MiB"]];
    let store = disk.place.created("store", &["--size", "32MiB"])?;
    let (empty, junk) = (disk.place.pool("empty")?, disk.place.pool("junk")?);
    empty.put_bytes(b"")?;
    junk.put_bytes(&noise(3, MIB))?;
    for command in all {
        refused(2, "holds `scmkv`, not `tio`", &store, command)?;
        refused(2, "not a pool", &empty, command)?;
        refused(2, "not a pool", &junk, command)?;
    }
    store.is_sound()?;
    refused(2, "No such file", &disk.place.pool("none")?, &["verify"])?;
    let first = Pool::at(&disk.pool.path.join("q0"))?;
    for command in session::NEED_A_POOL {
        let (code, said) = disk.pool.ask(command, b"")?;
        assert!(code == 2, "{command:?}: {code}: {said}");
        let (code, said) = first.ask(command, b"")?;
        assert!(code == 2 && said.contains("tio"), "{command:?}: {code}: {said}");
    }
    disk.verify(0).map(drop)
}

#[test]
fn a_partition_that_is_missing_or_anothers_is_no_disk() -> Outcome<()> {
    let disk = Disk::new(Place::in_memory()?, &["--size", "16MiB", "--queues", "2"])?;
    disk.finish(disk.serve()?)?;
    let (first, second) = (disk.pool.path.join("q0"), disk.pool.path.join("q1"));
    let away = disk.place.path("away");
    let all = [&SERVE[..], &["verify"], &["grow", "--size", "32MiB"]];
    std::fs::rename(&second, &away)?;
    for command in all {
        refused(2, "No such file", &disk.pool, command)?;
    }
    std::fs::copy(&first, &second)?;
    for command in all {
        refused(2, "in the place of partition 1", &disk.pool, command)?;
    }
    std::fs::rename(&away, &second)?;
    std::fs::rename(&first, &away)?;
    for command in all {
        let (code, said) = disk.pool.ask(&[&["nbd"], command].concat(), b"")?;
        assert_eq!(code, 2, "{said}");
    }
    assert!(!first.exists(), "a disk that lacks a partition is not made anew");
    std::fs::rename(&away, &first)?;
    // A single partition is no disk either.
    refused(2, text(&second)?, &Pool::at(&second)?, &["verify"])?;
    disk.finish(disk.serve()?)
}

#[test]
fn what_cannot_be_leaves_nothing_behind() -> Outcome<()> {
    let place = Place::in_memory()?;
    let (pool, socket) = (place.pool("disk")?, place.argument("socket")?);
    for (code, word, arguments) in [
        (2, "0 partitions", &["--queues", "0"][..]),
        (2, "65 partitions", &["--queues", "65"]),
        (2, "a disk of 0 bytes", &["--size", "0"]),
        (2, "more than the", &["--size", "64TiB"]),
        (4, "no space", &["--size", "900GiB"]),
        (4, "no space", &["--size", "900GiB", "--queues", "1"]),
        (3, "no name of an export", &["--size", "1MiB", "--export", "a@b"]),
        (3, "no name of an export", &["--size", "1MiB", "--export", ""]),
        (64, "none of paper", &["--balance", "best"]),
        (64, "none of multi", &["--driver", "best"]),
        (64, "none of auto", &["--media", "best"]),
        (64, "size", &["--size", "many"]),
        (64, "unixsocketperm", &["--unixsocketperm", "9"]),
    ] {
        refused(code, word, &pool, &[&SERVE[..], &["--unixsocket", &socket], arguments].concat())?;
        assert!(!pool.is_there()?, "{arguments:?} leaves {}", pool.name);
    }
    let disk = Disk::new(place, &["--size", "16MiB"])?;
    disk.finish(disk.serve()?)?;
    expect(4, &["nbd", "grow", "--pool", &disk.pool.name, "--size", "900GiB"])?;
    disk.finish(disk.serve()?)?;
    for wrong in [&["nbd"][..], &["nbd", "serve"], &["nbd", "verify"], &["nbd", "mend"]] {
        expect(64, wrong)?;
    }
    Ok(())
}

#[test]
fn a_server_that_is_told_to_end_answers_what_it_has_begun() -> Outcome<()> {
    if lack(&["nbdsh"])? {
        return Ok(());
    }
    for disk in disks()? {
        let served = disk.serve()?;
        let ended = end_in_mid_write(&disk, served);
        assert!(ended?.contains("kept"), "no write was acknowledged");
        disk.finish(disk.serve()?)?;
    }
    Ok(())
}

/// Sends SIGTERM while requests are pending; the acknowledged ones must be there.
fn end_in_mid_write(disk: &Disk, served: Served) -> Outcome<String> {
    let (uri, ready) = (disk.uri(""), disk.place.path("ready"));
    let write = format!(
        "acknowledged = []
def done(number):
    return lambda error: acknowledged.append(number) if not error.value else None
try:
    for number in range(1 << 20):
        bytes = nbd.Buffer.from_bytearray(bytearray(number.to_bytes(4, 'little') * 1024))
        disk.aio_pwrite(bytes, number % 16384 * 4096, done(number))
        while disk.aio_in_flight() > 16:
            disk.poll(-1)
        if number == 2000:
            open({ready:?}, 'w').close()
except nbd.Error:
    pass
print(*acknowledged)"
    );
    let acknowledged = std::thread::scope(|scope| {
        let writer = scope.spawn(|| python_runs(&uri, &write));
        while !ready.exists() && !writer.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        served.terminate()?;
        writer.join().map_err(|_| "the writer has panicked")?
    })?;
    let served = disk.serve()?;
    let numbers = disk.place.argument("numbers")?;
    std::fs::write(&numbers, acknowledged)?;
    let check = format!(
        "kept = dict()
numbers = [int(number) for number in open({numbers:?}).read().split()]
for number in numbers:
    kept[number % 16384] = max(number, kept.get(number % 16384, 0))
for sector, number in kept.items():
    found = disk.pread(4096, sector * 4096)
    value = int.from_bytes(found[:4], 'little')
    assert value >= number and found == value.to_bytes(4, 'little') * 1024, (sector, number, value)
print('kept', len(numbers))"
    );
    let said = python_runs(&uri, &check)?;
    std::fs::remove_file(ready)?;
    disk.finish(served)?;
    Ok(said)
}

/// A server that was killed while it made the disk.
#[test]
fn a_disk_whose_making_was_cut_off_is_made_anew() -> Outcome<()> {
    for (disk, is_directory) in disks()?.into_iter().zip([true, false]) {
        let mut first = disk.pool.path.clone();
        if is_directory {
            std::fs::create_dir(&first)?;
            first.push("q0");
        }
        for len in [0, 1 << 20].into_iter().skip(usize::from(!is_directory)) {
            std::fs::write(&first, vec![0; len])?;
            disk.finish(disk.serve()?)?;
            disk.verify(0)?;
            std::fs::remove_file(&first)?;
            if is_directory {
                (1..4).try_for_each(|it| {
                    std::fs::remove_file(disk.pool.path.join(format!("q{it}")))
                })?;
            }
        }
        // Bytes of somebody are left as they are.
        std::fs::write(&first, vec![7; 1 << 20])?;
        assert!(disk.serve().is_err());
        assert!(std::fs::read(&first)? == vec![7; 1 << 20], "it was changed");
    }
    Ok(())
}
