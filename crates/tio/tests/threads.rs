//! Many sources at once on a real disk of files: no sector is torn, none is lost, and reads see earlier writes.

use coreplane_tio::{Disk, Mode, Options, Policy, Source, Tio};
use std::sync::Mutex;
use std::time::Duration;

const SECTOR: u64 = 4096;
const SIZE: u64 = 32 << 20;

struct Draw(u64);

impl Draw {
    fn next(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below.max(1)
    }
}

/// A sector with this writer's thread and serial number.
fn sector(thread: u64, serial: u64) -> Vec<u8> {
    let words = [thread, serial].into_iter().cycle().take(SECTOR as usize / 8);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The thread that has written a sector, and the serial number; none for zeroes.
fn read_back(bytes: &[u8]) -> Option<(u64, u64)> {
    let (words, _) = bytes.as_chunks::<8>();
    let [thread, serial] = [words[0], words[1]].map(u64::from_le_bytes);
    assert!(words.chunks(2).all(|pair| pair == [words[0], words[1]]), "a torn sector");
    (thread > 0).then_some((thread, serial))
}

/// Writes sectors that only this thread writes, and some that all threads write.
fn live(disk: &Disk, thread: u64, rounds: u64) -> Vec<u64> {
    let source = Source {
        connection: thread,
        device: Some(thread),
        interval: Some(Duration::from_millis(thread * 10)),
    };
    disk.join(&source);
    let (mut draw, mut own) = (Draw(thread), vec![0; 64]);
    let place_of = |at: u64| (at * 16 + thread) % (SIZE / SECTOR - 32) * SECTOR;
    for serial in 1..=rounds {
        let mut tios = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..1 + draw.next(6) {
            let at = draw.next(64);
            match draw.next(5) {
                0 | 1 => {
                    own[at as usize] = serial;
                    tios.push(Tio::write(place_of(at), sector(thread, serial)));
                    expected.push(None);
                }
                2 => {
                    tios.push(Tio::read(place_of(at), SECTOR));
                    expected.push(Some(own[at as usize]));
                }
                3 => {
                    // Eight sectors that all threads write; each must be whole.
                    let shared = SIZE - 16 * SECTOR;
                    let two = [sector(thread, serial), sector(thread, serial)].concat();
                    tios.push(Tio::write(shared + draw.next(8) * SECTOR, two));
                    expected.push(None);
                }
                _ => {
                    tios.push(Tio::read(SIZE - 16 * SECTOR, 9 * SECTOR));
                    expected.push(None);
                }
            }
        }
        disk.run(&source, &mut tios);
        for (tio, expected) in tios.iter().zip(expected) {
            assert!(tio.outcome.is_ok(), "{:?}", tio.outcome);
            for bytes in tio.bytes.chunks(SECTOR as usize) {
                let found = read_back(bytes);
                if let Some(serial) = expected {
                    assert_eq!(found.map_or(0, |it| it.1), serial, "of thread {thread}");
                }
            }
        }
        if draw.next(50) == 0 {
            disk.flush().expect("flush");
        }
    }
    disk.leave(&source);
    own
}

#[test]
fn sources_side_by_side_see_whole_sectors_and_their_own_writes() {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    let places = [tempfile::tempdir(), in_memory];
    for (place, mode) in
        places.into_iter().flatten().zip([Mode::MultiQueue, Mode::MultiQueue]).chain(
            [Mode::SingleQueue, Mode::Sync]
                .into_iter()
                .filter_map(|mode| Some((tempfile::tempdir().ok()?, mode))),
        )
    {
        let path = place.path().join("disk");
        let policy = Policy::Rate;
        let options = Options { size: SIZE, partitions: 3, mode, policy, ..Options::default() };
        let disk = Disk::create(&path, &options).expect("create");
        let own = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 1..=6 {
                let (disk, own) = (&disk, &own);
                scope.spawn(move || {
                    own.lock().expect("own").push((thread, live(disk, thread, 400)))
                });
            }
        });
        assert!(disk.loads().iter().all(|load| load.devices == 0));
        disk.check_blocks().expect("blocks");
        assert!(disk.verify(&mut |_, _| {}).expect("verify").is_sound());
        disk.close().expect("close");
        let disk = Disk::open(&path, &options).expect("open");
        let source = Source::of_connection(0);
        for (thread, own) in own.into_inner().expect("own") {
            let thread: u64 = thread;
            for (at, serial) in (0_u64..).zip(own) {
                let place = (at * 16 + thread) % (SIZE / SECTOR - 32) * SECTOR;
                let mut tios = [Tio::read(place, SECTOR)];
                disk.run(&source, &mut tios);
                let found = read_back(&tios[0].bytes).map_or(0, |it| it.1);
                assert_eq!(found, serial, "thread {thread}, {at}, {mode:?}");
            }
        }
        let mut holes = 0;
        disk.status(0, SIZE, &mut |len, has_block| {
            holes += if has_block { 0 } else { len };
            true
        });
        assert!(holes > SIZE / 2 && holes % SECTOR == 0);
    }
}

/// A write that fails does not repeat those before it in its batch: others may have seen and overwritten them.
#[test]
fn a_write_that_was_seen_and_overwritten_is_not_made_again() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a place");
    let path = place.path().join("disk");
    let options = Options { size: 4 << 20, partitions: 1, mode: Mode::Sync, ..Options::default() };
    let (damaged, contested) = (900, 15);
    let write = |at: u64, thread, serial| Tio::write(at * SECTOR, sector(thread, serial));
    let disk = Disk::create(&path, &options).expect("create");
    disk.run(&Source::of_connection(0), &mut [write(damaged, 7, 7)]);
    disk.close().expect("close");
    let mut bytes = std::fs::read(&path).expect("a pool");
    let block = bytes.chunks(SECTOR as usize).position(|block| block == sector(7, 7));
    bytes[block.expect("a block") * SECTOR as usize + 100] ^= 1;
    std::fs::write(&path, bytes).expect("a pool");
    let disk = Disk::open(&path, &options).expect("open");
    let source = Source::of_connection(2);
    let read = |at: u64| {
        let mut tios = [Tio::read(at * SECTOR, SECTOR)];
        disk.run(&source, &mut tios);
        read_back(&tios[0].bytes)
    };
    for serial in 1..=400 {
        // As many as are named together, and more; then one that fails, and one behind it.
        let mut tios: Vec<Tio> = (0..20).map(|at| write(at, 1, serial)).collect();
        tios.push(Tio::write(damaged * SECTOR + 5, vec![1; 7]));
        tios.push(write(30, 1, serial));
        let mut later = [write(contested, 2, serial)];
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| disk.run(&Source::of_connection(1), &mut tios));
            while read(contested) != Some((1, serial)) && !writer.is_finished() {
                std::hint::spin_loop();
            }
            disk.run(&source, &mut later);
        });
        assert!(later[0].outcome.is_ok());
        let failed = tios.iter().map(|tio| tio.outcome.is_err());
        assert!(failed.enumerate().all(|(at, failed)| failed == (at == 20)));
        assert_eq!(read(contested), Some((2, serial)), "it came last");
        for at in [0, 19, 30] {
            assert_eq!(read(at), Some((1, serial)), "beside one that fails");
        }
    }
    disk.check_blocks().expect("blocks");
}
