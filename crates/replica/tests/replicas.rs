//! Replicas in one thread: clocks that differ, leaderships that come and go, pools that are nearly full.
use coreplane_engine::{
    Clear, Completion, Deferred, Engine, Error, Horizon, Record, UnixMillis, Visibility,
    WriteOptions,
};
use coreplane_mvcc::{LogMap, MapKind, Options};
use coreplane_pmem::media::sim::{Model, Sim, SimOptions};
use coreplane_replica::{Envelope, FollowerReads, Replica, Settings, map_options};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

struct Seat {
    replica: Arc<Replica>,
    clock: Arc<AtomicU64>,
    _sim: Sim,
}

fn seat(id: u64) -> Seat {
    seat_of(MapKind::List, id, vec![1, 2, 3])
}

fn seat_of(kind: MapKind, id: u64, peers: Vec<u64>) -> Seat {
    seat_on(Model::X86, kind, id, peers)
}

fn seat_on(model: Model, kind: MapKind, id: u64, peers: Vec<u64>) -> Seat {
    let (len, page_size) = (1 << 20, 4096);
    let sim =
        Sim::new(&SimOptions { len, max_len: len, page_size, model, ..SimOptions::default() });
    let sim = sim.expect("memory");
    let options = map_options(&Options { background: false, ..Options::default() });
    let map = LogMap::simulated_create(kind, Arc::clone(sim.space()), &options);
    let settings = Settings { id, identity: id, peers, ..Settings::default() };
    let clock = Arc::new(AtomicU64::new(1000));
    let told = Arc::clone(&clock);
    let time = Arc::new(move || UnixMillis(told.load(Ordering::Relaxed)));
    let replica =
        Replica::open(Box::new(map.expect("create")), settings, Some(time)).expect("open");
    Seat { replica: Arc::new(replica), clock, _sim: sim }
}

/// Ticks all nodes, and delivers all their messages.
fn run(seats: &[Seat], ticks: usize) {
    run_without(seats, ticks, &[]);
}

/// The same without these nodes, which receive nothing and whose messages are dropped.
fn run_without(seats: &[Seat], ticks: usize, cut: &[usize]) {
    let is_cut = |id: u64| cut.contains(&(id as usize - 1));
    for _ in 0..ticks {
        let all = seats.iter().enumerate().filter(|(at, _)| !cut.contains(at));
        all.for_each(|(_, it)| it.replica.tick().expect("tick"));
        loop {
            let letters: Vec<_> = seats.iter().flat_map(|it| it.replica.take_envelopes()).collect();
            if letters.is_empty() {
                break;
            }
            for letter in letters {
                if is_cut(letter.from) || is_cut(letter.to) {
                    continue;
                }
                let to = letter.to as usize - 1;
                seats[to].replica.receive(letter).expect("receive");
            }
        }
    }
}

fn leader(seats: &[Seat]) -> usize {
    leader_without(seats, &[])
}

fn leader_without(seats: &[Seat], cut: &[usize]) -> usize {
    (0..200)
        .find_map(|_| {
            run_without(seats, 1, cut);
            let mut all = seats.iter().enumerate().filter(|(at, _)| !cut.contains(at));
            all.find(|(_, it)| it.replica.leads()).map(|it| it.0)
        })
        .expect("a leader")
}

/// Makes a node the leader.
fn lead(seats: &[Seat], next: usize) {
    for _ in 0..50 {
        if seats[next].replica.leads() {
            return;
        }
        let now = leader(seats);
        seats[now].replica.transfer_leadership(next as u64 + 1).expect("transfer");
        run(seats, 5);
    }
    panic!("{next} does not lead");
}

fn early() -> WriteOptions {
    WriteOptions { completion: Completion::Early, ..WriteOptions::default() }
}

