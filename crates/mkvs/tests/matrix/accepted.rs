//! Devices that may be the only ones with an acknowledged write: which opens are refused, and what is lost if
//! the loss is accepted.

use crate::shelf;
use crate::shelf::sample::{
    FRESH, at, key, opened, put, put_back, refused, standing, take_out, two_by_two,
};
use coreplane_engine::{Engine, Error, Repairable, Visibility, WriteOptions};
use coreplane_mkvs::filter::hash_of;
use coreplane_mkvs::slots::{deal, slot_of};
use coreplane_mkvs::{Ack, CopyOptions, Loss, Matrix, MemberState, Options, ReadPath};
use std::sync::atomic::Ordering;
use std::time::Duration;

#[test]
fn what_cannot_be_proven_current_is_refused() {
    let shelf = two_by_two(Ack::All);
    take_out(&shelf, at(0, 1));
    take_out(&shelf, at(1, 0));
    refused(&shelf, "no group is whole");
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("accepted");
    (0..100).for_each(|number| assert!(matrix.get(&key(0, number)).expect("get").is_some()));
    let missing: Vec<_> = matrix.losses().into_iter().flat_map(|loss| loss.missing).collect();
    assert_eq!(missing, [at(0, 1), at(1, 0)]);
    drop(matrix);
    // They may have continued without the others.
    put_back(&shelf, at(0, 1));
    refused(&shelf, "the device at g0d1 was replaced by another");
}

#[test]
fn at_first_a_missing_member_may_be_the_only_holder() {
    let shelf = two_by_two(Ack::First);
    // It was killed, so that d1 may be the only device with some write.
    take_out(&shelf, at(0, 1));
    refused(&shelf, "was not closed");
    put_back(&shelf, at(0, 1));
    opened(&shelf).expect("all are here").close().expect("close");
    take_out(&shelf, at(0, 1));
    drop(opened(&shelf).expect("it was closed, and each member has all"));
}

/// A device that was left out, and whose peer is gone for good, stands for its group if the loss is accepted;
/// and the peer does not count when it comes back after all.
#[test]
fn one_that_was_left_out_stands_for_its_group_if_that_is_accepted() {
    let shelf = two_by_two(Ack::All);
    take_out(&shelf, at(0, 1));
    let matrix = opened(&shelf).expect("open");
    (0..100).for_each(|number| put(&matrix, &key(0, number), b"newer"));
    matrix.close().expect("close");
    drop(matrix);
    take_out(&shelf, at(0, 0));
    refused(&shelf, "group 0 has no current device");
    put_back(&shelf, at(0, 1));
    refused(&shelf, "accept loss");
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("accepted");
    let [Loss { group: 0, missing, kept, what, .. }] = &matrix.losses()[..] else {
        panic!("{:?}", matrix.losses());
    };
    assert_eq!((&missing[..], &kept[..]), (&[at(0, 0)][..], &[at(0, 1)][..]), "{what}");
    let owners = deal(2);
    for number in 0..100 {
        let key = key(0, number);
        let is_lost = owners[slot_of(hash_of(&key))] == 0;
        let expected: &[u8] = if is_lost { b"value" } else { b"newer" };
        assert_eq!(matrix.get(&key).expect("get").as_deref(), Some(expected));
        put(&matrix, &key, b"newest");
    }
    drop(matrix);
    // The loss is accepted: nothing more is lost now, and no lost write comes back.
    let matrix = opened(&shelf).expect("open");
    assert!(matrix.losses().is_empty());
    drop(matrix);
    put_back(&shelf, at(0, 0));
    refused(&shelf, "the device at g0d0 was replaced by another");
    take_out(&shelf, at(0, 0));
    let matrix = opened(&shelf).expect("open");
    let options = CopyOptions::default();
    matrix.replace(&shelf, at(0, 0), &options, &|_| {}).expect("a new one takes its place");
    assert_eq!(standing(&matrix, at(0, 0)), MemberState::Current);
    for number in 0..100 {
        assert_eq!(matrix.get(&key(0, number)).expect("get").as_deref(), Some(&b"newest"[..]));
    }
    assert!(matrix.verify(&mut |_| {}).expect("verify").is_sound());
}

/// While a loss was accepted, the missing devices continued without these, through many epochs. They do not count.
#[test]
fn what_continued_elsewhere_does_not_count_after_an_accepted_loss() {
    let shelf = two_by_two(Ack::All);
    take_out(&shelf, at(0, 1));
    opened(&shelf).expect("it is left out").close().expect("close");
    take_out(&shelf, at(1, 1));
    for _ in 0..5 {
        opened(&shelf).expect("the current device of group 0 is there").close().expect("close");
    }
    [at(0, 0), at(1, 0)].into_iter().for_each(|it| take_out(&shelf, it));
    [at(0, 1), at(1, 1)].into_iter().for_each(|it| put_back(&shelf, it));
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("accepted");
    put(&matrix, &key(0, 0), b"newer");
    drop(matrix);
    put_back(&shelf, at(0, 0));
    refused(&shelf, "the device at g0d0 was replaced by another");
}