#[test]
fn what_has_expired_for_one_leader_has_for_the_next() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let early = |expires_at: u64| WriteOptions {
        expires_at: Some(UnixMillis(expires_at)),
        completion: Completion::Early,
        ..WriteOptions::default()
    };
    let replica = &seats[first].replica;
    let _sooner = replica.put(b"short", b"1", &early(2000)).expect("put");
    let _later = replica.put(b"long", b"1", &early(9000)).expect("put");
    run(&seats, 3);
    seats[first].clock.store(5000, Ordering::Relaxed);
    let found = replica.get_with(b"short", Visibility::Early, &mut |_| {}).expect("get");
    assert!(!found.hit);
    let rests_on = Horizon::from(found.ticket);
    assert!(!replica.is_durable(&rests_on).expect("ticket"), "it rests on an entry");
    run(&seats, 3);
    assert!(replica.is_durable(&rests_on).expect("ticket"));
    let second = (first + 1) % 3;
    while !seats[second].replica.leads() {
        replica.transfer_leadership(second as u64 + 1).expect("transfer");
        run(&seats, 5);
    }
    // The clock of this node says 1000.
    let next = &seats[second].replica;
    let found = next.get_with(b"short", Visibility::Early, &mut |_| {}).expect("get");
    assert!(!found.hit, "it was said to have expired");
    assert!(Engine::now(&**next) >= UnixMillis(2000), "somebody was told that it is later");
    assert!(next.get_with(b"long", Visibility::Early, &mut |_| {}).expect("get").hit);
}

#[test]
fn what_has_expired_is_swept() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let replica = &seats[first].replica;
    for key in 0..20_u8 {
        let expires_at = (key % 2 == 0).then_some(UnixMillis(2000));
        let options = WriteOptions { expires_at, completion: Completion::Early, ..<_>::default() };
        let _written = replica.put(&[key], b"1", &options).expect("put");
    }
    run(&seats, 3);
    assert_eq!(replica.len().expect("len"), 20);
    seats[first].clock.store(5000, Ordering::Relaxed);
    let (mut from, mut swept) = (Vec::new(), 0);
    loop {
        let (some, next) = replica.sweep_some(&from, 3).expect("sweep");
        swept += some;
        let Some(next) = next else { break };
        from = next;
    }
    run(&seats, 3);
    assert_eq!((swept, replica.len().expect("len")), (10, 10));
    run(&seats, 10);
    assert!(seats.iter().all(|it| it.replica.with_map(|map| map.len()) == 10));
}

#[test]
fn what_others_have_written_is_swept() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    lead(&seats, 0);
    seats[0].replica.sweep_some(b"", 100).expect("sweep");
    lead(&seats, 1);
    let options = WriteOptions { expires_at: Some(UnixMillis(2000)), ..early() };
    let _written = seats[1].replica.put(b"k", b"v", &options).expect("put");
    run(&seats, 5);
    lead(&seats, 0);
    seats[0].clock.store(5000, Ordering::Relaxed);
    assert_eq!(seats[0].replica.sweep_some(b"", 100).expect("sweep").0, 1);
}

/// A lost write stays lost for a caller that has waited for another one since.
#[test]
fn a_horizon_knows_of_each_leadership() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    run(&seats, 3);
    let mut horizon = Horizon::new();
    horizon.include(seats[first].replica.put(b"lost", b"1", &early()).expect("put").ticket());
    // No other node has received it; another one leads.
    leader_without(&seats, &[first]);
    run(&seats, 30);
    lead(&seats, first);
    horizon.include(seats[first].replica.put(b"kept", b"1", &early()).expect("put").ticket());
    run(&seats, 5);
    assert!(matches!(seats[first].replica.is_durable(&horizon), Err(Error::Indeterminate)));
}

/// A count that was taken under a leadership that has ended does not hold.
#[test]
fn what_a_deposed_leader_has_seen_is_no_answer() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let second = leader_without(&seats, &[first]);
    let _written = seats[second].replica.put(b"k", b"v", &early()).expect("put");
    run_without(&seats, 5, &[first]);
    assert_eq!(seats[first].replica.len().expect("it takes itself for the leader"), 0);
    run(&seats, 5);
    let seen = Horizon::from(seats[first].replica.visible_ticket());
    assert!(!matches!(seats[first].replica.is_durable(&seen), Ok(true)));
}

fn alone(kind: MapKind) -> Seat {
    let seats = [seat_of(kind, 1, vec![1])];
    leader(&seats);
    let [seat] = seats;
    seat
}

#[test]
fn proposals_of_a_turn_have_room_together() {
    for (kind, len) in MapKind::ALL.into_iter().flat_map(|kind| [(kind, 1000), (kind, 100_000)]) {
        let Seat { replica, .. } = &alone(kind);
        let mut refused = None;
        for number in 0..3000_u32 {
            match replica.put(&number.to_le_bytes(), &vec![7; len], &early()) {
                Ok(_) => {}
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        assert!(matches!(refused, Some(Error::NoSpace { .. })), "{refused:?} of {kind:?}");
        replica.persisted().expect("it goes on");
        let deleted = replica.delete(&0_u32.to_le_bytes(), &WriteOptions::default());
        assert!(deleted.expect("there is room for deletes").written().is_some());
    }
}

#[test]
fn a_full_cluster_can_be_cleared() {
    for kind in MapKind::ALL {
        let Seat { replica, .. } = &alone(kind);
        let mut count = 0_u32;
        while replica.put(&count.to_le_bytes(), &[7; 8], &early()).is_ok() {
            count += 1;
        }
        replica.persisted().expect("it goes on");
        assert!(count > 2000, "{count} of {kind:?}");
        replica.clear().unwrap_or_else(|error| panic!("{count} of {kind:?}: {error}"));
        assert_eq!(replica.len().expect("len"), 0);
        let _written = replica.put(b"k", b"v", &WriteOptions::default()).expect("there is room");
    }
}

/// A follower that serves reads asks the leader, and then knows an upper bound for the age of its state.
#[test]
fn a_follower_shows_what_it_has() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let expiring = WriteOptions { expires_at: Some(UnixMillis(2000)), ..early() };
    let _written = seats[first].replica.put(b"k", b"v", &expiring).expect("put");
    run(&seats, 3);
    let follower = &seats[(first + 1) % 3];
    let replica = &follower.replica;
    let mut shown = Vec::new();
    let mut get = |follower: &FollowerReads| {
        shown.clear();
        let mut take = |record: Record<'_>| shown = record.value.to_vec();
        let found = follower.get_with(b"k", Visibility::Durable, &mut take).expect("get");
        assert!(found.ticket.is_durable());
        found.hit.then(|| shown.clone())
    };
    let reads = FollowerReads::of(Arc::clone(replica));
    assert!(matches!(replica.get(b"k"), Err(Error::NotLeader { .. })));
    assert_eq!(replica.age(), None, "it has not asked yet");
    let since = Instant::now();
    run(&seats, 2);
    assert!(replica.age().is_some_and(|age| age <= since.elapsed()));
    // Its age counts from its question, however long the answer took.
    std::thread::sleep(Duration::from_millis(40));
    let before = Instant::now();
    replica.tick().expect("tick");
    let asked = replica.take_envelopes();
    std::thread::sleep(Duration::from_millis(40));
    for letter in asked {
        seats[letter.to as usize - 1].replica.receive(letter).expect("receive");
    }
    for _ in 0..10 {
        let letters: Vec<_> = seats.iter().flat_map(|it| it.replica.take_envelopes()).collect();
        for letter in letters {
            seats[letter.to as usize - 1].replica.receive(letter).expect("receive");
        }
    }
    let age = replica.age().expect("an age");
    assert!(age >= Duration::from_millis(40) && age <= before.elapsed(), "{age:?}");
    assert_eq!(get(&reads).as_deref(), Some(&b"v"[..]));
    assert_eq!(reads.len().expect("len"), 1);
    let refused = reads.put(b"k", b"w", &WriteOptions::default());
    assert!(matches!(refused, Err(Error::NotLeader { leader: Some(_) })));
    follower.clock.store(2000, Ordering::Relaxed);
    assert_eq!(get(&reads), None, "it has expired");
    // No node answers any more: its age grows.
    let before = replica.age().expect("an age");
    run_without(&seats, 3, &[first]);
    assert!(replica.age().is_some_and(|age| age > before));
}

/// The records that a follower shows are durable with a majority, even if its own file has not synced them.
#[test]
fn what_a_follower_shows_rests_on_nothing() {
    for kind in MapKind::ALL {
        let seats: Vec<Seat> =
            (1..=3).map(|id| seat_on(Model::File, kind, id, vec![1, 2, 3])).collect();
        let persist = || seats.iter().for_each(|it| it.replica.persisted().expect("persisted"));
        let mut first = None;
        for _ in 0..200 {
            run(&seats, 1);
            persist();
            first = first.or_else(|| seats.iter().position(|it| it.replica.leads()));
        }
        let first = first.expect("a leader");
        let reads = FollowerReads::of(Arc::clone(&seats[(first + 1) % 3].replica));
        let mut hits = 0;
        // Every fifth key stays: the cleaner moves those.
        for number in 0..6000_u32 {
            let key = if number % 5 == 0 { 100 + number / 5 % 800 } else { number % 20 };
            let _written =
                seats[first].replica.put(&key.to_be_bytes(), &[7; 100], &early()).expect("put");
            seats[first].replica.persisted().expect("persisted");
            run(&seats, 1);
            for key in [key, 100 + number * 7 % 800] {
                let key = key.to_be_bytes();
                let found = reads.get_with(&key, Visibility::Early, &mut |_| {}).expect("get");
                assert!(found.ticket.is_durable(), "{kind:?}: it waits for this file");
                hits += u32::from(found.hit);
            }
            persist();
        }
        assert!(hits > 5000, "{hits}");
    }
}

/// Messages to a follower that was cut off arrive all at once. It lacks many entries, and answers as often as reads
/// were asked meanwhile: it must not be sent all missing entries as often.
#[test]
fn a_follower_that_was_cut_off_is_sent_what_it_lacks_a_few_times() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    let cut = (first + 1) % 3;
    let (replica, id) = (&seats[first].replica, cut as u64 + 1);
    let mut kept = Vec::new();
    let deliver = |kept: &mut Vec<Envelope>, bytes: &mut usize| loop {
        let letters: Vec<_> = seats.iter().flat_map(|it| it.replica.take_envelopes()).collect();
        if letters.is_empty() {
            break;
        }
        for letter in letters {
            if letter.to == id && letter.from == first as u64 + 1 {
                let mut encoded = Vec::new();
                letter.encode(&mut encoded);
                *bytes += encoded.len();
                kept.push(letter);
            } else {
                seats[letter.to as usize - 1].replica.receive(letter).expect("receive");
            }
        }
    };
    let mut bytes = 0;
    for number in 0..400_u32 {
        let key = (number % 50).to_be_bytes();
        let _written = replica.put(&key, &[7; 1000], &early()).expect("put");
        let _found = replica.get_with(&key, Visibility::Early, &mut |_| {}).expect("get");
        replica.persisted().expect("it goes on");
        deliver(&mut kept, &mut bytes);
        if number % 100 == 0 {
            replica.tick().expect("tick");
        }
    }
    // The first message is lost, so that the follower lacks everything behind it.
    kept.remove(0);
    bytes = 0;
    while !kept.is_empty() {
        for letter in std::mem::take(&mut kept) {
            seats[cut].replica.receive(letter).expect("receive");
            deliver(&mut kept, &mut bytes);
        }
    }
    for _ in 0..20 {
        replica.tick().expect("tick");
        deliver(&mut kept, &mut bytes);
        for letter in std::mem::take(&mut kept) {
            seats[cut].replica.receive(letter).expect("receive");
            deliver(&mut kept, &mut bytes);
        }
    }
    assert!(bytes < 20 << 20, "{bytes} bytes of 400 values of 1,000");
    let newest = replica.status().newest;
    assert_eq!(seats[cut].replica.status().newest, newest, "it has all");
}