/// A device whose fill was cut off has a part of the records: its group is not continued with it, whatever is accepted.
#[test]
fn one_that_was_being_filled_does_not_stand_for_its_group() {
    let shelf = two_by_two(Ack::All);
    let matrix = opened(&shelf).expect("open");
    shelf.pull(at(0, 1));
    (0..100).for_each(|number| put(&matrix, &key(0, number), b"newer"));
    let fails = |_| shelf.pull(at(0, 1));
    matrix.replace(&shelf, at(0, 1), &FRESH, &fails).expect_err("it fails");
    assert_eq!(standing(&matrix, at(0, 1)), MemberState::Joining);
    drop(matrix);
    take_out(&shelf, at(0, 0));
    let accept = Options { accept_loss: true, ..Options::default() };
    let refused = Matrix::open(&shelf, &accept, &|_| {}).map(|_| ()).expect_err("refused");
    assert!(refused.to_string().contains("one of g0d0 is needed"), "{refused}");
}

/// The device that acknowledged a write is gone, and its peer cannot execute the write in its ring.
#[test]
fn at_first_reads_fail_when_the_only_holder_is_gone() {
    let shelf = two_by_two(Ack::First);
    // A reader meets the device itself: after stalls of this machine it could ask processors, and wait for the one
    // that lags, with nobody leaving the pulled device out.
    let options = Options { read_path: ReadPath::Inline, ..Options::default() };
    let matrix = Matrix::open(&shelf, &options, &|_| {}).expect("open");
    matrix.sync().expect("all have all");
    let (slot, owners) = (|key: &[u8]| slot_of(hash_of(key)), deal(2));
    let of_group_0: Vec<Vec<u8>> =
        (0..100).map(|number| key(0, number)).filter(|key| owners[slot(key)] == 0).collect();
    let (affected, others) = of_group_0.split_first().expect("keys");
    // At `first` the primary alone acknowledges.
    let (holder, follower) = (at(0, 1), at(0, 0));
    shelf.gate(follower).is_lagging.store(true, Ordering::SeqCst);
    put(&matrix, affected, b"newest");
    shelf.gate(follower).is_full.store(true, Ordering::SeqCst);
    shelf.pull(holder);
    std::thread::scope(|scope| {
        // A read that meets the pulled device waits until its successor has executed what it can.
        scope.spawn(|| {
            while standing(&matrix, holder) != MemberState::Absent {
                for key in others {
                    assert_eq!(matrix.get(key).expect("get").as_deref(), Some(&b"value"[..]));
                }
            }
        });
        // If the follower were found to be full before a read has met the pulled device, that one would be the
        // last member.
        shelf::wait_until(|| shelf.gate(holder).refused.load(Ordering::SeqCst) > 0);
        std::thread::sleep(Duration::from_secs(1));
        shelf.gate(follower).is_lagging.store(false, Ordering::SeqCst);
    });
    let fails = |what: &str, error: Option<Error>| match error {
        // The error of this session, or that of the record, which has the key as a lost range.
        Some(Error::Unusable(why))
            if why.contains("the newest of a key") || why.contains("acknowledged last") => {}
        other => panic!("{what}: {other:?}"),
    };
    fails("get", matrix.get(affected).err());
    let several = |keys: &[&[u8]]| {
        matrix.multi_get(keys, Visibility::Durable, &mut |_, record| assert!(record.is_some()))
    };
    fails("multi_get", several(&[&others[0], affected]).err());
    assert!(several(&[&others[0], &others[1]]).is_ok(), "they are not affected");
    let ordered = matrix.ordered().expect("ordered");
    fails("scan", ordered.scan(b"", None, false, usize::MAX, &mut |_| true).err());
    fails("iterate", matrix.iterate(0, usize::MAX, &mut |_| {}).err());
    fails("put", matrix.put(affected, b"", &WriteOptions::default()).err());
    for key in others {
        assert!(matrix.get(key).expect("get").is_some());
    }
    shelf.gate(follower).is_full.store(false, Ordering::SeqCst);
    put(&matrix, &others[0], b"value");
    // After another open the write is still unknown, and the record has this key alone as a lost range.
    drop(matrix);
    take_out(&shelf, holder);
    let matrix = opened(&shelf).expect("the follower is the primary");
    assert!(matrix.get(affected).is_err());
    for key in others {
        assert_eq!(matrix.get(key).expect("get").as_deref(), Some(&b"value"[..]));
    }
    drop(matrix);
    let accept = Options { accept_loss: true, ..Options::default() };
    let matrix = Matrix::open(&shelf, &accept, &|_| {}).expect("accepted");
    assert_eq!(matrix.get(affected).expect("get").as_deref(), Some(&b"value"[..]));
}