fn put_all(replica: &Replica, count: u32) {
    for number in 0..count {
        let _written = replica.put(&number.to_be_bytes(), &[7; 8], &early()).expect("put");
    }
    replica.persisted().expect("it goes on");
}

fn step(replica: &Replica, clear: &mut Clear) -> bool {
    let is_over = replica.clear_step(clear).expect("a step").is_some();
    replica.persisted().expect("it goes on");
    is_over
}

/// Writes that are made while everything is deleted come after the clear.
#[test]
fn what_is_written_beside_a_clear_stays() {
    let Seat { replica, .. } = &alone(MapKind::List);
    put_all(replica, 5000);
    let mut clear = Clear::default();
    assert!(!step(replica, &mut clear));
    for number in [0, 4999_u32] {
        let _written = replica.put(&number.to_be_bytes(), b"new", &early()).expect("put");
    }
    while !step(replica, &mut clear) {}
    assert_eq!(replica.len().expect("len"), 2);
}

/// An abandoned clear, or one beside that of another caller, leaves no record written before another began.
#[test]
fn a_clear_is_its_callers_own() {
    let Seat { replica, .. } = &alone(MapKind::List);
    put_all(replica, 5000);
    let (mut first, mut second) = (Clear::default(), Clear::default());
    assert!(!step(replica, &mut first));
    put_all(replica, 10);
    while !step(replica, &mut second) {}
    assert_eq!(replica.len().expect("len"), 0);
    put_all(replica, 10);
    while !step(replica, &mut first) {}
    assert_eq!(replica.len().expect("len"), 10, "what was written since stays");
}

/// The changes that a node shows: their indices and keys.
fn shown(replica: &Replica, since: u64) -> Vec<(u64, Vec<u8>)> {
    let entries = replica.changes_since(since, usize::MAX).expect("changes").into_iter();
    let changes = entries.flat_map(|entry| {
        let keys: Vec<_> =
            entry.changes.changes().map(|it| (entry.index, it.key().to_vec())).collect();
        keys
    });
    changes.collect()
}

#[test]
fn changes_are_shown_on_each_node_once_a_majority_has_them() {
    let seats: Vec<Seat> = (1..=3).map(seat).collect();
    let first = leader(&seats);
    run(&seats, 3);
    let since = seats[first].replica.applied();
    for key in [b"a", b"b", b"a"] {
        let _written = seats[first].replica.put(key, b"1", &early()).expect("put");
    }
    run(&seats, 3);
    let all = shown(&seats[first].replica, since);
    assert_eq!(all.iter().map(|it| &it.1[..]).collect::<Vec<_>>(), [b"a", b"b", b"a"]);
    // The first two share an entry, and both changes of a key are shown.
    assert!(all[0].0 == all[1].0 && all[1].0 < all[2].0);
    for seat in &seats {
        assert_eq!(shown(&seat.replica, since), all);
        assert_eq!(shown(&seat.replica, all[0].0), all[2..]);
    }
    // No node answers the leader: its proposal is not shown, and then another entry takes its place.
    let cut = [first];
    let _open = seats[first].replica.put(b"lost", b"1", &early()).expect("put");
    seats[first].replica.persisted().expect("a turn");
    run_without(&seats, 2, &cut);
    assert_eq!(shown(&seats[first].replica, since), all);
    let second = leader_without(&seats, &cut);
    let _written = seats[second].replica.put(b"kept", b"1", &early()).expect("put");
    run(&seats, 20);
    let later = shown(&seats[first].replica, all[2].0);
    assert_eq!(later.iter().map(|it| &it.1[..]).collect::<Vec<_>>(), [b"kept"]);
    let mut feed = seats[first].replica.watch(all[2].0);
    let next = feed.next_within(Duration::ZERO).expect("changes").expect("one");
    assert_eq!((next.index, next.changes.len()), (later[0].0, 1));
    assert!(feed.next_within(Duration::from_millis(1)).expect("changes").is_none());
    assert_eq!(feed.index(), seats[first].replica.applied());
}

#[test]
fn changes_that_are_gone_are_said_to_be_gone() {
    let seats = [seat_of(MapKind::List, 1, vec![1])];
    let replica = &seats[leader(&seats)].replica;
    let since = replica.applied();
    for round in 0..200_u8 {
        let _written = replica.put(b"k", &vec![round; 200_000], &early()).expect("put");
        run(&seats, 2);
    }
    let gone = replica.changes_since(since, 1);
    let Err(Error::HistoryGone { asked, horizon }) = gone else { panic!("{gone:?}") };
    assert!(asked == since && horizon > since && horizon < replica.applied());
    assert_eq!(shown(replica, horizon).len() as u64, replica.applied() - horizon);
    assert!(replica.changes_since(horizon - 1, 1).is_err());
    // A reader that knows a later index than this node waits for it.
    assert!(replica.changes_since(replica.applied() + 9, 1).expect("later").is_empty());
}
